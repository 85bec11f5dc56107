"""Logins to an AuthN that refuses requests for a moment, as an ingress does while AuthN is rolled out."""

from __future__ import annotations

import json
import threading
import time
from base64 import urlsafe_b64encode
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from storeside.aistore.errors import AIStoreInputError
from storeside.aistore.login import Login

LIFE = 100.0


class Answers(BaseHTTPRequestHandler):
    """AuthN behind an ingress."""

    status, body, logins = 200, b"", 0

    def do_POST(self) -> None:
        kind = type(self)
        kind.logins += 1
        claims = urlsafe_b64encode(json.dumps({"exp": time.time() + LIFE}).encode()).rstrip(b"=").decode()
        self.send_response(kind.status)
        self.end_headers()
        self.wfile.write(kind.body or json.dumps({"token": f"head.{claims}.{kind.logins}"}).encode())

    def log_message(self, *_: Any) -> None: ...


@pytest.fixture
def authn() -> Iterator[str]:
    Answers.status, Answers.body = 200, b""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize(("status", "body"), [(404, b"default backend"), (403, b"no"), (200, b"<html>")])
def test_a_valid_token_stays_in_use_while_authn_is_rolled_out(
    authn: str, monkeypatch: pytest.MonkeyPatch, status: int, body: bytes
) -> None:
    user = Login(authn, "airflow", "right")
    token, began = str(user), time.time()
    Answers.status, Answers.body = status, body
    now = [began + 0.75 * LIFE]  # a new token is due
    monkeypatch.setattr("storeside.aistore.login.time.time", lambda: now[0])
    logins = Answers.logins
    assert [str(user), str(user)] == [token, token]
    assert Answers.logins == logins + 1, "not for each request"
    now[0] = began + LIFE
    with pytest.raises(AIStoreInputError, match=r"correct login and password|correct the address of AuthN"):
        str(user)
