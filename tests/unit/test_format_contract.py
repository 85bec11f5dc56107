"""Each format of the registry fulfils the same contract, as does a format that only these tests have.

Loads run in the process, without servers.
"""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest

from storeside.transfer.base.errors import TransferInputError
from storeside.transfer.formats.registry import MESSAGES, TEXTS, TYPED
from storeside.transfer.request.known_formats import KNOWN, FormatName
from storeside.transfer.request.options import LoadLimits
from tests import fake_format
from tests.format_examples import EXAMPLES, Example
from tests.statements import Statements

NAMES = ("n", "s")
FAKE = fake_format.FACTS.name
ALL = {**EXAMPLES, FAKE: fake_format.EXAMPLE}


@pytest.fixture(params=ALL, autouse=True)
def form(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.chdir(tmp_path)  # the engine writes schemas of Protobuf below the working directory
    fake_format.register(monkeypatch)
    return request.param


@pytest.fixture
def example(form: str) -> Example:
    return ALL[form]


def rows_of(example: Example, *rows: Any) -> list[Any]:
    return list(rows[:1] if example.has_one_row else rows)


both_loaders = pytest.mark.parametrize("loader", ["pull", "push"])


@both_loaders
def test_names_values_and_nulls(reading: Statements, form: str, example: Example, loader: str) -> None:
    rows = rows_of(example, (1, "a"), (None, None), (3, "c"))
    objects = {f"a.{form}": example.make(NAMES, rows), f"b.{form}": example.make(NAMES, [])}
    is_stream = KNOWN[form].kind != "types"
    if is_stream:
        objects |= {f"d.{form}": gzip.compress(example.make(NAMES, rows))}
    if is_stream and (loader == "push" or KNOWN[form].kind != "fields"):  # `s3()` leaves out empty CSV, not `file()`
        objects |= {f"c.{form}": b""}
    reading.put(objects)
    report = reading.load(format=form, loader=loader, **example.read(NAMES))
    assert reading.reasons() == {}
    assert (report.loaded, report.rows) == (len(objects), (1 + is_stream) * len(rows))
    assert reading.types() == {"n": "Nullable(Int64)", "s": "Nullable(String)"}
    assert sorted(reading.rows("n, s"), key=repr) == sorted((1 + is_stream) * rows, key=repr)


@both_loaders
def test_bad_objects_fail_alone_with_a_reason(reading: Statements, form: str, example: Example, loader: str) -> None:
    good = example.make(NAMES, rows_of(example, (1, "a"), (2, "b")))
    bad = {"cut": example.cut(good), "other": b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" + bytes(40)}
    if KNOWN[form].kind == "types":
        bad |= {"empty": b"", "packed": gzip.compress(good)}
    reading.create("n Nullable(Int64), s Nullable(String)")
    reading.put({"good": good, **bad})
    report = reading.load(format=form, loader=loader, **example.read(NAMES))
    assert (report.loaded, report.failed) == (1, len(bad))
    assert reading.reasons().keys() == bad.keys()
    assert all(reading.reasons().values())
    if KNOWN[form].kind == "types":
        assert "is empty" in reading.reasons()["empty"]


def test_columns_that_the_table_lacks(reading: Statements, form: str, example: Example) -> None:
    names = ("n", "s", "x")
    reading.create("n Nullable(Int64), s Nullable(String)")
    reading.put({"a": example.make(names, rows_of(example, (1, "a", 7)))})
    read = example.read(names)
    reading.load(format=form, **read)
    assert "x" in reading.reasons()["a"]
    report = reading.load(format=form, on_drift="add", retry_failed=True, **read)
    assert (report.loaded, reading.rows("n, s, x")) == (1, [(1, "a", 7)])


def test_rows_beyond_the_limit(reading: Statements, form: str, example: Example) -> None:
    if example.has_one_row:
        return
    reading.create("n Nullable(Int64), s Nullable(String)")
    reading.put({"a": example.make(NAMES, [(1, "a"), (2, "b"), (3, "c")])})
    reading.load(format=form, limits=LoadLimits(rows=2), **example.read(NAMES))
    assert "limits" in reading.reasons()["a"]


def test_a_new_table_of_unreadable_objects(reading: Statements, form: str, example: Example) -> None:
    """The error of the request names an object and a remedy."""
    if KNOWN[form].kind == "messages":
        return  # the request has the columns
    reading.put({"bad": b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" + bytes(40)})
    with pytest.raises(TransferInputError, match=r"'bad'.*: "):
        reading.load(format=form)


def test_every_format_has_its_row() -> None:
    """A format that lacks a class, facts or an example is not finished."""
    assert tuple(KNOWN) == (*get_args(FormatName), FAKE)
    assert {*EXAMPLES} == {*get_args(FormatName)}
    kinds = {"types": TYPED, "fields": TEXTS, "documents": TEXTS, "messages": MESSAGES}
    for name, facts in KNOWN.items():
        assert name == "tsv" or name in kinds[facts.kind], name
    assert len({*TYPED, *TEXTS, *MESSAGES, "tsv"}) == len(KNOWN)
    assert sum(map(len, (TYPED, TEXTS, MESSAGES))) == len(KNOWN) - 1
