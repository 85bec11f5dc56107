"""A format that the product does not have: ClickHouse's RowBinary with names and types of the columns.

This module has all that a new format needs: its facts, its class, and the example of its contract.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest

from storeside.transfer.base.errors import LoadObjectError
from storeside.transfer.base.schema import Column, bare
from storeside.transfer.formats.avro_schema import AvroField, AvroShape
from storeside.transfer.formats.registry import TYPED
from storeside.transfer.objects.content import Content
from storeside.transfer.request import request
from storeside.transfer.request.known_formats import KNOWN, Facts
from tests.format_examples import Example, Row, sized, varint

FACTS = Facts(
    "rowbinary", "RowBinaryWithNamesAndTypes", "types", "RowBinary", "a RowBinary", extensions=(".rowbinary",)
)
# Bytes with the names and types of any example.
_HEADER = 4096


class RowBinary:
    """Objects that begin with the number of columns, their names, and their types."""

    def columns(self, content: Content) -> list[Column]:
        head = content.range(0, _HEADER)
        try:
            count, at = head[0], 1
            found = []
            for _ in range(2 * count):
                end = at + 1 + head[at]
                found.append(head[at + 1 : end].decode())
                at = end
        except (IndexError, UnicodeDecodeError) as e:
            raise LoadObjectError("its header is no RowBinary: write it with names and types") from e
        if at > len(head):
            raise LoadObjectError("its header is cut off: write it again")
        return [Column(name, kind) for name, kind in zip(found[:count], found[count:], strict=True)]

    def header(self, content: Content) -> tuple[AvroShape, int]:
        fields = [AvroField(c.name, c.type, c.type, is_text=bare(c.type) == "String") for c in self.columns(content)]
        return AvroShape(tuple(fields)), -1

    def body(
        self, content: Content, *, by_arrow: bool, is_large: bool, wrapped: frozenset[str]
    ) -> Iterator[bytes] | None:
        return None


def make(names: Sequence[str], rows: Sequence[Row]) -> bytes:
    kinds = [f"Nullable({'String' if name == 's' else 'Int64'})" for name in names]
    content = varint(len(names)) + b"".join(sized(text.encode()) for text in (*names, *kinds))
    for row in rows:
        for value in row:
            content += bytes([value is None])
            if value is not None:
                content += value.to_bytes(8, "little") if isinstance(value, int) else sized(value.encode())
    return content


EXAMPLE = Example(make)


def register(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the format known for the rest of a test."""
    monkeypatch.setitem(KNOWN, FACTS.name, FACTS)
    monkeypatch.setitem(TYPED, FACTS.name, RowBinary())
    monkeypatch.setitem(request.CHOICES, "format", ("auto", *KNOWN))
