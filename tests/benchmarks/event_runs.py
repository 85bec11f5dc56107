"""The stack of the events benchmark, and Storeside's commands as measured processes."""

from __future__ import annotations

import importlib
import json
import os
import resource
import subprocess
import sys
import time
import uuid
from typing import Any, NamedTuple

import psutil

from storeside.events.queue import Queue
from storeside.stack import demo
from storeside.stack.airflow.api import AirflowApi
from storeside.stack.servers import s3
from storeside.stack.settings import CHECKOUT, HOST, Stack
from storeside.stack.supervision.supervisor import Supervisor
from tests.benchmarks import measure, queue_server

QUEUE = f"{s3.TABLES}-events"
TABLE = "data.trips"
BUCKET = "drain"
TICK_SECONDS = 0.02


class Bench:
    """A stack, and its parts that the cases use."""

    def __init__(self, stack: Stack) -> None:
        self.stack = stack
        self.api = AirflowApi(stack.url("airflow"), "admin", stack.secrets["airflow_admin"])
        self.s3 = s3.of_stack("s3", stack)
        self.sqs = s3.of_stack("sqs", stack)
        self.clickhouse = demo.clickhouse_client(stack)
        pids = [status.pid for status in Supervisor(stack).status() if status.name in ("s3", "clickhouse")]
        self.servers = [psutil.Process(pid) for pid in pids if pid]

    def queue(self, name: str) -> str:
        """Create a queue with dead letters in the embedded SQS; returns its URL."""
        dead = self.sqs.create_queue(QueueName=f"{name}-dlq")["QueueUrl"]
        arn = self.sqs.get_queue_attributes(QueueUrl=dead, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]
        redrive = json.dumps({"deadLetterTargetArn": arn, "maxReceiveCount": "50"})
        return str(self.sqs.create_queue(QueueName=name, Attributes={"RedrivePolicy": redrive})["QueueUrl"])

    def served(self, endpoint: str) -> Queue:
        """Return the queue of `queue_server` at this endpoint."""
        return Queue(s3.client("sqs", endpoint, *s3.keys(self.stack)), queue_server.url(endpoint))

    def table(self, name: str) -> str:
        self.clickhouse.command(f"CREATE TABLE data.{name} (word String, n UInt32) ENGINE = MergeTree ORDER BY word")
        return f"data.{name}"

    def put(self, key: str, word: str) -> None:
        self.s3.put_object(Bucket=s3.TABLES, Key=key, Body=f"word,n\n{word},1\n".encode())

    def count(self, where: str = "true", **parameters: Any) -> int:
        if not int(self.clickhouse.query(f"EXISTS {TABLE}").first_row[0]):
            return 0
        found = self.clickhouse.query(f"SELECT count() FROM {TABLE} WHERE {where}", parameters=parameters)
        return int(found.first_row[0])

    def seconds_until_visible(self) -> float:
        """Put one object; return the seconds until its row is visible."""
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


class Run(NamedTuple):
    """The cost of a command: seconds without Python's start, peak memory, CPU seconds including the servers'."""

    seconds: float
    peak_mb: float
    cpu: float


def ours(bench: Bench, module: str, table: str, *more: str, **variables: str) -> Run:
    """Run one of Storeside's commands in a new process."""
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
    command = [sys.executable, "-m", "tests.benchmarks.event_runs", module, f"s3://{BUCKET}/", table]
    command += ["--format", "csv", "--set", "loader=pull", "--collection", "storeside_s3", *more]
    before = measure.cpu_seconds(bench.servers)
    done = subprocess.run(command, cwd=CHECKOUT, env=given, check=False, capture_output=True, text=True)
    servers = measure.cpu_seconds(bench.servers) - before
    if done.returncode:
        sys.exit(f"{module} failed:\n{done.stderr[-3000:]}")
    seconds, peak, own = map(float, done.stdout.splitlines()[-1].split())
    return Run(seconds, peak, servers + own)


def main() -> int:
    """Be the process of `ours`."""
    module, *arguments = sys.argv[1:]
    command = importlib.import_module(f"{module}.__main__").main
    started, cpu = time.monotonic(), time.process_time()
    code = int(command(arguments))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(time.monotonic() - started, peak, time.process_time() - cpu)
    return code


if __name__ == "__main__":
    sys.exit(main())
