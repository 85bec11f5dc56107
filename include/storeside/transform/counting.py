"""Counts what became of the objects that a job listed: the parts add up, also if other runs have the same objects."""

from __future__ import annotations

from dataclasses import dataclass

from storeside.ledger.objects import Ledger
from storeside.ledger.scope import LeftOut, Others, Scope, Totals
from storeside.transform.state import State

_NOTHING = Others(0, 0, ())
_NONE = LeftOut()


@dataclass(frozen=True)
class Counts:
    """The totals of a job, the listed objects that it did not have to process, and its first failures.

    The parts of a job add up to the listed objects: done, failed, left out (now or before), skipped, and failed for
    good before; the rest, if there is one, was not tried.
    """

    totals: Totals
    skipped: int
    examples: tuple[tuple[str, str], ...]
    left_out: LeftOut = _NONE


def count(ledger: Ledger, scope: Scope, state: State, limit: int, *, keeps_result: bool) -> Counts:
    """Return the counts of a job whose outcomes are recorded, with up to `limit` examples.

    Objects count as done or failed if this run processed them, also in an earlier try. If another run has processed a
    planned object, and recorded its outcome last, the object is skipped when it is done, and failed when it failed.
    Without `keeps_result`, the ledger records no results: the planned objects with a fresh result are done.
    """
    totals = ledger.totals(scope)
    planned = state.pending + state.refused
    left = left_out(ledger, scope)
    if not keeps_result:
        done, bytes_in, bytes_out = ledger.fresh_results(scope)
        earlier = left.objects - totals.left_out
        totals = Totals(done, totals.failed, bytes_in, bytes_out)
        skipped = state.listed - planned - state.known_bad - earlier
        return Counts(totals, skipped, tuple(ledger.failures(scope, limit)), left)
    is_alone = totals.done + totals.failed + totals.left_out == planned
    others = _NOTHING if is_alone else ledger.others(scope, limit)
    failed = totals.failed + others.failed
    examples = sorted([*ledger.failures(scope, limit), *others.examples])[:limit]
    return Counts(
        Totals(totals.done, failed, totals.bytes_in, totals.bytes_out),
        state.listed - state.known_bad - totals.done - failed - others.left - left.objects,
        tuple(examples),
        left,
    )


def left_out(ledger: Ledger, scope: Scope) -> LeftOut:
    """Return how many of the listed objects are left out, now or by earlier runs; copies leave out none."""
    return ledger.left_out(scope) if scope.effect else _NONE
