"""Submissions of jobs that AIStore refuses for a moment."""

from __future__ import annotations

import json
from typing import Any

import pytest
from aistore.sdk.errors import AISError

from storeside.aistore.errors import AIStoreTransientError
from storeside.transform import submit
from storeside.transform.state import Phase, State

STATE = State(Phase.BUCKET, 0)
BUSY = (409, 'bucket "ais://out" is currently busy, please try again')
GONE = None  # the ETL was stopped


@pytest.fixture
def slept(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    found: list[float] = []
    monkeypatch.setattr("storeside.transform.submit.time.sleep", found.append)
    return found


def submission(*refusals: tuple[int, str] | None) -> Any:
    left = list(refusals)

    def attempt() -> State | None:
        if not left:
            return STATE
        if (refusal := left.pop(0)) is None:
            return None
        raise AISError(refusal[0], json.dumps({"message": refusal[1]}), "http://proxy/v1", None)

    return attempt


def test_a_busy_bucket_and_an_etl_that_was_just_stopped_are_tried_again(slept: list[float]) -> None:
    assert submit.patiently(submission(BUSY, GONE)) is STATE
    assert slept == [0.5, 1.0]


@pytest.mark.parametrize(
    ("status", "text"),
    [
        (409, "bucket ais://out already exists"), (404, 'bucket "ais://in" does not exist'), (500, BUSY[1]),
        (403, "PUT access denied"),
    ],
)  # fmt: skip
def test_other_refusals_are_not(slept: list[float], status: int, text: str) -> None:
    with pytest.raises(AISError):
        submit.patiently(submission((status, text)))
    assert slept == []


def test_the_last_refusal_is_the_error(slept: list[float]) -> None:
    with pytest.raises(AISError, match="busy"):
        submit.patiently(submission(*[BUSY] * 6))
    assert sum(slept) == 15.5
    with pytest.raises(AIStoreTransientError, match="another task has stopped its ETL: try later"):
        submit.patiently(submission(*[GONE] * 6))
