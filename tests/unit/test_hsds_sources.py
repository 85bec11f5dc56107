"""Parquet as the source of an import into HSDS: values that would be stored as other values are refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from storeside.hsds.errors import HsdsInputError
from storeside.hsds.imports import Import, Importer
from storeside.hsds.plan import Slab
from storeside.hsds.sources import Hdf5Source, ParquetSource, local_parquet

INT, SMALL, REAL = pa.int64(), pa.int32(), pa.float32()


def source_of(path: Path, columns: dict[str, Any], layout: str) -> ParquetSource:
    pq.write_table(pa.table(columns), path / "x.parquet", row_group_size=2)
    return local_parquet(path / "x.parquet", layout)


def values(source: ParquetSource) -> Any:
    return source.read(Slab(tuple(map(range, source.shape)))).tolist()


@pytest.mark.parametrize("kind", [pa.list_(INT), pa.large_list(INT), pa.list_(INT, 2)])
def test_lists_of_equal_length_are_rows(tmp_path: Path, kind: pa.DataType) -> None:
    lists = [[1, 2], [3, 4], [5, 6]]
    assert values(source_of(tmp_path, {"a": pa.array(lists, kind)}, "array")) == lists


@pytest.mark.parametrize(
    ("kind", "lists"),
    [
        (pa.list_(INT), [[1, 2], [3], [4, 5, 6]]),
        (pa.large_list(INT), [[1, 2], [3], [4, 5, 6]]),
        (pa.large_list(pa.large_list(INT)), [[[1, 2], [3, 4]], [[5], [6, 7, 8]]]),
        (pa.list_(INT, 2), [[1, 2], None, [3, 4]]),
    ],
)
def test_lists_of_other_lengths_are_refused(tmp_path: Path, kind: pa.DataType, lists: Any) -> None:
    source = source_of(tmp_path, {"a": pa.array(lists, kind)}, "array")
    with pytest.raises(HsdsInputError, match="column 'a': has NULL, or lists without 2 values, as in the first row"):
        values(source)


@pytest.mark.parametrize("kind", [INT, SMALL, REAL, pa.bool_()])
def test_wide_rows_keep_the_type_of_their_columns(tmp_path: Path, kind: pa.DataType) -> None:
    columns = {"a": pa.array([1, 0, 1], INT).cast(kind), "b": pa.array([0, 0, 1], INT).cast(kind)}
    source = source_of(tmp_path, columns, "wide")
    assert source.dtype == kind.to_pandas_dtype()
    assert values(source) == [[1, 0], [0, 0], [1, 1]]


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        (
            {"a": pa.array([2**53 + 1], INT), "b": pa.array([1], REAL)},
            "layout 'wide': column 'a' is int64, column 'b' is float: cast them to one type, or choose 'table'",
        ),
        ({"a": pa.array([1], INT), "b": pa.array([1], SMALL)}, "column 'a' is int64, column 'b' is int32"),
        ({"a": [1], "b": [[1]]}, "column 'b' has lists: choose 'array', with files that have only this column"),
        ({"a": [1], "b": ["x"]}, "layout 'wide': needs columns of numbers only"),
    ],
)
def test_wide_rows_of_several_types_are_refused(tmp_path: Path, columns: Any, said: str) -> None:
    with pytest.raises(HsdsInputError, match=said):
        source_of(tmp_path, columns, "wide")


@pytest.mark.parametrize("columns", [{"a": [[1, 2], [3, 4]]}, {"i0": [0, 1], "a": [[1], [2]]}])
def test_lists_are_no_elements_and_nothing_is_created(tmp_path: Path, columns: Any) -> None:
    pq.write_table(indexed(columns), tmp_path / "x.parquet")
    no_server: Any = None
    request = Import(str(tmp_path / "x.parquet"), "/d.h5", "/t")
    with pytest.raises(HsdsInputError, match=r"layout 'table': column 'a' has lists: choose 'array'$"):
        Importer(no_server, None, request, "one").run()
    with pytest.raises(HsdsInputError, match="column 'a' has lists: choose 'array', with files that have only this"):
        source_of(tmp_path, columns | {"b": [1, 2]}, "table")


def indexed(columns: dict[str, Any]) -> pa.Table:
    """Return a table whose columns i0, i1, … are indexes as exports write them."""
    table = pa.table(columns)
    kinds = [pa.field(f.name, pa.uint64(), nullable=False) if f.name in ("i0", "i1") else f for f in table.schema]
    return table.cast(pa.schema(kinds))


def test_only_the_index_of_exports_is_left_out(tmp_path: Path) -> None:
    file = tmp_path / "x.parquet"
    pq.write_table(indexed({"i0": [0, 1], "v": [5, 6]}), file)
    assert values(local_parquet(file, "table")) == [5, 6]
    assert values(source_of(tmp_path, {"i0": [1.5, 2.5], "v": [5.0, 6.0]}, "wide")) == [[1.5, 5], [2.5, 6]]
    assert values(source_of(tmp_path, {"v": [5, 6], "i0": [1, 2]}, "wide")) == [[5, 1], [6, 2]]


@pytest.mark.parametrize("indexes", [[[0, 1, 2], [3]], [[5], [7], [9, 11]], [[0, 1], [], [2]], [[4]]])
def test_the_files_of_an_export_continue_its_index(tmp_path: Path, indexes: list[list[int]]) -> None:
    for n, rows in enumerate(indexes):
        columns = {"i0": pa.array(rows, pa.uint64()), "v": pa.array(rows, INT)}
        pq.write_table(indexed(columns), tmp_path / f"{n}.parquet", row_group_size=2)
    assert values(local_parquet(tmp_path, "table")) == [row for rows in indexes for row in rows]


@pytest.mark.parametrize(
    "indexes",
    [[[0, 1], [4, 5]], [[0, 1], [0, 1]], [[0], [1], [3]], [[2, 3], [0, 1]], [[0, 1], [3, 9]], [[0], [1, 1]]],
)
def test_a_missing_file_of_an_export_and_one_of_another_are_refused(tmp_path: Path, indexes: Any) -> None:
    for n, rows in enumerate(indexes):
        pq.write_table(indexed({"i0": rows, "v": rows}), tmp_path / f"{n}.parquet")
    last = len(indexes) - 1
    with pytest.raises(HsdsInputError, match=rf"{last}\.parquet: its index i0 does not continue that of the rows"):
        local_parquet(tmp_path, "table")


def test_the_layout_long_is_refused(tmp_path: Path) -> None:
    pq.write_table(indexed({"i0": [0, 0], "i1": [0, 1], "value": [5, 6]}), tmp_path / "x.parquet")
    with pytest.raises(HsdsInputError, match=r"x\.parquet: has the layout 'long' of exports"):
        local_parquet(tmp_path / "x.parquet", "table")


@pytest.mark.parametrize("path", ["storage", "link", "group/numbers", "virtual"])
def test_an_hdf5_file_makes_the_import_read_no_other_file(tmp_path: Path, path: str) -> None:
    secret, other = tmp_path / "secret", str(tmp_path / "other.h5")
    secret.write_bytes(b"secret")
    with h5py.File(other, "w") as file:
        file["numbers"] = [1, 2, 3]
    with h5py.File(tmp_path / "given.h5", "w") as file:
        file.create_dataset("storage", (6,), "u1", external=[(str(secret), 0, 6)])
        file["link"], file["group"] = h5py.ExternalLink(other, "/numbers"), h5py.ExternalLink(other, "/")
        layout = h5py.VirtualLayout((3,), "i8")
        layout[:] = h5py.VirtualSource(other, "numbers", (3,))
        file.create_virtual_dataset("virtual", layout)
        file["numbers"], file["soft"] = [4, 5], h5py.SoftLink("/numbers")
    with h5py.File(tmp_path / "given.h5") as file:
        assert Hdf5Source(file, "soft").read(Slab((range(2),))).tolist() == [4, 5]
        with pytest.raises(HsdsInputError, match=rf"given.h5: '{path}' names other files or datasets"):
            Hdf5Source(file, path)


@pytest.mark.parametrize(
    "kind",
    [
        h5py.ref_dtype,
        h5py.regionref_dtype,
        h5py.vlen_dtype(h5py.ref_dtype),
        np.dtype([("a", "i4"), ("b", h5py.ref_dtype)]),
        np.dtype([("a", "i4"), ("b", np.dtype((h5py.ref_dtype, (2,))))]),
    ],
)
def test_references_to_objects_of_the_file_are_refused(tmp_path: Path, kind: Any) -> None:
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file.create_dataset("r", (2,), kind)
        with pytest.raises(HsdsInputError, match=r"x\.h5: '/?r' has references to objects of this file"):
            Hdf5Source(file, "r")


@pytest.mark.parametrize("kind", ["i4", np.dtype([("a", "i4"), ("b", "f8", (2, 3))]), h5py.string_dtype()])
def test_other_types_are_no_references(tmp_path: Path, kind: Any) -> None:
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file.create_dataset("r", (2,), kind)
        assert Hdf5Source(file, "r").dtype == kind
