"""The rows of a listing: one object of a bucket each, as the ledger compares them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TypeAlias

from storeside.aistore.buckets import StoredObject

# Object, destination object, bytes, version, reason.
Row: TypeAlias = tuple[str, str, int, str, str]


def source_row(found: StoredObject, destination: str, refusal: str | None = None) -> Row:
    """Return the row of a source object; with the `refusal` of its name it has a reason and no destination."""
    return found.name, "" if refusal else destination, found.size, found.version, refusal or ""


def destination_rows(listing: Iterable[StoredObject]) -> Iterator[Row]:
    """Yield the rows of a destination's objects."""
    return (("", found.name, found.size, found.version, "") for found in listing)
