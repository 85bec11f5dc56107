"""Transcoding in the cluster compared with the published method, a client, and the limit: ``make bench-transform``.

All cases run interleaved on one embedded cluster. CPU time is that of all processes that work for a case: AIStore's
nodes, the ETL's servers with their children, and this process if it is the client.
"""

from __future__ import annotations

import argparse
import logging
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from storeside.aistore import etl as etls
from storeside.aistore import jobs
from storeside.aistore.buckets import Bucket
from storeside.aistore.spec import ALL_WORKERS, TRANSFORMER_IMAGE, EtlSpec, transformer_command
from storeside.stack import authn
from storeside.stack.settings import Stack
from storeside.stack.supervision.supervisor import Supervisor
from storeside.transformers.audio.formats import AudioFormat
from storeside.transformers.native import build
from tests.benchmarks import measure, recordings, stacks
from tests.benchmarks.measure import Figures, bench, spread

STEREO, MONO = AudioFormat(sample_rate=44_100, channels=2), AudioFormat()
CLIENT_THREADS = 24
WAV_HEADER = 44
SOURCE = Bucket("ais", "recordings-12s")


@dataclass
class Bench:
    """The cluster, its recordings, and the measurements."""

    stack: Stack
    client: Any
    paths: list[Path]

    def etl(self, spec: EtlSpec) -> tuple[float, dict[str, float]]:
        """Transform all recordings with an ETL; returns objects/s and CPU milliseconds per object by part."""
        destination = Bucket("ais", f"out-{time.time_ns()}")
        to = destination.handle(self.client)
        to.create()
        (name,) = etls.ensure(self.client, spec)
        nodes, servers = self.nodes(), self._servers()
        before = [measure.cpu_seconds(nodes), measure.cpu_seconds(servers)]
        job = SOURCE.handle(self.client).transform(
            name, to, ext={"flac": "wav"}, num_workers=ALL_WORKERS, cont_on_err=True, timeout="10m"
        )
        follower = jobs.Follower(self.client, job, 120)
        while not (progress := follower.poll()).finished:
            time.sleep(0.1)
        after = [measure.cpu_seconds(nodes), measure.cpu_seconds(servers)]
        found = sum(1 for o in to.list_objects_iter(props="name,size") if int(o.size) > WAV_HEADER)
        if progress.error or found != len(self.paths):
            sys.exit(f"error: {name}: {found} of {len(self.paths)} results, {progress.error}")
        etls.discard(self.client, name)
        to.delete()
        parts = [(a - b) * 1e3 / found for a, b in zip(after, before, strict=True)]
        return found / progress.seconds, {"aistore": parts[0], "server": parts[1]}

    def by_client(self, audio: AudioFormat) -> tuple[float, dict[str, float]]:
        """Get every recording, transcode it with one `ffmpeg` process, put it back: 24 threads, as published."""
        to = Bucket("ais", f"out-{time.time_ns()}").handle(self.client)
        to.create()
        source = SOURCE.handle(self.client)
        command = ["ffmpeg", "-loglevel", "error", "-i", "pipe:0", "-ac", str(audio.channels)]
        command += ["-ar", str(audio.sample_rate), "-c:a", "pcm_s16le", "-f", "wav", "pipe:1"]

        def one(path: Path) -> None:
            content = source.object(path.name).get_reader().read_all()
            wav = subprocess.run(command, input=content, stdout=subprocess.PIPE, check=True).stdout
            to.object(path.with_suffix(".wav").name).get_writer().put_content(wav)

        nodes, here = self.nodes(), [psutil.Process()]
        before = [measure.cpu_seconds(nodes), measure.cpu_seconds(here)]
        begin = time.monotonic()
        with ThreadPoolExecutor(CLIENT_THREADS) as pool:
            list(pool.map(one, self.paths))
        seconds = time.monotonic() - begin
        after = [measure.cpu_seconds(nodes), measure.cpu_seconds(here)]
        to.delete()
        parts = [(a - b) * 1e3 / len(self.paths) for a, b in zip(after, before, strict=True)]
        return len(self.paths) / seconds, {"aistore": parts[0], "client": parts[1]}

    def nodes(self) -> list[psutil.Process]:
        """Return the processes of AIStore's nodes."""
        return [psutil.Process(s.pid) for s in Supervisor(self.stack).status() if s.name.startswith("ais-") and s.pid]

    def _servers(self) -> list[psutil.Process]:
        (runner,) = (s.pid for s in Supervisor(self.stack).status() if s.name == "podrunner")
        return psutil.Process(runner).children()


LISTEN = ("--host", "0.0.0.0", "--port", "8000")  # noqa: S104 - a pod's own network


def ours(audio: AudioFormat, processes: int = 1) -> EtlSpec:
    """Return our transcoder over WebSocket with direct put and file access."""
    return EtlSpec(
        "bench-ours",
        TRANSFORMER_IMAGE,
        transformer_command("audio_transcode"),
        audio.environment(),
        {"NUM_WORKERS": str(processes)},
        init_timeout=30,
    )


def published(audio: AudioFormat) -> EtlSpec:
    """Return the published transcoder: the SDK's server and one `ffmpeg` process per object."""
    command = ("python", "-m", "tests.benchmarks.peers", "--server", "fastapi", *LISTEN)
    return EtlSpec(
        "bench-ffmpeg-fastapi",
        TRANSFORMER_IMAGE,
        command,
        {"AR": str(audio.sample_rate), "AC": str(audio.channels)},
        {"NUM_WORKERS": "2"},
        init_timeout=30,
    )


def echo(size: int) -> EtlSpec:
    """Return an ETL of our server that only returns `size` bytes."""
    return EtlSpec(
        "bench-echo",
        TRANSFORMER_IMAGE,
        transformer_command("tests.benchmarks.peers:Echo"),
        {"ECHO_BYTES": str(size)},
        {"NUM_WORKERS": "1"},
        init_timeout=30,
    )


def start(count: int, targets: int | None = None, **options: Any) -> Bench:
    """Start a separate cluster of `targets` targets, and put `count` recordings into it.

    `options` are those of `stacks.fresh`.
    """
    logging.disable(logging.INFO)  # Airflow writes it among the figures
    measure.require(["cc", "pkg-config", "libavformat", "ffmpeg"])
    build.build()
    stack = stacks.fresh(("podrunner", "aistore"), targets, **options)
    client = authn.cluster(stack).client()
    paths = recordings.make(stack.state.parent / "recordings", count)
    source = SOURCE.handle(client)
    source.create()
    for path in paths:
        source.object(path.name).get_writer().put_content(path.read_bytes())
    return Bench(stack, client, paths)


def limit(stack: Stack) -> Callable[[AudioFormat, list[Path]], float]:
    """Compile the bare libav loop; what is returned gives its CPU milliseconds per file."""
    program = stack.state / "audio_limit"
    source = Path(__file__).with_name("audio_limit.c")
    libraries = subprocess.run(
        ["pkg-config", "--cflags", "--libs", "libavformat", "libavcodec", "libswresample", "libavutil"],
        check=True, capture_output=True, text=True,
    ).stdout.split()  # fmt: skip
    subprocess.run(["cc", "-O2", "-o", str(program), str(source), *libraries], check=True)

    def run(audio: AudioFormat, paths: list[Path]) -> float:
        command = [str(program), str(audio.sample_rate), str(audio.channels), *map(str, paths)]
        return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)

    return run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=300, help="recordings (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=5, help="interleaved rounds (default: %(default)s)")
    options = parser.parse_args()
    bench_ = start(options.count)
    try:
        run(bench_, options.rounds)
    finally:
        Supervisor(bench_.stack).stop()


def run(cluster: Bench, rounds: int) -> None:
    """Measure all cases in turn, then print the table and the figures."""
    bare = limit(cluster.stack)
    stereo_bytes = STEREO.sample_rate * STEREO.channels * 2 * recordings.SECONDS + WAV_HEADER
    cases: Mapping[str, Callable[[], tuple[float, dict[str, float]]]] = {
        "ours, 44.1 kHz stereo": lambda: cluster.etl(ours(STEREO)),
        "ffmpeg server, 44.1 kHz stereo": lambda: cluster.etl(published(STEREO)),
        "client, 44.1 kHz stereo": lambda: cluster.by_client(STEREO),
        "echo of as many bytes": lambda: cluster.etl(echo(stereo_bytes)),
        "ours, 16 kHz mono": lambda: cluster.etl(ours(MONO)),
        "ffmpeg server, 16 kHz mono": lambda: cluster.etl(published(MONO)),
    }
    found = {name: Figures() for name in [*cases, "bare libav, 44.1 kHz stereo"]}
    for number in range(rounds + 1):
        for name, case in cases.items():
            rate, cpu = case()
            print(f"round {number}: {name}: {rate:.1f} objects/s, {sum(cpu.values()):.1f} ms CPU", file=sys.stderr)
            if number:  # the first round warms up
                found[name].add(rate, cpu)
        milliseconds = bare(STEREO, cluster.paths)
        if number:
            found["bare libav, 44.1 kHz stereo"].add(1e3 / milliseconds, {"server": milliseconds})
    report(found, rounds, len(cluster.paths))


def report(found: Mapping[str, Figures], rounds: int, count: int) -> None:
    """Print the table, and the ratios as ``BENCH`` lines."""
    print(
        f"\n{count} recordings of 12 s, 16 kHz mono FLAC; medians of {rounds} interleaved rounds;"
        f" {measure.machine()}\n"
    )
    print("| case | objects/s | CPU ms per object | in AIStore | in the server or client |")
    print("|---|---|---|---|---|")
    for name, figures in found.items():
        server = figures.part("server") + figures.part("client")
        print(
            f"| {name} | {spread(figures.rates)} | {spread(figures.totals)} | {figures.part('aistore'):.1f} |"
            f" {server:.1f} |"
        )
    print()
    stereo, mono = found["ours, 44.1 kHz stereo"], found["ours, 16 kHz mono"]
    ffmpeg, ffmpeg_mono = found["ffmpeg server, 44.1 kHz stereo"], found["ffmpeg server, 16 kHz mono"]
    client, moved = found["client, 44.1 kHz stereo"], found["echo of as many bytes"]
    # An echo drives the nodes harder per second than any transcoder, and costs them more per object in some runs:
    # the limit has the smaller of the two.
    moving = min(moved.part("aistore"), stereo.part("aistore")) + moved.part("server")
    least = found["bare libav, 44.1 kHz stereo"].total + moving
    bench("transform.vs_ffmpeg_server", stereo.rate / ffmpeg.rate, "x")
    bench("transform.vs_ffmpeg_server_cpu", ffmpeg.total / stereo.total, "x")
    bench("transform.vs_ffmpeg_server_mono16k", mono.rate / ffmpeg_mono.rate, "x")
    bench("transform.vs_ffmpeg_server_mono16k_cpu", ffmpeg_mono.total / mono.total, "x")
    bench("transform.vs_client", stereo.rate / client.rate, "x")
    bench("transform.vs_client_cpu", client.total / stereo.total, "x")
    bench("transform.of_limit", least / stereo.total, "x")


if __name__ == "__main__":
    main()
