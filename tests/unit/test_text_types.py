"""The table of forms by which the values of text objects decide types, in any order of rows and objects."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from typing import Any

import pytest

from storeside.transfer.base.errors import LoadObjectError
from storeside.transfer.base.schema import resolved
from storeside.transfer.formats.text_columns import Place, columns_of_csv, columns_of_json
from storeside.transfer.formats.text_types import held, type_of
from storeside.transfer.request.object_format import Csv, Format
from tests.statements import Statements

# The type of a column that has this value only.
ONE: dict[str, tuple[str, ...]] = {
    "Int64": ("5", "-5", "0", "-0", "9007199254740993", "-9223372036854775808", "20240102", "1720051200"),
    "UInt64": ("9223372036854775808", "18446744073709551615"),
    "Int128": ("18446744073709551616", "-9223372036854775809", "9" * 38),
    "Float64": (
        *("1.5", "-1.5", "1.", ".5", "-.5", "1.50", "-0.0", "5.0", "1e-05", "1E5", "1.5e+3", "1e22", "0e-999"),
        *("0.30000000000000004", "0.1", "1.7976931348623157e308", "nan", "NaN", "inf", "-Infinity"),
        *("1.000000000000000056e-01", "123456789012345.000000", "12.5E4", "12.E4", "12E+4", "12E-4", "5e-324"),
    ),
    "String": (
        *("02134", "007", "00", "-007", "+7", "+491701234567", "0830", "+1.5", "01.5", "00.5", "+0", "01e5"),
        *("12E4", "34e2", "-12E4", "2310009E13", "12345e67"),
        *("0.1234567890123456789", "9007199254740993.5", "3.14159265358979323846", "1e400", "1e-400", "9" * 39),
        *("1_000", "0x10", "--5", "1.2.3", "1,5", "TRUE", "t", "yes", "N/A", "-", ".", "e5", "\u0661\u0662"),
        *(
            "2024-02-30",
            "2023-02-29",
            "2024-13-01",
            "2024-00-10",
            "0000-01-01",
            "2024-01-32",
            "2024-01/02",
            "2024-01",
        ),
        *("2024-01-02 24:00:00", "2024-01-02T10:60", "2024-01-02T10:00:61", "2024-01-02T10:00:00.1234567891"),
        *("2300-01-01T00:00:00.123456789", "31.12.2026", "1/2/2024", "13/1/2024", "10:00", "2024-01-02 10:00+99:00"),
        *(
            "Jan 32, 2024",
            "31 Feb 2024",
            "Month 1, 2024",
            "6FA459EA-EE8A-3CA4-894E-DB77E160355E",
            "d" * 32,
            "5 apples",
        ),
    ),
    "Bool": ("true", "false"),
    "Date32": ("2024-01-02", "1965-05-05", "1850-01-01", "0001-01-01", "9999-12-31", "2024-02-29", "2024/01/02"),
    "DateTime64(6)": (
        *("2024-01-02 10:00:00", "2024-01-02T10:00:00Z", "9999-12-31T23:59:59Z", "2024-01-02T10:00:00.123456+01:00"),
        *("2024-01-02 10:00", "2024-01-02 10:00:00 PM", "2024-01-02 10:00:00.500000000", "2 Jan 2024", "Jan 2, 2024"),
        "Tue, 02 Jan 2024 10:00:00 GMT",
    ),
    "DateTime64(9)": ("2024-01-02T10:00:00.123456789Z",),
    "UUID": ("6fa459ea-ee8a-3ca4-894e-db77e160355e",),
}
# The type of a column that has all of these values.
MANY: list[tuple[str, Sequence[str]]] = [
    ("Int128", ["-1", "9223372036854775808"]),
    ("Int64", ["-1", "9223372036854775807"]),
    ("UInt64", ["1", "18446744073709551615"]),
    ("Float64", ["1", "1.5"]),
    ("Float64", ["0.5", "1e-05"]),
    ("String", ["9223372036854775808", "1.5"]),  # a double shows fewer digits of it
    ("Float64", ["9007199254740992", "1.5"]),
    ("String", ["9007199254740993", "1.5"]),
    ("String", ["1", "02134"]),
    ("String", ["1.5", "+7"]),
    ("String", ["1001", "12E4"]),
    ("Date32", ["1965-05-05", "1999-01-01"]),
    ("DateTime64(6)", ["2024-01-01T00:00:00.123Z", "9999-12-31T23:59:59Z"]),
    ("DateTime64(6)", ["2024-01-02", "2024-01-02 10:00:00"]),
    ("DateTime64(9)", ["2024-01-02", "2024-01-02 10:00:00.123456789"]),
    ("String", ["9999-12-31", "2024-01-02 10:00:00.123456789"]),
    ("String", ["2024-01-02", "2024-02-30"]),
    ("String", ["true", "1"]),
    ("String", ["2024-01-02", "5"]),
]


@pytest.mark.parametrize("kind", ONE)
def test_the_type_of_a_column_of_one_value(kind: str) -> None:
    assert {text: type_of(held(text)) for text in ONE[kind]} == dict.fromkeys(ONE[kind], kind)


@pytest.mark.parametrize(("kind", "texts"), MANY, ids=[" ".join(texts) for _, texts in MANY])
def test_the_type_of_a_column_of_several_values(kind: str, texts: Sequence[str]) -> None:
    for order in (texts, texts[::-1]):
        found = csv("\n".join(["a,b", *(f"{text}," for text in order)]))
        assert types(found)["a"] == f"Nullable({kind})"


def csv(text: str, *, skips_bad: bool = False, **dialect: Any) -> Place:
    rows = [line + b"\n" for line in text.encode().removesuffix(b"\n").split(b"\n")]
    return columns_of_csv(rows, Format("csv", Csv(**dialect)), skips_bad=skips_bad)


def json_lines(*rows: Any, skips_bad: bool = False) -> Place:
    lines = [row if isinstance(row, bytes) else json.dumps(row).encode() + b"\n" for row in rows]
    return columns_of_json(lines, is_strict=True, skips_bad=skips_bad, deep=True)


def types(place: Place, nested: Any = "tuple") -> dict[str, str]:
    return {c.name: resolved(c.type) for c in place.columns(nested, {}, lambda values: "list")}


def test_quotes_spaces_and_nulls_of_csv() -> None:
    found = csv('q,n,s,d,l,e,f\n"5", 5,x,"2024-01-02","[1]",,\n"6",\\N, y," 2024-01-02","[2,3]",, \n', quote='"')
    assert types(found) == {
        "q": "Nullable(String)", "n": "Nullable(Int64)", "s": "Nullable(String)", "d": "Nullable(String)",
        "l": "list",
        "e": "Nullable(String)", "f": "Nullable(String)",
    }  # fmt: skip


def test_dialects_of_csv() -> None:
    found = csv(
        "t;z;b;n\n01.07.2024 10:00;2024-07-01T10:00:00Z;ja;NA\n;;nein;1\n", delimiter=";", null_values=("NA",),
        timestamp_formats=("%d.%m.%Y %H:%M",), true_values=("ja",), false_values=("nein",),
    )  # fmt: skip
    assert types(found) == {
        "t": "Nullable(DateTime64(6))", "z": "Nullable(String)", "b": "Nullable(Bool)", "n": "Nullable(Int64)",
    }  # fmt: skip
    assert types(csv("a|b\n'x|'' y'|1\n", delimiter="|", quote="'")) == {
        "a": "Nullable(String)", "b": "Nullable(Int64)",
    }  # fmt: skip
    assert types(csv('a|b\n"x\\"|y"|1\n', delimiter="|", escape="\\"))["b"] == "Nullable(Int64)"


def test_columns_with_few_distinct_texts_are_low_cardinality() -> None:
    text = "".join(f"{'xy'[n % 2]},{n}x\n" for n in range(1000))
    assert types(csv(f"a,b\n{text}")) == {"a": "LowCardinality(Nullable(String))", "b": "Nullable(String)"}


@pytest.mark.parametrize("nested", ["tuple", "json", "string"])
def test_nested_values_of_json(nested: str) -> None:
    found = types(json_lines(
        {"o": {"b": 1, "a": {"x": "2024-01-02"}}, "l": [1, None], "ls": [{"x": 1}, {"y": "z"}], "e": {}, "n": None},
        {"o": {"b": 2.5}, "l": [2.5], "ls": [], "e": {}, "n": None, "t": "007", "i": 10**20},
    ), nested)  # fmt: skip
    objects = {
        "tuple": "Nullable(Tuple(`b` Nullable(Float64), `a` Nullable(Tuple(`x` Nullable(Date32)))))",
        "json": "Nullable(JSON)", "string": "Nullable(String)",
    }  # fmt: skip
    assert found == {
        "o": objects[nested], "l": "Array(Nullable(Float64))", "e": "Nullable(String)", "n": "Nullable(String)",
        "ls": "Array(Nullable(String))" if nested == "string" else
        "Array(Nullable(Tuple(`x` Nullable(Int64), `y` Nullable(String))))",
        "t": "Nullable(String)", "i": "Nullable(Int128)",
    }  # fmt: skip


@pytest.mark.parametrize("nested", ["tuple", "json", "string"])
@pytest.mark.parametrize(
    "values", [({"a": 1}, "x"), ({"a": 1}, [1]), ([1], 2), (True, 2), ({"a": 1}, 5), (9007199254740993, 1.5)]
)
def test_values_of_several_kinds_of_json_are_text(values: tuple[Any, ...], nested: str) -> None:
    for order in (values, values[::-1]):
        assert types(json_lines(*({"v": value} for value in order)), nested) == {"v": "Nullable(String)"}


def test_documents_that_span_lines() -> None:
    assert types(json_lines(b'{\n', b' "a": {"x": "}"},\n', b' "b": 1}\n', b'{"b": 2.5}\n', b'{"b": \n')) == {
        "a": "Nullable(Tuple(`x` Nullable(String)))", "b": "Nullable(Float64)",
    }  # fmt: skip


REFUSED = {
    "short": ("a,b,c\n1,2,3\n4,5\n", "row 1 has 2 fields, but the header has 3 names"),
    "long": ("a,b\n1,2\n1,2,3\n", "row 1 has 3 fields, but the header has 2 names"),
    "one column": ("a\n1,2\n", "row 0 has 2 fields, but the header has 1 names"),
    "two without a name": ("a,b,,\n1,2,,\n", "columns 3 and 4 have no name: set csv.names to the names of its 4"),
    "one name twice": ("a,b,b\n1,2,3\n", "columns 2 and 3 have the name 'b': set csv.names"),
    "no header": (
        "1,2.5,2024-01-01\n2,3.5,2024-01-02\n",
        "values where the names of columns are expected: set csv.n",
    ),
    "no header with text": ("1,x\n2,x\n3,y\n", "set csv.names to the names of its 2 columns"),
    "no header with other texts": ("1,Ann,2024-01-01\n2,Bob,2024-01-02\n", "names of its 3 columns"),
    "no header with a fraction": ("Ann,20.5\nBob,21.5\n", "names of its 2 columns"),
    "semicolon": ("id;name;amount\n1;x;1,50\n2;y;2,75\n", "set csv.delimiter to ';'"),
    "pipe": ('id|name\n1|x\n2|"a|b"\n', r"set csv.delimiter to '\|'"),
    "tab": ("id\tname\n1\tx\n", "set csv.delimiter to a tab"),
    "delimiter of Hive": ("id\x01name\n1\x01x\n", r"set csv.delimiter to '\\x01'"),
    "line before the header": (
        "# of 2024\nid,name\n1,x\n2,y\n",
        "row 0 has 2 fields, but the header has 1 names: most of its rows have 2 fields: set csv.skip_rows",
    ),
    "most rows are longer": ("a,b\n1,2,,\n3,4,,\n", "or csv.names to the names of 4 columns"),
    "few rows are longer": ("a,b\n1,2\n3,4\n5,6,7\n", "has 2 names: correct its rows, or set `on_bad_rows`"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_csv_without_clear_columns_is_refused_with_a_remedy(name: str) -> None:
    text, reason = REFUSED[name]
    with pytest.raises(LoadObjectError, match=reason):
        csv(text)


@pytest.mark.parametrize("text", [
    "country,1960,1961\nFR,1.5,2\nDE,1,2\n", "a,b,c\n1,2,3,\n4,5,6\n", "name\nx|y\nz\n", "a,b\nx,y\n", "n,5\nx,y\n",
    "a;b\n1;2\n3\n", "x\n\n5\n", "name,2024-01-01\nAnn,5\n", "id,2024-01-01\n1,2024-01-02\n", "name,1.5\nAnn,x\n",
])  # fmt: skip
def test_ordinary_headers_and_rows(text: str) -> None:
    csv(text)


def test_bad_rows_do_not_decide_types() -> None:
    assert types(csv("a,b\n1,2\n5\nx,y,z\n3,4\n", skips_bad=True)) == {"a": "Nullable(Int64)", "b": "Nullable(Int64)"}
    assert types(json_lines({"a": 1}, b'{"a": x}\n', b"[1]\n", skips_bad=True)) == {"a": "Nullable(Int64)"}
    with pytest.raises(LoadObjectError, match="row 1 is not JSON"):
        json_lines({"a": 1}, b'{"a": x}\n')


SCALARS = [text for texts in ONE.values() for text in texts if "," not in text] + ["", "", " ", "x", '"5"', "[1]"]
VALUES: list[Any] = [
    *(1, -1, 2**63, 2**64, 1.5, True, None, "", "x", "007", "2024-01-02", [], [1], ["x"], [None], {}, {"a": 1}),
    *({"a": "x"}, {"b": 1, "a": 2}, [{"a": 1}], [{"b": None}], "2024-01-02T10:00:00.123456789Z", 9007199254740993),
]  # fmt: skip


@pytest.mark.parametrize("seed", range(60))
def test_no_order_of_rows_or_objects_changes_the_types(seed: int) -> None:
    rng = random.Random(seed)  # noqa: S311
    tokens = [
        [rng.choice(SCALARS[: rng.randrange(2, len(SCALARS))]) for _ in "ab"] for _ in range(rng.randrange(1, 9))
    ]
    rows: list[Any] = [
        {name: rng.choice(VALUES) for name in rng.sample("abcd", rng.randrange(1, 5))} for _ in range(6)
    ]
    found = set()
    for _ in range(6):
        rng.shuffle(tokens)
        rng.shuffle(rows)
        cut = rng.randrange(len(rows))
        whole, part = json_lines(*rows[cut:]), json_lines(*rows[:cut])
        whole.merge(part)
        text = "\n".join(["a,b", *(",".join(row) for row in tokens)])
        found.add((str(whole.columns("tuple", {}, str)), str(csv(text).columns("tuple", {}, str))))
    assert len(found) == 1


def test_an_object_that_is_refused_decides_no_type(reading: Statements, caplog: pytest.LogCaptureFixture) -> None:
    reading.put({
        "good.csv": b"id,city,fare\n1,Oslo,1.5\n2,Bergen,2.5\n",
        "bad.csv": b'id,city,fare\n3,Oslo,1.5\n4,Bergen,abc\n5,"Unclosed,3.0\n',
    })  # fmt: skip
    reading.load()
    assert reading.types()["fare"] == "Nullable(Float64)"
    assert reading.rows("id, fare") == [(1, 1.5), (2, 2.5)]
    assert "'bad.csv' is left out of the samples: row 2 (line 4) has a quote that is not closed" in caplog.text


@pytest.mark.parametrize("form", ["csv", "jsonl"])
def test_values_of_all_forms_are_those_of_the_file(reading: Statements, form: str) -> None:
    """A column for each type that the table has, with the values that are the hardest for it."""
    names = {f"c{n}": texts for n, texts in enumerate([*ONE.values(), *(texts for _, texts in MANY)])}
    most = max(map(len, names.values()))
    table = [{name: texts[n % len(texts)] for name, texts in names.items()} for n in range(most)]
    if form == "csv":
        lines = [",".join(names), *(",".join(f'"{v}"' if "," in v else v for v in row.values()) for row in table)]
        content = "\n".join(lines).encode() + b"\n"
    else:
        content = b"".join(json.dumps(row).encode() + b"\n" for row in table)
    reading.put({f"a.{form}": content})
    reading.load()
    assert reading.reasons() == {}
    texts = [name for name, kind in reading.types().items() if "String" in kind]
    assert reading.query(f"SELECT {', '.join(texts)} FROM {reading.table} ORDER BY _storeside_load") != []
    found = reading.query(f"SELECT {', '.join(texts)} FROM {reading.table}")
    assert sorted(found) == sorted(tuple(row[name] for name in texts) for row in table)


def test_spaces_alone_beside_uuids_are_text(reading: Statements) -> None:
    uuid = "61f0c404-5cb3-11e7-907b-a6006ad3dba0"
    reading.put({"a.csv": f"n,u\n1,{uuid}\n2, \n3,\n".encode()})
    reading.load()
    assert reading.types()["u"] == "Nullable(String)"
    assert reading.rows("u", "n") == [(uuid,), (" ",), (None,)]
