"""Large contents go to a target alone: AIStore's proxy gets a request without a content."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from storeside.transformers.settings import Settings
from storeside.transformers.workers.http_client import HttpClient
from storeside.transformers.workers.sidecar import Sidecars

LARGE, SMALL = bytes(range(256)) * 1024, b"small"


class Cluster(ThreadingHTTPServer):
    """A proxy, which redirects from /v1/objects/ to /target/, and a target."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.seen: list[tuple[str, bytes]] = []
        self.redirects = True
        self.busy = 0


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Cluster

    def do_PUT(self) -> None:
        content = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.server.seen.append((self.path.split("/")[1], content))
        is_target = self.path.startswith("/target/") or not self.server.redirects
        self.server.busy -= is_target
        self.send_response(503 if is_target and self.server.busy >= 0 else 200 if is_target else 307)
        if not is_target:
            self.send_header("Location", f"/target{self.path}")
        self.send_header("Ais-Version", "1")
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with Cluster() as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


def put(cluster: Cluster, content: bytes, path: str = "/v1/objects/out/") -> str:
    client = HttpClient(Settings(retries=1))
    found = Sidecars(f"http://127.0.0.1:{cluster.server_port}{path}", client).put("a", content)
    for connection in client._connections.values():
        connection.close()
    return found


def test_only_a_target_gets_a_large_content(cluster: Cluster) -> None:
    assert put(cluster, LARGE) == f"1/{len(LARGE)}"
    assert cluster.seen == [("v1", b""), ("target", LARGE)]


def test_a_small_content_needs_no_request_more(cluster: Cluster) -> None:
    put(cluster, SMALL)
    assert cluster.seen == [("v1", SMALL), ("target", SMALL)]


@pytest.mark.parametrize("path", ["/v1/objects/out/", "/any/store/"])
def test_a_store_that_does_not_redirect_has_the_content(cluster: Cluster, path: str) -> None:
    cluster.redirects = False
    put(cluster, LARGE, path)
    assert cluster.seen[-1] == (path.split("/")[1], LARGE)


def test_the_proxy_names_the_target_again_when_it_did_not_take_the_content(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("storeside.transformers.workers.http_client.time.sleep", lambda _: None)
    cluster.busy = 1
    put(cluster, LARGE)
    assert cluster.seen == [("v1", b""), ("target", LARGE)] * 2
