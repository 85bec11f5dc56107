"""Dead letters of a queue whose count SQS reports too late: its counts are approximate."""

from __future__ import annotations

import json
from typing import Any

from storeside.events.dead_letters import DeadLetters
from storeside.events.queue import Queue

URL = "http://sqs/000000000000/"
ARN = "arn:aws:sqs:us-east-1:000000000000:q-dlq"


class LateCounts:
    """A dead-letter queue that reports 0 messages but delivers three, one at a time."""

    def __init__(self) -> None:
        self.waiting = ["a", "b", "c"]
        self.sent: list[str] = []

    def get_queue_url(self, QueueName: str) -> dict[str, str]:
        return {"QueueUrl": URL + QueueName}

    def get_queue_attributes(self, **_: Any) -> dict[str, Any]:
        policy = json.dumps({"deadLetterTargetArn": ARN, "maxReceiveCount": "5"})
        return {"Attributes": {"ApproximateNumberOfMessages": "0", "RedrivePolicy": policy}}

    def receive_message(self, **_: Any) -> dict[str, Any]:
        names, self.waiting = self.waiting[:1], self.waiting[1:]
        return {"Messages": [{"MessageId": name, "ReceiptHandle": name, "Body": name} for name in names]}

    def send_message(self, MessageBody: str, **_: Any) -> None:
        self.sent.append(MessageBody)

    def change_message_visibility_batch(self, **_: Any) -> dict[str, Any]:
        return {}

    def delete_message_batch(self, **_: Any) -> dict[str, Any]:
        return {}


def test_all_are_sent_back() -> None:
    sqs = LateCounts()
    assert DeadLetters(Queue(sqs, f"{URL}q")).redrive() == 3  # type: ignore[arg-type]
    assert sqs.sent == ["a", "b", "c"]


def test_no_more_than_asked_for() -> None:
    sqs = LateCounts()
    assert DeadLetters(Queue(sqs, f"{URL}q")).redrive(limit=2) == 2  # type: ignore[arg-type]
    assert sqs.waiting == ["c"]


def test_the_search_ends_after_the_last_chosen_one() -> None:
    """With many dead letters, the others do not have to be received for one of them."""
    sqs = LateCounts()
    dead_letters = DeadLetters(Queue(sqs, f"{URL}q"))  # type: ignore[arg-type]
    assert dead_letters.redrive({"a"}) == 1
    assert (sqs.sent, sqs.waiting, dead_letters.has_more) == (["a"], ["c"], True)  # b could be a copy of it
    assert dead_letters.redrive({"a"}, seconds=0) == 0
    assert sqs.waiting == ["c"]


def test_a_list_states_whether_there_are_more() -> None:
    for limit, has_more in ((2, True), (4, False)):
        dead_letters = DeadLetters(Queue(LateCounts(), f"{URL}q"))  # type: ignore[arg-type]
        assert len(dead_letters.listed(limit)) == min(limit, 3)
        assert dead_letters.has_more == has_more
