"""CSV and JSON Lines: the values of the file, and refusal of everything that their specifications forbid."""

from __future__ import annotations

import gzip
import itertools
import json
import logging
from typing import Any

import pytest

from storeside.stack import s3
from storeside.stack.settings import Stack
from storeside.transfer.errors import LoadObjectError
from storeside.transfer.formats import Csv
from storeside.transfer.strict_json import checked
from tests.transfers import Loading, jsonl

pytestmark = pytest.mark.timeout(180)

LOADERS = ("pull", "push")


@pytest.fixture
def loading(stack: Any, clickhouse: Any, s3_client: Any) -> Loading:
    return Loading(stack, clickhouse, s3_client)


PADDED = ["x", " x", "x ", " ", "\t", "\tx\t", "  a b  ", "\u00a0x\u00a0"]


@pytest.mark.parametrize("loader", LOADERS)
@pytest.mark.parametrize("kind", ["String", "Nullable(String)", "LowCardinality(Nullable(String))"])
def test_spaces_around_csv_text_are_kept(loading: Loading, loader: str, kind: str) -> None:
    loading.create(f"n Int64, a {kind}, b {kind}")
    lines = [f"{n},{text},{text}" for n, text in enumerate(PADDED)]
    lines += [f'{n},"{text}","{text}"' for n, text in enumerate(PADDED, len(PADDED))]
    loading.put({"a.csv": "\n".join(["n,a,b", *lines]).encode(), "b.csv": "\r\n".join(["n,a,b", *lines]).encode()})
    loading.load(loader=loader)
    assert loading.reasons() == {}
    assert sorted(loading.rows("n, a, b")) == sorted(2 * [(n, text, text) for n, text in enumerate(2 * PADDED)])


@pytest.mark.guarantee("load-values")
@pytest.mark.parametrize("loader", LOADERS)
def test_spaces_around_csv_text_are_kept_beside_bad_rows(loading: Loading, loader: str) -> None:
    loading.create("n Int64, a String")
    loading.put({"a.csv": b'n,a\n1, x \nbad,y\n2, "z"\n3,"\t"\n'})
    loading.load(loader=loader, on_bad_rows="skip")
    assert loading.rows("n, a") == [(1, " x "), (2, ' "z"'), (3, "\t")]


@pytest.mark.parametrize("loader", LOADERS)
def test_spaces_around_other_csv_values_are_skipped(loading: Loading, loader: str) -> None:
    types = "i Nullable(Int64), f Float64, d Date, dec Decimal(9, 2), t DateTime64(3, 'UTC'), u UUID"
    loading.create(types)
    uuid = "61f0c404-5cb3-11e7-907b-a6006ad3dba0"
    values = ["1", "2.5", "2026-01-02", "1.25", "2026-01-02 03:04:05.678", uuid]
    padded = [f" \t{value}{'' if ':' in value else ' '}" for value in values]  # moments only have spaces before them
    loading.put({"a.csv": f"i,f,d,dec,t,u\n{','.join(padded)}\n".encode()})
    loading.load(loader=loader)
    assert loading.reasons() == {}
    assert loading.rows("toString(i), toString(f), toString(d), toString(dec), toString(t), toString(u)") == [
        tuple(values)
    ]


def test_deduced_columns_of_padded_csv(loading: Loading) -> None:
    loading.put({"a.csv": b"n, s,big\n 1, x,123456789012345678901234567890\n 2 ,y ,-5\n"})
    loading.load()
    assert loading.rows() == [(1, " x", 123456789012345678901234567890), (2, "y ", -5)]
    assert list(loading.types()) == ["n", " s", "big"]


def test_large_integers_in_csv_dialects(loading: Loading) -> None:
    big, huge = 2**64 - 1, "9" * 60
    loading.put({"a.csv": f"n,big,f,huge\n1,{big},{10**30},{huge}\n2, -5 ,1.5,7\n".encode()})
    loading.load(csv=Csv(quote="'"))
    assert loading.reasons() == {}
    assert loading.types() == {
        "n": "Nullable(Int64)", "big": "Nullable(Int128)", "f": "Nullable(Float64)", "huge": "Nullable(String)",
    }  # fmt: skip
    assert loading.rows() == [(1, big, 1e30, huge), (2, -5, 1.5, "7")]


@pytest.mark.parametrize("kind", ["UInt64", "Int128", "UInt128"])
def test_large_integers_in_csv_dialects_fill_their_columns(loading: Loading, kind: str) -> None:
    loading.create(f"n {kind}")
    loading.put({"a.csv": f"n\n{2**64 - 1}\n".encode(), "bad.csv": f"n\n{2**128}\n".encode()})
    loading.load(csv=Csv(quote="'"))
    assert loading.rows() == [(2**64 - 1,)]
    assert [*loading.reasons()] == ["bad.csv"]


# Documents that RFC 8259 forbids, by the part of its grammar that they break; each is one line.
FORBIDDEN = {
    "escapes": [r'{"s": "\a\x41"}', r'{"s": "\u12"}', r'{"s": "\u12G4"}', r'{"s": "\'"}', r'{"\s": "x"}'],
    "numbers": [
        *(f'{{"n": {n}}}' for n in ("012", "-012", "+1", "1.", ".5", "-.5", "-", "1e", "1e+", "0x10", "1x5", "--1")),
        *(f'{{"f": {n}}}' for n in ("NaN", "Infinity", "-Infinity", "inf", "nan", "1.5.", "1_000", "0e", "00")),
    ],
    "literals": ['{"b": True}', '{"b": tru}', '{"b": TRUE}', '{"s": nul}', '{"s": None}', '{"s": undefined}'],
    "strings": ['{"s": "a\tb"}', '{"s": "a\x01b"}', "{'s': 'x'}", '{"s": x}', '{"s": "x}', '{s: "x"}'],
    "arrays": ['{"a": [1,]}', '{"a": [,1]}', '{"a": [1 2]}', '{"a": [1,,2]}', '{"a": [1}', '{"a": [1;2]}'],
    "objects": ['{"n": 1,}', '{,"n": 1}', '{"n" 1}', '{"n":}', '{"n": 1 "s": "x"}', '{"n":: 1}', '{"n": 1', "{1:1}"],
    "within text": ['{"s": [1,]}', '{"s": {"x": tru}}', '{"s": {x: 1}}', '{"s": 012}', r'{"s": ["\a"]}'],
    "around documents": ['{"n": 1};', '{"n": 1},', '{"n": 1} x', '{"n": 1}{"n": 2}', '\x0c{"n": 1}', '{"n":\x0b1}',
                         '{"n": 1}\x00', '{"n": 1}]', '\u00a0{"n": 1}', '{"n": 1} // one', '{"n": 1 /* one */}'],
}  # fmt: skip
JSON_TYPES = "n Nullable(Int64), f Nullable(Float64), b Nullable(Bool), s Nullable(String), a Array(Int64)"


@pytest.mark.parametrize("loader", LOADERS)
def test_what_rfc_8259_forbids_is_refused(loading: Loading, loader: str) -> None:
    loading.create(JSON_TYPES)
    wrong = {f"{part}/{n}": line for part, lines in FORBIDDEN.items() for n, line in enumerate(lines)}
    loading.put({key: f'{{"n": 0}}\n{line}\n{{"n": 9}}\n'.encode() for key, line in wrong.items()})
    loading.put({"good": b'{"n": 1}\n'})
    loading.load(loader=loader, format="jsonl")
    assert [line for key, line in wrong.items() if key not in loading.reasons()] == []
    assert loading.rows("n") == [(1,)]
    unescaped = loading.reasons()["escapes/0"]
    assert unescaped == "row 1 is not JSON (RFC 8259): Invalid \\escape at character 8"


@pytest.mark.parametrize("loader", LOADERS)
def test_lines_that_rfc_8259_forbids_are_bad_rows(loading: Loading, loader: str) -> None:
    loading.create(JSON_TYPES)
    wrong = [line for lines in FORBIDDEN.values() for line in lines if line[:1] == "{"]
    lines = [part for n, line in enumerate(wrong) for part in (line, f'{{"n": {n}}}')]
    loading.put({"a.jsonl": "\n".join(lines).encode()})
    report = loading.load(loader=loader, on_bad_rows="keep", system_columns=("_row_number",))
    assert (report.rows, report.rejected) == (len(wrong), len(wrong))
    assert loading.rows("n, _row_number", "n") == [(n, 2 * n + 1) for n in range(len(wrong))]
    kept = loading.query(f"SELECT row_number, raw FROM {loading.table}_rejected FINAL ORDER BY row_number")
    assert kept == [(2 * n, line) for n, line in enumerate(wrong)]


@pytest.mark.parametrize("loader", LOADERS)
def test_what_rfc_8259_allows_is_loaded(loading: Loading, loader: str) -> None:
    loading.create("n Nullable(Int128), f Nullable(Float64), s Nullable(String), a Array(Int64)")
    good = {
        "big": b'{"n": 123456789012345678901234567890}\n',
        "numbers": b'{"f": -0.5e-3}\n{"f": 0}\n{"f": 1E+2}\n{"n": -0}\n',
        "escapes": rb'{"s": "\"\\\/\b\f\n\r\t\u00e9\ud83d\ude00"}' + b"\n",
        "spaces": b' \t{ "a" : [ 1 , 2 ] }\r\n\r\n\n{"n":1}\r\n',
        "bom": b'\xef\xbb\xbf{"n": 2}\n',
        "lines": b'{\n  "n": 3,\n  "s": "}{"\n}\n{"n": 4}\n',
        "array": b'[{"n": 5},\n {"n": 6}]\n',
        "text": b'{"s": {"x": [1.0, null]}}\n',
        "no end": b'{"n": 7}',
    }  # fmt: skip
    loading.put(good)
    loading.load(loader=loader, format="jsonl")
    assert loading.reasons() == {}
    assert loading.rows("s", "s")[:2] == [('"\\/\b\f\n\r\té😀',), ('{"x": [1.0, null]}',)]
    assert [n for (n,) in loading.rows("n", "n") if n is not None] == [
        0, 1, 2, 3, 4, 5, 6, 7, 123456789012345678901234567890,
    ]  # fmt: skip


@pytest.mark.parametrize("loader", LOADERS)
def test_bools_are_no_numbers_and_floats_have_an_end(loading: Loading, loader: str) -> None:
    loading.create("n Nullable(Int64), f Nullable(Float64), a Array(Float64)")
    wrong = {"n": b'{"n": true}\n', "f": b'{"f": false}\n', "inf": b'{"f": 1e400}\n', "a": b'{"a": [-1e400]}\n'}
    loading.put({**wrong, "good": b'{"n": 1, "f": 1e300, "a": [1]}\n'})
    loading.load(loader=loader, format="jsonl")
    assert set(loading.reasons()) == set(wrong)


def statements_of(loading: Loading, what: str) -> list[Any]:
    """Return start, end and parsers of the logged statements that read this bucket and contain a text."""
    loading.clickhouse.command("SYSTEM FLUSH LOGS")
    return loading.query(
        "SELECT query_start_time_microseconds, event_time_microseconds, Settings['max_parsing_threads']"
        " FROM system.query_log WHERE type = 'QueryFinish' AND position(query, {what:String})"
        " AND position(query, {bucket:String}) AND NOT position(query, 'query_log')",
        what=what, bucket=loading.bucket,
    )  # fmt: skip


def test_json_lines_are_checked_while_they_are_loaded(loading: Loading) -> None:
    loading.create("n Int64")
    loading.put({"a.jsonl": b'{"n": 1234567}\n' * 3_000_000})  # so long that both run even if one begins late
    loading.load()
    ((load_began, load_ended, _),) = statements_of(loading, "JSONEachRow")
    ((check_began, check_ended, _),) = statements_of(loading, "isValidJSON")
    assert check_began < load_ended
    assert load_began < check_ended


@pytest.mark.parametrize(("key", "halved"), [("a.csv", True), ("a.jsonl", True), ("a.csv.gz", False)])
def test_half_of_the_cores_parse_text_that_is_not_compressed(loading: Loading, key: str, halved: bool) -> None:
    loading.create("n Int64")
    content = b'{"n": 1}\n' if "json" in key else b"n\n1\n"
    loading.put({key: gzip.compress(content) if key.endswith(".gz") else content})
    loading.load()
    cores = int(loading.query("SELECT getSetting('max_threads')")[0][0])
    ((_, _, parsers),) = statements_of(loading, "INSERT INTO storeside_staging")
    assert parsers == (str(max(1, cores // 2)) if halved else "")
    assert loading.rows() == [(1,)]


@pytest.mark.parametrize("loader", LOADERS)
def test_strictness_is_an_option(loading: Loading, loader: str) -> None:
    loading.create(JSON_TYPES)
    loading.put({"a": b'{"n": 012}\n{"a": [1,]}\n'})
    loading.load(loader=loader, format="jsonl", strict_json=False)
    assert loading.rows("n, a") == [(12, []), (None, [1])]


@pytest.mark.parametrize("loader", LOADERS)
def test_a_name_that_comes_twice_in_an_object(loading: Loading, loader: str) -> None:
    """RFC 8259 does not define its meaning, so it is refused wherever one value would be lost."""
    loading.create("n Int64, t Tuple(x Int64), s String")
    wrong = {"top": b'{"n": 1, "n": 1}\n', "tuple": b'{"t": {"x": 1, "x": 2}}\n'}
    kept = b'{"n": 1, "t": {"x": 1}, "s": {"y": 1, "y": 2}}\n'
    loading.put({**wrong, "text": kept})
    loading.load(loader=loader, format="jsonl")
    assert set(loading.reasons()) == set(wrong)
    assert loading.rows("s") == [('{"y": 1, "y": 2}',)]


# formerly refused without need


@pytest.mark.parametrize("loader", LOADERS)
@pytest.mark.parametrize("end", [b"\n", b"\r\n"])
def test_blank_lines(loading: Loading, loader: str, end: bytes) -> None:
    loading.put(
        {
            "a.csv": end.join([b"", b"", b"n,s", b"", b'1,"a', b"", b'b"', b"", b"", b"2,x", b""]),
            "b.csv": end.join([b"n,s", b"3,y", b"", b""]),
        }
    )
    loading.load(loader=loader, system_columns=("_row_number",), format="csv")
    assert loading.reasons() == {}
    between = (end * 2).decode()
    assert loading.rows("n, s, _row_number", "n") == [(1, f"a{between}b", 0), (2, "x", 1), (3, "y", 0)]


@pytest.mark.parametrize("loader", LOADERS)
@pytest.mark.parametrize("on_bad_rows", ["fail", "skip"])
def test_a_blank_line_of_one_column_is_an_empty_value(loading: Loading, loader: str, on_bad_rows: str) -> None:
    loading.create("s Nullable(String)")
    loading.put({"a.csv": b's\n\nx\n""\n\n'})
    loading.load(loader=loader, format="csv", on_bad_rows=on_bad_rows)
    assert loading.rows("s", "s") == [("",), ("x",), (None,), (None,)]
    loading.put({"b.csv": b"s\n\ny\n\n"})
    loading.load("b", loader=loader, format="csv", csv=Csv(quote="'"))  # pyarrow parses
    assert loading.rows("s", "s") == [("",), ("x",), ("y",), (None,), (None,), (None,), (None,)]


EMPTY = {
    "csv": [b"", b"\n", b" \n", b"n,s\n", b"n,s", b"\xef\xbb\xbfn,s\r\n", b"n,s\n\n\n"],
    "jsonl": [b"", b"\n", b" "],
}


@pytest.mark.parametrize("loader", LOADERS)
@pytest.mark.parametrize(("form", "content"), [(form, one) for form, some in EMPTY.items() for one in some])
def test_an_object_without_rows_alone(
    loading: Loading, loader: str, form: str, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    loading.put({f"a.{form}": content})
    transfer = loading.transfer(loader=loader, format=form)
    report = transfer.run(transfer.prepare())
    assert (report.loaded, report.failed, report.rows) == (1, 0, 0)
    assert (
        f"1 objects have no rows, such as 'a.{form}': {loading.table} is created when an object has one"
        in caplog.text
    )
    assert not [one for one in caplog.records if one.levelno >= logging.WARNING]
    assert loading.query(f"EXISTS {loading.table}") == [(0,)]
    loading.put({f"b.{form}": b"n,s\n1,x\n" if form == "csv" else jsonl([{"n": 1, "s": "x"}])})
    assert loading.load(loader=loader, format=form).rows == 1
    assert loading.rows() == [(1, "x")]


@pytest.mark.parametrize("loader", LOADERS)
@pytest.mark.parametrize(("form", "content"), [(form, one) for form, some in EMPTY.items() for one in some])
def test_an_object_without_rows_and_a_table(loading: Loading, loader: str, form: str, content: bytes) -> None:
    loading.create("n Int64, s String")
    loading.put({f"a.{form}": content})
    assert loading.load(loader=loader, format=form).rows == 0
    assert loading.reasons() == {}


@pytest.mark.parametrize("loader", LOADERS)
def test_many_objects_without_rows_before_one_with(loading: Loading, loader: str) -> None:
    loading.put({f"{n:02}.csv": b"n,s\n" for n in range(20)} | {"99.csv": b"n,s\n1,x\n"})
    loading.load(loader=loader, sample_objects=2)
    assert loading.rows() == [(1, "x")]


@pytest.mark.parametrize("loader", LOADERS)
def test_json_objects_that_are_null_in_later_rows(loading: Loading, loader: str) -> None:
    rows = [{"id": n, "o": {"x": n, "y": [n]}, "l": [{"z": n}]} for n in range(3)]
    rows += [{"id": 3, "o": None, "l": [None]}, {"id": 4, "o": {"x": None, "y": []}, "l": []}]
    loading.put({"a.jsonl": jsonl(rows)})
    loading.load(loader=loader, sample_bytes=60)
    assert loading.reasons() == {}
    assert loading.rows("o, l", "id")[2:] == [
        ({"x": 2, "y": [2]}, [{"z": 2}]), (None, [None]), ({"x": None, "y": []}, []),
    ]  # fmt: skip


@pytest.mark.parametrize("loader", LOADERS)
@pytest.mark.parametrize("form", ["csv", "jsonl"])
def test_a_column_without_a_name(loading: Loading, loader: str, form: str) -> None:
    content = {"csv": b',n,s\n1,2,"x\ny"\n', "jsonl": b'{"": 1, "n": 2, "s": "x\\ny", "o": {"": "\\"\\":"}}\n'}[form]
    loading.put({"a": content})
    loading.load(loader=loader, format=form, nested="string")
    assert loading.reasons() == {}
    assert loading.rows("_unnamed, n, s") == [(1, 2, "x\ny")]
    if form == "jsonl":
        assert loading.rows("o") == [('{"": "\\"\\":"}',)]
    else:
        loading.put({"b": content.replace(b"1,2", b"3,4")})
        loading.load("b", loader=loader, format=form, csv=Csv(null_values=("-", "NA")))
        assert loading.rows("_unnamed", "n") == [(1,), (3,)]


@pytest.mark.parametrize("loader", LOADERS)
def test_rows_have_one_number(loading: Loading, loader: str) -> None:
    """In errors, in the table of rejected rows and in `_row_number`: from 0, without the header."""
    loading.create("n Int64, s String")
    loading.put({"a.csv": b"n,s\n1,x\nbad,y\n2,z\n", "b.jsonl": b'{"n": 1}\n{"n": "bad"}\n'})
    loading.load("a", loader=loader, format="csv")
    assert loading.reasons()["a.csv"].startswith("row 1, column 'n'")
    loading.load("b", loader=loader, format="jsonl")
    assert "(row 1)" in loading.reasons()["b.jsonl"]
    loading.load("a", format="csv", retry_failed=True, on_bad_rows="skip", max_bad_rows=0)
    assert loading.reasons()["a.csv"].startswith("over 0 rows cannot be parsed, such as row 1: row 1, column 'n'")
    loading.load("a", format="csv", retry_failed=True, on_bad_rows="keep", system_columns=("_row_number",))
    assert loading.rows("_row_number", "_row_number") == [(0,), (2,)]
    ((number, reason),) = loading.query(f"SELECT row_number, reason FROM {loading.table}_rejected")
    assert number == 1
    assert reason.startswith("row 1, column 'n'")


@pytest.mark.parametrize("compressed", [False, True])
def test_the_row_of_a_faulty_value_is_found_without_reading_the_rest(
    loading: Loading, stack: Stack, compressed: bool
) -> None:
    """ClickHouse looks for it, up to that row; the worker reads the object's first bytes only."""
    client = s3.of_stack("s3", stack)
    ranges: list[str] = []
    client.meta.events.register(
        "provide-client-params.s3.GetObject", lambda params, **_: ranges.append(params.get("Range", "whole"))
    )
    rows, faulty = 1_000_000, 1000
    content = b"n,s\n" + b"".join(b"%d,%b\n" % (n % 99, b"\xff" if n == faulty else b"x") for n in range(rows))
    loading.create("n UInt8, s String")
    loading.put({"a.csv": gzip.compress(content, 1) if compressed else content})
    loading.load(format="csv", s3=client)
    assert loading.reasons() == {"a.csv": f"row {faulty}, column 's' has invalid UTF-8"}
    assert set(ranges) == {"bytes=0-9"}
    loading.clickhouse.command("SYSTEM FLUSH LOGS")
    ((read,),) = loading.query(
        "SELECT read_rows FROM system.query_log WHERE type = 'QueryFinish' AND query LIKE 'SELECT _row_number FROM%'"
        " AND position(query, {bucket:String})",
        bucket=loading.bucket,
    )
    assert faulty < read < rows // 2


# Types with a text that is not a value of the type.
MALFORMED = {
    "Int64": "1x", "UInt8": "300", "Int128": "1.5", "Date": "2026-13-01", "Date32": "1x5", "Decimal(9, 2)": "1..5",
}  # fmt: skip


@pytest.mark.parametrize("loader", LOADERS)
@pytest.mark.parametrize("kind", MALFORMED)
def test_text_that_is_no_value_of_a_nullable_column_is_refused(loading: Loading, loader: str, kind: str) -> None:
    """ClickHouse's cast to Nullable makes NULL of it."""
    loading.create(f"s String, n Nullable({kind})")
    loading.put({"a.csv": f"s,n\nx,{MALFORMED[kind]}\n".encode(), "b.csv": f's,n\nx,"{MALFORMED[kind]}"\n'.encode()})
    loading.put({"good.csv": b's,n\n"x",""\n"y"," "\n"z",\n'})
    loading.load(loader=loader)
    assert set(loading.reasons()) == {"a.csv", "b.csv"}
    assert loading.rows("s, n", "s") == [("x", None), ("y", None), ("z", None)]


# CSV with tabs


TABS = (
    b'n\tf\ts\td\tbig\n1\t1.5\t x \t2026-01-02\t12345678901234567890123\n\t\t"a\tb"\t\t\n3\t-2\t\\N\t2026-01-31\t5\n'
)


@pytest.mark.parametrize("loader", LOADERS)
@pytest.mark.parametrize("end", [b"\n", b"\r\n"])
def test_clickhouse_reads_csv_with_tabs(loading: Loading, loader: str, end: bytes) -> None:
    content = TABS.replace(b"\n", end)
    loading.put({"a.tsv": content, "b.tsv.gz": gzip.compress(content)})
    transfer = loading.transfer(loader=loader)
    prepared = transfer.prepare()
    assert (prepared.format, prepared.push) == ("tsv", loader == "push")
    loading.check(transfer.run(prepared))
    assert loading.types() == {
        "n": "Nullable(Int64)", "f": "Nullable(Float64)", "s": "Nullable(String)", "d": "Nullable(Date32)",
        "big": "Nullable(Int128)",
    }  # fmt: skip
    assert loading.rows("n, f, s, toString(d), big", "n NULLS LAST, f")[::2] == [
        (1, 1.5, " x ", "2026-01-02", 12345678901234567890123), (3, -2.0, None, "2026-01-31", 5),
        (None, None, "a\tb", None, None),
    ]  # fmt: skip


@pytest.mark.parametrize("loader", LOADERS)
def test_values_of_csv_with_tabs_that_do_not_fit(loading: Loading, loader: str) -> None:
    loading.create("n UInt8, d Nullable(Date), s String")
    wrong = {
        "large": b"n\td\ts\n300\t\tx\n", "day": b"n\td\ts\n1\t2026-02-31\tx\n", "few": b"n\td\ts\n1\tx\n",
        "many": b"n\td\ts\n1\t\tx\ty\n", "utf8": b"n\td\ts\n1\t\t\xff\n", "header": b"n\td\tz\n1\t\tx\n",
        "empty": b"n\td\ts\n\t\tx\n", "commas": b"n,d,s\n1,,x\n",
    }  # fmt: skip
    loading.put({**wrong, "good": b"n\td\ts\n1\t\tx\n"})
    loading.load(loader=loader, format="tsv")
    assert set(loading.reasons()) == set(wrong)
    assert loading.rows() == [(1, None, "x")]
    loading.put({"rows": b"n\td\ts\n2\t\ty\nbad\t\ty\n3\t\t\tz\n4\t\t z\n"})
    loading.load("rows", loader=loader, format="tsv", on_bad_rows="skip")
    assert loading.rows("n, s", "n") == [(1, "x"), (2, "y"), (4, " z")]


def test_the_delimiter_of_the_request_is_that_of_objects_named_tsv(loading: Loading) -> None:
    loading.put({"a.tsv": b"n;s\n1;x\n"})
    loading.load(csv=Csv(";"))
    assert loading.rows() == [(1, "x")]


# Arrays of JSON


@pytest.mark.parametrize("loader", LOADERS)
@pytest.mark.parametrize("indent", [None, 1])
def test_an_array_of_objects(loading: Loading, loader: str, indent: int | None) -> None:
    rows = [{"n": n, "s": '}],["\\ é', "o": {"x": [n, None]}} for n in range(3000)]
    content = json.dumps(rows, indent=indent, ensure_ascii=False).encode()
    loading.put(
        {"a.json": content, "b": b" \n" + content + b"\n", "c.json.gz": gzip.compress(content), "d.json": b"[]"}
    )
    loading.load(loader=loader, sample_bytes=1000, system_columns=("_row_number", "_object"))
    assert loading.reasons() == {}
    found = loading.query(
        f"SELECT n, any(s), any(o), count() FROM {loading.table} WHERE _row_number = n GROUP BY n ORDER BY n"
    )
    assert found == [(row["n"], row["s"], row["o"], 3) for row in rows]


@pytest.mark.parametrize("loader", LOADERS)
def test_arrays_that_are_refused(loading: Loading, loader: str) -> None:
    loading.create("n Nullable(Int8)")
    wrong = {
        "cut": b'[{"n":1},\n{"n":2}', "comma": b'[{"n":1},]', "missing": b'[{"n":1}\n{"n":2}]',
        "after": b'[{"n":1}] x',
        "two": b'[{"n":1}]\n[{"n":2}]', "number": b'[{"n":1},2]', "nested": b'[[{"n":1}]]', "zero": b'[{"n":01}]',
        "utf8": b'[{"n":1,"s":"\xff"}]', "large": b'[{"n":1},{"n":300}]', "unknown": b'[{"m":1}]', "open": b"[",
    }  # fmt: skip
    loading.put({**wrong, "good": b'[{"n":1},\n\n {"n":2}\n]\n'})
    loading.load(loader=loader, format="jsonl")
    assert set(loading.reasons()) == set(wrong)
    assert loading.rows("n", "n") == [(1,), (2,)]
    loading.put({"rows": b'[{"n":3},{"n":300},\n{"n":4}]'})
    loading.load("rows", loader=loader, format="jsonl", on_bad_rows="keep")
    assert loading.rows("n", "n") == [(1,), (2,), (3,), (4,)]
    assert loading.query(f"SELECT row_number, raw FROM {loading.table}_rejected") == [(1, '{"n":300}')]


def test_an_array_is_divided_without_holding_it() -> None:
    element = b'{"n": 1, "s": "' + b"x" * 100_000 + b'"}'
    pieces = itertools.chain([b"["], *itertools.repeat([element, b",\n"], 999), [element + b"]"])
    assert sum(1 for _ in checked(pieces)) == 1000
    with pytest.raises(LoadObjectError, match="row 1 is not JSON"):
        list(checked([b'[{"n": 1}, {"n" 2}]']))
    for size in (1, 2, 3, 7):
        text = '[{"é😀": "\\u00e9"}, {"n": [1, {"x": "]"}]} ]\n'.encode()
        parts = [text[at : at + size] for at in range(0, len(text), size)]
        assert list(checked(parts)) == ['{"é😀": "\\u00e9"}\n'.encode(), b'{"n": [1, {"x": "]"}]}\n']
