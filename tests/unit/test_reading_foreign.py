"""Objects that other tools wrote, or damaged: rows are loaded as they are, or the reason states what is wrong.

Loads run in the process, without servers.
"""

from __future__ import annotations

import codecs
import io
import random
import re
import zipfile
import zlib
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import orc

from storeside.transfer.base.errors import TransferInputError
from storeside.transfer.request.column_options import Columns
from storeside.transfer.request.object_format import Csv
from storeside.transfer.request.options import LoadLimits
from tests.avro_files import avro
from tests.statements import Statements
from tests.transfers import Loaded, Refused, jsonl, parquet

LOADERS = ("pull", "push")


MONTH_FIRST = b"n,d,t\n1,1/2/2024,2024-01-02 10:00:00\n2,1/13/2024,2024-01-02T10:00:00Z\n"
TYPES_OF_MONTH_FIRST = {
    "n": "Nullable(Int64)", "d": "Nullable(String)", "t": "Nullable(DateTime64(6))",
}  # fmt: skip


@pytest.mark.parametrize("loader", LOADERS)
@pytest.mark.parametrize("table", [True, False])
def test_new_columns_of_dates_without_a_known_order_are_text(reading: Statements, loader: str, table: bool) -> None:
    if table:
        reading.create("n Nullable(Int64)")
    reading.put({"a.csv": MONTH_FIRST})
    reading.load(loader=loader, on_drift="add")
    assert reading.types() == TYPES_OF_MONTH_FIRST
    assert reading.rows("d") == [("1/13/2024",), ("1/2/2024",)]


@pytest.mark.parametrize("loader", LOADERS)
@pytest.mark.parametrize("table", [True, False])
def test_new_json_columns_of_dates_without_a_known_order_are_text(
    reading: Statements, loader: str, table: bool
) -> None:
    if table:
        reading.create("n Nullable(Int64)")
    row = {"n": 1, "d": "01-02-24 10:00", "o": {"d": "1/2/2024"}, "l": ["1/2/2024"], "t": "2024-01-02 10:00:00"}
    reading.put({"a.jsonl": jsonl([row])})
    reading.load(loader=loader, on_drift="add")
    assert reading.types() == {
        "n": "Nullable(Int64)", "d": "Nullable(String)", "o": "Nullable(Tuple(d Nullable(String)))",
        "l": "Array(Nullable(String))", "t": "Nullable(DateTime64(6))",
    }  # fmt: skip


@pytest.mark.parametrize("loader", LOADERS)
def test_dates_without_a_known_order_are_refused(reading: Statements, loader: str) -> None:
    reading.create("n Int64, d DateTime, e Nullable(DateTime64(3)), t String")
    unclear = "has a date without a year, month or day, or with an unknown order of day and month: see csv.timestamp"
    rows = [("2024-01-02", None), ("2024-01-13", None)]
    reading.cases({
        "d": Refused(MONTH_FIRST, re.compile(f"^row 0, column 'd' {unclear}_formats$")),
        "e": Refused(
            b"n,d,e,t\n1,2024-01-02 00:00:00,2024-01-02,x\n2,2024-01-02 00:00:00,1/2/2024,x\n",
            re.compile(f"^row 1, column 'e' {unclear}_formats$"),
        ),
    }, ".csv", loader=loader)  # fmt: skip
    dialect = Csv(timestamp_formats=("%m/%d/%Y",))
    reading.cases({
        "d": Loaded(MONTH_FIRST, rows, "toString(toDate(d)), e"),
        "e": Loaded(MONTH_FIRST.replace(b"d,t", b"e,d,t").replace(b",2024-", b",2024-01-01 00:00:00,2024-"), [
            ("2024-01-01", "2024-01-02"), ("2024-01-01", "2024-01-13"),
        ], "toString(toDate(d)), toString(toDate(e))"),
    }, ".csv", "formats/", loader=loader, csv=dialect)  # fmt: skip


# Texts of which ClickHouse would guess the year, the month, the day or the hour, and those that it need not guess.
GUESSED = (
    *(
        "5",
        "10",
        "2024",
        "202401",
        "2024-01",
        "2024.12",
        "Jan",
        "24 Jan",
        "Jan 24",
        "1-Jan",
        "Jan 2024",
        "12 PM",
        "1.5",
    ),
    *("10:00", "1/2", "1/2/2024", "13/1/2024", "1-2-24", "1.13.2024", "2 1 2024"),
    *("0000-00-00 00:00:00", "0000-01-01", "2024-00-00", "2024-01-00 10:00:00", "2024/00/01", "0.1.2024", "2024-1-0"),
    *("2024-01-02 25:00:00", "2024-01-02 24:30:00", "2024-01-02 10:60", "2024-01-02 10:00:61", "20240102T256000"),
    *("2024-01-02 10:00:00+25:00", "2024-01-02T10:00:00.5-20:00", "2024-01-02 10:00:00 +99:00"),
)
CLEAR = {
    **dict.fromkeys(
        [
            *("2024-01-02 10:00:00", "2024-01-02T10:00:00Z", "2024-1-2 10:0", "2024/01/02 10", "2024.01.02 10:00"),
            *("02.01.2024 10:00", "2.1.24 10:00:00", "20240102T100000Z", "20240102 100000", "20240102100000"),
            *("1704189600", "1704189600.0", "1704189600000", "1704189600000000", "2024-01-02 11:00:00+01:00"),
            *("2 Jan 2024 10:00", "02-JAN-24 10:00", "Jan 2 2024 10:00", "Tue Jan  2 10:00:00 2024"),
            *("2024-01-02 10 AM", "Tue 2 January 2024 10:00:00 GMT"),
            *("2024-01-02T11:30:00+0130", "2024-01-02 10:00-00:00"),
        ],
        "2024-01-02 10:00:00",
    ),
    **dict.fromkeys(["2024-01-02", "20240102", "2024-01-01 24:00:00", "2024-01-01 23:59:60"], "2024-01-02 00:00:00"),
    "981173106": "2001-02-03 04:05:06", "9999-12-31 23:59:59": "9999-12-31 23:59:59",
}  # fmt: skip


@pytest.mark.parametrize("loader", LOADERS)
@pytest.mark.parametrize("kind", ["csv", "jsonl"])
def test_no_part_of_a_moment_is_guessed(reading: Statements, loader: str, kind: str) -> None:
    reading.create("t Nullable(DateTime64(3, 'UTC'))")
    reason = re.compile("^row 1, column 't' has a (date without a year|text that is no whole date and time)")
    cases: dict[str, Loaded | Refused] = {
        f"guessed-{n}": Refused(_of_time(kind, "", text), reason) for n, text in enumerate(GUESSED)
    }
    for n, (text, moment) in enumerate(CLEAR.items()):
        cases[f"clear-{n}"] = Loaded(_of_time(kind, text), [(f"{moment}.000",)], "toString(t)")
    reading.cases(cases, f".{kind}", loader=loader)


def _of_time(kind: str, *texts: str) -> bytes:
    """Return CSV or JSON Lines with a column `t` of texts; an empty one is a missing value."""
    return (
        jsonl([{"t": text or None} for text in texts]) if kind == "jsonl" else "\n".join(["t", *texts, ""]).encode()
    )


@pytest.mark.parametrize("loader", LOADERS)
def test_no_part_of_a_moment_is_guessed_within_json(reading: Statements, loader: str) -> None:
    reading.create(
        "t Nullable(DateTime('UTC')), s Nullable(String), `a b` Nullable(DateTime), `q\"` Nullable(DateTime),"
        " o Tuple(t Nullable(DateTime64(3)), u String), l Array(DateTime), m Map(String, DateTime('UTC'))"
    )
    zero, clear = "0000-00-00 00:00:00", "2024-01-02T10:00:00-00:00"
    rows: dict[str, object] = {
        "t": {"t": zero}, "year": {"t": "2024-00-00 10:00:00"}, "name": {"a b": "10:00"}, "quote": {'q"': "25:00"},
        "o": {"o": {"t": zero}}, "l": {"l": [clear, "5"]}, "m": {"m": {"x": clear, "y": "2024-01"}},
    }  # fmt: skip
    reason = re.compile("^row 1, column '.+' has a text that is no whole date and time, .* null .* \\(line 2\\)$")
    escaped = b'{}\n{"\\u0074": "10:00"}\n'
    fine = {"s": zero, "t": clear, "o": {"t": clear, "u": "10:00"}, "l": [clear], "m": {"10:00": clear}}
    reading.cases({
        **{name: Refused(jsonl([{}, row]), reason) for name, row in rows.items()},
        "escaped": Refused(escaped, reason),
        "others": Loaded(jsonl([fine]), [(zero, [1704189600])], "s, arrayMap(x -> toUnixTimestamp(x), l)"),
    }, ".jsonl", loader=loader)  # fmt: skip


def test_texts_that_are_no_times_are_refused_with_a_remedy(reading: Statements) -> None:
    reading.create("t Nullable(DateTime64(3, 'UTC'))")
    reason = re.compile(r"^column 't': Cannot .* \(row 1\) .*: correct the value, or write null .* \(line 2\)$")
    rows = {"empty": {"t": ""}, "word": {"t": "soon"}}
    reading.cases({n: Refused(jsonl([{}, row]), reason) for n, row in rows.items()}, ".jsonl")


@pytest.mark.parametrize("loader", LOADERS)
@pytest.mark.parametrize("options", [{}, {"on_drift": "add"}], ids=["new", "add"])
def test_deep_json_fails_alone(reading: Statements, loader: str, options: dict[str, str]) -> None:
    if options:
        reading.create("b Nullable(Int64), t Nullable(String)")
    reason = "row 0 has 30 levels of nested objects, but" if options else "field found"
    reading.cases({
        "a": Refused(b'{"a":' * 30 + b"1" + b"}" * 30 + b"\n", reason),
        "b": Loaded(b'{"b":1,"t":"{{{{{{{{{{{{{{{{{{"}\n', [(1,)], "b"),
    }, ".jsonl", loader=loader, **options)  # fmt: skip


NAMES = ["it's", "back\\slash", "line\nfeed", 'double"quote', "a(b", "tab\there", "tick`, (x"]


@pytest.mark.parametrize("loader", LOADERS)
def test_fields_of_structs_have_any_name(reading: Statements, loader: str) -> None:
    def cases(*values: int) -> dict[str, Loaded | Refused]:
        return {
            str(n): Loaded(
                parquet({f"s{n}": [{name: value} for value in values]}),
                [(value,) for value in values], f"tupleElement(assumeNotNull(s{n}), 1)",
            )
            for n, name in enumerate(NAMES)
        }  # fmt: skip

    reading.cases(cases(1, 2), ".parquet", "new/", loader=loader, sample_objects=len(NAMES))
    reading.cases(cases(3), ".parquet", "more/", loader=loader)


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
@pytest.mark.parametrize("kind", COMMON)
def test_odd_objects_among_the_samples_fail_alone(reading: Statements, loader: str, kind: str) -> None:
    """No table can hold any of them, so the other samples decide, even if they are fewer."""
    odd = {name.partition(".")[0]: case for name, case in ODD.items() if name.endswith(f".{kind}")}
    common = {f"z{n}": Loaded(COMMON[kind], [(2,)]) for n in range(2)}

    def refused(*, added: bool) -> dict[str, Loaded | Refused]:
        return {
            name: Refused(content, (when_added if added else "") or reason)
            for name, (content, reason, when_added) in odd.items()
        }

    suffix = f".{kind}"
    reading.cases({**refused(added=False), **common}, suffix, loader=loader, sample_objects=len(odd) + 2)
    assert reading.types() == {"n": "Nullable(Int64)"}
    assert reading.load(loader=loader).failed == 0
    reading.cases(refused(added=True), suffix, loader=loader, retry_failed=True, on_drift="add")
    assert reading.types() == {"n": "Nullable(Int64)"}


def test_an_object_with_too_many_columns_fails_alone(reading: Statements) -> None:
    reading.put({"a.jsonl": jsonl([{f"c{n}": 1 for n in range(30)}]), "b.jsonl": COMMON["jsonl"]})
    assert reading.load(limits=LoadLimits(columns=20)).loaded == 1
    assert (reading.rows(), list(reading.reasons())) == ([(2,)], ["a.jsonl"])


def test_the_struct_of_most_samples_is_that_of_the_table(reading: Statements) -> None:
    fields = {"a": "x", "b": "y", "c": "z", "d": "z", "e": "z"}
    reading.put({f"{key}.parquet": parquet({"s": [{field: 1}]}) for key, field in fields.items()})
    assert reading.load().loaded == 3
    assert sorted(reading.reasons()) == ["a.parquet", "b.parquet"]


def test_the_first_sample_decides_if_all_differ(reading: Statements) -> None:
    reading.put({f"{key}.parquet": parquet({"s": [{key: 1}]}) for key in "cab"})
    assert reading.load().loaded == 1
    assert sorted(reading.reasons()) == ["b.parquet", "c.parquet"]
    assert "which data" in reading.reasons()["b.parquet"]


@pytest.mark.parametrize("loader", LOADERS)
def test_options_can_leave_out_what_makes_an_object_odd(reading: Statements, loader: str) -> None:
    reading.put({"a.parquet": ODD["ours.parquet"][0]})
    reading.load(loader=loader, chosen=Columns(drop=("_storeside_load",)))
    assert reading.rows() == [(1,)]


@pytest.mark.parametrize("loader", LOADERS)
@pytest.mark.parametrize("kind", ["arrow", "orc"])
def test_columns_without_a_name_are_loaded(reading: Statements, loader: str, kind: str) -> None:
    sink = io.BytesIO()
    orc.write_table(pa.table({"n": [1], "": [2]}), sink)
    reading.put({f"a.{kind}": arrow({"n": [1], "": [2]}) if kind == "arrow" else sink.getvalue()})
    reading.load(loader=loader)
    assert (reading.rows(), sorted(reading.types())) == ([(1, 2)], ["_unnamed", "n"])


@pytest.mark.parametrize("loader", LOADERS)
def test_avro_as_polars_writes_it_is_loaded(reading: Statements, loader: str) -> None:
    fields = [{"name": "n", "type": ["null", "long"]}, {"name": "nothing", "type": "null"}]
    schema = {"type": "record", "name": "", "fields": fields}
    reading.put({"a.avro": avro(schema, [{"n": (1, 1), "nothing": None}, {"n": (0, None), "nothing": None}])})
    reading.load(loader=loader)
    assert reading.rows() == [(1, None), (None, None)]


@pytest.mark.parametrize("loader", LOADERS)
def test_long_fixed_bytes_are_text(reading: Statements, loader: str) -> None:
    reading.put({"a.parquet": parquet({"b": pa.array([b"x" * 300], pa.binary(300))})})
    reading.load(loader=loader)
    assert (reading.types(), reading.rows("length(b)")) == ({"b": "Nullable(String)"}, [(300,)])


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
def test_csv_in_another_encoding_fails_alone(reading: Statements, loader: str, dialect: Csv) -> None:
    refused: dict[str, Loaded | Refused] = {
        encoding: Refused(content, re.compile(f"^{re.escape(REASONS[encoding])}$"))
        for encoding, content in OTHER_ENCODINGS.items()
    }
    for on_drift in ("fail", "add"):
        beside = {"b": Loaded(b"b\n3\n", [(3,)])} if on_drift == "fail" else {}
        reading.cases({**refused, **beside}, ".csv", loader=loader, csv=dialect, retry_failed=True, on_drift=on_drift)
        assert (reading.rows(), list(reading.types())) == ([(3,)], ["b"])


@pytest.mark.parametrize("encoding", OTHER_ENCODINGS)
def test_new_columns_of_csv_in_another_encoding(reading: Statements, encoding: str) -> None:
    reading.create("b Nullable(Int64)")
    case = Loaded(OTHER_ENCODINGS[encoding], [(1, 5), (2, 6)], "`größe`, b")
    reading.cases({"a": case}, ".csv", on_drift="add", csv=Csv(encoding=encoding))
    assert sorted(reading.types()) == ["b", "größe"]


def encoded_json(encoding: str) -> Refused:
    reason = f"it is text in {encoding.upper()}, as its byte order mark shows: convert it to UTF-8"
    return Refused('{"b":1}\n'.encode(encoding), re.compile(f"^{reason}$"))


@pytest.mark.parametrize("loader", LOADERS)
def test_json_in_another_encoding_fails_alone(reading: Statements, loader: str) -> None:
    refused = {encoding: encoded_json(encoding) for encoding in ("utf-16", "utf-32")}
    reading.cases({**refused, "z": Loaded(jsonl([{"b": 3}]), [(3,)])}, ".jsonl", loader=loader)


def _in_zip(name: str) -> bytes:
    sink = io.BytesIO()
    with zipfile.ZipFile(sink, "w") as file:
        file.writestr(name, "a,b\n1,2\n")
    return sink.getvalue()


NO_TEXT = {
    "zip": (_in_zip("a.csv"), "a ZIP archive: give it the extension .zip"),
    "xlsx": (_in_zip("xl/worksheets/sheet1.xml"), "a workbook of Excel: save it as CSV"),
    "pdf": (b"%PDF-1.4\n%\xe2\xe3\xcf\xd3\n1 0 obj,\n", "a PDF document"),
    "png": (b"\x89PNG\r\n\x1a\n" + bytes(range(256)), "an image"),
    "zlib": (zlib.compress(b"a,b\n1,2\n"), "compressed with zlib: use gzip"),
    "unknown": (random.Random(1).randbytes(3000), "binary, perhaps compressed in an unknown way"),  # noqa: S311
}


@pytest.mark.parametrize("kind", NO_TEXT)
def test_binary_content_is_no_text_in_another_encoding(reading: Statements, kind: str) -> None:
    content, what = NO_TEXT[kind]
    reading.put({"a.csv": content})
    with pytest.raises(TransferInputError, match="it is no text, but ") as e:
        reading.load(format="csv")
    assert what in str(e.value)
    assert "cp1252" not in str(e.value)
    reading.create("a Int64, b String")
    if kind != "unknown":
        reading.load(format="csv", csv=Csv(encoding="cp1252"))
        assert f"it is no text, but {what}" in reading.reasons()["a.csv"]


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be"])
def test_utf_16_without_a_mark_is_named(reading: Statements, encoding: str) -> None:
    reading.put({"a.csv": "name,s\n1,x\n".encode(encoding)})
    with pytest.raises(TransferInputError, match=f'set csv.encoding to "{encoding}"'):
        reading.load(format="csv")
    reading.load(format="csv", csv=Csv(encoding=encoding))
    assert reading.rows() == [(1, "x")]


@pytest.mark.parametrize("row", ['1,"x \\" y",2', '1,2,"x \\" y"'], ids=["within", "last"])
def test_the_reason_for_escaped_quotes_names_the_option_that_reads_them(reading: Statements, row: str) -> None:
    reading.put({"a.csv": f"a,b,c\n{row}\n".encode()})
    reading.load()
    assert 'or set csv.escape to "\\\\" if backslashes stand before quotes' in reading.reasons()["a.csv"]
    assert reading.load(csv=Csv(escape="\\"), retry_failed=True).loaded == 1, reading.reasons()
    assert 'x " y' in reading.rows()[0]
