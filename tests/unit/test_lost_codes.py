"""The list of columns of numbers that have lost the zeros and the plus of codes."""

from __future__ import annotations

import pytest

from storeside.transfer import lost_codes as module
from storeside.transfer.base.errors import TransferInputError
from storeside.transfer.lost_codes import Lost, lost_codes
from storeside.transfer.request.column_options import Columns
from storeside.transfer.request.object_format import Csv
from storeside.transfer.request.request import Request
from tests.statements import Files, Statements
from tests.transfers import request_of


def wanted(reading: Statements, **options: object) -> Request:
    return request_of(Files(reading.bucket, "", endpoint=str(reading.folder)), reading.table, **options)  # type: ignore[arg-type]


def test_columns_that_have_lost_codes(reading: Statements, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_COLUMNS", 2)
    monkeypatch.setattr(module, "_OBJECTS", 2)
    reading.create("zip Nullable(Int64), name String, phone UInt64, f Float64, d Decimal(9, 2), same Int32")
    header = "zip,name,phone,f,d,same\n"
    reading.put({
        "a.csv": f"{header}02134,007,+4917,1.50,01.5,-5\n,x,7,-0.5,1,0\n".encode(),
        "b.csv": f"{header}  0830,x,5,12345678901234567890.5,7,10\nbad,row\n".encode(),
        "c.csv": f"{header}12,x,5,1e-05,7,10\n".encode(),
    })  # fmt: skip
    assert reading.load(codes="number", on_bad_rows="skip").rows == 4
    keys = ["a.csv", "b.csv", "c.csv"]
    assert lost_codes(reading.client, wanted(reading), keys) == [
        Lost("zip", "Nullable(Int64)", 2, "02134", "a.csv"), Lost("phone", "UInt64", 1, "+4917", "a.csv"),
        Lost("f", "Float64", 1, "12345678901234567890.5", "b.csv"), Lost("d", "Decimal(9, 2)", 1, "01.5", "a.csv"),
    ]  # fmt: skip
    assert lost_codes(reading.client, wanted(reading), ["c.csv"]) == []


def test_columns_of_csv_without_a_header_and_with_other_names(reading: Statements) -> None:
    reading.create("code Nullable(Int64), name String")
    reading.put({"a.csv": b"x;007\n", "b.csv": b"x;7\n"})
    options = {"csv": Csv(";", names=("name", "zip")), "chosen": Columns(rename={"zip": "code"})}
    reading.load(codes="number", **options)
    found = lost_codes(reading.client, wanted(reading, **options), ["a.csv", "b.csv"])
    assert found == [Lost("code", "Nullable(Int64)", 1, "007", "a.csv")]


def test_texts_in_columns_of_numbers_of_json(reading: Statements) -> None:
    reading.create("n Nullable(Int64)")
    reading.put({"a.jsonl": b'{"n": "007", "m": 1}\n{"n": 5}\n{"n": null}\n'})
    found = lost_codes(reading.client, wanted(reading, format="jsonl"), ["a.jsonl"])
    assert found == [Lost("n", "Nullable(Int64)", 1, "007", "a.jsonl")]


def test_objects_that_clickhouse_does_not_read_are_not_compared(reading: Statements) -> None:
    reading.create("n Nullable(Int64)")
    for options in ({"csv": Csv(quote="'")}, {"format": "parquet"}):
        with pytest.raises(TransferInputError, match="only text that ClickHouse itself reads"):
            lost_codes(reading.client, wanted(reading, **options), ["a"])
