"""The rows of a listing, one per object, in the form that the ledger compares."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, TypeAlias

from storeside.aistore.buckets import StoredObject
from storeside.ledger.scope import Scope
from storeside.sql.answers import first_row

if TYPE_CHECKING:
    from storeside.ledger.objects import Ledger

# Object, destination object, bytes, version, reason.
Row: TypeAlias = tuple[str, str, int, str, str]


def source_row(found: StoredObject, destination: str, refusal: str | None = None) -> Row:
    """Return the row of a source object. A `refusal` of its name becomes the reason, and it has no destination."""
    return found.name, "" if refusal else destination, found.size, found.version, refusal or ""


def destination_rows(listing: Iterable[StoredObject]) -> Iterator[Row]:
    """Yield the rows of a destination's objects."""
    return (("", found.name, found.size, found.version, "") for found in listing)


def unfit_names(ledger: Ledger, scope: Scope) -> tuple[int, str, str]:
    """Return how many listed objects have no result because of their names, the first of them, and the reason."""
    query = (
        "SELECT count(), min(object), argMin(reason, object) FROM storeside.listings"
        " WHERE job = {job:String} AND side = 'source' AND reason != ''"
    )
    count, name, reason = first_row(ledger.client.query(query, parameters=scope.parameters))
    return int(count), str(name), str(reason)
