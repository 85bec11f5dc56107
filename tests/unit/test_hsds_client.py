"""Slabs over HTTP: a body that is compressed, or longer than the slab, is not taken for its elements."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import numpy as np
import pytest

from storeside.hsds.client import Client, Dataset, Server
from storeside.hsds.errors import HsdsInputError
from storeside.hsds.plan import Slab

# Compressed it is longer, so that its length does not show the compression.
VALUES = np.random.default_rng(5).bytes(100_000)
DATASET = Dataset("/d.h5", "/t", "d-1", {}, (len(VALUES),), (len(VALUES),))
SLAB = Slab((range(len(VALUES)),))


class Handler(BaseHTTPRequestHandler):
    """Answers with `VALUES` by the domain's server: compressed if accepted, always, or with further bytes."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        kind = self.path.split("/")[1]
        accepted = "gzip" in self.headers.get("Accept-Encoding", "")
        compressed = kind == "always" or (kind == "accepted" and accepted)
        body = gzip.compress(VALUES) if compressed else VALUES + b"x" * (kind == "more")
        self.send_response(200)
        if compressed:
            self.send_header("Content-Encoding", "gzip")
        if kind == "chunked":
            self.send_header("Transfer-Encoding", "chunked")
            body = b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)
        else:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_PUT(self) -> None:
        self.send_response(int(self.path.split("/")[1]))
        self.send_header("Location", f"http://user:secret@{self.headers['Host']}/plain/x?token=secret")
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def endpoint() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.mark.parametrize("kind", ["plain", "accepted", "chunked"])
def test_a_slab_comes_as_it_is(endpoint: str, kind: str) -> None:
    client, buffer = Client(Server(f"{endpoint}/{kind}")), bytearray(len(VALUES))
    for _ in range(2):  # the connection is used again
        client.read_into(DATASET, SLAB, memoryview(buffer))
        assert bytes(buffer) == VALUES
    assert client.read(DATASET, SLAB, len(VALUES)) == VALUES


def test_what_is_compressed_all_the_same_is_refused(endpoint: str) -> None:
    client = Client(Server(f"{endpoint}/always"))
    said = r"dataset '/t' of '/d.h5': the answer is compressed \(gzip\).*: turn off the compression of HSDS at http"
    with pytest.raises(HsdsInputError, match=said):
        client.read_into(DATASET, SLAB, memoryview(bytearray(len(VALUES))))
    with pytest.raises(HsdsInputError, match=said):
        client.read(DATASET, SLAB, len(VALUES))


def test_what_is_longer_than_the_slab_is_refused(endpoint: str) -> None:
    with pytest.raises(HsdsInputError, match=r"\[0:100000\]: the answer has more than the slab's 100000 bytes"):
        Client(Server(f"{endpoint}/more")).read_into(DATASET, SLAB, memoryview(bytearray(len(VALUES))))


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_a_write_that_is_redirected_is_refused(endpoint: str, status: int) -> None:
    client = Client(Server(f"{endpoint}/{status}"))
    said = rf"redirects to http://127.0.0.1/plain/x \({status}\): set the connection's host"
    for write in (lambda: client.write(DATASET, SLAB, VALUES), lambda: client.flush(DATASET.domain)):
        with pytest.raises(HsdsInputError, match=said):
            write()
