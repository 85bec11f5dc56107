"""Reads snappy streams, in the framing format or in Hadoop's format.

pyarrow decompresses only single blocks, and a hostile object must not decide the size of a block in memory, so this
is our own code. The framing format: https://github.com/google/snappy/blob/main/framing_format.txt. In Hadoop's
format, a block starts with its decompressed length, and each piece in it with its compressed length, both big-endian.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import Any

# Maximum bytes of a block, compressed and decompressed.
_MOST = 64 << 20


class Snappy:
    """A snappy stream as a file that can be read once; `kind` is ``snappy`` or ``hadoop-snappy``.

    A read of `file` returns fewer bytes than asked for only at the end. The checksums of the framing format are not
    compared, because only compiled code computes CRC-32C fast enough.
    """

    closed = False  # pyarrow reads this attribute

    def __init__(self, file: Any, kind: str) -> None:
        self._file = file
        self._blocks = self._framed() if kind == "snappy" else self._hadoop()
        self._block = io.BytesIO()

    def read(self, size: int) -> bytes:
        """Return up to `size` bytes; none at the end."""
        while not (content := self._block.read(size)):
            if (block := next(self._blocks, None)) is None:
                return b""
            self._block = io.BytesIO(block)
        return content

    def readable(self) -> bool:
        """Return True; pyarrow checks this before it reads."""
        return True

    def close(self) -> None:
        """Close the compressed file."""
        self._file.close()

    def _framed(self) -> Iterator[bytes]:
        while head := self._file.read(4):
            body = self._exactly(int.from_bytes(_whole(head, 4)[1:], "little"))
            if head[0] == 0:
                yield unsnapped(body[4:])
            elif head[0] == 1:
                yield body[4:]
            elif head[0] < 0x80:
                raise OSError(f"snappy stream has an unknown chunk {head[0]:#x}")

    def _hadoop(self) -> Iterator[bytes]:
        while head := self._file.read(4):
            left = int.from_bytes(_whole(head, 4), "big")
            while left > 0:
                piece = unsnapped(self._exactly(int.from_bytes(self._exactly(4), "big")))
                left -= len(piece)
                yield piece

    def _exactly(self, size: int) -> bytes:
        return _whole(self._file.read(size) if size <= _MOST else b"", size)


def _whole(content: Any, size: int) -> bytes:
    if len(content) < size:
        raise OSError("snappy stream is truncated, or the content is not snappy")
    return bytes(content)


def unsnapped(block: bytes) -> bytes:
    """Return the content of a raw snappy block. Raises OSError."""
    import pyarrow as pa

    if (length := unsnapped_size(block)) > _MOST:
        raise OSError("snappy stream has a block that is too long")
    try:
        return bytes(pa.decompress(block, decompressed_size=length, codec="snappy", asbytes=True))
    except pa.ArrowException as e:
        raise OSError(str(e)) from e


def unsnapped_size(block: bytes) -> int:
    """Return the size of a raw snappy block's content, with which the block begins."""
    length = shift = 0
    for byte in block[:5]:
        length |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            break
    return length
