"""Reading statements make of Avro, ORC and Arrow the values of the file, or refuse it; by both loaders."""

from __future__ import annotations

import datetime as dt
import io
from collections import Counter
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import orc

from storeside.transfer.formats import avro as avro_format
from storeside.transfer.formats.avro import AvroObject
from storeside.transfer.objects.content import Content
from tests.avro_files import CODECS, SYNC, avro, block, header, long, record, sized
from tests.statements import Statements
from tests.transfers import jsonl, parquet

COLUMNAR = ("orc", "arrow", "arrowstream")


def file_of(form: str, table: Any, **options: Any) -> bytes:
    """Return an Arrow table as an ORC or Arrow file."""
    table = table if isinstance(table, pa.Table) else pa.table(table)
    sink = io.BytesIO()
    if form == "orc":
        orc.write_table(table, sink, **options)
    else:
        new = pa.ipc.new_file if form == "arrow" else pa.ipc.new_stream
        with new(sink, table.schema, options=pa.ipc.IpcWriteOptions(**options)) as writer:
            writer.write_table(table, max_chunksize=2)
    return sink.getvalue()


MOMENT = dt.datetime(1960, 2, 3, 4, 5, 6, 7, tzinfo=dt.UTC)
# By column: Arrow type, a value, the type of the column in a new table, and the value as text.
FLAT: dict[str, tuple[Any, Any, str, str]] = {
    "b": (pa.bool_(), False, "Bool", "false"),
    "i8": (pa.int8(), -128, "Int8", "-128"),
    "i64": (pa.int64(), -(2**63), "Int64", str(-(2**63))),
    "f32": (pa.float32(), 0.5, "Float32", "0.5"),
    "f64": (pa.float64(), 1e308, "Float64", "1e308"),
    "s": (pa.string(), "é\t\0", "String", "é\t\0"),
    "y": (pa.binary(), b"a\0", "String", "a\0"),
    "d": (pa.date32(), dt.date(1900, 1, 1), "Date32", "1900-01-01"),
    "n": (pa.timestamp("ns"), -1, "DateTime64(9, 'UTC')", "1969-12-31 23:59:59.999999999"),
    "z": (pa.timestamp("ns", "UTC"), -1, "DateTime64(9, 'UTC')", "1969-12-31 23:59:59.999999999"),
    "c": (pa.decimal128(38, 3), Decimal("-1.234"), "Decimal(38, 3)", "-1.234"),
}
ARROW: dict[str, tuple[Any, Any, str, str]] = {
    **FLAT,
    "u64": (pa.uint64(), 2**64 - 1, "UInt64", str(2**64 - 1)),
    "f16": (pa.float16(), 0.5, "Float32", "0.5"),
    "ls": (pa.large_string(), "x", "String", "x"),
    "sv": (pa.string_view(), "more than twelve bytes", "String", "more than twelve bytes"),
    "fb": (pa.binary(3), b"abc", "FixedString(3)", "abc"),
    "d64": (pa.date64(), dt.date(2299, 12, 31), "Date32", "2299-12-31"),
    "us": (pa.timestamp("us", "Europe/Berlin"), MOMENT, "DateTime64(6, 'UTC')", "1960-02-03 04:05:06.000007"),
    "t32": (pa.time32("s"), 86_399, "Time64(3)", "23:59:59.000"),
    "t64": (pa.time64("ns"), 1, "Time64(9)", "00:00:00.000000001"),
    "dur": (pa.duration("ms"), 5, "Int64", "5"),
    "dec": (pa.decimal256(76, 10), Decimal(10**60), "Decimal(76, 10)", str(10**60)),
    "dict": (pa.dictionary(pa.int8(), pa.string()), "x", "String", "x"),
    "uuid": (pa.uuid(), b"0123456789abcdef", "UUID", "30313233-3435-3637-3839-616263646566"),
}


def table_of(columns: dict[str, tuple[Any, Any, str, str]]) -> Any:
    def array(kind: Any, value: Any) -> Any:
        if kind == pa.float16():
            return pa.array([value, None, value], pa.float32()).cast(kind)
        values = [value, None, value]
        if isinstance(kind, pa.BaseExtensionType):
            return pa.ExtensionArray.from_storage(kind, pa.array(values, kind.storage_type))
        return pa.array(values, kind)

    return pa.table({name: array(kind, value) for name, (kind, value, *_) in columns.items()})


@pytest.mark.parametrize("form", COLUMNAR)
def test_columns_are_deduced_and_values_are_those_of_the_file(reading: Statements, loader: str, form: str) -> None:
    flat = FLAT if form == "orc" else ARROW
    # ClickHouse pulls objects of the first kind itself; the worker reads the second kind.
    exact = {name: column for name, column in flat.items() if name in FLAT}
    for columns in (exact, flat) if flat is not exact else (exact,):
        other = reading.another()
        other.put({"a": file_of(form, table_of(columns)), "b": file_of(form, table_of(columns))})
        other.load(loader=loader, order_by="tuple()")
        assert other.reasons() == {}
        assert other.types() == {name: f"Nullable({kind})" for name, (_, _, kind, _) in columns.items()}
        shown = ", ".join(f"toString({name})" for name in columns)
        wanted = tuple(text for *_, text in columns.values())
        assert other.rows(shown) == [wanted] * 4 + [(None,) * len(columns)] * 2


@pytest.mark.parametrize("form", COLUMNAR)
def test_values_that_do_not_fit_are_refused_alone(reading: Statements, loader: str, form: str) -> None:
    reading.create("c Int8, m DateTime64(3), t String")
    second = dt.datetime(2026, 1, 2, 3, 4, 5, 6000, tzinfo=None)
    good = {"c": [1], "m": pa.array([second], pa.timestamp("us")), "t": ["é"]}
    bad: dict[str, Any] = {
        "large": {"c": [128]},
        "null": {"c": pa.array([None], pa.int64())},
        "fraction": {"m": pa.array([second.replace(microsecond=1)], pa.timestamp("us"))},
        "utf8": {"t": pa.StringArray.from_buffers(1, *pa.array([b"\xff"]).buffers()[1:])},
        "text": {"c": ["x"]},
        "column": {"other": [1]},
    }
    reading.put({name: file_of(form, {**good, **wrong}) for name, wrong in bad.items()})
    reading.put({"good": file_of(form, good)})
    reading.load(loader=loader, format=form)
    assert set(reading.reasons()) == set(bad)
    assert reading.rows("c, toString(m), t") == [(1, "2026-01-02 03:04:05.006", "é")]


@pytest.mark.parametrize("form", COLUMNAR)
def test_nested_values_and_their_nulls(reading: Statements, loader: str, form: str) -> None:
    kinds = {
        "l": pa.list_(pa.int64()), "m": pa.map_(pa.string(), pa.int64()),
        "s": pa.struct([("x", pa.int64()), ("l", pa.list_(pa.string()))]),
    }  # fmt: skip
    values: dict[str, Any] = {"l": [1, None], "m": [("a", 1)], "s": {"x": 1, "l": ["a", None]}}
    whole = pa.table({name: pa.array([values[name]], kind) for name, kind in kinds.items()})
    some = pa.table({name: pa.array([values[name], None], kind) for name, kind in kinds.items()})
    reading.put({"whole": file_of(form, whole), "nulls": file_of(form, some)})
    reading.load(loader=loader, format=form)
    assert reading.rows() == [([1, None], {"a": 1}, {"x": 1, "l": ["a", None]})]
    assert "is NULL, which" in reading.reasons()["nulls"]
    reading.load(loader=loader, format=form, on_null_nested="empty", retry_failed=True)
    assert reading.reasons() == {}
    assert len(reading.rows()) == 3
    assert ([], {}, {"x": None, "l": []}) in reading.rows()
    held = reading.another()
    held.create("l Variant(Array(Nullable(Int64)))")
    held.put({"nulls": file_of(form, some.select(["l"]))})
    held.load(loader=loader, format=form)
    assert sorted(held.rows("l", "tuple()"), key=str) == [(None,), ([1, None],)]


@pytest.mark.parametrize("form", [*COLUMNAR, "avro"])
def test_truncated_and_strange_objects_are_refused_by_name(reading: Statements, loader: str, form: str) -> None:
    rows = [{"n": n} for n in range(1000)]
    whole = avro(record(n="long"), rows, per_block=100) if form == "avro" else file_of(form, {"n": list(range(1000))})
    wrong = {f"cut {size}": whole[:-size] for size in (1, 4, 8, 9, 17, len(whole) // 2, len(whole) - 20)}
    wrong |= {"parquet": parquet({"n": [1]}), "json": jsonl([{"n": 1}]), "empty": b"", "noise": b"\xff\0" * 500}
    reading.create("n Int64")
    reading.put(wrong | {"good": whole})
    reading.load(loader=loader, format=form)
    assert set(reading.reasons()) == set(wrong)
    hint = "is a Parquet file: load it with other keys, or move it to a separate prefix"
    assert hint in reading.reasons()["parquet"]
    assert "upload it again" not in reading.reasons()["json"]
    assert reading.rows("count(), sum(n)", "1") == [(1000, 499_500)]


def test_headers_are_read_once_when_a_batch_is_divided(reading: Statements, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = avro(record(n="long"), [{"n": 1}])
    reading.create("n Int64")
    reading.put({f"{n:02}": whole[:-8] if n % 4 == 3 else whole for n in range(20)})
    seen: Counter[str] = Counter()

    class Counted(AvroObject):
        def __init__(self, content: Content) -> None:
            seen[content.key] += 1
            super().__init__(content)

    monkeypatch.setattr(avro_format, "AvroObject", Counted)
    reading.load(format="avro")
    assert set(reading.reasons()) == {f"{n:02}" for n in range(3, 20, 4)}
    assert seen == {f"{n:02}": 1 for n in range(20)}


def test_a_stream_without_its_end_mark_is_refused(reading: Statements, loader: str) -> None:
    """ClickHouse and pyarrow take a stream that is cut between two messages for complete."""
    table = pa.table({"n": [1, 2, 3]})
    reading.create("n Int64")
    reading.put({"a.arrows": file_of("arrowstream", table)[:-8]})
    reading.load(loader=loader, format="arrowstream")
    assert "so it may be truncated" in reading.reasons()["a.arrows"]


def test_a_stream_after_another_is_refused(reading: Statements, loader: str) -> None:
    """ClickHouse and pyarrow read only the first one."""
    one, other = (file_of("arrowstream", {"n": list(rows)}) for rows in (range(3), range(3, 5)))
    reading.create("n Int64")
    reading.put({"a.arrows": one + other, "b.arrows": other})
    reading.load(loader=loader, format="arrowstream")
    assert "write one stream per object" in reading.reasons()["a.arrows"]
    assert reading.rows("n", "n") == [(3,), (4,)]


@pytest.mark.parametrize("form", [*COLUMNAR, "avro"])
def test_rows_are_numbered(reading: Statements, loader: str, form: str) -> None:
    rows = [{"n": n} for n in range(100)]
    whole = avro(record(n="long"), rows, per_block=7) if form == "avro" else file_of(form, {"n": list(range(100))})
    reading.put({"a": whole, "b": whole})
    reading.load(loader=loader, system_columns=("_object", "_row_number"))
    assert reading.rows("n, _row_number", "_object, n") == [(n, n) for n in range(100)] * 2


@pytest.mark.parametrize("form", [*COLUMNAR, "avro"])
def test_objects_with_other_columns(reading: Statements, loader: str, form: str) -> None:
    def make(**columns: Any) -> bytes:
        if form != "avro":
            return file_of(form, {name: [value] for name, value in columns.items()})
        kinds = {name: "string" if isinstance(value, str) else "long" for name, value in columns.items()}
        return avro(record(**kinds), [columns])

    reading.put({"a": make(n=1), "b": make(s="x", n=2), "c": make(s="y")})
    reading.load("a", loader=loader)
    reading.load(loader=loader, on_drift="add")
    lacks = "it lacks column 'n', which is Int64"  # a long of Avro is never NULL, a column of the others may be
    reasons = reading.reasons()
    assert all(reason.startswith(lacks) for reason in reasons.values())
    assert set(reasons) == ({"c"} if form == "avro" else set())
    assert reading.rows("n, s", "n NULLS LAST")[:2] == [(1, None), (2, "x")]


@pytest.mark.parametrize("form", ["parquet", *COLUMNAR])
def test_an_object_without_a_column_that_needs_a_value(reading: Statements, loader: str, form: str) -> None:
    def make(columns: dict[str, Any]) -> bytes:
        return parquet(columns) if form == "parquet" else file_of(form, columns)

    reading.create("n Int64, d Int64 DEFAULT 5, l Array(Int64), v Nullable(Int64)")
    reading.put({"a": make({"n": [1]}), "b": make({"v": [1]})})
    reading.load(loader=loader, format=form)
    assert reading.rows() == [(1, 5, [], None)]
    assert reading.reasons()["b"].startswith("it lacks column 'n', which is Int64")


# Avro


def nullable(kind: Any) -> list[Any]:
    return ["null", kind]


def logical(kind: str, name: str, **more: Any) -> dict[str, Any]:
    return {"type": kind, "logicalType": name, **more}


def unscaled(number: int, size: int) -> bytes:
    return number.to_bytes(size, "big", signed=True)


FIXED = {"type": "fixed", "name": "fixed_", "size": 3}
ENUM = {"type": "enum", "name": "enum_", "symbols": ["A", "B"]}
LIST = {"type": "array", "items": "int"}
MAP = {"type": "map", "values": nullable("int")}
POINT = {"type": "record", "name": "point", "fields": [{"name": "x", "type": "int"}, {"name": "l", "type": LIST}]}
# By column: Avro type, a value, the type of the column in a new table, and the value as text.
AVRO: dict[str, tuple[Any, Any, str, str]] = {
    "b": ("boolean", True, "Bool", "true"),
    "i": ("int", -(2**31), "Int32", str(-(2**31))),
    "n": ("long", 2**63 - 1, "Int64", str(2**63 - 1)),
    "f": ("float", 0.5, "Float32", "0.5"),
    "g": ("double", 1e308, "Float64", "1e308"),
    "s": ("string", "é\t", "String", "é\t"),
    "y": ("bytes", b"a\0", "String", "a\0"),
    "x": (FIXED, b"abc", "FixedString(3)", "abc"),
    "e": (ENUM, "B", "String", "B"),
    "u": (logical("string", "uuid"), "61f0c404-5cb3-11e7-907b-a6006ad3dba0", "UUID",
          "61f0c404-5cb3-11e7-907b-a6006ad3dba0"),
    "d": (logical("int", "date"), -25_567, "Date32", "1900-01-01"),
    "m3": (logical("long", "timestamp-millis"), -1, "DateTime64(3, 'UTC')", "1969-12-31 23:59:59.999"),
    "m6": (logical("long", "timestamp-micros"), -1, "DateTime64(6, 'UTC')", "1969-12-31 23:59:59.999999"),
    "m9": (logical("long", "timestamp-nanos"), -1, "DateTime64(9, 'UTC')", "1969-12-31 23:59:59.999999999"),
    "l3": (logical("long", "local-timestamp-millis"), 1, "DateTime64(3, 'UTC')", "1970-01-01 00:00:00.001"),
    "l6": (logical("long", "local-timestamp-micros"), 1, "DateTime64(6, 'UTC')", "1970-01-01 00:00:00.000001"),
    "t3": (logical("int", "time-millis"), 86_399_999, "Time64(3)", "23:59:59.999"),
    "t6": (logical("long", "time-micros"), 1, "Time64(6)", "00:00:00.000001"),
    "c": (logical("bytes", "decimal", precision=10, scale=3), unscaled(-1234, 2), "Decimal(10, 3)", "-1.234"),
    "c16": ({"type": "fixed", "name": "c16", "size": 16, "logicalType": "decimal", "precision": 30, "scale": 1},
            unscaled(-12, 16), "Decimal(30, 1)", "-1.2"),
}  # fmt: skip


NOON = dt.datetime(2024, 7, 1, 12)
NAIVE = {
    "t": pa.array([NOON, None], pa.timestamp("us")),
    "l": pa.array([[NOON], []], pa.list_(pa.timestamp("us"))),
    "s": pa.array([{"t": NOON}, None], pa.struct([("t", pa.timestamp("us"))])),
}
LOCAL = avro(
    record(t=nullable(logical("long", "local-timestamp-micros"))),
    [{"t": (1, int(NOON.replace(tzinfo=dt.UTC).timestamp()) * 10**6)}],
)
WITHOUT_ZONE = {
    "a.parquet": parquet(pa.table(NAIVE)), "b.avro": LOCAL, "c.arrow": file_of("arrow", NAIVE),
    "d.orc": file_of("orc", NAIVE), "e.csv": b"t\n2024-07-01 12:00:00\n",
}  # fmt: skip


@pytest.mark.parametrize("key", WITHOUT_ZONE)
def test_times_without_a_zone_show_the_digits_of_the_file_in_any_zone(
    reading: Statements, loader: str, key: str
) -> None:
    reading.put({key: WITHOUT_ZONE[key]})
    reading.client.set_client_setting("session_timezone", "Europe/Berlin")
    try:
        reading.load(loader=loader, on_null_nested="empty")
    finally:
        reading.client.set_client_setting("session_timezone", "UTC")
    assert reading.reasons() == {}
    shown = reading.query(
        f"SELECT toString(t) FROM {reading.table} WHERE t IS NOT NULL SETTINGS session_timezone = 'Europe/Berlin'"
    )
    assert shown == [("2024-07-01 12:00:00.000000" + "000" * (key == "d.orc"),)]


def test_tables_whose_times_have_no_zone_or_another_one_keep_it(reading: Statements, loader: str) -> None:
    struct = "Nullable(Tuple(t Nullable(DateTime64(6))))"
    reading.create(f"t Nullable(DateTime64(6)), l Array(DateTime64(6, 'Asia/Tokyo')), s {struct}")
    reading.put({"a.parquet": WITHOUT_ZONE["a.parquet"]})
    reading.load(loader=loader, on_drift="widen")
    assert reading.reasons() == {}
    assert "UTC" not in str(reading.types())
    assert reading.rows("toString(t), toString(l), toString(s)", "t") == [
        ("2024-07-01 12:00:00.000000", "['2024-07-01 21:00:00.000000']", "('2024-07-01 12:00:00.000000')"),
        (None, "[]", None),
    ]


@pytest.mark.parametrize("codec", CODECS)
def test_avro_columns_are_deduced_and_values_are_those_of_the_file(
    reading: Statements, loader: str, codec: str
) -> None:
    plain = {name: kind for name, (kind, *_) in AVRO.items()}
    renamed = {
        f"{name}_n": nullable(kind["name"] if isinstance(kind, dict) and "name" in kind else kind)
        for name, kind in plain.items()
    }
    row = {name: value for name, (_, value, *_) in AVRO.items()}
    rows = [
        {**row, **{f"{name}_n": (1, value) for name, value in row.items()}},
        {**row, **{f"{name}_n": (0, None) for name in row}},
    ]
    reading.put({"a.avro": avro(record(**plain, **renamed), rows * 3, codec=codec, per_block=2)})
    if codec in ("bzip2", "xz"):
        reading.create("b Bool")
        reading.load(loader=loader)
        assert f"codec '{codec}', which ClickHouse does not read" in reading.reasons()["a.avro"]
        return
    reading.load(loader=loader)
    assert reading.reasons() == {}
    types = {name: kind for name, (_, _, kind, _) in AVRO.items()}
    assert reading.types() == types | {f"{name}_n": f"Nullable({kind})" for name, kind in types.items()}
    shown = ", ".join(f"toString({name})" for name in (*plain, *renamed))
    texts = [text for *_, text in AVRO.values()]
    assert reading.rows(shown) == [(*texts, *texts)] * 3 + [(*texts, *[None] * len(texts))] * 3


def test_nested_avro_and_its_nulls(reading: Statements, loader: str) -> None:
    schema = record(
        l=nullable(LIST), m=nullable(MAP), r=nullable(POINT), a={"type": "array", "items": {**POINT, "name": "other"}}
    )
    one = {"x": 5, "l": [1]}
    whole = {"l": (1, [1, 2]), "m": (1, {"k": (0, None)}), "r": (1, one), "a": [one]}
    none = {"l": (0, None), "m": (0, None), "r": (0, None), "a": []}
    reading.put({"a": avro(schema, [whole]), "b": avro(schema, [whole, none])})
    reading.load(loader=loader)
    assert reading.rows() == [([1, 2], {"k": None}, one, [one])]
    assert "column 'l' has a list that is NULL, which Array(Int32) cannot hold" in reading.reasons()["b"]
    reading.load(loader=loader, on_null_nested="empty", retry_failed=True)
    assert reading.reasons() == {}
    assert ([], {}, None, []) in reading.rows()
    held = reading.another()
    point = "Nullable(Tuple(x Int32, l Array(Int32)))"
    held.create(f"l Variant(Array(Int32)), m Variant(Map(String, Nullable(Int32))), r {point}")
    held.put({"b": avro(record(l=nullable(LIST), m=nullable(MAP), r=nullable(POINT)), [whole, none])})
    held.load(loader=loader)
    assert held.reasons() == {}
    assert sorted(held.rows("l, m, r", "tuple()"), key=str) == [(None, None, None), ([1, 2], {"k": None}, one)]


def test_a_list_that_may_be_null_within_an_avro_list(reading: Statements, loader: str) -> None:
    schema = record(l={"type": "array", "items": nullable(LIST)})
    reading.put({"a": avro(schema, [{"l": [(1, [1]), (0, None)]}])})
    reading.create("l Array(Array(Int32))")
    reading.load(loader=loader)
    assert "column 'l.[]' has a list that is NULL" in reading.reasons()["a"]
    reading.load(loader=loader, on_null_nested="empty", retry_failed=True)
    assert reading.rows() == [([[1], []],)]


def test_avro_unions(reading: Statements, loader: str) -> None:
    schema = record(v=["null", "int", "string", LIST], w=["int"], z=["string", "null"])
    rows = [{"v": value, "w": (0, 1), "z": (0, "x")} for value in ((0, None), (1, 5), (2, "x"), (3, [1]))]
    reading.put({"a": avro(schema, rows)})
    reading.load(loader=loader)
    assert reading.rows("if(isNull(v), NULL, toString(v)), w, z", "1 NULLS FIRST") == [
        (None, 1, "x"), ("5", 1, "x"), ("[1]", 1, "x"), ("x", 1, "x"),
    ]  # fmt: skip


MOMENT = logical("long", "timestamp-millis")
FIXED_DECIMAL = {**logical("fixed", "decimal", size=5, precision=4), "name": "d"}


def test_moments_in_avro_unions(reading: Statements, loader: str) -> None:
    """ClickHouse deduces them without a zone, and compares the names of types."""
    nanos = logical("long", "timestamp-nanos")
    schema = record(v=["null", MOMENT, "string"], w=[{"type": "array", "items": MOMENT}, "long"], n=["string", nanos])
    rows = [{"v": v, "w": w, "n": (1, 7)} for v, w in (((1, 5), (0, [6])), ((2, "x"), (1, 8)), ((0, None), (1, 9)))]
    late = {"v": (1, 10**15), "w": (1, 0), "n": (0, "")}
    reading.put({"a.avro": avro(schema, rows), "b.avro": avro(schema, [late])})
    reading.load(loader=loader)
    assert reading.types()["v"] == "Variant(DateTime64(3), String)"
    assert reading.rows("toString(v), toString(w), toString(n)", "2") == [
        ("x", "8", "7"), ("", "9", "7"), ("1970-01-01 00:00:00.005", "['1970-01-01 00:00:00.006']", "7"),
    ]  # fmt: skip
    assert "column 'v' has a time outside the years" in reading.reasons()["b.avro"]


REFUSED = {
    "moment in a union as text": ("v", ["null", MOMENT, "string"], "cannot convert to Nullable(String)"),
    "decimal in a union": ("v", ["string", FIXED_DECIMAL], "is an Avro union with a decimal of type fixed"),
    "two numbers": ("v", ["int", "long"], "is an Avro union of Int32, Int64, which ClickHouse cannot tell apart"),
    "enum in union": ("v", ["int", ENUM], "is an Avro union"),
    "large decimal": ("v", logical("bytes", "decimal", precision=77), "at most 76 digits"),
    "no precision": ("v", logical("bytes", "decimal"), "which Avro forbids: correct its schema"),
    "scale": ("v", logical("bytes", "decimal", precision=2, scale=4), "precision 2 and scale 4, which Avro forbids"),
    "small fixed": ("v", {**FIXED_DECIMAL, "size": 1}, "is a decimal of 4 digits, which 1 bytes cannot hold"),
    "unknown type": ("v", "elsewhere", "has the type 'elsewhere', which its Avro schema does not define"),
    "itself": ("v", ["null", "row"], "contains itself"),
    "null in list": ("v", {"type": "array", "items": "null"}, "has the Avro type null"),
    "name": ("v`) --", "int", "a field needs a type, and a name of letters"),
}


def test_avro_schemas_that_are_refused(reading: Statements, loader: str) -> None:
    reading.create("v Nullable(String)")
    reading.put({name: header(record(**{column: kind})) for name, (column, kind, _) in REFUSED.items()})
    other = {
        "no record": (header("int"), "its Avro schema is not a record"),
        "no json": (header(b"{"), "is not JSON"),
        "twice": (header({**record(), "fields": [{"name": "v", "type": "int"}] * 2}), "occurs twice"),
        "cut": (header(record(v="int"))[:-20], "its Avro header is cut off"),
    }
    reading.put({name: content for name, (content, _) in other.items()})
    large = record(v="string", **{f"c{n}": "null" for n in range(9000)})
    reading.put({"good": avro(record(v="string"), [{"v": "x"}]), "large": avro(large, [])})
    reading.load(loader=loader, format="avro")
    reasons = reading.reasons()
    assert {name: why for name, (_, _, why) in REFUSED.items() if why not in reasons.get(name, "")} == {}
    assert {name: why for name, (_, why) in other.items() if why not in reasons.get(name, "")} == {}
    assert "are not in" in reasons["large"]  # its header has more than 64 KB
    assert reading.rows() == [("x",)]


def test_avro_values_that_do_not_fit_are_refused_alone(reading: Statements, loader: str) -> None:
    reading.create("n Nullable(Int8), t Nullable(Time64(3)), s Nullable(String), d Nullable(Decimal(4, 1))")
    decimal = {"type": "fixed", "name": "f", "size": 16, "logicalType": "decimal", "precision": 4, "scale": 1}
    one = {
        "n": ("long", 127), "t": (logical("int", "time-millis"), 1000), "s": ("string", "é"),
        "d": (decimal, unscaled(-12, 16)),
    }  # fmt: skip
    wrong: dict[str, tuple[str, Any, Any]] = {
        "large": ("n", "long", 128),
        "day": ("t", logical("int", "time-millis"), 86_400_000),
        "before": ("t", logical("long", "time-micros"), -1000),
        "cut": ("t", logical("long", "time-micros"), 1),
        "utf8": ("s", "string", b"\xff"),
        "digits": ("d", decimal, unscaled(10**30, 16)),
        "float": ("n", "double", 1.0),
    }

    def make(columns: dict[str, Any]) -> bytes:
        return avro(record(**{name: kind for name, (kind, _) in columns.items()}),
                    [{name: value for name, (_, value) in columns.items()}])  # fmt: skip

    reading.put({key: make({**one, name: (kind, value)}) for key, (name, kind, value) in wrong.items()})
    reading.put({"good": make(one)})
    reading.load(loader=loader, format="avro")
    assert set(reading.reasons()) == set(wrong)
    assert reading.rows("n, toString(t), s, toString(d)") == [(127, "00:00:01.000", "é", "-1.2")]


def test_avro_blocks(reading: Statements, loader: str) -> None:
    """A list may come in blocks, with their sizes; a file may have no row."""
    start = header(record(l=LIST))
    sizes = long(-2) + long(2) + long(1) + long(2) + long(1) + long(3) + long(0)
    reading.create("l Array(Int32)")
    reading.put({"a": start + block(1, sizes), "none": start, "wrong": start + long(1) + sized(b"\x02") + SYNC})
    reading.load(loader=loader, format="avro")
    assert reading.rows() == [([1, 2, 3],)]
    assert set(reading.reasons()) == {"wrong"}


def test_orc_without_a_row_index(reading: Statements, loader: str) -> None:
    """Hive writes it with orc.create.index=false. Here the streams become bloom filters that nothing reads."""
    content = file_of("orc", {"n": [1, 2, 3], "t": ["a", "é", None]}, compression="uncompressed")
    row_index, bloom_filter = b"\x08\x06\x10", b"\x08\x07\x10"
    assert content.count(row_index) == 3
    reading.put({"a.orc": content.replace(row_index, bloom_filter)})
    reading.load(loader=loader)
    assert reading.reasons() == {}
    assert reading.rows() == [(1, "a"), (2, "é"), (3, None)]


@pytest.mark.parametrize("form", ["arrow", "arrowstream"])
def test_nulls_beside_views_of_text(reading: Statements, loader: str, form: str) -> None:
    """Polars writes texts as views, which pyarrow cannot take from an array; this ended the whole load."""
    text = pa.string_view()
    values = {
        "s": pa.array([{"t": "é", "l": ["x"]}, None, {}], pa.struct([("t", text), ("l", pa.list_(text))])),
        "m": pa.array([[("a", "b")], None, [("c", None)]], pa.map_(text, text)),
        "f": pa.array([["a", "b"], None, ["c", None]], pa.list_(text, 2)),
    }
    reading.put({"a": file_of(form, pa.table(values))})
    reading.load(loader=loader, format=form)
    assert "is NULL" in reading.reasons()["a"]
    reading = reading.fresh()
    reading.load(loader=loader, format=form, on_null_nested="empty")
    assert reading.rows("s.t, s.l, m, f", "length(f) = 0, s.t IS NULL") == [
        ("é", ["x"], {"a": "b"}, ["a", "b"]), (None, [], {"c": None}, ["c", None]), (None, [], {}, []),
    ]  # fmt: skip


def test_a_run_has_no_value_in_a_null_struct(reading: Statements, loader: str) -> None:
    runs = pa.RunEndEncodedArray.from_arrays(pa.array([2, 3], pa.int32()), pa.array(["x", "y"]))
    structs = pa.StructArray.from_arrays([runs], ["t"], mask=pa.array([False, True, False]))
    reading.put({"a": file_of("arrow", {"s": structs})})
    reading.load(loader=loader, format="arrow", on_null_nested="empty")
    assert reading.rows("s.t") == [("x",), ("y",), (None,)]


@pytest.mark.parametrize(("size", "digits", "made"), [
    (3, 5, 5), (4, 9, 9), (5, 9, 10), (8, 9, 10), (9, 18, 19), (16, 9, 19), (17, 38, 39), (32, 38, 39),
])  # fmt: skip
def test_avro_decimals_of_any_fixed_size(reading: Statements, loader: str, size: int, digits: int, made: int) -> None:
    def decimal(name: str) -> dict[str, Any]:
        return logical("fixed", "decimal", precision=digits, scale=2) | {"name": name, "size": size}

    schema = record(d=decimal("one"), l={"type": "array", "items": decimal("other")})
    low, high = (unscaled(number, size) for number in (-1, 10**digits - 1))
    reading.put({"a": avro(schema, [{"d": low, "l": [high]}, {"d": high, "l": [low]}])})
    reading.load(loader=loader, format="avro")
    assert reading.reasons() == {}
    assert reading.types()["d"] == f"Decimal({made}, 2)"
    most = Decimal(f"{10**digits - 1}E-2")
    least = Decimal("-0.01")
    assert reading.rows("d, l", "d") == [(least, [most]), (most, [least])]
