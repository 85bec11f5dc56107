"""Values of text and of typed objects that a conversion could change: each is loaded whole, or its object fails."""

from __future__ import annotations

from decimal import Decimal

import pyarrow as pa
import pytest

from storeside.transfer.request.column_options import Columns
from tests.avro_files import avro, record
from tests.transfers import Loading, jsonl, parquet

LOADERS = ("pull", "push")


def text_object(form: str, row: dict[str, str]) -> bytes:
    """Return one row as CSV or JSON Lines."""
    return jsonl([row]) if form == "jsonl" else f"{','.join(row)}\n{','.join(row.values())}\n".encode()


@pytest.mark.parametrize("form", ["csv", "jsonl"])
def test_digests_stay_texts(loading: Loading, form: str) -> None:
    """Only a UUID in the notation of a UUID column becomes one: its text stays the same."""
    row = {
        "md5": "d41d8cd98f00b204e9800998ecf8427e",
        "capitals": "61F0C404-5CB3-11E7-907B-A6006AD3DBA0",
        "uuid": "61f0c404-5cb3-11e7-907b-a6006ad3dba0",
    }
    loading.put({"x": text_object(form, row)})
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
    assert "column 'l' has a value that Array(Float64) cannot hold" in loading.reasons()["l"]
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


@pytest.mark.guarantee("load-values")
@pytest.mark.parametrize("loader", LOADERS)
@pytest.mark.parametrize("form", ["csv", "jsonl"])
def test_fractions_of_a_second_that_a_column_lacks(loading: Loading, form: str, loader: str) -> None:
    loading.create("m DateTime64(6, 'UTC'), s DateTime('UTC'), t Time64(3)")
    good = {"m": "2024-01-01T00:00:00.123456Z", "s": "2024-01-01T00:00:00.000Z", "t": "01:02:03.120"}
    rows = {
        "good": good, "m": {**good, "m": "2024-01-01T00:00:00.1234567Z"},
        "s": {**good, "s": "2024-01-01T00:00:00.0000009Z"}, "t": {**good, "t": "01:02:03.123456"},
    }  # fmt: skip
    loading.put({key: text_object(form, row) for key, row in rows.items()})
    loading.load(loader=loader, format=form)
    assert set(loading.reasons()) == {"m", "s", "t"}
    assert "column 'm' has a value that DateTime64(6, 'UTC') cannot hold" in loading.reasons()["m"]
    assert loading.rows("toString(m), toString(s), toString(t)") == [
        ("2024-01-01 00:00:00.123456", "2024-01-01 00:00:00", "01:02:03.120")
    ]


@pytest.mark.parametrize("loader", LOADERS)
def test_an_invalid_text_is_not_replaced_by_the_default_of_its_column(loading: Loading, loader: str) -> None:
    loading.create("n Int64, m DateTime('UTC') DEFAULT '2020-01-01 00:00:00', d Date DEFAULT '2020-01-01'")
    loading.put({"m": b"n,m,d\n1,x,2021-01-01\n", "d": b"n,m,d\n1,,x\n", "good": b"n,m,d\n1,,\n"})
    loading.load(loader=loader, format="csv")
    assert set(loading.reasons()) == {"m", "d"}
    assert loading.rows("n, toString(m), toString(d)") == [(1, "2020-01-01 00:00:00", "2020-01-01")]


@pytest.mark.guarantee("load-values")
@pytest.mark.parametrize("loader", LOADERS)
@pytest.mark.parametrize("form", ["csv", "jsonl"])
def test_values_within_lists(loading: Loading, form: str, loader: str) -> None:
    loading.create("n Array(Decimal(9, 2)), d Array(Date), m Array(DateTime('UTC'))")

    def made(n: str = "1.25", d: str = "2024-02-29", m: str = "2024-01-01 00:00:00") -> bytes:
        if form == "csv":
            return f"n,d,m\n[{n}],\"['{d}']\",\"['{m}']\"\n".encode()
        return f'{{"n": [{n}], "d": ["{d}"], "m": ["{m}"]}}\n'.encode()

    wrong = {"n": made(n="1.239"), "d": made(d="2024-02-31"), "m": made(m="2024-01-01T00:00:00.9Z")}
    loading.put({**wrong, "good": made()})
    loading.load(loader=loader, format=form)
    assert set(loading.reasons()) == set(wrong)
    assert "column 'n' has a value that Array(Decimal(9, 2)) cannot hold" in loading.reasons()["n"]
    assert loading.rows("toString(n), toString(d), toString(m)") == [
        ("[1.25]", "['2024-02-29']", "['2024-01-01 00:00:00']")
    ]


def test_dates_within_deduced_structs(loading: Loading) -> None:
    loading.put({f"good/{n}": jsonl([{"o": {"day": f"2024-02-2{n}", "n": 1}}]) for n in (8, 9)})
    loading.put({"more/bad": jsonl([{"o": {"day": "2024-02-31", "n": 1}}]), "more/null": jsonl([{"o": None}])})
    loading.load("good/", format="jsonl")
    loading.load("more/", format="jsonl")
    assert set(loading.reasons()) == {"more/bad"}
    assert loading.rows("toString(o.day)", "o.day") == [("2024-02-28",), ("2024-02-29",), (None,)]


@pytest.mark.parametrize("loader", LOADERS)
@pytest.mark.parametrize("form", ["csv", "jsonl"])
def test_defaults_see_the_values_of_the_table(loading: Loading, form: str, loader: str) -> None:
    """An expression sees numbers and dates, not texts, also those of other defaults, and renamed columns."""
    loading.create(
        "hour UInt32 DEFAULT month * 100, month UInt32 DEFAULT toYYYYMM(day), id UInt64, day Date,"
        " hash UInt64 DEFAULT cityHash64(id), note String DEFAULT 'none'"
    )
    rows = [{"id": "1", "day": "2024-02-29"}, {"id": "2", "day": "2024-03-01"}]
    loading.put({f"{n}.{form}": text_object(form, row) for n, row in enumerate(rows)})
    loading.put({f"given.{form}": text_object(form, {"id": "3", "day": "2024-03-01", "month": "7", "note": "x"})})
    renamed = {"number": "4", "day": "2024-03-01"}
    loading.put({f"renamed/{form}": text_object(form, renamed)})
    loading.load("*." + form, loader=loader, format=form)
    loading.load("renamed/", loader=loader, format=form, chosen=Columns(rename={"number": "id"}))
    assert loading.reasons() == {}
    assert loading.rows("id, hour, month, note, hash = cityHash64(id)", "id") == [
        (1, 20240200, 202402, "none", 1), (2, 20240300, 202403, "none", 1), (3, 700, 7, "x", 1),
        (4, 20240300, 202403, "none", 1),
    ]  # fmt: skip


@pytest.mark.parametrize("form", ["csv", "jsonl"])
def test_casts_to_types_in_another_spelling(loading: Loading, form: str) -> None:
    """The checks of values know the types as ClickHouse writes them."""
    chosen = Columns(cast={"d": "Decimal(9,2)", "m": "Nullable(DateTime64(3,'UTC'))", "e": "decimal(9)"})
    good = {"d": "2.25", "m": "2024-01-01 00:00:00.123", "e": "3"}
    wrong = {"d": {**good, "d": "2.255"}, "m": {**good, "m": f"{good['m']}4"}, "e": {**good, "e": "3.5"}}
    loading.put({key: text_object(form, row) for key, row in {**wrong, "good": good}.items()})
    loading.load(format=form, chosen=chosen)
    assert set(loading.reasons()) == set(wrong)
    assert loading.rows("toString(d), toString(m), toString(e)") == [tuple(good.values())]
