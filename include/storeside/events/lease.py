"""Leases messages while a process works on their objects."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Sequence
from itertools import groupby
from typing import TYPE_CHECKING

from storeside.events.batches import Batches
from storeside.events.errors import EventError
from storeside.events.ledger import EventLedger
from storeside.events.queue import MOST_BODIES, Message, Queue, receive

if TYPE_CHECKING:
    from clickhouse_connect.driver.client import Client

log = logging.getLogger(__name__)


class Lease:
    """Extends the visibility timeout of messages from a thread until `let_go`.

    When the lease ends, or its process dies, messages that it still holds become visible again after `seconds`.
    The timeout of a message that another consumer received cannot be extended any more. That only duplicates work: a
    loaded object version is not loaded again.
    """

    def __init__(self, queue: Queue, seconds: int = 120) -> None:
        self.queue = queue
        self.seconds = seconds
        self._held: dict[str, Message] = {}
        self._lock = threading.Lock()
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._beat, daemon=True)

    def __enter__(self) -> Lease:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()

    def hold(self, messages: Iterable[Message]) -> None:
        """Extend the timeout of these messages as well. If a message was received twice, the newer handle counts."""
        with self._lock:
            self._held.update({message.id: message for message in messages})

    def let_go(self, messages: Iterable[Message]) -> None:
        """Stop extending the timeout of these messages."""
        with self._lock:
            for message in messages:
                self._held.pop(message.id, None)

    def release_all(self, delay: Callable[[Message], int] = lambda message: 0) -> None:
        """Make all held messages visible after `delay` seconds, or after their timeout if SQS fails."""
        with self._lock:
            held, self._held = sorted(self._held.values(), key=delay), {}
        for seconds, some in groupby(held, key=delay):
            messages = list(some)
            try:
                self.queue.extend(messages, seconds)
            except EventError as e:
                log.warning(
                    "%d messages stay invisible until their lease of %d s ends: %s", len(messages), self.seconds, e
                )

    def _beat(self) -> None:
        while not self._end.wait(self.seconds / 3):
            # The lock prevents the extension of a message after its release.
            with self._lock:
                try:
                    lost = self.queue.extend(list(self._held.values()), self.seconds)
                except EventError as e:
                    log.warning("cannot extend the lease of %d messages, retrying: %s", len(self._held), e)
                    continue
                for gone in lost:
                    del self._held[gone]


def take_or_receive(
    queue: Queue, client: Client, run_id: str, batches: Sequence[str], most: int, lease_seconds: int
) -> int:
    """Take batches for a run, or receive a new batch; return the number of messages that the run has.

    `client` is a clickhouse-connect client. A run that calls this again keeps its messages, and also gets the
    messages that an earlier run of its DAG could not settle. Without messages, the depth of the queue is recorded, as
    when a run settles.
    """
    ledger = EventLedger(client, queue.url, run_id)
    ledger.create()
    _ = queue.redrive_policy  # raises if the queue has no dead-letter queue
    known = Batches(client, queue.url)
    count = sum(len(known.take(batch, run_id)) for batch in dict.fromkeys([*batches, *known.left_to(run_id)]))
    if count:
        return count
    messages: dict[str, Message] = {}

    def take(some: Sequence[Message]) -> None:
        messages.update({message.id: message for message in some})

    receive(queue, lease_seconds, most, take, lambda: sum(len(m.body) for m in messages.values()) < MOST_BODIES)
    if messages:
        known.open(list(messages.values()), run_id)
    else:
        ledger.record_depth(queue)
    return len(messages)
