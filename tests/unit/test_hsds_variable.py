"""Elements of variable length: types that NumPy takes for equal, bounded reads, and values that HSDS refuses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from h5json.array_util import arrayToBytes
from h5json.hdf5dtype import getTypeItem

from storeside.hsds.client import Dataset
from storeside.hsds.errors import HsdsInputError, HsdsTransientError
from storeside.hsds.export import OVERSIZE
from storeside.hsds.imports import Import, Importer
from storeside.hsds.plan import Slab
from storeside.hsds.sources import Hdf5Source
from storeside.hsds.variable import decoded

TEXT = h5py.string_dtype()


class Hsds:
    """A client of an HSDS that has one dataset, and keeps the written elements."""

    def __init__(self, kind: Any, shape: tuple[int, ...]) -> None:
        self.found = Dataset("/d.h5", "/v", "d-1", getTypeItem(np.dtype(kind)), shape, shape)
        self.written: dict[str, bytes] = {}

    def dataset(self, domain: str, path: str) -> Dataset:
        return self.found

    def attribute(self, dataset: Dataset, name: str) -> None:
        return None

    def write(self, dataset: Dataset, slab: Slab, content: bytes) -> None:
        self.written[slab.select] = bytes(content)

    def flush(self, domain: str) -> None:
        pass

    def put_attribute(self, dataset: Dataset, name: str, text: str) -> None:
        pass


def imported(path: Path, kind: Any, values: list[Any], into: Any, slab_bytes: int = 1 << 20) -> Hsds:
    with h5py.File(path / "x.h5", "w") as file:
        found = file.create_dataset("v", (len(values),), kind)
        for n, value in enumerate(values):
            found[n] = value
    server: Any = Hsds(into, (len(values),))
    Importer(server, None, Import(str(path / "x.h5"), "/d.h5", "/v", slab_bytes=slab_bytes), "one").run()
    return server


@pytest.mark.parametrize(
    ("kind", "values", "into"),
    [
        (h5py.vlen_dtype("i8"), [[1, 2], [3]], h5py.vlen_dtype("f8")),
        (h5py.vlen_dtype("i4"), [[1, 2], [3]], TEXT),
        (np.dtype([("a", "i4"), ("b", TEXT)]), [(1, "x")], np.dtype([("a", "i4"), ("b", h5py.vlen_dtype("i4"))])),
        (h5py.enum_dtype({"A": 1, "B": 2}), [1, 2], h5py.enum_dtype({"B": 1, "A": 2})),
    ],
)
def test_types_that_numpy_takes_for_equal_are_told_apart(tmp_path: Path, kind: Any, values: Any, into: Any) -> None:
    with pytest.raises(HsdsInputError, match=r"dataset '/v' of '/d.h5': exists with .*, but the source has"):
        imported(tmp_path, kind, values, into)


@pytest.mark.parametrize(
    ("kind", "values", "into"),
    [
        (h5py.vlen_dtype("i8"), [[1, 2], [3]], h5py.vlen_dtype("i8")),
        (h5py.string_dtype("ascii"), ["a", "bc"], TEXT),
        (h5py.enum_dtype({"A": 1, "B": 2}), [1, 2], h5py.enum_dtype({"B": 2, "A": 1})),
        ("?", [True, False], "?"),
        (h5py.string_dtype("utf-8", 5), ["é", "b"], "S5"),
    ],
)
def test_equal_types_are_written(tmp_path: Path, kind: Any, values: Any, into: Any) -> None:
    assert list(imported(tmp_path, kind, values, into).written) == ["[0:2]"]


@pytest.mark.parametrize("large", [range(512), range(256, 512)])
def test_an_import_reads_large_elements_in_small_slabs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, large: range
) -> None:
    slab_bytes, most = 1 << 18, 0
    reads = Hdf5Source.read

    def read(source: Hdf5Source, slab: Slab) -> Any:
        nonlocal most
        found = reads(source, slab)
        most = max(most, sum(value.nbytes for value in found.flat))
        return found

    monkeypatch.setattr(Hdf5Source, "read", read)
    kind = h5py.vlen_dtype("u1")
    values = [np.full(20_000 if n in large else 1, n % 256, "u1") for n in range(512)]
    server = imported(tmp_path, kind, values, kind, slab_bytes)
    assert most <= OVERSIZE * slab_bytes * 1.1
    assert sum(map(len, server.written.values())) == sum(4 + len(value) for value in values)


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (h5py.vlen_dtype("u1"), np.zeros(1_000_001, "u1")),
        (h5py.vlen_dtype(TEXT), np.array(["a", "b"], TEXT)),
        (np.dtype([("only", h5py.vlen_dtype("i4"))]), (np.array([1, 2], "i4"),)),
    ],
)
def test_values_that_hsds_cannot_express_are_refused(tmp_path: Path, kind: Any, value: Any) -> None:
    with pytest.raises(HsdsInputError, match=r"/v'.*HSDS's format cannot express"):
        imported(tmp_path, kind, [value], kind)


def answer(content: bytes, kind: Any = TEXT, count: int = 1) -> list[Any]:
    dataset = Dataset("/d.h5", "/v", "d-1", getTypeItem(np.dtype(kind)), (count,), (count,))
    return [getattr(v, "tolist", lambda v=v: v)() for v in decoded(content, dataset, Slab((range(count),)))]


def test_answers_are_decoded() -> None:
    assert answer(arrayToBytes(np.array(["é", "", "b"], TEXT)), count=3) == ["é", "", "b"]
    assert answer(b"\x08\0\0\0\1\0\0\0\2\0\0\0" + b"\0\0\0\0", h5py.vlen_dtype("<i4"), 2) == [[1, 2], 0]


@pytest.mark.parametrize("content", [b"\x05\0\0\0ab", b"\x02\0\0\0abc", b"\2\0", b""])
def test_an_answer_that_ends_within_an_element_or_after_the_last_is_asked_for_again(content: bytes) -> None:
    with pytest.raises(HsdsTransientError, match=r"'/v' of '/d.h5', \[0:1\]: HSDS sent"):
        answer(content)


@pytest.mark.parametrize(
    ("content", "said"),
    [(b"\x01\0\0\0\xff", "strings that are not UTF-8"), ((2_000_000).to_bytes(4, "little"), "cannot express")],
)
def test_answers_that_cannot_be_decoded_name_their_slab(content: bytes, said: str) -> None:
    with pytest.raises(HsdsInputError, match=rf"'/v' of '/d.h5', \[0:1\]: has .*{said}|{said}"):
        answer(content)
