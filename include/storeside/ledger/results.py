"""The ledger of several results of one object: each result is an object ``object/result`` that belongs to the object.

An object owns the results that lists of it named. It is done when the destination has all results of its new list.
"""

from __future__ import annotations

from collections.abc import Iterable

from storeside import sql
from storeside.ledger.objects import Ledger
from storeside.ledger.scope import Pending, Scope
from storeside.transformers.contract.results import LARGEST_LIST, Announced


def unread(ledger: Ledger, scope: Scope, side: str, after: str, limit: int) -> list[Pending]:
    """Return up to `limit` pending objects, greater than `after`, whose lists on a `side` of the listings are unread.

    Their sizes and versions are those of the lists.
    """
    asked = {**scope.parameters, "side": side, "after": after, "limit": limit, "largest": LARGEST_LIST}
    return [Pending(*row) for row in ledger.client.query(sql.query("unread_lists"), parameters=asked).result_rows]


def record(ledger: Ledger, scope: Scope, lists: Iterable[tuple[Pending, Iterable[Announced]]]) -> None:
    """Store what lists announce, until `settle`; names of results begin with the job's prefix."""
    ledger.insert_listing(
        (scope.job, "announced", of.object, stored, size, version, of.version)
        for of, announced in lists
        for stored, size, version in (
            # last, so that a list counts as read only with its results
            *((scope.prepend + found.stored, found.size, found.version) for found in announced),
            ("", 0, ""),
        )
    )


def check(ledger: Ledger, scope: Scope) -> None:
    """Record the objects whose new list names a result that the destination lacks, so that they are not fresh."""
    ledger.drop(scope, "incomplete")
    ledger.client.command(sql.query("record_incomplete"), parameters=scope.parameters)


def find_obsolete(ledger: Ledger, scope: Scope) -> None:
    """Record the results that objects own and no longer have."""
    ledger.drop(scope, "obsolete")
    ledger.client.command(sql.query("record_obsolete"), parameters=scope.parameters)


def obsolete(ledger: Ledger, scope: Scope, after: str, limit: int) -> list[str]:
    """Return up to `limit` names, greater than `after`, of obsolete results that the destination still has."""
    rows = ledger.client.query(
        "SELECT DISTINCT destination_object FROM storeside.listings WHERE job = {job:String} AND side = 'obsolete'"
        " AND size = 1 AND destination_object > {after:String} ORDER BY destination_object LIMIT {limit:UInt32}",
        parameters={"job": scope.job, "after": after, "limit": limit},
    ).result_rows
    return [name for (name,) in rows]


def settle(ledger: Ledger, scope: Scope) -> None:
    """Record the results of complete lists as done, and obsolete ones as left out."""
    ledger.client.command(sql.query("settle_results"), parameters=scope.parameters)
