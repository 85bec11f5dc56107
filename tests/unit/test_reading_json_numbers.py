"""Values of JSON Lines: numbers, texts that are none, names that come twice, and values of another kind."""

from __future__ import annotations

import re

import pytest

from tests.statements import Statements
from tests.transfers import Loaded, Refused, jsonl

LOADERS = ("pull", "push")
BAD = ('""', '"007"', '"+7"', '"-07"', '"00"')
COLUMNS = "k String, i Nullable(Int64), f Nullable(Float64), a Array(Int64), u Array(Array(Nullable(UInt8)))"


@pytest.mark.parametrize("loader", LOADERS)
def test_texts_that_are_no_numbers_are_refused(reading: Statements, loader: str) -> None:
    reading.create(COLUMNS)
    forms = {"i": "{}", "f": "{}", "a": '[1, {}, "5"]', "u": "[[], [{}]]"}
    cases: dict[str, Loaded | Refused] = {}
    for name, form in forms.items():
        for n, text in enumerate(BAD):
            content = f'{{"k": ""}}\n{{"k": "+007", "{name}": {form.format(text)}}}\n'.encode()
            by_engine = (name, text) in (("f", '""'), ("u", '"-07"'))
            cases[f"{name}{n}"] = Refused(content, "" if by_engine else f"row 1, column '{name}' has a text")
    cases["lines"] = Refused(b'{"k": "x"}\n{"k": "y",\n "i": "007"}\n', "row 1, column 'i' has a text")
    cases["brace"] = Refused(b'{"k": "x"}\n{"k": "}",\n "i": "007"}\n', "row 1, column 'i' has a text")
    cases["array"] = Refused(b'[{"k": "x"}, {"i": ""}]\n', "row 1, column 'i' has a text")
    good = '{"k": "", "i": "5", "f": "-0.5"}\n{"k": "007", "i": 0, "f": "1e3", "a": ["0", -1]}\n'
    good += '{"k": "{\\"i\\": \\"\\"}"}\n'
    rows = [("", 5, -0.5, []), ("007", 0, 1000.0, [0, -1]), ('{"i": ""}', None, None, [])]
    cases["good"] = Loaded(good.encode(), rows, "k, i, f, a")
    reading.cases(cases, loader=loader, format="jsonl")


@pytest.mark.parametrize("loader", LOADERS)
def test_texts_that_are_no_numbers_are_refused_within_structs_and_maps(reading: Statements, loader: str) -> None:
    reading.create(
        "s Nullable(Tuple(a Nullable(Int64), t Nullable(String))), m Map(String, UInt8),"
        " p Array(Tuple(Int8, String)), l Array(Tuple(f Float64, n Array(Int32)))"
    )
    wrong = [
        ("s", '{"t": "", "a": ""}'), ("s", '{"a": "007"}'), ("m", '{"x": "+7"}'), ("p", '[["", "x"]]'),
        ("l", '[{"f": 1, "n": []}, {"f": "-01", "n": []}]'), ("l", '[{"f": 1, "n": [1, "00"]}]'),
    ]  # fmt: skip
    taken = {
        "s": '{"a": "5", "t": "007"}',
        "m": '{"": "0", "007": 1}',
        "p": '[["-5", ""]]',
        "l": '[{"f": "0.5", "n": ["1"]}]',
    }
    cases: dict[str, Loaded | Refused] = {
        f"{n}-{name}": Refused(
            f'{{}}\n{{"{name}": {text}}}\n'.encode(),
            re.compile(f"row 1, column '{name}' has a text that is no JSON number"),
        )
        for n, (name, text) in enumerate(wrong)
    }
    content = "{" + ", ".join(f'"{name}": {text}' for name, text in taken.items()) + "}\n"
    shown = "toString((tupleElement(assumeNotNull(s), 1), tupleElement(assumeNotNull(s), 2), m, p, l))"
    cases["taken"] = Loaded(content.encode(), [("(5,'007',{'':0,'007':1},[(-5,'')],[(0.5,[1])])",)], shown)
    reading.cases(cases, ".jsonl", loader=loader)


def test_texts_that_are_no_numbers_are_refused_where_null_lists_become_empty(reading: Statements) -> None:
    reading.create("l Array(Int64)")
    reading.put({"a.jsonl": b'{"l": null}\n{"l": [""]}\n'})
    reading.load(on_null_nested="empty")
    assert "column 'l' has a text that is no JSON number" in reading.reasons()["a.jsonl"]


@pytest.mark.parametrize("loader", LOADERS)
def test_such_rows_are_bad_rows(reading: Statements, loader: str) -> None:
    reading.create(COLUMNS)
    lines = [*(f'{{"i": {text}}}' for text in BAD), '{"a": ["", "5"]}', '{"i": 1}', '{"i": "2"}']
    report = reading.cases(
        {"a": Loaded("\n".join(lines).encode(), [(1,), (2,)], "i")}, loader=loader, format="jsonl", on_bad_rows="keep"
    )
    assert report.rejected == len(BAD) + 1


def test_texts_after_a_sample_of_numbers_make_text_of_an_empty_table(reading: Statements) -> None:
    rows = "".join(f'{{"id": {n}, "a": {n}}}\n' for n in range(2000))
    reading.put({"a.jsonl": f'{rows}{{"id": 2000, "a": ""}}\n{{"id": 2001, "a": "007"}}\n'.encode()})
    reading.load(sample_bytes=1000)
    assert reading.reasons() == {}
    assert reading.rows("a", "id DESC LIMIT 2") == [("007",), ("",)]


@pytest.mark.parametrize("loader", LOADERS)
def test_columns_of_integers_take_numbers_without_a_fraction(reading: Statements, loader: str) -> None:
    reading.create("n Nullable(Int64), u UInt8 DEFAULT 9, s String, h Nullable(Int128)")
    fraction = "row 1, column 'n' has a value that Nullable(Int64) cannot hold (line 2): change the column to a"
    reading.cases({
        "exact": Loaded(
            b'{"n": 5.0, "s": "1.0"}\n{"n": 1e3, "u": 7.00}\n{"n": "7"}\n'
            b'{"n": null, "h": 170141183460469231731687e0}\n{}\n',
            [(5, 9, "1.0", None), (1000, 7, "", None), (7, 9, "", None), (None, 9, "", 170141183460469231731687),
             (None, 9, "", None)],
        ),
        "long": Loaded(b'{"n": 9007199254740993.0}\n', [(9007199254740993, 9, "", None)]),
        "fraction": Refused(b'{"n": 5.0}\n{"n": 5.5}\n', fraction),
        "fraction-first": Refused(b'{"n": 1}\n{"n": 5.5}\n', fraction),
        "code": Refused(b'{"n": 5.0}\n{"n": "007"}\n', "row 1, column 'n' has a text that is no JSON number"),
        "empty": Refused(b'{"n": 5.0}\n{"n": ""}\n', "row 1, column 'n' has a text that is no JSON number"),
        "bool": Refused(b'{"n": 5.0}\n{"n": true}\n', "row 1, column 'n' has a value that"),
        "large": Refused(b'{"u": 5.0}\n{"u": 300}\n', "row 1, column 'u' has a value that"),
    }, loader=loader, format="jsonl")  # fmt: skip


@pytest.mark.parametrize("loader", LOADERS)
def test_floats_that_were_inferred_refuse_integers_that_they_do_not_hold(reading: Statements, loader: str) -> None:
    reading.put({"a.jsonl": b'{"f": 1.5, "i": 1}\n'})
    reading.load(loader=loader)
    reason = "row 1, column 'f' has a code, or a number that Float64 does not keep: change the column to String"
    cases: dict[str, Loaded | Refused] = {
        f"refused{n}": Refused(f'{{"f": 1}}\n{{"f": {text}}}\n'.encode(), reason)
        for n, text in enumerate((
            "9007199254740993", "-18446744073709551615", "9" * 38, "9007199254740993.5", '"9007199254740993"',
            "0.12345678901234567890", f"0.5{'0' * 40}1",
        ))
    }  # fmt: skip
    cases["exact"] = Loaded(
        b'{"f": 1000000000000000000, "i": 5.0}\n{"f": 1e300}\n{"f": -9007199254740992}\n{"f": 0.1}\n{"f": null}\n'
        b'{"f": 0.30000000000000004}\n{"f": 0.12345678901234567e0}\n{"f": 100.00000000000000000}\n'
        b'{"i": 9007199254740993}\n',
        [
            (1e18, 5),
            (1e300, None),
            (-(2.0**53), None),
            (0.1, None),
            (None, None),
            (0.30000000000000004, None),
            (0.12345678901234567, None),
            (100.0, None),
            (None, 9007199254740993),
        ],
    )
    cases["beyond"] = Refused(b'{"f": 1e300}\n{"f": 1e400}\n', "row 1, column 'f' has a number beyond the range")
    cases["text"] = Refused(b'{"f": 1e300}\n{"f": ""}\n', "column 'f'")
    reading.cases(cases, folder="more/", loader=loader, format="jsonl")
    good = b'{"f": 9007199254740993}\n{"f": 1e300}\n'
    rows = [(9007199254740992.0,), (1e300,)]
    reading.cases({"number": Loaded(good, rows, "f")}, folder="n/", loader=loader, format="jsonl", codes="number")
    report = reading.cases(
        {"skip": Loaded(good, rows[1:], "f")}, folder="s/", loader=loader, format="jsonl", on_bad_rows="skip"
    )
    assert report.rejected == 1
    lenient = Loaded(good, rows, "f")
    reading.cases({"lenient": lenient}, folder="l/", loader=loader, format="jsonl", strict_json=False)


NESTED = b'{"a": [1.5], "t": {"x": 1.5, "i": 1, "l": [{"y": 0.5}]}, "s": "", "a\\"b": 1.5}\n'


@pytest.mark.parametrize("loader", LOADERS)
def test_floats_in_lists_and_structs_that_were_inferred_keep_their_digits(reading: Statements, loader: str) -> None:
    reading.put({"a.jsonl": NESTED})
    reading.load(loader=loader)
    refused = {
        "list": ("a", '{"a": [0.5, 9007199254740993]}'), "fraction": ("a", '{"a": [0.12345678901234567890]}'),
        "struct": ("t", '{"t": {"x": 9007199254740993}}'), "deep": ("t", '{"t": {"l": [{"y":9007199254740993}]}}'),
        "escaped": ("a", '{"\\u0061": [9007199254740993]}'), "quoted": ("a", '{"a": ["9007199254740993"]}'),
        "second": ("a", '{"a": [0.30000000000000004,9007199254740993]}'),
        "lines": ("t", '{"t":\n{"x":\n9007199254740993}}'), "quote": ('a"b', '{"a\\"b": 9007199254740993}'),
    }  # fmt: skip
    cases: dict[str, Loaded | Refused] = {
        name: Refused(
            f'{{"a": [1]}}\n{document}\n'.encode(), f"row 1, column {column!r} has a code, or a number that"
        )
        for name, (column, document) in refused.items()
    }
    exact = b'{"s": "9007199254740993, \\" 0.12345678901234567890", "t": {"i": 9007199254740993,'
    exact += b' "x": 0.30000000000000004}}\n'
    cases["exact"] = Loaded(exact, [({"x": 0.30000000000000004, "i": 9007199254740993, "l": []},)], "t")
    reading.cases(cases, folder="more/", loader=loader, format="jsonl")


@pytest.mark.parametrize("loader", LOADERS)
def test_columns_of_json_keep_digits_and_texts(reading: Statements, loader: str) -> None:
    reading.put({"a.jsonl": b'{"j": {"x": 1}}\n'})
    reading.load(loader=loader, nested="json")
    texts = ("2024-02-30", "2024-01-01T10:00:00+02:00", "12:00", "1/2/2024", "20240101", "1700000000", "007")
    cases: dict[str, Loaded | Refused] = {
        f"text{n}": Loaded(
            f'{{"j": {{"x": "{text}", "l": ["{text}"]}}}}\n'.encode(), [(text, text)],
            "toString(j.x), arrayElement(j.l.:`Array(Nullable(String))`, 1)",
        )
        for n, text in enumerate(texts)
    }  # fmt: skip
    for n, number in enumerate(("0.12345678901234567890", "123456789012345678901234567890")):
        cases[f"refused{n}"] = Refused(
            f'{{"j": {{"x": [{{"y": {number}}}]}}}}\n'.encode(), "row 0, column 'j' has a code"
        )
    for n, numbers in enumerate(
        (
            "18446744073709551615, -1",
            "-1, [9007199254740993, 0.5]",
            "0.5, 9007199254740993",
            "0.30000000000000004, 9007199254740993",
            "0.5, 170141183460469231731687303715884105726",
        )
    ):
        cases[f"list{n}"] = Refused(f'{{"j": {{"x": [{numbers}]}}}}\n'.encode(), "row 0, column 'j' has a code")
    cases["after"] = Refused(
        b'{"j": {"l": [0.5]}}\n{"j": {"l": [9007199254740993]}}\n', "row 1, column 'j' has a code"
    )
    exact = b'{"j": {"x": 9007199254740993, "l": [9007199254740992, 1], "m": [-1, [0.5]]}}\n'
    cases["exact"] = Loaded(exact, [("9007199254740993",)], "toString(j.x)")
    reading.cases(cases, folder="more/", loader=loader, format="jsonl", nested="json")


def test_numbers_without_a_fraction_beside_bad_rows(reading: Statements) -> None:
    reading.create("n Int64")
    lines = [b'{"n": 5.0}', b'{"n": 5.5}', b"[1]", b'{"n": "007"}', b'{"n": 2}', b'{"n": null}']
    report = reading.cases({"a": Loaded(b"\n".join(lines), [(5,), (2,)])}, format="jsonl", on_bad_rows="skip")
    assert report.rejected == 4


@pytest.mark.parametrize("loader", LOADERS)
def test_a_name_twice_in_a_column_of_json_is_refused(reading: Statements, loader: str) -> None:
    reading.create("n Int64 DEFAULT 1, j Nullable(JSON), a Array(Array(JSON))")
    twice = "has an object with a name twice, 'x': correct it, or change the column to String (line"
    reading.cases({
        "scalar-first": Refused(b'{"j": null}\n{"j": {"x": 1, "x": {"c": 2}}}\n', f"row 1, column 'j' {twice} 2)"),
        "object-first": Refused(b'{"j": {"x": {"c": 2}, "x!": 3, "x": 1}}\n', f"row 0, column 'j' {twice} 1)"),
        "deep": Refused(b'{"j": {"y": {"x": 1, "z": 2, "x": {"c": {"d": 1}}}}}\n', f"row 0, column 'j' {twice} 1)"),
        "in-a-list": Refused(b'{"a": [[], [{"x": 1, "x": {"c": 2}}]]}\n', f"row 0, column 'a' {twice} 1)"),
        "point": Loaded(b'{"j": {"x": 1, "x.c": 2}, "a": [[{"x": 1, "x.c": 2}]]}\n', [(1, 2)], "j.x, j.x.c"),
        "others": Loaded(
            b'{"j": {"x": 1, "xc": {"c": 2}}}\n{"j": null}\n{"a": [[]]}\n', [(1,), (None,), (None,)], "j.x"
        ),
    }, loader=loader, format="jsonl")  # fmt: skip


@pytest.mark.parametrize("loader", LOADERS)
def test_lists_of_texts_and_booleans_in_a_column_of_json_are_refused(reading: Statements, loader: str) -> None:
    reading.create("j Nullable(JSON), a Array(JSON), t Tuple(s Array(Nullable(String)), d JSON)")
    reason = re.compile(r"^row 1, column '.' has a list of texts and booleans, .* \(line 2\)$")
    mixed: list[dict[str, object]] = [
        {"j": {"x": ["a", True]}}, {"j": {"y": 1, "x": [False, None, "a"]}}, {"j": {"x": {"y": ["a", ["b", True]]}}},
        {"j": {"x": [["a"], [True]]}}, {"j": {"x": [{"y": ["a", True]}]}}, {"a": [{"x": ["a", True]}]},
        {"t": {"d": {"x": ["a", True]}}},
    ]  # fmt: skip
    kept = [
        '{"x":[true,null]}', '{"x":[true,1]}', '{"x":["a",[true]]}', '{"x":[true,{"y":"a"}]}',
        '{"x":[{"y":true},{"y":"a"}]}', '{"x":["a","true"]}', '{"x":["[true,"]}',
    ]  # fmt: skip
    cases: dict[str, Loaded | Refused] = {
        f"mixed-{n}": Refused(jsonl([{"j": {}}, row]), reason) for n, row in enumerate(mixed)
    }
    for n, text in enumerate(kept):
        cases[f"kept-{n}"] = Loaded(f'{{"j": {text}}}\n'.encode(), [(text,)], "toJSONString(assumeNotNull(j))")
    reading.cases(cases, loader=loader, format="jsonl")


def test_a_column_of_json_may_have_the_name_of_a_function(reading: Statements) -> None:
    reading.create("arrayFlatten JSON")
    reading.cases({
        "once": Loaded(b'{"arrayFlatten": {"x": 1}}\n', [(1,)], "arrayFlatten.x"),
        "twice": Refused(b'{"arrayFlatten": {"x": 1, "x": {"c": 2}}}\n', "has an object with a name twice, 'x'"),
    }, format="jsonl")  # fmt: skip


def test_rows_with_a_name_twice_in_a_column_of_json_are_bad_rows(reading: Statements) -> None:
    reading.create("j JSON")
    lines = [b'{"j": {"x": 1, "x": {"c": 2}}}', b'{"j": {"x": 1, "x.c": 3}}', b'{"j": {"x": 4}}']
    report = reading.cases({"a": Loaded(b"\n".join(lines), [(1,), (4,)], "j.x")}, format="jsonl", on_bad_rows="skip")
    assert report.rejected == 1


@pytest.mark.parametrize("loader", LOADERS)
def test_values_of_another_kind_have_a_remedy(reading: Statements, loader: str) -> None:
    reading.create("n Nullable(Int64), t Nullable(Tuple(x Int64)), j Nullable(JSON), a Array(Int64), s String")
    text = "the column's values have several kinds: change it to String; a new table has text for them with"
    reading.cases({
        "number": Refused(b'{"n": 1}\n{"n": {"x": 1}}\n', f"(line 2): {text}"),
        "tuple": Refused(b'{"t": {"x": 1}}\n{"t": "x"}\n', f"(line 2): {text}"),
        "json": Refused(b'{"j": {"x": 1}}\n{"j": "x"}\n', f"(line 2): {text}"),
        "list": Refused(b'{"a": [1]}\n{"a": "x"}\n', f'set read.on_null_nested to "empty"; otherwise {text}'),
        "text": Loaded(b'{"s": {"x": 1}}\n{"s": "x"}\n', [('{"x": 1}',), ("x",)], "s"),
    }, loader=loader, format="jsonl")  # fmt: skip


def test_the_remedy_for_a_null_list_loads_it(reading: Statements) -> None:
    reading.create("a Array(Int64)")
    reading.cases({"a": Loaded(b'{"a": null}\n', [([],)])}, format="jsonl", on_null_nested="empty")


@pytest.mark.parametrize("loader", LOADERS)
def test_names_within_structs_are_compared_as_they_are_written(reading: Statements, loader: str) -> None:
    """ClickHouse reads escapes of names in columns, in maps and in JSON, and in structs it does not."""
    rest = rb'"m": {"a\u002fb": 1}, "a\u002fb": 1}'
    reading.create("o Tuple(`a/b` Int64), m Map(String, Int64), `a/b` Nullable(Int64)")
    reading.cases({
        "escapes": Refused(rb'{"o": {"a\u002fb": 1}, ' + rest, re.compile("its name 'a.u002fb' .* nested to 'json'")),
        "unknown": Refused(b'{"o": {"c": 2}}', "column 'o': the column's struct has no 'c': add them to its type"),
        "more": Refused(b'{"o": {"a/b": 1, "c": 2}}', "the column's struct has 1 elements, and the object more, or"),
        "twice": Refused(b'{"o": {"a/b": 1, "a/b": 2}}', "and the object more, or one of them twice: add"),
        "maps": Loaded(b"{" + rest, [(0, {"a/b": 1}, 1)], "o.1, m, `a/b`"),
        "good": Loaded(b'{"o": {"a/b": 1}}', [(1, {}, None)], "o.1, m, `a/b`"),
    }, loader=loader, format="jsonl")  # fmt: skip
