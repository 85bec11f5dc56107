"""The length of the statements that load wide CSV: ClickHouse's analysis takes time for each function."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any, cast

import pytest

from storeside.transfer.base.schema import Column
from storeside.transfer.request.object_format import Csv, Format
from storeside.transfer.statements.composing import text_reading
from storeside.transfer.tables.table import Destination

# The most calls of functions for a column of a type, in its expression and its checks.
MOST = {
    "Nullable(String)": 3,
    "Nullable(Float64)": 24,
    "Nullable(Int64)": 45,
    "Nullable(Date32)": 34,
    "Nullable(DateTime64(6))": 55,
    "Nullable(Decimal(10, 2))": 37,
}
TEXT = re.compile(r"'(?:[^'\\]|\\.)*'")


# The same if the checks of many columns run together.
MOST_TOGETHER = {
    **MOST,
    "Nullable(String)": 0,
    "Nullable(Int64)": 16,
    "Nullable(Date32)": 3,
    "Nullable(DateTime64(6))": 3,
}


def statement(kind: str, columns: int, *, inferred: bool = False, together: bool = False) -> str:
    """Return the statement that reads CSV into a table with this number of columns of a type, without its texts."""
    names = [f"c{n:05}" for n in range(columns)]
    columns_of_table = tuple(Column(name, kind) for name in names)
    table = Destination(cast("Any", None), "data", "t", columns_of_table, "", "", "", "default", True, {})
    table = replace(table, inferred=frozenset(names)) if inferred else table
    reading = replace(text_reading(Format("csv", csv=Csv()), table), together=together)
    return TEXT.sub("''", reading.insert("staging", [], "input()", key="_path"))


@pytest.mark.parametrize("kind", MOST)
def test_a_statement_grows_with_the_columns_alone(kind: str) -> None:
    one, narrow, wide = (statement(kind, columns) for columns in (1, 101, 1_001))
    each = (len(narrow) - len(one)) / 100
    assert len(wide) - len(one) == 1_000 * each
    calls = narrow.count("(") - one.count("(")
    assert calls <= 100 * MOST[kind], calls / 100


@pytest.mark.parametrize("kind", MOST)
def test_the_checks_of_many_columns_are_called_once(kind: str) -> None:
    narrow, wide = (statement(kind, columns, together=True) for columns in (100, 1_100))
    calls = wide.count("(") - narrow.count("(")
    assert calls <= 1_000 * MOST_TOGETHER[kind], calls / 1_000


def test_a_statement_compares_no_column_with_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """Columns of numbers that were inferred refuse codes: they were looked up in a list of these columns."""
    compared, equal = [0], Column.__eq__

    def count(self: Column, other: object) -> bool:
        compared[0] += 1
        return equal(self, other)

    monkeypatch.setattr(Column, "__eq__", count)
    statement("Nullable(Int64)", 300, inferred=True)
    assert compared[0] <= 300
