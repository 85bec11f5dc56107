"""Finding 3: a transformer answers only AIStore, and gives its secrets to AIStore's nodes only.

The attacker reaches the port of a transformer, and does not know the ETL's secret.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
import requests
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from storeside.stack.settings import CHECKOUT, Stack, free_ports
from storeside.transformers.server.sender import HEADER, Senders, proof
from storeside.transformers.settings import Settings
from tests.support import until

SECRET, TOKEN = "the-secret-of-the-etl", "the-token-of-authn"
CONTENT = b"what is stored"
UNAME = quote("ais/@#/out/x", safe="@")


@dataclass
class Web:
    """A web server that keeps every request with its headers, and redirects if told so."""

    url: str
    requests: list[tuple[str, str]] = field(default_factory=list)
    redirect: str = ""

    @property
    def netloc(self) -> str:
        return self.url.removeprefix("http://")

    def seen(self) -> str:
        return "\n".join(f"{line}\n{headers}" for line, headers in self.requests)


def serve_web() -> tuple[Web, ThreadingHTTPServer]:
    class Handler(BaseHTTPRequestHandler):
        web: Web

        def _handle(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            self.web.requests.append((self.requestline, str(self.headers)))
            self.send_response(307 if self.web.redirect else 200)
            if self.web.redirect:
                self.send_header("Location", self.web.redirect)
            self.send_header("Content-Length", "0")
            self.end_headers()

        do_GET = do_PUT = _handle

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    Handler.web = Web(f"http://127.0.0.1:{server.server_port}")
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return Handler.web, server


@pytest.fixture
def webs() -> Iterator[Callable[[], Web]]:
    made = []

    def make() -> Web:
        web, server = serve_web()
        made.append(server)
        return web

    yield make
    for server in made:
        server.shutdown()
        server.server_close()


@dataclass
class Running:
    url: str
    log: Path
    process: subprocess.Popen[bytes]

    @property
    def socket(self) -> str:
        return self.url.replace("http", "ws") + "/ws"


Launch = Callable[..., Running]


@pytest.fixture
def launch(tmp_path: Path) -> Iterator[Launch]:
    started: list[Running] = []

    def start(target: Web, *flags: str, program: str = "serve", **variables: str) -> Running:
        (port,) = free_ports(1)
        log = tmp_path / f"{port}.log"
        command = [sys.executable, "-m", f"storeside.transformers.{program}", "--transform"]
        command += ["tests.unit.transforms_for_tests:Told", "--host", "127.0.0.1", "--port", str(port), *flags]
        environment = {name: os.environ[name] for name in ("PATH", "HOME", "PYTHONPATH")}
        environment |= {"AIS_TARGET_URL": f"{target.url}/v1/etl/_object/an-etl/{SECRET}", "NUM_WORKERS": "1"}
        environment |= {"AIS_AUTHN_TOKEN": TOKEN, "AIS_DIRECT_PUT_RETRIES": "0", "ETL_DIRECT_FQN": "true"}
        environment |= {"AIS_MOUNTS": f"{tempfile.gettempdir()}/nothing", "AIS_ETL_PROOF": "true"}
        with log.open("wb") as file:
            process = subprocess.Popen(
                command, cwd=CHECKOUT, env=environment | variables, stdout=file, stderr=file, start_new_session=True
            )
        started.append(Running(f"http://127.0.0.1:{port}", log, process))

        def ready() -> bool:
            assert process.poll() is None, log.read_text()
            try:
                return requests.get(f"{started[-1].url}/health", timeout=1).ok
            except (requests.ConnectionError, requests.Timeout):
                return False

        until(ready, 30, "server", interval=0.02)
        return started[-1]

    yield start
    for one in started:
        one.process.terminate()
        one.process.wait(20)


PROVEN = {HEADER: proof(SECRET)}
FORGED: list[dict[str, str]] = [
    {},
    {HEADER: ""},
    {HEADER: proof("")},
    {HEADER: proof("another-secret")},
    {HEADER: SECRET},
    {"Authorization": f"Bearer {proof(SECRET)}"},
    {HEADER: "\xff" * 64},
]


@pytest.mark.parametrize("kind", ["storeside", "fastapi", "flask", "http"])
def test_requests_without_the_proof_are_refused(launch: Launch, webs: Callable[[], Web], kind: str) -> None:
    target, attacker = webs(), webs()
    server = launch(target) if kind == "storeside" else launch(target, "--server", kind, program="sdk_servers")
    for headers in FORGED:
        for method, path in (("PUT", "/in/echo"), ("GET", f"/{quote('ais/@#/in/echo')}")):
            put = {"Ais-Node-Url": f"{attacker.url}/{UNAME}", **headers}
            encoded = {name: value.encode("latin-1") for name, value in put.items()}
            refused = requests.request(method, f"{server.url}{path}", data=CONTENT, headers=encoded, timeout=20)
            assert refused.status_code == 403, (headers, refused.text)
        if kind in ("storeside", "fastapi"):
            with pytest.raises(InvalidStatus, match="403"):
                connect(server.socket, additional_headers=headers if headers.get(HEADER, "").isascii() else {})
    assert not attacker.requests
    assert not target.requests
    assert requests.put(f"{server.url}/in/echo", CONTENT, headers=PROVEN, timeout=20).content == CONTENT
    assert SECRET not in server.log.read_text()


def test_a_signed_address_is_valid_for_itself_only(launch: Launch, webs: Callable[[], Web]) -> None:
    """A client that AIStore redirects to a pod cannot turn the address into one of another object."""
    server = launch(webs())
    signed = f"/{quote('ais/@#/in/arguments', safe='@')}?etl_args=mine"
    address = f"{server.url}{signed}&etl_proof={proof(SECRET, signed.encode())}"
    assert requests.get(address, timeout=20).status_code != 403
    for changed in (
        address.replace("mine", "others"),
        address.replace("in%2Farguments", "in%2Fecho"),
        f"{address}&etl_fqn=/mnt/@ais/in/%25ob/secret",
        address.replace("?", "?etl_fqn=%2Fmnt%2F&"),
    ):
        assert requests.get(changed, timeout=20).status_code == 403, changed
    # the next ETL of a pipeline gets the proof in its address
    chained = f"{server.url}/in/arguments?etl_proof={proof(SECRET)}&etl_args=a"
    assert requests.put(chained, CONTENT, timeout=20).content == b"a"


@pytest.mark.parametrize("path", [f"/{UNAME}?uuid=job", "/", "/v1/objects/x"])
def test_secrets_do_not_go_to_another_server(launch: Launch, webs: Callable[[], Web], path: str) -> None:
    """Even of a request that AIStore has sent: the address in it may be that of an attacker's server."""
    target, attacker = webs(), webs()
    server = launch(target)
    put = {**PROVEN, "Ais-Node-Url": f"{attacker.url}{path}"}
    refused = requests.put(f"{server.url}/in/echo", CONTENT, headers=put, timeout=20)
    assert refused.status_code == 500
    assert "not a node of AIStore" in refused.text
    with connect(server.socket, additional_headers=PROVEN) as ws:
        ws.send(json.dumps({"path": "echo", "pipeline": f"{attacker.url}{path}"}).encode())
        ws.send(CONTENT)
        assert ws.recv(timeout=20) == "failed"
    assert not attacker.requests
    # to the next ETL goes the object, and no secret
    put["Ais-Node-Url"] = attacker.url
    assert requests.put(f"{server.url}/in/echo", CONTENT, headers=put, timeout=20).ok
    assert len(attacker.requests) == 1
    for secret in (SECRET, TOKEN, proof(SECRET)):
        assert secret not in attacker.seen()


def test_redirects_to_other_servers_are_not_followed(launch: Launch, webs: Callable[[], Web]) -> None:
    target, attacker, proxy, node = webs(), webs(), webs(), webs()
    sidecars = f"{proxy.url}/v1/objects/facts/"
    server = launch(target, SIDECAR_URL=sidecars, AIS_NODES=f"{target.netloc},{node.netloc}")
    target.redirect = f"{attacker.url}/steal"
    direct = {**PROVEN, "Ais-Node-Url": f"{target.url}/{UNAME}"}
    refused = requests.put(f"{server.url}/in/echo", CONTENT, headers=direct, timeout=20)
    assert "which is not a node of AIStore" in refused.text
    proxy.redirect = target.redirect
    refused = requests.put(f"{server.url}/in/sidecar", CONTENT, headers=PROVEN, timeout=20)
    assert "which is not a node of AIStore" in refused.text
    assert not attacker.requests
    proxy.redirect = f"{node.url}/moved"  # as a proxy sends one to a target
    assert requests.put(f"{server.url}/in/sidecar", CONTENT, headers=PROVEN, timeout=20).content == CONTENT
    assert TOKEN in node.seen()
    assert TOKEN not in target.seen(), "the secret in its address is enough"


def test_files_outside_the_mounted_folders_are_not_read(
    launch: Launch, webs: Callable[[], Web], tmp_path: Path
) -> None:
    """A path may look like that of an object, and be none: elsewhere, or behind a link."""
    mounted, outside = tmp_path / "mounted", tmp_path / "outside"
    for folder in (mounted, outside):
        (folder / "@ais/in/%ob").mkdir(parents=True)
        (folder / "@ais/in/%ob/echo").write_bytes(b"object in " + folder.name.encode())
    (mounted / "linked").symlink_to(outside)
    (mounted / "@ais/in/%ob/folder").symlink_to(outside)
    (outside / "echo").write_bytes(b"a secret")
    (mounted / "@ais/in/%ob/sub").mkdir()
    (mounted / "@ais/other").symlink_to(mounted / "@ais/in")
    server = launch(webs(), AIS_MOUNTS=str(mounted))

    def push(path: Path | str) -> requests.Response:
        query = {"etl_fqn": quote(str(path), safe="")}
        return requests.put(f"{server.url}/in/echo", params=query, headers=PROVEN, timeout=20)

    assert push(mounted / "@ais/in/%ob/echo").content == b"object in mounted"
    for path in (
        outside / "@ais/in/%ob/echo",
        f"{mounted}/../outside/@ais/in/%ob/echo",
        mounted / "linked/@ais/in/%ob/echo",
        mounted / "@ais/in/%ob/folder/echo",
        mounted / "@ais/other/%ob/echo",
        Path(f"{mounted}-other/@ais/in/%ob/echo"),
        "/proc/self/root/@ais/in/%ob/echo",
    ):
        refused = push(path)
        assert refused.status_code in (422, 500), path
        assert b"secret" not in refused.content
        assert b"object in" not in refused.content


def test_without_proofs_only_the_cluster_s_addresses_are_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    """The stock AIStore sends nothing that proves its requests."""
    monkeypatch.setattr("storeside.transformers.server.sender._gateways", lambda: ["10.244.0.1"])
    settings = Settings(
        target_url=f"http://10.1.0.1:51081/v1/etl/_object/e/{SECRET}", nodes=frozenset(("10.1.0.2:51080",))
    )
    senders = Senders(settings)
    for address in ("10.1.0.1", "10.1.0.2", "::ffff:10.1.0.2", "10.244.0.1"):
        assert not senders.refusal(address, "", b"/in/x"), address
    for address in ("10.244.0.7", "127.0.0.1", "", "nonsense", "10.1.0.11", "::1"):
        assert "AIS_SOURCES" in senders.refusal(address, proof(SECRET), b"/in/x"), address
    opened = Senders(Settings(target_url=settings.target_url, sources=("10.244.0.0/24",)))
    assert not opened.refusal("10.244.0.7", "", b"/in/x")
    assert opened.refusal("10.244.1.7", "", b"/in/x")


def test_a_pod_in_the_cluster_answers_aistore_only(stack: Stack, aistore: Any) -> None:
    """A local user finds the port of a running ETL, and AIStore's own redirect of another object."""
    import psutil

    from storeside.aistore import etl as etls
    from storeside.aistore.buckets import Bucket
    from storeside.aistore.spec import TRANSFORMER_IMAGE, EtlSpec, transformer_command
    from tests.support import INIT_SECONDS, ask_aistore, put, unique

    bucket = Bucket("ais", unique("in"))
    put(aistore, bucket, {"a/upper": b"some content", "b/upper": b"other content"})
    command = transformer_command("tests.unit.transforms_for_tests:Told")
    spec = EtlSpec(unique("attacked"), TRANSFORMER_IMAGE, command, communication="hpull", init_timeout=INIT_SECONDS)
    (name,) = etls.ensure(aistore, spec)
    try:
        query = {"provider": "ais", "etl_name": name}
        redirected = ask_aistore(stack, "GET", f"objects/{bucket.name}/a/upper", params=query)
        assert redirected.content == b"SOME CONTENT", "a client of AIStore gets its object"
        stolen = redirected.url.replace("a%252Fupper", "b%252Fupper").replace("a%2Fupper", "b%2Fupper")
        assert stolen != redirected.url
        assert requests.get(stolen, timeout=20).status_code == 403
        found = psutil.process_iter(["environ"])
        servers = [p for p in found if f"/{name}/" in (p.info["environ"] or {}).get("AIS_TARGET_URL", "")]
        ports = {c.laddr.port for p in servers for c in p.net_connections("tcp") if c.status == psutil.CONN_LISTEN}
        assert ports
        for port in ports:
            for method in ("GET", "PUT"):
                attack = requests.request(method, f"http://127.0.0.1:{port}/in/upper", data=b"x", timeout=20)
                assert attack.status_code == 403
            with pytest.raises(InvalidStatus, match="403"):
                connect(f"ws://127.0.0.1:{port}/ws")
    finally:
        etls.discard(aistore, name)
