"""Drains a queue of S3 events into a ClickHouse table: receives messages, loads their objects, then deletes them."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from storeside.events.batches import Batches
from storeside.events.deliveries import Delivery, conclude, oldest, sort_out
from storeside.events.drained import Drained
from storeside.events.errors import EventInputError, TriedOutError
from storeside.events.following import Following
from storeside.events.intake import Intake, Limits
from storeside.events.lanes import in_lanes
from storeside.events.lease import Lease
from storeside.events.ledger import EventLedger
from storeside.events.object_loads import ObjectLoads
from storeside.events.queue import Message, Queue, backoff
from storeside.events.settle import settle
from storeside.transfer.base.errors import (
    LoadObjectError,
    TransferInputError,
    classify,
)
from storeside.transfer.request.request import Request
from storeside.transfer.tables.servers import NO_SERVERS, Servers

if TYPE_CHECKING:
    from clickhouse_connect.driver.client import Client

log = logging.getLogger(__name__)

_DEPTH_SECONDS = 30.0


@dataclass(frozen=True)
class _Processed:
    """Messages after the load of their objects; an earlier run settled `done_before` but did not delete them."""

    messages: Sequence[Message]
    deliveries: Sequence[Delivery]
    done_before: Sequence[Message]


class EventLoad:
    """One run that drains a queue into the table of a request.

    `client` is a clickhouse-connect client without a session, `s3` a boto3 client; `run_id` names the run in the
    ledgers. For `ledger` and `servers` see `Transfer`. The run does not list the request's source: the events name
    the objects, and the bucket has their state.
    """

    def __init__(
        self,
        queue: Queue,
        request: Request,
        client: Client,
        s3: Any,
        run_id: str,
        limits: Limits | None = None,
        ledger: Client | None = None,
        servers: Servers = NO_SERVERS,
    ) -> None:
        if request.all_or_nothing:
            raise EventInputError(
                "all_or_nothing: a queue of events has no end, so there is no 'all': leave the option out"
            )
        if request.is_mirrored and not request.is_lake:
            option = "remove_deleted" if request.remove_deleted else "replace_partition"
            raise EventInputError(
                f"{option}: a load of events lists no bucket, so it does not know which objects are gone: set it"
                " in an S3ToClickHouseOperator"
            )
        if request.names_tables:
            raise EventInputError(
                f"table {request.table!r}: a load of events fills one table: load tables that keys name with"
                " S3ToClickHouseOperator"
            )
        if request.source.in_aistore:
            raise EventInputError(
                f"{request.source.bucket}: only S3 sends events: load it with S3ToClickHouseOperator"
            )
        if request.is_lake:
            raise EventInputError(
                f"format {request.format!r}: an event is about one object, not about a table's snapshot: load the"
                " table with S3ToClickHouseOperator"
            )
        self.queue = queue
        expectations = replace(request.expectations, by_object=True)
        self.request = replace(request, retry_failed=True, overlap_seconds=None, expectations=expectations)
        self.run_id = run_id
        self.limits = limits or Limits()
        self._tables = ledger or client
        self.ledger = EventLedger(self._tables, queue.url, run_id)
        self.stop = threading.Event()
        self.drained = Drained()
        self._lock = threading.Lock()  # for what follows, and `drained`: batches are processed at the same time
        self.objects = ObjectLoads(
            self.request, client, s3, run_id, self._tables, servers, self.drained, self._lock, self.stop
        )
        self._depth_at = -_DEPTH_SECONDS
        self._newest: list[Message] = []

    def run(self, batches: Sequence[str] = ()) -> Drained:
        """Process batches that were leased for this run or left by an earlier run, then messages of the queue.

        When the run is stopped, or raises an error, its messages become visible again at once. Raises TransferError
        and EventError: BadInput when no retry helps, Transient when a server stays unavailable.
        """
        from clickhouse_connect.driver.exceptions import DatabaseError, OperationalError

        try:
            return self._run(batches)
        except (DatabaseError, OperationalError) as e:
            error = classify(e)
            raise TransferInputError(str(error)) if isinstance(error, LoadObjectError) else error from e

    def _run(self, batches: Sequence[str]) -> Drained:
        started = time.monotonic()
        self.objects.expect()
        self.ledger.create()
        self.drained = self.objects.drained = Drained(
            **self.ledger.so_far(self.request.table, self.request.source.bucket)
        )
        self._warn_of_receives()
        if self.request.after_load:  # objects that an earlier run loaded and did not handle
            self.objects.finish_actions()
        handed_over = Batches(self._tables, self.queue.url)
        waits = self.limits.idle_seconds > 0
        following = Following(self._tables, self.queue.url, self.run_id) if waits else nullcontext()
        with following, Lease(self.queue, self.limits.lease_seconds) as lease:
            try:
                for batch in dict.fromkeys([*batches, *handed_over.left_to(self.run_id)]):
                    messages = handed_over.take(batch, self.run_id)
                    if handed_over.state(batch) != ("taken", self.run_id):
                        continue  # of another run, or settled
                    lease.hold(messages)
                    self._finish(lease, [Delivery.read(message) for message in messages])
                    handed_over.settled(batch, self.run_id)
                self._process_all(Intake(self.queue, lease, self.limits, self.stop, started + self.limits.seconds))
                self.objects.sweep()
            except TriedOutError:
                lease.release_all(backoff)
                raise
            except BaseException:
                lease.release_all()
                raise
        # Messages in the queue are about as old as the newest received message, or younger.
        self.ledger.record_depth(self.queue, self._newest)
        self.drained.seconds = time.monotonic() - started
        self.drained.verdict = self.objects.verdict
        self.objects.record_validation()
        return self.drained

    @property
    def pulls(self) -> bool:
        """Whether ClickHouse reads the objects itself."""
        return self.objects.new_transfer().pulls

    def cancel(self) -> None:
        """Stop from any thread: receive no more messages, and kill running queries, also those of another process."""
        self.objects.cancel()

    def leave(self) -> None:
        """Stop from any thread and let ClickHouse's queries run, because this process is about to end."""
        self.objects.leave()

    def _warn_of_receives(self) -> None:
        dead_letters, receives = self.queue.redrive_policy
        if receives < 10:
            log.warning(
                "SQS moves messages of %s to %s after %d receives, also if workers only restarted: set"
                " maxReceiveCount to 10 or more; a load moves a message there after %d failures anyway",
                self.queue.name, dead_letters, receives, self.limits.most_failures,
            )  # fmt: skip

    def _process_all(self, intake: Intake) -> None:
        """Process all batches, some of them at the same time."""
        in_lanes(intake, lambda lane, deliveries: self._finish(intake.lease, deliveries, lane), self.cancel)

    def _finish(self, lease: Lease, deliveries: Sequence[Delivery], lane: int = 0) -> None:
        """Load the objects of these messages, then settle the messages."""
        processed = self._process(deliveries, lane)
        self._settle(processed, lease)
        lease.let_go(processed.messages)

    def _process(self, received: Sequence[Delivery], lane: int) -> _Processed:
        """Load the objects of these messages."""
        newest = {delivery.message.id: delivery for delivery in received}
        messages = [delivery.message for delivery in newest.values()]
        with self._lock:
            self._newest = sorted(messages, key=lambda message: message.sent)[-1:] or self._newest
            if is_due := time.monotonic() - self._depth_at >= _DEPTH_SECONDS:
                self._depth_at = time.monotonic()
        if is_due:
            self.ledger.record_depth(self.queue, messages)
        known = self.ledger.known(messages)
        done_before, deliveries = [], []
        for name, delivery in newest.items():
            done, delivery.failures = known.get(name, (False, 0))
            if done:
                done_before.append(delivery.message)
            else:
                deliveries.append(delivery)
        keys = sort_out(deliveries, self.request.source.bucket, self.request.source.regex)
        conclude(deliveries, self.objects.load(keys, lane))
        return _Processed(messages, deliveries, done_before)

    def _settle(self, processed: _Processed, lease: Lease) -> None:
        """Record outcomes; delete or release the messages, or send them to the dead-letter queue."""
        messages, done_before = processed.messages, processed.done_before
        settled = settle(self.queue, self.ledger, processed.deliveries, self.limits.most_failures, lease.let_go)
        settled.deleted += len(done_before) - len(self.queue.delete(done_before))
        lag = oldest(messages, time.time())
        with self._lock:
            self.drained.add(len(messages), processed.deliveries, settled, lag)
        log.info("%s", settled.line(len(messages), lag))
