"""A catalogue that speaks Iceberg's REST protocol, as far as a reader needs it; its tables are pyiceberg's.

It refuses requests without its token, and gives the token to one OAuth client.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING
from urllib.parse import parse_qs, unquote

from pyiceberg.exceptions import NoSuchTableError

from storeside.stack.settings import HOST

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog

TOKEN, CLIENT, SECRET = "token-of-the-catalogue", "loader", "secret-of-the-client"


@dataclass
class RestCatalog:
    """A running server; `status` replaces the answer to questions for tables unless it is 0."""

    url: str
    status: int = 0


class Handler(BaseHTTPRequestHandler):
    """Answers for the tables of its server."""

    server: _Server

    def log_message(self, format: str, *args: object) -> None:
        pass

    def answer(self, status: int, content: object) -> None:
        body = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def refuse(self, status: int, kind: str) -> None:
        self.answer(status, {"error": {"message": f"{kind} by the test", "type": kind, "code": status}})

    def do_POST(self) -> None:
        form = parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())
        if (form.get("client_id"), form.get("client_secret")) == ([CLIENT], [SECRET]):
            self.answer(200, {"access_token": TOKEN, "token_type": "bearer", "expires_in": 3600})
        else:
            self.answer(401, {"error": "invalid_client", "error_description": "unknown client"})

    def do_GET(self) -> None:
        if self.headers.get("Authorization") != f"Bearer {TOKEN}":
            return self.refuse(401, "NotAuthorizedException")
        if self.path.startswith("/v1/config"):
            return self.answer(200, {"defaults": {}, "overrides": {}})
        if self.server.running.status:
            return self.refuse(self.server.running.status, "Broken")
        _, _, _, namespace, _, name = self.path.partition("?")[0].split("/")
        try:
            found = self.server.tables.load_table((*unquote(namespace).split("\x1f"), unquote(name)))
        except NoSuchTableError:
            return self.refuse(404, "NoSuchTableException")
        metadata = json.loads(found.metadata.model_dump_json())
        self.answer(200, {"metadata-location": found.metadata_location, "metadata": metadata, "config": {}})
        return None


class _Server(ThreadingHTTPServer):
    def __init__(self, tables: Catalog) -> None:
        super().__init__((HOST, 0), Handler)
        self.tables = tables
        self.running = RestCatalog(f"http://{HOST}:{self.server_address[1]}")


@contextmanager
def serve(tables: Catalog) -> Iterator[RestCatalog]:
    """Serve the tables of a catalogue on a free port of the loopback address."""
    with _Server(tables) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server.running
        finally:
            server.shutdown()
            thread.join()
