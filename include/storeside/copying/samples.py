"""A store in memory to measure an endpoint without a disk: it serves objects of any size and discards writes."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence

from storeside.aistore.stored_objects import StoredObject
from storeside.copying.multipart import S3_LIMITS, Limits
from storeside.copying.store import Head, Upload

_BLOCK = 1 << 20


class Samples:
    """Serves objects of random bytes, whose names are their sizes, and discards writes; see `Store`."""

    name = bucket = "memory"
    endpoint = "memory"

    def __init__(self, limits: Limits = S3_LIMITS) -> None:
        self.limits = limits
        self._block = os.urandom(_BLOCK)

    def fronts(self) -> str:
        """Return an empty name, because there is no backend bucket."""
        return ""

    def check(self, *, is_source: bool = False) -> None:
        """Do nothing, because memory is always reachable."""

    def list(self, prefix: str = "") -> Iterator[StoredObject]:
        """Yield nothing, because objects exist only while they are read."""
        return iter(())

    def refused(self, key: str) -> str | None:
        """Return None, because every name is accepted."""
        return None

    def head(self, key: str) -> Head:
        """Return the metadata of an object, whose name is its size in bytes."""
        return Head(int(key), "", "")

    def fetch(self, key: str, size: int) -> tuple[Head, bytes]:
        """Return random bytes."""
        head = self.head(key)
        return head, self.fetch_range(key, head, 0, size)

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
        """Do nothing, because nothing is stored."""

    def uploads(self, key: str) -> Iterator[Upload]:
        """Yield nothing, because nothing is stored."""
        return iter(())

    def delete(self, key: str) -> None:
        """Do nothing, because nothing is stored."""
