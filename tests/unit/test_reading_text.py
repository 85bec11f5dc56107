"""CSV and JSON Lines: the values of the file, and refusal of everything that their specifications forbid.

Loads run in the process, without servers.
"""

from __future__ import annotations

import gzip
import itertools
import json
import re
from collections.abc import Mapping

import pytest

from storeside.transfer.base.errors import LoadObjectError, TransferInputError
from storeside.transfer.objects.strict_json import checked
from storeside.transfer.request.object_format import Csv
from tests.statements import Statements
from tests.transfers import Loaded, Refused, jsonl

LOADERS = ("pull", "push")


PADDED = ["x", " x", "x ", " ", "\t", "\tx\t", "  a b  ", "\u00a0x\u00a0"]


# Columns of text, and the ends of rows: a value at the end is followed by that of its row.
TEXTS = {"a": "String", "b": "Nullable(String)", "c": "LowCardinality(Nullable(String))"}
ENDS = {"lf": "\n", "crlf": "\r\n"}


@pytest.mark.parametrize("loader", LOADERS)
def test_spaces_around_csv_text_are_kept(reading: Statements, loader: str) -> None:
    reading.create(f"n Int64, {', '.join(f'{name} {kind}' for name, kind in TEXTS.items())}")
    cases = {}
    for last in TEXTS:
        header = ",".join(["n", *(name for name in TEXTS if name != last), last])
        lines = [f"{n},{text},{text},{text}" for n, text in enumerate(PADDED)]
        lines += [f'{n},"{text}","{text}","{text}"' for n, text in enumerate(PADDED, len(PADDED))]
        for name, end in ENDS.items():
            cases[f"{last}-{name}"] = Loaded(
                end.join([header, *lines]).encode(), [(n, text, text, text) for n, text in enumerate(2 * PADDED)]
            )
    reading.cases(cases, ".csv", loader=loader)


@pytest.mark.parametrize("loader", LOADERS)
def test_spaces_around_csv_text_are_kept_beside_bad_rows(reading: Statements, loader: str) -> None:
    reading.create("n Int64, a String")
    reading.put({"a.csv": b'n,a\n1, x \nbad,y\n2, "z"\n3,"\t"\n'})
    reading.load(loader=loader, on_bad_rows="skip")
    assert reading.rows("n, a") == [(1, " x "), (2, ' "z"'), (3, "\t")]


@pytest.mark.parametrize("loader", LOADERS)
def test_spaces_around_other_csv_values_are_skipped(reading: Statements, loader: str) -> None:
    types = "i Nullable(Int64), f Float64, d Date, dec Decimal(9, 2), t DateTime64(3, 'UTC'), u UUID"
    reading.create(types)
    uuid = "61f0c404-5cb3-11e7-907b-a6006ad3dba0"
    values = ["1", "2.5", "2026-01-02", "1.25", "2026-01-02 03:04:05.678", uuid]
    padded = [f" \t{value}{'' if ':' in value else ' '}" for value in values]  # moments only have spaces before them
    reading.put({"a.csv": f"i,f,d,dec,t,u\n{','.join(padded)}\n".encode()})
    reading.load(loader=loader)
    assert reading.reasons() == {}
    assert reading.rows("toString(i), toString(f), toString(d), toString(dec), toString(t), toString(u)") == [
        tuple(values)
    ]


def test_deduced_columns_of_padded_csv(reading: Statements) -> None:
    reading.put({"a.csv": b"n, s,big\n 1, x,123456789012345678901234567890\n 2 ,y ,-5\n"})
    reading.load()
    assert reading.rows() == [(1, " x", 123456789012345678901234567890), (2, "y ", -5)]
    assert list(reading.types()) == ["n", " s", "big"]


def test_large_integers_in_csv_dialects(reading: Statements) -> None:
    big, huge = 2**64 - 1, "9" * 60
    reading.put({"a.csv": f"n,big,f,huge\n1,{big},{10**30},{huge}\n2, -5 ,1.5,7\n".encode()})
    reading.load(csv=Csv(quote="'"))
    assert reading.reasons() == {}
    assert reading.types() == {
        "n": "Nullable(Int64)", "big": "Nullable(Int128)", "f": "Nullable(Float64)", "huge": "Nullable(String)",
    }  # fmt: skip
    assert reading.rows() == [(1, big, 1e30, huge), (2, -5, 1.5, "7")]


def test_large_integers_in_csv_dialects_fill_their_columns(reading: Statements) -> None:
    kinds = {"a": "UInt64", "b": "Int128", "c": "UInt128"}
    reading.create(", ".join(f"{name} {kind}" for name, kind in kinds.items()))
    most = dict.fromkeys(kinds, 2**64 - 1)

    def written(values: Mapping[str, int]) -> bytes:
        return f"{','.join(values)}\n{','.join(map(str, values.values()))}\n".encode()

    cases: dict[str, Loaded | Refused] = {
        f"too-large-{name}": Refused(written({**most, name: 2**128}), "") for name in kinds
    }
    reading.cases({**cases, "most": Loaded(written(most), [(*most.values(),)])}, ".csv", csv=Csv(quote="'"))


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
# Other columns, of objects that have one of them.
JSON_TYPES_OF_CASES = (
    ", i8 Nullable(Int8), i128 Nullable(Int128), fs Array(Float64), t Tuple(x Int64), _unnamed Nullable(Int64)"
    ", o Nullable(String), st Nullable(Tuple(x Nullable(Int64), y Array(Nullable(Int64))))"
    ", sts Array(Nullable(Tuple(z Nullable(Int64))))"
)
# Documents that RFC 8259 allows.
ALLOWED = {
    "big": Loaded(b'{"i128": 123456789012345678901234567890}\n', [(123456789012345678901234567890,)], "i128"),
    "numbers": Loaded(
        b'{"f": -0.5e-3}\n{"f": 0}\n{"f": 1E+2}\n{"n": -0}\n',
        [(None, -0.0005), (None, 0.0), (None, 100.0), (0, None)], "n, f",
    ),
    "escapes": Loaded(
        rb'{"s": "\"\\\/\b\f\n\r\t\u00e9\ud83d\ude00"}' + b"\n", [('"\\/\b\f\n\r\té😀',)], "s"
    ),
    "spaces": Loaded(b' \t{ "a" : [ 1 , 2 ] }\r\n\r\n\n{"n":1}\r\n', [([1, 2], None), ([], 1)], "a, n"),
    "bom": Loaded(b'\xef\xbb\xbf{"n": 2}\n', [(2,)], "n"),
    "lines": Loaded(b'{\n  "n": 3,\n  "s": "}{"\n}\n{"n": 4}\n', [(3, "}{"), (4, None)], "n, s"),
    "array": Loaded(b'[{"n": 5},\n {"n": 6}]\n', [(5,), (6,)], "n"),
    "text": Loaded(b'{"s": {"x": [1.0, null]}}\n', [('{"x": [1.0, null]}',)], "s"),
    "no end": Loaded(b'{"n": 7}', [(7,)], "n"),
}  # fmt: skip
# Bools are no numbers, and floats have an end.
LIMITS: dict[str, Loaded | Refused] = {
    "bool as int": Refused(b'{"n": true}\n', ""),
    "bool as float": Refused(b'{"f": false}\n', ""),
    "infinite": Refused(b'{"f": 1e400}\n', "beyond the range of Float64"),
    "infinite in array": Refused(b'{"fs": [-1e400]}\n', "beyond the range of Float64"),
    "finite": Loaded(b'{"n": 1, "f": 1e300, "fs": [1]}\n', [(1, 1e300, [1.0])], "n, f, fs"),
}
# RFC 8259 does not define the meaning of a name that comes twice in an object, so it is refused wherever one value
# would be lost.
TWICE: dict[str, Loaded | Refused] = {
    "top": Refused(b'{"n": 1, "n": 1}\n', ""),
    "tuple": Refused(b'{"t": {"x": 1, "x": 2}}\n', ""),
    "text": Loaded(b'{"n": 1, "t": {"x": 1}, "s": {"y": 1, "y": 2}}\n', [('{"y": 1, "y": 2}',)], "s"),
}
ARRAYS: dict[str, Loaded | Refused] = {
    **{name: Refused(content, "") for name, content in {
        "cut": b'[{"n":1},\n{"n":2}', "comma": b'[{"n":1},]', "missing": b'[{"n":1}\n{"n":2}]',
        "after": b'[{"n":1}] x',
        "two": b'[{"n":1}]\n[{"n":2}]', "number": b'[{"n":1},2]', "nested": b'[[{"n":1}]]', "zero": b'[{"n":01}]',
        "utf8": b'[{"n":1,"s":"\xff"}]', "large": b'[{"i8":1},{"i8":300}]', "unknown": b'[{"m":1}]', "open": b"[",
    }.items()},
    "good": Loaded(b'[{"n":1},\n\n {"n":2}\n]\n', [(1,), (2,)], "n"),
}  # fmt: skip
NULL_STRUCTS = [
    *({"n": n, "st": {"x": n, "y": [n]}, "sts": [{"z": n}]} for n in range(3)),
    {"n": 3, "st": None, "sts": [None]}, {"n": 4, "st": {"x": None, "y": []}, "sts": []},
]  # fmt: skip
# Objects without bytes are in tests/integration/test_transfer_text.py: only `s3()` reads them as such.
WITHOUT_ROWS = {
    "csv": [b"\n", b" \n", b"n,s\n", b"n,s", b"\xef\xbb\xbfn,s\r\n", b"n,s\n\n\n"],
    "jsonl": [b"\n", b" "],
}


def in_folder(folder: str, cases: Mapping[str, Loaded | Refused]) -> dict[str, Loaded | Refused]:
    return {f"{folder}/{name}": case for name, case in cases.items()}


@pytest.mark.parametrize("loader", LOADERS)
def test_what_json_allows_is_loaded_and_all_else_is_refused(reading: Statements, loader: str) -> None:
    reading.create(JSON_TYPES + JSON_TYPES_OF_CASES)
    forbidden: dict[str, Loaded | Refused] = {
        f"forbidden/{part}/{n}": Refused(f'{{"n": 0}}\n{line}\n{{"n": 9}}\n'.encode(), "")
        for part, lines in FORBIDDEN.items() for n, line in enumerate(lines)
    }  # fmt: skip
    forbidden["forbidden/escapes/0"] = Refused(
        forbidden["forbidden/escapes/0"].content,
        re.compile(r"^row 1 is not JSON \(RFC 8259\): Invalid \\escape at character 8$"),
    )
    reading.cases({
        **forbidden,
        **in_folder("allowed", ALLOWED), **in_folder("limits", LIMITS), **in_folder("twice", TWICE),
        **in_folder("arrays", ARRAYS),
        **{f"empty/{n}": Loaded(content) for n, content in enumerate(WITHOUT_ROWS["jsonl"])},
        "row 1": Refused(b'{"n": 1}\n{"n": "bad"}\n', "(row 1)"),
        "no name": Loaded(
            b'{"": 1, "n": 2, "s": "x\\ny", "o": {"": "\\"\\":"}}\n', [(1, 2, "x\ny", '{"": "\\"\\":"}')],
            "_unnamed, n, s, o",
        ),
        "null structs": Loaded(
            jsonl(NULL_STRUCTS), [(row["n"], row["st"], row["sts"]) for row in NULL_STRUCTS], "n, st, sts"
        ),
    }, loader=loader, format="jsonl")  # fmt: skip


@pytest.mark.parametrize("loader", LOADERS)
def test_what_rfc_8259_forbids_are_bad_rows(reading: Statements, loader: str) -> None:
    reading.create(f"{JSON_TYPES}, i8 Nullable(Int8)")
    wrong = [line for lines in FORBIDDEN.values() for line in lines if line[:1] == "{"]
    lines = [part for n, line in enumerate(wrong) for part in (line, f'{{"n": {n}}}')]
    cases = {
        "lines": Loaded("\n".join(lines).encode(), [(n, 2 * n + 1) for n in range(len(wrong))], "n, _row_number"),
        "array": Loaded(b'[{"i8":3},{"i8":300},\n{"i8":4}]', [(3, 0), (4, 2)], "i8, _row_number"),
    }
    report = reading.cases(cases, loader=loader, format="jsonl", on_bad_rows="keep", system_columns=("_row_number",))
    assert (report.rows, report.rejected) == (len(wrong) + 2, len(wrong) + 1)
    kept = reading.query(f"SELECT key, row_number, raw FROM {reading.table}_rejected FINAL ORDER BY ALL")
    assert kept == [("array", 1, '{"i8":300}'), *(("lines", 2 * n, line) for n, line in enumerate(wrong))]


@pytest.mark.parametrize("loader", LOADERS)
def test_strictness_is_an_option(reading: Statements, loader: str) -> None:
    reading.create(JSON_TYPES)
    reading.put({"a": b'{"n": 012}\n{"a": [1,]}\n'})
    reading.load(loader=loader, format="jsonl", strict_json=False)
    assert reading.rows("n, a") == [(12, []), (None, [1])]


# formerly refused without need


def left_out(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return the warnings that a sample showed no columns."""
    return [one.getMessage() for one in caplog.records if "left out" in one.getMessage()]


@pytest.mark.parametrize("loader", LOADERS)
def test_blank_lines_and_deduced_columns(reading: Statements, loader: str, caplog: pytest.LogCaptureFixture) -> None:
    cases = {}
    for name, text in ENDS.items():
        end = text.encode()
        cases |= {
            f"a-{name}": Loaded(
                end.join([b"", b"", b"n,s", b"", b'1,"a', b"", b'b"', b"", b"", b"2,x", b""]),
                [(1, f"a{2 * text}b", 0), (2, "x", 1)],
            ),
            f"b-{name}": Loaded(end.join([b"n,s", b"3,y", b"", b""]), [(3, "y", 0)]),
        }
    reading.cases(cases, ".csv", loader=loader, system_columns=("_row_number",), format="csv")
    assert reading.types() == {"n": "Nullable(Int64)", "s": "Nullable(String)", "_row_number": "UInt64"}
    assert left_out(caplog) == []


# Types with a text that is not a value of the type. ClickHouse's cast to Nullable makes NULL of it.
MALFORMED = {
    "Int64": "1x", "UInt8": "300", "Int128": "1.5", "Date": "2026-13-01", "Date32": "1x5", "Decimal(9, 2)": "1..5",
}  # fmt: skip
BLANK_LINE_OF_ONE_COLUMN = Loaded(b's\n\nx\n""\n\n', [("",), ("x",), (None,), (None,)], "s")


@pytest.mark.parametrize("loader", LOADERS)
def test_csv_that_is_loaded_or_refused(reading: Statements, loader: str) -> None:
    columns = {f"c{n}": kind for n, kind in enumerate(MALFORMED)}
    reading.create(
        "n Nullable(Int64), s Nullable(String), _unnamed Nullable(Int64), "
        + ", ".join(f"{name} Nullable({kind})" for name, kind in columns.items())
    )
    cases: dict[str, Loaded | Refused] = {}
    for name, kind in columns.items():
        text = MALFORMED[kind]
        cases[f"malformed/{kind}/plain"] = Refused(f"s,{name}\nx,{text}\n".encode(), f"column '{name}'")
        cases[f"malformed/{kind}/quoted"] = Refused(f's,{name}\nx,"{text}"\n'.encode(), f"column '{name}'")
        cases[f"malformed/{kind}/no value"] = Loaded(
            f's,{name}\n"x",""\n"y"," "\n"z",\n'.encode(), [("x", None), ("y", None), ("z", None)], f"s, {name}"
        )
    reading.cases({
        **cases,
        "blank line of one column": BLANK_LINE_OF_ONE_COLUMN,
        **{f"empty/{n}": Loaded(content) for n, content in enumerate(WITHOUT_ROWS["csv"])},
        "row 1": Refused(b"n,s\n1,x\nbad,y\n2,z\n", re.compile("^row 1, column 'n'")),
        "no name": Loaded(b',n,s\n1,2,"x\ny"\n', [(1, 2, "x\ny")], "_unnamed, n, s"),
    }, loader=loader, format="csv")  # fmt: skip


@pytest.mark.parametrize("loader", LOADERS)
def test_a_blank_line_of_one_column_is_an_empty_value_beside_bad_rows(reading: Statements, loader: str) -> None:
    reading.create("s Nullable(String)")
    reading.cases({"a": BLANK_LINE_OF_ONE_COLUMN}, loader=loader, format="csv", on_bad_rows="skip")


@pytest.mark.parametrize("on_bad_rows", ["fail", "skip"])
def test_a_blank_line_of_one_column_of_a_csv_dialect(reading: Statements, on_bad_rows: str) -> None:
    """The worker parses it, with both loaders."""
    reading.create("s Nullable(String)")
    case = Loaded(b"s\n\ny\n\n", [("y",), (None,), (None,)])
    reading.cases({"b": case}, format="csv", csv=Csv(quote="'"), on_bad_rows=on_bad_rows)


def test_many_objects_without_rows_before_one_with(reading: Statements) -> None:
    reading.put({f"{n:02}.csv": b"n,s\n" for n in range(20)} | {"99.csv": b"n,s\n1,x\n"})
    reading.load(sample_objects=2)
    assert reading.rows() == [(1, "x")]


def test_json_objects_that_are_null_after_the_sample(reading: Statements) -> None:
    reading.put({"a.jsonl": jsonl(NULL_STRUCTS)})
    reading.load(sample_bytes=60)
    assert reading.reasons() == {}
    assert reading.rows("n, st, sts", "n") == [(row["n"], row["st"], row["sts"]) for row in NULL_STRUCTS]


@pytest.mark.parametrize("form", ["csv", "jsonl"])
def test_a_new_column_without_a_name(reading: Statements, form: str) -> None:
    content = {"csv": b',n,s\n1,2,"x\ny"\n', "jsonl": b'{"": 1, "n": 2, "s": "x\\ny", "o": {"": "\\"\\":"}}\n'}[form]
    reading.put({"a": content})
    reading.load(format=form, nested="string")
    assert reading.reasons() == {}
    assert reading.rows("_unnamed, n, s") == [(1, 2, "x\ny")]
    if form == "jsonl":
        assert reading.rows("o") == [('{"": "\\"\\":"}',)]
    else:
        reading.put({"b": content.replace(b"1,2", b"3,4")})
        reading.load("b", format=form, csv=Csv(null_values=("-", "NA")))
        assert reading.rows("_unnamed", "n") == [(1,), (3,)]


def test_bad_rows_have_the_number_of_errors(reading: Statements) -> None:
    """In errors, in the table of rejected rows and in `_row_number`: from 0, without the header."""
    reading.create("n Int64, s String")
    reading.put({"a.csv": b"n,s\n1,x\nbad,y\n2,z\n"})
    reading.load(format="csv", on_bad_rows="skip", max_bad_rows=0)
    assert reading.reasons()["a.csv"].startswith("over 0 rows cannot be parsed, such as row 1: row 1, column 'n'")
    reading.load(format="csv", retry_failed=True, on_bad_rows="keep", system_columns=("_row_number",))
    assert reading.rows("_row_number", "_row_number") == [(0,), (2,)]
    ((number, reason),) = reading.query(f"SELECT row_number, reason FROM {reading.table}_rejected")
    assert number == 1
    assert reason.startswith("row 1, column 'n'")


# CSV with tabs


TABS = (
    b'n\tf\ts\td\tbig\n1\t1.5\t x \t2026-01-02\t12345678901234567890123\n\t\t"a\tb"\t\t\n3\t-2\t\\N\t2026-01-31\t5\n'
)


@pytest.mark.parametrize("loader", LOADERS)
def test_clickhouse_reads_csv_with_tabs(reading: Statements, loader: str, caplog: pytest.LogCaptureFixture) -> None:
    rows = [
        (1, 1.5, " x ", "2026-01-02", 12345678901234567890123), (3, -2.0, None, "2026-01-31", 5),
        (None, None, "a\tb", None, None),
    ]  # fmt: skip
    cases = {}
    for name, end in ENDS.items():
        content = TABS.replace(b"\n", end.encode())
        cases[f"{name}.tsv"] = Loaded(content, rows, "n, f, s, toString(d), big")
        cases[f"{name}.tsv.gz"] = Loaded(gzip.compress(content), rows, "n, f, s, toString(d), big")
    reading.cases(cases, loader=loader)
    assert reading.types() == {
        "n": "Nullable(Int64)", "f": "Nullable(Float64)", "s": "Nullable(String)", "d": "Nullable(Date32)",
        "big": "Nullable(Int128)",
    }  # fmt: skip
    assert left_out(caplog) == []


@pytest.mark.parametrize("loader", LOADERS)
def test_spaces_around_uuids_of_csv_with_tabs_are_skipped(reading: Statements, loader: str) -> None:
    uuid = "61f0c404-5cb3-11e7-907b-a6006ad3dba0"
    for n, value in enumerate((f" {uuid}", f"{uuid} ", f" {uuid} ")):
        reading.put({f"{n}.tsv": f"u\tv\n{value}\t{value}\n{uuid}\t\n".encode()})
    reading.load(loader=loader)
    assert reading.reasons() == {}
    assert reading.types() == {"u": "Nullable(UUID)", "v": "Nullable(UUID)"}
    assert reading.query(f"SELECT toString(u), count(), count(v) FROM {reading.table} GROUP BY 1") == [(uuid, 6, 3)]
    reading.cases({"bad": Refused(b"u\tv\n61f0c404\t\n", "row 0, column 'u' has a value that")}, format="tsv")


@pytest.mark.parametrize("loader", LOADERS)
def test_values_of_csv_with_tabs_that_do_not_fit(reading: Statements, loader: str) -> None:
    reading.create("n UInt8, d Nullable(Date), s String")
    wrong = {
        "large": b"n\td\ts\n300\t\tx\n", "day": b"n\td\ts\n1\t2026-02-31\tx\n", "few": b"n\td\ts\n1\tx\n",
        "many": b"n\td\ts\n1\t\tx\ty\n", "utf8": b"n\td\ts\n1\t\t\xff\n", "header": b"n\td\tz\n1\t\tx\n",
        "empty": b"n\td\ts\n\t\tx\n", "commas": b"n,d,s\n1,,x\n",
    }  # fmt: skip
    cases: dict[str, Loaded | Refused] = {name: Refused(content, "") for name, content in wrong.items()}
    cases["good"] = Loaded(b"n\td\ts\n1\t\tx\n", [(1, None, "x")])
    reading.cases(cases, loader=loader, format="tsv")
    rows = Loaded(b"n\td\ts\n2\t\ty\nbad\t\ty\n3\t\t\tz\n4\t\t z\n", [(2, "y"), (4, " z")], "n, s")
    reading.cases({"rows": rows}, folder="skip/", loader=loader, format="tsv", on_bad_rows="skip")


def test_the_delimiter_of_the_request_is_that_of_objects_named_tsv(reading: Statements) -> None:
    reading.put({"a.tsv": b"n;s\n1;x\n"})
    reading.load(csv=Csv(";"))
    assert reading.rows() == [(1, "x")]


# Arrays of JSON


@pytest.mark.parametrize("loader", LOADERS)
def test_an_array_of_objects(reading: Statements, loader: str, caplog: pytest.LogCaptureFixture) -> None:
    rows = [{"n": n, "s": '}],["\\ é', "o": {"x": [n, None]}} for n in range(3000)]
    expected = [(row["n"], row["s"], row["o"], row["n"]) for row in rows]
    columns = "n, s, o, _row_number"
    cases = {}
    for name, indent in {"lines": None, "indented": 1}.items():
        content = json.dumps(rows, indent=indent, ensure_ascii=False).encode()
        cases |= {
            f"{name}-a.json": Loaded(content, expected, columns),
            f"{name}-b": Loaded(b" \n" + content + b"\n", expected, columns),
            f"{name}-c.json.gz": Loaded(gzip.compress(content), expected, columns),
        }
    reading.cases(
        {**cases, "d.json": Loaded(b"[]")}, loader=loader, sample_bytes=1000, sample_objects=10,
        system_columns=("_row_number", "_object"),
    )  # fmt: skip
    assert left_out(caplog) == []


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


JOINED = b'{"a":1,"s":"x}{"}{"a":2,"s":"y"} {"a":3,\n"s":"z"}'


@pytest.mark.parametrize("loader", LOADERS)
@pytest.mark.parametrize("has_table", [True, False])
def test_documents_without_line_feeds_load_by_an_option(reading: Statements, loader: str, has_table: bool) -> None:
    if has_table:
        reading.create("a Int64, s String")
    long = b"".join(b'{"a":%d,"s":"A}{"}' % n for n in range(30_000))  # longer than a sample
    reading.put({"a.json": JOINED, "long.json": long})
    options = {"loader": loader, "system_columns": ("_row_number",), "joined": True}
    assert reading.load(**options).rows == 30_003
    assert reading.rows("a, s, _row_number", "s DESC")[:3] == [(3, "z", 2), (2, "y", 1), (1, "x}{", 0)]
    assert reading.query(f"SELECT countIf(a = _row_number) FROM {reading.table}") == [(30_000,)]
    reading.put({"b.json": JOINED + b'{"a":"z","s":""}{"a":9,"s":"end"}'})
    assert reading.load(**options, on_bad_rows="keep").rejected == 1
    assert (9, "end", 4) in reading.rows("a, s, _row_number")
    reading.put({"c.json": JOINED + b'{"a":012}'})
    reading.load(**options)
    assert "row 3 is not JSON" in reading.reasons()["c.json"]


@pytest.mark.parametrize("on_bad_rows", ["fail", "keep"])
@pytest.mark.parametrize("loader", LOADERS)
def test_the_option_for_documents_without_line_feeds_is_named(
    reading: Statements, loader: str, on_bad_rows: str
) -> None:
    reading.put({"a.json": JOINED.replace(b"\n", b"")})
    with pytest.raises(TransferInputError, match=r"set read\.joined to true"):
        reading.load(loader=loader, on_bad_rows=on_bad_rows)
    reading.create("a Int64, s String")
    reading.load(loader=loader, on_bad_rows=on_bad_rows)
    assert "set read.joined to true" in reading.reasons()["a.json"]


@pytest.mark.parametrize("has_table", [False, True])
@pytest.mark.parametrize(("delimiter", "given"), [(";", ","), (",", ","), ("\t", ";")])
def test_a_first_line_that_states_the_delimiter(
    reading: Statements, has_table: bool, delimiter: str, given: str
) -> None:
    if has_table:
        reading.create("a Nullable(Int64), b Nullable(Int64)")
    rows = f"sep={delimiter}\r\na{delimiter}b\r\n1{delimiter}2\r\n"
    reading.put({"a.csv": rows.encode(), "b.csv": b"\xef\xbb\xbf" + rows.replace("\r", "").encode()})
    shown = "a tab" if delimiter == "\t" else repr(delimiter)
    reason = "its first line states the delimiter, as Excel does: set csv.delimiter to "
    reason += f"{shown}, and csv.skip_rows to 1"
    if has_table:
        reading.load(csv=Csv(given), on_bad_rows="keep", on_drift="add")
        assert reading.reasons() == dict.fromkeys(("a.csv", "b.csv"), reason)
    else:
        with pytest.raises(TransferInputError, match=re.escape(reason)):
            reading.load(csv=Csv(given))
    reading.load(csv=Csv(delimiter, skip_rows=1), retry_failed=True)
    assert reading.rows("a, b") == [(1, 2), (1, 2)]


def test_half_of_a_surrogate_pair_has_a_remedy(reading: Statements, loader: str) -> None:
    """JavaScript leaves it where it cuts a text at a length."""
    reading.create("t String, n Int64")
    texts = (rb"\ud83d", rb"\ud83d\u0041")
    reading.put({f"{n}.jsonl": b'{"t": "%b", "n": %d}\n' % (text, n) for n, text in enumerate(texts)})
    reading.load(loader=loader)
    assert len(reading.reasons()) == 2
    for reason in reading.reasons().values():
        assert r"half of a surrogate pair, such as \ud83d, is no text" in reason
        assert r"write \ufffd in its place" in reason
        assert "setting" not in reason
    assert reading.load(loader=loader, on_bad_rows="skip", retry_failed=True).rejected == 2
