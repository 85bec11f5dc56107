"""One copy or transform of a bucket, complete or accounted for.

AIStore's word that a job succeeded is never taken: before a job the two buckets are listed and compared with the
ledger, after it the destination is listed again, and what has no fresh result is tried once more over ``hpush``,
which tells the reason of a failure where WebSocket does not.

A `BucketJob` is a state machine for whoever waits between its steps (an operator defers, a script sleeps):

    state = job.begin()
    while state.phase != "done":
        state = job.submit(state)
        follow state.job_id, if there is one
        state = job.advance(state)
    summary = job.finish(state)

A try that starts again after a kill follows the job that still runs and goes on with the listings of the killed one.
"""

from __future__ import annotations

import json
import logging
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

from include.storage.buckets import Bucket, StoredObject, list_aistore
from include.storage.names import unfit

from . import etl as etls
from . import jobs
from .etl import EtlSpec
from .ledger import Ledger, Pending, Plan, Scope
from .naming import Naming

log = logging.getLogger(__name__)

# Names per multi-object request: a few MB of JSON at most.
WINDOW = 10_000
# Reasons of failed copies are asked of AIStore one by one; beyond this many the common reason is given.
REASONS = 200
NO_REASON = "AIStore ended the job without this object and gave no reason"


@dataclass(frozen=True)
class State:
    """Where a job stands; small and JSON-able, so that it survives a deferral or a restart.

    `phase` is ``attached`` (to a job that ran already), ``bucket`` (all at once), ``objects`` (windows of names),
    ``retry`` (what is missing) or ``done``. `cursor` is the last object name that was submitted; `job_seconds` is
    what AIStore's jobs have taken so far.
    """

    phase: str
    started: float
    listed: int = 0
    pending: int = 0
    known_bad: int = 0
    refused: int = 0
    cursor: str = ""
    job_id: str = ""
    etl_name: str = ""
    job_seconds: float = 0

    def to_dict(self) -> dict[str, Any]:
        """Return the state as a dictionary of plain values."""
        return asdict(self)


@dataclass(frozen=True)
class Summary:
    """What came of a job; `job_seconds` of its `seconds` are AIStore's own.

    `examples` are (object, reason) of the first failures; the ledger has all of them.
    """

    source: str
    destination: str
    effect: str
    listed: int
    skipped: int
    known_bad: int
    done: int
    failed: int
    bytes_in: int
    bytes_out: int
    seconds: float
    job_seconds: float = 0
    examples: tuple[tuple[str, str], ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return the summary as a dictionary of bounded size."""
        return asdict(self)


class BucketJob:
    """Copies (`spec` is None) or transforms `source` into `destination`.

    `list_source` overrides how the source is listed, for buckets whose own service lists better than AIStore.
    With `keeps_result` off the results are intermediate: the function `acknowledge` records the objects as done once
    whoever uses the results has them, and the results may be deleted then.
    """

    def __init__(
        self,
        client: Any,
        ledger: Ledger,
        source: Bucket,
        destination: Bucket,
        *,
        run_id: str,
        spec: EtlSpec | None = None,
        naming: Naming | None = None,
        prefix: str = "",
        retry_failed: bool = False,
        keeps_result: bool = True,
        workers: int = 0,
        list_source: Callable[[], Iterator[StoredObject]] | None = None,
    ) -> None:
        self.client = client
        self.ledger = ledger
        self.source = source
        self.destination = destination
        self.spec = spec
        self.naming = naming or Naming()
        self.prefix = prefix
        self.retry_failed = retry_failed
        self.keeps_result = keeps_result
        self.workers = workers
        self.list_source = list_source or (lambda: list_aistore(client, source, prefix))
        self.scope = Scope(str(source), str(destination), spec.effect if spec else "", run_id)

    def begin(self) -> State:
        """Say what is to be done first: follow a job that runs already, resume what a killed try began, or plan."""
        jobs.wait_for_rebalance(self.client)
        self.ledger.create()
        self._require_destination()
        running = jobs.running_between(self.client, self.source, self.destination)
        if running:
            log.warning("job %s runs between %s and %s already: following it", running, self.source, self.destination)
            return State("attached", time.time(), job_id=running)
        return self._resume() or self._plan()

    def _resume(self) -> State | None:
        """Return the state to go on from with the listings of a killed try; None when there are none."""
        plan = self.ledger.planned(self.scope)
        if not plan.pending:
            return None
        log.info("going on with what an earlier try of this run began")
        self._list_destination("after")
        return self._state("objects", plan)

    def _plan(self) -> State:
        """List both buckets, compare them with the ledger, and say what is to be done."""
        self.ledger.record_listing(self.scope, "source", map(self._source_row, self.list_source()))
        self._list_destination("before")
        plan = self.ledger.plan(self.scope, retry_failed=self.retry_failed, keeps_result=self.keeps_result)
        log.info(
            "%s -> %s: %d objects listed, %d to do, %d known to be bad, %d refused for their names",
            self.source,
            self.destination,
            plan.listed,
            plan.pending,
            plan.known_bad,
            plan.refused,
        )
        if not plan.pending:
            return self._state("done", plan)
        return self._state("bucket" if self.spec and plan.pending == plan.listed else "objects", plan)

    def _source_row(self, found: StoredObject) -> tuple[str, str, int, str, str]:
        """Return the listing's row: a name that AIStore cannot hold has no destination but a reason."""
        reason = unfit(found.name)
        destination = "" if reason else self.naming.destination(found.name)
        return found.name, destination, found.size, found.version, reason or ""

    @staticmethod
    def _state(phase: str, plan: Plan) -> State:
        return State(phase, time.time(), plan.listed, plan.pending, plan.known_bad, plan.refused)

    def submit(self, state: State) -> State:
        """Submit the next job; returns the state with its id, or without one when the phase has no more to do."""
        if state.phase in ("attached", "done"):
            return state
        jobs.wait_for_rebalance(self.client)
        jobs.end_idle(self.client, self.source, self.destination)
        if state.phase == "bucket":
            return self._submit_bucket(state)
        window = self.ledger.missing(self.scope, state.cursor, WINDOW)
        return self._submit_objects(state, window) if window else replace(state, job_id="")

    def follower(self, state: State, stall_seconds: float) -> jobs.Follower:
        """Return what tells when the submitted job is over."""
        return jobs.Follower(self.client, state.job_id, stall_seconds)

    def advance(self, state: State, seconds: float = 0) -> State:
        """Go on after the submitted job, which took `seconds`: next window, retry of what is missing, or done."""
        state = replace(state, job_seconds=state.job_seconds + seconds)
        if state.phase == "attached":
            return self._resume() or self._plan()
        if state.phase == "retry":
            self._record_reasons(state)
        if state.phase in ("objects", "retry") and state.job_id:
            return replace(state, job_id="")
        jobs.wait_for_rebalance(self.client)
        self._list_destination("after")
        if state.phase != "retry" and self.ledger.missing(self.scope, "", 1):
            return replace(state, phase="retry", cursor="", job_id="")
        return replace(state, phase="done", job_id="")

    def finish(self, state: State) -> Summary:
        """Record every outcome and sum up. Removes empty results that a WebSocket transform left behind."""
        if state.pending:
            self.ledger.settle(self.scope, record_done=self.keeps_result, no_reason=NO_REASON)
            if self.spec:
                self._remove_empty_results()
                jobs.end_idle(self.client, self.source, self.destination)
                etls.release(self.client, (self.spec.name, self._retry_spec(self.spec).name))
        if self.keeps_result:
            self.ledger.forget_listings(self.scope)
        totals = self.ledger.totals(self.scope)
        if not self.keeps_result:
            done, bytes_in, bytes_out = self.ledger.fresh_results(self.scope)
            totals = replace(totals, done=done, bytes_in=bytes_in, bytes_out=bytes_out)
        examples = self.ledger.failures(self.scope, limit=20)
        return Summary(
            source=str(self.source),
            destination=str(self.destination),
            effect=self.scope.effect,
            listed=state.listed,
            skipped=state.listed - state.pending - state.known_bad - state.refused,
            known_bad=state.known_bad,
            done=totals.done,
            failed=totals.failed,
            bytes_in=totals.bytes_in,
            bytes_out=totals.bytes_out,
            seconds=round(time.time() - state.started, 3),
            job_seconds=round(state.job_seconds, 3),
            examples=tuple(examples),
        )

    def _require_destination(self) -> None:
        if self.destination.scheme == "ais":
            self.destination.handle(self.client).create(exist_ok=True)

    def _list_destination(self, side: str) -> None:
        # Of a prefix that reaches into the extension, only what comes before it is in the names of results.
        folder, slash, last = self.prefix.rpartition("/")
        prefix = self.naming.prepend + folder + slash + last.partition(".")[0]
        listing = list_aistore(self.client, self.destination, prefix)
        self.ledger.record_listing(self.scope, side, (("", o.name, o.size, o.version, "") for o in listing))

    def _submit_bucket(self, state: State) -> State:
        assert self.spec is not None  # noqa: S101 - plan() chose this phase
        name = etls.ensure(self.client, self.spec)
        job_id = self.source.handle(self.client).transform(
            name,
            self.destination.handle(self.client),
            timeout=f"{self.spec.object_timeout}s",
            prefix_filter=self.prefix,
            prepend=self.naming.prepend,
            ext=dict(self.naming.extensions) or None,
            num_workers=self.workers,
            cont_on_err=True,
        )
        log.info("submitted bucket transform %s with ETL %s", job_id, name)
        return replace(state, job_id=job_id, etl_name=name)

    def _submit_objects(self, state: State, window: list[Pending]) -> State:
        names = [p.object for p in window]
        group = self.source.handle(self.client).objects(obj_names=names)
        to = self.destination.handle(self.client)
        etl_name = ""
        jobs.renew_ids(self.client)
        if self.spec is None:
            ids = group.copy(to, prepend=self.naming.prepend, continue_on_error=True)
            job_id = ids[-1]
        else:
            retry = state.phase == "retry"
            etl_name = etls.ensure(self.client, self._retry_spec(self.spec) if retry else self.spec)
            job_id = group.transform(
                to,
                etl_name,
                timeout=f"{self.spec.object_timeout}s",
                prepend=self.naming.prepend,
                ext=dict(self.naming.extensions) or None,
                continue_on_error=True,
                num_workers=self.workers or None,
            )
        log.info("submitted %d objects as job %s", len(names), job_id)
        return replace(state, job_id=job_id, etl_name=etl_name, cursor=names[-1])

    @staticmethod
    def _retry_spec(spec: EtlSpec) -> EtlSpec:
        """Return the ETL for what is missing: over ``hpush``, which tells the reason of a failure."""
        return replace(spec, communication="hpush")

    def _record_reasons(self, state: State) -> None:
        """Keep the reasons that AIStore knows of a finished retry."""
        if not state.job_id:
            return
        from aistore.sdk.errors import AISError

        if self.spec is None:
            self.ledger.record_reasons(self.scope, self._reasons_of_copies())
            return
        try:
            errors = self.client.etl(state.etl_name).view(state.job_id).obj_errors or []
        except AISError as e:
            log.warning("job %s: its object errors cannot be read: %s", state.job_id, e)
            return
        self.ledger.record_reasons(
            self.scope, ((_object_name(e.obj_name, self.source), _reason(e.msg)) for e in errors)
        )

    def _reasons_of_copies(self) -> Iterator[tuple[str, str]]:
        """Ask AIStore for each missing object; what it answers is why the copy failed."""
        from aistore.sdk.errors import AISError
        from requests import RequestException

        self._list_destination("after")
        source = self.source.handle(self.client)
        for p in self.ledger.missing(self.scope, "", REASONS):
            try:
                source.object(p.object).head()
            except (AISError, RequestException) as e:
                yield p.object, _reason(getattr(e, "message", "") or str(e))

    def _remove_empty_results(self) -> None:
        """Delete the empty objects that errors over WebSocket leave at the destination."""
        from aistore.sdk.errors import AISError

        to = self.destination.handle(self.client)
        for name in self.ledger.empty_results(self.scope):
            try:
                to.object(name).delete()
            except AISError as e:
                log.warning("%s/%s is empty and cannot be removed: %s", self.destination, name, e)


def acknowledge(ledger: Ledger, scope: Scope, before_closing: Callable[[], None]) -> None:
    """Record the objects of a job without `keeps_result` as done: their results have been used.

    `before_closing` may record exceptions while the job's listings are still there.
    """
    ledger.settle(scope, record_done=True, no_reason=NO_REASON)
    before_closing()
    ledger.forget_listings(scope)


def _object_name(reported: str, bucket: Bucket) -> str:
    """Return the object's name out of what an error calls it: with or without its bucket."""
    for prefix in (f"{bucket}/", f"{bucket.provider}://{bucket.name}/", f"{bucket.name}/"):
        if reported.startswith(prefix):
            return reported[len(prefix) :]
    return reported


def _reason(message: str) -> str:
    """Return what an error says, without the JSON that the transformer's server and AIStore put around it."""
    found = re.search(r'"detail":\s*("(?:[^"\\]|\\.)*")', message)
    if found:
        message = json.loads(found[1]).removeprefix("Processing error: ")
    return " ".join(message.split())[:1000]
