"""The DAG that loads a bucket into a table, on the whole embedded stack."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

import pytest

from storeside.stack.airflow_api import AirflowApi
from storeside.stack.settings import Stack
from tests.support import process, unique, until

if TYPE_CHECKING:
    from types_boto3_s3 import S3Client

pytestmark = pytest.mark.timeout(240)

DAG = "s3_to_clickhouse"


class Loader:
    """The DAG with its own bucket and table."""

    def __init__(self, stack: Stack, s3: S3Client, clickhouse: Any) -> None:
        self.stack, self.s3, self.clickhouse = stack, s3, clickhouse
        self.api = AirflowApi(stack.url("airflow"), "admin", stack.secrets["airflow_admin"])
        self.bucket = unique("tables")
        self.table = "data." + unique("trips").replace("-", "_")
        s3.create_bucket(Bucket=self.bucket)

    def start(self, **conf: Any) -> str:
        return self.api.trigger(DAG, {"bucket": self.bucket, "table": self.table, **conf})

    def run(self, **conf: Any) -> dict[str, Any]:
        """Run the DAG; return the task's report."""
        run = self.start(**conf)
        assert self.api.wait(DAG, run, 120)["state"] == "success"
        return self.report(run)

    def report(self, run: str) -> dict[str, Any]:
        value = self.api.xcom(DAG, run, "load")
        return json.loads(value) if isinstance(value, str) else value

    def query(self, statement: str) -> list[tuple[Any, ...]]:
        return [tuple(row) for row in self.clickhouse.query(statement.format(table=self.table)).result_rows]


@pytest.fixture
def loader(airflow: Stack, s3_client: S3Client, clickhouse: Any) -> Loader:
    loader = Loader(airflow, s3_client, clickhouse)
    until(lambda: any(dag["dag_id"] == DAG for dag in loader.api.get("dags")["dags"]), 90, "DAG")
    loader.api.request("PATCH", f"dags/{DAG}", json={"is_paused": False})
    return loader


def test_a_bucket_is_loaded_once_while_the_task_is_deferred(loader: Loader) -> None:
    for n in range(3):
        loader.s3.put_object(Bucket=loader.bucket, Key=f"2026/{n}.csv", Body=f"n;word\n{n};x{n}\n".encode())
    loader.s3.put_object(Bucket=loader.bucket, Key="2026/bad.csv", Body=b"n;word\n1;2;3\n")
    run = loader.start(keys="2026/", delimiter=";", order_by="n")
    assert loader.api.wait(DAG, run, 120)["state"] == "success"
    report = loader.report(run)
    assert (report["listed"], report["loaded"], report["failed"], report["rows"]) == (4, 3, 1, 3)
    assert [key for key, _ in report["failures"]] == ["2026/bad.csv"]
    log = loader.api.log(DAG, run, "load")
    assert "by pull" in log
    assert "CREATE TABLE" in log
    assert "2026/bad.csv" in log
    for secret in (loader.stack.secrets["s3_secret_key"], loader.stack.secrets["clickhouse"]):
        assert secret not in log
    assert loader.query("SELECT n, word FROM {table} ORDER BY n") == [(n, f"x{n}") for n in range(3)]
    again = loader.run(keys="2026/", delimiter=";")
    assert (again["loaded"], again["skipped"], again["rows"]) == (0, 4, 0)
    assert loader.query("SELECT count() FROM {table}") == [(3,)]
    states = loader.query(
        "SELECT state, listed, done FROM storeside.runs FINAL"
        f" WHERE source = 's3://{loader.bucket}/2026/' ORDER BY recorded_at"
    )
    assert states == [("partial", 4, 3), ("done", 4, 0)]


@pytest.mark.chaos
def test_a_killed_triggerer_takes_its_load_up_again(loader: Loader) -> None:
    rows = 6_000_000
    loader.clickhouse.command(
        f"CREATE TABLE {loader.table} (n UInt32, slow UInt8 MATERIALIZED sleepEachRow(0.0000025)) ENGINE = MergeTree"
        " ORDER BY n"
    )
    loader.s3.put_object(Bucket=loader.bucket, Key="n.csv", Body=b"n\n" + b"\n".join(b"%d" % n for n in range(rows)))
    run = loader.start(format="csv")
    reading = "SELECT count() FROM system.processes WHERE query_id LIKE 'storeside-load_%'"
    until(lambda: loader.query(reading) == [(1,)], 60, "query of the load")
    time.sleep(1)
    process(loader.stack, "triggerer").kill()
    assert loader.query(reading) == [(1,)]
    assert loader.api.wait(DAG, run, 200)["state"] == "success"
    assert loader.report(run)["rows"] == rows
    assert loader.query("SELECT count(), uniqExact(n) FROM {table}") == [(rows, rows)]
