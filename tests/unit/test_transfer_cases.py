"""The comparison of cases that share one load: each wrong one is named."""

from __future__ import annotations

import re

import pytest

from tests.transfers import Loaded, Refused, wrong_cases

TWO_ROWS = Loaded(b"", [(1, "x"), (None, "y")])
REFUSED = Refused(b"", "row 1")
PATTERN = Refused(b"", re.compile("^row 1$"))


@pytest.mark.parametrize(
    ("case", "found"),
    [
        (TWO_ROWS, [(None, "y"), (1, "x")]), (Loaded(b""), []), (REFUSED, "in row 1, column 'n'"), (PATTERN, "row 1"),
    ],
)  # fmt: skip
def test_expected_outcomes(case: Loaded | Refused, found: str | list[object]) -> None:
    assert wrong_cases({"one": case}, {"one": found}) == []


@pytest.mark.parametrize(
    ("case", "found"),
    [
        (TWO_ROWS, [(1, "x")]), (TWO_ROWS, [(1, "x"), (1, "x")]), (TWO_ROWS, [(1, "x"), (None, "z")]),
        (TWO_ROWS, [(1, "x"), (None, "y"), "failed"]), (TWO_ROWS, "row 1"), (Loaded(b""), ""),
        (REFUSED, "row 2"), (REFUSED, []), (REFUSED, [(1,), "row 1"]), (PATTERN, "in row 1"),
    ],
)  # fmt: skip
def test_every_wrong_outcome_is_named(case: Loaded | Refused, found: str | list[object]) -> None:
    lines = wrong_cases({"a": case, "good": Loaded(b""), "b": case}, {"a": found, "good": [], "b": found})
    assert [line.partition(":")[0] for line in lines] == ["a", "b"]
    assert all("expected" in line and "found" in line for line in lines)
