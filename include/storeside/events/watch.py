"""Watches a queue for Airflow's event-driven scheduling: one run per batch of events."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from storeside.events.batches import Batches
from storeside.events.deliveries import Delivery
from storeside.events.following import is_followed
from storeside.events.lease import Lease
from storeside.events.ledger import EventLedger
from storeside.events.notifications import newest
from storeside.events.queue import ENTRIES, MOST_BODIES, Message, Queue
from storeside.events.settle import settle

if TYPE_CHECKING:
    from clickhouse_connect.driver.client import Client

log = logging.getLogger(__name__)

_SHOWN = 50
_WAIT_SECONDS = 5
_GAP_SECONDS = 1


@dataclass(frozen=True)
class Window:
    """When a batch is complete, and how long a watcher waits before each step.

    A batch is complete when no message has arrived for a second, when it has `messages`, or `seconds` after its first
    message. The watcher repeats the batch's event every `repeat_seconds` until a run takes the batch. If no run takes
    it within `untaken_seconds`, for example because the DAG is paused, the watcher releases the messages. It then
    fires an event without a batch every `ring_seconds`, which costs the messages no receives, until a run has
    processed some.

    The watcher leases the messages of a run's batch for `taken_seconds`. It repeats their event after
    `failed_seconds`, and then each time after twice as long. If the run failed and could not settle, the next run,
    which waits for that run, gets the messages. While a task follows the queue, the watcher leases no batches, and
    releases a batch that no run takes within `followed_seconds`. It records depth and age of the queue every
    `depth_seconds`.
    """

    messages: int = 1000
    seconds: float = 5.0
    repeat_seconds: float = 60.0
    untaken_seconds: float = 600.0
    followed_seconds: float = 15.0
    ring_seconds: float = 300.0
    failed_seconds: float = 300.0
    taken_seconds: float = 21_600.0
    depth_seconds: float = 30.0


class Watch:
    """Leases and reports one batch of a queue at a time; the next batch after a run has settled it."""

    def __init__(self, queue: Queue, client: Client, lease: Lease, window: Window | None = None) -> None:
        self.queue = queue
        self.lease = lease
        self.window = window or Window()
        self.batches = Batches(client, queue.url)
        self._held: dict[str, list[Message]] = {}
        self._due: dict[str, tuple[float, float]] = {}
        self._depth_due = time.monotonic()
        self.ledger = EventLedger(client, queue.url, "")
        self.ledger.create()

    def step(self) -> dict[str, Any] | None:
        """Do the next step, in a few seconds at most; return the payload of the event to fire, or None."""
        event = self._step()
        if event is None and time.monotonic() >= self._depth_due:  # after an event, the next step records it
            self._depth_due = time.monotonic() + self.window.depth_seconds
            self.ledger.record_depth(
                self.queue, [message for messages in self._held.values() for message in messages]
            )
        return event

    def _step(self) -> dict[str, Any] | None:
        every = {"open": self.window.repeat_seconds, "taken": self.window.failed_seconds}
        unsettled = self._unsettled()
        for batch in self._held.keys() - {batch for batch, _ in unsettled}:
            self.lease.let_go(self._held.pop(batch))
        for batch, state in unsettled:
            if batch not in self._held:  # leased by another task, or by a watcher that died
                self._hold(batch, self.batches.messages(batch))
            if self._is_due(f"{state} {batch}", every[state], growth=2.0 if state == "taken" else 1.0):
                return self._payload(batch)
        if unsettled or self._is_followed():
            return None
        if self.batches.given_up_unseen():
            return self._ring()
        self._due.clear()
        return self._next()

    def _unsettled(self) -> list[tuple[str, str]]:
        """Return the batches to keep leased, with their states; release those that no run takes."""
        most = {"open": self.window.untaken_seconds, "taken": self.window.taken_seconds}
        held = []
        for batch, state, seconds in self.batches.unsettled():
            if state == "open" and seconds > self.window.followed_seconds and self._is_followed():
                if self._release(batch, "a task follows the queue"):
                    self.batches.settled(batch, "")
            elif seconds <= most[state]:
                held.append((batch, state))
            elif state == "open" and self._release(batch, "the DAG may be paused, or have a long run"):
                self.batches.give_up(batch)
        return held

    def _is_due(self, what: str, interval: float, growth: float = 1.0) -> bool:
        """Return whether an interval (s) has passed since `what` was last due, or first checked; then lengthen it."""
        now = time.monotonic()
        at, interval = self._due.setdefault(what, (now + interval, interval))
        if now < at:
            return False
        self._due[what] = (now + interval * growth, interval * growth)
        return True

    def _hold(self, batch: str, messages: list[Message]) -> None:
        self._held[batch] = messages
        self.lease.hold(messages)

    def _is_followed(self) -> bool:
        return is_followed(self.batches.client, self.queue.url)

    def _release(self, batch: str, why: str) -> bool:
        """Release the messages of a batch, unless a run has taken it meanwhile."""
        if self.batches.state(batch)[0] != "open":
            return False
        log.info("no run has taken batch %s, releasing its messages: %s", batch, why)
        messages = self._held.pop(batch, None) or self.batches.messages(batch)
        self.ledger.record_depth(self.queue, messages)  # so that the age of the queue grows from their age
        self.lease.let_go(messages)
        self.queue.extend(messages, 0)
        return True

    def _ring(self) -> dict[str, Any] | None:
        self._due.setdefault("", (time.monotonic(), self.window.ring_seconds))  # the DAG may be unpaused again
        if not self._is_due("", self.window.ring_seconds) or not (visible := self.queue.depth().visible):
            return None
        return {"queue": self.queue.name, "batch": "", "messages": visible, "events": []}

    def _next(self) -> dict[str, Any] | None:
        messages = self._receive(_WAIT_SECONDS)
        if not messages:
            return None
        deadline = time.monotonic() + self.window.seconds
        while len(messages) <= self.window.messages - ENTRIES and time.monotonic() < deadline:
            if sum(len(m.body) for m in messages.values()) >= MOST_BODIES:
                break
            if not (more := self._receive(_GAP_SECONDS)):
                break
            messages |= more
        batch = self.batches.open(list(messages.values()))
        self._hold(batch, list(messages.values()))
        return self._payload(batch)

    def _receive(self, wait_seconds: int) -> dict[str, Message]:
        """Receive messages by id, and settle those that need no work, such as S3's test event, without a run."""
        received = [Delivery.read(m) for m in self.queue.receive(self.lease.seconds, wait_seconds)]
        if idle := [delivery for delivery in received if delivery.needs_nothing]:
            settle(self.queue, self.ledger, idle)
        return {d.message.id: d.message for d in received if not d.needs_nothing}

    def _payload(self, batch: str) -> dict[str, Any]:
        """Return the payload of a batch's asset event, whose size is bounded for any number of messages."""
        self._is_due(f"open {batch}", self.window.repeat_seconds)
        messages = self._held[batch]
        deliveries = [Delivery.read(message) for message in messages]
        last = newest(event for delivery in deliveries for event in delivery.events)
        shown = [{"event": e.name, "bucket": e.bucket, "key": e.key, "bytes": e.size} for e in last[:_SHOWN]]
        return {
            "queue": self.queue.name,
            "batch": batch,
            "messages": len(messages),
            "objects": len(last),
            "bytes": sum(event.size or 0 for event in last if event.created),
            "events": shown,
        }
