"""Records and counts the outcomes of the objects of a bucket job, from the transformers' logs and both buckets."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from storeside.aistore.buckets import Bucket
from storeside.aistore.errors import NO_REASON
from storeside.aistore.spec import EtlSpec
from storeside.ledger.objects import Ledger
from storeside.ledger.scope import Plan, Scope
from storeside.transform import copies, counting, members, results
from storeside.transform.given import EXAMPLES as STRAYS
from storeside.transform.reasons import REASONS, record_reasons
from storeside.transform.state import Options, State, Summary

if TYPE_CHECKING:
    from aistore.sdk import Client

# Failed objects in a summary; the ledger has all of them.
EXAMPLES = 20


class Outcomes:
    """The outcomes of the objects of one bucket job."""

    def __init__(
        self, client: Client, ledger: Ledger, scope: Scope, source: Bucket, destination: Bucket,
        spec: EtlSpec | None, options: Options,
    ) -> None:  # fmt: skip
        self.client = client
        self.ledger = ledger
        self.scope = scope
        self.source = source
        self.destination = destination
        self.spec = spec
        self.options = options
        self._in_shards = spec is not None and spec.in_shards

    def record_members(self, state: State) -> None:
        """Record the shards that a job of another task delivered, and their failed members."""
        if self.spec and self._in_shards:
            members.record_members(
                self.client, self.ledger, self.scope, self.source, self.spec.all_names, state.job_id
            )

    def record_reasons(self, state: State) -> None:
        """Record why objects failed in a finished job of AIStore."""
        record_reasons(self.client, self.ledger, self.scope, self.source, self.spec, state)

    def accept_copies(self) -> bool:
        """Accept earlier copies of the current source, and delete other unchanged copies; see `copies.accept`."""
        return copies.accept(self.client, self.ledger, self.scope, self.source, self.destination)

    def make_way(self) -> bool:
        """Delete unchanged results, so that the next try makes new ones; see `copies.make_way`."""
        return copies.make_way(self.client, self.ledger, self.scope, self.destination)

    def remove_empty(self) -> None:
        """Delete the empty results of a WebSocket transform."""
        if self.spec:
            copies.remove_empty(self.client, self.ledger, self.scope, self.destination)

    def settle(self, state: State, *, may_continue: bool) -> None:
        """Record every outcome, and delete earlier results of objects that are left out.

        Raises `copies.not_copied` for objects that are not at fault.
        """
        if state.pending:
            no_reason = members.UNREPORTED if self._in_shards else NO_REASON
            if self.spec and self.spec.has_several_results:
                no_reason = results.UNSTORED
                results.remove_obsolete(self.client, self.ledger, self.scope, self.destination)
            no_reason = no_reason if self.spec and may_continue else ""
            remote = self.source.is_remote
            if self.spec:
                copies.remove_left_out(self.client, self.ledger, self.scope, self.destination)
            self.ledger.settle(self.scope, record_done=self.options.keeps_result, no_reason=no_reason, remote=remote)
            if self.spec is None and may_continue:
                self._require_copies()

    def summary(self, state: State) -> Summary:
        """Return the numbers of the job, the first failures, and the ignored objects."""
        counts = counting.count(
            self.ledger, self.scope, state, limit=EXAMPLES, keeps_result=self.options.keeps_result
        )
        totals, examples, left_out = counts.totals, counts.examples, counts.left_out
        known = self.ledger.known_failures(self.scope, limit=EXAMPLES) if state.known_bad else []
        if self._in_shards and state.pending:
            count, failed, left_out_members = members.settle(self.ledger, self.scope)
            left_out += left_out_members
            totals, examples = replace(totals, failed=totals.failed + count), (*examples, *failed)[:EXAMPLES]
        ignored = self.ledger.ignored(self.scope)
        strays, stray_examples = self.ledger.strays(self.scope, STRAYS)
        return Summary(
            source=str(self.source),
            destination=str(self.destination),
            effect=self.scope.effect,
            listed=state.listed,
            skipped=counts.skipped,
            known_bad=state.known_bad,
            done=totals.done,
            failed=totals.failed,
            bytes_in=totals.bytes_in,
            bytes_out=totals.bytes_out,
            seconds=round(time.time() - state.started, 3),
            job_seconds=round(state.job_seconds, 3),
            examples=examples,
            known_failures=tuple(known),
            prepend=self.scope.prepend,
            ignored=ignored,
            left_out_reasons=left_out.by_reason(),
            strays=strays,
            stray_examples=tuple(stray_examples),
        )

    def idle(self, plan: Plan, started: float) -> Summary:
        """Return the summary of a job that has nothing to do since it `started`; its listings are still recorded."""
        left_out = counting.left_out(self.ledger, self.scope)
        strays, stray_examples = self.ledger.strays(self.scope, STRAYS)
        return Summary(
            source=str(self.source),
            destination=str(self.destination),
            effect=self.scope.effect,
            listed=plan.listed,
            skipped=plan.listed - plan.known_bad - left_out.objects,
            known_bad=plan.known_bad,
            done=0,
            failed=0,
            bytes_in=0,
            bytes_out=0,
            seconds=round(time.time() - started, 3),
            known_failures=tuple(self.ledger.known_failures(self.scope, limit=EXAMPLES) if plan.known_bad else ()),
            prepend=self.scope.prepend,
            ignored=self.ledger.ignored(self.scope),
            left_out_reasons=left_out.by_reason(),
            strays=strays,
            stray_examples=tuple(stray_examples),
        )

    def _require_copies(self) -> None:
        """Raise `copies.not_copied` for objects that were not copied for reasons outside the objects."""
        missing = self.ledger.missing(self.scope, "", REASONS)
        if missing:
            count = f"{len(missing)} or more" if len(missing) == REASONS else str(len(missing))
            raise copies.not_copied(count, missing[0].object, self.source, self.destination)


def acknowledge(ledger: Ledger, scope: Scope, before_closing: Callable[[Scope], None]) -> None:
    """Record the objects of jobs without `keeps_result` as done, after the caller has used their results.

    `scope` has the buckets, the effect and the run of the jobs, with any selection. `before_closing` may record
    exceptions of each job while its listings still exist. The failures are kept for the pages: the tasks of the jobs
    did not know these exceptions. A repeated call records nothing else, because the plans no longer exist.
    """
    for part in ledger.parts(scope):
        ledger.settle(part, record_done=True, no_reason=NO_REASON)
        before_closing(part)
        ledger.forget_listings(part)
    ledger.keep_failures(run_id=scope.run_id, source=scope.source, destination=scope.destination)
