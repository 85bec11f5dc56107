"""Members of tar shards, utterances, loads from AIStore, and loads that a suite checks: ``make bench-pipelines``.

`shards`: the same transform runs over a bucket of objects, and over a bucket of shards with these objects as members,
interleaved on one embedded cluster of two targets. The texts have 4 KB each: such small samples are the reason for
shards. The recordings have 12 s, 16 kHz mono FLAC, and become 16 kHz mono WAV. CPU time is that of AIStore and
of the servers of the ETL with their children.

`utterances`: the CPU time of cutting recordings of 24 s into shards of utterances, per second of audio. The ETL
(AIStore and the servers with their children) is compared with Silero VAD alone, on the same samples in memory in this
process, which is the limit; and with a client that downloads, cuts with the same code, and uploads (this process and
AIStore). Both ratios are the other's CPU time divided by the ETL's.

`ais_load`: ClickHouse's own statement reads objects from versitygw with ``s3()``. Loads read the same objects from an
embedded AIStore with two targets: ClickHouse reads them (pull), or this process sends them (push). They also list and
plan objects, check versions and rows, and publish. The statement does none of this. The ratio of each case is the
median over rounds, and `ais_load.of_s3_engine` their geometric mean.

`quality`: see the section of ``make bench-quality``.
"""

from __future__ import annotations

import argparse
import logging
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import psutil

from storeside.aistore import etl as etls
from storeside.aistore import jobs
from storeside.aistore.buckets import Bucket
from storeside.aistore.spec import ALL_WORKERS, TRANSFORMER_IMAGE, EtlSpec, transformer_command
from storeside.stack import authn
from storeside.stack.settings import CHECKOUT, Stack
from storeside.stack.supervision.supervisor import Supervisor
from storeside.transformers.audio.formats import AudioFormat
from tests.benchmarks import ais_load, measure, quality, recordings, stacks, utterances
from tests.benchmarks.measure import Figures, bench, spread
from tests.shards import files, tar

ONLY = ("quality", "shards", "utterances", "ais_load")
TEXT_BYTES = 4096
TEXTS = CHECKOUT / "tests" / "data" / "texts"


@dataclass
class Case:
    """One kind of data: its objects, and the ETL with the extensions of its results."""

    objects: Mapping[str, bytes]
    spec: EtlSpec
    pattern: str
    extensions: Mapping[str, str]
    per_shard: int

    def shards(self) -> dict[str, bytes]:
        """Return the objects as members of shards."""
        names = sorted(self.objects)
        starts = range(0, len(names), self.per_shard)
        groups = [names[start : start + self.per_shard] for start in starts]
        return {f"{n:05}.tar": tar([(name, self.objects[name]) for name in group]) for n, group in enumerate(groups)}


@dataclass
class Cluster:
    """The embedded cluster, and the measurements."""

    stack: Stack
    client: Any

    def put(self, bucket: Bucket, objects: Mapping[str, bytes]) -> None:
        """Create a bucket with these objects."""
        handle = bucket.handle(self.client)
        handle.create()
        for name, content in objects.items():
            handle.object(name).get_writer().put_content(content)

    def run(
        self, source: Bucket, spec: EtlSpec, extensions: Mapping[str, str], members: int
    ) -> tuple[float, dict[str, float]]:
        """Transform a bucket; return results per second, and CPU milliseconds per result by part."""
        to = Bucket("ais", f"out-{time.time_ns()}").handle(self.client)
        to.create()
        (name,) = etls.ensure(self.client, spec)
        before = [measure.cpu_seconds(part) for part in self.parts()]
        job = source.handle(self.client).transform(
            name, to, ext=dict(extensions) or None, num_workers=ALL_WORKERS, cont_on_err=True, timeout="10m"
        )
        follower = jobs.Follower(self.client, job, 120)
        while not (progress := follower.poll()).finished:
            time.sleep(0.1)
        after = [measure.cpu_seconds(part) for part in self.parts()]
        found = [entry.name for entry in to.list_objects_iter(props="name,size") if int(entry.size)]
        if spec.in_shards:
            made = sum(len(files(bytes(to.object(name).get_reader().read_all()))) for name in found)
        else:
            made = len(found)
        if progress.error or made != members:
            sys.exit(f"error: {name}: {made} of {members} results, {progress.error}")
        etls.discard(self.client, name)
        to.delete()
        parts = [(a - b) * 1e3 / members for a, b in zip(after, before, strict=True)]
        return members / progress.seconds, {"aistore": parts[0], "server": parts[1]}

    def parts(self) -> tuple[list[psutil.Process], list[psutil.Process]]:
        """Return the processes of AIStore, and of the servers of ETLs."""
        states = [state for state in Supervisor(self.stack).status() if state.pid]
        nodes = [psutil.Process(state.pid) for state in states if state.name.startswith("ais-") and state.pid]
        (runner,) = (state.pid for state in states if state.name == "podrunner")
        return nodes, psutil.Process(runner).children()


def spec(transform: str, environment: Mapping[str, str]) -> EtlSpec:
    """Return an ETL of Storeside's image with one worker process per target."""
    command = transformer_command(transform)
    return EtlSpec("bench", TRANSFORMER_IMAGE, command, environment, {"NUM_WORKERS": "1"}, init_timeout=30)


def cases(stack: Stack, texts: int, sounds: int) -> dict[str, Case]:
    """Make the data."""
    text = b"".join(path.read_bytes() for path in sorted(TEXTS.glob("*.txt")))
    starts = [n * 97 % (len(text) - TEXT_BYTES) for n in range(texts)]
    pieces = {f"{n:06}.txt": text[start : start + TEXT_BYTES] for n, start in enumerate(starts)}
    paths = recordings.make(stack.state.parent / "recordings", sounds)
    audio = AudioFormat()
    return {
        "texts of 4 KB": Case(pieces, spec("text_facts", {}), "*.txt", {"txt": "json"}, 500),
        "recordings of 12 s": Case(
            {path.name: path.read_bytes() for path in paths},
            spec("audio_transcode", audio.environment()),
            "*.flac",
            {"flac": "wav"},
            50,
        ),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--texts", type=int, default=4000, help="small objects (default: %(default)s)")
    parser.add_argument("--recordings", type=int, default=300, help="recordings (default: %(default)s)")
    parser.add_argument("--talks", type=int, default=60, help="recordings of utterances (default: %(default)s)")
    parser.add_argument("--only", default=",".join(ONLY), help="of %(default)s, with commas (default: all)")
    parser.add_argument("--rows", type=int, default=10_000_000, help="rows of quality (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="interleaved rounds (default: %(default)s)")
    options = parser.parse_args()
    only = options.only.split(",")
    if unknown := set(only) - set(ONLY):
        parser.error(f"there is no {', '.join(sorted(unknown))}: use {', '.join(ONLY)}")
    logging.disable(logging.INFO)  # Airflow writes it among the figures
    if "quality" in only:
        with stacks.running(quality.PARTS) as stack:
            quality.run(stack, options.rows)
    if "shards" in only:
        with stacks.running(("podrunner", "aistore")) as stack:
            run(
                Cluster(stack, authn.cluster(stack).client()),
                cases(stack, options.texts, options.recordings),
                options.rounds,
            )
    if "utterances" in only:
        with stacks.running(("podrunner", "aistore")) as stack:
            paths = recordings.make(stack.state.parent / "recordings", options.talks, seconds=24)
            objects = {path.name: path.read_bytes() for path in paths}
            cluster = Cluster(stack, authn.cluster(stack).client())
            utterances.run(cluster, objects, spec("audio_utterances", {}), options.rounds)
    if "ais_load" in only:
        with stacks.running(ais_load.PARTS) as stack:
            ais_load.run(stack, options.rounds)


def run(cluster: Cluster, kinds: Mapping[str, Case], rounds: int) -> None:
    """Measure all cases in turn, then print the table and the figures."""
    found: dict[tuple[str, str], Figures] = {}
    for number, case in enumerate(kinds.values()):
        cluster.put(Bucket("ais", f"objects-{number}"), case.objects)
        cluster.put(Bucket("ais", f"shards-{number}"), case.shards())
    for round_ in range(rounds + 1):
        for number, (kind, case) in enumerate(kinds.items()):
            inside = case.spec.of_members(case.pattern, case.extensions)
            for way, source, etl, extensions in (
                ("objects", f"objects-{number}", case.spec, case.extensions),
                ("members", f"shards-{number}", inside, {}),
            ):
                rate, cpu = cluster.run(Bucket("ais", source), etl, extensions, len(case.objects))
                print(f"round {round_}: {kind}, {way}: {rate:.1f}/s, {sum(cpu.values()):.2f} ms CPU", file=sys.stderr)
                if round_:  # the first round warms up
                    found.setdefault((kind, way), Figures()).add(rate, cpu)
    report(found, kinds, rounds)


def report(found: Mapping[tuple[str, str], Figures], kinds: Mapping[str, Case], rounds: int) -> None:
    """Print the table, and the ratios as ``BENCH`` lines."""
    sizes = ", ".join(f"{len(case.objects)} {kind} in shards of {case.per_shard}" for kind, case in kinds.items())
    print(f"\n{sizes}; medians of {rounds} interleaved rounds; {measure.machine()}\n")
    print("| data | way | results/s | CPU ms per result | in AIStore | in the server |")
    print("|---|---|---|---|---|---|")
    for (kind, way), figures in found.items():
        print(
            f"| {kind} | {way} | {spread(figures.rates)} | {spread(figures.totals, 2)} |"
            f" {figures.part('aistore'):.2f} | {figures.part('server'):.2f} |"
        )
    print()
    for kind, label in (("recordings of 12 s", "recordings"), ("texts of 4 KB", "members")):
        members, objects = found[kind, "members"], found[kind, "objects"]
        bench(f"shards.{label}_of_objects_cpu", objects.total / members.total, "x")
        bench(f"shards.{label}_of_objects", members.rate / objects.rate, "x")


if __name__ == "__main__":
    main()
