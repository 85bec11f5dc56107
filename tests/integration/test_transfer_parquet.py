"""Parquet arrives in ClickHouse as `tests/unit/test_reading_parquet.py` shows it, by each loader and through S3."""

from __future__ import annotations

import uuid
from collections import Counter
from typing import Any

import pyarrow as pa
import pytest

from storeside.stack.servers import s3
from storeside.stack.settings import Stack
from tests.fuzz.differential import parquet as differential
from tests.transfers import Loaded, Loading, Refused, parquet

UUID = uuid.UUID("12345678-1234-5678-1234-567812345678")
STRUCT = pa.struct([("x", pa.int64()), ("l", pa.list_(pa.string()))])
DAY = 24 * 3600 * 10**3


def uuids(values: list[bytes]) -> pa.Array:
    return pa.ExtensionArray.from_storage(pa.uuid(), pa.array(values, pa.binary(16)))


# By case: values of Arrow, the type of their column in the table, and the values there or the reason.
VALUES: dict[str, tuple[pa.Array, str, list[Any] | str]] = {
    "time": (pa.array([3_661_123, None], pa.time32("ms")), "Nullable(Time64(3))", ["01:01:01.123", None]),
    "day": (pa.array([DAY], pa.int32()).view(pa.time32("ms")), "Nullable(Time64(3))", "column 'day'"),
    "cut": (pa.array([1001], pa.time64("us")), "Nullable(Time64(3))", "cannot hold"),
    "uuid": (uuids([UUID.bytes]), "Nullable(UUID)", [str(UUID)]),
    "uuid_list": (pa.ListArray.from_arrays([0, 1], uuids([UUID.bytes])), "Array(UUID)", [f"['{UUID}']"]),
    "json": (pa.array(['{"b": 1.50}'], pa.json_()), "Nullable(String)", ['{"b": 1.50}']),
    "nulls": (pa.nulls(2), "Nullable(Int8)", [None, None]),
    "map": (pa.array([[("a", 1)]], pa.map_(pa.string(), pa.int32())), "Map(String, Nullable(Int32))", ["{'a':1}"]),
    "struct": (
        pa.array([{"x": 1, "l": ["a", None]}, None], STRUCT),
        "Nullable(Tuple(x Nullable(Int64), l Array(Nullable(String))))", ["(1,['a',NULL])", None],
    ),
    "nested_null": (pa.array([[1], None], pa.list_(pa.int32())), "Array(Nullable(Int32))", "cannot hold"),
    "wider": (pa.array([[1], [2]], pa.list_(pa.int64())), "Array(Nullable(Float64))", ["[1]", "[2]"]),
    "inexact": (pa.array([[2**53 + 1]], pa.list_(pa.int64())), "Array(Nullable(Float64))", "cannot be safely"),
    "large": (pa.array([128], pa.int64()), "Nullable(Int8)", "column 'large'"),
}  # fmt: skip


def test_values_of_each_kind(loading: Loading, loader: str) -> None:
    loading.create(", ".join(f"{name} {kind}" for name, (_, kind, _) in VALUES.items()))
    loading.cases(
        {
            name: Refused(parquet({name: array}), wanted)
            if isinstance(wanted, str)
            else Loaded(parquet({name: array}), [(text,) for text in wanted], f"toString({name})")
            for name, (array, _, wanted) in VALUES.items()
        },
        ".parquet", loader=loader,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("loader", "nulls", "requests"), [("pull", False, 1), ("push", False, 2), ("pull", True, 3), ("push", True, 3)]
)
def test_a_worker_requests_the_footer_of_an_object_once(
    loading: Loading, stack: Stack, loader: str, nulls: bool, requests: int
) -> None:
    """It reads footers because of their structs; with push, a second request brings the object.

    A struct that is NULL makes pyarrow read the rows: it requests the footer again, and the rows.
    """
    client = s3.of_stack("s3", stack)
    keys: list[str] = []
    client.meta.events.register("provide-client-params.s3.GetObject", lambda params, **_: keys.append(params["Key"]))
    structs = pa.array([{"a": 1, "b": "x"}, None if nulls else {"a": 2, "b": "y"}])
    loading.put({f"{n:02}.parquet": parquet({"n": pa.array([n, n]), "s": structs}) for n in range(30)})
    loading.create("n Int64, s Nullable(Tuple(a Nullable(Int64), b Nullable(String)))")
    assert loading.load(loader=loader, format="parquet", s3=client).rows == 60
    assert loading.query(f"SELECT countIf(s IS NULL) FROM {loading.table}") == [(30 * nulls,)]
    assert Counter(keys) == {f"{n:02}.parquet": requests for n in range(30)}


def test_generated_files_have_no_silent_differences(stack: Stack, clickhouse: Any, s3_client: Any) -> None:
    outcome = differential.compare_with(stack, clickhouse, s3_client, 200, 7)
    assert outcome.files == 200
    assert outcome.equal > 50
    assert outcome.silent == []


def test_a_planted_difference_is_found(
    stack: Stack, clickhouse: Any, s3_client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = differential.read_by_pyarrow

    def planted(content: bytes) -> Any:
        rows = plain(content)
        return [{**row, "c0": "planted"} for row in rows] if isinstance(rows, list) else rows

    monkeypatch.setattr(differential, "read_by_pyarrow", planted)
    assert differential.compare_with(stack, clickhouse, s3_client, 20, 7).silent
