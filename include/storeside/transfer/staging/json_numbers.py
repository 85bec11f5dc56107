"""Refuses texts that are no JSON numbers in columns of numbers, and numbers beyond a float's range.

ClickHouse 26.9 reads ``""`` as the integer 0, and ``"007"`` and ``"+7"`` as 7, also within arrays. It reads
``1e-400`` as the float 0.
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from typing import Any

import msgspec

from storeside.sql.quoting import literal
from storeside.transfer.base.errors import LoadObjectError, no_number, out_of_range
from storeside.transfer.base.schema import Column, bare
from storeside.transfer.objects.strict_json import depth_of

_BAD = '"(?:"|[+]|-?0[0-9])'
_ANYWHERE = re.compile(_BAD.encode())
_IN_VALUE = rf"(?:^|[\[,])[ \t\r\n]*{_BAD}"
_AT_VALUE = re.compile(_IN_VALUE.encode())
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


def _number_of(kind: str) -> str:
    """Return the type of numbers of a column of them, or of arrays of them; empty for another column."""
    while (kind := bare(kind)).startswith("Array("):
        kind = kind[6:-1]
    return kind if _NUMBER.fullmatch(kind) else ""


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


class Numbers:
    """The columns of numbers that a load reads from JSON."""

    def __init__(self, columns: Iterable[Column]) -> None:
        kinds = {c.name: _number_of(c.type) for c in columns}
        self.names = [name for name, kind in kinds.items() if kind]
        self.floats = {name: kind for name, kind in kinds.items() if kind in _FAR}
        self._far = re.compile("|".join(sorted({_FAR[kind] for kind in self.floats.values()})).encode())

    @property
    def condition(self) -> str:
        """The condition that a `line` may have such a value in one of the columns; the worker then decides."""
        if not self.names:
            return "0"
        hints = " OR ".join(
            f"position(line, {literal(hint)}) > 0" for hint in _HINTS
        )  # half of multiSearchAny's time
        raws = " OR ".join(
            f"match(JSONExtractRaw(line, {literal(name)}), {literal(_IN_VALUE)})" for name in self.names
        )
        texts = f"if({hints}, startsWith(trimLeft(line), '[') OR {raws}, 0)"
        return f"({texts} OR {self._condition_of_floats})" if self.floats else texts

    @property
    def _condition_of_floats(self) -> str:
        """The condition that a number may become 0; a check of the load finds infinity."""
        zeros = " OR ".join(
            f"arrayExists(x -> to{kind}OrZero(x) = 0, extractAll(JSONExtractRaw(line, {literal(name)}),"
            f" {literal(_DIGITS)}))"
            for name, kind in self.floats.items()
        )
        is_far = f"match(line, {literal(f'{_BEFORE}(?:{self._far.pattern.decode()})')})"
        hints = " OR ".join(f"position(line, {literal(hint)}) > 0" for hint in _FAR_HINTS)
        return f"if({hints}, if({is_far}, startsWith(trimLeft(line), '[') OR {zeros}, 0), 0)"

    def fault(self, document: bytes) -> str:
        """Return which column has such a value in a document; empty if none has."""
        is_text = self.names and _ANYWHERE.search(document)
        is_far = self.floats and self._far.search(document)
        if not (is_text or is_far):
            return ""
        try:
            found = self._decoder.decode(document)
        except msgspec.MsgspecError:  # it is no object: the load refuses it
            return ""
        return self._named(found)

    def checked(self, pieces: Iterable[bytes]) -> Iterator[bytes]:
        """Yield pieces of JSON Lines unchanged, after their check. Raises LoadObjectError with row and column."""
        if not self.names:
            yield from pieces
            return
        row, rest = 0, b""
        for piece in pieces:
            *lines, rest = (rest + piece).split(b"\n")
            row, rest = self._check(lines, row, rest)
            yield piece
        self._check([rest], row, b"")

    def _check(self, lines: Sequence[bytes], row: int, rest: bytes) -> tuple[int, bytes]:
        """Check the documents in lines; return the next row, and the beginning of a document with the `rest`."""
        pending: list[bytes] = []
        depth = 0
        for line in lines:
            pending.append(line)
            depth += depth_of(line) if len(pending) > 1 or line.count(b"{") != line.count(b"}") else 0
            if depth > 0:
                continue
            document = b"\n".join(pending)
            if reason := self.fault(document):
                raise LoadObjectError(f"row {row}, {reason}")
            row += bool(document.strip())
            pending, depth = [], 0
        return row, b"\n".join([*pending, rest])

    def _named(self, found: Any) -> str:
        for number, name in enumerate(self.names):
            raw = bytes(getattr(found, f"f{number}"))
            if _AT_VALUE.search(raw):
                return no_number(name)
            kind = self.floats.get(name, "")
            if kind and any(_is_out_of_range(number, kind) for number in re.findall(_DIGITS, raw.decode("latin-1"))):
                return out_of_range(name, kind)
        return ""

    @cached_property
    def _decoder(self) -> msgspec.json.Decoder[Any]:
        fields: list[Any] = [
            (f"f{number}", msgspec.Raw, msgspec.field(default=msgspec.Raw(), name=name))
            for number, name in enumerate(self.names)
        ]
        return msgspec.json.Decoder(msgspec.defstruct("Row", fields))
