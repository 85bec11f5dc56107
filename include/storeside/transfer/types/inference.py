"""Merges the columns of sampled objects, and finds types that hold the values of two types.

`text_columns` has the columns of text objects, `arrow_types` the types of Parquet.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Literal

from clickhouse_connect.driver.exceptions import DatabaseError

from storeside.sql.answers import first_row
from storeside.transfer.base.errors import TransferInputError
from storeside.transfer.base.schema import (
    INTEGER,
    NOTHING,
    NUMBER,
    Column,
    alike,
    bare,
    digits_of,
    is_nested,
    is_nullable,
    nullable,
    scale_of,
    zoneless,
)
from storeside.transfer.types.conversion import elements_of, parts_of

if TYPE_CHECKING:
    from clickhouse_connect.driver.client import Client

Nested = Literal["tuple", "json", "string"]

_DECIMAL_DIGITS = 76
_MOMENT = re.compile(r"DateTime64\((\d)(, '[^']*')?\)")


class NoTypeError(TransferInputError):
    """No type holds the values of a column in all samples."""


def merge(client: Client, samples: Sequence[Sequence[Column]], given: Mapping[str, str]) -> list[Column]:
    """Return the columns of all samples, each with a type that holds its values from every sample.

    A column that some samples lack becomes Nullable. Columns with a `given` type keep it.
    """
    merged: dict[str, str] = {}
    for columns in samples:
        for column in columns:
            seen = merged.get(column.name)
            if seen is None or column.name in given:
                merged[column.name] = given.get(column.name, column.type)
            else:
                merged[column.name] = wider(client, seen, column.type)
    everywhere = set.intersection(*({column.name for column in columns} for columns in samples)) if samples else set()
    return [
        Column(name, kind if name in everywhere or name in given else nullable(kind)) for name, kind in merged.items()
    ]


def wider(client: Client, one: str, other: str) -> str:
    """Return a type that holds the values of both: ClickHouse's common supertype, otherwise Float64 or String.

    The elements of lists, maps and structs get such a type. Raises NoTypeError for structs that differ.
    """
    if alike(one, other):
        return one
    a, b = bare(one), bare(other)
    if NOTHING in (a, b):
        return nullable(other if a == NOTHING else one)
    wants_null = is_nullable(one) or is_nullable(other)
    kind = a
    if zoneless(a) != zoneless(b):
        kind = _wider_within(client, a, b) or _wider_decimal(a, b) or _wider_moment(a, b) or _common(client, a, b)
    if "LowCardinality(" in one and "LowCardinality(" in other and kind == "String":
        kind = "LowCardinality(String)"
    if wants_null and kind.startswith("Tuple("):
        return f"Nullable({kind})"
    return nullable(kind) if wants_null else kind


def _wider_within(client: Client, a: str, b: str) -> str:
    """Return the type of lists, maps or structs that holds the values of both; empty for other types.

    Lists and maps whose elements have no type but text in common become text.
    """
    form = a.partition("(")[0]
    if not is_nested(a) or form != b.partition("(")[0]:
        if a.startswith("Tuple(") or b.startswith("Tuple("):
            raise _none(a, b)
        return ""
    ones, others = parts_of(a), parts_of(b)
    try:
        if form == "Tuple" and [*elements_of(a)] != [*elements_of(b)]:
            raise _none(a, b)
        found = [
            (name, one, other, wider(client, one, other))
            for (name, one), (_, other) in zip(ones, others, strict=True)
        ]
        if any(bare(kind) == "String" and not (_is_text(one) and _is_text(other)) for _, one, other, kind in found):
            raise _none(a, b)
    except NoTypeError:
        if form == "Tuple":
            raise
        return "String"
    return f"{form}({', '.join(name + kind for name, *_, kind in found)})"


def _is_text(kind: str) -> bool:
    return bare(kind).startswith(("String", "FixedString", NOTHING))


def _none(a: str, b: str) -> NoTypeError:
    return NoTypeError(f"no type holds the values of {a} and {b}: load nested objects as JSON or as strings")


def _wider_decimal(a: str, b: str) -> str:
    """Return the decimal with the digits of both decimals before and after the point; empty for other types.

    ClickHouse's common supertype may have fewer digits before the point. String if no decimal has so many digits.
    """
    one, other = scale_of(a), scale_of(b)
    if one is None or other is None:
        return ""
    scale = max(one, other)
    digits = max(digits_of(a) - one, digits_of(b) - other) + scale
    return f"Decimal({digits}, {scale})" if digits <= _DECIMAL_DIGITS else "String"


def _wider_moment(a: str, b: str) -> str:
    """Return the DateTime64 with the digits of both, and the zone of the first one; empty for other types.

    ClickHouse's common supertype has no zone.
    """
    one, other = _MOMENT.fullmatch(a), _MOMENT.fullmatch(b)
    return f"DateTime64({max(one[1], other[1])}{one[2] or ''})" if one and other else ""


def _common(client: Client, a: str, b: str) -> str:
    try:
        kind = first_row(
            client.query(
                "SELECT toTypeName([defaultValueOfTypeName({a:String}), defaultValueOfTypeName({b:String})])",
                parameters={"a": a, "b": b},
                settings={"use_variant_as_common_type": 0, "allow_suspicious_low_cardinality_types": 1},
            )
        )[0]
    except DatabaseError:  # no common type without loss
        numbers = "Int128" if INTEGER.fullmatch(a) and INTEGER.fullmatch(b) else "Float64"
        return numbers if NUMBER.fullmatch(a) and NUMBER.fullmatch(b) else "String"
    return str(kind).removeprefix("Array(").removesuffix(")")
