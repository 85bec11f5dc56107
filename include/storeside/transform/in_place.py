"""A transform that replaces the objects of an ``ais://`` bucket with their results.

No object is overwritten before its result is complete. All results first go to a work bucket of the job; an object
that failed has no result there. The job then copies each result over its object if that object still has the version
that was transformed. An object that was overwritten or deleted meanwhile stays unchanged and counts as failed. The
job never deletes an object of the user.

The ledger keeps the version that each object has *after* its replacement, so the next run skips the object and does
not transform a result again. Only another try of the same run can continue a killed run, because only that run has
the plan. Until it has finished, the job refuses other runs.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from storeside.aistore import jobs
from storeside.aistore.buckets import Bucket, delete_objects
from storeside.aistore.errors import AIStoreInputError, AIStoreTransientError
from storeside.aistore.existing import described, require_reports
from storeside.aistore.places import Clusters, place
from storeside.aistore.pods import PodWatch
from storeside.aistore.spec import EtlSpec
from storeside.aistore.stored_objects import list_aistore
from storeside.ledger.listing import Row, destination_rows
from storeside.ledger.objects import Ledger
from storeside.ledger.scope import Scope
from storeside.transform.bucket_job import BucketJob
from storeside.transform.listings import Listings
from storeside.transform.naming import Naming, decisive
from storeside.transform.state import Options, State, Summary

if TYPE_CHECKING:
    from aistore.sdk import Client

log = logging.getLogger(__name__)

_PREFIX = "storeside-in-place-"
_WINDOW = 10_000
CHANGED = "it was overwritten or deleted while it was transformed: the next run transforms it if it exists"


class _SameNames(Listings):
    """Listings that refuse an object whose result would have another name."""

    def rows(self) -> Iterator[Row]:
        for name, destination, size, version, reason in super().rows():
            if destination in ("", name):
                yield name, destination, size, version, reason
            else:
                why = f"its result would be named {destination}, but an in-place transform keeps names"
                yield name, "", size, version, f"{why}: write the results to another bucket"


class _Make(BucketJob):
    """Transforms the objects into the work bucket."""

    listings = _SameNames


class _Replace(BucketJob):
    """Copies results over their objects."""

    def _accept_copies(self) -> bool:
        """Accept nothing: an unchanged object is an original, and must not be deleted."""
        return False


class InPlaceJob:
    """Replaces the objects of `bucket` with their results; the caller drives it like a `BucketJob`.

    Objects are transformed over ``hpush``, because AIStore stores a WebSocket result without a checksum, and the
    checksum distinguishes a result from another version of its object. Raises AIStoreInputError for options that an
    in-place transform excludes.
    """

    def __init__(
        self,
        client: Client,
        ledger: Ledger,
        bucket: Bucket,
        *,
        run_id: str,
        spec: EtlSpec,
        naming: Naming | None = None,
        options: Options | None = None,
        pods: PodWatch | None = None,
    ) -> None:
        options = options or Options()
        if bucket.is_remote:
            raise AIStoreInputError(
                f"in_place: {bucket} is a remote bucket, whose objects may change between transform and replacement"
                " without AIStore's knowledge: write to another bucket"
            )
        if options.latest or options.sync:
            raise AIStoreInputError("in_place excludes latest and sync, which follow a remote bucket: leave them out")
        self.client = client
        self.ledger = ledger
        self.source = self.destination = bucket
        self.spec = described(client, spec.over("hpush"))
        require_reports(self.spec, "a transform in place")
        self.options = options
        selection = repr((options.prefix, list(options.names or ()), naming))
        self.scope = Scope(
            str(bucket), str(bucket), self.spec.effect, run_id, selection,
            options=decisive(self.spec, naming or Naming()),
        )  # fmt: skip
        self.work = Bucket("ais", _work_prefix(bucket) + self.scope.job)
        self._make = _Make(
            client, ledger, bucket, self.work, run_id=run_id, spec=self.spec, naming=naming,
            options=replace(options, keeps_result=False), pods=pods, scope=self.scope,
        )  # fmt: skip
        self._replace = _Replace(
            client,
            ledger,
            self.work,
            bucket,
            run_id=run_id,
            options=Options(prefix=options.prefix, keeps_result=False),
        )

    def begin(self) -> State:
        """Make a plan, or resume the plan of an earlier try of the run.

        Raises AIStoreInputError for a bucket whose objects are stored in another one, and AIStoreTransientError while
        an in-place transform of another run or selection is unfinished.
        """
        self._require_own()
        self.ledger.create()
        self._begin_alone()
        return self._after(self._make.begin())

    def preview(self) -> dict[str, int]:
        """Return how many objects the job would list, process, skip and refuse, without a change to the bucket."""
        self._require_own()
        return self._make.preview()

    def submit(self, state: State) -> State:
        """Submit the next job; see `BucketJob.submit`."""
        return self._step(state).submit(state)

    def follower(self, state: State, stall_seconds: float) -> jobs.Follower:
        """Return the follower that detects the end of the submitted job."""
        return self._step(state).follower(state, stall_seconds)

    def advance(self, state: State, seconds: float = 0) -> State:
        """Continue after the submitted job; when all results exist, start to replace the objects with them."""
        after = self._step(state).advance(state, seconds)
        if not state.replaces:
            return self._after(after)
        # the counts of the first step apply to the whole job
        return _of(state, after)

    def finish(self, state: State) -> Summary:
        """Record every outcome with the objects' new versions, and delete the work bucket.

        Raises AIStoreTransientError when results were not copied over their objects; a retry copies the rest.
        """
        if state.replaces:
            self._replace.finish(state)
            self.ledger.forget_listings(self._replace.scope)
            self._list_now()
        summary = self._make.finish(state)
        if state.replaces:
            self.ledger.settle_in_place(self.scope)
        # delete the plan before the results: a try that found the plan without results would transform results again
        self.ledger.forget_listings(self.scope)
        self.work.handle(self.client).delete(missing_ok=True)
        return replace(summary, destination=str(self.destination))

    def _step(self, state: State) -> BucketJob:
        return self._replace if state.replaces else self._make

    def _after(self, state: State) -> State:
        """Start the replacement when the transform is over and has made at least one result."""
        if state.phase != "done" or not state.pending:
            return state
        self._list_now()
        while changed := self.ledger.changed(self.scope, _WINDOW):
            log.warning("%s: %d objects changed while they were transformed", self.source, len(changed))
            self.ledger.record_reasons(self.scope, ((name, CHANGED, True) for name in changed))
            delete_objects(self.client, self.work, changed)
            self._make.list_results()
        return _of(replace(state, replaces=True), self._replace.begin())

    def _list_now(self) -> None:
        """List the bucket's objects in their current versions, as the job's ``now`` side."""
        listing = list_aistore(self.client, self.source, self.options.prefix)
        self.ledger.record_listing(self.scope, "now", destination_rows(listing))

    def _require_own(self) -> None:
        where = place(self.client, self.source, Clusters.of(self.client))
        if where != self.source:
            raise AIStoreInputError(
                f"in_place: the objects of {self.source} are stored in {where}, where AIStore cannot detect a change"
                " before it replaces an object: write to another bucket"
            )

    def _begin_alone(self) -> None:
        """Create the work bucket. Raises AIStoreTransientError while another in-place job has one."""
        ours = self.work.handle(self.client)
        resumes = self.ledger.planned(self.scope) is not None
        if not resumes:  # results without their plan may belong to other versions
            ours.delete(missing_ok=True)
        ours.create(exist_ok=True)
        there = (bucket.name for bucket in self.client.cluster().list_buckets())
        others = sorted(n for n in there if n.startswith(_work_prefix(self.source)) and n != self.work.name)
        if not others:
            return
        if not resumes:
            ours.delete(missing_ok=True)
        raise AIStoreTransientError(
            f"{self.source} is being transformed in place by another task, or a killed task has left its results in"
            f" ais://{others[0]}: retry that task, so that no result is transformed again. To abandon its work,"
            f" delete that bucket: objects that it replaced stay replaced, and the next run transforms them again"
        )


def _work_prefix(bucket: Bucket) -> str:
    return f"{_PREFIX}{hashlib.sha256(str(bucket).encode()).hexdigest()[:12]}-"


def _of(whole: State, step: State) -> State:
    """Return the state of a step with the counts of the whole job."""
    return replace(
        step, replaces=whole.replaces, started=whole.started, listed=whole.listed, pending=whole.pending,
        known_bad=whole.known_bad, refused=whole.refused, job_seconds=max(whole.job_seconds, step.job_seconds),
    )  # fmt: skip
