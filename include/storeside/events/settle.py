"""Deletes leased messages, releases them, or sends them to the dead-letter queue with a reason."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from storeside.amounts import counted, others
from storeside.events.deliveries import Delivery, Verdict
from storeside.events.errors import UnfitError
from storeside.events.ledger import EventLedger
from storeside.events.queue import AT_ONCE, Message, Queue
from storeside.transfer.base.errors import shown

log = logging.getLogger(__name__)

MOST_FAILURES = 3
# The attributes that `settle` sets on a dead letter.
REASON, ORIGIN, QUEUE = "storeside.reason", "storeside.message_id", "storeside.queue"
_LONGEST_REASON = 1000
# Dead letters per record in the ledger: if the process dies, at most so many are sent twice.
_RECORDED = 100


@dataclass
class Settled:
    """Numbers of messages deleted, released, and moved to the dead-letter queue."""

    deleted: int = 0
    released: int = 0
    dead: int = 0

    def add(self, other: Settled) -> None:
        """Add the numbers of another batch."""
        self.deleted += other.deleted
        self.released += other.released
        self.dead += other.dead

    def line(self, messages: int, lag: float) -> str:
        """Return a line for the log: the outcome of messages, the oldest of which waited `lag` seconds."""
        kept = others((self.released, "released"), (self.dead, "sent to the dead-letter queue"))
        return f"{counted(messages, 'message')}: {self.deleted} deleted{kept}; the oldest waited {lag:.1f} s"


def settle(
    queue: Queue,
    ledger: EventLedger,
    deliveries: Sequence[Delivery],
    most_failures: int = MOST_FAILURES,
    let_go: Callable[[Iterable[Message]], None] = lambda messages: None,
) -> Settled:
    """Record the outcomes of the events, then delete, bury or release each message; see `Delivery.verdict`.

    A message that another consumer received meanwhile does not count as deleted: when it is received again, the
    ledger shows that its events are done. If the process dies between two steps, the next receipt repeats them. A
    dead letter can be sent twice only if the process dies between sending and recording it; `DeadLetters` treats both
    copies as one. A message that does not fit into the dead-letter queue together with its reason is released: SQS
    moves it there itself when it has been received `most_receives` times. `let_go` ends the lease of messages before
    they are released; the others stay leased, because many dead letters take longer than a lease.
    """
    most_receives = queue.redrive_policy[1]
    groups: dict[Verdict, list[Delivery]] = {"delete": [], "bury": [], "release": []}
    for delivery in deliveries:
        groups[delivery.verdict(most_failures, most_receives)].append(delivery)
    ledger.record(groups["delete"])
    buried, unfit = _bury_all(queue, ledger, groups["bury"])
    lost = queue.delete([delivery.message for delivery in [*groups["delete"], *buried]])
    released = [*groups["release"], *unfit]
    let_go(delivery.message for delivery in released)
    by_delay: dict[int, list[Delivery]] = {}
    for delivery in released:
        log.info("releasing message %s: %s", delivery.message.id, delivery.reason)
        by_delay.setdefault(delivery.delay_seconds, []).append(delivery)
    for delay, some in by_delay.items():
        queue.extend([delivery.message for delivery in some], delay)
    ledger.record(released, "released")  # at the end: each record counts as one failure, also in a task's next try
    deleted = [delivery for delivery in groups["delete"] if delivery.message.id not in lost]
    return Settled(len(deleted), len(released), len(buried))


def _bury_all(
    queue: Queue, ledger: EventLedger, deliveries: Sequence[Delivery]
) -> tuple[list[Delivery], list[Delivery]]:
    """Send messages to the dead-letter queue and record them; return those, and the ones that do not fit there."""
    buried: list[Delivery] = []
    unfit: list[Delivery] = []
    with ThreadPoolExecutor(AT_ONCE, thread_name_prefix="bury") as threads:
        for start in range(0, len(deliveries), _RECORDED):
            some = deliveries[start : start + _RECORDED]
            for delivery in some:
                log.warning("sending message %s to the dead-letter queue: %s", delivery.message.id, delivery.reason)
            there: list[Delivery] = []
            for delivery, refusal in zip(some, threads.map(lambda d: _bury(queue, d), some), strict=True):
                (unfit if refusal else there).append(delivery)
                if refusal:
                    log.warning(
                        "releasing message %s, which SQS moves itself after its last receive: %s",
                        delivery.message.id, refusal,
                    )  # fmt: skip
            ledger.record(there, "dead")
            buried += there
    return buried, unfit


def _bury(queue: Queue, delivery: Delivery) -> UnfitError | None:
    """Send a message to the dead-letter queue; return the error if it does not fit there with its attributes."""
    message = delivery.message
    try:
        queue.dead_letters.send(
            message.body,
            {REASON: _plain(delivery.reason), ORIGIN: message.id, QUEUE: queue.name},
            group=message.group,
            deduplication=message.id,
        )
    except UnfitError as e:
        return e
    return None


def _plain(text: str) -> str:
    """Return the text as SQS accepts it in an attribute: without control characters, and not too long."""
    plain = shown(text)
    return plain if len(plain) <= _LONGEST_REASON else f"{plain[:_LONGEST_REASON]} …"
