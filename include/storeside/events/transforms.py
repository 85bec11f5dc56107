"""Settles a run that transforms a bucket with the queue of the bucket's events."""

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
    "the run ended, and storeside.objects has no outcome of the object: start the DAG with 'Retry failed', and send"
    " the message back"
)
_NOT_REACHED = "the run ended before it reached this object: its log has the reason"


def settle_transform(
    queue: Queue,
    client: Client,
    s3: S3Client,
    run_id: str,
    source: str,
    destination: str,
    prefix: str = "",
    *,
    complete: bool,
) -> Settled:
    """Settle a run's batches with the queue, based on the ledger of `source` and `destination` (bucket URIs).

    For a `complete` run, an object of the source below `prefix` that is neither transformed nor failed nor deleted
    counts as failed once. All other objects are released without a failure.
    """
    taken = Taken(
        source,
        prefix,
        complete,
        sql.query("events_transformed"),
        _MISSING,
        _NOT_REACHED,
        {"destination": destination},
    )
    return settle_taken(queue, client, s3, run_id, taken)
