"""The families of text: generated files, both loaders, and Python's own readers for comparison."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from storeside.stack.settings import CHECKOUT
from tests.fuzz.differential import delimited, delimited_rules, jsonlines, jsonlines_rules, text
from tests.fuzz.differential.outcome import Outcome

FAMILIES = {"delimited": delimited, "jsonlines": jsonlines}
RULES = {"delimited": delimited_rules, "jsonlines": jsonlines_rules}
FILES = 200


@pytest.mark.parametrize("family", FAMILIES)
def test_no_difference_is_silent(stack: Any, clickhouse: Any, s3_client: Any, family: str) -> None:
    outcome = FAMILIES[family].compare_with(stack, clickhouse, s3_client, FILES, 7)
    assert outcome.silent == []
    assert outcome.files == FILES
    assert outcome.equal > FILES


@pytest.mark.parametrize("family", FAMILIES)
def test_a_planted_difference_is_found(stack: Any, clickhouse: Any, s3_client: Any, family: str) -> None:
    group = next(FAMILIES[family].groups(6, 7))

    def rows(content: bytes) -> text.Rows:
        try:
            return group.expected(content)
        except text.Refused:
            return []

    victim = next(content for content in group.files.values() if rows(content))
    planted = replace(
        group, expected=lambda content: group.expected(content)[1:] if content == victim else group.expected(content)
    )
    outcome = text.compare_groups(Outcome(family), iter([planted]), clickhouse, s3_client, pushed=1)
    assert len(outcome.silent) == 2  # one by each loader


@pytest.mark.parametrize("family", FAMILIES)
def test_intended_differences_are_documented(family: str) -> None:
    sections = [line.removeprefix("### ") for line in (CHECKOUT / "docs" / "differences.md").read_text().splitlines()]
    assert set(RULES[family].INTENDED) <= set(sections)
