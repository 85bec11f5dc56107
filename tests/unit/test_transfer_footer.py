"""Footers of Parquet that are damaged: they are read, or refused with a reason, and nothing else is raised."""

from __future__ import annotations

import io
import random

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from storeside.transfer.base.errors import LoadObjectError
from storeside.transfer.formats.parquet import ParquetObject, row_groups
from storeside.transfer.formats.parquet_footer import Footer, last_bytes
from storeside.transfer.formats.thrift import I32, STRUCT, Struct
from tests.fuzz.differential.thrift import footer_of, with_footer
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
        footer.check()
        footer.null_counts()
        footer.sizes(range(columns))
        for n in range(columns):
            footer.without_value(n)
            footer.has_dictionary(n)
            footer.at_level([n], 1)
    except LoadObjectError as e:
        assert str(e)  # noqa: PT017


def test_the_footer_of_a_whole_object() -> None:
    footer = Footer(last_bytes(stored(content())))
    footer.check()
    assert footer.rows == 15
    assert footer.writer.startswith("parquet-cpp-arrow")
    assert footer.null_counts()[:3] == (0, 5, 5)


def typed() -> bytes:
    out = io.BytesIO()
    columns = {
        "n": pa.array([1, None, 3], pa.int32()),
        "t": pa.array([1, 2, 3], pa.time64("us")),
        "m": pa.array([1, 2, 3], pa.timestamp("ms")),
        "d": pa.array([1, 2, 3], pa.decimal128(9, 2)),
        "u": pa.array([1, 2, 3], pa.uint16()),
        "s": pa.array(["a", "b", "c"]),
        "x": pa.array([1, 2, 3], pa.int64()),
    }
    pq.write_table(pa.table(columns), out)
    return out.getvalue()


@pytest.mark.parametrize(
    ("column", "field", "value", "reason"),
    [
        ("n", 1, 2, "column 'n' has physical type 2, but 1 in a row group"),
        ("n", 3, 0, "column 'n' has levels from 0 to 0, but counts of 2 levels"),
        ("n", 3, 6, "column 'n' has an invalid repetition 6"),
        ("t", 6, 7, "column 't' has logical type 7 and converted type 7, which contradict"),
        ("m", 6, 10, "column 'm' has logical type 8 and converted type 10, which contradict"),
        ("d", 6, 0, "column 'd' has logical type 5 and converted type 0, which contradict"),
        ("d", 7, 3, "column 'd' declares two different decimal scales or precisions"),
        ("d", 8, 8, "column 'd' declares two different decimal scales or precisions"),
        ("u", 6, 11, "column 'u' has logical type 10 and converted type 11, which contradict"),
        ("s", 6, 5, "column 's' has logical type 1 and converted type 5, which contradict"),
    ],
)
def test_declarations_of_a_column_that_contradict_each_other(
    column: str, field: int, value: int, reason: str
) -> None:
    """pyarrow uses the one, ClickHouse the other."""
    whole = typed()
    ParquetObject(stored(whole)).facts()
    _, footer = footer_of(whole)
    element = next(element for element in footer[2][1][1] if element[4][1] == column.encode())
    element[field] = (I32, value)
    with pytest.raises(LoadObjectError, match=f"^{reason}.*: rewrite the file$"):
        Footer(last_bytes(stored(with_footer(whole, footer)))).check()


def test_the_physical_type_of_a_row_group_is_that_of_its_column() -> None:
    whole = typed()
    _, footer = footer_of(whole)
    chunk = footer[4][1][1][0][1][1][1][-1][3][1]
    chunk[1] = (I32, 5)
    with pytest.raises(LoadObjectError, match="column 'x' has physical type 2, but 5 in a row group"):
        Footer(last_bytes(stored(with_footer(whole, footer)))).check()


def test_a_size_of_byte_arrays_belongs_to_byte_arrays() -> None:
    whole = typed()
    _, footer = footer_of(whole)
    chunk = footer[4][1][1][0][1][1][1][-1][3][1]
    sizes: Struct = {1: (I32, 5)}
    chunk[16] = (STRUCT, sizes)
    with pytest.raises(LoadObjectError, match="column 'x' has physical type 2, but a size of byte arrays"):
        Footer(last_bytes(stored(with_footer(whole, footer)))).check()


@pytest.mark.parametrize("nested", [False, True])
def test_a_column_of_nulls_alone_has_no_values(nested: bool) -> None:
    """pyarrow reads NULLs, ClickHouse the values."""
    out = io.BytesIO()
    pq.write_table(pa.table({"x": pa.array([[1], [None]] if nested else [1, None])}), out)
    _, footer = footer_of(out.getvalue())
    footer[2][1][1][-1][10] = (STRUCT, {11: (STRUCT, {})})
    with pytest.raises(
        LoadObjectError, match=r"column 'x.*' has values, but its type declares that all are NULL: rewrite the file"
    ):
        Footer(last_bytes(stored(with_footer(out.getvalue(), footer)))).check()
    pq.write_table(
        pa.table({"x": pa.array([[None]] if nested else [None], pa.list_(pa.null()) if nested else None)}), out
    )
    Footer(last_bytes(stored(out.getvalue()))).check()


def test_a_schema_that_is_nested_too_deeply_is_refused() -> None:
    whole = typed()
    _, footer = footer_of(whole)
    elements = footer[2][1][1]
    elements[1:] = [{3: (I32, 1), 4: elements[1][4], 5: (I32, 1)} for _ in range(5000)] + [elements[1]]
    elements[0][5] = (I32, 1)
    with pytest.raises(LoadObjectError, match="nested too deeply"):
        Footer(last_bytes(stored(with_footer(whole, footer))))


def test_rows_that_are_no_values_of_their_type_are_refused() -> None:
    """Such arrays come from damaged pages."""
    out = io.BytesIO()
    pq.write_table(pa.table({"s": pa.array([b"a", b"\xff"], pa.binary())}), out, store_schema=False)
    _, footer = footer_of(out.getvalue())
    footer[2][1][1][1].update({6: (I32, 0), 10: (STRUCT, {1: (STRUCT, {})})})
    _, batches = row_groups(stored(with_footer(out.getvalue(), footer)))
    with pytest.raises(LoadObjectError, match=r"^column 's': Invalid UTF8"):
        list(batches)


def test_a_struct_without_fields_is_refused() -> None:
    """pyarrow reads such a footer, in which the columns of the schema are not those of the row groups."""
    out = io.BytesIO()
    pq.write_table(pa.table({"t": [{"x": 1}], "n": [1]}), out, store_schema=False)
    _, footer = footer_of(out.getvalue())
    footer[2][1][1][1][5] = (I32, 0)
    del footer[2][1][1][2], footer[7]  # the order of columns
    with pytest.raises(LoadObjectError, match="its footer is broken"):
        ParquetObject(stored(with_footer(out.getvalue(), footer))).facts()
