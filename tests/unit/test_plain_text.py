"""Plain objects of CSV: numbers that ClickHouse parses itself are those that the checked way reads."""

from __future__ import annotations

import gzip
import itertools
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import pytest

from storeside.sql.quoting import literal
from storeside.transfer.base.schema import Column, structure
from storeside.transfer.request.object_format import Csv, Format
from storeside.transfer.staging import proof
from storeside.transfer.staging.proof import patterns
from storeside.transfer.staging.work import Proofs
from storeside.transfer.statements.composing import settings, text_reading
from storeside.transfer.statements.reading import Reading
from storeside.transfer.tables.table import Destination
from tests.statements import Engine, Statements

LETTERS = ["0", "9", "+", "-", ".", "e", "'", " ", "\t", "\r", "n", "x"]
MORE = ["1", "\\", "N", "i", "_", "E"]
NUMBERS = [
    sign + "9" * count + tail
    for sign in ("", "-", "--", "+", "0")
    for count in (1, 14, 15, 16, 17, 18, 19, 20, 38, 39, 44)
    for tail in ("", ".", ".0000000000000001", "e400", "e-400")
]
WORDS = [
    sign + word for word in ("inf", "NaN", "Infinity", "infinityx", "true", "null") for sign in ("", "-", "+", "--")
]
OTHERS = ["0x10", "1_000", "1d5", "1f", "0b1", "NaN(1)", "1.5.5", "-1.5", ".5", "5."]


def tokens_of(letters: list[str], most: int) -> list[str]:
    """Return all texts of these letters up to a length, numbers, and words; and the same in quotes."""
    short = ["".join(some) for n in range(most + 1) for some in itertools.product(letters, repeat=n)]
    tokens = [*dict.fromkeys((*short, *NUMBERS, *WORDS, *OTHERS))]
    return [*tokens, *(f'"{token}"' for token in tokens if len(token) != most or most < 3)]


def destination(columns: list[Column]) -> Destination:
    return Destination(cast("Any", None), "d", "t", tuple(columns), "", "", "", "", True, {})


PLACES = {"first": ("a", "n"), "last": ("n", "a")}


def rows(place: str, delimiter: str, tokens: list[str]) -> Iterator[str]:
    """Yield a row for each token, with its number."""
    texts = ((token, str(n)) if place == "first" else (str(n), token) for n, token in enumerate(tokens))
    return (f"{delimiter.join(pair)}\n" for pair in texts)


FEW = ("last", ",", ("Int64", "Float64"), tokens_of(LETTERS, 2))
ALL = [
    (place, delimiter, ("Int8", "UInt64", "Int128", "UInt256", "Float32", "Float64"), tokens_of(LETTERS + MORE, 3))
    for place, delimiter in (("first", ","), ("last", ";"), ("last", "\t"))
]


@pytest.mark.parametrize(
    ("place", "delimiter", "types", "given"),
    [FEW, *(pytest.param(*each, marks=pytest.mark.exhaustive) for each in ALL)],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_number_of_a_plain_row_is_that_of_the_checked_way(
    engine: Engine, tmp_path: Path, place: str, delimiter: str, types: Sequence[str], given: list[str]
) -> None:
    names = PLACES[place]
    form = Format("csv", Csv(delimiter=delimiter, names=names))
    tokens = [token for token in given if delimiter not in token]
    for n, row in enumerate(rows(place, delimiter, tokens)):  # a file for each: an error ends the reading of a file
        (tmp_path / f"{n}.csv").write_text(row)
    path = tmp_path / "*.csv"
    wrong, read = {}, {}
    for kind in types:
        columns = [Column("a", f"Nullable({kind})"), Column("n", "UInt64")]
        table = destination(columns)
        checked, plain = (
            text_reading(form, table, keeps_codes=kind.startswith("Int"), plain=is_plain)
            for is_plain in (False, True)
        )
        faults = ", ".join(map(literal, patterns(form, columns)))
        of_worker = cast("re.Pattern[bytes]", proof.pattern(form, columns))
        suspect = {
            n for (n,) in engine.query(
                f"SELECT toUInt64(extract(_file, '[0-9]+')) FROM file('{path}', 'LineAsString', 'line String')"
                f" WHERE multiMatchAny(line, [{faults}])", settings={"max_threads": 1},
            ).result_rows
        }  # fmt: skip
        lines = enumerate(rows(place, delimiter, tokens))
        assert suspect == {n for n, row in lines if of_worker.search(row.encode())}
        refused = " OR ".join(check.fault for check in checked.checks if check.column == "a")
        expected = dict(
            values(
                engine,
                path,
                checked,
                f"if({refused}, 'refused', ifNull(toString({dict(checked.expressions)['a']}), 'NULL'))",
            )
        )
        value = f"ifNull(toString(accurateCastOrNull(a, '{kind}')), if(isNull(a), 'NULL', 'refused'))"
        found = {n: text for n, text in values(engine, path, plain, value) if text != "refused"}
        wrong |= {
            (kind, tokens[n]): (value, expected[n])
            for n, value in found.items()
            if n not in suspect and value != expected[n]
        }
        read[kind] = len(found.keys() - suspect)
    assert not wrong
    assert all(read.values()), read


def values(engine: Engine, path: Path, reading: Reading, value: str) -> list[tuple[int, str]]:
    """Return the number of each row that ClickHouse can read, with its value."""
    source = f"file('{path}', 'CSV', {literal(structure(reading.columns))})"
    given = settings(
        reading.form, input_format_allow_errors_ratio=1, short_circuit_function_evaluation="force_enable"
    )
    given.pop("max_query_size", None)
    clause = ", ".join(f"{name} = {literal(str(setting))}" for name, setting in given.items())
    return engine.query(f"SELECT toUInt64(n), {value} FROM {source} SETTINGS {clause}").result_rows


@pytest.fixture
def proved(reading: Statements, monkeypatch: pytest.MonkeyPatch) -> Statements:
    """Objects of any size are worth a proof."""
    monkeypatch.setattr(proof, "_WORTH", 1)
    reading.client.statements.clear()
    reading.create("n Nullable(Int8), f Nullable(Float64), t String")
    return reading


def sources(reading: Statements) -> list[str]:
    """Return the types that the statements of loads read, in the order of the statements."""
    found = (re.search(r"FROM file\('.*?', '\w+', '(.*?)'", text) for text in reading.client.statements)
    return [each[1].replace("\\`", "`") for each in found if each]


def sent(reading: Statements) -> list[str]:
    """Return the types of the rows that statements receive from the worker, in the order of the statements."""
    found = (re.search(r"FROM input\('(.*?)'\)", text) for text in reading.client.statements)
    return [each[1].replace("\\`", "`") for each in found if each]


TEXTS = "`n` Nullable(String), `f` Nullable(String), `t` String"
PLAIN = "`n` Nullable(Int64), `f` Nullable(Float64), `t` String"


def test_plain_objects_are_read_without_checks_and_others_with(proved: Statements) -> None:
    proved.put({
        "plain.csv": b"n,f,t\n1,2.5,a\n-3,,\"b\"\n,nan,c\n",
        "code.csv": b"n,f,t\n4,007,d\n",
    })  # fmt: skip
    assert proved.load().rows == 4
    assert sources(proved) == [TEXTS, PLAIN]
    assert proved.rows("n, toString(f), t", "t") == [
        (1, "2.5", "a"),
        (-3, None, "b"),
        (None, "nan", "c"),
        (4, "7", "d"),
    ]


def test_a_worker_proves_small_objects_that_it_sends(reading: Statements) -> None:
    reading.create("n Nullable(Int8), f Nullable(Float64), t String")
    small, large = b"n,f,t\n1,2.5,a\n", b"n,f,t\n" + b"2,2.5,a\n" * (proof.SMALL // 8)
    reading.put({
        "code.csv": b"n,f,t\n3,007,a\n", "large.csv": large, "packed.csv": gzip.compress(small), "plain.csv": small,
    })  # fmt: skip
    reading.client.statements.clear()
    assert reading.load(loader="push", codes="number").failed == 0
    assert [*dict.fromkeys(sent(reading))] == [TEXTS, PLAIN]
    assert sent(reading).count(PLAIN) == 1


@pytest.mark.parametrize("loader", ["pull", "push"])
@pytest.mark.parametrize(
    ("row", "reason"),
    [
        (b"300,1,a", "row 1, column 'n' has a value that Nullable(Int8) cannot hold"),
        (b"x,1,a", "row 1, column 'n' has a value that Nullable(Int8) cannot hold"),
        (b"1,1.5.5,a", "row 1, column 'f' has a value that Nullable(Float64) cannot hold"),
        (b"1,1,\xff", "row 1, column 't' has invalid UTF-8: set csv.encoding to the object's"),
        (b"1,1e999,a", "row 1, column 'f' has a number beyond the range of Float64"),
        (b"1,1", "expected"),
    ],
)
def test_a_refused_value_of_a_plain_object_has_the_reason_of_its_check(
    proved: Statements, row: bytes, reason: str, loader: str
) -> None:
    proved.put({"bad.csv": b"n,f,t\n1,1,a\n" + row + b"\n", "good.csv": b"n,f,t\n1,1,a\n"})
    assert (proved.load(loader=loader).loaded, list(proved.reasons())) == (1, ["bad.csv"])
    assert reason in proved.reasons()["bad.csv"]


@pytest.mark.parametrize(("delimiter", "trims"), [(",", True), (";", True), ("\t", False)])
def test_all_cores_parse_plain_objects_and_no_reference_is_counted(
    proved: Statements, delimiter: str, trims: bool
) -> None:
    rows = [["n", "f", "t"], ["1", "2.5", "a b"]]
    text = "".join(f"{delimiter.join(row)}\n" for row in rows)
    proved.put({"plain.csv": text.encode(), "blank.csv": text.replace("2.5", " 2.5").encode()})
    assert proved.load(csv=Csv(delimiter=delimiter)).rows == 2
    blank, plain = (text for text in proved.client.statements if "FROM file(" in text)
    assert ("trim_whitespaces = '1'" in plain, "max_parsing_threads" in plain) == (trims, not trims)
    assert ("trim_whitespaces = '1'" in blank, "max_parsing_threads" in blank) == (False, True)


def test_small_objects_and_tables_without_numbers_need_no_proof(
    reading: Statements, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read(*_: Any, **__: Any) -> None:
        raise AssertionError("an object was proved")

    monkeypatch.setattr(proof, "line_facts", read)
    reading.put({"small.csv": b"n\n1\n"})
    assert reading.load().rows == 1
    monkeypatch.setattr(proof, "_WORTH", 1)
    others = reading.another()
    others.put({"text.csv": b"t,d\na,2024-01-02\n"})
    assert others.load().rows == 1


def test_proofs_end_when_they_take_more_time_than_they_save() -> None:
    proofs = Proofs()
    for _ in range(100):
        proofs.add(taken=1.0, saved=1.5)
    assert proofs.pay
    for _ in range(4):
        proofs.add(taken=1.2, saved=0)
    assert proofs.pay
    proofs.add(taken=0.5, saved=0)
    assert not proofs.pay
