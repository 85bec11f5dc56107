"""Dead letters of a queue: list them with their reasons, and send them back for another try."""

from __future__ import annotations

import time
from collections.abc import Collection
from dataclasses import dataclass

from storeside.events.deliveries import Delivery
from storeside.events.notifications import S3Event
from storeside.events.queue import Message, Queue
from storeside.events.settle import ORIGIN, QUEUE, REASON

_MOVED = (
    "SQS itself moved it here, as it was received more often than its queue allows: the process that had it was ended"
    " each time, or a server did not answer. When that is over, send it back"
)
_LOOK_SECONDS = 30
_REDRIVE_SECONDS = 300


@dataclass(frozen=True)
class DeadLetter:
    """A message that could not be processed: `message_id` is its id in the queue of origin.

    SQS keeps the id of a message that it moves itself.
    """

    message_id: str
    reason: str
    sent_at: float
    events: tuple[S3Event, ...]
    body: str


class DeadLetters:
    """The dead letters of a queue; those of other queues that share its dead-letter queue are not touched.

    A dead letter names its queue in an attribute that SQS or `settle` sets. One without it, such as a message that
    was sent to the dead-letter queue directly, may belong to any of the queues: it is included only with `unclaimed`.
    """

    def __init__(self, queue: Queue, *, unclaimed: bool = True) -> None:
        self.queue = queue
        self.unclaimed = unclaimed
        self.dead = queue.dead_letters

    def listed(self, limit: int = 1000) -> list[DeadLetter]:
        """Return dead letters with their reasons, oldest first; they stay in the dead-letter queue.

        Meanwhile, for at most half a minute, other consumers do not see them.
        """
        received, others = self._receive(limit, _LOOK_SECONDS)
        self.dead.extend([*others, *(m for messages in received.values() for m in messages)], 0)
        found = [_letter(name, messages[0]) for name, messages in received.items()]
        return sorted(found, key=lambda letter: letter.sent_at)

    def redrive(self, message_ids: Collection[str] | None = None, limit: int = 100_000) -> int:
        """Send these dead letters, or all, back to their queue and return their number.

        Each is deleted after it was sent: if the process dies in between, the message is in both queues.
        """
        count = 0
        received, others = self._receive(limit, _REDRIVE_SECONDS)
        for name, messages in received.items():
            if message_ids is not None and name not in message_ids:
                others += messages
                continue
            # Another name than the first time: a FIFO queue drops messages that repeat one of the last five minutes.
            self.queue.send(
                messages[0].body, {}, group=messages[0].group, deduplication=f"{name}-{messages[0].id}"[-128:]
            )
            self.dead.delete(messages)
            count += 1
        self.dead.extend(others, 0)
        return count

    def _receive(self, limit: int, lease_seconds: int) -> tuple[dict[str, list[Message]], list[Message]]:
        """Return dead letters by the original message id, each with all its copies, and those of other queues."""
        letters: dict[str, list[Message]] = {}
        others: list[Message] = []
        seen: set[str] = set()
        deadline = time.monotonic() + lease_seconds / 2
        # SQS gives only an approximate number of messages; an empty response to a long poll is the end.
        while len(seen) < limit and time.monotonic() < deadline:
            messages = self.dead.receive(lease_seconds, 1)
            if not messages:
                break
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
        return letters, others

    def _is_mine(self, message: Message) -> bool:
        queue = message.source or _ours(message, QUEUE)
        return queue == self.queue.name or (not queue and self.unclaimed)


def _ours(message: Message, name: str) -> str:
    """Return one of the attributes that `settle` sets on a dead letter.

    On a message that SQS itself moved, the attributes are outdated: it was a dead letter before and was sent back.
    """
    return "" if message.source else message.attributes.get(name, "")


def _letter(name: str, message: Message) -> DeadLetter:
    delivery = Delivery.read(message)
    reason = _ours(message, REASON) or delivery.error or _MOVED
    return DeadLetter(name, reason, message.sent, tuple(delivery.events), message.body)
