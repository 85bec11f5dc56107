"""Columns: inferred from samples of objects, merged, and compared with a table's.

Types are ClickHouse's, as text. `arrow_types` has those of Parquet; ClickHouse itself infers those of text.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from clickhouse_connect.driver.exceptions import DatabaseError

from storeside.sql.answers import first_row
from storeside.transfer.errors import TransferInputError
from storeside.transfer.formats import Format
from storeside.transfer.source import identifier, literal

if TYPE_CHECKING:
    from clickhouse_connect.driver.client import Client

Nested = Literal["tuple", "json", "string"]

_INTEGERS = re.compile(r"U?Int\d+")
_INTEGER = re.compile(r"U?Int(?:8|16|32|64)")
_NUMBER = re.compile(r"U?Int\d+|Float\d+|BFloat16|Decimal.*")
_TIME = re.compile(r"(?:Date|DateTime|Date32|DateTime64)(?:\(.*\))?")
_MOMENT = re.compile(r"DateTime(?:64\((\d)(?:, '[^']*')?\)|\('[^']*'\))?")
# An integer within a nested type; in a tuple the type follows the element's name.
_NESTED_INTEGER = re.compile(r"\bU?Int(?:8|16|32|64)(?=[,)])")
_MICROSECONDS = 6
# The type of a column that has only NULLs, until another object shows its type.
NOTHING = "Nothing"
_DECIMAL = r"^[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?$"
# Types that accept any text, or raise an error for it, whether they are Nullable or not.
_TAKES_TEXT = re.compile(r"String|Enum|Variant\(|Dynamic|JSON|Bool")
_CLOCK = re.compile(r"Time(?:64\((\d)\))?")
# Every integer with at most this number of digits fits into 128 bits.
_INT128_DIGITS = 38
# The name for a column without one: every column of ClickHouse must have a name.
UNNAMED = "_unnamed"
# A column is LowCardinality when a sample of this many rows has at most this share of distinct values.
_ENOUGH_ROWS, _DISTINCT = 1000, 0.05


@dataclass(frozen=True)
class Column:
    """A column's name and its ClickHouse type."""

    name: str
    type: str

    @property
    def definition(self) -> str:
        """The column's definition in a structure or a CREATE TABLE."""
        return f"{identifier(self.name)} {self.type}"


def bare(kind: str) -> str:
    """Return a type without its Nullable and LowCardinality."""
    while match := re.fullmatch(r"(?:Nullable|LowCardinality)\((.*)\)", kind, re.DOTALL):
        kind = match.group(1)
    return kind


def same(one: str, other: str) -> bool:
    """Tell whether types differ at most in Nullable, LowCardinality, and quotes around names of tuple elements."""
    return bare(one).replace("`", "") == bare(other).replace("`", "")


def nullable(kind: str) -> str:
    """Return the type that also holds NULL, if ClickHouse has one."""
    if is_nullable(kind) or is_nested(kind) or bare(kind).startswith(("JSON", "Variant(", "Dynamic")):
        return kind
    if kind.startswith("LowCardinality("):
        return f"LowCardinality(Nullable({bare(kind)}))"
    return f"Nullable({kind})"


def is_nullable(kind: str) -> bool:
    """Tell whether a column of this type holds NULL."""
    return kind.startswith(("Nullable(", "LowCardinality(Nullable("))


def is_nested(kind: str) -> bool:
    """Tell whether a type holds lists, maps or structs."""
    return bare(kind).startswith(("Array(", "Map(", "Tuple("))


def settled(kind: str) -> str:
    """Return the type of a new column: String if no value has shown another type."""
    return re.sub(rf"\b{NOTHING}\b", "String", kind)


def arguments(kind: str) -> list[str]:
    """Return the arguments between the parentheses of a type, split at its commas."""
    inside = kind[kind.index("(") + 1 : -1] if kind.endswith(")") else ""
    found, depth, start, quoted = [], 0, 0, False
    for at, c in enumerate(inside):
        if c == "`":
            quoted = not quoted
        elif not quoted:
            depth += (c == "(") - (c == ")")
            if c == "," and not depth:
                found.append(inside[start:at].strip())
                start = at + 1
    return [*found, inside[start:].strip()] if inside else []


def loose(kind: str) -> str:
    """Return a type without Nullable, also for the fields of its structs."""
    kind = bare(kind).replace("`", "")
    while (at := kind.find("Nullable(")) >= 0:
        depth, end = 1, at + len("Nullable(")
        while depth and end < len(kind):
            depth += (kind[end] == "(") - (kind[end] == ")")
            end += 1
        kind = kind[:at] + kind[at + len("Nullable(") : end - 1] + kind[end:]
    return kind


def structure(columns: Iterable[Column]) -> str:
    """Return columns as the structure argument of a table function."""
    return ", ".join(column.definition for column in columns)


def text_columns(
    client: Client, form: Format, sample: bytes, nested: Nested, given: Mapping[str, str]
) -> list[Column]:
    """Return the columns that ClickHouse infers from the first bytes of a text object, cut after a line.

    `nested` is the type for objects within JSON Lines. UUIDs and columns with few distinct strings are recognised in
    text. Columns with a `given` type are not inferred.
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
    if form.name == "jsonl":  # otherwise one `true` among numbers has no type; the load refuses its object
        settings["input_format_json_read_bools_as_numbers"] = 1
    rows = client.query(f"DESCRIBE TABLE {function}", settings=settings).result_rows
    columns = [Column(row[0], given.get(row[0]) or deduced(row[1], nested)) for row in rows]
    if form.name == "csv":
        columns = _numbers(client, form, function, sample, columns, settings, given)
    return _refined(client, function, columns, settings, given)


def _numbers(
    client: Client, form: Format, function: str, sample: bytes, columns: list[Column], settings: dict[str, Any],
    given: Mapping[str, str],
) -> list[Column]:  # fmt: skip
    """Return the columns of a CSV sample with the types of numbers that have spaces around them, or many digits.

    Columns with a `given` type keep it. ClickHouse infers Float64 for integers beyond 64 bits, and would round them.
    """
    rows = client.query(
        f"DESCRIBE TABLE {function}", settings={**settings, "input_format_csv_trim_whitespaces": 1}
    ).result_rows
    if len(rows) == len(columns):
        columns = [
            replace(c, type=row[1]) if c.name not in given and _NUMBER.fullmatch(bare(row[1])) else c
            for c, row in zip(columns, rows, strict=True)
        ]
    floats = [c.name for c in columns if bare(c.type) == "Float64" and c.name not in given]
    if not floats:
        return columns
    texts = structure(Column(c.name, "Nullable(String)") for c in columns)
    facts = ", ".join(
        f"countIf(NOT match({name}, '^[ \\t]*[+-]?[0-9]+[ \\t]*$')), max(length({name}))"
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
            wide[name] = "Nullable(Int128)" if digits <= _INT128_DIGITS else "Nullable(String)"
    return [Column(c.name, wide.get(c.name, c.type)) for c in columns]


def deduced(kind: str, nested: Nested) -> str:
    """Return the column type for an inferred type: times with a wide range, nesting as chosen."""
    core = bare(kind)
    if core == "Date":  # ends in 2149
        return "Nullable(Date32)"
    if re.fullmatch(r"DateTime(\(.*\))?", core):  # ends in 2106, and has no fractions
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
        f"countIf(toUUIDOrNull({name}) IS NOT NULL), count({name}), uniqExact({name})"
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

    A column that some samples lack may be NULL. Columns with a `given` type keep it, whatever the samples show.
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
    """Return a type that holds the values of both: ClickHouse's common supertype, otherwise Float64 or String."""
    if one.replace("`", "") == other.replace("`", ""):
        return one
    a, b = bare(one), bare(other)
    if NOTHING in (a, b):
        return nullable(other if a == NOTHING else one)
    wants_null = is_nullable(one) or is_nullable(other)
    kind = a
    if "Tuple(" in a and loose(a) == loose(b):  # one of them has more Nullable fields
        return max(one, other, key=len)
    if a != b and (a.startswith("Tuple(") or b.startswith("Tuple(")):
        raise TransferInputError(
            f"no type takes the values of {a} and of {b}: load nested objects as JSON or as strings"
        )
    if a != b:
        try:
            kind = first_row(
                client.query(
                    "SELECT toTypeName([defaultValueOfTypeName({a:String}), defaultValueOfTypeName({b:String})])",
                    parameters={"a": a, "b": b},
                    settings={"use_variant_as_common_type": 0, "allow_suspicious_low_cardinality_types": 1},
                )
            )[0]
            kind = kind.removeprefix("Array(").removesuffix(")")
        except DatabaseError:  # there is no lossless one
            numbers = "Int128" if _INTEGER.fullmatch(a) and _INTEGER.fullmatch(b) else "Float64"
            kind = numbers if _NUMBER.fullmatch(a) and _NUMBER.fullmatch(b) else "String"
    if "LowCardinality(" in one and "LowCardinality(" in other and kind == "String":
        kind = "LowCardinality(String)"
    return nullable(kind) if wants_null else kind


def reading(form: Format, target: str) -> str:
    """Return the type to read a value of a text object as, before its conversion to type `target`.

    ClickHouse wraps integers that are out of range when it parses them (tried with 26.9: 300 becomes 44 in UInt8), so
    they are read into a larger type and then cast with a check. It turns 31 February into a day of March, truncates
    decimals, and truncates fractions of a second: these are read in a type that lets `whole` detect that. It parses
    an empty quoted text in CSV as the integer 0: there integers are read as text, and an empty text is NULL.
    """
    core = bare(target)
    if not form.is_native:  # pyarrow parses, and checks
        known = {"UInt64": "UInt64", "Bool": "Bool", "Float32": "Float32", "Float64": "Float64"}
        kind = "Int64" if _INTEGER.fullmatch(core) else known.get(core, "String")
        return f"Nullable({'DateTime64(6)' if _TIME.fullmatch(core) else kind})"
    if is_nested(core):
        kind = core if re.search(r"Variant\(|Dynamic|JSON", core) else _NESTED_INTEGER.sub("Int128", core)
        return f"Nullable({kind})" if is_nullable(target) else kind
    if core in ("String", "JSON") or core.startswith(("FixedString", "Variant(", "Dynamic")):
        # Never LowCardinality: ClickHouse skips spaces before a CSV value of any type but String.
        return f"Nullable({core})" if is_nullable(target) else core
    if form.name == "csv" and _INTEGERS.fullmatch(core):
        return "Nullable(String)"
    return nullable(_larger(core))


def _larger(core: str) -> str:
    """Return the type to read text as when ClickHouse would otherwise lose a part of the value; see `reading`."""
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


def _unpadded(value: str) -> str:
    """Return the expression that removes spaces and tabs around a text."""
    return f"trimBoth({value}, ' \\t')"


def whole(name: str, source: str, target: str, *, padded: bool = False) -> str:
    """Return the condition that `conversion` loses no part of a value; empty if it never does, or fails instead."""
    a, b = bare(source), bare(target)
    column = _unpadded(identifier(name)) if padded and a == "String" else identifier(name)
    kept = ""
    if a == "String" and b in ("Date", "Date32"):  # a day beyond the end of a month becomes a day of the next month
        day, date = f"substring({column}, -2)", f"CAST({column}, {literal(nullable(b))})"
        kept = f"{day} NOT IN ('29', '30', '31') OR toDayOfMonth({date}) = toInt8OrZero({day})"
    elif a == "String" and (scale := _scale(b)) is not None:
        kept = (
            f"position({column}, '.') = 0 OR positionCaseInsensitive({column}, 'e') > 0"
            f" OR length(trim(TRAILING '0' FROM {column})) - position({column}, '.') <= {scale}"
        )
    elif _is_cut(a, b):
        kept = f"CAST({conversion(name, source, nullable(b))}, {literal(nullable(a))}) = {column}"
    checks = [f"ifNull({kept}, 1)"] if kept else []
    if a == "String" and not _TAKES_TEXT.match(b) and not is_nested(b):
        valid = []
        # A cast to Nullable makes NULL of what is no value. One to an integer that is not wraps: 300 becomes 44.
        if b in ("Int128", "UInt128"):  # which wrap as Nullable as well
            valid.append(f"isNotNull(accurateCastOrNull(CAST({column}, 'Nullable(Int256)'), {literal(b)}))")
        elif is_nullable(target) or _INTEGERS.fullmatch(b):
            valid.append(f"isNotNull(CAST({column}, {literal(nullable(b))}))")
        if b.startswith("Decimal"):  # 1.5.5 would be 1.55, and e5 0
            valid.append(f"match({column}, {literal(_DECIMAL)})")
        empty = f" OR empty({column})" if padded else ""
        if valid:
            checks.append(f"(isNull({column}) OR ({' AND '.join(valid)}){empty})")
    return " AND ".join(checks)


def _is_cut(a: str, b: str) -> bool:
    """Tell whether type `a` has fractions of a second, decimal digits or values that type `b` lacks."""
    if (digits := _scale(a)) is not None and (others := _scale(b)) is not None:
        return digits > others
    if _TIME.fullmatch(a) and _TIME.fullmatch(b):
        return _fraction(a) > _fraction(b)
    if (one := _CLOCK.fullmatch(a)) and (other := _CLOCK.fullmatch(b)):
        return int(one.group(1) or 0) > int(other.group(1) or 0)
    if a.startswith("Array(") and b.startswith("Array("):
        return _is_cut(bare(a[6:-1]), bare(b[6:-1]))
    return (a, b) == ("UInt8", "Bool")


def _scale(kind: str) -> int | None:
    found = re.fullmatch(r"Decimal\(\d+, (\d+)\)", kind)
    return int(found.group(1)) if found else None


def _fraction(kind: str) -> int:
    """Return the number of a time type's digits after the second; -1 for a date."""
    found = _MOMENT.fullmatch(kind)
    return int(found.group(1) or 0) if found else -1


def conversion(name: str, source: str, target: str, *, padded: bool = False) -> str:
    """Return the expression that converts a column of type `source` to type `target`; see `converted`."""
    return converted(identifier(name), source, target, padded=padded)


def converted(value: str, source: str, target: str, *, padded: bool = False) -> str:
    """Return the expression that converts a value of type `source` to type `target`, or fails.

    It never wraps or truncates a value or replaces it by a default. With `padded`, text that is converted to another
    type may have spaces and tabs around it.
    """
    a, b = bare(source), bare(target)
    if same(a, b) and (is_nullable(target) or not is_nullable(source)):
        return value
    if a.startswith("Decimal") and b.startswith("Decimal"):  # accurateCast does not check these
        return f"CAST(toString({value}), {literal(target)})"
    if b == "String" and a != b:
        return f"CAST(toString({value}), {literal(target)})"
    if a == "String" or b.startswith("Variant("):
        return f"CAST({_unpadded(value) if padded and a == 'String' else value}, {literal(target)})"
    return f"accurateCast({value}, {literal(target)})"


def fits(source: str, target: str) -> bool:
    """Tell whether values of a type can be loaded into a column of another; single values may be out of range."""
    a, b = bare(source), bare(target)
    if a.startswith("Array(") and b.startswith("Array("):
        return fits(a[6:-1], b[6:-1])
    if loose(a) == loose(b) or b in ("String", "Dynamic") or a == NOTHING or _are_clocks(a, b):
        return True
    if b.startswith("Variant("):
        return any(same(a, kind) for kind in arguments(b))
    if _NUMBER.fullmatch(a) and _NUMBER.fullmatch(b):
        return not (_INTEGERS.fullmatch(b) and not _INTEGERS.fullmatch(a)) and not (
            b.startswith("Decimal") and "Float" in a
        )
    if _TIME.fullmatch(a) and _TIME.fullmatch(b):
        return b.startswith("DateTime64") or "Time" not in a
    return (a, b) in {("String", "UUID"), ("String", "JSON"), ("Bool", "UInt8"), ("UInt8", "Bool")} or b.startswith(
        ("Enum", "FixedString")
    )


def _are_clocks(a: str, b: str) -> bool:
    return _CLOCK.fullmatch(a) is not None and _CLOCK.fullmatch(b) is not None


def with_overrides(columns: Sequence[Column], overrides: Mapping[str, str]) -> list[Column]:
    """Return columns with the types that a user has chosen.

    Raises TransferInputError for a column that does not exist.
    """
    known = {column.name for column in columns}
    for name in overrides:
        if name not in known:
            raise TransferInputError(
                f"column {name!r} has a type but is in no sample: there are {', '.join(sorted(known))}"
            )
    return [Column(column.name, overrides.get(column.name, column.type)) for column in columns]
