"""Moments that ClickHouse would show as others: those outside the years 0 to 9999, in formats that state types."""

from __future__ import annotations

import io
from typing import Any

import pyarrow as pa
import pyarrow.orc
import pytest

from storeside.transfer.request.column_options import Columns
from tests.avro_files import avro
from tests.statements import Statements
from tests.transfers import Loaded, Refused, parquet

SECONDS = {"0000-01-01": -62_167_219_200, "9999-12-31 23:59:59": 253_402_300_799}
LAST_BAD = {
    "10000-01-01": 253_402_300_800,
    "milliseconds as microseconds": 1_608_822_900_000,
    "year -1": -62_167_219_201,
}


def moments(seconds: int, unit: str) -> dict[str, pa.Array]:
    """Return columns with a moment: alone, in a struct, in a list of structs, and in a map."""
    kind, ticks = pa.timestamp(unit), seconds * {"s": 1, "ms": 1000, "us": 1_000_000}[unit]
    one = pa.array([ticks, None], pa.int64()).cast(kind)
    struct = pa.StructArray.from_arrays([one], ["m"])
    return {
        "t": one,
        "s": struct,
        "l": pa.ListArray.from_arrays(pa.array([0, 2, 2], pa.int32()), struct),
        "m": pa.MapArray.from_arrays([0, 1, 2], pa.array(["a", "b"]), one),
    }


def orc(table: pa.Table) -> bytes:
    out = io.BytesIO()
    pyarrow.orc.write_table(table, out)
    return out.getvalue()


def arrow(table: pa.Table) -> bytes:
    out = io.BytesIO()
    with pa.ipc.new_file(out, table.schema) as file:
        file.write_table(table)
    return out.getvalue()


FORMATS: dict[str, Any] = {"parquet": parquet, "orc": orc, "arrow": arrow}
# A moment of ORC has nanoseconds, which neither ClickHouse nor pyarrow can hold in 64 bits.
REASONS = {"orc": "out of range"}


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("name", moments(0, "us"))
def test_a_moment_outside_the_years_is_refused(reading: Statements, loader: str, form: str, name: str) -> None:
    unit, reason = "us", REASONS.get(form, "outside the years 0 to 9999")
    reading.put({f"good.{form}": FORMATS[form](pa.table({name: moments(0, unit)[name]}))})
    assert reading.load(loader=loader).loaded == 1, reading.reasons()
    cases: dict[str, Loaded | Refused] = {
        title: Refused(FORMATS[form](pa.table({name: moments(seconds, unit)[name]})), reason)
        for title, seconds in LAST_BAD.items()
    }
    reading.cases(cases, suffix=f".{form}", folder="x/", loader=loader, format=form)


@pytest.mark.parametrize("target", ["Nullable(DateTime64(6))", "Nullable(DateTime64(3, 'UTC'))", "Nullable(String)"])
def test_a_moment_is_refused_for_any_type_of_the_column(reading: Statements, loader: str, target: str) -> None:
    reading.create(f"t {target}")
    reading.put({"a.parquet": parquet({"t": moments(LAST_BAD["10000-01-01"], "us")["t"]})})
    assert reading.load(loader=loader).failed == 1
    assert "outside the years 0 to 9999" in reading.reasons()["a.parquet"]


def test_moments_within_the_years_keep_their_ticks(reading: Statements, loader: str) -> None:
    for number, seconds in enumerate(SECONDS.values()):
        reading.put({f"{number}.parquet": parquet({"t": moments(seconds, "ms")["t"]})})
    assert reading.load(loader=loader).loaded == len(SECONDS), reading.reasons()
    kept = {row[0] for row in reading.rows("toUnixTimestamp64Milli(t)")}
    assert kept == {None, *(seconds * 1000 for seconds in SECONDS.values())}


@pytest.mark.parametrize("loader", ["pull", "push"])
def test_avro_is_refused_too(reading: Statements, loader: str) -> None:
    kind = {"type": "long", "logicalType": "timestamp-micros"}
    schema = {"type": "record", "name": "r", "fields": [{"name": "t", "type": kind}]}
    reading.put({"good.avro": avro(schema, [{"t": 0}])})
    assert reading.load(loader=loader).loaded == 1
    reading.put({"bad.avro": avro(schema, [{"t": LAST_BAD["10000-01-01"] * 1_000_000}])})
    assert reading.load(loader=loader).failed == 1
    assert "outside the years 0 to 9999" in reading.reasons()["bad.avro"]


@pytest.mark.parametrize("days", [2_932_897, -719_529])
@pytest.mark.parametrize("loader", ["pull", "push"])
def test_a_day_outside_the_years_has_a_remedy_that_helps(reading: Statements, loader: str, days: int) -> None:
    content = parquet({"id": [1], "d": pa.array([days], pa.int32()).cast(pa.date32())})
    reading.put({"a.parquet": content})
    reading.load(loader=loader, on_drift="widen")
    assert reading.reasons()["a.parquet"].endswith("correct the date, or leave out the column")
    other = reading.another()
    other.put({"a.parquet": content})
    other.load(loader=loader, chosen=Columns(drop=("d",)))
    assert other.rows() == [(1,)]


@pytest.mark.parametrize("name", moments(0, "us"))
def test_an_int96_beyond_nanoseconds_is_refused(reading: Statements, loader: str, name: str) -> None:
    """Spark writes such dates; pyarrow, by which the worker sends large objects, wraps them."""
    times = {"1684": -9_000_000_000, "2261": 9_200_000_000, "0001": -62_135_596_800, "9999": 253_402_214_400}
    for key, seconds in times.items():
        table = pa.table({name: moments(seconds, "us")[name]})
        reading.put({f"{key}.parquet": parquet(table, use_deprecated_int96_timestamps=True)})
    reading.load(loader=loader, on_null_nested="empty")
    reasons = reading.reasons()
    assert set(reasons) == {"0001.parquet", "9999.parquet"}
    assert all("TIMESTAMP_MICROS" in reason for reason in reasons.values())
    assert reading.query(f"SELECT count() FROM {reading.table}") == [(4,)]
