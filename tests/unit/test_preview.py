"""A preview shows what a load would do, by the load's own statements, and leaves nothing behind.

The statements run in the process, without servers.
"""

from __future__ import annotations

import gzip
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from storeside.transfer.base.staging_tables import STAGING
from storeside.transfer.request.column_options import Columns
from storeside.transfer.request.known_formats import KNOWN
from storeside.transfer.request.source import Listed
from storeside.transfer.request.table_keys import Expression
from storeside.transfer.run.preview import LONGEST_CELL, ROWS, Preview, preview
from tests.format_examples import EXAMPLES
from tests.statements import Engine, Files, Objects
from tests.support import unique
from tests.transfers import jsonl, parquet, request_of

VERSION = "v1"
both_loaders = pytest.mark.parametrize("loader", ["pull", "push"])


@dataclass(frozen=True)
class Versioned(Files):
    """Files that have a version, as the objects of a listing."""

    def _function(self, path: str, form: str, structure: str = "", compression: str = "auto") -> str:
        found = super()._function(path, form, structure, compression)
        return f"(SELECT *, _path, _row_number, '{VERSION}' AS _etag FROM {found})" if form != "One" else found


class Answers(Objects):
    """S3's answers with this version."""

    def get_object(self, **given: Any) -> Any:
        return {**super().get_object(**given), "ETag": f'"{VERSION}"'}


class Bucket:
    """The objects of one preview."""

    def __init__(self, client: Engine, folder: Path) -> None:
        self.client, self.folder = client, folder
        self.name = unique("bucket")
        self.table = f"data.{unique('shown').replace('-', '_')}"

    def preview(self, objects: dict[str, bytes], **options: Any) -> Preview:
        before = self.state()
        listed = []
        for key, content in objects.items():
            path = self.folder / self.name / key
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
            listed.append(Listed(key, VERSION, len(content), "2026-01-01T00:00:00Z"))
        request = request_of(Versioned(self.name, endpoint=str(self.folder)), self.table, **options)
        found = preview(request, self.client, Answers(self.folder), objects=listed)  # type: ignore[arg-type]
        assert self.state() == before
        return found

    def state(self) -> list[Any]:
        """Return all databases and tables with their definitions and numbers of rows."""
        query = (
            "SELECT name, '', NULL FROM system.databases UNION ALL SELECT database || '.' || name, create_table_query,"
            " total_rows FROM system.tables WHERE database NOT IN ('system', 'INFORMATION_SCHEMA',"
            " 'information_schema') ORDER BY ALL"
        )
        return [*self.client.query(query).result_rows]

    def create(self, columns: str) -> None:
        self.client.command(f"CREATE TABLE {self.table} ({columns}) ENGINE = MergeTree ORDER BY tuple()")


@pytest.fixture
def bucket(engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bucket]:
    monkeypatch.chdir(tmp_path)  # the engine writes schemas of Protobuf below the working directory
    found = Bucket(engine, tmp_path)
    yield found
    engine.command(f"DROP TABLE IF EXISTS {found.table} SYNC")


@both_loaders
@pytest.mark.parametrize("form", EXAMPLES)
def test_each_format(bucket: Bucket, form: str, loader: str) -> None:
    example = EXAMPLES[form]
    rows = [(n, f"text {n}") for n in range(1, 2 if example.has_one_row else 40)]
    good = example.make(("n", "s"), rows)
    bad = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" + bytes(40)
    found = bucket.preview({"a": good, "b": bad}, format=form, loader=loader, **example.read(("n", "s")))
    assert found.problem == ""
    assert (found.listed, found.planned, found.bytes, found.loader) == (2, 2, len(good) + len(bad), loader)
    assert [key for key, _ in found.refused] == ["b"]
    assert found.columns[:2] == (("n", "Nullable(Int64)"), ("s", "Nullable(String)"))
    assert found.rows == tuple((str(n), s) for n, s in rows[:ROWS])
    assert found.options.startswith(KNOWN[form].label.split(",")[0]) or form == "tsv"
    (statement,) = found.statements
    assert statement.startswith(f"CREATE TABLE IF NOT EXISTS `data`.`{bucket.table[5:]}` (\n    `n` Nullable(Int64)")
    assert STAGING not in str(found)
    bucket.client.command(statement)
    bucket.client.command(f"DROP TABLE {bucket.table} SYNC")


@both_loaders
def test_rows_are_those_of_the_table(bucket: Bucket, loader: str) -> None:
    """Defaults of the table, masks, computed columns, system columns and the condition for rows apply."""
    bucket.create(
        "id Nullable(Int64), mail Nullable(String), twice Nullable(Int64), kind String DEFAULT upper('new')"
    )
    chosen = Columns(
        rename={"email": "mail"}, mask={"email": "redact"}, compute={"twice": Expression("id * 2")},
        where=Expression("id != 2"),
    )  # fmt: skip
    found = bucket.preview(
        {"a.jsonl": jsonl([{"id": n, "email": f"{n}@example.org"} for n in (1, 2, 3)])},
        format="jsonl", loader=loader, chosen=chosen, system_columns=("_object",),
    )  # fmt: skip
    assert found.refused == ()
    assert [name for name, _ in found.columns] == ["id", "mail", "twice", "kind", "_object"]
    assert [(*row[:1], *row[2:]) for row in found.rows] == [
        ("1", "2", "NEW", "a.jsonl"), ("3", "6", "NEW", "a.jsonl"),
    ]  # fmt: skip
    assert "example.org" not in str(found)
    assert [re.sub(r"`data`\.`\w+`", "T", text) for text in found.statements] == [
        "ALTER TABLE T ADD COLUMN IF NOT EXISTS `_object` LowCardinality(String)"
    ] or found.statements[0].endswith("ADD COLUMN IF NOT EXISTS `_object` String")


@pytest.mark.parametrize("on_drift", ["fail", "add", "widen"])
def test_drift(bucket: Bucket, on_drift: str) -> None:
    bucket.create("n Nullable(Int32), gone Nullable(String)")
    found = bucket.preview(
        {"a.jsonl": jsonl([{"n": 1}]), "b.jsonl": jsonl([{"n": 1, "new": 5}]), "c.jsonl": jsonl([{"n": 1 << 40}])},
        format="jsonl", on_drift=on_drift,
    )  # fmt: skip
    assert found.drift == (
        "column 'n' is Nullable(Int64) in the objects, and Nullable(Int32) in the table",
        "column 'new' (Nullable(Int64)) is not in the table",
        "column 'gone' (Nullable(String)) of the table is not in the objects",
    )
    refused = {"fail": ["b.jsonl", "c.jsonl"], "add": ["c.jsonl"], "widen": []}[on_drift]
    assert sorted(key for key, _ in found.refused) == refused
    changed = {
        "fail": [], "add": ["ADD COLUMN IF NOT EXISTS `new` Nullable(Int64)"],
        "widen": ["MODIFY COLUMN `n` Nullable(Int64)", "ADD COLUMN IF NOT EXISTS `new` Nullable(Int64)"],
    }[on_drift]  # fmt: skip
    assert [*found.statements] == (
        [f"ALTER TABLE `data`.`{bucket.table[5:]}` {', '.join(changed)}"] if changed else []
    )


def test_the_value_because_of_which_a_column_is_text(bucket: Bucket) -> None:
    lines = ["n,when,name,code", *(f"{n},2026-01-{n:02d},name {n},{n}" for n in range(1, 30)), "n/a,2026-02-30,x,007"]
    found = bucket.preview({"a.csv": "\n".join(lines).encode() + b"\n"}, format="csv")
    assert [tuple(text) for text in found.texts] == [
        ("n", "n/a", "Int64"), ("when", "2026-02-30", "Date32"), ("code", "007", "Int64"),
    ]  # fmt: skip
    masked = Columns(mask={"name": "sha256"})
    assert bucket.preview({"a.csv": "\n".join(lines).encode()}, format="csv", chosen=masked).texts == ()


@both_loaders
def test_a_large_object_is_not_read_as_a_whole(bucket: Bucket, loader: str) -> None:
    """A fault after the rows that a preview reads does not matter; the first rows are in their order."""
    text = b"n,s\n" + b"".join(b"%d,%s\n" % (n, b"x" * 300) for n in range(20_000)) + b"no number,y,z\n"
    rows = parquet({"n": [*range(50_000)]})
    for key, content in {"a.csv": text, "a.csv.gz": gzip.compress(text, 1), "a.parquet": rows}.items():
        found = bucket.preview({key: content}, loader=loader, system_columns=("_row_number",))
        assert (found.problem, found.refused) == ("", ()), key
        assert [row[0] for row in found.rows] == [str(n) for n in range(ROWS)], key
        assert all(len(row[1] or "") <= LONGEST_CELL + 1 for row in found.rows)


def test_rows_that_a_load_mends_or_skips(bucket: Bucket) -> None:
    lines = b'n,s\n\n1,"a\nb"\nnot a number,c\n3,d\n'
    bucket.create("n Nullable(Int64), s Nullable(String)")
    for policy in ("skip", "keep"):
        found = bucket.preview({"a.csv": lines}, format="csv", on_bad_rows=policy)
        assert (found.refused, found.rows) == ((), (("1", "a\nb"), ("3", "d")))
    found = bucket.preview({"a.csv": lines, "b.csv": b"n,s\n2,x\n"}, format="csv")
    assert [key for key, _ in found.refused] == ["a.csv"]
    assert found.rows == (("2", "x"),)


def test_a_load_that_would_fail_as_a_whole(bucket: Bucket) -> None:
    found = bucket.preview({"a.csv": b"n\n1\n"}, format="csv", chosen=Columns(drop=("x",)))
    assert "drop 'x': no sampled object has this column" in found.problem
    found = bucket.preview({"a.csv": b"n\n1\n"}, format="csv", order_by="(other)")
    assert "other" in found.problem
    assert STAGING not in found.problem


def test_nothing_to_load(bucket: Bucket) -> None:
    found = bucket.preview({})
    assert (found.listed, found.planned, found.statements, found.rows, found.seconds) == (0, 0, (), (), None)
