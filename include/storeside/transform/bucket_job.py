"""One bucket job, a copy or transform of a bucket: it is complete, or it accounts for every missing object.

A bucket job never trusts AIStore's report of success. Before AIStore's job, it lists the two buckets and compares
them with the ledger; afterwards, it lists the destination again. An object without a fresh result has failed. It
failed for good if the transformer's log states so. Otherwise it is retried over ``hpush``; an object that fails again
is recorded with its last known reason.

A `BucketJob` is a state machine. The caller waits between the steps: an operator defers, a script sleeps.

    state = job.begin()
    while state.phase != "done":
        state = job.submit(state)
        follow state.job_id, if there is one
        state = job.advance(state)
    summary = job.finish(state)

After a kill, the next try follows the job that still runs and reuses the listings of the killed try.
"""

from __future__ import annotations

import logging
import time
from dataclasses import replace
from typing import TYPE_CHECKING

from storeside.aistore import jobs
from storeside.aistore.buckets import Bucket
from storeside.aistore.pods import PodWatch
from storeside.aistore.spec import EtlSpec
from storeside.ledger.objects import Ledger
from storeside.ledger.scope import Scope
from storeside.transform.apart import require_readable, require_writable
from storeside.transform.held import Held
from storeside.transform.listings import Listings
from storeside.transform.naming import Naming
from storeside.transform.outcomes import Outcomes
from storeside.transform.planner import Given as Given  # noqa: PLC0414 - for users of this module
from storeside.transform.planner import Planner
from storeside.transform.state import ListSource, Options, Phase, State, Summary
from storeside.transform.submission import Submission
from storeside.transform.terms import Terms

if TYPE_CHECKING:
    from aistore.sdk import Client

log = logging.getLogger(__name__)

# Retries of objects that failed for a temporary reason, and the seconds before the second retry.
RETRIES = 2
RETRY_DELAY = 5.0


class BucketJob:
    """Copies (`spec` is None) or transforms `source` into `destination`.

    `list_source` replaces AIStore's listing of the source, for buckets that their own service lists better. `pods`
    watches an ETL's pods, so that the error of an ETL that does not start has a reason. `scope` replaces the key of
    the listings, for a job that is a part of another. `given` is what the ETL gets beside the objects. Raises
    AIStoreInputError for options that exclude each other, and as `described` when `spec` has an existing ETL that
    does not run.
    """

    listings = Listings

    def __init__(
        self,
        client: Client,
        ledger: Ledger,
        source: Bucket,
        destination: Bucket,
        *,
        run_id: str,
        spec: EtlSpec | None = None,
        naming: Naming | None = None,
        options: Options | None = None,
        list_source: ListSource | None = None,
        pods: PodWatch | None = None,
        scope: Scope | None = None,
        given: Given | None = None,
    ) -> None:
        self.client = client
        self.ledger = ledger
        self.source = source
        self.destination = destination
        terms = Terms.of(client, source, destination, spec, naming or Naming(), options or Options())
        self.spec, self.naming, self.options = terms.spec, terms.naming, terms.options
        self.scope = scope or terms.scope(source, destination, run_id)
        self.given = given
        if given and self.spec:
            self.spec = given.beside(self.spec, self.scope, self.options)
        self._listings = terms.listings(self.listings)(
            client, ledger, self.scope, source, destination, self.naming, self.options, list_source
        )
        self._submission = Submission(
            client, ledger, self.scope, source, destination, self.spec, self.naming, self.options, pods
        )
        self._outcomes = Outcomes(client, ledger, self.scope, source, destination, self.spec, self.options)
        splits = terms.spec is not None and terms.spec.splits
        self._held = Held(client, ledger, self.scope, source, self._listings, by_now=self.options.sync)
        self._planner = Planner(
            ledger, self.scope, self._listings, self._held, self.options, splits, terms.several,
            (lambda store: given.record(client, ledger, self.scope, self._listings, store=store)) if given else None,
        )  # fmt: skip

    def begin(self) -> State:
        """Return the first state: follow a running job, resume the plan of a killed try, or make a plan.

        Raises StuckTargetError when a target of the cluster must be restarted first.
        """
        jobs.require_targets(self.client)
        with jobs.naming_stuck_targets(self.client):
            return replace(self._begin(), effect=self.scope.effect)

    def _begin(self) -> State:
        jobs.wait_for_rebalance(self.client)
        require_readable(self.client, self.source, self.destination, self.options)
        self.ledger.create()
        require_writable(self.client, self.destination, self.options)
        running = jobs.running_between(self.client, self.source, self.destination)
        if running:
            log.warning("job %s already runs between %s and %s: following it", running, self.source, self.destination)
            waits = not self.ledger.has_submitted(self.scope, running)  # another task's job, not a killed try's
            return State(Phase.ATTACHED, time.time(), job_id=running, waits=waits)
        return self._planner.resume() or self._planner.plan()

    def preview(self) -> dict[str, int]:
        """Return how many objects a job would list, process, skip and refuse, without a change to the buckets."""
        require_readable(self.client, self.source, self.destination, self.options)
        self.ledger.create()
        return self._planner.preview()

    def idle(self) -> Summary | None:
        """Return the summary of a job that would find nothing to do; None if there is something, or may be.

        The ledger keeps nothing of it, and a plan of an earlier try stays as it is.
        """
        started = time.time()
        self.ledger.create()
        if self.options.sync or self.ledger.planned(self.scope) is not None:
            return None
        require_readable(self.client, self.source, self.destination, self.options)
        try:
            plan = self._planner.foresee()
            if plan.pending or plan.refused:
                return None
            return self._outcomes.idle(plan, started)
        finally:
            self.ledger.forget_listings(self.scope)

    def submit(self, state: State) -> State:
        """Submit the next job; return the state with its id, or without an id when nothing is left in this phase.

        While another task's job runs between the buckets, this task submits nothing and returns that job's id.
        """
        if state.phase in (Phase.ATTACHED, Phase.DONE):
            return state
        with jobs.naming_stuck_targets(self.client):
            return self._submission.submit(state)

    def follower(self, state: State, stall_seconds: float) -> jobs.Follower:
        """Return the follower that detects the end of the submitted job."""
        return jobs.Follower(self.client, state.job_id, stall_seconds, own=not state.waits)

    def advance(self, state: State, seconds: float = 0) -> State:
        """Continue after the submitted job, which took `seconds`: next window, retry of missing objects, or done."""
        with jobs.naming_stuck_targets(self.client):
            return self._advance(state, seconds)

    def _advance(self, state: State, seconds: float) -> State:
        self._submission.require_same_effect(state)
        if state.phase == "attached":
            self._outcomes.record_members(state)
            return replace(self._planner.resume() or self._planner.plan(), effect=state.effect)
        if state.waits:
            return replace(state, job_id="", waits=False)
        state = replace(state, job_seconds=state.job_seconds + seconds)
        if state.job_id:
            if self.spec is None and state.phase == Phase.RETRY:
                self._listings.destination("after")
            self._outcomes.record_reasons(state)
        if state.phase != Phase.BUCKET and state.job_id:
            return replace(state, job_id="")
        if state.phase == "quarantine":
            return replace(state, phase=Phase.DONE)
        jobs.wait_for_rebalance(self.client)
        self._listings.destination("after")
        if self.spec is None and self._accept_copies():
            self._listings.destination("after")
        if self.options.sync and state.phase == Phase.BUCKET:
            state = replace(state, pending=self.ledger.plan_lost(self.scope))
        self._held.check()
        return self._after_pass(replace(state, job_id="", cursor=""))

    def _accept_copies(self) -> bool:
        """Accept earlier copies of the current source, and delete other unchanged copies; return whether any were."""
        return self._outcomes.accept_copies()

    def list_results(self) -> None:
        """List the destination again after objects were removed from it."""
        self._listings.destination("after")

    def _after_pass(self, state: State) -> State:
        """Choose the next phase after all pending objects were tried: a retry, the quarantine, or the end."""
        retries = RETRIES if self._may_continue() else 0
        if state.retries < retries and self.ledger.missing(self.scope, "", 1):
            # another communication type may help at once; a copy may only succeed later
            wait = RETRY_DELAY if state.retries or self.spec is None else 0
            is_last = state.retries == retries - 1
            # over hpush, a result with unchanged content keeps its old version
            if self.spec and is_last and not self.destination.is_remote and self._outcomes.make_way():
                self._listings.destination("after")
            return replace(state, phase=Phase.RETRY, retries=state.retries + 1, not_before=time.time() + wait)
        if self.options.quarantine and self.ledger.missing(self.scope, "", 1, final=True):
            self.options.quarantine.handle(self.client).create(exist_ok=True)
            return replace(state, phase=Phase.QUARANTINE)
        return replace(state, phase=Phase.DONE)

    def _may_continue(self) -> bool:
        return self.options.continue_on_error or not self.ledger.has_reasons(self.scope)

    def finish(self, state: State) -> Summary:
        """Record every outcome and return the summary. Removes empty results of a WebSocket transform.

        Raises AIStoreTransientError when objects were not copied for reasons outside the objects.
        """
        self._outcomes.settle(state, may_continue=self._may_continue())
        if state.pending or self.options.sync:
            self._outcomes.remove_empty()
            self._submission.end()
        summary = self._outcomes.summary(state)
        if self.options.keeps_result:
            self.ledger.forget_listings(self.scope)
        if self.given:
            self.given.end(self.client, self.scope)
        return summary
