"""Columns whose values are in the keys of objects, by both loaders."""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pytest

from storeside.stack.settings import Stack
from storeside.transfer.base.errors import TransferInputError
from storeside.transfer.cli import request, transfer_arguments
from storeside.transfer.request.options import ReadOptions
from tests.avro_files import avro, record
from tests.transfers import FromAIStore, Loading, jsonl, parquet

LOADERS = ("pull", "push")


def arrow(columns: Mapping[str, Any]) -> bytes:
    table, sink = pa.table(columns), io.BytesIO()
    with pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue()


FORMATS: dict[str, bytes] = {
    "parquet": parquet({"n": [1]}), "csv": b"n\n1\n", "jsonl": jsonl([{"n": 1}]), "arrow": arrow({"n": [1]}),
    "avro": avro(record(n="long"), [{"n": 1}]),
}  # fmt: skip


@pytest.mark.parametrize("loader", LOADERS)
@pytest.mark.parametrize("form", FORMATS)
def test_values_of_keys_become_columns(loading: Loading, loader: str, form: str) -> None:
    content = FORMATS[form]
    values = {
        "year=2024/month=01/city=New%20York": (2024, 1, "New York"),
        "year=-5/month=12/city=%C3%BC%2F%25": (-5, 12, "ü/%"),
        "year=2024/month=02/city=__HIVE_DEFAULT_PARTITION__": (2024, 2, None),
        "year=1/month=3/city=": (1, 3, ""),
        "year=2/month=3/city=a+b'`\\": (2, 3, "a+b'`\\"),
    }  # fmt: skip
    loading.put({f"t/{folder}/x.{form}": content for folder in values})
    loading.load("t/", loader=loader, partition_columns=("year", "month", "city"))
    assert loading.reasons() == {}
    types = loading.types()
    assert (types["year"], types["month"], types["city"]) == (
        "Nullable(Int64)", "Nullable(Int64)", "LowCardinality(Nullable(String))",
    )  # fmt: skip
    assert sorted(loading.rows("year, month, city", "1"), key=str) == sorted(values.values(), key=str)
    assert loading.rows("DISTINCT n", "1") == [(1,)]
    loading.put({f"t/year=7/month=8/city=9/x.{form}": content})  # a later run, with the table
    loading.load("t/", loader=loader, partition_columns=("year", "month", "city"))
    assert loading.query(f"SELECT month, city FROM {loading.table} WHERE year = 7") == [(8, "9")]


@pytest.mark.parametrize("loader", LOADERS)
def test_types_are_given_or_deduced_and_values_must_fit(loading: Loading, loader: str) -> None:
    loading.put({f"day=2026-01-0{n}/code=00{n}/x.csv": b"n\n1\n" for n in (1, 2)})
    loading.load(loader=loader, partition_columns=("day", "code"), columns={"code": "String"})
    assert loading.types()["day"] == "Nullable(Date32)"
    assert loading.rows("toString(day), code", "1") == [("2026-01-01", "001"), ("2026-01-02", "002")]
    wrong = {"day=2026-02-31/code=x/x.csv", "day=soon/code=x/x.csv", "day=2026-01-05/code=%FF/x.csv"}
    loading.put(dict.fromkeys([*wrong, "day=2026-01-06/code=6/x.csv"], b"n\n1\n"))
    loading.load(loader=loader, partition_columns=("day", "code"))
    assert set(loading.reasons()) == wrong
    assert loading.rows("count()", "1") == [(3,)]


@pytest.mark.parametrize("loader", LOADERS)
@pytest.mark.parametrize("form", FORMATS)
def test_keys_that_are_refused_alone(loading: Loading, loader: str, form: str) -> None:
    both = {
        "parquet": parquet({"n": [1], "year": [5]}), "csv": b"n,year\n1,5\n", "jsonl": jsonl([{"n": 1, "year": 5}]),
        "arrow": arrow({"n": [1], "year": [5]}), "avro": avro(record(n="long", year="long"), [{"n": 1, "year": 5}]),
    }  # fmt: skip
    one = FORMATS[form]
    loading.create("n Int64, year UInt16")
    wrong = {"none/x": one, "year=1/year=2/x": one, "year=99999/x": one, "year=2/both": both[form], "year=3": one,
             "year=__HIVE_DEFAULT_PARTITION__/x": one}  # fmt: skip
    loading.put({**wrong, "year=4/good": one})
    loading.load(loader=loader, format=form, partition_columns=("year",))
    assert set(loading.reasons()) == set(wrong)
    assert "its key has no folder year=" in loading.reasons()["none/x"]
    assert "its key has 2 folders year=" in loading.reasons()["year=1/year=2/x"]
    assert loading.rows("n, year") == [(1, 4)]


@pytest.mark.parametrize("loader", LOADERS)
def test_bad_rows_keep_the_values_of_their_keys(loading: Loading, loader: str) -> None:
    loading.put({"year=1/x.csv": b"n,s\n1,a\n2,b\n", "year=2/x.csv": b"n,s\n3,a\nbad,b\n"})
    loading.create("n Int64, s String")  # the load adds the column
    loading.load(loader=loader, partition_columns=("year",), on_bad_rows="skip")
    assert loading.rows("n, year", "n") == [(1, 1), (2, 1), (3, 2)]


def test_from_aistore(stack: Stack, clickhouse: Any, aistore: Any) -> None:
    loading = FromAIStore(stack, clickhouse, aistore)
    loading.put({"year=2024/x.csv": b"n\n1\n"})
    loading.load(partition_columns=("year",))
    assert loading.rows("n, year") == [(1, 2024)]


@pytest.mark.parametrize("names", [("a", "a"), ("a/b",), ("_object",)])
def test_names_that_are_refused(loading: Loading, names: tuple[str, ...]) -> None:
    with pytest.raises(TransferInputError, match="partition_columns"):
        loading.transfer(partition_columns=names)


def test_names_may_be_one_text() -> None:
    assert ReadOptions(partition_columns="year, month,").partition_columns == ("year", "month")  # type: ignore[arg-type]
    assert ReadOptions(partition_columns=("",)).partition_columns == ()


def test_the_command_takes_names() -> None:
    parser = transfer_arguments("storeside.transfer", "")
    given = parser.parse_args(["s3://bucket/t/", "data.t", "--set", "read.partition_columns=year,month"])
    assert request(given).read.partition_columns == ("year", "month")
