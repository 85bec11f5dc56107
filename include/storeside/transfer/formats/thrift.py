"""Decodes Thrift's compact protocol, the encoding of Parquet's footers and page headers.

A struct is a dictionary from field id to type and value; a list is a pair of the elements' type and the elements.
https://github.com/apache/thrift/blob/master/doc/specs/thrift-compact-protocol.md
"""

from __future__ import annotations

from typing import Any

TRUE, FALSE, BYTE, I16, I32, I64, DOUBLE, BINARY, LIST, SET, MAP, STRUCT = range(1, 13)

Struct = dict[int, tuple[int, Any]]

# Maximum levels of structs within structs; Parquet's own structs have fewer.
_DEEPEST = 32


class Decoder:
    """Reads structs of the compact protocol; `at` is the position after the last struct that was read.

    Raises ValueError for content in another encoding.
    """

    def __init__(self, content: bytes, at: int = 0) -> None:
        self.content, self.at = content, at

    def struct(self, depth: int = 0) -> Struct:
        """Return the struct that begins at the current position."""
        if depth > _DEEPEST:
            raise ValueError("its metadata is nested too deeply")
        found: Struct = {}
        field = 0
        while head := self._byte():
            kind, step = head & 0x0F, head >> 4
            field = field + step if step else self._zigzag()
            found[field] = (kind, kind == TRUE if kind in (TRUE, FALSE) else self._value(kind, depth))
        return found

    def _byte(self) -> int:
        if self.at >= len(self.content):
            raise ValueError("its metadata is cut off")
        self.at += 1
        return self.content[self.at - 1]

    def _varint(self) -> int:
        value = shift = 0
        while True:
            byte = self._byte()
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value
            if shift > 63:
                raise ValueError("its metadata has a number of more than 64 bits")

    def _zigzag(self) -> int:
        value = self._varint()
        return value >> 1 ^ -(value & 1)

    def _take(self, size: int) -> bytes:
        if size > len(self.content) - self.at:
            raise ValueError("its metadata is cut off")
        self.at += size
        return self.content[self.at - size : self.at]

    def _value(self, kind: int, depth: int) -> Any:
        if kind in (I16, I32, I64):
            return self._zigzag()
        if kind == BINARY:
            return self._take(self._varint())
        if kind == STRUCT:
            return self.struct(depth + 1)
        if kind == LIST:
            return self._list(depth)
        if kind in (BYTE, TRUE, FALSE):  # elements of a list
            return self._byte()
        if kind == DOUBLE:
            return self._take(8)
        raise ValueError(f"its metadata has type {kind}, which Parquet does not use")

    def _list(self, depth: int) -> tuple[int, list[Any]]:
        head = self._byte()
        size = head >> 4 if head >> 4 != 0x0F else self._varint()
        if size > len(self.content) - self.at:
            raise ValueError("its metadata is cut off")
        return head & 0x0F, [self._value(head & 0x0F, depth) for _ in range(size)]
