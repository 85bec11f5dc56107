"""The worker's HTTP connection against answers of every form, with http.client as the reference."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from http.client import HTTPConnection
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import trustme
from hypothesis import given, settings
from hypothesis import strategies as st

from storeside.transformers.workers.http_connection import Connection, ProtocolError, Response

MOST = 1 << 20


@contextmanager
def serving(
    *pieces: bytes, tls: ssl.SSLContext | None = None, read: bool = True
) -> Iterator[tuple[str, list[bytes]]]:
    """Answer the first connection with these pieces, then close it; yield the URL and the received bytes."""
    received: list[bytes] = []
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:

        def serve() -> None:
            connection, _ = listener.accept()
            with closing(tls.wrap_socket(connection, server_side=True) if tls else connection) as end:
                end.settimeout(5)
                request = b""
                while read and b"\r\n\r\n" not in request:
                    request += end.recv(1 << 16)
                head, _, body = request.partition(b"\r\n\r\n")
                length = next((int(h[15:]) for h in head.split(b"\r\n") if h.startswith(b"Content-Length:")), 0)
                while read and len(body) < length:
                    body += end.recv(1 << 20)
                received.extend([head, body])
                for piece in pieces:
                    end.sendall(piece)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield f"http{'s' if tls else ''}://127.0.0.1:{listener.getsockname()[1]}/x", received
        finally:
            thread.join(10)


def ask(url: str, method: str = "GET", body: bytes = b"", tls: ssl.SSLContext | None = None) -> Response:
    """Send one request over a new connection."""
    connection = Connection(urlsplit(url), tls, 5)
    with closing(connection):
        return connection.request(method, "/x", body, {"Ais-Node-Url": "a,b"}, MOST)


def reference(url: str) -> tuple[int, dict[str, str], bytes]:
    """Return http.client's answer to the same request."""
    with closing(HTTPConnection(urlsplit(url).netloc, timeout=5)) as connection:
        connection.request("GET", "/x")
        answer = connection.getresponse()
        headers: dict[str, str] = {}
        for name, value in answer.getheaders():
            headers.setdefault(name.lower(), value)
        return answer.status, headers, answer.read()


TOKENS = st.text("abcXYZ-019", min_size=1, max_size=12)
VALUES = st.text('abc XYZ=;,"\xe9/:019', max_size=30).map(str.strip)
BODIES = st.binary(max_size=300)


@st.composite
def answers(draw: st.DrawFn) -> bytes:
    """Generate an answer: of a stated length, in chunks, or ended by the connection."""
    status = draw(st.sampled_from([200, 201, 204, 301, 404, 422, 500, 503]))
    reserved = {"content-length", "transfer-encoding", "connection"}
    headers = draw(st.lists(st.tuples(TOKENS.filter(lambda name: name.lower() not in reserved), VALUES), max_size=5))
    body = b"" if status == 204 else draw(BODIES)
    form = "none" if status == 204 else draw(st.sampled_from(["length", "chunks", "end"]))
    if form == "length":
        headers.append(("Content-Length", str(len(body))))
    elif form == "chunks":
        headers.append(("Transfer-Encoding", "chunked"))
        cut = draw(st.integers(0, len(body)))
        parts = [part for part in (body[:cut], body[cut:]) if part]
        body = b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in parts) + b"0\r\n\r\n"
    lines = [f"HTTP/1.1 {status} Text", *(f"{name}: {value}" for name, value in headers), "", ""]
    interim = draw(st.sampled_from([b"", b"HTTP/1.1 100 Continue\r\n\r\n"]))
    return interim + "\r\n".join(lines).encode("latin-1") + body


@settings(max_examples=150, deadline=None)
@given(answers(), st.data())
def test_an_answer_is_read_as_http_client_reads_it(answer: bytes, data: st.DataObject) -> None:
    cut = data.draw(st.integers(0, len(answer)))
    with serving(answer[:cut], answer[cut:]) as (url, _):
        ours = ask(url)
    with serving(answer) as (url, _):
        assert (ours.status, dict(ours.headers), ours.body) == reference(url)


@settings(max_examples=60, deadline=None)
@given(answers().filter(lambda answer: b"Content-Length" in answer or b"chunked" in answer), st.data())
def test_a_cut_answer_is_an_error(answer: bytes, data: st.DataObject) -> None:
    cut = data.draw(st.integers(0, len(answer) - 1))
    with serving(answer[:cut]) as (url, _), pytest.raises(ProtocolError, match="before its answer was complete"):
        ask(url)


@pytest.mark.parametrize("answer", [b"SSH-2.0-OpenSSH\r\n", b"HTTP/1.1 2x0 OK\r\n\r\n", b"\0" * 100])
def test_another_protocol_is_an_error(answer: bytes) -> None:
    with serving(answer) as (url, _), pytest.raises(ProtocolError, match="is not HTTP"):
        ask(url)


def test_an_endless_head_is_an_error() -> None:
    with (
        serving(b"HTTP/1.1 200 OK\r\n" + b"A: b\r\n" * 60_000) as (url, _),
        pytest.raises(ProtocolError, match="head"),
    ):
        ask(url)


def test_a_body_beyond_the_limit_is_not_read() -> None:
    head = b"HTTP/1.1 200 OK\r\nContent-Length: 3000000\r\n\r\n"
    with serving(head, b"x" * (MOST + 10)) as (url, _):
        answer = ask(url)
    assert MOST < len(answer.body) < 3_000_000
    assert not answer.keep_alive


@pytest.mark.parametrize("size", [0, 1, 100_000, 20_000_000])
def test_head_and_body_arrive(size: int) -> None:
    body = bytes(range(256)) * (size // 256) + bytes(size % 256)
    with serving(b"HTTP/1.1 204 No Content\r\n\r\n") as (url, received):
        assert ask(url, "PUT", body).status == 204
    head = received[0].split(b"\r\n")
    assert head[0] == b"PUT /x HTTP/1.1"
    assert b"Ais-Node-Url: a,b" in head
    assert f"Content-Length: {size}".encode() in head
    assert received[1] == body


def test_a_server_that_refuses_before_it_has_read_is_heard() -> None:
    answer = b"HTTP/1.1 413 Too Large\r\nContent-Length: 2\r\n\r\nno"
    with serving(answer, read=False) as (url, _):
        answered = ask(url, "PUT", bytes(1000))
    assert (answered.status, answered.body) == (413, b"no")


@pytest.mark.parametrize(("target", "headers"), [("/a b", {}), ("/a\r\nX: y", {}), ("/a", {"X": "y\r\nZ: z"})])
def test_what_http_cannot_carry_is_refused(target: str, headers: dict[str, str]) -> None:
    with (
        serving(read=False) as (url, _),
        closing(Connection(urlsplit(url), None, 5)) as connection,
        pytest.raises(ValueError, match="cannot have"),
    ):
        connection.request("GET", target, b"", headers, MOST)


def test_tls_with_the_right_authority_only(tmp_path: Path) -> None:
    authority = trustme.CA()
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(server)
    client = ssl.create_default_context()
    authority.configure_trust(client)
    body = bytes(500_000)
    with serving(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok", tls=server) as (url, received):
        assert ask(url, "PUT", body, client).body == b"ok"
    assert received[1] == body
