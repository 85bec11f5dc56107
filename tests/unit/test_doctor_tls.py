"""The doctor's remedies for faults of TLS, with a real server and each client."""

from __future__ import annotations

import http.server
import json
import ssl
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import trustme

from storeside.doctor.connections import Connection, systems
from storeside.doctor.examination import examine

HOST = "127.0.0.1"
REMEDIES = {
    "expired": "renew the server's certificate",
    "another host": "use a host name or address in the server's certificate",
    "another authority": "trust the authority that issued the server's certificate: name its file in the connection",
    "client certificate": "the TLS handshake failed: check whether the server requires a client certificate",
    "no TLS": "the server speaks no TLS at this port",
}


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_error(404)

    do_POST = do_PUT = do_HEAD = do_GET

    def log_message(self, format: str, *args: Any) -> None: ...


class Server(http.server.ThreadingHTTPServer):
    def handle_error(self, request: Any, client_address: Any) -> None: ...


@pytest.fixture(params=REMEDIES)
def fault(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[str, int]]:
    """The remedy for a fault, and the port of a server that has it; its authority is in ``ca.pem``."""
    authority, other = trustme.CA(), trustme.CA()
    now = datetime.now(UTC).replace(tzinfo=None)
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    server = Server((HOST, 0), Handler)
    if request.param != "no TLS":
        certificate = {
            "expired": lambda: authority.issue_cert(HOST, not_after=now - timedelta(days=1)),
            "another host": lambda: authority.issue_cert("elsewhere.example", "127.0.0.2"),
            "another authority": lambda: other.issue_cert(HOST),
            "client certificate": lambda: authority.issue_cert(HOST),
        }[request.param]()
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        certificate.configure_cert(context)
        if request.param == "client certificate":
            # TLS 1.2 requests it in the handshake, so that clients never fail with a reset connection instead.
            context.maximum_version, context.verify_mode = ssl.TLSVersion.TLSv1_2, ssl.CERT_REQUIRED
            authority.configure_trust(context)
        server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield REMEDIES[request.param], server.server_port
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize(
    ("system", "setting"),
    [
        ("aistore", "ca_cert"),
        ("authn", "ca_cert"),
        ("clickhouse", "ca_cert in client_kwargs"),
        ("s3", "extra verify"),
    ],
)
def test_each_fault_of_tls_has_a_remedy_that_names_the_setting(
    fault: tuple[str, int], system: str, setting: str, tmp_path: Path
) -> None:
    remedy, port = fault
    ca, url = str(tmp_path / "ca.pem"), f"https://{HOST}:{port}"
    extras: dict[str, dict[str, Any]] = {
        "aistore": {"ca_cert": ca},
        "authn": {"ca_cert": ca, "authn_url": url},
        "clickhouse": {"secure": True, "client_kwargs": {"ca_cert": ca}},
        "s3": {"endpoint_url": url, "verify": ca, "config_kwargs": {"retries": {"total_max_attempts": 1}}},
    }
    name = {"authn": "aistore", "s3": "aws"}.get(system, system)
    given = {"host": HOST, "port": port, "login": "someone", "password": "a password", "extra": extras[system]}
    schema = {"conn_type": "http", "schema": "https"} if name == "aistore" else {"conn_type": name}
    connection = Connection.parse(f"{name}_default", json.dumps({**given, **schema}))
    findings = examine(systems({name: connection}, "bucket"))
    failed = next(f for f in findings if f.state == "failed")
    assert failed.remedy.startswith(remedy), failed
    assert setting in failed.remedy or "certificate" in remedy.partition(":")[0], failed
