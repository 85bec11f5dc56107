"""Lists the dead letters of a queue with their reasons, and sends them back for another try."""

from __future__ import annotations

import time
from collections.abc import Collection
from dataclasses import dataclass

from storeside.events.deliveries import Delivery
from storeside.events.notifications import S3Event
from storeside.events.queue import Message, Queue
from storeside.events.settle import ORIGIN, QUEUE, REASON

_MOVED = (
    "SQS moved the message here because it was received more often than its queue allows: each time, the process that"
    " had it was killed, or a server did not answer. Correct the cause, then send the message back"
)
_LOOK_SECONDS = 30
_REDRIVE_SECONDS = 300


@dataclass(frozen=True)
class DeadLetter:
    """A message that could not be processed; `message_id` is its id in the original queue.

    SQS keeps the id of a message that SQS moves. `sent_at` is in seconds since the epoch.
    """

    message_id: str
    reason: str
    sent_at: float
    events: tuple[S3Event, ...]
    body: str


class DeadLetters:
    """The dead letters of one queue, without those of other queues that share its dead-letter queue.

    SQS or `settle` sets an attribute with the queue of a dead letter. A message without this attribute, such as one
    that was sent to the dead-letter queue directly, may belong to any queue: `unclaimed` includes these messages.
    """

    def __init__(self, queue: Queue, *, unclaimed: bool = True) -> None:
        self.queue = queue
        self.unclaimed = unclaimed
        self.dead = queue.dead_letters
        # Whether the last call ended before the end of the dead-letter queue.
        self.has_more = False

    def listed(self, limit: int = 1000) -> list[DeadLetter]:
        """Return dead letters with their reasons, oldest first; they stay in the dead-letter queue.

        For at most 30 s, the messages are invisible to other consumers.
        """
        received, others = self._receive(limit, _LOOK_SECONDS, _LOOK_SECONDS / 2)
        self.dead.extend([*others, *(m for messages in received.values() for m in messages)], 0)
        found = [_letter(name, messages[0]) for name, messages in received.items()]
        return sorted(found, key=lambda letter: letter.sent_at)

    def redrive(
        self, message_ids: Collection[str] | None = None, limit: int = 100_000, seconds: float = _REDRIVE_SECONDS / 2
    ) -> int:
        """Send these dead letters, or all, back to their queue and return their number.

        This receives messages for at most `seconds`. It ends earlier when it has received each of these dead letters.
        Each message is sent first and then deleted: if the process dies between, the message is in both queues.
        """
        count = 0
        received, others = self._receive(limit, _REDRIVE_SECONDS, seconds, message_ids)
        for name, messages in received.items():
            if message_ids is not None and name not in message_ids:
                others += messages
                continue
            # A new deduplication id, because a FIFO queue drops a message that repeats one of the last five minutes.
            self.queue.send(
                messages[0].body, {}, group=messages[0].group, deduplication=f"{name}-{messages[0].id}"[-128:]
            )
            self.dead.delete(messages)
            count += 1
        self.dead.extend(others, 0)
        return count

    def _receive(
        self, limit: int, lease_seconds: int, seconds: float, wanted: Collection[str] | None = None
    ) -> tuple[dict[str, list[Message]], list[Message]]:
        """Return dead letters by original message id, each with its copies, and the messages of other queues."""
        letters: dict[str, list[Message]] = {}
        others: list[Message] = []
        seen: set[str] = set()
        deadline = time.monotonic() + seconds
        self.has_more = True
        # SQS reports only an approximate number of messages; an empty response to a long poll means the end.
        while len(seen) < limit and time.monotonic() < deadline:
            messages = self.dead.receive(lease_seconds, 1)
            if not messages:
                self.has_more = False
                break
            is_wanted = False
            for message in messages:
                if message.id in seen:
                    continue
                seen.add(message.id)
                if not self._is_mine(message):
                    others.append(message)
                    continue
                name = _ours(message, ORIGIN) or message.id
                if name in letters and letters[name][0].body != message.body:  # no copy: the attribute is forged
                    name = message.id
                letters.setdefault(name, []).append(message)
                is_wanted |= wanted is not None and name in wanted
            if wanted is not None and not is_wanted and all(name in letters for name in wanted):
                break  # also no further copy of them
        return letters, others

    def _is_mine(self, message: Message) -> bool:
        queue = message.source or _ours(message, QUEUE)
        return queue == self.queue.name or (not queue and self.unclaimed)


def _ours(message: Message, name: str) -> str:
    """Return one of the attributes that `settle` sets on a dead letter.

    On a message that SQS moved, the attributes are outdated: they are from an earlier time as a dead letter.
    """
    return "" if message.source else message.attributes.get(name, "")


def _letter(name: str, message: Message) -> DeadLetter:
    delivery = Delivery.read(message)
    reason = _ours(message, REASON) or delivery.error or _MOVED
    return DeadLetter(name, reason, message.sent, tuple(delivery.events), message.body)
