"""The rows of a listing, one per object, in the form that the ledger compares."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TypeAlias

from storeside.aistore.stored_objects import StoredObject

# Object, destination object, bytes, version, reason.
Row: TypeAlias = tuple[str, str, int, str, str]


def source_row(found: StoredObject, destination: str, refusal: str | None = None) -> Row:
    """Return the row of a source object. A `refusal` of its name becomes the reason, and it has no destination."""
    return found.name, "" if refusal else destination, found.size, found.version, refusal or ""


def destination_rows(listing: Iterable[StoredObject]) -> Iterator[Row]:
    """Yield the rows of a destination's objects."""
    return (("", found.name, found.size, found.version, "") for found in listing)
