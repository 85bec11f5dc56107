"""Reads the header of Avro objects, and composes how ClickHouse reads their rows.

https://avro.apache.org/docs/1.12.0/specification/#object-container-files describes the header.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cached_property
from typing import Any

from storeside.transfer.avro_container import MAGIC, AvroBytes, header
from storeside.transfer.avro_schema import AvroField, AvroShape, sent_schema, shape_of
from storeside.transfer.content import Content
from storeside.transfer.conversion import converted, fits
from storeside.transfer.errors import DriftError, LoadObjectError
from storeside.transfer.formats import Format
from storeside.transfer.nulls import holds, refusal
from storeside.transfer.options import REST
from storeside.transfer.parquet import Nested
from storeside.transfer.partitions import both
from storeside.transfer.reading import Check, Reading
from storeside.transfer.schema import NOTHING, Column, bare, is_nullable, nullable
from storeside.transfer.source import identifier, literal
from storeside.transfer.statement import (
    as_map,
    check_columns,
    in_keys,
    only_nulls,
    valid_text,
    whole_value,
    within_years,
)
from storeside.transfer.table import Destination

_FIRST, _LARGEST = 64 << 10, 16 << 20
# The codecs that ClickHouse 26.9 reads.
_CODECS = ("null", "deflate", "snappy", "zstandard")


class AvroObject:
    """An Avro object, whose header is fetched once at first use. Every method raises LoadObjectError."""

    def __init__(self, content: Content) -> None:
        self.content = content

    @cached_property
    def _header(self) -> tuple[dict[bytes, bytes], int]:
        """The metadata, and the number of bytes before the sync marker."""
        size = _FIRST
        while True:
            head = self.content.range(0, size)
            if not head.startswith(MAGIC):
                raise LoadObjectError("it does not begin like an Avro file")
            try:
                return AvroBytes(head).metadata()
            except IndexError:
                if len(head) == self.content.size:
                    raise LoadObjectError("its Avro header is cut off") from None
                if size >= _LARGEST:
                    raise LoadObjectError(f"its Avro header has over {_LARGEST >> 20} MB") from None
            size *= 16

    @cached_property
    def schema(self) -> Any:
        """The schema in the header."""
        metadata, _ = self._header
        codec = metadata.get(b"avro.codec", b"null").decode("utf-8", "replace")
        if codec not in _CODECS:
            raise LoadObjectError(
                f"it is compressed by Avro's codec {codec!r}, which ClickHouse does not read: write it with deflate,"
                " snappy or zstandard"
            )
        try:
            return json.loads(metadata.get(b"avro.schema", b""))
        except (ValueError, RecursionError) as e:
            raise LoadObjectError(f"the Avro schema in its header is not JSON: {e}") from e

    @cached_property
    def shape(self) -> AvroShape:
        """The columns."""
        return shape_of(self.schema)

    def columns(self) -> list[Column]:
        """Return the columns with the types of their values."""
        return [Column(f.name, nullable(NOTHING) if f.type == NOTHING else f.type) for f in self.shape.fields]

    def sent(self, wrapped: frozenset[str]) -> Iterator[bytes]:
        """Yield the object with a header whose schema ClickHouse can read; see `avro_schema`."""
        metadata, end = self._header
        schema = json.dumps(sent_schema(self.schema, wrapped)).encode()
        codec = metadata.get(b"avro.codec", b"null")
        entries = {b"avro.schema": schema, b"avro.codec": codec}
        yield header(entries)
        for piece in self.content.stream():
            yield piece[end:]
            end = max(0, end - len(piece))


def avro_reading(
    form: Format, destination: Destination, shape: AvroShape, *, keep_rest: bool, refuse_nulls: bool
) -> Reading:
    """Return how to read Avro objects of a shape into a table.

    Raises DriftError for columns that the table lacks, unless `keep_rest`, and for columns that it cannot hold. With
    `refuse_nulls`, a NULL list or map in a column that cannot hold it is an error; otherwise it becomes empty.
    """
    both((field.name for field in shape.fields), destination.partitions)
    columns, expressions, rest, wrapped = [], [], [], set()
    checks: list[Check] = []
    for field in shape.fields:
        if field.inner and refuse_nulls:
            raise refusal([Nested(field.inner[0], "list", 0, ())], field.type)
        if (target := destination.type_of(field.name)) is None:
            rest.append(field)
            continue
        if not fits(field.type, target):
            raise DriftError(
                f"column {field.name!r} is {field.type}, which {destination.name} cannot convert to {target}"
            )
        read, value, more = _way(field, target, refuse_nulls=refuse_nulls)
        columns.append(read)
        expressions.append((field.name, value))
        checks += more
        if read.type.startswith("Nullable(Tuple(v ") and field.list:
            wrapped.add(field.name)
    names = [field.name for field in shape.fields]
    check_columns(destination, names, [] if keep_rest else [field.name for field in rest])
    if rest:
        columns += (others := [Column(field.name, _read(field.stored)) for field in rest])
        expressions.append((REST, as_map(others)))
    return Reading(
        form, tuple(columns), tuple(expressions), tuple(checks), by_arrow=shape.is_foreign or bool(wrapped),
        wrapped=frozenset(wrapped), settings=() if refuse_nulls else (("input_format_null_as_default", 1),),
        partitions=in_keys(destination),
    )  # fmt: skip


def _read(stored: str) -> str:
    return "Nullable(String)" if bare(stored) == NOTHING else stored


def _way(field: AvroField, target: str, *, refuse_nulls: bool) -> tuple[Column, str, list[Check]]:
    """Return how to read one column, the expression for its value, and the checks of it."""
    name, kind, here = field.name, field.type, identifier(field.name)
    if bare(kind) == NOTHING:
        way = only_nulls(name, target, refuse_nulls)
        return way.read, way.expression, list(way.checks)
    if field.digits >= 0:
        return _time_of_day(field, target)
    if field.list and (refuse_nulls or holds(target)):
        return _wrapped(field, target)
    made = converted(here, kind, target)
    if bare(kind).startswith("Tuple(") and is_nullable(kind) and not is_nullable(target) and not refuse_nulls:
        made = converted(f"assumeNotNull({here})", bare(kind), target)
        made = f"if(isNull({here}), defaultValueOfTypeName({literal(target)}), {made})"
    checks = [*within_years(name, here, kind), *whole_value(name, here, kind, target)]
    return Column(name, field.stored), made, [*checks, valid_text(name)] if field.is_text else checks


def _wrapped(field: AvroField, target: str) -> tuple[Column, str, list[Check]]:
    """Return how to read a list or map that may be NULL, as the one field of a record that may be NULL."""
    here = identifier(field.name)
    value = f"tupleElement(assumeNotNull({here}), 'v')"
    made, read = converted(value, field.type, target), Column(field.name, f"Nullable(Tuple(v {field.stored}))")
    if holds(target):
        return read, f"if(isNull({here}), NULL, {made})", []
    reason = str(refusal([Nested((field.name,), field.list, 0, ())], target))
    return read, made, [Check(f"isNull({here})", reason), *whole_value(field.name, value, field.type, target)]


def _time_of_day(field: AvroField, target: str) -> tuple[Column, str, list[Check]]:
    here, digits = identifier(field.name), field.digits
    unit = {3: "Milli", 6: "Micro"}[digits]
    outside = Check(
        f"ifNull({here} < 0 OR {here} >= {86400 * 10**digits}, 0)",
        f"column {field.name!r} has a time that is not within a day",
    )
    kind = nullable(f"Time64({digits})") if is_nullable(field.stored) else f"Time64({digits})"
    time = f"CAST(fromUnixTimestamp64{unit}(toInt64({here}), 'UTC'), {literal(kind)})"
    checks = [outside, *whole_value(field.name, time, kind, target)]
    return Column(field.name, field.stored), converted(time, kind, target), checks
