"""Reading statements make of Parquet the values that pyarrow reads, or refuse it; by both loaders."""

from __future__ import annotations

import io
import re
import uuid
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from storeside.stack.settings import CHECKOUT
from storeside.transfer.formats.parquet_footer import Footer
from storeside.transfer.formats.thrift import BINARY, I32, I64, STRUCT, Struct
from tests.fuzz.differential import parquet as differential
from tests.fuzz.differential.thrift import footer_of, with_footer
from tests.statements import Statements
from tests.transfers import jsonl, parquet


def column(values: list[Any] | pa.Array, kind: pa.DataType, *, nullable: bool = True) -> bytes:
    if isinstance(kind, pa.BaseExtensionType):
        array = pa.ExtensionArray.from_storage(kind, pa.array(values, kind.storage_type))
    else:
        array = pa.array(values, kind)
    return parquet(pa.Table.from_arrays([array], schema=pa.schema([pa.field("c", kind, nullable)])))


TIMES = (
    (pa.time32("ms"), "Time64(3)", 3_661_123, "01:01:01.123"),
    (pa.time64("us"), "Time64(6)", 3_661_123_456, "01:01:01.123456"),
    (pa.time64("ns"), "Time64(9)", 3_661_123_456_789, "01:01:01.123456789"),
)


@pytest.mark.parametrize(("kind", "type_", "value", "text"), TIMES, ids=str)
def test_a_time_keeps_its_fraction(
    reading: Statements, loader: str, kind: pa.DataType, type_: str, value: int, text: str
) -> None:
    nested = pa.struct([("l", pa.list_(kind)), ("t", kind)])
    table = pa.table({
        "t": pa.array([value], kind), "l": pa.array([[value]], pa.list_(kind)),
        "s": pa.array([{"l": [value], "t": value}], nested), "x": pa.array([value], kind),
    })  # fmt: skip
    reading.put({"a.parquet": parquet(table)})
    reading.load(loader=loader, columns={"x": "String"})
    assert reading.types()["t"] == f"Nullable({type_})"
    shown = reading.query(
        f"SELECT toString(t), toString(l[1]), toString(s.l[1]), toString(s.t), x FROM {reading.table}"
    )
    assert shown == [(text,) * 5]


def test_a_time_that_a_column_cannot_hold_whole_is_refused(reading: Statements, loader: str) -> None:
    reading.create("c Time64(3), l Array(Time64(3))")
    whole = pa.table({"c": pa.array([1000], pa.time64("us")), "l": pa.array([[2000]], pa.list_(pa.time64("us")))})
    cut = pa.table({"c": pa.array([1000], pa.time64("us")), "l": pa.array([[2001]], pa.list_(pa.time64("us")))})
    reading.put({"whole.parquet": parquet(whole), "cut.parquet": parquet(cut)})
    reading.load(loader=loader)
    assert reading.query(f"SELECT toString(c), toString(l[1]) FROM {reading.table}") == [
        ("00:00:00.001", "00:00:00.002")
    ]
    assert "cannot hold" in reading.reasons()["cut.parquet"]


@pytest.mark.parametrize(
    ("kind", "digits"), [(pa.time32("ms"), 3), (pa.time64("us"), 6), (pa.time64("ns"), 9)], ids=str
)
def test_a_time_of_a_day_or_more_is_refused(reading: Statements, loader: str, kind: pa.DataType, digits: int) -> None:
    """ClickHouse wraps it. pyarrow writes such values, and reads them unless it validates them."""
    day = 24 * 3600 * 10**digits
    storage = pa.int32() if digits == 3 else pa.int64()
    objects = {"last": day - 1, "day": day, "days": 13 * day + 5, "before": -1}
    reading.create(f"c Nullable(Time64({digits}))")
    for name, value in objects.items():
        reading.put({f"{name}.parquet": column(pa.array([0, value, None], storage).view(kind), kind)})
    reading.load(loader=loader)
    assert set(reading.reasons()) == {"day.parquet", "days.parquet", "before.parquet"}
    told = re.compile(
        r"column 'c'( has a time that is not within a day|: time.* is not within the acceptable range .*)"
    )
    assert all(map(told.fullmatch, reading.reasons().values()))
    assert [row[0] for row in reading.rows("toString(c)", "c NULLS LAST")] == [
        "00:00:00." + "0" * digits, "23:59:59." + "9" * digits, None,
    ]  # fmt: skip


UUID = uuid.UUID("12345678-1234-5678-1234-567812345678")


@pytest.mark.parametrize("type_", ["", "UUID", "Nullable(UUID)", "String"])
def test_uuids(reading: Statements, loader: str, type_: str) -> None:
    if type_:
        reading.create(f"c {type_}")
    reading.put({"a.parquet": column([UUID.bytes], pa.uuid())})
    reading.load(loader=loader)
    assert reading.reasons() == {}
    assert [str(value) for (value,) in reading.rows("c")] == [str(UUID)]
    assert reading.types()["c"] == (type_ or "Nullable(UUID)")


def test_uuids_within_lists(reading: Statements, loader: str) -> None:
    uuids = pa.ExtensionArray.from_storage(pa.uuid(), pa.array([UUID.bytes] * 3, pa.binary(16)))
    reading.put({"a.parquet": parquet(pa.table({"c": pa.ListArray.from_arrays([0, 1, 3], uuids)}))})
    reading.load(loader=loader)
    assert reading.reasons() == {}
    assert [row[0] for row in reading.rows("c", "length(c)")] == [[UUID], [UUID, UUID]]


def test_json_is_its_text_or_the_json_that_is_asked_for(reading: Statements, loader: str) -> None:
    reading.put({"a.parquet": column(['{"b": 1.50, "a": null}'], pa.json_())})
    reading.load(loader=loader)
    assert reading.rows() == [('{"b": 1.50, "a": null}',)]
    reading = reading.fresh()
    reading.load(loader=loader, columns={"c": "JSON"})
    assert reading.query(f"SELECT toString(c.b) FROM {reading.table}") == [("1.5",)]


def test_a_column_of_nulls_alone_goes_into_any_column_that_may_be_null(reading: Statements, loader: str) -> None:
    reading.put({"a.parquet": column([None, None], pa.null())})
    for type_ in ("", "Nullable(UUID)", "Nullable(Int8)", "Nullable(Tuple(x Int8))", "Dynamic"):
        reading = reading.fresh()
        if type_:
            reading.create(f"c {type_}")
        reading.load(loader=loader)
        assert reading.reasons() == {}
        assert reading.query(f"SELECT countIf(isNull(c)) FROM {reading.table}") == [(2,)]
    reading = reading.fresh()
    reading.create("c Int8")
    assert reading.load(loader=loader).failed == 1


def test_a_column_of_nulls_alone_leaves_the_type_to_the_others(reading: Statements, loader: str) -> None:
    reading.put({"a.parquet": column([None], pa.null()), "b.parquet": column([5], pa.int32())})
    reading.load(loader=loader)
    assert reading.types() == {"c": "Nullable(Int32)"}
    assert reading.query(f"SELECT sum(c), count() FROM {reading.table}") == [(5, 2)]


def with_logical_type(content: bytes, number: int) -> bytes:
    _, footer = footer_of(content)
    element: Struct = footer[2][1][1][1]
    element[10] = (STRUCT, {number: (STRUCT, {1: (BINARY, b"EPSG:4326")} if number == 17 else {})})
    return with_footer(content, footer)


@pytest.mark.parametrize("number", [16, 17, 18, 25], ids=["variant", "geometry", "geography", "unknown"])
def test_logical_types_without_a_counterpart_are_loaded_as_they_are_stored(
    reading: Statements, loader: str, number: int
) -> None:
    content = parquet({"c": pa.array([b"\x01\x02", None])}, store_schema=False)
    reading.put({"a.parquet": with_logical_type(content, number)})
    reading.load(loader=loader)
    assert reading.reasons() == {}
    assert reading.query(f"SELECT hex(c) FROM {reading.table} ORDER BY 1") == [("0102",), (None,)]


def test_a_column_without_a_name(reading: Statements, loader: str) -> None:
    reading.put({"a.parquet": parquet({"": [1, 2], "b": ["x", "y"]})})
    reading.load(loader=loader)
    assert reading.rows("_unnamed, b") == [(1, "x"), (2, "y")]


@pytest.mark.parametrize("version", ["1.0", "2.0"])
def test_a_page_with_another_checksum_is_damaged(reading: Statements, loader: str, version: str) -> None:
    content = parquet(
        pa.table({"n": range(1_000)}), compression="none", use_dictionary=False, write_page_checksum=True,
        data_page_version=version,
    )  # fmt: skip
    at = content.index((500).to_bytes(8, "little") + (501).to_bytes(8, "little"))
    reading.put({"a.parquet": content[:at] + b"\xff" + content[at + 1 :]})
    reading.load(loader=loader)
    assert re.fullmatch(
        "it is damaged.* CRC checksum verification .*: upload it again, or .*", reading.reasons()["a.parquet"]
    )


def said_to_be_compressed(content: bytes) -> bytes:
    """Return Parquet whose first page, of version 2, has levels only, and is compressed, as parquet-mr writes it."""
    before, flag, after = content.partition(b"\x15\x00\x12")  # no repetition levels; not compressed
    assert len(before) < 40
    return before + flag[:2] + b"\x11" + after


@pytest.mark.parametrize("table", [True, False])
def test_a_page_of_nulls_without_values_is_not_damaged(reading: Statements, loader: str, table: bool) -> None:
    if table:
        reading.create("v Nullable(Float32), n Int64")
    content = parquet(
        pa.table({"v": pa.array([None] * 3, pa.float32()), "n": range(3)}),
        data_page_version="2.0", compression="snappy", use_dictionary=False, write_statistics=False,
    )  # fmt: skip
    reading.put({"a.parquet": said_to_be_compressed(content), "b.parquet": content})
    reading.load(loader=loader)
    assert reading.reasons() == {}
    assert reading.rows("v, n") == [(None, n) for n in (0, 0, 1, 1, 2, 2)]


STRUCT_TYPE = pa.struct([pa.field("x", pa.int32()), pa.field("y", pa.list_(pa.int32()))])
NULLS: dict[str, tuple[pa.DataType, list[Any], list[Any]]] = {
    "list": (pa.list_(pa.int32()), [[1], [], None, [None]], [[1], [], [], [None]]),
    "map": (pa.map_(pa.string(), pa.int32()), [[("a", 1)], [], None], [{"a": 1}, {}, {}]),
    "struct": (STRUCT_TYPE, [{"x": 1, "y": []}, None], [{"x": 1, "y": []}, {"x": None, "y": []}]),
    "list in a list": (pa.list_(pa.list_(pa.int32())), [[[1], []], [None]], [[[1], []], [[]]]),
    "struct in a list": (pa.list_(pa.struct([("x", pa.int8())])), [[{"x": 1}, None]], [[{"x": 1}, {"x": None}]]),
    "list in a struct": (STRUCT_TYPE, [{"x": 1, "y": None}], [{"x": 1, "y": []}]),
    "list in a map": (pa.map_(pa.string(), pa.list_(pa.int32())), [[("a", [1]), ("b", None)]], [{"a": [1], "b": []}]),
    "map in a map": (
        pa.map_(pa.field("k", pa.string(), False), pa.field("v", pa.map_(pa.string(), pa.int32()))),
        [[("a", [("x", 1)]), ("b", None)]], [{"a": {"x": 1}, "b": {}}],
    ),
    "struct in a map in a list": (
        pa.list_(pa.map_(pa.string(), pa.struct([("x", pa.int32()), ("y", pa.string())]))),
        [[[("a", {"x": 1, "y": "a"}), ("b", None)]]], [[{"a": {"x": 1, "y": "a"}, "b": {"x": None, "y": None}}]],
    ),
    "required field": (
        pa.struct([pa.field("x", pa.int32(), nullable=False)]), [{"x": 1}, None], [{"x": 1}, {"x": None}],
    ),
}  # fmt: skip


@pytest.mark.parametrize("statistics", [True, False], ids=["counted", "uncounted"])
@pytest.mark.parametrize("name", NULLS)
def test_nested_nulls_are_refused_unless_they_may_be_empty(
    reading: Statements, loader: str, name: str, statistics: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind, values, empty = NULLS[name]
    if not statistics:  # pyarrow always counts the levels; Spark and other writers do not
        monkeypatch.setattr(Footer, "at_level", lambda *_: None)
    table = pa.table({"n": range(len(values)), "c": pa.array(values, kind)})
    content = parquet(table, write_statistics=statistics)
    reading.put({"a.parquet": content})
    reading.load(loader=loader, columns={})
    assert "cannot hold" in reading.reasons()["a.parquet"]
    assert 'on_null_nested="empty"' in reading.reasons()["a.parquet"]
    reading = reading.fresh()
    reading.load("a", loader=loader, on_null_nested="empty")
    assert [row[0] for row in reading.rows("c", "n")] == empty


@pytest.mark.parametrize(
    ("name", "type_"),
    [
        ("list", "Variant(Array(Nullable(Int32)))"), ("map", "Variant(Map(String, Nullable(Int32)))"),
        ("struct", "Nullable(Tuple(x Nullable(Int32), y Array(Nullable(Int32))))"),
        ("required field", "Nullable(Tuple(x Int32))"),
        ("struct in a list", "Array(Nullable(Tuple(x Nullable(Int8))))"),
    ],
)  # fmt: skip
def test_nested_nulls_stay_in_columns_that_hold_them(reading: Statements, loader: str, name: str, type_: str) -> None:
    kind, values, _ = NULLS[name]
    reading.put({"a.parquet": parquet(pa.table({"n": range(len(values)), "c": pa.array(values, kind)}))})
    reading.load(loader=loader, columns={"c": type_})
    assert reading.reasons() == {}
    wanted = [dict(v) if name == "map" and v is not None else v for v in values]
    assert [row[0] for row in reading.rows("c", "n")] == wanted


@pytest.mark.parametrize(
    ("kind", "value", "type_"),
    [
        (pa.struct([("x", pa.int32())]), {"x": 1}, "Nullable(Tuple(x Nullable(Int32)))"),
        (pa.list_(pa.struct([("x", pa.int32())])), [{"x": 1}], "Array(Nullable(Tuple(x Nullable(Int32))))"),
        (pa.list_(pa.int32()), [1], "Variant(Array(Nullable(Int32)))"),
    ],
    ids=["struct", "struct in a list", "list"],
)  # fmt: skip
def test_a_column_that_holds_nested_nulls_also_takes_objects_without_them(
    reading: Statements, loader: str, kind: pa.DataType, value: Any, type_: str
) -> None:
    reading.put({"a.parquet": column([value], kind), "b.parquet": column([value, None], kind)})
    reading.create(f"c {type_}")
    nested = "Array(" in type_ and "Variant(" not in type_
    reading.load(loader=loader, on_null_nested="empty" if nested else "refuse")
    assert reading.reasons() == {}
    assert [row[0] for row in reading.rows("c", "_storeside_load")].count(value) == 2


def nested(number: float) -> bytes:
    kind = pa.float64() if isinstance(number, float) else pa.int64()
    decimal = Decimal("0.123456789") if isinstance(number, float) else Decimal(123)
    return parquet(
        pa.table(
            {
                "l": pa.array([[number]], pa.list_(kind)),
                "m": pa.array([[("k", number)]], pa.map_(pa.string(), kind)),
                "s": pa.array([{"x": number, "y": "t"}], pa.struct([("x", kind), ("y", pa.string())])),
                "d": pa.array([[decimal]], pa.list_(pa.decimal128(9, 9 if isinstance(number, float) else 0))),
            }
        )
    )


def test_lists_maps_and_structs_of_wider_elements(reading: Statements, loader: str) -> None:
    reading.put({"a.parquet": nested(1), "b.parquet": nested(2.5)})
    reading.load(loader=loader)
    assert reading.reasons() == {}
    types = {
        "l": "Array(Nullable(Float64))", "m": "Map(String, Nullable(Float64))",
        "s": "Tuple(x Nullable(Float64),y Nullable(String))", "d": "Array(Nullable(Decimal(18, 9)))",
    }  # fmt: skip
    assert {name: re.sub(r"\n *", "", kind) for name, kind in reading.types().items()} == types
    assert reading.rows("l, m, s, d", "l") == [
        ([1.0], {"k": 1.0}, {"x": 1.0, "y": "t"}, [Decimal(123)]),
        ([2.5], {"k": 2.5}, {"x": 2.5, "y": "t"}, [Decimal("0.123456789")]),
    ]
    exact = 2**53 + 1
    reading.put({"c.parquet": nested(exact)})
    reading.load(loader=loader)
    assert "cannot be safely converted into type Float64" in reading.reasons()["c.parquet"]


def test_a_list_is_not_widened_to_text(reading: Statements, loader: str) -> None:
    reading.create("l Array(Int64)")
    reading.put({"a.parquet": parquet({"l": [[1]]}), "b.parquet": parquet({"l": [[0.5]]})})
    reading.put({"c.parquet": parquet({"l": [["x"]]})})
    reading.load(loader=loader, on_drift="widen")
    assert reading.types() == {"l": "Array(Int64)"}
    assert set(reading.reasons()) == {"b.parquet", "c.parquet"}
    assert "lists, maps and structs do not become text" in reading.reasons()["c.parquet"]
    assert reading.rows("l") == [([1],)]


CATEGORY = pa.dictionary(pa.int8(), pa.string())
# NULL structs over values of dictionaries, which pyarrow does not count; what is in the table, when they are empty.
CATEGORIES = {
    "struct": (
        pa.struct([("s", CATEGORY), ("n", pa.int64())]),
        [{"s": "a", "n": 1}, {"s": "b", "n": 2}, None, {"s": "c", "n": 4}],
        [{"s": "a", "n": 1}, {"s": "b", "n": 2}, {"s": None, "n": None}, {"s": "c", "n": 4}],
    ),
    "alone": (pa.struct([("s", CATEGORY)]), [{"s": "a"}, None, {"s": "c"}], [{"s": "a"}, {"s": None}, {"s": "c"}]),
    "within a struct": (
        pa.struct([("t", pa.struct([("s", CATEGORY)])), ("n", pa.int64())]),
        [{"t": {"s": "a"}, "n": 1}, {"t": None, "n": 2}, None, {"t": {"s": "b"}, "n": 4}],
        [
            {"t": {"s": "a"}, "n": 1}, {"t": {"s": None}, "n": 2}, {"t": {"s": None}, "n": None},
            {"t": {"s": "b"}, "n": 4},
        ],
    ),
    "within a list": (
        pa.list_(pa.struct([("s", CATEGORY), ("n", pa.int64())])),
        [[{"s": "a", "n": 1}], [None, {"s": "c", "n": 3}], [{"s": "d", "n": 4}]],
        [[{"s": "a", "n": 1}], [{"s": None, "n": None}, {"s": "c", "n": 3}], [{"s": "d", "n": 4}]],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CATEGORIES)
def test_values_stay_in_their_rows_where_a_footer_miscounts_nulls(
    reading: Statements, loader: str, name: str
) -> None:
    """ClickHouse 26.9 relies on the count: row 2 of the first case got the value of row 3, without an error."""
    kind, values, empty = CATEGORIES[name]
    content = parquet(pa.table({"n": range(len(values)), "c": pa.array(values, kind)}))
    counts = pq.ParquetFile(io.BytesIO(content)).metadata.row_group(0)
    assert 0 in {counts.column(n).statistics.null_count for n in range(1, counts.num_columns)}
    reading.put({"a.parquet": content})
    reading.load(loader=loader)
    assert "cannot hold" in reading.reasons()["a.parquet"]
    reading = reading.fresh()
    reading.load("a", loader=loader, on_null_nested="empty")
    assert [row[0] for row in reading.rows("c", "n")] == empty


def test_nested_nulls_of_json_lines(reading: Statements) -> None:
    reading.put({"a.jsonl": jsonl([{"n": 1, "l": [1], "t": {"x": 1}}, {"n": 2, "l": None, "t": None}])})
    reading.create("n Int64, l Array(Nullable(Int64)), t Tuple(x Nullable(Int64))")
    assert reading.load().failed == 1
    reading = reading.fresh()
    reading.create("n Int64, l Array(Nullable(Int64)), t Tuple(x Nullable(Int64))")
    reading.load(on_null_nested="empty")
    assert reading.rows("l, t", "n") == [([1], {"x": 1}), ([], {"x": None})]
    reading = reading.fresh()
    reading.create("n Int64, l Variant(Array(Nullable(Int64))), t Nullable(Tuple(x Nullable(Int64)))")
    reading.load()
    assert reading.rows("l, t", "n") == [([1], {"x": 1}), (None, None)]


def test_a_given_type_needs_no_deduction(reading: Statements) -> None:
    rows = [{"a": None, "b": [1, "x"]}, {"a": None, "b": {"y": 1}}]
    reading.put({"a.jsonl": jsonl(rows)})
    reading.load(columns={"a": "Nullable(UUID)", "b": "String"})
    assert reading.reasons() == {}
    assert reading.types() == {"a": "Nullable(UUID)", "b": "String"}


def changed(content: bytes, change: str) -> bytes:
    """Return a file whose footer declares something else."""
    _, footer = footer_of(content)
    group = footer[4][1][1][0]
    chunk = group[1][1][1][0][3][1]
    if change == "rows":
        footer[3] = (I64, footer[3][1] + 1)
    elif change == "rows of a group":
        group[3] = (I64, group[3][1] + 1)
    elif change == "rows of both":
        footer[3], group[3] = (I64, footer[3][1] + 1), (I64, group[3][1] + 1)
    elif change == "values":
        chunk[5] = (I64, chunk[5][1] + 1)
    elif change == "codec":
        chunk[4] = (I32, 3)
    elif change == "NULLs":
        chunk[12][1][3] = (I64, chunk[12][1][3][1] + 1)
    return with_footer(content, footer)


@pytest.mark.parametrize("change", ["rows", "rows of a group", "rows of both", "values", "codec", "NULLs"])
def test_a_footer_that_contradicts_itself_or_the_rows_is_refused(
    reading: Statements, loader: str, change: str
) -> None:
    content = parquet({"c": pa.array([1, None, 3] * 10)})
    reading.put({"a.parquet": changed(content, change), "b.parquet": content})
    reading.create("c Nullable(Int64)")
    reading.load("a", loader=loader)
    assert list(reading.reasons()) == ["a.parquet"]
    reading.load("b", loader=loader)
    assert reading.query(f"SELECT count() FROM {reading.table}") == [(30,)]


def test_intended_differences_are_documented() -> None:
    lines = (CHECKOUT / "docs" / "differences.md").read_text().splitlines()
    assert {f"### {title}" for title in differential.INTENDED} <= set(lines)


def test_a_map_without_values_is_a_list_of_its_keys(reading: Statements, loader: str) -> None:
    kind = pa.list_(pa.field("key", pa.string(), nullable=False))
    content = parquet(pa.table({"c": pa.array([["a", "b"], [], ["c"]], kind)}), store_schema=False)
    _, footer = footer_of(content)
    _, outer, repeated, key = footer[2][1][1]
    outer |= {6: (I32, 1), 10: (STRUCT, {2: (STRUCT, {})})}
    repeated[4], key[4] = (BINARY, b"key_value"), (BINARY, b"key")
    column: Struct = footer[4][1][1][0][1][1][1][0][3][1]
    column[3] = (column[3][0], (BINARY, [b"c", b"key_value", b"key"]))
    reading.put({"a.parquet": with_footer(content, footer)})
    reading.load(loader=loader)
    assert reading.reasons() == {}
    assert reading.rows("c", "c") == [([],), (["a", "b"],), (["c"],)]
