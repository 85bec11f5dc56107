"""A page forgets to filter by DAG: ClickHouse's row policies hide the rows of DAGs that the visitor may not read.

The attacker may read one DAG and finds a statement without a condition.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import clickhouse_connect
import pytest

from storeside.pages.tables import Tables, UnreadableError
from storeside.sql import visibility
from storeside.stack.servers import clickhouse as server
from storeside.stack.servers.clickhouse_users import PAGES
from storeside.stack.settings import CHECKOUT, HOST, Stack
from tests.support import unique

OF_RUNS = (
    *("speech.manifest", "storeside.backend_benchmark", "storeside.event_batches", "storeside.events"),
    *("storeside.failures", "storeside.loads", "storeside.objects", "storeside.transform_benchmark"),
)
# Columns on which the table's TTL depends and that have no default: ClickHouse would delete rows of 1970.
TIMES = {"storeside.failures": "recorded_at", "storeside.throughput": "began"}
# Columns of keys: a merge would keep only one of two rows with equal keys.
KEYS = {
    "storeside.objects": "object", "storeside.loads": "key", "storeside.events": "message_id",
    "storeside.event_batches": "batch", "speech.manifest": "object",
}  # fmt: skip
OF_MEASUREMENTS = ("storeside.throughput", "storeside.throughput_runs")


@pytest.fixture
def pages(stack: Stack) -> Callable[..., Tables]:
    client = clickhouse_connect.get_client(
        host=HOST, port=stack.ports["clickhouse_http"], username=PAGES, password=server.passwords(stack)[PAGES],
        autogenerate_session_id=False,
    )  # fmt: skip
    return lambda *dags: Tables(client, None if dags == ("*",) else dags)


@pytest.fixture
def written(clickhouse: Any) -> Callable[..., None]:
    """Insert rows whose text columns are given."""

    def insert(table: str, **texts: str) -> None:
        row: dict[str, Any] = dict(texts)
        if table in TIMES:
            row[TIMES[table]] = datetime.now(UTC)
        if table in KEYS:
            row[KEYS[table]] = unique("key")
        clickhouse.insert(table, [list(row.values())], column_names=list(row))

    return insert


def seen(tables: Tables, table: str, column: str, dag: str) -> list[str]:
    rows = tables.rows(f"SELECT {column} AS found FROM {table} WHERE position({column}, {{dag:String}}) > 0", dag=dag)
    return sorted(row["found"] for row in rows)


@pytest.mark.parametrize(
    ("table", "column"),
    [
        *((table, "run_id") for table in OF_RUNS), ("storeside.runs", "dag_id"),
        *((table, "measurement") for table in OF_MEASUREMENTS),
    ],
)  # fmt: skip
def test_a_statement_without_a_condition(
    pages: Callable[..., Tables], written: Callable[..., None], table: str, column: str
) -> None:
    own, name = unique("own"), unique("dag")
    suffix = "" if column == "dag_id" else "/manual"
    rows = {dag: f"{dag}{suffix}" for dag in (f"{name}-{own}", f"{name}-other", f"{name}")}
    for text in rows.values():
        written(table, **{column: text})
    assert seen(pages("*"), table, column, name) == sorted(rows.values())
    assert seen(pages(f"{name}-{own}"), table, column, name) == [rows[f"{name}-{own}"]]
    assert seen(pages(f"{name}-{own}", "another"), table, column, name) == [rows[f"{name}-{own}"]]
    assert seen(pages(), table, column, name) == []


def test_a_run_without_a_dag(pages: Callable[..., Tables], written: Callable[..., None]) -> None:
    """Ids without a slash belong to no DAG, also if a DAG has almost the same name."""
    run = unique("run")
    written("storeside.objects", run_id=run)
    for dags in ((run,), (run[:-1],), ("",)):
        assert seen(pages(*dags), "storeside.objects", "run_id", run) == ([] if dags != ("",) else [run])


@pytest.mark.parametrize("where", ["storeside.events", "storeside.event_batches"])
def test_a_queue_of_another_dag(pages: Callable[..., Tables], written: Callable[..., None], where: str) -> None:
    name = unique("queue")
    for dag in ("own", "other"):
        written(where, queue=f"{name}-{dag}", run_id=f"{name}-{dag}/manual")
    for queue in ("own", "other", "unknown"):
        written("storeside.queue_depths", queue=f"{name}-{queue}")
    assert seen(pages(f"{name}-own"), "storeside.queue_depths", "queue", name) == [f"{name}-own"]
    assert len(seen(pages("*"), "storeside.queue_depths", "queue", name)) == 3


def test_each_table_that_the_user_may_read_has_a_policy(pages: Callable[..., Tables], clickhouse: Any) -> None:
    """All other tables of Storeside are refused: leases contain the bodies of messages."""
    for (table,) in clickhouse.query(
        "SELECT 'storeside.' || name FROM system.tables WHERE database = 'storeside'"
    ).result_rows:
        if table in visibility.POLICIES:
            assert pages("*").rows(f"SELECT count() AS rows FROM {table}")
        else:
            with pytest.raises(UnreadableError):
                pages("*").rows(f"SELECT * FROM {table} LIMIT 1")


def test_the_documented_policies_are_the_tested_ones(clickhouse: Any) -> None:
    page = (CHECKOUT / "docs" / "configuration.md").read_text()
    statements = re.findall(
        r"^CREATE ROW POLICY storeside_pages ON ([^;]+?)\s+USING ([^;]+) TO storeside_pages;$", page, re.M
    )
    documented = {table: condition for tables, condition in statements for table in tables.split(", ")}
    assert documented == visibility.POLICIES
    for tables, condition in statements:
        clickhouse.command(f"EXPLAIN AST CREATE ROW POLICY p ON {tables} USING {condition} TO storeside_pages")
