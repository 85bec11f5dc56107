"""The results of `make verify` and the page that states them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.verify import PAGE, Result, is_done, is_same_tree, page, read, result_of, run


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


def test_only_results_of_an_unchanged_tree_count() -> None:
    def result(outcome: str) -> Result:
        return Result("x", "c", "2026-01-01", outcome, 1, 0, 0, 5, "Linux")

    assert not is_done(None, {"c"}, again=False)
    assert is_done(result("failed"), {"c"}, again=False)
    assert not is_done(result("failed"), {"c"}, again=True)
    assert not is_done(result("could not run: x"), {"c"}, again=True)
    assert is_done(result("passed"), {"c"}, again=True)
    assert not is_done(result("passed"), {"d"}, again=False)
    assert is_same_tree("HEAD")
    assert not is_same_tree("no-such-commit")


def test_the_page_is_the_record() -> None:
    results = [
        Result("chaos", "01234567", "2026-01-01", "passed", 10, 0, 1, 500, "Linux x86_64, 2 cores, Python 3.11.2"),
        Result("model", "01234567", "2026-01-01", "could not run: Java is missing", 0, 0, 0, 1, "Linux"),
    ]
    text = page(results)
    assert "\n| `make chaos` | `01234567` | 2026-01-01 | passed | 10 | 0 | 1 | 500 | Linux x86_64" in text
    assert read(text) == results
    assert read(PAGE.read_text()) or "`make " not in PAGE.read_text().partition("|---|")[2]


def test_targets_do_not_get_the_arguments_of_verify(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "Makefile").write_text('show:\n\t@echo "2 passed in 1s"; test -z "$(ARGS)"\n')
    monkeypatch.setattr("tests.verify.CHECKOUT", tmp_path)
    monkeypatch.setenv("ARGS", "--only x")
    monkeypatch.setenv("MAKEFLAGS", " -- ARGS=--only\\ x")
    assert run("show", "c", tmp_path).outcome == "passed"
