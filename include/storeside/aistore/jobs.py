"""Follows AIStore jobs from outside: their progress, and the moment when they end, stall or disappear."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any

from storeside.aistore import control_plane
from storeside.aistore.buckets import Bucket
from storeside.aistore.errors import AIStoreTransientError, StuckTargetError, said
from storeside.aistore.lock import locked
from storeside.errors import Transient

if TYPE_CHECKING:
    from aistore.sdk import Client

log = logging.getLogger(__name__)

# A multi-object job never ends by itself: it is done when this many polls in a row find it idle (xact/api_wait.go).
IDLE_POLLS = 2
# After this many seconds unknown to all targets, a job is lost (the targets lost their memory): reconcile the rest.
FORGOTTEN_SECONDS = 30.0
# After this many seconds of unanswered control calls, look for stuck targets; repeat at the same interval.
UNANSWERED_SECONDS = 20.0
# Longer than a task takes to look for jobs, end idle ones and submit its own.
SUBMIT_SECONDS = 90.0
MULTI_OBJECT_KINDS = frozenset({"copy-listrange", "etl-listrange"})
BUCKET_KINDS = frozenset({"copy-bck", "etl-bck"})
_ZERO_TIME = "0001-01-01T00:00:00Z"


@dataclass(frozen=True)
class Progress:
    """Progress of a job: objects and bytes read, summed over the targets, and at the end its duration in seconds."""

    objects: int = 0
    bytes: int = 0
    seconds: float = 0
    finished: bool = False
    error: str = ""


def newest_snapshots(client: Client, job_id: str) -> list[Any]:
    """Return the newest snapshot of a job from each target."""
    by_target = client.job(job_id).get_details().root
    return [max(snaps, key=lambda s: _instant(s.start_time)) for snaps in by_target.values() if snaps]


def starts(client: Client, job_id: str) -> dict[str, float]:
    """Return when a job began on each target, in seconds since 1970 by that target's clock."""
    by_target = client.job(job_id).get_details().root
    return {target: min(_instant(s.start_time) for s in snaps) for target, snaps in by_target.items() if snaps}


def _instant(text: str) -> float:
    """Parse a time as Go writes it. It does not sort as text because Go drops trailing zeros of the fraction."""
    return datetime.fromisoformat(text).timestamp() if text else 0.0


class Follower:
    """Tells when one AIStore job is over.

    AIStore's own wait is not enough: it never returns for a job that lost a target, nor for a WebSocket transform
    whose server died. Here a job is over when it ended, was aborted, became idle (multi-object jobs), was unknown to
    all targets for `FORGOTTEN_SECONDS`, or made no progress for `stall_seconds`. In the last two cases it is aborted.
    An answer for which `is_final` is true, such as for a revoked token, ends the wait at once; the job runs on.
    """

    def __init__(
        self,
        client: Client,
        job_id: str,
        stall_seconds: float = 300,
        is_final: Callable[[Exception], bool] = lambda error: False,
    ) -> None:
        self.client = client
        self.job_id = job_id
        self.stall_seconds = stall_seconds
        self._is_final = is_final
        self._idle = 0
        self._seen = (-1, -1)
        self._started = self._moved = self._known = self._answered = time.monotonic()

    def poll(self) -> Progress:
        """Ask the cluster once. An unavailable target counts as no progress and does not raise."""
        import requests
        from aistore.sdk.errors import AISError

        before = Progress(max(self._seen[0], 0), max(self._seen[1], 0))
        try:
            snaps = newest_snapshots(self.client, self.job_id)
        except (AISError, requests.RequestException) as e:
            if getattr(e, "status_code", 0) != requests.codes.not_found:
                return self._unanswered(before, e)
            snaps = []
        self._answered = time.monotonic()
        if not snaps:
            limit = min(FORGOTTEN_SECONDS, self.stall_seconds)
            return self._ended_after(limit, self._known, before, "no target knows it, as after their restart,")
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
        if self._idle >= IDLE_POLLS:
            return Progress(objects, size, self._moved - self._started, finished=True)
        if (objects, size) != self._seen:
            self._seen, self._moved = (objects, size), time.monotonic()
        return self._ended_after(self.stall_seconds, self._moved, Progress(objects, size), "no progress")

    def _unanswered(self, progress: Progress, error: Exception) -> Progress:
        """Return the progress; the wait is over after too long, with a stuck target, or when no retry can help."""
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
        """Return the progress; abort and end the job when `what` has lasted `seconds` (since `since`)."""
        still = time.monotonic() - since
        if still < seconds:
            return progress
        abort(self.client, self.job_id)
        error = f"{what} for {still:.0f} s: aborted"
        return Progress(progress.objects, progress.bytes, still, finished=True, error=error)


def _seconds(snaps: Sequence[Any]) -> float:
    """Return the duration of a job by the clocks of its targets."""
    ends = [_instant(s.end_time) for s in snaps if s.end_time and s.end_time != _ZERO_TIME]
    starts = [_instant(s.start_time) for s in snaps if s.start_time]
    return max(ends) - min(starts) if ends and starts else 0.0


def abort(client: Client, job_id: str) -> None:
    """Abort a job. A job that is over or unknown is not changed."""
    from aistore.sdk.errors import AISError
    from requests import RequestException

    try:
        client.job(job_id).abort()
    except (AISError, RequestException) as e:
        log.warning("job %s: abort was declined: %s", job_id, e)


def running_between(client: Client, source: Bucket, destination: Bucket) -> str | None:
    """Return the id of a running copy or transform between two buckets; None when there is none.

    AIStore refuses a second bucket job on the same pair and lets multi-object jobs share one job. So a task follows
    the job that it finds here, even another task's, and submits its own afterwards.
    """
    return next((job for job, idle in _jobs_between(client, source, destination) if not idle), None)


def running_transforms(client: Client) -> list[str]:
    """Return AIStore's names of all running transforms, such as ``etl-bck[id]``, including idle multi-object ones."""
    jobs = client.cluster().list_running_jobs()
    return [job for job in jobs if job.startswith("etl-") and not job.startswith("etl-inline")]


def end_idle(client: Client, source: Bucket, destination: Bucket, seconds: float = 30) -> None:
    """End the idle multi-object jobs between two buckets, and wait until they are gone.

    AIStore adds the next request on the same pair to an idle job, and so runs it with that job's ETL, whatever
    ETL the request names. Raises AIStoreTransientError when a job does not end within `seconds`.
    """
    deadline = time.monotonic() + seconds
    while idle := [job for job, is_idle in _jobs_between(client, source, destination) if is_idle]:
        if time.monotonic() > deadline:
            raise AIStoreTransientError(f"AIStore's idle job {idle[0]} does not end: try later")
        for job in idle:
            abort(client, job)
        time.sleep(0.2)


def _jobs_between(client: Client, source: Bucket, destination: Bucket) -> Iterator[tuple[str, bool]]:
    """Yield id and idleness of each unfinished copy or transform between two buckets."""
    for entry in client.cluster().list_running_jobs():
        kind, _, job_id = entry.rstrip("]").partition("[")
        if kind not in MULTI_OBJECT_KINDS | BUCKET_KINDS:
            continue
        snaps = [s for s in newest_snapshots(client, job_id) if _between(s, source, destination) and not s.aborted]
        if snaps:
            yield job_id, all(s.is_idle for s in snaps)


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

    AIStore adds a multi-object request to a job that runs on the pair, and so runs it with that job's ETL, whatever
    ETL the request names. So a task looks for such a job before it submits, and no other task may submit in between.

    AIStore 5.0 makes ids of multi-object jobs from the minute, the buckets and the version of the bucket metadata.
    It does not notice that an id is taken, because it looks the id up without its prefix (streamingF.genBEID). A job
    with the id of an aborted one works but cannot be followed or aborted: AIStore shows the aborted one. `locked`
    creates a bucket, and that changes the version.
    """
    what = f"jobs from {source} to {destination}"
    with locked(client, what, stale_seconds=SUBMIT_SECONDS, patience_seconds=2 * SUBMIT_SECONDS):
        yield


def require_targets(client: Client) -> None:
    """Return if no target is stuck; takes 0.05 s on a healthy cluster.

    Raises StuckTargetError, which names each stuck target and the remedy.
    """
    if names := _named(control_plane.stuck(client)):
        raise StuckTargetError(names)


def _named(targets: Sequence[control_plane.Target]) -> str:
    return "; ".join(str(target) for target in targets)


@contextmanager
def naming_stuck_targets(client: Client) -> Iterator[None]:
    """Raise StuckTargetError in place of a failed control call's error when a stuck target is the cause."""
    from aistore.sdk.errors import AISError
    from requests import RequestException

    try:
        yield
    except (AISError, RequestException, Transient) as e:
        if names := _named(control_plane.stuck(client)):
            raise StuckTargetError(names) from e
        raise


def wait_for_rebalance(client: Client, seconds: float = 120) -> None:
    """Wait until all targets answer and no rebalance runs: before that, transforms are refused, listings incomplete.

    Raises AIStoreTransientError when that takes longer than `seconds`, and StuckTargetError when a target is stuck.
    """
    from aistore.sdk.errors import AISError
    from requests import RequestException

    answered = time.monotonic()
    deadline = answered + seconds
    while True:
        try:
            running = client.cluster().list_running_jobs()
            reason = "rebalances" if any(job.startswith("rebalance[") for job in running) else ""
            answered = time.monotonic()
        except (AISError, RequestException) as e:
            reason = f"does not answer as a whole ({said(e)[:200]})"
        if not reason:
            return
        if time.monotonic() - answered > UNANSWERED_SECONDS:
            require_targets(client)
            answered = time.monotonic()
        if time.monotonic() > deadline:
            raise AIStoreTransientError(f"the AIStore cluster still {reason} after {seconds:.0f} s: try later")
        time.sleep(1)
