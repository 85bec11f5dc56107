"""One copy or transform of a bucket, complete or accounted for.

AIStore's word that a job succeeded is never taken: before a job the two buckets are listed and compared with the
ledger, after it the destination is listed again. What has no fresh result has failed: for good where our server's
journal says so, else it is tried again over ``hpush``, and what fails then too is listed with the last reason known.

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

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from include.storage.buckets import (
    Bucket,
    StoredObject,
    common_prefix,
    delete_objects,
    find_aistore,
    list_aistore,
)
from include.storage.names import unfit

from . import copies, jobs
from . import etl as etls
from .apart import require_apart
from .errors import TransientTransformError, plain, said
from .etl import EtlSpec
from .journal import failures
from .ledger import Ledger, Pending, Plan, Scope
from .naming import Naming
from .pods import PodWatch

log = logging.getLogger(__name__)

# Names per multi-object request: a few MB of JSON at most.
WINDOW = 10_000
# Reasons of failed copies are asked of AIStore one by one; beyond this many the common reason is given.
REASONS = 200
# Tries of what failed for a reason that may pass, and the seconds before the second of them.
RETRIES = 2
RETRY_DELAY = 5.0
_BAD_REQUEST, _SERVER_ERROR = 400, 500
NO_REASON = "AIStore ended the job without this object and gave no reason"


@dataclass(frozen=True)
class State:
    """Where a job stands; small and JSON-able, so that it survives a deferral or a restart.

    `phase` is ``attached`` (to a job that ran already), ``bucket`` (all at once), ``objects`` (windows of names),
    ``retry`` (what is missing), ``quarantine`` (what has failed) or ``done``. `cursor` is the last object name that
    was submitted, `retries` says how often what is missing was tried again, `not_before` is the time (seconds since
    1970) before which nothing is to be submitted; `job_seconds` is what AIStore's jobs have taken so far. `waits`
    says that the job is another task's, and that there is something to submit when it is over. `replaces` says that
    an in-place transform has made its results and replaces objects by them; see `include.transform.in_place`.
    """

    phase: str
    started: float
    listed: int = 0
    pending: int = 0
    known_bad: int = 0
    refused: int = 0
    cursor: str = ""
    job_id: str = ""
    etl_names: tuple[str, ...] = ()
    retries: int = 0
    not_before: float = 0
    job_seconds: float = 0
    waits: bool = False
    replaces: bool = False

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


@dataclass(frozen=True)
class Options:
    """How a job goes about it.

    `prefix` or `names` select objects. `latest` makes AIStore look for newer versions in a remote source, `sync`
    removes results whose source is gone there; both make it send contents instead of files. `workers` are concurrent
    objects per target (0: one per disk, -1: one). Without `continue_on_error` a job ends at the first failed object
    that AIStore is told of (not over ``ws``), and what was not tried stays undone. What failed for good is copied to
    the bucket `quarantine`. The bucket `sidecars` is made where missing, for transforms that store sidecars there.

    With `keeps_result` off the results are intermediate, and all that are at the destination are of this run: the
    function `acknowledge` records the objects as done once whoever uses the results has them, and the results may be
    deleted then. What came along with an object that this run made is such a result already, and not made again.
    `keep_etl` leaves the ETL running for whoever started it.
    """

    prefix: str = ""
    names: Sequence[str] | None = None
    retry_failed: bool = False
    latest: bool = False
    sync: bool = False
    workers: int = 0
    continue_on_error: bool = True
    quarantine: Bucket | None = None
    sidecars: Bucket | None = None
    keeps_result: bool = True
    keep_etl: bool = False

    def __post_init__(self) -> None:
        if self.names is not None and (self.prefix or self.sync):
            raise ValueError("names of objects go with neither a prefix nor sync, which is about whole buckets")


class BucketJob:
    """Copies (`spec` is None) or transforms `source` into `destination`.

    `list_source` overrides how the source is listed, for buckets whose own service lists better than AIStore; `pods`
    lets an ETL that does not start say why. Raises ValueError for options that do not go together.
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
        options: Options | None = None,
        list_source: Callable[[], Iterable[StoredObject]] | None = None,
        pods: PodWatch | None = None,
    ) -> None:
        self.client = client
        self.ledger = ledger
        self.source = source
        self.destination = destination
        self.naming = naming or Naming()
        self.options = options or Options()
        self.pods = pods
        if self.options.sync and not source.is_remote:
            raise ValueError(f"sync follows deletions in a remote bucket, which {source} is not")
        if spec and (self.options.latest or self.options.sync):
            spec = spec.without_files()
        self.spec = spec
        self.list_source = list_source or self._list_source
        # intermediate results are acknowledged by whoever knows no more of this job than its buckets, effect and run
        names = list(self.options.names or ())
        selection = repr((self.options.prefix, names, self.naming)) if self.options.keeps_result else ""
        self.scope = Scope(str(source), str(destination), spec.effect if spec else "", run_id, selection)

    def begin(self) -> State:
        """Say what is to be done first: follow a job that runs already, resume what a killed try began, or plan.

        Raises StuckTargetError when a target of the cluster has to be restarted first.
        """
        jobs.require_targets(self.client)
        with jobs.naming_stuck_targets(self.client):
            return self._begin()

    def _begin(self) -> State:
        jobs.wait_for_rebalance(self.client)
        self._require_apart()
        self.ledger.create()
        self._require_destinations()
        running = jobs.running_between(self.client, self.source, self.destination)
        if running:
            log.warning("job %s runs between %s and %s already: following it", running, self.source, self.destination)
            # the plan of a try that was killed is that of the job, as others wait for it as well
            return State("attached", time.time(), job_id=running, waits=self.ledger.planned(self.scope) is None)
        return self._resume() or self._plan()

    def preview(self) -> dict[str, int]:
        """Return how many objects a job would list, process, leave alone and refuse; changes nothing."""
        from aistore.sdk.errors import ErrBckNotFound

        self._require_apart()
        self.ledger.create()
        self.ledger.record_listing(self.scope, "source", self._source_rows())
        try:
            self._list_destination("before")
        except ErrBckNotFound:  # a job would make it
            self.ledger.record_listing(self.scope, "before", ())
        plan = self._decide(record=False)
        self.ledger.forget_listings(self.scope)
        return asdict(plan)

    def _resume(self) -> State | None:
        """Return the state to go on from with the listings of a killed try; None when there are none."""
        plan = self.ledger.planned(self.scope)
        if plan is None or not plan.pending:
            return None
        log.info("going on with what an earlier try of this run began")
        self._list_destination("after")
        return self._state("objects", plan)

    def _plan(self) -> State:
        """List both buckets, compare them with the ledger, and say what is to be done."""
        self.ledger.record_listing(self.scope, "source", self._source_rows())
        if self.options.keeps_result:
            self._list_destination("before")
        else:  # before there is a plan: whoever resumes one takes for granted that this was done
            self._list_destination("after")
            self.ledger.distrust(self.scope)
        plan = self._decide(record=True)
        log.info(
            "%s -> %s: %d objects listed, %d to do, %d known to be bad, %d refused for their names",
            self.source,
            self.destination,
            plan.listed,
            plan.pending,
            plan.known_bad,
            plan.refused,
        )
        if self.options.sync:
            return self._state("bucket", plan)
        missing = plan.pending
        if not self.options.keeps_result:
            there = self.ledger.fresh_results(self.scope)[0]
            missing -= there
            log.info("%d results came along with their objects in this run, %d are to be made", there, missing)
        if not missing:
            return self._state("done", plan)
        whole = self.spec and self.options.names is None and missing == plan.listed
        return self._state("bucket" if whole else "objects", plan)

    def _decide(self, record: bool) -> Plan:
        options = self.options
        return self.ledger.plan(
            self.scope,
            retry_failed=options.retry_failed,
            keeps_result=options.keeps_result,
            # what AIStore cannot copy is kept from it by credentials, policies or networks
            trusts_failures=self.spec is not None,
            record=record,
        )

    def _list_source(self) -> Iterator[StoredObject]:
        if self.options.names is None:
            return list_aistore(self.client, self.source, self.options.prefix)
        return find_aistore(self.client, self.source, self.options.names)

    def _source_rows(self) -> Iterator[tuple[str, str, int, str, str]]:
        """Yield the listing's rows: a name that AIStore cannot hold has no destination but a reason."""
        wanted = set(self.options.names or ())
        for found in self.list_source():
            wanted.discard(found.name)
            reason = unfit(found.name)
            destination = "" if reason else self.naming.destination(found.name)
            yield found.name, destination, found.size, found.version, reason or ""
        for name in sorted(wanted):
            yield name, "", 0, "", f"{self.source} has no object of this name"

    @staticmethod
    def _state(phase: str, plan: Plan) -> State:
        return State(phase, time.time(), plan.listed, plan.pending, plan.known_bad, plan.refused)

    def submit(self, state: State) -> State:
        """Submit the next job; returns the state with its id, or without one when the phase has no more to do.

        While another task's job runs between the buckets nothing is submitted, and the state has that job's id.
        """
        if state.phase in ("attached", "done"):
            return state
        with jobs.naming_stuck_targets(self.client):
            return self._submit(state)

    def _submit(self, state: State) -> State:
        jobs.wait_for_rebalance(self.client)
        window: list[Pending] = []
        if state.phase != "bucket":
            window = self.ledger.missing(self.scope, state.cursor, WINDOW, final=state.phase == "quarantine")
            if not window:
                return replace(state, job_id="")
        to = self.options.quarantine if state.phase == "quarantine" else self.destination
        assert to is not None  # noqa: S101 - advance() chose this phase
        names = self._ensure_etls(state.phase)
        with jobs.submitting(self.client, self.source, to):
            if running := jobs.running_between(self.client, self.source, to):
                log.warning("job %s of another task runs between %s and %s: following it", running, self.source, to)
                return replace(state, job_id=running, waits=True)
            jobs.end_idle(self.client, self.source, to)
            if state.phase == "bucket":
                job_id = self._submit_bucket(names)
            else:
                job_id = self._submit_objects(state.phase, [p.object for p in window], to, names)
        what = f"{len(window)} objects" if window else "the bucket"
        with_etl = f" with ETL {' >> '.join(names)}" if names else ""
        log.info("submitted %s to %s as job %s%s", what, to, job_id, with_etl)
        cursor = window[-1].object if window else ""
        return replace(state, job_id=job_id, etl_names=tuple(names), cursor=cursor)

    def follower(self, state: State, stall_seconds: float) -> jobs.Follower:
        """Return what tells when the submitted job is over."""
        return jobs.Follower(self.client, state.job_id, stall_seconds)

    def advance(self, state: State, seconds: float = 0) -> State:
        """Go on after the submitted job, which took `seconds`: next window, retry of what is missing, or done."""
        with jobs.naming_stuck_targets(self.client):
            return self._advance(state, seconds)

    def _advance(self, state: State, seconds: float) -> State:
        if state.phase == "attached":
            return self._resume() or self._plan()
        if state.waits:
            return replace(state, job_id="", waits=False)
        state = replace(state, job_seconds=state.job_seconds + seconds)
        if state.job_id:
            self._record_reasons(state)
        if state.phase != "bucket" and state.job_id:
            return replace(state, job_id="")
        if state.phase == "quarantine":
            return replace(state, phase="done")
        jobs.wait_for_rebalance(self.client)
        self._list_destination("after")
        if self.spec is None and self._accept_copies():
            self._list_destination("after")
        return self._after_pass(replace(state, job_id="", cursor=""))

    def _accept_copies(self) -> bool:
        """Accept copies that were there before, and make way for others; returns whether any were deleted."""
        return copies.accept(self.client, self.ledger, self.scope, self.source, self.destination)

    def list_results(self) -> None:
        """List the destination anew, after objects were removed from it."""
        self._list_destination("after")

    def _after_pass(self, state: State) -> State:
        """Choose what comes after all pending objects have been tried: another try, the quarantine, or the end."""
        retries = RETRIES if self._may_go_on() else 0
        if state.retries < retries and self.ledger.missing(self.scope, "", 1):
            # another way to hand objects over may help at once, the same copy again only later
            wait = RETRY_DELAY if state.retries or self.spec is None else 0
            is_last = state.retries == retries - 1
            # over hpush what is made again as it was gets the version that it had
            if (
                self.spec
                and is_last
                and not self.destination.is_remote
                and copies.make_way(self.client, self.ledger, self.scope, self.destination)
            ):
                self._list_destination("after")
            return replace(state, phase="retry", retries=state.retries + 1, not_before=time.time() + wait)
        if self.options.quarantine and self.ledger.missing(self.scope, "", 1, final=True):
            self.options.quarantine.handle(self.client).create(exist_ok=True)
            return replace(state, phase="quarantine")
        return replace(state, phase="done")

    def _may_go_on(self) -> bool:
        return self.options.continue_on_error or not self.ledger.has_reasons(self.scope)

    def finish(self, state: State) -> Summary:
        """Record every outcome and sum up. Removes empty results that a WebSocket transform left behind.

        Raises TransientTransformError when objects were not copied and that is not by their own fault.
        """
        options = self.options
        if state.pending:
            no_reason = NO_REASON if self.spec and self._may_go_on() else ""
            remote = self.source.is_remote
            self.ledger.settle(self.scope, record_done=options.keeps_result, no_reason=no_reason, remote=remote)
            if self.spec is None and self._may_go_on():
                self._require_copies()
        if state.pending or options.sync:
            if self.spec:
                self._remove_empty_results()
            for to in filter(None, (self.destination, options.quarantine)):
                # one whose end a target has not heard of stays for minutes
                jobs.end_idle(self.client, self.source, to)
            if self.spec and not options.keep_etl:
                etls.release(self.client, self.spec.all_names)
        totals = self.ledger.totals(self.scope)
        if not options.keeps_result:
            done, bytes_in, bytes_out = self.ledger.fresh_results(self.scope)
            totals = replace(totals, done=done, bytes_in=bytes_in, bytes_out=bytes_out)
        examples = self.ledger.failures(self.scope, limit=20)
        if options.keeps_result:
            self.ledger.forget_listings(self.scope)
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

    def _require_apart(self) -> None:
        require_apart(
            self.client,
            {
                "source": self.source,
                "destination": self.destination,
                "quarantine": self.options.quarantine,
                "bucket of facts": self.options.sidecars,
            },
        )

    def _require_destinations(self) -> None:
        for bucket in (self.destination, self.options.sidecars):
            if bucket and not bucket.is_remote:
                bucket.handle(self.client).create(exist_ok=True)

    def _list_destination(self, side: str) -> None:
        # Of a prefix that reaches into the extension, only what comes before it is in the names of results.
        selected = common_prefix(self.options.names) if self.options.names else self.options.prefix
        folder, slash, last = selected.rpartition("/")
        prefix = self.naming.prepend + folder + slash + last.partition(".")[0]
        listing = list_aistore(self.client, self.destination, prefix)
        self.ledger.record_listing(self.scope, side, (("", o.name, o.size, o.version, "") for o in listing))

    def _ensure_etls(self, phase: str) -> list[str]:
        if self.spec is None or phase == "quarantine":
            return []
        # an ETL is not replaced while a transform is there, idle as it may be
        jobs.end_idle(self.client, self.source, self.destination)
        return etls.ensure(self.client, self.spec.over("hpush") if phase == "retry" else self.spec, self.pods)

    def _submit_bucket(self, names: list[str]) -> str:
        assert self.spec is not None  # noqa: S101 - plan() chose this phase
        job_id: str = self.source.handle(self.client).transform(
            names[0],
            self.destination.handle(self.client),
            etl_pipeline=names[1:] or None,
            timeout=self.spec.request_timeout,
            prefix_filter=self.options.prefix,
            prepend=self.naming.prepend,
            ext=dict(self.naming.extensions) or None,
            latest=self.options.latest,
            sync=self.options.sync,
            num_workers=self.options.workers,
            cont_on_err=self.options.continue_on_error,
        )
        return job_id

    def _submit_objects(self, phase: str, objects: list[str], to: Bucket, names: list[str]) -> str:
        group = self.source.handle(self.client).objects(obj_names=objects)
        if phase == "quarantine":
            return str(group.copy(to.handle(self.client), continue_on_error=True)[-1])
        options: dict[str, Any] = {
            "prepend": self.naming.prepend,
            "continue_on_error": self.options.continue_on_error,
            "latest": self.options.latest,
            "num_workers": self.options.workers or None,
        }
        if self.spec is None:
            return str(group.copy(to.handle(self.client), **options)[-1])
        job_id: str = group.transform(
            to.handle(self.client),
            names[0],
            etl_pipeline=names[1:] or None,
            timeout=self.spec.request_timeout,
            ext=dict(self.naming.extensions) or None,
            **options,
        )
        return job_id

    def _record_reasons(self, state: State) -> None:
        """Keep the reasons of failures that the servers' journal and AIStore know of a finished job."""
        if state.phase == "quarantine":
            return
        if self.spec is None:
            if state.phase == "retry":
                self.ledger.record_reasons(self.scope, self._reasons_of_copies())
            return
        journal = failures(self.client, state.etl_names, state.job_id, self.source.name)
        self.ledger.record_reasons(self.scope, ((f.object, f.reason, f.final) for f in journal))
        if state.phase == "retry" or self.spec.communication != "ws":
            known = object_errors(self.client, state.etl_names, state.job_id, self.source)
            self.ledger.record_reasons(self.scope, ((name, reason, False) for name, reason in known))

    def _reasons_of_copies(self) -> Iterator[tuple[str, str, bool]]:
        """Ask AIStore for each missing object; what it refuses is why the copy failed, and nothing else is."""
        from aistore.sdk.errors import AISError
        from requests import RequestException

        self._list_destination("after")
        source = self.source.handle(self.client)
        for p in self.ledger.missing(self.scope, "", REASONS):
            try:
                source.object(p.object).head()
            except AISError as e:
                if e.status_code and _BAD_REQUEST <= e.status_code < _SERVER_ERROR:
                    yield p.object, said(e), True
                else:
                    log.warning("%s/%s is not copied: %s", self.source, p.object, said(e))
            except RequestException as e:
                log.warning("%s/%s is not copied: %s", self.source, p.object, e)

    def _require_copies(self) -> None:
        """Raise TransientTransformError for objects that are not there and that nothing is wrong with."""
        missing = self.ledger.missing(self.scope, "", REASONS)
        if missing:
            count = f"{len(missing)} or more" if len(missing) == REASONS else str(len(missing))
            raise TransientTransformError(
                f"{count} objects of {self.source} were not copied to {self.destination}, such as"
                f" {missing[0].object!r}: the source did not answer AIStore, a retry goes on with them"
            )

    def _remove_empty_results(self) -> None:
        """Delete the empty objects that errors over WebSocket leave at the destination."""
        from aistore.sdk.errors import AISError

        after = ""
        while window := self.ledger.empty_results(self.scope, after, WINDOW):
            after = window[-1]
            try:
                delete_objects(self.client, self.destination, window)
            except AISError as e:
                log.warning("%s: not all empty results can be removed: %s", self.destination, said(e))


def acknowledge(ledger: Ledger, scope: Scope, before_closing: Callable[[], None]) -> None:
    """Record the objects of a job without `keeps_result` as done: their results have been used.

    `before_closing` may record exceptions while the job's listings are still there. Repeating it does nothing: there
    is no plan then.
    """
    if ledger.planned(scope):
        ledger.settle(scope, record_done=True, no_reason=NO_REASON)
        before_closing()
    ledger.forget_listings(scope)


def object_errors(client: Any, etl_names: Iterable[str], job_id: str, source: Bucket) -> Iterator[tuple[str, str]]:
    """Yield what AIStore itself says of failed objects: at most 128 per target and job (ext/etl/xact.go)."""
    from aistore.sdk.errors import AISError

    for name in etl_names:
        try:
            for error in client.etl(name).view(job_id).obj_errors or []:
                yield _object_name(error.obj_name, source), plain(error.msg)
        except AISError as e:
            log.info("job %s: its object errors cannot be read: %s", job_id, e)


def _object_name(reported: str, bucket: Bucket) -> str:
    """Return the object's name out of what an error calls it: with or without its bucket."""
    for prefix in (f"{bucket}/", f"{bucket.provider}://{bucket.name}/", f"{bucket.name}/"):
        if reported.startswith(prefix):
            return reported[len(prefix) :]
    return reported
