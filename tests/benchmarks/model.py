"""A model beside the storage, compared with the same model in a client: ``make bench-model``.

The transformer of the documentation, which finds the share of speech with Silero VAD, processes recordings of 12 s:
in the cluster, by an ETL, and in a client that downloads each object, calls the same transformer and uploads the
result. The ways are interleaved on one embedded cluster of two targets, with one process per target, or one client.
CPU time is that of AIStore, and of the servers of the ETL with their children or of the client.
"""

from __future__ import annotations

import argparse
import logging
import sys
import time
from importlib import import_module

from storeside.aistore import etl as etls
from storeside.aistore import jobs
from storeside.aistore.buckets import Bucket
from storeside.aistore.spec import ALL_WORKERS
from storeside.stack import authn
from tests.benchmarks import measure, recordings, stacks
from tests.benchmarks.measure import Figures, bench, spread
from tests.benchmarks.outcomes import documented, spec
from tests.benchmarks.pipelines import Cluster

WAYS = ("in storage", "in a client")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--recordings", type=int, default=200, help="recordings (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="interleaved rounds (default: %(default)s)")
    options = parser.parse_args()
    logging.disable(logging.INFO)  # Airflow writes it among the figures
    with stacks.running(("podrunner", "aistore")) as stack:
        paths = recordings.make(stack.state.parent / "recordings", options.recordings)
        run(Cluster(stack, authn.cluster(stack).client()), {p.name: p.read_bytes() for p in paths}, options.rounds)


def run(cluster: Cluster, objects: dict[str, bytes], rounds: int) -> None:
    """Measure both ways in turn, then print the table and the figure."""
    source = Bucket("ais", "recordings")
    cluster.put(source, objects)
    modules = documented(cluster.stack.state.parent / "modules", "speech")
    name = etls.ensure(cluster.client, spec("my_package.speech:SpeechShare", {"PYTHONPATH": modules}))[0]
    sys.path.insert(0, modules.partition(":")[0])
    model = import_module("my_package.speech").SpeechShare()
    found = {way: Figures() for way in WAYS}
    for round_ in range(rounds + 1):
        for way in WAYS:
            to = Bucket("ais", f"out-{time.time_ns()}")
            to.handle(cluster.client).create()
            before, own, began = (
                [measure.cpu_seconds(part) for part in cluster.parts()],
                time.process_time(),
                time.time(),
            )
            if way == WAYS[0]:
                job = source.handle(cluster.client).transform(
                    name, to.handle(cluster.client), num_workers=ALL_WORKERS, timeout="10m"
                )
                follower = jobs.Follower(cluster.client, job, 120)
                while not follower.poll().finished:
                    time.sleep(0.1)  # a poll costs a request to each target
            else:
                for key in objects:
                    content = source.object(cluster.client, key).get_reader().read_all()
                    told = model.transform(content, key, "")
                    to.object(cluster.client, key).get_writer().put_content(told)
            seconds, client = time.time() - began, time.process_time() - own
            after = [measure.cpu_seconds(part) for part in cluster.parts()]
            parts = [(a - b) * 1e3 / len(objects) for a, b in zip(after, before, strict=True)]
            results = list(to.handle(cluster.client).list_objects_iter(props="name,size"))
            if len(results) != len(objects) or not all(int(entry.size) for entry in results):
                sys.exit(f"error: {len(results)} of {len(objects)} results")
            if round_:  # the first round warms up
                model_cpu = parts[1] if way == WAYS[0] else client * 1e3 / len(objects)
                found[way].add(len(objects) / seconds, {"aistore": parts[0], "model": model_cpu})
            to.handle(cluster.client).delete()
    etls.discard(cluster.client, name)
    print(f"\n{len(objects)} recordings; medians of {rounds} interleaved rounds; {measure.machine()}\n")
    print("| way | recordings/s | CPU ms per recording | in AIStore | in the server or the client |")
    print("|---|---|---|---|---|")
    for way, figures in found.items():
        print(
            f"| {way} | {spread(figures.rates)} | {spread(figures.totals, 2)} |"
            f" {figures.part('aistore'):.2f} | {figures.part('model'):.2f} |"
        )
    print()
    bench("model.cpu_of_client", found[WAYS[0]].total / found[WAYS[1]].total, "x")


if __name__ == "__main__":
    main()
