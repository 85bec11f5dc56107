from __future__ import annotations

from itertools import combinations, product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.pairwise import Row, selected

pytest_plugins = ["pytester"]


def pairs_of(rows: list[Row], columns: list[int]) -> set[tuple[int, int, int, int]]:
    return {(a, row[a], b, row[b]) for row in rows for a, b in combinations(columns, 2)}


@given(st.data())
def test_every_pair_and_every_value_is_covered(data: st.DataObject) -> None:
    sizes = data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=4))
    full = list(product(*map(range, sizes)))
    rows = data.draw(st.lists(st.sampled_from(full), unique=True, min_size=1))  # a table may lack combinations
    paired = data.draw(st.lists(st.booleans(), min_size=len(sizes), max_size=len(sizes)))
    kept = [rows[number] for number in sorted(selected(rows, paired))]
    columns = [number for number, is_paired in enumerate(paired) if is_paired]
    assert pairs_of(kept, columns) == pairs_of(rows, columns)
    for column in range(len(sizes)):
        assert {row[column] for row in kept} == {row[column] for row in rows}


def test_few_cases_of_a_product_are_kept() -> None:
    rows = list(product(range(9), range(8), range(7), range(2)))
    kept = selected(rows, [True] * 4)
    assert kept == selected(rows, [True] * 4)
    assert 9 * 8 <= len(kept) < 1.3 * 9 * 8
    assert len(selected(rows, [False] * 4)) == 9


CONFTEST = """
import pytest
from tests import pairwise

@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    pairwise.mark(items)
"""
TABLE = """
    import pytest

    @pytest.mark.pairwise
    @pytest.mark.parametrize("a", "xyz")
    @pytest.mark.parametrize(("b", "c"), [(1, 2), (3, 4), (5, 6)])
    @pytest.mark.parametrize("read", [int, float])
    def test_table(a, b, c, read): ...

    @pytest.mark.pairwise("a")
    @pytest.mark.parametrize("a", "xyz")
    @pytest.mark.parametrize("b", [1, 2])
    def test_other(a, b): ...

    @pytest.mark.parametrize("a", "xyz")
    def test_plain(a): ...
"""


def test_cases_that_are_not_selected_are_exhaustive(pytester: pytest.Pytester) -> None:
    pytester.makeconftest(CONFTEST)
    pytester.makepyfile(TABLE)
    first, full = pytester.inline_run("-m", "not exhaustive"), pytester.inline_run()
    first.assertoutcome(passed=9 + 3 + 3)
    full.assertoutcome(passed=18 + 6 + 3)
    names = {report.nodeid.split("::")[1] for report in first.getreports("pytest_runtest_logreport")}
    assert {name[-2] for name in names if name.startswith("test_other")} == set("xyz")


def test_an_unknown_argument_is_named(pytester: pytest.Pytester) -> None:
    pytester.makeconftest(CONFTEST)
    pytester.makepyfile(TABLE.replace('pairwise("a")', 'pairwise("d")'))
    found = pytester.inline_run()
    assert found.ret == pytest.ExitCode.USAGE_ERROR
