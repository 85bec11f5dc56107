"""Reads and writes tar archives member by member, in bounded memory and without trust in their headers.

Nothing is ever extracted. `tarfile.TarFile` is not used, because it reads extended headers of any size into memory,
follows them recursively, and takes a damaged header for the end of the archive.
"""

from __future__ import annotations

import posixpath
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO

BLOCK = tarfile.BLOCKSIZE
# Two empty blocks end an archive (POSIX.1-2008, pax).
END = bytes(2 * BLOCK)
# The maximum size in bytes of a long name or of a pax header, and the number of such headers before one member.
_LARGEST_HEADER, _MOST_HEADERS = 64 << 10, 8
# PATH_MAX of Linux, in bytes.
_LONGEST_NAME = 4096
_PIECE = 1 << 20
# Bytes from the first empty block to the end: writers fill a record, of 10 KiB by default, on tapes of up to 1 MiB.
# More zeros are a hole, such as of an upload that was interrupted.
_LONGEST_END, _LONGEST_EMPTY = 1 << 20, tarfile.RECORDSIZE
# The last number of seconds that a header's eleven octal digits can express.
_LATEST = 8**11 - 1

_GNU = b"ustar  \0"
_KINDS = {
    tarfile.LNKTYPE: "a hard link",
    tarfile.SYMTYPE: "a symbolic link",
    tarfile.CHRTYPE: "a character device",
    tarfile.BLKTYPE: "a block device",
    tarfile.FIFOTYPE: "a pipe",
    tarfile.GNUTYPE_SPARSE: "a sparse file",
}
_OUTSIDE = "its name leads out of the shard"
_FILES = (tarfile.REGTYPE, tarfile.AREGTYPE, tarfile.CONTTYPE)
_WITHOUT_CONTENT = (
    *(tarfile.LNKTYPE, tarfile.SYMTYPE, tarfile.CHRTYPE, tarfile.BLKTYPE, tarfile.FIFOTYPE, tarfile.DIRTYPE),
)


class TarError(ValueError):
    """The bytes are no complete tar archive; the message states the place."""


@dataclass(frozen=True)
class Member:
    """A member of an archive: its name, the bytes and the offset of its content, and its mode and time.

    `refusal` is the reason why no program should use the member; it is empty for a regular file and for a folder.
    """

    name: str
    size: int
    offset: int
    mode: int
    time: int
    is_folder: bool = False
    refusal: str = ""


class TarArchive:
    """The members of the archive in a file that can be read at any position; `size` is in bytes.

    Iteration raises TarError at the first byte that is wrong; all members before it are valid.
    """

    def __init__(self, file: BinaryIO, size: int) -> None:
        self._file = file
        self._size = size
        self._offset = 0
        self._members = 0

    def __iter__(self) -> Iterator[Member]:
        if not self._size:
            raise TarError("it is empty")
        while (member := self._next()) is not None:
            self._members += 1
            yield member

    def pieces(self, member: Member) -> Iterator[bytes]:
        """Yield the member's content. Raises TarError if the file has become shorter."""
        self._file.seek(member.offset)
        left = member.size
        while left:
            piece = self._file.read(min(left, _PIECE))
            if not piece:
                raise TarError(f"it ends within the member {member.name!r}")
            left -= len(piece)
            yield piece

    def content(self, member: Member) -> bytes:
        """Return the member's whole content."""
        return b"".join(self.pieces(member))

    def _next(self) -> Member | None:
        """Return the next member; None at the archive's end mark, after which only zeros may follow."""
        extended: dict[str, str] = {}
        for _ in range(_MOST_HEADERS):
            at = self._offset
            block = self._take(BLOCK, f"it ends at byte {at} without an end mark: it is truncated")
            if not any(block):
                if extended:
                    raise TarError(f"the header before byte {at} belongs to no member")
                self._require_end(at)
                return None
            header = _header(block, at)
            if header.type in (tarfile.XHDTYPE, tarfile.SOLARIS_XHDTYPE):
                extended |= _pax(self._extension(header, at), at)
            elif header.type == tarfile.GNUTYPE_LONGNAME:
                name = self._extension(header, at).partition(b"\0")[0]
                extended["path"] = name.decode("utf-8", "surrogateescape")
            elif header.type in (tarfile.XGLTYPE, tarfile.GNUTYPE_LONGLINK):
                self._extension(header, at)  # comments, and the targets of links, which are refused
            else:
                return self._member(header, block, extended, at)
        raise TarError(f"more than {_MOST_HEADERS} headers belong to the member at byte {at}")

    def _require_end(self, at: int) -> None:
        """Read to the end of the file, so that a header of zeros is not taken for the end mark. Raises TarError."""
        most = _LONGEST_END if self._members else _LONGEST_EMPTY
        self._file.seek(self._offset)
        while rest := self._file.read(_PIECE):
            self._offset += len(rest)
            if any(rest):
                raise TarError(
                    f"its header at byte {at} is empty, and data follow: it is damaged, or several archives were"
                    " joined; store each archive as one object"
                )
            if self._offset - at > most:
                raise TarError(f"more than {most} zeros follow byte {at}: it is damaged, or its upload did not end")

    def _take(self, count: int, otherwise: str) -> bytes:
        self._file.seek(self._offset)
        found = self._file.read(count)
        if len(found) < count:
            raise TarError(otherwise)
        self._offset += count
        return found

    def _extension(self, header: tarfile.TarInfo, at: int) -> bytes:
        """Return the content of a header that extends the next one."""
        if header.size > _LARGEST_HEADER:
            raise TarError(f"the header at byte {at} has {header.size} bytes, more than {_LARGEST_HEADER}")
        content = self._take(_padded(header.size), f"it ends within the header at byte {at}: it is truncated")
        return content[: header.size]

    def _member(self, header: tarfile.TarInfo, block: bytes, extended: dict[str, str], at: int) -> Member:
        name, size, kind = extended.get("path", header.name), header.size, header.type
        if "size" in extended:
            size = _number(extended["size"], at)
        if kind == tarfile.GNUTYPE_SPARSE:
            self._skip_map(block)
        elif any(key.startswith("GNU.sparse.") for key in extended):
            kind = tarfile.GNUTYPE_SPARSE
        if kind in _WITHOUT_CONTENT:
            size = 0
        is_folder = kind == tarfile.DIRTYPE
        offset, self._offset = self._offset, self._offset + _padded(size)
        if offset + size > self._size:
            raise TarError(f"it ends within the member {name!r}, which should have {size} bytes: it is truncated")
        return Member(
            name=name.rstrip("/") if is_folder else name,
            size=size,
            offset=offset,
            mode=header.mode & 0o777,
            time=int(min(max(header.mtime, 0), _LATEST)),
            is_folder=is_folder,
            refusal=_refusal(name, kind),
        )

    def _skip_map(self, block: bytes) -> None:
        """Skip the blocks in which GNU tar continues the map of a sparse file."""
        continues = block[482]
        while continues:
            continues = self._take(BLOCK, "it ends within the map of a sparse file: it is truncated")[504]


def header(member: Member, name: str, size: int) -> bytes:
    """Return the header of a member with this name and size; long and foreign names as GNU tar writes them.

    Raises TarError for a name that leads out of the archive's folder, in which readers store the members.
    """
    if reason := outside(name):
        raise TarError(f"its member {name!r} cannot be written: {reason}")
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode, entry.mtime = size, member.mode, member.time
    entry.type = tarfile.DIRTYPE if member.is_folder else tarfile.REGTYPE
    return entry.tobuf(tarfile.GNU_FORMAT, "utf-8", "surrogateescape")


def outside(name: str) -> str:
    """Return why a member of this name would be stored outside the folder of its archive; empty if it would not.

    Other names that AIStore cannot store, such as those with line feeds, are names of members.
    """
    return _OUTSIDE if name.startswith("/") or ".." in name.split("/") else ""


def padding(size: int) -> bytes:
    """Return the bytes between the end of a content and the next header."""
    return bytes(_padded(size) - size)


def _padded(size: int) -> int:
    return -(-size // BLOCK) * BLOCK


def _header(block: bytes, at: int) -> tarfile.TarInfo:
    try:
        found = tarfile.TarInfo.frombuf(block, "utf-8", "surrogateescape")
    except (tarfile.TarError, ValueError) as e:
        what = f"its header at byte {at} is damaged" if at else "it is not a tar archive"
        raise TarError(f"{what}: {e}") from e
    if block[257:265] == _GNU and found.type not in tarfile.GNU_TYPES:
        # Where POSIX has the start of a name, GNU tar may have times.
        name = block[:100].partition(b"\0")[0].decode("utf-8", "surrogateescape")
        found.name = name.rstrip("/") if found.isdir() else name
    if found.size < 0:
        raise TarError(f"its header at byte {at} is damaged: a size of {found.size} bytes")
    return found


def _pax(content: bytes, at: int) -> dict[str, str]:
    """Return the records of a pax header: ``length key=value`` and a line feed each."""
    found, position = {}, 0
    while position < len(content):
        digits, space, _ = content[position : position + 8].partition(b" ")
        length = int(digits) if space and digits.isdigit() else 0
        record = content[position + len(digits) + 1 : position + length]
        key, equals, value = record.partition(b"=")
        if not equals or len(record) != length - len(digits) - 1 or not value.endswith(b"\n"):
            raise TarError(f"its header at byte {at} is damaged: a record of pax is not valid")
        if value != b"\n":  # an empty value stands for none (POSIX.1-2008, pax): the header's own is valid
            found[key.decode("utf-8", "replace")] = value[:-1].decode("utf-8", "surrogateescape")
        position += length
    return found


def _number(text: str, at: int) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 20):
        raise TarError(f"its header at byte {at} is damaged: {text[:20]!r} is no size")
    return int(text)


def _refusal(name: str, kind: bytes) -> str:
    if not name.strip("/") or "\0" in name:
        return "its name is not valid"
    if len(name.encode("utf-8", "surrogateescape")) > _LONGEST_NAME:
        return f"its name has more than {_LONGEST_NAME} bytes"
    if reason := outside(name):
        return reason
    if kind in _FILES or kind == tarfile.DIRTYPE:
        return ""
    return f"it is {_KINDS.get(kind, 'of an unknown type')}, not a regular file"


def plain(name: str) -> str:
    """Return the name without differences that mean nothing, such as a leading ``./``."""
    return posixpath.normpath(name)
