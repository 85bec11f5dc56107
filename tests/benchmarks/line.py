"""Reads at line rate and transforms with 1, 2, 4 and 8 targets, each behind a shaped link: ``make bench-line``.

AIStore's nodes and several loaders run in network namespaces that a switch connects. `tc` limits each link to the
same rate in each direction, headers included, so the links are the limit and not the shared cores. All clusters run
at the same time and take turns. A share is bytes of objects per second by the rate of all targets' links; the
variances are those of the frames that the links carry. For transforms, a control group limits the transformer beside
each target to a fraction of a core. The benchmark needs root, and removes everything that it creates.
"""

from __future__ import annotations

import argparse
import logging
import os
import statistics
import sys
import time
from collections import defaultdict
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from storeside.aistore import etl as etls
from storeside.aistore import jobs
from storeside.aistore.buckets import Bucket
from storeside.aistore.spec import ALL_WORKERS, EtlSpec
from storeside.measure.throughput.chart import draw
from storeside.measure.throughput.group import LoaderGroup
from storeside.measure.throughput.load import Load, environment
from storeside.stack.building import aisloader
from storeside.stack.building import nodes as aistore_build
from storeside.stack.settings import default_folder
from storeside.transformers.native import build
from tests.benchmarks import measure, recordings
from tests.benchmarks.line_cluster import LineCluster, files, random_objects
from tests.benchmarks.line_network import Network, Node, folder, prepare, require_root, run_apart
from tests.benchmarks.transform import LISTEN, MONO, WAV_HEADER, echo, ours

COUNTS = (1, 2, 4, 8)
MOST = COUNTS[-1]
# The article: 175 of 186 GiB/s.
PUBLISHED_SHARE = 175 / 186
OBJECTS, RECORDINGS = Bucket("ais", "objects"), Bucket("ais", "recordings")
LOADERS_PER_TARGET = 2
WARM_UP_SECONDS = 5
WEBSOCKET, DIRECT, BACK = "WebSocket, direct put", "bytes, direct put", "bytes, returned to the target"
_START_SECONDS = 120  # sixteen Python processes start on two cores
_INSIDE = "STORESIDE_LINE_FOLDER"


@dataclass(frozen=True)
class Read:
    """One measurement of reads: payload and frames in bytes per second, and the frames of each target over time."""

    payload: float
    frames: float
    time_variance: float
    node_variance: float
    lines: dict[str, list[tuple[float, float]]]


@dataclass(frozen=True)
class Transformed:
    """One transform of all recordings: objects per second, and bytes per object on the links and within nodes."""

    rate: float
    links: float
    within: float


def read(cluster: LineCluster, loaders: list[Node], program: str, options: argparse.Namespace) -> Read:
    """Read random objects for some seconds; the loaders have more links than the targets."""
    number = LOADERS_PER_TARGET * len(cluster.targets)
    seconds = options.seconds + WARM_UP_SECONDS + 3
    load = Load(OBJECTS, "read", options.object_kib << 10, options.concurrency, seconds)
    sent = sum(cluster.sent())
    commands = [["ip", *node.command[1:], program, *load.arguments("")] for node in loaders[:number]]
    with LoaderGroup(commands, environment(cluster.cluster)) as started:
        started.begin()
        time.sleep(WARM_UP_SECONDS)
        ticks = [(time.monotonic(), cluster.sent())]
        for second in range(options.seconds):
            time.sleep(max(0.0, ticks[0][0] + second + 1 - time.monotonic()))
            ticks.append((time.monotonic(), cluster.sent()))
        if not started.wait(60):
            sys.exit("error: the loaders did not end within 60 s")
        payload = started.outcome().bytes  # raises if requests failed
    # The loaders count whole objects. Over the whole load they are this part of the frames.
    return figures(payload / (sum(cluster.sent()) - sent), ticks)


def figures(part: float, ticks: list[tuple[float, list[int]]]) -> Read:
    """Return the figures of bytes that each target had sent at each tick; `part` of them are bytes of objects."""
    lines: dict[str, list[tuple[float, float]]] = defaultdict(list)
    totals = []
    for (then, old), (now, new) in pairwise(ticks):
        rates = [(b - a) / (now - then) for a, b in zip(old, new, strict=True)]
        totals.append(sum(rates))
        for number, rate in enumerate(rates):
            lines[f"target {number}"].append((now - ticks[0][0], rate))
    nodes = [statistics.mean(rate for _, rate in line) for line in lines.values()]
    mean = statistics.mean(totals)
    return Read(
        part * mean,
        mean,
        100 * statistics.pstdev(totals) / mean,
        100 * (max(nodes) - min(nodes)) / statistics.mean(nodes),
        dict(lines),
    )


def specs() -> dict[str, EtlSpec]:
    """Return our transcoder, and two ETLs that return as many bytes: with direct put, and through their target."""
    size = MONO.sample_rate * MONO.channels * 2 * recordings.SECONDS + WAV_HEADER
    direct = replace(echo(size), label="bench-direct", communication="hpush", init_timeout=_START_SECONDS)
    command = ("python", "-m", "tests.benchmarks.peers", "--server", "returns", *LISTEN)
    back = replace(direct, label="bench-back", command=command, direct_put=False)
    return {WEBSOCKET: replace(ours(MONO), init_timeout=_START_SECONDS), DIRECT: direct, BACK: back}


def transform(cluster: LineCluster, spec: EtlSpec, cores: float) -> Transformed:
    """Transform all recordings, with limited transformers, and delete the results."""
    client, total = cluster.client, sum(1 for _ in RECORDINGS.handle(cluster.client).list_objects_iter())
    to = Bucket("ais", f"out-{time.time_ns()}").handle(client)
    to.create()
    (name,) = etls.ensure(client, spec)
    cluster.limit_workers(cores)
    links, within = sum(cluster.sent()), cluster.within()
    began, ended = time.monotonic(), 0.0
    job = RECORDINGS.handle(client).transform(
        name, to, ext={"flac": "wav"}, num_workers=ALL_WORKERS, cont_on_err=True, timeout="10m"
    )
    follower = jobs.Follower(client, job, 120)
    while not (progress := follower.poll()).finished:
        if not ended and progress.objects >= total:
            ended = time.monotonic()
        time.sleep(0.1)
    ended = ended or time.monotonic()
    links, within = sum(cluster.sent()) - links, cluster.within() - within
    cluster.limit_workers(0)
    found = sum(1 for entry in to.list_objects_iter(props="name,size") if entry.size > 0)
    if progress.error or found != total:
        sys.exit(f"error: {name}: {found} of {total} results, {progress.error}")
    etls.discard(client, name)
    to.delete()
    return Transformed(total / (ended - began), links / total, within / total)


class Rig:
    """The network, its clusters, its loaders and their measurements."""

    def __init__(self, home: Path, options: argparse.Namespace) -> None:
        prepare()
        os.environ.update(dict.fromkeys(("no_proxy", "NO_PROXY"), "*"))
        cache = (default_folder() / "cache").resolve()
        self._options = options
        self._program = str(aisloader.path(cache))
        self._network = Network(options.rate)
        self._loaders = [self._network.node(f"loader{n}") for n in range(LOADERS_PER_TARGET * MOST)]
        contents = files(recordings.make(home / "recordings", options.recordings))
        self.clusters: dict[int, LineCluster] = {}
        for count in COUNTS:
            _tell(f"starting {count} targets")
            cluster = self.clusters[count] = LineCluster(self._network, home / f"targets-{count}", cache, count)
            cluster.fill(OBJECTS, options.objects, random_objects(options.object_kib << 10))
            cluster.fill(RECORDINGS, options.recordings, contents)
        self.reads: dict[int, list[Read]] = defaultdict(list)
        self.transforms: dict[tuple[str, int], list[Transformed]] = defaultdict(list)

    def measure(self) -> None:
        """Run all rounds."""
        for number in range(self._options.rounds):
            for count, cluster in self.clusters.items():
                found = read(cluster, self._loaders, self._program, self._options)
                self.reads[count].append(found)
                _tell(
                    f"round {number}: {count} targets: {100 * self.share(count, found.payload):.1f} % of line rate,"
                    f" {found.time_variance:.1f} and {found.node_variance:.1f} %"
                )
        for number in range(self._options.transform_rounds):
            for name, spec in specs().items():
                for count in COUNTS if name == WEBSOCKET else (MOST,):
                    one = transform(self.clusters[count], spec, self._options.cores)
                    self.transforms[name, count].append(one)
                    _tell(
                        f"round {number}: {count} targets, {name}: {one.rate:.1f} objects/s with any wait at the end,"
                        f" {one.links / 1e3:.0f} kB per object on links, {one.within / 1e3:.0f} within nodes"
                    )

    def share(self, count: int, payload: float) -> float:
        """Return bytes per second as a share of the rate of the targets' links."""
        return payload / self._network.rate / count

    def report(self) -> None:
        """Print the tables and the figures."""
        o = self._options
        print(
            f"\n{o.rate:g} Mbit/s each way for each node; objects of {o.object_kib} KiB, {o.objects} on each target;"
            f" {LOADERS_PER_TARGET} loaders of {o.concurrency} workers for each target; {o.seconds} s;"
            f" medians of {o.rounds} interleaved rounds; {measure.machine()}\n"
        )
        print("| targets | MB/s | of line rate | of line rate, with headers | time variance | node variance |")
        print("|---|---|---|---|---|---|")
        shares = {}
        for count, found in self.reads.items():
            of_line = [100 * self.share(count, one.payload) for one in found]
            shares[count] = statistics.median(of_line) / 100
            frames = statistics.median(100 * self.share(count, one.frames) for one in found)
            variances = f"{_median(found, 'time_variance'):.1f} % | {_median(found, 'node_variance'):.1f} %"
            print(
                f"| {count} | {measure.spread([one.payload / 1e6 for one in found])} | {measure.spread(of_line)} % |"
                f" {frames:.1f} % | {variances} |"
            )
        print("| 16, the article | 187,904 (175 GiB/s) | 94.1 % | | under 2 % | under 3 % |\n")
        self._report_transforms()
        payloads = {count: _median(found, "payload") for count, found in self.reads.items()}
        for count in COUNTS:
            measure.bench(f"line.share_at_{count}_targets", shares[count], "share")
        last = self.reads[MOST]
        measure.bench("line.time_variance_8_targets", _median(last, "time_variance"), "%")
        measure.bench("line.node_variance_8_targets", _median(last, "node_variance"), "%")
        measure.bench("line.speedup_8_targets", payloads[MOST] / payloads[1], "x")
        rates = {count: _median(self.transforms[WEBSOCKET, count], "rate") for count in COUNTS}
        measure.bench("line.transform_speedup_8_targets", rates[MOST] / rates[1], "x")

    def _report_transforms(self) -> None:
        o = self._options
        print(
            f"{o.recordings} recordings of 12 s on each target to 16 kHz mono WAV; each transformer has {o.cores:g}"
            f" of a core; medians of {o.transform_rounds} rounds\n"
        )
        print("| transform | targets | objects/s | kB per object on links | kB per object within nodes |")
        print("|---|---|---|---|---|")
        for (name, count), found in self.transforms.items():
            rates = measure.spread([one.rate for one in found]) if name == WEBSOCKET else ""
            print(
                f"| {name} | {count} | {rates} |"
                f" {_median(found, 'links') / 1e3:.0f} | {_median(found, 'within') / 1e3:.0f} |"
            )
        print()

    def draw(self, images: Path) -> None:
        """Draw the frames of each of eight targets, and the mean target of each cluster, over time."""
        rate, last = self._network.rate, {count: found[-1].lines for count, found in self.reads.items()}
        title = (
            f"Random reads: bytes per second of each of {MOST} targets behind links of {self._options.rate:g} Mbit/s"
        )
        (images / "line-nodes.svg").write_text(draw(title, last[MOST], rate))
        clusters = {
            f"targets: {count}": [
                (seconds[0][0], statistics.mean(one for _, one in seconds))
                for seconds in zip(*lines.values(), strict=True)
            ]
            for count, lines in last.items()
        }
        title = "Random reads of clusters of 1 to 8 targets, by the number of targets; the line is the links' rate"
        (images / "line-clusters.svg").write_text(draw(title, clusters, rate))


def _median(found: list[Any], figure: str) -> float:
    return statistics.median(getattr(one, figure) for one in found)


def _tell(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def main() -> None:
    """Build what is needed, then measure apart from the machine's network."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.benchmarks.line", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--rounds", type=int, default=3, help="rounds of reads (default: %(default)s)")
    parser.add_argument("--transform-rounds", type=int, default=3, help="of transforms (default: %(default)s)")
    parser.add_argument("--rate", type=float, default=100, help="Mbit/s of each link (default: %(default)s)")
    parser.add_argument("--seconds", type=int, default=20, help="of each load (default: %(default)s)")
    parser.add_argument("--object-kib", type=int, default=1024, help="size of objects (default: %(default)s)")
    parser.add_argument("--objects", type=int, default=64, help="on each target (default: %(default)s)")
    parser.add_argument("--concurrency", type=int, default=32, help="workers of a loader (default: %(default)s)")
    parser.add_argument("--recordings", type=int, default=100, help="on each target (default: %(default)s)")
    parser.add_argument("--cores", type=float, default=0.05, help="of each transformer (default: %(default)s)")
    parser.add_argument("--charts", type=Path, help="write two charts into this folder")
    options = parser.parse_args()
    logging.disable(logging.WARNING)
    if home := os.environ.get(_INSIDE):
        _measure(Path(home), options)
        return
    require_root()
    cache = default_folder() / "cache"
    cache.mkdir(parents=True, exist_ok=True)
    measure.require(["cc", "pkg-config", "libavformat"])
    build.build()
    aisloader.build(cache, _tell)
    aistore_build.build(cache, _tell)
    with folder(default_folder() / "bench-line") as state:
        os.environ[_INSIDE] = str(state)
        sys.exit(run_apart([sys.executable, "-m", "tests.benchmarks.line", *sys.argv[1:]]))


def _measure(home: Path, options: argparse.Namespace) -> None:
    rig = Rig(home, options)
    rig.measure()
    rig.report()
    if options.charts:
        rig.draw(options.charts)


if __name__ == "__main__":
    main()
