"""Amounts in texts for people."""

from __future__ import annotations

import pytest

from storeside.amounts import byte_rate, counted, others, rate, size
from storeside.transfer.run.plan_input import size_of_plan


@pytest.mark.parametrize(
    ("number", "text"), [(0, "0 objects"), (1, "1 object"), (2, "2 objects"), (12_345, "12,345 objects")]
)
def test_one_is_singular(number: int, text: str) -> None:
    assert counted(number, "object") == text


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 B"), (824, "824 B"), (999, "999 B"), (1000, "1.0 kB"), (999_949, "999.9 kB"), (999_950, "1.0 MB"),
     (41_500_000, "41.5 MB"), (1_130_000_000, "1.1 GB"), (5e18, "5,000.0 PB")],
)  # fmt: skip
def test_bytes_have_the_unit_that_fits(count: float, text: str) -> None:
    assert size(count) == text


def test_a_rate_needs_a_second() -> None:
    assert rate(5000, 0.99, "rows") == byte_rate(5000, 0.99) == rate(0, 0, "rows") == ""
    assert rate(5000, 2, "rows") == ", 2,500 rows/s"
    assert rate(3, 2, "objects") == ", 1.5 objects/s"
    assert byte_rate(5000, 2) == ", 2.5 kB/s"


def test_zeros_are_left_out() -> None:
    assert others((0, "failed"), (1, "loaded before"), (2000, "skipped")) == ", 1 loaded before, 2,000 skipped"
    assert others((0, "failed")) == ""


def test_the_size_of_a_plan() -> None:
    assert size_of_plan(3, 1, 824, push=False) == "3 objects listed, 1 to load (824 B), by pull"
    assert size_of_plan(1, 0, 0, push=True) == "1 object listed, none to load"
