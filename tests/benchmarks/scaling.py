"""The cost of a transcoded object with 1, 2 and 4 targets and ETL workers: ``make bench-scaling``.

The cases of a cluster take turns; the clusters run one after another. Targets, workers and this process share the
machine's cores, so the rate does not show how a cluster scales. CPU time per object does, if it stays the same with
more targets and workers. The model applies this cost to the article's cluster: 149,000 recordings of 12 s to 44.1 kHz
stereo on 3 nodes of 48 cores and 10 hard disks, which took 219 s. `Cluster` contains its inputs.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import sys
from dataclasses import dataclass

from storeside.stack.supervision.supervisor import Supervisor
from tests.benchmarks import measure, recordings
from tests.benchmarks.measure import Figures
from tests.benchmarks.transform import STEREO, WAV_HEADER, ours, start

COUNTS = (1, 2, 4)
FILES, PUBLISHED_SECONDS = 149_000, 218.5
FLAC_BYTES = 16_000 * recordings.SECONDS  # about half of 16 bit at 16 kHz
WAV_BYTES = STEREO.sample_rate * STEREO.channels * 2 * recordings.SECONDS + WAV_HEADER


@dataclass(frozen=True)
class Cluster:
    """The article's nodes; `disk_bytes` and `network_bytes` per second and node are assumed, it does not say."""

    nodes: int = 3
    cores: int = 48
    disks: int = 10
    disk_bytes: float = 150e6
    network_bytes: float = 10e9 / 8

    def seconds(self, cpu_seconds: float) -> dict[str, float]:
        """Return how long each part of the cluster takes for all recordings, if it alone were the limit.

        Each node stores one of `nodes` results itself and sends the others by direct put.
        """
        away = (self.nodes - 1) / self.nodes
        return {
            "processors": FILES * cpu_seconds / (self.nodes * self.cores),
            "disks": FILES * (FLAC_BYTES + WAV_BYTES) / (self.nodes * self.disks * self.disk_bytes),
            "network": FILES * WAV_BYTES * away / (self.nodes * self.network_bytes),
        }


def main() -> None:
    """Measure, and print the table and the model."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.benchmarks.scaling", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--count", type=int, default=300, help="recordings (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="rounds (default: %(default)s)")
    options = parser.parse_args()
    found = {case: Figures() for case in itertools.product(COUNTS, COUNTS)}
    for targets in COUNTS:
        cluster = start(options.count, targets)
        try:
            for number, workers in itertools.product(range(options.rounds), COUNTS):
                rate, cpu = cluster.etl(ours(STEREO, workers))
                found[targets, workers].add(rate, cpu)
                shown = f"{rate:.1f} objects/s, {sum(cpu.values()):.1f} ms CPU"
                print(f"round {number}: {targets} targets, {workers} workers: {shown}", file=sys.stderr)
        finally:
            Supervisor(cluster.stack).stop()
    report(found, options.count, options.rounds)


def report(found: dict[tuple[int, int], Figures], count: int, rounds: int) -> None:
    """Print medians, and the model's seconds for the published cluster."""
    print(f"{count} recordings of 12 s to 44.1 kHz stereo; medians of {rounds} rounds; {measure.machine()}\n")
    print("| targets | workers per target | objects/s | CPU ms per object | in AIStore | in the workers |")
    print("|---|---|---|---|---|---|")
    for (targets, workers), figures in found.items():
        print(
            f"| {targets} | {workers} | {measure.spread(figures.rates)} | {measure.spread(figures.totals)} |"
            f" {figures.part('aistore'):.1f} | {figures.part('server'):.1f} |"
        )
    costs = [figures.total for figures in found.values()]
    limits = Cluster().seconds(statistics.median(costs) / 1e3)
    print("\n| 149,000 recordings on the published cluster | seconds |\n|---|---|")
    for part, seconds in limits.items():
        print(f"| if its {part} were the limit | {seconds:.0f} |")
    print(f"| published; a client took 8,106 s | {PUBLISHED_SECONDS:.0f} |\n")
    measure.bench("scaling.cpu_ms_per_object", statistics.median(costs), "ms")
    measure.bench("scaling.cpu_spread", max(costs) / min(costs), "x")
    measure.bench("scaling.published_cluster_model", max(limits.values()), "s")


if __name__ == "__main__":
    main()
