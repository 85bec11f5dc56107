"""A store in memory, for measuring an endpoint without a disk: objects of any size to read; writes are discarded."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence

from storeside.aistore.buckets import StoredObject
from storeside.copying.multipart import S3_LIMITS, Limits
from storeside.copying.store import Head, Upload

_BLOCK = 1 << 20


class Samples:
    """Serves objects of random bytes, named by their sizes, and discards what is written; see `Store`."""

    name = bucket = "memory"
    endpoint = "memory"

    def __init__(self, limits: Limits = S3_LIMITS) -> None:
        self.limits = limits
        self._block = os.urandom(_BLOCK)

    def fronts(self) -> str:
        """Return nothing: it fronts no bucket."""
        return ""

    def check(self, *, is_source: bool = False) -> None:
        """Do nothing: it is always reachable."""

    def list(self, prefix: str = "") -> Iterator[StoredObject]:
        """Yield nothing: it has no objects of its own."""
        return iter(())

    def refused(self, key: str) -> str | None:
        """Return None: it accepts any name."""
        return None

    def head(self, key: str) -> Head:
        """Return the object whose name is its size."""
        return Head(int(key), "", "")

    def fetch(self, key: str) -> tuple[Head, bytes]:
        """Return random bytes."""
        head = self.head(key)
        return head, self.fetch_range(key, head, 0, head.size)

    def fetch_range(self, key: str, head: Head, start: int, size: int) -> bytes:
        """Return random bytes."""
        return (self._block * (size // _BLOCK + 1))[:size]

    def put(self, key: str, body: bytes, head: Head) -> str:
        """Discard the object."""
        return ""

    def begin(self, key: str, head: Head) -> str:
        """Do nothing."""
        return ""

    def put_part(self, key: str, upload: str, number: int, body: bytes) -> str:
        """Discard the part."""
        return ""

    def complete(self, key: str, upload: str, tags: Sequence[str]) -> str:
        """Do nothing."""
        return ""

    def abort(self, key: str, upload: str) -> None:
        """Do nothing: there is nothing to abort."""

    def uploads(self, key: str) -> Iterator[Upload]:
        """Yield nothing: it has no uploads."""
        return iter(())

    def delete(self, key: str) -> None:
        """Do nothing: there is nothing to delete."""
