"""Columns: deduced from samples of objects, merged, and held against a table's.

Types are ClickHouse's, as text. Parquet types become, at the least, what the tables of DoubleCloud's connector say
(https://double.cloud/blog/posts/2023/10/native-s3-connector-vs-airbyte-s3-connector/), and finer where ClickHouse has
a finer type; text is deduced by ClickHouse itself.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from clickhouse_connect.driver.exceptions import DatabaseError

from include.transfer.errors import UsageError
from include.transfer.formats import Format
from include.transfer.source import identifier, literal

if TYPE_CHECKING:
    import pyarrow

Nested = Literal["tuple", "json", "string"]

_INTEGER = re.compile(r"U?Int(?:8|16|32|64)")
_NUMBER = re.compile(r"U?Int\d+|Float\d+|BFloat16|Decimal.*")
_TIME = re.compile(r"(?:Date|DateTime|Date32|DateTime64)(?:\(.*\))?")
_MOMENT = re.compile(r"DateTime(?:64\((\d)(?:, '[^']*')?\)|\('[^']*'\))?")
# An integer within a nested type; the name of a tuple's element has its type behind it.
_NESTED_INTEGER = re.compile(r"\bU?Int(?:8|16|32|64)(?=[,)])")
_MICROSECONDS = 6
# Every integer of so many digits is one of 128 bits.
_INT128_DIGITS = 38
_NO_TYPE = "column {!r}: ClickHouse has no type for Parquet's {}: write it as another"
# A column is LowCardinality when a sample of this many rows has at most this share of distinct values.
_ENOUGH_ROWS, _DISTINCT = 1000, 0.05


@dataclass(frozen=True)
class Column:
    """A column's name and its ClickHouse type."""

    name: str
    type: str

    @property
    def definition(self) -> str:
        """The column as it stands in a structure or a CREATE TABLE."""
        return f"{identifier(self.name)} {self.type}"


def bare(kind: str) -> str:
    """Return a type without its Nullable and LowCardinality."""
    while match := re.fullmatch(r"(?:Nullable|LowCardinality)\((.*)\)", kind, re.DOTALL):
        kind = match.group(1)
    return kind


def same(one: str, other: str) -> bool:
    """Tell whether types differ only in NULL, LowCardinality, and quotes around names of a tuple's elements."""
    return bare(one).replace("`", "") == bare(other).replace("`", "")


def nullable(kind: str) -> str:
    """Return a type that also holds NULL, where ClickHouse has one."""
    if is_nullable(kind) or bare(kind).startswith(("Array(", "Map(", "Tuple(", "JSON", "Variant(", "Dynamic")):
        return kind
    if kind.startswith("LowCardinality("):
        return f"LowCardinality(Nullable({bare(kind)}))"
    return f"Nullable({kind})"


def is_nullable(kind: str) -> bool:
    """Tell whether a column of this type holds NULL."""
    return kind.startswith(("Nullable(", "LowCardinality(Nullable("))


def structure(columns: Iterable[Column]) -> str:
    """Return columns as the structure argument of a table function."""
    return ", ".join(column.definition for column in columns)


def arrow_columns(found: pyarrow.Schema) -> list[Column]:
    """Return a Parquet file's columns. Raises UsageError for types without a counterpart, and for equal names."""
    for name, times in Counter(found.names).items():
        if times > 1:
            raise UsageError(f"column {name!r} is there {times} times: a table has each name once")
    return [Column(field.name, _nullable_arrow(field)) for field in found]


def _nullable_arrow(field: pyarrow.Field) -> str:
    kind = arrow_type(field.type, field.name)
    return nullable(kind) if field.nullable else kind


def arrow_type(kind: pyarrow.DataType, name: str) -> str:
    """Return the ClickHouse type of an Arrow type; `name` is the column's, for errors."""
    import pyarrow.types as of

    simple = {
        "bool": "Bool", "int8": "Int8", "int16": "Int16", "int32": "Int32", "int64": "Int64", "uint8": "UInt8",
        "uint16": "UInt16", "uint32": "UInt32", "uint64": "UInt64", "halffloat": "Float32", "float": "Float32",
        "double": "Float64", "string": "String", "large_string": "String", "binary": "String",
        "large_binary": "String", "date32[day]": "Date32", "date64[ms]": "Date32", "string_view": "String",
        "time32[ms]": "Int32", "time32[s]": "Int32", "time64[us]": "Int64", "time64[ns]": "Int64",
    }  # fmt: skip
    if found := simple.get(str(kind)):
        return found
    if of.is_nested(kind):
        return _nested_type(kind, name)
    if of.is_timestamp(kind):
        digits = {"s": 0, "ms": 3, "us": 6, "ns": 9}[kind.unit]
        return f"DateTime64({digits}, 'UTC')" if kind.tz else f"DateTime64({digits})"
    if of.is_decimal(kind):
        return f"Decimal({kind.precision}, {kind.scale})"
    if of.is_fixed_size_binary(kind):
        return f"FixedString({kind.byte_width})"
    if of.is_dictionary(kind):
        return arrow_type(kind.value_type, name)
    raise UsageError(_NO_TYPE.format(name, kind))


def _nested_type(kind: pyarrow.DataType, name: str) -> str:
    import pyarrow.types as of

    if of.is_list(kind) or of.is_large_list(kind) or of.is_fixed_size_list(kind):
        return f"Array({_nullable_arrow(kind.value_field)})"
    if of.is_map(kind):
        return f"Map({arrow_type(kind.key_type, name)}, {_nullable_arrow(kind.item_field)})"
    if of.is_struct(kind):
        parts = (f"{identifier(part.name)} {_nullable_arrow(part)}" for part in kind)
        return f"Tuple({', '.join(parts)})"
    raise UsageError(_NO_TYPE.format(name, kind))


def text_columns(client: Any, form: Format, sample: bytes, nested: Nested) -> list[Column]:
    """Return the columns that ClickHouse deduces from the first bytes of a text object, cut after a line.

    `nested` says what objects within JSON Lines become. Of text that looks like it, UUIDs and columns of few distinct
    strings are told apart.
    """
    # As a literal, not as a parameter: names of columns stand in the same statement, and may look like parameters.
    function = f"format({form.clickhouse}, {literal(sample.decode('utf-8', 'replace'))})"
    settings = {**form.settings(), "max_query_size": 2 * len(sample) + 1_000_000, "schema_inference_mode": "default"}
    if nested == "string":
        settings["input_format_json_try_infer_named_tuples_from_objects"] = 0
    if form.csv.names:
        settings["column_names_for_schema_inference"] = ",".join(form.csv.names)
    if form.name == "jsonl":  # else one `true` among numbers would have no type; the load refuses its object
        settings["input_format_json_read_bools_as_numbers"] = 1
    rows = client.query(f"DESCRIBE TABLE {function}", settings=settings).result_rows
    columns = [Column(row[0], deduced(row[1], nested)) for row in rows]
    if form.name == "csv":
        columns = _numbers(client, form, function, sample, columns, settings)
    return _refined(client, function, columns, settings)


def _numbers(
    client: Any, form: Format, function: str, sample: bytes, columns: list[Column], settings: dict[str, Any]
) -> list[Column]:
    """Return the columns of a CSV sample with the types of numbers that have spaces around them, or many digits.

    ClickHouse deduces Float64 of integers beyond 64 bits, and would round them.
    """
    rows = client.query(
        f"DESCRIBE TABLE {function}", settings={**settings, "input_format_csv_trim_whitespaces": 1}
    ).result_rows
    if len(rows) == len(columns):
        columns = [
            replace(c, type=row[1]) if _NUMBER.fullmatch(bare(row[1])) else c
            for c, row in zip(columns, rows, strict=True)
        ]
    floats = [c.name for c in columns if bare(c.type) == "Float64"]
    if not floats:
        return columns
    texts = structure(Column(c.name, "Nullable(String)") for c in columns)
    facts = ", ".join(
        f"countIf(NOT match({name}, '^[ \\t]*[+-]?[0-9]+[ \\t]*$')), max(length({name}))"
        for name in map(identifier, floats)
    )
    row = client.query(
        f"SELECT {facts} FROM format({form.clickhouse}, {literal(texts)},"
        f" {literal(sample.decode('utf-8', 'replace'))})",
        settings=settings,
    ).first_row
    wide = {}
    for n, name in enumerate(floats):
        others, digits = row[2 * n : 2 * n + 2]
        if not others:
            wide[name] = "Nullable(Int128)" if digits <= _INT128_DIGITS else "Nullable(String)"
    return [Column(c.name, wide.get(c.name, c.type)) for c in columns]


def deduced(kind: str, nested: Nested) -> str:
    """Return the type of a column for one that ClickHouse deduced: times without an early end, nesting as chosen."""
    core = bare(kind)
    if core == "Date":  # ends in 2149
        return "Nullable(Date32)"
    if re.fullmatch(r"DateTime(\(.*\))?", core):  # ends in 2106, and has no fractions
        return "Nullable(DateTime64(6))"
    if core.startswith(("Tuple(", "Object(", "Map(")):  # an object may be null in another row
        kept = f"Nullable({core})" if core.startswith("Tuple(") else core
        return {"tuple": kept, "json": "Nullable(JSON)", "string": "Nullable(String)"}[nested]
    return kind


def _refined(client: Any, function: str, columns: list[Column], settings: dict[str, Any]) -> list[Column]:
    strings = [column for column in columns if bare(column.type) == "String"]
    if not strings:
        return columns
    facts = ", ".join(
        f"countIf(toUUIDOrNull({name}) IS NOT NULL), count({name}), uniqExact({name})"
        for name in (identifier(column.name) for column in strings)
    )
    row = client.query(
        f"SELECT {facts} FROM {function} SETTINGS input_format_allow_errors_ratio = 1",
        settings={name: value for name, value in settings.items() if "allow_errors" not in name},
    ).first_row
    finer = {}
    for n, column in enumerate(strings):
        uuids, present, distinct = row[3 * n : 3 * n + 3]
        if present and uuids == present:
            finer[column.name] = "Nullable(UUID)"
        elif present >= _ENOUGH_ROWS and distinct <= present * _DISTINCT:
            finer[column.name] = "LowCardinality(Nullable(String))"
    return [Column(column.name, finer.get(column.name, column.type)) for column in columns]


def merge(client: Any, samples: Sequence[Sequence[Column]]) -> list[Column]:
    """Return the columns of all samples, each of a type that takes the values of every sample that has it.

    A column that some samples lack may be NULL.
    """
    merged: dict[str, str] = {}
    for columns in samples:
        for column in columns:
            seen = merged.get(column.name)
            merged[column.name] = column.type if seen is None else wider(client, seen, column.type)
    everywhere = set.intersection(*({column.name for column in columns} for columns in samples)) if samples else set()
    return [Column(name, kind if name in everywhere else nullable(kind)) for name, kind in merged.items()]


def wider(client: Any, one: str, other: str) -> str:
    """Return a type that takes the values of both: ClickHouse's common supertype, else Float64 or String."""
    if one.replace("`", "") == other.replace("`", ""):
        return one
    wants_null = is_nullable(one) or is_nullable(other)
    a, b = bare(one), bare(other)
    kind = a
    if a != b and (a.startswith("Tuple(") or b.startswith("Tuple(")):
        raise UsageError(f"no type takes the values of {a} and of {b}: load nested objects as JSON or as strings")
    if a != b:
        try:
            kind = client.query(
                "SELECT toTypeName([defaultValueOfTypeName({a:String}), defaultValueOfTypeName({b:String})])",
                parameters={"a": a, "b": b},
                settings={"use_variant_as_common_type": 0, "allow_suspicious_low_cardinality_types": 1},
            ).first_row[0]
            kind = kind.removeprefix("Array(").removesuffix(")")
        except DatabaseError:  # there is none without loss
            numbers = "Int128" if _INTEGER.fullmatch(a) and _INTEGER.fullmatch(b) else "Float64"
            kind = numbers if _NUMBER.fullmatch(a) and _NUMBER.fullmatch(b) else "String"
    if "LowCardinality(" in one and "LowCardinality(" in other and kind == "String":
        kind = "LowCardinality(String)"
    return nullable(kind) if wants_null else kind


def reading(form: Format, target: str) -> str:
    """Return the type that a value of a text object is read as, on its way into a column of type `target`.

    ClickHouse wraps integers that are out of range when it parses them (tried with 26.9: 300 becomes 44 in UInt8), so
    they are read into a type that holds more and then cast with a check. It makes 31 February a day of March, cuts
    decimals, and cuts fractions of a second: those are read so that `whole` can tell.
    """
    core = bare(target)
    if not form.is_native:  # pyarrow parses, and checks
        known = {"UInt64": "UInt64", "Bool": "Bool", "Float32": "Float32", "Float64": "Float64"}
        kind = "Int64" if _INTEGER.fullmatch(core) else known.get(core, "String")
        return f"Nullable({'DateTime64(6)' if _TIME.fullmatch(core) else kind})"
    if core.startswith(("Array(", "Map(", "Tuple(")):
        kind = core if re.search(r"Variant\(|Dynamic|JSON", core) else _NESTED_INTEGER.sub("Int128", core)
        return f"Nullable({kind})" if is_nullable(target) else kind
    if core in ("String", "JSON") or core.startswith(("FixedString", "Variant(", "Dynamic")):
        # Never LowCardinality: ClickHouse skips spaces before a CSV value of any type but String.
        return f"Nullable({core})" if is_nullable(target) else core
    return nullable(_larger(core))


def _larger(core: str) -> str:
    """Return a type that text is read as where ClickHouse would take something away from it; see `reading`."""
    if _INTEGER.fullmatch(core):
        return "Int128"
    if core in ("Int128", "UInt128"):
        return "Int256"
    if core in ("Date", "Date32") or core.startswith("Decimal"):
        return "String"
    if -1 < _fraction(core) < _MICROSECONDS:
        zone = re.search(r"'.*'", core)
        return f"DateTime64({_MICROSECONDS}{f', {zone.group()}' if zone else ''})"
    return core


def whole(name: str, source: str, target: str, *, padded: bool = False) -> str:
    """Return the condition that `conversion` takes nothing away from a value; empty where it never does, or fails."""
    a, b = bare(source), bare(target)
    column = _unpadded(name) if padded and a == "String" else identifier(name)
    kept = ""
    if a == "String" and b in ("Date", "Date32"):  # days that a month has not become the next one's first
        day, date = f"substring({column}, -2)", f"CAST({column}, {literal(nullable(b))})"
        kept = f"{day} NOT IN ('29', '30', '31') OR toDayOfMonth({date}) = toInt8OrZero({day})"
    elif a == "String" and (scale := _scale(b)) is not None:
        kept = (
            f"position({column}, '.') = 0 OR positionCaseInsensitive({column}, 'e') > 0"
            f" OR length(trim(TRAILING '0' FROM {column})) - position({column}, '.') <= {scale}"
        )
    elif _is_cut(a, b):
        kept = f"CAST({conversion(name, source, nullable(b))}, {literal(nullable(a))}) = {column}"
    return f"ifNull({kept}, 1)" if kept else ""


def _is_cut(a: str, b: str) -> bool:
    """Tell whether a type has parts of a second, digits after the point, or values that another has not."""
    if (digits := _scale(a)) is not None and (others := _scale(b)) is not None:
        return digits > others
    if _TIME.fullmatch(a) and _TIME.fullmatch(b):
        return _fraction(a) > _fraction(b)
    return (a, b) == ("UInt8", "Bool")


def _scale(kind: str) -> int | None:
    found = re.fullmatch(r"Decimal\(\d+, (\d+)\)", kind)
    return int(found.group(1)) if found else None


def _fraction(kind: str) -> int:
    """Return the digits after the second of a type of times; -1 of a date."""
    found = _MOMENT.fullmatch(kind)
    return int(found.group(1) or 0) if found else -1


def _unpadded(name: str) -> str:
    """Return the expression of a column's text without the spaces and tabs around it."""
    return f"trimBoth({identifier(name)}, ' \\t')"


def conversion(name: str, source: str, target: str, *, padded: bool = False) -> str:
    """Return the expression that makes a column of type `target` of one of type `source`, or fails at a value.

    Nothing is wrapped, cut or replaced by a default on the way. With `padded`, text that becomes another type may
    have spaces and tabs around it.
    """
    column = identifier(name)
    a, b = bare(source), bare(target)
    if same(a, b) and (is_nullable(target) or not is_nullable(source)):
        return column
    if a.startswith("Decimal") and b.startswith("Decimal"):  # which accurateCast does not check
        return f"CAST(toString({column}), {literal(target)})"
    if b == "String" and a != b:
        return f"CAST(toString({column}), {literal(target)})"
    if a == "String":
        return f"CAST({_unpadded(name) if padded else column}, {literal(target)})"
    return f"accurateCast({column}, {literal(target)})"


def fits(source: str, target: str) -> bool:
    """Tell whether all values of a type can be meant for a column of another; values may still be out of range."""
    a, b = bare(source), bare(target)
    if same(a, b) or b in ("String", "Dynamic"):
        return True
    if _NUMBER.fullmatch(a) and _NUMBER.fullmatch(b):
        return not (re.fullmatch(r"U?Int\d+", b) and not re.fullmatch(r"U?Int\d+", a)) and not (
            b.startswith("Decimal") and "Float" in a
        )
    if _TIME.fullmatch(a) and _TIME.fullmatch(b):
        return b.startswith("DateTime64") or "Time" not in a
    if a.startswith("Array(") and b.startswith("Array("):
        return fits(a[6:-1], b[6:-1])
    return (a, b) in {("String", "UUID"), ("String", "JSON"), ("Bool", "UInt8"), ("UInt8", "Bool")} or b.startswith(
        ("Enum", "FixedString")
    )


def with_overrides(columns: Sequence[Column], overrides: Mapping[str, str]) -> list[Column]:
    """Return columns with the types that a user has chosen. Raises UsageError for a column that is not there."""
    known = {column.name for column in columns}
    for name in overrides:
        if name not in known:
            raise UsageError(f"column {name!r} has a type but is in no sample: there are {', '.join(sorted(known))}")
    return [Column(column.name, overrides.get(column.name, column.type)) for column in columns]
