"""Refuses texts that are no JSON numbers in columns of numbers, and numbers that a float does not hold.

ClickHouse 26.9 reads ``""`` as the integer 0, and ``"007"`` and ``"+7"`` as 7, also within lists, maps and structs.
It reads ``1e-400`` as the float 0, and ``9007199254740993`` as the float 9007199254740992.
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from storeside.sql.quoting import literal
from storeside.transfer.base.errors import no_number, not_kept, out_of_range
from storeside.transfer.base.schema import Column, bare
from storeside.transfer.formats.text_types import held_in_json, of
from storeside.transfer.staging.json_places import IN_LIST, KEY_END, Row, key_of, names_in, names_of, parts, within
from storeside.transfer.types.conversion import inexact

_BAD = '"(?:"|[+]|-?0[0-9])'
# The first group only makes the search faster.
_ANYWHERE = re.compile(b'"(?=["+0-])' + _BAD.encode()[1:])
_IN_VALUE = rf"(?:^|[\[,])[ \t\r\n]*{_BAD}"
_NO_NUMBER = re.compile(r"$|[+]|-?0[0-9]")
# Texts of which a line with such a value has one.
_HINTS = ('""', '"+', '"0', '"-0')
_NUMBER = re.compile(r"U?Int\d+|Float\d+")
# A number beyond the range of a float has an exponent of two or three digits, or many digits.
_FAR = {"Float64": "[eE][-+]?0*[1-9][0-9]{2}|[0-9]{200}", "Float32": "[eE][-+]?0*[1-9][0-9]|[0-9]{30}"}
# Texts of which a line with a number near 0 has one. `position` takes a tenth of the time of `match`.
_FAR_HINTS = ("e-", "E-", "0" * 30)
_DIGITS = "[0-9]*[.]?[0-9]+(?:[eE][-+]?[0-9]+)?"
# The text before a number. Without it, the text of a UUID seems to have an exponent.
_BEFORE = r"[:,\[ \t]-?[0-9.]*"
# A number with more digits than every float returns, in a line, and in the value of a key or within a list.
_LONG = "[0-9.]{16}"
_LONG_VALUE = r'[ \t\r]*"?(-?[0-9][0-9.]{15,}[eE]?)'
_DECIMAL = re.compile(r"-?[0-9]+(?:\.[0-9]*)?", re.ASCII)
# The shapes of numbers in a document after `translate`, which takes a thirtieth of the time of a search by patterns:
# those with many digits, and those that may be beyond the range of a float.
_SHAPES = bytes.maketrans(b"123456789.E+", b"0000000000e-")
_LONG_SHAPE = b"0" * 16
_FAR_SHAPES = {"Float64": (b"e000", b"e-000", b"0" * 200), "Float32": (b"e00", b"e-00", b"0" * 30)}
_FLOAT = "Float64"
_FLOATS, _OF_JSON = of(_FLOAT), of(_FLOAT, "Int64", "UInt64")
# Characters of a number whose digits the engine does not compare.
_SURELY_LOST = 40
# In the place of a key of a `JSON` column.
_OF_JSON_TYPE = "\0JSON"


def _number_of(kind: str) -> str:
    """Return the type of numbers of a column of them, or of arrays of them; empty for another column."""
    while (kind := bare(kind)).startswith("Array("):
        kind = kind[6:-1]
    return kind if _NUMBER.fullmatch(kind) else ""


def _is_number(kind: str) -> bool:
    return _NUMBER.fullmatch(kind) is not None


def _as_float(number: str, kind: str) -> float:
    value = float(number)
    try:
        return float(struct.unpack("f", struct.pack("f", value))[0]) if kind == "Float32" else value
    except OverflowError:
        return math.inf


def _is_out_of_range(number: str, kind: str) -> bool:
    """Return whether a float of this type turns a number into infinity or zero."""
    value = _as_float(number, kind)
    return math.isinf(value) or (not value and re.match("[^eE]*[1-9]", number) is not None)


class _Text(str):
    """The text of a JSON number."""

    __slots__ = ()


def _is_lost(value: Any, kind: str) -> bool:
    """Return whether a column of a type lacks digits of a number in a value that has `_Text` for numbers."""
    return any(
        _is_lost_in_document(part) if of_part == "JSON" else of_part == _FLOAT and _is_inexact(part, _FLOATS)
        for part, of_part in parts(value, kind)
    )


def _is_lost_in_document(value: Any) -> bool:
    if isinstance(value, dict):
        return any(map(_is_lost_in_document, value.values()))
    if isinstance(value, list):
        # ClickHouse 26.9 reads a list of integers as one of floats if a list before it has a float.
        return any(_is_inexact(x, _FLOATS) if isinstance(x, _Text) else _is_lost_in_document(x) for x in value)
    return isinstance(value, _Text) and _is_inexact(value, _OF_JSON)


def _is_inexact(number: Any, types: int) -> bool:
    is_number = isinstance(number, str) and _DECIMAL.fullmatch(number) is not None
    return is_number and not held_in_json(number) & types & ~of("String")


class Numbers:
    """The columns of numbers; those that are `kept` refuse to lose digits."""

    def __init__(self, columns: Sequence[Column], kept: Sequence[Column]) -> None:
        kinds = {c.name: _number_of(c.type) for c in columns}
        self._numbers = [name for name, kind in kinds.items() if kind]
        self._nested = [c for c in columns if not kinds[c.name] and names_in(c, _is_number)]
        self._with_numbers = [c for c in columns if c in self._nested or kinds[c.name]]
        self._floats = {name: kind for name, kind in kinds.items() if kind in _FAR}
        self._far_shapes = {shape for kind in self._floats.values() for shape in _FAR_SHAPES[kind]}
        self._far = re.compile("|".join(sorted({_FAR[kind] for kind in self._floats.values()})).encode())
        self._kept = kept

    @property
    def names(self) -> list[str]:
        """The columns whose values are compared."""
        return [c.name for c in (*self._with_numbers, *self._kept)]

    @property
    def condition(self) -> str:
        """The condition that a `line` may have such a value; empty if none can."""
        found = [self._condition_of_texts] if self._with_numbers else []
        found += [self._condition_of_floats] if self._floats else []
        found += [self._condition_of_digits] if self._kept else []
        return " OR ".join(found)

    @property
    def _condition_of_texts(self) -> str:
        hints = " OR ".join(
            f"position(line, {literal(hint)}) > 0" for hint in _HINTS
        )  # half of multiSearchAny's time
        raws = " OR ".join(
            [f"match(JSONExtractRaw(line, {literal(name)}), {literal(_IN_VALUE)})" for name in self._numbers]
            + [
                f"match(JSONExtractRaw(line, {literal(c.name)}), {literal(within(names_in(c, _is_number), _BAD))})"
                for c in self._nested
            ]
        )
        return f"if({hints}, startsWith(trimLeft(line), '[') OR {raws}, 0)"

    @property
    def _condition_of_floats(self) -> str:
        """The condition that a number may become 0; a check of the load finds infinity."""
        zeros = " OR ".join(
            f"arrayExists(x -> to{kind}OrZero(x) = 0, extractAll(JSONExtractRaw(line, {literal(name)}),"
            f" {literal(_DIGITS)}))"
            for name, kind in self._floats.items()
        )
        is_far = f"match(line, {literal(f'{_BEFORE}(?:{self._far.pattern.decode()})')})"
        hints = " OR ".join(f"position(line, {literal(hint)}) > 0" for hint in _FAR_HINTS)
        return f"if({hints}, if({is_far}, startsWith(trimLeft(line), '[') OR {zeros}, 0), 0)"

    @property
    def _condition_of_digits(self) -> str:
        """The condition that a float may lack digits of a number; JSONExtractRaw itself would round it."""
        lost = [
            f"arrayExists(x -> {fault}, extractAll(line, {literal(pattern)}))"
            for pattern, fault in _searches(self._kept)
        ]
        return f"if(multiMatchAny(line, [{literal(_LONG)}]), {' OR '.join(lost)}, 0)"

    def may_be_in(self, document: bytes) -> bool:
        """Return whether a document may have such a value."""
        if self._with_numbers and _ANYWHERE.search(document):
            return True
        shapes = document.translate(_SHAPES) if self._floats or self._kept else b""
        is_far = any(shape in shapes for shape in self._far_shapes) and self._far.search(document)
        return bool(is_far or (self._kept and _LONG_SHAPE in shapes))

    def fault(self, row: Row) -> str:
        """Return which column has such a value; empty if none has."""
        return self._of_texts(row) or self._of_floats(row) or self._of_digits(row)

    def _of_texts(self, row: Row) -> str:
        for c in self._with_numbers:
            if b'"' in row.raw(c.name):
                texts = (p for p, kind in parts(row.value(c.name), c.type) if isinstance(p, str) and _is_number(kind))
                if any(map(_NO_NUMBER.match, texts)):
                    return no_number(c.name)
        return ""

    def _of_floats(self, row: Row) -> str:
        for name, kind in self._floats.items():
            numbers = re.findall(_DIGITS, row.raw(name).decode("latin-1"))
            if any(_is_out_of_range(number, kind) for number in numbers):
                return out_of_range(name, kind)
        return ""

    def _of_digits(self, row: Row) -> str:
        for c in self._kept:
            if _LONG_SHAPE in row.raw(c.name).translate(_SHAPES):
                value = row.value(c.name, parse_int=_Text, parse_float=_Text)
                if _is_lost(value, c.type):
                    return not_kept(c.name, _FLOAT)
        return ""


def _searches(columns: Iterable[Column]) -> Iterator[tuple[str, str]]:
    """Yield patterns of long numbers in a line, each with the condition that such an `x` may lose digits."""
    names: set[str] = set()
    for column in columns:
        names |= _names_of_floats(column.name, column.type)
    lost = f"NOT match(x, '[eE]$') AND (length(x) > {_SURELY_LOST} OR {inexact('x')})"
    if _OF_JSON_TYPE in names:
        whole = " AND ".join(f"isNull(CAST(x, 'Nullable({kind})'))" for kind in ("Int64", "UInt64"))
        yield KEY_END + _LONG_VALUE, f"{whole} AND {lost}"
        yield rf"[\[,]{_LONG_VALUE}", lost  # an integer, too: see `_is_lost`
    if keys := names - {_OF_JSON_TYPE, IN_LIST}:
        yield f"(?:{key_of(keys)}){_LONG_VALUE}", lost
    if IN_LIST in names:
        yield rf"[\[,]{_LONG_VALUE}", lost


def _names_of_floats(name: str, kind: str) -> set[str]:
    """Return the names of the keys of floats in a column, `IN_LIST` for those in lists, and `_OF_JSON_TYPE`."""
    return names_of(name, kind, lambda key, core: _OF_JSON_TYPE if core == "JSON" else key if core == _FLOAT else "")
