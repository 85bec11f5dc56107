"""The lock that tasks share through the cluster: one holder at a time, even if the last one died."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from storeside.aistore import lock
from storeside.aistore.errors import AIStoreTransientError
from storeside.aistore.lock import locked
from tests.support import unique, until


class Section:
    """Counts how many tasks are in it at once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._inside = self.most = self.entered = 0

    def __enter__(self) -> None:
        with self._lock:
            self._inside += 1
            self.entered += 1
            self.most = max(self.most, self._inside)

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._inside -= 1


def left(client: Any) -> list[str]:
    return [b.name for b in client.cluster().list_buckets() if b.name.startswith(lock.PREFIX)]


def abandoned(client: Any, what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave a lock as a task does that is killed while it holds it."""
    with monkeypatch.context() as patched:
        patched.setattr(lock, "_remove", lambda bucket: None)
        with locked(client, what, stale_seconds=60, patience_seconds=5):
            pass


def test_one_task_at_a_time(aistore: Any) -> None:
    what, section = unique("lock"), Section()

    def work(_: int) -> None:
        with locked(aistore, what, stale_seconds=60, patience_seconds=60), section:
            left(aistore)  # other tasks ask for the lock meanwhile

    with ThreadPoolExecutor(6) as tasks:
        list(tasks.map(work, range(18)))
    assert (section.most, section.entered) == (1, 18)
    assert left(aistore) == []


def test_of_many_that_find_an_old_lock_one_holds_the_next(aistore: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    what, section = unique("lock"), Section()
    abandoned(aistore, what, monkeypatch)
    (old,) = left(aistore)
    age = lock.age_of

    def of_a_dead_task(client: Any, name: str) -> float | None:
        found = age(client, name)
        return found + 1000 if found is not None and name == old else found

    monkeypatch.setattr(lock, "age_of", of_a_dead_task)
    ready = threading.Barrier(6)

    def work(_: int) -> None:
        ready.wait()
        with locked(aistore, what, stale_seconds=900, patience_seconds=120), section:
            left(aistore)

    with ThreadPoolExecutor(6) as tasks:
        list(tasks.map(work, range(6)))
    assert (section.most, section.entered) == (1, 6)
    assert left(aistore) == []


def test_a_task_that_breaks_an_old_lock_late_leaves_that_of_its_successor(
    aistore: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has seen the old lock and is slow to remove it: meanwhile another task has, and holds the next lock."""
    what = unique("lock")
    abandoned(aistore, what, monkeypatch)
    (old,) = left(aistore)
    age = lock.age_of
    until(lambda: age(aistore, old) > 2, 30, "old lock")
    looked, go_on, looks = threading.Event(), threading.Event(), []

    def slow(client: Any, name: str) -> float | None:
        seen = age(client, name)
        if threading.current_thread().name.startswith("late"):
            looked.set()
            go_on.wait(60)
            looks.append(name)
        return seen

    monkeypatch.setattr(lock, "age_of", slow)
    late = ThreadPoolExecutor(1, thread_name_prefix="late")

    def break_it() -> None:
        with locked(aistore, what, stale_seconds=2, patience_seconds=120):
            pass

    ended = late.submit(break_it)
    assert looked.wait(60)
    with locked(aistore, what, stale_seconds=2, patience_seconds=10):
        held = left(aistore)
        go_on.set()
        until(lambda: len(looks) > 1, 60, "next look of the late task, which has removed the lock that it saw")
        until(lambda: left(aistore) == held, 30, "lock of the successor alone")
    ended.result(60)
    assert left(aistore) == []


def test_who_waits_too_long_is_told_so(aistore: Any) -> None:
    what = unique("lock")
    with (
        locked(aistore, what, stale_seconds=60, patience_seconds=5),
        pytest.raises(AIStoreTransientError, match=f"{what}: locked by another task for more than 0.5 s"),
        locked(aistore, what, stale_seconds=60, patience_seconds=0.5),
    ):
        pass
    assert left(aistore) == []
