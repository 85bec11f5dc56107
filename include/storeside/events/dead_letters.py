"""Lists the dead letters of a queue with their reasons, and sends them back for another try."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace

from storeside.events.deliveries import Delivery
from storeside.events.notifications import S3Event
from storeside.events.queue import MOST_BODIES, Message, Queue
from storeside.events.settle import ORIGIN, QUEUE, REASON

log = logging.getLogger(__name__)

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

        There are at most `limit`, and their bodies have about `MOST_BODIES` characters at most.
        For at most 30 s, the messages are invisible to other consumers. A FIFO queue delivers only the first messages
        of each group, ten at most, because it delivers no others while these are invisible.
        """
        letters: dict[str, Message] = {}
        received: list[Message] = []
        for mine, others in self._responses(limit, _LOOK_SECONDS, _LOOK_SECONDS / 2):
            received += [*others, *(message for _, message in mine)]
            for name, message in mine:
                letters.setdefault(name, message)
            if sum(len(message.body) for message in received) >= MOST_BODIES:
                break
        self.dead.extend(received, 0)
        return sorted((_letter(*found) for found in letters.items()), key=lambda letter: letter.sent_at)

    def redrive(
        self, message_ids: Collection[str] | None = None, limit: int = 100_000, seconds: float = math.inf
    ) -> int:
        """Send these dead letters, or all, back to their queue and return their number.

        This receives messages for at most `seconds`. It ends earlier when it has received each of these dead letters.
        Each message is sent first and then deleted: if the process dies between, the message is in both queues. A
        message that returns to the dead-letter queue meanwhile is not sent again.
        """
        sent: set[str] = set()
        returned: set[str] = set()  # the ids that their messages have in the queue
        kept: dict[str, Message] = {}
        try:
            for mine, others in self._responses(limit, _REDRIVE_SECONDS, seconds):
                # The bodies are not needed any more, and could fill the memory.
                kept |= {m.id: replace(m, body="") for m in (*others, *(message for _, message in mine))}
                done = []
                for name, message in mine:
                    if name in returned or not (message_ids is None or name in message_ids):
                        continue
                    if name not in sent:  # otherwise it is a copy
                        returned.add(self._send_back(name, message))
                        sent.add(name)
                    done.append(message)
                self.dead.delete(done)
                for message in done:
                    del kept[message.id]
                if not done and message_ids is not None and sent.issuperset(message_ids):
                    break  # also no further copy of them
        finally:
            self.dead.extend(list(kept.values()), 0)
        return len(sent)

    def _send_back(self, name: str, message: Message) -> str:
        # A new deduplication id, because a FIFO queue drops a message that repeats one of the last five minutes.
        deduplication = f"{name}-{message.id}"[-128:]
        returned = self.queue.send(message.body, {}, group=message.group, deduplication=deduplication)
        log.info("sent dead letter %s back to %s", name, self.queue.name)
        return returned

    def _responses(
        self, limit: int, lease_seconds: int, seconds: float
    ) -> Iterator[tuple[list[tuple[str, Message]], list[Message]]]:
        """Yield each response: dead letters with their original message ids, and the messages of other queues.

        Copies of a dead letter have the same id.
        """
        bodies: dict[str, int] = {}
        seen: set[str] = set()
        deadline = time.monotonic() + seconds
        self.has_more = True
        # SQS reports only an approximate number of messages; an empty response to a long poll means the end.
        while len(seen) < limit and time.monotonic() < deadline:
            if not (messages := self.dead.receive(lease_seconds, 1)):
                self.has_more = False
                return
            new = [message for message in messages if message.id not in seen]
            seen.update(message.id for message in new)
            mine = []
            for message in filter(self._is_mine, new):
                name, body = _ours(message, ORIGIN) or message.id, hash(message.body)
                if bodies.setdefault(name, body) != body:  # no copy: the attribute is forged
                    name = message.id
                mine.append((name, message))
            yield mine, [message for message in new if not self._is_mine(message)]

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
