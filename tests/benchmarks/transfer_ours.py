"""Storeside's side of ``make bench-transfer``, in a separate process to measure its CPU and memory.

This process also runs the engine's statements, because a server that was idle while a process started is a tenth
slower, and this must affect both cases equally. The comparison with the engine excludes imports and the creation of
clients. The comparison with the peers includes them, because the peers start, too.

``python -m tests.benchmarks.transfer_ours`` reads one request as JSON, runs it, and prints its cost.
"""

from __future__ import annotations

import json
import os
import sys
import time
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Literal

import boto3
import clickhouse_connect
import pandas as pd  # noqa: F401 - this and the next are loaded by libraries when they are first used
import pyarrow.parquet  # noqa: F401

from storeside.transfer.objects.listing import list_in_ranges
from storeside.transfer.request.request import Request
from storeside.transfer.request.source import Source
from storeside.transfer.run.engine import Transfer
from storeside.transfer.run.plan_input import record_source
from storeside.transfer.staging import push
from storeside.transfer.state.loads import Loaded, Loads, Planned
from storeside.transfer.state.plan import Plan
from tests.benchmarks import listing_server
from tests.benchmarks.listing_server import Entry

Loader = Literal["pull", "push", "push_changed"]
CHANGED_EVERY = 1000
# The bucket whose listing and inventory are planned.
LISTED = "taxi"


@dataclass(frozen=True)
class ClickHouse:
    """How to reach the server; the same as clickhouse-connect's arguments."""

    host: str
    port: int
    username: str
    password: str
    database: str


@dataclass(frozen=True)
class S3:
    """How to reach the objects; `collection` is ClickHouse's named collection for the same endpoint."""

    endpoint: str
    access_key_id: str
    secret_access_key: str
    region: str
    collection: str


def load(
    client: Any,
    boto: Any,
    collection: str,
    bucket: str,
    keys_or_prefix: Sequence[str] | str,
    form: Literal["parquet", "csv", "jsonl"],
    table: str,
    loader: Loader,
) -> int:
    """Load one key, or all below a prefix, into an existing, empty table, and return the rows.

    Compression (.gz) is found out from the objects. `push` sends their own bytes; `push_changed` goes through Arrow,
    as columns that are changed do. Rows and values are the same in all three.
    """
    if loader == "push_changed":
        push.WHOLE_PARQUET = 0
    keys = keys_or_prefix if isinstance(keys_or_prefix, str) else keys_or_prefix[0]
    request = Request(Source(bucket, keys, collection), table, form, loader="pull" if loader == "pull" else "push")
    transfer = Transfer(request, client, boto, uuid.uuid4().hex)
    report = transfer.run(transfer.prepare())
    assert not report.failed, report.failures
    return report.rows


def _connect(clickhouse: ClickHouse) -> Any:
    return clickhouse_connect.get_client(**asdict(clickhouse), autogenerate_session_id=False)


def _boto(s3: S3) -> Any:
    return boto3.client(
        "s3",
        endpoint_url=s3.endpoint,
        aws_access_key_id=s3.access_key_id,
        aws_secret_access_key=s3.secret_access_key,
        region_name=s3.region,
    )


def remember(client: Any, bucket: str, entries: Iterable[Entry], table: str) -> None:
    """Write into the ledger that these object versions are loaded already; the table itself need not exist."""
    loads = Loads(client, "seed", table, Source(bucket), "seed")
    loads.create()
    entries = iter(entries)
    while some := list(islice(entries, 20_000)):
        planned = (Planned(e.key, e.etag, e.size, e.modified.timestamp(), 1) for e in some)
        loads.record([Loaded(o, 1) for o in planned], "loaded")


def plan(client: Any, boto: Any, collection: str, bucket: str, prefix: str, table: str) -> int:
    """List the objects below a prefix, compare them with the ledger, and return the number of objects to load."""
    loads = Loads(client, "plan", table, Source(bucket, prefix, collection), "run")
    loads.create()
    made = Plan(loads)
    made.record_listing(list_in_ranges(boto, bucket, prefix))
    _, planned, _ = made.make(batch_bytes=1 << 30, batch_objects=1000, push=False, retry_failed=False)
    return planned


def plan_from_inventory(client: Any, boto: Any, collection: str, uri: str, table: str) -> int:
    """Do the same with an inventory instead of a listing."""
    source = Source(LISTED, "trips/", collection, inventory=uri)
    loads = Loads(client, "plan", table, source, "run")
    loads.create()
    made = Plan(loads)
    record_source(made, boto, source)
    _, planned, _ = made.make(batch_bytes=1 << 30, batch_objects=1000, push=False, retry_failed=False)
    return planned


def known(count: int) -> Iterable[Entry]:
    """Yield `count` objects for the ledger. In the listing, every thousandth object is new and the next has changed.

    In place of the new ones it has some that the bucket has no more.
    """
    for number in range(count):
        entry = listing_server.entry(number)
        if number % CHANGED_EVERY == 0:
            yield listing_server.entry(count + number)
        elif number % CHANGED_EVERY == 1:
            yield entry._replace(etag="0" * 32)
        else:
            yield entry


def to_plan(count: int) -> int:
    """Return how many objects of the listing `known` does not have."""
    return 2 * -(-count // CHANGED_EVERY)


def _done(request: dict[str, Any], client: Any, boto: Any) -> int:
    collection, bucket, table = request["s3"]["collection"], request["bucket"], request["table"]
    if request["do"] == "statement":
        client.command(request["text"])
        return int(request["rows"])
    if request["do"] == "remember":
        remember(client, bucket, known(request["count"]), table)
        return int(request["count"])
    if request["do"] == "plan_from_inventory":
        return plan_from_inventory(client, boto, collection, request["uri"], table)
    if request["do"] == "plan":
        return plan(client, boto, collection, bucket, request["prefix"], table)
    return load(client, boto, collection, bucket, request["keys"], request["form"], table, request["loader"])


def _peak_mb() -> float:
    """Return this program's peak; getrusage would give that of the one that started it, were it larger."""
    status = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in status if line.startswith("VmHWM")) / 1024


def _connected(request: dict[str, Any]) -> tuple[Any, Any]:
    """Return clients whose libraries have loaded what they load when they are first used."""
    client, boto = _connect(ClickHouse(**request["clickhouse"])), _boto(S3(**request["s3"]))
    client.query("SELECT 1")
    boto.list_objects_v2(Bucket=request["bucket"], MaxKeys=1)
    return client, boto


def main() -> None:
    request = json.load(sys.stdin)
    client, boto = _connected(request)
    began = time.monotonic()
    rows = _done(request, client, boto)
    seconds = time.monotonic() - began
    cpu = sum(os.times()[:4])
    print(json.dumps({"rows": rows, "seconds": seconds, "cpu_seconds": cpu, "peak_mb": _peak_mb()}))


if __name__ == "__main__":
    main()
