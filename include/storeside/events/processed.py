"""Settles a run that transforms or loads the objects of a bucket with the queue of the bucket's events."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from storeside import sql
from storeside.events.deliveries import LOADED, Delivery, Outcome
from storeside.events.queue import Queue
from storeside.events.runs import Taken, outcome_elsewhere, pending, settle_batches, settle_taken
from storeside.events.settle import Settled

if TYPE_CHECKING:
    from clickhouse_connect.driver.client import Client
    from types_boto3_s3 import S3Client

_MISSING = (
    "the run ended, and Storeside's ledger has no outcome of the object: start the DAG with 'Retry failed', and send"
    " the message back"
)
_NOT_REACHED = "the run ended before it reached this object: its log has the reason"


def settle_processed(
    queue: Queue,
    client: Client,
    s3: S3Client,
    run_id: str,
    source: str,
    prefix: str = "",
    *,
    destination: str = "",
    facts: str = "",
    table: str = "",
    complete: bool,
) -> Settled:
    """Settle a run's batches with the queue, based on the ledgers of transforms, copies and loads.

    An object of the bucket `source` (a URI) is done when it is transformed or copied into the bucket `destination`
    and its result is loaded into the `table`. Without a `destination` the object itself is loaded; without a `table`
    nothing is. With `facts`, the result is transformed again into this bucket, and the second result is loaded.
    For a `complete` run, an object below `prefix` that is neither done nor failed nor deleted counts as failed once.
    All other objects are released without a failure.
    """
    names = {"destination": destination, "table": table, "facts": facts}
    if facts:
        query = sql.query("events_facts_loaded")
    elif destination and table:
        query = sql.query("events_results_loaded")
    else:
        query = sql.query("events_transformed") if destination else sql.query("events_loaded")
    taken = Taken(source, prefix, complete, query, _MISSING, _NOT_REACHED, names, by_current=not destination)
    return settle_taken(queue, client, s3, run_id, taken)


def settle_reported(
    queue: Queue,
    client: Client,
    run_id: str,
    source: str,
    prefix: str = "",
    *,
    failed: Mapping[str, str],
    complete: bool,
) -> Settled:
    """Settle the batches of a run whose tasks write no ledger, based on what they report.

    `failed` has the reasons of objects that failed for good, by key. In a `complete` run, all other objects of the
    bucket `source` (a URI) below `prefix` are done; all others are released without a failure.
    """

    def decide(deliveries: Sequence[Delivery]) -> None:
        for delivery, n in pending(deliveries):
            event = delivery.events[n]
            outcome = outcome_elsewhere(event.bucket, event.key, source, prefix)
            if outcome is None and event.key in failed:
                outcome = Outcome("failed", failed[event.key])
            delivery.outcomes[n] = outcome or (LOADED if complete else Outcome("untried", _NOT_REACHED))

    return settle_batches(queue, client, run_id, decide)
