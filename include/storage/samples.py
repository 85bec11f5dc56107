"""A store in memory, to measure an endpoint with and not a disk: objects of any size to read, nothing kept."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence

from include.storage.buckets import StoredObject
from include.storage.multipart import S3_LIMITS, Limits
from include.storage.store import Head, Upload

_BLOCK = 1 << 20


class Samples:
    """Gives objects of random bytes, named by their sizes, and forgets what is written; see `Store`."""

    name = bucket = "memory"
    endpoint = "memory"

    def __init__(self, limits: Limits = S3_LIMITS) -> None:
        self.limits = limits
        self._block = os.urandom(_BLOCK)

    def fronts(self) -> str:
        """It is a front of nothing."""
        return ""

    def check(self) -> None:
        """It is always there."""

    def list(self, prefix: str = "") -> Iterator[StoredObject]:
        """It has no objects of its own."""
        return iter(())

    def refused(self, key: str) -> str | None:
        """It takes any name."""
        return None

    def head(self, key: str) -> Head:
        """Return the object that is named by its size."""
        return Head(int(key), "", "")

    def fetch(self, key: str) -> tuple[Head, bytes]:
        """Return random bytes."""
        head = self.head(key)
        return head, self.fetch_range(key, head, 0, head.size)

    def fetch_range(self, key: str, head: Head, start: int, size: int) -> bytes:
        """Return random bytes."""
        return (self._block * (size // _BLOCK + 1))[:size]

    def put(self, key: str, body: bytes, head: Head) -> str:
        """Forget it."""
        return ""

    def begin(self, key: str, head: Head) -> str:
        """Begin nothing."""
        return ""

    def put_part(self, key: str, upload: str, number: int, body: bytes) -> str:
        """Forget it."""
        return ""

    def complete(self, key: str, upload: str, tags: Sequence[str]) -> str:
        """Forget it."""
        return ""

    def abort(self, key: str, upload: str) -> None:
        """There is nothing to abort."""

    def uploads(self, key: str) -> Iterator[Upload]:
        """It has none."""
        return iter(())

    def delete(self, key: str) -> None:
        """There is nothing to delete."""
