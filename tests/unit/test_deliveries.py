"""Outcomes of messages, derived from the outcomes of their events."""

from __future__ import annotations

import json
from typing import get_args
from urllib.parse import quote_plus

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storeside.aistore.names import PROBES, SCRATCH, THROUGHPUT
from storeside.events.deliveries import FOLDER, Delivery, Outcome, State, oldest
from storeside.events.queue import Message


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
    """SQS counts receives: during an outage of a server a message must not use up its receives."""
    untried = delivery("untried", receives=receives)
    assert untried.verdict(3, 50) == "release"
    assert untried.delay_seconds == min(15 * 2 ** (receives - 1), 900)


def test_what_failed_comes_again_later_each_time() -> None:
    delays = [delivery("undone", receives=9, failures=n).delay_seconds for n in (0, 1, 5, 6, 99)]
    assert delays == [15, 30, 480, 900, 900]


@pytest.mark.guarantee("events-settled")
@pytest.mark.parametrize(
    ("states", "failures", "receives", "verdict"),
    [
        (("loaded", "skipped"), 0, 1, "delete"),
        (("failed", "loaded"), 0, 1, "bury"),
        (("failed", "undone"), 1, 9, "release"),
        (("failed", "undone"), 2, 9, "bury"),  # like the second event alone
        (("failed", "undone"), 0, 10, "bury"),  # otherwise SQS itself would, without a reason
        (("undone",), 2, 9, "bury"),
        (("undone", "untried"), 1, 9, "release"),
        (("failed", "untried"), 2, 9, "release"),
        (("failed", "untried"), 0, 10, "bury"),
        (("untried", "loaded"), 9, 9, "release"),
        (("untried", "loaded"), 0, 10, "bury"),  # as SQS itself would, but with a reason
    ],
)
def test_a_message_with_several_events(states: tuple[State, ...], failures: int, receives: int, verdict: str) -> None:
    found = delivery("untried", receives=receives, failures=failures)
    found.outcomes = [Outcome(state) for state in states]
    assert found.verdict(3, 10) == verdict


@given(
    state=st.lists(st.sampled_from(get_args(State)), min_size=1, max_size=4),
    failures=st.integers(0, 5),
    receives=st.integers(1, 60),
)
def test_whatever_is_buried_has_a_reason(state: list[State], failures: int, receives: int) -> None:
    """And at the last receive that the queue allows no message is released: SQS would move it without a reason."""
    found = delivery("untried", receives=receives, failures=failures)
    found.events *= len(state)
    found.outcomes = [Outcome(one, "" if one == "untried" else "why") for one in state]
    verdict = found.verdict(3, 50)
    assert (verdict == "bury") <= found.reason.startswith("s3://in/a: ")
    assert (verdict == "bury") <= (len(found.reason) > len("s3://in/a: "))
    assert receives < 50 or verdict != "release"
    assert verdict != "delete" or all(outcome.is_final for outcome in found.outcomes)


def body(shape: str, key: str, size: int | None) -> str:
    """Return the event of a new object as S3, EventBridge or SNS sends it; without the size if `size` is None."""
    item = {"key": key, "etag": "e", "eTag": "e"} | ({} if size is None else {"size": size})
    if shape == "eventbridge":
        detail = {"bucket": {"name": "in"}, "object": item, "reason": "PutObject"}
        text = json.dumps({
            "source": "aws.s3", "detail-type": "Object Created", "time": "2026-01-01T00:00:00Z", "detail": detail,
        })  # fmt: skip
    else:
        record = {"eventName": "ObjectCreated:Put", "eventTime": "2026-01-01T00:00:00Z"}
        item["key"] = quote_plus(key, safe="/" if size else "")  # moto encodes the / too
        text = json.dumps({"Records": [{**record, "s3": {"bucket": {"name": "in"}, "object": item}}]})
    return json.dumps({"Type": "Notification", "Message": text}) if shape == "sns" else text


@given(
    shape=st.sampled_from(["s3", "eventbridge", "sns"]),
    folder=st.text(st.characters(codec="utf-8"), min_size=1, max_size=100),
    end=st.sampled_from(["/", "//", "_$folder$", "", ".wav", "/a", "$folder$"]),
    size=st.one_of(st.none(), st.just(0), st.integers(1, 2**40)),
)
def test_folder_markers_ask_for_nothing_and_all_else_does(
    shape: str, folder: str, end: str, size: int | None
) -> None:
    key = folder + end
    found = Delivery.read(Message("id", "handle", body(shape, key, size), 0.0, 1))
    assert not found.error
    marker = size == 0 and (key.endswith("/") or key.endswith("_$folder$"))
    assert found.needs_nothing == marker
    if marker:
        assert found.outcomes == [FOLDER]
        assert found.verdict(3, 10) == "delete"


@pytest.mark.parametrize("folder", [PROBES, SCRATCH, THROUGHPUT])
def test_what_storeside_itself_writes_asks_for_nothing(folder: str) -> None:
    assert Delivery.read(Message("id", "handle", body("s3", f"{folder}a", 9), 0.0, 1)).needs_nothing
    assert not Delivery.read(Message("id", "handle", body("s3", f"b/{folder}a", 9), 0.0, 1)).needs_nothing


def test_a_message_that_is_no_notification_is_buried() -> None:
    assert Delivery.read(Message("id", "handle", "text", 0.0, 1)).verdict(3, 10) == "bury"


@pytest.mark.parametrize(
    ("sent", "age"),
    [
        ([], 0),
        ([900.0, 990.0], 100),
        ([1005.0], 0),  # from the future: the clock of SQS is ahead of ours
        ([1005.0, 990.0], 10),
        ([0.0], 0),  # SQS did not report the time
        ([0.0, 990.0], 10),
    ],
)
def test_the_oldest_message(sent: list[float], age: float) -> None:
    assert oldest([Message(str(n), "handle", "", at, 1) for n, at in enumerate(sent)], now=1000.0) == age
