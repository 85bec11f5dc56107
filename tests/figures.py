"""Measured figures in the documents: ``python -m tests.figures`` copies them from ``docs/benchmarks.md``.

A comment behind a number names its source: ``351.85<!-- transfer.vs_airbyte -->`` is a figure, and
``968,000<!-- transfer: csv, pull: rows/s -->`` is a cell of a section's table, by its row and column. `` * 150`` at
the end of a comment multiplies the figure. A number keeps its precision: the digits behind its point, or its zeros at
the end from 1,000 on.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from storeside.stack.settings import CHECKOUT

BENCHMARKS = CHECKOUT / "docs" / "benchmarks.md"
_NUMBER = r"\d[\d,]*(?:\.\d+)?"
_MARKED = re.compile(rf"({_NUMBER})(<!-- ([a-z_]+(?:\.|: )[^>]*?)(?: \* ([\d.]+))? -->)")
_SECTION = re.compile(r"<!-- (\w+) -->")


class FigureError(ValueError):
    """A document refers to a figure that is not in the benchmarks."""


def documents() -> list[Path]:
    """Return the documents that may contain figures."""
    return [CHECKOUT / "README.md", *sorted(p for p in (CHECKOUT / "docs").rglob("*.md") if p != BENCHMARKS)]


def measured(text: str) -> dict[str, float]:
    """Return all figures and table cells of the benchmarks' page by the names that comments use."""
    found: dict[str, float] = {}
    section, header = "", list[str]()
    for line in text.splitlines():
        if mark := _SECTION.fullmatch(line.strip()):
            section = mark[1]
        if not line.startswith("|"):
            header = []
            continue
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if not header:
            header = cells
        elif cells[0].startswith("`"):
            found[cells[0].strip("`")] = _first(cells[1])
        else:
            found.update({f"{section}: {cells[0]}: {column}": value for column, value in _cells(header, cells)})
    return found


def _cells(header: list[str], cells: list[str]) -> Iterator[tuple[str, float]]:
    for column, cell in zip(header[1:], cells[1:], strict=False):
        if re.match(_NUMBER, cell):
            yield column, _first(cell)


def _first(cell: str) -> float:
    number = re.match(rf"-?{_NUMBER}", cell)
    return float(number[0].replace(",", "")) if number else 0.0


def updated(text: str, figures: Mapping[str, float]) -> str:
    """Return a document with current figures. Raises FigureError for a name that the benchmarks do not have."""

    def number(match: re.Match[str]) -> str:
        old, comment, name, factor = match.groups()
        if name not in figures:
            raise FigureError(f"docs/benchmarks.md has no figure {name!r}")
        return _like(old, figures[name] * float(factor or 1)) + comment

    return _MARKED.sub(number, text)


def _like(old: str, value: float) -> str:
    """Return a value with the precision of the old number."""
    digits = len(old.partition(".")[2])
    if not digits and float(old.replace(",", "")) >= 1000:
        digits = -(len(old) - len(old.rstrip("0,")) - old[len(old.rstrip("0,")) :].count(","))
    return f"{round(value, digits):,.{max(digits, 0)}f}"


def main() -> int:
    """Write current figures into all documents."""
    figures = measured(BENCHMARKS.read_text())
    for path in documents():
        text = path.read_text()
        new = updated(text, figures)
        if new != text:
            path.write_text(new)
            print(f"{path.relative_to(CHECKOUT)}: new figures")
    return 0


if __name__ == "__main__":
    sys.exit(main())
