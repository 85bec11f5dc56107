from __future__ import annotations

import hashlib
import os
import threading
import time
import tracemalloc
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storeside.copying.errors import ChangedError, CopyCancelled, CopyInputError, CopyObjectError, CopyTransientError
from storeside.copying.mover import Mover, Outcome
from storeside.copying.multipart import MIB, OCI_LIMITS, S3_LIMITS, Limits, Profile, Settings
from storeside.copying.samples import Samples
from storeside.copying.store import Head
from storeside.ledger.scope import Pending
from tests.support import until

# --- which parts


@given(
    size=st.integers(0, 300),
    threshold=st.integers(1, 100),
    part_size=st.integers(1, 50),
    most_parts=st.integers(1, 20),
)
def test_parts_are_the_object(size: int, threshold: int, part_size: int, most_parts: int) -> None:
    limits = Limits(1, 40, most_parts, 200)
    settings = Settings(threshold, part_size, 1)
    try:
        parts = settings.parts(size, limits)
    except CopyObjectError:
        assert size > 40 * most_parts or part_size > 40
        return
    if not parts:
        assert size < threshold or size <= max(part_size, -(-size // most_parts))
        return
    assert [p.number for p in parts] == list(range(1, len(parts) + 1))
    assert 2 <= len(parts) <= most_parts
    place = 0
    for part in parts:
        assert part.start == place
        place += part.size
    assert place == size
    assert len({p.size for p in parts[:-1]}) <= 1
    assert 0 < parts[-1].size <= parts[0].size


def test_parts_grow_where_there_would_be_too_many() -> None:
    parts = Settings(part_size=5 * MIB).parts(5 << 40, S3_LIMITS)
    assert len(parts) <= 10_000
    assert parts[0].size > 5 * MIB


def test_what_one_put_does_not_take_goes_in_parts() -> None:
    assert Settings(threshold=1 << 40, part_size=64 * MIB).parts(6 << 30, S3_LIMITS)


def test_an_object_that_no_parts_hold_says_so() -> None:
    with pytest.raises(CopyObjectError, match="10000 parts of 5368709120 bytes"):
        Settings().parts(60 << 40, S3_LIMITS)


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"part_size": 0}, "part_size 0"),
        ({"concurrency": -1}, "concurrency -1"),
        ({"concurrency": 1000}, "more than 256"),
        ({"threshold": "many"}, "whole numbers"),
        ({"partsize": 5}, "partsize: use threshold, part_size, concurrency"),
        ({"preferred_transfer_client": "crt"}, "ignores endpoint_url"),
    ],
)
def test_settings_that_are_refused(values: dict[str, Any], said: str) -> None:
    with pytest.raises(CopyInputError, match=said):
        Settings.from_values(values)


def test_settings_from_a_connection() -> None:
    assert Settings.from_values({"part_size": "5242880", "preferred_transfer_client": "classic"}) == Settings(
        part_size=5 * MIB
    )


def test_parts_under_the_minimum_are_refused_before_anything_is_sent() -> None:
    Settings(part_size=MIB).check(OCI_LIMITS, "oci x")
    with pytest.raises(
        CopyInputError, match="part size 1048576 is under the minimum of 5242880 bytes at s3 x: set part_size"
    ):
        Settings(part_size=MIB).check(S3_LIMITS, "s3 x")
    with pytest.raises(CopyInputError, match="under the minimum of 5242880"):
        Mover(Samples(), Samples(), Profile.of(Settings(part_size=MIB)))


def test_settings_go_by_size() -> None:
    small, large = Settings(concurrency=2), Settings(concurrency=9)
    profile = Profile(((0, small), (100, large)))
    assert [profile.for_size(size) for size in (0, 99, 100, 10**12)] == [small, small, large, large]
    assert profile.concurrency == 9
    for steps in ((), ((1, small),), ((0, small), (0, large)), ((0, small), (9, large), (5, large))):
        with pytest.raises(CopyInputError, match="need to start at 0"):
            Profile(steps)


# --- moving: stores in memory that keep their objects and count requests


class Shelf(Samples):
    """A store in memory that keeps objects, and records the number of bytes between a read and a write."""

    def __init__(self, objects: dict[str, bytes] | None = None, limits: Limits = OCI_LIMITS) -> None:
        super().__init__(limits)
        self.objects = objects or {}
        self.begun: dict[str, dict[int, bytes]] = {}
        self.reads: list[tuple[str, int]] = []
        self.held = self.most_held = 0
        self.lock = threading.Lock()
        self.knows_md5 = True

    def head(self, key: str) -> Head:
        body = self.objects[key]
        md5 = hashlib.md5(body, usedforsecurity=False).hexdigest()
        return Head(len(body), md5, md5, md5 if self.knows_md5 else "", metadata={"a": "b"})

    def fetch(self, key: str, size: int) -> tuple[Head, bytes]:
        return self.head(key), self.fetch_range(key, self.head(key), 0, len(self.objects[key]))

    def fetch_range(self, key: str, head: Head, start: int, size: int) -> bytes:
        with self.lock:
            self.reads.append((key, start))
            self.held += size
            self.most_held = max(self.most_held, self.held)
        time.sleep(0.001)  # other threads read meanwhile
        return self.objects[key][start : start + size]

    def put(self, key: str, body: bytes, head: Head) -> str:
        self.objects[key] = body
        return "v"

    def begin(self, key: str, head: Head) -> str:
        assert head.metadata == {"a": "b"}
        self.begun[key] = {}
        return key

    def put_part(self, key: str, upload: str, number: int, body: bytes) -> str:
        self.begun[upload][number] = body
        return str(number)

    def complete(self, key: str, upload: str, tags: Any) -> str:
        parts = self.begun.pop(upload)
        self.objects[key] = b"".join(parts[int(tag)] for tag in tags)
        return "v"

    def abort(self, key: str, upload: str) -> None:
        self.begun.pop(upload, None)


SETTINGS = Settings(threshold=1000, part_size=500, concurrency=4)


def wanted(shelf: Shelf) -> Iterator[Pending]:
    for key, body in shelf.objects.items():
        yield Pending(key, f"to/{key}", len(body), "")


def copied(source: Shelf, to: Shelf, settings: Settings = SETTINGS) -> dict[str, Outcome]:
    return {o.wanted.object: o for o in Mover(source, to, Profile.of(settings)).copy(wanted(source))}


@pytest.mark.parametrize("knows_md5", [True, False])
def test_objects_arrive_as_they_are(knows_md5: bool) -> None:
    source, to = Shelf({f"{n}": os.urandom(n) for n in (0, 1, 500, 999, 1000, 1001, 5000, 12_345)}), Shelf()
    source.knows_md5 = knows_md5
    found = copied(source, to)
    assert {k.removeprefix("to/"): v for k, v in to.objects.items()} == source.objects
    assert all(outcome.error is None for outcome in found.values())
    assert ("12345", 12_000) in source.reads
    assert to.begun == {}


def test_memory_is_bounded_by_part_size_and_threads() -> None:
    source, to = Shelf({f"{n}": os.urandom(20_000) for n in range(20)}), Shelf()
    put_part = to.put_part

    def slow(key: str, upload: str, number: int, body: bytes) -> str:
        time.sleep(0.002)  # other threads read meanwhile
        tag = put_part(key, upload, number, body)
        with source.lock:
            source.held -= len(body)
        return tag

    to.put_part = slow  # type: ignore[method-assign]
    copied(source, to)
    assert len(to.objects) == 20
    assert SETTINGS.part_size < source.most_held <= SETTINGS.part_size * SETTINGS.concurrency < SETTINGS.memory + 1


def test_a_bad_object_fails_alone_and_leaves_no_upload() -> None:
    source, to = Shelf({f"{n}": os.urandom(5000) for n in range(6)}), Shelf()
    fetch_range = source.fetch_range

    def overwritten(key: str, head: Head, start: int, size: int) -> bytes:
        if key == "3" and start >= 2000:
            raise ChangedError("3 was overwritten")
        return fetch_range(key, head, start, size)

    source.fetch_range = overwritten  # type: ignore[method-assign]
    found = copied(source, to)
    assert str(found["3"].error) == "3 was overwritten"
    assert [key for key, outcome in found.items() if outcome.error] == ["3"]
    assert sorted(to.objects) == [f"to/{n}" for n in (0, 1, 2, 4, 5)]
    assert to.begun == {}


def test_what_comes_and_goes_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("storeside.copying.mover.DELAY", 0.001)
    source, to = Shelf({"a": os.urandom(5000), "b": b"x"}), Shelf()
    left = {("a", 1500): 2, ("b", 0): 2}
    fetch_range = source.fetch_range

    def flaky(key: str, head: Head, start: int, size: int) -> bytes:
        if left.get((key, start), 0):
            left[key, start] -= 1
            raise CopyTransientError("busy")
        return fetch_range(key, head, start, size)

    source.fetch_range = flaky  # type: ignore[method-assign]
    assert all(outcome.error is None for outcome in copied(source, to).values())
    left["b", 0] = 3
    assert isinstance(copied(source, to)["b"].error, CopyTransientError)


@pytest.mark.parametrize("size", [10, 5000])
def test_content_that_is_not_the_sources_is_not_kept(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    source, to = Shelf({"a": os.urandom(size)}), Shelf()
    monkeypatch.setattr(
        source, "fetch_range", lambda key, head, start, size: bytes(size)
    )  # a broken disk, a wrong cache
    error = copied(source, to)["a"].error
    assert "the source states" in str(error)
    assert to.objects == {}
    assert to.begun == {}


@pytest.mark.parametrize("size", [MIB - 1, 4 * MIB])
def test_objects_that_failed_hold_no_content(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("storeside.copying.mover.DELAY", 0.001)
    to = Samples(OCI_LIMITS)

    def fail(*_: Any) -> str:
        try:
            raise OSError("the connection broke")
        except OSError as e:
            raise CopyTransientError("the server is down") from e

    to.put = to.put_part = fail  # type: ignore[method-assign]
    mover = Mover(Samples(OCI_LIMITS), to, Profile.of(Settings(MIB, MIB, 2)))
    tracemalloc.start()
    try:
        outcomes = list(mover.copy(Pending(f"{size}", f"{n}", size, "") for n in range(16)))
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert [str(outcome.error) for outcome in outcomes] == ["the server is down"] * 16
    assert held < 3 * MIB


def test_a_copy_that_is_stopped_before_it_begins_says_so() -> None:
    stop = threading.Event()
    stop.set()
    with pytest.raises(CopyCancelled, match="the copy was stopped"):
        Mover(Samples(), Samples(), stop=stop).copy_one(Pending("1", "1", 1, ""))


def test_an_endpoint_that_refuses_everything_ends_the_copy() -> None:
    source, to = Shelf({f"{n}": os.urandom(5000) for n in range(50)}), Shelf()

    def refuse(key: str, upload: str, number: int, body: bytes) -> str:
        raise CopyInputError("correct the keys")

    to.put_part = refuse  # type: ignore[method-assign]
    with pytest.raises(CopyInputError, match="correct the keys"):
        copied(source, to)
    assert to.begun == {}
    assert len({key for key, _ in source.reads}) < 20


def test_a_stopped_copy_leaves_no_upload() -> None:
    source, to = Shelf({f"{n}": os.urandom(50_000) for n in range(9)}), Shelf()
    mover = Mover(source, to, Profile.of(SETTINGS))
    for outcome in mover.copy(wanted(source)):
        mover.stop.set()
        assert outcome.wanted.object in source.objects
    assert to.begun == {}
    assert len(to.objects) < 9


def test_an_object_that_is_another_than_was_listed_is_left() -> None:
    source, to = Shelf({"a": os.urandom(5000), "b": b"new"}), Shelf()
    mover = Mover(source, to, Profile.of(SETTINGS))
    outcomes = list(mover.copy([Pending("a", "a", 5000, "old"), Pending("b", "b", 3, "old")]))
    assert [type(outcome.error) for outcome in outcomes] == [ChangedError] * 2
    assert to.objects == to.begun == {}


def test_the_caller_hears_of_a_long_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("storeside.copying.mover.TICK_SECONDS", 0.002)
    source, to = Shelf({"a": os.urandom(20_000)}), Shelf()
    fetch_range = source.fetch_range

    def slow(key: str, head: Head, start: int, size: int) -> bytes:
        before = len(ticks)
        until(lambda: len(ticks) > before, 60, "tick", 0.001)
        return fetch_range(key, head, start, size)

    source.fetch_range = slow  # type: ignore[method-assign]
    ticks: list[int] = []
    mover = Mover(source, to, Profile.of(Settings(1000, 100, 1)), tick=lambda: ticks.append(mover.bytes))
    list(mover.copy(wanted(source)))
    assert len(set(ticks)) > 2


@pytest.mark.parametrize("threads", [1, 4])
def test_a_caller_that_is_told_to_exit_leaves_no_upload(threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("storeside.copying.mover.TICK_SECONDS", 0.001)
    source, to = Shelf({f"{n}": os.urandom(50_000) for n in range(5)}), Shelf()

    def tick() -> None:
        if mover.bytes > 5000:
            raise SystemExit

    mover = Mover(source, to, Profile.of(Settings(1000, 500, threads)), tick=tick)
    with pytest.raises(SystemExit):
        list(mover.copy(wanted(source)))
    assert to.begun == {}
    assert len(to.objects) < 5


def test_uploads_that_may_be_left_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("storeside.copying.mover.DELAY", 0.001)
    source, to = Shelf({"a": os.urandom(5000), "b": os.urandom(5000), "c": os.urandom(5000)}), Shelf()
    begin, put_part = to.begin, to.put_part
    lost = ["to/a"]

    def begin_and_lose(key: str, head: Head) -> str:
        if key in lost:
            lost.remove(key)
            raise CopyTransientError("the answer was lost")
        return begin(key, head)

    def refuse(key: str, upload: str, number: int, body: bytes) -> str:
        if key == "to/b":
            raise CopyObjectError("no")
        return put_part(key, upload, number, body)

    def fail(key: str, upload: str) -> None:
        raise CopyTransientError("no answer")

    to.begin, to.put_part, to.abort = begin_and_lose, refuse, fail  # type: ignore[method-assign]
    mover = Mover(source, to, Profile.of(SETTINGS))
    outcomes = {o.wanted.object: o.error for o in mover.copy(wanted(source))}
    assert [name for name, error in outcomes.items() if error] == ["b"]
    assert mover.left == {"to/a", "to/b"}
