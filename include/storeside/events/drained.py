"""The numbers of a run that drains a queue."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from storeside.events.deliveries import Delivery
from storeside.events.settle import Settled


@dataclass
class Drained:
    """Numbers of a run: messages, events by outcome, and rows; `oldest_seconds` is the longest age of a message.

    Events that earlier tries of the run loaded or skipped are included; the other numbers count this try only. A
    message whose deletion was interrupted counts twice. `handled` counts source objects that were deleted, moved or
    tagged, and `left` those that S3 refused to change. `verdict` is that of the suite on the rows that this try read.
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
