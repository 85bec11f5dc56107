"""What becomes of a message by what became of its events."""

from __future__ import annotations

import json

import pytest

from include.events.deliveries import Delivery, Outcome, State, oldest
from include.events.queue import Message


def delivery(state: State, *, receives: int = 1, failures: int = 0) -> Delivery:
    record = {
        "eventName": "ObjectCreated:Put",
        "eventTime": "2026-01-01T00:00:00Z",
        "s3": {"bucket": {"name": "in"}, "object": {"key": "a", "size": 1, "eTag": "e"}},
    }
    found = Delivery.read(Message("id", "handle", json.dumps({"Records": [record]}), 0.0, receives))
    found.outcomes = [Outcome(state)]
    found.failures = failures
    return found


@pytest.mark.parametrize("receives", range(1, 50))
def test_what_was_not_tried_comes_again_later_each_time(receives: int) -> None:
    """SQS counts receives: while what it needs is away a message is not to use up those that it has."""
    untried = delivery("untried", receives=receives)
    assert untried.verdict(3, 50) == "release"
    assert untried.delay_seconds == min(15 * 2 ** (receives - 1), 900)


def test_what_failed_comes_again_later_each_time() -> None:
    delays = [delivery("undone", receives=9, failures=n).delay_seconds for n in (0, 1, 5, 6, 99)]
    assert delays == [15, 30, 480, 900, 900]


@pytest.mark.parametrize(
    ("states", "failures", "receives", "verdict"),
    [
        (("loaded", "skipped"), 0, 1, "delete"),
        (("failed", "loaded"), 0, 1, "bury"),
        (("failed", "undone"), 1, 9, "release"),
        (("failed", "undone"), 2, 9, "bury"),  # as the second one alone
        (("failed", "undone"), 0, 10, "bury"),  # SQS itself would, without a reason
        (("undone",), 2, 9, "bury"),
        (("undone", "untried"), 1, 9, "release"),
        (("failed", "untried"), 2, 9, "release"),
        (("failed", "untried"), 0, 10, "bury"),
        (("untried", "loaded"), 9, 10, "release"),
    ],
)
def test_a_message_with_several_events(states: tuple[State, ...], failures: int, receives: int, verdict: str) -> None:
    found = delivery("untried", receives=receives, failures=failures)
    found.outcomes = [Outcome(state) for state in states]
    assert found.verdict(3, 10) == verdict


def test_a_message_that_is_no_notification_is_buried() -> None:
    assert Delivery.read(Message("id", "handle", "text", 0.0, 1)).verdict(3, 10) == "bury"


@pytest.mark.parametrize(
    ("sent", "age"),
    [
        ([], 0),
        ([900.0, 990.0], 100),
        ([1005.0], 0),  # from the future: the clock of SQS is ahead of ours
        ([1005.0, 990.0], 10),
        ([0.0], 0),  # SQS did not say when
        ([0.0, 990.0], 10),
    ],
)
def test_the_oldest_message(sent: list[float], age: float) -> None:
    assert oldest([Message(str(n), "handle", "", at, 1) for n, at in enumerate(sent)], now=1000.0) == age
