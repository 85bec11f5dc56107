"""The cost of AuthN: the same transforms and requests on a cluster with and without it: ``make bench-authn``.

Both embedded clusters are up, and the cases take turns. CPU is that of AIStore's nodes, the ETL's servers with their
children, and, in the case of a client, this process. A client puts an object of 1 kB and reads it again.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable

import psutil

from storeside.aistore.buckets import Bucket
from storeside.stack.supervision.supervisor import Supervisor
from tests.benchmarks import measure
from tests.benchmarks.measure import Figures, bench, spread
from tests.benchmarks.transform import MONO, Bench, echo, ours, start

SMALL = 1000
Measured = tuple[float, dict[str, float]]


def requests(cluster: Bench) -> Measured:
    """Put and get one small object for each recording; return objects/s and CPU milliseconds per object by part."""
    bucket = Bucket("ais", f"requests-{time.time_ns()}").handle(cluster.client)
    bucket.create()
    nodes, here = cluster.nodes(), [psutil.Process()]
    before = [measure.cpu_seconds(nodes), measure.cpu_seconds(here)]
    begin = time.monotonic()
    for number in range(len(cluster.paths)):
        one = bucket.object(f"{number}")
        one.get_writer().put_content(bytes(SMALL))
        one.get_reader().read_all()
    seconds = time.monotonic() - begin
    after = [measure.cpu_seconds(nodes), measure.cpu_seconds(here)]
    bucket.delete()
    parts = [(a - b) * 1e3 / len(cluster.paths) for a, b in zip(after, before, strict=True)]
    return len(cluster.paths) / seconds, {"aistore": parts[0], "server": parts[1]}


CASES: dict[str, Callable[[Bench], Measured]] = {
    "transform": lambda cluster: cluster.etl(ours(MONO)),
    "echo": lambda cluster: cluster.etl(echo(SMALL)),
    "client": requests,
}
WHAT = {
    "transform": "transcode to 16 kHz mono",
    "echo": "ETL that returns 1 kB",
    "client": "put and get of 1 kB by a client",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=500, help="recordings (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=5, help="interleaved rounds (default: %(default)s)")
    options = parser.parse_args()
    clusters: dict[str, Bench] = {}
    try:
        clusters["open"] = start(options.count, name="bench")
        clusters["secure"] = start(options.count, name="bench-secure", secure=True)
        report(run(clusters, options.rounds), options.rounds, options.count)
    finally:
        for cluster in clusters.values():
            Supervisor(cluster.stack).stop()


def run(clusters: dict[str, Bench], rounds: int) -> dict[tuple[str, str], Figures]:
    """Measure all cases in turn; the first round warms up."""
    found = {(case, kind): Figures() for case in CASES for kind in clusters}
    for number in range(rounds + 1):
        for case, action in CASES.items():
            # who is first changes, because the second finds warmer caches
            for kind in sorted(clusters, reverse=bool(number % 2)):
                rate, cpu = action(clusters[kind])
                print(f"round {number}: {case}, {kind}: {rate:.1f}/s, {sum(cpu.values()):.2f} ms", file=sys.stderr)
                if number:
                    found[case, kind].add(rate, cpu)
    return found


def report(found: dict[tuple[str, str], Figures], rounds: int, count: int) -> None:
    """Print the table, and the differences as ``BENCH`` lines."""
    print(f"\n{count} objects; medians of {rounds} interleaved rounds; {measure.machine()}\n")
    print("| case | AuthN | objects/s | CPU ms per object | in AIStore | in the server or client |")
    print("|---|---|---|---|---|---|")
    for (case, kind), figures in found.items():
        print(
            f"| {WHAT[case]} | {'yes' if kind == 'secure' else 'no'} | {spread(figures.rates)} |"
            f" {spread(figures.totals, 2)} | {figures.part('aistore'):.2f} | {figures.part('server'):.2f} |"
        )
    print()
    for case in CASES:
        pairs = zip(found[case, "secure"].totals, found[case, "open"].totals, strict=True)
        bench(f"authn.{case}_cpu", statistics.median((a - b) * 1e3 for a, b in pairs), "µs per object")


if __name__ == "__main__":
    main()
