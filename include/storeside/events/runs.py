"""Settles a run with its queue after its tasks have processed the objects, by the outcomes in the ledgers."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from storeside.aistore.markers import marker, named_by
from storeside.aistore.names import is_folder_marker
from storeside.events.batches import Batches
from storeside.events.current import Found, listed_around, look_at
from storeside.events.deliveries import FOLDER, MARKER, UNTRIED, Delivery, Outcome
from storeside.events.ledger import EventLedger
from storeside.events.notifications import S3Event
from storeside.events.queue import Queue
from storeside.events.settle import Settled, settle
from storeside.transfer.base.errors import LoadObjectError
from storeside.transfer.request.source import Listed, Source

if TYPE_CHECKING:
    from clickhouse_connect.driver.client import Client
    from types_boto3_s3 import S3Client

# Events per query. A query sends them as a table, because parameters have at most 128 KiB
# (http_max_field_value_size).
_SLICE = 5000
WANTED = ("n UInt32", "key String", "etag String", "at Float64")
_GONE = Outcome("skipped", "it was deleted before it could be loaded")


@dataclass(frozen=True)
class Taken:
    """The objects that a run processes, and the query for their outcomes.

    The run processes all objects of the bucket `source` (a URI) below `prefix`. `query` is SQL that returns the
    number, state and reason of each event that is done or failed for good. Its input is the external table ``wanted``
    with the events, the parameter ``bucket``, and `parameters`. It runs again with the current versions of objects
    that are neither, because they may be done in a later version; with `by_current`, it runs only with current
    versions. An object without an outcome gets the reason `missing` if the run is `complete`, and `not_reached` if it
    is not.
    """

    source: str
    prefix: str
    complete: bool
    query: str
    missing: str
    not_reached: str
    parameters: Mapping[str, str] = field(default_factory=dict)
    by_current: bool = False

    def outcome(self, bucket: str, key: str, found: Found) -> Outcome:
        """Return the outcome of an event whose object is neither done nor failed; `found` is its current object."""
        if found is None:
            return _GONE
        if isinstance(found, Listed) and is_folder_marker(key, found.size):
            return FOLDER
        if marker(key, named_by(self.prefix)):
            return MARKER
        if elsewhere := outcome_elsewhere(bucket, key, self.source, self.prefix):
            return elsewhere
        if not self.complete:
            return Outcome("untried", self.not_reached)
        return Outcome("undone", str(found) if isinstance(found, LoadObjectError) else self.missing)


def outcome_elsewhere(bucket: str, key: str, source: str, prefix: str) -> Outcome | None:
    """Return the outcome of an object outside of `source` (a URI) and `prefix`; None for an object of the run."""
    if f"s3://{bucket}" == source and key.startswith(prefix):
        return None
    return Outcome("untried", f"the last run with its event processes only {source}/{prefix}*")


def settle_taken(queue: Queue, client: Client, s3: S3Client, run_id: str, taken: Taken) -> Settled:
    """Settle a run's batches with the queue.

    For a complete run, an object that is neither done nor failed nor deleted counts as failed once. All other objects
    are released without a failure.
    """
    return settle_batches(queue, client, run_id, lambda deliveries: _decide(deliveries, client, s3, taken))


def settle_batches(
    queue: Queue, client: Client, run_id: str, decide: Callable[[Sequence[Delivery]], None]
) -> Settled:
    """Settle a run's batches with the queue; `decide` sets the outcomes of a batch's events, see `pending`."""
    ledger, batches = EventLedger(client, queue.url, run_id), Batches(client, queue.url)
    ledger.create()  # an upgrade may have come since the run's first task
    total = Settled()
    for batch in batches.of_run(run_id):
        deliveries = {message.id: Delivery.read(message) for message in batches.messages(batch)}
        for message, (_, failures) in ledger.known([d.message for d in deliveries.values()]).items():
            deliveries[message].failures = failures
        decide(list(deliveries.values()))
        total.add(settle(queue, ledger, list(deliveries.values())))
        batches.settled(batch, run_id)
    ledger.record_depth(queue)
    return total


def pending(deliveries: Sequence[Delivery]) -> Iterator[tuple[Delivery, int]]:
    """Yield the deliveries with the numbers of their events about new content; skip all other events."""
    for delivery in deliveries:
        for n, event in enumerate(delivery.events):
            if delivery.outcomes[n].is_final:
                continue
            if event.created:
                yield delivery, n
            else:
                delivery.outcomes[n] = Outcome("skipped", "the event reports no new content")


def _decide(deliveries: Sequence[Delivery], client: Client, s3: S3Client, taken: Taken) -> None:
    places: dict[str, list[tuple[Delivery, int]]] = {}
    for delivery, n in pending(deliveries):
        places.setdefault(delivery.events[n].bucket, []).append((delivery, n))
    for bucket, those in places.items():
        for start in range(0, len(those), _SLICE):
            _decide_some(bucket, those[start : start + _SLICE], client, s3, taken)


def _decide_some(
    bucket: str, places: Sequence[tuple[Delivery, int]], client: Client, s3: S3Client, taken: Taken
) -> None:
    # A forged or misrouted event may name a bucket that does not exist, so S3 gets no request for it.
    is_source = f"s3://{bucket}" == taken.source
    found = _current(bucket, places, client, s3) if taken.by_current and is_source else {}
    _ask_ledger(bucket, places, found, client, taken)
    missing = _without_outcome(places)
    if not taken.by_current and is_source and missing:
        found = _current(bucket, missing, client, s3)
        overwritten = [(d, n) for d, n in missing if _etag(d.events[n], found) != d.events[n].etag]
        _ask_ledger(bucket, overwritten, found, client, taken)
    for delivery, n in _without_outcome(missing):
        key = delivery.events[n].key
        elsewhere = None if is_source else outcome_elsewhere(bucket, key, taken.source, taken.prefix)
        delivery.outcomes[n] = elsewhere or taken.outcome(bucket, key, found[key])


def _without_outcome(places: Sequence[tuple[Delivery, int]]) -> list[tuple[Delivery, int]]:
    return [(delivery, n) for delivery, n in places if delivery.outcomes[n] == UNTRIED]


def _ask_ledger(
    bucket: str, places: Sequence[tuple[Delivery, int]], found: Mapping[str, Found], client: Client, taken: Taken
) -> None:
    """Set the outcomes that the ledger has for these events, in the versions in `found` or in their own versions."""
    from clickhouse_connect.driver.external import ExternalData

    if not places:
        return
    events = [delivery.events[n] for delivery, n in places]
    lines = [json.dumps([n, e.key, _etag(e, found), e.time.timestamp()]) for n, e in enumerate(events)]
    rows = client.query(
        taken.query,
        parameters={"bucket": f"s3://{bucket}", **taken.parameters},
        external_data=ExternalData(
            file_name="wanted", data="\n".join(lines).encode(), fmt="JSONCompactEachRow", structure=WANTED
        ),
    ).result_rows
    for place, state, reason in rows:
        delivery, n = places[place]
        delivery.outcomes[n] = Outcome(state, reason)


def _etag(event: S3Event, found: Mapping[str, Found]) -> str:
    current = found.get(event.key)
    return current.etag if isinstance(current, Listed) else event.etag


def _current(bucket: str, places: Sequence[tuple[Delivery, int]], client: Client, s3: S3Client) -> dict[str, Found]:
    keys = list({delivery.events[n].key for delivery, n in places})
    return look_at(Source(bucket), keys, client, s3, listed_around(Source(bucket), keys, s3), pull=False)
