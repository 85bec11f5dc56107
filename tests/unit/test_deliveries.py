"""What becomes of a message by what became of its events."""

from __future__ import annotations

import json

import pytest

from include.events.deliveries import Delivery, Outcome, State
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
    assert [delivery("undone", receives=9, failures=n).delay_seconds for n in (0, 1)] == [15, 30]
