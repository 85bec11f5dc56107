"""AIStore jobs followed from outside: what they say, and when they say nothing more."""

from __future__ import annotations

import hashlib
import json
import logging
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from email.utils import parsedate_to_datetime
from typing import Any

from include.storage import control_plane
from include.storage.buckets import Bucket

from .errors import StuckTargetError, TransientTransformError, said

log = logging.getLogger(__name__)

# A multi-object job never ends by itself: it is done when idle this many polls in a row (xact/api_wait.go).
IDLE_POLLS = 2
# A job that no target knows for so long was lost with the memory of its targets: what is left is to compare.
FORGOTTEN_SECONDS = 30.0
# A cluster that leaves control calls unanswered for so long is asked which target is stuck, and again after as long.
UNANSWERED_SECONDS = 20.0
# Longer than looking for jobs, ending idle ones and submitting take.
SUBMIT_SECONDS = 90.0
MULTI_OBJECT_KINDS = frozenset({"copy-listrange", "etl-listrange"})
BUCKET_KINDS = frozenset({"copy-bck", "etl-bck"})
_ZERO_TIME = "0001-01-01T00:00:00Z"


@dataclass(frozen=True)
class Progress:
    """What a job has done so far: objects and bytes read, summed over the targets, and its own seconds at the end."""

    objects: int = 0
    bytes: int = 0
    seconds: float = 0
    finished: bool = False
    error: str = ""


def newest_snapshots(client: Any, job_id: str) -> list[Any]:
    """Return the newest snapshot of a job from each target."""
    by_target = client.job(job_id).get_details().root
    return [max(snaps, key=lambda s: _instant(s.start_time)) for snaps in by_target.values() if snaps]


def starts(client: Any, job_id: str) -> dict[str, float]:
    """Return when a job began on each target, in seconds since 1970 by the target's own clock."""
    by_target = client.job(job_id).get_details().root
    return {target: min(_instant(s.start_time) for s in snaps) for target, snaps in by_target.items() if snaps}


def _instant(text: str) -> float:
    """Read a time as Go writes it, which does not sort as text: fractions lose their last zeros."""
    return datetime.fromisoformat(text).timestamp() if text else 0.0


class Follower:
    """Tells when one AIStore job is over.

    AIStore's own wait is not enough: it never returns for a job that lost a target, nor for a WebSocket
    transform whose server died. Here a job is over when it ended, was aborted, went idle (multi-object jobs),
    was unknown to all targets for `FORGOTTEN_SECONDS`, or made no progress for `stall_seconds`; it is then aborted.
    """

    def __init__(self, client: Any, job_id: str, stall_seconds: float = 300) -> None:
        self.client = client
        self.job_id = job_id
        self.stall_seconds = stall_seconds
        self._idle = 0
        self._seen = (-1, -1)
        self._started = self._moved = self._known = self._answered = time.monotonic()

    def poll(self) -> Progress:
        """Ask the cluster once. Does not raise while a target is down: that is no progress."""
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
        """Return progress; the job is over when it made none for too long, or when a stuck target is the cause."""
        log.info("job %s: the cluster does not answer for now: %s", self.job_id, error)
        self._known = now = time.monotonic()
        if now - self._answered > UNANSWERED_SECONDS:
            self._answered = now
            if names := _named(control_plane.stuck(self.client)):
                return Progress(progress.objects, progress.bytes, finished=True, error=names)
        return self._ended_after(self.stall_seconds, self._moved, progress, f"no answer: {error}")

    def _ended_after(self, seconds: float, since: float, progress: Progress, what: str) -> Progress:
        """Return progress; when it has been like this for so long, the job is aborted and over."""
        still = time.monotonic() - since
        if still < seconds:
            return progress
        abort(self.client, self.job_id)
        error = f"{what} for {still:.0f} s: aborted"
        return Progress(progress.objects, progress.bytes, still, finished=True, error=error)


def _seconds(snaps: Sequence[Any]) -> float:
    """Return how long a job took, by the clocks of its targets."""
    ends = [_instant(s.end_time) for s in snaps if s.end_time and s.end_time != _ZERO_TIME]
    starts = [_instant(s.start_time) for s in snaps if s.start_time]
    return max(ends) - min(starts) if ends and starts else 0.0


def abort(client: Any, job_id: str) -> None:
    """Abort a job; one that is over or unknown stays as it is."""
    from aistore.sdk.errors import AISError
    from requests import RequestException

    try:
        client.job(job_id).abort()
    except (AISError, RequestException) as e:
        log.warning("job %s: abort was declined: %s", job_id, e)


def running_between(client: Any, source: Bucket, destination: Bucket) -> str | None:
    """Return the id of a copy or transform that works between two buckets, None when there is none.

    AIStore refuses a second bucket job on the same pair and lets multi-object jobs share one, so a task follows what
    it finds here, its own or another's, and submits afterwards.
    """
    return next((job for job, idle in _jobs_between(client, source, destination) if not idle), None)


def running_transforms(client: Any) -> list[str]:
    """Return AIStore's names of all transforms that run, such as ``etl-bck[id]``; idle multi-object ones included."""
    jobs = client.cluster().list_running_jobs()
    return [job for job in jobs if job.startswith("etl-") and not job.startswith("etl-inline")]


def end_idle(client: Any, source: Bucket, destination: Bucket, seconds: float = 30) -> None:
    """End multi-object jobs between two buckets that are idle, and wait until they are gone.

    AIStore adds the next request on the same pair to an idle job, and so runs it with that job's ETL, whatever
    ETL the request names. Raises TransientTransformError when a job does not end within `seconds`.
    """
    deadline = time.monotonic() + seconds
    while idle := [job for job, is_idle in _jobs_between(client, source, destination) if is_idle]:
        if time.monotonic() > deadline:
            raise TransientTransformError(f"AIStore's idle job {idle[0]} does not end: try later")
        for job in idle:
            abort(client, job)
        time.sleep(0.2)


def _jobs_between(client: Any, source: Bucket, destination: Bucket) -> Iterator[tuple[str, bool]]:
    """Yield id and idleness of each copy or transform between two buckets that has not ended."""
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
def submitting(client: Any, source: Bucket, destination: Bucket) -> Iterator[None]:
    """Be the only one who submits jobs between two buckets; the next job has an id that none had before.

    AIStore adds a multi-object request to a job that runs on the pair, and so runs it with that job's ETL, whatever
    ETL the request names. So whoever submits looks for such a job first, and nobody else may submit between.

    AIStore 5.0 makes ids of multi-object jobs from the minute, the buckets and the version of the bucket metadata,
    and does not see that an id is taken as it looks it up without its prefix (streamingF.genBEID). A job with the id
    of an aborted one works, but cannot be followed or aborted: AIStore shows the other. Making the bucket of `alone`
    changes the version.
    """
    what = f"jobs from {source} to {destination}"
    with alone(client, what, stale_seconds=SUBMIT_SECONDS, patience_seconds=2 * SUBMIT_SECONDS):
        yield


@contextmanager
def alone(client: Any, what: str, *, stale_seconds: float, patience_seconds: float) -> Iterator[None]:
    """Hold a lock of the cluster that is named `what`; other tasks wait for it.

    AIStore has no locks for users, but of many callers only one can create a bucket. The bucket is removed
    afterwards. One that is older than `stale_seconds`, more than any task needs, was left by a task that died. Raises
    TransientTransformError when another task still holds the lock after `patience_seconds`.
    """
    from aistore.sdk.errors import AISError, ErrBckAlreadyExists
    from requests import RequestException

    bucket = client.bucket(f"storeside-lock-{hashlib.sha256(what.encode()).hexdigest()[:24]}")
    deadline = time.monotonic() + patience_seconds
    while True:
        try:
            bucket.create()
            break
        except ErrBckAlreadyExists:
            if time.monotonic() > deadline:
                raise TransientTransformError(
                    f"{what}: others have been at it for {patience_seconds:g} s: try later"
                ) from None
            if _age(client, bucket.name) > stale_seconds:
                bucket.delete(missing_ok=True)
            else:
                time.sleep(0.2)
    try:
        yield
    finally:
        try:
            bucket.delete(missing_ok=True)
        except (AISError, RequestException) as e:  # it grows old
            log.info("bucket %s is left behind for now: %s", bucket.name, e)


def _age(client: Any, name: str) -> float:
    """Return for how many seconds a bucket has been there, by the cluster's clock; 0 when it is gone."""
    from aistore.sdk.const import HEADER_BUCKET_PROPS
    from aistore.sdk.errors import AISError
    from requests import codes

    try:
        head = client.bucket(name).head()
    except AISError as e:  # the answer to a HEAD has no body, which would say more
        if e.status_code != codes.not_found:
            raise
        return 0.0
    created = int(json.loads(head[HEADER_BUCKET_PROPS])["created"]) / 1e9
    return parsedate_to_datetime(head["Date"]).timestamp() - created


def require_targets(client: Any) -> None:
    """Return when no target is stuck; takes 0.05 s on a healthy cluster.

    Raises StuckTargetError, which names each stuck target and the remedy.
    """
    if names := _named(control_plane.stuck(client)):
        raise StuckTargetError(names)


def _named(targets: Sequence[control_plane.Target]) -> str:
    return "; ".join(str(target) for target in targets)


@contextmanager
def naming_stuck_targets(client: Any) -> Iterator[None]:
    """Raise StuckTargetError in place of the error of a control call, when a stuck target is its cause."""
    from aistore.sdk.errors import AISError
    from requests import RequestException

    try:
        yield
    except (AISError, RequestException, TransientTransformError) as e:
        if names := _named(control_plane.stuck(client)):
            raise StuckTargetError(names) from e
        raise


def wait_for_rebalance(client: Any, seconds: float = 120) -> None:
    """Return once all targets answer and no rebalance runs: until then transforms are refused, listings incomplete.

    Raises TransientTransformError when that takes longer than `seconds`, and StuckTargetError when a target is stuck.
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
            raise TransientTransformError(f"the AIStore cluster still {reason} after {seconds:.0f} s: try later")
        time.sleep(1)
