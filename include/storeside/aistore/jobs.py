"""Follows AIStore jobs: their progress, and their end, stall or loss."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cache
from typing import TYPE_CHECKING, Any

from storeside.aistore import control_plane, multi_object
from storeside.aistore.buckets import Bucket
from storeside.aistore.errors import AIStoreTransientError, StuckTargetError, said
from storeside.aistore.lock import locked
from storeside.errors import StoresideError, Transient

if TYPE_CHECKING:
    from aistore.sdk import Client

log = logging.getLogger(__name__)

# A multi-object job does not end: it is done when its counters prove it, or when this many consecutive polls find it
# idle (xact/api_wait.go).
IDLE_POLLS = 2
# A job that no target has known for this many seconds is lost, as after a restart of all: the rest is reconciled.
FORGOTTEN_SECONDS = 30.0
# After this many seconds of unanswered control calls, and then at this interval, the follower checks for stuck
# targets.
UNANSWERED_SECONDS = 20.0
# Longer than a task takes to look for jobs, end idle jobs and submit its own job.
SUBMIT_SECONDS = 90.0
MULTI_OBJECT_KINDS = frozenset({"copy-listrange", "etl-listrange"})
BUCKET_KINDS = frozenset({"copy-bck", "etl-bck"})
_MOVING = ("rebalance[", "resilver[")
_ZERO_TIME = "0001-01-01T00:00:00Z"


@dataclass(frozen=True)
class Progress:
    """Progress of a job: objects and bytes read on all targets, and at the end its duration in seconds."""

    objects: int = 0
    bytes: int = 0
    seconds: float = 0
    finished: bool = False
    error: str = ""


def newest_snapshots(client: Client, job_id: str) -> list[Any]:
    """Return the newest snapshot of a job from each target, with its control message as `control_message`."""
    from aistore.sdk.types import JobArgs

    by_target = (
        client.cluster()
        .client.request_deserialize(
            "get",
            path="cluster",
            json=JobArgs(id=job_id).as_dict(),
            params={"what": "qryxstats"},
            res_model=_snapshots(),
        )
        .root
    )
    return [max(snaps, key=lambda s: _instant(s.start_time)) for snaps in by_target.values() if snaps]


@cache
def _snapshots() -> Any:
    """Return the model of the snapshots of all targets. The SDK's own model leaves out the control message."""
    from aistore.sdk.types import JobSnap
    from pydantic import Field, RootModel

    class Snapshot(JobSnap):  # type: ignore[misc] # the SDK is untyped
        control_message: str = Field(default="", alias="ctlmsg")

    return RootModel[dict[str, list[Snapshot]]]


def starts(client: Client, job_id: str) -> dict[str, float]:
    """Return the start of a job on each target, in seconds since 1970 by that target's clock."""
    by_target = client.job(job_id).get_details().root
    return {target: min(_instant(s.start_time) for s in snaps) for target, snaps in by_target.items() if snaps}


def _instant(text: str) -> float:
    """Parse a time in Go's format, which does not sort as text because Go drops trailing zeros of the fraction."""
    return datetime.fromisoformat(text).timestamp() if text else 0.0


class Follower:
    """Polls one AIStore job until it is over.

    AIStore's own wait never returns for a job that lost a target, nor for a WebSocket transform whose transformer
    died. For a follower, a job is over when it ended, was aborted, has done all that was requested or became idle
    (multi-object jobs), was unknown to all targets for `FORGOTTEN_SECONDS`, or made no progress for `stall_seconds`.
    In the last two cases the follower aborts the job, unless it is another task's (`own` is False). An error for
    which `is_final` is true, such as a revoked token, ends the wait at once; the job continues.
    AIStore states no end of a multi-object job, so its duration lasts from `submitted` (seconds since the epoch;
    default: now) to its last progress.
    """

    def __init__(
        self,
        client: Client,
        job_id: str,
        stall_seconds: float = 300,
        is_final: Callable[[Exception], bool] = lambda error: False,
        own: bool = True,
        submitted: float | None = None,
    ) -> None:
        self.client = client
        self.job_id = job_id
        self.stall_seconds = stall_seconds
        self._is_final = is_final
        self._own = own
        self._idle = 0
        self._seen = (-1, -1)
        self._moved = self._known = self._answered = time.monotonic()
        self._submitted = self._moved - (max(time.time() - submitted, 0) if submitted else 0)

    def wait(self) -> Progress:
        """Poll until the job is over, and return its last state."""
        while not (progress := self.poll()).finished:
            time.sleep(0.1)  # a poll costs a request to each target
        return progress

    def poll(self) -> Progress:
        """Request the job's state once. An unavailable target counts as no progress and raises no error."""
        import requests
        from aistore.sdk.errors import AISError

        before = Progress(max(self._seen[0], 0), max(self._seen[1], 0))
        try:
            snaps = newest_snapshots(self.client, self.job_id)
        except (AISError, requests.RequestException, StoresideError) as e:
            if getattr(e, "status_code", 0) != requests.codes.not_found:
                return self._unanswered(before, e)
            snaps = []
        self._answered = time.monotonic()
        if not snaps:
            limit = min(FORGOTTEN_SECONDS, self.stall_seconds)
            return self._ended_after(limit, self._known, before, "no target knows it, as after a restart of all,")
        self._known = time.monotonic()
        objects = sum(s.stats.objects for s in snaps if s.stats)
        size = sum(s.stats.bytes for s in snaps if s.stats)
        aborted = next((s.abort_err or "aborted" for s in snaps if s.aborted or s.abort_err), "")
        if aborted:
            return Progress(objects, size, _seconds(snaps), finished=True, error=aborted)
        if all(s.end_time and s.end_time != _ZERO_TIME for s in snaps):
            return Progress(objects, size, _seconds(snaps), finished=True)
        idle = all(s.kind in MULTI_OBJECT_KINDS and s.is_idle for s in snaps)
        self._idle = self._idle + 1 if idle else 0
        if (objects, size) != self._seen:
            self._seen, self._moved = (objects, size), time.monotonic()
        if _is_done(snaps) or self._idle >= IDLE_POLLS:
            return Progress(objects, size, self._moved - self._submitted, finished=True)
        return self._ended_after(self.stall_seconds, self._moved, Progress(objects, size), "no progress")

    def _unanswered(self, progress: Progress, error: Exception) -> Progress:
        """Return the progress, which is finished after a time limit, with a stuck target, or when no retry helps."""
        if self._is_final(error):
            return replace(progress, finished=True, error=f"AIStore does not show the job: {said(error)}")
        log.info("job %s: the cluster does not answer for now: %s", self.job_id, error)
        self._known = now = time.monotonic()
        if now - self._answered > UNANSWERED_SECONDS:
            self._answered = now
            if names := _named(control_plane.stuck(self.client)):
                return Progress(progress.objects, progress.bytes, finished=True, error=names)
        return self._ended_after(self.stall_seconds, self._moved, progress, f"no answer: {error}")

    def _ended_after(self, seconds: float, since: float, progress: Progress, what: str) -> Progress:
        """Return the progress; end the wait when the state `what` has lasted `seconds` since the time `since`."""
        still = time.monotonic() - since
        if still < seconds:
            return progress
        error = f"{what} for {still:.0f} s: aborted"
        if self._own:
            abort(self.client, self.job_id)
        else:
            error = f"{what} for {still:.0f} s: another task's job is not aborted; abort it if its task has ended"
        return Progress(progress.objects, progress.bytes, still, finished=True, error=error)


def _is_done(snaps: Sequence[Any]) -> bool:
    """Return whether a multi-object job has provably done all that was requested."""
    kinds = {s.kind for s in snaps}
    return kinds <= MULTI_OBJECT_KINDS and multi_object.is_done([s.control_message for s in snaps], min(kinds))


def _seconds(snaps: Sequence[Any]) -> float:
    """Return the duration of a job by the clocks of its targets."""
    ends = [_instant(s.end_time) for s in snaps if s.end_time and s.end_time != _ZERO_TIME]
    starts = [_instant(s.start_time) for s in snaps if s.start_time]
    return max(ends) - min(starts) if ends and starts else 0.0


def abort(client: Client, job_id: str) -> None:
    """Abort a job; do nothing if AIStore does not know it or does not answer."""
    from aistore.sdk.errors import AISError
    from requests import RequestException

    try:
        client.job(job_id).abort()
    except (AISError, RequestException, StoresideError) as e:
        log.warning("job %s: AIStore did not abort it: %s", job_id, e)


def running_between(client: Client, source: Bucket, destination: Bucket) -> str | None:
    """Return the id of a running copy or transform between two buckets; None when there is none.

    AIStore refuses a second bucket job on the same pair, and runs several multi-object requests as one job. So a task
    follows the job that this function returns, even another task's, and submits its own job afterwards.
    """
    return next((job for job, idle in _jobs_between(client, source, destination) if not idle), None)


def running_transforms(client: Client) -> list[str]:
    """Return AIStore's names of all running transforms, such as ``etl-bck[id]``, including idle multi-object ones."""
    jobs = client.cluster().list_running_jobs()
    return [job for job in jobs if job.startswith("etl-") and not job.startswith("etl-inline")]


def end_idle(client: Client, source: Bucket, destination: Bucket, seconds: float = 30) -> None:
    """Abort the multi-object jobs between two buckets that have nothing to do, and wait until AIStore forgets them.

    AIStore adds the next request on the same pair to an idle job, and so runs it with that job's ETL instead of the
    request's. Raises AIStoreTransientError when a job does not end within `seconds`.
    """
    deadline = time.monotonic() + seconds
    while idle := [job for job, is_idle in _jobs_between(client, source, destination) if is_idle]:
        if time.monotonic() > deadline:
            raise AIStoreTransientError(f"AIStore's idle job {idle[0]} does not end: try later")
        for job in idle:
            abort(client, job)
        time.sleep(0.2)


def _jobs_between(client: Client, source: Bucket, destination: Bucket) -> Iterator[tuple[str, bool]]:
    """Yield each unfinished copy or transform between two buckets: its id, and whether it has nothing to do."""
    for entry in client.cluster().list_running_jobs():
        kind, _, job_id = entry.rstrip("]").partition("[")
        if kind not in MULTI_OBJECT_KINDS | BUCKET_KINDS:
            continue
        snaps = [s for s in newest_snapshots(client, job_id) if _between(s, source, destination) and not s.aborted]
        if snaps:
            yield job_id, all(s.is_idle for s in snaps) or _is_done(snaps)


def _between(snap: Any, source: Bucket, destination: Bucket) -> bool:
    pair = zip((snap.source_bck, snap.destination_bck), (source, destination), strict=True)
    return all(found is not None and _is(found, wanted) for found, wanted in pair)


def _is(found: Any, wanted: Bucket) -> bool:
    namespace = f"@{found.namespace.uuid}#{found.namespace.name}" if found.namespace else ""
    return (found.name, found.provider, namespace.strip("@#")) == (
        wanted.name,
        wanted.provider,
        wanted.namespace.strip("@#"),
    )


@contextmanager
def submitting(client: Client, source: Bucket, destination: Bucket) -> Iterator[None]:
    """Hold the lock for submitting jobs between two buckets; the next job gets an id that no earlier job had.

    AIStore adds a multi-object request to a running job of the same pair, and so runs it with that job's ETL instead
    of the request's. So a task looks for such a job before it submits, and no other task may submit in between.

    AIStore 5.0 derives ids of multi-object jobs from the minute, the buckets and the version of the bucket metadata.
    It does not detect that an id is taken, because it looks the id up without its prefix (streamingF.genBEID). A job
    with the id of an aborted job works, but cannot be followed or aborted, because AIStore shows the aborted job.
    `locked` creates a bucket, which changes the version.
    """
    what = f"jobs from {source} to {destination}"
    with locked(client, what, stale_seconds=SUBMIT_SECONDS, patience_seconds=2 * SUBMIT_SECONDS):
        yield


def require_targets(client: Client) -> None:
    """Raise StuckTargetError, with each stuck target and the remedy, if a target is stuck.

    The check takes 0.05 s on a healthy cluster.
    """
    if names := _named(control_plane.stuck(client)):
        raise StuckTargetError(names)


def _named(targets: Sequence[control_plane.Target]) -> str:
    return "; ".join(str(target) for target in targets)


@contextmanager
def naming_stuck_targets(client: Client) -> Iterator[None]:
    """Replace the error of a failed control call with StuckTargetError when a target is stuck."""
    from aistore.sdk.errors import AISError
    from requests import RequestException

    try:
        yield
    except (AISError, RequestException, Transient) as e:
        if names := _named(control_plane.stuck(client)):
            raise StuckTargetError(names) from e
        raise


def wait_for_rebalance(client: Client, seconds: float = 120) -> None:
    """Wait until all targets answer and AIStore moves no objects between targets or disks.

    During a rebalance or a resilver, requests for bucket jobs are refused or time out, and listings are incomplete.

    Raises AIStoreTransientError after `seconds`, and StuckTargetError when a target is stuck.
    """
    from aistore.sdk.errors import AISError
    from requests import RequestException

    answered = time.monotonic()
    deadline = answered + seconds
    while True:
        try:
            running = client.cluster().list_running_jobs()
            reason = "rebalances" if any(job.startswith(_MOVING) for job in running) else ""
            answered = time.monotonic()
        except (AISError, RequestException, Transient) as e:
            reason = f"does not answer as a whole ({said(e)[:200]})"
        if not reason:
            return
        if time.monotonic() - answered > UNANSWERED_SECONDS:
            require_targets(client)
            answered = time.monotonic()
        if time.monotonic() > deadline:
            raise AIStoreTransientError(f"the AIStore cluster still {reason} after {seconds:.0f} s: try later")
        time.sleep(1)
