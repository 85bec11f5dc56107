"""Columns, and operations on the text of ClickHouse types."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from storeside.sql.quoting import identifier
from storeside.transfer.base.errors import TransferInputError

INTEGER = re.compile(r"U?Int(?:8|16|32|64)")
INTEGERS = re.compile(r"U?Int\d+")
FLOAT = re.compile(r"B?Float\d+")
TIME = re.compile(r"(?:Date|DateTime|Date32|DateTime64)(?:\(.*\))?")
MOMENT = re.compile(r"DateTime(?:64\((\d)(?:, '[^']*')?\)|\('[^']*'\))?")
CLOCK = re.compile(r"Time(?:64\((\d)\))?")
NUMBER = re.compile(r"U?Int\d+|Float\d+|BFloat16|Decimal.*")
_QUOTED = r"`((?:[^`\\]|\\.)*+)(?:`|\\?\Z)"  # to the end of the text if the quote has no end
_TOKEN = re.compile(rf"{_QUOTED}|'(?:[^'\\]|\\.)*+'?|.", re.DOTALL)
_ESCAPE = re.compile(r"\\(.)", re.DOTALL)
# The type of a column that has only NULLs, until another object shows its type.
NOTHING = "Nothing"
# The name for unnamed columns, because every column of ClickHouse needs a name.
UNNAMED = "_unnamed"


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
    """Return a type without Nullable and LowCardinality around it."""
    while match := re.fullmatch(r"(?:Nullable|LowCardinality)\((.*)\)", kind, re.DOTALL):
        kind = match.group(1)
    return kind


def same(one: str, other: str) -> bool:
    """Return whether types differ at most in Nullable, LowCardinality, and quotes around names of tuple elements."""
    return unquoted(bare(one)) == unquoted(bare(other))


def unquoted(kind: str) -> str:
    """Return a type without quotes around the names of tuple elements, and without escapes in them.

    ClickHouse escapes apostrophes in these names, which `identifier` does not.
    """
    return re.sub(_QUOTED, lambda m: _ESCAPE.sub(_unescaped, m.group(1)), kind, flags=re.DOTALL)


def _unescaped(found: re.Match[str]) -> str:
    return {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "0": "\0"}.get(found.group(1), found.group(1))


def nullable(kind: str) -> str:
    """Return the variant of a type that also holds NULL, or the type itself if ClickHouse has none."""
    if is_nullable(kind) or is_nested(kind) or bare(kind).startswith(("JSON", "Variant(", "Dynamic")):
        return kind
    if kind.startswith("LowCardinality("):
        return f"LowCardinality(Nullable({bare(kind)}))"
    return f"Nullable({kind})"


def is_nullable(kind: str) -> bool:
    """Return whether a column of this type holds NULL."""
    return kind.startswith(("Nullable(", "LowCardinality(Nullable("))


def is_nested(kind: str) -> bool:
    """Return whether a type holds lists, maps or structs."""
    return bare(kind).startswith(("Array(", "Map(", "Tuple("))


def resolved(kind: str) -> str:
    """Return a column type with String in place of types that no value has shown."""
    return re.sub(rf"\b{NOTHING}\b", "String", kind)


def arguments(kind: str) -> list[str]:
    """Return the arguments between the parentheses of a type, split at its commas."""
    inside = kind[kind.index("(") + 1 : -1] if kind.endswith(")") else ""
    found, depth, start = [], 0, 0
    for token in _TOKEN.finditer(inside):
        c = token.group()
        depth += (c == "(") - (c == ")")
        if c == "," and not depth:
            found.append(inside[start : token.start()].strip())
            start = token.end()
    return [*found, inside[start:].strip()] if inside else []


def alike(one: str, other: str) -> bool:
    """Return whether types differ at most in quotes around names of tuple elements, and in time zones."""
    return zoneless(unquoted(one)) == zoneless(unquoted(other))


def zoneless(kind: str) -> str:
    """Return a type without the time zones of its moments, in which ClickHouse shows them."""
    return re.sub(r"(DateTime64\(\d), '[^']*'\)", r"\1)", kind)


def loose(kind: str) -> str:
    """Return a type without Nullable and time zones, also for the fields of its structs."""
    kind = zoneless(unquoted(bare(kind)))
    while (at := kind.find("Nullable(")) >= 0:
        depth, end = 1, at + len("Nullable(")
        while depth and end < len(kind):
            depth += (kind[end] == "(") - (kind[end] == ")")
            end += 1
        kind = kind[:at] + kind[at + len("Nullable(") : end - 1] + kind[end:]
    return kind


def scale_of(kind: str) -> int | None:
    """Return the number of digits after the point of a decimal type; None for other types."""
    found = re.fullmatch(r"Decimal\(\d+, (\d+)\)", kind)
    return int(found.group(1)) if found else None


def fraction_of(kind: str) -> int:
    """Return the number of a time type's digits after the second; -1 for a date."""
    found = MOMENT.fullmatch(kind)
    return int(found.group(1) or 0) if found else -1


def bits_of(kind: str) -> int:
    """Return the number of bits of an integer type."""
    return int(kind.lstrip("UInt"))


def digits_of(kind: str) -> int:
    """Return the largest number of decimal digits of a value of an integer or decimal type."""
    found = re.match(r"Decimal\((\d+)", kind)
    return int(found.group(1)) if found else len(str(2 ** bits_of(kind)))


def structure(columns: Iterable[Column]) -> str:
    """Return columns as the structure argument of a table function."""
    return ", ".join(column.definition for column in columns)


def with_overrides(columns: Sequence[Column], overrides: Mapping[str, str]) -> list[Column]:
    """Return columns with the types that a user chose.

    Raises TransferInputError for a column that does not exist.
    """
    known = {column.name for column in columns}
    for name in overrides:
        if name not in known:
            raise TransferInputError(
                f"column {name!r} has a type but is in no sample: choose from {', '.join(sorted(known))}"
            )
    return [Column(column.name, overrides.get(column.name, column.type)) for column in columns]
