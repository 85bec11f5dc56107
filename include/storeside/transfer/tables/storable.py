"""Checks that ClickHouse can create a table with the columns of an object, and read its rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from clickhouse_connect.driver.exceptions import DatabaseError

from storeside.sql.quoting import literal
from storeside.transfer.base.errors import LimitError, LoadObjectError, is_transient, plain
from storeside.transfer.base.schema import Column, bare, resolved, structure, unquoted
from storeside.transfer.request.request import Request
from storeside.transfer.state.loads import LONG
from storeside.transfer.tables.table import LOAD_ID
from storeside.transfer.types.conversion import parts_of

if TYPE_CHECKING:
    from clickhouse_connect.driver.client import Client


# Types that every table can have, also Nullable.
_SIMPLE = {
    "String", "Bool", "Int8", "Int16", "Int32", "Int64", "UInt8", "UInt16", "UInt32", "UInt64", "Float32", "Float64",
    "Date", "Date32", "DateTime64(3)", "DateTime64(6)",
}  # fmt: skip


def refuse_unstorable(client: Client, request: Request, found: Sequence[Column]) -> None:
    """Raise LoadObjectError if no table can have the columns `found` in samples, with the options of the request."""
    columns, most = _of_table(request, found), request.limits.columns
    if not columns:
        return
    if len(columns) > most:
        raise LimitError(too_many(request.table, len(columns), most))
    refuse_same_names(columns)
    if all(bare(c.type) in _SIMPLE and c.name for c in columns):
        return
    shown = literal(structure(Column(c.name, resolved(c.type)) for c in columns))
    # With masks, a name may be a value: the first row of CSV without a header.
    unlogged = {"log_queries": 0} if request.read.columns.mask else {}
    try:
        client.query(f"DESCRIBE TABLE null({shown})", settings={**LONG, **unlogged})
    except DatabaseError as e:
        if is_transient(e):
            raise
        raise LoadObjectError(f"ClickHouse creates no table with its columns: {plain(e)}") from e


def too_many(table: str, count: int, most: int) -> str:
    """Return the reason for a table that would have more than `most` columns."""
    return (
        f"{table} would have {count} columns, but `limits` allows {most}: raise the limit, or leave out objects with"
        " many columns"
    )


def _of_table(request: Request, found: Sequence[Column]) -> list[Column]:
    """Return the columns of a table.

    Those whose types a user chose are texts: their types are checked later, and so is a name that two columns get.
    """
    options, chosen = request.read.columns, {*request.table_options.columns, *request.read.columns.cast}
    made = {
        name: Column(name, "String" if {name, c.name} & chosen else options.made(c.name, c.type))
        for c in found
        if c.name not in request.read.partition_columns and (name := options.target(c.name)) is not None
    }
    return [*made.values()]


def refuse_same_names(columns: Sequence[Column]) -> None:
    """Raise LoadObjectError for two columns, or fields of structs, that have one name on disk.

    ClickHouse 26.9 refuses such columns, or creates a table from which it cannot read any row (fields of one column).
    """
    names = Counter(name for column in columns for name in _on_disk(column.name, column.type))
    if LOAD_ID in names:
        raise LoadObjectError(
            f"column {LOAD_ID!r} has the name of the hidden column with the load of each row: rename it, or leave it"
            " out (`rename`, `drop`)"
        )
    if twice := next((name for name, times in names.items() if times > 1), ""):
        raise LoadObjectError(
            f"{twice!r} is the name of a field within a column, and of another column or field: rename one of them,"
            " or give the column the type String"
        )


def _on_disk(name: str, kind: str) -> Iterator[str]:
    """Yield the names under which ClickHouse stores the values of a column."""
    core = bare(kind)
    form = core.partition("(")[0]
    if form == "Array":
        yield from _on_disk(name, parts_of(core)[0][1])
    elif form in ("Tuple", "Map"):
        for n, (field, part) in enumerate(parts_of(core)):
            inner = ("keys", "values")[n] if form == "Map" else unquoted(field.strip()) or str(n + 1)
            yield from _on_disk(f"{name}.{inner}", part)
    else:
        yield name
