"""Dead letters of a queue whose count SQS reports too late: its counts are approximate."""

from __future__ import annotations

import json
from typing import Any

import pytest

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

    def send_message(self, MessageBody: str, **_: Any) -> dict[str, str]:
        self.sent.append(MessageBody)
        return {"MessageId": f"new-{MessageBody}"}

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


class Groups:
    """A queue that delivers a message only while no other message of its group is in flight, as a FIFO queue does.

    With `fails`, each message that is sent back is at once a dead letter again.
    """

    def __init__(self, messages: dict[str, str], *, fails: bool = False) -> None:
        self.waiting = dict(messages)  # groups by message id
        self.in_flight: dict[str, str] = {}
        self.sent: list[str] = []
        self.fails = fails

    get_queue_url = LateCounts.get_queue_url
    get_queue_attributes = LateCounts.get_queue_attributes

    def receive_message(self, **_: Any) -> dict[str, Any]:
        blocked = set(self.in_flight.values())
        given = [name for name, group in self.waiting.items() if group not in blocked][:10]
        self.in_flight |= {name: self.waiting.pop(name) for name in given}
        return {"Messages": [{"MessageId": name, "ReceiptHandle": name, "Body": name} for name in given]}

    def send_message(self, MessageBody: str, **_: Any) -> dict[str, str]:
        self.sent.append(MessageBody)
        if self.fails:
            self.waiting[f"new-{MessageBody}"] = MessageBody
        return {"MessageId": f"new-{MessageBody}"}

    def delete_message_batch(self, Entries: Any, **_: Any) -> dict[str, Any]:
        for entry in Entries:
            del self.in_flight[entry["ReceiptHandle"]]
        return {}

    def change_message_visibility_batch(self, Entries: Any, **_: Any) -> dict[str, Any]:
        for entry in Entries:
            self.waiting[entry["ReceiptHandle"]] = self.in_flight.pop(entry["ReceiptHandle"])
        return {}


def test_all_of_a_group_are_sent_back() -> None:
    sqs = Groups({str(n): "group" for n in range(25)})
    assert DeadLetters(Queue(sqs, f"{URL}q")).redrive() == 25  # type: ignore[arg-type]
    assert sqs.sent == [str(n) for n in range(25)]


def test_none_is_sent_back_twice() -> None:
    sqs = Groups({"a": "a", "b": "b"}, fails=True)
    assert DeadLetters(Queue(sqs, f"{URL}q")).redrive() == 2  # type: ignore[arg-type]
    assert (sqs.sent, set(sqs.waiting), sqs.in_flight) == (["a", "b"], {"new-a", "new-b"}, {})


def test_what_is_not_sent_back_stays_visible(monkeypatch: pytest.MonkeyPatch) -> None:
    sqs = Groups({"a": "a", "b": "b", "c": "c"})
    letters = DeadLetters(Queue(sqs, f"{URL}q"))  # type: ignore[arg-type]
    assert letters.redrive({"b"}) == 1
    assert set(sqs.waiting) == {"a", "c"}

    def send(**_: Any) -> Any:
        raise ConnectionError

    monkeypatch.setattr(sqs, "send_message", send)
    with pytest.raises(ConnectionError):
        letters.redrive()
    assert set(sqs.waiting) == {"a", "c"}


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
