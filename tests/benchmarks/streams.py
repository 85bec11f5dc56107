"""Memory of streams of 5 GB: ``make bench-streams``.

On an embedded cluster of two targets, three transforms of two objects run over ``hpush``: a tiny object becomes 5 GB,
5 GB become their SHA-256, and a chain of both, in which 5 GB are generated and consumed as they flow. Results are
compared with the content that they must have. Memory is the largest sum of the proportional set sizes (PSS) of all
processes of all servers of the ETLs, sampled ten times a second, and that of AIStore's processes (RSS). The aim is
at most 512 MB in the processes of the servers; if one transform exceeds it, the benchmark ends with status 1.
"""

from __future__ import annotations

import argparse
import logging
import sys
import threading
import time
from collections.abc import Iterable
from contextlib import suppress

import psutil

from storeside.aistore import etl as etls
from storeside.aistore import jobs
from storeside.aistore.buckets import Bucket
from storeside.aistore.spec import TRANSFORMER_IMAGE, EtlSpec, transformer_command
from storeside.stack import authn
from tests.benchmarks import measure, stacks
from tests.benchmarks.measure import bench
from tests.benchmarks.pipelines import Cluster
from tests.streams import MIB, sha256

MOST = 512 * 10**6
OBJECTS = 2


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mebibytes", type=int, default=5_000, help="size of each stream (default: %(default)s)")
    options = parser.parse_args()
    logging.disable(logging.INFO)  # Airflow writes it among the figures
    with stacks.running(("podrunner", "aistore")) as stack:
        within = run(Cluster(stack, authn.cluster(stack).client()), options.mebibytes)
    sys.exit(0 if within else 1)


class Memory(threading.Thread):
    """The largest memory of two groups of processes, in bytes: PSS of the servers, RSS of AIStore."""

    def __init__(self, cluster: Cluster) -> None:
        super().__init__(daemon=True)
        self._cluster = cluster
        self._ended = threading.Event()
        self.servers = self.aistore = 0

    def run(self) -> None:
        while not self._ended.wait(0.1):
            aistore, servers = self._cluster.parts()
            with suppress(psutil.Error):  # a server has ended
                everyone = [p for server in servers for p in (server, *server.children(recursive=True))]
                self.servers = max(self.servers, sum(_memory(everyone, "pss")))
            self.aistore = max(self.aistore, sum(_memory(aistore, "rss")))

    def end(self) -> None:
        self._ended.set()
        self.join()


def _memory(processes: Iterable[psutil.Process], kind: str) -> Iterable[int]:
    for process in processes:
        with suppress(psutil.Error):  # it has ended
            yield getattr(process.memory_full_info(), kind)


def run(cluster: Cluster, mebibytes: int) -> bool:
    """Measure the transforms, and print the table and figures; return whether all of them reach the aim."""
    tiny, made, read, passed = (Bucket("ais", f"streams-{name}") for name in ("in", "made", "read", "passed"))
    names = [f"{number}/generate-{mebibytes}" for number in range(OBJECTS)]
    cluster.put(tiny, dict.fromkeys(names, b"tiny"))
    told = f"{mebibytes * MIB} {sha256(mebibytes)}".encode()
    generate, digest = spec("Told"), spec("Digest")
    ways = {
        "generated": (generate, tiny, made),
        "consumed": (digest, made, read),
        "generated and consumed": (generate >> digest, tiny, passed),
    }
    print(f"{OBJECTS} streams of {mebibytes * MIB / 1e9:.2f} GB on two targets; {measure.machine()}\n")
    print("| transform | MB/s | MB in all processes of the servers | MB in AIStore |")
    print("|---|---|---|---|")
    most = 0
    for way, (etl, source, to) in ways.items():
        to.handle(cluster.client).create()
        seconds, memory = transformed(cluster, etl, source, to)
        most = max(most, memory.servers)
        rate = OBJECTS * mebibytes * MIB / seconds / 1e6
        print(f"| {way} | {rate:.0f} | {memory.servers / 1e6:.0f} | {memory.aistore / 1e6:.0f} |", flush=True)
        for name in names:
            found = to.handle(cluster.client).object(name)
            if int(found.props.size) != (mebibytes * MIB if to is made else len(told)):
                sys.exit(f"error: {way}: {name} has {found.props.size} bytes")
            if to is not made and bytes(found.get_reader().read_all()) != told:
                sys.exit(f"error: {way}: {name} has another content")
    made.handle(cluster.client).delete()  # its objects are large
    print()
    bench("streams.memory", most / 1e6, "MB")
    return most <= MOST


def spec(transform: str) -> EtlSpec:
    """Return an ETL with one worker process per target."""
    return EtlSpec(
        "bench-stream", TRANSFORMER_IMAGE, transformer_command(f"tests.streams:{transform}"),
        tuning={"NUM_WORKERS": "1"}, communication="hpush", init_timeout=30, object_timeout=1200,
    )  # fmt: skip


def transformed(cluster: Cluster, etl: EtlSpec, source: Bucket, to: Bucket) -> tuple[float, Memory]:
    """Transform a bucket; return the seconds of the job and the memory in this time."""
    names = etls.ensure(cluster.client, etl)
    memory = Memory(cluster)
    memory.start()
    job = source.handle(cluster.client).transform(
        names[0], to.handle(cluster.client), etl_pipeline=names[1:] or None, timeout="30m"
    )
    follower = jobs.Follower(cluster.client, job, 1200)
    while not (progress := follower.poll()).finished:
        time.sleep(0.5)  # a poll costs a request to each target
    memory.end()
    for name in names:
        etls.discard(cluster.client, name)
    if progress.error:
        sys.exit(f"error: {progress.error}")
    return progress.seconds, memory


if __name__ == "__main__":
    main()
