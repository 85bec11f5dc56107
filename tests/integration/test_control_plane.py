"""Targets whose control plane is under stress: ETLs that end while they start, and targets that do not answer."""

from __future__ import annotations

import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import requests

from storeside.aistore import control_plane, jobs
from storeside.stack import cli
from storeside.stack.settings import Stack
from tests.support import ask_aistore, process, small_spec, unique, until

STRESS_SECONDS = 12.0
ANSWER_SECONDS = 25.0


def log_of(stack: Stack, target: int) -> str:
    return (stack.state / "logs" / f"ais-target-{target}.log").read_text(errors="replace")


def test_etls_that_are_ended_while_they_start_leave_the_targets_answering(stack: Stack, aistore: Any) -> None:
    """Without the change to AIStore a target panics within seconds, and later calls never return."""
    names = [unique("stress") for _ in range(2)]
    before = [len(log_of(stack, n)) for n in range(stack.targets)]
    seen: Counter[str] = Counter()
    end = time.monotonic() + STRESS_SECONDS

    def call(verb: str, path: str, body: Any = None) -> None:
        try:
            answer = ask_aistore(stack, verb, path, ANSWER_SECONDS, json=body)
            seen[f"{verb} {path.partition('/')[0]}: {answer.status_code}"] += 1
        except requests.RequestException as e:
            seen[f"{verb} {path.partition('/')[0]}: {type(e).__name__}"] += 1

    def repeat(action: Callable[[], None], pause: float) -> threading.Thread:
        def run() -> None:
            while time.monotonic() < end:
                action()
                time.sleep(random.random() * pause)  # noqa: S311 - requests meet the start of an ETL at random times

        thread = threading.Thread(target=run)
        thread.start()
        return thread

    threads = [repeat(lambda: call("get", "etl"), 0.05)]
    stop = {"action": "stop", "value": {"kind": "etl-inline"}}
    threads.append(repeat(lambda: call("put", "cluster", stop), 1.0))
    for name in names:
        message = small_spec("upper", etl_name=name, communication="hpush").message()
        threads.append(repeat(lambda m=message: call("put", "etl", m), 0.02))  # type: ignore[misc]
        threads += [repeat(lambda n=name: call("delete", f"etl/{n}"), 0.3) for _ in range(2)]  # type: ignore[misc]
    for thread in threads:
        thread.join(ANSWER_SECONDS * 2)
    new = "".join(log_of(stack, n)[size:] for n, size in enumerate(before))
    assert "panic" not in new
    assert not [what for what in seen if what.endswith(("Timeout", "ConnectionError"))], dict(seen)
    assert control_plane.unanswering(aistore) == []
    for name in names:
        call("delete", f"etl/{name}")
    until(lambda: not {etl.id for etl in aistore.cluster().list_etls()} & set(names), 30, "end of the ETLs")


def test_every_target_of_a_healthy_cluster_answers(aistore: Any) -> None:
    assert control_plane.unanswering(aistore) == []


def test_a_target_that_stands_still_is_named_as_down_and_not_as_stuck(stack: Stack, aistore: Any) -> None:
    target = process(stack, "ais-target-1")
    target.send_signal(signal.SIGSTOP)
    try:
        (found,) = control_plane.unanswering(aistore, seconds=1.0)
        assert control_plane.stuck(aistore) == [] or not found.stuck
    finally:
        target.send_signal(signal.SIGCONT)
    assert (found.id, found.stuck) == ("aistarget1", False)
    assert "make restart COMPONENT=ais-target-1" in str(found)
    until(lambda: not control_plane.unanswering(aistore), 60, "answer of all targets")


def test_the_status_names_a_target_that_stands_still_and_a_restart_mends_it(
    stack: Stack, aistore: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = ["--folder", str(stack.state.parent)]
    until(lambda: control_plane.unanswering(aistore) == [], 60, "answer of all targets")
    old = process(stack, "ais-target-1")
    # it soon answers its own health check again, and meanwhile is removed from the cluster map
    old.send_signal(signal.SIGSTOP)
    try:
        until(lambda: "aistarget1" not in aistore.cluster().get_info().tmap, 60, "removal from the cluster map")
        assert cli.main([*folder, "status"]) == 1
        assert "ais-target-1" in capsys.readouterr().out
        assert cli.main([*folder, "restart", "ais-target-1"]) == 0
    finally:
        if old.is_running():
            old.send_signal(signal.SIGCONT)
    assert process(stack, "ais-target-1").pid != old.pid
    until(lambda: control_plane.unanswering(aistore, expected=["aistarget1"]) == [], 60, "answer of all targets")
    capsys.readouterr()
    assert cli.main([*folder, "status"]) == 0, capsys.readouterr().out
    assert cli.main([*folder, "restart", "nobody"]) == 1
    assert "nobody is not a running component: " in capsys.readouterr().err
    jobs.wait_for_rebalance(aistore)  # the restart causes one; targets refuse later tests' jobs until it ends
