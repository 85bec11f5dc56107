"""One kept HTTP connection of a worker: requests from memory, answers parsed by llhttp.

A worker makes one to three requests per object. `http.client` parses answers with the package email and costs 104 µs
of CPU for a body of 384 KB, this module 32 µs.
"""

from __future__ import annotations

import re
import socket
import ssl
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from urllib.parse import SplitResult

import httptools

from storeside.transformers.transformer import Data

# Bytes of an answer's status line and headers. `http.client` accepts 100 lines of 64 KiB each.
_LARGEST_HEAD = 256 << 10
_PIECE = 64 << 10
# Seconds to wait for the answer of a server that has closed the connection for sending.
_LAST_ANSWER_SECONDS = 1.0
_UNSAFE = re.compile(r"[\x00-\x20\x7f]")
_UNSAFE_IN_HEADER = re.compile(r"[\x00\r\n]")


class ProtocolError(ConnectionError):
    """The server sent an incomplete or invalid HTTP answer."""


@dataclass(frozen=True)
class Response:
    """An answer. The names of the headers are in lower case; of several with one name the first counts."""

    status: int
    headers: Mapping[str, str]
    body: bytes
    keep_alive: bool


@dataclass(frozen=True)
class Incoming:
    """An answer whose body is still received: `pieces` yields it, and raises OSError if the connection fails."""

    status: int
    headers: Mapping[str, str]
    pieces: Iterator[bytes]


class Connection:
    """A connection to the server of a URL. Raises OSError when it cannot be made, ValueError for a bad URL."""

    def __init__(self, url: SplitResult, tls: ssl.SSLContext | None, silence: float) -> None:
        if not url.hostname:
            raise ValueError(f"{url.geturl()!r} is not an address")
        self._host = url.netloc.rpartition("@")[2]
        port = url.port or (443 if tls else 80)
        self._socket = socket.create_connection((url.hostname, port), timeout=silence)
        try:
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if tls:
                self._socket = tls.wrap_socket(self._socket, server_hostname=url.hostname)
        except BaseException:
            self._socket.close()
            raise

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()

    def request(self, method: str, target: str, body: Data, headers: Mapping[str, str], most: int) -> Response:
        """Send a request and return its answer; at most `most` + 1 bytes of its body, and the rest is not read.

        Raises OSError when the connection fails, and ValueError for what HTTP cannot carry.
        """
        length = len(memoryview(body).cast("B"))
        framing = [f"Content-Length: {length}"] if length or method not in ("GET", "HEAD") else []
        head = self._head(method, target, framing, headers)
        try:
            self._send(head, body)
        except (BrokenPipeError, ConnectionResetError):
            # A server that refuses the body answers before it has read it, and closes. No answer is an error too.
            self._socket.settimeout(_LAST_ANSWER_SECONDS)
            return replace(self._receive(most), keep_alive=False)
        return self._receive(most)

    def stream(
        self, method: str, target: str, pieces: Iterable[Data], headers: Mapping[str, str], most: int
    ) -> Response:
        """Send a request whose body has an unknown length, and return its answer like `request`."""
        if not self.send(method, target, pieces, headers):
            self._socket.settimeout(_LAST_ANSWER_SECONDS)
        return replace(self._receive(most), keep_alive=False)

    def send(self, method: str, target: str, pieces: Iterable[Data], headers: Mapping[str, str]) -> bool:
        """Send a request whose body has an unknown length; return False if the server took only a part of it."""
        self._socket.sendall(self._head(method, target, ["Transfer-Encoding: chunked", "Connection: close"], headers))
        try:
            for piece in pieces:
                with memoryview(piece).cast("B") as view:
                    if view:  # an empty chunk would end the body
                        self._send(b"%x\r\n" % len(view), view)
                        self._socket.sendall(b"\r\n")
            self._socket.sendall(b"0\r\n\r\n")
        except (BrokenPipeError, ConnectionResetError):
            return False
        return True

    def get(self, target: str) -> Incoming:
        """Send a request for an object, and return its answer when its headers have arrived. Raises OSError."""
        self._socket.sendall(self._head("GET", target, ["Connection: close"], {}))
        return self.incoming()

    def incoming(self) -> Incoming:
        """Return the next answer when its headers have arrived. Raises OSError."""
        answer = _Answer()
        while not answer.in_body:
            self._feed(answer)
        return Incoming(answer.parser.get_status_code(), answer.headers, self._body(answer))

    def _body(self, answer: _Answer) -> Iterator[bytes]:
        while True:
            if piece := answer.take():
                yield piece
            if answer.complete or not self._feed(answer):
                return

    def _feed(self, answer: _Answer) -> bool:
        """Parse what arrives next; return False if the end of the connection is the end of the answer."""
        if piece := self._socket.recv(_PIECE):
            answer.feed(piece)
        elif not answer.ends_with_connection():
            raise ProtocolError("the server closed the connection before its answer was complete")
        return bool(piece)

    def shut_down(self) -> None:
        """End the connection, also for a thread that uses it."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def _head(self, method: str, target: str, framing: list[str], headers: Mapping[str, str]) -> bytes:
        if _UNSAFE.search(target):
            raise ValueError(f"{target!r} has characters that a URL cannot have")
        lines = [f"{method} {target} HTTP/1.1", f"Host: {self._host}", "Accept-Encoding: identity", *framing]
        for name, value in headers.items():
            if _UNSAFE.search(name) or _UNSAFE_IN_HEADER.search(value):
                raise ValueError(f"the header {name!r} has characters that a header cannot have")
            lines.append(f"{name}: {value}")
        return "\r\n".join([*lines, "\r\n"]).encode("latin-1")

    def _send(self, head: bytes, body: Data) -> None:
        """Send head and body together: waking the server twice costs more than all other work on a small object."""
        if isinstance(self._socket, ssl.SSLSocket):
            self._socket.sendall(head)
            self._socket.sendall(body)
            return
        with memoryview(body).cast("B") as view:
            sent = self._socket.sendmsg([head, view])
            if sent < len(head):
                self._socket.sendall(head[sent:])
            if (done := max(sent - len(head), 0)) < len(view):
                self._socket.sendall(view[done:])

    def _receive(self, most: int) -> Response:
        answer = _Answer()
        while not answer.complete and answer.size <= most:
            if not self._feed(answer):
                return answer.response(keep_alive=False)
        return answer.response(keep_alive=answer.complete and answer.parser.should_keep_alive())


class _Answer:
    """Collects what llhttp finds in an answer."""

    def __init__(self) -> None:
        self.parser = httptools.HttpResponseParser(self)
        self.complete = False
        self.size = 0
        self._fed = 0
        self.in_body = False
        self.headers: dict[str, str] = {}
        self._body: list[bytes] = []

    def feed(self, piece: bytes) -> None:
        """Parse the next bytes. Raises ProtocolError."""
        self._fed += len(piece)
        try:
            self.parser.feed_data(piece)
        except httptools.HttpParserError as e:
            raise ProtocolError(f"the server's answer is not HTTP: {e}") from e
        if not self.in_body and self._fed > _LARGEST_HEAD:
            raise ProtocolError(f"the head of the server's answer has more than {_LARGEST_HEAD} bytes")

    def ends_with_connection(self) -> bool:
        """Whether the end of the connection ends the body, because the headers do not state its length."""
        return self.in_body and not {"content-length", "transfer-encoding"} & self.headers.keys()

    def response(self, keep_alive: bool) -> Response:
        """Return the answer, and forget its body: the parser keeps this object in memory until garbage collection."""
        return Response(self.parser.get_status_code(), self.headers, self.take(), keep_alive)

    def take(self) -> bytes:
        """Return the part of the body that arrived since the last call."""
        body = b"".join(self._body)
        self._body.clear()
        return body

    def on_header(self, name: bytes, value: bytes) -> None:
        """Keep a header."""
        self.headers.setdefault(name.decode("latin-1").lower(), value.decode("latin-1"))

    def on_headers_complete(self) -> None:
        """Note that the body begins."""
        self.in_body = self.parser.get_status_code() >= 200

    def on_body(self, piece: bytes) -> None:
        """Keep a piece of the body."""
        self.size += len(piece)
        self._body.append(piece)

    def on_message_complete(self) -> None:
        """Note the end of the answer; another one follows an interim answer (1xx)."""
        self.complete = self.in_body
        if not self.in_body:
            self.headers.clear()
