"""The columns of formats whose objects do not state them: Protobuf and MsgPack, with the schema of the request."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from clickhouse_connect.driver.exceptions import DatabaseError

from storeside.transfer.base.errors import DriftError, LoadObjectError, TransferInputError, is_transient, plain
from storeside.transfer.base.schema import Column, bare, is_nested, is_nullable, nullable
from storeside.transfer.formats.avro_schema import AvroField, AvroShape
from storeside.transfer.formats.proto_schema import ProtoSchema
from storeside.transfer.request.object_format import Format, MessageSchema
from storeside.transfer.request.options import REST, SYSTEM_COLUMNS
from storeside.transfer.tables.table import Destination

if TYPE_CHECKING:
    from clickhouse_connect.driver.client import Client

_SMALL = re.compile(r"\b(?:U?Int(?:8|16|32)|Bool)\b")


class Protobuf:
    """Messages of a ``.proto`` schema."""

    def settings(self, form: Format) -> dict[str, Any]:
        """Return the settings that give ClickHouse the schema."""
        return {
            "format_schema_source": "string", "format_schema": form.schema.text,
            "format_schema_message_name": form.schema.message,
        }  # fmt: skip

    def check(self, client: Client, form: Format, settings: Mapping[str, Any]) -> None:
        """Raise TransferInputError if ClickHouse reads other columns than this load, or refuses the schema."""
        fields = self.columns(form, {})  # before ClickHouse, which sets no limit
        try:
            rows = client.query(
                f"DESCRIBE TABLE format({form.clickhouse}, '')", settings=dict(settings)
            ).result_rows  # fmt: skip
        except DatabaseError as e:
            if is_transient(e):
                raise
            raise TransferInputError(f"schema: ClickHouse does not accept it: {plain(e)}") from e
        names = [c.name for c in fields]
        # ClickHouse's inference flattens a message of one field: `a` with the field `b` is `a_b`.
        if len(rows) != len(names) or not all(
            row[0] == name or row[0].startswith(f"{name}_") for row, name in zip(rows, names, strict=True)
        ):
            raise TransferInputError(
                f"schema: ClickHouse reads it as the columns {', '.join(row[0] for row in rows)}, and this load as"
                f" {', '.join(names)}: write it in a simpler way"
            )

    def columns(self, form: Format, given: Mapping[str, str]) -> list[Column]:
        """Return the columns of the message."""
        return list(_columns(form.schema)[0])

    def shape(self, form: Format, destination: Destination) -> AvroShape:
        """Return how ClickHouse reads the fields of the message."""
        columns, texts = _columns(form.schema)
        return AvroShape(tuple(AvroField(c.name, c.type, c.type, is_text=c.name in texts) for c in columns))


class MsgPack:
    """Rows of values whose names the request gives, and whose types the table has."""

    def settings(self, form: Format) -> dict[str, Any]:
        """Return no settings."""
        return {}

    def check(self, client: Client, form: Format, settings: Mapping[str, Any]) -> None:
        """Do nothing: there is no schema."""

    def columns(self, form: Format, given: Mapping[str, str]) -> list[Column]:
        """Return the columns with the types that are `given`. Raises TransferInputError if one has none."""
        names = form.schema.names or tuple(given)
        if missing := [name for name in names if name not in given] or ([] if names else ["all"]):
            raise TransferInputError(
                f"format 'msgpack': its objects state no columns: create the table, or set the types of {missing}"
                ' with table.columns, such as {"n": "Int64"}'
            )
        return [Column(name, given[name]) for name in names]

    def shape(self, form: Format, destination: Destination) -> AvroShape:
        """Return how ClickHouse reads the values as the table's columns. Raises DriftError."""
        own = (*SYSTEM_COLUMNS, REST, *destination.partitions)
        types = {c.name: c.type for c in destination.columns if c.name not in own}
        fields = []
        for name in form.schema.names or types:
            if name not in types:
                raise DriftError(f"column {name!r} is not in {destination.name}")
            kind = _unwrapped(types[name])
            fields.append(AvroField(name, kind, kind, is_text=bare(kind) == "String"))
        if not fields:
            raise LoadObjectError(f"{destination.name} has no column for the values of MsgPack")
        return AvroShape(tuple(fields))


@lru_cache(maxsize=8)
def _columns(schema: MessageSchema) -> tuple[tuple[Column, ...], frozenset[str]]:
    """Return what `ProtoSchema.columns` does; every batch asks for the same."""
    columns, texts = ProtoSchema(schema.text).columns(schema.message)
    return tuple(columns), frozenset(texts)


def _unwrapped(kind: str) -> str:
    """Return the type to read a value of MsgPack as, because ClickHouse 26.9 wraps integers in smaller types."""
    wide = _SMALL.sub("Int64", bare(kind))
    if is_nested(kind):
        return wide
    return nullable(wide) if is_nullable(kind) else wide
