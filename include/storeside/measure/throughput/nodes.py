"""Activity of a cluster's targets from AIStore's statistics API: bytes, requests, errors and disk use."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from storeside.measure.errors import MeasureTransientError

if TYPE_CHECKING:
    from aistore.sdk import Client

_THREADS = 16
# AIStore's names of counters that only increase (stats/target_stats.go); `get.ns` is the total time of all GETs.
_READ = ("get.size", "get.n", "get.ns")
_WRITTEN = ("put.size", "put.n", "put.ns")
_ERRORS = ("err.get.n", "err.put.n")


@dataclass(frozen=True)
class Counters:
    """A target's counters since its start, and its disk use in percent, at time `at`."""

    at: float
    read_bytes: int
    reads: int
    read_ns: int
    written_bytes: int
    writes: int
    write_ns: int
    errors: int
    disk_use: tuple[float, ...]


@dataclass(frozen=True)
class Sample:
    """The activity of one target between two readings.

    :param tick: number of the reading, which all targets share
    :param node: the target's name
    :param began: time of the earlier reading, in seconds since the epoch
    :param ended: time of the later reading
    :param read_bytes: bytes read
    :param reads: objects read
    :param read_ns: nanoseconds of all reads together
    :param written_bytes: bytes written
    :param writes: objects written
    :param write_ns: nanoseconds of all writes together
    :param errors: requests to read or write that failed
    :param disk_use: use of each disk, in percent
    """

    tick: int
    node: str
    began: float
    ended: float
    read_bytes: int
    reads: int
    read_ns: int
    written_bytes: int
    writes: int
    write_ns: int
    errors: int
    disk_use: tuple[float, ...]

    @property
    def rate(self) -> float:
        """Bytes read and written per second."""
        return (self.read_bytes + self.written_bytes) / (self.ended - self.began)


@contextmanager
def answering(endpoint: str) -> Iterator[None]:
    """Convert connection errors to an error with the cluster's endpoint.

    Raises:
        MeasureTransientError: the cluster cannot be reached, or does not answer in time.
    """
    from requests import RequestException

    try:
        yield
    except RequestException as e:
        raise MeasureTransientError(
            f"AIStore at {endpoint} does not answer ({type(e).__name__}): check that it runs, and that the connection"
            " leads to one of its proxies"
        ) from e


class Targets:
    """The active targets of a cluster, whose statistics are read concurrently."""

    def __init__(self, client: Client) -> None:
        self._cluster = client.cluster()
        smap = self._cluster.get_info()
        self.cluster = str(smap.uuid)
        self.names = sorted(name for name, node in smap.tmap.items() if not node.in_maint_or_decomm())
        if not self.names:
            raise MeasureTransientError(f"AIStore cluster {self.cluster} has no active target")
        self._threads = ThreadPoolExecutor(min(len(self.names), _THREADS), thread_name_prefix="targets")

    def close(self) -> None:
        """Shut down the threads."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def read(self) -> dict[str, Counters]:
        """Return the counters of all targets that answer."""
        found = zip(self.names, self._threads.map(self._read, self.names), strict=True)
        return {name: counters for name, counters in found if counters is not None}

    def memory(self) -> int:
        """Return the memory of the largest target in bytes; a smaller dataset may come from the page cache."""
        statuses = [self._ask(name, "node_status") for name in self.names]
        return max(int(s["sys_info"]["mem_used"]) + int(s["sys_info"]["mem_avail"]) for s in statuses)

    def _read(self, name: str) -> Counters | None:
        from aistore.sdk.errors import AISError
        from requests import RequestException

        try:
            asked = time.time()
            tracker = self._ask(name, "node_stats")["tracker"]
            at = (asked + time.time()) / 2
            disks = self._ask(name, "disk").get("AllDiskStats") or {}
        except (AISError, RequestException):  # the target restarts or has left
            return None
        # AIStore omits counters that are zero.
        read, written = ([int(tracker.get(key, 0)) for key in keys] for keys in (_READ, _WRITTEN))
        errors = sum(int(tracker.get(key, 0)) for key in _ERRORS)
        use = tuple(float(disk["Util"]) for disk in disks.values())
        return Counters(at, read[0], read[1], read[2], written[0], written[1], written[2], errors, use)

    def _ask(self, name: str, what: str) -> Any:
        from aistore.sdk.const import (
            HEADER_NODE_ID,
            HTTP_METHOD_GET,
            QPARAM_WHAT,
            URL_PATH_DAEMON,
            URL_PATH_REVERSE,
        )

        # The SDK's `get_performance` queries the targets one after the other, and does not query disks.
        answer = self._cluster.client.request(
            HTTP_METHOD_GET,
            path=f"{URL_PATH_REVERSE}/{URL_PATH_DAEMON}",
            params={QPARAM_WHAT: what},
            headers={HEADER_NODE_ID: name},
        )
        answer.raise_for_status()
        return answer.json()


class Differences:
    """Converts counters to samples; a restarted target yields no sample once, because its counters start again."""

    def __init__(self, first: dict[str, Counters]) -> None:
        self._last = first
        self._tick = 0

    def take(self, found: dict[str, Counters]) -> list[Sample]:
        """Return the activity of each target since its previous reading."""
        samples = []
        for name, now in found.items():
            before = self._last.get(name)
            if before is not None and _grew(before, now):
                samples.append(_between(self._tick, name, before, now))
        self._last = self._last | found
        self._tick += 1
        return samples


def _grew(before: Counters, now: Counters) -> bool:
    return now.at > before.at and now.read_bytes >= before.read_bytes and now.written_bytes >= before.written_bytes


def _between(tick: int, name: str, before: Counters, now: Counters) -> Sample:
    return Sample(
        tick,
        name,
        before.at,
        now.at,
        now.read_bytes - before.read_bytes,
        now.reads - before.reads,
        max(now.read_ns - before.read_ns, 0),
        now.written_bytes - before.written_bytes,
        now.writes - before.writes,
        max(now.write_ns - before.write_ns, 0),
        max(now.errors - before.errors, 0),
        now.disk_use,
    )
