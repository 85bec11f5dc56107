"""The ETL server as AIStore sees it: real processes and sockets, with a simulated target."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import psutil
import pytest
import requests
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect

from storeside.stack.settings import CHECKOUT, free_ports
from storeside.transformers.contract.failures import Failure, LeftOut, parse, parse_left_out
from storeside.transformers.contract.journal import Journal
from storeside.transformers.server import asgi
from storeside.transformers.settings import Settings
from tests.support import unique, until

TOLD = "tests.unit.transforms_for_tests:Told"
SECRET = "/v1/etl/_object/some-etl/its-secret"
CONTENT = b"what is stored"


@dataclass
class Target:
    """A target, and the next hop of every other kind: stores objects that are put, and returns stored objects."""

    url: str
    stored: dict[str, bytes] = field(default_factory=dict)
    requests: list[tuple[str, str]] = field(default_factory=list)
    # path -> outcomes of the next requests for it: a status with a body, or None for a dropped connection
    script: dict[str, list[tuple[int, bytes] | None]] = field(default_factory=dict)
    redirects: dict[str, str] = field(default_factory=dict)

    def of(self, name: str, bucket: str = "out") -> str:
        """Return the pipeline entry that AIStore makes for an object stored by direct put."""
        return f"{self.url}/{quote(f'ais/@#/{bucket}/{name}', safe='@')}?owt=5&uuid=some-job"

    def result(self, name: str, bucket: str = "out") -> bytes | None:
        return self.stored.get(f"{SECRET}/{quote(f'ais/@#/{bucket}/{name}', safe='@')}?owt=5&uuid=some-job")


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    target: Target

    def _handle(self) -> None:
        self.target.requests.append((self.command, self.path))
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        path = self.path.partition("?")[0]
        script = self.target.script.get(path)
        if path in self.target.redirects:
            self._send(307, b"", {"Location": self.target.redirects[path]})
        elif script:
            scripted = script.pop(0)
            if scripted is None:
                self.close_connection = True
            else:
                self._send(*scripted)
        elif self.command == "PUT":
            self.target.stored[self.path] = body
            self._send(200, b"")
        elif self.path in self.target.stored:
            self._send(200, self.target.stored[self.path])
        else:
            self._send(404, b'{"status":404,"message":"object does not exist"}')

    do_GET = do_PUT = _handle

    def _send(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in {**(headers or {}), "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture(scope="module")
def target() -> Iterator[Target]:
    class Bound(Handler):
        pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Bound)
    server.daemon_threads = True
    Bound.target = Target(f"http://127.0.0.1:{server.server_port}")
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield Bound.target
    server.shutdown()
    server.server_close()


@dataclass
class Mountpath:
    """The folder of a target's files of one bucket."""

    folder: Path

    def put(self, name: str, content: bytes = CONTENT) -> Path:
        path = self.folder / "@ais" / "in" / "%ob" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        return path

    def fqn(self, name: str, content: bytes = CONTENT) -> str:
        """Store an object and return its escaped path, as AIStore sends it."""
        return quote(str(self.put(name, content)), safe="")


@pytest.fixture(scope="module")
def mountpath(tmp_path_factory: pytest.TempPathFactory) -> Mountpath:
    return Mountpath(tmp_path_factory.mktemp("mountpath"))


@dataclass
class Server:
    process: subprocess.Popen[bytes]
    url: str
    log: Path

    def connect(self) -> ClientConnection:
        return connect(self.url.replace("http", "ws") + "/ws", max_size=None, compression=None)

    @property
    def journal(self) -> list[Failure]:
        return list(parse(self.log.read_text()))

    @property
    def left_out(self) -> list[LeftOut]:
        return list(parse_left_out(self.log.read_text()))

    def failure(self, name: str) -> Failure:
        """Return the journal's last line about an object."""
        found: Failure = until(lambda: [f for f in self.journal if f.object == name], 5, f"line about {name!r}")[-1]
        return found

    def push(self, name: str, content: bytes = CONTENT, **headers: str) -> requests.Response:
        return requests.put(f"{self.url}/in/{quote(name)}", content, headers=headers, timeout=20)

    def descendants(self) -> list[psutil.Process]:
        return psutil.Process(self.process.pid).children(recursive=True)


Start = Callable[..., Server]


def start(
    folder: Path, transform: str, target: Target | None, *flags: str, wait: bool = True, program: str = "serve",
    **variables: str,
) -> Server:  # fmt: skip
    (port,) = free_ports(1)
    log = folder / f"server-{port}.log"
    command = [sys.executable, "-m", f"storeside.transformers.{program}", "--transform", transform]
    command += ["--host", "127.0.0.1", "--port", str(port), *flags]
    environment = {name: os.environ[name] for name in ("PATH", "HOME", "PYTHONPATH") if name in os.environ}
    environment |= {"NUM_WORKERS": "2", "ETL_DIRECT_FQN": "true", "AIS_DIRECT_PUT_RETRIES": "1"}
    environment |= {"AIS_TARGET_URL": target.url + SECRET} if target else {}
    environment |= {"AIS_MOUNTS": tempfile.gettempdir(), "AIS_NODES": "127.0.0.1:1", "TRANSFORM_VARIABLES": "HANGING"}
    with log.open("wb") as file:
        process = subprocess.Popen(
            command, cwd=CHECKOUT, env=environment | variables, stdout=file, stderr=file, start_new_session=True
        )
    server = Server(process, f"http://127.0.0.1:{port}", log)

    def ready() -> bool:
        assert process.poll() is None, log.read_text()
        try:
            return requests.get(f"{server.url}/health", timeout=1).ok
        except (requests.ConnectionError, requests.Timeout):
            return False

    if wait:
        until(ready, 30, "server", interval=0.02)
    return server


def stop(server: Server) -> None:
    if server.process.poll() is None:
        server.process.terminate()
    server.process.wait(20)


@pytest.fixture(scope="module")
def server(target: Target, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server with two workers that passes paths, for tests that do not change its state."""
    started = start(tmp_path_factory.mktemp("server"), TOLD, target)
    yield started
    stop(started)


@pytest.fixture
def launch(target: Target, tmp_path: Path) -> Iterator[Start]:
    """Start servers of the test's own."""
    started: list[Server] = []

    def with_target(transform: str = TOLD, *flags: str, **options: Any) -> Server:
        started.append(start(tmp_path, transform, target, *flags, **options))
        return started[-1]

    yield with_target
    for one in started:
        stop(one)


class Held:
    """An object on which a worker works from `begins` until `ends`."""

    def __init__(self) -> None:
        self._file = Path(tempfile.gettempdir(), unique("held"))
        self.name = f"await_-{self._file.name}"

    @property
    def has_begun(self) -> bool:
        return self._file.with_suffix(".begun").exists()

    def begins(self) -> None:
        until(lambda: self.has_begun, 60, "work on the object", 0.01)

    def ends(self) -> None:
        self._file.with_suffix(".end").touch()


def control(name: str, fqn: str = "", pipeline: str = "", arguments: str = "") -> bytes:
    fields = {"pipeline": pipeline, "etl_args": arguments, "fqn": fqn, "path": name}
    return json.dumps({key: value for key, value in fields.items() if value}).encode()


def ask(ws: ClientConnection, name: str, content: bytes | None = CONTENT, **options: str) -> str | bytes:
    """Send an object by its content, or as `options` say, and return the answer."""
    ws.send(control(name, **options))
    if content is not None and "fqn" not in options:
        ws.send(content)
    return ws.recv(timeout=20)


# ---- WebSocket


def test_results_come_back_in_order_while_objects_are_worked_on_at_once(server: Server) -> None:
    first, second = Held(), Held()
    names = [first.name, "echo", "echo", second.name, "echo", "upper"]
    with server.connect() as ws:
        for n, name in enumerate(names):
            ws.send(control(f"order/{name}"))
            ws.send(f"content {n}".encode())
        second.begins()
        first.begins()
        second.ends()
        first.ends()
        answers = [ws.recv(timeout=60) for _ in names]
    assert answers == [b"content 0", b"content 1", b"content 2", b"content 3", b"content 4", b"CONTENT 5"]


def test_objects_of_one_connection_go_to_all_workers(server: Server) -> None:
    with server.connect() as ws:
        for n in range(12):
            ws.send(control(f"{n}/pid"))
            ws.send(b"")
        shares = Counter(ws.recv(timeout=10) for _ in range(12))
    assert len(shares) == 2
    assert min(shares.values()) >= 4, shares


def test_a_result_is_put_directly_where_aistore_says(server: Server, target: Target, mountpath: Mountpath) -> None:
    name = "some folder/ü?#%41/upper"
    with server.connect() as ws:
        answer = ask(ws, name, fqn=mountpath.fqn(name), pipeline=target.of(name))
    assert answer == str(len(CONTENT))
    assert target.result(name) == CONTENT.upper()


@pytest.mark.parametrize("size", [1, 60_000, 65_536, 2_000_000, 40_000_000])
def test_objects_of_any_size(server: Server, target: Target, size: int) -> None:
    content = os.urandom(size)
    with server.connect() as ws:
        for _ in range(2):  # the second one finds the shared memory of the first
            assert ask(ws, f"{size}/echo", content) == content
        assert ask(ws, f"{size}/echo", content, pipeline=target.of(f"{size}")) == str(size)
    assert target.result(f"{size}") == content
    assert server.push(f"{size}/echo", content).content == content


@pytest.mark.parametrize(
    ("name", "reason", "final"),
    [
        ("bad", 'no "good" object\nat all', True),
        ("error", "KeyError: 'not there' (transforms_for_tests.py, line ", False),
        ("leave", "SystemExit: enough", False),
        ("empty", "the transform returned nothing", True),
        ("text", "TypeError: memoryview: a bytes-like object is required, not 'str'", False),
        ("segv", "the worker process died: signal 11 (SIGSEGV)", False),
        ("exit-3", "the worker process died: exit status 3", False),
        ("exit-0", "the worker process died: exit status 0", False),
        ("sidecar", "SIDECAR_URL is not set", False),
    ],
)
def test_a_failed_object_is_in_the_journal(
    server: Server, mountpath: Mountpath, name: str, reason: str, final: bool
) -> None:
    before = time.time()
    with server.connect() as ws:
        assert ask(ws, f"failing/{name}", fqn=mountpath.fqn(f"failing/{name}")) == "failed"
        assert ask(ws, "after/echo") == CONTENT
    found = server.failure(f"failing/{name}")
    assert reason in found.reason
    assert (found.bucket, found.final) == ("in", final)
    assert before <= found.time <= time.time()

    pushed = server.push(f"pushed/{name}")
    assert pushed.status_code == (422 if final else 500)
    assert reason in pushed.text
    assert server.failure(f"pushed/{name}").final is final


TOLD_LEFT_OUT = ("shorter [31m than 1 s " + "x" * 200)[:200]


@pytest.mark.guarantee("left-out")
@pytest.mark.parametrize(("verb", "reason"), [("short", TOLD_LEFT_OUT), ("silent", "no reason given")])
def test_an_object_that_is_left_out_is_no_failure(
    server: Server, target: Target, mountpath: Mountpath, verb: str, reason: str
) -> None:
    """Over each channel AIStore takes the answer for that of a direct put, and stores nothing."""
    name = f"left/{verb}"
    before = time.time()
    with server.connect() as ws:
        assert ask(ws, name, fqn=mountpath.fqn(name), pipeline=target.of(name)) == "0"
        assert ask(ws, name) == "0", "this target stores the result"
        assert ask(ws, "after/echo") == CONTENT
    put = {"Ais-Node-Url": target.of(name)}
    pull = f"{server.url}/{quote(f'ais/@#/in/{name}', safe='')}?etl_fqn={mountpath.fqn(name)}"
    for response in (server.push(name), server.push(name, **put), requests.get(pull, headers=put, timeout=20)):
        assert (response.status_code, response.content, response.headers["Ais-Direct-Put-Length"]) == (204, b"", "0")
    assert target.result(name) is None
    found = until(lambda: [f for f in server.left_out if f.object == name][4:], 5, "lines about it")[-1]
    assert (found.bucket, found.reason) == ("in", reason)
    assert before <= found.time <= time.time()
    assert not [f for f in server.journal if f.object == name]


def test_an_earlier_etl_of_a_chain_agrees_and_a_later_one_is_not_asked(
    launch: Start, server: Server, target: Target
) -> None:
    first = launch("tests.transformers:echo")
    name = "chain/short"
    passed = first.push(name, **{"Ais-Node-Url": f"{server.url},{target.of(name)}"})
    assert (passed.status_code, passed.headers["Ais-Direct-Put-Length"]) == (204, "0")
    until(lambda: [f for f in server.left_out if f.object == name], 5, "line about it")
    assert not (first.journal + first.left_out), "one of them lists it"
    stage = launch(TOLD)
    assert stage.push(name, **{"Ais-Node-Url": f"{target.url},{target.of(name)}"}).status_code == 204
    until(lambda: [f for f in stage.left_out if f.object == name], 5, "line about it")
    assert not [path for _, path in target.requests if name in path]


def test_a_worker_that_dies_takes_its_own_object_only(server: Server) -> None:
    with server.connect() as one, server.connect() as other:
        one.send(control("dying/segv"))
        one.send(b"content")
        other.send(control("living/sleep-0.5"))
        other.send(b"content")
        assert one.recv(timeout=10) == "failed"
        assert other.recv(timeout=10) == b"content"
        shares = set()
        for n in range(8):
            one.send(control(f"{n}/pid"))
            one.send(b"")
        for _ in range(8):
            shares.add(one.recv(timeout=10))
    assert len(shares) == 2, "the worker is replaced"
    assert not [f for f in server.journal if f.object.startswith("living")]


def is_alive(pid: int) -> bool:
    with suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    return False


def test_a_worker_that_died_unnoticed_costs_no_object(server: Server) -> None:
    with server.connect() as ws:
        workers = {int(ask(ws, f"{n}/pid")) for n in range(8)}
        for worker in workers:
            os.kill(worker, signal.SIGKILL)
        # Until then they may still take an object, and die with it.
        until(lambda: not any(is_alive(worker) for worker in workers), 10, "the end of the workers", 0.001)
        assert [ask(ws, "killed/echo") for _ in range(4)] == [CONTENT] * 4


def test_the_process_that_workers_come_from_may_die(launch: Start) -> None:
    server = launch(NUM_WORKERS="1")  # a second one might still be starting, which is not the subject of this test
    with server.connect() as ws:
        worker = int(ask(ws, "0/pid"))
    for child in psutil.Process(server.process.pid).children():
        if "forkserver" in " ".join(child.cmdline()):
            child.kill()
    # Its exit status could no longer be learned, so the worker is ended, with any object that it may have got by
    # then.
    until(lambda: not is_alive(worker), 10, "the end of the worker", 0.001)
    with server.connect() as ws:
        assert [ask(ws, f"{n}/echo") for n in range(4)] == [CONTENT] * 4
    assert server.process.poll() is None


@pytest.mark.guarantee("transform-bad-object")
def test_an_object_that_takes_too_long_is_ended_with_all_it_started(launch: Start, tmp_path: Path) -> None:
    hanging = tmp_path / "hanging"
    server = launch(OBJECT_TIMEOUT="1", HANGING=str(hanging))
    with server.connect() as ws:
        ws.send(control("hang"))
        ws.send(CONTENT)
        assert ws.recv(timeout=10) == "failed"
        assert ask(ws, "after/echo") == CONTENT
    found = server.failure("hang")
    assert found.reason == "it took longer than 1 s (OBJECT_TIMEOUT) and was ended"
    assert not found.final
    ids = [int(text) for text in hanging.read_text().split()]
    until(lambda: not any(map(running, ids)), 5, "end of the processes")


def running(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_memory_is_limited(launch: Start) -> None:
    server = launch(WORKER_MEMORY_LIMIT="256Mi")
    with server.connect() as ws:
        assert ask(ws, "memory") == "failed"
        assert ask(ws, "after/echo") == CONTENT
        # larger objects are not accepted either, and the connection stays open
        assert ask(ws, "large/echo", bytes(257 << 20)) == "failed"
        assert ask(ws, "after/echo") == CONTENT
    assert server.failure("memory").reason == "the object needs more memory than WORKER_MEMORY_LIMIT allows (256 MiB)"
    assert server.failure("memory").final
    refused = server.push("pushed/echo", bytes(257 << 20))
    assert refused.status_code == 413
    for name in ("large/echo", "pushed/echo"):
        assert server.failure(name).reason == f"the object has more than {256 << 20} bytes (WORKER_MEMORY_LIMIT)"
        assert server.failure(name).final


def test_arguments_of_inline_requests(server: Server, mountpath: Mountpath) -> None:
    with server.connect() as ws:
        assert ask(ws, "arguments", arguments='{"rate": "8 kHz"}') == b'{"rate": "8 kHz"}'
        assert ask(ws, "arguments", arguments="x" * 100_000) == "failed"
    assert "too many" in server.failure("arguments").reason
    pushed = requests.put(f"{server.url}/in/arguments", b"x", params={"etl_args": "a&b=c"}, timeout=10)
    assert pushed.content == b"a&b=c"
    fqn = mountpath.fqn("arguments")
    pulled = requests.get(f"{server.url}/{uname('arguments')}", {"etl_args": "d", "etl_fqn": fqn}, timeout=10)
    assert pulled.content == b"d"


@pytest.mark.parametrize(
    "message",
    [b"not JSON", b"[]", b"{", "text", b'\xff\xfe{"path": "a"}'],
    ids=["words", "list", "cut", "text", "no UTF-8"],
)
def test_what_is_no_message_of_aistore_closes_the_connection(server: Server, message: str | bytes) -> None:
    with server.connect() as ws:
        ws.send(message)
        with pytest.raises(ConnectionClosed) as closed:
            ws.recv(timeout=10)
    assert closed.value.rcvd is not None
    assert closed.value.rcvd.code == 1007
    assert server.push("after/echo").content == CONTENT


def test_a_connection_that_is_lost_takes_its_waiting_objects_along(server: Server, target: Target) -> None:
    """The server notices the loss when it has room for another object: when the first is done."""
    first, second = Held(), Held()
    with server.connect() as ws:
        for n, name in enumerate((first.name, second.name, "echo", "echo")):
            ws.send(control(f"lost-{n}/{name}", pipeline=target.of(f"lost-{n}")))
            ws.send(CONTENT)
        first.begins()
        second.begins()
        ws.socket.shutdown(socket.SHUT_RDWR)
    first.ends()
    with server.connect() as ws:
        assert ask(ws, "found/echo") == CONTENT
        second.ends()
        until(lambda: target.result("lost-1"), 60, "result of the second object")
        assert [ask(ws, "found/echo") for _ in range(4)] == [CONTENT] * 4  # by then the last would be done as well
    made = [n for n in range(4) if target.result(f"lost-{n}")]
    assert made[:2] == [0, 1], "those that were being worked on are finished"
    assert 3 not in made
    assert not [f for f in server.journal if f.object.startswith("lost")]


def test_a_fault_of_the_server_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """AIStore waits forever for the outstanding answers of a connection, but aborts at once when the pod is gone."""

    class Faulty:
        async def submit(self, *_: object) -> None:
            raise RuntimeError("a fault")

    ended: list[bool] = []
    monkeypatch.setattr(asgi, "_end_process", lambda: ended.append(True))
    faulty: Any = Faulty()
    app = asgi.AsgiServer(faulty, Settings(), Journal()).app
    messages: list[dict[str, Any]] = [{"type": "websocket.connect"}]
    messages += [{"type": "websocket.receive", "bytes": part} for part in (control("echo"), CONTENT)]

    async def receive() -> Any:
        return messages.pop(0)

    async def send(_: Any) -> None:
        pass

    asyncio.run(app({"type": "websocket", "path": "/ws", "headers": [], "query_string": b""}, receive, send))
    assert ended == [True]


# ---- names


NAMES = [
    "plain/echo",
    "quote\"'\\/echo",
    "line\nfeed\r/echo",
    "ü \u202e\U0001f600/echo",
    "per%cent%41%/echo",
    "question?mark?/echo",
    "storeside-failure {}/echo",
    "in/@ais/in/%ob/echo",
]


def uname(name: str, bucket: str = "in") -> str:
    return quote(f"ais/@#/{bucket}/{name}", safe="@")


@pytest.mark.parametrize("name", [n.replace("echo", "bad") for n in NAMES])
def test_an_object_has_the_same_name_in_all_channels(server: Server, mountpath: Mountpath, name: str) -> None:
    fqn = mountpath.fqn(name)
    with server.connect() as ws:
        assert ask(ws, name, fqn=fqn) == "failed"
    # AIStore does not escape the path of a push: Go does that for characters that a URL cannot contain; ? and % it
    # can
    unescaped = quote(f"/in/{name}", safe="/?%")
    query = f"etl_fqn={quote(fqn, safe='')}"
    for method, path in (("PUT", f"{unescaped}?{query}"), ("GET", f"/{uname(name)}?{query}")):
        assert raw(server, method, path)[0] == 422
    lines = [f for f in server.journal if f.object == name]
    assert [f.bucket for f in lines] == ["in"] * 3


def raw(server: Server, method: str, path: str) -> tuple[int, bytes]:
    from http.client import HTTPConnection

    with closing(HTTPConnection(urlsplit(server.url).netloc, timeout=10)) as connection:
        connection.request(method, path)
        answer = connection.getresponse()
        return answer.status, answer.read()


def test_a_body_that_is_cut_off_is_not_transformed(launch: Start) -> None:
    held, server = Held(), launch(TOLD, "--workers", "1")
    with closing(socket.create_connection((urlsplit(server.url).hostname, urlsplit(server.url).port), 10)) as client:
        client.sendall(f"PUT /in/{held.name} HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\nabc".encode())
    assert server.push("after/echo").content == CONTENT, "the only worker is free"
    assert not held.has_begun


@pytest.mark.parametrize("name", NAMES)
def test_hostile_names_are_transformed(server: Server, target: Target, mountpath: Mountpath, name: str) -> None:
    with server.connect() as ws:
        assert ask(ws, name, fqn=mountpath.fqn(name), pipeline=target.of(name)) == str(len(CONTENT))
    assert target.result(name) == CONTENT


def test_a_name_need_not_be_utf_8(server: Server, mountpath: Mountpath) -> None:
    name = os.fsdecode(b"latin-\xe9/bad")
    path = mountpath.folder / "@ais" / "in" / "%ob" / name
    path.parent.mkdir(parents=True)
    path.write_bytes(CONTENT)
    fqn = quote(os.fsencode(path), safe="")
    with server.connect() as ws:
        ws.send(b'{"path":"latin-\xe9/bad","fqn":"' + fqn.encode() + b'"}')
        assert ws.recv(timeout=10) == "failed"
    assert server.failure(r"latin-\udce9/bad").reason.startswith("no ")


def test_a_name_too_long_for_a_file_is_taken_from_the_request(server: Server, mountpath: Mountpath) -> None:
    name = "n" * 300 + "/bad"
    fqn = mountpath.fqn(".x0123456789abcdef")
    assert raw(server, "PUT", f"/in/{name}?etl_fqn={quote(fqn, safe='')}")[0] == 422
    assert server.failure(name).bucket == "in"


def test_the_bucket_of_a_namespace(server: Server, mountpath: Mountpath) -> None:
    path = mountpath.folder / "@ais" / "@cluster#space" / "deep" / "%ob" / "bad"
    path.parent.mkdir(parents=True)
    path.write_bytes(CONTENT)
    with server.connect() as ws:
        assert ask(ws, "bad", fqn=quote(str(path), safe="")) == "failed"
    assert server.journal[-1].bucket == "deep"


# ---- files


def test_the_file_is_handed_over_only_where_the_etl_asks_for_it(
    server: Server, launch: Start, mountpath: Mountpath
) -> None:
    fqn = mountpath.fqn("kind")
    other = launch(ETL_DIRECT_FQN="false")
    for one, kind in ((server, b"str"), (other, b"bytes")):
        with one.connect() as ws:
            assert ask(ws, "kind", fqn=fqn) == kind
            assert ask(ws, "kind") == b"bytes"
            assert ask(ws, "upper", fqn=fqn) == CONTENT.upper()


@pytest.mark.parametrize(
    "path", ["/etc/passwd", "relative/@ais/in/%ob/a", "/m/@ais/in/%ob/../../x", "/m/@ais/in/%ob/a\0b"]
)
def test_only_files_of_objects_are_opened(server: Server, path: str) -> None:
    with server.connect() as ws:
        assert ask(ws, "passwd/echo", fqn=quote(path, safe="")) == "failed"
        assert "is not the file of an AIStore object" in server.failure("passwd/echo").reason
        assert ask(ws, "after/echo") == CONTENT


def test_links_and_pipes_are_not_opened(server: Server, mountpath: Mountpath) -> None:
    link = mountpath.put("link/echo")
    link.unlink()
    link.symlink_to("/etc/passwd")
    pipe = mountpath.put("pipe/echo")
    pipe.unlink()
    os.mkfifo(pipe)
    with server.connect() as ws:
        for name, path in (("link/echo", link), ("pipe/echo", pipe), ("gone/echo", link.parent / "gone")):
            assert ask(ws, name, fqn=quote(str(path), safe="")) == "failed"
            assert not server.failure(name).final
    assert "cannot be opened" in server.failure("link/echo").reason
    assert server.failure("pipe/echo").reason == "the path of the object's file is not a regular file"
    assert server.failure("gone/echo").reason == "the object's file cannot be opened: No such file or directory"


def test_an_object_that_is_replaced_meanwhile_fails_for_now(server: Server, mountpath: Mountpath) -> None:
    with server.connect() as ws:
        assert ask(ws, "replaced", fqn=mountpath.fqn("replaced")) == "failed"
    found = server.failure("replaced")
    assert (found.reason, found.final) == ("the object changed while it was being transformed", False)


def test_an_object_in_chunks_is_fetched_whole(server: Server, target: Target, mountpath: Mountpath) -> None:
    """AIStore passes the file of the first chunk for the whole object."""
    path = mountpath.put("chunks/upper", b"the first chunk")
    manifest = Path(str(path).replace("%ob", "%ut"))
    manifest.parent.mkdir(parents=True)
    manifest.write_bytes(b"manifest")
    target.stored[f"{SECRET}/{uname('chunks/upper')}"] = b"all chunks"
    with server.connect() as ws:
        assert ask(ws, "chunks/upper", fqn=quote(str(path), safe="")) == b"ALL CHUNKS"


# ---- push, pull


def test_a_pull_fetches_the_object(server: Server, target: Target) -> None:
    name = "pulled ü?/upper"
    target.stored[f"{SECRET}/{uname(name)}"] = b"from the target"
    target.stored[f"{SECRET}/{uname(name)}?latest-ver=true"] = b"the latest"
    found = requests.get(f"{server.url}/{uname(name)}", timeout=10)
    assert (found.status_code, found.content) == (200, b"FROM THE TARGET")
    assert found.headers["Content-Type"] == "text/x-told"
    latest = requests.get(f"{server.url}/{uname(name)}?latest-ver=true", timeout=10)
    assert latest.content == b"THE LATEST"

    missing = requests.get(f"{server.url}/{uname('missing/upper')}", timeout=10)
    reason = "the target does not return the object: HTTP 404: object does not exist"
    assert (missing.status_code, missing.text) == (500, reason)
    assert server.failure("missing/upper").bucket == "in"
    assert requests.get(f"{server.url}/nonsense", timeout=10).status_code == 422


def test_direct_put_of_pushed_and_pulled_objects(server: Server, target: Target, mountpath: Mountpath) -> None:
    pushed = server.push("pushed/upper", **{"Ais-Node-Url": target.of("pushed")})
    assert (pushed.status_code, pushed.headers["Ais-Direct-Put-Length"]) == (204, str(len(CONTENT)))
    assert target.result("pushed") == CONTENT.upper()
    query = {"etl_fqn": mountpath.fqn("pulled/upper")}
    headers = {"Ais-Node-Url": target.of("pulled")}
    pulled = requests.get(f"{server.url}/{uname('pulled/upper')}", query, headers=headers, timeout=10)
    assert pulled.status_code == 204
    assert target.result("pulled") == CONTENT.upper()


# ---- direct put


def scripted(target: Target, name: str, *answers: tuple[int, bytes] | None) -> str:
    target.script[f"{SECRET}/{uname(name, 'out')}"] = list(answers)
    return target.of(name)


def test_a_refused_direct_put_is_a_failure(server: Server, target: Target) -> None:
    error = json.dumps({"status": 507, "message": "out of space"}).encode()
    with server.connect() as ws:
        assert ask(ws, "refused/echo", pipeline=scripted(target, "refused", (507, error))) == "failed"
        assert ask(ws, "large/repeat-200000", pipeline=scripted(target, "large", (507, error))) == "failed"
    for name in ("refused/echo", "large/repeat-200000"):
        found = server.failure(name)
        assert (found.reason, found.final) == ("direct put: HTTP 507: out of space", False)
    assert target.result("refused") is None


@pytest.mark.parametrize("trouble", [None, (503, b"starting")])
def test_a_direct_put_is_tried_again(server: Server, target: Target, trouble: tuple[int, bytes] | None) -> None:
    name = f"again {trouble}"
    with server.connect() as ws:
        assert ask(ws, f"{name}/echo", pipeline=scripted(target, name, trouble)) == str(len(CONTENT))
        assert target.result(name) == CONTENT
        troubles = [trouble] * 3
        assert ask(ws, f"{name} and again/echo", pipeline=scripted(target, f"{name} 3", *troubles)) == "failed"
    assert not server.failure(f"{name} and again/echo").final


def test_nobody_listens_at_the_destination(server: Server) -> None:
    with server.connect() as ws:
        assert ask(ws, "unheard/echo", pipeline="http://127.0.0.1:1/ais%2F@%23%2Fout%2Fx") == "failed"
        assert ask(ws, "nowhere/echo", pipeline="http://127.0.0.1:1/a,,b") == "failed"
    assert "PUT to 127.0.0.1:1 failed: ConnectionRefusedError" in server.failure("unheard/echo").reason
    assert "its-secret" not in server.log.read_text()
    assert "a destination is empty" in server.failure("nowhere/echo").reason


# ---- pipelines


def test_a_pipeline_of_two_etls(server: Server, launch: Start, target: Target, mountpath: Mountpath) -> None:
    second = launch("tests.unit.transforms_for_tests:shout")
    name = "two/ü%2F/upper"
    with server.connect() as ws:
        stored = ask(ws, name, fqn=mountpath.fqn(name), pipeline=f"{second.url},{target.of('two')}", arguments="a b")
        assert stored == str(len(CONTENT) + 1)
        assert target.result("two") is None, "arguments become part of the address"
        (found,) = [body for path, body in target.stored.items() if "etl_args=a+b" in path]
        assert found == CONTENT.upper() + b"!"
        # inline: the result returns from the last one
        assert ask(ws, "inline/upper", pipeline=second.url) == CONTENT.upper() + b"!"
    pushed = server.push("pushed/upper", **{"Ais-Node-Url": second.url})
    assert (pushed.status_code, pushed.content) == (200, CONTENT.upper() + b"!")


def test_a_failure_of_the_second_etl(launch: Start, server: Server, target: Target, mountpath: Mountpath) -> None:
    first = launch("tests.unit.transforms_for_tests:shout")
    with first.connect() as ws:
        pipeline = f"{server.url},{target.of('second')}"
        assert ask(ws, "second/bad", fqn=mountpath.fqn("second/bad"), pipeline=pipeline) == "failed"
        assert ask(ws, "second/error", fqn=mountpath.fqn("second/error"), pipeline=pipeline) == "failed"
    assert first.failure("second/bad").reason.startswith('direct put: HTTP 422: no "good" object')
    assert first.failure("second/bad").final
    assert not first.failure("second/error").final
    for name in ("second/bad", "second/error"):
        assert server.failure(name).bucket == "in", "the second one knows it by the same name"
    assert target.result("second") is None


# ---- sidecars


def test_a_sidecar_is_stored_before_the_result(launch: Start, target: Target, mountpath: Mountpath) -> None:
    base = "/v1/objects/facts/run 1/"
    server = launch(SIDECAR_URL=f"{target.url}{quote(base)}?provider=ais")
    name = "sub/ü/sidecar"
    path = quote(f"{base}{name}.json")
    target.redirects[path] = f"{target.url}/moved?pid=p1"  # as a proxy sends one to a target
    with server.connect() as ws:
        assert ask(ws, name, fqn=mountpath.fqn(name), pipeline=target.of("with sidecar")) == str(len(CONTENT))
        asked = [path for method, path in target.requests if method == "PUT"][-3:]
        assert asked[:2] == [f"{path}?provider=ais", "/moved?pid=p1"]
        assert target.stored["/moved?pid=p1"] == b'{"bytes":%d}' % len(CONTENT)

        target.script["/moved"] = [(500, b"no"), (500, b"no")]
        assert ask(ws, name, fqn=mountpath.fqn(name), pipeline=target.of("without sidecar")) == "failed"
    assert (server.failure(name).reason, server.failure(name).final) == ("sidecar: HTTP 500: no", False)
    assert target.result("without sidecar") is None


# ---- life of the pod


def test_it_ends_cleanly_when_asked_to(launch: Start, tmp_path: Path) -> None:
    server = launch(HANGING=str(tmp_path / "hanging"))
    with server.connect() as ws:
        ws.send(control("hang"))
        ws.send(CONTENT)
        until((tmp_path / "hanging").exists, 5, "start of the object")
        family = [p.pid for p in server.descendants()]
        server.process.terminate()
        assert server.process.wait(5) == 0
    until(lambda: not any(map(running, family)), 5, "end of the workers")


def test_nothing_is_left_of_a_server_that_is_killed(launch: Start, tmp_path: Path) -> None:
    server = launch(HANGING=str(tmp_path / "hanging"))
    with server.connect() as ws:
        ws.send(control("hang"))
        ws.send(CONTENT)
        until((tmp_path / "hanging").exists, 5, "start of the object")
        family = [p.pid for p in server.descendants()]
        assert len(family) >= 4
        server.process.kill()
        with pytest.raises(ConnectionClosed):
            ws.recv(timeout=5)
    until(lambda: not any(map(running, family)), 5, "end of the workers")


@pytest.mark.parametrize(
    ("transform", "variables", "reason"),
    [
        (
            "tests.unit.transforms_for_tests:Unmakeable",
            {},
            "RuntimeError: AUDIO_CODEC is not set (transforms_for_tests",
        ),
        ("tests.unit.transforms_for_tests:Missing", {}, "has no function or class 'Missing'"),
        ("tests.unit.transforms_for_tests:nothing", {}, "has no function or class 'nothing'"),
        ("tests.unit.no_such_module:x", {}, "No module named 'tests.unit.no_such_module'"),
        ("no_such_transform", {}, "has no function or class 'no_such_transform'"),
        ("module:", {}, "write package.module:attribute"),
        (TOLD, {"WORKER_MEMORY_LIMIT": "much"}, "WORKER_MEMORY_LIMIT='much' is not a size"),
        (TOLD, {"NUM_WORKERS": "0"}, "NUM_WORKERS='0': use a number of at least 1"),
        (TOLD, {"SIDECAR_URL": "bucket/prefix"}, "SIDECAR_URL='bucket/prefix' must begin with"),
    ],
)
def test_a_server_that_cannot_work_says_why_and_ends(
    launch: Start, transform: str, variables: dict[str, str], reason: str
) -> None:
    server = launch(transform, wait=False, **variables)
    assert server.process.wait(20) == 1
    assert reason in server.log.read_text()


@pytest.mark.parametrize("attribute", ["Told", "make", "shout"])
def test_transformers_are_classes_factories_or_functions(launch: Start, attribute: str) -> None:
    server = launch(f"tests.unit.transforms_for_tests:{attribute}", "--workers", "1", NUM_WORKERS="7")
    answer = server.push("echo")
    assert answer.content == (CONTENT + b"!" if attribute == "shout" else CONTENT)
    workers = [p for p in server.descendants() if p.pid == os.getpgid(p.pid)]
    assert len(workers) == 1


def test_many_connections_at_once(server: Server, target: Target) -> None:
    async def one(number: int) -> None:
        from websockets.asyncio.client import connect as connect_async

        async with connect_async(server.url.replace("http", "ws") + "/ws", compression=None) as ws:
            for n in range(20):
                await ws.send(control(f"{number}/{n}/echo", pipeline=target.of(f"many/{number}/{n}")))
                await ws.send(f"{number}/{n}".encode())
            for n in range(20):
                assert await ws.recv() == str(len(f"{number}/{n}"))

    async def every() -> None:
        await asyncio.gather(*(one(number) for number in range(16)))

    asyncio.run(every())
    assert all(target.result(f"many/{a}/{b}") == f"{a}/{b}".encode() for a in range(16) for b in range(20))
