"""Samples, figures and verdicts of measurements, stored in ClickHouse."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any

from storeside import sql
from storeside.measure.errors import MeasureTransientError
from storeside.measure.throughput.load import Load
from storeside.measure.throughput.nodes import Sample
from storeside.sql.answers import first_row
from storeside.sql.migrate import migrate

if TYPE_CHECKING:
    from clickhouse_connect.driver.client import Client

_SYNCHRONOUS = {"async_insert": 0}
_SAMPLE = [field.name for field in fields(Sample)]
_MOMENTS = ("began", "ended")


@dataclass(frozen=True)
class Figures:
    """The figures of a measurement: bytes per second of all targets; variances and disk use in percent.

    `time_variance` is the standard deviation over time divided by the mean. `node_variance` is the difference between
    the fastest and the slowest target divided by the mean. `ticks` is the number of seconds that count.
    """

    ticks: int
    mean: float
    peak: float
    time_variance: float
    node_variance: float
    disk_use_min: float | None
    disk_use: float | None
    disk_use_max: float | None


@dataclass(frozen=True)
class Second:
    """The cluster at a time: seconds since the first sample, bytes per second, and use of its disks in percent.

    `disk_use` has the minimum, mean and maximum of all disks; None if AIStore reports no disks.
    """

    at: float
    rate: float
    disk_use: tuple[float, float, float] | None


@dataclass(frozen=True)
class Verdict:
    """The comparison of a mean with earlier runs: ``first`` if there are none, ``held`` or ``regression``."""

    name: str
    baseline: float | None = None
    runs: int = 0


def judge(mean: float, baseline: float | None, runs: int, tolerance: float) -> Verdict:
    """Compare a mean with the median of `runs` earlier runs; it may be at most `tolerance` percent lower."""
    if baseline is None or not runs:
        return Verdict("first")
    return Verdict("regression" if mean < baseline * (1 - tolerance / 100) else "held", baseline, runs)


class Measurements:
    """Reads and writes ``storeside.throughput`` and ``storeside.throughput_runs``."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def create(self) -> None:
        """Create or migrate the tables. Raises DatabaseError."""
        migrate(self._client)

    def add(self, measurement: str, samples: Iterable[Sample]) -> None:
        """Insert samples; inserting the same samples again changes nothing."""
        rows = [[measurement, *_cells(sample)] for sample in samples]
        if rows:
            names = ["measurement", *_SAMPLE]
            self._client.insert("storeside.throughput", rows, column_names=names, settings=_SYNCHRONOUS)

    def figures(self, measurement: str, nodes: int, since: float, until: float) -> Figures:
        """Return the figures for the time from `since` to `until`, in seconds since the epoch.

        Raises:
            MeasureTransientError: there was no second in which all nodes answered.
        """
        window = {"since": _moment(since), "until": _moment(until)}
        row = first_row(
            self._client.query(
                sql.query("throughput_figures"), parameters={"measurement": measurement, "nodes": nodes, **window}
            )
        )
        figures = Figures(*row)
        if not figures.ticks:
            raise MeasureTransientError(
                f"measurement {measurement}: in no second did all {nodes} targets answer:"
                " measure for longer, or allow more writes"
            )
        return figures

    def compare(self, measurement: str, load: Load, cluster: str, nodes: int, last: int) -> tuple[float | None, int]:
        """Return the median of up to `last` earlier runs of the same load on the same cluster, and their number."""
        same = {"measurement": measurement, "cluster": cluster, "nodes": nodes, "last": last, **_load(load)}
        count, baseline = first_row(self._client.query(sql.query("throughput_baseline"), parameters=same))
        return baseline, int(count)

    def record(self, measurement: str, load: Load, **columns: Any) -> None:
        """Record the result of a measurement; `columns` are columns of ``storeside.throughput_runs``."""
        row = {"measurement": measurement, **_load(load), **columns}
        row |= {name: _milliseconds(row[name]) for name in _MOMENTS}
        self._client.insert(
            "storeside.throughput_runs", [list(row.values())], column_names=list(row), settings=_SYNCHRONOUS
        )

    def rates(self, measurement: str) -> dict[str, list[tuple[float, float]]]:
        """Return the bytes per second of each target, as (seconds since the first sample, rate)."""
        rows = self._client.query(
            "WITH (SELECT min(began) FROM storeside.throughput WHERE measurement = {m:String}) AS first"
            " SELECT node, dateDiff('millisecond', first, ended) / 1000,"
            " 1000 * (read_bytes + written_bytes) / dateDiff('millisecond', began, ended)"
            " FROM storeside.throughput FINAL WHERE measurement = {m:String} ORDER BY node, tick",
            parameters={"m": measurement},
        ).result_rows
        found: dict[str, list[tuple[float, float]]] = {}
        for node, second, rate in rows:
            found.setdefault(node, []).append((second, rate))
        return found

    def seconds(self, measurement: str) -> list[Second]:
        """Return what all targets did together, for each second in which all of them were sampled."""
        rows = self._client.query(
            sql.query("throughput_seconds"), parameters={"measurement": measurement}
        ).result_rows
        return [
            Second(at, rate, (low, mean, high) if low is not None else None) for at, rate, low, mean, high in rows
        ]


def _load(load: Load) -> dict[str, Any]:
    return {
        "bucket": str(load.bucket),
        "workload": load.workload,
        "object_bytes": load.object_bytes,
        "dataset_bytes": load.dataset_bytes,
        "prefix": load.prefix,
        "concurrency": load.concurrency,
        "loaders": load.loaders,
    }


def _cells(sample: Sample) -> list[Any]:
    row = asdict(sample)
    row |= {name: _milliseconds(row[name]) for name in _MOMENTS}
    return [list(cell) if isinstance(cell, tuple) else cell for cell in row.values()]


def _milliseconds(seconds: float) -> int:
    return round(seconds * 1000)


def _moment(seconds: float) -> str:
    """Format a time for a DateTime64(3) parameter of ClickHouse, which accepts no zone offset."""
    return f"{seconds:.3f}"
