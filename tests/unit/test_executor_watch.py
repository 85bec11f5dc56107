"""The watch of the LocalExecutor's workers, on real processes with the titles of Airflow's."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from storeside.stack import executor_watch
from storeside.stack.executor_watch import TITLE, lost_worker, titles
from storeside.stack.settings import CHECKOUT
from tests.support import until

# The start of Airflow's executor: workers on one queue, and a scheduler that only counts them.
SCHEDULER = textwrap.dedent(
    """
    import multiprocessing, os, signal, sys, time
    from setproctitle import setproctitle

    def work(queue, number):
        setproctitle(f"airflow worker -- LocalExecutor: {'busy' if number < int(sys.argv[2]) else '<idle>'}")
        queue.get()

    queue = multiprocessing.SimpleQueue()
    workers = [multiprocessing.Process(target=work, args=(queue, n), daemon=True) for n in range(int(sys.argv[1]))]
    [worker.start() for worker in workers]
    print("started", flush=True)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    while True:
        time.sleep(0.05)
        [worker.is_alive() for worker in workers]
    """
)


@pytest.fixture
def scheduler(request: pytest.FixtureRequest) -> Iterator[psutil.Process]:
    busy = getattr(request, "param", 0)
    with subprocess.Popen(
        [sys.executable, "-c", SCHEDULER, "3", str(busy)],
        stdout=subprocess.PIPE,
        env={**os.environ, "SPT_NOENV": "1"},
        start_new_session=True,
    ) as process:
        assert process.stdout
        process.stdout.readline()
        found = psutil.Process(process.pid)
        until(lambda: len(titles(found)) == 3, 60, "workers")
        yield found
        os.killpg(process.pid, signal.SIGKILL)


def watching(scheduler: psutil.Process) -> tuple[threading.Thread, list[int | None]]:
    said: list[int | None] = []
    looks = 0

    class Looked(psutil.Process):
        def children(self, recursive: bool = False) -> list[psutil.Process]:
            nonlocal looks
            found = super().children(recursive)
            looks += 1
            return found

    thread = threading.Thread(target=lambda: said.append(lost_worker(Looked(scheduler.pid), 0.05)))
    thread.start()
    until(lambda: looks > 1, 60, "second look of the watch")
    return thread, said


def test_workers_are_known_by_their_titles(scheduler: psutil.Process) -> None:
    assert len(titles(scheduler)) == 3
    assert all(title.startswith(TITLE) for title in titles(scheduler).values())


def test_a_worker_that_was_killed_is_found(scheduler: psutil.Process, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executor_watch, "CONFIRM_SECONDS", 0.3)
    thread, said = watching(scheduler)
    victim = min(titles(scheduler))
    psutil.Process(victim).kill()
    thread.join(60)
    assert said == [victim]


@pytest.mark.parametrize("scheduler", [1], indirect=True)
def test_running_tasks_have_time_to_end(scheduler: psutil.Process, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executor_watch, "CONFIRM_SECONDS", 0.1)
    monkeypatch.setattr(executor_watch, "PATIENCE_SECONDS", 2.0)
    thread, said = watching(scheduler)
    idle = [pid for pid, title in titles(scheduler).items() if title.rstrip().endswith("<idle>")]
    psutil.Process(idle[0]).kill()
    thread.join(1)
    assert said == [], "a task is running"
    thread.join(60)
    assert said == [idle[0]]


@pytest.mark.parametrize("scheduler", [1], indirect=True)
def test_a_scheduler_that_shuts_down_waits_for_its_tasks(
    scheduler: psutil.Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Airflow's executor ends its idle workers at once, and waits for the others."""
    monkeypatch.setattr(executor_watch, "CONFIRM_SECONDS", 0.3)
    monkeypatch.setattr(executor_watch, "PATIENCE_SECONDS", 0.5)
    thread, said = watching(scheduler)
    for pid, title in titles(scheduler).items():
        if title.rstrip().endswith("<idle>"):
            psutil.Process(pid).kill()
    thread.join(1.5)
    assert said == []
    scheduler.terminate()
    thread.join(60)
    assert said == [None]


def test_the_watch_ends_with_the_scheduler(scheduler: psutil.Process) -> None:
    thread, said = watching(scheduler)
    scheduler.terminate()
    thread.join(60)
    assert said == [None]


def test_the_command_keeps_its_process_id_and_ends_after_a_loss(tmp_path: Path) -> None:
    script = tmp_path / "scheduler.py"
    script.write_text(SCHEDULER)
    with subprocess.Popen(
        [sys.executable, "-m", "storeside.stack.executor_watch", sys.executable, str(script), "3", "0"],
        cwd=CHECKOUT,
        stdout=subprocess.PIPE,
        env={**os.environ, "SPT_NOENV": "1"},
        start_new_session=True,
        text=True,
    ) as process:
        assert process.stdout
        try:
            assert process.stdout.readline() == "started\n"
            found = psutil.Process(process.pid)
            until(lambda: len(titles(found)) == 3, 60, "workers")
            (watch,) = set(found.children()) - {psutil.Process(pid) for pid in titles(found)}
            looked = watch.cpu_times().user
            until(lambda: watch.cpu_times().user > looked, 60, "look of the watch at all workers")
            psutil.Process(max(titles(found))).kill()
            assert process.wait(60) in (0, -signal.SIGTERM)
            assert "of the LocalExecutor was killed" in process.stdout.read()
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
