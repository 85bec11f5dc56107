"""The results of `make verify` and the page that states them."""

from __future__ import annotations

import pytest

from tests.verify import Result, is_done, page, result_of


@pytest.mark.parametrize(
    ("status", "output", "expected"),
    [
        (0, "lint is clean\n", ("passed", 0, 0, 0)),
        (0, "== 3 passed, 1 skipped in 2.10s ==\n4 passed in 1.00s (0:00:01)\n", ("passed", 7, 0, 1)),
        (2, "== 1 failed, 3 passed, 2 errors in 2.10s ==\nmake: *** [Makefile:9: x] Error 1\n", ("failed", 3, 3, 0)),
        (2, "x: cannot run: Java is missing\nmake: *** [Makefile:9: x] Error 2\n",
         ("could not run: Java is missing", 0, 0, 0)),
        (2, "usage: pytest\nmake: *** [Makefile:9: x] Error 2\n", ("failed", 0, 0, 0)),
        (-9, "killed", ("failed", 0, 0, 0)),
    ],
)  # fmt: skip
def test_results(status: int, output: str, expected: tuple[str, int, int, int]) -> None:
    found = result_of("x", "c", status, output, 5)
    assert (found.outcome, found.passed, found.failed, found.skipped) == expected


def test_only_results_of_this_commit_count() -> None:
    def result(outcome: str) -> Result:
        return Result("x", "c", "2026-01-01", outcome, 1, 0, 0, 5)

    assert not is_done(None, "c", again=False)
    assert is_done(result("failed"), "c", again=False)
    assert not is_done(result("failed"), "c", again=True)
    assert not is_done(result("could not run: x"), "c", again=True)
    assert is_done(result("passed"), "c", again=True)
    assert not is_done(result("passed"), "d", again=False)


def test_the_page_has_a_line_for_each_target() -> None:
    text = page([Result("chaos", "0123456789", "2026-01-01", "passed", 10, 0, 1, 500)])
    assert "\n| `make chaos` | `01234567` | 2026-01-01 | passed | 10 | 0 | 1 | 500 |\n" in text
