"""Texts that are no JSON numbers are refused in columns of numbers of JSON Lines."""

from __future__ import annotations

import pytest

from tests.statements import Statements
from tests.transfers import Loaded, Refused

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
    cases["array"] = Refused(b'[{"k": "x"}, {"i": ""}]\n', "row 1, column 'i' has a text")
    good = '{"k": "", "i": "5", "f": "-0.5"}\n{"k": "007", "i": 0, "f": "1e3", "a": ["0", -1]}\n'
    good += '{"k": "{\\"i\\": \\"\\"}"}\n'
    rows = [("", 5, -0.5, []), ("007", 0, 1000.0, [0, -1]), ('{"i": ""}', None, None, [])]
    cases["good"] = Loaded(good.encode(), rows, "k, i, f, a")
    reading.cases(cases, loader=loader, format="jsonl")


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
