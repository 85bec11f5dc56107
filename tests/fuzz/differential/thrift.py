"""Footers and page headers of Parquet that no library would write: Thrift's compact protocol, written."""

from __future__ import annotations

import struct
from typing import Any

from storeside.transfer.formats.thrift import BINARY, BYTE, DOUBLE, FALSE, LIST, TRUE, Decoder, Struct


def encoded(value: Struct) -> bytes:
    """Return a struct in the compact protocol."""
    content = bytearray()
    last = 0
    for field, (kind, one) in sorted(value.items()):
        shown = (TRUE if one else FALSE) if kind in (TRUE, FALSE) else kind
        step = field - last
        content += bytes([step << 4 | shown]) if 0 < step < 16 else bytes([shown]) + _varint(_zigzag(field))
        if kind not in (TRUE, FALSE):
            content += _encoded(kind, one)
        last = field
    return bytes(content) + b"\0"


def _encoded(kind: int, value: Any) -> bytes:
    if kind in (TRUE, FALSE, BYTE):
        return bytes([value & 0xFF])
    if kind == DOUBLE:
        return bytes(value)
    if kind == BINARY:
        return _varint(len(value)) + value
    if kind == LIST:
        of, elements = value
        size = len(elements)
        head = bytes([size << 4 | of]) if size < 0x0F else bytes([0xF0 | of]) + _varint(size)
        return head + b"".join(_encoded(of, element) for element in elements)
    if isinstance(value, dict):
        return encoded(value)
    return _varint(_zigzag(value))


def _zigzag(value: int) -> int:
    return value << 1 ^ value >> 63


def _varint(value: int) -> bytes:
    content = bytearray()
    value &= 2**64 - 1
    while value >= 0x80:
        content.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes(content) + bytes([value])


def footer_of(content: bytes) -> tuple[int, Struct]:
    """Return the position and the content of a Parquet file's footer (FileMetaData of parquet.thrift)."""
    size = struct.unpack("<I", content[-8:-4])[0]
    start = len(content) - 8 - size
    return start, Decoder(content, start).struct()


def with_footer(content: bytes, footer: Struct) -> bytes:
    """Return a Parquet file with another footer."""
    start, _ = footer_of(content)
    body = encoded(footer)
    return content[:start] + body + struct.pack("<I", len(body)) + b"PAR1"
