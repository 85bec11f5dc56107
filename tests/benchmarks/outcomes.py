"""Two results of each object in one pass, compared with two transforms: ``make bench-outcomes``.

Stereo calls of 12 s, 44.1 kHz FLAC, become two files of 16 kHz each: by the transformer of the documentation, which
yields both results, and by two transforms, each of one channel. The ways are interleaved on one embedded cluster of
two targets. CPU time is that of AIStore and of the servers of the ETLs with their children. The figure is that of one
pass divided by that of both transforms.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from storeside.aistore import etl as etls
from storeside.aistore import jobs
from storeside.aistore.buckets import Bucket, objects_url
from storeside.aistore.spec import ALL_WORKERS, TRANSFORMER_IMAGE, EtlSpec, transformer_command
from storeside.stack import authn
from storeside.stack.settings import SOURCES, Stack
from storeside.stack.speech_corpus import RATE, decode, encode
from storeside.transformers.audio.formats import AudioFormat
from storeside.transformers.audio.transcoding import transcode
from tests.benchmarks import measure, recordings, stacks
from tests.benchmarks.measure import Figures, bench, spread
from tests.benchmarks.pipelines import Cluster
from tests.support import files_of_page

HERTZ = 44_100
WAYS = ("two results in one pass", "two transforms")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calls", type=int, default=200, help="stereo calls (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="interleaved rounds (default: %(default)s)")
    options = parser.parse_args()
    logging.disable(logging.INFO)  # Airflow writes it among the figures
    with stacks.running(("podrunner", "aistore")) as stack:
        run(Cluster(stack, authn.cluster(stack).client()), calls(stack, options.calls), options.rounds)


def calls(stack: Stack, count: int) -> dict[str, bytes]:
    """Return stereo calls, each with another recording on either side."""
    sides = [decode(path) for path in recordings.make(stack.state.parent / "recordings", count + 1)]
    stereo = AudioFormat(container="flac", codec="flac", sample_rate=HERTZ, channels=2)
    made = {}
    for number in range(count):
        call = encode(np.stack(sides[number : number + 2]), "flac", "flac", RATE)
        made[f"{number:05}.flac"] = bytes(transcode(call, stereo))
    return made


def run(cluster: Cluster, objects: dict[str, bytes], rounds: int) -> None:
    """Measure both ways in turn, then print the table and the figure."""
    source = Bucket("ais", "calls")
    cluster.put(source, objects)
    modules = documented(cluster.stack.state.parent / "modules", "calls")
    found = {way: Figures() for way in WAYS}
    for round_ in range(rounds + 1):
        for way in WAYS:
            to = Bucket("ais", f"out-{time.time_ns()}")
            to.handle(cluster.client).create()
            if way == WAYS[0]:
                url = objects_url(cluster.stack.url("ais_proxy"), to, "")
                specs = [spec("my_package.calls:split", {"PYTHONPATH": modules}).storing_results(url)]
            else:
                specs = [spec("audio_transcode", AudioFormat(channel=s).environment()) for s in ("left", "right")]
            rate, cpu = passed(cluster, source, to, specs, len(objects))
            print(f"round {round_}: {way}: {rate:.1f}/s, {sum(cpu.values()):.2f} ms CPU", file=sys.stderr)
            if round_:  # the first round warms up
                found[way].add(rate, cpu)
            to.handle(cluster.client).delete()
    print(f"\n{len(objects)} stereo calls; medians of {rounds} interleaved rounds; {measure.machine()}\n")
    print("| way | calls/s | CPU ms per call | in AIStore | in the servers |")
    print("|---|---|---|---|---|")
    for way, figures in found.items():
        print(
            f"| {way} | {spread(figures.rates)} | {spread(figures.totals, 2)} |"
            f" {figures.part('aistore'):.2f} | {figures.part('server'):.2f} |"
        )
    print()
    bench("outcomes.per_object_cpu", found[WAYS[0]].total / found[WAYS[1]].total, "x")


def spec(transform: str, environment: dict[str, str]) -> EtlSpec:
    """Return an ETL with one worker process per target."""
    tuning = {"NUM_WORKERS": "1"}
    return EtlSpec("bench", TRANSFORMER_IMAGE, transformer_command(transform), environment, tuning, init_timeout=30)


def documented(folder: Path, module: str) -> str:
    """Write a transformer of the documentation, and return the path of the server's modules."""
    for path, text in files_of_page(f"my_package/{module}.py").items():
        (folder / path).parent.mkdir(parents=True)
        (folder / path).write_text(text)
    return os.pathsep.join((str(folder), str(SOURCES)))


def passed(
    cluster: Cluster, source: Bucket, to: Bucket, specs: Sequence[EtlSpec], count: int
) -> tuple[float, dict[str, float]]:
    """Transform the calls with each ETL; return calls per second, and CPU milliseconds per call by part."""
    names = [etls.ensure(cluster.client, spec)[0] for spec in specs]
    before = [measure.cpu_seconds(part) for part in cluster.parts()]
    seconds = 0.0
    for number, name in enumerate(names):
        job = source.handle(cluster.client).transform(
            name,
            to.handle(cluster.client),
            prepend=f"{number}/",
            ext={"flac": "jsonl" if specs[0].has_several_results else "wav"},
            num_workers=ALL_WORKERS,
            cont_on_err=True,
            timeout="10m",
        )
        follower = jobs.Follower(cluster.client, job, 120)
        while not (progress := follower.poll()).finished:
            time.sleep(0.1)  # a poll costs a request to each target
        seconds += progress.seconds
    after = [measure.cpu_seconds(part) for part in cluster.parts()]
    sounds = [e for e in to.handle(cluster.client).list_objects_iter(props="name,size") if e.name.endswith(".wav")]
    if len(sounds) != 2 * count or not all(int(entry.size) for entry in sounds):
        sys.exit(f"error: {len(sounds)} of {2 * count} results, {progress.error}")
    for name in names:
        etls.discard(cluster.client, name)
    parts = [(a - b) * 1e3 / count for a, b in zip(after, before, strict=True)]
    return count / seconds, {"aistore": parts[0], "server": parts[1]}


if __name__ == "__main__":
    main()
