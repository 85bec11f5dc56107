"""``storeside lost-codes s3://bucket/prefix database.table``: lists columns that have lost codes.

Columns of numbers have lost the zeros of ``02134`` and the plus of ``+49170…`` in text objects that were loaded into
them. The command reads the loaded objects again, with ClickHouse, and changes nothing. The environment variables are
those of ``storeside load``.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from storeside.aistore.buckets import common_prefix
from storeside.sql.quoting import identifier, literal
from storeside.transfer.base.errors import TransferInputError
from storeside.transfer.base.schema import Column, bare, structure
from storeside.transfer.cli import clickhouse, exit_code, ledger, request, servers, transfer_arguments
from storeside.transfer.formats.registry import settings_of
from storeside.transfer.request.object_format import Format
from storeside.transfer.request.request import Request
from storeside.transfer.request.source import wild
from storeside.transfer.state.loads import LONG, LONG_STATEMENT
from storeside.transfer.tables.servers import NO_SERVERS, Servers
from storeside.transfer.tables.table import Destination, existing
from storeside.transfer.types.conversion import code

if TYPE_CHECKING:
    from clickhouse_connect.driver.client import Client

# Columns and objects of one statement.
_COLUMNS, _OBJECTS = 100, 1000
_NUMBER = re.compile(r"U?Int\d+|Float\d+|Decimal.*")


@dataclass(frozen=True)
class Lost:
    """A column of a table whose objects have `values` that it does not keep, such as `example` in object `key`."""

    column: str
    type: str
    values: int
    example: str
    key: str


def lost_codes(client: Client, wanted: Request, keys: Sequence[str], servers: Servers = NO_SERVERS) -> list[Lost]:
    """Return the columns of numbers whose text in these objects is not that of a number, in the table's order.

    Rows that cannot be parsed are left out. Raises TransferInputError for a table that does not exist, and for
    objects that ClickHouse cannot read.
    """
    form = wanted.form("csv" if wanted.format == "auto" else wanted.format)
    if not (form.is_text and form.is_native) or wanted.source.only_by_worker:
        raise TransferInputError(f"{wanted.source.uri}: only text that ClickHouse itself reads can be compared")
    found: dict[str, Lost] = {}
    numbers = _numbers(existing(client, wanted.table, servers), wanted, form)
    for first in range(0, len(numbers), _COLUMNS):
        columns = numbers[first : first + _COLUMNS]
        for begin in range(0, len(keys), _OBJECTS):
            for lost in _lost(client, wanted, form, columns, keys[begin : begin + _OBJECTS]):
                earlier = found.get(lost.column)
                found[lost.column] = replace(earlier, values=earlier.values + lost.values) if earlier else lost
    return [*found.values()]


def _numbers(destination: Destination, wanted: Request, form: Format) -> list[tuple[str, Column]]:
    """Return the columns of numbers of a table, each with its name in the objects."""
    named = [(wanted.read.columns.source(c.name), c) for c in destination.columns if _NUMBER.fullmatch(bare(c.type))]
    return [(name, c) for name, c in named if name and (not form.csv.names or name in form.csv.names)]


def _lost(
    client: Client, wanted: Request, form: Format, columns: Sequence[tuple[str, Column]], keys: Sequence[str]
) -> list[Lost]:
    """Return what one statement finds in some of the columns and objects."""
    source = wanted.source
    names = form.csv.names or [name for name, _ in columns]
    read = structure(Column(name, "Nullable(String)") for name in names)
    is_listed = len(keys) > 1 and not source.by_url and not wild(common_prefix(keys))
    # A condition excludes objects that no longer exist.
    place = (source.among if is_listed else source.objects)(keys, form.clickhouse, read)
    parts = []
    for name, column in columns:
        fault = code(identifier(name), bare(column.type))
        parts.append(f"countIf({fault}), minIf(({source.key}, {identifier(name)}), {fault})")
    row = client.query(
        f"SELECT {', '.join(parts)} FROM {place}{f' WHERE {source.only(keys)}' if is_listed else ''}",
        settings={
            **settings_of(form), **LONG, "use_hive_partitioning": 0, "max_query_size": LONG_STATEMENT,
            "input_format_skip_unknown_fields": 1, "input_format_allow_errors_ratio": 1,
        },
    ).result_rows[0]  # fmt: skip
    return [
        Lost(column.name, column.type, int(count), example, key)
        for (_, column), count, (key, example) in zip(columns, row[::2], row[1::2], strict=True)
        if count
    ]


def loaded_keys(tables: Client, wanted: Request) -> list[str]:
    """Return the keys of the source's objects that the table has, by the ledger."""
    rows = tables.query(
        "SELECT DISTINCT key FROM storeside.loads FINAL WHERE destination = {table:String}"
        " AND bucket = {bucket:String} AND state = 'loaded' AND rows > 0"
        f" AND match(key, {literal(wanted.source.regex)}) ORDER BY key",
        parameters={"table": wanted.table, "bucket": wanted.source.bucket},
    ).result_rows
    return [key for (key,) in rows]


def main(arguments: Sequence[str] | None = None) -> int:
    """List the columns that have lost codes; return 1 if there are some, and 2 for an error."""
    given = transfer_arguments(
        "storeside lost-codes", "Lists columns of numbers that have lost zeros or signs of their objects' text.",
        example="storeside lost-codes s3://trips/2026/ analytics.trips",
        codes="1 if a column has lost codes, 2 if the objects cannot be compared",
    ).parse_args(arguments)  # fmt: skip

    def listed() -> int:
        wanted, client = request(given), clickhouse()
        keys = loaded_keys(ledger() or client, wanted)
        if not keys:
            raise TransferInputError(f"the ledger has no object of {wanted.source.uri} in {wanted.table}")
        found = lost_codes(client, wanted, keys, servers())
        for lost in found:
            such = f"{lost.values} values, such as {lost.example!r} in {lost.key!r}"
            print(f"column {lost.column!r} ({lost.type}): {such}")
        print(f"{len(keys)} objects, {len(found)} columns with codes that they do not keep")
        return 1 if found else 0

    return exit_code(listed)


if __name__ == "__main__":
    sys.exit(main())
