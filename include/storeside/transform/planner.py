"""Plans a bucket job: compares the listings of both buckets with the ledger and chooses the first phase."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import asdict

from storeside.aistore.errors import AIStoreInputError
from storeside.amounts import counted, others
from storeside.ledger import owners
from storeside.ledger.objects import Ledger
from storeside.ledger.scope import Plan, Scope
from storeside.transform.given import Given as Given  # noqa: PLC0414 - for `bucket_job`
from storeside.transform.held import Held
from storeside.transform.listings import Listings
from storeside.transform.state import Options, Phase, State

log = logging.getLogger(__name__)


class Planner:
    """Plans the job of a scope. The scope of a copy has no effect.

    `splits` tells whether the job splits shards, and `several` whether objects have several results. `given` lists
    the source of a job that is given something beside its objects, and stores it if its argument is true.
    """

    def __init__(
        self,
        ledger: Ledger,
        scope: Scope,
        listings: Listings,
        held: Held,
        options: Options,
        splits: bool,
        several: bool,
        given: Callable[[bool], None] | None = None,
    ) -> None:
        self._ledger = ledger
        self._scope = scope
        self._listings = listings
        self._held = held
        self._options = options
        self._splits = splits
        self._several = several
        self._given = given

    def preview(self) -> dict[str, int]:
        """Return how many objects a job would list, process, skip and refuse; leaves no plan."""
        plan = self.foresee()
        self._ledger.forget_listings(self._scope)
        return asdict(plan)

    def foresee(self) -> Plan:
        """Return the plan that a job would make; the caller forgets its listings."""
        from aistore.sdk.errors import ErrBckNotFound

        self._list_source(store=False)
        self._held.list()
        try:
            self._listings.destination("before")
        except ErrBckNotFound:  # a job creates a missing destination
            self._ledger.record_listing(self._scope, "before", ())
        return self._decide(record=False)

    def resume(self) -> State | None:
        """Return the state that continues with the plan of a killed try; None when there is no plan.

        A plan is also void if another transformer wrote to the destination since: its results are not this job's.
        """
        plan = self._ledger.planned(self._scope)
        if plan is None or not plan.pending:
            return None
        self._listings.destination("after")
        if self._ledger.is_overtaken(self._scope):
            log.warning(
                "planning again: another transformer has made results of the same objects since an earlier try"
            )
            self._ledger.drop(self._scope, "after")
            return None
        log.info("continuing with the plan of an earlier try of this run")
        self._listings.planned()
        self._held.check()
        self._held.evict_stale()
        return _state(Phase.BUCKET if self._options.sync else Phase.OBJECTS, plan)

    def plan(self) -> State:
        """List both buckets, compare them with the ledger, and return the first state of the plan.

        Raises AIStoreInputError if the job would give results of several objects the same name, or names that AIStore
        cannot store (only with `sync`).
        """
        self._list_source(store=True)
        self._held.list()
        if self._options.keeps_result:
            self._listings.destination("before")
        else:  # before the plan, because a resumed plan relies on it
            self._listings.destination("after")
            self._ledger.distrust(self._scope)
        plan = self._decide(record=True)
        self._listings.planned()
        log.info(
            "%s -> %s: %s listed, %d to process%s", self._scope.source, self._scope.destination,
            counted(plan.listed, "object"), plan.pending,
            others((plan.known_bad, "failed for good before"), (plan.refused, "refused for their names")),
        )  # fmt: skip
        self._held.evict_stale()
        if self._options.sync:
            self._require_own_names()
            return _state(Phase.BUCKET, plan)
        missing = plan.pending
        if not self._options.keeps_result:
            there = self._ledger.fresh_results(self._scope)[0]
            missing -= there
            log.info("this run has stored %d results together with their objects, %d are missing", there, missing)
        if not missing:
            return _state(Phase.DONE, plan)
        # AIStore's pass over a bucket includes markers; over a remote one, it leaves out objects that the
        # cluster has not cached
        differs = self._listings.is_remote or self._listings.left_out or self._listings.ignored
        whole = self._scope.effect and self._options.names is None and missing == plan.listed and not differs
        return _state(Phase.BUCKET if whole else Phase.OBJECTS, plan)

    def _list_source(self, *, store: bool) -> None:
        if self._given is None:
            self._listings.source()
        else:
            self._given(store)

    def _require_own_names(self) -> None:
        """Raise AIStoreInputError if results would have the same name, or one that AIStore cannot store.

        With `sync`, AIStore leaves out no object.
        """
        count, name, reason = self._ledger.unfit_names(self._scope)
        if count:
            self._ledger.forget_listings(self._scope)
            raise AIStoreInputError(
                f"sync makes AIStore transform all objects of {self._scope.source}, also {count} that it cannot store"
                f" under their names. The first is {name!r}: {reason}; rename them, or leave sync out"
            )
        count, name, reason = self._ledger.shared_names(self._scope)
        if count:
            self._ledger.forget_listings(self._scope)
            raise AIStoreInputError(
                f"sync makes AIStore transform all objects of {self._scope.source}, so the results of {count} would"
                f" overwrite others. The first is {name!r}: {reason}; or leave sync out"
            )

    def _decide(self, record: bool) -> Plan:
        if self._options.keeps_result:
            prefix = self._options.prefix if self._options.names is None else None
            owners.record(self._ledger, self._scope, self._listings.find, prefix)
        plan = self._recorded(record)
        if record and self._options.keeps_result and owners.are_planned_elsewhere(self._ledger, self._scope):
            plan = self._recorded(record)
        return plan

    def _recorded(self, record: bool) -> Plan:
        return self._ledger.plan(
            self._scope,
            retry_failed=self._options.retry_failed,
            keeps_result=self._options.keeps_result,
            # copies fail because of credentials, policies or networks, not because of their objects
            trusts_failures=bool(self._scope.effect),
            splits=self._splits,
            several=self._several,
            record=record,
        )


def _state(phase: Phase, plan: Plan) -> State:
    return State(phase, time.time(), plan.listed, plan.pending, plan.known_bad, plan.refused)
