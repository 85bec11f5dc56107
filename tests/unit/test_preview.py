"""A preview shows what a load would do, by the load's own statements, and leaves nothing behind.

The statements run in the process, without servers.
"""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from storeside.transfer.base.staging_tables import LEFTOVERS, PREVIEWS, STAGING, is_generated
from storeside.transfer.request.column_options import Columns
from storeside.transfer.request.known_formats import KNOWN
from storeside.transfer.request.source import Listed
from storeside.transfer.request.table_keys import Expression
from storeside.transfer.run.first_rows import LONGEST_CELL, ROWS
from storeside.transfer.run.preview import preview
from storeside.transfer.run.preview_text import preview_text, preview_values
from storeside.transfer.run.previewed import Preview
from storeside.transfer.run.remarks import TextColumn
from storeside.transfer.state.unstored_plan import UnstoredLoads, UnstoredPlan
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
            "SELECT name, '', NULL FROM system.databases UNION ALL"
            " SELECT database || '.' || name, create_table_query, total_rows FROM system.tables"
            " WHERE database NOT IN ('system', 'INFORMATION_SCHEMA', 'information_schema') ORDER BY ALL"
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


def test_a_text_with_a_long_header_shows_why_a_column_is_text(bucket: Bucket) -> None:
    long = "n" * 300
    text = "\n".join([long, *map(str, range(1, 30)), "n/a"]).encode() + b"\n"
    found = bucket.preview({"a.csv": text}, format="csv", sample_bytes=200)
    assert [tuple(each) for each in found.texts] == [(long, "n/a", "Int64")]


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


def test_text_and_values_for_xcom() -> None:
    found = Preview(
        source="s3://trips/", table="data.trips", listed=4, planned=2, bytes=1_500_000, known_bad=1,
        known_failures=(("bad", "it is empty"),), ignored={"_*": 1}, loader="pull", options="CSV, gzip",
        statements=("CREATE TABLE " + "x" * 50_000,), drift=("column 'x' is not in the table",),
        texts=(TextColumn("n", "n/a", "Int64"),), read=2, refused=(("k\n", "reason"),),
        columns=(("n", "String"), ("s", "String")), rows=(("1", None), ("n/a", "y" * 300)), seconds=7.4,
    )  # fmt: skip
    lines = preview_text(found).splitlines()
    assert lines[:3] == [
        "preview of s3://trips/ -> data.trips: nothing is loaded or changed",
        "objects: 4 match, 2 to load (1.5 MB), 1 loaded before, 1 failed for good before",
        "failed before: bad: it is empty",
    ]
    assert "time: about 7 s at the recorded speed of the last loads" in lines
    assert "text: column 'n' is text because of the value 'n/a'; most other values are Int64" in lines
    assert "refused: k\\n: reason" in lines
    assert lines[-3:] == ["n    s", "1    NULL", f"n/a  {'y' * 39}…"]
    values = preview_values(found)
    assert json.loads(json.dumps(values)) == values
    assert len(json.dumps(values)) < 25_000
    assert values["texts"] == [["n", "n/a", "Int64"]]
    empty = preview_text(Preview(source="s3://trips/", table="data.trips", problem="no bucket")).splitlines()
    assert empty[1:] == ["the load would fail: no bucket"], "an error of the planning leaves the numbers unknown"
    nothing = preview_text(Preview(source="s3://a/", table="d.t", planned=1, loader="push", seconds=None))
    assert "no speed of a load is recorded" in nothing


def test_a_listing_is_counted_page_by_page(engine: Engine) -> None:
    """The plan keeps a sample of a long listing, and counts all of it, without Storeside's tables."""
    source = Files("trips", "2026/*.csv")
    loads = UnstoredLoads(engine, "0" * 16, "data.trips", source, "preview/1", markers=source.markers)
    plan = UnstoredPlan(loads, retry_failed=False, since=0)
    keys = [f"2026/{n:05d}.csv" for n in range(1500)] + ["2026/_x.csv", "2025/0.csv", "2026/*?.csv"]
    listed = [Listed(key, VERSION, n % 3, "2026-01-01T00:00:00Z") for n, key in enumerate(keys)]
    plan.record_listing([listed[:1000], listed[1000:]])
    made = plan.make(batch_bytes=1, batch_objects=1, push=False, retry_failed=False)
    chosen = [o for o in listed if o.key.startswith("2026/") and not o.key.startswith("2026/_")]
    assert made == (len(chosen), len(chosen), sum(o.size for o in chosen))
    assert plan.ignored == {"_*": 1}
    assert 1000 <= len(plan.unfinished()) <= 1001
    assert len(plan.sample(5)) == 5
    assert min(o.key for o in plan.unfinished() if o.size) == plan.sample(5)[0].key
    plan.record_listing([listed[:3]])  # an endpoint in another order: the listing starts again
    assert plan.make(batch_bytes=1, batch_objects=1, push=True, retry_failed=False)[:2] == (3, 3)
    assert all(batch.pushed for batch in plan.listed_batches())


def test_a_server_that_has_never_seen_a_load(bucket: Bucket) -> None:
    """Neither the ledger nor the staging database exists before, nor afterwards: `preview` compares both."""
    bucket.client.command(f"DROP DATABASE {STAGING} SYNC")
    try:
        assert bucket.preview({"a.csv": b"n\n1\n"}, format="csv").rows == (("1",),)
    finally:
        bucket.client.command(f"CREATE DATABASE IF NOT EXISTS {STAGING}")


def test_tables_of_a_killed_preview_are_stale_after_an_hour(engine: Engine) -> None:
    killed, load = f"load_{PREVIEWS}0a0b0c0d_0_0a0b0c0d_0", "load_1a0b0c0d0a0b0c0d_0_0a0b0c0d_1"
    try:
        for name in (killed, load):
            engine.command(f"CREATE TABLE {STAGING}.{name} (n UInt8) ENGINE = MergeTree ORDER BY n")
            assert is_generated(name)
        for hours, stale in ((0, []), (2, [killed])):
            leftovers = LEFTOVERS.replace("now()", f"(now() + toIntervalHour({hours}))")
            row = engine.query(f"SELECT {leftovers}", parameters={"mine": "", "statements": ""}).first_row
            assert [*row[0]] == stale
    finally:
        for name in (killed, load):
            engine.command(f"DROP TABLE IF EXISTS {STAGING}.{name} SYNC")
