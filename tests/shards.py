"""Tar archives for tests: WebDataset shards, and hostile ones."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Iterable
from typing import Any


def tar(files: Iterable[tuple[str, bytes]], form: int = tarfile.PAX_FORMAT) -> bytes:
    """Return an archive of regular files."""
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w", format=form, errors="surrogateescape", encoding="utf-8") as made:
        for name, content in files:
            member = tarfile.TarInfo(name)
            member.size = len(content)
            made.addfile(member, io.BytesIO(content))
    return archive.getvalue()


def entry(name: str, content: bytes = b"", **fields: Any) -> bytes:
    """Return the header and content of any member, without the archive's end mark."""
    member = tarfile.TarInfo(name)
    for field, value in {"size": len(content), **fields}.items():
        setattr(member, field, value)
    header = member.tobuf(
        tarfile.PAX_FORMAT if member.pax_headers else tarfile.GNU_FORMAT, "utf-8", "surrogateescape"
    )
    return header + content + bytes(-len(content) % tarfile.BLOCKSIZE)


def files(archive: bytes) -> list[tuple[str, bytes]]:
    """Return the names and contents of the regular files in an archive, in order."""
    with tarfile.open(fileobj=io.BytesIO(archive), errors="surrogateescape", encoding="utf-8") as opened:
        return [(m.name, opened.extractfile(m).read()) for m in opened if m.isfile()]  # type: ignore[union-attr]
