"""Which objects own the results in a destination: a plan refuses other objects that would overwrite them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from storeside import sql
from storeside.aistore.stored_objects import StoredObject
from storeside.ledger.objects import Ledger
from storeside.ledger.scope import Scope

_WINDOW = 1000


def record(
    ledger: Ledger, scope: Scope, find: Callable[[Sequence[str]], Iterable[StoredObject]], prefix: str | None
) -> None:
    """Record which objects own results that other listed objects would overwrite, for the plan.

    An object of another source bucket owns its result while the destination lists the result as recorded, because
    this job may have no access to that bucket. The job's ``before`` side has the listing. An object of this source
    owns its result while it exists, and one that a running job of another bucket is to process owns its future
    result. The listing of the source shows which objects below `prefix` exist. If `prefix`
    is None, the listing has only objects that were selected by name. `find` takes names of other objects, and returns
    those objects that exist.
    """
    for side in ("claimed", "found", "rival"):
        ledger.drop(scope, side)
    ledger.client.command(sql.query("claim_results_of_others"), parameters=scope.parameters)
    ledger.client.command(sql.query("claim_results_of_running"), parameters=scope.parameters)
    ledger.client.command(sql.query("claim_results"), parameters=scope.parameters)
    after = ""
    while names := _unlisted(ledger, scope, prefix, after):
        after = names[-1]
        ledger.insert_listing((scope.job, "found", found.name, "", 0, "", "") for found in find(names))


def are_planned_elsewhere(ledger: Ledger, scope: Scope) -> bool:
    """Record further results of the plan that a job of another bucket is to make; return whether there are any.

    If two jobs are planned at the same time, the second to store its plan finds the other one here. It then makes its
    plan again, which leaves these objects out. If each finds the other one, both do.
    """
    ledger.client.command(sql.query("claim_results_of_running"), parameters=scope.parameters)
    found = ledger.client.query(
        "SELECT 1 FROM storeside.listings WHERE job = {job:String} AND side = 'pending'"
        " AND destination_object IN (SELECT destination_object FROM storeside.listings"
        " WHERE job = {job:String} AND side = 'rival' AND reason = 'running') LIMIT 1",
        parameters=scope.parameters,
    )
    return bool(found.result_rows)


def _unlisted(ledger: Ledger, scope: Scope, prefix: str | None, after: str) -> list[str]:
    """Return the names of the next owners that the listing of the source does not cover."""
    rows = ledger.client.query(
        "SELECT DISTINCT object FROM storeside.listings WHERE job = {job:String} AND side = 'claimed'"
        " AND object > {after:String} AND ({by_name:Bool} OR NOT startsWith(object, {prefix:String}))"
        " AND object NOT IN (SELECT object FROM storeside.listings WHERE job = {job:String} AND side = 'source'"
        " AND object IN (SELECT object FROM storeside.listings WHERE job = {job:String} AND side = 'claimed'))"
        " ORDER BY object LIMIT {limit:UInt32}",
        parameters={
            "job": scope.job, "after": after, "by_name": prefix is None, "prefix": prefix or "", "limit": _WINDOW,
        },
    ).result_rows  # fmt: skip
    return [name for (name,) in rows]
