"""Streams of bytes: decompresses, limits, cuts and joins them, so that no content is held in memory as a whole."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import zlib
from collections.abc import Iterable, Iterator
from typing import Any

from storeside.transfer.base.damage import broken
from storeside.transfer.base.errors import LimitError, LoadObjectError, TransferError
from storeside.transfer.base.watch import excess
from storeside.transfer.objects.snappy import Snappy

CHUNK = 1 << 20
# Bytes that a decoder of xz may take: `xz -9` needs 65 MiB, and a hostile object may ask for 4 GiB.
_XZ_MEMORY = 128 << 20


def opened(file: Any, kind: str) -> Any:
    """Return a readable file that decompresses `file` by `kind`, including concatenated members.

    A read raises OSError if the content is corrupt or truncated, as far as its format shows it.
    """
    if not kind:
        return file
    if kind == "xz":
        return _Decompressed(_Xz(file))
    filled: Any = _Filled(file)
    if kind == "gzip":  # pyarrow refuses zeros after the last member, which gzip leaves out
        return _Decompressed(gzip.open(filled))
    if kind == "bz2":  # pyarrow fails if the second member is empty
        return _Decompressed(bz2.open(file))
    if kind in ("snappy", "hadoop-snappy"):
        return Snappy(filled, kind)
    import pyarrow as pa

    return _Decompressed(pa.CompressedInputStream(pa.PythonFile(file, mode="r"), kind), pa.ArrowException)


def unpacked(packed: bytes, kind: str, most: int) -> bytes:
    """Return what `packed` contains, compressed by `kind`.

    Raises OSError if it is corrupt, and OverflowError if it has more than `most` bytes.
    """
    file, found = opened(io.BytesIO(packed), kind), bytearray()
    while piece := file.read(CHUNK):
        found += piece
        if len(found) > most:
            raise OverflowError
    return bytes(found)


class _Readable:
    """A file that reads another one, `_file`, and that pyarrow accepts."""

    closed = False  # pyarrow reads this attribute
    _file: Any

    def readable(self) -> bool:
        """Return True; pyarrow checks this before it reads."""
        return True

    def close(self) -> None:
        """Close the file that it reads."""
        self._file.close()


class _Filled(_Readable):
    """A file whose reads return fewer bytes than asked for only at its end.

    The decoders of gzip and snappy expect this, but a member of an archive arrives in pieces.
    """

    def __init__(self, file: Any) -> None:
        self._file = file

    def read(self, size: int) -> bytes:
        """Return `size` bytes, fewer only at the end."""
        found = bytearray()
        while len(found) < size and (piece := self._file.read(size - len(found))):
            found += piece
        return bytes(found)


class _Decompressed(_Readable):
    """A decompressing file, which raises OSError for all decoders' errors; `errors` are those of its own decoder."""

    def __init__(self, file: Any, *errors: type[Exception]) -> None:
        self._file = file
        self._errors: tuple[type[Exception], ...] = (lzma.LZMAError, zlib.error, EOFError, ValueError, *errors)

    def read(self, size: int) -> bytes:
        """Return up to `size` bytes; none at the end."""
        try:
            return bytes(self._file.read(size))
        except TransferError:
            raise
        except self._errors as e:
            raise OSError(str(e)) from e


class _Xz(_Readable):
    """Streams of xz, one after the other, also with padding between them."""

    def __init__(self, file: Any) -> None:
        self._file, self._rest = file, b""
        self._decoder: lzma.LZMADecompressor | None = None

    def read(self, size: int) -> bytes:
        """Return up to `size` bytes; none at the end. Raises LoadObjectError, LZMAError or EOFError."""
        while decoder := self._decoder or self._next():
            content = self._decoded(decoder, size)
            if decoder.eof:
                self._decoder, self._rest = None, decoder.unused_data
            if content:
                return content
        return b""

    def _next(self) -> lzma.LZMADecompressor | None:
        while not (rest := self._rest.lstrip(b"\0")):
            if not (rest := bytes(self._file.read(CHUNK))):
                return None
            self._rest = rest
        self._rest = rest
        self._decoder = lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=_XZ_MEMORY)
        return self._decoder

    def _decoded(self, decoder: lzma.LZMADecompressor, size: int) -> bytes:
        given = b""
        if decoder.needs_input:
            given, self._rest = self._rest or bytes(self._file.read(CHUNK)), b""
            if not given:
                raise EOFError("the xz stream is cut off")
        try:
            return decoder.decompress(given, size)
        except lzma.LZMAError as e:
            if "Memory usage limit" not in str(e):
                raise
            raise LoadObjectError(
                f"to unpack it, xz needs more than {_XZ_MEMORY >> 20} MB of memory: pack it with xz -9 or less"
            ) from e


def limited(file: Any, most: int) -> Any:
    """Return a file whose reads raise LimitError once more than `most` bytes were read; 0 means no limit."""
    return _Limited(file, most) if most else file


class _Limited(_Readable):
    def __init__(self, file: Any, most: int) -> None:
        self._file, self._most, self._read = file, most, 0

    def read(self, size: int) -> bytes:
        """Return up to `size` bytes; none at the end. Raises LimitError."""
        content = bytes(self._file.read(size))
        self._read += len(content)
        if reason := excess(0, self._read, rows=0, size=self._most):
            raise LimitError(reason)
        return content


class Pieces(_Readable):
    """A file of the pieces that an iterator yields; its reads raise the iterator's errors."""

    def __init__(self, pieces: Iterable[bytes]) -> None:
        self._pieces = iter(pieces)
        self._piece, self._at = b"", 0

    def read(self, size: int) -> bytes:
        """Return up to `size` bytes; none at the end."""
        while self._at >= len(self._piece):
            if (piece := next(self._pieces, None)) is None:
                return b""
            self._piece, self._at = piece, 0
        found = self._piece[self._at : self._at + size]
        self._at += len(found)
        return found

    def close(self) -> None:
        """Do nothing: the iterator owns what it reads."""


def gathered(rows: Iterable[bytes]) -> Iterator[bytes]:
    """Yield rows in pieces of about a megabyte."""
    some: list[bytes] = []
    size = 0
    for row in rows:
        some.append(row)
        size += len(row)
        if size >= CHUNK:
            yield b"".join(some)
            some, size = [], 0
    yield b"".join(some)


def pieces(file: Any) -> Iterator[bytes]:
    """Yield a file's content, a megabyte at a time. Raises LoadObjectError if the compressed data are corrupt."""
    try:
        while piece := file.read(CHUNK):
            yield piece
    except OSError as e:
        raise LoadObjectError(broken("its compressed content", e)) from e
