"""Repeats the published comparison of OCI's native API with its S3 API, for any set of backends.

The method is that of "Comparing OCI's Native Object Storage and S3 API Backends" in AIStore's blog: a cold GET of 10
MB in one request, and PUTs of 64 MB in one piece, in a few parts of 10 MB, and in many parts of 1 MB or of the API's
minimum.
"""

from __future__ import annotations

import importlib.util
import logging
import statistics
import threading
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from storeside.copying.errors import CopyInputError
from storeside.copying.multipart import Settings
from storeside.copying.samples import Samples
from storeside.copying.store import Store
from storeside.measure.tuner import WHOLE, get, put, scratch
from storeside.sql.migrate import migrate

if TYPE_CHECKING:
    from clickhouse_connect.driver.client import Client

log = logging.getLogger(__name__)

OPERATIONS = ("get cold", "put single", "put few parts", "put many parts")
GET_BYTES = 10_000_000
PUT_BYTES = 64_000_000
FEW, MANY = 10_000_000, 1_000_000
# Concurrent parts. The article does not state the number that its clients used.
CONCURRENCY = 16


@dataclass(frozen=True)
class Result:
    """The seconds that one operation took on one backend, per round."""

    backend: str
    endpoint: str
    operation: str
    object_size: int
    part_size: int
    concurrency: int
    seconds: tuple[float, ...]

    @property
    def median(self) -> float:
        """The median of the rounds in seconds."""
        return statistics.median(self.seconds)

    def to_dict(self) -> dict[str, Any]:
        """Return the result as a dictionary of JSON values."""
        return {**asdict(self), "median": self.median}


class Benchmark:
    """Measures all backends alternately, `rounds` times each. Raises CopyInputError without backends or rounds.

    Objects are deleted afterwards, even if `stop` ends the benchmark. A benchmark with the same `scope` deletes the
    objects of a killed one when it reaches the same round.
    """

    def __init__(
        self,
        stores: Sequence[Store],
        *,
        rounds: int = 3,
        get_bytes: int = GET_BYTES,
        put_bytes: int = PUT_BYTES,
        scope: str = "",
        stop: threading.Event | None = None,
    ) -> None:
        if not stores or rounds < 1 or put_bytes < 1:
            raise CopyInputError("benchmark: needs at least one backend, one round and one byte")
        self.stores = stores
        self.rounds = rounds
        self.get_bytes = get_bytes
        self.put_bytes = put_bytes
        self.scope = scope
        self.stop = stop

    def settings(self, store: Store, operation: str) -> Settings:
        """Return the multipart settings of an operation on a backend."""
        if operation in ("get cold", "put single"):
            return Settings(WHOLE, max(FEW, store.limits.least_part), 1)
        part = max(FEW if operation == "put few parts" else MANY, store.limits.least_part)
        return Settings(2 * part, part, CONCURRENCY)

    def run(self) -> list[Result]:
        """Measure all operations. Raises errors of the endpoints, and CopyCancelled."""
        for store in self.stores:
            store.check()
        seconds: dict[tuple[Store, str], list[float]] = defaultdict(list)
        for number in range(self.rounds):
            for operation in OPERATIONS:
                for store in self.stores:
                    took = self._measure(store, operation, number)
                    seconds[store, operation].append(took)
                    log.info("round %d: %s: %s: %.2f s", number + 1, store.name, operation, took)
        return [self._result(store, operation, found) for (store, operation), found in seconds.items()]

    def _measure(self, store: Store, operation: str, number: int) -> float:
        samples, settings = Samples(store.limits), self.settings(store, operation)
        # Each round uses a new name and reads it only once, so that no cache of the backend has the object.
        with scratch(store, self.scope and f"{self.scope}/{number}") as key:
            if operation != "get cold":
                return put(store, samples, key, self.put_bytes, settings, self.stop)
            put(store, samples, key, self.get_bytes, settings, self.stop)
            return get(store, samples, key, self.get_bytes, settings, self.stop)

    def _result(self, store: Store, operation: str, seconds: Sequence[float]) -> Result:
        size = self.get_bytes if operation == "get cold" else self.put_bytes
        settings = self.settings(store, operation)
        parts = settings.parts(size, store.limits)
        length, threads = (settings.part_size, settings.concurrency) if parts else (0, 1)
        return Result(store.name, store.endpoint, operation, size, length, threads, tuple(seconds))


def record(client: Client, run_id: str, results: Sequence[Result]) -> None:
    """Insert every round into ``storeside.backend_benchmark``."""
    migrate(client)
    columns = (
        "run_id", "backend", "endpoint", "operation", "object_size", "part_size", "concurrency", "round", "seconds",
    )  # fmt: skip
    rows = [
        [run_id, r.backend, r.endpoint, r.operation, r.object_size, r.part_size, r.concurrency, number, seconds]
        for r in results
        for number, seconds in enumerate(r.seconds, 1)
    ]
    client.insert("storeside.backend_benchmark", rows, column_names=columns, settings={"async_insert": 0})


def table(results: Sequence[Result]) -> str:
    """Return the medians as a Markdown table with one column per backend; "-" where a backend has no operation."""
    backends = list(dict.fromkeys(r.backend for r in results))
    found = {(r.operation, r.backend): f"{r.median:.2f}" for r in results}
    lines = [f"| seconds | {' | '.join(backends)} |", f"|---|{'---|' * len(backends)}"]
    for operation in dict.fromkeys(r.operation for r in results):
        lines.append(f"| {operation} | {' | '.join(found.get((operation, b), '-') for b in backends)} |")
    return "\n".join(lines)


def require_charts() -> None:
    """Raise CopyInputError if matplotlib is not installed."""
    if importlib.util.find_spec("matplotlib") is None:
        raise CopyInputError("a chart needs matplotlib: pip install matplotlib, or leave `chart` empty")


def draw(path: str, results: Sequence[Result]) -> None:
    """Draw the medians as a bar chart, grouped by operation. Raises CopyInputError without matplotlib."""
    require_charts()
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    backends = list(dict.fromkeys(r.backend for r in results))
    operations = list(dict.fromkeys(r.operation for r in results))
    height = 0.8 / len(backends)
    figure, axes = pyplot.subplots(figsize=(8, 0.5 * len(results) + 1), layout="constrained")
    for number, backend in enumerate(backends):
        medians = {r.operation: r.median for r in results if r.backend == backend}
        places = [place + number * height for place, operation in enumerate(operations) if operation in medians]
        bars = axes.barh(places, [medians[o] for o in operations if o in medians], height=height * 0.9, label=backend)
        axes.bar_label(bars, fmt="%.2f", padding=3, fontsize=8)
    axes.set_yticks([place + 0.4 - height / 2 for place in range(len(operations))], operations)
    axes.invert_yaxis()
    axes.set_xlabel("seconds (median)")
    axes.legend()
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=110)
    pyplot.close(figure)
