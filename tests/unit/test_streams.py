"""Streams under the ETL server: real processes and sockets, with a simulated target that stores what is complete."""

from __future__ import annotations

import hashlib
import http.client
import io
import json
import socket
import subprocess
import sys
import tarfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import quote

import psutil
import pytest
import requests

from storeside.stack.settings import CHECKOUT
from storeside.testing import CHANNELS, Served, served
from storeside.transformers.shards.gathering import archive
from tests.streams import MIB, generated, sha256
from tests.support import until
from tests.unit.test_transformer_server import SECRET, Mountpath, Server, ask, start, stop

__all__ = ["served"]

TOLD = "tests.streams:Told"
# Bytes of results and objects here, and of the memory that all processes of a server may use for one, beyond what
# they use before. `make bench-streams` measures 5 GB.
LARGE, MEMORY = 256, 48 * MIB


@dataclass
class Target:
    """A target: `stored` has size and SHA-256 of each complete body, `broken` the bytes of each that was cut off."""

    url: str
    stored: dict[str, tuple[int, str]] = field(default_factory=dict)
    broken: dict[str, int] = field(default_factory=dict)
    objects: dict[str, Callable[[], Iterator[bytes]]] = field(default_factory=dict)
    # Seconds before each read of a body, and the number of bytes after which a body is refused with 507.
    delay: float = 0.0
    most: int = 1 << 60

    def of(self, name: str) -> str:
        return f"{self.url}/{quote(f'ais/@#/out/{name}', safe='@')}?uuid=some-job"

    def path(self, name: str) -> str:
        return f"{SECRET}/{quote(f'ais/@#/out/{name}', safe='@')}?uuid=some-job"

    def result(self, name: str) -> tuple[int, str] | None:
        return self.stored.get(self.path(name))


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    target: Target

    def do_PUT(self) -> None:
        size, digest = 0, hashlib.sha256()
        try:
            for piece in self._body():
                size += len(piece)
                digest.update(piece)
                if size > self.target.most:
                    self._send(507, b'{"message":"out of space"}')
                    self.close_connection = True
                    return
        except (ValueError, OSError):
            self.target.broken[self.path] = size
            self.close_connection = True
            return
        self.target.stored[self.path] = size, digest.hexdigest()
        self._send(200, b"")

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        with suppress(OSError):
            for piece in self.target.objects[self.path]():
                self.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece))
            self.wfile.write(b"0\r\n\r\n")
        self.close_connection = True

    def _body(self) -> Iterator[bytes]:
        if "Content-Length" in self.headers:
            yield self.rfile.read(int(self.headers["Content-Length"]))
            return
        while size := int(self.rfile.readline(), 16):
            time.sleep(self.target.delay)  # a slow disk
            piece = self.rfile.read(size)
            if len(piece) < size:
                raise ValueError
            yield piece
            self.rfile.readline()
        self.rfile.readline()

    def _send(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture(scope="module")
def serving() -> Iterator[Target]:
    class Bound(Handler):
        pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Bound)
    server.daemon_threads = True
    Bound.target = Target(f"http://127.0.0.1:{server.server_port}")
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield Bound.target
    server.shutdown()
    server.server_close()


@pytest.fixture
def target(serving: Target) -> Iterator[Target]:
    yield serving
    serving.delay, serving.most = 0.0, 1 << 60


@pytest.fixture(scope="module")
def mountpath(tmp_path_factory: pytest.TempPathFactory) -> Mountpath:
    return Mountpath(tmp_path_factory.mktemp("mountpath"))


@pytest.fixture(scope="module")
def server(serving: Target, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    started = start(tmp_path_factory.mktemp("server"), TOLD, serving, NUM_WORKERS="1")  # type: ignore[arg-type]
    yield started
    stop(started)


@pytest.fixture(scope="module")
def next_server(serving: Target, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The server of the next ETL of a chain."""
    started = start(tmp_path_factory.mktemp("next"), TOLD, serving, NUM_WORKERS="1")  # type: ignore[arg-type]
    yield started
    stop(started)


def push(
    server: Server, name: str, content: Any = b"content", fqn: str = "", pipeline: str = ""
) -> requests.Response:
    query = f"?etl_fqn={quote(fqn)}" if fqn else ""
    headers = {"Ais-Node-Url": pipeline} if pipeline else {}
    return requests.put(f"{server.url}/in/{quote(name)}{query}", content, headers=headers, timeout=60)


def flowing(server: Server, name: str, fqn: str = "", pipeline: str = "") -> Iterator[bytes]:
    """Yield the result of an object while it arrives."""
    query = f"?etl_fqn={quote(fqn)}" if fqn else ""
    headers = {"Ais-Node-Url": pipeline} if pipeline else {}
    url = f"{server.url}/in/{quote(name)}{query}"
    with requests.put(url, b"content", headers=headers, timeout=60, stream=True) as answer:
        yield from answer.iter_content(MIB)


def digest_of(mebibytes: int) -> tuple[int, str]:
    return mebibytes * MIB, sha256(mebibytes)


def many(mebibytes: int) -> Iterator[bytes]:
    return (generated(number) for number in range(mebibytes))


class Memory:
    """The largest memory of a server's processes together (PSS), while a test runs."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._ended = threading.Event()
        self.before = self.largest = self._now()
        self._thread = threading.Thread(target=self._watch)

    def _now(self) -> int:
        total = 0
        for process in [psutil.Process(self._server.process.pid), *self._server.descendants()]:
            with suppress(psutil.Error):
                total += process.memory_full_info().pss
        return total

    def _watch(self) -> None:
        while not self._ended.wait(0.02):
            self.largest = max(self.largest, self._now())

    def __enter__(self) -> Memory:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()


# ---- results


def test_all_channels_have_the_same_outcome(served: Callable[..., Served]) -> None:
    told = served(TOLD, object_timeout=20)
    content = b"content " * 100_000
    assert told.transform(content, "a/upper").data == content.upper()
    assert told.transform(b"", "a/upper").failed == "the transform returned nothing"
    assert told.transform(b"a", "generate-2").data == generated(0) + generated(1)
    assert told.transform(b"a", "reused-3").data == b"".join(map(generated, range(3)))
    assert told.transform(b"a", "tiny-100001").data == b"0123456789" * 100_001
    assert told.transform(b"abc" * MIB, "first").data == b"a"
    assert told.transform(b"a", "spy").data == b"denied denied "


@pytest.mark.parametrize(
    ("name", "reason", "final"),
    [
        ("bad-0", "no good object", True),
        ("bad-2", "no good object", True),
        ("error-2", "KeyError: 'not there' (streams.py, line", False),
        ("die-2", "the worker process died: signal 9 (SIGKILL)", False),
        ("nothing", "the transform returned nothing", True),
        ("text", "TypeError: transform_stream yielded str: yield pieces of bytes", False),
        ("leave-1", "it was left out (it wishes so) after a part of its result: raise LeaveOut before", True),
        ("sleep-30", "it took longer than 2 s (OBJECT_TIMEOUT) and was ended", False),
    ],
)
def test_a_result_that_ends_too_early_is_not_stored(
    served: Callable[..., Served], name: str, reason: str, final: bool
) -> None:
    told = served(TOLD, object_timeout=2)
    for channel in CHANNELS:
        outcome = told.over(channel, b"content", name)
        assert (outcome.failed[: len(reason)], outcome.final, outcome.data) == (reason, final, b""), channel
    assert told.over("ws", b"content", "upper").data == b"CONTENT"


def test_an_object_is_left_out_before_its_first_piece(served: Callable[..., Served]) -> None:
    assert served(TOLD).transform(b"content", "leave-0").left_out == "it wishes so"


def test_a_function_and_a_class_with_both_methods(served: Callable[..., Served]) -> None:
    assert served("tests.streams:transform_stream").transform(b"Content").data == b"cONTENT"
    assert served("tests.streams:Both").transform(b"content").data == b"transform"


def test_a_stream_gets_what_its_job_is_given(served: Callable[..., Served]) -> None:
    assert served(TOLD, given={"upper": [1]}).transform(b"a", "upper").data == b"[1]A"


def test_a_stream_has_one_result(served: Callable[..., Served]) -> None:
    outcome = served(TOLD, several_results=True).transform(b"a", "upper")
    assert (outcome.failed, outcome.final) == (
        "the transform is a stream, which has one result: leave out several_results",
        True,
    )


def test_members_of_shards_are_transformed_in_memory(serving: Target, tmp_path: Path) -> None:
    server = start(tmp_path, TOLD, serving, NUM_WORKERS="1", SHARD_MEMBERS="*")  # type: ignore[arg-type]
    try:
        shard = b"".join(archive([("a/upper", b"content"), ("b/generate-1", b"x"), ("c/bad-1", b"x")]))
        with tarfile.open(fileobj=io.BytesIO(push(server, "shard.tar", shard).content)) as result:
            found = {member.name: result.extractfile(member) for member in result}
            assert {name: file.read() for name, file in found.items() if file} == {
                "a/upper": b"CONTENT",
                "b/generate-1": generated(0),
            }
        (failure,) = server.journal
        assert (failure.member, failure.reason) == ("c/bad-1", "no good object")
    finally:
        stop(server)


def test_a_stream_is_tried_on_files(tmp_path: Path) -> None:
    (tmp_path / "generate-3").write_bytes(b"content")
    command = [sys.executable, "-m", "storeside.transformers.local", TOLD, str(tmp_path / "generate-3")]
    done = subprocess.run(
        [*command, "-o", str(tmp_path / "results")], cwd=CHECKOUT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "results" / "generate-3").read_bytes() == b"".join(many(3))


SDK_CLASS = """
from aistore.sdk.etl.webserver.{module} import {base}

class Upper({base}):
    def transform_stream(self, reader, path, etl_args):
        while chunk := reader.read(65536):
            yield chunk.upper()
"""


@pytest.mark.parametrize(
    ("module", "base"), [("fastapi_server", "FastAPIServer"), ("flask_server", "FlaskServer"),
    ("http_multi_threaded_server", "HTTPMultiThreadedServer")],
)  # fmt: skip
def test_a_class_of_the_sdk_runs_unchanged(
    served: Callable[..., Served], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: str, base: str
) -> None:
    (tmp_path / "of_sdk.py").write_text(SDK_CLASS.format(module=module, base=base))
    monkeypatch.syspath_prepend(tmp_path)
    assert served("of_sdk:Upper").transform(b"content").data == b"CONTENT"


# ---- memory


def test_large_results_and_objects_need_little_memory(server: Server, target: Target, mountpath: Mountpath) -> None:
    assert push(server, "tiny-1").content == b"0123456789"  # the modules are loaded
    size, digest = digest_of(LARGE)
    with Memory(server) as memory:
        put = f"generate-{LARGE}"
        assert push(server, put, pipeline=target.of(put)).status_code == 204
        assert target.result(put) == (size, digest)
        answer = hashlib.sha256()
        for piece in flowing(server, put):
            answer.update(piece)
        assert answer.hexdigest() == digest
        assert push(server, "digest", many(LARGE)).content.decode() == f"{size} {digest}"
        target.objects[f"{SECRET}/{quote('ais/@#/in/digest', safe='@')}"] = lambda: many(LARGE)
        pulled = requests.get(f"{server.url}/{quote('ais/@#/in/digest', safe='')}", timeout=60)
        assert pulled.content.decode() == f"{size} {digest}"
    assert memory.largest - memory.before < MEMORY


def test_a_slow_receiver_slows_the_transformer_down(server: Server, target: Target) -> None:
    target.delay = 0.01
    with Memory(server) as memory:
        assert push(server, "generate-64", pipeline=target.of("slow")).status_code == 204
        size = 0
        for piece in flowing(server, "generate-64"):
            size += len(piece)
            time.sleep(0.01)  # a slow client
    assert (target.result("slow"), size) == (digest_of(64), 64 * MIB)
    assert memory.largest - memory.before < MEMORY


def test_a_large_result_over_ws_goes_by_direct_put_only(server: Server, target: Target, mountpath: Mountpath) -> None:
    with server.connect() as ws:
        assert ask(ws, "generate-65", fqn=mountpath.fqn("generate-65"), pipeline=target.of("ws")) == str(65 * MIB)
        assert target.result("ws") == digest_of(65)
        assert ask(ws, "generate-64", fqn=mountpath.fqn("generate-64")) == b"".join(many(64))
        assert ask(ws, "generate-65", fqn=mountpath.fqn("generate-65")) == "failed"
    failure = server.failure("generate-65")
    assert failure.reason.startswith("its result has more than 64 MiB, and over ws AIStore takes it as one message")
    assert failure.reason.endswith("use hpush")
    assert not failure.final  # a job tries it again over hpush


# ---- ends


def ended(server: Server, before: set[int]) -> None:
    """Wait until a worker with its decoder was replaced."""
    until(
        lambda: not before & {p.pid for p in server.descendants() if p.is_running()} - {_forkserver(server)},
        20,
        "end",
    )


def _forkserver(server: Server) -> int:
    return 0


def workers(server: Server) -> set[int]:
    """Return the process ids of workers and decoders: children of the fork server."""
    found = set()
    for process in server.descendants():
        with suppress(psutil.NoSuchProcess):
            if process.ppid() != server.process.pid:
                found.add(process.pid)
    return found


def replaced(server: Server, before: set[int]) -> None:
    until(lambda: not before & workers(server), 20, "the end of the worker")
    assert push(server, "tiny-1").content == b"0123456789"


def test_an_answer_that_fails_is_cut_off(server: Server) -> None:
    with pytest.raises(requests.exceptions.ChunkedEncodingError):
        push(server, "bad-3")
    assert server.failure("bad-3").reason == "no good object"


def test_a_worker_that_is_killed_stores_nothing(server: Server, target: Target) -> None:
    before = workers(server)
    answers: list[requests.Response] = []
    thread = threading.Thread(target=lambda: answers.append(push(server, "endless-5", pipeline=target.of("killed"))))
    thread.start()
    worker = next(
        p
        for p in psutil.Process(server.process.pid).children(recursive=True)
        if p.children() and p.ppid() != server.process.pid
    )
    until(lambda: any(c.laddr and c.status == "ESTABLISHED" for c in worker.net_connections()), 20, "direct put")
    worker.kill()
    thread.join()
    assert "the worker process died: signal 9" in answers[0].text
    until(lambda: target.path("killed") in target.broken, 20, "the end of the direct put")
    assert target.result("killed") is None
    replaced(server, before)


def test_a_client_that_is_gone_ends_the_transformer(server: Server, target: Target, mountpath: Mountpath) -> None:
    lines = len(server.journal)
    for pipeline in ("", target.of("gone")):
        before = workers(server)
        with socket.create_connection(server.url.removeprefix("http://").split(":")) as client:
            header = f"Ais-Node-Url: {pipeline}\r\n" if pipeline else ""
            request = f"PUT /in/endless-5 HTTP/1.1\r\nHost: x\r\n{header}Content-Length: 0\r\n\r\n"
            client.sendall(request.encode())
            if pipeline:
                time.sleep(0.5)  # the direct put has begun
            else:
                assert client.recv(1000)
        replaced(server, before)
    until(lambda: target.path("gone") in target.broken, 20, "the end of the direct put")
    assert target.result("gone") is None
    before = workers(server)
    with server.connect() as ws:
        ws.send(
            json.dumps(
                {"path": "endless-5", "pipeline": target.of("lost"), "fqn": mountpath.fqn("endless-5")}
            ).encode()
        )
        time.sleep(0.5)  # the direct put has begun
    replaced(server, before)
    assert target.result("lost") is None
    assert len(server.journal) == lines


def test_a_body_that_is_cut_off_has_no_result(server: Server, target: Target) -> None:
    before = workers(server)
    with closing(http.client.HTTPConnection(server.url.removeprefix("http://"))) as client:
        client.putrequest("PUT", "/in/upper")
        client.putheader("Ais-Node-Url", target.of("cut off"))
        client.putheader("Transfer-Encoding", "chunked")
        client.endheaders()
        for piece in many(3):
            client.send(b"%x\r\n%s\r\n" % (len(piece), piece))
    replaced(server, before)
    until(lambda: target.path("cut off") in target.broken, 20, "the end of the direct put")
    assert target.result("cut off") is None


def test_an_object_that_is_not_received_completely_has_no_result(server: Server, target: Target) -> None:
    def broken() -> Iterator[bytes]:
        yield from many(3)
        raise OSError

    target.objects[f"{SECRET}/{quote('ais/@#/in/upper', safe='@')}"] = broken
    url = f"{server.url}/{quote('ais/@#/in/upper', safe='')}"
    answer = requests.get(url, headers={"Ais-Node-Url": target.of("received")}, timeout=60)
    assert (answer.status_code, target.result("received")) == (500, None)
    assert "the target did not return the whole object" in answer.text


def test_a_file_that_changes_meanwhile_has_no_result(server: Server, target: Target, mountpath: Mountpath) -> None:
    fqn = mountpath.fqn("sleep-1")
    threading.Timer(0.3, lambda: mountpath.put("sleep-1", b"another version")).start()
    answer = push(server, "sleep-1", fqn=fqn, pipeline=target.of("changed"))
    assert (answer.status_code, answer.text) == (500, "the object changed while it was being transformed")
    assert target.result("changed") is None


def test_a_target_that_refuses_a_result_is_the_reason(server: Server, target: Target) -> None:
    target.most = 5 * MIB
    answer = push(server, "endless", pipeline=target.of("refused"))
    assert answer.status_code == 500
    assert "out of space" in answer.text or "failed" in answer.text
    target.most = 1 << 60
    assert push(server, "tiny-1").content == b"0123456789"


# ---- chains


def chain(next_server: Server, then: str = "") -> str:
    return ",".join(filter(None, (next_server.url, then)))


def test_a_chain_of_streams(server: Server, next_server: Server, target: Target, mountpath: Mountpath) -> None:
    fqn = mountpath.fqn("upper", b"".join(many(64)))
    with Memory(server) as memory, Memory(next_server) as later:
        answer = push(server, "upper", many(64), pipeline=chain(next_server, target.of("chained")))
        assert (answer.status_code, int(answer.headers["Ais-Direct-Put-Length"])) == (204, 64 * MIB)
        stored = target.result("chained")
        digest = hashlib.sha256()
        for piece in flowing(server, "upper", fqn=fqn, pipeline=chain(next_server)):
            digest.update(piece)
        assert stored == (64 * MIB, digest.hexdigest())
    assert memory.largest - memory.before < MEMORY
    assert later.largest - later.before < MEMORY


@pytest.mark.parametrize(
    ("name", "reason"), [("bad-3", "no good object"), ("die-3", "the worker process died: signal 9 (SIGKILL)")]
)
def test_a_chain_that_fails_stores_nothing(
    server: Server, next_server: Server, target: Target, name: str, reason: str
) -> None:
    for pipeline in (chain(next_server, target.of(name)), chain(next_server)):
        with suppress(requests.exceptions.ChunkedEncodingError):
            answer = push(server, name, pipeline=pipeline)
            assert answer.status_code in (422, 500)
        assert target.result(name) is None
    told = [f for f in [*server.journal, *next_server.journal] if f.object == name]
    assert any(reason in failure.reason for failure in told)


def test_the_next_etl_may_end_first(next_server: Server, target: Target, tmp_path: Path) -> None:
    first = start(tmp_path, "tests.streams:transform_stream", target, NUM_WORKERS="1")  # type: ignore[arg-type]
    try:
        for _ in range(3):
            assert push(first, "first", many(20), pipeline=chain(next_server)).content == generated(0)[:1]
            answer = push(first, "leave-0", many(20), pipeline=chain(next_server, target.of("left out")))
            assert (answer.status_code, answer.headers["Ais-Direct-Put-Length"]) == (204, "0")
        assert target.result("left out") is None
    finally:
        stop(first)
