"""The names of staging tables, and the sweep that drops staging tables without a process.

Other users of ClickHouse may have the right to create tables in the database, so names and comments in it are input:
statements quote them, and the sweep drops only names that Storeside generates.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from storeside.sql.answers import first_row
from storeside.sql.quoting import identifier

if TYPE_CHECKING:
    from clickhouse_connect.driver.client import Client

STAGING = "storeside_staging"
# A broken lock keeps its name while another process may try to break it, and is dropped after an hour.
BROKEN = "broken_"
BROKEN_HOURS = 1
# The age of tables of a run that failed and was never cleared.
STALE_HOURS = 7 * 24
# The ids of previews begin with this text. Their tables are dropped after an hour, like broken locks.
PREVIEWS = "0" * 8
# Batches of transfers, locks, and the tables of the doctor, and of the speech manifest of earlier versions.
_GENERATED = (
    "load_[0-9a-f]{16}_[0-9]+_[0-9a-f]{8}_[0-9]+(_bad|_shard_[0-9a-f]{8}(_all)?)?|lock_[0-9a-f]{24}|broken_[0-9a-f-]{36}"
    "|(facts|invalid|speech)_[0-9a-f]{16}|doctor_[0-9a-f]{12}"
)


def bad_table(table: str) -> str:
    """Return the name of the table with the rows of a staging table that break expectations."""
    return f"{table}_bad"


def part_of(table: str) -> str:
    """Return a new name for the tables that receive the rows of a staging table on the shards.

    Each attempt has another name: a statement of an earlier attempt, whose connection was lost, may still add rows.
    """
    return f"{table}_shard_{secrets.token_hex(4)}"


def whole_of(part: str) -> str:
    """Return the name of the Distributed table over the tables `part` of all shards."""
    return f"{part}_all"


def drop_parts(client: Client, table: str) -> None:
    """Drop the tables with rows of a staging table on a shard, those of all attempts."""
    names = client.query(
        f"SELECT name FROM system.tables WHERE database = '{STAGING}' AND startsWith(name, {{prefix:String}})",
        parameters={"prefix": f"{table}_shard_"},
    ).result_rows
    for (name,) in names:
        if is_generated(name):
            client.command(f"DROP TABLE IF EXISTS {STAGING}.{identifier(name)} SYNC")


def is_generated(name: str) -> bool:
    """Return whether Storeside generates names of this form for tables in the staging database."""
    return re.fullmatch(_GENERATED, name) is not None


# Two values of a statement: the staging tables that are to be dropped, and the number of statements that fill them.
LEFTOVERS = (
    f"(SELECT groupArray(name) FROM system.tables WHERE database = '{STAGING}'"
    " AND ({mine:String} != '' AND startsWith(name, {mine:String}) OR metadata_modification_time < now()"
    f" - toIntervalHour(if(comment = '{BROKEN}' OR startsWith(name, 'load_{PREVIEWS}'), {BROKEN_HOURS},"
    f" {STALE_HOURS})))),"
    " (SELECT count() FROM system.processes"
    " WHERE {statements:String} != '' AND startsWith(query_id, {statements:String}))"
)


def sweep(client: Client, mine: str = "", statements: str = "") -> bool:
    """Drop stale staging tables, and staging tables of any age whose names begin with `mine`.

    If statements run whose ids begin with `statements`, return False and drop nothing. Raises DatabaseError.
    """
    found = first_row(client.query(f"SELECT {LEFTOVERS}", parameters={"mine": mine, "statements": statements}))
    return drop_left(client, found)


def drop_left(client: Client, leftovers: Sequence[Any]) -> bool:
    """Drop the tables in the values of `LEFTOVERS`; return False, and drop nothing, if statements fill them."""
    names, running = leftovers
    if running:
        return False
    for name in names:
        if is_generated(name):
            client.command(f"DROP TABLE IF EXISTS {STAGING}.{identifier(name)} SYNC")
    return True
