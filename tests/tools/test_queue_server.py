"""The queue of the burst benchmark, as our SQS client sees it."""

from __future__ import annotations

from storeside.events.queue import Queue
from storeside.stack.servers import s3
from tests.benchmarks import queue_server
from tests.benchmarks.queue_server import ACCOUNT, DEAD, NAME, serve


def test_messages_are_held_come_again_and_are_deleted() -> None:
    with serve(count=12, objects=5, bucket="drain") as endpoint:
        queue = Queue.find(s3.client("sqs", endpoint, "x", "y"), f"{endpoint}/{ACCOUNT}/{NAME}")
        assert queue.redrive_policy == (DEAD, 50)
        assert queue.depth().visible == 12
        first = queue.receive(lease_seconds=60)
        second = queue.receive(lease_seconds=0)
        assert (len(first), len(second), len(queue.receive(lease_seconds=60))) == (10, 2, 2)
        assert first[7].body == queue_server.body("drain", queue_server.key(2))
        assert queue.delete(first) == set()
        assert queue.extend(first, 60) == {message.id for message in first}
        assert queue.delete(second) == {message.id for message in second}  # the third receive holds them
        assert (queue.depth().visible, queue.depth().in_flight) == (0, 2)
