"""Dead letters of a queue: listed with their reasons, and sent back to be tried again."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator
from dataclasses import dataclass

from include.events.deliveries import Delivery
from include.events.notifications import S3Event
from include.events.queue import Message, Queue
from include.events.settle import ORIGIN, REASON

_UNKNOWN = "SQS itself has moved it here, after it was received too often and never finished"
_LOOK_SECONDS = 30
_REDRIVE_SECONDS = 300


@dataclass(frozen=True)
class DeadLetter:
    """A message that could not be processed: `message_id` is that of its queue, where it is known."""

    message_id: str
    reason: str
    sent_at: float
    events: tuple[S3Event, ...]
    body: str


class DeadLetters:
    """The dead-letter queue of a queue."""

    def __init__(self, queue: Queue) -> None:
        self.queue = queue
        self.dead = queue.dead_letters

    def listed(self, limit: int = 1000) -> list[DeadLetter]:
        """Return dead letters with their reasons, oldest first; they stay where they are.

        Meanwhile, and for half a minute at most, others do not see them.
        """
        received = dict(self._receive(limit, _LOOK_SECONDS))
        self.dead.extend([m for messages in received.values() for m in messages], 0)
        found = [_letter(name, messages[0]) for name, messages in received.items()]
        return sorted(found, key=lambda letter: letter.sent_at)

    def redrive(self, message_ids: Collection[str] | None = None, limit: int = 100_000) -> int:
        """Send these dead letters, or all, back to their queue; returns how many.

        Each is deleted after it was sent: one that is cut off in between is in both queues.
        """
        count = 0
        others: list[Message] = []
        for name, messages in self._receive(limit, _REDRIVE_SECONDS):
            if message_ids is not None and name not in message_ids:
                others += messages
                continue
            # Another name than the first time: a FIFO queue drops what it has had within five minutes.
            self.queue.send(
                messages[0].body, {}, group=messages[0].group, deduplication=f"{name}-{messages[0].id}"[-128:]
            )
            self.dead.delete(messages)
            count += 1
        self.dead.extend(others, 0)
        return count

    def _receive(self, limit: int, lease_seconds: int) -> Iterator[tuple[str, list[Message]]]:
        """Yield dead letters by the names of their messages, each with all its copies."""
        letters: dict[str, list[Message]] = {}
        seen: set[str] = set()
        deadline = time.monotonic() + lease_seconds / 2
        # The number of messages that SQS gives is an approximate one; an empty answer to a long poll is the end.
        while len(seen) < limit and time.monotonic() < deadline:
            messages = self.dead.receive(lease_seconds, 1)
            if not messages:
                break
            for message in messages:
                if message.id not in seen:
                    seen.add(message.id)
                    letters.setdefault(message.attributes.get(ORIGIN) or message.id, []).append(message)
        yield from letters.items()


def _letter(name: str, message: Message) -> DeadLetter:
    delivery = Delivery.read(message)
    reason = message.attributes.get(REASON) or delivery.error or _UNKNOWN
    return DeadLetter(name, reason, message.sent, tuple(delivery.events), message.body)
