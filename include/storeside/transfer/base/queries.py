"""Finds, follows and kills a transfer's statements; their ids name the table that they fill, for any process."""

from __future__ import annotations

import contextlib
import contextvars
import re
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from clickhouse_connect.driver.exceptions import DatabaseError, OperationalError

from storeside.sql.answers import first_row
from storeside.transfer.base.errors import TransferCancelled, TransferTransientError

if TYPE_CHECKING:
    from clickhouse_connect.driver.client import Client

_MARK = "storeside-"
_CHECK = "storeside-check-"
_POLL_SECONDS = 0.5
# Slightly longer than the interval at which ClickHouse writes its logs (config.xml, flush_interval_milliseconds).
_FLUSH_SECONDS = 8.0
# A statement's memory limit: half of the server's memory, or this number of bytes if that is more.
_SHARE, _LEAST = 2, 2 << 30


def tables_of(transfer: str, batch: int | None = None) -> str:
    """Return the common prefix of the names of all staging tables of a transfer, or of one batch."""
    return f"load_{transfer}_" if batch is None else f"load_{transfer}_{batch}_"


def filling(tables: str) -> str:
    """Return the common prefix of the ids of statements that fill staging tables with this prefix."""
    return _MARK + tables


def query_id(table: str, number: int) -> str:
    """Return the id of a statement that fills a staging table."""
    return f"{_MARK}{table}-{number}"


def check_id(table: str, number: int) -> str:
    """Return the id of a statement that reads a staging table's objects but does not fill the table."""
    return f"{_CHECK}{table}-{number}"


def table_of(query: str) -> str:
    """Return the staging table that the statement with this id fills."""
    return query.removeprefix(_MARK).partition("-")[0]


def running(client: Client, tables: str) -> dict[str, int]:
    """Return the ids of running statements that fill staging tables with this prefix, and the rows each has read."""
    rows = client.query(
        "SELECT query_id, read_rows FROM system.processes WHERE startsWith(query_id, {prefix:String})",
        parameters={"prefix": filling(tables)},
    ).result_rows
    return {query_id: read for query_id, read in rows}


def being_read(client: Client, tables: str) -> tuple[int, int]:
    """Return the rows and the bytes of objects that running statements have read to fill tables with this prefix."""
    found = client.query(
        "SELECT sum(read_rows), sum(ProfileEvents['ReadBufferFromS3Bytes']"
        " + ProfileEvents['ReadWriteBufferFromHTTPBytes'])"
        " FROM system.processes WHERE startsWith(query_id, {prefix:String})",
        parameters={"prefix": filling(tables)},
    )
    rows, size = first_row(found)
    return int(rows), int(size)


def kill(client: Client, tables: str, *, wait: bool) -> None:
    """Kill the statements that fill staging tables with this prefix."""
    client.command(
        "KILL QUERY WHERE startsWith(query_id, {prefix:String}) OR startsWith(query_id, {check:String})"
        f" {'SYNC' if wait else 'ASYNC'}",
        parameters={"prefix": _MARK + tables, "check": _CHECK + tables},
    )


def follow(client: Client, query: str, stop: threading.Event) -> None:
    """Wait for a statement whose connection was lost; return when it has succeeded.

    Raises TransferCancelled after `stop`, and TransferTransientError when the statement failed or its outcome is
    unknown: it must then run again.
    """
    while client.query(
        "SELECT 1 FROM system.processes WHERE query_id = {id:String}", parameters={"id": query}
    ).result_rows:
        if stop.wait(_POLL_SECONDS):
            raise TransferCancelled("the transfer was stopped")
    try:
        client.command("SYSTEM FLUSH LOGS")
    except DatabaseError:  # the user lacks the privilege
        stop.wait(_FLUSH_SECONDS)
    try:
        rows = client.query(
            "SELECT toString(type), exception FROM system.query_log WHERE query_id = {id:String}"
            " AND type != 'QueryStart' AND event_date >= today() - 1",
            parameters={"id": query},
        ).result_rows
    except DatabaseError:  # ClickHouse writes no log, or the user may not read it
        rows = []
    if not rows or rows[0][0] != "QueryFinish":
        raise TransferTransientError(f"query {query} was lost{f': {rows[0][1]}' if rows else ''}")


def bound(client: Client, seconds: int) -> None:
    """Limit memory and time (seconds) of each statement of a client, unless the user's profile sets limits."""
    bound_memory(client)
    name = "max_execution_time"
    limit = client.server_settings.get(name)
    if limit is None or (limit.value == "0" and not limit.readonly and client.get_client_setting(name) is None):
        client.set_client_setting(name, str(seconds))


def bound_memory(client: Client) -> None:
    """Limit each statement of a client to half of the server's memory, unless the user's profile sets a limit.

    ClickHouse sets no limit by default. A row of gigabytes in one object would use all memory and make queries of
    other users fail, and its error would look like that of a busy server.
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
    except DatabaseError:  # the user lacks the privilege
        return
    for (total,) in rows:
        client.set_client_setting(name, str(max(total // _SHARE, _LEAST)))


def abandon(client: Client, query: str) -> None:
    """Kill one statement, if it runs, without waiting for its end."""
    with contextlib.suppress(DatabaseError, OperationalError):
        client.command("KILL QUERY WHERE query_id = {id:String} ASYNC", parameters={"id": query})


def fewer_parsers(client: Client) -> dict[str, int]:
    """Return the setting that lets half of the cores parse a text object; none if the server configures a number.

    The other half converts, sorts, writes and checks the parsed rows. With a single parser, ClickHouse also skips its
    search for row ends before parsing. For CSV without `input_format_csv_trim_whitespaces`, ClickHouse 26.9 counts a
    reference to the column's type at each value, and all parsers share that counter: two parsers on two cores took 40
    % more CPU than one, and were 13 % faster. For compressed objects another thread decompresses first.
    """
    name = "max_parsing_threads"
    known = client.server_settings.get(name)
    if known is None or known.readonly or not (cores := re.fullmatch(r"auto\((\d+)\)", known.value)):
        return {}
    return {name: max(1, int(cores[1]) // 2)}


def at_once(first: Callable[[], Any], *others: Callable[[], Any]) -> tuple[Any, ...]:
    """Call all functions at the same time and return their results; the first runs in this thread."""
    with ThreadPoolExecutor(len(others)) as pool:
        futures = [pool.submit(contextvars.copy_context().run, call) for call in others]
        return (first(), *(future.result() for future in futures))
