"""The object that the scale benchmark generates: every range request returns a part of the same object."""

from __future__ import annotations

import csv
import urllib.request

from hypothesis import given
from hypothesis import strategies as st

from tests.benchmarks import big_object
from tests.benchmarks.big_object import HEADER, KEY, ROW, content, rows_of

ROWS = 25_001
SIZE = len(HEADER) + ROWS * ROW
WHOLE = b"".join(content(0, SIZE))


def test_it_has_the_rows_that_it_says() -> None:
    rows = list(csv.DictReader(WHOLE.decode().splitlines()))
    assert len(rows) == rows_of(SIZE) == rows_of(SIZE + ROW - 1) == ROWS
    assert sum(int(row["n"]) for row in rows) == big_object.total(ROWS)
    assert {row["word"] for row in rows} == {big_object.WORD}


@given(st.integers(0, SIZE), st.integers(0, SIZE))
def test_a_part_is_a_part_of_the_whole(one: int, other: int) -> None:
    begin, end = sorted((one, other))
    assert b"".join(content(begin, end)) == WHOLE[begin:end]


def test_it_is_served_in_ranges() -> None:
    with big_object.serve(SIZE) as (endpoint, rows):
        assert rows == ROWS
        asked = urllib.request.Request(f"{endpoint}/bucket/{KEY}", headers={"Range": "bytes=3-1000003"})  # noqa: S310
        with urllib.request.urlopen(asked, timeout=10) as answer:  # noqa: S310
            assert answer.headers["Content-Range"] == f"bytes 3-1000003/{SIZE}"
            assert answer.read() == WHOLE[3:1000004]
