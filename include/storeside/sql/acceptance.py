"""Accepts failures in a ledger: runs skip these versions of objects and state it no longer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from storeside.sql.answers import first_row

if TYPE_CHECKING:
    from clickhouse_connect.driver.client import Client


def accept(client: Client, table: str, those: str, parameters: Mapping[str, Any], who: str) -> int:
    """Record that `who` accepts the failures in the rows of a ledger's `table`; return their number.

    `those` is a condition for these rows, with `parameters`. The new rows are a millisecond later than the failures,
    so that a record of another run meanwhile stays the newest row.
    """
    count = first_row(client.query(f"SELECT count() FROM {table} FINAL WHERE {those}", parameters={**parameters}))
    client.command(
        f"INSERT INTO {table} SELECT * REPLACE ({{who:String}} AS accepted_by, now64(3) AS accepted_at,"
        f" recorded_at + toIntervalMillisecond(1) AS recorded_at) FROM (SELECT * FROM {table} FINAL WHERE {those})"
        " SETTINGS async_insert = 0",
        parameters={**parameters, "who": who},
    )
    return int(count[0])
