"""The recorded depth of a queue, and the age of its oldest message, which SQS does not report."""

from __future__ import annotations

import json
import time
from types import SimpleNamespace
from typing import Any

import pytest

from storeside.events import ledger
from storeside.events.deliveries import Delivery, Outcome
from storeside.events.errors import EventInputError
from storeside.events.intake import Limits
from storeside.events.ledger import EventLedger
from storeside.events.queue import Message, Queue
from storeside.events.watch import Watch, Window

URL, DEAD = "http://sqs/1/events", "http://sqs/1/dead"


class Sqs:
    """Queues by their URLs, with numbers of messages that are visible, in flight and delayed."""

    def __init__(self, *depth: int, dead: int | None = 0) -> None:
        self.depths = {URL: depth, DEAD: (dead or 0, 0, 0)}
        policy = {"deadLetterTargetArn": "arn:aws:sqs:x:1:dead", "maxReceiveCount": 10}
        self.policy = {} if dead is None else {"RedrivePolicy": json.dumps(policy)}

    def get_queue_attributes(self, QueueUrl: str, AttributeNames: Any) -> dict[str, Any]:
        if "RedrivePolicy" in AttributeNames:
            return {"Attributes": self.policy}
        found = zip(AttributeNames, self.depths[QueueUrl], strict=True)
        return {"Attributes": {name: str(count) for name, count in found}}

    def get_queue_url(self, QueueName: str) -> dict[str, str]:
        return {"QueueUrl": f"http://sqs/1/{QueueName}"}


class Client:
    """ClickHouse with the age that was recorded last, plus the time since."""

    def __init__(self, last: float = 0.0) -> None:
        self.last = last
        self.noted: list[list[Any]] = []

    def query(self, *_: Any, **__: Any) -> Any:
        return SimpleNamespace(first_row=("", self.last), result_rows=[])

    def insert(self, table: str, rows: list[list[Any]], **_: Any) -> None:
        if table == "storeside.queue_depths":
            self.noted += rows


def sent(seconds_ago: float, name: str = "m") -> Message:
    return Message(name, "handle", "no event", time.time() - seconds_ago, 1)


def noted(depth: tuple[int, ...], *messages: Message, last: float = 0.0, dead: int | None = 0) -> list[Any]:
    client = Client(last)
    EventLedger(client, URL, "run").record_depth(Queue(Sqs(*depth, dead=dead), URL), messages)  # type: ignore[arg-type]
    (row,) = client.noted
    return row[1:]


@pytest.mark.parametrize("depth", [(1, 0, 0), (0, 1, 0), (0, 0, 1)])
def test_a_queue_that_is_not_empty_has_an_age(depth: tuple[int, int, int]) -> None:
    assert noted(depth, sent(5), sent(60), dead=2) == [*depth, 2, pytest.approx(60, abs=1)]
    assert noted(depth, last=70.0) == [*depth, 0, 70.0]  # no consumer has a message: the age grows


def test_an_empty_queue_has_none() -> None:
    assert noted((0, 0, 0), sent(60), last=70.0) == [0, 0, 0, 0, 0.0]


def test_what_is_known_counts_more_than_what_was_noted_last() -> None:
    assert noted((1, 0, 0), sent(5), last=70.0)[-1] == pytest.approx(5, abs=1)
    assert noted((1, 0, 0), sent(-5), last=70.0)[-1] == 0.0  # SQS's clock is ahead


def test_messages_that_were_given_back_get_older_until_they_are_done() -> None:
    client, queue = Client(), Queue(Sqs(1, 0, 2), URL)  # type: ignore[arg-type]
    ledger = EventLedger(client, URL, "run")
    old, older = Delivery(sent(60, "old")), Delivery(sent(100, "older"))
    ledger.record([old, older], "released")
    ledger.record_depth(queue, [sent(5)])
    ledger.record([older], "dead")
    ledger.record_depth(queue, [sent(5)])
    old.outcomes = [Outcome("loaded")]
    ledger.record([old])
    ledger.record_depth(queue, [sent(5)])
    assert [row[-1] for row in client.noted] == [pytest.approx(age, abs=1) for age in (100, 60, 5)]


def test_a_queue_without_dead_letters_has_a_depth_too() -> None:
    assert noted((3, 0, 0), sent(5), dead=None) == [3, 0, 0, 0, pytest.approx(5, abs=1)]


class Idle(Watch):
    """A watcher of a queue that receives no messages."""

    def _step(self) -> None:
        pass


def test_a_watcher_notes_the_depth_now_and_then_and_does_not_end_when_it_cannot(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ledger, "migrate", lambda client: [])
    client, queue = Client(), Queue(Sqs(3, 0, 0, dead=None), URL)  # type: ignore[arg-type]
    client.query = lambda *_, **__: SimpleNamespace(first_row=(5, 7.0))  # type: ignore[method-assign]
    for seconds, rows in ((0.0, 3), (30.0, 1)):
        client.noted.clear()
        watch = Idle(queue, client, None, Window(depth_seconds=seconds))  # type: ignore[arg-type]
        assert [watch.step() for _ in range(3)] == [None] * 3
        assert client.noted == [[URL, 3, 0, 0, 0, 7.0]] * rows

    def refuse() -> None:
        raise EventInputError("refused")

    client.noted.clear()
    queue.depth = refuse  # type: ignore[method-assign, assignment]
    assert Idle(queue, client, None, Window(depth_seconds=0)).step() is None  # type: ignore[arg-type]
    assert client.noted == []


@pytest.mark.parametrize(
    ("wrong", "least"),
    [
        ({"bytes": -1}, "1 or more"),
        ({"messages": 0}, "1 or more"),
        ({"seconds": -1.0}, "0 or more"),
        ({"seconds": float("nan")}, "0 or more"),
        ({"idle_seconds": -1.0}, "0 or more"),
        ({"idle_seconds": float("nan")}, "0 or more"),
    ],
)
def test_limits_that_make_no_sense_are_refused(wrong: dict[str, float], least: str) -> None:
    ((name, value),) = wrong.items()
    with pytest.raises(EventInputError, match=f"^{name} {value}: needs to be {least}"):
        Limits(**wrong)  # type: ignore[arg-type]
