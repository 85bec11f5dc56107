"""Infers columns from samples of text objects, and merges the columns of all samples.

ClickHouse infers the types of text. `arrow_types` has the types of Parquet.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

from clickhouse_connect.driver.exceptions import DatabaseError

from storeside.sql.answers import first_row
from storeside.transfer.conversion import UNORDERED, elements_of, parts_of
from storeside.transfer.errors import LoadObjectError, TransferInputError
from storeside.transfer.formats import Format
from storeside.transfer.schema import (
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
    structure,
    zoneless,
)
from storeside.transfer.source import identifier, literal

if TYPE_CHECKING:
    from clickhouse_connect.driver.client import Client

Nested = Literal["tuple", "json", "string"]

# Every integer with at most this number of digits fits into 128 bits.
_INT128_DIGITS = 38
_DECIMAL_DIGITS = 76
_MOMENT = re.compile(r"DateTime64\((\d)(, '[^']*')?\)")
# Integers in CSV, with the spaces that a load skips.
INTEGER_TEXT = r"^[ \t]*[+-]?[0-9]+[ \t]*$"
# A column is LowCardinality when a sample of this many rows has at most this share of distinct values.
_ENOUGH_ROWS, _DISTINCT = 1000, 0.05
# The notation in which a UUID column returns its values: other texts, such as MD5 digests, stay texts.
_UUID = "^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$"
# Levels of objects in JSON: ClickHouse 26.9 infers 14 in 0.3 s, 16 in 1 s, and 20 in minutes.
_DEEPEST = 14
_BRACE = re.compile(rb'"(?:[^"\\]|\\.)*+"?|[{}]', re.DOTALL)  # a string without an end is read once


class NoTypeError(TransferInputError):
    """No type holds the values of a column in all samples."""


def refuse_deep(rows: Iterable[bytes]) -> None:
    """Raise LoadObjectError for rows whose objects are so deep that ClickHouse needs minutes to infer their types."""
    for n, row in enumerate(rows):
        depth = deepest = 0
        for found in _BRACE.finditer(row):
            depth += {b"{": 1, b"}": -1}.get(found.group(), 0)
            deepest = max(deepest, depth)
        if deepest > _DEEPEST:
            raise LoadObjectError(
                f"row {n} has {deepest} levels of nested objects, but types are inferred for at most {_DEEPEST}: set"
                ' `nested` to "string"'
            )


def text_columns(
    client: Client, form: Format, sample: bytes, nested: Nested, given: Mapping[str, str]
) -> list[Column]:
    """Return the columns that ClickHouse infers from the first bytes of a text object, cut after a line.

    `nested` is the type for objects within JSON Lines. A column of UUIDs with dashes and small letters is a UUID, and
    one with few distinct strings LowCardinality. Columns with a `given` type are not inferred.
    """
    # A literal, not a parameter: the statement also contains column names, which may look like parameters.
    function = f"format({form.clickhouse}, {literal(sample.decode('utf-8', 'replace'))})"
    settings = {**form.settings(), "max_query_size": 2 * len(sample) + 1_000_000, "schema_inference_mode": "default"}
    if nested == "string":
        settings["input_format_json_try_infer_named_tuples_from_objects"] = 0
    if form.csv.names:
        settings["column_names_for_schema_inference"] = ",".join(form.csv.names)
    if given:
        settings["schema_inference_hints"] = structure(Column(name, kind) for name, kind in given.items())
    if form.name == "jsonl":  # otherwise inference fails for one `true` among numbers; the load refuses its object
        settings["input_format_json_read_bools_as_numbers"] = 1
    rows = client.query(f"DESCRIBE TABLE {function}", settings=settings).result_rows
    if re.search(UNORDERED.encode(), sample):
        text = literal(sample.decode("utf-8", "replace"))

        def source(columns: str) -> str:
            return f"format({form.clickhouse}, {f'{literal(columns)}, ' if columns else ''}{text})"

        texts = unordered(client, source, rows, settings)
        rows = [(row[0], texts.get(row[0], row[1])) for row in rows]
        hints = structure(Column(name, kind) for name, kind in {**texts, **given}.items())
        settings |= {"schema_inference_hints": hints} if texts else {}
    columns = [Column(row[0], given.get(row[0]) or deduced(row[1], nested)) for row in rows]
    if form.name == "csv":
        columns = _numbers(client, form, function, sample, columns, settings, given)
    return _refined(client, function, columns, settings, given)


def unordered(
    client: Client, source: Callable[[str], str], rows: Sequence[Sequence[str]], settings: dict[str, Any]
) -> dict[str, str]:
    """Return types with text in place of times for columns with dates whose order of day and month is unknown.

    ClickHouse reads 1/2/2024 as the 1st of February, and 1/13/2024 as the 13th of January. `rows` has the columns
    with the types that it inferred; `source` returns the table function that reads them, for a structure or for none.
    """
    if not (moments := [row[0] for row in rows if "DateTime" in row[1]]):
        return {}
    texts = structure(Column(row[0], "Nullable(String)") for row in rows)  # objects and lists are their JSON
    facts = ", ".join(f"countIf(match({identifier(name)}, {literal(UNORDERED)}))" for name in moments)
    # s3() knows only the columns that a query names; a faulty row fails elsewhere.
    skipping = {**settings, "input_format_skip_unknown_fields": 1, "input_format_allow_errors_ratio": 1}
    found = first_row(client.query(f"SELECT {facts} FROM {source(texts)}", settings=skipping))
    unclear = {name for name, count in zip(moments, found, strict=True) if count}
    if not unclear:
        return {}
    others = client.query(
        f"DESCRIBE TABLE {source('')}", settings={**settings, "input_format_try_infer_datetimes": 0}
    )
    return {row[0]: row[1] for row in others.result_rows if row[0] in unclear}


def _numbers(
    client: Client, form: Format, function: str, sample: bytes, columns: list[Column], settings: dict[str, Any],
    given: Mapping[str, str],
) -> list[Column]:  # fmt: skip
    """Return the columns of a CSV sample, with types for numbers that have spaces around them, or many digits.

    Columns with a `given` type keep it. ClickHouse infers Float64 for integers beyond 64 bits, which rounds them.
    """
    rows = client.query(
        f"DESCRIBE TABLE {function}", settings={**settings, "input_format_csv_trim_whitespaces": 1}
    ).result_rows
    if len(rows) == len(columns):
        columns = [
            replace(c, type=row[1]) if c.name not in given and NUMBER.fullmatch(bare(row[1])) else c
            for c, row in zip(columns, rows, strict=True)
        ]
    floats = [c.name for c in columns if bare(c.type) == "Float64" and c.name not in given]
    if not floats:
        return columns
    texts = structure(Column(c.name, "Nullable(String)") for c in columns)
    facts = ", ".join(
        f"countIf(NOT match({name}, {literal(INTEGER_TEXT)})), max(length({name}))"
        for name in map(identifier, floats)
    )
    row = first_row(
        client.query(
            f"SELECT {facts} FROM format({form.clickhouse}, {literal(texts)},"
            f" {literal(sample.decode('utf-8', 'replace'))})",
            settings=settings,
        )
    )
    wide = {}
    for n, name in enumerate(floats):
        others, digits = row[2 * n : 2 * n + 2]
        if not others:
            wide[name] = of_digits(digits)
    return [Column(c.name, wide.get(c.name, c.type)) for c in columns]


def of_digits(most: int) -> str:
    """Return the type of a column of integers beyond 64 bits that have at most this number of digits."""
    return "Nullable(Int128)" if most <= _INT128_DIGITS else "Nullable(String)"


def deduced(kind: str, nested: Nested) -> str:
    """Return the column type for a type that ClickHouse inferred; `nested` decides about objects."""
    core = bare(kind)
    if core == "Date":  # its range ends in 2149
        return "Nullable(Date32)"
    if re.fullmatch(r"DateTime(\(.*\))?", core):  # its range ends in 2106, and it has no fractions of a second
        return "Nullable(DateTime64(6))"
    if core.startswith(("Tuple(", "Object(", "Map(")):  # an object may be null in another row
        kept = f"Nullable({core})" if core.startswith("Tuple(") else core
        return {"tuple": kept, "json": "Nullable(JSON)", "string": "Nullable(String)"}[nested]
    return kind


def _refined(
    client: Client, function: str, columns: list[Column], settings: dict[str, Any], given: Mapping[str, str]
) -> list[Column]:
    strings = [column for column in columns if bare(column.type) == "String" and column.name not in given]
    if not strings:
        return columns
    facts = ", ".join(
        f"countIf(match({name}, '{_UUID}')), count({name}), uniqExact({name})"
        for name in (identifier(column.name) for column in strings)
    )
    row = first_row(
        client.query(
            f"SELECT {facts} FROM {function} SETTINGS input_format_allow_errors_ratio = 1",
            settings={name: value for name, value in settings.items() if "allow_errors" not in name},
        )
    )
    finer = {}
    for n, column in enumerate(strings):
        uuids, present, distinct = row[3 * n : 3 * n + 3]
        if present and uuids == present:
            finer[column.name] = "Nullable(UUID)"
        elif present >= _ENOUGH_ROWS and distinct <= present * _DISTINCT:
            finer[column.name] = "LowCardinality(Nullable(String))"
    return [Column(column.name, finer.get(column.name, column.type)) for column in columns]


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
