"""Statements of a transfer that ClickHouse works on: named after what they fill, so that any process finds them."""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from clickhouse_connect.driver.exceptions import DatabaseError

from include.transfer.errors import Cancelled, TransientError

_MARK = "storeside-"
_CHECK = "storeside-check-"
_POLL_SECONDS = 0.5
# ClickHouse writes its logs by itself this often (config.xml, flush_interval_milliseconds), and a little more.
_FLUSH_SECONDS = 8.0
# What a statement may take of the server's memory: half of it, or so many bytes where that is more.
_SHARE, _LEAST = 2, 2 << 30


def tables_of(transfer: str, batch: int | None = None) -> str:
    """Return what the names of all staging tables of a transfer, or of one of its batches, begin with."""
    return f"load_{transfer}_" if batch is None else f"load_{transfer}_{batch}_"


def query_id(table: str, number: int) -> str:
    """Return the id of a statement that fills a staging table."""
    return f"{_MARK}{table}-{number}"


def check_id(table: str, number: int) -> str:
    """Return the id of a statement that reads objects of a staging table and does not fill it."""
    return f"{_CHECK}{table}-{number}"


def table_of(query: str) -> str:
    """Return the staging table that the statement with this id fills."""
    return query.removeprefix(_MARK).partition("-")[0]


def running(client: Any, tables: str) -> dict[str, int]:
    """Return the ids of statements that fill staging tables with this beginning, and the rows that each has read."""
    rows = client.query(
        "SELECT query_id, read_rows FROM system.processes WHERE startsWith(query_id, {prefix:String})",
        parameters={"prefix": _MARK + tables},
    ).result_rows
    return dict(rows)


def kill(client: Any, tables: str, *, wait: bool) -> None:
    """End the statements that fill staging tables with this beginning."""
    client.command(
        "KILL QUERY WHERE startsWith(query_id, {prefix:String}) OR startsWith(query_id, {check:String})"
        f" {'SYNC' if wait else 'ASYNC'}",
        parameters={"prefix": _MARK + tables, "check": _CHECK + tables},
    )


def follow(client: Any, query: str, stop: threading.Event) -> None:
    """Wait for a statement whose connection was lost; returns when it has succeeded.

    Raises TransientError when it failed, or when ClickHouse does not know: then it has to be run again.
    """
    while client.query(
        "SELECT 1 FROM system.processes WHERE query_id = {id:String}", parameters={"id": query}
    ).result_rows:
        if stop.wait(_POLL_SECONDS):
            raise Cancelled("the transfer was stopped")
    try:
        client.command("SYSTEM FLUSH LOGS")
    except DatabaseError:  # no right to
        stop.wait(_FLUSH_SECONDS)
    try:
        rows = client.query(
            "SELECT toString(type), exception FROM system.query_log WHERE query_id = {id:String}"
            " AND type != 'QueryStart' AND event_date >= today() - 1",
            parameters={"id": query},
        ).result_rows
    except DatabaseError:  # no log, or no right to read it
        rows = []
    if not rows or rows[0][0] != "QueryFinish":
        raise TransientError(f"query {query} was lost{f': {rows[0][1]}' if rows else ''}")


def bound_memory(client: Any) -> None:
    """Have no statement of a client take more than half of the server's memory, unless the user's profile says more.

    ClickHouse sets no limit by itself. A row of gigabytes, in whatever object, would take all there is, fail the
    queries of others with it, and look like a server that is busy.
    """
    name = "max_memory_usage"
    limit = client.server_settings.get(name)
    if limit is None or limit.value != "0" or limit.readonly or client.get_client_setting(name) is not None:
        return
    try:
        rows = client.query(
            "SELECT toUInt64(value) AS total FROM system.server_settings WHERE name = 'max_server_memory_usage'"
            " AND total > 0 AND (SELECT max IS NULL FROM system.settings WHERE name = {name:String})",
            parameters={"name": name},
        ).result_rows
    except DatabaseError:  # no right to
        return
    for (total,) in rows:
        client.set_client_setting(name, str(max(total // _SHARE, _LEAST)))


def at_once(first: Callable[[], Any], *others: Callable[[], Any]) -> tuple[Any, ...]:
    """Call all at the same time, and return what they return; the first is called in this thread."""
    with ThreadPoolExecutor(len(others)) as pool:
        futures = [pool.submit(contextvars.copy_context().run, call) for call in others]
        return (first(), *(future.result() for future in futures))
