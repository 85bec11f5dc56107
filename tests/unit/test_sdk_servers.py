"""The servers of AIStore's SDK with a transform of Storeside, as AIStore sees them: real processes and sockets."""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Callable

import psutil
import pytest
import requests

from storeside.measure.transforms import variants
from storeside.stack.podrunner.runtime_python import load_app
from storeside.transformers import sdk_servers
from tests.support import until
from tests.unit.test_transformer_server import (
    CONTENT,
    SECRET,
    TOLD,
    Mountpath,
    Server,
    Target,
    ask,
    launch,
    mountpath,
    target,
)

__all__ = ["launch", "mountpath", "target"]

Launch = Callable[..., Server]


def started(launch: Launch, kind: str, **variables: str) -> Server:
    return launch(TOLD, "--server", kind, program="sdk_servers", **variables)


@pytest.mark.parametrize("kind", sdk_servers.SERVERS)
def test_they_transform_contents_and_files(launch: Launch, target: Target, mountpath: Mountpath, kind: str) -> None:
    server = started(launch, kind, OBJECT_TIMEOUT="1", HANGING="/dev/null")
    assert server.push("echo").content == CONTENT
    fqn = mountpath.fqn(f"{kind}/upper")
    put = {"Ais-Node-Url": target.of(f"{kind}/pushed")}
    url = f"{server.url}/in/{kind}/upper?etl_fqn={fqn}"
    pushed = requests.put(url, headers=put, timeout=20)
    assert (pushed.status_code, target.result(f"{kind}/pushed")) == (204, CONTENT.upper())
    assert requests.get(url, timeout=20).content == CONTENT.upper()
    for name, reason in (("bad", 'no "good" object'), ("segv", "signal 11 (SIGSEGV)"), ("hang", "longer than 1 s")):
        failed = server.push(name)
        assert failed.status_code == 500
        assert kind == "http" or reason in failed.json().popitem()[1], "http states no reason"
    refused = requests.put(f"{server.url}/in/echo?etl_fqn=/etc/hostname", timeout=20)
    assert refused.status_code == 500, "only files below AIStore's folders are decoded"
    assert server.push("after/echo").content == CONTENT
    assert not server.journal, "the SDK's servers have none"
    assert SECRET not in server.log.read_text()


def test_fastapi_speaks_websocket(launch: Launch, target: Target, mountpath: Mountpath) -> None:
    server = started(launch, "fastapi", NUM_WORKERS="1")
    with server.connect() as ws:
        assert ask(ws, "a/echo") == CONTENT
        fqn = mountpath.fqn("ws/upper")
        assert ask(ws, "ws/upper", fqn=fqn, pipeline=target.of("ws/put")) == str(len(CONTENT))
        assert target.result("ws/put") == CONTENT.upper()
        assert ask(ws, "bad") == 'Transform error: no "good" object\nat all'


@pytest.mark.parametrize("kind", sdk_servers.SERVERS)
def test_they_have_the_given_number_of_workers_and_end_with_all_processes(launch: Launch, kind: str) -> None:
    server = started(launch, kind)

    def workers() -> int:
        return sum(child.pid == os.getpgid(child.pid) for child in server.descendants())

    until(lambda: workers() == 2, 30, "two workers; gunicorn answers before all of its processes are ready")
    children = server.descendants()
    server.process.send_signal(signal.SIGTERM)
    assert server.process.wait(20) in (0, -signal.SIGTERM)
    _, alive = psutil.wait_procs(children, 20)
    assert not alive


def test_the_server_of_a_users_class_does_not_log_addresses_either(monkeypatch: pytest.MonkeyPatch) -> None:
    from aistore.sdk.etl.webserver import serialize_class
    from aistore.sdk.etl.webserver.fastapi_server import FastAPIServer

    class Echo(FastAPIServer):  # type: ignore[misc]
        def transform(self, data: bytes, *_: str) -> bytes:
            return data

    monkeypatch.setenv("ETL_CLASS_PAYLOAD", serialize_class(Echo))
    monkeypatch.setenv("AIS_TARGET_URL", "http://127.0.0.1:1/secret")
    monkeypatch.setattr(logging.getLogger("httpx"), "level", logging.INFO)
    load_app()
    assert not logging.getLogger("httpx").isEnabledFor(logging.INFO)


def test_a_transform_that_cannot_be_built_ends_the_server(launch: Launch) -> None:
    transform = "tests.unit.transforms_for_tests:Unmakeable"
    server = launch(transform, "--server", "http", program="sdk_servers", wait=False)
    assert server.process.wait(20) == 1
    assert "error: " in server.log.read_text()


def test_the_benchmark_knows_them() -> None:
    assert ("storeside", *sdk_servers.SERVERS) == variants.SERVERS
