"""Which task of a run makes shards of which objects: two selections must not make shards of the same names."""

from __future__ import annotations

from storeside.ledger.objects import Ledger
from storeside.ledger.scope import Scope


def others(ledger: Ledger, scope: Scope, task: str, selection: str) -> list[str]:
    """Return the selections of other tasks that `record` stored for `scope` and that differ from `selection`.

    ClickHouse forgets a selection after 7 days, like all listings.
    """
    rows = ledger.client.query(
        "SELECT DISTINCT reason FROM storeside.listings WHERE job = {job:String} AND side = 'selection'"
        " AND object != {task:String} AND reason != {selection:String} ORDER BY reason",
        parameters={"job": scope.job, "task": task, "selection": selection},
    ).result_rows
    return [found for (found,) in rows]


def record(ledger: Ledger, scope: Scope, task: str, selection: str) -> None:
    """Store the selection of a task."""
    ledger.insert_listing([(scope.job, "selection", task, "", 0, "", selection)])
