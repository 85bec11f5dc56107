"""Receiving and deleting with several requests at the same time, from a queue in another process."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from storeside.events import intake
from storeside.events.errors import EventTransientError
from storeside.events.lease import Lease
from storeside.events.queue import AT_ONCE, Queue, receive
from storeside.stack.servers import s3
from tests.benchmarks import queue_server

COUNT = 200


@pytest.fixture
def queue() -> Iterator[Queue]:
    with queue_server.serve(COUNT, COUNT, "drain") as endpoint:
        yield Queue(s3.client("sqs", endpoint, "x", "y"), queue_server.url(endpoint))


def meet(queue: Queue, request: str, after: int = 0) -> None:
    """Let each of these requests, after the first ones, wait until as many as allowed are sent at the same time."""
    together, lock, sent = threading.Barrier(AT_ONCE), threading.Lock(), iter(range(10**6))

    def wait(**_: Any) -> None:
        with lock:
            number = next(sent)
        if after <= number < after + AT_ONCE:
            together.wait(20)

    queue.sqs.meta.events.register(f"before-call.sqs.{request}", wait)


def test_messages_are_received_and_deleted_with_several_requests_at_once(queue: Queue) -> None:
    meet(queue, "ReceiveMessage", after=1)
    meet(queue, "DeleteMessageBatch")
    messages: list[Any] = []
    receive(queue, 60, COUNT + 100, messages.extend)
    assert len({message.id for message in messages}) == len(messages) == COUNT
    assert queue.delete(messages) == set()
    assert (queue.depth().visible, queue.depth().in_flight) == (0, 0)


@pytest.mark.parametrize("most", [1, 10, 95, 100])
def test_no_more_messages_are_received_than_asked_for(queue: Queue, most: int) -> None:
    messages: list[Any] = []
    receive(queue, 60, most, messages.extend)
    assert most <= len(messages) < most + 10
    assert queue.depth().in_flight == len(messages)


def test_receiving_ends_when_no_more_are_wanted(queue: Queue) -> None:
    messages: list[Any] = []
    receive(queue, 60, COUNT, messages.extend, lambda: len(messages) < 50)
    assert 50 <= len(messages) < 50 + 10 * AT_ONCE
    assert queue.depth().in_flight == len(messages)


def test_an_error_ends_all_requests_and_what_arrived_is_known(queue: Queue) -> None:
    sent = iter(range(10**6))

    def fail(**_: Any) -> None:
        if next(sent) == 5:
            raise EventTransientError("throttled")

    queue.sqs.meta.events.register("before-call.sqs.ReceiveMessage", fail)
    messages: list[Any] = []
    with pytest.raises(EventTransientError, match="throttled"):
        receive(queue, 60, COUNT, messages.extend)
    assert queue.depth().in_flight == len(messages) < COUNT


def test_a_batch_ends_before_its_bodies_fill_the_memory(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(intake, "MOST_BODIES", 10_000)
    with Lease(queue, 60) as lease:
        batches = intake.Intake(queue, lease, intake.Limits(), threading.Event(), time.monotonic() + 60).batches()
        sizes = [[len(delivery.message.body) for delivery in deliveries] for deliveries in batches if deliveries]
    assert sum(map(len, sizes)) == COUNT
    assert len(sizes) >= 3
    longest = max(map(max, sizes))
    assert all(sum(some) < 10_000 + 10 * AT_ONCE * longest for some in sizes)
