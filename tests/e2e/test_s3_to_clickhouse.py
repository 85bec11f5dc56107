"""The DAG that loads a bucket into a table, on the whole embedded stack."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from storeside.stack.settings import Stack
from storeside.transfer.run.preparation import BRIEF_OBJECTS
from tests.support import administrator, allow_in_forms, process, unique, unpause, until

if TYPE_CHECKING:
    from types_boto3_s3 import S3Client


DAG = "s3_to_clickhouse"


class Loader:
    """The DAG with its own bucket and table."""

    def __init__(self, stack: Stack, s3: S3Client, clickhouse: Any) -> None:
        self.stack, self.s3, self.clickhouse = stack, s3, clickhouse
        self.api = administrator(stack)
        self.bucket = unique("tables")
        self.table = "data." + unique("trips").replace("-", "_")
        s3.create_bucket(Bucket=self.bucket)

    def start(self, **conf: Any) -> str:
        return self.api.trigger(DAG, {"bucket": self.bucket, "table": self.table, **conf})

    def pause(self, paused: bool) -> None:
        self.api.request("PATCH", f"dags/{DAG}", json={"is_paused": paused})

    def run(self, **conf: Any) -> dict[str, Any]:
        """Run the DAG; return the task's report."""
        run = self.start(**conf)
        assert self.api.wait(DAG, run)["state"] == "success"
        return self.report(run)

    def report(self, run: str) -> dict[str, Any]:
        value = self.api.xcom(DAG, run, "load")
        return json.loads(value) if isinstance(value, str) else value

    def query(self, statement: str) -> list[tuple[Any, ...]]:
        return [tuple(row) for row in self.clickhouse.query(statement.format(table=self.table)).result_rows]


@pytest.fixture
def loader(airflow: Stack, s3_client: S3Client, clickhouse: Any) -> Loader:
    loader = Loader(airflow, s3_client, clickhouse)
    unpause(loader.api, DAG)
    return loader


@pytest.mark.essential
def test_a_bucket_is_loaded_once(loader: Loader) -> None:
    for n in range(3):
        loader.s3.put_object(Bucket=loader.bucket, Key=f"2026/{n}.csv", Body=f"n;word\n{n};x{n}\n".encode())
    loader.s3.put_object(Bucket=loader.bucket, Key="2026/bad.csv", Body=b"n;word\n1;2;3\n")
    by_name = {"table.system_columns": ["_object"], "limits.rows": 1}
    run = loader.start(keys="2026/", delimiter=";", order_by="n", options=by_name)
    assert loader.api.wait(DAG, run)["state"] == "success"
    report = loader.report(run)
    assert (report["listed"], report["loaded"], report["failed"], report["rows"]) == (4, 3, 1, 3)
    assert [key for key, _ in report["failures"]] == ["2026/bad.csv"]
    log = loader.api.log(DAG, run, "load")
    assert "by pull" in log
    assert "CREATE TABLE" in log
    assert "2026/bad.csv" in log
    for secret in (loader.stack.secrets["s3_secret_key"], loader.stack.secrets["clickhouse"]):
        assert secret not in log
    wanted = [(n, f"x{n}", f"2026/{n}.csv") for n in range(3)]
    assert loader.query("SELECT n, word, _object FROM {table} ORDER BY n") == wanted
    again = loader.run(keys="2026/", delimiter=";")
    # Its limits are others, so the failed object is tried again.
    assert (again["loaded"], again["skipped"], again["failed"], again["rows"]) == (0, 3, 1, 0)
    assert loader.query("SELECT count() FROM {table}") == [(3,)]
    states = loader.query(
        "SELECT state, listed, done FROM storeside.runs FINAL"
        f" WHERE source = 's3://{loader.bucket}/2026/' ORDER BY recorded_at"
    )
    assert states == [("partial", 4, 3), ("partial", 4, 0)]


def test_a_form_deletes_loaded_objects_only_if_the_owner_allows_it(loader: Loader) -> None:
    loader.s3.put_object(Bucket=loader.bucket, Key="a.csv", Body=b"n\n1\n")
    run = loader.start(after_load="delete")
    assert loader.api.wait(DAG, run)["state"] == "failed"
    assert "'delete' is not one of the after_load that forms may use: none" in loader.api.log(DAG, run, "load")
    lists = json.loads(loader.api.get("variables/storeside_forms")["value"])
    allow_in_forms(loader.api, **{**lists, "after_load": ["none", "delete"]})
    try:
        report = loader.run(after_load="delete", modified_after="2001-01-01T00:00:00+02:00")
    finally:
        allow_in_forms(loader.api, **lists)
    assert (report["loaded"], report["handled"], report["left"]) == (1, 1, 0)
    assert "Contents" not in loader.s3.list_objects_v2(Bucket=loader.bucket)
    assert loader.query("SELECT n FROM {table}") == [(1,)]


def started_together(loader: Loader, *confs: dict[str, Any]) -> list[str]:
    """Trigger runs while the DAG is paused, so that they wait together; then let them start, and wait for success."""
    loader.pause(True)
    try:
        runs = [loader.start(**conf) for conf in confs]
    finally:
        loader.pause(False)
    assert [loader.api.wait(DAG, run)["state"] for run in runs] == ["success"] * len(runs)
    return runs


def test_runs_for_different_tables_overlap_and_are_not_deferred(loader: Loader) -> None:
    tables = [f"{loader.table}_{n}" for n in range(2)]
    for table in tables:  # about two seconds for each run
        slow = "slow UInt8 MATERIALIZED sleepEachRow(0.002)"
        loader.clickhouse.command(f"CREATE TABLE {table} (n UInt32, {slow}) ENGINE = MergeTree ORDER BY n")
    loader.s3.put_object(Bucket=loader.bucket, Key="n.csv", Body=b"n\n" + b"\n".join(b"%d" % n for n in range(1000)))
    runs = started_together(loader, *({"table": table, "format": "csv"} for table in tables))
    tasks = [loader.api.task_instances(DAG, run)[0] for run in runs]
    assert max(task["start_date"] for task in tasks) < min(task["end_date"] for task in tasks), "one after the other"
    for table, run in zip(tables, runs, strict=True):
        assert loader.query(f"SELECT count(), uniqExact(n) FROM {table}") == [(1000, 1000)]
        assert "deferr" not in loader.api.log(DAG, run, "load").lower()


def test_two_runs_for_one_new_table_load_its_objects_once(loader: Loader) -> None:
    for n in range(3):
        loader.s3.put_object(Bucket=loader.bucket, Key=f"{n}.csv", Body=f"n,word\n{n},x{n}\n".encode())
    runs = started_together(loader, {}, {})
    assert loader.query("SELECT n, word FROM {table} ORDER BY n") == [(n, f"x{n}") for n in range(3)]
    assert sum(loader.report(run)["loaded"] for run in runs) == 3
    assert sum(loader.report(run)["rows"] for run in runs) == 3


def test_a_load_of_many_objects_is_deferred(loader: Loader) -> None:
    for n in range(BRIEF_OBJECTS + 1):
        loader.s3.put_object(Bucket=loader.bucket, Key=f"{n}.csv", Body=f"n\n{n}\n".encode())
    run = loader.start(format="csv")
    assert loader.api.wait(DAG, run)["state"] == "success"
    assert "deferr" in loader.api.log(DAG, run, "load").lower()
    assert loader.query("SELECT count(), uniqExact(n) FROM {table}") == [(BRIEF_OBJECTS + 1, BRIEF_OBJECTS + 1)]


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
    until(lambda: loader.api.task_instances(DAG, run)[0]["state"] == "deferred", 60, "deferred task")
    process(loader.stack, "triggerer").kill()
    assert loader.query(reading) == [(1,)]
    assert loader.api.wait(DAG, run)["state"] == "success"
    assert loader.report(run)["rows"] == rows
    assert loader.query("SELECT count(), uniqExact(n) FROM {table}") == [(rows, rows)]
