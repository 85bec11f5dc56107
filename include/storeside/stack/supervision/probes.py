"""Probes of the stack's ports that detect a connection to themselves.

The stack's ports are in the kernel's range for outgoing connections. If no server listens on such a port, the probe's
own socket may get the same port. TCP then connects the socket to itself (RFC 9293, simultaneous open): the probe
reads its own request as the answer, and the port is taken meanwhile.
"""

from __future__ import annotations

import json
import socket
import ssl
import struct
import urllib.request
from collections.abc import Mapping
from functools import cache
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from pathlib import Path
from typing import Any

# Errors of a probe: no server listens, or the answer is not HTTP.
UNANSWERED = (OSError, HTTPException)
_RESET_AT_CLOSE = struct.pack("ii", 1, 0)  # on, 0 s: frees the port at once instead of after a minute


def refuse_itself(connection: socket.socket) -> None:
    """Close a TCP connection that leads to itself, and raise ConnectionRefusedError, because no server listens."""
    if connection.getsockname() == connection.getpeername():
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_AT_CLOSE)
        connection.close()
        raise ConnectionRefusedError("nothing listens: the connection led to itself")


def listens(host: str, port: int) -> bool:
    """Return whether a server accepts a TCP connection within a second."""
    try:
        with socket.create_connection((host, port), 1.0) as connection:
            refuse_itself(connection)
    except OSError:
        return False
    return True


class Connection(HTTPConnection):
    """An HTTP connection that raises ConnectionRefusedError if it would lead to itself."""

    def connect(self) -> None:
        """Connect to the server."""
        super().connect()
        refuse_itself(self.sock)


class _SecureConnection(HTTPSConnection):
    """The same over TLS."""

    def connect(self) -> None:
        """Connect to the server."""
        super().connect()
        refuse_itself(self.sock)


class _Handler(urllib.request.HTTPHandler):
    def http_open(self, request: urllib.request.Request) -> HTTPResponse:
        return self.do_open(Connection, request)


@cache
def _opener(authority: Path | None) -> urllib.request.OpenerDirector:
    """Return an opener that uses no proxy and trusts only `authority`, or the system's authorities without one."""
    context = ssl.create_default_context(cafile=authority)

    class Secure(urllib.request.HTTPSHandler):
        def https_open(self, request: urllib.request.Request) -> HTTPResponse:
            return self.do_open(_SecureConnection, request, context=context)

    return urllib.request.build_opener(urllib.request.ProxyHandler({}), _Handler(), Secure())


def answers(
    url: str, timeout: float = 1.0, headers: Mapping[str, str] | None = None, authority: Path | None = None
) -> bool:
    """Return whether a GET of `url` is answered with a status below 400 within `timeout` seconds.

    Over HTTPS the server's certificate must come from the `authority` in this file.
    """
    try:
        request = urllib.request.Request(url, headers=dict(headers or {}))  # noqa: S310 - our own URLs
        with _opener(authority).open(request, timeout=timeout) as response:
            return bool(response.status < 400)
    except UNANSWERED:
        return False


def json_of(url: str) -> dict[str, Any]:
    """Return the JSON object in the answer to a GET of `url`; empty if there is no such answer."""
    try:
        with _opener(None).open(url, timeout=2.0) as response:
            answer = json.load(response)
    except (*UNANSWERED, ValueError):
        return {}
    return answer if isinstance(answer, dict) else {}
