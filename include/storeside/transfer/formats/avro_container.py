"""The container of Avro objects: its header and its blocks.

https://avro.apache.org/docs/1.12.0/specification/#object-container-files describes it.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping

from storeside.transfer.base.errors import LoadObjectError
from storeside.transfer.objects.snappy import unsnapped, unsnapped_size
from storeside.transfer.objects.streams import unpacked

MAGIC = b"Obj\x01"
_SYNC = 16
_CODEC = b"avro.codec"
# Codecs whose blocks are streams of a common compression.
_STREAMS = {b"bzip2": "bz2", b"zstandard": "zstd"}


class AvroBytes:
    """Decodes a file from its first byte. Raises IndexError if the bytes end too early, and LoadObjectError."""

    def __init__(self, content: bytes) -> None:
        self.content, self.at = content, len(MAGIC)

    def metadata(self) -> tuple[dict[bytes, bytes], int]:
        """Return the metadata in the header, and the number of bytes before the sync marker."""
        found = {}
        while count := self.long():
            if count < 0:  # then the size of these entries follows
                self.long()
            for _ in range(abs(count)):
                name = self.sized()
                found[name] = self.sized()
        if len(self.content) < self.at + _SYNC:
            raise IndexError
        return found, self.at

    def blocks(self) -> Iterator[tuple[int, bytes]]:
        """Yield the number of rows and the bytes of each block after the header's metadata."""
        sync = self._take(_SYNC)
        while self.at < len(self.content):
            yield self.long(), self.sized()
            if self._take(_SYNC) != sync:
                raise LoadObjectError("its Avro blocks are corrupt")

    def long(self) -> int:
        """Return the next integer."""
        value = shift = 0
        while True:
            byte = self.content[self.at]
            self.at += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return (value >> 1) ^ -(value & 1)
            if shift > 63:
                raise LoadObjectError("its Avro header is corrupt")

    def sized(self) -> bytes:
        """Return the next bytes, which follow their number."""
        size = self.long()
        if size < 0:
            raise LoadObjectError("its Avro header is corrupt")
        return self._take(size)

    def _take(self, size: int) -> bytes:
        self.at += size
        if self.at > len(self.content):
            raise IndexError
        return self.content[self.at - size : self.at]


def header(entries: Mapping[bytes, bytes]) -> bytes:
    """Return a header with this metadata, without its sync marker."""
    packed = b"".join(_sized(part) for entry in entries.items() for part in entry)
    return MAGIC + _long(len(entries)) + packed + _long(0)


def uncompressed(content: bytes, most: int) -> tuple[bytes, int]:
    """Return an Avro file whose blocks are not compressed, of at most `most` bytes, and its number of rows.

    The file is shorter than that if `content` is not. Raises LoadObjectError, OSError for damaged blocks, and
    OverflowError for a larger file.
    """
    source = AvroBytes(content)
    try:
        metadata, end = source.metadata()
        made = bytearray(header({**metadata, _CODEC: b"null"}))
        sync = content[end : end + _SYNC]
        made += sync
        total = 0
        for rows, packed in source.blocks():
            if rows < 0:
                raise LoadObjectError("its Avro blocks are corrupt")
            block = _unpacked(metadata.get(_CODEC, b"null"), packed, most - len(made))
            made += _long(rows) + _sized(block) + sync
            total += rows
    except IndexError:
        raise LoadObjectError("its Avro file is cut off") from None
    return bytes(made), total


def _unpacked(codec: bytes, packed: bytes, most: int) -> bytes:
    """Return the content of a block. Raises OSError, and OverflowError if it has more than `most` bytes."""
    if codec == b"null":
        block = packed
    elif codec == b"deflate":
        block = _inflated(packed, max(most, 0) + 1)
    elif codec == b"snappy":
        if unsnapped_size(packed) > most:
            raise OverflowError
        block = unsnapped(packed[:-4])
        if zlib.crc32(block).to_bytes(4, "big") != packed[-4:]:
            raise OSError("a block has another checksum")
    elif kind := _STREAMS.get(codec):
        block = unpacked(packed, kind, most)
    else:
        raise LoadObjectError(f"Avro's codec {codec.decode('utf-8', 'replace')!r} is not read: write it with deflate")
    if len(block) > most:
        raise OverflowError
    return block


def _inflated(packed: bytes, most: int) -> bytes:
    inflater = zlib.decompressobj(-zlib.MAX_WBITS)
    try:
        block = inflater.decompress(packed, most)
    except zlib.error as e:
        raise OSError(str(e)) from e
    if len(block) < most and not inflater.eof:
        raise OSError("a block is cut off")
    return block


def _long(number: int) -> bytes:
    """Return a number that is not negative in Avro's notation."""
    rest = number << 1
    found = bytearray()
    while rest > 0x7F:
        found.append(rest & 0x7F | 0x80)
        rest >>= 7
    return bytes([*found, rest])


def _sized(content: bytes) -> bytes:
    return _long(len(content)) + content
