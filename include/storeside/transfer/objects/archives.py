"""Reads the members of a tar or zip archive, one after the other: members that are text as one text.

All members belong to one object: it is loaded once and whole, or fails with the name of the member at fault.
"""

from __future__ import annotations

import io
import re
import stat
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, BinaryIO, Literal, cast

from storeside.transfer.base.damage import broken
from storeside.transfer.base.errors import LoadObjectError, TransferError, in_member
from storeside.transfer.objects.csv_quotes import is_open
from storeside.transfer.objects.json_array import peeked
from storeside.transfer.objects.streams import CHUNK, Pieces, gathered, limited, opened, pieces
from storeside.transfer.objects.strict_json import objects
from storeside.transfer.request.known_formats import KNOWN, has_kind, is_array
from storeside.transfer.request.object_format import Csv, compression_within, format_by_name
from storeside.transformers.contract.tar_archive import TarArchive, TarError, plain

Kind = Literal["tar", "zip", ""]
# Yields JSON Lines unchanged, after their check.
Check = Callable[[Iterator[bytes]], Iterator[bytes]]
_NAME = re.compile(r"(?i)\.(?:(zip)|tar|tgz|tbz2?|txz|tzst|tar\.(?:gz|bz2|xz|zstd?|lz4))$")
# Bytes per request: members are mostly read in the order in which they are stored.
_BUFFER = 4 << 20
# zipfile holds the directory of an archive in memory, about ten times its size.
_LARGEST_DIRECTORY = 8 << 20
_MOST_MEMBERS = 1_000_000
_LONGEST_HEADER = 64 << 20
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
# zipfile bounds the memory of these methods; a member packed with LZMA or bzip2 chooses how much it takes.
_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
_ENCRYPTED = 0x1
# The first bytes of a member.
_MEMBER = b"PK\3\4"
# A size that no stream reaches: a compressed tar archive shows its own only at its end.
_UNKNOWN = 1 << 62
_ZIP_ERRORS = (
    zipfile.BadZipFile, zipfile.LargeZipFile, zlib.error, struct.error, EOFError, NotImplementedError, OSError,
    OverflowError, RuntimeError, ValueError,
)  # fmt: skip


def kind_by_name(key: str) -> Kind:
    """Return the kind of archive that an object's name shows; empty if it shows none."""
    found = _NAME.search(key)
    return "" if not found else "zip" if found.group(1) else "tar"


@dataclass(frozen=True)
class Members:
    """Which members of an archive are read: those whose names have the extension of `format`.

    With ``auto``, all members whose names show a format must have the same one. `csv` is the dialect of CSV members.
    """

    format: str = "auto"
    csv: Csv = field(default_factory=Csv)


class Archive:
    """An archive; `file` can be read at any position and has `size` bytes.

    For a compressed tar archive, `stream` returns a file that decompresses it from its start. The content that is
    read, including that of other members of a compressed archive, has at most `most` bytes; 0 means no limit.
    """

    def __init__(
        self, kind: Kind, file: io.RawIOBase, size: int, members: Members, most: int, stream: Callable[[], Any] | None
    ) -> None:
        self._kind, self._file, self._size, self._members, self._most = kind, file, size, members, most
        self._stream = stream
        self.first = ""

    def pieces(self, *, check: Check | None = None, sampled: bool = False) -> Iterator[bytes]:
        """Yield the rows of all text members, with the header of CSV once; each member ends with a line feed.

        `first` is the name of the first one. `check` yields the JSON Lines that it has checked. If rows are only
        `sampled`, members may have other formats. Raises LoadObjectError, which states the member.
        """
        self._header: bytes | None = None
        for name, content in self._read():
            with _naming(name):
                yield from _ended(self._rows(name, content, check, sampled=sampled))

    def files(self) -> Iterator[tuple[str, Iterator[bytes]]]:
        """Yield the name and the content of each member. Reading both raises LoadObjectError, as `pieces` does."""
        for name, content in self._read():
            yield name, self._file_of(name, content)

    def _file_of(self, name: str, content: Iterator[bytes]) -> Iterator[bytes]:
        with _naming(name):
            yield from self._plain(name, content)

    def _read(self) -> Iterator[tuple[str, Iterator[bytes]]]:
        """Yield the name and the bytes of each member that is read. Raises LoadObjectError."""
        self._format = self._members.format
        self.first = ""
        seen: set[int] = set()  # hashes, because names may be long
        for name, content in self._zip() if self._kind == "zip" else self._tar():
            if (key := hash(plain(name))) in seen:
                raise in_member(LoadObjectError("the archive has several members of this name"), name)
            seen.add(key)
            if len(seen) > _MOST_MEMBERS:
                too_many = LoadObjectError(f"the archive has more than {_MOST_MEMBERS} members: divide it")
                raise in_member(too_many, name)
            self.first = self.first or name
            yield name, content
        if not seen:
            *some, last = (facts.name for facts in KNOWN.values() if facts.extensions)
            wanted = f"{', '.join(some)} or {last}" if self._format == "auto" else self._format
            raise LoadObjectError(
                f"the archive has no member that its name shows to be {wanted}, such as data.csv or data.jsonl.gz:"
                " rename the members, or move it to a separate prefix"
            )

    def _wants(self, name: str) -> bool:
        """Return whether a member is read. Raises LoadObjectError if its format contradicts that of others."""
        form = format_by_name(name)
        if form is None or name.rpartition("/")[2].startswith("."):  # macOS adds ._data.csv
            return False
        if self._members.format == "auto":
            if self._format not in ("auto", form):
                other = LoadObjectError(f"it is {form}, and {self.first!r} is not: set `format` to read one")
                raise in_member(other, name)
            self._format = form
        return form == self._format

    def _tar(self) -> Iterator[tuple[str, Iterator[bytes]]]:
        if self._stream is None:
            file: Any = io.BufferedReader(self._file, _BUFFER)
            size = self._size
        else:
            file = _Forward(limited(self._stream(), self._most))
            size = _UNKNOWN
        archive = TarArchive(cast(BinaryIO, file), size)
        try:
            for member in archive:
                if member.is_folder or not self._wants(member.name):
                    continue
                if member.refusal:
                    raise in_member(LoadObjectError(member.refusal), member.name)
                yield member.name, archive.pieces(member)
        except TarError as e:
            raise LoadObjectError(broken("the archive", e)) from e
        except OSError as e:
            raise LoadObjectError(broken("its compressed content", e)) from e

    def _zip(self) -> Iterator[tuple[str, Iterator[bytes]]]:
        try:
            archive = zipfile.ZipFile(file := _Bounded(self._file, _BUFFER))
            _require_one(archive, file)
        except TransferError:
            raise
        except _ZIP_ERRORS as e:
            raise LoadObjectError(broken("the archive", e)) from e
        for info in archive.infolist():
            if info.is_dir() or not self._wants(info.filename):
                continue
            if reason := _refusal(info):
                raise in_member(LoadObjectError(reason), info.filename)
            yield info.filename, _unpacked(archive, info)

    def _rows(self, name: str, content: Iterator[bytes], check: Check | None, *, sampled: bool) -> Iterator[bytes]:
        """Return the rows of one member, without its byte order mark and all headers but the first.

        The bytes of a member that is no text are returned as they are, for samples.
        """
        if has_kind(self._format, "types"):
            if not sampled:
                raise LoadObjectError(f"it is {self._format}, and the load reads text: set `format`, or move it")
            return self._plain(name, content)
        text = _unmarked(self._plain(name, content))
        if has_kind(self._format, "documents"):
            if check is not None:
                return check(text)
            head, text = peeked(text)
            return gathered(objects(text)) if is_array(head) else text
        return self._without_header(text)

    def _plain(self, name: str, content: Iterator[bytes]) -> Iterator[bytes]:
        """Return the content of one member, decompressed."""
        head, content = peeked(content)
        return pieces(limited(opened(Pieces(content), compression_within(head, name)), self._most))

    def _without_header(self, text: Iterator[bytes]) -> Iterator[bytes]:
        csv = self._members.csv
        if "\n".encode(csv.encoding) != b"\n":
            raise LoadObjectError(f"csv encoding {csv.encoding!r} is not read from archives: unpack it")
        buffer = bytearray()
        skipped = [_line(buffer, text) for _ in range(csv.skip_rows)]
        header = b"" if csv.names else _header(buffer, text, csv)
        if not (all(skipped) and (header or csv.names)):
            return  # an empty member
        if self._header is None:
            self._header = header.rstrip(b"\r\n")
            yield from (*skipped, header)
        elif header.rstrip(b"\r\n") != self._header:
            raise LoadObjectError(f"its header differs from that of {self.first!r}: load them as separate objects")
        if buffer:
            yield bytes(buffer)
        yield from text


class _Bounded(io.BufferedReader):
    """A file for zipfile, which reads the directory of an archive in one step."""

    def read(self, size: int | None = -1) -> bytes:
        """Return up to `size` bytes. Raises LoadObjectError for more than a directory may have."""
        if size is not None and size > _LARGEST_DIRECTORY:
            raise LoadObjectError(f"the archive's directory exceeds {_LARGEST_DIRECTORY >> 20} MB: divide it")
        return super().read(size)


class _Forward:
    """A stream that can be read at increasing positions only."""

    def __init__(self, file: Any) -> None:
        self._file, self._position = file, 0

    def seek(self, position: int) -> None:
        """Read and discard the bytes before a position; the next read returns none if the stream ends earlier."""
        while (left := position - self._position) > 0 and (piece := self._file.read(min(left, CHUNK))):
            self._position += len(piece)

    def read(self, size: int) -> bytes:
        """Return `size` bytes, fewer only at the end."""
        found = bytearray()
        while len(found) < size and (piece := self._file.read(size - len(found))):
            found += piece
        self._position += len(found)
        return bytes(found)


def _require_one(archive: zipfile.ZipFile, file: BinaryIO) -> None:
    """Raise LoadObjectError for archives that were joined: only the directory of the last one is read.

    A program before an archive, which extracts it, is no member.
    """
    if min((info.header_offset for info in archive.infolist()), default=0):
        file.seek(0)
        if file.read(len(_MEMBER)) == _MEMBER:
            raise LoadObjectError(
                "its directory lacks its first member: several archives were joined, or the member was deleted; store"
                " each archive as one object, or pack it again"
            )


def _refusal(info: zipfile.ZipInfo) -> str:
    """Return why a member of a zip archive cannot be read; empty if it can."""
    if info.flag_bits & _ENCRYPTED:
        return "it is encrypted: decrypt it"
    if info.compress_type not in _METHODS:
        name = zipfile.compressor_names.get(info.compress_type, f"number {info.compress_type}")  # type: ignore[attr-defined]
        return f"the compression method {name} is not read: pack it with deflate"
    if stat.S_ISLNK(info.external_attr >> 16):
        return "it is a symbolic link, not a regular file"
    if info.filename.startswith("/") or ".." in info.filename.split("/"):
        return "its name leads out of the archive"
    return ""


def _unpacked(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> Iterator[bytes]:
    """Yield a member's content; zipfile compares its size and checksum."""
    size = 0
    with archive.open(info) as file:
        while piece := file.read(CHUNK):
            size += len(piece)
            yield piece
    if size != info.file_size:
        raise EOFError(f"it has {size} bytes, and the directory states {info.file_size}")


@contextmanager
def _naming(name: str) -> Iterator[None]:
    """Turn the errors of reading a member into a LoadObjectError that states its name."""
    try:
        yield
    except LoadObjectError as e:
        raise in_member(e, name) from e
    except (TarError, *_ZIP_ERRORS) as e:
        raise in_member(LoadObjectError(broken("its content", e)), name) from e


def _unmarked(text: Iterable[bytes]) -> Iterator[bytes]:
    is_first = True
    for piece in text:
        yield piece.removeprefix(_BYTE_ORDER_MARK) if is_first else piece
        is_first = False


def _ended(text: Iterator[bytes]) -> Iterator[bytes]:
    """Yield a text, with a line feed at its end unless it is empty."""
    last = b"\n"
    for piece in filter(None, text):
        yield piece
        last = piece[-1:]
    if last != b"\n":
        yield b"\n"


def _header(buffer: bytearray, text: Iterator[bytes], csv: Csv) -> bytes:
    """Remove the header of CSV, and blank lines before it; return it."""
    header = bytearray()
    inside = False
    while line := _line(buffer, text):
        if not header and not line.strip():
            continue
        header += line
        if not (inside := is_open(line, csv, inside=inside)):
            break
        if len(header) > _LONGEST_HEADER:
            raise LoadObjectError("its header does not end")
    return bytes(header)


def _line(buffer: bytearray, text: Iterator[bytes]) -> bytes:
    """Remove the first line of a text from its `buffer`, which is filled as needed, and return it."""
    at = 0
    while (end := buffer.find(b"\n", at)) < 0:
        at = len(buffer)
        if at > _LONGEST_HEADER:
            raise LoadObjectError("its first line does not end")
        if (piece := next(text, None)) is None:
            end = at - 1
            break
        buffer += piece
    line = bytes(buffer[: end + 1])
    del buffer[: end + 1]
    return line
