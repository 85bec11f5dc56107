"""The published matrix (server x channel x file access x direct put), with our transcoder: ``make bench-matrix``.

Without direct put, AIStore's targets send results to each other, and a job waits at
its end until this traffic has stopped for a fixed time (``transport.quiescent``, 10 s). With a hundred recordings,
this wait dominates the seconds; compare the CPU time of the variants.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from storeside import sql
from storeside.aistore.spec import EtlSpec
from storeside.operators.aistore import TRANSFORMER_IMAGE, transformer_command
from storeside.stack.supervisor import Supervisor
from storeside.transfer.__main__ import clickhouse
from tests.benchmarks import measure
from tests.benchmarks.measure import Figures, spread
from tests.benchmarks.transform import STEREO, start


@dataclass(frozen=True, order=True)
class Way:
    """One cell of the matrix."""

    server: str
    communication: str
    file_access: bool
    direct_put: bool

    @property
    def spec(self) -> EtlSpec:
        """The ETL that goes this way."""
        return EtlSpec(
            "bench-matrix",
            TRANSFORMER_IMAGE,
            (*transformer_command("audio_transcode"), "--server", self.server),
            STEREO.environment(),
            {"NUM_WORKERS": "1"},
            communication=self.communication,
            file_access=self.file_access,
            direct_put=self.direct_put,
            init_timeout=30,
        )

    def __str__(self) -> str:
        words = [self.server, self.communication, *(["fqn"] if self.file_access else [])]
        return " ".join([*words, *(["direct put"] if self.direct_put else [])])


def ways() -> Iterator[Way]:
    """Yield the cells that exist: only the FastAPI server speaks WebSocket, and AIStore needs direct put for it."""
    for server in ("fastapi", "flask", "http"):
        for communication in ("ws", "hpush", "hpull"):
            for file_access in (True, False):
                for direct_put in (True, False):
                    if communication != "ws" or (server == "fastapi" and direct_put):
                        yield Way(server, communication, file_access, direct_put)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=300, help="recordings (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="interleaved rounds (default: %(default)s)")
    parser.add_argument("--chart", type=Path, help="write the chart to this PNG file")
    parser.add_argument(
        "--record",
        action="store_true",
        help="keep every round in the ClickHouse at CLICKHOUSE_HOST, for the page Benchmarks",
    )
    options = parser.parse_args()
    kept = clickhouse() if options.record else None  # asked before anything is measured
    cluster = start(options.count)
    found = {way: Figures() for way in ways()}
    try:
        for number in range(options.rounds):
            for way, figures in found.items():
                rate, cpu = cluster.etl(way.spec)
                figures.add(rate, cpu)
                print(f"round {number}: {way}: {rate:.1f} objects/s, {sum(cpu.values()):.1f} ms", file=sys.stderr)
    finally:
        Supervisor(cluster.stack).stop()
    ranked = sorted(found.items(), key=lambda item: item[1].total)
    print(
        f"\n{options.count} recordings of 12 s to 44.1 kHz stereo; medians of {options.rounds} rounds;"
        f" {measure.machine()}\n"
    )
    print(
        "| server | channel | file access | direct put | CPU ms per object | in AIStore | in the server | seconds |"
    )
    print("|---|---|---|---|---|---|---|---|")
    for way, figures in ranked:
        print(
            f"| {way.server} | {way.communication} | {'fqn' if way.file_access else ''} |"
            f" {'yes' if way.direct_put else ''} | {spread(figures.totals)} | {figures.part('aistore'):.1f} |"
            f" {figures.part('server'):.1f} | {options.count / figures.rate:.1f} |"
        )
    if kept:
        record(kept, found)
    if options.chart:
        draw(options.chart, ranked)


def record(client: Any, found: dict[Way, Figures]) -> None:
    """Keep every round in ``storeside.transform_benchmark``."""
    for statement in sql.schema("transform_benchmark"):
        client.command(statement)
    host = measure.machine()
    rows = [
        [
            way.server, way.communication, "file access" if way.file_access else "",
            "direct put" if way.direct_put else "", number, rate, aistore + server, aistore, server, host,
        ]
        for way, figures in found.items()
        for number, (rate, aistore, server) in enumerate(
            zip(figures.rates, figures.cpu["aistore"], figures.cpu["server"], strict=True), 1
        )
    ]  # fmt: skip
    columns = [
        "server", "channel", "file_access", "direct_put", "round", "objects_per_second", "cpu_ms_per_object",
        "cpu_ms_in_aistore", "cpu_ms_in_server", "host",
    ]  # fmt: skip
    client.insert("storeside.transform_benchmark", rows, column_names=columns)


def draw(path: Path, ranked: list[tuple[Way, Figures]]) -> None:
    """Draw CPU per object of every way, the cheapest on top."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    ranked = ranked[::-1]
    figure, axes = pyplot.subplots(figsize=(8, 0.27 * len(ranked) + 1), layout="constrained")
    server = [figures.part("server") for _, figures in ranked]
    axes.barh([str(way) for way, _ in ranked], server, color="#2a78b8", label="transformer")
    axes.barh(
        [str(way) for way, _ in ranked], [f.part("aistore") for _, f in ranked], left=server, color="#e8a33d",
        label="AIStore",
    )  # fmt: skip
    axes.set_xlabel("CPU milliseconds per object (12 s FLAC to 44.1 kHz stereo WAV)")
    axes.legend(loc="upper right")
    axes.margins(y=0.01)
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize=8)
    figure.savefig(path, dpi=110)


if __name__ == "__main__":
    main()
