"""Deletes leased messages, releases them, or sends them to the dead-letter queue with a reason."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

from storeside.events.deliveries import Delivery, Verdict
from storeside.events.errors import UnfitError
from storeside.events.ledger import EventLedger
from storeside.events.queue import Queue
from storeside.transfer.errors import shown

log = logging.getLogger(__name__)

MOST_FAILURES = 3
# The attributes that `settle` sets on a dead letter.
REASON, ORIGIN, QUEUE = "storeside.reason", "storeside.message_id", "storeside.queue"
_LONGEST_REASON = 1000


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


def settle(
    queue: Queue, ledger: EventLedger, deliveries: Sequence[Delivery], most_failures: int = MOST_FAILURES
) -> Settled:
    """Record the outcomes of the events, then delete, bury or release each message; see `Delivery.verdict`.

    A message that another consumer received meanwhile does not count as deleted: when it is received again, the
    ledger shows that its events are done. If the process dies between two steps, the next receipt repeats them. A
    dead letter can be sent twice only if the process dies between sending and recording it; `DeadLetters` treats both
    copies as one. A message that does not fit into the dead-letter queue together with its reason is released: SQS
    moves it there itself when it has been received `most_receives` times.
    """
    most_receives = queue.redrive_policy[1]
    groups: dict[Verdict, list[Delivery]] = {"delete": [], "bury": [], "release": []}
    for delivery in deliveries:
        groups[delivery.verdict(most_failures, most_receives)].append(delivery)
    ledger.record(groups["delete"])
    ledger.record(groups["release"], "released")
    buried: list[Delivery] = []
    unfit: list[Delivery] = []
    for delivery in groups["bury"]:
        (buried if _bury(queue, delivery) else unfit).append(delivery)
    ledger.record(buried, "dead")
    ledger.record(unfit, "released")
    lost = queue.delete([delivery.message for delivery in [*groups["delete"], *buried]])
    released = [*groups["release"], *unfit]
    by_delay: dict[int, list[Delivery]] = {}
    for delivery in released:
        by_delay.setdefault(delivery.delay_seconds, []).append(delivery)
    for delay, some in by_delay.items():
        queue.extend([delivery.message for delivery in some], delay)
    deleted = [delivery for delivery in groups["delete"] if delivery.message.id not in lost]
    return Settled(len(deleted), len(released), len(buried))


def _bury(queue: Queue, delivery: Delivery) -> bool:
    """Send a message to the dead-letter queue; return False if it does not fit there with its attributes."""
    message, reason = delivery.message, delivery.reason
    log.warning("sending message %s to the dead-letter queue: %s", message.id, reason)
    try:
        queue.dead_letters.send(
            message.body,
            {REASON: _plain(reason), ORIGIN: message.id, QUEUE: queue.name},
            group=message.group,
            deduplication=message.id,
        )
    except UnfitError as e:
        log.warning("releasing message %s, which SQS moves itself after its last receive: %s", message.id, e)
        return False
    return True


def _plain(text: str) -> str:
    """Return the text as SQS accepts it in an attribute: without control characters, and not too long."""
    plain = shown(text)
    return plain if len(plain) <= _LONGEST_REASON else f"{plain[:_LONGEST_REASON]} …"
