"""The numbers of a run that drains a queue."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from storeside.events.deliveries import Delivery
from storeside.events.settle import Settled


@dataclass
class Drained:
    """Numbers of a run that drains a queue.

    Events that earlier tries of the run loaded or skipped are included; the other numbers count this try only. A
    message whose deletion was interrupted counts twice.

    :param messages: messages received
    :param events: events in them
    :param loaded: events whose objects are loaded
    :param skipped: events whose objects need no load
    :param deleted: messages deleted from the queue
    :param released: messages that other consumers can receive again
    :param dead: messages sent to the dead-letter queue
    :param rows: rows loaded
    :param rejected: rows that could not be parsed, and rows in the quarantine
    :param bytes: bytes of the loaded objects
    :param oldest_seconds: longest age of a message in seconds
    :param seconds: seconds of the run
    :param handled: source objects that were deleted, moved or tagged
    :param left: source objects that S3 refused to change
    :param verdict: the suite's verdict on the rows that this try read; None without a suite
    """

    messages: int = 0
    events: int = 0
    loaded: int = 0
    skipped: int = 0
    deleted: int = 0
    released: int = 0
    dead: int = 0
    rows: int = 0
    rejected: int = 0
    bytes: int = 0
    oldest_seconds: float = 0.0
    seconds: float = 0.0
    handled: int = 0
    left: int = 0
    verdict: dict[str, Any] | None = None

    def add(self, messages: int, deliveries: Sequence[Delivery], settled: Settled, lag: float) -> None:
        """Add the numbers of a batch."""
        states = [outcome.state for delivery in deliveries for outcome in delivery.outcomes]
        self.messages += messages
        self.events += len(states)
        self.loaded += states.count("loaded")
        self.skipped += states.count("skipped")
        self.deleted += settled.deleted
        self.released += settled.released
        self.dead += settled.dead
        self.oldest_seconds = max(self.oldest_seconds, lag)
