"""Refuses texts that are no JSON numbers in columns of numbers.

ClickHouse 26.9 reads ``""`` as the integer 0, and ``"007"`` and ``"+7"`` as 7, also within arrays.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from typing import Any

import msgspec

from storeside.sql.quoting import literal
from storeside.transfer.base.errors import LoadObjectError, no_number
from storeside.transfer.base.schema import Column, bare
from storeside.transfer.objects.strict_json import depth_of

_BAD = '"(?:"|[+]|-?0[0-9])'
_ANYWHERE = re.compile(_BAD.encode())
_IN_VALUE = rf"(?:^|[\[,])[ \t\r\n]*{_BAD}"
_AT_VALUE = re.compile(_IN_VALUE.encode())
# Texts of which a line with such a value has one.
_HINTS = ('""', '"+', '"0', '"-0')
_NUMBER = re.compile(r"U?Int\d+|Float\d+")


def _is_number(kind: str) -> bool:
    """Return whether a type is that of numbers, or of arrays of them."""
    while (kind := bare(kind)).startswith("Array("):
        kind = kind[6:-1]
    return _NUMBER.fullmatch(kind) is not None


class Numbers:
    """The columns of numbers that a load reads from JSON."""

    def __init__(self, columns: Iterable[Column]) -> None:
        self.names = [c.name for c in columns if _is_number(c.type)]

    @property
    def condition(self) -> str:
        """The condition that a `line` may have such a text in one of the columns; the worker then decides."""
        if not self.names:
            return "0"
        hints = " OR ".join(
            f"position(line, {literal(hint)}) > 0" for hint in _HINTS
        )  # half of multiSearchAny's time
        raws = " OR ".join(
            f"match(JSONExtractRaw(line, {literal(name)}), {literal(_IN_VALUE)})" for name in self.names
        )
        return f"if({hints}, startsWith(trimLeft(line), '[') OR {raws}, 0)"

    def fault(self, document: bytes) -> str:
        """Return which column has such a text in a document; empty if none has."""
        if not (self.names and _ANYWHERE.search(document)):
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
            if _AT_VALUE.search(bytes(getattr(found, f"f{number}"))):
                return no_number(name)
        return ""

    @cached_property
    def _decoder(self) -> msgspec.json.Decoder[Any]:
        fields: list[Any] = [
            (f"f{number}", msgspec.Raw, msgspec.field(default=msgspec.Raw(), name=name))
            for number, name in enumerate(self.names)
        ]
        return msgspec.json.Decoder(msgspec.defstruct("Row", fields))
