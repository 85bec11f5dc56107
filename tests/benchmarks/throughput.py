"""Throughput of the embedded cluster with 1, 2 and 4 targets, by AIStore's own loader: ``make bench-throughput``.

All clusters run at the same time and take turns. On two cores and loopback, the benchmark shows the method and
AIStore's CPU time per byte. It does not show how a cluster scales, because all "nodes" and the loader share the
cores; `bench-line` shows that. The model computes the throughput of N machines from the same CPU time.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import shutil
import socket
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from storeside.aistore.buckets import Bucket
from storeside.measure.throughput.chart import draw
from storeside.measure.throughput.cluster import Comparison, Measurement, Report
from storeside.measure.throughput.group import LocalLoaders
from storeside.measure.throughput.load import Load
from storeside.measure.throughput.tables import Measurements
from storeside.stack import authn, cli, demo
from storeside.stack.building import aisloader
from storeside.stack.settings import HOST, Stack, default_folder
from storeside.stack.supervision.supervisor import Supervisor
from tests.benchmarks import measure

BUCKET = Bucket("ais", "throughput")
TARGETS = (1, 2, 4)
GIB = 1 << 30
LOADS = {
    "read_10MiB": ("read", 10 << 20, 1 << 30),
    "read_64KiB": ("read", 64 << 10, 64 << 20),
    "write_10MiB": ("write", 10 << 20, 0),
}
CHUNK = 10 << 20


@dataclass(frozen=True)
class Found:
    """One measurement, and the CPU seconds that AIStore's targets took for 10^9 bytes."""

    report: Report
    cpu: float


class Bench:
    """A cluster, and the ClickHouse that all of them write to."""

    def __init__(self, folder: Path, targets: int, clickhouse: Any) -> None:
        folder.mkdir()
        (folder / "cache").symlink_to(default_folder().resolve() / "cache", target_is_directory=True)
        self.stack = cli.up(folder, targets, ("podrunner", "aistore"), secure=False)
        self.clickhouse = clickhouse
        self.cluster = authn.cluster(self.stack)
        BUCKET.handle(self.cluster.client()).create()
        pids = [entry.pid for entry in Supervisor(self.stack).status() if entry.name.startswith("ais-target")]
        self.nodes = [psutil.Process(pid) for pid in pids if pid]

    def measure(self, load: Load, loader: str, name: str) -> Found:
        """Measure one load; the dataset's writing is in the CPU seconds of no case."""
        run = Timed(
            self.cluster, self.clickhouse, load, loaders=LocalLoaders(self.cluster, loader), name=name, scope=name,
            comparison=Comparison(last=0),
        )  # fmt: skip
        run.nodes = self.nodes
        report = run.run()
        return Found(report, run.cpu / report.outcome.bytes * 1e9)


class Timed(Measurement):
    """A measurement that watches the processes of the targets while the load runs."""

    nodes: list[psutil.Process]
    cpu = 0.0

    def _follow(self, targets: Any) -> Any:
        before = measure.cpu_seconds(self.nodes)
        outcome = super()._follow(targets)
        self.cpu = measure.cpu_seconds(self.nodes) - before
        return outcome


def loopback(streams: int, seconds: float) -> float:
    """Return bytes per second of plain TCP streams between two processes, the throughput of this network."""
    with socket.create_server((HOST, 0)) as server:
        port = server.getsockname()[1]
        senders = [multiprocessing.Process(target=_send, args=(port, seconds)) for _ in range(streams)]
        for sender in senders:
            sender.start()
        connections = [server.accept()[0] for _ in senders]
        pipes = [multiprocessing.Pipe(duplex=False) for _ in senders]
        receivers = [
            multiprocessing.Process(target=_receive, args=(connection, end))
            for connection, (_, end) in zip(connections, pipes, strict=True)
        ]
        started = time.monotonic()
        for receiver, connection in zip(receivers, connections, strict=True):
            receiver.start()
            connection.close()
        total = sum(here.recv() for here, _ in pipes)
        elapsed = time.monotonic() - started
        for process in (*senders, *receivers):
            process.join()
    return float(total / elapsed)


def _send(port: int, seconds: float) -> None:
    # As AIStore's targets do: from the page cache, without a copy in between.
    with socket.create_connection((HOST, port)) as connection, tempfile.TemporaryFile() as file:
        file.write(bytes(CHUNK))
        file.flush()
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            sent = 0
            while sent < CHUNK:
                sent += os.sendfile(connection.fileno(), file.fileno(), sent, CHUNK - sent)


def _receive(connection: socket.socket, end: Any) -> None:
    block, total = bytearray(256 << 10), 0
    while count := connection.recv_into(block):
        total += count
    end.send(total)


def main() -> None:
    """Run all loads on all clusters, in turns, and print the table."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.benchmarks.throughput", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--rounds", type=int, default=3, help="interleaved rounds (default: %(default)s)")
    parser.add_argument("--seconds", type=int, default=8, help="of each load (default: %(default)s)")
    parser.add_argument("--concurrency", type=int, default=8, help="workers of the loader (default: %(default)s)")
    parser.add_argument("--chart", type=Path, help="write the last read of four targets to this SVG file")
    options = parser.parse_args()
    home = default_folder()
    (home / "cache").mkdir(parents=True, exist_ok=True)
    loader = str(aisloader.build(home / "cache", lambda text: print(text, file=sys.stderr)))
    state = Path(tempfile.mkdtemp(prefix="bench-throughput-", dir=home))
    stacks: list[Stack] = []
    try:
        (state / "cache").symlink_to(home.resolve() / "cache", target_is_directory=True)
        stacks.append(cli.up(state, only=("clickhouse",)))
        clickhouse = demo.clickhouse_client(stacks[0])
        benches = {}
        for targets in TARGETS:
            benches[targets] = Bench(state / f"targets-{targets}", targets, clickhouse)
            stacks.append(benches[targets].stack)
        _measure(benches, loader, options)
    finally:
        for stack in stacks:
            Supervisor(stack).stop()
        shutil.rmtree(state, ignore_errors=True)


def _measure(benches: dict[int, Bench], loader: str, options: argparse.Namespace) -> None:
    found: dict[tuple[str, int], list[Found]] = defaultdict(list)
    limits = []
    for number in range(options.rounds):
        limits.append(max(loopback(streams, 2.0) for streams in (1, 2, 4)))
        print(f"round {number}: loopback {limits[-1] / 1e6:.0f} MB/s", file=sys.stderr)
        for name, (workload, size, dataset) in LOADS.items():
            load = Load(BUCKET, workload, size, options.concurrency, options.seconds, dataset, write_bytes=4 * GIB)
            for targets, bench in benches.items():
                one = bench.measure(load, loader, f"bench/{name}/{targets}/{number}")
                found[name, targets].append(one)
                figures = one.report.figures
                print(
                    f"round {number}: {name}, {targets} targets: {figures.mean / 1e6:.0f} MB/s,"
                    f" {one.cpu:.2f} CPU s/GB, {figures.time_variance:.1f} and {figures.node_variance:.1f} %",
                    file=sys.stderr,
                )
    if options.chart:
        last = found["read_10MiB", TARGETS[-1]][-1].report
        tables, title = Measurements(benches[TARGETS[-1]].clickhouse), "Random reads of 10 MiB objects"
        rates, seconds = tables.rates(last.measurement), tables.seconds(last.measurement)
        options.chart.write_text(draw(f"{title}, {TARGETS[-1]} targets on two cores", rates, seconds=seconds))
    _print(found, statistics.median(limits))


def _print(found: dict[tuple[str, int], list[Found]], limit: float) -> None:
    def median(some: list[Found], figure: str) -> float:
        return statistics.median(getattr(one.report.figures, figure) for one in some)

    rounds = len(found["read_10MiB", 1])
    print(f"\nMedians of {rounds} interleaved rounds; {measure.machine()}; loopback {limit / 1e6:.0f} MB/s\n")
    print("| load | targets | mean MB/s | peak MB/s | by loopback | time variance | node variance | CPU s per GB |")
    print("|---|---|---|---|---|---|---|---|")
    lines = []
    for (name, targets), some in found.items():
        mean, peak = median(some, "mean"), median(some, "peak")
        time_variance, node_variance = median(some, "time_variance"), median(some, "node_variance")
        cpu = statistics.median(one.cpu for one in some)
        means = measure.spread([one.report.figures.mean / 1e6 for one in some], 0)
        print(
            f"| {name} | {targets} | {means} | {peak / 1e6:.0f} | {100 * mean / limit:.0f} % |"
            f" {time_variance:.1f} % | {node_variance:.1f} % | {cpu:.2f} |"
        )
        lines += [
            (f"{name}.targets{targets}", mean / 1e6, "MB/s"),
            (f"{name}.targets{targets}.time_variance", time_variance, "%"),
            (f"{name}.targets{targets}.node_variance", node_variance, "%"),
            (f"{name}.targets{targets}.cpu", cpu, "s/GB"),
        ]
    cpu = statistics.median(one.cpu for targets in TARGETS for one in found["read_10MiB", targets])
    published = _published()
    print(
        "\nThe model for the published cluster, 16 nodes of 100 Gbit/s and 12 disks (175 GiB/s at 56 % of the disks),"
        " GiB/s: " + ", ".join(f"{part} {limit:.0f}" for part, limit in published.items())
    )
    print(f"At {cpu:.2f} CPU s per GB a node needs {12.5 * cpu:.1f} of these cores to fill 100 Gbit/s.\n")
    measure.bench("throughput.loopback", limit / 1e6, "MB/s")
    for name, value, unit in lines:
        measure.bench(f"throughput.{name}", value, unit)
    for part, value in published.items():
        measure.bench(f"throughput.model_16_nodes.{part}", value, "GiB/s")
    measure.bench("throughput.cores_per_100_gbit", 12.5 * cpu, "cores")


def _published() -> dict[str, float]:
    """Return the model's limits of the article's cluster in GiB/s; how many cores its nodes have is not known."""
    return {"network": 16 * 100e9 / 8 / GIB, "disks": 175 * 100 / 56}


if __name__ == "__main__":
    main()
