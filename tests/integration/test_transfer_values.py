"""Values of text and of typed objects that a conversion could change: each is loaded whole, or its object fails."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from storeside.stack.settings import Stack
from tests.avro_files import avro, record
from tests.transfers import Loading, jsonl, parquet

pytestmark = pytest.mark.timeout(180)

LOADERS = ("pull", "push")


@pytest.fixture
def loading(stack: Stack, clickhouse: Any, s3_client: Any) -> Loading:
    return Loading(stack, clickhouse, s3_client)


@pytest.mark.parametrize("form", ["csv", "jsonl"])
def test_digests_stay_texts(loading: Loading, form: str) -> None:
    """Only a UUID in the notation of a UUID column becomes one: its text stays the same."""
    row = {
        "md5": "d41d8cd98f00b204e9800998ecf8427e",
        "capitals": "61F0C404-5CB3-11E7-907B-A6006AD3DBA0",
        "uuid": "61f0c404-5cb3-11e7-907b-a6006ad3dba0",
    }
    text = f"{','.join(row)}\n{','.join(row.values())}\n".encode()
    loading.put({"x": text if form == "csv" else jsonl([row])})
    loading.load(format=form)
    assert loading.rows("toString(md5), toString(capitals), toString(uuid)") == [tuple(row.values())]
    assert list(loading.types().values()) == ["Nullable(String)", "Nullable(String)", "Nullable(UUID)"]


@pytest.mark.parametrize("loader", LOADERS)
def test_decimals_of_typed_objects_become_floats_without_loss(loading: Loading, loader: str) -> None:
    loading.create("d Float64, l Array(Float64)")
    exact, rounded = Decimal("0.29"), Decimal("1234567890123456.78")

    def made(one: Decimal, items: list[Decimal]) -> bytes:
        kind = pa.decimal128(38, 2)
        return parquet({"d": pa.array([one], kind), "l": pa.array([items], pa.list_(kind))})

    loading.put({"good": made(exact, [exact]), "d": made(rounded, []), "l": made(exact, [exact, rounded])})
    loading.load(loader=loader, format="parquet")
    assert set(loading.reasons()) == {"d", "l"}
    assert "column 'l' has a value that Array(Float64) cannot hold whole" in loading.reasons()["l"]
    assert loading.rows() == [(0.29, [0.29])]


def test_lists_of_decimals_in_avro_become_floats_without_loss(loading: Loading) -> None:
    """A list that may be NULL is read in another way than other lists."""
    loading.create("l Array(Float64)")
    kind = {"type": "array", "items": {"type": "bytes", "logicalType": "decimal", "precision": 38, "scale": 2}}

    def made(cents: int) -> bytes:
        return avro(record(l=["null", kind]), [{"l": (1, [cents.to_bytes(9, "big")])}])

    loading.put({"good": made(29), "bad": made(123456789012345678)})
    loading.load(format="avro")
    assert set(loading.reasons()) == {"bad"}
    assert loading.rows() == [([0.29],)]
