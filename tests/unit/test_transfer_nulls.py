"""Arrays whose NULL lists, maps and structs become empty."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from storeside.transfer.base.errors import LoadObjectError
from storeside.transfer.base.schema import Column
from storeside.transfer.formats.nulls import emptied
from storeside.transfer.formats.parquet import Nested, Shape
from storeside.transfer.request.object_format import Format
from storeside.transfer.statements.composing import typed_reading
from storeside.transfer.tables.table import Destination

LISTS = st.lists(st.one_of(st.none(), st.lists(st.integers(0, 9), max_size=3)), max_size=6)
PAIRS = st.lists(st.one_of(st.none(), st.lists(st.integers(0, 9), min_size=2, max_size=2)), max_size=6)


@given(LISTS, st.sampled_from([pa.list_, pa.large_list]), st.integers(0, 3))
def test_a_null_list_is_empty_and_the_others_stay(rows: list[Any], kind: Any, start: int) -> None:
    array = pa.array(rows, kind(pa.int32()))
    assert emptied(array[start:]).to_pylist() == [row or [] for row in rows[start:]]


@given(PAIRS, st.integers(0, 3))
def test_a_null_list_of_fixed_size_is_empty(rows: list[Any], start: int) -> None:
    array = pa.array(rows, pa.list_(pa.int32(), 2))
    assert emptied(array[start:]).to_pylist() == [row or [] for row in rows[start:]]


@pytest.mark.parametrize("start", [0, 1])
def test_a_null_over_values_is_empty(start: int) -> None:
    """Arrow allows it, and writers make it: the slot is NULL, and its offsets span values."""
    whole = pa.array([[1], [2, 3], [4]], pa.list_(pa.int32()))
    array = pa.Array.from_buffers(
        whole.type, 3, [pa.py_buffer(bytes([0b101])), whole.buffers()[1]], children=[whole.values]
    )
    assert emptied(array[start:]).to_pylist() == [[1], [], [4]][start:]


def test_nulls_within_structs_and_lists_are_empty() -> None:
    inner = pa.struct([("a", pa.list_(pa.int32(), 2)), ("b", pa.map_(pa.string(), pa.int32()))])
    array = pa.array([{"a": None, "b": None}, None, {"a": [1, 2], "b": [("k", 1)]}], inner)
    assert emptied(array).to_pylist() == [
        {"a": [], "b": []}, {"a": [], "b": []}, {"a": [1, 2], "b": [("k", 1)]},
    ]  # fmt: skip


LISTS_OF = {
    "list": pa.list_, "large list": pa.large_list, "view": pa.list_view, "large view": pa.large_list_view,
    "fixed": lambda kind: pa.list_(kind, 2),
}  # fmt: skip


@pytest.mark.parametrize("inner", LISTS_OF)
@pytest.mark.parametrize("outer", LISTS_OF)
def test_lists_of_any_kind_within_others(outer: str, inner: str) -> None:
    """Casts of some of them end the process (pyarrow 26.0.1)."""
    structs = [{"x": 1, "l": None}, {"x": None, "l": [2]}]
    rows = [[structs, None], None, [structs, structs], [None, None], None] * 4
    inside = LISTS_OF[inner](pa.struct([("x", pa.int8()), ("l", pa.list_view(pa.int8()))]))
    array = pa.array(rows, LISTS_OF[outer](inside))
    full = [{"x": 1, "l": []}, {"x": None, "l": [2]}]
    assert emptied(array[1:]).to_pylist() == [
        [full if one else [] for one in row] if row else [] for row in rows[1:]
    ]  # fmt: skip


@pytest.mark.guarantee("load-values")
@pytest.mark.parametrize(
    ("kind", "held"),
    [
        ("list", "Variant(Array(Int32))"),
        ("map", "Variant(Map(String, Int32))"),
        ("struct", "Nullable(Tuple(x Int32))"),
    ],
)
def test_what_is_null_is_refused_by_a_column_that_cannot_hold_it(kind: str, held: str) -> None:
    plain = held.partition("(")[2][:-1]
    keeping = held if kind == "struct" else plain
    null = Nested(("c",), kind, 1, (0,))

    def read(target: str, *, refuse: bool) -> None:
        columns = (Column("c", target),)
        destination = Destination(None, "d", "t", columns, "", "", "", "default", True, {})
        shape = Shape((Column("c", plain),), (keeping,), (null,))
        typed_reading(Format("parquet"), destination, shape, frozenset({null}), keep_rest=False, refuse_nulls=refuse)

    with pytest.raises(LoadObjectError, match=f"column 'c' has a {kind} that is NULL, which .* cannot hold"):
        read(plain, refuse=True)
    read(held, refuse=True)
    read(plain, refuse=False)
