"""One copy of a bucket through this process, complete or accounted for.

For pairs that no service copies between by itself: OCI's native API to AIStore, or S3 of one provider to another's.
What AIStore can read it copies without us, see `include.transform.bucket_job`. As there, both buckets are listed and
compared with the ledger before, and the destination is listed again after.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from include.storage.claims import BEAT_SECONDS, Claims
from include.storage.copy_ledger import CopyLedger
from include.storage.errors import DeniedError, ObjectError, TransientError, UsageError
from include.storage.mover import Mover, Outcome, Stopped
from include.storage.multipart import Profile
from include.storage.sameness import require_other_bucket
from include.storage.store import Store
from include.transform.bucket_job import Summary
from include.transform.ledger import Pending, Plan, Scope

log = logging.getLogger(__name__)

# Objects that are planned, claimed and held in memory by name at once.
WINDOW = 2_000
FLUSH_SECONDS = 2.0
REPORT_SECONDS = 5.0
# When so many objects are all denied, or all there are and those are no fewer than a few, the credentials are wrong.
DENIED = 100
FEW_DENIED = 11


@dataclass(frozen=True)
class Progress:
    """What a copy has done so far."""

    objects: int
    total: int
    bytes: int
    seconds: float

    def __str__(self) -> str:
        rate = self.bytes / self.seconds if self.seconds else 0
        text = f"{self.objects} of {self.total} objects, {self.bytes / 1e6:.1f} MB, {rate / 1e6:.1f} MB/s"
        if 0 < self.objects < self.total:
            text += f", {(self.total - self.objects) / self.objects * self.seconds:.0f} s to go"
        return text


class CopyJob:
    """Copies the objects below `prefix` from `source` to `destination`, each version once.

    `run` does all of it. What fails is recorded with its reason, and the next run tries it again: most often it is a
    permission that is given meanwhile. Only names that the destination cannot hold are left alone, unless
    `retry_failed`. What fails for a reason that may pass is left for another try, after everything else is done.
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
        self.scope = Scope(source.name, destination.name, "", run_id, repr((prefix, prepend)))
        self.claims = Claims(ledger.client, destination, f"{run_id}/{self.scope.job}")
        self.mover = Mover(source, destination, profile, self.stop, self._tick)
        self.started = time.time()
        self._passing = 0
        self._first_passing = ""
        self._ended = 0
        self._copied = 0
        self._denied = 0
        self._last_denied = ""
        self._adopted = 0
        self._total = 0
        self._reported = self._beat = time.monotonic()

    def run(self) -> Summary:
        """Copy what is missing and sum up.

        Raises:
            UsageError: source and destination are one bucket; or an endpoint refuses everything, or each of the first
                objects, and what was copied counts.
            TransientError: the others are copied, and some objects may be in another try; or it was stopped.
        """
        self.source.check()
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
            raise TransientError(
                f"{self._passing} objects could not be copied this time, such as {self._first_passing};"
                f" {summary.done} others are"
            )
        if self.stop.is_set():
            raise Stopped(f"the copy was stopped: {summary.done} objects are done, another run goes on with the rest")
        return summary

    def _plan(self) -> Plan:
        """List both sides and compare; an earlier try of the same run may have left its listings."""
        self.ledger.begin(self.scope)
        self.ledger.record_listing(self.scope, "source", self._source_rows())
        self._list_destination("before")
        plan = self.ledger.plan(
            self.scope,
            retry_failed=self.retry_failed,
            keeps_result=True,
            trusts_failures=False,  # what an object has failed for is most often a permission that it may have by now
        )
        self._adopted = self.ledger.adopt(self.scope)
        self._total = plan.pending - self._adopted
        log.info(
            "%s -> %s: %d objects listed, %d to do, of which %d are there, %d known to be bad, %d refused for names",
            self.source.name,
            self.destination.name,
            plan.listed,
            plan.pending,
            self._adopted,
            plan.known_bad,
            plan.refused,
        )
        return plan

    def _source_rows(self) -> Iterator[tuple[str, str, int, str, str]]:
        for found in self.source.list(self.prefix):
            key = self.prepend + found.name
            reason = self.destination.refused(key)
            yield found.name, "" if reason else key, found.size, found.version, reason or ""

    def _list_destination(self, side: str) -> None:
        listing = self.destination.list(self.prepend + self.prefix)
        self.ledger.record_listing(self.scope, side, (("", o.name, o.size, o.version, "") for o in listing))

    def _copy(self) -> None:
        after = ""
        while window := self.ledger.uncopied(self.scope, after, WINDOW):
            self.claims.open(w.destination_object for w in window if self._in_parts(w))
            try:
                self._copy_window(window)
            finally:
                # also when stopped or refused: the mover has aborted by then what it had begun
                self.claims.close(self.mover.left)
            if self.stop.is_set():
                return
            after = window[-1].object
        self._require_access(FEW_DENIED)

    def _in_parts(self, one: Pending) -> bool:
        try:
            return bool(self.mover.parts(one.size))
        except ObjectError:  # more than all parts hold: it fails when its turn comes
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
        if not outcome.error:
            self._copied += 1
        elif isinstance(outcome.error, DeniedError):
            self._denied += 1
            self._last_denied = str(outcome.error)
            self._require_access(DENIED)
        elif isinstance(outcome.error, TransientError) and not isinstance(outcome.error, Stopped):
            self._passing += 1
            self._first_passing = self._first_passing or f"{outcome.wanted.object!r}: {outcome.error}"

    def _require_access(self, least: int) -> None:
        """Raise UsageError when all objects so far, and so many at least, were denied: the others would be."""
        if self._denied == self._ended >= least:
            raise UsageError(
                f"{self._last_denied}. All {self._denied} objects that were tried are denied: the copy was ended."
                " A prefix limits it to what may be copied"
            )

    def _flush(self, outcomes: list[Outcome]) -> None:
        self.ledger.record_copies(self.scope, [(o.wanted, o.version) for o in outcomes if not o.error])
        final = (o for o in outcomes if o.error and not isinstance(o.error, TransientError))
        self.ledger.record_reasons(self.scope, ((o.wanted.object, str(o.error), True) for o in final))

    def _tick(self) -> None:
        """Say how far it is, and that this run is alive, when it is time."""
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
        self.ledger.forget_listings(self.scope)
        return Summary(
            source=self.source.name,
            destination=self.destination.name,
            effect="",
            listed=plan.listed,
            skipped=plan.listed - plan.pending - plan.known_bad - plan.refused + self._adopted,
            known_bad=plan.known_bad,
            done=self._copied,  # by this try: the ledger does not tell those of a run apart
            failed=totals.failed,
            bytes_in=self.mover.bytes,
            bytes_out=self.mover.bytes,
            seconds=round(time.time() - self.started, 3),
            examples=tuple(examples),
        )
