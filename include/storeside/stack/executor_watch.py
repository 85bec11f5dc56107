"""Restarts a scheduler whose LocalExecutor has lost a worker process.

``python -m storeside.stack.executor_watch airflow scheduler`` becomes that command, beside a small process that
watches its workers.

Airflow 3.3's LocalExecutor passes tasks to its workers through a queue whose lock an idle worker holds while it waits
(`multiprocessing.SimpleQueue.get`). A worker that is killed meanwhile, by the kernel's OOM killer for example, never
releases the lock: no other worker, old or new, gets a task again, and the scheduler still reports that it is
healthy. A worker that is killed while it runs a task takes one of the executor's slots with it. Only a new executor
helps, so the watch ends the scheduler, and its supervisor starts it again: the supervisor of the embedded stack, or
Docker's restart policy. Tasks that run at that moment are killed, and Airflow starts them again.
"""

from __future__ import annotations

import os
import sys
import time
from contextlib import suppress

import psutil

# The name that `airflow.executors.local_executor` gives its workers; their current activity follows.
TITLE = "airflow worker -- LocalExecutor"
_IDLE = "<idle>"
# Seconds for which a worker must be missing: a scheduler that is ending has ended by then.
CONFIRM_SECONDS = 5.0
# Seconds in which tasks of the other workers may end by themselves before the scheduler is restarted.
PATIENCE_SECONDS = 60.0
_LOOK_SECONDS = 1.0
_END_SECONDS = 15.0


def titles(scheduler: psutil.Process) -> dict[int, str]:
    """Return the living workers of a scheduler's LocalExecutor: process ids and titles."""
    found = {}
    for child in scheduler.children():
        with suppress(psutil.Error):
            title = " ".join(child.cmdline()).strip()
            if title.startswith(TITLE) and child.status() != psutil.STATUS_ZOMBIE:
                found[child.pid] = title
    return found


def lost_worker(scheduler: psutil.Process, look_seconds: float = _LOOK_SECONDS) -> int | None:
    """Wait until the executor must be restarted, and return the id of the worker that it has lost.

    That is `CONFIRM_SECONDS` after the loss if the other workers are idle, and at most `PATIENCE_SECONDS` after it.
    Returns None if the scheduler has ended.
    """
    known: set[int] = set()
    since = 0.0
    with suppress(psutil.NoSuchProcess):
        while scheduler.status() != psutil.STATUS_ZOMBIE:
            now = titles(scheduler)
            known |= now.keys()
            if lost := known - now.keys():
                since = since or time.monotonic()
                idle = all(title.endswith(_IDLE) for title in now.values())
                if time.monotonic() - since > (CONFIRM_SECONDS if idle else PATIENCE_SECONDS):
                    return min(lost)
            time.sleep(look_seconds)
    return None


def end(scheduler: psutil.Process) -> None:
    """Kill the workers and their tasks, then end the scheduler, which then waits for none of them."""
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
    """Replace this process with `command`; its child process stays behind to watch."""
    scheduler = psutil.Process()
    if os.fork():
        os.execvp(command[0], command)  # noqa: S606 - the command line's own
    if lost := lost_worker(scheduler):
        print(
            f"worker {lost} of the LocalExecutor was killed, after which queued tasks may wait for ever: "
            "ending the scheduler, to be started again",
            flush=True,
        )
        end(scheduler)


if __name__ == "__main__":
    main(*sys.argv[1:])
