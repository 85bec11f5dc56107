"""Differences that the differential fuzzing accepts as intended: the documented rows, and no others."""

from __future__ import annotations

from typing import Any

import pytest

from storeside.transfer.request.object_format import Csv
from tests.fuzz.differential import delimited_rules, jsonlines_rules
from tests.fuzz.differential.jsonlines import COLUMNS

TEXTS = {"a": "Nullable(String)", "b": "Nullable(String)"}
FLOATS = {"a": "Nullable(Float64)", "b": "Nullable(Date32)"}
TABBED = Csv("\t", null_values=("NA", "-"))  # pyarrow parses it
NO_OTHERS: tuple[Any, ...] = (None,) * 4

CSV = [
    (delimited_rules.AFTER_QUOTES, Csv(), TEXTS, b'a,b\n"x" ,y\n', [("x", "y")]),
    (delimited_rules.AFTER_QUOTES, TABBED, TEXTS, b'a\tb\n"x" \ty\n', [("x ", "y")]),
    (delimited_rules.TEXT_AFTER_QUOTES, TABBED, TEXTS, b'a\tb\n"x"y"\tz\n', [('xy"', "z")]),
    (delimited_rules.CARRIAGE_RETURN, Csv(), TEXTS, b"a,b\nx\ry,z\n", [("x\ry", "z")]),
    (delimited_rules.LAST_DELIMITER, Csv(), TEXTS, b"a,b\nx,y,\n", [("x", "y")]),
    (delimited_rules.OPEN_QUOTE, Csv(), TEXTS, b'a,b\nx,"y\nz,1\n', [("x", "y\nz,1\n")]),
    (delimited_rules.OTHER_NOTATIONS, Csv(), FLOATS, b"a,b\n.5,\n", [(0.5, None)]),
]  # fmt: skip
JSON = [
    (jsonlines_rules.SPANNING, b'{"i":\n1}\n', [(1, None, None, None, None, [], None)]),
    (jsonlines_rules.SPANNING, b'[{"i": 1}, {"i": 2}]\n', [(n, None, None, None, None, [], None) for n in (1, 2)]),
    (jsonlines_rules.OTHER_TYPE, b'{"s": [1, 2.50]}', [(*NO_OTHERS, "[1, 2.50]", [], None)]),
    (jsonlines_rules.OTHER_TYPE, b'{"i": "12", "t": 1}', [(12, None, None, True, None, [], None)]),
]  # fmt: skip


@pytest.mark.parametrize(("title", "dialect", "columns", "content", "rows"), CSV)
def test_csv_rule_takes_its_rows_and_no_others(
    title: str, dialect: Csv, columns: dict[str, str], content: bytes, rows: list[Any]
) -> None:
    assert delimited_rules.section(content, rows, dialect, columns) == title
    assert delimited_rules.section(content, [*rows, rows[0]], dialect, columns) == ""
    assert delimited_rules.section(content, [(None, *rows[0][1:])], dialect, columns) == ""


@pytest.mark.parametrize(("title", "content", "rows"), JSON)
def test_json_rule_takes_its_rows_and_no_others(title: str, content: bytes, rows: list[Any]) -> None:
    assert jsonlines_rules.section(content, rows, COLUMNS) == title
    assert jsonlines_rules.section(content, rows[1:], COLUMNS) == ""
    assert jsonlines_rules.section(content, [(7, *rows[0][1:]), *rows[1:]], COLUMNS) == ""


def test_no_rule_explains_what_python_reads_as_well() -> None:
    assert delimited_rules.section(b"a,b\nx,y\n", [("x", "y")], Csv(), TEXTS) == ""
    assert jsonlines_rules.section(b'{"i": 1}\n', [(1, None, None, None, None, [], None)], COLUMNS) == ""


def test_lines_do_not_share_documents() -> None:
    rows: list[Any] = [(n, None, None, None, None, [], None) for n in (1, 2)]
    assert jsonlines_rules.section(b'{"i":\n1} {"i": 2}\n', rows, COLUMNS) == ""
