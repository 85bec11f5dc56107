"""Ports that other processes took while the stack was down."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from storeside.stack import cli
from storeside.stack.ports import renew
from storeside.stack.servers import aistore
from storeside.stack.settings import Stack, StackError, free_ports
from storeside.stack.supervision.processes import MARK, mark
from storeside.stack.supervision.supervisor import Supervisor


@pytest.fixture
def stack(tmp_path: Path) -> Stack:
    stack = Stack.create(tmp_path, 2)
    stack.save()
    return stack


@contextmanager
def taken(stack: Stack, *names: str) -> Iterator[None]:
    held = []
    try:
        for name in names:
            held.append(socket.create_server(("127.0.0.1", stack.ports[name])))
        yield
    finally:
        for holder in held:
            holder.close()


def test_a_taken_port_is_replaced_and_nothing_else_changes(stack: Stack, tmp_path: Path) -> None:
    names = ("airflow", "s3", "supervisor", "ais_target1_public")
    said: list[str] = []
    aistore.folder(stack).mkdir()
    with taken(stack, *names):
        found = renew(stack, cli.PARTS, said.append)
        assert found == renew(found, cli.PARTS)
    assert {name for name in stack.ports if found.ports[name] != stack.ports[name]} == set(names)
    assert len(set(found.ports.values())) == len(found.ports)
    assert found.secrets == stack.secrets
    assert found == Stack.load(tmp_path)
    assert f"port {stack.ports['airflow']} of airflow is taken by pid {os.getpid()} (" in said[0]
    assert said[0].endswith(f": airflow moves to port {found.ports['airflow']}")


def test_ports_stay_while_something_of_the_stack_runs(stack: Stack) -> None:
    environment = {**os.environ, MARK: mark(stack.state, "s3")}
    server = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, env=environment)
    with taken(stack, "airflow"), server:
        assert renew(stack, cli.PARTS) == stack
        server.kill()


def test_a_cluster_that_exists_keeps_the_ports_of_its_proxy(stack: Stack) -> None:
    with taken(stack, "ais_proxy_control"):
        assert renew(stack, cli.PARTS).ports["ais_proxy_control"] != stack.ports["ais_proxy_control"]
        aistore.folder(stack).mkdir()
        assert renew(stack, ("s3", "clickhouse")) == stack
        said = (
            rf"^port {stack.ports['ais_proxy_control']} of AIStore's proxy is taken by pid {os.getpid()} \(.*"
            rf"end that process, or delete {stack.state}, with its data, to create another stack$"
        )
        with pytest.raises(StackError, match=said):
            renew(stack, cli.PARTS)


def test_up_asks_for_it_before_anything_starts(stack: Stack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[Stack] = []
    monkeypatch.setattr(Supervisor, "start", lambda supervisor, *_: started.append(supervisor.stack))
    with taken(stack, "s3"):
        found = cli.up(tmp_path, only=("s3",))
    assert started == [found]
    assert found.ports["s3"] != stack.ports["s3"]


def test_ports_are_free_and_below_those_of_connections() -> None:
    ports = free_ports(20)
    assert len(set(ports)) == 20
    assert all(16384 <= port < 30000 for port in ports)


def test_a_port_that_is_in_use_is_not_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    first, *others = free_ports(9)
    monkeypatch.setattr("storeside.stack.settings._PORTS", [first, *others])
    with socket.create_server(("127.0.0.1", first)):
        assert set(free_ports(4)) <= set(others)
