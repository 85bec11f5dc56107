"""Composes how ClickHouse reads the rows of Avro objects."""

from __future__ import annotations

from storeside.sql.quoting import identifier, literal
from storeside.transfer.base.errors import DriftError
from storeside.transfer.base.schema import NOTHING, Column, bare, is_nullable, nullable
from storeside.transfer.formats.avro_schema import AvroField, AvroShape
from storeside.transfer.formats.nulls import holds, refusal
from storeside.transfer.formats.parquet import Nested
from storeside.transfer.request.object_format import Format
from storeside.transfer.request.options import REST
from storeside.transfer.statements.composing import (
    as_map,
    check_columns,
    in_keys,
    only_nulls,
    valid_text,
    whole_value,
    within_years,
)
from storeside.transfer.statements.reading import Check, Reading
from storeside.transfer.tables.table import Destination
from storeside.transfer.types.conversion import converted, fits
from storeside.transfer.types.partitions import both


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
        target = destination.type_of(field.name)
        if not fits(field.type, target or "String") and (target or keep_rest):
            raise DriftError(
                f"column {field.name!r} is {field.type}, which {destination.name} cannot convert to"
                f" {target or 'the text of ' + REST}"
            )
        if target is None:
            rest.append(field)
            continue
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
