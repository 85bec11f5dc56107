"""Probes of ports on which nothing listens, while the kernel connects the probe to itself."""

from __future__ import annotations

import http.server
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from storeside.stack.airflow import airflow
from storeside.stack.podrunner import component as podrunner
from storeside.stack.podrunner.pods import Pod
from storeside.stack.settings import HOST, Stack, free_ports
from storeside.stack.supervision.probes import Connection, answers, json_of, listens
from storeside.stack.supervision.processes import listener
from storeside.stack.supervision.supervisor import Supervisor

create_connection = socket.create_connection


@pytest.fixture
def to_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give each outgoing connection its destination port as its own port, as the kernel does by chance."""

    def connect(address: tuple[str, int], *arguments: Any, **options: Any) -> socket.socket:
        options["source_address"] = address
        return create_connection(address, *arguments[:1], **{k: v for k, v in options.items() if k != "timeout"})

    monkeypatch.setattr(socket, "create_connection", connect)


@contextmanager
def server(answer: bytes) -> Iterator[int]:
    """Answer each request with these bytes."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def handle_one_request(self) -> None:
            self.connection.recv(65536)
            self.connection.sendall(answer)
            self.close_connection = True

    with http.server.ThreadingHTTPServer((HOST, 0), Handler) as found:
        threading.Thread(target=found.serve_forever, daemon=True).start()
        yield found.server_port
        found.shutdown()


def stack_of(folder: Path) -> Stack:
    return Stack.create(folder, 1)


def pod_ready(port: int, folder: Path) -> bool:
    pod = SimpleNamespace(_cluster=SimpleNamespace(settings=SimpleNamespace(host=HOST)), _port=port)
    return Pod._answers(pod, {"httpGet": {"path": "/"}})  # type: ignore[arg-type]


def airflow_healthy(port: int, folder: Path) -> bool:
    stack = stack_of(folder)
    stack.ports.update({"airflow": port, "airflow_execution": port})
    return any(component.healthy() for component in airflow.components(stack))


def podrunner_healthy(port: int, folder: Path) -> bool:
    stack = stack_of(folder)
    stack.ports["podrunner"] = port
    (component,) = podrunner.components(stack, {})
    return component.healthy()


def supervisor_runs(port: int, folder: Path) -> bool:
    stack = stack_of(folder)
    stack.ports["supervisor"] = port
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("storeside.stack.supervision.supervisor.runs", lambda state: True)
        return Supervisor(stack).running()


PROBES: dict[str, Callable[[int, Path], bool]] = {
    "answers": lambda port, folder: answers(f"http://{HOST}:{port}/v1/health"),
    "json_of": lambda port, folder: bool(json_of(f"http://{HOST}:{port}/v1/health")),
    "listens": lambda port, folder: listens(HOST, port),
    "readiness of a pod": pod_ready,
    "Airflow": airflow_healthy,
    "pod runner": podrunner_healthy,
    "supervisor": supervisor_runs,
}


@pytest.mark.usefixtures("to_itself")
def test_the_fixture_connects_a_socket_to_itself() -> None:
    with closing(socket.create_connection((HOST, free_ports(1)[0]))) as connection:
        connection.sendall(b"GET / HTTP/1.1\r\n\r\n")
        assert connection.recv(100).startswith(b"GET"), "what is sent comes back"


@pytest.mark.usefixtures("to_itself")
@pytest.mark.parametrize("probe", PROBES.values(), ids=PROBES)
def test_a_connection_to_itself_is_no_answer_and_leaves_the_port_free(
    probe: Callable[[int, Path], bool], tmp_path: Path
) -> None:
    (port,) = free_ports(1)
    for _ in range(3):
        assert probe(port, tmp_path) is False
    assert listener(port) is None


@pytest.mark.usefixtures("to_itself")
def test_the_port_can_be_bound_at_once_without_reuse() -> None:
    (port,) = free_ports(1)
    assert not answers(f"http://{HOST}:{port}")
    with socket.socket() as bound:
        bound.bind((HOST, port))


def test_a_server_is_found() -> None:
    with server(b'HTTP/1.0 200 OK\r\n\r\n{"status": "healthy"}') as port:
        assert listens(HOST, port)
        assert answers(f"http://{HOST}:{port}")
        assert json_of(f"http://{HOST}:{port}") == {"status": "healthy"}


@settings(max_examples=25)  # each starts a server
@given(st.binary(max_size=200))
def test_nothing_that_a_server_says_makes_a_probe_raise(said: bytes) -> None:
    with server(said) as port:
        assert answers(f"http://{HOST}:{port}") in (True, False)
        assert isinstance(json_of(f"http://{HOST}:{port}"), dict)


def test_a_connection_to_a_server_is_left_alone() -> None:
    with server(b"HTTP/1.0 204 No Content\r\n\r\n") as port, closing(Connection(HOST, port, timeout=5)) as connection:
        connection.request("GET", "/")
        assert connection.getresponse().status == http.HTTPStatus.NO_CONTENT
