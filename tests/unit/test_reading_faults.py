"""One object that cannot be read fails alone: whatever request of it fails, the other objects are loaded."""

from __future__ import annotations

import io
import zipfile
from collections import Counter
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from botocore.exceptions import ClientError
from pyarrow import orc

from storeside.transfer.request.object_format import Csv
from storeside.transfer.request.source import Source
from storeside.transfer.samples.looking import Look
from storeside.transfer.state.loads import Planned
from tests import statements
from tests.avro_files import avro, record
from tests.fuzz.differential.thrift import footer_of, with_footer
from tests.shards import tar
from tests.statements import Statements
from tests.transfers import jsonl, parquet, request_of

pytestmark = pytest.mark.parametrize("loader", ["pull", "push"])

TABLE = pa.table({"id": [1, 2], "s": [{"a": 1}, {"a": None}], "l": [[1], []]})


def columnar(form: str, table: pa.Table = TABLE) -> bytes:
    sink = io.BytesIO()
    if form == "orc":
        orc.write_table(table, sink)
        return sink.getvalue()
    make = pa.ipc.new_file if form == "arrow" else pa.ipc.new_stream
    with make(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue()


def packed(name: str, content: bytes) -> bytes:
    sink = io.BytesIO()
    with zipfile.ZipFile(sink, "w") as archive:
        archive.writestr(name, content)
    return sink.getvalue()


ROWS = jsonl([{"id": 1}, {"id": 2}])
OBJECTS: dict[str, tuple[bytes, dict[str, Any]]] = {
    "parquet": (parquet(TABLE), {}),
    "orc": (columnar("orc"), {}),
    "arrow": (columnar("arrow"), {}),
    "arrows": (columnar("arrowstream"), {}),
    "jsonl": (ROWS, {}),
    "csv": (b"id;s\n1;a\n2;b\n", {"csv": Csv(delimiter=";", quote="'")}),
    "tar": (tar([("a.jsonl", ROWS)]), {}),
    "zip": (packed("a.parquet", parquet(TABLE)), {}),
}


def test_archived_objects_do_not_use_up_the_sample(
    reading: Statements, loader: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = statements.Objects.get_object

    def get_object(self: statements.Objects, *, Key: str, **more: Any) -> Any:
        if Key.startswith("a") and archived:
            answer: Any = {"Error": {"Code": "InvalidObjectState"}, "ResponseMetadata": {"HTTPStatusCode": 403}}
            raise ClientError(answer, "GetObject")
        return found(self, Key=Key, **more)

    monkeypatch.setattr(statements.Objects, "get_object", get_object)
    reading.put({f"{name}.csv": b"n\n1\n" for name in ("a0", "a1", "a2", "a3", "a4", "b")})
    archived = True
    report = reading.load(loader=loader)
    assert reading.types() == {"n": "Nullable(Int64)"}
    if loader == "push":
        assert (report.loaded, report.failed) == (1, 5)
        assert all("archived" in reason for reason in reading.reasons().values())


@pytest.mark.parametrize("form", OBJECTS)
def test_an_error_at_any_request_of_an_object_is_its_own(
    reading: Statements, loader: str, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S3 denies object bN from its Nth request on. The last of them needs fewer requests, and is loaded."""
    content, options = OBJECTS[form]
    found = statements.Objects.get_object
    asked: Counter[str] = Counter()

    def get_object(self: statements.Objects, *, Key: str, **more: Any) -> Any:
        asked[Key] += 1
        if Key.startswith("b") and asked[Key] >= int(Key[1:3]):
            answer: Any = {"Error": {"Code": "AccessDenied"}, "ResponseMetadata": {"HTTPStatusCode": 403}}
            raise ClientError(answer, "GetObject")
        return found(self, Key=Key, **more)

    monkeypatch.setattr(statements.Objects, "get_object", get_object)
    names = ("a", *(f"b{n:02}" for n in (*range(1, 13), 99)), "c")
    reading.put({f"{name}.{form}": content for name in names})
    report = reading.load(loader=loader, **options)
    assert report.loaded + report.failed == len(names)
    assert not {f"{name}.{form}" for name in ("a", "b99", "c")} & {*reading.reasons()}
    assert all("denies access" in reason for reason in reading.reasons().values())
    if loader == "push":
        assert report.failed


def test_an_object_without_row_groups_is_loaded_with_no_row(reading: Statements, loader: str) -> None:
    """Polars, DuckDB, Spark and ClickHouse write empty results so; pyarrow writes a row group for an empty table."""
    sink = io.BytesIO()
    pq.ParquetWriter(sink, TABLE.schema).close()
    reading.put({"a.parquet": parquet(TABLE), "b.parquet": sink.getvalue(), "c.parquet": parquet(TABLE)})
    assert reading.load(loader=loader).loaded == 3
    assert reading.query(f"SELECT count() FROM {reading.table}") == [(4,)]
    alone = reading.another()
    alone.put({"a.parquet": sink.getvalue(), "b.parquet": sink.getvalue()})
    assert alone.load(loader=loader).loaded == 2


NOTHING = pa.table({})
WITHOUT_COLUMNS = {
    "parquet": (parquet(NOTHING), parquet(TABLE)),
    "orc": (columnar("orc", NOTHING), columnar("orc")),
    "arrow": (columnar("arrow", NOTHING), columnar("arrow")),
    "arrows": (columnar("arrows", NOTHING), columnar("arrows")),
    "avro": (avro(record(), [{}]), avro(record(n="long"), [{"n": 1}, {"n": 2}])),
    "tar": (tar([("a.parquet", parquet(NOTHING))]), tar([("a.parquet", parquet(TABLE))])),
}


@pytest.mark.parametrize("form", WITHOUT_COLUMNS)
def test_objects_without_columns_fail_alone(reading: Statements, loader: str, form: str) -> None:
    """As pandas writes an empty data frame. More of them than a sample has come first."""
    nothing, rows = WITHOUT_COLUMNS[form]
    reading.put({f"{name}.{form}": nothing for name in "abcdef"} | {f"g.{form}": rows})
    report = reading.load(loader=loader)
    assert (report.loaded, report.failed, report.rows) == (1, 6, 2)
    assert all("it has no columns" in reason for reason in reading.reasons().values())


@pytest.mark.parametrize("form", OBJECTS)
def test_damaged_objects_do_not_use_up_the_sample(reading: Statements, loader: str, form: str) -> None:
    content, options = OBJECTS[form]
    reading.put({f"{name}.{form}": b"\0\1" + content[2 : len(content) // 2] for name in "abcdef"})
    reading.put({f"g.{form}": content})
    report = reading.load(loader=loader, **options)
    assert (report.loaded, report.failed, report.rows) == (1, 6, 2)


def test_archived_objects_alone_do_not_fail_for_good(
    reading: Statements, loader: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each has its own kind of failure, beside a damaged one, too, if they are `given` by events."""

    def get_object(self: statements.Objects, *, Key: str, **_: Any) -> Any:
        if Key == "c.csv":
            return {"Body": io.BytesIO(b"\0\1"), "ETag": '""'}
        answer: Any = {"Error": {"Code": "InvalidObjectState"}, "ResponseMetadata": {"HTTPStatusCode": 403}}
        raise ClientError(answer, "GetObject")

    monkeypatch.setattr(statements.Objects, "get_object", get_object)
    for names, given in (("ab", True), ("ab", False), ("abc", True)):
        planned = [Planned(f"{name}.csv", "v", 2, 0.0, number) for number, name in enumerate(names)]
        ledger = statements.Ledger(reading.client, "t", planned)
        recorded: dict[str, str] = {}
        monkeypatch.setattr(
            ledger, "record_failed",
            lambda failed, to=recorded, ledger=ledger: [
                (to.update({o.key: kind}), ledger._done([o])) for o, kind, _ in failed
            ],
        )  # fmt: skip
        request = request_of(Source(reading.bucket), reading.table, loader=loader)
        look = Look(request, reading.client, statements.Objects(reading.folder), ledger)  # type: ignore[arg-type]
        assert look.found(True, given=given) is None
        expected = dict.fromkeys(("a.csv", "b.csv"), "access") | ({"c.csv": "object"} if "c" in names else {})
        assert recorded == expected


def without_a_chunk(content: bytes) -> bytes:
    """Return a Parquet file whose row group has one column less than its schema."""
    _, footer = footer_of(content)
    footer[4][1][1][0][1][1][1].pop()
    return with_footer(content, footer)


def test_a_row_group_with_too_few_columns_fails_its_object_alone(reading: Statements, loader: str) -> None:
    reading.put(
        {"a.parquet": parquet(TABLE), "b.parquet": without_a_chunk(parquet(TABLE)), "c.parquet": parquet(TABLE)}
    )
    report = reading.load(loader=loader)
    assert (report.loaded, report.failed) == (2, 1)
    assert reading.reasons()["b.parquet"]
