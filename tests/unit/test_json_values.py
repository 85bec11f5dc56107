"""The check of values in JSON Lines: a whole block at a time finds what the check of each document finds."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storeside.transfer.base.errors import LoadObjectError
from storeside.transfer.base.schema import Column
from storeside.transfer.objects.strict_json import checked
from storeside.transfer.staging import json_moments
from storeside.transfer.staging.json_values import JsonValues
from storeside.transfer.statements.reading import Reading

COLUMNS = [
    Column("k", "String"), Column("i", "Nullable(Int64)"), Column("f", "Float64"), Column("t", "DateTime"),
    Column("u", "Nullable(DateTime64(3))"), Column("a", "Array(DateTime)"), Column("j", "JSON"),
]  # fmt: skip
FLAT = [c for c in COLUMNS if c.name != "a"]
VALUES = {
    "k": ['"007"', '"10:00"', '"a\\"b{"', '"}"', "null"],
    "i": ["5", '"5"', '"007"', '""', '"+7"', '"-01"', "1e5"],
    "f": ["1.5", "1e-400", "1e300", "12345678901234567890", '"0.5"', '"01"'],
    "t": ['"2026-01-02"', '"2026-01-02T03:04:05Z"', '"10:00"', '"2026-01"', '"2026-01-02 25:00:00"'],
    "u": ['"2026-01-02 03:04:05+25:00"', '"2026-01-02 03:04"', "null", "1700000000"],
    "a": ['["2026-01-02"]', '["2026-01-02", "10:00"]', "[]"],
    "j": ['{"x": [true, "a"]}', '{"x": [true, false]}', '{"x": "10:00"}'],
}
ROWS = st.dictionaries(st.sampled_from(list(VALUES)), st.integers(0, 6), max_size=4)
# Texts near a time: each differs from one in a few characters.
PARTS = ["2026-01-02", "T03:04", ":05", "+01:00", "+25:00"]
TIMES = st.lists(st.sampled_from([*'0123456789-:T Z+."a/', *PARTS]), max_size=6)


def values_of(columns: list[Column], **options: Any) -> JsonValues:
    return JsonValues(cast("Reading", SimpleNamespace(columns=columns, kept=options.get("kept", []), zone="UTC")))


def line_of(row: dict[str, int]) -> bytes:
    pairs = (f'"{name}": {VALUES[name][n % len(VALUES[name])]}' for name, n in row.items())
    return f"{{{', '.join(pairs)}}}".encode()


def reason_of(content: bytes, values: JsonValues) -> str:
    try:
        assert b"".join(checked([content], values)) == content
    except LoadObjectError as e:
        return str(e)
    return ""


@pytest.mark.parametrize("columns", [COLUMNS, FLAT])
def test_blocks_have_the_faults_of_their_documents(columns: list[Column]) -> None:
    values = values_of(columns, kept=[c for c in columns if c.name == "f"])
    found = []

    @given(st.lists(ROWS, max_size=4))
    def compare(rows: list[dict[str, int]]) -> None:
        lines = [line_of(row) for row in rows]
        wanted = next((f"row {n}, {why}" for n, line in enumerate(lines) if (why := values.fault(line))), "")
        assert reason_of(b"".join(line + b"\n" for line in lines), values) == wanted
        found.append(wanted)

    compare()
    assert {bool(reason) for reason in found} == {True, False}


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b'{"k": "}",\n "i": "007"}\n', "row 0, column 'i' has a text"),
        (b'{"k": "x"}\n{"k": "{",\n "i": "007"}\n', "row 1, column 'i' has a text"),
        (b'[{"k": "x"}, {"i": ""}]', "row 1, column 'i' has a text"),
        (b'\xef\xbb\xbf{"k": "x"}\n{"i": ""}', "row 1, column 'i' has a text"),
        (b'\n{"k": "x"}\n\n{"i": ""}\n', "row 1, column 'i' has a text"),
        (b'{"\\u0074": "10:00"}\n', "row 0, column 't'"),
    ],
)
def test_documents_are_found_in_any_layout(content: bytes, reason: str) -> None:
    with pytest.raises(LoadObjectError, match=re.escape(reason)):
        list(checked([content], values_of(FLAT)))


def test_the_worker_and_clickhouse_doubt_the_same_texts_of_times() -> None:
    """ClickHouse's patterns have no lookahead, with which the worker searches."""
    of_clickhouse = re.compile(json_moments._UNCLEAR.replace(r"\x{10FFFF}", "\U0010ffff"))
    of_worker = re.compile(json_moments._UNCLEAR_BYTES.encode())
    found = set()

    @given(TIMES)
    def compare(parts: list[str]) -> None:
        text = f'"{"".join(parts)}",' + " " * 40
        is_doubtful = of_clickhouse.match(text) is not None
        assert (of_worker.match(text.encode()) is not None) == is_doubtful
        found.add(is_doubtful)

    compare()
    assert found == {True, False}


def test_plain_blocks_are_not_read_by_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading each line takes four times the time of a search in the block."""
    values = values_of(FLAT)
    monkeypatch.setattr(values, "fault", lambda _: pytest.fail("a line was read"))
    line = b'{"k": "x", "i": 5, "f": 0.25, "t": "2026-01-02T03:04:05Z", "u": null, "j": {"x": [1, "a"]}}\n'
    assert b"".join(checked([line * 1000], values)) == line * 1000
