"""Receives the messages of a queue: several requests at the same time, in batches, within the limits of a run."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

from storeside.events.deliveries import Delivery
from storeside.events.errors import EventInputError
from storeside.events.queue import AT_ONCE, ENTRIES, LONG_POLL, Message, Queue
from storeside.events.settle import MOST_FAILURES

if TYPE_CHECKING:
    from storeside.events.lease import Lease


@dataclass(frozen=True)
class Limits:
    """How much one run takes in total and per batch.

    The run stops receiving after `seconds`, after `messages`, or after messages with `bytes` of new objects; SQS
    returns up to ten messages at a time, and the run processes all that it received. `bytes` 0 is no limit.
    `idle_seconds` is how long it waits for messages when the queue is empty; a run that waits follows the queue, and
    watchers leave the messages to it. A batch is leased and loaded together.
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
        if not 3 <= self.lease_seconds <= 3600:
            raise EventInputError(f"lease_seconds {self.lease_seconds}: needs to be from 3 to 3600")


class Intake:
    """The messages that one run receives until `end` (monotonic seconds), until `stop` is set, or within limits."""

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

        While the caller processes a batch, the next one is received; if it then needs no more, that one is released.
        """
        with ThreadPoolExecutor(1, thread_name_prefix="receive") as thread:
            deliveries = self._receive(self.limits.idle_seconds)
            while deliveries and not self.stop.is_set():
                self._messages += len(deliveries)
                self._bytes += sum(delivery.bytes for delivery in deliveries)
                ahead = thread.submit(self._receive, 0)
                yield deliveries
                deliveries = ahead.result() or self._receive(self.limits.idle_seconds)
        self.lease.release_all()

    def close(self) -> None:
        """Receive no more messages, from any thread; a request that waits for messages ends within seconds."""
        self.end = 0.0

    def _receive(self, idle_seconds: float) -> list[Delivery]:
        """Receive one batch; wait `idle_seconds` for its first message."""
        limits = self.limits
        most = min(limits.batch_messages, limits.messages - self._messages)
        most_bytes = min(limits.batch_bytes, limits.bytes - self._bytes) if limits.bytes else limits.batch_bytes
        received: list[Delivery] = []
        size = 0
        if most < 1:
            return received

        def take(messages: Sequence[Message]) -> None:
            nonlocal size
            self.lease.hold(messages)
            some = [Delivery.read(message) for message in messages]
            received.extend(some)
            size += sum(delivery.bytes for delivery in some)

        def wants_more() -> bool:
            return size < most_bytes and not self.stop.is_set() and time.monotonic() < self.end

        deadline = min(time.monotonic() + idle_seconds, self.end)
        while wants_more():
            # An empty response to a long poll means that the queue is empty; one to a short poll does not.
            wait = round(min(max(deadline - time.monotonic(), 1), LONG_POLL))
            # Responses that are already on their way could exceed the run's limit of bytes.
            at_once = 1 if limits.bytes else AT_ONCE
            receive(self.queue, limits.lease_seconds, most, take, wants_more, wait, at_once)
            if received or time.monotonic() >= min(deadline, self.end):
                break
        return received


def receive(
    queue: Queue,
    lease_seconds: int,
    most: int,
    take: Callable[[Sequence[Message]], None],
    wants_more: Callable[[], bool] = lambda: True,
    wait_seconds: int = 1,
    at_once: int = AT_ONCE,
) -> None:
    """Receive messages and pass each response to `take`, which is never called by two threads at the same time.

    The first request waits `wait_seconds` at most. If it returns messages, `at_once` threads send further requests
    until a response is empty, `wants_more` returns False, or `most` messages were received (nine more at most, as a
    response has up to ten). Raises EventError, after all threads have ended.
    """
    first = queue.receive(lease_seconds, wait_seconds)
    take(first)
    lock = threading.Lock()
    asked = len(first)  # messages received, plus ten for each response on its way
    ended = not first

    def follow() -> None:
        nonlocal asked, ended
        while True:
            with lock:
                if ended or asked >= most or not wants_more():
                    return
                asked += ENTRIES
            messages: Sequence[Message] = ()
            try:
                messages = queue.receive(lease_seconds)
            finally:
                with lock:
                    asked -= ENTRIES - len(messages)
                    ended = ended or not messages
                    take(messages)

    with ThreadPoolExecutor(at_once, thread_name_prefix="receive") as threads:
        for future in [threads.submit(follow) for _ in range(at_once)]:
            future.result()
