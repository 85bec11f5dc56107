"""The short form of the fuzzing of text whose columns a load infers, and differences that it must find."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.fuzz.differential import inferred
from tests.fuzz.differential.inferred_files import File, made
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
    (FLOAT, "1e400", "inf", False), (FLOAT, "1.50", "1.5", True),
    (DAY, "1960-01-02", "1960-01-02", True), (DAY, "2024-02-30", "2024-03-01", False),
    (MOMENT, "2024-01-02T10:00:00.5+02:00", "2024-01-02 08:00:00.500000", True),
    (MOMENT, "2024-01-02 10:00:00.1234567", "2024-01-02 10:00:00.123456", False),
    ("Nullable(Bool)", "true", "true", True), ("Nullable(Bool)", "1", "true", False),
    (LIST, "[1, 2]", "[1,2]", True), (LIST, "[007]", "[7]", False), (LIST, parsed("[1, null]"), "[1,null]", True),
    (STRUCT, parsed('{"x": 1}'), '{"x":1}', True), (STRUCT, parsed('{"x": 1, "y": 2}'), '{"x":1}', False),
])  # fmt: skip
def test_values_are_compared_by_the_type_of_their_column(kind: str, source: object, loaded: str, same: bool) -> None:
    try:
        assert is_same(kind, source, loaded) is same
    except ValueError:  # Python's json module refuses the list
        assert not same
