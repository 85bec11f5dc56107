"""Loads of ten million rows that a suite checks before they are published: ``make bench-quality``.

Each load runs in a new process without Airflow; the peak of its memory includes imports. Each suite has six
expectations on five columns; `quarantine` has one bad row in a thousand.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from storeside.stack import demo
from storeside.stack.servers import s3
from storeside.stack.settings import CHECKOUT, Stack
from storeside.transfer.request.options import Expectations, OnFailedExpectations
from storeside.transfer.request.request import Request
from storeside.transfer.request.source import Source
from storeside.transfer.run.engine import Transfer
from tests.benchmarks import measure, stacks
from tests.benchmarks.measure import bench

PARTS = ("s3", "clickhouse")
BUCKET = "quality"
OBJECTS = 10
COLUMNS = (
    "toUInt64(number) AS id, toInt32(number % 1000) AS score, if(number % 7 = 0, NULL, number / 3) AS amount,"
    " concat('city ', toString(number % 5000)) AS city,"
    " toDateTime('2026-01-01 00:00:00') + number % 86400 AS taken_at"
)


@dataclass(frozen=True)
class Cost:
    """Seconds of a load, and the peak memory of its process in MB."""

    seconds: float
    peak_mb: float


def suite(most_score: int) -> dict[str, Any]:
    """Return a suite in the format of Great Expectations; 998 as the largest score is not met by 0.1 % of rows."""
    given: list[tuple[str, dict[str, Any]]] = [
        ("expect_column_values_to_not_be_null", {"column": "id"}),
        ("expect_column_values_to_be_between", {"column": "score", "min_value": 0, "max_value": most_score}),
        ("expect_column_values_to_be_between", {"column": "amount", "min_value": 0}),
        ("expect_column_values_to_match_regex", {"column": "city", "regex": "^city [0-9]+$"}),
        ("expect_column_value_lengths_to_be_between", {"column": "city", "min_value": 1, "max_value": 20}),
        ("expect_column_values_to_be_between", {"column": "taken_at", "min_value": "2026-01-01"}),
    ]
    return {"name": "trips", "expectations": [{"type": kind, "kwargs": kwargs} for kind, kwargs in given]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=10_000_000, help="rows (default: %(default)s)")
    parser.add_argument("--load", help=argparse.SUPPRESS)  # the request of the measured process
    options = parser.parse_args()
    if options.load:
        print(json.dumps(vars(load(**json.loads(options.load)))))
        return
    with stacks.running(PARTS) as stack:
        run(stack, options.rows)


def run(stack: Stack, rows: int) -> None:
    """Write the objects, and load them without a suite, with one that is met, and with a quarantine."""
    print(f"{rows} rows in {OBJECTS} objects; {measure.machine()}")
    s3.of_stack("s3", stack).create_bucket(Bucket=BUCKET)
    client = demo.clickhouse_client(stack)
    client.command("CREATE DATABASE IF NOT EXISTS data")
    for number in range(OBJECTS):
        client.command(
            f"INSERT INTO FUNCTION s3(storeside_s3, filename = '{BUCKET}/{number}.parquet', format = 'Parquet')"
            f" SELECT {COLUMNS} FROM numbers({rows * number // OBJECTS}, {rows // OBJECTS})"
        )
    plain = measured(stack, "plain", "", "fail", rows)
    met = measured(stack, "met", written(stack, 999), "fail", rows)
    bad = measured(stack, "bad", written(stack, 998), "quarantine", rows)
    quarantined = int(str(client.command("SELECT count() FROM data.bad_quarantine")))
    if quarantined != rows // 1000:
        sys.exit(f"error: {quarantined} rows are in the quarantine instead of {rows // 1000}")
    bench("quality.plain_seconds", plain.seconds, "s")
    bench("quality.plain_peak_mb", plain.peak_mb, "MB")
    bench("quality.quarantine_seconds", bad.seconds, "s")
    bench("quality.rows_10m_seconds", met.seconds, "s")
    bench("quality.peak_mb", max(met.peak_mb, bad.peak_mb), "MB")


def written(stack: Stack, most_score: int) -> str:
    """Write a suite, and return its path."""
    path = stack.state / f"suite_{most_score}.json"
    path.write_text(json.dumps(suite(most_score)))
    return str(path)


def measured(stack: Stack, table: str, given: str, policy: str, rows: int) -> Cost:
    """Load the objects in a new process."""
    request = {"folder": str(stack.state.parent), "table": table, "given": given, "policy": policy, "rows": rows}
    done = subprocess.run(
        [sys.executable, "-m", "tests.benchmarks.quality", "--load", json.dumps(request)],
        stdout=subprocess.PIPE, text=True, cwd=CHECKOUT, check=False,
    )  # fmt: skip
    if done.returncode:
        sys.exit(f"error: the load into {table} failed")
    cost = Cost(**json.loads(done.stdout.splitlines()[-1]))
    print(f"{table}: {cost.seconds:.1f} s, peak of {cost.peak_mb:.0f} MB", flush=True)
    return cost


def load(folder: str, table: str, given: str, policy: OnFailedExpectations, rows: int) -> Cost:
    """Load all objects into a new table, and return the cost of this process."""
    stack = Stack.load(Path(folder))
    if stack is None:
        sys.exit(f"error: {folder} has no stack")
    source = Source(BUCKET, "", collection="storeside_s3")
    request = Request(source, f"data.{table}", "parquet", loader="pull", expectations=Expectations(given, policy))
    began = time.monotonic()
    transfer = Transfer(request, demo.clickhouse_client(stack), s3.of_stack("s3", stack), table)
    report = transfer.run(transfer.prepare())
    seconds = time.monotonic() - began
    if report.rows + report.rejected != rows:
        sys.exit(f"error: {report.rows} rows and {report.rejected} bad ones were loaded instead of {rows}")
    status = Path("/proc/self/status").read_text().splitlines()
    return Cost(seconds, next(int(line.split()[1]) for line in status if line.startswith("VmHWM")) / 1024)


if __name__ == "__main__":
    main()
