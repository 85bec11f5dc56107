"""The short form of the fuzzing of text whose columns a load infers, and differences that it must find."""

from __future__ import annotations

from dataclasses import replace

import pytest

from storeside.transfer.base.schema import Column
from tests.fuzz.differential import inferred
from tests.fuzz.differential.inferred_files import File, _read_json, made
from tests.fuzz.differential.inferred_rules import is_same, parsed
from tests.fuzz.differential.outcome import Outcome
from tests.statements import Engine


@pytest.mark.parametrize("family", ["csv", "tsv", "jsonl"])
def test_no_difference_is_silent(engine: Engine, family: str) -> None:
    outcome = Outcome(family, refused_though_valid=0)
    inferred.compare_files(outcome, engine, [made(family, 3, number) for number in range(8)])
    assert (outcome.silent, outcome.order_dependent, outcome.refused_though_valid) == ([], [], 0)
    assert outcome.equal + outcome.refused == 8


def _file(lines: tuple[str, ...]) -> File:
    return File(
        0, "jsonl", "", lines, options=(("format", "jsonl"),), read=lambda text: [*map(parsed, text.splitlines())]
    )  # fmt: skip


def test_differences_are_found(engine: Engine) -> None:
    good = _file(('{"a": 1}\n', '{"a": 2}\n'))
    lost = replace(good, number=1, read=lambda text: good.read(text)[1:])
    unclear = replace(good, number=2, is_unclear=True)
    refused = replace(good, number=3, lines=('{"a": 1}\n', '{"a" 2}\n'))
    outcome = Outcome("jsonl", refused_though_valid=0)
    inferred.compare_files(outcome, engine, [good, lost, unclear])
    assert (outcome.equal, len(outcome.silent)) == (1, 2)
    inferred._refused(outcome, replace(refused, read=lambda text: [{"a": "1"}]), "row 1 is not JSON")
    assert (outcome.refused, outcome.refused_though_valid) == (1, 1)


ROWS = ('{"a": 1}\n', '{"a": 2}\n')
COLUMNS = (Column("a", "Nullable(Int64)"),)


@pytest.mark.parametrize(("rows", "rejected", "silent", "refused_though_valid"), [
    ([["1"], ["2"]], [], 0, 0),
    ([["1"]], ['{"a": 2}'], 0, 1),
    ([["1"]], [], 1, 0),
    ([["1"], ["2"]], ['{"a": 2}'], 1, 0),
    ([["2"]], ['{"a": 2}'], 1, 0),
    ([["1"]], ['{"a": 3}'], 1, 0),
])  # fmt: skip
def test_each_row_is_loaded_or_rejected_once(
    rows: list[list[str | None]], rejected: list[str], silent: int, refused_though_valid: int
) -> None:
    outcome = Outcome("jsonl", refused_though_valid=0)
    found = inferred.Found(COLUMNS, rows, rejected=tuple((raw, "row 1, column 'a'") for raw in rejected))
    inferred._judge(outcome, _file(ROWS), [(ROWS, found)])
    assert (len(outcome.silent), outcome.refused_though_valid) == (silent, refused_though_valid)
    assert outcome.equal == (not silent and not refused_though_valid)


def test_a_rejected_row_that_is_not_valid_is_no_difference() -> None:
    lines, outcome = (*ROWS, '{"a" 1}\n'), Outcome("jsonl", refused_though_valid=0)
    file = replace(_file(lines), read=_read_json)
    inferred._judge(
        outcome, file, [(lines, inferred.Found(COLUMNS, [["1"], ["2"]], rejected=(('{"a" 1}', "row 2"),)))]
    )
    assert (outcome.equal, outcome.silent, outcome.refused_though_valid) == (1, [], 0)


def test_rows_that_are_rejected_in_one_order_alone_are_found() -> None:
    outcome = Outcome("jsonl", refused_though_valid=0)
    whole = inferred.Found(COLUMNS, [["1"], ["2"]])
    part = inferred.Found(COLUMNS, [["2"]], rejected=(('{"a": 1}', "row 1"),))
    inferred._judge(outcome, _file(ROWS), [(ROWS, whole), (ROWS[::-1], part)])
    assert (len(outcome.order_dependent), outcome.silent) == (1, [])


def test_rejected_rows_are_looked_up(engine: Engine) -> None:
    lines = (*ROWS, '{"a": 01}\n')
    file = replace(_file(lines), options=(("format", "jsonl"), ("on_bad_rows", "keep")), read=_read_json)
    lenient = replace(file, number=1, read=lambda text: _read_json(text.replace("01", "1")))
    outcome = Outcome("jsonl", refused_though_valid=0)
    inferred.compare_files(outcome, engine, [file, lenient])
    assert (outcome.equal, len(outcome.silent), outcome.refused_though_valid) == (1, 0, 1)


def test_columns_that_depend_on_the_order_of_rows_are_found(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inferred, "sample_columns", lambda *given: given[-1][0].sample(1 << 10))
    outcome = Outcome("jsonl")
    inferred.compare_files(outcome, engine, [_file(('{"a": 1}\n', '{"a": 2}\n'))])
    assert len(outcome.order_dependent) == 1


INT, FLOAT, TEXT, DAY = (f"Nullable({kind})" for kind in ("Int64", "Float64", "String", "Date32"))
MOMENT, LIST, STRUCT = "Nullable(DateTime64(6))", "Array(Nullable(Int64))", "Nullable(Tuple(`x` Nullable(Int64)))"


@pytest.mark.parametrize(("kind", "source", "loaded", "same"), [
    (INT, "7", "7", True), (INT, "007", "7", False), (INT, "+7", "7", False), (INT, "5.0", "5", True),
    (INT, "5.5", "5", False), (INT, "", None, True), (INT, "0", None, False),
    (TEXT, "007", "007", True), (TEXT, " a", "a", False),
    (FLOAT, "9007199254740993", "9007199254740992", False), (FLOAT, "1e-05", "0.00001", True),
    (FLOAT, "18446744073709551616", "18446744073709552000", True),
    (FLOAT, "18446744073709551617", "18446744073709552000", False),
    (FLOAT, "1e400", "inf", False), (FLOAT, "1.50", "1.5", True),
    (DAY, "1960-01-02", "1960-01-02", True), (DAY, "2024-02-30", "2024-03-01", False),
    (MOMENT, "2024-01-02T10:00:00.5+02:00", "2024-01-02 08:00:00.500000", True),
    (MOMENT, "2024-01-02 10:00:00.1234567", "2024-01-02 10:00:00.123456", False),
    ("Nullable(Bool)", "true", "true", True), ("Nullable(Bool)", "1", "true", False),
    (LIST, "[1, 2]", "[1,2]", True), (LIST, "[007]", "[7]", False), (LIST, parsed("[1, null]"), "[1,null]", True),
    ("JSON", parsed('{"x": [1, {"y": null}], "z": null}'), '{"x":[1,{}]}', True),
    ("JSON", parsed('{"x": 0.12345678901234567890}'), '{"x":0.12345678901234568}', False),
    ("JSON", parsed('{"x": "2024-02-30"}'), '{"x":"2024-03-01"}', False), ("JSON", parsed('{"x": 1}'), "{}", False),
    (STRUCT, parsed('{"x": 1}'), '{"x":1}', True), (STRUCT, parsed('{"x": 1, "y": 2}'), '{"x":1}', False),
])  # fmt: skip
def test_values_are_compared_by_the_type_of_their_column(kind: str, source: object, loaded: str, same: bool) -> None:
    try:
        assert is_same(kind, source, loaded) is same
    except ValueError:  # Python's json module refuses the list
        assert not same
