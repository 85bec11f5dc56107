"""Parquet arrives in ClickHouse with the values that pyarrow reads, or is refused; by both loaders."""

from __future__ import annotations

import io
import re
import uuid
from collections import Counter
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from storeside.stack import s3
from storeside.stack.settings import CHECKOUT, Stack
from storeside.transfer import push
from storeside.transfer.thrift import BINARY, I32, I64, STRUCT, Struct
from tests.fuzz.differential import parquet as differential
from tests.fuzz.differential.thrift import footer_of, with_footer
from tests.transfers import Loading, jsonl, parquet

pytestmark = pytest.mark.timeout(300)

LOADERS = ("pull", "push", "arrow")


@pytest.fixture
def loading(stack: Stack, clickhouse: Any, s3_client: Any) -> Loading:
    return Loading(stack, clickhouse, s3_client)


@pytest.fixture(params=LOADERS)
def loader(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """A loader; "arrow" is the worker's way of loading large objects."""
    if request.param == "arrow":
        monkeypatch.setattr(push, "WHOLE_PARQUET", 0)
    return "pull" if request.param == "pull" else "push"


def fresh(loading: Loading) -> Loading:
    """Return another bucket with the same objects, and another table."""
    found = Loading(loading.stack, loading.clickhouse, loading.s3)
    for key in [o["Key"] for o in loading.s3.list_objects_v2(Bucket=loading.bucket)["Contents"]]:
        found.put({key: loading.s3.get_object(Bucket=loading.bucket, Key=key)["Body"].read()})
    return found


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
    loading: Loading, loader: str, kind: pa.DataType, type_: str, value: int, text: str
) -> None:
    nested = pa.struct([("l", pa.list_(kind)), ("t", kind)])
    table = pa.table({
        "t": pa.array([value], kind), "l": pa.array([[value]], pa.list_(kind)),
        "s": pa.array([{"l": [value], "t": value}], nested), "x": pa.array([value], kind),
    })  # fmt: skip
    loading.put({"a.parquet": parquet(table)})
    loading.load(loader=loader, columns={"x": "String"})
    assert loading.types()["t"] == f"Nullable({type_})"
    shown = loading.query(
        f"SELECT toString(t), toString(l[1]), toString(s.l[1]), toString(s.t), x FROM {loading.table}"
    )
    assert shown == [(text,) * 5]


def test_a_time_that_a_column_cannot_hold_whole_is_refused(loading: Loading, loader: str) -> None:
    loading.create("c Time64(3), l Array(Time64(3))")
    whole = pa.table({"c": pa.array([1000], pa.time64("us")), "l": pa.array([[2000]], pa.list_(pa.time64("us")))})
    cut = pa.table({"c": pa.array([1000], pa.time64("us")), "l": pa.array([[2001]], pa.list_(pa.time64("us")))})
    loading.put({"whole.parquet": parquet(whole), "cut.parquet": parquet(cut)})
    loading.load(loader=loader)
    assert loading.query(f"SELECT toString(c), toString(l[1]) FROM {loading.table}") == [
        ("00:00:00.001", "00:00:00.002")
    ]
    assert "cannot hold whole" in loading.reasons()["cut.parquet"]


@pytest.mark.parametrize(
    ("kind", "digits"), [(pa.time32("ms"), 3), (pa.time64("us"), 6), (pa.time64("ns"), 9)], ids=str
)
def test_a_time_of_a_day_or_more_is_refused(loading: Loading, loader: str, kind: pa.DataType, digits: int) -> None:
    """ClickHouse wraps it. pyarrow writes such values, and reads them unless it validates them."""
    day = 24 * 3600 * 10**digits
    storage = pa.int32() if digits == 3 else pa.int64()
    objects = {"last": day - 1, "day": day, "days": 13 * day + 5, "before": -1}
    loading.create(f"c Nullable(Time64({digits}))")
    for name, value in objects.items():
        loading.put({f"{name}.parquet": column(pa.array([0, value, None], storage).view(kind), kind)})
    loading.load(loader=loader)
    assert set(loading.reasons()) == {"day.parquet", "days.parquet", "before.parquet"}
    told = re.compile(
        r"column 'c'( has a time that is not within a day|: time.* is not within the acceptable range .*)"
    )
    assert all(map(told.fullmatch, loading.reasons().values()))
    assert [row[0] for row in loading.rows("toString(c)", "c NULLS LAST")] == [
        "00:00:00." + "0" * digits, "23:59:59." + "9" * digits, None,
    ]  # fmt: skip


UUID = uuid.UUID("12345678-1234-5678-1234-567812345678")


@pytest.mark.parametrize("type_", ["", "UUID", "Nullable(UUID)", "String"])
def test_uuids(loading: Loading, loader: str, type_: str) -> None:
    if type_:
        loading.create(f"c {type_}")
    loading.put({"a.parquet": column([UUID.bytes], pa.uuid())})
    loading.load(loader=loader)
    assert loading.reasons() == {}
    assert [str(value) for (value,) in loading.rows("c")] == [str(UUID)]
    assert loading.types()["c"] == (type_ or "Nullable(UUID)")


def test_uuids_within_lists(loading: Loading, loader: str) -> None:
    uuids = pa.ExtensionArray.from_storage(pa.uuid(), pa.array([UUID.bytes] * 3, pa.binary(16)))
    loading.put({"a.parquet": parquet(pa.table({"c": pa.ListArray.from_arrays([0, 1, 3], uuids)}))})
    loading.load(loader=loader)
    assert loading.reasons() == {}
    assert [row[0] for row in loading.rows("c", "length(c)")] == [[UUID], [UUID, UUID]]


def test_json_is_its_text_or_the_json_that_is_asked_for(loading: Loading, loader: str) -> None:
    loading.put({"a.parquet": column(['{"b": 1.50, "a": null}'], pa.json_())})
    loading.load(loader=loader)
    assert loading.rows() == [('{"b": 1.50, "a": null}',)]
    loading = fresh(loading)
    loading.load(loader=loader, columns={"c": "JSON"})
    assert loading.query(f"SELECT toString(c.b) FROM {loading.table}") == [("1.5",)]


def test_a_column_of_nulls_alone_goes_into_any_column_that_may_be_null(loading: Loading, loader: str) -> None:
    loading.put({"a.parquet": column([None, None], pa.null())})
    for type_ in ("", "Nullable(UUID)", "Nullable(Int8)", "Nullable(Tuple(x Int8))", "Dynamic"):
        loading = fresh(loading)
        if type_:
            loading.create(f"c {type_}")
        loading.load(loader=loader)
        assert loading.reasons() == {}
        assert loading.query(f"SELECT countIf(isNull(c)) FROM {loading.table}") == [(2,)]
    loading = fresh(loading)
    loading.create("c Int8")
    assert loading.load(loader=loader).failed == 1


def test_a_column_of_nulls_alone_leaves_the_type_to_the_others(loading: Loading, loader: str) -> None:
    loading.put({"a.parquet": column([None], pa.null()), "b.parquet": column([5], pa.int32())})
    loading.load(loader=loader)
    assert loading.types() == {"c": "Nullable(Int32)"}
    assert loading.query(f"SELECT sum(c), count() FROM {loading.table}") == [(5, 2)]


def with_logical_type(content: bytes, number: int) -> bytes:
    _, footer = footer_of(content)
    element: Struct = footer[2][1][1][1]
    element[10] = (STRUCT, {number: (STRUCT, {1: (BINARY, b"EPSG:4326")} if number == 17 else {})})
    return with_footer(content, footer)


@pytest.mark.parametrize("number", [16, 17, 18, 25], ids=["variant", "geometry", "geography", "unknown"])
def test_logical_types_without_a_counterpart_are_loaded_as_they_are_stored(
    loading: Loading, loader: str, number: int
) -> None:
    content = parquet({"c": pa.array([b"\x01\x02", None])}, store_schema=False)
    loading.put({"a.parquet": with_logical_type(content, number)})
    loading.load(loader=loader)
    assert loading.reasons() == {}
    assert loading.query(f"SELECT hex(c) FROM {loading.table} ORDER BY 1") == [("0102",), (None,)]


def test_a_column_without_a_name(loading: Loading, loader: str) -> None:
    loading.put({"a.parquet": parquet({"": [1, 2], "b": ["x", "y"]})})
    loading.load(loader=loader)
    assert loading.rows("_unnamed, b") == [(1, "x"), (2, "y")]


STRUCT_TYPE = pa.struct([pa.field("x", pa.int32()), pa.field("y", pa.list_(pa.int32()))])
NULLS: dict[str, tuple[pa.DataType, list[Any], list[Any]]] = {
    "list": (pa.list_(pa.int32()), [[1], [], None, [None]], [[1], [], [], [None]]),
    "map": (pa.map_(pa.string(), pa.int32()), [[("a", 1)], [], None], [{"a": 1}, {}, {}]),
    "struct": (STRUCT_TYPE, [{"x": 1, "y": []}, None], [{"x": 1, "y": []}, {"x": None, "y": []}]),
    "list in a list": (pa.list_(pa.list_(pa.int32())), [[[1], []], [None]], [[[1], []], [[]]]),
    "struct in a list": (pa.list_(pa.struct([("x", pa.int8())])), [[{"x": 1}, None]], [[{"x": 1}, {"x": None}]]),
    "list in a struct": (STRUCT_TYPE, [{"x": 1, "y": None}], [{"x": 1, "y": []}]),
    "required field": (
        pa.struct([pa.field("x", pa.int32(), nullable=False)]), [{"x": 1}, None], [{"x": 1}, {"x": None}],
    ),
}  # fmt: skip


@pytest.mark.parametrize("statistics", [True, False], ids=["counted", "uncounted"])
@pytest.mark.parametrize("name", NULLS)
def test_nested_nulls_are_refused_unless_they_may_be_empty(
    loading: Loading, loader: str, name: str, statistics: bool
) -> None:
    kind, values, empty = NULLS[name]
    table = pa.table({"n": range(len(values)), "c": pa.array(values, kind)})
    content = parquet(table, write_statistics=statistics)
    loading.put({"a.parquet": content})
    loading.load(loader=loader, columns={})
    assert "cannot hold" in loading.reasons()["a.parquet"]
    assert 'on_null_nested="empty"' in loading.reasons()["a.parquet"]
    loading = fresh(loading)
    loading.load("a", loader=loader, on_null_nested="empty")
    assert [row[0] for row in loading.rows("c", "n")] == empty


@pytest.mark.parametrize(
    ("name", "type_"),
    [
        ("list", "Variant(Array(Nullable(Int32)))"), ("map", "Variant(Map(String, Nullable(Int32)))"),
        ("struct", "Nullable(Tuple(x Nullable(Int32), y Array(Nullable(Int32))))"),
        ("required field", "Nullable(Tuple(x Int32))"),
        ("struct in a list", "Array(Nullable(Tuple(x Nullable(Int8))))"),
    ],
)  # fmt: skip
def test_nested_nulls_stay_in_columns_that_hold_them(loading: Loading, loader: str, name: str, type_: str) -> None:
    kind, values, _ = NULLS[name]
    loading.put({"a.parquet": parquet(pa.table({"n": range(len(values)), "c": pa.array(values, kind)}))})
    loading.load(loader=loader, columns={"c": type_})
    assert loading.reasons() == {}
    wanted = [dict(v) if name == "map" and v is not None else v for v in values]
    assert [row[0] for row in loading.rows("c", "n")] == wanted


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
    loading: Loading, loader: str, kind: pa.DataType, value: Any, type_: str
) -> None:
    loading.put({"a.parquet": column([value], kind), "b.parquet": column([value, None], kind)})
    loading.create(f"c {type_}")
    nested = "Array(" in type_ and "Variant(" not in type_
    loading.load(loader=loader, on_null_nested="empty" if nested else "refuse")
    assert loading.reasons() == {}
    assert [row[0] for row in loading.rows("c", "_storeside_load")].count(value) == 2


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


def test_lists_maps_and_structs_of_wider_elements(loading: Loading, loader: str) -> None:
    loading.put({"a.parquet": nested(1), "b.parquet": nested(2.5)})
    loading.load(loader=loader)
    assert loading.reasons() == {}
    types = {
        "l": "Array(Nullable(Float64))", "m": "Map(String, Nullable(Float64))",
        "s": "Tuple(x Nullable(Float64),y Nullable(String))", "d": "Array(Nullable(Decimal(18, 9)))",
    }  # fmt: skip
    assert {name: re.sub(r"\n *", "", kind) for name, kind in loading.types().items()} == types
    assert loading.rows("l, m, s, d", "l") == [
        ([1.0], {"k": 1.0}, {"x": 1.0, "y": "t"}, [Decimal(123)]),
        ([2.5], {"k": 2.5}, {"x": 2.5, "y": "t"}, [Decimal("0.123456789")]),
    ]
    exact = 2**53 + 1
    loading.put({"c.parquet": nested(exact)})
    loading.load(loader=loader)
    assert "cannot be safely converted into type Float64" in loading.reasons()["c.parquet"]


def test_a_list_is_not_widened_to_text(loading: Loading, loader: str) -> None:
    loading.create("l Array(Int64)")
    loading.put({"a.parquet": parquet({"l": [[1]]}), "b.parquet": parquet({"l": [[0.5]]})})
    loading.put({"c.parquet": parquet({"l": [["x"]]})})
    loading.load(loader=loader, on_drift="widen")
    assert loading.types() == {"l": "Array(Int64)"}
    assert set(loading.reasons()) == {"b.parquet", "c.parquet"}
    assert "lists, maps and structs do not become text" in loading.reasons()["c.parquet"]
    assert loading.rows("l") == [([1],)]


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
def test_values_stay_in_their_rows_where_a_footer_miscounts_nulls(loading: Loading, loader: str, name: str) -> None:
    """ClickHouse 26.9 relies on the count: row 2 of the first case got the value of row 3, without an error."""
    kind, values, empty = CATEGORIES[name]
    content = parquet(pa.table({"n": range(len(values)), "c": pa.array(values, kind)}))
    counts = pq.ParquetFile(io.BytesIO(content)).metadata.row_group(0)
    assert 0 in {counts.column(n).statistics.null_count for n in range(1, counts.num_columns)}
    loading.put({"a.parquet": content})
    loading.load(loader=loader)
    assert "cannot hold" in loading.reasons()["a.parquet"]
    loading = fresh(loading)
    loading.load("a", loader=loader, on_null_nested="empty")
    assert [row[0] for row in loading.rows("c", "n")] == empty


def test_nested_nulls_of_json_lines(loading: Loading) -> None:
    loading.put({"a.jsonl": jsonl([{"n": 1, "l": [1], "t": {"x": 1}}, {"n": 2, "l": None, "t": None}])})
    loading.create("n Int64, l Array(Nullable(Int64)), t Tuple(x Nullable(Int64))")
    assert loading.load().failed == 1
    loading = fresh(loading)
    loading.create("n Int64, l Array(Nullable(Int64)), t Tuple(x Nullable(Int64))")
    loading.load(on_null_nested="empty")
    assert loading.rows("l, t", "n") == [([1], {"x": 1}), ([], {"x": None})]
    loading = fresh(loading)
    loading.create("n Int64, l Variant(Array(Nullable(Int64))), t Nullable(Tuple(x Nullable(Int64)))")
    loading.load()
    assert loading.rows("l, t", "n") == [([1], {"x": 1}), (None, None)]


def test_a_given_type_needs_no_deduction(loading: Loading) -> None:
    rows = [{"a": None, "b": [1, "x"]}, {"a": None, "b": {"y": 1}}]
    loading.put({"a.jsonl": jsonl(rows)})
    loading.load(columns={"a": "Nullable(UUID)", "b": "String"})
    assert loading.reasons() == {}
    assert loading.types() == {"a": "Nullable(UUID)", "b": "String"}


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


@pytest.mark.parametrize("change", ["rows", "rows of a group", "rows of both", "values", "codec", "NULLs"])
def test_a_footer_that_contradicts_itself_or_the_rows_is_refused(loading: Loading, loader: str, change: str) -> None:
    content = parquet({"c": pa.array([1, None, 3] * 10)})
    loading.put({"a.parquet": changed(content, change), "b.parquet": content})
    loading.create("c Nullable(Int64)")
    loading.load("a", loader=loader)
    assert list(loading.reasons()) == ["a.parquet"]
    loading.load("b", loader=loader)
    assert loading.query(f"SELECT count() FROM {loading.table}") == [(30,)]


def test_generated_files_have_no_silent_differences(stack: Stack, clickhouse: Any, s3_client: Any) -> None:
    outcome = differential.compare_with(stack, clickhouse, s3_client, 200, 7)
    assert outcome.files == 200
    assert outcome.equal > 50
    assert outcome.silent == []


def test_intended_differences_are_documented() -> None:
    lines = (CHECKOUT / "docs" / "differences.md").read_text().splitlines()
    assert {f"### {title}" for title in differential.INTENDED} <= set(lines)


def test_a_planted_difference_is_found(
    stack: Stack, clickhouse: Any, s3_client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = differential.read_by_pyarrow

    def planted(content: bytes) -> Any:
        rows = plain(content)
        return [{**row, "c0": "planted"} for row in rows] if isinstance(rows, list) else rows

    monkeypatch.setattr(differential, "read_by_pyarrow", planted)
    assert differential.compare_with(stack, clickhouse, s3_client, 20, 7).silent
