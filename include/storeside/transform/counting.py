"""Counts what became of the objects that a job listed: the parts add up, also if other runs have the same objects."""

from __future__ import annotations

from dataclasses import dataclass

from storeside.ledger.objects import Ledger
from storeside.ledger.scope import Others, Scope, Totals
from storeside.transform.state import State

_NOTHING = Others(0, 0, ())


@dataclass(frozen=True)
class Counts:
    """The totals of a job, the listed objects that it did not have to process, and its first failures.

    The parts of a job add up to the listed objects: done, failed, skipped, and failed for good before; the rest, if
    there is one, was not tried.
    """

    totals: Totals
    skipped: int
    examples: tuple[tuple[str, str], ...]


def count(ledger: Ledger, scope: Scope, state: State, limit: int, *, keeps_result: bool) -> Counts:
    """Return the counts of a job whose outcomes are recorded, with up to `limit` examples.

    Objects count as done or failed if this run processed them, also in an earlier try. If another run has processed a
    planned object, and recorded its outcome last, the object is skipped when it is done, and failed when it failed.
    Without `keeps_result`, the ledger records no results: the planned objects with a fresh result are done.
    """
    totals = ledger.totals(scope)
    planned = state.pending + state.refused
    if not keeps_result:
        done, bytes_in, bytes_out = ledger.fresh_results(scope)
        totals = Totals(done, totals.failed, bytes_in, bytes_out)
        return Counts(totals, state.listed - planned - state.known_bad, tuple(ledger.failures(scope, limit)))
    others = _NOTHING if totals.done + totals.failed == planned else ledger.others(scope, limit)
    failed = totals.failed + others.failed
    examples = sorted([*ledger.failures(scope, limit), *others.examples])[:limit]
    return Counts(
        Totals(totals.done, failed, totals.bytes_in, totals.bytes_out),
        state.listed - state.known_bad - totals.done - failed - others.left,
        tuple(examples),
    )
