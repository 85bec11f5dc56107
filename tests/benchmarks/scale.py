"""Costs that do not depend on the number of objects or their size: ``make bench-scale``.

- **airflow**: task instances, rows of Airflow's database, bytes of XCom and of task logs that a run leaves, with few
  and with many objects, for the DAG that loads a bucket and for the speech pipeline.
- **stream**: the memory of a worker and of ClickHouse while the worker pushes one object of 100 GB. The server
  generates the object while the worker reads it; afterwards ClickHouse counts and sums its rows.
- **history**: seconds from the start to the end of a run of a DAG with 1,000 earlier runs, compared with the same run
  without them.

``bench-reconcile`` plans and reconciles millions of objects, ``bench-pages`` measures the pages over a ledger of ten
million objects, and ``bench-events`` drains a long queue of events.
"""

from __future__ import annotations

import argparse
import sqlite3
import statistics
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

from storeside.sql.answers import first_row
from storeside.stack.airflow import airflow
from storeside.stack.airflow.api import AirflowApi
from storeside.stack.servers import s3
from storeside.stack.settings import Stack, default_folder
from tests.benchmarks import big_object, measure, recordings, stacks, transfer
from tests.benchmarks.measure import bench
from tests.benchmarks.transfer_ours import S3

# Of Airflow's tables, those that have rows of runs.
TABLES = (
    "dag_run", "task_instance", "task_instance_history", "rendered_task_instance_fields", "xcom", "trigger",
    "asset_event", "dagrun_asset_event", "log", "task_reschedule",
)  # fmt: skip
LOAD, SPEECH = "s3_to_clickhouse", "speech_pipeline"
PARTS = ("airflow", "history", "stream")


class Site:
    """A stack, and its parts that the cases use."""

    def __init__(self, stack: Stack) -> None:
        self.stack = stack
        self.api = AirflowApi(stack.url("airflow"), "admin", stack.secrets["airflow_admin"])
        self.s3 = s3.of_stack("s3", stack)
        self.database = stack.state / "airflow" / airflow.DATABASE_FILE
        # uploads start no runs here
        self.s3.put_bucket_notification_configuration(Bucket=s3.BUCKET, NotificationConfiguration={})
        for dag in (LOAD, SPEECH):
            self._unpause(dag)

    def _unpause(self, dag: str) -> None:
        deadline = time.monotonic() + 90
        while not any(found["dag_id"] == dag for found in self.api.get("dags")["dags"]):
            if time.monotonic() > deadline:
                raise TimeoutError(f"no DAG {dag} within 90 s")
            time.sleep(0.5)
        self.api.request("PATCH", f"dags/{dag}", json={"is_paused": False})

    def left(self) -> dict[str, int]:
        """Return how much of runs there is in Airflow."""
        with closing(sqlite3.connect(f"file:{self.database}?mode=ro", uri=True, timeout=30)) as database:
            counts = {name: database.execute(f"SELECT count(*) FROM {name}").fetchone()[0] for name in TABLES}
            xcom = database.execute("SELECT coalesce(sum(length(value)), 0) FROM xcom").fetchone()[0]
        logs = sum(path.stat().st_size for path in (self.database.parent / "logs").glob("dag_id=*/**/*.log"))
        return {"tasks": counts["task_instance"], "rows": sum(counts.values()), "xcom": xcom, "logs": logs}

    def run(self, dag: str, **conf: Any) -> float:
        """Run a DAG to its end and return the seconds."""
        began = time.monotonic()
        run = self.api.trigger(dag, conf)
        if self.api.wait(dag, run, 1800)["state"] != "success":
            sys.exit(f"error: the run {run} of {dag} failed")
        return time.monotonic() - began

    def costs(self, dag: str, **conf: Any) -> dict[str, int]:
        """Run a DAG and return the sizes of its records in Airflow."""
        before = self.left()
        self.run(dag, **conf)
        return {name: value - before[name] for name, value in self.left().items()}

    def put(self, bucket: str, objects: Iterator[tuple[str, bytes]]) -> None:
        with ThreadPoolExecutor(4) as threads:
            list(threads.map(lambda one: self.s3.put_object(Bucket=bucket, Key=one[0], Body=one[1]), objects))


def of_airflow(site: Site, few: int, many_rows: int, many_recordings: int) -> None:
    """Compare what runs with few and with many objects leave in Airflow."""
    print("| DAG | objects | task instances | rows | bytes of XCom | bytes of logs |\n|---|---|---|---|---|---|")
    grown: dict[str, float] = {}
    for dag, make, many in ((LOAD, _rows, many_rows), (SPEECH, _speech, many_recordings)):
        site.costs(dag, **make(site, 2))  # what a first run makes besides
        found = {count: site.costs(dag, **make(site, count)) for count in (few, many)}
        for count, cost in found.items():
            print(f"| `{dag}` | {count:,} | " + " | ".join(f"{value:,}" for value in cost.values()) + " |")
        grown |= {f"{dag}.{name}": found[many][name] / found[few][name] for name in found[many]}
    print()
    for name, growth in grown.items():
        bench(f"scale.{name}_growth", growth, "x")


def _rows(site: Site, count: int) -> dict[str, Any]:
    prefix = f"{uuid.uuid4().hex}/"
    site.put(s3.TABLES, ((f"{prefix}{n:06}.csv", f"n,word\n{n},x\n".encode()) for n in range(count)))
    return {"bucket": s3.TABLES, "keys": prefix, "table": f"data.t_{prefix[:-1]}"}


def _speech(site: Site, count: int) -> dict[str, Any]:
    prefix = f"{uuid.uuid4().hex}/"
    with tempfile.TemporaryDirectory(dir=default_folder()) as folder:
        paths = recordings.make(Path(folder), count)
        site.put(s3.BUCKET, ((prefix + path.name, path.read_bytes()) for path in paths))
    return {"prefix": prefix}


def history(site: Site, runs: int, rounds: int) -> None:
    """Compare a run without a history with one after `runs` of them, in Airflow's database and in the ledger."""
    nothing = {"bucket": s3.TABLES, "keys": f"{uuid.uuid4().hex}/", "table": "data.nothing"}
    site.run(LOAD, **nothing)
    before = statistics.median(site.run(LOAD, **nothing) for _ in range(rounds))
    _remember(site, runs)
    total = site.api.get(f"dags/{LOAD}/dagRuns", limit=1)["total_entries"]
    after = statistics.median(site.run(LOAD, **nothing) for _ in range(rounds))
    print(
        f"a run of `{LOAD}` that has nothing to load: {before:.1f} s, with {total:,} runs behind it {after:.1f} s\n"
    )
    bench("scale.history_runs", total, "runs")
    bench("scale.history_slower", after / before, "x")


def _remember(site: Site, runs: int) -> None:
    """Copy the last run and its task instances `count` times, to the days before."""
    # Kept apart by their ids and times; the rest of the columns is as the last run has it.
    times = ("run_after", "start_date", "end_date")
    with closing(sqlite3.connect(site.database, timeout=60)) as database, database:
        newest = "SELECT run_id FROM dag_run WHERE dag_id = ? ORDER BY id DESC LIMIT 1"
        run_id = database.execute(newest, [LOAD]).fetchone()[0]
        for number in range(runs):
            new = {"run_id": f"'manual__old-{number:06}'"}
            moved = {name: f"datetime({name}, '-{number + 1} hours')" for name in times}
            for table, changed in (
                ("dag_run", {**new, **moved, "id": "NULL"}),
                ("task_instance", {**new, "id": f"'{uuid.uuid4()}'"}),
            ):
                columns = [row[1] for row in database.execute(f"PRAGMA table_info({table})")]
                select = ", ".join(changed.get(name, f'"{name}"') for name in columns)
                where = "WHERE dag_id = ? AND run_id = ?"
                database.execute(f"INSERT INTO {table} SELECT {select} FROM {table} {where}", [LOAD, run_id])


def stream(gigabytes: float) -> None:
    """Send one object through a worker to ClickHouse, and measure both."""
    size = int(gigabytes * 1e9)
    with tempfile.TemporaryDirectory(dir=default_folder()) as folder, big_object.serve(size) as (endpoint, rows):
        access = S3(endpoint, "x", "y", s3.REGION, "big")
        with transfer.serve(Path(folder), access) as server:
            table = "data.stream"
            server.client.command(f"CREATE TABLE {table} (n UInt64, word String) ENGINE = MergeTree ORDER BY n")
            before = server.begin()
            run = server.ours(do="load", keys=[big_object.KEY], form="csv", table=table, loader="push")
            cpu, peak = server.end(before)
            found = first_row(server.client.query(f"SELECT count(), sum(n), max(length(word)) FROM {table}"))
    if tuple(found) != (rows, big_object.total(rows), len(big_object.WORD)):
        sys.exit(f"error: {found} are the rows, their sum and longest word instead of {rows}")
    print(f"{size / 1e9:.1f} GB of CSV, {rows:,} rows, each there once, in {run.seconds:.0f} s\n")
    bench("scale.stream_gigabytes", size / 1e9, "GB")
    bench("scale.stream_rate", size / 1e6 / run.seconds, "MB/s")
    bench("scale.stream_worker_peak", run.peak_mb, "MB")
    bench("scale.stream_clickhouse_peak", peak, "MB")
    bench("scale.stream_worker_cpu", run.cpu_seconds / size * 1e9, "s/GB")
    bench("scale.stream_clickhouse_cpu", cpu / size * 1e9, "s/GB")


def main() -> None:
    """Run the parts that the arguments select."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.benchmarks.scale", description=(__doc__ or "").split("\n")[0]
    )
    add = parser.add_argument
    add("--only", type=lambda text: text.split(","), default=PARTS, help="airflow, history, stream (default: all)")
    add("--few", type=int, default=10, help="objects of the small runs (default: %(default)s)")
    add("--objects", type=int, default=10_000, help="objects of the large load (default: %(default)s)")
    add("--recordings", type=int, default=1000, help="recordings of the large transform (default: %(default)s)")
    add("--runs", type=int, default=1000, help="runs of the history (default: %(default)s)")
    add("--rounds", type=int, default=3, help="of runs before and after the history (default: %(default)s)")
    add("--gigabytes", type=float, default=100, help="of the streamed object (default: %(default)s)")
    given = parser.parse_args()
    print(f"{measure.machine()}\n")
    of_stack: dict[str, Callable[[Site], None]] = {
        "airflow": lambda site: of_airflow(site, given.few, given.objects, given.recordings),
        "history": lambda site: history(site, given.runs, given.rounds),
    }
    if asked := [part for part in of_stack if part in given.only]:
        with stacks.running() as stack:
            site = Site(stack)
            for part in asked:
                of_stack[part](site)
    if "stream" in given.only:
        stream(given.gigabytes)


if __name__ == "__main__":
    main()
