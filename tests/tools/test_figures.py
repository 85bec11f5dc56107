"""Figures in the documents are those of docs/benchmarks.md."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import figures

PAGE = """
<!-- speed -->
| figure | value | unit |
|---|---|---|
| `speed.ratio` | 12.345 | x |

| case | rows/s | CPU s |
|---|---|---|
| a, pull | 2,695,808 | 1.5 (1.2 to 2.0) |
| b | | |
"""


@pytest.mark.parametrize("path", figures.documents(), ids=lambda path: path.name)
def test_documents_have_the_figures_of_the_benchmarks(path: Path) -> None:
    text = path.read_text()
    assert text == figures.updated(text, figures.measured(figures.BENCHMARKS.read_text())), (
        f"{path.name} has other figures than docs/benchmarks.md: run python -m tests.figures"
    )


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("1.2<!-- speed.ratio --> times", "12.3<!-- speed.ratio --> times"),
        ("1<!-- speed.ratio * 100 -->", "1,234<!-- speed.ratio * 100 -->"),
        ("1,000<!-- speed: a, pull: rows/s --> rows", "2,696,000<!-- speed: a, pull: rows/s --> rows"),
        ("1,020<!-- speed: a, pull: rows/s -->", "2,695,810<!-- speed: a, pull: rows/s -->"),
        ("20<!-- speed: a, pull: CPU s * 10 -->", "15<!-- speed: a, pull: CPU s * 10 -->"),
        ("7 <!-- a remark -->", "7 <!-- a remark -->"),
    ],
)
def test_a_figure_keeps_its_precision(old: str, new: str) -> None:
    assert figures.updated(old, figures.measured(PAGE)) == new


@pytest.mark.parametrize("name", ["speed.other", "speed: b: rows/s", "speed: a, pull: rows"])
def test_a_figure_must_have_been_measured(name: str) -> None:
    with pytest.raises(figures.FigureError, match=name):
        figures.updated(f"5<!-- {name} -->", figures.measured(PAGE))


def test_many_figures_are_checked() -> None:
    assert sum(path.read_text().count("<!-- trans") for path in figures.documents()) > 60
