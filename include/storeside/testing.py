"""Tests of your own transformers with pytest: they run as beside AIStore, without AIStore.

``pytest_plugins = ["storeside.testing"]`` in ``conftest.py`` provides the fixture `served`. It starts the server that
runs in an ETL's pod, with worker processes, isolated decoders and limits. Each object goes over all channels, and a
small HTTP server stands for the target that stores the results.
"""

from __future__ import annotations

import io
import json
import os
import secrets
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import pytest

from storeside.transformers.contract import given_index
from storeside.transformers.contract.failures import parse, parse_left_out
from storeside.transformers.isolation.decoders import VARIABLES
from storeside.transformers.transformer import Result

CHANNELS = ("ws", "hpush", "hpull")
_TARGET, _FACTS, _RESULTS = "/v1/etl/_object/test/secret", "/facts/", "/results/"
_START_SECONDS = 60.0


@dataclass(frozen=True)
class Outcome:
    """The outcome for one object: a result, the reason why it was left out, or a failure.

    `data` is the result, and `facts` the JSON object stored beside it (`WithSidecar.sidecar`), with the name
    `facts_name`. `results` are those of a transformer that yields several, in their order; `data` is then empty.
    `left_out` and `failed` are reasons. The object itself causes a `final` failure: the job does not try it again.
    """

    data: bytes = b""
    facts: bytes = b""
    facts_name: str = ""
    left_out: str = ""
    failed: str = ""
    final: bool = False
    results: tuple[Result, ...] = ()


class Served:
    """A running server of one transformer."""

    def __init__(self, url: str, mountpath: Path, log: Path, target: _Target, object_timeout: float) -> None:
        self._address = urlsplit(url).netloc
        self._mountpath = mountpath
        self._log = log
        self._target = target
        self._seconds = object_timeout + 60

    def transform(self, content: bytes, name: str = "object") -> Outcome:
        """Send an object over every channel, by its file and by its content, and return the outcome.

        Raises AssertionError if the outcomes differ: a result must depend on nothing but the object.
        """
        found = {
            **{channel: self.over(channel, content, name) for channel in CHANNELS},
            "hpush without file": self.over("hpush", content, name, by_file=False),
        }
        first = found[CHANNELS[0]]
        differing = {channel: outcome for channel, outcome in found.items() if outcome != first}
        if differing:
            raise AssertionError(f"{name!r} has another outcome than {first} over ws: {differing}")
        return first

    def over(self, channel: str, content: bytes, name: str = "object", *, by_file: bool = True) -> Outcome:
        """Send an object over one channel: ``ws``, ``hpush`` or ``hpull``, which needs the file."""
        file = self._mountpath / "@ais" / "bucket" / "%ob" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)
        path = quote(str(file), safe="") if by_file else ""
        self._target.stored.clear()
        before = self._log.stat().st_size
        put = f"{self._target.url}/{quote(f'ais/@#/results/{name}', safe='@')}?uuid=job"
        if channel == "ws":
            self._ask(name, path, put, content)
        elif channel == "hpush":
            query = f"?etl_fqn={quote(path)}" if path else ""
            self._request("PUT", f"/bucket/{quote(name)}{query}", put, b"" if path else content)
        else:
            self._request("GET", f"/{quote(f'ais/@#/bucket/{name}', safe='')}?etl_fqn={quote(path)}", put, b"")
        return self._outcome(before)

    def _ask(self, name: str, path: str, put: str, content: bytes) -> None:
        from websockets.sync.client import connect

        with connect(f"ws://{self._address}/ws", max_size=None, compression=None) as connection:
            connection.send(json.dumps({"path": name, "pipeline": put, **({"fqn": path} if path else {})}).encode())
            if not path:
                connection.send(content)
            connection.recv(timeout=self._seconds)

    def _request(self, method: str, target: str, put: str, body: bytes) -> None:
        with closing(HTTPConnection(self._address, timeout=self._seconds)) as connection:
            connection.request(method, target, body, {"Ais-Node-Url": put})
            connection.getresponse().read()

    def _outcome(self, before: int) -> Outcome:
        with self._log.open("rb") as log:
            log.seek(before)
            told = log.read().decode(errors="replace")
        for failure in parse(told):
            return Outcome(failed=failure.reason, final=failure.final)
        for left_out in parse_left_out(told):
            return Outcome(left_out=left_out.reason)
        stored = dict(self._target.stored)
        beside_each = {path.removeprefix(_RESULTS): content for path, content in stored.items() if _is_result(path)}
        if beside_each:
            (listed,) = (content for path, content in stored.items() if not _is_result(path))
            return Outcome(results=tuple(_results(listed, beside_each)))
        facts = next((path for path in stored if path.startswith(_FACTS)), "")
        beside = stored.pop(facts, b"")
        return Outcome(next(iter(stored.values()), b""), beside, facts.removeprefix(_FACTS))


def _is_result(path: str) -> bool:
    return path.startswith(_RESULTS)


def _results(listed: bytes, stored: Mapping[str, bytes]) -> Iterator[Result]:
    """Yield the results that a list announces, with their contents and facts."""
    for line in listed.splitlines():
        facts = json.loads(line)
        name, _ = facts.pop("stored"), facts.pop("object")
        del facts["bytes"], facts["version"]
        yield Result(name.rpartition("/")[2], stored[quote(name)], facts or None)


class _Target:
    """An HTTP server that keeps the bodies of PUT requests by their paths, and returns ranges of `given`."""

    def __init__(self, given: bytes = b"") -> None:
        self.stored: dict[str, bytes] = {}
        stored = self.stored

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_PUT(self) -> None:
                body = self._body()
                if body is None:
                    self.close_connection = True
                    return
                stored[self.path] = body
                self.send_response(200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def do_GET(self) -> None:
                first, _, last = self.headers["Range"].removeprefix("bytes=").partition("-")
                part = given[int(first) : int(last) + 1]
                self.send_response(206)
                self.send_header("Content-Length", str(len(part)))
                self.end_headers()
                self.wfile.write(part)

            def _body(self) -> bytes | None:
                """Return the body of the request, or None if a stream ended within it."""
                if "Transfer-Encoding" not in self.headers:
                    return self.rfile.read(int(self.headers.get("Content-Length", 0)))
                body = bytearray()
                while head := self.rfile.readline().strip():
                    size = int(head, 16)
                    body += self.rfile.read(size)
                    self.rfile.readline()
                    if not size:
                        return bytes(body)
                return None

            def log_message(self, *_: object) -> None:
                """Log nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Callable[..., Served]]:
    """Start servers: ``served("my_package.words:count", environment={"LANGUAGE": "en"}, object_timeout=10)``.

    `environment` has the transformer's variables, as in `EtlSpec`; `object_timeout` is in seconds, and `memory` the
    bytes that a decoder may use; `several_results` is for transformers that yield results. `given` has what a job is
    given beside its objects, JSON values by their names. Raises AssertionError if the transformer cannot start.
    """
    running: list[subprocess.Popen[bytes]] = []
    targets: list[_Target] = []

    def start(
        transform: str,
        environment: Mapping[str, str] | None = None,
        *,
        object_timeout: float = 60,
        memory: int = 4 << 30,
        several_results: bool = False,
        given: Mapping[str, Any] | None = None,
    ) -> Served:
        folder = tmp_path / f"served-{len(running)}"
        folder.mkdir()
        log, target = folder / "log", _Target(_index(given or {}))
        targets.append(target)
        port = _free_port()
        own = dict(environment or {})
        inherited = {name: os.environ[name] for name in ("PATH", "HOME", "TMPDIR") if name in os.environ}
        variables = {
            **inherited, **own, VARIABLES: ",".join(own), "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
            "NUM_WORKERS": "1", "ETL_DIRECT_FQN": "true", "OBJECT_TIMEOUT": str(object_timeout),
            "WORKER_MEMORY_LIMIT": str(memory), "AIS_TARGET_URL": target.url + _TARGET, "AIS_MOUNTS": str(folder),
            "AIS_NODES": urlsplit(target.url).netloc, "SIDECAR_URL": target.url + _FACTS,
            "RESULTS_URL": target.url + _RESULTS if several_results else "",
            "GIVEN_URL": target.url + "/given" if given is not None else "",
        }  # fmt: skip
        command = [sys.executable, "-m", "storeside.transformers.serve", "--transform", transform]
        with log.open("wb") as file:
            process = subprocess.Popen(
                [*command, "--host", "127.0.0.1", "--port", str(port)], env=variables, stdout=file, stderr=file
            )
        running.append(process)
        _wait(process, port, log)
        return Served(f"http://127.0.0.1:{port}", folder, log, target, object_timeout)

    yield start
    for process in running:
        process.terminate()
    for process in running:
        process.wait(30)
    for target in targets:
        target.close()


def _index(given: Mapping[str, Any]) -> bytes:
    file = io.BytesIO()
    entries = ((given_index.slot(name), given_index.line(name, entry)) for name, entry in given.items())
    given_index.write(file, iter(sorted(entries)))
    return file.getvalue()


def _free_port() -> int:
    """Return a port lower than those that systems choose for others, so none takes it before the server does."""
    while True:
        port = secrets.choice(range(16384, 30000))
        with suppress(OSError), socket.socket() as probe:
            probe.bind(("127.0.0.1", port))
            return port


def _wait(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    until = time.monotonic() + _START_SECONDS
    while time.monotonic() < until and process.poll() is None:
        with suppress(OSError), closing(HTTPConnection("127.0.0.1", port, timeout=5)) as connection:
            connection.request("GET", "/health")
            if connection.getresponse().status == 200:
                return
        time.sleep(0.05)  # between two requests to a server that starts
    told = log.read_text(errors="replace").strip()
    raise AssertionError(f"the transformer does not start within {_START_SECONDS:g} s: {told}")
