"""Records the outcomes of S3 events in ``storeside.events``, and the depth of their queues."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from storeside import sql
from storeside.events.deliveries import Delivery, oldest
from storeside.events.errors import EventError, EventInputError
from storeside.events.queue import Message, Queue
from storeside.sql.answers import first_row
from storeside.sql.migrate import migrate
from storeside.sql.quoting import literal
from storeside.transfer.state.loads import LONG_STATEMENT

if TYPE_CHECKING:
    from clickhouse_connect.driver.client import Client

log = logging.getLogger(__name__)

_EPOCH = datetime.fromtimestamp(0, UTC)
_EVENTS = {
    "queue": "String",
    "message_id": "String",
    "record": "UInt32",
    **dict.fromkeys(("event", "bucket", "key", "version"), "String"),
    "size": "UInt64",
    **dict.fromkeys(("happened_at", "sent_at"), "DateTime64(3)"),
    **dict.fromkeys(("receives", "failures"), "UInt32"),
    **dict.fromkeys(("state", "reason", "run_id"), "String"),
}
_SYNCHRONOUS = {"async_insert": 0}


class EventLedger:
    """Reads and writes the ledger of one queue for one run."""

    def __init__(self, client: Client, queue: str, run_id: str) -> None:
        self.client = client
        self.queue = queue
        self.run_id = run_id
        self._released: dict[str, float] = {}  # sending times of released messages, by message id

    def create(self) -> None:
        """Create the tables, or bring them up to date. Raises DatabaseError."""
        migrate(self.client)

    def so_far(self, destination: str, bucket: str) -> dict[str, Any]:
        """Return the numbers of earlier tries of this run, whose reports are lost, by field of `Drained`."""
        parameters = {"queue": self.queue, "run_id": self.run_id, "destination": destination, "bucket": bucket}
        found = self.client.query(sql.query("events_so_far"), parameters=parameters)
        return dict(zip(found.column_names, first_row(found), strict=True))

    def known(self, messages: Sequence[Message]) -> dict[str, tuple[bool, int]]:
        """Return for each message that was received before whether all its events are done, and its failures."""
        again = [message.id for message in messages if message.receives > 1]
        if not again:
            return {}
        rows = self.client.query(
            "SELECT message_id, countIf(state = 'released') = 0, max(failures) FROM storeside.events FINAL"
            f" WHERE queue = {{queue:String}} AND message_id IN ({', '.join(map(literal, again))})"
            " GROUP BY message_id",
            parameters={"queue": self.queue},
            settings={"max_query_size": LONG_STATEMENT},
        ).result_rows
        return {message: (bool(done), int(failures)) for message, done, failures in rows}

    def record(self, deliveries: Iterable[Delivery], state: str = "") -> None:
        """Record the outcomes of events; `state` replaces all states except loaded and skipped."""
        deliveries = list(deliveries)
        for message in (delivery.message for delivery in deliveries):
            if state == "released" and message.sent:
                self._released[message.id] = message.sent
            else:
                self._released.pop(message.id, None)
        rows = [row for delivery in deliveries for row in self._rows(delivery, state)]
        if rows:
            self.client.insert(
                "storeside.events", rows, column_names=list(_EVENTS), column_type_names=list(_EVENTS.values()),
                settings=_SYNCHRONOUS,
            )  # fmt: skip

    def _rows(self, delivery: Delivery, state: str) -> list[list[Any]]:
        message = delivery.message
        sent = datetime.fromtimestamp(message.sent, UTC)
        failures = delivery.failures + delivery.is_failure
        common = [sent, message.receives, failures]
        if not delivery.events:
            empty = [self.queue, message.id, 0, "", "", "", "", 0, _EPOCH]
            reason = delivery.error or "it is a test event"
            return [[*empty, *common, state or "skipped", reason, self.run_id]]
        return [
            [
                self.queue, message.id, n,
                event.name, event.bucket, event.key, event.etag, event.size or 0, event.time,
                *common, outcome.state if outcome.is_final else state,
                outcome.reason or (delivery.unexplained if state == "dead" and not outcome.is_final else ""),
                self.run_id,
            ]
            for n, (event, outcome) in enumerate(zip(delivery.events, delivery.outcomes, strict=True))
        ]  # fmt: skip

    def record_depth(self, queue: Queue, messages: Sequence[Message] = ()) -> None:
        """Record the depth of the queue and of its dead-letter queue, and the age of the oldest message.

        SQS does not report that age. The ledger records the age of the oldest of the caller's `messages` and of the
        messages that were released through this ledger. Without any, the last recorded age grows: the age of a queue
        that is not empty falls only when the ages of its messages are known. If no age was known, it grows from the
        record that first found the queue not empty. While SQS does not answer, nothing is recorded.
        """
        now = time.time()
        try:
            depth, dead = queue.depth(), _dead_letters(queue)
        except EventError as e:
            log.warning("cannot record the depth of %s: %s", queue.name, e)
            return
        age = 0.0
        if not depth.is_empty:
            known = messages or self._released
            # `list` copies the values in one step, because another thread may settle messages.
            released = now - min(list(self._released.values()), default=now)
            age = max(oldest(messages, now), released) if known else self._last_age()
        self.client.insert(
            "storeside.queue_depths",
            [[self.queue, depth.visible, depth.in_flight, depth.delayed, dead, age]],
            column_names=["queue", "visible", "in_flight", "delayed", "dead", "oldest_seconds"],
            column_type_names=["String", *["UInt64"] * 4, "Float64"],
            settings=_SYNCHRONOUS,
        )

    def _last_age(self) -> float:
        """Return the last recorded age plus the seconds since then; 0 if it was empty then, or never recorded."""
        row = first_row(
            self.client.query(
                "SELECT argMax((oldest_seconds, recorded_at, visible + in_flight + delayed), recorded_at) AS last,"
                " if(last.3 > 0, last.1 + toFloat64(now64(3)) - toFloat64(last.2), 0)"
                " FROM storeside.queue_depths WHERE queue = {queue:String}",
                parameters={"queue": self.queue},
            )
        )
        return float(row[1])


def _dead_letters(queue: Queue) -> int:
    """Return the number of dead letters; 0 without a dead-letter queue: the queue's depth is still recorded."""
    try:
        return queue.dead_letters.depth().visible
    except EventInputError as e:
        log.warning("cannot count dead letters: %s", e)
        return 0
