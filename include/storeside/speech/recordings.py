"""Settles a run of the speech pipeline with the queue of its recordings."""

from __future__ import annotations

from typing import TYPE_CHECKING

from storeside import sql
from storeside.events.queue import Queue
from storeside.events.runs import Taken, settle_taken
from storeside.events.settle import Settled

if TYPE_CHECKING:
    from clickhouse_connect.driver.client import Client
    from types_boto3_s3 import S3Client

_MISSING = (
    "the run ended, and neither speech.manifest nor storeside.objects has an outcome of the recording: start"
    " speech_pipeline with 'Retry failed', and send the message back"
)
_NOT_REACHED = "the run ended before it reached this recording: its log has the reason"


def settle_run(
    queue: Queue, client: Client, s3: S3Client, run_id: str, source: str, prefix: str, *, complete: bool
) -> Settled:
    """Settle a run's batches with the queue, based on the speech manifest and the ledger.

    For a `complete` run, a recording of its `source` (a bucket's URI) below `prefix` that is neither loaded nor
    failed nor deleted counts as failed once. All other recordings are released without a failure.
    """
    taken = Taken(source, prefix, complete, sql.query("events_done"), _MISSING, _NOT_REACHED)
    return settle_taken(queue, client, s3, run_id, taken)
