"""Loads from AIStore compared with ClickHouse's own statement for the same objects in S3; part of ``pipelines``.

The statement reads from versitygw with ``s3()``. A load reads the same objects from an embedded AIStore with two
targets, lists and plans them, checks versions and rows, and publishes them.
"""

from __future__ import annotations

import contextlib
import itertools
import statistics
import sys
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from storeside.aistore.buckets import Bucket
from storeside.sql.quoting import literal
from storeside.stack import authn, demo
from storeside.stack.settings import Stack
from storeside.transfer.request.request import Request
from storeside.transfer.request.source import Source
from storeside.transfer.run.engine import Transfer
from tests.benchmarks import measure, taxi, versitygw
from tests.benchmarks.measure import bench, spread
from tests.benchmarks.taxi import OPTIONAL, SCHEMA, Objects
from tests.benchmarks.transfer import FORMATS, TYPES
from tests.benchmarks.versitygw import Gateway

PARTS = ("podrunner", "aistore", "clickhouse")
BUCKET = "taxi"
COLUMNS = [
    f"`{c.name}` {f'Nullable({TYPES[str(c.type)]})' if c.name in OPTIONAL else TYPES[str(c.type)]}" for c in SCHEMA
]
STATEMENT, PULL, PUSH = "s3", "pull", "push"
TEXT_ROWS = {"csv": 1_000_000, "jsonl": 500_000}
SMALL = 2000


@dataclass
class Figures:
    """Rows per second of each way to load the same objects, in rounds."""

    rates: dict[str, list[float]] = field(default_factory=dict)

    def beside(self, way: str) -> float:
        """Median of the rate of a way, as a share of that of the statement in the same round."""
        return statistics.median(a / b for a, b in zip(self.rates[way], self.rates[STATEMENT], strict=True))


class Loads:
    """Loads of objects in all ways, on one ClickHouse server."""

    def __init__(self, stack: Stack, gateway: Gateway) -> None:
        self.stack, self.gateway = stack, gateway
        self.client = demo.clickhouse_client(stack)
        self.aistore = authn.cluster(stack).client()
        self._numbers = itertools.count()
        self._content: dict[tuple[str, str], int] = {}

    def rate(self, objects: Objects, way: str) -> float:
        """Load objects into a new table; return rows per second. Ends the program if rows or values differ."""
        with self._table() as table:
            self.client.command("SYSTEM DROP PARQUET METADATA CACHE")  # objects are loaded once, not in rounds
            began = time.monotonic()
            if way == STATEMENT:
                self.client.command(self._statement(objects, table))
            else:
                self._load(objects, table, way)
            seconds = time.monotonic() - began
            names = ", ".join(f"`{c.name}`" for c in SCHEMA)
            rows, content = self.client.query(f"SELECT count(), sum(cityHash64({names})) FROM {table}").result_rows[0]
            key = (objects.prefix, objects.form)
            if rows != objects.rows or content != self._content.setdefault(key, content):
                sys.exit(f"error: {way} loaded {rows} rows of {objects.rows} from {objects.prefix}, or other values")
        return objects.rows / seconds

    def _statement(self, objects: Objects, table: str) -> str:
        single = len(objects.keys) == 1
        path = objects.keys[0] if single else f"{objects.prefix}**.{objects.form}"
        keys = self.gateway.keys
        url, access, secret = map(literal, (f"{self.gateway.endpoint}/{BUCKET}/{path}", keys.access, keys.secret))
        return f"INSERT INTO {table} SELECT * FROM s3({url}, {access}, {secret}, {literal(FORMATS[objects.format])})"

    def _load(self, objects: Objects, table: str, loader: str) -> None:
        keys = objects.keys[0] if len(objects.keys) == 1 else objects.prefix
        source = Source(f"ais://{BUCKET}", keys, endpoint=self.stack.url("ais_proxy"))
        request = Request(source, table, objects.format, loader=loader)
        transfer = Transfer(request, self.client, self.aistore, uuid.uuid4().hex)
        report = transfer.run(transfer.prepare())
        if report.failed:
            sys.exit(f"error: {report.failures}")

    @contextlib.contextmanager
    def _table(self) -> Iterator[str]:
        table = f"data.trips_{next(self._numbers)}"
        self.client.command(
            f"CREATE TABLE {table} ({', '.join(COLUMNS)}) ENGINE = MergeTree ORDER BY tpep_pickup_datetime"
        )
        try:
            yield table
        finally:
            self.client.command(f"DROP TABLE IF EXISTS {table} SYNC")


def cases(bucket: taxi.Bucket) -> Mapping[str, Objects]:
    """Make the data in a folder."""
    return {
        "Parquet of 50 MB": bucket.month(),
        "CSV of 100 MB": bucket.month("csv", TEXT_ROWS["csv"]),
        "JSON Lines of 200 MB": bucket.month("jsonl", TEXT_ROWS["jsonl"]),
        f"{SMALL} CSV objects": bucket.small("csv", SMALL),
        f"{SMALL} Parquet objects": bucket.small("parquet", SMALL),
    }


def run(stack: Stack, rounds: int) -> None:
    """Measure all cases in turn, and print the table and the figure."""
    cache = stack.cache / "bench"
    folder = cache / "s3" / BUCKET
    folder.mkdir(parents=True, exist_ok=True)
    kinds = cases(taxi.Bucket(folder))
    with versitygw.serve(versitygw.build(cache), folder.parent) as gateway:
        loads = Loads(stack, gateway)
        _put(loads.aistore, folder, [key for objects in kinds.values() for key in objects.keys])
        found = {kind: Figures() for kind in kinds}
        for round_ in range(rounds + 1):
            for kind, objects in kinds.items():
                for way in (STATEMENT, PULL, PUSH):
                    rate = loads.rate(objects, way)
                    print(f"round {round_}: {kind}, {way}: {rate:.0f} rows/s", file=sys.stderr)
                    if round_:  # the first round warms up
                        found[kind].rates.setdefault(way, []).append(rate)
    report(found, rounds)


def _put(client: Any, folder: Path, keys: Sequence[str]) -> None:
    handle = Bucket("ais", BUCKET).handle(client)
    handle.create()
    for key in keys:
        handle.object(key).get_writer().put_file(str(folder / key))


def report(found: Mapping[str, Figures], rounds: int) -> None:
    """Print the table, and the ratios as ``BENCH`` lines; `report` takes the geometric mean of all kinds."""
    print(f"\nloads from AIStore; medians of {rounds} interleaved rounds; {measure.machine()}\n")
    print("| objects | s3(), thousand rows/s | from ais://, pull | from ais://, push | pull of s3() | push of s3() |")
    print("|---|---|---|---|---|---|")
    for kind, figures in found.items():
        rates = " | ".join(spread([rate / 1e3 for rate in figures.rates[way]]) for way in (STATEMENT, PULL, PUSH))
        print(f"| {kind} | {rates} | {figures.beside(PULL):.2f} | {figures.beside(PUSH):.2f} |")
    print()
    for way, name in ((PUSH, "push_of_s3_engine"), (PULL, "of_s3_engine")):
        bench(f"ais_load.{name}", statistics.geometric_mean(figures.beside(way) for figures in found.values()), "x")
