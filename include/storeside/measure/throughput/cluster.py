"""One measurement: write a dataset, run the load and sample the targets every second, remove all objects."""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from itertools import islice
from typing import TYPE_CHECKING

from storeside.aistore.cluster import Cluster
from storeside.aistore.names import THROUGHPUT
from storeside.aistore.stored_objects import list_aistore
from storeside.measure.errors import MeasureCancelled, MeasureInputError, MeasureTransientError
from storeside.measure.throughput.group import Group, Loaders
from storeside.measure.throughput.load import SECONDS, Load, Outcome
from storeside.measure.throughput.nodes import Differences, Sample, Targets, answering
from storeside.measure.throughput.tables import Figures, Measurements, Verdict, judge

if TYPE_CHECKING:
    from clickhouse_connect.driver.client import Client

log = logging.getLogger(__name__)

TICK_SECONDS = 1.0
REPORT_SECONDS = 5.0
# Connections open and caches fill in the first seconds: the tables contain these samples, the figures do not.
WARM_UP_SECONDS = 2.0
_REMOVAL_SECONDS = 3600
_MB = 1e6


@dataclass(frozen=True)
class Comparison:
    """The number of earlier runs to compare with (0 starts a new baseline), and the tolerated loss in percent."""

    last: int = 5
    tolerance: float = 10.0

    def __post_init__(self) -> None:
        if self.last < 0 or not 0 < self.tolerance < 100:
            raise MeasureInputError(
                f"comparison with {self.last} runs within {self.tolerance} %: use 0 or more runs and 1 to 99 %"
            )


@dataclass(frozen=True)
class Report:
    """The result of a measurement; `bound` is the cluster's limit in bytes per second, `share` the mean as % of it.

    `memory` is the memory of the largest target in bytes.
    """

    measurement: str
    nodes: int
    figures: Figures
    outcome: Outcome
    verdict: Verdict
    bound: float | None
    share: float | None
    memory: int

    def lines(self, load: Load) -> Iterator[str]:
        """Yield the report as lines of text."""
        f = self.figures
        yield (
            f"{load.workload}, objects of {load.object_bytes} bytes, {load.generators},"
            f" {self.nodes} targets: mean {f.mean / _MB:.1f} MB/s, peak {f.peak / _MB:.1f} MB/s"
            f" over {f.ticks} s; time variance {f.time_variance:.1f} %, node variance {f.node_variance:.1f} %"
        )
        yield (
            f"aisloader: {self.outcome.requests} requests, {self.outcome.bytes / _MB:.1f} MB,"
            f" {1000 * self.outcome.latency_seconds:.1f} ms per request"
            f" ({1000 * self.outcome.latency_min_seconds:.1f} to {1000 * self.outcome.latency_max_seconds:.1f})"
        )
        if self.share is not None and self.bound is not None:
            yield f"{self.share:.1f} % of the limit of {self.bound / _MB:.1f} MB/s"
        if f.disk_use is None:
            yield "AIStore reports no disks behind its mountpaths, so the figures contain no disk use"
        else:
            yield f"disk use: {f.disk_use_min:.0f} to {f.disk_use_max:.0f} %, {f.disk_use:.0f} % on average"
        if load.reads_own and load.dataset_bytes < self.nodes * self.memory:
            yield (
                f"the dataset of {load.dataset_bytes / _MB:.0f} MB fits the memory of the targets"
                f" ({self.memory / _MB:.0f} MB each): the result is the speed of memory and network, not of disks"
            )
        if self.verdict.baseline is None:
            yield "first run of this load: later runs are compared with it"
        else:
            change = 100 * (f.mean / self.verdict.baseline - 1)
            yield (
                f"{self.verdict.name}: {change:+.1f} % compared with {self.verdict.baseline / _MB:.1f} MB/s,"
                f" the median of {self.verdict.runs} earlier runs"
            )


class Measurement:
    """Measures a load on a cluster.

    `name` identifies the measurement in the tables. Objects are written below a prefix that is derived from `scope`.
    A retry has the same `scope`, so it removes the objects of a killed try. `bound` is in bytes per second and
    target.
    """

    def __init__(
        self,
        cluster: Cluster,
        clickhouse: Client,
        load: Load,
        *,
        loaders: Loaders,
        name: str,
        scope: str,
        bound: float | None = None,
        comparison: Comparison | None = None,
    ) -> None:
        self.load = load
        self.name = name
        self.prefix = f"{THROUGHPUT}{hashlib.sha256(scope.encode()).hexdigest()[:16]}"
        self._cluster = cluster
        self._client = cluster.client()
        self._tables = Measurements(clickhouse)
        self._loaders = loaders
        self._bound = bound
        self._comparison = comparison or Comparison()
        self._group: Group | None = None
        self._cancelled = False

    @property
    def tables(self) -> Measurements:
        """The tables that this measurement writes to."""
        return self._tables

    def run(self) -> Report:
        """Measure the load, compare the result with earlier runs, and record it.

        Raises:
                MeasureInputError: the bucket has no objects to read.
                MeasureTransientError: the cluster does not answer, or requests failed.
                MeasureCancelled: the measurement was cancelled.
                AISError: the bucket does not exist, or AIStore refuses a request.
        """
        self._tables.create()
        with answering(self._cluster.endpoint):
            targets = Targets(self._cluster.client(patient=False))
            try:
                self._check_bucket()
                self._loaders.clear()
                self.remove()
                try:
                    return self._measure(targets)
                finally:
                    self.remove()
            finally:
                targets.close()

    def cancel(self) -> None:
        """Kill the loaders; `run` then removes the written objects and raises MeasureCancelled."""
        self._cancelled = True
        if self._group is not None:
            self._group.kill()

    def remove(self) -> None:
        """Remove the objects of this measurement and of earlier tries.

        The cluster removes them by prefix and continues if this process ends.

        Raises:
            MeasureTransientError: objects remain after an hour.
        """
        from aistore.sdk.errors import Timeout

        if not self.load.writes:
            return
        below = f"{self.prefix}/"
        objects = self.load.bucket.handle(self._client).objects(obj_template=below)
        deadline = time.monotonic() + _REMOVAL_SECONDS
        while self._first(below, 1):  # repeated, because a request of a killed loader may still have been running
            if time.monotonic() > deadline:
                raise MeasureTransientError(f"{self.load.bucket}: objects below {below} could not be removed")
            with suppress(Timeout):
                # The SDK derives its polling interval from the timeout: an hour would mean one poll per minute.
                self._client.job(objects.delete(), job_kind="delete-listrange").wait(timeout=30)

    def _first(self, prefix: str, count: int) -> list[str]:
        return [found.name for found in islice(list_aistore(self._client, self.load.bucket, prefix), count)]

    def _check_bucket(self) -> None:
        """Raise an error for an unusable bucket before the loader starts: it would create a missing bucket."""
        # A listing, because the 404 for a HEAD of a missing bucket does not state what is missing.
        found = self._first(self.load.prefix, 2)
        if not self.load.writes and len(found) < 2:
            below = f" below {self.load.prefix!r}" if self.load.prefix else ""
            raise MeasureInputError(
                f"bucket {self.load.bucket} has fewer than two objects{below} to read:"
                " choose another prefix, or let the measurement write a dataset"
            )

    def _measure(self, targets: Targets) -> Report:
        if self.load.reads_own:
            self._fill()
        outcome = self._follow(targets)
        since, ended = outcome.together
        since, until = since + WARM_UP_SECONDS, min(ended, since + self.load.seconds)
        nodes = len(targets.names)
        figures = self._tables.figures(self.name, nodes, since, until)
        last = self._comparison.last
        baseline = self._tables.compare(self.name, self.load, targets.cluster, nodes, last) if last else (None, 0)
        verdict = judge(figures.mean, *baseline, self._comparison.tolerance)
        bound = self._bound * nodes if self._bound else None
        share = 100 * figures.mean / bound if bound else None
        columns = {key: value for key, value in asdict(figures).items() if key != "ticks"}
        self._tables.record(
            self.name, self.load, cluster=targets.cluster, nodes=nodes, began=since, ended=until, bound=bound,
            share=share, loader_bytes=outcome.bytes, requests=outcome.requests,
            latency=outcome.latency_seconds, latency_min=outcome.latency_min_seconds,
            latency_max=outcome.latency_max_seconds, baseline=verdict.baseline, verdict=verdict.name, **columns,
        )  # fmt: skip
        return Report(self.name, nodes, figures, outcome, verdict, bound, share, targets.memory())

    def _fill(self) -> None:
        started = time.monotonic()
        with self._prepared(self.load.fill_arguments(self.prefix), 1, SECONDS[-1]) as loaders:
            self._begin(loaders)
            while not loaders.wait(REPORT_SECONDS):
                log.info("writing the dataset (%.0f s)", time.monotonic() - started)
            self._check_cancelled()
            written = loaders.outcome()
        log.info("dataset: %d objects, %.1f MB, in %.1f s", written.requests, written.bytes / _MB, written.seconds)

    def _follow(self, targets: Targets) -> Outcome:
        """Run the load and sample the targets until the load ends."""
        waiting: list[Sample] = []
        with self._prepared(self.load.arguments(self.prefix), self.load.loaders, self.load.seconds) as loaders:
            differences = Differences(targets.read())
            reported = time.monotonic()
            self._begin(loaders)
            next_tick = time.monotonic() + TICK_SECONDS
            while not loaders.wait(next_tick - time.monotonic()):
                next_tick = max(next_tick + TICK_SECONDS, time.monotonic())
                waiting += (now := differences.take(targets.read()))
                if time.monotonic() - reported >= REPORT_SECONDS:
                    reported = time.monotonic()
                    log.info("%d targets, %.1f MB/s", len(now), sum(sample.rate for sample in now) / _MB)
                    self._tables.add(self.name, waiting)
                    waiting = []
            self._tables.add(self.name, [*waiting, *differences.take(targets.read())])
            self._check_cancelled()
            return loaders.outcome()

    def _prepared(self, arguments: list[str], number: int, seconds: int) -> Group:
        log.info("%d of aisloader %s", number, " ".join(arguments))
        self._group = self._loaders.group(arguments, number, seconds)
        if self._cancelled:
            self._group.kill()
        return self._group

    def _begin(self, loaders: Group) -> None:
        self._check_cancelled()
        loaders.begin()
        if self._cancelled:
            loaders.kill()

    def _check_cancelled(self) -> None:
        if self._cancelled:
            raise MeasureCancelled("the measurement was cancelled")
