"""A worker's HTTP requests: to targets, to the next ETL of a pipeline, and for sidecars.

The client keeps one connection per server and copies no data: for results of megabytes, copying and connecting would
be most of the work. It follows redirects only to the same server and to AIStore's nodes.
"""

from __future__ import annotations

import json
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, TypeVar
from urllib.parse import SplitResult, urljoin, urlsplit

from storeside.transformers.settings import Settings
from storeside.transformers.transformer import Data

from .http_connection import Connection, Incoming, Response

# Seconds without a byte after which the client gives up on a server and repeats the request.
_SILENCE = 60.0
_LONGEST_DELAY = 30.0
_BUSY = (429, 502, 503, 504)
_REDIRECTS = (301, 302, 307, 308)
_MOST_REDIRECTS = 3
_REASON_LENGTH = 300
# Bytes of an answer in which its explanation is looked for.
_EXPLANATION = 4096
A = TypeVar("A", Response, Incoming)


class DeliveryError(Exception):
    """An object's bytes did not reach their destination; the object is the cause only if `final` is set."""

    def __init__(self, reason: str, final: bool = False) -> None:
        super().__init__(reason)
        self.final = final


class HttpClient:
    """Sends requests over kept connections; repeats them up to `settings.retries` times after transient errors."""

    def __init__(self, settings: Settings) -> None:
        self._retries = settings.retries
        self._nodes = nodes_of(settings)
        self._most = settings.largest_body
        self._seconds = settings.object_timeout
        self._verify, self._certificate = settings.tls
        self._connections: dict[tuple[str, str], Connection] = {}
        self._tls: ssl.SSLContext | None = None

    def request(self, method: str, url: str, body: Data = b"", headers: Mapping[str, str] | None = None) -> Response:
        """Send a request and return the answer with any status. Raises DeliveryError."""
        return self._repeated(method, url, lambda: self._follow(method, url, body, headers or {}))

    @contextmanager
    def download(self, url: str) -> Iterator[Incoming]:
        """Request an object and yield the answer, with any status, while its body is received.

        Raises DeliveryError; `Incoming.pieces` raises OSError.
        """
        opened: list[Connection] = []
        try:
            yield self._repeated("GET", url, lambda: self._opened(url, opened))
        finally:
            for connection in opened:
                connection.close()

    @contextmanager
    def through(self, url: str, pieces: Iterator[Data], headers: Mapping[str, str]) -> Iterator[Incoming]:
        """Send a body of unknown length by PUT, and yield the answer, which may begin before the body ends.

        The next ETL of a chain answers in this way, always over HTTP without TLS: TLS does not allow one thread to
        send while another receives. `pieces` may end early, when the answer is complete. Raises DeliveryError, and
        the errors of `pieces`, after which the server has received no complete body.
        """
        parts = urlsplit(url)
        errors: list[BaseException] = []

        def send() -> None:
            try:
                connection.send("PUT", _target(parts), pieces, headers)
            except BaseException as e:
                errors.append(e)
                connection.shut_down()

        try:
            connection = Connection(parts, None, max(_SILENCE, self._seconds))
            thread = threading.Thread(target=send, daemon=True)
            thread.start()
            try:
                yield connection.incoming()
            finally:
                connection.shut_down()
                thread.join()
                connection.close()
                if errors:
                    raise errors[0]
        except OSError as e:
            raise _failed("PUT", url, e) from e

    def _opened(self, url: str, opened: list[Connection]) -> Incoming:
        for _ in range(_MOST_REDIRECTS):
            parts = urlsplit(url)
            opened.append(self._open(parts))
            answer = opened[-1].get(_target(parts))
            location = answer.headers.get("location")
            if answer.status not in _REDIRECTS or not location:
                return answer
            url = self._redirected(url, location)
        return answer

    def _repeated(self, method: str, url: str, exchange: Callable[[], A]) -> A:
        delay = 1.0
        for left in range(self._retries, -1, -1):
            try:
                answer = exchange()
                if answer.status not in _BUSY or not left:
                    return answer
            except OSError as e:
                if not left:
                    raise _failed(method, url, e) from e
            except (ValueError, UnicodeError) as e:  # the address or a header is not valid in HTTP
                raise DeliveryError(f"{method}: {e}", final=True) from e
            time.sleep(delay)
            delay = min(2 * delay, _LONGEST_DELAY)
        raise AssertionError

    def stream(self, url: str, pieces: Iterator[Data], headers: Mapping[str, str]) -> Response:
        """PUT a body of unknown length once, on a new connection, and return the answer with any status.

        Raises DeliveryError. An error of `pieces` ends the connection within the body, so the server stores nothing.
        """
        parts = urlsplit(url)
        try:
            connection = self._open(parts)
            try:
                return connection.stream("PUT", _target(parts), pieces, headers, self._most)
            finally:
                connection.close()
        except OSError as e:
            raise _failed("PUT", url, e) from e

    def _follow(self, method: str, url: str, body: Data, headers: Mapping[str, str]) -> Response:
        for _ in range(_MOST_REDIRECTS):
            answer = self._exchange(method, url, body, headers)
            location = answer.headers.get("location")
            if answer.status not in _REDIRECTS or not location:
                return answer
            url = self._redirected(url, location)
        return answer

    def _redirected(self, url: str, location: str) -> str:
        """Return the address of a redirect. Raises DeliveryError if it leads to a foreign server."""
        before, after = urlsplit(url), urlsplit(urljoin(url, location))
        same = (before.scheme, before.netloc) == (after.scheme, after.netloc)
        if not same and (after.scheme != before.scheme or address_of(after) not in self._nodes):
            raise DeliveryError(
                f"{before.netloc} redirects to {after.netloc}, which is not a node of AIStore; AIS_NODES lists them"
            )
        return after.geturl()

    def _exchange(self, method: str, url: str, body: Data, headers: Mapping[str, str]) -> Response:
        parts = urlsplit(url)
        server = (parts.scheme, parts.netloc)
        connection = self._connections.pop(server, None)
        if connection is not None:
            try:
                return self._converse(connection, method, parts, body, headers)
            except ConnectionError:  # the server closed the idle connection: retry at once
                connection.close()
        connection = self._open(parts)
        try:
            return self._converse(connection, method, parts, body, headers)
        except BaseException:
            connection.close()
            raise

    def _converse(
        self, connection: Connection, method: str, parts: SplitResult, body: Data, headers: Mapping[str, str]
    ) -> Response:
        answer = connection.request(method, _target(parts), body, headers, self._most)
        if answer.keep_alive:
            self._connections[parts.scheme, parts.netloc] = connection
        else:
            connection.close()
        if len(answer.body) > self._most:
            raise DeliveryError(f"the answer has more than {self._most} bytes (MAX_BODY)", final=True)
        return answer

    def _open(self, parts: SplitResult) -> Connection:
        if parts.scheme != "https":
            return Connection(parts, None, _SILENCE)
        self._tls = self._tls or _tls_context(self._verify, self._certificate)
        return Connection(parts, self._tls, _SILENCE)


def _failed(method: str, url: str, error: OSError) -> DeliveryError:
    return DeliveryError(f"{method} to {urlsplit(url).netloc} failed: {type(error).__name__}: {error}")


def _target(url: SplitResult) -> str:
    return f"{url.path or '/'}?{url.query}" if url.query else url.path or "/"


def reason(answer: Response | Incoming) -> str:
    """Return the status of an answer and the server's explanation, which AIStore sends as JSON."""
    body = answer.body if isinstance(answer, Response) else _beginning(answer.pieces)
    text = body[:_EXPLANATION].decode("utf-8", "replace").strip()
    with suppress(ValueError, TypeError, KeyError):
        text = json.loads(text)["message"]
    return f"HTTP {answer.status}: {str(text)[:_REASON_LENGTH]}".rstrip(": ")


def _beginning(pieces: Iterator[bytes]) -> bytes:
    body = bytearray()
    while len(body) < _EXPLANATION and (piece := next(pieces, b"")):
        body += piece
    return bytes(body)


def address_of(url: SplitResult) -> str:
    """Return host and port of an address. Raises ValueError if the port is not a number."""
    return f"{url.hostname}:{url.port or (443 if url.scheme == 'https' else 80)}"


def nodes_of(settings: Settings) -> frozenset[str]:
    """Return the addresses (host:port) of AIStore's nodes: the target's own, and those in the cluster map."""
    if not settings.target_url:
        return settings.nodes
    return settings.nodes | {address_of(urlsplit(settings.target_url))}


def _tls_context(verify: bool | str, certificate: Any) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=verify if isinstance(verify, str) else None)
    if verify is False:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if certificate:
        context.load_cert_chain(*([certificate] if isinstance(certificate, str) else certificate))
    return context
