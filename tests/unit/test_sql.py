"""The SQL files in ClickHouse's own engine, in process."""

from __future__ import annotations

import ast
import json
import random
import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock
from urllib.parse import urlparse

import pytest
from clickhouse_connect.driver.binding import bind_query
from clickhouse_connect.driver.exceptions import DatabaseError

from storeside import sql
from storeside.aistore.buckets import Bucket
from storeside.aistore.markers import NONE
from storeside.aistore.stored_objects import StoredObject
from storeside.events.drained import Drained
from storeside.events.ledger import EventLedger
from storeside.events.runs import WANTED
from storeside.ledger import owners
from storeside.ledger.copies import CopyLedger
from storeside.ledger.objects import Ledger
from storeside.ledger.scope import Pending, Scope
from storeside.ledger.unproven import make_again, unproven
from storeside.speech.columns import RECORDING_COLUMNS, SEGMENT_COLUMNS, UTTERANCE_COLUMNS
from storeside.speech.export import FORMATS, ExportError, export, unreadable_query, whole_query
from storeside.speech.manifest import facts_naming
from storeside.speech.suites import NOT_EMPTY_COLUMNS
from storeside.sql.migrate import RECORD, migrations
from storeside.sql.quoting import identifier
from storeside.stack.settings import CHECKOUT
from storeside.transfer.base.errors import TransferInputError
from storeside.transfer.request.source import EDITED, WILD, Listed, Source, pattern
from storeside.transfer.state.loads import Loads
from storeside.transfer.state.plan import Plan
from storeside.transfer.tables.quarantine import DEFINITION
from storeside.transformers.audio.signal import SignalFacts
from storeside.transformers.audio.transcoding import AudioFacts
from tests import in_memory
from tests.hostile_names import HOSTILE_NAMES

FOLDER = Path(sql.__file__).parent
NAMES = sorted(path.stem for path in FOLDER.glob("*.sql"))
OURS = [name for name in NAMES if not name.startswith("pages_")]  # test_pages_queries runs those
SCOPE = Scope("ais://speech", "ais://facts", "effect", "dag/run")
PARAMETERS: dict[str, Any] = {
    **SCOPE.parameters,
    "database": "default",
    "retry_failed": False,
    "trusts_failures": True,
    "splits": False,
    "keeps_result": True,
    "record_done": True,
    "remote": False,
    "no_reason": "none",
    "reason": "overwritten",
    "by_now": False,
    "facts": "ais://facts",
    "bucket": "ais://speech",
    "transfer": "t",
    "destination": "db.table",
    "table": "db.table",
    "form": "nemo",
    "queue": "url",
    "batch_bytes": 100,
    "batch_objects": 4,
    "push": False,
    "regex": pattern("in/"),
    "overlap": 1000,
    "wild": WILD,
    "edited": EDITED,
    # tests/unit/test_throughput_tables.py
    "measurement": "dag/run/task/1",
    "since": "1767225600.000",
    "modified_from": 0,
    "after": "",
    "options": "now",
    "several": True,
    "side": "after",
    "largest": 1000,
    "markers": NONE,
    "key": "",
    "version": "",
    "all": True,
    "action": "delete",
    "rejected": False,
    "until": "1767225660.000",
    "cluster": "uuid",
    "nodes": 2,
    "workload": "read",
    "object_bytes": 10,
    "dataset_bytes": 20,
    "prefix": "",
    "concurrency": 4,
    "loaders": 1,
    "last": 5,
    "limit": 20,
    "collection": "storeside_aistore",
    "run": "dag/run",
    "dag": "dag",
    "before": "dag/earlier",
    "alert": "dag/alert",
    "task": "",
    "runs": 10,
}
# Results, over empty tables, of queries that do not return zero rows then.
NOTHING: dict[str, Any] = {
    "alerts_new_failures": [[0]],
    "alerts_totals": [[0, 0, 0, 0, []]],
    "events_so_far": [[0] * 8],
    "overtaken": [[0]],
    "start_after": [[""]],
    "totals": [[0, 0, 0, 0, 0]],
    "outcomes_of_others": [[0, 0, []]],
    "throughput_baseline": [[0, None]],
    "throughput_figures": [[0, 0, 0, 0, 0, None, None, None]],
}


class Engine:
    """chdb with parameters bound as clickhouse-connect binds them."""

    def __init__(self) -> None:
        from chdb.session import Session

        self.session = Session(in_memory.engine())

    def run(self, text: str, parameters: Mapping[str, Any] | None = None) -> list[list[Any]]:
        statement, bound = bind_query(text, dict(parameters or {}))
        values = {name.removeprefix("param_"): value for name, value in bound.items()}
        answer = self.session.query(statement, "JSONCompactEachRow", params=values).data()
        return [json.loads(line) for line in answer.splitlines()]


class Client:
    """The methods of a clickhouse-connect client that ledgers use, on chdb."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    def command(self, text: str, parameters: Mapping[str, Any] | None = None) -> None:
        self.engine.run(text, parameters)

    def query(self, text: str, parameters: Mapping[str, Any] | None = None) -> Any:
        rows = [tuple(row) for row in self.engine.run(text, parameters)]
        return SimpleNamespace(result_rows=rows, first_row=rows[0] if rows else None)

    def insert(self, table: str, rows: Any, column_names: list[str], **_: Any) -> None:
        values = "\n".join(json.dumps(dict(zip(column_names, row, strict=True))) for row in rows)
        self.engine.run(f"INSERT INTO {table} ({', '.join(column_names)}) FORMAT JSONEachRow {values}")


def every_statement() -> list[str]:
    """Return the statements of all migrations, in order."""
    return [statement for migration in migrations() for statement in migration.statements]


def record_migrations(engine: Engine) -> None:
    engine.run("TRUNCATE TABLE storeside.migrations")
    numbers = ", ".join(f"({migration.number})" for migration in migrations())
    engine.run(f"INSERT INTO storeside.migrations (number) VALUES {numbers}")


@pytest.fixture(scope="module")
def loaded_engine() -> Iterator[Engine]:
    engine = Engine()
    for statement in (*RECORD, *every_statement()):
        engine.run(statement)
    record_migrations(engine)
    engine.run(f"CREATE TABLE speech.manifest_quarantine ({DEFINITION}) ENGINE = MergeTree ORDER BY load_id")
    engine.run(f"CREATE TABLE wanted ({', '.join(WANTED)}) ENGINE = Memory")  # an external table of `events_done`
    engine.run("INSERT INTO wanted VALUES (0, 'a', 'x', 1.5), (1, 'b', 'y', 2.5)")
    yield engine
    engine.session.close()


@pytest.fixture
def engine(loaded_engine: Engine) -> Engine:
    for table in ("events", "objects", "listings", "loads", "load_listings", "load_plan"):
        loaded_engine.run(f"TRUNCATE TABLE storeside.{table}")
    for table in ("manifest", "manifest_quarantine"):
        loaded_engine.run(f"TRUNCATE TABLE speech.{table}")
    return loaded_engine


def used() -> set[str]:
    """Return the names in calls of `sql.query` and `sql.schema`."""
    found = set()
    for room in ("include", "operators", "tests/benchmarks"):
        for path in (CHECKOUT / room).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Call) and ast.unparse(node.func) in ("sql.query", "sql.schema"):
                    found.add(ast.unparse(node.args[0]))
    return {ast.literal_eval(name) for name in found if not name.startswith("f'migrations/")}


def test_every_file_is_used_and_every_use_has_a_file() -> None:
    assert used() == set(NAMES)


def test_every_file_says_what_it_is_for() -> None:
    assert all(sql.query(name).startswith(("--", "CREATE DATABASE")) for name in NAMES)


def test_an_unknown_file_is_an_error() -> None:
    with pytest.raises(FileNotFoundError):
        sql.query("absent")


@pytest.mark.parametrize("name", [*OURS, *(f"migrations/{migration.name}" for migration in migrations())])
def test_every_statement_parses(engine: Engine, name: str) -> None:
    for statement in sql.schema(name):
        assert engine.run(f"EXPLAIN AST {statement.rstrip(';')}", PARAMETERS)


TARRED = [(form, "") for form in ("nemo_tarred", "huggingface")]  # recordings have no shards
NEEDS_MORE = (
    "manifest_rows",
    "export_utterances",
    "export_segments",
    "export_unreadable_recordings",
    "export_unreadable_utterances",
    *(f"export_{f}" for f in FORMATS),
)


@pytest.mark.parametrize("name", [n for n in OURS if n not in NEEDS_MORE])
def test_every_query_runs_on_empty_tables(engine: Engine, name: str) -> None:
    rows = engine.run(sql.query(name), PARAMETERS)
    assert rows == NOTHING.get(name, [])


@pytest.mark.parametrize(
    ("form", "table"),
    [(form, table) for form in FORMATS for table in ("default.u", "") if (form, table) not in TARRED],
)
def test_every_export_runs_on_empty_tables(engine: Engine, form: str, table: str) -> None:
    columns = ", ".join(f"{name} {kind}" for name, kind in UTTERANCE_COLUMNS.items())
    engine.run(f"CREATE TABLE IF NOT EXISTS default.u ({columns}) ENGINE = MergeTree ORDER BY recording", {})
    assert engine.run(whole_query(form, table), {**PARAMETERS, "table": "u"}) == []


def test_exports_of_segments_have_their_texts(engine: Engine) -> None:
    columns = ", ".join(f"{name} {kind}" for name, kind in SEGMENT_COLUMNS.items())
    engine.run(f"CREATE TABLE default.s ({columns}) ENGINE = MergeTree ORDER BY recording", {})
    told = {"shard": "in/a.tar", "member": "in/a-00001.flac", "recording": "in/a.wav", "segment": "u1"}
    text = 'say "hi"\tto\x07 \u2028 the\nwörld'
    facts = {"duration_seconds": 1.50006, "sample_rate": 16_000, "samples": 24_001, "utterance": 1}
    for number, (channels, spoken) in enumerate(((1, {"speaker": "ada", "language": "de"}), (2, {}))):
        row = {**told, **facts, "channels": channels, "text": text, "utterance": number, **spoken}
        engine.run(f"INSERT INTO default.s FORMAT JSONEachRow {json.dumps(row)}", {})
    asked = {**PARAMETERS, "table": "s", "bucket": "ais://u"}

    def lines(form: str) -> list[list[Any]]:
        names = {"nemo": ("audio_filepath", "duration", "text", "speaker", "lang")}
        names["huggingface"] = ("file_name", "duration", "text", "speaker", "language")
        wanted = ", ".join(names.get(form, ("supervisions", "recording.id AS id", "duration")))
        query = f"SELECT {wanted} FROM ({whole_query(form, 'default.s', has_texts=True)}) ORDER BY 4 DESC"
        return engine.run(query if form != "lhotse_cuts" else query.replace("4 DESC", "custom.utterance"), asked)

    name = "ais://u/in/a.tar/in/a-00001.flac"
    assert lines("nemo") == [[name, 1.50006, text, "ada", "de"], [name, 1.50006, text, "", ""]]
    assert lines("huggingface") == [
        ["in/a/in/a-00001.flac", 1.50006, text, "ada", "de"], ["in/a/in/a-00001.flac", 1.50006, text, "", ""],
    ]  # fmt: skip
    (first, *_), (second, *_) = ((row[0][0],) for row in lines("lhotse_cuts"))
    inner = name.removeprefix("ais://u/")
    assert list(first.values()) == [inner, inner, 0, 1.50006, 0, text, "ada", "de"]
    assert list(second.values()) == [inner, inner, 0, 1.50006, [0, 1], text, None, None]
    assert all(engine.run(whole_query(form, "default.s", has_texts=True), asked) for form in FORMATS)


def asked_for(url: str) -> tuple[str, str]:
    """Return the object and the member that lhotse 1.33 asks AIStore for (`AISBatchLoader._add_url_to_batch`)."""
    name = urlparse(f"ais://b/{url}").path.lstrip("/")
    ending = next((ending for ending in (".tar.gz", ".tar", ".tgz") if ending in name), "")
    before, _, member = name.partition(f"{ending}/")
    return before + ending, member


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize(
    "shard",
    [
        "a.tar", "x/a.b.tar", "x.target.tar", "a.tgz.tar", "a", "a.m4b", "a.Wav", "backup.tar.gz.tar", "x.tar/a.tar",
        "a?.tar", "a#b.tar", "x.tar.gz/a.tar",
    ],
)  # fmt: skip
def test_an_export_finds_utterances_that_their_readers_would_not_find(engine: Engine, form: str, shard: str) -> None:
    columns = ", ".join(f"{name} {kind}" for name, kind in UTTERANCE_COLUMNS.items())
    engine.run("DROP TABLE IF EXISTS default.u")
    engine.run(f"CREATE TABLE default.u ({columns}) ENGINE = MergeTree ORDER BY recording")
    member = "a-00001.flac"
    for name in ("good.tar", shard):
        engine.run("INSERT INTO default.u (shard, member) VALUES ({s:String}, {m:String})", {"s": name, "m": member})
    readable = shard.endswith(".tar")
    if form not in ("nemo_tarred", "huggingface"):
        readable = readable and asked_for(f"{shard}/{member}") == (shard, member)
    [[count, name, reason]] = engine.run(unreadable_query("default.u"), {**PARAMETERS, "table": "u", "form": form})
    assert (int(count), name, bool(reason)) == ((0, "", False) if readable else (1, f"{shard}/{member}", True))


def test_parse_test_can_fail(engine: Engine) -> None:
    with pytest.raises(Exception, match="Syntax error"):
        engine.run("EXPLAIN AST SELECT ({job:String} FROM", PARAMETERS)


def test_tables_agree_with_the_code(engine: Engine) -> None:
    def columns(table: str) -> dict[str, str]:
        rows = engine.run(
            "SELECT name, type FROM system.columns WHERE database || '.' || table = {t:String} ORDER BY position",
            {"t": table},
        )
        return {name: re.sub(r"LowCardinality\((.*)\)", r"\1", kind) for name, kind in rows}

    speech = columns("speech.manifest")
    assert set(RECORDING_COLUMNS.items()) <= set(speech.items())
    assert set(RECORDING_COLUMNS) == set(AudioFacts.__dataclass_fields__)
    assert {*NOT_EMPTY_COLUMNS, *SignalFacts.__dataclass_fields__} <= set(speech)
    assert list(columns("storeside.listings"))[:7] == [
        "job", "side", "object", "destination_object", "size", "version", "reason",
    ]  # fmt: skip


# --- names of facts

OBJECTS = ["a.wav", "in/b.flac", "c.mp3", "d.ogg", "take1", "song.m4b", "E.Flac", "x.json", "dir.wav/f"]


def facts(name: str) -> str:
    """Return the name of an object's facts under the mapping that `AISProbeAudioOperator` gives AIStore."""
    return facts_naming(SCOPE.run_id, Bucket.parse(SCOPE.source)).destination(name)


def list_(engine: Engine, side: str, name: str, result: str, size: int = 10, version: str = "v") -> None:
    engine.run(
        "INSERT INTO storeside.listings (job, side, object, destination_object, size, version)"
        " VALUES ({j:String}, {s:String}, {o:String}, {d:String}, {z:UInt64}, {v:String})",
        {"j": SCOPE.job, "s": side, "o": name, "d": result, "z": size, "v": version},
    )


def find(engine: Engine, name: str) -> None:
    """Record that the probe knows of an object's facts."""
    for side in ("pending", "after"):
        list_(engine, side, name, facts(name))


def manifest_rows(engine: Engine) -> list[list[Any]]:
    """Return the recordings of two probes that overlap."""
    view = "SELECT * FROM storeside.job_results(job = {job:String}, effect = {effect:String})"
    return engine.run(sql.query("manifest_rows").replace("RESULTS", f"({view} UNION ALL {view})"), PARAMETERS)


def record(
    engine: Engine, source: str, destination: str, name: str, result: str, version: str, *, second: int = 0,
    prepend: str = "",
) -> None:  # fmt: skip
    engine.run(
        "INSERT INTO storeside.objects"
        " (source, destination, prepend, object, version, destination_object, status, recorded_at)"
        " VALUES ({s:String}, {d:String}, {p:String}, {o:String}, {v:String}, {r:String}, 'done', {t:UInt32})",
        {
            "s": source, "d": destination, "p": prepend, "o": name, "v": version, "r": result,
            "t": 1_767_225_600 + second,
        },
    )  # fmt: skip


@pytest.mark.parametrize("name", OBJECTS)
def test_manifest_rows_have_their_objects_names(engine: Engine, name: str) -> None:
    record(engine, "s3://in", "ais://recordings", "raw", "raw", "etag")
    record(engine, "ais://recordings", "ais://speech", "raw", name, "1")
    find(engine, name)
    assert manifest_rows(engine) == [[name, facts(name), 10, "s3://in", "raw", "etag", "", 0]]


@pytest.mark.parametrize("newest", ["first", "second"])
def test_what_several_sources_have_came_from_the_one_that_was_last(engine: Engine, newest: str) -> None:
    for n, source in enumerate(("first", "second")):
        later = 10 * (source == newest)
        record(engine, f"ais://{source}", "ais://speech", "a.flac", "a.wav", "1", second=later)
        record(engine, f"s3://{source}", f"ais://{source}", "a.flac", "a.flac", source, second=later)
        record(engine, f"s3://before-{n}", f"ais://{source}", "a.flac", "a.flac", "old", second=-10)
        record(engine, f"s3://{n}", "ais://elsewhere", "a.flac", "a.flac", "other", second=20)
    find(engine, "a.wav")
    ((name, _, _, source, _, version, *_),) = manifest_rows(engine)
    assert (name, source, version) == ("a.wav", f"s3://{newest}", newest)


@pytest.mark.guarantee("manifest-once")
@pytest.mark.parametrize(
    ("run", "version", "published"),
    [
        ("dag/earlier", "1", "sum"),
        ("dag/earlier", "0", ""),  # the recording changed since then
        (SCOPE.run_id, "1", ""),  # the load knows what this run has loaded
    ],
)
def test_what_another_run_has_published_is_known(engine: Engine, run: str, version: str, published: str) -> None:
    record(engine, "ais://recordings", "ais://speech", "raw", "a.wav", "1")
    find(engine, "a.wav")
    engine.run(
        "INSERT INTO speech.manifest (bucket, object, source_version, checksum, silence_share, run_id)"
        " VALUES ('ais://speech', 'a.wav', {v:String}, 'sum', 0.5, {r:String})",
        {"v": version, "r": run},
    )
    assert manifest_rows(engine) == [["a.wav", facts("a.wav"), 10, "ais://recordings", "raw", "1", published, 1]]


def quarantine(engine: Engine, name: str, *reasons: str, key: str = PARAMETERS["key"]) -> None:
    engine.run(
        "INSERT INTO speech.manifest_quarantine (bucket, key, reasons, row)"
        " VALUES ('ais://facts', {k:String}, {r:Array(String)}, {o:String})",
        {"k": key, "r": list(reasons), "o": json.dumps({"bucket": "ais://speech", "object": name})},
    )


@pytest.mark.parametrize("name", OBJECTS)
def test_invalid_rows_fail_their_objects(engine: Engine, name: str) -> None:
    for side in ("pending", "after"):
        list_(engine, side, name, facts(name))
    quarantine(engine, name, "too loud", "too long")
    quarantine(engine, "another", "of another run", key="other")
    engine.run(sql.query("settle_invalid"), PARAMETERS)
    assert engine.run("SELECT object, status, reason FROM storeside.objects") == [
        [name, "failed", "its manifest row is not valid: too long; too loud"]
    ]


@pytest.mark.guarantee("transform-complete")
@pytest.mark.parametrize("remote", [True, False])
def test_what_another_storage_kept_back_is_tried_again(engine: Engine, remote: bool) -> None:
    for name in ("done", "refused", "missing"):
        list_(engine, "pending", name, f"{name}.wav")
    list_(engine, "after", "done.wav", "done.wav", version="2")
    list_(engine, "final", "refused", "")
    engine.run(sql.query("settle"), {**PARAMETERS, "remote": remote})
    assert engine.run("SELECT object, status, version FROM storeside.objects ORDER BY object") == [
        ["done", "done", "v"], ["missing", "failed", "" if remote else "v"], ["refused", "failed", "v"],
    ]  # fmt: skip
    engine.run("TRUNCATE TABLE storeside.listings")
    for name in ("refused", "missing"):
        list_(engine, "source", name, f"{name}.wav")
    engine.run(sql.query("plan"), {**PARAMETERS, "run_id": "dag/next"})
    assert engine.run("SELECT object, side FROM storeside.listings WHERE side != 'source' ORDER BY object") == [
        ["missing", "pending" if remote else "known_bad"], ["refused", "known_bad"],
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("version", "there", "size", "fresh"),
    [
        ("9e1", "1/9e1", 10, True),  # an ETag that is an MD5
        ("9e1-2", "1/77f", 10, False),  # one of several parts, which AIStore does not have as a checksum
        ("3/77f", "1/77f", 10, True),  # of a bucket within the cluster
        ("3/77f", "1/77f", 11, False),
        ("3/77f", "1/077f", 10, False),
        ("1/10", "1/10", 10, False),  # without a checksum it contains the size
        ("", "1/77f", 10, False),
    ],
)
def test_a_copy_that_was_there_before_counts_with_the_checksum_of_its_source(
    engine: Engine, version: str, there: str, size: int, fresh: bool
) -> None:
    list_(engine, "pending", "a", "b", version=version)
    for side in ("before", "after"):
        list_(engine, side, "", "b", size, there)
    select = "SELECT fresh FROM storeside.job_results(job = {job:String}, effect = {effect:String})"
    assert engine.run(select, {**PARAMETERS, "effect": ""}) == [[fresh]]
    assert engine.run(select, PARAMETERS) == [[False]]  # a result of a transform
    list_(engine, "accepted", "a", "b")
    assert engine.run(select, {**PARAMETERS, "effect": ""}) == [[size == 10]]


def test_facts_of_what_the_probe_does_not_have_are_no_rows(engine: Engine) -> None:
    find(engine, "fresh.wav")
    for name in ("orphan.wav", "stale.wav"):
        find(engine, name)
    engine.run("ALTER TABLE storeside.listings DELETE WHERE object = 'orphan.wav' SETTINGS mutations_sync = 1")
    list_(engine, "before", "", facts("stale.wav"))
    assert [row[0] for row in manifest_rows(engine)] == ["fresh.wav"]


@pytest.mark.parametrize(
    ("status", "run", "made", "trusted"),
    [
        ("done", SCOPE.run_id, 10, True),
        ("done", SCOPE.run_id, 11, False),  # overwritten since then
        ("done", "dag/earlier", 10, False),
        ("failed", SCOPE.run_id, 10, False),
    ],
)
def test_facts_count_when_their_object_was_made_with_them(
    engine: Engine, status: str, run: str, made: int, trusted: bool
) -> None:
    list_(engine, "source", "a.wav", facts("a.wav"))
    list_(engine, "after", "", facts("a.wav"), 300, "1/facts")
    list_(engine, "after", "", facts("lost.wav"), 300, "2/facts")
    engine.run(
        "INSERT INTO storeside.objects (source, destination, object, destination_object, status, bytes_out, run_id)"
        " VALUES ('ais://in', {d:String}, 'a.flac', 'a.wav', {s:String}, {b:UInt64}, {r:String})",
        {"d": SCOPE.source, "s": status, "b": made, "r": run},
    )
    engine.run(sql.query("distrust"), PARAMETERS)
    found = engine.run(
        "SELECT destination_object, version FROM storeside.listings WHERE side = 'before' ORDER BY version"
    )
    assert found == [*([] if trusted else [[facts("a.wav"), "1/facts"]]), [facts("lost.wav"), "2/facts"]]


def test_results_of_cloud_objects_from_before_versions_were_compared_are_made_again(engine: Engine) -> None:
    client: Any = Client(engine)
    engine.run("TRUNCATE TABLE storeside.migrations")
    before, after, compared = "2026-01-01 00:00:00.500", "2026-03-01 00:00:00", "2026-02-01 00:00:00"
    try:
        for source, name, status, version, at in (
            ("s3://a", "old/a", "done", "v", before),
            ("s3://a", "old/b", "done", "v", before),
            ("s3://a", "old/b", "done", "w", after),  # it was made again since
            ("s3://a", "new", "done", "v", after),
            ("s3://a", "bad", "failed", "v", before),
            ("gs://a", "old/a", "done", "v", before),
            ("ais://a", "old/a", "done", "v", before),
            ("ais://@c/a", "old/a", "done", "v", before),
        ):
            client.insert(
                "storeside.objects",
                [[source, "ais://b", name, status, version, "e", f"{name}.wav", at, at]],
                ["source", "destination", "object", "status", "version", "effect", "destination_object",
                 "listed_at", "recorded_at"],
            )  # fmt: skip
        assert [pair.objects for pair in unproven(client)] == [1, 3], "all, if versions were never compared"
        rows = f"(20, now()), (21, '2025-01-01'), (21, '{compared}')"
        engine.run(f"INSERT INTO storeside.migrations (number, applied_at) VALUES {rows}")
        assert [(pair.source, pair.objects) for pair in unproven(client)] == [("gs://a", 1), ("s3://a", 1)]
        assert [pair.source for pair in unproven(client, "s3://a", "ais://b", "old/")] == ["s3://a"]
        assert unproven(client, "s3://a", "ais://b", "new") == unproven(client, "s3://a", "ais://other") == []
        assert make_again(client, "s3://a", "ais://b", "old/") == 1
        assert make_again(client, "s3://a", "ais://b") == 0
        assert [pair.source for pair in unproven(client)] == ["gs://a"]
    finally:
        record_migrations(engine)
    kept = "SELECT version, listed_at, recorded_at FROM storeside.objects FINAL WHERE object = 'old/a' AND source = 's3://a'"
    assert engine.run(kept) == [["", "1970-01-01 00:00:00.000", "2026-01-01 00:00:00.501"]]
    for name, version in (("old/a", "v"), ("old/b", "w")):
        list_(engine, "source", name, f"{name}.wav", version=version)
        list_(engine, "before", "", f"{name}.wav")
    asked = {**PARAMETERS, "source": "s3://a", "destination": "ais://b", "effect": "e", "keeps_result": False}
    engine.run(sql.query("plan"), asked)
    assert engine.run("SELECT side, object FROM storeside.listings WHERE side IN ('pending', 'planned')") == [
        ["pending", "old/a"]
    ]


@pytest.mark.guarantee("broken-recording")
@pytest.mark.parametrize(
    ("version", "retry_failed", "side"), [("1", False, "known_bad"), ("1", True, "pending"), ("2", False, "pending")]
)
def test_a_broken_recording_is_skipped_until_it_changes_or_is_asked_for(
    engine: Engine, version: str, retry_failed: bool, side: str
) -> None:
    list_(engine, "pending", "a", "a.wav", version="1")
    list_(engine, "final", "a", "")
    engine.run(sql.query("settle"), PARAMETERS)
    assert next_plan(engine, version, retry_failed=retry_failed) == [[side]]


def test_a_known_failure_is_named_until_it_is_accepted_or_the_options_change(engine: Engine) -> None:
    ledger = Ledger(Client(engine))  # type: ignore[arg-type]
    asked = {**PARAMETERS, **SCOPE.parameters}

    def planned(run: str, options: str = "60 s") -> tuple[list[str], list[tuple[str, str]]]:
        engine.run("TRUNCATE TABLE storeside.listings")
        for name in ("in/a", "in/b"):
            list_(engine, "source", name, f"{name}.wav")
        engine.run(sql.query("plan"), {**asked, "run_id": run, "options": options})
        sides = engine.run("SELECT side FROM storeside.listings WHERE side != 'source' ORDER BY object")
        return [side for (side,) in sides], ledger.known_failures(SCOPE, 9)

    for name in ("in/a", "in/b"):
        list_(engine, "pending", name, f"{name}.wav")
        list_(engine, "final", name, "")
    engine.run(sql.query("settle"), {**asked, "options": "60 s", "no_reason": "bad"})
    assert planned("2") == (["known_bad"] * 2, [("in/a", "bad"), ("in/b", "bad")])
    assert planned("2", "90 s") == (["pending"] * 2, [])
    assert ledger.accept_failed(SCOPE.source, SCOPE.destination, "ada", prefix="in/a") == 1
    assert ledger.accept_failed(SCOPE.source, SCOPE.destination, "bob", prefix="in/a") == 0
    assert planned("2") == (["forgiven", "known_bad"], [("in/b", "bad")])
    accepted = "SELECT object, accepted_by, accepted_at > '2000-01-01' FROM storeside.objects FINAL ORDER BY object"
    assert engine.run(accepted) == [["in/a", "ada", 1], ["in/b", "", 0]]
    assert ledger.accept_failed(SCOPE.source, SCOPE.destination, "eve", prepend="x/") == 0
    assert ledger.accept_failed(SCOPE.source, SCOPE.destination, "eve", prepend="", names=["in/a", "in/c"]) == 0
    # an outcome after that counts alone
    list_(engine, "pending", "in/a", "in/a.wav")
    engine.run(sql.query("settle"), {**asked, "options": "60 s", "no_reason": "worse", "run_id": "3"})
    assert planned("4")[0] == ["known_bad"] * 2


@pytest.mark.guarantee("left-out")
@pytest.mark.parametrize("remote", [True, False])
@pytest.mark.parametrize(
    ("change", "planned"),
    [
        ({}, []),
        ({"retry_failed": True}, []),
        ({"version": "2"}, [["pending"]]),
        ({"effect": "other"}, [["pending"]]),
        ({"options": "other"}, [["pending"]]),
    ],
)
def test_an_object_that_is_left_out_is_tried_again_when_it_or_the_specification_changed(
    engine: Engine, remote: bool, change: dict[str, Any], planned: list[list[str]]
) -> None:
    list_(engine, "pending", "a", "a.wav", version="1")
    list_(engine, "reason", "a", "")  # an earlier try failed for a temporary reason
    list_(engine, "left_out", "a", "")
    engine.run(sql.query("settle"), {**PARAMETERS, "remote": remote})
    assert engine.run("SELECT status, version FROM storeside.objects") == [["left_out", "1"]]
    engine.run("TRUNCATE TABLE storeside.listings")
    list_(engine, "source", "a", "a.wav", version=change.get("version", "1"))
    engine.run(sql.query("plan"), {**PARAMETERS, "run_id": "dag/next", **change})
    assert engine.run("SELECT side FROM storeside.listings WHERE side != 'source'") == planned


@pytest.mark.parametrize("outcome", ["done", "final", "left_out"])
@pytest.mark.parametrize(("before", "now"), [("", "d"), ("d", ""), ("d", "e"), ("d", "d"), ("", "")])
def test_an_object_is_processed_again_when_what_is_given_beside_it_changed(
    engine: Engine, outcome: str, before: str, now: str
) -> None:
    def given(digest: str) -> None:
        if digest:
            list_(engine, "given", "a", "", version=digest)

    list_(engine, "pending", "a", "a.wav", version="1")
    if outcome == "done":
        list_(engine, "after", "", "a.wav", version="9")
    else:
        list_(engine, outcome, "a", "")
    given(before)
    engine.run(sql.query("settle"), PARAMETERS)
    assert engine.run("SELECT given FROM storeside.objects") == [[before]]
    engine.run("TRUNCATE TABLE storeside.listings")
    list_(engine, "source", "a", "a.wav", version="1")
    list_(engine, "before", "", "a.wav", version="9")
    given(now)
    engine.run(sql.query("plan"), {**PARAMETERS, "run_id": "dag/next"})
    planned = engine.run("SELECT side FROM storeside.listings WHERE side IN ('pending', 'known_bad')")
    unchanged = [["known_bad"]] if outcome == "final" else []
    assert planned == (unchanged if before == now else [["pending"]])


def test_an_object_that_changed_while_it_was_left_out_is_tried_again(engine: Engine) -> None:
    list_(engine, "pending", "a", "a.wav", version="1")
    list_(engine, "left_out", "a", "")
    list_(engine, "changed", "a", "")
    engine.run(sql.query("settle"), {**PARAMETERS, "remote": True})
    assert engine.run("SELECT status, version FROM storeside.objects") == [["failed", ""]]


@pytest.mark.parametrize(
    ("effect", "result", "second", "overtaken"),
    [
        ("other", "a.wav", 0, True),
        ("other", "a.wav", -9, False),  # before the plan
        ("other", "b.wav", 0, False),  # of another object
        (SCOPE.effect, "a.wav", 0, False),
    ],
)
@pytest.mark.parametrize("settled", [True, False])
def test_a_plan_is_overtaken_by_results_of_another_effect(
    engine: Engine, effect: str, result: str, second: int, overtaken: bool, settled: bool
) -> None:
    list_(engine, "listing", "", "")
    list_(engine, "pending", "a", "a.wav")
    if settled:
        engine.run(
            "INSERT INTO storeside.objects"
            " (source, destination, object, effect, destination_object, status, recorded_at) VALUES"
            " ({source:String}, {destination:String}, 'a', {e:String}, {r:String}, 'done', now64(3) + {n:Int32})",
            {**SCOPE.parameters, "e": effect, "r": result, "n": second},
        )
    else:
        engine.run(
            "INSERT INTO storeside.listings (job, side, object, destination_object, reason, listed_at) VALUES"
            " ('other', 'planned', {source:String}, {destination:String}, {e:String}, now()),"
            " ('other', 'pending', 'a', {r:String}, '', now()),"
            " ('other', 'submitted', 'job', '', '', now() + {n:Int32})",
            {**SCOPE.parameters, "e": effect, "r": result, "n": second},
        )
    assert Ledger(Client(engine)).is_overtaken(SCOPE) == overtaken  # type: ignore[arg-type]


@pytest.mark.guarantee("left-out")
def test_only_earlier_results_of_the_objects_that_are_left_out_are_removed(engine: Engine) -> None:
    ledger = Ledger(Client(engine))  # type: ignore[arg-type]
    for name in ("in/old", "in/failed", "in/made"):
        engine.run(
            "INSERT INTO storeside.objects (source, destination, object, version, effect, destination_object, status)"
            " VALUES ({source:String}, {destination:String}, {object:String}, 'earlier', 'any', {result:String},"
            " {status:String})",
            {
                **SCOPE.parameters,
                "object": name,
                "result": f"{name}.wav",
                "status": "failed" if "fail" in name else "done",
            },
        )
    for name in ("in/old", "in/failed", "in/made", "in/foreign", "in/absent"):
        engine.run(
            "INSERT INTO storeside.listings (job, side, object, destination_object, version)"
            " VALUES ({job:String}, 'pending', {object:String}, {result:String}, 'v')",
            {"job": SCOPE.job, "object": name, "result": f"{name}.wav"},
        )
    left_out = ("in/old", "in/foreign", "in/absent")  # nothing says that the foreign object is a result
    ledger.record_outcomes(SCOPE, [(name, "too short", "left_out", "") for name in left_out])
    there = [("", f"{name}.wav", 1, "7", "") for name in ("in/old", "in/failed", "in/made", "in/foreign")]
    for side in ("before", "after"):
        ledger.record_listing(SCOPE, side, there)
    assert ledger.results_of_left_out(SCOPE, "", 9) == ["in/old.wav"]
    assert ledger.results_of_left_out(SCOPE, "in/old.wav", 9) == []
    assert [p.object for p in ledger.missing(SCOPE, "", 9)] == ["in/failed", "in/made"], "nothing tries them again"
    assert not {"in/old", "in/foreign"} & {p.object for p in ledger.missing(SCOPE, "", 9, final=True)}, (
        "no quarantine"
    )
    assert "in/old" not in {p.object for p in ledger.unchanged(SCOPE, "", 9)}


@pytest.mark.guarantee("overwritten-recording", "transform-once")
@pytest.mark.parametrize(("version", "planned"), [("1", []), ("2", [["pending"]])])
def test_a_recording_is_transformed_again_when_it_is_overwritten(
    engine: Engine, version: str, planned: list[list[str]]
) -> None:
    list_(engine, "pending", "a", "a.wav", version="1")
    list_(engine, "after", "", "a.wav", version="7")
    engine.run(sql.query("settle"), PARAMETERS)
    assert next_plan(engine, version) == planned


@pytest.mark.parametrize(
    ("held", "state"),
    [
        (None, []),
        ("aws\n1\n2026-01-01T00:00:00Z", []),
        ("aws\n0", [["pending"]]),
        ("", []),  # an unknown version of the same size
    ],
)
def test_an_outcome_of_an_older_copy_in_the_cluster_does_not_count(
    engine: Engine, held: str | None, state: list[list[str]]
) -> None:
    """AIStore transformed the copy that it held, under the version in the listing of S3."""
    for outcome in ("done", "failed"):
        engine.run("TRUNCATE TABLE storeside.listings")
        list_(engine, "pending", "a", "a.wav", version="1")
        if outcome == "done":
            list_(engine, "after", "", "a.wav", version="7")
        else:
            list_(engine, "final", "a", "")
        engine.run(sql.query("settle"), {**PARAMETERS, "remote": True})
        engine.run("TRUNCATE TABLE storeside.listings")
        list_(engine, "source", "a", "a.wav", version="1")
        list_(engine, "before", "", "a.wav", version="7")
        if held is not None:
            list_(engine, "held", "a", "", version=held)
        engine.run(sql.query("plan"), {**PARAMETERS, "run_id": "dag/next"})
        found = engine.run("SELECT side FROM storeside.listings WHERE side NOT IN ('source', 'before', 'held')")
        assert found == (state or [["known_bad"]] * (outcome == "failed")), outcome


@pytest.mark.parametrize("by_now", [False, True])
def test_results_of_other_versions_than_planned_do_not_count(engine: Engine, by_now: bool) -> None:
    held = {"same": "aws\nv", "other": "aws\nnew", "unknown": "", "unknown changed": "", "resized": ""}
    now = {
        "same": "v", "other": "new", "unknown": "v", "unknown changed": "new", "resized": "v", "read": "v",
        "changed": "new",
    }  # fmt: skip
    for name in (*now, "deleted"):
        list_(engine, "pending", name, f"{name}.wav")
        list_(engine, "after", "", f"{name}.wav", version="7")
        if name in held:
            list_(engine, "held", name, "", version=held[name], size=11 if name == "resized" else 10)
        if name in now:
            list_(engine, "now", name, f"{name}.wav", version=now[name])
    for _ in range(2):  # a job checks after each pass
        engine.run(sql.query("record_changed"), {**PARAMETERS, "by_now": by_now, "reason": "overwritten"})
    engine.run(sql.query("settle"), {**PARAMETERS, "remote": True})
    failed = ["changed", "deleted", "other", *([] if by_now else ["resized"]), "unknown changed"]
    assert engine.run(
        "SELECT object, version, reason FROM storeside.objects WHERE status = 'failed' ORDER BY object"
    ) == [[name, "", "overwritten"] for name in failed]


def next_plan(engine: Engine, version: str, *, retry_failed: bool = False) -> list[list[str]]:
    """Return what the next run plans for an object `a` of a version, whose result is still there."""
    engine.run("TRUNCATE TABLE storeside.listings")
    list_(engine, "source", "a", "a.wav", version=version)
    list_(engine, "before", "", "a.wav", version="7")
    engine.run(sql.query("plan"), {**PARAMETERS, "run_id": "dag/next", "retry_failed": retry_failed})
    return engine.run("SELECT side FROM storeside.listings WHERE side NOT IN ('source', 'before')")


# --- done objects that still exist


# checksums of two contents
SUMS = {"one": "a0a52a32203c85ac", "other": "9a1f469ba1f200ed"}


def is_there(recorded: tuple[int, str], listed: tuple[int, str] | None, effect: str) -> bool:
    """Whether a destination still holds a result: the rule that the plan is compared with."""
    if listed is None or listed[0] != recorded[0] or (effect and not listed[0]):
        return False
    old, new = recorded[1], listed[1]
    if not old or old == new:
        return True
    (*old_counter, old_sum), (*new_counter, new_sum) = old.split("/"), new.split("/")
    if str(listed[0]) in (old_sum, new_sum):  # no checksum on one side: the counter decides
        return old_counter == new_counter
    return old_sum == new_sum


@pytest.mark.guarantee("transform-once", "damaged-results")
@pytest.mark.parametrize("effect", ["", SCOPE.effect])
@pytest.mark.parametrize("keeps_result", [True, False])
def test_an_object_is_done_as_long_as_its_result_is_there(engine: Engine, effect: str, keeps_result: bool) -> None:
    draw = random.Random(16)  # noqa: S311
    versions = [f"{n}/{sum_}" for n in (1, 2) for sum_ in (*SUMS.values(), "10", "0")] + list(SUMS.values())
    cases = []
    for _ in range(2000):
        version = draw.choice([*versions, ""])
        size = draw.choice([10, 10, 10, 0])
        again = draw.choice([version or versions[0], draw.choice(versions)])
        listed = draw.choice([None, (draw.choice([size, size, size, 9]), again), (size, again)])
        cases.append(((size, version), listed))
    for table, columns, rows in (
        ("objects", "(source, destination, object, version, effect, destination_object, status, bytes_out,"
         " result_version)", [
            f"('{SCOPE.source}', '{SCOPE.destination}', 'o{n}', 'v', '{effect}', 'r{n}', 'done', {size}, '{version}')"
            for n, ((size, version), _) in enumerate(cases)
        ]),
        ("listings", "(job, side, object, destination_object, size, version)", [
            f"('{SCOPE.job}', 'source', 'o{n}', 'r{n}', 10, 'v')" for n in range(len(cases))
        ]),
        ("listings", "(job, side, destination_object, size, version)", [
            f"('{SCOPE.job}', 'before', 'r{n}', {listed[0]}, '{listed[1]}')"
            for n, (_, listed) in enumerate(cases) if listed
        ]),
    ):  # fmt: skip
        engine.run(f"INSERT INTO storeside.{table} {columns} VALUES {', '.join(rows)}")
    engine.run(sql.query("plan"), {**PARAMETERS, **SCOPE.parameters, "effect": effect, "keeps_result": keeps_result})
    planned = engine.run("SELECT object, side FROM storeside.listings WHERE side IN ('pending', 'refused')")
    expected = {f"o{n}" for n, (recorded, listed) in enumerate(cases) if not is_there(recorded, listed, effect)}
    assert 300 < len(expected) < 1700
    assert {name: side for name, side in planned} == dict.fromkeys(expected if keeps_result else (), "pending")


def test_a_copy_with_a_prefix_leaves_the_outcome_without_one(engine: Engine) -> None:
    """A copy that was overwritten meanwhile is copied again, although another prefix has the new version."""
    scope = Scope("s3://a", "ais://b", "", "dag/run")
    book = CopyLedger(Client(engine))  # type: ignore[arg-type]

    def planned(scope: Scope, version: str) -> int:
        book.record_listing(scope, "source", [("a", scope.prepend + "a", 100, version, "")])
        book.record_listing(scope, "before", [("", "a", 100, "1/c1", ""), ("", "x/a", 100, "1/c2", "")])
        return book.plan(scope, retry_failed=False, keeps_result=True).pending

    book.record_copies(scope, [(Pending("a", "a", 100, "v1"), "")])
    assert planned(scope, "v1") == 0
    prefixed = replace(scope, prepend="x/", run_id="dag/next")
    book.record_copies(prefixed, [(Pending("a", "x/a", 100, "v2"), "")])
    assert engine.run("SELECT prepend, version FROM storeside.objects FINAL ORDER BY prepend") == [
        ["", "v1"], ["x/", "v2"],
    ]  # fmt: skip
    assert planned(prefixed, "v2") == 0
    assert planned(replace(scope, run_id="dag/last"), "v2") == 1


def test_an_outcome_of_0_1_0_counts_for_its_own_result_only(engine: Engine) -> None:
    record(engine, SCOPE.source, SCOPE.destination, "a", "x/a", "v")
    for side in ("source", "before"):
        list_(engine, side, "a", "a", size=0)
    engine.run(sql.query("plan"), {**PARAMETERS, **SCOPE.parameters, "effect": ""})
    assert engine.run("SELECT object FROM storeside.listings WHERE side = 'pending'") == [["a"]]


@pytest.mark.guarantee("results-owned", "names-refused")
@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize(
    ("ledger", "others", "planned"),
    [
        # of the ledger: object, prefix and name of its result, and second of its outcome, of the other objects of the
        # source: the names of their results in this run; the outcome of a.mp3, whose result is a.wav
        ([("a.flac", "", "a.wav", 0)], {"a.flac": "a.wav"}, "a.flac"),
        ([("a.zip", "", "a.wav", 0)], {"a.zip": "a.wav"}, "a.zip"),
        ([("a.zip", "", "a.wav", 0)], {"a.zip": "a.zip"}, "pending"),  # it gets another result in this run
        ([("a.zip", "", "a.wav", 0)], {}, "pending"),  # it was deleted
        ([("a.zip", "", "b.wav", 0)], {"a.zip": "b.wav"}, "pending"),
        ([("p", "a.wa", "a.wav", 0)], {"p": "p"}, "p"),
        ([("p", "a.wa", "a.wav", 0)], {}, "pending"),
        ([("a.mp3", "", "a.wav", 0)], {"a.flac": "a.wav"}, "pending"),
        # version 0.1.0 let both write the result
        ([("a.mp3", "", "a.wav", 0), ("a.flac", "", "a.wav", 1)], {"a.flac": "a.wav"}, "a.flac"),
        ([("a.mp3", "", "a.wav", 1), ("a.flac", "", "a.wav", 0)], {"a.flac": "a.wav"}, "pending"),
    ],
)
def test_the_owner_of_a_result_keeps_it_while_it_exists(
    engine: Engine, ledger: list[tuple[str, str, str, int]], others: dict[str, str], planned: str, whole: bool
) -> None:
    book = Ledger(Client(engine))  # type: ignore[arg-type]
    stored = {name: StoredObject(name, 10, "v") for name in ("a.mp3", *others)}
    listed = stored if whole else {"a.mp3": stored["a.mp3"]}
    results = {"a.mp3": "a.wav", **others}
    book.record_listing(SCOPE, "source", [(name, results[name], 10, "v", "") for name in listed])
    for name, prepend, result, second in ledger:
        record(engine, SCOPE.source, SCOPE.destination, name, result, "old", second=second, prepend=prepend)
    asked: list[str] = []

    def find(names: Sequence[str]) -> Iterator[StoredObject]:
        asked.extend(names)
        return (stored[name] for name in names if name in stored)

    owners.record(book, SCOPE, find, "" if whole else None)
    assert not (whole and asked), "the listing shows what exists"
    engine.run(sql.query("plan"), {**PARAMETERS, **SCOPE.parameters})
    [[side, reason]] = engine.run(
        "SELECT side, reason FROM storeside.listings WHERE object = 'a.mp3' AND side IN ('pending', 'refused')"
    )
    if not whole and others == {"a.zip": "a.zip"}:
        planned = "a.zip"  # this run gives it no other result
    assert side == ("pending" if planned == "pending" else "refused")
    if side == "refused":
        assert reason.startswith(f"its result would be named a.wav, which is the result of {planned}: ")


@pytest.mark.guarantee("results-owned")
@pytest.mark.parametrize(
    ("other", "there", "effect", "planned"),
    [
        # the outcome of the other source: version and size of its result; what the destination lists under this name;
        # the effect of this job, whose object has 10 bytes and the checksum `new`
        (("1/old", 7), ("1/old", 7), "effect", "refused"),
        (("1/old", 7), ("2/old", 7), "effect", "refused"),
        (("", 7), ("1/old", 7), "", "refused"),  # a version that the ledger does not know
        (("1/old", 7), ("2/else", 7), "effect", "pending"),  # another client has overwritten it
        (("1/old", 7), ("1/old", 8), "effect", "pending"),
        (("1/old", 7), None, "effect", "pending"),  # it was deleted
        (("1/new", 10), ("1/new", 10), "", "pending"),  # a copy of the same content overwrites nothing
        (("1/new", 10), ("1/new", 10), "effect", "refused"),  # a result is no copy
        (("1/10", 10), ("1/10", 10), "", "refused"),  # without checksums
    ],
)
def test_a_result_of_another_source_is_not_overwritten(
    engine: Engine, other: tuple[str, int], there: tuple[str, int] | None, effect: str, planned: str
) -> None:
    scope = replace(SCOPE, effect=effect)
    book = Ledger(Client(engine))  # type: ignore[arg-type]
    done = "INSERT INTO storeside.objects (source, destination, object, destination_object, status, result_version,"
    for source, destination in (
        ("s3://other", scope.destination),
        ("s3://elsewhere", "ais://another"),
        (scope.destination, scope.destination),  # a transform in place
    ):
        engine.run(
            f"{done} bytes_out) VALUES ({{s:String}}, {{d:String}}, 'x', 'a', 'done', {{v:String}}, {{b:UInt64}})",
            {"s": source, "d": destination, "v": other[0], "b": other[1]},
        )
    engine.run(f"{done} bytes_out) VALUES ('s3://other', '{scope.destination}', 'y', 'b', 'failed', 'v', 5)")
    version = "1/10" if other[0] == "1/10" else "1/new"
    book.record_listing(scope, "source", [(name, name, 10, version, "") for name in "abc"])
    rows = [("", "a", there[1], there[0], "")] if there else []
    book.record_listing(scope, "before", [*rows, ("", "b", 5, "v", "")])
    owners.record(book, scope, lambda names: (), "")
    found = book.plan(scope, retry_failed=False, keeps_result=True)
    assert (found.pending, found.refused) == ((3, 0) if planned == "pending" else (2, 1))
    [[side, reason]] = engine.run(
        "SELECT side, reason FROM storeside.listings WHERE object = 'a' AND side IN ('pending', 'refused')"
    )
    assert side == planned
    if planned == "refused":
        assert reason.startswith("its result would be named a, which is the result of s3://other/x: ")
        # a later run refuses it again, and plans it after the deletion of the other result
        book.record_listing(scope, "before", [("", "b", 5, "v", "")])
        later = replace(scope, run_id="dag/later")
        for side, listed in (("source", [("a", "a", 10, version, "")]), ("before", rows)):
            book.record_listing(later, side, listed)
        owners.record(book, later, lambda names: (), "")
        refused = book.plan(later, retry_failed=False, keeps_result=True)
        assert (refused.pending, refused.refused + refused.known_bad) == (0, 1)
        book.record_listing(later, "before", [])
        owners.record(book, later, lambda names: (), "")
        assert book.plan(later, retry_failed=False, keeps_result=True).pending == 1


def planned(book: Ledger, scope: Scope, objects: dict[str, str]) -> tuple[int, int]:
    """Plan these objects with these results, all of 10 bytes; return the numbers to process and refused."""
    book.record_listing(scope, "source", [(name, result, 10, "1/new", "") for name, result in objects.items()])
    book.record_listing(scope, "before", [])
    owners.record(book, scope, lambda names: (), "")
    return planned_again(book, scope)


def planned_again(book: Ledger, scope: Scope) -> tuple[int, int]:
    found = book.plan(scope, retry_failed=False, keeps_result=True)
    return found.pending, found.refused + found.known_bad


@pytest.mark.guarantee("results-owned")
def test_a_result_that_a_running_job_of_another_source_makes_is_not_overwritten(engine: Engine) -> None:
    book = Ledger(Client(engine))  # type: ignore[arg-type]
    rival = replace(SCOPE, source="s3://other", run_id="dag/other")
    assert planned(book, rival, {"x": "a", "y": "c"}) == (2, 0)
    for elsewhere in (replace(SCOPE, destination="ais://another"), replace(rival, run_id="dag/third")):
        assert planned(book, elsewhere, {"a": "a"}) == (1, 0)
        book.forget_listings(elsewhere)
    assert planned(book, SCOPE, {"a": "a", "b": "b"}) == (1, 1)
    [[reason]] = engine.run(
        "SELECT reason FROM storeside.objects WHERE object = 'a' AND source = {s:String}", {"s": SCOPE.source}
    )
    assert reason.startswith("its result would be named a, which a run that has not ended makes of s3://other/x: ")
    assert not owners.are_planned_elsewhere(book, SCOPE)
    # a killed job's plan counts for a day, and an ended one's no longer
    later = replace(SCOPE, run_id="dag/later")
    engine.run(
        "ALTER TABLE storeside.listings UPDATE listed_at = now() - INTERVAL 25 HOUR WHERE job = {job:String}"
        " SETTINGS mutations_sync = 1",
        {"job": rival.job},
    )
    assert planned(book, later, {"a": "a"}) == (1, 0)
    book.forget_listings(later)
    assert planned(book, rival, {"x": "a"}) == (1, 0)
    assert planned(book, later, {"a": "a"}) == (0, 1)
    book.forget_listings(rival)
    assert planned(book, later, {"a": "a"}) == (1, 0)


def test_of_two_jobs_that_are_planned_at_the_same_time_one_leaves_their_common_results_to_the_other(
    engine: Engine,
) -> None:
    book = Ledger(Client(engine))  # type: ignore[arg-type]
    rival = replace(SCOPE, source="s3://other", run_id="dag/other")
    book.record_listing(SCOPE, "source", [(name, name, 10, "1/new", "") for name in "ab"])
    book.record_listing(SCOPE, "before", [])
    owners.record(book, SCOPE, lambda names: (), "")
    assert planned(book, rival, {"x": "a"}) == (1, 0)
    assert planned_again(book, SCOPE) == (2, 0)
    assert owners.are_planned_elsewhere(book, SCOPE)
    assert planned_again(book, SCOPE) == (1, 1)
    assert not owners.are_planned_elsewhere(book, rival)


@pytest.mark.parametrize(("effect", "other", "refused"), [("", "", 0), ("", "upper", 1), ("upper", "", 1)])
def test_copies_of_the_same_content_may_run_at_the_same_time(
    engine: Engine, effect: str, other: str, refused: int
) -> None:
    book = Ledger(Client(engine))  # type: ignore[arg-type]
    planned(book, replace(SCOPE, source="s3://other", run_id="dag/other", effect=other), {"a": "a"})
    assert planned(book, replace(SCOPE, effect=effect), {"a": "a"}) == (1 - refused, refused)


@pytest.mark.parametrize("splits", [True, False])
def test_a_split_refuses_shards_in_whose_folders_other_shards_are(engine: Engine, splits: bool) -> None:
    names = ("x.tar", "x/y.tar", "x-1.tar", "d/e.tar", "d/e/f/g.tar", "d", "x", ".tar", "h/i.txt", "h.tar")
    for name in names:
        list_(engine, "source", name, name.replace(".tar", ".jsonl"), 10, "1/v")
    # it was split before the other shard existed
    engine.run(
        "INSERT INTO storeside.objects (source, destination, object, version, effect, destination_object, status,"
        " bytes_out, result_version) VALUES"
        f" ('{SCOPE.source}', '{SCOPE.destination}', 'd/e.tar', '1/v', '{SCOPE.effect}', 'd/e.jsonl', 'done', 5, 'w')"
    )
    list_(engine, "before", "", "d/e.jsonl", 5, "w")
    engine.run(sql.query("plan"), {**PARAMETERS, **SCOPE.parameters, "splits": splits})
    planned = engine.run("SELECT object, side, reason FROM storeside.listings WHERE side IN ('pending', 'refused')")
    text = "its members would be stored in the folder {}/, in which {} is: they could overwrite each other"
    refused = {"x.tar": text.format("x", "x/y.tar"), "d/e.tar": text.format("d/e", "d/e/f/g.tar")}
    found = {name: reason.partition(", so")[0] for name, side, reason in planned if side == "refused"}
    assert found == (refused if splits else {})
    assert {name for name, side, _ in planned if side == "pending"} == {*names} - {*found, "d/e.tar"}


@pytest.mark.parametrize(
    ("now", "changed"),
    [
        ("1/before", False),  # as planned
        ("2/result", False),  # replaced by an earlier attempt
        ("2/before", True),
        ("2/other", True),
        (None, True),  # deleted
    ],
)
def test_an_object_that_changed_since_it_was_planned_is_not_replaced(
    engine: Engine, now: str | None, changed: bool
) -> None:
    for name in ("a", "untouched"):
        list_(engine, "pending", name, name, 10, "1/before")
        list_(engine, "after", "", name, 5, "1/result")
    list_(engine, "now", "", "untouched", 10, "1/before")
    if now is not None:
        list_(engine, "now", "", "a", 10, now)
    client = SimpleNamespace(query=lambda text, parameters: SimpleNamespace(result_rows=engine.run(text, parameters)))
    assert Ledger(client).changed(SCOPE, 10) == ["a"] * changed


@pytest.mark.parametrize(("now", "size", "done"), [("2/result", 5, True), ("3/other", 5, False), (None, 0, False)])
def test_a_replaced_object_is_done_in_the_version_that_it_has_now(
    engine: Engine, now: str | None, size: int, done: bool
) -> None:
    list_(engine, "pending", "a", "a", 10, "1/before")
    list_(engine, "after", "", "a", 5, "1/result")
    if now is not None:
        list_(engine, "now", "", "a", size, now)
    engine.run(sql.query("settle_in_place"), PARAMETERS)
    found = engine.run("SELECT object, version, result_version, bytes_out FROM storeside.objects FINAL")
    assert [[*row[:3], int(row[3])] for row in found] == ([["a", now, now, 5]] if done else [])


# the plan of a transfer


def plan(engine: Engine, objects: list[tuple[str, str, int]], **parameters: Any) -> dict[str, tuple[int, bool, str]]:
    """List objects of key, ETag and size, plan, and return batch, whether it is pushed, and version of each key."""
    engine.run("TRUNCATE TABLE storeside.load_listings")
    engine.run("TRUNCATE TABLE storeside.load_plan")
    for key, etag, size in [*objects, ("in/other transfer", "e", 1)]:
        engine.run(
            "INSERT INTO storeside.load_listings (transfer, key, etag, size, modified)"
            " VALUES ({t:String}, {k:String}, {e:String}, {s:UInt64}, '2022-07-01T12:00:00.250Z')",
            {"t": "other" if "other" in key else "t", "k": key, "e": etag, "s": size},
        )
    engine.run(sql.query("plan_loads"), {**PARAMETERS, **parameters})
    rows = engine.run(
        "SELECT key, batch, pushed, version, transfer, toString(modified) FROM storeside.load_plan ORDER BY key"
    )
    assert all(row[4:] == ["t", "2022-07-01 12:00:00.250"] for row in rows)
    return {row[0]: (row[1], row[2], row[3]) for row in rows}


def remember(engine: Engine, key: str, version: str, state: str, **other: str) -> None:
    engine.run(
        "INSERT INTO storeside.loads (destination, bucket, key, version, state, kind, options)"
        " VALUES ({d:String}, {b:String}, {k:String}, {v:String}, {s:String}, {kind:String}, {o:String})",
        {"d": other.get("destination", "db.table"), "b": other.get("bucket", PARAMETERS["bucket"]), "k": key,
         "v": version, "s": state, "kind": other.get("kind", "object" if state == "failed" else "none"),
         "o": other.get("options", "")},
    )  # fmt: skip


def test_what_is_loaded_or_has_failed_is_not_planned_again(engine: Engine) -> None:
    objects = [
        (f"in/{state}", "e2", 10)
        for state in ("new", "loaded", "failed", "denied", "busy", "publishing", "overwritten", "else")
    ]
    for state in ("loaded", "failed", "publishing"):
        remember(engine, f"in/{state}", "e2", state)
    remember(engine, "in/denied", "e2", "failed", kind="access")
    remember(engine, "in/busy", "e2", "failed", kind="transient")
    remember(engine, "in/overwritten", "e1", "loaded")
    remember(engine, "in/else", "e2", "loaded", destination="db.other")
    remember(engine, "in/else", "e2", "loaded", bucket="other")
    expected = {"in/new", "in/overwritten", "in/publishing", "in/else", "in/denied", "in/busy"}
    assert set(plan(engine, objects)) == expected
    assert set(plan(engine, objects, retry_failed=True)) == {*expected, "in/failed"}


def test_listings_begin_before_what_was_planned_and_not_loaded(engine: Engine) -> None:
    def after() -> str:
        return engine.run(sql.query("start_after"), {**PARAMETERS, "overlap": 0})[0][0]

    plan(engine, [(f"in/{n}", "e", 1) for n in range(6)])
    engine.run(
        "INSERT INTO storeside.load_plan (transfer, key, version, load_id) VALUES ('of another', 'in/0', 'e', 1)"
    )
    for n in (4, 5):
        load(engine, f"in/{n}")
    assert after() == ""
    for n in (0, 1, 2):
        load(engine, f"in/{n}")
    assert after() == "in/2"
    load(engine, "in/3")
    assert after() == "in/5"
    load(engine, "in/3", "failed", "object")
    assert after() == "in/5"
    load(engine, "in/3", "failed", "transient")
    assert after() == "in/2"
    engine.run(
        "INSERT INTO storeside.loads (destination, bucket, key, version, state, recorded_at)"
        " VALUES ('db.table', {bucket:String}, 'in/6', 'e', 'loaded', now64(6) + INTERVAL 36 DAY)",
        PARAMETERS,
    )
    assert after() == "in/6"  # the object was deleted, or runs would have recorded it again


def test_listings_begin_after_what_was_loaded_of_their_own_keys(engine: Engine) -> None:
    """Tasks with different keys may share a table and a bucket."""

    def after(keys: str) -> str:
        source = Source("bucket", keys)
        own = {"overlap": 0, "prefix": source.prefix, "regex": source.regex}
        return engine.run(sql.query("start_after"), {**PARAMETERS, **own})[0][0]

    for key in ("a/1.csv", "b/1.csv", "b/1.json"):
        load(engine, key)
    assert [after(keys) for keys in ("a/", "b/", "b/*.csv", "c/", "")] == [
        "a/1.csv", "b/1.json", "b/1.csv", "", "b/1.json",
    ]  # fmt: skip
    load(engine, "b/2.csv")
    plan(engine, [("a/2.csv", "e", 1)], regex=pattern(""))
    load(engine, "b/0.json", "failed", "transient")  # not to be listed again for "*.csv", nor for "a/"
    assert [after(keys) for keys in ("a/", "b/", "b/*.csv")] == ["a/1.csv", "", "b/2.csv"]


def load(engine: Engine, key: str, state: str = "loaded", kind: str = "none") -> None:
    """Record the outcome of an object of `plan`."""
    engine.run(
        "INSERT INTO storeside.loads (destination, bucket, key, version, load_id, state, kind)"
        " VALUES ({d:String}, {b:String}, {k:String}, 'e', sipHash64({d:String}, {b:String}, {k:String}, 'e'),"
        " {s:String}, {kind:String})",
        {"d": "db.table", "b": PARAMETERS["bucket"], "k": key, "s": state, "kind": kind},
    )


def test_what_a_run_of_events_has_done_is_known_to_its_next_try(engine: Engine) -> None:
    def settle(message: str, *states: str, run: str = "dag/run", event: str = "ObjectCreated:Put") -> None:
        for n, state in enumerate(states):
            engine.run(
                "INSERT INTO storeside.events (queue, message_id, record, event, state, run_id)"
                " VALUES ('url', {m:String}, {n:UInt32}, {e:String}, {s:String}, {r:String})",
                {"m": message, "n": n, "e": event, "s": state, "r": run},
            )

    def publish(key: str, state: str, run: str) -> None:
        engine.run(
            "INSERT INTO storeside.loads (destination, bucket, key, version, state, rows, rejected, bytes, run_id)"
            " VALUES ('db.table', 'b', {k:String}, 'e', {s:String}, 10, 1, 100, {r:String})",
            {"k": key, "s": state, "r": run},
        )

    settle("loaded", "loaded", "skipped")
    settle("given back", "loaded", "released")
    settle("given back before", "released")
    settle("given back before", "loaded")
    settle("dead", "loaded", "dead")
    settle("test event", "skipped", event="")
    settle("of another run", "loaded", run="dag/other")
    for key in ("a", "b"):
        publish(key, "publishing", "dag/run/0123")
        publish(key, "loaded", "dag/run/0123")
    publish("a", "loaded", "dag/run/4567")  # the state that a crash in between leaves
    publish("c", "loaded", "dag/run2/0123")
    publish("d", "failed", "dag/run/0123")
    client = SimpleNamespace(
        query=lambda text, parameters: SimpleNamespace(
            column_names=[row[0] for row in engine.run(f"DESCRIBE ({text})", parameters)],
            first_row=engine.run(text, parameters)[0],
        )
    )
    found = Drained(**EventLedger(client, "url", "dag/run").so_far("db.table", "b"))
    assert found == Drained(messages=3, events=3, loaded=2, skipped=1, deleted=3, rows=20, rejected=2, bytes=200)


@pytest.mark.guarantee("events-overwritten")
def test_what_a_transform_has_done_is_known_to_its_events(engine: Engine) -> None:
    def transformed(key: str, version: str, status: str, listed: int, destination: str = "ais://out") -> None:
        engine.run(
            "INSERT INTO storeside.objects (source, destination, object, version, status, reason, listed_at,"
            " recorded_at) SELECT 's3://in', {d:String}, {k:String}, {v:String}, {s:String},"
            " if({s:String} = 'failed', 'bad', ''), toDateTime64({a:UInt32}, 3), toDateTime64(40, 3)",
            {"k": key, "v": version, "s": status, "a": listed, "d": destination},
        )

    events = {
        "listed after": 10, "listed before": 30, "unchanged": 30, "bad": 10, "bad before": 30, "bad version": 30,
        "of an earlier release": 10, "unchanged of an earlier release": 10, "elsewhere": 10, "unknown": 10,
        "left out": 10,
    }  # fmt: skip
    transformed("listed after", "old", "done", 20)
    transformed("listed before", "old", "done", 20)
    transformed("unchanged", "tag", "done", 20)
    transformed("bad", "", "failed", 20)
    transformed("bad before", "old", "failed", 20)
    transformed("bad version", "tag", "failed", 20)
    transformed("of an earlier release", "old", "done", 0)
    transformed("unchanged of an earlier release", "tag", "done", 0)
    transformed("elsewhere", "tag", "done", 20, "ais://other")
    transformed("left out", "tag", "left_out", 20)
    wanted = " UNION ALL ".join(
        f"SELECT {n} AS n, '{key}' AS key, 'tag' AS etag, {at} AS at" for n, (key, at) in enumerate(events.items())
    )
    text = sql.query("events_transformed").replace("FROM wanted", f"FROM ({wanted})")
    rows = engine.run(text, {"bucket": "s3://in", "destination": "ais://out"})
    names = list(events)
    assert {names[n]: (state, reason) for n, state, reason in rows} == {
        "listed after": ("loaded", ""),
        "unchanged": ("loaded", ""),
        "bad": ("failed", "bad"),
        "bad version": ("failed", "bad"),
        "unchanged of an earlier release": ("loaded", ""),
        "left out": ("loaded", ""),
    }


@pytest.mark.parametrize(
    ("before", "after", "status"),
    [("/sum", "/sum", "done"), ("1/sum", "1/sum", "failed"), ("1/sum", "2/sum", "done")],
)
def test_an_equal_copy_is_there_in_a_bucket_without_versioning(
    engine: Engine, before: str, after: str, status: str
) -> None:
    for side, version in (("pending", "v"), ("copied", ""), ("before", before), ("after", after)):
        list_(engine, side, "a", "a", version=version)
    engine.run(sql.query("settle_copies"), PARAMETERS)
    assert engine.run("SELECT object, status FROM storeside.objects") == [["a", status]]


@pytest.mark.parametrize("name", ["settle", "settle_copies", "settle_in_place", "settle_invalid", "settle_refused"])
def test_outcomes_have_the_time_when_the_listing_of_their_versions_began(engine: Engine, name: str) -> None:
    sides = ("pending", "after", "copied", "now", "refused")
    for side in sides:
        list_(engine, side, "a", "a", version="v" if side != "after" else "2")
    list_(engine, "now", "a", "a", version="2")
    quarantine(engine, "a", "too long")
    find = sql.query(name)
    engine.run(find, PARAMETERS)
    assert engine.run("SELECT DISTINCT toUnixTimestamp(listed_at) FROM storeside.objects") == [[0]]
    engine.run("TRUNCATE TABLE storeside.objects")
    engine.run(
        "INSERT INTO storeside.listings (job, side, listed_at) VALUES ({j:String}, 'listing', now() - 60)",
        {"j": SCOPE.job},
    )
    engine.run(find, PARAMETERS)
    ((age,),) = engine.run("SELECT DISTINCT now() - toDateTime(listed_at) FROM storeside.objects")
    assert 60 <= age < 90


def test_an_event_is_done_when_the_second_result_of_its_object_is_loaded(engine: Engine) -> None:
    def made(
        source: str, to: str, name: str, version: str, result: str, new: str, status: str = "done", listed: int = 5
    ) -> None:
        engine.run(
            "INSERT INTO storeside.objects (source, destination, object, version, destination_object, result_version,"
            " status, reason, listed_at) SELECT {f:String}, {t:String}, {o:String}, {v:String}, {d:String},"
            " {m:String}, {s:String}, if({s:String} = 'failed', 'bad', ''), toDateTime64({a:UInt32}, 3)",
            {"f": source, "t": to, "o": name, "v": version, "d": result, "m": new, "s": status, "a": listed},
        )

    def load(key: str, version: str, state: str, kind: str = "object") -> None:
        engine.run(
            "INSERT INTO storeside.loads (destination, bucket, key, version, state, kind, reason)"
            " SELECT 'd.t', 'ais://facts', {k:String}, {v:String}, {s:String}, {i:String},"
            " if({s:String} = 'failed', 'no rows', '')",
            {"k": key, "v": version, "s": state, "i": kind},
        )

    names = ["loaded", "cut", "described", "unreadable", "waiting", "newer shard", "older load", "listed after",
             "listed before", "unknown"]  # fmt: skip
    for name in names[:7]:
        made("s3://in", "ais://cut", name, "tag", f"{name}.tar", "1/a", "failed" if name == "cut" else "done")
    made("s3://in", "ais://cut", "listed after", "old", "listed after.tar", "1/a", listed=20)
    made("s3://in", "ais://cut", "listed before", "old", "listed before.tar", "1/a", listed=5)
    for name in ("loaded", "unreadable", "waiting", "older load", "listed after", "listed before"):
        made("ais://cut", "ais://facts", f"{name}.tar", "1/a", f"{name}.jsonl", "2/b")
    made("ais://cut", "ais://facts", "described.tar", "1/a", "", "", "failed")
    made("ais://cut", "ais://facts", "newer shard.tar", "0/z", "newer shard.jsonl", "2/b")
    for name in ("loaded", "listed after", "listed before"):
        load(f"{name}.jsonl", "2/b", "loaded")
    load("unreadable.jsonl", "2/b", "failed")
    load("older load.jsonl", "1/c", "loaded")
    load("newer shard.jsonl", "2/b", "loaded")
    wanted = " UNION ALL ".join(
        f"SELECT {n} AS n, '{key}' AS key, 'tag' AS etag, 10 AS at" for n, key in enumerate(names)
    )
    text = sql.query("events_facts_loaded").replace("FROM wanted", f"FROM ({wanted})")
    given = {"bucket": "s3://in", "destination": "ais://cut", "facts": "ais://facts", "table": "d.t"}
    assert {names[n]: (state, reason) for n, state, reason in engine.run(text, given)} == {
        "loaded": ("loaded", ""),
        "cut": ("failed", "bad"),
        "described": ("failed", "bad"),
        "unreadable": ("failed", "no rows"),
        "listed after": ("loaded", ""),
    }


def test_the_latest_state_of_a_load_counts(engine: Engine) -> None:
    remember(engine, "in/a", "e", "failed")
    remember(engine, "in/a", "e", "loaded")
    remember(engine, "in/b", "e", "loaded")
    remember(engine, "in/b", "e", "replaced")
    assert set(plan(engine, [("in/a", "e", 1), ("in/b", "e", 1)], retry_failed=True)) == {"in/b"}


def test_batches_have_so_many_bytes_and_so_many_objects(engine: Engine) -> None:
    small = {f"in/{n:02}": (n // 4 * 2, False, "e") for n in range(10)}
    assert plan(engine, [(key, "e", 1) for key in small]) == small
    large = plan(
        engine, [("in/a", "e", 60), ("in/b", "e", 40), ("in/c", "e", 100), ("in/d", "e", 500), ("in/e", "e", 1)]
    )
    assert [batch for batch, _, _ in large.values()] == [0, 0, 2, 4, 14]


def test_what_clickhouse_cannot_address_has_batches_of_its_own(engine: Engine) -> None:
    keys = ["in/a", "in/b?", "in/c//d", "in/e.csv.zst", "in/f.csv.gz"]
    found = plan(engine, [(key, "e", 1) for key in keys])
    assert {key: pushed for key, (_, pushed, _) in found.items()} == dict(
        zip(keys, [False, True, True, True, False], strict=True)
    )
    assert {batch for batch, pushed, _ in found.values() if pushed} == {1}
    assert {batch for batch, pushed, _ in found.values() if not pushed} == {0}
    assert all(pushed for _, pushed, _ in plan(engine, [(key, "e", 1) for key in keys], push=True).values())


def test_objects_without_an_etag_are_refused(engine: Engine) -> None:
    """AIStore reports the time of the last access as that of the last change: nothing else distinguishes versions."""

    class Client:
        def command(self, text: str, parameters: Any = None) -> None:
            if text.startswith("--"):  # the plan; a transfer's id is part of another statement's text
                engine.run(text, {**PARAMETERS, **parameters})

        def query(self, text: str, parameters: Any) -> Any:
            return SimpleNamespace(first_row=engine.run(text, parameters)[0])

    made = Plan(Loads(Client(), "t", "db.table", Source("bucket", "in/"), "run"))
    limits = {"batch_bytes": 100, "batch_objects": 4, "push": False, "retry_failed": False}
    plan(engine, [("in/a", "e", 12), ("out/b", "", 1)])
    engine.run("TRUNCATE TABLE storeside.load_plan")
    assert made.make(**limits) == (1, 1, 12)
    plan(engine, [("in/a", "e", 12), ("in/b", "", 1)])
    engine.run("TRUNCATE TABLE storeside.load_plan")
    with pytest.raises(TransferInputError, match=r"s3://bucket/in/b .* ETag.* ais://bucket checksum.type=md5"):
        made.make(**limits)


def test_markers_are_ignored_unless_the_keys_name_them(engine: Engine) -> None:
    class Client:
        def command(self, text: str, parameters: Any = None) -> None:
            engine.run(text, {**PARAMETERS, **parameters} if text.startswith("--") else parameters)

        def query(self, text: str, parameters: Any) -> Any:
            return SimpleNamespace(first_row=engine.run(text, parameters)[0])

    markers = (
        "_SUCCESS", "dt=1/_SUCCESS", "_committed_1", "dt=1/.part-0.parquet.crc", "x.crc", "x.metadata",
        "old_$folder$",
    )  # fmt: skip
    data = {"in/_raw/x.csv", "in/_year=2026/x.csv", "in/x_.csv", "in/.d/x.csv", "in/x.crc.csv"}
    listed = [(key, "e", 1) for key in (*(f"in/{name}" for name in markers), *data)]

    def planned(keys: str) -> tuple[set[str], dict[str, int]]:
        plan(engine, listed)
        engine.run("TRUNCATE TABLE storeside.load_plan")
        source = Source("bucket", keys)
        made = Plan(Loads(Client(), "t", "db.table", source, "run", markers=source.markers))  # type: ignore[arg-type]
        made.make(batch_bytes=100, batch_objects=4, push=False, retry_failed=False)
        return {key for (key,) in engine.run("SELECT key FROM storeside.load_plan")}, made.ignored

    kinds = {"_*": 3, ".*": 1, "*.crc": 1, "*.metadata": 1, "*_$folder$": 1}
    found, ignored = planned("in/")
    assert found == data
    assert {key for key, *_ in listed if not Source("bucket", "in/").ignores(key)} == data  # the same without SQL
    assert {name: int(count) for name, count in ignored.items()} == kinds
    assert planned("in/_SUCCESS")[0] == {"in/_SUCCESS"}
    assert planned("in/*.crc")[0] == {"in/x.crc"}
    assert planned("in/_*")[0] == {"in/_SUCCESS", "in/_committed_1"}


def test_known_failures_are_named_until_they_are_accepted_or_options_change(engine: Engine) -> None:
    def known(options: str = "now") -> tuple[int, list[str]]:
        loads = Loads(Client(engine), "t", "db.table", Source(PARAMETERS["bucket"], "in/"), "run", options=options)  # type: ignore[arg-type]
        found = Plan(loads).known_bad(2)
        return found.known_bad, [key for key, _ in found.known_failures]

    listed = [(f"in/{name}", "e2", 10) for name in ("a", "b", "c", "denied", "loaded", "new", "overwritten")]
    for name in ("a", "b", "c", "gone"):
        remember(engine, f"in/{name}", "e2", "failed", options="now" if name == "b" else "")
    remember(engine, "in/denied", "e2", "failed", kind="access")
    remember(engine, "in/loaded", "e2", "loaded")
    remember(engine, "in/overwritten", "e1", "failed")
    assert {*plan(engine, listed)} == {"in/denied", "in/new", "in/overwritten"}
    assert known() == (3, ["in/a", "in/b"])
    assert {*plan(engine, listed, options="other")} == {"in/b", "in/denied", "in/new", "in/overwritten"}
    assert known("other") == (2, ["in/a", "in/c"])
    some = Loads(Client(engine), "t", "db.table", Source(PARAMETERS["bucket"], "in/{a,b}"), "run")  # type: ignore[arg-type]
    assert some.accept("ada", ["in/a"]) == 1
    assert some.accept("ada") == 1
    assert known() == (1, ["in/c"])
    assert {*plan(engine, listed)} == {"in/denied", "in/new", "in/overwritten"}
    rows = engine.run(
        "SELECT key, accepted_by, options FROM storeside.loads FINAL WHERE accepted_by != '' ORDER BY 1"
    )
    assert rows == [["in/a", "ada", ""], ["in/b", "ada", "now"]]
    assert some.accept("ada") == 0


def test_a_plan_has_what_the_keys_choose_and_no_folders(engine: Engine) -> None:
    objects = [
        ("in/a.csv", "e", 1),
        ("in/b/a.csv", "e", 1),
        ("in/b/", "e", 0),
        ("in/empty", "e", 0),
        ("out/a", "e", 1),
    ]
    assert set(plan(engine, objects)) == {"in/a.csv", "in/b/a.csv", "in/empty"}
    assert set(plan(engine, objects, regex=pattern("in/*.csv"))) == {"in/a.csv"}
    assert set(plan(engine, objects, regex=pattern("**a*"))) == {"in/a.csv", "in/b/a.csv", "out/a"}


@pytest.mark.guarantee("names-not-sql")
def test_names_of_objects_are_no_sql(engine: Engine) -> None:
    hostile = [*HOSTILE_NAMES, "' OR 1 --", "\\' OR 1 --", "`; DROP TABLE x", "{k:String}", "%(k)s", "\\"]
    names = [f"in/{name}" for name in hostile]
    assert set(plan(engine, [(name, "e", 1) for name in names])) == set(names)
    source = Source("bucket", "")
    for name in names:
        chosen = source.only([name, "another"])
        found = engine.run(
            f"SELECT key FROM (SELECT key, 'bucket/' || key AS _path FROM storeside.load_plan) WHERE {chosen}"
        )
        assert found == [[name]]
        assert engine.run(f"SELECT 1 AS {identifier(name)} FORMAT JSONEachRow") == [{name: 1}]
        assert Ledger(Client(engine)).missing(SCOPE, name, 1) == []  # type: ignore[arg-type]


def test_the_same_load_has_the_same_id_and_another_has_another(engine: Engine) -> None:
    def ids(**parameters: Any) -> set[int]:
        plan(engine, [("in/a", "e", 1), ("in/b", "e", 1), ("in/c", "f", 1)], **parameters)
        return {row[0] for row in engine.run("SELECT toString(load_id) FROM storeside.load_plan")}

    first = ids()
    assert len(first) == 3
    assert ids() == first
    assert not ids(destination="db.other") & first
    assert not ids(bucket="another") & first


# the plan of a small listing, which this process makes


class SmallClient(Client):
    """A client that also takes the rows of a plan, in the format Native."""

    def raw_insert(self, table: str, names: Sequence[str], block: Iterator[bytes], settings: Any, form: str) -> None:
        with tempfile.NamedTemporaryFile() as file:
            file.writelines(block)
            file.flush()
            columns = ", ".join(names)
            self.engine.run(f"INSERT INTO {table} ({columns}) SELECT {columns} FROM file('{file.name}', {form})")


_STATES = ("loaded", "failed", "publishing", "replaced")


def _random_ledger(engine: Engine, random_: random.Random, keys: Sequence[str]) -> None:
    engine.run("TRUNCATE TABLE storeside.loads")
    for _ in range(random_.randrange(8)):
        engine.run(
            "INSERT INTO storeside.loads"
            " (destination, bucket, key, version, state, kind, options, run_id, rows, bytes)"
            " VALUES ({d:String}, {b:String}, {k:String}, {v:String}, {s:String}, {kind:String}, {o:String},"
            " {r:String}, 3, 5)",
            {
                "d": random_.choice(["db.table", "db.table", "db.other"]), "b": PARAMETERS["bucket"],
                "k": random_.choice([*keys, "in/gone"]), "v": random_.choice(["e1", "e2"]),
                "s": random_.choice(_STATES), "kind": random_.choice(["object", "access"]),
                "o": random_.choice(["", "now", "before"]), "r": random_.choice(["run", "another"]),
            },
        )  # fmt: skip


@pytest.mark.parametrize("seed", range(8))
def test_the_plan_of_a_small_listing_is_that_of_the_statement(engine: Engine, seed: int) -> None:
    """The same listing, ledger and limits: batches, ids, numbers, totals and known failures are the same."""
    random_ = random.Random(seed)  # noqa: S311 - test data
    hostile = [f"in/{name}" for name in random_.sample(HOSTILE_NAMES, 3)]
    keys = ["in/a.csv", "in/B.csv", "in/ä.csv", "in/_SUCCESS", "in/x/", "in/x.crc", "in/q?.csv", "out/a", *hostile]
    modified = ("2022-07-01T12:00:00.250Z", "2026-07-01T12:00:00Z", "", "no time")
    listed = [
        Listed(key, random_.choice(["e1", "e2"]), random_.choice([0, 1, 30, 90, 250]), random_.choice(modified))
        for key in random_.sample(keys, random_.randrange(len(keys) + 1))
    ]
    _random_ledger(engine, random_, [o.key for o in listed] or ["in/a.csv"])
    source = Source(PARAMETERS["bucket"], random_.choice(["in/", "in/*.csv", "", "in/_*"]))
    limits: dict[str, Any] = {
        "batch_bytes": 100, "batch_objects": random_.choice([1, 3, 7]), "push": random_.random() < 0.2,
        "retry_failed": random_.random() < 0.3, "since": random_.choice([0, 1_700_000_000]),
    }  # fmt: skip
    found = []
    for stores in (True, False):
        engine.run("TRUNCATE TABLE storeside.load_plan")
        engine.run("TRUNCATE TABLE storeside.load_listings")
        client: Any = SmallClient(engine)
        client.insert = lambda table, columns, **_: [
            engine.run(
                "INSERT INTO storeside.load_listings (transfer, key, etag, size, modified)"
                " VALUES ({t:String}, {k:String}, {e:String}, {s:UInt64}, {m:String})",
                dict(zip("tkesm", row, strict=True)),
            )
            for row in zip(*columns, strict=True)
        ]
        loads = Loads(client, "ab" * 8, "db.table", source, "run", options="now", markers=source.markers)
        made = Plan(loads, stores=stores)
        made.record_listing([listed])
        numbers = made.make(**limits, settle=lambda: None)
        known = made.known_bad(3, limits["since"])
        stored = engine.run("SELECT * EXCEPT planned_at FROM storeside.load_plan ORDER BY batch, key, version")
        batches = [(b.number, b.pushed, sorted(b.listed, key=repr)) for b in made.listed_batches()]
        found.append(
            (numbers, {n: int(c) for n, c in made.ignored.items()}, known, stored, batches, made.sample(2),
             [b.number for b in made.batches()], sorted(made.unfinished(), key=repr), made.listed_below("in/"),
             tuple(map(int, made.facts("countIf(size > 0)"))), loads.totals())
        )  # fmt: skip
        assert made.is_small is not stores
    assert found[0] == found[1]


@pytest.mark.parametrize(
    ("code", "said", "remedy"),
    [
        (497, "necessary to have the grant WRITE ON S3", "choose a clickhouse_conn_id whose user may export"),
        (499, "The specified bucket does not exist, bucket datasets", "create the bucket, or correct its name"),
    ],
)
def test_an_export_that_clickhouse_refuses_states_the_remedy(code: int, said: str, remedy: str) -> None:
    client = Mock()
    client.query.side_effect = error = DatabaseError(said)
    error.code = code
    with pytest.raises(ExportError, match=f"{said}.*: {remedy}"):
        export(client, Source("datasets", "a.jsonl"), "nemo", "ais://speech")


def test_an_export_is_retried_after_a_passing_error() -> None:
    client = Mock()
    client.query.side_effect = error = DatabaseError("memory limit exceeded")
    error.code = 241
    with pytest.raises(DatabaseError):
        export(client, Source("datasets", "a.jsonl"), "nemo", "ais://speech")
