"""Restarts a scheduler whose LocalExecutor has lost a worker process.

``python -m storeside.stack.executor_watch airflow scheduler`` runs that command and a small process that watches its
workers.

Airflow 3.3's LocalExecutor passes tasks to its workers through a queue. An idle worker holds the queue's lock while
it waits (`multiprocessing.SimpleQueue.get`). If the worker is then killed, for example by the kernel's OOM killer,
the lock is never released: no other worker, old or new, gets a task, and the scheduler still reports that it is
healthy. A worker that is killed while it runs a task permanently occupies one slot of the executor. Only a new
executor helps, so the watch ends the scheduler. The supervisor of the embedded stack, or Docker's restart policy,
starts the scheduler again. Running tasks are killed at that moment, and Airflow starts them again.
"""

from __future__ import annotations

import os
import sys
import time
from contextlib import suppress

import psutil

# The title that `airflow.executors.local_executor` gives its workers, followed by their current activity.
TITLE = "airflow worker -- LocalExecutor"
_IDLE = "<idle>"
# Seconds for which a worker must be absent.
CONFIRM_SECONDS = 5.0
# Seconds that the tasks of the other workers get to finish before the scheduler is restarted.
PATIENCE_SECONDS = 60.0
_LOOK_SECONDS = 1.0
_END_SECONDS = 15.0


def titles(scheduler: psutil.Process) -> dict[int, str]:
    """Return process id and title of each living worker of a scheduler's LocalExecutor."""
    found = {}
    for child in scheduler.children():
        with suppress(psutil.Error):
            title = " ".join(child.cmdline()).strip()
            if title.startswith(TITLE) and child.status() != psutil.STATUS_ZOMBIE:
                found[child.pid] = title
    return found


def lost_worker(scheduler: psutil.Process, look_seconds: float = _LOOK_SECONDS) -> int | None:
    """Wait until the executor must be restarted, and return the process id of its lost worker.

    The restart is due `CONFIRM_SECONDS` after the loss if the other workers are idle, and `PATIENCE_SECONDS` after it
    if only some of them are. While all are busy, none waits for a task, or the scheduler is shutting down: then its
    idle workers end, and it waits for the others. Returns None if the scheduler has ended.
    """
    seen: set[int] = set()
    since = 0.0
    with suppress(psutil.NoSuchProcess):
        while scheduler.status() != psutil.STATUS_ZOMBIE:
            now = titles(scheduler)
            seen |= now.keys()
            idle = [title.endswith(_IDLE) for title in now.values()]
            lost = seen - now.keys()
            if not lost or (idle and not any(idle)):
                since = 0.0
            else:
                since = since or time.monotonic()
                if time.monotonic() - since > (CONFIRM_SECONDS if all(idle) else PATIENCE_SECONDS):
                    return min(lost)
            time.sleep(look_seconds)
    return None


def end(scheduler: psutil.Process) -> None:
    """Kill the workers and their tasks, so that the scheduler does not wait for them; then end the scheduler."""
    for child in scheduler.children(recursive=True):
        if child.pid != os.getpid():
            with suppress(psutil.Error):
                child.kill()
    with suppress(psutil.Error):
        scheduler.terminate()
        try:
            scheduler.wait(_END_SECONDS)
        except psutil.TimeoutExpired:
            scheduler.kill()


def main(*command: str) -> None:
    """Replace this process with `command`; a child process stays and watches."""
    scheduler = psutil.Process()
    if os.fork():
        os.execvp(command[0], command)  # noqa: S606 - the command of the command line
    if lost := lost_worker(scheduler):
        print(
            f"worker {lost} of the LocalExecutor was killed, so queued tasks may never start: "
            "ending the scheduler, which is then restarted",
            flush=True,
        )
        end(scheduler)


if __name__ == "__main__":
    main(*sys.argv[1:])
