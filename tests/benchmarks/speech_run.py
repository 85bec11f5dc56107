"""A run of the speech pipeline, from S3 events to rows, beside the work of the cluster in it: ``make bench-run``.

The recordings are in S3 and their messages in the queue before the DAG is switched on. The first run starts by their
events, leases them, and does everything else. The cluster's work is the time of AIStore's jobs in this run: the copy
from S3 and the transcoding. The other seconds are Airflow's scheduling, plans, reconciliation, the manifest and its
validation.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from storeside.stack import demo, speech_corpus
from storeside.stack.airflow.api import AirflowApi
from storeside.stack.servers import s3
from storeside.stack.settings import Stack
from tests.benchmarks import measure, recordings, stacks
from tests.benchmarks.measure import bench, spread
from tests.support import until

DAG = "speech_pipeline"
BUCKET = "recordings"
WAIT_SECONDS = 3600


@dataclass(frozen=True)
class Measured:
    """Seconds of one run, of AIStore's jobs in it, and of each task."""

    seconds: float
    cluster: float
    tasks: dict[str, float]


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--count", type=int, default=6000, help="recordings (default: %(default)s)")
    parser.add_argument(
        "--seconds", type=int,
        help="length of each recording, all FLAC (default: 4 to 14 s, FLAC, WAV and MP3). A second of 100,000"
        " recordings needs 8 GB of disk",
    )  # fmt: skip
    parser.add_argument("--rounds", type=int, default=1, help="runs, each on a new stack (default: %(default)s)")
    given = parser.parse_args()
    found = []
    with tempfile.TemporaryDirectory() as folder:
        if given.seconds:
            paths = recordings.make(Path(folder), given.count, given.seconds)
        else:
            corpus = speech_corpus.make(demo.RECORDINGS, Path(folder), given.count)
            paths = [corpus.folder / item.name for item in corpus.objects]
        for number in range(given.rounds):
            with stacks.running() as stack:
                found.append(run(stack, Path(folder), paths))
            print(f"round {number}: {found[-1]}", file=sys.stderr, flush=True)
    report(found, f"{given.count} recordings" + (f" of {given.seconds} s" if given.seconds else ""))
    return 0


def run(stack: Stack, folder: Path, paths: Sequence[Path]) -> Measured:
    """Upload recordings, switch the DAG on, and measure its first run."""
    client = s3.of_stack("s3", stack)
    api = AirflowApi(stack.url("airflow"), "admin", stack.secrets["airflow_admin"])
    until(lambda: any(dag["dag_id"] == DAG for dag in api.get("dags")["dags"]), 120, DAG)

    def put(path: Path) -> None:
        client.put_object(Bucket=BUCKET, Key=str(path.relative_to(folder)), Body=path.read_bytes())

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(put, paths))
    api.request("PATCH", f"dags/{DAG}", json={"is_paused": False})
    until(lambda: bool(api.runs(DAG)), 120, "a run that the events start")
    name = min(api.runs(DAG), key=lambda one: str(one["run_after"]))["dag_run_id"]
    done = api.wait(DAG, name, WAIT_SECONDS)
    api.request("PATCH", f"dags/{DAG}", json={"is_paused": True})
    if done["state"] != "success":
        sys.exit(f"error: the run of {DAG} is {done['state']}")
    clickhouse = demo.clickhouse_client(stack)
    (loaded,) = clickhouse.query("SELECT count() FROM speech.manifest FINAL").first_row
    if loaded != len(paths):
        sys.exit(f"error: the manifest has {loaded} rows instead of {len(paths)}")
    (cluster,) = clickhouse.query(
        "SELECT sum(job_seconds) FROM storeside.runs FINAL WHERE run_id = {run:String}",
        parameters={"run": f"{DAG}/{name}"},
    ).first_row
    tasks = {task["task_id"]: seconds(task) for task in api.task_instances(DAG, name)}
    return Measured(seconds(done), cluster, tasks)


def seconds(one: dict[str, Any]) -> float:
    """Return the seconds from the start to the end of a run or a task."""
    return (datetime.fromisoformat(one["end_date"]) - datetime.fromisoformat(one["start_date"])).total_seconds()


def report(found: Sequence[Measured], what: str) -> None:
    """Print the table and the figures."""
    print(f"{what}; medians of {len(found)} runs; {measure.machine()}\n")
    print("| task | s |\n|---|---|")
    for task in found[0].tasks:
        print(f"| {task} | {spread([one.tasks[task] for one in found])} |")
    print(f"| the whole run | {spread([one.seconds for one in found])} |")
    print(f"| AIStore's jobs in it | {spread([one.cluster for one in found])} |\n")
    bench("pipeline.run_seconds", statistics.median(one.seconds for one in found), "s")
    bench("pipeline.of_cluster_work", statistics.median(one.seconds / one.cluster for one in found), "x")


if __name__ == "__main__":
    sys.exit(main())
