"""Receives messages of a queue in batches, with concurrent requests, within the limits of a run."""

from __future__ import annotations

import threading
import time
from collections.abc import Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

from storeside.events.deliveries import Delivery
from storeside.events.errors import EventInputError
from storeside.events.queue import AT_ONCE, LONG_POLL, MOST_BODIES, Message, Queue, receive
from storeside.events.settle import MOST_FAILURES

if TYPE_CHECKING:
    from storeside.events.lease import Lease


@dataclass(frozen=True)
class Limits:
    """How many messages one run receives, in total and per batch.

    The run stops receiving after `seconds`, after `messages`, or after messages with `bytes` of new objects; 0 means
    no limit of bytes. SQS returns up to ten messages per response, and the run processes all received messages. When
    the queue is empty, the run waits `idle_seconds` for messages. A run that waits follows the queue, so watchers
    lease no messages. The messages of a batch are leased, for `lease_seconds`, and loaded together; a batch also ends
    at `MOST_BODIES` characters. A message becomes a dead letter after `most_failures` failures.
    """

    messages: int = 100_000
    seconds: float = 600.0
    idle_seconds: float = 0.0
    batch_messages: int = 2500
    batch_bytes: int = 1 << 30
    lease_seconds: int = 120
    most_failures: int = MOST_FAILURES
    bytes: int = 0

    def __post_init__(self) -> None:
        for name in ("messages", "batch_messages", "batch_bytes", "most_failures"):
            if getattr(self, name) < 1:
                raise EventInputError(f"{name} {getattr(self, name)}: needs to be 1 or more")
        if self.bytes < 0:
            raise EventInputError(f"bytes {self.bytes}: needs to be 1 or more, or 0 for no limit")
        for name in ("seconds", "idle_seconds"):
            if not getattr(self, name) >= 0:  # also for NaN, with which a run would receive nothing
                raise EventInputError(f"{name} {getattr(self, name)}: needs to be 0 or more")
        if not 3 <= self.lease_seconds <= 3600:
            raise EventInputError(f"lease_seconds {self.lease_seconds}: needs to be from 3 to 3600")


class Intake:
    """Receives the messages of one run until `end` (monotonic seconds), a limit, or until `stop` is set."""

    def __init__(self, queue: Queue, lease: Lease, limits: Limits, stop: threading.Event, end: float) -> None:
        self.queue = queue
        self.lease = lease
        self.limits = limits
        self.stop = stop
        self.end = end
        self._messages = 0
        self._bytes = 0

    def batches(self) -> Generator[list[Delivery]]:
        """Yield batches until the queue has been empty for `idle_seconds` or a limit is reached.

        A thread receives the next batch while the caller processes others. If the caller stops, that batch is
        released. An empty batch means that the queue is empty: the caller then finishes its batches first, because
        they may release messages.
        """
        with ThreadPoolExecutor(1, thread_name_prefix="receive") as thread:
            deliveries = self._receive(self.limits.idle_seconds)
            while deliveries and not self.stop.is_set():
                self._messages += len(deliveries)
                self._bytes += sum(delivery.bytes for delivery in deliveries)
                ahead = thread.submit(self._receive, 0)
                yield deliveries
                if not (deliveries := ahead.result()):
                    yield []
                    deliveries = self._receive(self.limits.idle_seconds)
        self.lease.release_all()

    def close(self) -> None:
        """Stop receiving, from any thread; a request that waits for messages ends within seconds."""
        self.end = 0.0

    def _receive(self, idle_seconds: float) -> list[Delivery]:
        """Receive one batch; wait `idle_seconds` for its first message."""
        limits = self.limits
        most = min(limits.batch_messages, limits.messages - self._messages)
        most_bytes = min(limits.batch_bytes, limits.bytes - self._bytes) if limits.bytes else limits.batch_bytes
        received: list[Delivery] = []
        size = bodies = 0
        if most < 1:
            return received

        def take(messages: Sequence[Message]) -> None:
            nonlocal size, bodies
            self.lease.hold(messages)
            some = [Delivery.read(message) for message in messages]
            received.extend(some)
            size += sum(delivery.bytes for delivery in some)
            bodies += sum(len(message.body) for message in messages)

        def wants_more() -> bool:
            fits = size < most_bytes and bodies < MOST_BODIES
            return fits and not self.stop.is_set() and time.monotonic() < self.end

        deadline = min(time.monotonic() + idle_seconds, self.end)
        while wants_more():
            # An empty response means that the queue is empty after a long poll, but not after a short poll.
            wait = round(min(max(deadline - time.monotonic(), 1), LONG_POLL))
            # Concurrent requests could exceed the run's limit of bytes.
            at_once = 1 if limits.bytes else AT_ONCE
            receive(self.queue, limits.lease_seconds, most, take, wants_more, wait, at_once)
            if received or time.monotonic() >= min(deadline, self.end):
                break
        return received
