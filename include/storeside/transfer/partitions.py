"""Columns whose values are in the keys of objects, as in ``year=2024/month=01/x.parquet`` (Hive's layout)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from urllib.parse import unquote_to_bytes

from storeside.transfer.conversion import converted, whole
from storeside.transfer.errors import LoadObjectError
from storeside.transfer.schema import Column, nullable
from storeside.transfer.source import literal

# The value that Hive and Spark write for NULL.
NULL = "__HIVE_DEFAULT_PARTITION__"
_TEXT = "Nullable(String)"
_INTEGER = re.compile(r"-?\d{1,18}")
_DATE = re.compile(r"\d{4}-\d\d-\d\d")


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


def deduced(keys: Iterable[str], names: Sequence[str]) -> list[Column]:
    """Return the columns with types that hold the values in these keys: integers, dates, otherwise text."""
    values: dict[str, set[str]] = {name: set() for name in names}
    for key in keys:
        for name in names:
            values[name] |= {unquote_to_bytes(one).decode("utf-8", "replace") for one in _segments(key, name)}
    return [Column(name, _type(found - {NULL})) for name, found in values.items()]


def _type(values: set[str]) -> str:
    if values and all(map(_INTEGER.fullmatch, values)):
        return "Nullable(Int64)"
    if values and all(map(_DATE.fullmatch, values)):
        return "Nullable(Date32)"
    return "LowCardinality(Nullable(String))"


def expressions(columns: Sequence[Column], key: str) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
    """Return each column with the expression for its value, and checks: faults with their reasons.

    `key` is the expression for the key of a row's object.
    """
    values, checks = [], []
    for column in columns:
        folder = f"(?s)^(?:.*/)?{re.escape(column.name)}=([^/]*)/"
        text = f"decodeURLComponent(extract({key}, {literal(folder)}))"
        value = f"CAST(nullIf({text}, {literal(NULL)}), {literal(_TEXT)})"
        values.append((column.name, converted(value, _TEXT, column.type)))
        fits = whole(value, _TEXT, nullable(column.type))
        if fits:
            reason = f"column {column.name!r} has a value in the key that {column.type} cannot hold"
            checks.append((f"NOT ({fits})", reason))
    return values, checks


def both(names: Iterable[str], partitions: Sequence[str]) -> None:
    """Raise LoadObjectError if an object has a column that is also in its key."""
    if twice := sorted(set(names) & set(partitions)):
        raise LoadObjectError(
            f"column {twice[0]!r} is both in the object and in its key: omit it from `partition_columns`, or from the"
            " objects"
        )
