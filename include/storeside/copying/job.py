"""One copy of a bucket through the worker: it is complete, or it accounts for every missing object.

The job is for endpoints between which no service copies: OCI's native API to AIStore, or one provider's S3 to
another's. AIStore copies buckets that it can read without the worker; see `storeside.transform.bucket_job`. Like that
job, this one lists both buckets and compares them with the ledger before the copy, and then lists the destination
again.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice

from storeside.aistore.names import is_folder_marker
from storeside.aistore.stored_objects import StoredObject
from storeside.amounts import byte_rate, counted, others, size
from storeside.copying.claims import BEAT_SECONDS, Claims
from storeside.copying.errors import CopyCancelled, CopyInputError, CopyObjectError, CopyTransientError, DeniedError
from storeside.copying.mover import Mover, Outcome
from storeside.copying.multipart import Profile
from storeside.copying.sameness import require_other_bucket
from storeside.copying.store import Store
from storeside.ledger import owners
from storeside.ledger.copies import CopyLedger
from storeside.ledger.listing import Row, destination_rows, source_row
from storeside.ledger.scope import Pending, Plan, Scope
from storeside.transform.state import Summary

log = logging.getLogger(__name__)

# Number of objects whose names are fetched from the plan and claimed at once.
WINDOW = 2_000
FLUSH_SECONDS = 2.0
REPORT_SECONDS = 5.0
# The credentials are wrong if DENIED objects were tried and all were denied, or if all objects of the copy were
# denied and they are at least FEW_DENIED.
DENIED = 100
FEW_DENIED = 11
# If this number of objects in a row failed for transient reasons, a server has gone: more attempts would take days.
MOST_IN_A_ROW = 100


@dataclass(frozen=True)
class Progress:
    """Progress of a copy: tried objects of all planned ones, copied bytes, and seconds since the start."""

    objects: int
    total: int
    bytes: int
    seconds: float

    def __str__(self) -> str:
        text = f"{self.objects:,} of {counted(self.total, 'object')}, {size(self.bytes)}"
        text += byte_rate(self.bytes, self.seconds)
        if 0 < self.objects < self.total:
            text += f", {(self.total - self.objects) / self.objects * self.seconds:.0f} s to go"
        return text


class CopyJob:
    """Copies the objects below `prefix` from `source` to `destination`, each version once.

    `run` plans the copy, copies and records the outcomes. The next run retries failed objects, because most failures
    are missing permissions, which may be granted meanwhile. It skips only names that the destination cannot store,
    unless `retry_failed`. `report` receives the progress every few seconds.
    """

    def __init__(
        self,
        source: Store,
        destination: Store,
        ledger: CopyLedger,
        *,
        run_id: str,
        profile: Profile | None = None,
        prefix: str = "",
        prepend: str = "",
        retry_failed: bool = False,
        report: Callable[[Progress], None] = lambda progress: None,
    ) -> None:
        self.source = source
        self.destination = destination
        self.ledger = ledger
        self.prefix = prefix
        self.prepend = prepend
        self.retry_failed = retry_failed
        self.report = report
        self.stop = threading.Event()
        self.scope = Scope(source.name, destination.name, "", run_id, repr((prefix, prepend)), prepend)
        self.claims = Claims(ledger.client, destination, f"{run_id}/{self.scope.job}")
        self.mover = Mover(source, destination, profile, self.stop, self._tick)
        self.started = time.time()
        self._passing = 0
        self._first_passing = ""
        self._in_a_row = 0
        self._ended = 0
        self._copied = 0
        self._denied = 0
        self._last_denied = ""
        self._adopted = 0
        self._total = 0
        self._reported = self._beat = time.monotonic()

    def run(self) -> Summary:
        """Copy the missing objects and return the summary.

        Raises:
            CopyInputError: no name can begin with `prepend`, source and destination are one bucket, an endpoint
            refuses every request, or it denies each of the first objects. Objects that were copied stay copied.
            CopyTransientError: some objects failed for a transient reason; all others are done, unless a server has
            gone.
            CopyCancelled: the copy was stopped.
        """
        if self.prepend and (reason := self.destination.refused(f"{self.prepend}x")):
            raise CopyInputError(f"prepend {self.prepend!r}: {reason}")
        self.source.check(is_source=True)
        self.destination.check()
        self.ledger.create()
        self.claims.sweep()
        require_other_bucket(self.source, self.destination, self.claims)
        plan = self._plan()
        try:
            self._copy()
        finally:
            summary = self._settle(plan)
        if self._passing:
            raise CopyTransientError(
                f"{counted(self._passing, 'object')} could not be copied for now, such as {self._first_passing};"
                f" {summary.done} others were copied, a retry copies the rest"
            )
        if self.stop.is_set():
            raise CopyCancelled(f"the copy was stopped: {summary.done} objects are done, another run copies the rest")
        return summary

    def _plan(self) -> Plan:
        """List both buckets, which replaces the listings of an earlier try of the run, and compare them."""
        self.ledger.begin(self.scope)
        self.ledger.record_listing(self.scope, "source", self._source_rows())
        self._list_destination("before")
        owners.record(self.ledger, self.scope, self._find, self.prefix)
        plan = self._recorded()
        if owners.are_planned_elsewhere(self.ledger, self.scope):
            plan = self._recorded()
        self._adopted = self.ledger.adopt(self.scope)
        self._total = plan.pending - self._adopted
        log.info(
            "%s -> %s: %s listed, %d to process%s", self.source.name, self.destination.name,
            counted(plan.listed, "object"), plan.pending,
            others(
                (self._adopted, "of them exist"), (plan.known_bad, "failed before"),
                (plan.refused, "refused for their names"),
            ),
        )  # fmt: skip
        return plan

    def _recorded(self) -> Plan:
        return self.ledger.plan(
            self.scope,
            retry_failed=self.retry_failed,
            keeps_result=True,
            trusts_failures=False,  # missing permissions may have been granted
        )

    def _source_rows(self) -> Iterator[Row]:
        for found in self.source.list(self.prefix):
            if is_folder_marker(found.name, found.size):
                continue
            key = self.prepend + found.name
            yield source_row(found, key, self.destination.refused(key))

    def _find(self, names: Iterable[str]) -> Iterator[StoredObject]:
        """Yield the objects of the source that have one of these names."""
        for name in names:
            yield from (found for found in islice(self.source.list(name), 1) if found.name == name)

    def _list_destination(self, side: str) -> None:
        listing = self.destination.list(self.prepend + self.prefix)
        self.ledger.record_listing(self.scope, side, destination_rows(listing))

    def _copy(self) -> None:
        after = ""
        while window := self.ledger.uncopied(self.scope, after, WINDOW):
            self.claims.open(w.destination_object for w in window if self._in_parts(w))
            try:
                self._copy_window(window)
            finally:
                # also after a stop or an error, because the mover has then aborted its uploads
                self.claims.close(self.mover.left)
            if self.stop.is_set():
                return
            after = window[-1].object
        self._require_access(FEW_DENIED)

    def _in_parts(self, one: Pending) -> bool:
        try:
            return bool(self.mover.parts(one.size))
        except CopyObjectError:  # too large for the endpoint; the mover reports it
            return False

    def _copy_window(self, window: list[Pending]) -> None:
        outcomes: list[Outcome] = []
        flushed = time.monotonic()
        try:
            for outcome in self.mover.copy(window):
                outcomes.append(outcome)
                self._count(outcome)
                if time.monotonic() - flushed >= FLUSH_SECONDS:
                    self._flush(outcomes)
                    outcomes, flushed = [], time.monotonic()
                self._tick()
        finally:
            self._flush(outcomes)

    def _count(self, outcome: Outcome) -> None:
        self._ended += 1
        passes = isinstance(outcome.error, CopyTransientError)
        self._in_a_row = self._in_a_row + 1 if passes else 0
        if not outcome.error:
            self._copied += 1
        elif isinstance(outcome.error, DeniedError):
            self._denied += 1
            self._last_denied = str(outcome.error)
            self._require_access(DENIED)
        elif passes:
            self._passing += 1
            self._first_passing = self._first_passing or f"{outcome.wanted.object!r}: {outcome.error}"
            if self._in_a_row == MOST_IN_A_ROW:
                raise CopyTransientError(
                    f"{outcome.error}. The last {MOST_IN_A_ROW} objects failed like this, so the copy ended:"
                    " a retry copies the rest"
                )

    def _require_access(self, least: int) -> None:
        """Raise CopyInputError if `least` or more objects were tried and all denied, as the rest would be."""
        if self._denied == self._ended >= least:
            raise CopyInputError(
                f"{self._last_denied}. All {self._denied} objects that were tried are denied, so the copy ended:"
                " grant the permission, or select permitted objects with a prefix"
            )

    def _flush(self, outcomes: list[Outcome]) -> None:
        self.ledger.record_copies(self.scope, [(o.wanted, o.version) for o in outcomes if not o.error])
        final = (o for o in outcomes if o.error and not isinstance(o.error, CopyTransientError | CopyCancelled))
        self.ledger.record_reasons(self.scope, ((o.wanted.object, str(o.error), True) for o in final))

    def _tick(self) -> None:
        """Report progress and record a heartbeat at their intervals."""
        now = time.monotonic()
        if now - self._reported >= REPORT_SECONDS:
            self._reported = now
            self.report(Progress(self._ended, self._total, self.mover.bytes, time.time() - self.started))
        if now - self._beat >= BEAT_SECONDS:
            self._beat = now
            self.claims.beat()

    def _settle(self, plan: Plan) -> Summary:
        if plan.pending:
            self._list_destination("after")
            self.ledger.settle_copies(self.scope)
            self._copied -= self.ledger.taken_back(self.scope)
        totals = self.ledger.totals(self.scope)
        examples = self.ledger.failures(self.scope, limit=20)
        known = self.ledger.known_failures(self.scope, limit=20) if plan.known_bad else []
        self.ledger.forget_listings(self.scope)
        return Summary(
            source=self.source.name,
            destination=self.destination.name,
            effect="",
            listed=plan.listed,
            skipped=plan.listed - plan.pending - plan.known_bad - plan.refused + self._adopted,
            known_bad=plan.known_bad,
            done=self._copied,  # counted by this try, because the ledger does not distinguish the tries of a run
            failed=totals.failed,
            bytes_in=self.mover.bytes,
            bytes_out=self.mover.bytes,
            seconds=round(time.time() - self.started, 3),
            examples=tuple(examples),
            known_failures=tuple(known),
            prepend=self.prepend,
        )
