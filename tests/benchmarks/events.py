"""S3 events into ClickHouse, until a row is visible, and objects per second beside a listing: ``make bench-events``.

The stack is the benchmark's own, Airflow included.

- **visible**: seconds from the put of one small object until its row can be read, measured repeatedly in a warm
  system, with the DAG that starts a run for each batch of events, which includes Airflow's scheduling, and with the
  DAG whose task follows the queue.
- **lease**: a process leases the messages of a run, like the first task of the speech pipeline: from
  `tests/benchmarks/queue_server.py`, from the same server with 20 ms for each answer, like a queue in a cloud, and
  from the embedded queue, whose time per message grows with its length.
- **drain**: one process loads small objects from their events in a queue. For comparison, interleaved, the same
  engine loads the same objects from a listing, and a client only receives and deletes the same number of messages. A
  further case uses the embedded queue, which shares a process with the embedded S3. CPU seconds are those of the
  process, ClickHouse and S3.
- **burst**: one process drains 100,000 messages about these objects, which a listing has loaded before; the figure is
  its peak memory. For comparison, a client receives and deletes the same messages.

The table does not include ClickHouse's own S3Queue engine, because it needs Keeper and the embedded server has none.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from storeside.events.lease import take_or_receive
from storeside.events.ledger import EventLedger
from storeside.events.queue import Queue
from storeside.stack import cli
from storeside.stack.servers import s3
from storeside.stack.settings import default_folder
from storeside.stack.supervision.supervisor import Supervisor
from tests.benchmarks import measure, queue_server
from tests.benchmarks.event_runs import BUCKET, QUEUE, TABLE, Bench, ours
from tests.support import configure

CASES = ("visible", "lease", "drain", "burst")
LEASED = 6000
CLOUD_MS = 20


def visible(bench: Bench, dag: str, count: int) -> list[float]:
    """Return seconds until visible, with one DAG; the first two puts only warm up."""
    start = {"continuous": True} if dag == "s3_replication" else {"schedule": "*/15 * * * *"}
    configure(bench.api, dag, queue=QUEUE, bucket=s3.TABLES, table=TABLE, **start)
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


def queue_alone(queue: Queue) -> float:
    """Receive and delete all messages of a queue, one request after the other; returns how many a second."""
    started, count = time.monotonic(), 0
    while messages := queue.sqs.receive_message(
        QueueUrl=queue.url, MaxNumberOfMessages=10, VisibilityTimeout=120
    ).get("Messages"):
        entries: Any = [{"Id": str(n), "ReceiptHandle": m["ReceiptHandle"]} for n, m in enumerate(messages)]
        count += len(queue.sqs.delete_message_batch(QueueUrl=queue.url, Entries=entries)["Successful"])
    return count / (time.monotonic() - started)


def rows(bench: Bench, table: str) -> tuple[int, int]:
    found = bench.clickhouse.query(f"SELECT count(), uniqExact(word) FROM {table}").first_row
    return int(found[0]), int(found[1])


def main() -> None:
    """Run the cases and print the table."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.benchmarks.events", description=(__doc__ or "").split("\n")[0]
    )
    add = parser.add_argument
    add("--only", default=",".join(CASES), help="cases, separated by commas (default: %(default)s)")
    add("--single", type=int, default=20, help="objects that are put one by one (default: %(default)s)")
    add("--objects", type=int, default=5000, help="small objects of a drain (default: %(default)s)")
    add("--rounds", type=int, default=3, help="interleaved rounds of leases and drains (default: %(default)s)")
    add("--burst", type=int, default=100_000, help="messages of the burst (default: %(default)s)")
    given = parser.parse_args()
    given.only = given.only.split(",")
    if unknown := set(given.only) - set(CASES):
        parser.error(f"--only {', '.join(unknown)}: choose among {', '.join(CASES)}")
    if given.single < 2:
        parser.error(f"--single {given.single}: percentiles need 2 or more")
    state = Path(tempfile.mkdtemp(prefix="bench-events-", dir=_home()))
    (state / "cache").symlink_to(default_folder().resolve() / "cache", target_is_directory=True)
    stack = cli.up(state, only=("s3", "clickhouse", *(["airflow"] if "visible" in given.only else [])))
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
    EventLedger(bench.clickhouse, "", "").create()
    table = Table()
    if "visible" in given.only:
        visible_case(bench, given.single, table)
    if "lease" in given.only:
        lease_case(bench, given.rounds, table)
    keys = [queue_server.key(n) for n in range(given.objects)]
    if {"drain", "burst"} & set(given.only):
        bench.s3.create_bucket(Bucket=BUCKET)
        body = "word,n\n{},1\n"
        with ThreadPoolExecutor(4) as threads:
            list(threads.map(lambda k: bench.s3.put_object(Bucket=BUCKET, Key=k, Body=body.format(k).encode()), keys))
    if "drain" in given.only:
        drain_case(bench, keys, given.rounds, table)
    if "burst" in given.only:
        burst_case(bench, given.burst, given.objects, table)
    table.show()


class Table:
    """Rows for people, and figures for scripts."""

    def __init__(self) -> None:
        self.rows: list[tuple[str, str]] = []
        self.figures: list[tuple[str, float, str]] = []
        self.lost = self.duplicated = 0

    def check(self, bench: Bench, table: str, objects: int) -> None:
        """Count the objects that a table lacks, and those that it has twice."""
        count, distinct = rows(bench, table)
        self.lost += objects - distinct
        self.duplicated += count - distinct

    def show(self) -> None:
        print(f"\n{measure.machine()}\n")
        print("| | figure |\n|---|---|")
        for name, text in self.rows:
            print(f"| {name} | {text} |")
        print()
        for name, value, unit in self.figures:
            measure.bench(f"events.{name}", value, unit)
        measure.bench("events.lost", self.lost, "objects")
        measure.bench("events.duplicated", self.duplicated, "rows")


def visible_case(bench: Bench, count: int, table: Table) -> None:
    """Measure the seconds until an object's row is visible."""
    for name, dag in (("a run for each batch", "s3_events_to_clickhouse"), ("a task that follows", "s3_replication")):
        seconds = visible(bench, dag, count)
        p50, p95 = statistics.median(seconds), statistics.quantiles(seconds, n=20)[-1]
        table.rows.append((f"put to row visible, {name}, p50 / p95", f"{p50:.1f} / {p95:.1f} s"))
        if dag == "s3_events_to_clickhouse":
            table.figures += [("visible_p50_seconds", p50, "s"), ("visible_p95_seconds", p95, "s")]


def lease_case(bench: Bench, rounds: int, table: Table) -> None:
    """Measure how many messages a second are leased."""

    def lease(queue: Queue) -> float:
        started = time.monotonic()
        run = f"bench/{uuid.uuid4().hex}"
        assert take_or_receive(queue, bench.clickhouse, run, [], LEASED, lease_seconds=300) == LEASED
        return LEASED / (time.monotonic() - started)

    served: list[float] = []
    cloud: list[float] = []
    embedded: list[float] = []
    for n in range(rounds):
        for rates, answer_ms in ((served, 0), (cloud, CLOUD_MS)):
            with queue_server.serve(LEASED, LEASED, BUCKET, answer_ms) as endpoint:
                rates.append(lease(bench.served(endpoint)))
        queue = Queue(bench.sqs, bench.queue(f"lease-{n}"))
        events_of(bench, BUCKET, [queue_server.key(n) for n in range(LEASED)], queue.url)
        embedded.append(lease(queue))
        bench.sqs.delete_queue(QueueUrl=queue.url)  # the embedded server saves all its messages each second
        print(f"round {n + 1}, leased/s: {served[-1]:.0f}, {cloud[-1]:.0f}, {embedded[-1]:.0f}", file=sys.stderr)
    names = ("the benchmark's queue", f"the same with {CLOUD_MS} ms for each answer", "the embedded queue")
    for name, rates in zip(names, (served, cloud, embedded), strict=True):
        table.rows.append((f"lease of {LEASED} messages, {name}", f"{measure.spread(rates, 0)} messages/s"))
    table.figures.append(("lease_per_second", statistics.median(served), "messages/s"))


def drain_case(bench: Bench, keys: list[str], rounds: int, table: Table) -> None:
    """Measure how many new objects a second are loaded, from both queues and from a listing."""
    count = len(keys)
    drains, embedded, listings, alone = [], [], [], []
    queue = Queue(bench.sqs, bench.queue("drain"))
    for n in range(rounds):
        with queue_server.serve(count, count, BUCKET) as endpoint:
            given = ("--queue", queue_server.url(endpoint))
            name = bench.table(f"drained_{n}")
            drains.append(ours(bench, "storeside.events", name, *given, AWS_ENDPOINT_URL_SQS=endpoint))
            table.check(bench, name, count)
        name = bench.table(f"listed_{n}")
        listings.append(ours(bench, "storeside.transfer", name))
        events_of(bench, BUCKET, keys, queue.url)
        name = bench.table(f"embedded_{n}")
        embedded.append(ours(bench, "storeside.events", name, "--queue", queue.url))
        table.check(bench, name, count)
        with queue_server.serve(count, count, BUCKET) as endpoint:
            alone.append(queue_alone(bench.served(endpoint)))
        rates = ", ".join(f"{count / runs[-1].seconds:.0f}" for runs in (drains, listings, embedded))
        print(f"round {n + 1}, objects/s: {rates}; the queue alone {alone[-1]:.0f}", file=sys.stderr)
    names = (f"drain of {count} events", "the same objects from a listing", "drain of the embedded queue")
    for what, runs in zip(names, (drains, listings, embedded), strict=True):
        speeds, cpu = [count / run.seconds for run in runs], [run.cpu * 1000 / count for run in runs]
        table.rows.append((what, f"{measure.spread(speeds, 0)} objects/s, CPU {measure.spread(cpu)} ms per object"))
    table.rows.append(("the queue alone, received and deleted", f"{measure.spread(alone, 0)} messages/s"))
    of_listing = [drain.cpu / listing.cpu for drain, listing in zip(drains, listings, strict=True)]
    table.figures += [
        ("objects_per_second", statistics.median(count / run.seconds for run in drains), "objects/s"),
        ("cpu_of_listing", statistics.median(of_listing), "x"),
    ]


def burst_case(bench: Bench, messages: int, objects: int, table: Table) -> None:
    """Measure how many messages a second are done when their objects are known."""
    name = bench.table("burst")
    ours(bench, "storeside.transfer", name)
    with queue_server.serve(messages, objects, BUCKET) as endpoint:
        given = ("--queue", queue_server.url(endpoint), "--seconds", "3600", "--messages", str(messages))
        run = ours(bench, "storeside.events", name, *given, AWS_ENDPOINT_URL_SQS=endpoint)
        depth = bench.served(endpoint).depth()
    with queue_server.serve(messages, objects, BUCKET) as endpoint:
        alone = queue_alone(bench.served(endpoint))
    table.check(bench, name, objects)
    rate = messages / run.seconds
    table.rows += [
        (f"burst of {messages} messages about known objects", f"{rate:.0f} messages/s, peak {run.peak_mb:.0f} MB"),
        ("the queue alone", f"{alone:.0f} messages/s"),
        ("left in the queue", str(depth.visible + depth.in_flight)),
    ]
    table.figures += [
        ("known_per_second", rate, "messages/s"),
        ("known_of_queue", rate / alone, "x"),
        ("drain_peak_mb", run.peak_mb, "MB"),
    ]


if __name__ == "__main__":
    main()
