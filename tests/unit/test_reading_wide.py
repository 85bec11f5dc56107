"""Text objects with many columns: their checks run together, and errors still name column and row."""

from __future__ import annotations

import gzip
import json

import pytest

from storeside.transfer.base.errors import TransferInputError
from tests.statements import Statements

COUNT = 36
# A value that makes a column of the type, one that the column refuses, and the reason.
REFUSED = {
    "int": ("7", "007", "has a code, or a number that Int64 does not keep"),
    "float": ("1.5", "1e999", "has a number beyond the range of Float64"),
    "date": ("2024-01-02", "2024-02-30", "has a value that Nullable(Date32) cannot hold"),
    "time": ("2024-01-02 03:04:05.25", "03-04-05", "has a date without a year"),
}


def name(n: int) -> str:
    return f"a `quoted` x {n}"


def csv(*rows: list[str]) -> bytes:
    return "".join(",".join(line) + "\n" for line in ([name(n) for n in range(COUNT)], *rows)).encode()


@pytest.mark.parametrize("kind", REFUSED)
@pytest.mark.parametrize("how", ["pull", "push", "keep"])
def test_a_refused_value_among_many_columns_has_its_column_and_row(reading: Statements, kind: str, how: str) -> None:
    value, refused, reason = REFUSED[kind]
    good, bad = [value] * COUNT, [value] * COUNT
    bad[30] = refused
    reading.put({"good.csv": csv(good)})
    reading.load()
    reading.put({"bad.csv": csv(good, bad, good)})
    expected = f"row 1, column {name(30)!r} {reason}"
    if how != "keep":
        assert reading.load(loader=how).failed == 1
        assert reading.reasons()["bad.csv"].startswith(expected)
    else:
        assert reading.load(on_bad_rows="keep").rejected == 1
        ((told,),) = reading.query(f"SELECT reason FROM {reading.table}_rejected")
        assert told.startswith(expected)


def test_a_refused_number_among_many_fields_of_json_has_its_column(reading: Statements) -> None:
    names = [f"n{n}" for n in range(60)]
    reading.put({"good.jsonl": json.dumps(dict.fromkeys(names, 1.5)).encode() + b"\n"})
    reading.load()
    reading.put({"bad.jsonl": json.dumps(dict.fromkeys(names, 1.5)).replace('"n41": 1.5', '"n41": 1e999').encode()})
    reading.load()
    assert "column 'n41' has a number beyond" in reading.reasons()["bad.jsonl"]


def test_a_column_of_a_type_with_names_keeps_its_own_check(reading: Statements) -> None:
    """The name of a field must not be taken for the column's."""
    fields = ", ".join(f"x{n} Tuple(x{n} Int8)" for n in range(40))
    reading.create(fields)
    reading.put({"a.jsonl": json.dumps({f"x{n}": {f"x{n}": n} for n in range(40)}).encode()})
    assert reading.load().rows == 1


LONG_HEADER = csv(["1"] * COUNT)
LONG_ROW = b'a,b\n"' + b"x\n" * 250 + b'",1\n'


@pytest.mark.parametrize("text", [LONG_HEADER, LONG_ROW], ids=["header", "row"])
@pytest.mark.parametrize("name", ["a.csv", "a.csv.gz"])
def test_a_sample_grows_until_it_has_a_row(reading: Statements, name: str, text: bytes) -> None:
    reading.put({name: gzip.compress(text) if name.endswith(".gz") else text})
    assert reading.load(sample_bytes=len(text) // 15).rows == 1


REMEDIES = [(LONG_HEADER, "increase"), (LONG_ROW, "close its quotes, or increase")]


@pytest.mark.parametrize(("text", "remedy"), REMEDIES, ids=["header", "row"])
def test_a_first_row_beyond_the_largest_sample_has_a_remedy(reading: Statements, text: bytes, remedy: str) -> None:
    reading.put({"a.csv": text})
    reason = f"first row does not end within a sample of .* bytes: {remedy} `sample_bytes`"
    with pytest.raises(TransferInputError, match=reason):
        reading.load(sample_bytes=len(text) // 40)


def test_an_object_with_a_header_alone_shows_no_columns(reading: Statements) -> None:
    reading.put({"a.csv.gz": gzip.compress(csv()), "b.csv": LONG_HEADER})
    assert (reading.load().loaded, len(reading.rows())) == (2, 1)
