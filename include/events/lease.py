"""Messages that a process holds while it works on their objects."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Sequence
from itertools import groupby
from typing import Any

from include.events.batches import Batches
from include.events.ledger import EventLedger
from include.events.queue import Message, Queue
from include.transfer.errors import TransferError

log = logging.getLogger(__name__)


class Lease:
    """Extends the visibility timeout of messages, from a thread, until they are given up.

    When it ends, or its process dies, those that it still holds are visible again after `seconds`. Those that could
    not be extended, as somebody else has them by now, are in `lost`; that costs nothing but work done twice, as an
    object version that is loaded is not loaded again.
    """

    def __init__(self, queue: Queue, seconds: int = 120) -> None:
        self.queue = queue
        self.seconds = seconds
        self.lost: set[str] = set()
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
        """Extend these from now on; of a message that was received twice, the newer handle counts."""
        with self._lock:
            self._held.update({message.id: message for message in messages})

    def let_go(self, messages: Iterable[Message]) -> None:
        """Extend these no more."""
        with self._lock:
            for message in messages:
                self._held.pop(message.id, None)

    def release_all(self, delay: Callable[[Message], int] = lambda message: 0) -> None:
        """Make what is still held visible after `delay` seconds, or at once; where that fails the timeout does it."""
        with self._lock:
            held, self._held = sorted(self._held.values(), key=delay), {}
        for seconds, some in groupby(held, key=delay):
            messages = list(some)
            try:
                self.queue.extend(messages, seconds)
            except TransferError as e:
                log.warning(
                    "%d messages come again when their lease of %d s ends: %s", len(messages), self.seconds, e
                )

    def _beat(self) -> None:
        while not self._end.wait(self.seconds / 3):
            # Under the lock, so that no message is extended after it was released.
            with self._lock:
                try:
                    lost = self.queue.extend(list(self._held.values()), self.seconds)
                except TransferError as e:
                    log.warning("the lease of %d messages is not extended, trying again: %s", len(self._held), e)
                    continue
                for gone in lost:
                    del self._held[gone]
                self.lost |= lost


def take_or_receive(
    queue: Queue, client: Any, run_id: str, batches: Sequence[str], most: int, lease_seconds: int
) -> int:
    """Make batches a run's, or a new one of up to so many messages; returns how many messages the run has.

    `client` is a clickhouse-connect client. A run that does this again keeps what it has, and gets what an
    earlier run of its DAG could not settle.
    """
    EventLedger(client, queue.url, run_id).create()
    _ = queue.redrive_policy  # what cannot be processed will need a place to go
    known = Batches(client, queue.url)
    count = sum(len(known.take(batch, run_id)) for batch in dict.fromkeys([*batches, *known.left_to(run_id)]))
    if count:
        return count
    messages: dict[str, Message] = {}
    while len(messages) < most and (some := queue.receive(lease_seconds, 0 if messages else 1)):
        messages.update({message.id: message for message in some})
    if messages:
        known.open(list(messages.values()), run_id)
    return len(messages)
