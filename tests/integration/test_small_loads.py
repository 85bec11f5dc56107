"""A load of one small object costs few statements, and no fewer than its guarantees need.

`storeside.transfer.run.engine` lists the statements of such a load with the reason for each.
"""

from __future__ import annotations

from typing import Any

import pytest

from storeside.transfer.run.engine import Transfer
from tests.support import unique
from tests.transfers import Loading

# Statements of a load into an existing table, and of the first load of a client, into a new table.
KNOWN, FIRST = 15, 18


def counted(client: Any, label: str) -> Any:
    """Let ClickHouse's log name the statements of a client."""
    client.set_client_setting("log_comment", label)
    return client


def statements(loading: Loading, label: str) -> list[str]:
    loading.clickhouse.command("SYSTEM FLUSH LOGS")
    return [
        text
        for (text,) in loading.query(
            "SELECT query FROM system.query_log WHERE log_comment = {l:String} AND type != 'QueryStart'"
            " ORDER BY query_start_time_microseconds",
            l=label,
        )
    ]


@pytest.mark.essential
@pytest.mark.parametrize("loader", ["pull", "push"])
def test_a_small_load_needs_few_statements(loading: Loading, loader: Any) -> None:
    client = loading.client()
    for number, most in enumerate((FIRST, KNOWN, KNOWN)):
        loading.put({f"{number}.csv": b"id,word\n1,a\n2,b\n"})
        label = unique("small")
        request = loading.transfer(f"{number}.csv", format="csv", loader=loader).request
        transfer = Transfer(request, counted(client, label), loading.s3, unique("run"))
        report = transfer.run(transfer.prepare())
        assert (report.loaded, report.rows) == (1, 2)
        found = statements(loading, label)
        assert len(found) <= most, "\n".join(found)
    assert loading.query(f"SELECT count() FROM {loading.table}") == [(6,)]


@pytest.mark.essential
def test_a_table_that_another_session_alters_between_two_loads_is_noticed(loading: Loading) -> None:
    client = loading.client()

    def load(key: str, content: bytes) -> None:
        loading.put({key: content})
        request = loading.transfer(key, format="csv", loader="pull").request
        transfer = Transfer(request, client, loading.s3, unique("run"))
        assert transfer.run(transfer.prepare()).loaded == 1

    load("0.csv", b"id,word\n1,a\n")
    loading.clickhouse.command(
        f"ALTER TABLE {loading.table} ADD COLUMN more Nullable(String), MODIFY COLUMN id Nullable(String)"
    )
    load("1.csv", b"id,word,more\n002,b,c\n")
    assert loading.rows("id, word, more") == [("002", "b", "c"), ("1", "a", None)]
    loading.clickhouse.command(f"DROP TABLE {loading.table}")
    loading.clickhouse.command(f"DELETE FROM storeside.loads WHERE destination = '{loading.table}'")
    load("2.csv", b"other\nx\n")
    assert loading.rows("other") == [("x",)]
