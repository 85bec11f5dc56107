"""Drains a queue of S3 events into a ClickHouse table: receives messages, loads their objects, then deletes them."""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from storeside.aistore.names import is_folder_marker
from storeside.amounts import counted, others
from storeside.events.batches import Batches
from storeside.events.current import NOT_LISTED, Found, listed_around, look_at
from storeside.events.deliveries import FOLDER, LOADED, MARKER, UNTRIED, Delivery, Outcome, conclude, oldest, sort_out
from storeside.events.drained import Drained
from storeside.events.errors import EventInputError, TriedOutError
from storeside.events.following import Following
from storeside.events.intake import Intake, Limits
from storeside.events.lanes import LANES, in_lanes
from storeside.events.lease import Lease
from storeside.events.ledger import EventLedger
from storeside.events.queue import Message, Queue, backoff
from storeside.events.settle import settle
from storeside.transfer.base.errors import (
    FailureKind,
    LoadObjectError,
    TransferCancelled,
    TransferInputError,
    TransferTransientError,
    classify,
)
from storeside.transfer.publish.loaded_objects import Handled
from storeside.transfer.request.request import Request
from storeside.transfer.request.source import Listed
from storeside.transfer.run.engine import Transfer, validation_of
from storeside.transfer.staging.validation import Validation
from storeside.transfer.tables.servers import NO_SERVERS, Servers

if TYPE_CHECKING:
    from clickhouse_connect.driver.client import Client

log = logging.getLogger(__name__)

_DEPTH_SECONDS = 30.0
# Seconds for which a run trusts the answer whether ClickHouse reads the bucket: each question lists objects.
_PULLS_SECONDS = 60.0
# Seconds before each further try of leased messages.
_DELAYS = (2.0, 5.0, 10.0, 30.0)


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
        self._validation: Validation | None = None
        self.client = client
        self.s3 = s3
        self.run_id = run_id
        self.limits = limits or Limits()
        self._tables = ledger or client
        self._servers = servers
        self.ledger = EventLedger(self._tables, queue.url, run_id)
        self.stop = threading.Event()
        self.drained = Drained()
        self._lock = threading.Lock()  # for what follows, and `drained`: batches are processed at the same time
        self._transfers: dict[int, Transfer] = {}  # the last one of each lane
        self._depth_at = -_DEPTH_SECONDS
        self._newest: list[Message] = []
        self._pulls: tuple[float, bool] | None = None

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
        self._validation = validation_of(self.request)  # one for all batches
        self.ledger.create()
        self.drained = Drained(**self.ledger.so_far(self.request.table, self.request.source.bucket))
        self._warn_of_receives()
        if self.request.after_load:  # objects that an earlier run loaded and did not handle
            self._add(self._new_transfer().source_actions.run())
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
                self._sweep()
            except TriedOutError:
                lease.release_all(backoff)
                raise
            except BaseException:
                lease.release_all()
                raise
        # Messages in the queue are about as old as the newest received message, or younger.
        self.ledger.record_depth(self.queue, self._newest)
        self.drained.seconds = time.monotonic() - started
        self.drained.verdict = self._validation.verdict() if self._validation else None
        return self.drained

    @property
    def pulls(self) -> bool:
        """Whether ClickHouse reads the objects itself."""
        return self._new_transfer().pulls

    def cancel(self) -> None:
        """Stop from any thread: receive no more messages, and kill running queries, also those of another process."""
        self.stop.set()
        for lane in range(LANES):
            (self._transfers.get(lane) or self._new_transfer(lane)).cancel()

    def leave(self) -> None:
        """Stop from any thread and let ClickHouse's queries run, because this process is about to end."""
        self.stop.set()
        for transfer in list(self._transfers.values()):
            transfer.leave()

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
        conclude(deliveries, self._load_patiently(keys, lane))
        return _Processed(messages, deliveries, done_before)

    def _settle(self, processed: _Processed, lease: Lease) -> None:
        """Record outcomes; delete or release the messages, or send them to the dead-letter queue."""
        messages, done_before = processed.messages, processed.done_before
        settled = settle(self.queue, self.ledger, processed.deliveries, self.limits.most_failures, lease.let_go)
        settled.deleted += len(done_before) - len(self.queue.delete(done_before))
        lag = oldest(messages, time.time())
        with self._lock:
            self.drained.add(len(messages), processed.deliveries, settled, lag)
        log.info(
            "%s: %d deleted%s; the oldest waited %.1f s", counted(len(messages), "message"), settled.deleted,
            others((settled.released, "released"), (settled.dead, "sent to the dead-letter queue")), lag,
        )  # fmt: skip

    def _load_patiently(self, keys: Sequence[str], lane: int) -> dict[str, Outcome]:
        """Load, and retry while the messages are leased: SQS counts each receive towards the dead-letter queue."""
        from clickhouse_connect.driver.exceptions import DatabaseError, OperationalError

        delays, is_first = iter(_DELAYS), True
        while True:
            try:
                # A listing also has objects for which S3 does not answer, so only the first try uses one.
                return self._load(keys, lane, use_listing=is_first)
            except (DatabaseError, OperationalError, TransferTransientError) as e:
                error = classify(e)
                if not isinstance(error, TransferTransientError) or self.stop.is_set():
                    raise
                if (delay := next(delays, None)) is None:
                    raise TriedOutError(str(error)) from e
            log.warning("retrying in %g s: %s", delay, error)
            self.stop.wait(delay)
            is_first = False

    def _load(self, keys: Sequence[str], lane: int, *, use_listing: bool) -> dict[str, Outcome]:
        """Load the current objects of these keys; return the outcome of each key."""
        if not keys:
            return {}
        self._transfers[lane] = transfer = self._new_transfer(lane)
        if self.stop.is_set():
            raise TransferCancelled("the transfer was stopped")
        around = listed_around(self.request.source, keys, self.s3) if use_listing else NOT_LISTED
        found = look_at(self.request.source, keys, self.client, self.s3, around, pull=self._ask_pulls(transfer))
        outcomes = {key: self._before_loading(found[key]) for key in keys}
        objects = [o for o in found.values() if isinstance(o, Listed) and not outcomes[o.key].is_final]
        states = transfer.loads.outcomes([o.key for o in objects])
        done_before = [o.key for o in objects if states.get((o.key, o.etag), ("",))[0] == "loaded"]
        outcomes |= dict.fromkeys(done_before, LOADED)
        self._add(transfer.source_actions.run(done_before))
        if objects := [o for o in objects if not outcomes[o.key].is_final]:
            report = transfer.run(transfer.prepare(objects, around.count))
            with self._lock:
                for name in ("rows", "rejected", "bytes", "handled", "left"):
                    setattr(self.drained, name, getattr(self.drained, name) + getattr(report, name))
            outcomes |= self._after_loading(objects, transfer.loads.outcomes([o.key for o in objects]))
        return outcomes

    def _add(self, handled: Handled) -> None:
        with self._lock:
            self.drained.handled += handled.done
            self.drained.left += handled.left

    def _new_transfer(self, lane: int = 0) -> Transfer:
        run_id = f"{self.run_id}/{uuid.uuid4().hex[:8]}"
        # Each lane cleans up after itself alone: the staging tables of the others are in use.
        owner = f"{self.run_id}\n{lane}" if lane else self.run_id
        transfer = Transfer(
            self.request, self.client, self.s3, run_id, owner=owner, ledger=self._tables, servers=self._servers
        )
        transfer.validation = self._validation
        return transfer

    def _ask_pulls(self, transfer: Transfer) -> bool:
        """Return whether ClickHouse reads the objects itself, as an earlier batch has found out shortly before."""
        known, now = self._pulls, time.monotonic()
        if known is not None and now - known[0] < _PULLS_SECONDS:
            transfer.pulls = known[1]
        else:
            self._pulls = (now, transfer.pulls)
        return transfer.pulls

    def _sweep(self) -> None:
        """Drop what an earlier try of this run has left in lanes that this try did not need."""
        for lane in set(range(LANES)) - self._transfers.keys():
            self._new_transfer(lane).sweep()

    def _before_loading(self, found: Found) -> Outcome:
        if found is None:
            if self.request.after_load.action in ("delete", "move"):
                return Outcome("skipped", "a load removed it, or it was deleted before it could be loaded")
            return Outcome("skipped", "it was deleted before it could be loaded")
        if isinstance(found, LoadObjectError):
            return _failed(found.kind, str(found))
        if found.modified_at < self.request.source.since:
            return Outcome("skipped", f"it was last modified before {self.request.source.modified_after}")
        if self.request.source.ignores(found.key):
            return MARKER
        return FOLDER if is_folder_marker(found.key, found.size) else UNTRIED

    def _after_loading(
        self, objects: Sequence[Listed], states: Mapping[tuple[str, str], tuple[str, FailureKind, str]]
    ) -> dict[str, Outcome]:
        """Return the outcomes of objects by key, from their `states` by key and version.

        A failure is final only if the object still has the planned version.
        """
        outcomes, failed = {}, {}
        for o in objects:
            state, kind, reason = states.get((o.key, o.etag), ("", FailureKind.NONE, ""))
            if state in ("loaded", "replaced"):  # in this version, or a later one
                outcomes[o.key] = LOADED
            elif state == "failed":
                outcomes[o.key], failed[o.key] = _failed(kind, reason), o.etag
            else:
                outcomes[o.key] = Outcome("undone", "it was not loaded, and the ledger has no reason")
        found = look_at(self.request.source, list(failed), self.client, self.s3, pull=False)
        for key, now in found.items():
            if now is None:
                outcomes[key] = Outcome("skipped", "it was deleted before it could be loaded")
            elif isinstance(now, Listed) and now.etag != failed[key]:
                reason = outcomes[key].reason
                outcomes[key] = Outcome("undone", f"it was overwritten while it was loaded: {reason}")
        return outcomes


def _failed(kind: FailureKind, reason: str) -> Outcome:
    return Outcome("failed" if kind.is_final else "undone", reason)
