"""Probes of the stack's ports that detect a connection to themselves.

The stack's ports are in the kernel's range for outgoing connections. If no server listens on such a port, the probe's
own socket may get the same port. TCP then connects the socket to itself (RFC 9293, simultaneous open): the probe
reads its own request as the answer, and the port is taken meanwhile.
"""

from __future__ import annotations

import json
import socket
import struct
import urllib.request
from collections.abc import Mapping
from http.client import HTTPConnection, HTTPException, HTTPResponse
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


def listens(host: str, port: int, timeout: float = 1.0) -> bool:
    """Return whether a server accepts a TCP connection within `timeout` seconds."""
    try:
        with socket.create_connection((host, port), timeout) as connection:
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


class _Handler(urllib.request.HTTPHandler):
    def http_open(self, request: urllib.request.Request) -> HTTPResponse:
        return self.do_open(Connection, request)


_direct = urllib.request.build_opener(urllib.request.ProxyHandler({}), _Handler())


def answers(url: str, timeout: float = 1.0, headers: Mapping[str, str] | None = None) -> bool:
    """Return whether a GET of `url` is answered with a status below 400 within `timeout` seconds."""
    try:
        request = urllib.request.Request(url, headers=dict(headers or {}))  # noqa: S310 - our own URLs
        with _direct.open(request, timeout=timeout) as response:
            return bool(response.status < 400)
    except UNANSWERED:
        return False


def json_of(url: str, timeout: float = 2.0) -> dict[str, Any]:
    """Return the JSON object in the answer to a GET of `url`; empty if there is no such answer."""
    try:
        with _direct.open(url, timeout=timeout) as response:
            answer = json.load(response)
    except (*UNANSWERED, ValueError):
        return {}
    return answer if isinstance(answer, dict) else {}
