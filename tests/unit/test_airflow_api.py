"""Transient faults of Airflow's API, and especially a slow answer: the demo's requests succeed nevertheless."""

from __future__ import annotations

import http.server
import json
import struct
import threading
import time
from collections.abc import Callable, Iterator
from socket import SO_LINGER, SOL_SOCKET
from types import SimpleNamespace
from typing import Any

import pytest
import requests
from hypothesis import given, settings
from hypothesis import strategies as st

from storeside.stack import demo
from storeside.stack.airflow.api import AirflowApi
from storeside.stack.settings import HOST

TIMEOUT = 0.15


class Airflow(http.server.ThreadingHTTPServer):
    """The part of Airflow's API that a run needs; `faults` come first, one with each request."""

    def __init__(self, faults: list[str] | None = None) -> None:
        self.faults = list(faults or [])
        self.runs: dict[str, int] = {}
        self.asked: list[str] = []
        self.lock = threading.Lock()
        self.ended = threading.Event()
        super().__init__((HOST, 0), Handler)

    def handle_error(self, request: Any, client_address: Any) -> None:
        pass  # a client that did not wait for a slow answer

    def next_fault(self) -> str:
        with self.lock:
            return self.faults.pop(0) if self.faults else ""


class Handler(http.server.BaseHTTPRequestHandler):
    server: Airflow

    def answer(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers.get("Content-Length") or 0)) or b"{}")
        self.server.asked.append(f"{self.command} {self.path}")
        status, content = self.outcome(body)
        fault = self.server.next_fault()
        if fault == "slow":
            self.server.ended.wait(60)  # longer than the client
        elif fault == "reset":
            self.connection.setsockopt(SOL_SOCKET, SO_LINGER, struct.pack("ii", 1, 0))
            self.connection.close()
            self.close_connection = True
            return
        elif fault.isdigit():
            status, content = int(fault), {"detail": "not now"}
        sent = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(sent) + (fault == "truncated")))
        self.end_headers()
        self.wfile.write(sent)
        self.close_connection = True

    def outcome(self, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        if self.path == "/auth/token":
            return 201, {"access_token": "token"}
        if self.command == "POST":
            with self.server.lock:
                name = body["dag_run_id"]
                if name in self.server.runs:
                    return 409, {"detail": "there is such a run"}
                self.server.runs[name] = 0
            return 200, {"dag_run_id": name}
        if "/taskInstances" in self.path:
            return 200, {"task_instances": [{"task_id": "t", "state": "success"}], "total_entries": 1}
        if "/dagRuns/" in self.path:
            for name in self.server.runs:
                self.server.runs[name] += 1
            return 200, {"state": "success" if max(self.server.runs.values()) > 2 else "running"}
        return 200, {"is_paused": False}

    do_GET = do_POST = do_PATCH = do_DELETE = answer

    def log_message(self, *arguments: Any) -> None:
        pass


def hurry(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("storeside.stack.airflow.api._PAUSE_SECONDS", 0.01)
    patch.setattr(demo, "time", SimpleNamespace(monotonic=time.monotonic, sleep=lambda seconds: None))


@pytest.fixture
def airflow() -> Iterator[Callable[..., tuple[Airflow, AirflowApi]]]:
    servers = []

    def make(*faults: str, patience: float = 10) -> tuple[Airflow, AirflowApi]:
        server = Airflow(list(faults))
        servers.append(server)
        threading.Thread(target=server.serve_forever, daemon=True, args=(0.05,)).start()
        url = f"http://{HOST}:{server.server_port}"
        return server, AirflowApi(url, "admin", "x", timeout=TIMEOUT, patience=patience)

    yield make
    for server in servers:
        server.ended.set()
        server.shutdown()
        server.server_close()


@pytest.mark.parametrize("fault", ["slow", "reset", "truncated", "500", "503"])
@pytest.mark.parametrize("before", range(6), ids=["token", "start", "state", "tasks", "second state", "second tasks"])
def test_one_passing_fault_does_not_end_the_demo(
    airflow: Any, fault: str, before: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    hurry(monkeypatch)
    server, api = airflow(*[""] * before, fault)
    assert demo._run_pipeline(api, "x/") < 30
    assert len(server.runs) == 1, "no run is started twice"
    assert not server.faults


@settings(max_examples=25)
@given(st.lists(st.sampled_from(["", "", "reset", "503", "truncated"]), max_size=12))
def test_any_order_of_passing_faults_starts_one_run(faults: list[str]) -> None:
    server = Airflow(faults)
    threading.Thread(target=server.serve_forever, daemon=True, args=(0.05,)).start()
    api = AirflowApi(f"http://{HOST}:{server.server_port}", "admin", "x", timeout=2)
    try:
        with pytest.MonkeyPatch.context() as patch:
            hurry(patch)
            demo._run_pipeline(api, "x/")
    finally:
        server.shutdown()
        server.server_close()
    assert len(server.runs) == 1


def test_a_refusal_is_said_at_once(airflow: Any) -> None:
    server, api = airflow("", "404")
    with pytest.raises(requests.HTTPError, match="404"):
        api.get("dags")
    assert len(server.asked) == 2


def test_a_run_that_somebody_else_has_started_is_a_conflict(airflow: Any) -> None:
    server, api = airflow()
    server.runs["mine"] = 0
    with pytest.raises(requests.HTTPError, match="409"):
        api.trigger("dag", run="mine")


def test_patience_has_an_end(airflow: Any) -> None:
    server, api = airflow("", *["503"] * 1_000, patience=1)
    with pytest.raises(requests.HTTPError, match="503"):
        api.get("dags")
    assert len(server.faults) > 900


def test_what_may_not_be_sent_twice_is_sent_once(airflow: Any) -> None:
    server, api = airflow("", "slow")
    with pytest.raises(requests.Timeout):
        api.request("DELETE", "connections/x")
    assert [asked for asked in server.asked if asked.startswith("DELETE")] == ["DELETE /api/v2/connections/x"]
