"""Objects that other tools wrote, or damaged: rows are loaded as they are, or the reason states what is wrong."""

from __future__ import annotations

import codecs
import io
import re
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import orc

from storeside.transfer.after_load import AfterLoad
from storeside.transfer.columns import Columns
from storeside.transfer.errors import TransferInputError
from storeside.transfer.formats import Csv
from storeside.transfer.options import LoadLimits
from tests.avro_files import avro
from tests.transfers import Loading, jsonl, parquet

pytestmark = pytest.mark.timeout(180)

LOADERS = ("pull", "push")


@pytest.fixture
def loading(stack: Any, clickhouse: Any, s3_client: Any) -> Loading:
    return Loading(stack, clickhouse, s3_client)


def keys(loading: Loading) -> list[str]:
    return [found["Key"] for found in loading.s3.list_objects_v2(Bucket=loading.bucket).get("Contents", [])]


NOT_ONE_HEADER = {
    b"a,b\r1,x\r2,y\r": "its rows end with carriage returns alone: convert them to line feeds",
    b"\n<html>Error 403</html>": "its only row is XML or HTML, such as an error of a server: upload it again",
    "größe,b".encode("cp1252"): "its header is not UTF-8 (byte 2 of it is 0xf6): set csv.encoding to that of the",
    b"a,\x01b\n": "its only row has control characters, so it is not CSV in UTF-8: set `format` or csv.encoding to",
}


@pytest.mark.parametrize("loader", LOADERS)
@pytest.mark.parametrize("content", NOT_ONE_HEADER)
def test_a_text_that_is_no_header_alone_keeps_its_object(loading: Loading, loader: str, content: bytes) -> None:
    loading.put({"a.csv": content})
    with pytest.raises(TransferInputError, match=re.escape(NOT_ONE_HEADER[content])):
        loading.load(loader=loader, after_load=AfterLoad("delete"))
    assert keys(loading) == ["a.csv"]


@pytest.mark.parametrize("loader", LOADERS)
@pytest.mark.parametrize(
    "options",
    [{"on_drift": "add"}, {"on_drift": "rest"}, {"chosen": Columns(select=("b",))}],
    ids=["add", "rest", "b"],
)
def test_a_text_that_is_no_header_keeps_its_object_beside_a_table(
    loading: Loading, loader: str, options: dict[str, Any]
) -> None:
    loading.create("a Nullable(Int64), b Nullable(String)")
    loading.put({"a.csv": b"a,b\r1,x\r2,y\r", "b.csv": b"a,b\n3,z\n", "c.csv": b"a,b\n"})
    report = loading.load(loader=loader, after_load=AfterLoad("delete"), **options)
    assert (report.loaded, report.rows, list(loading.reasons())) == (2, 1, ["a.csv"])
    assert keys(loading) == ["a.csv"]
    assert not any("\r" in name for name in loading.types())


MONTH_FIRST = b"n,d,t\n1,1/2/2024,2024-01-02 10:00:00\n2,1/13/2024,2024-01-02T10:00:00Z\n"
TYPES_OF_MONTH_FIRST = {
    "n": "Nullable(Int64)", "d": "Nullable(String)", "t": "Nullable(DateTime64(6))",
}  # fmt: skip


@pytest.mark.parametrize("loader", LOADERS)
@pytest.mark.parametrize("table", [True, False])
def test_new_columns_of_dates_without_a_known_order_are_text(loading: Loading, loader: str, table: bool) -> None:
    if table:
        loading.create("n Nullable(Int64)")
    loading.put({"a.csv": MONTH_FIRST})
    loading.load(loader=loader, on_drift="add")
    assert loading.types() == TYPES_OF_MONTH_FIRST
    assert loading.rows("d") == [("1/13/2024",), ("1/2/2024",)]


@pytest.mark.parametrize("loader", LOADERS)
@pytest.mark.parametrize("table", [True, False])
def test_new_json_columns_of_dates_without_a_known_order_are_text(loading: Loading, loader: str, table: bool) -> None:
    if table:
        loading.create("n Nullable(Int64)")
    row = {"n": 1, "d": "01-02-24 10:00", "o": {"d": "1/2/2024"}, "l": ["1/2/2024"], "t": "2024-01-02 10:00:00"}
    loading.put({"a.jsonl": jsonl([row])})
    loading.load(loader=loader, on_drift="add")
    assert loading.types() == {
        "n": "Nullable(Int64)", "d": "Nullable(String)", "o": "Nullable(Tuple(d Nullable(String)))",
        "l": "Array(Nullable(String))", "t": "Nullable(DateTime64(6))",
    }  # fmt: skip


@pytest.mark.parametrize("loader", LOADERS)
@pytest.mark.parametrize("kind", ["DateTime", "Nullable(DateTime64(3))"])
def test_dates_without_a_known_order_are_refused(loading: Loading, loader: str, kind: str) -> None:
    loading.create(f"n Int64, d {kind}, t String")
    loading.put({"a.csv": MONTH_FIRST})
    assert loading.load(loader=loader).failed == 1
    unclear = "column 'd' has a date without a year, or with an unknown order of day and month"
    assert loading.reasons() == {"a.csv": f"row 0, {unclear}: see csv.timestamp_formats"}
    loading.load(loader=loader, retry_failed=True, csv=Csv(timestamp_formats=("%m/%d/%Y",)))
    assert loading.rows("toString(toDate(d))") == [("2024-01-02",), ("2024-01-13",)]


@pytest.mark.parametrize("loader", LOADERS)
@pytest.mark.parametrize("options", [{}, {"on_drift": "add"}], ids=["new", "add"])
def test_deep_json_fails_alone_and_at_once(loading: Loading, loader: str, options: dict[str, str]) -> None:
    deep = b'{"a":' * 30 + b"1" + b"}" * 30 + b"\n"
    loading.put({"a.jsonl": deep})
    with pytest.raises(
        TransferInputError,
        match=r"'a\.jsonl': row 0 has 30 levels of nested objects, but",
    ):
        loading.load(loader=loader)
    loading.put({"b.jsonl": b'{"b":1,"t":"{{{{{{{{{{{{{{{{{{"}\n'})
    loading.load(loader=loader, **options)
    assert loading.rows("b") == [(1,)]
    assert list(loading.reasons()) == ["a.jsonl"]


NAMES = ["it's", "back\\slash", "line\nfeed", 'double"quote', "a(b", "tab\there", "tick`, (x"]


@pytest.mark.parametrize("loader", LOADERS)
@pytest.mark.parametrize("name", NAMES)
def test_fields_of_structs_have_any_name(loading: Loading, loader: str, name: str) -> None:
    loading.put({"a.parquet": parquet({"a": [1, 2], "s": [{name: 1}, {name: 2}]})})
    loading.load(loader=loader)
    loading.put({"b.parquet": parquet({"a": [3], "s": [{name: 3}]})})
    loading.load(loader=loader)
    assert loading.reasons() == {}
    assert loading.rows("tupleElement(assumeNotNull(s), 1)") == [(1,), (2,), (3,)]


def arrow(columns: Any) -> bytes:
    sink = io.BytesIO()
    table = pa.table(columns)
    with pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue()


TWO_FIELDS = pa.StructArray.from_arrays([pa.array([1]), pa.array([2])], names=["x", "x"])
NO_FIELDS = pa.array([{}], pa.struct([]))
NEGATIVE = pa.array([Decimal("12E2")], pa.decimal128(5, -2))
UNNAMED_FIELD = [{"": 1}]
# Objects beside which a first load creates its table from the others, with their reasons, also for on_drift="add".
ODD = {
    "two.parquet": (parquet({"n": [1], "s": TWO_FIELDS}), "has a struct with two fields 'x': rename one", ""),
    "unnamed.parquet": (parquet({"n": [1], "s": UNNAMED_FIELD}), "has a struct with an unnamed field", ""),
    "null.parquet": (parquet({"n": [1], "s": [{"null": 1}]}), "columns 's' are not in", "'null' is reserved"),
    "ours.parquet": (
        parquet({"n": [1], "_storeside_load": [1]}), "'_storeside_load' are not in", "name of the hidden column",
    ),
    "dotted.parquet": (
        parquet({"n": [1], "s": [{"x": {"y": 1}, "x.y": 2}]}), "'s' are not in", "'s.x.y' is the name of a field",
    ),
    "dotted.jsonl": (jsonl([{"n": 1, "s": {"x": {"y": 1}, "x.y": 2}}]), "field found", "'s.x.y' is the name"),
    "beside.jsonl": (jsonl([{"n": 1, "s": {"x": 1}, "s.x": 2}]), "field found", "'s.x' is the name of a field"),
    "ours.jsonl": (jsonl([{"n": 1, "_storeside_load": 2}]), "field found", "name of the hidden column"),
    "two.arrow": (arrow({"n": [1], "s": TWO_FIELDS}), "has a struct with two fields 'x': rename one", ""),
    "none.arrow": (arrow({"n": [1], "s": NO_FIELDS}), "is a struct without fields", ""),
    "negative.arrow": (arrow({"n": [1], "s": NEGATIVE}), "no type for Arrow's decimal128(5, -2)", ""),
}  # fmt: skip
COMMON = {"parquet": parquet({"n": [2]}), "arrow": arrow({"n": [2]}), "jsonl": jsonl([{"n": 2}])}


@pytest.mark.parametrize("loader", LOADERS)
@pytest.mark.parametrize("name", ODD)
def test_one_odd_object_among_the_samples_fails_alone(loading: Loading, loader: str, name: str) -> None:
    kind = name.partition(".")[2]
    content, reason, when_added = ODD[name]
    loading.put({f"a.{kind}": content, f"b.{kind}": COMMON[kind], f"c.{kind}": COMMON[kind]})
    report = loading.load(loader=loader)
    assert (report.loaded, report.failed, loading.rows()) == (2, 1, [(2,), (2,)])
    assert loading.types() == {"n": "Nullable(Int64)"}
    assert reason in loading.reasons()[f"a.{kind}"]
    assert loading.load(loader=loader).failed == 0
    assert loading.load(loader=loader, retry_failed=True, on_drift="add").failed == 1
    assert (when_added or reason) in loading.reasons()[f"a.{kind}"]
    assert loading.types() == {"n": "Nullable(Int64)"}


def test_an_object_with_too_many_columns_fails_alone(loading: Loading) -> None:
    loading.put({"a.jsonl": jsonl([{f"c{n}": 1 for n in range(30)}]), "b.jsonl": COMMON["jsonl"]})
    assert loading.load(limits=LoadLimits(columns=20)).loaded == 1
    assert (loading.rows(), list(loading.reasons())) == ([(2,)], ["a.jsonl"])


def test_the_struct_of_most_samples_is_that_of_the_table(loading: Loading) -> None:
    fields = {"a": "x", "b": "y", "c": "z", "d": "z", "e": "z"}
    loading.put({f"{key}.parquet": parquet({"s": [{field: 1}]}) for key, field in fields.items()})
    assert loading.load().loaded == 3
    assert sorted(loading.reasons()) == ["a.parquet", "b.parquet"]


def test_the_first_sample_decides_if_all_differ(loading: Loading) -> None:
    loading.put({f"{key}.parquet": parquet({"s": [{key: 1}]}) for key in "cab"})
    assert loading.load().loaded == 1
    assert sorted(loading.reasons()) == ["b.parquet", "c.parquet"]
    assert "which data" in loading.reasons()["b.parquet"]


def test_an_odd_object_alone_fails_its_load(loading: Loading) -> None:
    loading.put({"a.jsonl": ODD["dotted.jsonl"][0]})
    with pytest.raises(TransferInputError, match=r"'a\.jsonl': 's\.x\.y' is the name of a field"):
        loading.load()


@pytest.mark.parametrize("loader", LOADERS)
def test_options_can_leave_out_what_makes_an_object_odd(loading: Loading, loader: str) -> None:
    loading.put({"a.parquet": ODD["ours.parquet"][0]})
    loading.load(loader=loader, chosen=Columns(drop=("_storeside_load",)))
    assert loading.rows() == [(1,)]


@pytest.mark.parametrize("loader", LOADERS)
@pytest.mark.parametrize("kind", ["arrow", "orc"])
def test_columns_without_a_name_are_loaded(loading: Loading, loader: str, kind: str) -> None:
    sink = io.BytesIO()
    orc.write_table(pa.table({"n": [1], "": [2]}), sink)
    loading.put({f"a.{kind}": arrow({"n": [1], "": [2]}) if kind == "arrow" else sink.getvalue()})
    loading.load(loader=loader)
    assert (loading.rows(), sorted(loading.types())) == ([(1, 2)], ["_unnamed", "n"])


@pytest.mark.parametrize("loader", LOADERS)
def test_avro_as_polars_writes_it_is_loaded(loading: Loading, loader: str) -> None:
    fields = [{"name": "n", "type": ["null", "long"]}, {"name": "nothing", "type": "null"}]
    schema = {"type": "record", "name": "", "fields": fields}
    loading.put({"a.avro": avro(schema, [{"n": (1, 1), "nothing": None}, {"n": (0, None), "nothing": None}])})
    loading.load(loader=loader)
    assert loading.rows() == [(1, None), (None, None)]


@pytest.mark.parametrize("loader", LOADERS)
def test_long_fixed_bytes_are_text(loading: Loading, loader: str) -> None:
    loading.put({"a.parquet": parquet({"b": pa.array([b"x" * 300], pa.binary(300))})})
    loading.load(loader=loader)
    assert (loading.types(), loading.rows("length(b)")) == ({"b": "Nullable(String)"}, [(300,)])


OF_GERMAN = "größe,b\n1,5\n2,6\n"
OTHER_ENCODINGS = {
    "utf-16": OF_GERMAN.encode("utf-16"),
    "utf-32": codecs.BOM_UTF32_BE + OF_GERMAN.encode("utf-32-be"),
    "cp1252": OF_GERMAN.encode("cp1252"),
}
REASONS = {
    "utf-16": 'it is text in UTF-16, as its byte order mark shows: set csv.encoding to "utf-16"',
    "utf-32": 'it is text in UTF-32, as its byte order mark shows: set csv.encoding to "utf-32"',
    "cp1252": "its header is not UTF-8 (byte 2 of it is 0xf6): set csv.encoding to that of the object, such as"
    ' "cp1252"',
}


# ClickHouse parses the default dialect, and pyarrow the other one.
@pytest.mark.parametrize(
    ("loader", "dialect"), [("pull", Csv()), ("push", Csv()), ("pull", Csv(true_values=("yes",)))],
    ids=["pull", "push", "pyarrow"],
)  # fmt: skip
@pytest.mark.parametrize("encoding", OTHER_ENCODINGS)
def test_csv_in_another_encoding_fails_alone(loading: Loading, loader: str, dialect: Csv, encoding: str) -> None:
    loading.put({"a.csv": OTHER_ENCODINGS[encoding]})
    with pytest.raises(TransferInputError, match=re.escape(f"'a.csv': {REASONS[encoding]}")):
        loading.load(loader=loader, csv=dialect)
    loading.put({"b.csv": b"b\n3\n"})
    for on_drift in ("fail", "add"):
        loading.load(loader=loader, csv=dialect, retry_failed=True, on_drift=on_drift)
        assert (loading.rows(), list(loading.types())) == ([(3,)], ["b"])
        assert loading.reasons() == {"a.csv": REASONS[encoding]}
    loading.load("a*", loader=loader, retry_failed=True, on_drift="add", csv=Csv(encoding=encoding))
    assert (sorted(loading.types()), len(loading.rows())) == (["b", "größe"], 3)


@pytest.mark.parametrize("loader", LOADERS)
@pytest.mark.parametrize("encoding", ["utf-16", "utf-32"])
def test_json_in_another_encoding_fails_alone(loading: Loading, loader: str, encoding: str) -> None:
    reason = f"it is text in {encoding.upper()}, as its byte order mark shows: convert it to UTF-8"
    loading.put({"a.jsonl": '{"b":1}\n'.encode(encoding)})
    with pytest.raises(TransferInputError, match=rf"'a\.jsonl': {reason}"):
        loading.load(loader=loader)
    loading.put({"b.jsonl": jsonl([{"b": 3}])})
    loading.load(loader=loader)
    assert (loading.rows(), loading.reasons()) == ([(3,)], {"a.jsonl": reason})
