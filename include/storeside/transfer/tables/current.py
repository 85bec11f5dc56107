"""Tables of changes: checks that one fits `Upsert`, and keeps the view of its current rows."""

from __future__ import annotations

import logging
import re
from typing import TYPE_CHECKING

from clickhouse_connect.driver.exceptions import DatabaseError

from storeside.sql.answers import first_row
from storeside.sql.quoting import identifier, literal
from storeside.transfer.base.errors import ACCESS_DENIED, UNKNOWN_DATABASE, UNKNOWN_TABLE, TransferInputError, code_of
from storeside.transfer.base.schema import Column, is_nullable
from storeside.transfer.request.upsert import DELETED, Upsert, columns_of
from storeside.transfer.tables.shards import arguments_of, plain
from storeside.transfer.tables.table import LOAD_ID, Destination

if TYPE_CHECKING:
    from clickhouse_connect.driver.client import Client

log = logging.getLogger(__name__)

# The comment of the views that loads create.
_COMMENT = "The current rows of the table of changes, by a load"


def require(destination: Destination, upsert: Upsert) -> None:
    """Raise TransferInputError, with the statements that help, if a table cannot have changes of rows."""
    upsert.require(destination.name, {c.name: c.type for c in destination.columns})
    if destination.distribution is not None:
        upsert.require_of_key("sharding_key", destination.distribution.key)
    for table in destination.tables:
        if _arguments(table.engine)[1] == DELETED and columns_of(table.defaults.get(DELETED, "")) != {upsert.deleted}:
            raise TransferInputError(
                f"upsert: {table.name} takes deletions from {table.defaults[DELETED]}, not from"
                f" {upsert.deleted or 'none'}: change `deleted`, or load into another table"
            )
        if reason := _unfit(table, upsert):
            statements = ";\n".join(_remedy(table, upsert))
            raise TransferInputError(
                f"upsert: {table.name} {reason}. Create the table again and copy its rows, while no load runs:\n"
                f"{statements}"
            )
        upsert.require_of_key("partition_by", table.partition_key)


def _unfit(table: Destination, upsert: Upsert) -> str:
    """Return why a table cannot have changes of rows; empty if it can."""
    if "Replacing" not in _kind(table):
        return f"has the engine {_kind(table)}, which keeps all rows of a key"
    sorted_by = tuple(map(plain, _listed(table.sorting_key)))
    if {*sorted_by} != {*upsert.key}:
        return f"replaces rows of the key ({table.sorting_key}), not of ({', '.join(upsert.key)})"
    version, deleted = _arguments(table.engine)
    if version != upsert.version:
        return f"keeps the row with the highest {version or 'position'}, not {upsert.version}"
    if deleted not in ((DELETED, upsert.deleted) if upsert.deleted else ("",)):
        return f"takes deletions from {deleted or 'no column'}, not from {upsert.deleted or 'none'}"
    if nulls := [c.name for c in table.columns if c.name in upsert.key and is_nullable(c.type)]:
        return f"allows NULL in {', '.join(nulls)}, which is part of the key"
    return ""


def _arguments(engine: str) -> tuple[str, str]:
    """Return the columns with the version and the deletion of a ReplacingMergeTree; empty if it has none."""
    given = arguments_of(engine) if re.match(r"\w+\(", engine) else ()
    version, deleted = (*(plain(text) for text in given if text and not text.startswith("'")), "", "")[:2]
    return version, deleted


def _listed(key: str) -> list[str]:
    """Return the expressions of a sorting key."""
    return [*filter(None, arguments_of(key if key.startswith("(") else f"({key})"))]


def _remedy(table: Destination, upsert: Upsert) -> list[str]:
    """Return the statements that replace a table by one that fits, with the same rows."""
    defined = [
        c.definition + (f" DEFAULT {table.defaults[c.name]}" if c.name in table.defaults else "")
        for c in upsert.fitted(table.name, table.columns)
    ]
    if upsert.deleted:
        marker = upsert.marker(next(c.type for c in table.columns if c.name == upsert.deleted))
        defined.append(f"{identifier(DELETED)} UInt8 MATERIALIZED {marker}")
    defined.append(f"{identifier(LOAD_ID)} UInt64 MATERIALIZED 0")
    new = f"{identifier(table.database)}.{identifier(f'{table.table}_upsert')}"
    names = ", ".join(identifier(c.name) for c in (*table.columns, Column(LOAD_ID, "UInt64")))
    kind = _kind(table).replace("Replacing", "").replace("MergeTree", "ReplacingMergeTree")
    of_key = bool(table.partition_key) and columns_of(table.partition_key) <= {*upsert.key}
    return [
        f"CREATE TABLE {new} ({', '.join(defined)}) ENGINE = {upsert.engine(kind)}"
        f"{f' PARTITION BY {table.partition_key}' if of_key else ''} ORDER BY ({upsert.sorting_key})",
        f"INSERT INTO {new} ({names}) SELECT {names} FROM {table.quoted}"
        " SETTINGS insert_allow_materialized_columns = 1, insert_null_as_default = 0",
        f"EXCHANGE TABLES {new} AND {table.quoted}",
    ]


def _kind(table: Destination) -> str:
    """Return the name of a table's engine."""
    return table.engine.partition("(")[0].partition(" ")[0]


def view_name(table: str) -> str:
    """Return the name of the view with the current rows of a table."""
    return f"{table}_current"


def view(destination: Destination, upsert: Upsert) -> str:
    """Return the statement that creates the view of the current rows.

    FINAL leaves out deleted rows. A condition for them could be applied before FINAL, and an older row would be back.
    """
    names = ", ".join(identifier(name) for name in _shown(destination, upsert))
    return (
        f"CREATE OR REPLACE VIEW {identifier(destination.database)}.{identifier(view_name(destination.table))}"
        f" AS SELECT {names} FROM {destination.quoted} FINAL COMMENT {literal(_COMMENT)}"
    )


def _shown(destination: Destination, upsert: Upsert) -> list[str]:
    return [c.name for c in destination.columns if c.name != upsert.deleted]


def keep_view(destination: Destination, upsert: Upsert) -> None:
    """Create the view of the current rows, or renew it if the table has other columns now.

    A table or view of this name that no load has created stays as it is. Raises TransferInputError if the user of the
    load may not create views.
    """
    for client in (destination.client, *destination.others):
        _keep_view(client, destination, upsert)


def _keep_view(client: Client, destination: Destination, upsert: Upsert) -> None:
    name = view_name(destination.table)
    there, comment, columns = first_row(
        client.query(
            "SELECT count(), any(comment), (SELECT groupArray(name) FROM (SELECT name FROM system.columns"
            " WHERE database = {database:String} AND table = {table:String} ORDER BY position))"
            " FROM system.tables WHERE database = {database:String} AND name = {table:String}",
            parameters={"database": destination.database, "table": name},
        )
    )
    if there and comment != _COMMENT:
        log.info("%s.%s was not created by a load and stays as it is", destination.database, name)
        return
    if list(columns) == _shown(destination, upsert):
        return
    statement = view(destination, upsert)
    try:
        client.command(statement)
    except DatabaseError as e:
        if client is not destination.client and code_of(e) in (UNKNOWN_TABLE, UNKNOWN_DATABASE):
            return  # only some servers may have the Distributed table
        if code_of(e) != ACCESS_DENIED:
            raise
        raise TransferInputError(
            f"upsert: the user of the load may not create the view {destination.database}.{name}: GRANT CREATE VIEW,"
            f" DROP VIEW ON {identifier(destination.database)}.* TO that user, or create it: {statement}"
        ) from e
