"""Process trees: find the processes of a pod, measure their usage, and end all of them."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import psutil

_PR_SET_PDEATHSIG = 1
_CLOCK_SLACK = 2.0
_libc = ctypes.CDLL(None, use_errno=True)


def dies_with_parent() -> Callable[[], None]:
    """Return a function for a new child to call before exec: the kernel then kills the child when its parent dies."""
    parent = os.getpid()

    def before_exec() -> None:
        _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)

    return before_exec


def tree(leader: int) -> list[psutil.Process]:
    """Return the live processes of the session that `leader` started, and its descendants in other sessions."""
    found: dict[int, psutil.Process] = {}
    for process in psutil.process_iter():
        with suppress(OSError):
            if os.getsid(process.pid) == leader:
                found[process.pid] = process
    with suppress(psutil.Error):
        found.update((child.pid, child) for child in psutil.Process(leader).children(recursive=True))
    return [process for process in found.values() if _alive(process)]


def _alive(process: psutil.Process) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def usage(leader: int) -> tuple[float, int]:
    """Return the CPU seconds and the resident bytes of a process tree."""
    seconds, resident = 0.0, 0
    for process in tree(leader):
        with suppress(psutil.Error):
            times = process.cpu_times()
            seconds += times.user + times.system
            resident += process.memory_info().rss
    return seconds, resident


def kill_tree(leader: int) -> None:
    """Kill a process tree in several rounds, because a process may fork while others are killed."""
    for _ in range(10):
        members = tree(leader)
        for process in members:
            with suppress(psutil.Error):
                process.kill()
        if not members:
            return
        time.sleep(0.01)


class Ledger:
    """A folder of records of the session leaders that this program started, for cleaning up after it was killed."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def add(self, pid: int, hostname: str) -> None:
        """Record a session leader; its environment has `hostname` as HOSTNAME."""
        with suppress(psutil.Error):
            started = psutil.Process(pid).create_time()
            (self._folder / str(pid)).write_text(json.dumps({"started": started, "hostname": hostname}))

    def remove(self, pid: int) -> None:
        """Remove the record of a session leader."""
        (self._folder / str(pid)).unlink(missing_ok=True)

    def kill_leftovers(self) -> int:
        """Kill processes of an earlier run and return their number; spare new processes with the same id."""
        killed = 0
        for path in self._folder.iterdir():
            try:
                record = json.loads(path.read_text())
            except ValueError:
                record = {}
            for process in tree(int(path.name)) if record else ():
                with suppress(psutil.Error):
                    ours = process.environ().get("HOSTNAME") == record["hostname"]
                    if ours and process.create_time() > record["started"] - _CLOCK_SLACK:
                        process.kill()
                        killed += 1
            path.unlink()
        return killed
