"""The first process of AIStore's container under Compose: its settings, and when it ends for Docker to restart it."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from storeside.stack.containers import aistore
from storeside.stack.settings import CHECKOUT, Stack, StackError, free_ports
from storeside.stack.supervision import supervisor
from storeside.stack.supervision.component import Component
from storeside.stack.supervision.processes import end, marked
from storeside.stack.supervision.supervisor import Supervisor

SERVICE = yaml.safe_load((CHECKOUT / "docker-compose.yaml").read_text())["services"]["aistore"]
# Runs once; later starts end at once.
ONCE = "import pathlib, sys, time; p = pathlib.Path(sys.argv[1]); p.touch(exist_ok=False); time.sleep(600)"
LASTING = "import time; time.sleep(600)"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The stack's folder for `main`, which uses free ports and looks often."""
    for name in aistore.REQUIRED:
        monkeypatch.setenv(name, "localhost")
    monkeypatch.setenv("STORESIDE_HOME", str(tmp_path))
    monkeypatch.setattr(aistore, "SUPERVISOR_PORT", free_ports(1)[0])
    monkeypatch.setattr(aistore, "_LOOK_SECONDS", 0.2)
    monkeypatch.setattr(supervisor, "RETRIES", 0)
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    yield tmp_path
    end(marked(tmp_path / "state"))


def starts(*components: Component, then: Callable[[], object] = lambda: None) -> Callable[[Stack, Supervisor], None]:
    """Return a function for `container._start` that starts other components."""

    def start(stack: Stack, running: Supervisor) -> None:
        running.start([components])
        then()

    return start


def component(name: str, *command: str, healthy: Callable[[], bool] = lambda: True) -> Component:
    return Component(name, (sys.executable, "-c", *command), healthy)


def test_the_container_ends_when_the_supervisor_gives_up_on_a_node(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Docker's health check asks only the proxy, so nothing else would ever start the node again."""
    once = folder / "once"
    target = component("ais-target-0", ONCE, str(once), healthy=once.exists)

    def kill() -> None:
        (process,) = (p for p in marked(folder / "state", "ais-target-0") if str(once) in p.cmdline())
        threading.Timer(0.5, os.kill, (process.pid, signal.SIGKILL)).start()

    monkeypatch.setattr(aistore, "_start", starts(component("authn", LASTING), target, then=kill))
    assert aistore.main() == 1
    said = capsys.readouterr().err
    assert "AIStore is ready" in said
    assert f"error: ais-target-0 ended at every start; see {folder}/state/logs/ais-target-0.log" in said
    assert not marked(folder / "state")


def test_nothing_runs_on_after_a_failed_start(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail() -> None:
        assert marked(folder / "state")
        raise StackError("the pod runner does not answer")

    monkeypatch.setattr(aistore, "_start", starts(component("authn", LASTING), then=fail))
    assert aistore.main() == 1
    assert capsys.readouterr().err == "error: the pod runner does not answer\n"
    assert not marked(folder / "state")


def test_no_connection_takes_a_port_of_the_container(tmp_path: Path) -> None:
    """They are in Linux' range for outgoing connections; without this a node could not listen at its own."""
    first, last = map(int, SERVICE["sysctls"]["net.ipv4.ip_local_reserved_ports"].split("-"))
    for targets in (1, 16):
        made = aistore._stack(tmp_path / str(targets), str(targets))
        ports = {n: p for n, p in made.ports.items() if n.startswith(("ais_", "supervisor", "authn", "podrunner"))}
        assert len(ports) == 3 + 3 * (1 + targets) == len(set(ports.values()))
        assert {n: p for n, p in ports.items() if not first <= p <= last} == {}


def test_nodes_that_know_each_other_keep_their_ports(tmp_path: Path) -> None:
    Stack.create(tmp_path / "tls", 1, tls=True).save()
    Stack.create(tmp_path / "plain", 1).save()
    for name, kept in (("tls", True), ("plain", False)):
        before = Stack.load(tmp_path / name)
        assert before
        after = aistore._stack(tmp_path / name, "")
        for port in ("ais_proxy_control", "ais_target0_control"):
            assert (after.ports[port] == before.ports[port]) is kept


@pytest.mark.parametrize("targets", ["x", "0", "17", "-1", "2.5"])
def test_the_number_of_targets_of_a_new_cluster_is_checked(tmp_path: Path, targets: str) -> None:
    with pytest.raises(StackError, match=rf"AIS_TARGETS is '{targets}': choose a number from 1 to 16"):
        aistore._stack(tmp_path, targets)
    assert not (tmp_path / "state").exists()


def test_the_number_of_targets_of_a_cluster_cannot_change(tmp_path: Path) -> None:
    """Without the variable every cluster starts; Compose passes it as an empty text."""
    assert SERVICE["environment"]["AIS_TARGETS"] == "${AIS_TARGETS:-}"
    made = aistore._stack(tmp_path, "")
    assert made.targets == 2
    replace(made, targets=1).save()
    for targets in ("", "1"):
        assert aistore._stack(tmp_path, targets).targets == 1
    with pytest.raises(StackError, match=r"AIS_TARGETS is '4', and this cluster has 1 targets, .* AIS_TARGETS=1 in"):
        aistore._stack(tmp_path, "4")
