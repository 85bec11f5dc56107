"""Footers of Parquet that are damaged: they are read, or refused with a reason, and nothing else is raised."""

from __future__ import annotations

import io
import random

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from storeside.transfer.errors import LoadObjectError
from storeside.transfer.footer import Footer, last_bytes
from tests.unit.test_transfer_content import stored


def content() -> bytes:
    struct = pa.array([{"x": 1, "l": [1, 2]}, None, {"x": 3, "l": None}] * 5)
    out = io.BytesIO()
    pq.write_table(pa.table({"n": range(15), "s": ["a", None, "b"] * 5, "t": struct}), out, row_group_size=4)
    return out.getvalue()


@pytest.mark.parametrize("seed", range(400))
def test_a_damaged_footer_is_read_or_refused(seed: int) -> None:
    whole = content()
    size = int.from_bytes(whole[-8:-4], "little")
    begin = len(whole) - 8 - size
    r = random.Random(seed)  # noqa: S311
    damaged = bytearray(whole)
    for _ in range(r.choice((1, 1, 2, 5))):
        damaged[r.randrange(begin, len(whole) - 8)] = r.randrange(256)
    columns = 4
    try:
        footer = Footer(last_bytes(stored(bytes(damaged))))
        footer.check([False, False, False, True])
        footer.null_counts(columns)
        footer.sizes(range(columns))
        for n in range(columns):
            footer.without_value(n)
            footer.has_dictionary(n)
            footer.at_level([n], 1)
    except LoadObjectError as e:
        assert str(e)  # noqa: PT017


def test_the_footer_of_a_whole_object() -> None:
    footer = Footer(last_bytes(stored(content())))
    footer.check([False, False, False, True])
    assert footer.rows == 15
    assert footer.writer.startswith("parquet-cpp-arrow")
    assert footer.null_counts(4)[:3] == (0, 5, 5)
