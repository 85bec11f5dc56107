"""Selects cases of a table for the first tier: every pair of values, but not every combination.

``@pytest.mark.pairwise`` on a test with several parametrizations chooses a few of its cases, in which every pair of
values occurs that occurs in the full product. With names of arguments, only pairs of values of these arguments count,
and every value of the others occurs at least once. All other cases get the marker ``exhaustive``.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

import pytest

Row = tuple[int, ...]
_Pairs = set[tuple[tuple[int, int], ...]]


def selected(rows: Sequence[Row], paired: Sequence[bool]) -> set[int]:
    """Return the numbers of the rows to keep; each column of a row has the number of a value.

    Each pair of values of two `paired` columns, and each value of a column, that occurs at all occurs in a kept row.
    The result is always the same for the same rows.
    """
    covered = [_pairs(row, paired) for row in rows]
    missing = set().union(*covered)
    kept = set()
    while missing:
        best = max(range(len(rows)), key=lambda number: len(covered[number] & missing))
        kept.add(best)
        missing -= covered[best]
    return kept


def _pairs(row: Row, paired: Sequence[bool]) -> _Pairs:
    values = list(enumerate(row))
    pairs = combinations((value for value, is_paired in zip(values, paired, strict=True) if is_paired), 2)
    return {*pairs, *((value,) for value in values)}


def mark(items: Sequence[pytest.Item]) -> None:
    """Mark the cases of each test with the marker ``pairwise`` that are not selected."""
    tables: dict[tuple[object, str], list[pytest.Function]] = {}
    for item in items:
        if isinstance(item, pytest.Function) and item.get_closest_marker("pairwise"):
            tables.setdefault((item.parent, item.originalname), []).append(item)
    for cases in tables.values():
        _mark_table(cases)


def _mark_table(cases: list[pytest.Function]) -> None:
    marker = cases[0].get_closest_marker("pairwise")
    names = list(cases[0].callspec.params)
    if unknown := set(marker.args if marker else ()) - set(names):
        raise pytest.UsageError(f"{cases[0].nodeid}: pairwise names {sorted(unknown)}, which are no arguments")
    known: list[list[str]] = [[] for _ in names]
    rows = [
        tuple(_number(values, repr(case.callspec.params[name])) for values, name in zip(known, names, strict=True))
        for case in cases
    ]
    kept = selected(rows, [not marker or not marker.args or name in marker.args for name in names])
    for number, case in enumerate(cases):
        if number not in kept:
            case.add_marker("exhaustive")


def _number(known: list[str], value: str) -> int:
    if value not in known:
        known.append(value)
    return known.index(value)
