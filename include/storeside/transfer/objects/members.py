"""Members of archives that are Parquet, Avro, ORC or Arrow: each is copied to a temporary file, and read from there.

These formats need access at any position, which neither a compressed archive nor a compressed member gives.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from storeside.transfer.base.errors import LimitError, LoadObjectError, in_member, not_copied
from storeside.transfer.base.watch import excess
from storeside.transfer.objects.content import Content
from storeside.transfer.objects.streams import CHUNK


class Member(Content):
    """A member of an archive, as if it were an object; `file` is the temporary file with its content."""

    archive = None

    def __init__(self, of: Content, name: str, file: Any, size: int) -> None:
        super().__init__(of.client, of.bucket, of.key, size, of.etag, of.most)
        self.name, self._file = name, file

    def range(self, start: int, length: int) -> bytes:
        """Return up to `length` bytes from byte `start`."""
        return os.pread(self._file.fileno(), max(0, length), start)

    def stream(self) -> Iterator[bytes]:
        """Yield the whole content in pieces of a megabyte."""
        for at in range(0, self.size, CHUNK):
            yield self.range(at, CHUNK)


def members_of(content: Content) -> Iterator[Member]:
    """Yield the members of an archive that have the format of the load, one after the other.

    A member can be read until the next one is requested. Raises LoadObjectError, and LimitError if the members
    together have more than `content.most` bytes.
    """
    archive, taken = content.archive, 0
    if archive is None:
        return
    for name, pieces in archive.files():
        with tempfile.TemporaryFile() as file:
            size = 0
            for piece in pieces:
                size += len(piece)
                if content.most and (reason := excess(0, taken + size, rows=0, size=content.most)):
                    raise LimitError(f"member {name!r}: {reason}")
                try:
                    file.write(piece)
                    file.flush()
                except OSError as e:
                    with suppress(OSError):  # closing writes the rest again, and fails again
                        file.close()
                    raise not_copied(content.key, "a member", e) from e
            taken += size
            yield Member(content, name, file, size)


@contextmanager
def about_member(name: str) -> Iterator[None]:
    """Add a member's name to the errors of a block."""
    try:
        yield
    except LoadObjectError as e:
        raise in_member(e, name) from e
