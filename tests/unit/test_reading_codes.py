"""Codes keep their text: in the sample, after it, and in columns that exist as numbers."""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Any

import pytest

from storeside.transfer.base.schema import bare
from storeside.transfer.request.object_format import Csv
from tests.statements import Statements
from tests.transfers import Loaded, Refused, jsonl

LOADERS = ("pull", "push")
ROWS = "".join(f"{n},{10000 + n}\n" for n in range(2000))
FRACTIONS = "".join(f"{n},{n % 90}.5\n" for n in range(2000))


@pytest.mark.parametrize("loader", LOADERS)
def test_codes_in_the_sample_are_text(reading: Statements, loader: str) -> None:
    reading.put({"a.csv": b"id,zip,phone,time\n1,02134,+491701234567,0830\n2,90210,+12125550100,0915\n"})
    reading.load(loader=loader)
    assert reading.rows("zip, phone, time", "id") == [
        ("02134", "+491701234567", "0830"),
        ("90210", "+12125550100", "0915"),
    ]


@pytest.mark.parametrize("loader", LOADERS)
@pytest.mark.parametrize(("rows", "late", "kind"), [
    (ROWS, "02134", "String"), (ROWS, "+49", "String"), (ROWS, "12E4", "String"), (ROWS, "N/A", "String"),
    (ROWS, "2.5", "Float64"), (ROWS, "5.0", "Int64"), (ROWS, "18446744073709551616", "Int128"),
    (FRACTIONS, "007.5", "String"), (FRACTIONS, "9007199254740993", "String"),
    (FRACTIONS, "0.12345678901234567890", "String"),
    (FRACTIONS, "0.30000000000000004", "Float64"), (FRACTIONS, "1e-05", "Float64"),
    (FRACTIONS, "1e400", "String"), (FRACTIONS, "-1E400", "String"), (FRACTIONS, "1e-400", "String"),
    (FRACTIONS, "0e9", "Float64"),
])  # fmt: skip
def test_a_value_after_the_sample_changes_the_type_of_a_table_without_rows(
    reading: Statements, loader: str, rows: str, late: str, kind: str
) -> None:
    reading.put({"a.csv": f"id,v\n{rows}3000,{late}\n".encode()})
    reading.load(sample_bytes=1000, loader=loader)
    assert reading.reasons() == {}
    assert bare(reading.types()["v"]) == kind
    ((found,),) = reading.rows("toString(v)", "id DESC LIMIT 1")
    assert found == late if kind == "String" else Decimal(found) == Decimal(late)


def test_json_values_after_the_sample_change_the_type_of_a_table_without_rows(reading: Statements) -> None:
    rows = [{"id": n, "v": n, "t": "2024-01-01T00:00:00.123Z"} for n in range(2000)]
    reading.put({"a.jsonl": jsonl([*rows, {"id": 3000, "v": 1.5, "t": "9999-12-31T23:59:59Z"}])})
    reading.load(sample_bytes=1000)
    assert reading.reasons() == {}
    assert reading.rows("v, toString(t)", "id DESC LIMIT 1") == [(1.5, "9999-12-31 23:59:59.000000")]


@pytest.mark.parametrize("loader", LOADERS)
def test_codes_after_the_sample_are_refused_in_a_table_with_rows(reading: Statements, loader: str) -> None:
    reading.put({"a.csv": b"id,v,f\n1,5,1.5\n2,6,2.5\n"})
    reading.load(loader=loader)
    cases: dict[str, Loaded | Refused] = {
        **{f"v{text}": Refused(f"id,v,f\n3,7,3.5\n4,{text},1.5\n".encode(), "row 1, column 'v' has a code")
           for text in ("02134", "+7", "-007", " 08", "12E4", "-12e4")},
        **{f"f{text}": Refused(f"id,v,f\n3,7,3.5\n4,5,{text}\n".encode(), "row 1, column 'f' has a code")
           for text in ("02134", "+7.5", "9007199254740993", "00.5", "12E4", "34e2")},
        "fraction": Refused(
            b"id,v,f\n3,7.5,1\n",
            "row 0, column 'v' has a value that Nullable(Int64) cannot hold: change the column to a type that"
            " holds it, such as String, and load the object with `retry_failed`",
        ),
        "exact": Loaded(b"id,v,f\n5,5.0,0.50\n6,1e3,-0.5\n7,,\n8, 0 ,0\n9,-0,.5\n",
                        [(5, 5, 0.5), (6, 1000, -0.5), (7, None, None), (8, 0, 0.0), (9, 0, 0.5)]),
        "exponents": Loaded(b"id,v,f\n10,1,0e5\n11,1,1e300\n12,1,1e-300\n13,12.0E1,-12E+2\n",
                            [(10, 1, 0), (11, 1, 1e300), (12, 1, 1e-300), (13, 120, -1200)]),
    }  # fmt: skip
    reading.cases(cases, folder="more/", format="csv", loader=loader)


@pytest.mark.parametrize(("text", "kind"), [
    ("[1,2]", "Array(Nullable(Int64))"), ("[1.5,null]", "Array(Nullable(Float64))"),
    ("[[1],[]]", "Array(Array(Nullable(Int64)))"),
    ("[-1,9223372036854775808]", "Array(Nullable(Int128))"), ("{'a':1.5}", "Map(String, Nullable(Float64))"),
    ("['2024-02-30']", "Array(Nullable(String))"), ("['1/2/2024']", "Array(Nullable(String))"),
    *((text, "Nullable(String)") for text in (
        "[007]", "[+7]", "[1,12e4]", "[9007199254740993,1.5]", "[0.12345678901234567890]", "[.]",
        "{'a':9007199254740993,'b':1.5}",
    )),
])  # fmt: skip
def test_lists_in_the_sample_keep_their_values(reading: Statements, text: str, kind: str) -> None:
    reading.put({"a.csv": f'id;v\n1;"{text}"\n'.encode()})
    reading.load(csv=Csv(";"))
    assert reading.reasons() == {}
    assert reading.types()["v"] == kind
    ((found,),) = reading.rows("toString(v)")
    assert found.lower() == text


@pytest.mark.parametrize("csv", [Csv(";"), Csv(";", quote="'")])
@pytest.mark.parametrize("loader", LOADERS)
def test_codes_in_lists_after_the_sample_are_refused(reading: Statements, loader: str, csv: Csv) -> None:
    reading.put({"a.csv": b"i;f\n[1,2];[[1.5]]\n"})
    reading.load(loader=loader, csv=csv)
    code, whole = "has a code, or a number that Array", "has a value that Array"
    rows = {"i": "[3];[]\n{};[]\n", "f": "[3];[]\n[3];{}\n"}
    row = "row 1, " if csv.is_native else ""
    cases: dict[str, Loaded | Refused] = {
        f"{column}{n}": Refused(f"i;f\n{rows[column].format(text)}".encode(), f"{row}column {column!r} {reason}")
        for n, (column, text, reason) in enumerate([
            ("i", "[007]", code), ("i", "[1, +7]", code), ("i", "[1,12e4]", code), ("i", "[-01]", code),
            ("f", "[[1],[00.5]]", code),
            ("f", "[[9007199254740993]]", code), ("f", "[[0.12345678901234567890]]", code),
            ("f", "[[0.30000000000000004,9007199254740993]]", code),
            ("i", "x", whole), ("i", "[1", whole), ("i", "[1,a]", whole), ("f", "[[1]", whole),
        ])
    }  # fmt: skip
    cases["exact"] = Loaded(
        b"i;f\n[3, -4];[[0.5,0.30000000000000004],[]]\n[];[[null]]\n",
        [([3, -4], [[0.5, 0.30000000000000004], []]), ([], [[None]])],
    )  # fmt: skip
    if csv.is_native:
        cases["empty"] = Loaded(b"i;f\n; \n [5] ;[]\n", [([], []), ([5], [])])
    reading.cases(cases, folder="more/", loader=loader, format="csv", csv=csv)


@pytest.mark.parametrize("loader", LOADERS)
def test_codes_in_maps_after_the_sample_are_refused(reading: Statements, loader: str) -> None:
    reading.put({"a.csv": b"i;f\n{'a':1};{'a':1.5}\n"})
    reading.load(loader=loader, csv=Csv(";"))
    code, whole = "has a code, or a number that Map", "has a value that Map"
    cases: dict[str, Loaded | Refused] = {
        f"{column}{n}": Refused(f"i;f\n{{}};{{}}\n{first}\n".encode(), f"row 1, column {column!r} {reason}")
        for n, (column, first, reason) in enumerate([
            ("i", "{'a':007};{}", code), ("i", "{'a':+7};{}", code), ("f", "{};{'a':9007199254740993}", code),
            ("f", "{};{'a':1,'b':0.12345678901234567890}", code), ("i", "{'a':1.5};{}", whole), ("i", "x;{}", whole),
            ("i", "{'a':1,};{}", whole), ("f", "{};{'a'}", whole),
        ])
    }  # fmt: skip
    text = b"i;f\n{'007':-3, 'b:05' : NULL, 'c}':5.0};{'k,l':2, 'x':nan, 'y\\'z':1e5}\n;{}\n"
    shown = "toString(i), toString(f)"
    cases["exact"] = Loaded(text, [
        ("{'007':-3,'b:05':NULL,'c}':5}", "{'k,l':2,'x':nan,'y\\'z':100000}"), ("{}", "{}"),
    ], shown)  # fmt: skip
    reading.cases(cases, folder="more/", loader=loader, format="csv", csv=Csv(";"))


@pytest.mark.parametrize("loader", LOADERS)
def test_lists_and_maps_of_integers_take_fractions_of_zeros(reading: Statements, loader: str) -> None:
    reading.create("l Array(Nullable(Int64)), d Array(Array(Int8)), m Map(String, Int64)")
    whole = re.compile("^row 1, column '.' has a value that .* cannot hold$")
    reading.cases({
        "taken": Loaded(
            b"l;d;m\n[5.0, null, 6.];[[1.00],[]];{'a':5.0}\n", [([5, None, 6], [[1], []], {"a": 5})], "l, d, m"
        ),
        "l": Refused(b"l;d;m\n;;\n[1.5];;\n", whole), "d": Refused(b"l;d;m\n;;\n;[[1.5]];\n", whole),
        "m": Refused(b"l;d;m\n;;\n;;{'a':1.5}\n", whole), "depth": Refused(b"l;d;m\n;;\n[[1]];;\n", whole),
    }, ".csv", loader=loader, csv=Csv(";"))  # fmt: skip


BEYOND = {"Float64": ("1e400", " -1E400 ", "1e-400", "9" * 400, f"0.{'0' * 400}1"), "Float32": ("1e39", "-1e-46")}
WITHIN = {"Float64": ("1e300", "1e-320", "0e9", "0.00"), "Float32": ("1e38", "1e-40", "0e99")}


@pytest.mark.parametrize("loader", LOADERS)
def test_numbers_beyond_the_range_of_a_float_are_refused(reading: Statements, loader: str) -> None:
    reading.create("d Float64, n Nullable(Float64), f Nullable(Float32)")
    csv: dict[str, Loaded | Refused] = {}
    json: dict[str, Loaded | Refused] = {}
    for name, kind in {"d": "Float64", "n": "Float64", "f": "Float32"}.items():
        reason = f"row 1, column {name!r} has a number beyond the range of {kind}: change the column to String"
        other = "n" if name == "d" else "d"

        def as_csv(*texts: str, names: str = f"{name},{other}") -> bytes:
            return "".join([f"{names}\n", *(f"{text},1\n" for text in texts)]).encode()

        def as_json(*texts: str, name: str = name, other: str = other) -> bytes:
            return "".join(f'{{"{name}": {text}, "{other}": 1}}\n' for text in texts).encode()

        for n, text in enumerate(BEYOND[kind]):
            csv[f"{name}{n}"] = Refused(as_csv("1", text), reason)
            json[f"{name}{n}"] = Refused(as_json("1", text), reason)
        within, rows = WITHIN[kind], [(float(text) != 0,) for text in WITHIN[kind]]
        csv[f"{name}-within"] = Loaded(as_csv(*within), rows, f"{name} != 0")
        json[f"{name}-within"] = Loaded(as_json(*within), rows, f"{name} != 0")
    literal = b'd,n\ninf,-inf\n-Infinity,nan\n"inf",\n'
    for n, text in enumerate(("x", "--5", "'1'", "1e", "0x10", "1.5.5")):
        csv[f"none{n}"] = Refused(as_csv("1", text, names="d,n"), "row 1, column 'd' has a value that Float64 cannot")
    csv["empty"] = Refused(as_csv('""', names="d,n"), "")
    csv["literal"] = Loaded(literal, [("inf", "-inf"), ("-inf", "nan"), ("inf", None)], "toString(d), toString(n)")
    reading.cases(csv, loader=loader, format="csv", folder="csv/")
    reading.cases(json, loader=loader, format="jsonl", folder="json/")


def test_numbers_beyond_the_range_of_a_float_in_other_text(reading: Statements) -> None:
    reading.create("d Nullable(Float64)")
    options: dict[str, Any] = {"csv": Csv(null_values=("-",), quote="'")}
    reading.cases({
        "by-worker": Refused(b"d\n1.5\n1e400\n", "column 'd' has a number beyond the range of Float64"),
        "good": Loaded(b"d\n1.5\ninf\n", [(1.5,), (float("inf"),)], "d"),
    }, format="csv", folder="csv/", **options)  # fmt: skip
    lines = [b'{"d": 1e-400}', b'{"d": 2, "d2": "x"', b'{"d": 1e400}', b'{"d": 2}']
    cases = {"bad": Loaded(b"\n".join(lines), [(2.0,)], "d")}
    report = reading.cases(cases, format="jsonl", folder="json/", on_bad_rows="skip")
    assert report.rejected == 3
    lists = reading.another()
    lists.create("f Array(Nullable(Float32)), id String")
    lists.cases({
        "small": Refused(b'{"f": [1, null]}\n{"f": [0, 2, 1e-46]}\n', "row 1, column 'f' has a number beyond"),
        "large": Refused(b'{"f": [1e39]}\n', "row 0, column 'f' has a number beyond the range of Float32"),
        "within": Loaded(b'{"f": [1e-40, 0e-99, null, 0.00], "id": "4e-400"}\n', [(4,)], "length(f)"),
    }, format="jsonl")  # fmt: skip


def test_columns_that_exist_as_numbers_have_an_option(reading: Statements) -> None:
    reading.create("i Int64, f Nullable(Float64), u UInt8")
    content = b"i,f,u\n007,01.5,+5\n"
    reading.cases({"auto": Loaded(content, [(7, 1.5, 5)])}, format="csv")
    reading.cases({"refuse": Refused(content, "has a code")}, format="csv", codes="refuse")
    other = reading.another()
    other.put({"a.csv": b"i\n1\n"})
    other.load()
    other.cases({"number": Loaded(b"i\n007\n", [(7,)])}, format="csv", codes="number", folder="b/")


@pytest.mark.parametrize("text", ["5.5", "1e-1", "300", "5.0.0", "e5", "1e99", "-1", "x", "5,0"])
def test_texts_that_are_no_exact_integers_are_refused(reading: Statements, text: str) -> None:
    reading.create("i UInt8, n Nullable(UInt8)")
    reading.cases({
        "i": Refused(f'i,n\n"{text}",1\n'.encode(), "column 'i'"),
        "n": Refused(f'i,n\n1,"{text}"\n'.encode(), "column 'n'"),
    }, format="csv")  # fmt: skip
