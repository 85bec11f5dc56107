"""Objects in S3 that other tools wrote, or damaged: they fail with a reason, and stay in the bucket.

tests/unit/test_reading_foreign.py has the objects that are loaded, and those that fail beside others.
"""

from __future__ import annotations

import codecs
from typing import Any

import pytest

from storeside.transfer.base.errors import TransferInputError
from storeside.transfer.request.after_load import AfterLoad
from storeside.transfer.request.column_options import Columns
from storeside.transfer.request.object_format import Csv
from tests.transfers import Loaded, Loading, Refused, jsonl

LOADERS = ("pull", "push")


def keys(loading: Loading) -> list[str]:
    return [found["Key"] for found in loading.s3.list_objects_v2(Bucket=loading.bucket).get("Contents", [])]


GERMAN = "größe,b\n1,5\n2,6\n"
# Objects that show no columns, each with its name and its reason.
WITHOUT_COLUMNS = {
    "carriage returns.csv": (
        b"a,b\r1,x\r2,y\r", "its rows end with carriage returns alone: convert them to line feeds",
    ),
    "html.csv": (
        b"\n<html>Error 403</html>",
        "its only row is XML or HTML, such as an error of a server: upload it again",
    ),
    "header in cp1252.csv": (
        "größe,b".encode("cp1252"),
        "its header is not UTF-8 (byte 2 of it is 0xf6): set csv.encoding to that of the",
    ),
    "control characters.csv": (
        b"a,\x01b\n",
        "its only row has control characters, so it is not CSV in UTF-8: set `format` or csv.encoding to",
    ),
    "utf-16.csv": (
        GERMAN.encode("utf-16"),
        'it is text in UTF-16, as its byte order mark shows: set csv.encoding to "utf-16"',
    ),
    "utf-32.csv": (
        codecs.BOM_UTF32_BE + GERMAN.encode("utf-32-be"),
        'it is text in UTF-32, as its byte order mark shows: set csv.encoding to "utf-32"',
    ),
    "cp1252.csv": (
        GERMAN.encode("cp1252"),
        "its header is not UTF-8 (byte 2 of it is 0xf6): set csv.encoding to that of the object, such as"
        ' "cp1252"',
    ),
    "deep.jsonl": (
        b'{"a":' * 30 + b"1" + b"}" * 30 + b"\n", "row 0 has 30 levels of nested objects, but",
    ),
    "dotted.jsonl": (
        jsonl([{"n": 1, "s": {"x": {"y": 1}, "x.y": 2}}]), "'s.x.y' is the name of a field",
    ),
    "utf-16.jsonl": (
        '{"b":1}\n'.encode("utf-16"), "it is text in UTF-16, as its byte order mark shows: convert it to UTF-8",
    ),
    "utf-32.jsonl": (
        '{"b":1}\n'.encode("utf-32"), "it is text in UTF-32, as its byte order mark shows: convert it to UTF-8",
    ),
}  # fmt: skip


def test_an_object_without_columns_alone_fails_its_load_and_stays(loading: Loading) -> None:
    """Preparation raises the error, before a loader runs. Text that pyarrow parses has the same reasons."""
    found = {}
    for name, (content, _) in WITHOUT_COLUMNS.items():
        loading.put({name: content})
        pyarrow = {"csv": Csv(true_values=("yes",))}
        for options in ({}, pyarrow) if name in ("utf-16.csv", "utf-32.csv", "cp1252.csv") else ({},):
            with pytest.raises(TransferInputError) as raised:
                loading.load(name, after_load=AfterLoad("delete"), **options)
            found[f"{name}{' by pyarrow' if options else ''}"] = str(raised.value)
    assert len(found) == len(WITHOUT_COLUMNS) + 3
    reasons = {name: f"{name!r}: {reason}" for name, (_, reason) in WITHOUT_COLUMNS.items()}
    assert {name: text for name, text in found.items() if reasons[name.removesuffix(" by pyarrow")] not in text} == {}
    assert keys(loading) == sorted(WITHOUT_COLUMNS)


@pytest.mark.parametrize("loader", LOADERS)
@pytest.mark.parametrize(
    "options",
    [{"on_drift": "add"}, {"on_drift": "rest"}, {"chosen": Columns(select=("b",))}],
    ids=["add", "rest", "b"],
)
def test_a_text_that_is_no_header_keeps_its_object_beside_a_table(
    loading: Loading, loader: str, options: dict[str, Any]
) -> None:
    loading.create("a Nullable(Int64), b Nullable(String)")
    loading.put({"a.csv": b"a,b\r1,x\r2,y\r", "b.csv": b"a,b\n3,z\n", "c.csv": b"a,b\n"})
    report = loading.load(loader=loader, after_load=AfterLoad("delete"), **options)
    assert (report.loaded, report.rows, list(loading.reasons())) == (2, 1, ["a.csv"])
    assert keys(loading) == ["a.csv"]
    assert not any("\r" in name for name in loading.types())


@pytest.mark.parametrize("loader", LOADERS)
def test_odd_objects_among_the_samples_fail_alone(loading: Loading, loader: str) -> None:
    dotted, reason = WITHOUT_COLUMNS["dotted.jsonl"]
    common = {name: Loaded(jsonl([{"n": 2}]), [(2,)]) for name in "bc"}
    loading.cases({"a": Refused(dotted, "field found"), **common}, ".jsonl", loader=loader)
    assert loading.types() == {"n": "Nullable(Int64)"}
    assert loading.load(loader=loader).failed == 0
    loading.cases({"a": Refused(dotted, reason)}, ".jsonl", loader=loader, retry_failed=True, on_drift="add")
    assert loading.types() == {"n": "Nullable(Int64)"}
