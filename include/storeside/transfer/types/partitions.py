"""Columns whose values are in the keys of objects, as in ``year=2024/month=01/x.parquet`` (Hive's layout)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from urllib.parse import unquote_to_bytes

from storeside.sql.quoting import literal
from storeside.transfer.base.errors import LoadObjectError, skipped_time
from storeside.transfer.base.schema import MOMENT, Column, bare, nullable
from storeside.transfer.types.conversion import converted, guessed, skipped, whole

# The value that Hive and Spark write for NULL.
NULL = "__HIVE_DEFAULT_PARTITION__"
_NULLABLE_TEXT = "Nullable(String)"
_INTEGER = "^-?[0-9]{1,18}$"
_DATE = "^[0-9]{4}-[0-9]{2}-[0-9]{2}$"
# A timestamp of Delta as ISO 8601 in UTC: https://github.com/delta-io/delta/blob/master/PROTOCOL.md
_CLOCK = r"\1 \2"
_ISO = "^([0-9-]+)T([0-9:.]+)Z$"


def check_key(key: str, names: Sequence[str]) -> None:
    """Raise LoadObjectError unless each of these columns has one value in a key, encoded in UTF-8."""
    for name in names:
        found = _segments(key, name)
        if len(found) != 1:
            what = "has no folder" if not found else f"has {len(found)} folders"
            raise LoadObjectError(
                f"its key {what} {name}=…, but `partition_columns` needs one: omit {name!r}, or select other keys"
            )
        try:
            unquote_to_bytes(found[0]).decode()
        except UnicodeDecodeError as e:
            raise LoadObjectError(f"column {name!r}: the value in its key is not UTF-8: rename the object") from e


def _segments(key: str, name: str) -> list[str]:
    return [part[len(name) + 1 :] for part in key.split("/")[:-1] if part.startswith(f"{name}=")]


def value_in(key: str, name: str) -> str | None:
    """Return the value of a column in a key that `check_key` accepts; None for NULL."""
    text = unquote_to_bytes(_segments(key, name)[0]).decode()
    return None if text == NULL else text


def shown_by_keys(names: Sequence[str]) -> str:
    """Return expressions that count, for each column, the values in a table's column `key`, integers and dates."""
    counts = []
    for name in names:
        value = _text("key", name)
        present = f"match(key, {literal(_folder(name))}) AND {value} != {literal(NULL)}"
        counts.append(f"countIf({present})")
        counts += [f"countIf({present} AND match({value}, {literal(kind)}))" for kind in (_INTEGER, _DATE)]
    return ", ".join(counts)


def deduced(names: Sequence[str], counts: Sequence[int]) -> list[Column]:
    """Return the columns with types that hold the values that `shown_by_keys` counted."""
    return [Column(name, _type(*counts[3 * n : 3 * n + 3])) for n, name in enumerate(names)]


def _type(values: int, integers: int, dates: int) -> str:
    if values and integers == values:
        return "Nullable(Int64)"
    if values and dates == values:
        return "Nullable(Date32)"
    return "LowCardinality(Nullable(String))"


def _folder(name: str) -> str:
    """Return the pattern of keys with a value of a column, which is its group."""
    return f"(?s)^(?:.*/)?{re.escape(name)}=([^/]*)/"


def _text(key: str, name: str) -> str:
    """Return the expression for a column's value in a key."""
    return f"decodeURLComponent(extract({key}, {literal(_folder(name))}))"


def expressions(
    columns: Sequence[Column], key: str, zone: str = "UTC"
) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
    """Return each column with the expression for its value, and checks: faults with their reasons.

    `key` is the expression for the key of a row's object, `zone` the time zone of columns of times without one.
    """
    values, checks = [], []
    for column in columns:
        text = _text(key, column.name)
        if in_utc(column.type):
            text = f"replaceRegexpOne({text}, {literal(_ISO)}, {literal(_CLOCK)})"
        value = f"CAST(nullIf({text}, {literal(NULL)}), {literal(_NULLABLE_TEXT)})"
        values.append((column.name, converted(value, _NULLABLE_TEXT, column.type)))
        if unclear := guessed(f"ifNull({value}, '')", "String", column.type):
            reason = "has a value in the key that is no whole date and time, such as 10 or 2024-01"
            checks.append((unclear, f"column {column.name!r} {reason}: make the column a String"))
        if never := skipped(value, _NULLABLE_TEXT, column.type, zone):
            checks.append((never, skipped_time(column.name)))
        if fits := whole(value, _NULLABLE_TEXT, nullable(column.type)):
            reason = f"column {column.name!r} has a value in the key that {column.type} cannot hold"
            checks.append((f"NOT ({fits})", reason))
    return values, checks


def in_utc(kind: str) -> bool:
    """Return whether a type is a moment that is written and read in UTC."""
    return MOMENT.fullmatch(bare(kind)) is not None and "'UTC'" in kind


def both(names: Iterable[str], partitions: Sequence[str]) -> None:
    """Raise LoadObjectError if an object has a column that is also in its key."""
    if twice := sorted(set(names) & set(partitions)):
        raise LoadObjectError(
            f"column {twice[0]!r} is both in the object and in its key: omit it from `partition_columns`, or from the"
            " objects"
        )
