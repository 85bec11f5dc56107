"""The jobs of AIStore in a measurement: one transcodes all objects by an ETL, and all are followed to their ends."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING

from storeside.aistore import etl as etls
from storeside.aistore import jobs
from storeside.aistore.buckets import Bucket
from storeside.aistore.pods import PodWatch
from storeside.aistore.spec import ALL_WORKERS, EtlSpec
from storeside.measure.errors import MeasureCancelled, MeasureTransientError
from storeside.transform import submit
from storeside.transform.journal import failures, readable
from storeside.transform.naming import Naming
from storeside.transform.reasons import object_errors
from storeside.transform.state import Options

if TYPE_CHECKING:
    from aistore.sdk import Client

_POLL_SECONDS = 0.2
_STALL_SECONDS = 300.0


@dataclass(frozen=True)
class Transcoded:
    """The end of a job: its seconds by the targets' clocks, and why objects have no result, by name.

    `broken` has the reasons of objects that no retry helps.
    """

    seconds: float
    reasons: dict[str, str]
    broken: dict[str, str]


def transcode_by_etl(
    client: Client, naming: Naming, spec: EtlSpec, source: Bucket, to: Bucket, pods: PodWatch | None,
    stop: threading.Event,
) -> Transcoded:  # fmt: skip
    """Start the ETL, and run one job from bucket to bucket.

    Raises MeasureTransientError if the job failed, MeasureCancelled when `stop` is set, and as `etl.ensure` when the
    ETL does not start.
    """
    names = etls.ensure(client, spec, pods, keeps=False)
    refuse_stopped(stop)
    with etls.kept(client, names):
        job_id = submit.bucket(client, source, to, spec, names, naming, Options(workers=ALL_WORKERS))
    seconds = follow(client, job_id, stop)
    reasons = dict(readable(job_id, object_errors(client, names, job_id, source)))
    journal = list(readable(job_id, failures(client, names, job_id, source.name)))
    reasons |= {f.object: f.reason for f in journal}
    return Transcoded(seconds, reasons, {f.object: f.reason for f in journal if f.final})


def follow(client: Client, job_id: str, stop: threading.Event) -> float:
    """Wait for the end of a job and return its seconds.

    Raises MeasureTransientError if the job failed, and MeasureCancelled when `stop` is set.
    """
    follower = jobs.Follower(client, job_id, _STALL_SECONDS)
    try:
        while not (progress := follower.poll()).finished:
            stop.wait(_POLL_SECONDS)
            refuse_stopped(stop)
    except BaseException:  # also a timeout of the task: while the job runs, its ETL cannot be removed
        jobs.abort(client, job_id)
        raise
    if progress.error:
        raise MeasureTransientError(f"job {job_id}: {progress.error}")
    return max(progress.seconds, 0.001)


def refuse_stopped(stop: threading.Event) -> None:
    """Raise MeasureCancelled when `stop` is set."""
    if stop.is_set():
        raise MeasureCancelled("the measurement was cancelled")
