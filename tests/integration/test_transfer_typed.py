"""Avro, ORC and Arrow arrive in ClickHouse as `tests/unit/test_reading_typed.py` shows it, by each loader."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pyarrow as pa
import pytest

from storeside.stack.settings import CHECKOUT, Stack
from tests.avro_files import avro, record
from tests.fuzz.differential import columnar as differential
from tests.transfers import FromAIStore, Loaded, Loading, Refused
from tests.unit.test_reading_typed import COLUMNAR, file_of, logical, nullable

SECOND = dt.datetime(2026, 1, 2, 3, 4, 5, 6000, tzinfo=None)
# By case: a column of Arrow, the type of a value in Avro and the value, the type of the table's column, and the value
# there or the reason. ORC has no Avro.
VALUES: dict[str, tuple[pa.Array, Any, Any, str, list[Any] | str]] = {
    "number": (pa.array([127]), "long", 127, "Nullable(Int8)", ["127"]),
    "large": (pa.array([128]), "long", 128, "Nullable(Int8)", "column 'large'"),
    "text": (pa.array(["é\t"]), "string", "é\t", "Nullable(String)", ["é\t"]),
    "null": (pa.array([None], pa.int64()), nullable("long"), (0, None), "Nullable(Int64)", [None]),
    "moment": (
        pa.array([SECOND], pa.timestamp("us")), logical("long", "timestamp-micros"),
        int(SECOND.replace(tzinfo=dt.UTC).timestamp() * 1000) * 1000,
        "Nullable(DateTime64(3, 'UTC'))", ["2026-01-02 03:04:05.006"],
    ),
    "fraction": (
        pa.array([SECOND.replace(microsecond=1)], pa.timestamp("us")), logical("long", "timestamp-micros"), 1,
        "Nullable(DateTime64(3, 'UTC'))", "column 'fraction'",
    ),
    "list": (
        pa.array([[1, None]], pa.list_(pa.int64())), {"type": "array", "items": nullable("long")},
        [(1, 1), (0, None)], "Array(Nullable(Int64))", ["[1,NULL]"],
    ),
    "map": (
        pa.array([[("a", 1)]], pa.map_(pa.string(), pa.int64())), {"type": "map", "values": "long"}, {"a": 1},
        "Map(String, Nullable(Int64))", ["{'a':1}"],
    ),
    "no_list": (
        pa.array([None], pa.list_(pa.int64())), nullable({"type": "array", "items": "long"}), (0, None),
        "Array(Nullable(Int64))", "is NULL, which",
    ),
    "other": (pa.array(["x"]), "string", "x", "Nullable(Int8)", "column 'other'"),
}  # fmt: skip


@pytest.mark.parametrize("form", [*COLUMNAR, "avro"])
def test_values_of_each_kind(loading: Loading, loader: str, form: str) -> None:
    def content(name: str) -> bytes:
        array, kind, value, *_ = VALUES[name]
        return avro(record(**{name: kind}), [{name: value}]) if form == "avro" else file_of(form, {name: array})

    loading.create(", ".join(f"`{name}` {kind}" for name, (*_, kind, _) in VALUES.items()))
    loading.cases(
        {
            name: Refused(content(name), wanted)
            if isinstance(wanted, str)
            else Loaded(content(name), [(text,) for text in wanted], f"toString(`{name}`)")
            for name, (*_, wanted) in VALUES.items()
        },
        loader=loader, format=form,
    )  # fmt: skip


@pytest.mark.parametrize("form", [*COLUMNAR, "avro"])
def test_corrupt_bytes_are_refused_or_change_no_count(loading: Loading, loader: str, form: str) -> None:
    """None of these formats has checksums, so changed values cannot be detected; lost rows are."""
    rows = [{"n": n, "l": [n]} for n in range(300)]
    kinds = {"n": pa.int64(), "l": pa.list_(pa.int64())}
    table = pa.table({name: pa.array([row[name] for row in rows], kind) for name, kind in kinds.items()})
    types = record(n="long", l={"type": "array", "items": "long"})
    whole = avro(types, rows, per_block=50) if form == "avro" else file_of(form, table)
    loading.create("n Int64, l Array(Int64)")
    step = max(1, len(whole) // 23)
    loading.put({f"{at:06}": whole[:at] + b"\x7f" + whole[at + 1 :] for at in range(0, len(whole), step)})
    loading.put({"good": whole})
    loading.load(loader=loader, format=form, system_columns=("_object",))
    assert "good" not in loading.reasons()
    counts = loading.query(f"SELECT _object, count() FROM {loading.table} GROUP BY 1")
    assert {count for key, count in counts if key not in loading.reasons()} == {300}


def test_orc_that_ends_its_reader_is_refused_alone(loading: Loading) -> None:
    """pyarrow 26.0.1 reads this file's stripe into a segmentation fault."""
    values = {"n": list(range(1000)), "s": [str(n) for n in range(1000)], "l": [[n] for n in range(1000)]}
    whole = file_of("orc", values)
    loading.create("n Int64, s String, l Array(Int64)")
    loading.put({f"{at:06}": whole[:at] + b"\x7f" + whole[at + 1 :] for at in (118, 122)})
    loading.put({"good": whole})
    loading.load(format="orc")
    assert "good" not in loading.reasons()
    assert all(reason.endswith("(status -11)") for reason in loading.reasons().values())
    assert loading.rows("count()", "1") == [(1000,)]


def test_generated_files_arrive_as_pyarrow_reads_them(stack: Stack, clickhouse: Any, s3_client: Any) -> None:
    outcome = differential.compare_with(stack, clickhouse, s3_client, 90, 7)
    assert outcome.silent == []
    assert outcome.equal > 40
    assert f"### {differential.DAMAGED}" in (CHECKOUT / "docs" / "differences.md").read_text().splitlines()


@pytest.mark.parametrize("form", [*COLUMNAR, "avro"])
def test_from_aistore(stack: Stack, clickhouse: Any, aistore: Any, form: str) -> None:
    loading = FromAIStore(stack, clickhouse, aistore)
    rows = [{"n": n} for n in range(10)]
    whole = avro(record(n="long"), rows) if form == "avro" else file_of(form, {"n": list(range(10))})
    loading.put({"a": whole, "b": whole[:-10]})
    loading.load()
    assert set(loading.reasons()) == {"b"}
    assert loading.rows("n", "n") == [(n,) for n in range(10)]
