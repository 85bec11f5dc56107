"""Names that lead elsewhere, by class, and a server in AIStore's place that keeps the paths of its requests."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

# Names of objects. All are harmless: they would lead to objects and buckets called canary.
NAMES = {
    "to the parent": "../canary",
    "past a folder": "a/../../canary",
    "past the bucket's folder": "../../../canary/x.wav",
    "ends at the parent": "a/..",
    "absolute": "/canary",
    "double slash": "a//canary",
    "this folder first": "./canary",
    "this folder inside": "a/./canary",
    "home": "~/canary",
    "line feed": "a\ncanary",
    "NUL": "a\0canary",
    "delete": "a\x7fcanary",
    "long": "n" * 256,
    "folder": "canary/",
    "none": "",
    "no Unicode": "a\ud800",
}
# Prefixes of names, each of which would lead all names elsewhere.
PREFIXES = {name: NAMES[name] + "/" for name in (
    "to the parent", "past a folder", "absolute", "double slash", "this folder first", "home", "line feed", "NUL",
)}  # fmt: skip
# Extensions of results.
EXTENSIONS = {
    "to another bucket": "x/../../../canary/x.wav",
    "to the parent": "x/../canary",
    "into a folder": "x/canary",
    "only dots": "..",
    "one dot": ".",
    "none": "",
    "dot at the end": "x.",
    "two dots": "x..y",
    "slash": "/",
    "backslash": "x\\canary",
    "escaped slash": "x%2fcanary",
    "line feed": "x\ny",
    "NUL": "x\0y",
    "space": "x y",
}


def by_class(values: dict[str, str]) -> dict[str, Any]:
    """Return the arguments of ``pytest.mark.parametrize`` for these values, with their classes as ids."""
    return {"argvalues": list(values.values()), "ids": [name.replace(" ", "-") for name in values]}


@contextmanager
def listening() -> Iterator[tuple[str, list[str]]]:
    """Yield the URL of a server that answers every request, and the paths of these requests."""
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def answer(self) -> None:
            asked.append(f"{self.command} {self.path}")
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            self.send_response(200)
            self.send_header("Content-Length", "2")
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(b"{}")

        do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = do_PATCH = answer

        def log_message(self, *_: object) -> None:
            """Write nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", asked
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
