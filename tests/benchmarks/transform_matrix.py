"""The published matrix (server x channel x file access x direct put), with our transcoder: ``make bench-matrix``.

``storeside`` is our server; ``fastapi``, ``flask`` and ``http`` are those of AIStore's SDK, as in the article. All of
them pass objects to the same isolated decoders, of which each server has one.

Without direct put, AIStore's targets send results to each other, and a job waits at
its end until this traffic has stopped for a fixed time (``transport.quiescent``, 10 s). With a hundred recordings,
this wait dominates the seconds; compare the CPU time of the variants.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from storeside.aistore.spec import TRANSFORMER_IMAGE, EtlSpec, transformer_command
from storeside.measure.transforms.variants import Variant, variants
from storeside.stack.supervision.supervisor import Supervisor
from tests.benchmarks import measure
from tests.benchmarks.measure import Figures, spread
from tests.benchmarks.transform import STEREO, start

SPEC = EtlSpec(
    "bench-matrix",
    TRANSFORMER_IMAGE,
    transformer_command("audio_transcode"),
    STEREO.environment(),
    {"NUM_WORKERS": "1"},
    init_timeout=30,
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=300, help="recordings (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="interleaved rounds (default: %(default)s)")
    parser.add_argument("--chart", type=Path, help="write the chart to this PNG file")
    options = parser.parse_args()
    cluster = start(options.count)
    found = {variant: Figures() for variant in variants()}
    try:
        for number in range(options.rounds):
            for way, figures in found.items():
                rate, cpu = cluster.etl(way.of(SPEC, SPEC.label))
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
    if options.chart:
        draw(options.chart, ranked)


def draw(path: Path, ranked: list[tuple[Variant, Figures]]) -> None:
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
