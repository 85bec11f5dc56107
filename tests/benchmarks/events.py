"""S3 events into ClickHouse, until a row is visible, and objects per second beside a listing: ``make bench-events``.

The stack is the benchmark's own, Airflow included.

- **visible**: one small object is put into a warm system, again and again; seconds until its row can be read. Once
  with the DAG that starts a run for a batch of events (Airflow's scheduling is in the path), once with the DAG whose
  task follows the queue all the time.
- **drain**: so many small objects, and their events in a queue, are loaded by one process; beside it, interleaved,
  the same objects by the same engine from a listing, and the queue alone: as many messages are received and deleted
  by a client that does nothing else, which no drain of this queue can beat by much.
- **burst**: 100,000 messages about these objects, drained by one process whose peak memory is watched. Their queue is
  `tests/benchmarks/queue_server.py`, as the embedded one takes longer for each message the more there are.

ClickHouse's own S3Queue engine needs a Keeper, which the embedded server does not have: it is not in the table.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from storeside.stack import cli, demo, s3
from storeside.stack.airflow_api import AirflowApi
from storeside.stack.settings import CHECKOUT, HOST, Stack, default_folder
from storeside.stack.supervisor import Supervisor
from tests.benchmarks import measure, queue_server

QUEUE = f"{s3.TABLES}-events"
TABLE = "data.trips"
TICK_SECONDS = 0.02


class Bench:
    """A stack, and what the cases use of it."""

    def __init__(self, stack: Stack) -> None:
        self.stack = stack
        self.api = AirflowApi(stack.url("airflow"), "admin", stack.secrets["airflow_admin"])
        self.s3 = s3.client("s3", stack.url("s3"), *s3.keys(stack))
        self.sqs = s3.client("sqs", stack.url("s3"), *s3.keys(stack))
        self.clickhouse = demo.clickhouse_client(stack)
        self.url = self.sqs.get_queue_url(QueueName=QUEUE)["QueueUrl"]

    def put(self, key: str, word: str) -> None:
        self.s3.put_object(Bucket=s3.TABLES, Key=key, Body=f"word,n\n{word},1\n".encode())

    def count(self, where: str = "true", **parameters: Any) -> int:
        if not int(self.clickhouse.query(f"EXISTS {TABLE}").first_row[0]):
            return 0
        found = self.clickhouse.query(f"SELECT count() FROM {TABLE} WHERE {where}", parameters=parameters)
        return int(found.first_row[0])

    def seconds_until_visible(self) -> float:
        """Put one object; return the seconds until its row is there."""
        word = uuid.uuid4().hex
        started = time.monotonic()
        self.put(f"one/{word}.csv", word)
        while not self.count("word = {word:String}", word=word):
            if time.monotonic() - started > 180:
                raise TimeoutError(f"no row of {word} within 180 s")
            time.sleep(TICK_SECONDS)
        return time.monotonic() - started

    def pause(self, dag: str, paused: bool) -> None:
        deadline = time.monotonic() + 90
        while not any(found["dag_id"] == dag for found in self.api.get("dags")["dags"]):
            if time.monotonic() > deadline:
                raise TimeoutError(f"no DAG {dag} within 90 s")
            time.sleep(0.5)
        self.api.request("PATCH", f"dags/{dag}", json={"is_paused": paused})


def visible(bench: Bench, dag: str, count: int) -> list[float]:
    """Return seconds until visible, with one DAG; the first two puts only warm up."""
    bench.pause(dag, False)
    seconds = []
    for n in range(count + 2):
        seconds.append(bench.seconds_until_visible())
        time.sleep(3)  # the run ends, and the next batch is its own
        print(f"{dag}: {seconds[-1]:.2f} s{' (warming up)' if n < 2 else ''}", file=sys.stderr)
    bench.pause(dag, True)
    for run in bench.api.runs(dag):
        if run["state"] in ("running", "queued"):
            bench.api.request("PATCH", f"dags/{dag}/dagRuns/{run['dag_run_id']}", json={"state": "failed"})
    return seconds[2:]


def events_of(bench: Bench, bucket: str, keys: list[str], queue: str) -> None:
    """Send a message for each key, as S3 would have."""

    def send(some: list[str]) -> None:
        entries = [{"Id": str(n), "MessageBody": queue_server.body(bucket, key)} for n, key in enumerate(some)]
        bench.sqs.send_message_batch(QueueUrl=queue, Entries=entries)

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(send, _tens(keys)))


def _tens(keys: list[str]) -> Iterator[list[str]]:
    return (keys[n : n + 10] for n in range(0, len(keys), 10))


def queue_alone(bench: Bench, queue: str) -> float:
    """Receive and delete all messages of a queue; returns how many a second."""
    started, count = time.monotonic(), 0
    while messages := bench.sqs.receive_message(QueueUrl=queue, MaxNumberOfMessages=10).get("Messages"):
        entries = [{"Id": str(n), "ReceiptHandle": m["ReceiptHandle"]} for n, m in enumerate(messages)]
        count += len(bench.sqs.delete_message_batch(QueueUrl=queue, Entries=entries)["Successful"])
    return count / (time.monotonic() - started)


def ours(bench: Bench, module: str, bucket: str, table: str, *more: str, **variables: str) -> tuple[float, float]:
    """Run a command of ours in a process of its own; returns its seconds, without Python's start, and peak MB."""
    access_key, secret_key = s3.keys(bench.stack)
    given = {
        **os.environ,
        "CLICKHOUSE_HOST": HOST,
        "CLICKHOUSE_PORT": str(bench.stack.ports["clickhouse_http"]),
        "CLICKHOUSE_USER": "storeside",
        "CLICKHOUSE_PASSWORD": bench.stack.secrets["clickhouse"],
        "AWS_ACCESS_KEY_ID": access_key,
        "AWS_SECRET_ACCESS_KEY": secret_key,
        "AWS_ENDPOINT_URL": bench.stack.url("s3"),
        "AWS_DEFAULT_REGION": s3.REGION,
        **variables,
    }
    command = [sys.executable, "-m", "tests.benchmarks.events", "--run", module, f"s3://{bucket}/", table]
    command += ["--format", "csv", "--loader", "pull", "--collection", "storeside_s3", *more]
    done = subprocess.run(command, cwd=CHECKOUT, env=given, check=False, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{module} failed:\n{done.stderr[-3000:]}")
    seconds, peak = map(float, done.stdout.splitlines()[-1].split())
    return seconds, peak


def run_module(module: str, arguments: list[str]) -> int:
    """Be the process of `ours`."""
    import importlib

    main = importlib.import_module(f"{module}.__main__").main
    started = time.monotonic()
    code = int(main(arguments))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(time.monotonic() - started, peak)
    return code


def rows(bench: Bench, table: str) -> tuple[int, int]:
    found = bench.clickhouse.query(f"SELECT count(), uniqExact(word) FROM {table}").first_row
    return int(found[0]), int(found[1])


def main() -> None:
    """Run the cases and print the table."""
    if sys.argv[1:2] == ["--run"]:
        sys.exit(run_module(sys.argv[2], sys.argv[3:]))
    parser = argparse.ArgumentParser(
        prog="python -m tests.benchmarks.events", description=(__doc__ or "").split("\n")[0]
    )
    add = parser.add_argument
    add("--single", type=int, default=20, help="objects that are put one by one (default: %(default)s)")
    add("--objects", type=int, default=5000, help="small objects of a drain (default: %(default)s)")
    add("--rounds", type=int, default=3, help="interleaved rounds of drains (default: %(default)s)")
    add("--burst", type=int, default=100_000, help="messages of the burst (default: %(default)s)")
    given = parser.parse_args()
    if given.single < 2:
        parser.error(f"--single {given.single}: percentiles need 2 or more")
    state = Path(tempfile.mkdtemp(prefix="bench-events-", dir=_home()))
    (state / "cache").symlink_to(default_folder().resolve() / "cache", target_is_directory=True)
    stack = cli.up(state, only=("s3", "clickhouse", "airflow"))
    try:
        _cases(Bench(stack), given)
    finally:
        Supervisor(stack).stop()
        shutil.rmtree(state, ignore_errors=True)


def _home() -> Path:
    folder = default_folder()
    (folder / "cache").mkdir(parents=True, exist_ok=True)
    return folder


def _cases(bench: Bench, given: argparse.Namespace) -> None:
    by_run = visible(bench, "s3_events_to_clickhouse", given.single)
    by_task = visible(bench, "s3_replication", given.single)
    bucket, queue = "drain", bench.sqs.create_queue(QueueName="drain-dlq")["QueueUrl"]
    arn = bench.sqs.get_queue_attributes(QueueUrl=queue, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]
    redrive = json.dumps({"deadLetterTargetArn": arn, "maxReceiveCount": "50"})
    queue = bench.sqs.create_queue(QueueName="drain", Attributes={"RedrivePolicy": redrive})["QueueUrl"]
    bench.s3.create_bucket(Bucket=bucket)
    keys = [queue_server.key(n) for n in range(given.objects)]
    with ThreadPoolExecutor(4) as threads:
        body = "word,n\n{},1\n"
        list(threads.map(lambda k: bench.s3.put_object(Bucket=bucket, Key=k, Body=body.format(k).encode()), keys))
    drains, listings, alone, lost, duplicated = [], [], [], 0, 0

    def check(table: str) -> None:
        nonlocal lost, duplicated
        count, distinct = rows(bench, table)
        lost += given.objects - distinct
        duplicated += count - distinct

    for n in range(given.rounds):
        tables = [f"data.{kind}_{n}" for kind in ("drained", "listed")]
        for table in tables:
            bench.clickhouse.command(f"CREATE TABLE {table} (word String, n UInt32) ENGINE = MergeTree ORDER BY word")
        events_of(bench, bucket, keys, queue)
        drains.append(given.objects / ours(bench, "storeside.events", bucket, tables[0], "--queue", queue)[0])
        listings.append(given.objects / ours(bench, "storeside.transfer", bucket, tables[1])[0])
        check(tables[0])
        events_of(bench, bucket, keys, queue)
        alone.append(queue_alone(bench, queue))
        figures = f"{drains[-1]:.0f}, {listings[-1]:.0f} from a listing, {alone[-1]:.0f} the queue alone"
        print(f"round {n + 1}, objects/s: {figures}", file=sys.stderr)
    bench.clickhouse.command("CREATE TABLE data.burst (word String, n UInt32) ENGINE = MergeTree ORDER BY word")
    with queue_server.serve(given.burst, given.objects, bucket) as endpoint:
        queue = f"{endpoint}/{queue_server.ACCOUNT}/{queue_server.NAME}"
        elsewhere = {"AWS_ENDPOINT_URL_SQS": endpoint}
        seconds, peak = ours(
            bench, "storeside.events", bucket, "data.burst", "--queue", queue, "--seconds", "3600", **elsewhere
        )
        sqs = s3.client("sqs", endpoint, *s3.keys(bench.stack))
        asked = sqs.get_queue_attributes(QueueUrl=queue, AttributeNames=["All"])["Attributes"]
    check("data.burst")
    left = sum(int(asked[f"ApproximateNumberOfMessages{kind}"]) for kind in ("", "NotVisible"))
    p95 = statistics.quantiles(by_run, n=20)[-1]
    print(f"\n{measure.machine()}\n")
    print("| | figure |\n|---|---|")
    print(f"| put to row visible, a run for each batch, p50 / p95 | {statistics.median(by_run):.1f} / {p95:.1f} s |")
    floor = statistics.quantiles(by_task, n=20)[-1]
    print(f"| the same, a task that follows the queue | {statistics.median(by_task):.1f} / {floor:.1f} s |")
    print(f"| drain of {given.objects} events | {measure.spread(drains, 0)} objects/s |")
    print(f"| the same objects from a listing | {measure.spread(listings, 0)} objects/s |")
    print(f"| the queue alone, messages received and deleted | {measure.spread(alone, 0)} messages/s |")
    print(f"| burst of {given.burst} messages | {given.burst / seconds:.0f} messages/s, peak {peak:.0f} MB |")
    print(f"| left in the queue | {left} |\n")
    measure.bench("events.visible_p50_seconds", statistics.median(by_run), "s")
    measure.bench("events.visible_p95_seconds", p95, "s")
    measure.bench("events.objects_per_second", statistics.median(drains), "objects/s")
    ratio = statistics.median(drain / limit for drain, limit in zip(drains, alone, strict=True))
    measure.bench("events.of_queue_alone", ratio, "x")
    measure.bench("events.lost", lost, "objects")
    measure.bench("events.duplicated", duplicated, "rows")
    measure.bench("events.drain_peak_mb", peak, "MB")


if __name__ == "__main__":
    main()
