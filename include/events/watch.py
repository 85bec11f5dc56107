"""Watching a queue for Airflow's event-driven scheduling: one batch of events, one run."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from include.events.batches import Batches
from include.events.deliveries import Delivery
from include.events.following import is_followed
from include.events.lease import Lease
from include.events.ledger import EventLedger
from include.events.notifications import newest
from include.events.queue import ENTRIES, Message, Queue
from include.events.settle import settle
from include.transfer.errors import TransferError

log = logging.getLogger(__name__)

_SHOWN = 50
_WAIT_SECONDS = 5
_GAP_SECONDS = 1


@dataclass(frozen=True)
class Window:
    """When a batch is large enough, and how long things wait.

    A batch is closed when nothing has come for a second, after `messages`, or `seconds` after its first message.
    It is told of again every `repeat_seconds` until a run takes it. If none does within `untaken_seconds`, as the
    DAG is paused, its messages are given back, and from then on there is an event without a batch every
    `ring_seconds`, which costs the messages no receives, until a run has processed some. The messages of a run's
    batch are held for `taken_seconds`; after `failed_seconds`, and each time after twice as long, they are told of
    once more: the next run, which waits for that one, gets them if it has failed and could not settle. While a task
    follows the queue there are no batches, and one that no run has taken within `followed_seconds` is given back.
    Depth and age of the queue are noted every `depth_seconds`.
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
    """Leases one batch of a queue at a time and tells of it; the next one when the run has settled with the queue."""

    def __init__(self, queue: Queue, client: Any, lease: Lease, window: Window | None = None) -> None:
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
        """Do what is due, which takes some seconds at most; returns what is to be told, or None."""
        told = self._step()
        if told is None and time.monotonic() >= self._depth_due:  # what is told does not wait for this
            self._depth_due = time.monotonic() + self.window.depth_seconds
            self._record_depth([message for messages in self._held.values() for message in messages])
        return told

    def _step(self) -> dict[str, Any] | None:
        every = {"open": self.window.repeat_seconds, "taken": self.window.failed_seconds}
        unsettled = self._unsettled()
        for batch in self._held.keys() - {batch for batch, _ in unsettled}:
            self.lease.let_go(self._held.pop(batch))
        for batch, state in unsettled:
            if batch not in self._held:  # another task's, or of a watcher that is gone
                self._hold(batch, self.batches.messages(batch))
            if self._is_due(f"{state} {batch}", every[state], growth=2.0 if state == "taken" else 1.0):
                return self._told(batch)
        if unsettled or self._is_followed():
            return None
        if self.batches.given_up_unseen():
            return self._ring()
        self._due.clear()
        return self._next()

    def _unsettled(self) -> list[tuple[str, str]]:
        """Return the batches whose messages are to be held, and their states; gives up those that nobody takes."""
        most = {"open": self.window.untaken_seconds, "taken": self.window.taken_seconds}
        held = []
        for batch, state, seconds in self.batches.unsettled():
            if state == "open" and seconds > self.window.followed_seconds and self._is_followed():
                if self._give_back(batch, "a task follows the queue"):
                    self.batches.settled(batch, "")
            elif seconds <= most[state]:
                held.append((batch, state))
            elif state == "open" and self._give_back(batch, "is the DAG paused, or has it a long run?"):
                self.batches.give_up(batch)
        return held

    def _is_due(self, what: str, interval: float, growth: float = 1.0) -> bool:
        """Tell whether an interval, which grows each time, has passed since this was done or first asked for."""
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

    def _give_back(self, batch: str, why: str) -> bool:
        """Make the messages of a batch visible, unless a run has taken it meanwhile."""
        if self.batches.state(batch)[0] != "open":
            return False
        log.info("no run has taken batch %s, its messages are given back: %s", batch, why)
        messages = self._held.pop(batch, None) or self.batches.messages(batch)
        self._record_depth(messages)  # the age goes on from theirs until a run has them
        self.lease.let_go(messages)
        self.queue.extend(messages, 0)
        return True

    def _record_depth(self, messages: Sequence[Message]) -> None:
        """Note depth and age: between runs, and while the DAG is paused, nobody else does."""
        try:
            self.ledger.record_depth(self.queue, messages)
        except TransferError as e:
            log.warning("the depth of %s is not noted: %s", self.queue.name, e)

    def _ring(self) -> dict[str, Any] | None:
        self._due.setdefault("", (time.monotonic(), self.window.ring_seconds))  # the DAG may be back from its pause
        if not self._is_due("", self.window.ring_seconds) or not (visible := self.queue.depth().visible):
            return None
        return {"queue": self.queue.name, "batch": "", "messages": visible, "events": []}

    def _next(self) -> dict[str, Any] | None:
        messages = self._receive(_WAIT_SECONDS)
        if not messages:
            return None
        deadline = time.monotonic() + self.window.seconds
        while len(messages) <= self.window.messages - ENTRIES and time.monotonic() < deadline:
            if not (more := self._receive(_GAP_SECONDS)):
                break
            messages |= more
        batch = self.batches.open(list(messages.values()))
        self._hold(batch, list(messages.values()))
        return self._told(batch)

    def _receive(self, wait_seconds: int) -> dict[str, Message]:
        """Receive messages by id; those that ask for nothing, such as S3's test event, start no run."""
        received = [Delivery.read(m) for m in self.queue.receive(self.lease.seconds, wait_seconds)]
        if idle := [delivery for delivery in received if delivery.needs_nothing]:
            settle(self.queue, self.ledger, idle)
        return {d.message.id: d.message for d in received if not d.needs_nothing}

    def _told(self, batch: str) -> dict[str, Any]:
        """Return what an asset event says of a batch: of bounded size, however many messages it has."""
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
