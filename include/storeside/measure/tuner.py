"""Measures the fastest multipart settings of an endpoint, by object size and direction, and stores them."""

from __future__ import annotations

import hashlib
import logging
import math
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Literal

from storeside.aistore.names import SCRATCH
from storeside.copying.errors import CopyError, CopyInputError
from storeside.copying.mover import Mover
from storeside.copying.multipart import MIB, Profile, Settings
from storeside.copying.samples import Samples
from storeside.copying.store import Store
from storeside.ledger.scope import Pending
from storeside.sql.migrate import migrate

if TYPE_CHECKING:
    from clickhouse_connect.driver.client import Client

log = logging.getLogger(__name__)

Direction = Literal["put", "get"]
DIRECTIONS: tuple[Direction, ...] = ("put", "get")
SIZES = (1 * MIB, 4 * MIB, 16 * MIB, 64 * MIB)
PART_SIZES = (1 * MIB, 2 * MIB, 5 * MIB, 8 * MIB, 16 * MIB, 32 * MIB)
CONCURRENCIES = (16, 8, 4, 2)
# Parts must be faster by the first factor to justify their requests. Fewer threads may be slower by the second one.
WORTH = 1.1
NEAR = 1.05
# The tuner and the benchmark write their objects below the prefix SCRATCH, see `scratch`.
# A multipart threshold above any object size, for measurements in one piece.
WHOLE = 1 << 62


@dataclass(frozen=True)
class Measurement:
    """The best settings for one size and direction, their seconds, and the seconds in one piece."""

    direction: Direction
    object_size: int
    multipart: bool
    settings: Settings
    seconds: float
    single_seconds: float

    def to_dict(self) -> dict[str, Any]:
        """Return the measurement as a dictionary of JSON values."""
        return asdict(self)

    def __str__(self) -> str:
        if not self.multipart:
            how = "in one piece"
        else:
            how = f"{self.settings.concurrency} parts of {self.settings.part_size / MIB:g} MiB at once"
        gain = self.single_seconds / self.seconds
        return f"{self.direction} of {self.object_size / MIB:g} MiB: {how}, {self.seconds:.2f} s ({gain:.1f}x)"


class Tuner:
    """Tries part sizes, then numbers of threads, for each object size; ends within `seconds` and `most_bytes`.

    Skips a size if the remaining time or bytes do not suffice, but measures at least the first. Objects are deleted
    afterwards, even if `stop` ends the tuner. A tuner with the same `scope` deletes the objects of a killed one when
    it starts.
    """

    def __init__(
        self,
        store: Store,
        *,
        seconds: float = 60,
        most_bytes: int = 2 << 30,
        sizes: Sequence[int] = SIZES,
        part_sizes: Sequence[int] = PART_SIZES,
        concurrencies: Sequence[int] = CONCURRENCIES,
        scope: str = "",
        stop: threading.Event | None = None,
    ) -> None:
        if seconds <= 0 or most_bytes < 2 * min(sizes):
            raise CopyInputError(f"tuner: {seconds} s and {most_bytes} bytes are not enough for one measurement")
        self.store = store
        self.sizes = sorted(sizes)
        self.part_sizes = part_sizes
        self.concurrencies = sorted(concurrencies, reverse=True)
        self.scope = scope
        self.stop = stop
        self.left = most_bytes
        self.deadline = time.monotonic() + seconds

    def sweep(self, direction: Direction) -> list[Measurement]:
        """Measure one direction. Raises errors of the endpoint, and CopyCancelled."""
        self.store.check()
        found: list[Measurement] = []
        for size in self.sizes:
            if found and not self._affords(2 * size, found[-1].seconds * size / found[-1].object_size):
                log.info("tuner: time or bytes do not suffice for objects of %d bytes", size)
                break
            with scratch(self.store, self.scope) as key:
                found.append(self._best(direction, key, size))
            log.info("tuner: %s", found[-1])
        return found

    def _affords(self, size: int, seconds: float = 0) -> bool:
        return size <= self.left and time.monotonic() + seconds < self.deadline

    def _best(self, direction: Direction, key: str, size: int) -> Measurement:
        measure = self._measurer(direction, key, size)
        whole = Settings(threshold=WHOLE, part_size=max(MIB, self.store.limits.least_part), concurrency=1)
        single = min(measure(whole), measure(whole))  # the first call opens the connection
        best, seconds = whole, single
        most = self.concurrencies[0]
        for part_size in self.part_sizes:
            if self.store.limits.least_part <= part_size <= size // 2:
                candidate = Settings(part_size, part_size, min(most, -(-size // part_size)))
                if (took := self._try(measure, candidate, size)) < seconds:
                    best, seconds = candidate, took
        if best is not whole:
            for concurrency in self.concurrencies:
                fewer = replace(best, concurrency=concurrency)
                if concurrency < best.concurrency and (took := self._try(measure, fewer, size)) < seconds * NEAR:
                    best, seconds = fewer, min(took, seconds)
        multipart = single / seconds >= WORTH
        return Measurement(
            direction, size, multipart, best if multipart else whole, seconds if multipart else single, single
        )

    def _try(self, measure: Callable[[Settings], float], settings: Settings, size: int) -> float:
        return measure(settings) if self._affords(size) else float("inf")

    def _measurer(self, direction: Direction, key: str, size: int) -> Callable[[Settings], float]:
        samples = Samples(self.store.limits)
        if direction == "get":
            put(self.store, samples, key, size, Settings(concurrency=4), self.stop)

        def measure(settings: Settings) -> float:
            self.left -= size
            return (put if direction == "put" else get)(self.store, samples, key, size, settings, self.stop)

        return measure


def put(
    store: Store, samples: Samples, key: str, size: int, settings: Settings, stop: threading.Event | None = None
) -> float:
    """Write a sample and return the duration in seconds. Raises CopyCancelled once `stop` is set."""
    started = time.perf_counter()
    Mover(samples, store, Profile.of(settings), stop).copy_one(Pending(str(size), key, size, ""))
    return time.perf_counter() - started


def get(
    store: Store, samples: Samples, key: str, size: int, settings: Settings, stop: threading.Event | None = None
) -> float:
    """Read a sample and return the duration in seconds. Raises CopyCancelled once `stop` is set."""
    started = time.perf_counter()
    Mover(store, samples, Profile.of(settings), stop).copy_one(Pending(key, key, size, ""))
    return time.perf_counter() - started


def scratch_name(scope: str = "") -> str:
    """Return the name of an object for measurements: a new name, or always the same one for a `scope`."""
    return f"{SCRATCH}{hashlib.sha256(scope.encode()).hexdigest()[:16] if scope else uuid.uuid4().hex}"


@contextmanager
def scratch(store: Store, scope: str = "") -> Iterator[str]:
    """Yield the name of an object for measurements, and delete the object at the end.

    A `scope` always yields the same name; the object and the uploads of a killed try are removed first. Without a
    scope the name is new.
    """
    key = scratch_name(scope)
    if scope:
        _remove(store, key)
    try:
        yield key
    finally:
        store.delete(key)


def _remove(store: Store, key: str) -> None:
    try:
        store.delete(key)
        for upload in store.uploads(key):
            store.abort(key, upload.id)
    except CopyError as e:  # leftovers do not affect other objects
        log.warning("%s/%s: leftovers of a killed try cannot be removed: %s", store.name, key, e)


def recommend(found: Sequence[Measurement]) -> Profile:
    """Return settings by size, from the measured size that is nearest by ratio; smaller objects use one piece.

    Objects larger than the largest measured size never use one piece: no measurement shows that this is faster, and
    the worker holds such an object in memory.
    """
    found = sorted(found, key=lambda m: m.object_size)
    usual = Settings()
    whole = replace(
        usual,
        threshold=max(found[-1].object_size + 1, usual.threshold),
        part_size=max(found[0].settings.part_size, usual.part_size),
    )
    steps = [(0, whole)]
    for before, one in zip([found[0], *found], found, strict=False):
        steps.append((math.isqrt(before.object_size * one.object_size), one.settings if one.multipart else whole))
    return Profile(tuple(steps))


class Recommendations:
    """Reads and writes the table ``storeside.multipart_settings``."""

    def __init__(self, client: Client) -> None:
        self.client = client

    def create(self) -> None:
        """Create or migrate the tables. Raises DatabaseError."""
        migrate(self.client)

    def record(self, endpoint: str, found: Sequence[Measurement]) -> None:
        """Store the results of a sweep, which replace those of earlier sweeps."""
        now = datetime.now(UTC)
        rows = [
            [endpoint, m.direction, m.object_size, m.multipart, m.settings.part_size, m.settings.concurrency,
             m.seconds, m.single_seconds, now]
            for m in found
        ]  # fmt: skip
        columns = (
            "endpoint", "direction", "object_size", "multipart", "part_size", "concurrency", "seconds",
            "single_seconds", "measured_at",
        )  # fmt: skip
        self.client.insert("storeside.multipart_settings", rows, column_names=columns, settings={"async_insert": 0})

    def find(self, endpoint: str, direction: Direction) -> Profile | None:
        """Return the recommendation of an endpoint's last sweep; None if there was none."""
        rows = self.client.query(
            "SELECT object_size, multipart, part_size, concurrency, seconds, single_seconds"
            " FROM storeside.multipart_settings WHERE endpoint = {endpoint:String} AND direction = {direction:String}"
            " AND measured_at = (SELECT max(measured_at) FROM storeside.multipart_settings"
            " WHERE endpoint = {endpoint:String} AND direction = {direction:String}) ORDER BY object_size",
            parameters={"endpoint": endpoint, "direction": direction},
        ).result_rows
        found = [
            Measurement(direction, size, multipart, Settings(part, part, threads), seconds, single)
            for size, multipart, part, threads, seconds, single in rows
        ]
        return recommend(found) if found else None
