"""Creates the destination table of a load."""

from __future__ import annotations

import logging
import re
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from clickhouse_connect.driver.exceptions import DatabaseError

from storeside.sql.quoting import identifier, literal
from storeside.transfer.base.errors import UNKNOWN_DATABASE, UNKNOWN_IDENTIFIER, TransferInputError, code_of
from storeside.transfer.base.schema import Column, bare
from storeside.transfer.request.options import TableOptions
from storeside.transfer.request.upsert import DELETED
from storeside.transfer.tables.servers import NO_SERVERS, Servers
from storeside.transfer.tables.shards import Distribution, shards_of
from storeside.transfer.tables.storable import too_many
from storeside.transfer.tables.table import INFERRED, LOAD_ID, Destination, existing, names_column

if TYPE_CHECKING:
    from clickhouse_connect.driver.client import Client

log = logging.getLogger(__name__)

# ClickHouse's error about a key or a TTL of columns that the table lacks; a list of all hidden columns follows.
_ABSENT = re.compile(r"Missing columns: (?P<names>'[^:]{1,2000}?') while processing")


def ddl(name: str, columns: Sequence[Column], options: TableOptions, inferred: Collection[str] = ()) -> str:
    """Return the CREATE TABLE of a destination. Columns of its sorting key are never Nullable.

    The types of `inferred` columns come from text. Raises TransferInputError if columns do not fit `upsert`.
    """
    database, _, table = name.partition(".")
    sorting_key, partition_key, lifetime = options.sorting_key, options.partition_key, options.lifetime
    engine = options.engine if "(" in options.engine else f"{options.engine}()"
    if upsert := options.upsert:
        columns = upsert.fitted(name, columns)
        sorting_key, engine = upsert.sorting_key, upsert.engine(options.engine)
    key = f"{sorting_key} {partition_key}"
    parts = []
    for column in columns:
        low = column.type.startswith("LowCardinality(")
        plain = f"LowCardinality({bare(column.type)})" if low else bare(column.type)
        definition = replace(column, type=plain if names_column(key, column.name) else column.type).definition
        parts.append(f"{definition} COMMENT {literal(INFERRED)}" if column.name in inferred else definition)
    if upsert.deleted:
        kind = next(c.type for c in columns if c.name == upsert.deleted)
        parts.append(f"{DELETED} UInt8 MATERIALIZED {upsert.marker(kind)}")
    parts.append(f"{LOAD_ID} UInt64 MATERIALIZED 0")
    clauses = [
        f"CREATE TABLE IF NOT EXISTS {identifier(database)}.{identifier(table)} (\n    "
        + ",\n    ".join(parts)
        + "\n)",
        f"ENGINE = {engine}",
        f"ORDER BY ({sorting_key or 'tuple()'})",
    ]
    if partition_key:
        clauses.append(f"PARTITION BY ({partition_key})")
    if lifetime:
        clauses.append(f"TTL {lifetime}")
    return "\n".join(clauses)


def statements(
    name: str, columns: Sequence[Column], options: TableOptions, inferred: Collection[str] = ()
) -> list[str]:  # fmt: skip
    """Return the statements that create a destination: one, or that of the shards' tables and of the Distributed one.

    For `inferred` see `ddl`.
    """
    if not options.cluster:
        return [ddl(name, columns, options, inferred)]
    database, _, table = name.partition(".")
    engine = _distribution(name, options)
    whole = (
        f"CREATE TABLE IF NOT EXISTS {identifier(database)}.{identifier(table)}"
        f" AS {identifier(database)}.{identifier(engine.table)} ENGINE = {engine.sql}"
    )
    return [ddl(engine.local, columns, options, inferred), whole]


def _distribution(name: str, options: TableOptions) -> Distribution:
    database, _, table = name.partition(".")
    return Distribution(options.cluster, database, f"{table}_local", f"({options.division})")


def create(
    client: Client, name: str, columns: Sequence[Column], options: TableOptions, most_columns: int,
    servers: Servers = NO_SERVERS, *, with_database: bool = True, inferred: Collection[str] = (),
) -> Destination:  # fmt: skip
    """Create a destination, and its database if it does not exist, and return the destination.

    A Distributed table is created on the server of each shard of its cluster, after the table with the shard's rows.
    Raises TransferInputError for too many columns, and for a missing database without `with_database`. Raises
    ClickHouse's errors. For `inferred` see `ddl`.
    """
    if len(columns) > most_columns:
        raise TransferInputError(too_many(name, len(columns), most_columns))
    try:
        return _created(client, name, columns, options, servers, with_database, inferred)
    except DatabaseError as e:
        absent = _ABSENT.search(str(e)) if code_of(e) == UNKNOWN_IDENTIFIER else None
        if absent is None:
            raise
        raise TransferInputError(
            f"{name} has no column {absent['names']}, which order_by, partition_by or another option of the table"
            f" names: choose from {', '.join(sorted(c.name for c in columns))}"
        ) from e


def _created(
    client: Client, name: str, columns: Sequence[Column], options: TableOptions, servers: Servers,
    with_database: bool, inferred: Collection[str],
) -> Destination:  # fmt: skip
    if not options.cluster:
        _execute(client, name, ddl(name, columns, options, inferred), with_database)
        return existing(client, name)
    engine = _distribution(name, options)
    shards = shards_of(engine, name, client, servers)
    local, whole = statements(name, columns, options, inferred)
    for shard in shards:
        _execute(shard, name, local, with_database)
    for shard in sorted(shards, key=lambda shard: shard is client):  # a load sees the table on its own server
        _execute(shard, name, whole, with_database)
    return existing(client, name, servers)


def no_database(name: str) -> str:
    """Return why a form creates no table whose database does not exist."""
    return (
        f"table {name}: the database {name.partition('.')[0]!r} does not exist, and forms may not create it: create"
        " it in ClickHouse, or list it in `databases` (docs/configuration.md, What forms may name)"
    )


def _execute(client: Client, name: str, statement: str, with_database: bool) -> None:
    """Create a table, and its database if it does not exist and may be created."""
    log.info("creating the table:\n%s", statement)
    try:
        client.command(statement)
    except DatabaseError as e:
        if code_of(e) != UNKNOWN_DATABASE:
            raise
        database = name.partition(".")[0]
        if not with_database:
            raise TransferInputError(no_database(name)) from e
        client.command(f"CREATE DATABASE IF NOT EXISTS {identifier(database)}")
        client.command(statement)
