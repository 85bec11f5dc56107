"""The conditions in ClickHouse's SQL with which rows break the expectations of a suite.

NULL is a missing value, and NaN too, as with pandas. Great Expectations skips missing values, except where an
expectation is about them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time
from typing import Any

from storeside.quality.errors import QualityError
from storeside.quality.given import UNEXPECTED_ROWS, Expectation
from storeside.sql.quoting import identifier, literal
from storeside.transfer.base.errors import TransferInputError
from storeside.transfer.base.schema import Column
from storeside.transfer.request.table_keys import Expression, checked

NUMBER, TEXT, TIME = "number", "text", "time"
_INTEGER = re.compile(r"U?Int(8|16|32|64|128|256)")
_FLOAT = re.compile(r"B?Float(16|32|64)|Decimal\w*\(.*\)")
_STRING = re.compile(r"(Fixed)?String(\(\d+\))?")
_NAMED = re.compile(r"Enum(8|16)\(.*\)|UUID|IPv[46]|Time|Time64\(.*\)")
_TIME = re.compile(r"Date|Date32|DateTime(64)?(\(.*\))?")


@dataclass(frozen=True)
class Value:
    """A column's value in SQL, its kind, and the condition that it is missing."""

    sql: str
    kind: str
    missing: str


@dataclass(frozen=True)
class Rule:
    """An expectation in SQL: conditions for rows that it skips, because they have no value, and rows that break it.

    `shown` lists the values of an example.
    """

    expectation: Expectation
    missing: str
    broken: str
    shown: tuple[str, ...]


def value_of(column: Column) -> Value:
    """Return a column's value as a number, a text or a time in UTC.

    Decimals become Float64, bytes that are not UTF-8 become replacement characters, and arrays, tuples, maps and JSON
    become JSON text.
    """
    name, kind = identifier(column.name), column.type
    if low := re.fullmatch(r"LowCardinality\((.*)\)", kind):
        kind = low[1]
    is_nullable = re.fullmatch(r"Nullable\((.*)\)", kind)
    kind = is_nullable[1] if is_nullable else kind

    def cast(sql: str, target: str) -> str:
        return f"CAST({sql}, {literal(f'Nullable({target})' if is_nullable else target)})"

    if _FLOAT.fullmatch(kind):
        number = cast(f"toFloat64({name})", "Float64")
        return Value(number, NUMBER, f"ifNull(isNaN({number}), 1)")
    if _INTEGER.fullmatch(kind) or kind == "Bool":
        found = Value(cast(name, "UInt8" if kind == "Bool" else kind), NUMBER, "")
    elif _TIME.fullmatch(kind):
        found = Value(cast(f"toDateTime64({name}, 6, 'UTC')", "DateTime64(6, 'UTC')"), TIME, "")
    elif _STRING.fullmatch(kind):
        found = Value(cast(f"toValidUTF8(toString({name}))", "String"), TEXT, "")
    elif _NAMED.fullmatch(kind):
        found = Value(cast(f"toString({name})", "String"), TEXT, "")
    else:
        found = Value(f"toValidUTF8(toJSONString({name}))", TEXT, "")
    return Value(found.sql, found.kind, f"isNull({found.sql})" if is_nullable else "0")


def rules(expectations: Sequence[Expectation], columns: Sequence[Column], table: str) -> list[Rule]:
    """Return the expectations in SQL; `table` is the quoted table with the rows.

    Raises QualityError for columns that the table lacks, and for values of another kind than the column.
    """
    types = {c.name: c for c in columns}
    if missing := sorted({name for e in expectations for name in e.columns} - types.keys()):
        raise QualityError(f"the table has no columns {', '.join(missing)}; it has {', '.join(types)}")
    values = {name: value_of(types[name]) for e in expectations for name in e.columns}
    made = []
    for e in expectations:
        try:
            made.append(_rule(e, [values[name] for name in e.columns], table))
        except QualityError as error:
            raise QualityError(f"{e.type} ({', '.join(e.columns)}): {error}") from error
    return made


def _rule(e: Expectation, values: Sequence[Value], table: str) -> Rule:
    if e.type == UNEXPECTED_ROWS:
        try:
            broken = f"ifNull(({checked('condition', Expression(e.condition))}), 0)"
        except TransferInputError as error:
            raise QualityError(str(error)) from error
        return Rule(e, "0", broken, ("formatRowNoNewline('JSONEachRow', *)",))
    shown = tuple(value.sql for value in values)
    if not values:
        return Rule(e, "0", "0", ())
    if len(values) == 2:
        return _pair(e, *values)
    (value,) = values
    if e.type == "expect_column_values_to_not_be_null":
        return Rule(e, "0", value.missing, shown)
    if e.type == "expect_column_values_to_be_null":
        return Rule(e, "0", f"NOT ({value.missing})", shown)
    met = _met(e, value, table)
    return Rule(e, value.missing, f"NOT ({value.missing}) AND NOT ifNull({met}, 0)", shown)


def _met(e: Expectation, value: Value, table: str) -> str:
    """Return the condition that a value, which is not missing, meets an expectation of one column."""
    given = e.kwargs
    if e.type == "expect_column_values_to_be_unique":
        twice = f"SELECT {value.sql} AS v FROM {table} WHERE NOT ({value.missing}) GROUP BY v HAVING count() > 1"
        return f"{value.sql} NOT IN ({twice})"
    if e.type.endswith("be_in_set"):
        found = f"{value.sql} IN ({', '.join(constants(given['value_set'], value.kind))})"
        return f"NOT {found}" if "to_not_be" in e.type else found
    if e.type == "expect_column_values_to_be_between":
        return bounds(given, value.sql, value.kind)
    if value.kind != TEXT:
        raise QualityError(f"the column holds a {value.kind}, not a text")
    if e.type.endswith("match_regex"):
        pattern = literal("(?-s)" + given["regex"])  # as in Python, a dot matches no line feed
        found = f"match({value.sql}, {pattern})"
        return f"NOT {found}" if "to_not_match" in e.type else found
    length = f"lengthUTF8({value.sql})"
    return f"{length} = {given['value']}" if "value" in given else bounds(given, length, NUMBER)


def bounds(given: Mapping[str, Any], sql: str, kind: str) -> str:
    """Return the condition that a value is within `min_value` and `max_value`."""
    found = []
    for name, sign, strict in (("min_value", ">", "strict_min"), ("max_value", "<", "strict_max")):
        if name in given:
            found.append(f"{sql} {sign}{'' if given.get(strict) else '='} {constant(given[name], kind)}")
    return " AND ".join(found)


def _pair(e: Expectation, a: Value, b: Value) -> Rule:
    if a.kind != b.kind:
        raise QualityError(f"the columns hold a {a.kind} and a {b.kind}")
    ignored = {
        "both_values_are_missing": f"({a.missing}) AND ({b.missing})",
        "either_value_is_missing": f"({a.missing}) OR ({b.missing})",
        "neither": "0",
    }[e.kwargs.get("ignore_row_if", "both_values_are_missing")]
    sign = "=" if e.type.endswith("equal") else ">=" if e.kwargs.get("or_equal") else ">"
    return Rule(e, ignored, f"NOT ({ignored}) AND NOT ifNull({a.sql} {sign} {b.sql}, 0)", (a.sql, b.sql))


def constants(values: Sequence[Any], kind: str) -> list[str]:
    """Return the values of a set in SQL, without NULLs."""
    found = [constant(value, kind) for value in values if value is not None]
    if not found:
        raise QualityError("value_set has no values")
    return found


def constant(value: Any, kind: str) -> str:
    """Return a value of a suite in SQL. Raises QualityError if a column of this kind cannot be compared with it."""
    if kind == NUMBER and isinstance(value, int | float) and not math.isnan(value):
        if isinstance(value, int) or math.isinf(value):
            return "inf" if value == math.inf else "-inf" if value == -math.inf else str(int(value))
        return repr(value)
    if kind == TEXT and isinstance(value, str):
        return literal(value)
    if kind == TIME and (moment := _moment(value)) is not None:
        return f"toDateTime64({literal(moment.strftime('%Y-%m-%d %H:%M:%S.%f'))}, 6, 'UTC')"
    raise QualityError(f"the column holds a {kind}, which cannot be compared with {value!r}")


def _moment(value: Any) -> datetime | None:
    """Return a time in UTC; None if the value is none. A time without a zone is in UTC."""
    try:
        found = datetime.fromisoformat(value) if isinstance(value, str) else value
    except ValueError:
        return None
    if isinstance(found, datetime):
        return found.astimezone(UTC) if found.tzinfo else found
    return datetime.combine(found, time()) if isinstance(found, date) else None
