"""The pages' queries, in ClickHouse's own engine: empty tables, cursors, and permissions."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from clickhouse_connect.driver.binding import bind_query, quote_identifier
from clickhouse_connect.driver.exceptions import DatabaseError

from storeside import sql
from storeside.pages import (
    benchmarks,
    destinations,
    etls,
    failures,
    movement,
    objects,
    overview,
    progress,
    quality,
    queues,
)
from storeside.pages.datapath import data_path
from storeside.pages.movement import SORTS, Filter, Movement, Sort
from storeside.pages.objects import Place, Search
from storeside.pages.tables import PAGE, At, Page, Tables, UnavailableError, read_cursor, write_cursor
from tests import in_memory
from tests.statements import COMPILES_NOTHING
from tests.unit.test_sql import every_statement

HOSTILE = ['"><script>alert(1)</script>', "it's", "a\\b", "new\nline", "{text:String}", "% _", "\u202egnp.exe", "ü?*"]


class Rows:
    def __init__(self, lines: list[str]) -> None:
        self.lines = lines

    def named_results(self) -> Iterator[dict[str, Any]]:
        return (json.loads(line) for line in self.lines)


class Client:
    """ClickHouse's engine in process, with clickhouse-connect's interface."""

    def __init__(self) -> None:
        from chdb.session import Session

        self.session = Session(in_memory.engine())
        for name in COMPILES_NOTHING:
            self.session.query(f"SET {name} = 0")

    def query(self, text: str, parameters: Mapping[str, Any], settings: Mapping[str, Any]) -> Rows:
        statement, bound = bind_query(text, dict(parameters))
        values = {name.removeprefix("param_"): value for name, value in bound.items()}
        try:
            answer = self.session.query(statement, "JSONEachRow", params=values).data()
        except Exception as e:
            code = int(str(e).partition("Code: ")[2].partition(".")[0] or 0)
            raise DatabaseError(str(e), code=code) from e
        return Rows(answer.splitlines())

    def command(self, text: str) -> None:
        self.session.query(text)

    def insert(self, table: str, rows: list[list[Any]], column_names: list[str]) -> None:
        lines = "\n".join(json.dumps(dict(zip(column_names, row, strict=True))) for row in rows)
        self.session.query(f"INSERT INTO {table} FORMAT JSONEachRow {lines}")

    def fill(self, table: str, **columns: Any) -> None:
        """Insert one row into a table of the ledger, or into `database.table`."""
        self.fill_with(table, [columns])

    def fill_with(self, table: str, rows: Iterable[dict[str, Any]]) -> None:
        """Insert rows into a table of the ledger, or into `database.table`, at once."""
        name = table if "." in table else f"storeside.{table}"
        self.session.query(f"INSERT INTO {name} FORMAT JSONEachRow {' '.join(map(json.dumps, rows))}")


@pytest.fixture(scope="module")
def engine() -> Iterator[Client]:
    client = Client()
    yield client
    client.session.close()


@pytest.fixture
def empty(engine: Client) -> Client:
    engine.command("DROP DATABASE IF EXISTS storeside")
    return engine


@pytest.fixture
def client(engine: Client) -> Client:
    """The engine with all tables, and without rows: the creation of the tables takes longer than most tests."""
    found = engine.query(
        "SELECT database, name, total_rows FROM system.tables WHERE database IN ('storeside', 'speech')", {}, {}
    )
    tables = list(found.named_results())
    if not any(table["database"] == "storeside" for table in tables):
        for statement in every_statement():
            engine.command(statement)
    for table in tables:
        if int(table["total_rows"] or 0):
            engine.command(f"TRUNCATE TABLE {quote_identifier(table['database'])}.{quote_identifier(table['name'])}")
    return engine


@pytest.fixture
def changed(client: Client) -> Iterator[Client]:
    """As `client`, for a test that makes or changes tables."""
    yield client
    client.command("DROP DATABASE storeside")


def stage(**other: Any) -> Movement:
    given = {
        "run_id": "d/r", "task_id": "t", "kind": "transform", "source": "ais://a",
        "destination": "ais://b", "state": "done", "listed": 0, "skipped": 0, "done": 1, "failed": 0, "bytes_in": 10,
        "bytes_out": 20, "seconds": 2.0, "job_seconds": 1.0, "recorded": 100.0,
    }  # fmt: skip
    return Movement(**{**given, **other})


def run_row(client: Client, run: str, task: str = "t", at: str = "2026-01-01 00:00:00", **other: Any) -> None:
    dag = run.partition("/")[0]
    client.fill(
        "runs", run_id=run, dag_id=dag, task_id=task, recorded_at=at, **{"kind": "copy", "state": "done", **other}
    )


def known(tables: Tables, name: str = "x") -> list[failures.Known]:
    """Return the known failures of a transform and of a load that left out this object."""
    detail = {"known_failures": [[name, "bad"]]}
    load = stage(kind="load", source="s3://b/", destination="clickhouse://db.table", detail=detail)
    return [*failures.known(tables, stage(detail=detail)), *failures.known(tables, load)]


def everything(tables: Tables) -> list[Any]:
    """Call every function that reads; each returns an empty value if there is nothing."""
    load = stage(kind="load", source="s3://b/", destination="clickhouse://db.table", detail={"rejected": 1})
    found = objects.lineage(tables, Place("ais://a", "x"))
    return [
        movement.movements(tables, Filter()).rows, movement.dags(tables), movement.later_runs(tables, stage()),
        movement.stages(tables, "d/r"), movement.throughput(tables),
        movement.outcomes(tables, stage()).rows, movement.outcomes(tables, load).rows,
        movement.rejected_rows(tables, load), movement.published(tables, "d/r"),
        objects.search(tables, Search()).rows, objects.search_loads(tables, Search()).rows,
        found.steps, found.loads, found.manifest or [], quality.verdicts(tables).rows, queues.queues(tables),
        queues.history(tables, "q"), queues.events(tables, "q").rows, queues.dags(tables, "q"),
        benchmarks.charts(tables), movement.totals(tables, Filter()), movement.places(tables),
        objects.count(tables, Search()), objects.count_loads(tables, Search()), queues.count(tables, "q"),
        overview.pipelines(tables), overview.open_failures(tables), etls.uses(tables),
        movement.replaced(tables), [one for one in known(tables) if one.is_open],
    ]  # fmt: skip


@pytest.mark.parametrize("there", [False, True])
def test_nothing_is_there_yet(empty: Client, request: pytest.FixtureRequest, there: bool) -> None:
    tables = Tables(request.getfixturevalue("client") if there else empty)
    assert not any(everything(tables))
    assert set(benchmarks.missing(tables)) == set(benchmarks.EXPECTED)
    begun = progress.load_progress(tables, stage(kind="load", detail={"objects": 4, "bytes": 8}))
    assert (begun.objects, begun.objects_total, begun.share) == (0, 4, 0.0)


def test_what_is_wrong_is_not_taken_for_nothing(client: Client) -> None:
    with pytest.raises(UnavailableError, match=r"cannot answer this page's query \(error 62\)"):
        Tables(client).rows("SELECT (")


def test_movements_come_newest_first_in_pages(client: Client) -> None:
    for n in range(7):
        run_row(client, f"d/{n}", at=f"2026-01-01 00:00:0{n // 2}")  # two at a time
    tables, seen, after = Tables(client), [], ""
    while True:
        page = movement.movements(tables, Filter(), At(after), limit=3)
        seen += [m.run for m in page.rows]
        if not (after := page.after):
            break
    assert seen == ["6", "5", "4", "3", "2", "1", "0"]


def test_movements_are_filtered(client: Client) -> None:
    run_row(client, "speech/1", "ingest", source="s3://in", destination="ais://in")
    run_row(client, "speech/1", "transcode", kind="transform", source="ais://in", destination="ais://out")
    run_row(client, "load/1", "load", kind="load", state="partial", source="s3://t/", destination="clickhouse://db.t")

    def found(**chosen: str) -> set[str]:
        return {m.task_id for m in movement.movements(Tables(client), Filter(**chosen)).rows}

    assert found(dag="load") == found(place="db.t") == found(kind="load") == found(state="partial") == {"load"}
    assert found(place="ais://in") == {"ingest", "transcode"}
    assert found() == {"ingest", "transcode", "load"}
    with pytest.raises(ValueError, match="choose from"):
        Filter(state="'; DROP")


def test_the_end_of_a_task_takes_the_place_of_its_beginning(client: Client) -> None:
    run_row(client, "d/1", state="running", detail=json.dumps({"started": 1.5, "objects": 9}))
    (running,) = movement.movements(Tables(client), Filter(state="running")).rows
    assert (running.started, running.detail["objects"]) == (1.5, 9)
    run_row(client, "d/1", at="2026-01-01 00:01:00", state="done", done=9)
    assert [m.state for m in movement.movements(Tables(client), Filter()).rows] == ["done"]


def fill_all(client: Client, dag: str, name: str = "x") -> None:
    """Insert one row into every table, all of one DAG."""
    run = f"{dag}/r"
    run_row(client, run, kind="validate", detail=json.dumps({"expectations": []}), listed=1, done=1, seconds=1)
    run_row(
        client, run, "moved", source="ais://a", destination="ais://b", done=1, failed=1, seconds=1, at="2100-01-01"
    )
    loaded = {"kind": "load", "source": "s3://b/", "destination": "clickhouse://db.table"}
    run_row(client, run, "load", done=1, at="2100-01-01", **loaded)
    client.fill(
        "objects",
        source="ais://a",
        destination="ais://b",
        object=name,
        destination_object=name,
        status="done",
        run_id=run,
    )
    client.fill("loads", destination="db.table", bucket="b", key=name, version="v", state="loaded", run_id=run)
    client.fill("speech.manifest", bucket="ais://b", object=name, run_id=run)
    client.fill("events", queue="q", message_id="m", bucket="b", key=name, state="dead", run_id=run)
    detail = json.dumps({"etls": ["wav-1"], "job": "j", "aistore_conn_id": "c"})
    run_row(client, run, "runs", state="running", detail=detail, at="2100-01-01")
    for source, destination in (("ais://a", "ais://b"), ("s3://b", "clickhouse://db.table")):
        client.fill(
            "failures", run_id=run, source=source, destination=destination, object=f"{name} failed", state="failed",
            recorded_at="2100-01-01",
        )  # fmt: skip


def test_rows_of_dags_that_one_may_not_read_are_not_there(changed: Client) -> None:
    fill_all(changed, "secret")
    failed = {"version": "v", "run_id": "secret/r"}
    changed.fill("objects", source="ais://a", destination="ais://b", object="bad", status="failed", **failed)
    changed.fill("loads", destination="db.table", bucket="b", key="bad", state="failed", kind="object", **failed)
    changed.command("CREATE TABLE IF NOT EXISTS storeside.table_rejected (key String) ENGINE = Memory")

    def seen(tables: Tables) -> list[bool]:
        return [
            bool(movement.movements(tables, Filter()).rows), bool(movement.stages(tables, "secret/r")),
            bool(movement.throughput(tables, hours=24 * 365 * 80)),
            bool(movement.outcomes(tables, stage(run_id="secret/r")).rows),
            bool(movement.outcomes(tables, load("secret/r")).rows), bool(movement.published(tables, "secret/r")),
            bool(objects.search(tables, Search("x")).rows), bool(objects.search_loads(tables, Search("x")).rows),
            objects.lineage(tables, Place("ais://a", "x")).known, objects.is_done(tables, Place("ais://b", "x")),
            bool(quality.verdicts(tables).rows), bool(queues.events(tables, "q").rows),
            bool(movement.totals(tables, Filter())), bool(movement.places(tables)),
            bool(movement.outcomes(tables, stage(run_id="secret/r"), "failed").rows),
            bool(movement.outcomes(tables, load("secret/r"), "failed").rows),
            bool(objects.count(tables, Search("x"))), bool(objects.count_loads(tables, Search("x"))),
            bool(queues.count(tables, "q")), bool(overview.pipelines(tables)), bool(overview.open_failures(tables)),
            bool(etls.uses(tables)), bool(overview.partial_runs(tables)), bool(destinations.destinations(tables)),
            all(one.is_open for one in known(tables, "bad")),
        ]  # fmt: skip

    def load(run: str) -> Movement:
        return stage(kind="load", run_id=run, source="s3://b/", destination="clickhouse://db.table")

    assert all(seen(Tables(changed)))
    assert all(seen(Tables(changed, ["other", "secret"])))
    assert not any(seen(Tables(changed, ["other"])))
    assert not any(seen(Tables(changed, [])))


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_names_are_found_as_they_are(client: Client, name: str) -> None:
    fill_all(client, "d", name)
    tables = Tables(client)
    for anywhere in (False, True):
        assert [row["object"] for row in objects.search(tables, Search(name, anywhere=anywhere)).rows] == [name]
        assert [row["key"] for row in objects.search_loads(tables, Search(name, anywhere=anywhere)).rows] == [name]
    assert objects.lineage(tables, Place("ais://b", name)).manifest
    assert read_cursor(write_cursor((name, 1)), str, int) == (name, 1)


@pytest.mark.parametrize(
    "text",
    [
        "x", "[]", '["a"]', '["a", "b"]', '["a", 1, 2]', '{"a": 1}', '["a", true]', "NaN", "[" * 100_000, "1", "null",
        f'["a", {10**30}]', '["\\ud800", 1]', '["a", ' + "1" * 5_000 + "]",
    ],
)  # fmt: skip
def test_a_changed_cursor_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="go back to the first page"):
        read_cursor(text, str, int)


def test_objects_are_found_by_either_name_and_in_pages(client: Client) -> None:
    for n in range(PAGE + 20):
        for status in ("failed", "done"):  # two versions of the row, not merged
            client.fill(
                "objects", source="ais://in", destination="ais://out", object=f"a/{n:03}.flac",
                destination_object=f"a/{n:03}.wav", status=status, run_id="d/r",
                recorded_at=f"2026-01-01 00:00:0{len(status)}" if status == "done" else "2026-01-01 00:00:00",
            )  # fmt: skip
    tables = Tables(client)

    def names(wanted: Search) -> list[str]:
        return [row["object"] for row in objects.search(tables, wanted).rows]

    assert names(Search("a/007.wav")) == names(Search("a/007.flac")) == names(Search("007.wav", anywhere=True))
    assert names(Search("a/007")) == ["a/007.flac"]
    assert names(Search("007")) == names(Search("a/007", bucket="ais://else")) == []
    first = objects.search(tables, Search("a/"))
    second = objects.search(tables, Search("a/"), At(first.after))
    assert {row["status"] for row in first.rows} == {"done"}
    assert [len(first.rows), len(second.rows), second.after] == [PAGE, 20, ""]
    assert [row["object"] for row in (*first.rows, *second.rows)] == [f"a/{n:03}.flac" for n in range(PAGE + 20)]


def step(client: Client, source: str, destination: str, name: str, result: str, status: str = "done") -> None:
    client.fill(
        "objects", source=source, destination=destination, object=name, destination_object=result, status=status,
        effect="" if source.startswith("s3") else "e", run_id="d/r",
    )  # fmt: skip


def test_lineage_goes_back_to_the_origin_and_on_to_everything_made_of_it(client: Client) -> None:
    step(client, "s3://in", "ais://in", "a.flac", "a.flac")
    step(client, "ais://in", "ais://wav", "a.flac", "a.wav")
    step(client, "ais://in", "ais://mp3", "a.flac", "a.mp3", "failed")
    step(client, "ais://wav", "ais://facts", "a.wav", "r/a.wav.json")
    step(client, "ais://wav", "s3://in", "a.wav", "a.flac")  # a cycle
    client.fill(
        "loads", destination="db.t", bucket="in", key="a.flac", version="v", state="loaded", rows=3, run_id="d/r"
    )
    client.fill(
        "speech.manifest", bucket="ais://wav", object="a.wav", duration_seconds=2, run_id="d/r", silence_share=0.25
    )
    for place in (Place("ais://wav", "a.wav"), Place("s3://in", "a.flac"), Place("ais://facts", "r/a.wav.json")):
        found = objects.lineage(Tables(client), place)
        assert {step.destination.bucket for step in found.steps} >= {"ais://in", "ais://wav", "ais://facts"}
        assert [p.object for p in found.audio] == ["a.flac", "a.wav"]  # not the failed one
        assert found.manifest
        assert found.manifest["duration_seconds"] == 2
        assert (found.manifest["silence_share"], found.manifest["snr_db"]) == (0.25, None)
        assert {load["destination"] for load in found.loads} == {"db.t"}
    assert not objects.lineage(Tables(client), Place("ais://in", "b")).known


def test_a_row_of_the_manifest_has_the_time_of_its_publication_and_not_of_its_staging(client: Client) -> None:
    made = {"source": "ais://wav", "destination": "ais://facts", "object": "a.wav", "status": "done"}
    client.fill("objects", **made, destination_object="a.json", run_id="d/r", recorded_at="2026-01-01 00:00:13")
    staged = {"loaded_at": "2026-01-01 00:00:00", "run_id": "d/r"}
    client.fill("speech.manifest", bucket="ais://wav", object="a.wav", **staged)
    client.fill("speech.manifest", bucket="ais://wav", object="b.wav", **staged)
    seconds = {}
    for name in ("a.wav", "b.wav"):
        row = objects.lineage(Tables(client), Place("ais://wav", name)).manifest
        assert row is not None
        seconds[name] = datetime.fromtimestamp(int(row["recorded_ms"]) / 1000, UTC).second
    assert seconds == {"a.wav": 13, "b.wav": 0}


@pytest.mark.parametrize(
    ("name", "expected"), [("a.flac", True), ("a.wav", True), ("bad.flac", False), ("bad.wav", False), ("c", False)]
)
def test_only_objects_of_done_steps_are_done(client: Client, name: str, expected: bool) -> None:
    for n in range(12):  # more failures than a page of lineage has
        step(client, "ais://in", f"ais://to-{n}", "a.flac", "a.mp3", "failed")
    step(client, "ais://in", "ais://in", "a.flac", "a.wav")
    step(client, "ais://in", "ais://in", "bad.flac", "bad.wav", "failed")
    assert objects.is_done(Tables(client), Place("ais://in", name)) is expected


def test_outcomes_are_those_of_the_run_and_in_pages(client: Client) -> None:
    for n in range(PAGE + 1):
        client.fill(
            "objects", source="ais://a", destination="ais://b", object=f"{n:03}",
            status="failed" if n == 3 else "done", reason="why", run_id="d/r",
        )  # fmt: skip
    client.fill("objects", source="ais://a", destination="ais://b", object="other", status="done", run_id="d/later")
    tables = Tables(client)
    first = movement.outcomes(tables, stage())
    second = movement.outcomes(tables, stage(), at=At(first.after))
    assert [row["object"] for row in (*first.rows, *second.rows)] == [f"{n:03}" for n in range(PAGE + 1)]
    assert [row["object"] for row in movement.outcomes(tables, stage(), "failed").rows] == ["003"]
    with pytest.raises(ValueError, match="status"):
        movement.outcomes(tables, stage(), "no")


def pages_of(read: Callable[[At], Page[Any]], label: Callable[[Any], Any]) -> list[list[Any]]:
    """Return all pages of a listing, which must be the same in both directions."""
    pages = [read(At())]
    assert not pages[0].back
    while pages[-1].after:
        pages.append(read(At(pages[-1].after)))
    forward = [[label(row) for row in page.rows] for page in pages]
    backward = [pages[-1]]
    while backward[0].back:
        backward.insert(0, read(At(back=backward[0].back)))
    assert [[label(row) for row in page.rows] for page in backward] == forward
    if len(forward) > 1:
        assert read(At(backward[0].after)).rows == pages[1].rows
    return forward


def rows_of(read: Callable[[At], Page[Any]], label: Callable[[Any], Any]) -> list[Any]:
    """Return the rows of all pages of a listing."""
    return [row for page in pages_of(read, label) for row in page]


def test_listings_have_next_and_previous_pages(client: Client) -> None:
    names = [f"{n:03}" for n in range(2 * PAGE + 5)]
    run = {"run_id": "d/r", "reason": "why"}
    result = {"source": "ais://a", "destination": "ais://b", "status": "done", **run}
    loaded = {"destination": "db.t", "bucket": "b", "version": "v", "state": "loaded", **run}
    event = {"queue": "q", "state": "loaded", **run}
    client.fill_with("objects", ({**result, "object": name} for name in names))
    client.fill_with("loads", ({**loaded, "key": name} for name in names))
    client.fill_with("events", ({**event, "message_id": name, "key": name} for name in names))
    task = {"dag_id": "d", "kind": "validate", "state": "done"}
    client.fill_with("runs", (
        {**task, "run_id": f"d/{name}", "task_id": f"t{n % 2}", "recorded_at": f"2026-01-01 00:00:{n // 2:02}"}
        for n, name in enumerate(names)
    ))  # fmt: skip
    tables = Tables(client)
    load = stage(kind="load", source="s3://b/", destination="clickhouse://db.t")
    assert rows_of(lambda at: movement.outcomes(tables, stage(), at=at), lambda row: row["object"]) == names
    assert rows_of(lambda at: movement.outcomes(tables, load, at=at), lambda row: row["key"]) == names
    found = pages_of(lambda at: objects.search(tables, Search(), at), lambda row: row["object"])
    assert [len(page) for page in found] == [PAGE, PAGE, 5]
    assert rows_of(lambda at: objects.search_loads(tables, Search(), at), lambda row: row["key"]) == names
    wanted = Search(order="desc")
    assert rows_of(lambda at: objects.search(tables, wanted, at), lambda row: row["object"]) == names[::-1]
    assert sorted(rows_of(lambda at: queues.events(tables, "q", at=at), lambda row: row["key"])) == names
    assert len(rows_of(lambda at: quality.verdicts(tables, at), lambda verdict: verdict.run_id)) == len(names)
    runs = pages_of(lambda at: movement.movements(tables, Filter(), at), lambda m: m.run)
    assert [len(page) for page in runs] == [PAGE, PAGE, 5]
    assert (objects.count(tables, Search()), objects.count(tables, Search("00"))) == (105, 10)
    assert (objects.count_loads(tables, Search("10", anywhere=True)), queues.count(tables, "q", text="10")) == (6, 6)


@pytest.mark.parametrize("by", SORTS)
def test_movements_are_sorted(client: Client, by: str) -> None:
    for n in range(9):
        amount = (n * 7) % 4
        run_row(
            client, f"d/{n}", done=amount, failed=amount, bytes_in=10 * amount, bytes_out=amount, seconds=amount / 3,
            at=f"2026-01-01 00:00:0{n % 5}",
        )  # fmt: skip
    tables = Tables(client)
    for order in ("asc", "desc"):
        sort = Sort(by, order)
        found = rows_of(lambda at, s=sort: movement.movements(tables, Filter(), at, 2, sort=s), lambda m: m)
        assert len(found) == 9
        values = [(sort.value(m), m.recorded) for m in found]
        assert values == sorted(values, reverse=order == "desc")
    with pytest.raises(ValueError, match="choose from"):
        Sort("done; DROP TABLE x")


@pytest.mark.parametrize(("by", "expected"), [("size", "bca"), ("when", "cab"), ("name", "abc")])
def test_objects_are_sorted(client: Client, by: str, expected: str) -> None:
    for name, size, second in (("a", 30, 2), ("b", 10, 3), ("c", 20, 1)):
        at = f"2026-01-01 00:00:0{second}"
        client.fill(
            "objects", source="ais://a", destination="ais://b", object=name, status="done", bytes_in=size,
            run_id="d/r", recorded_at=at,
        )  # fmt: skip
        client.fill(
            "loads", destination="db.t", bucket="b", key=name, state="loaded", bytes=size, run_id="d/r",
            recorded_at=at,
        )  # fmt: skip
    tables = Tables(client)
    for order in ("asc", "desc"):
        wanted = Search(sort=by, order=order)
        names = [row["object"] for row in objects.search(tables, wanted).rows]
        assert names == [row["key"] for row in objects.search_loads(tables, wanted).rows]
        assert names == list(expected if order == "asc" else expected[::-1])
    with pytest.raises(ValueError, match="choose from"):
        Search(sort="bytes_in")


def test_filters_look_for_parts_of_names(client: Client) -> None:
    run_row(client, "Speech_nightly/1", source="s3://recordings", destination="ais://speech", done=2, bytes_in=5)
    run_row(client, "load/1", kind="load", source="s3://t/", destination="clickhouse://db.t", failed=1)
    tables = Tables(client)
    for chosen in (Filter(dag="speech"), Filter(place="RECORD"), Filter(dag="night", place="ais://")):
        assert [m.dag_id for m in movement.movements(tables, chosen).rows] == ["Speech_nightly"]
        assert movement.totals(tables, chosen) == {
            "tasks": 1, "objects_done": 2, "objects_failed": 0, "bytes_read": 5, "bytes_written": 0,
            "tasks_with_known": 0,
        }  # fmt: skip
    for kind in ("validate", "throughput", "transform benchmark"):  # their rows and requests are no objects
        run_row(client, "Speech_nightly/1", kind, kind=kind, source="s3://recordings", done=300, failed=1, bytes_in=9)
    assert movement.totals(tables, Filter(dag="speech")) == {
        "tasks": 4, "objects_done": 2, "objects_failed": 0, "bytes_read": 5, "bytes_written": 0,
        "tasks_with_known": 0,
    }  # fmt: skip
    run_row(client, "Speech_nightly/2", kind="transform", state="partial", detail='{"known_bad": 3}')
    assert movement.totals(tables, Filter(state="partial"))["tasks_with_known"] == 1
    assert movement.places(tables) == []  # none of them is recent
    run_row(client, "load/2", source="s3://t/", destination="clickhouse://db.t", at="2100-01-01")
    assert movement.places(tables) == ["clickhouse://db.t", "s3://t/"]
    client.fill("objects", source="ais://speech", destination="ais://b", object="x", status="done", run_id="d/r")
    client.fill("loads", destination="db.speech", bucket="b", key="x", state="loaded", run_id="d/r")
    for text in ("peec", "PEEC"):
        wanted = Search(bucket=text)
        assert objects.search(tables, wanted).rows
        assert objects.search_loads(tables, wanted).rows
        assert (objects.count(tables, wanted), objects.count_loads(tables, wanted)) == (1, 1)


def keep_failures(client: Client, run: str, source: str, destination: str) -> None:
    """Keep the failures of a task that has ended, as the ledger does."""
    asked = {"run_id": run, "source": source, "destination": destination}
    statement, given = bind_query(sql.query("keep_failures"), asked)
    client.session.query(statement, params={name.removeprefix("param_"): v for name, v in given.items()})


def settle(client: Client, run: str, at: int, **status: str) -> None:
    """Record outcomes of objects and of loads, and the end of the task, as a run does."""
    when = f"2100-01-01 00:00:0{at}"
    for name, how in status.items():
        client.fill(
            "objects", source="s3://b", destination="ais://b", object=name, destination_object=f"{name}.wav",
            status=how, reason=f"why {run}", bytes_in=7, run_id=run, recorded_at=when,
        )  # fmt: skip
        client.fill(
            "loads", destination="db.t", bucket="b", key=name, version="v", reason=f"why {run}", bytes=7,
            state="loaded" if how == "done" else how, run_id=f"{run}/batch", recorded_at=when,
        )  # fmt: skip
    for source, destination in (("s3://b", "ais://b"), ("s3://b/prefix", "clickhouse://db.t")):
        keep_failures(client, run, source, destination)


def test_failures_of_a_run_stay_when_a_later_run_replaces_its_outcomes(client: Client) -> None:
    tables = Tables(client)

    def failed(run: str) -> list[list[tuple[str, str]]]:
        pair = stage(run_id=run, source="s3://b")
        load = stage(run_id=run, kind="events", source="s3://b/prefix", destination="clickhouse://db.t")
        return [
            [(row["object"], row["reason"]) for row in movement.outcomes(tables, each, "failed").rows]
            for each in (pair, load)
        ]

    settle(client, "d/first", 1, good="done", bad="failed", worse="failed")
    before = [("bad", "why d/first"), ("worse", "why d/first")]
    assert failed("d/first") == [before] * 2
    settle(client, "d/second", 2, bad="done", worse="failed")
    assert failed("d/first") == [before] * 2, "the later run has replaced the rows of the ledgers"
    assert failed("d/second") == [[("worse", "why d/second")]] * 2
    settle(client, "d/second", 3, worse="done")  # the next try of that run
    settle(client, "d/third", 4, worse="done")
    assert failed("d/second") == [[]] * 2
    assert failed("d/first") == [before] * 2
    everything = movement.outcomes(tables, stage(run_id="d/second", source="s3://b")).rows
    assert [(row["object"], row["status"]) for row in everything] == [("bad", "done"), ("worse", "done")]


@pytest.mark.parametrize("accepted", [False, True])
@pytest.mark.parametrize("name", ["a", "new\nline", "{names:Array(String)}', 'x"])
def test_known_failures_are_open_until_they_are_accepted_or_processed(
    client: Client, name: str, accepted: bool
) -> None:
    who = {"accepted_by": "ada", "accepted_at": "2026-01-01 00:00:00"} if accepted else {}
    at, outcome = "2100-01-01 00:00:01", {"version": "v", "reason": "bad", "run_id": "d/earlier", **who}
    client.fill(
        "objects", source="ais://a", destination="ais://b", object=name, status="failed", recorded_at=at, **outcome
    )
    client.fill(
        "loads",
        destination="db.table",
        bucket="b",
        key=name,
        state="failed",
        kind="object",
        recorded_at=at,
        **outcome,
    )
    found = known(Tables(client), name)
    assert [(one.object, one.reason, one.is_open, one.accepted_by) for one in found] == [
        (name, "bad", not accepted, "ada" if accepted else "")
    ] * 2
    assert {one.accepted_at for one in found} == {1767225600.0 if accepted else 0.0}
    settle(client, "d/other", 3)
    client.fill(
        "objects", source="ais://a", destination="ais://b", object=name, status="done", recorded_at="2100-01-02"
    )
    client.fill(
        "loads", destination="db.table", bucket="b", key=name, version="v", state="loaded", recorded_at="2100-01-02"
    )
    assert not any(one.is_open or one.accepted_by for one in known(Tables(client), name))


@pytest.mark.parametrize("table", ["objects", "loads"])
def test_the_overview_does_not_count_accepted_failures(client: Client, table: str) -> None:
    settle(client, "d/first", 1, bad="failed")
    client.command(
        f"INSERT INTO storeside.{table} SELECT * REPLACE ('ada' AS accepted_by, recorded_at + 1 AS recorded_at)"
        f" FROM (SELECT * FROM storeside.{table})"
    )
    (row,) = overview.open_failures(Tables(client))
    assert row["objects"] == 1


def test_the_overview_counts_failures_that_no_run_has_mended(client: Client) -> None:
    tables = Tables(client)
    settle(client, "d/first", 1, good="done", bad="failed", worse="failed")
    # the name of an object counts once: it was copied and loaded into a table, and failed in both
    assert overview.open_failures(tables) == [{"dag_id": "d", "objects": 4, "newest_run": "d/first", "more": 0}]
    settle(client, "e/second", 2, bad="done", worse="failed")
    found = {row["dag_id"]: (row["objects"], row["newest_run"]) for row in overview.open_failures(tables)}
    assert found == {"d": (2, "d/first"), "e": (2, "e/second")}
    assert [row["dag_id"] for row in overview.open_failures(Tables(client, {"e"}))] == ["e"]
    settle(client, "e/third", 3, worse="done")
    assert overview.open_failures(tables) == []


def test_loads_from_aistore_are_told_from_loads_of_an_s3_bucket_of_the_same_name(client: Client) -> None:
    tables = Tables(client)
    for day, run, source, bucket, state in (
        (1, "d/s3", "s3://b/x", "b", "loaded"), (1, "d/ais", "ais://b/x", "ais://b", "failed"),
        (2, "d/later", "ais://b/y", "ais://b", "loaded"),
    ):  # fmt: skip
        at, destination = f"2100-01-0{day} 00:00:00", "clickhouse://db.t"
        run_row(client, run, at=at, kind="load", source=source, destination=destination, done=1)
        client.fill("loads", destination="db.t", bucket=bucket, key="x/a", version=run, state=state, run_id=run)
        keep_failures(client, run, source, destination)
    (load,) = movement.stages(tables, "d/ais")
    (row,) = movement.outcomes(tables, load).rows
    assert (row["object"], row["bucket"], row["status"], row["version"]) == ("x/a", "ais://b", "failed", "d/ais")
    assert movement.later_runs(tables, load) == ["d/later"]
    client.command("TRUNCATE TABLE storeside.loads")  # the failure stays
    assert [row["status"] for row in movement.outcomes(tables, load).rows] == ["failed"]
    assert overview.open_failures(tables) == [{"dag_id": "d", "objects": 1, "newest_run": "d/ais", "more": 0}]
    client.fill("loads", destination="db.t", bucket="b", key="x/a", version="d/ais", state="loaded", run_id="d/4")
    assert overview.open_failures(tables)
    client.fill(  # the user has corrected the object: it is a new version of it
        "loads", destination="db.t", bucket="ais://b", key="x/a", version="new", state="loaded", run_id="d/5"
    )
    assert overview.open_failures(tables) == []
    uris = {row["bucket"]: row["bucket_uri"] for row in objects.search_loads(tables, Search()).rows}
    assert uris == {"b": "s3://b", "ais://b": "ais://b"}
    for uri, run in (("s3://b", "d/4"), ("ais://b", "d/5")):
        assert [load["run_id"] for load in objects.lineage(tables, Place(uri, "x/a")).loads] == [run]


def test_runs_in_which_objects_failed_are_found(client: Client) -> None:
    recent = {"at": "2100-01-01"}
    run_row(client, "d/manual__1", state="partial", **recent)
    run_row(client, "d/manual__2", "first", state="done", failed=2, **recent)
    run_row(client, "d/manual__2", "second", state="done", **recent)
    run_row(client, "d/good", state="done", done=2, **recent)
    run_row(client, "d/retried", state="partial", failed=1, at="2099-12-31")
    run_row(client, "d/retried", state="done", **recent)
    run_row(client, "d/old", state="partial", at="2020-01-01")
    run_row(client, "other/r", state="failed", **recent)
    found = overview.partial_runs(Tables(client))
    assert found == {("d", "manual__1"), ("d", "manual__2"), ("other", "r")}
    assert overview.partial_runs(Tables(client), "OTH") == {("other", "r")}
    assert overview.partial_runs(Tables(client, ["x"])) == set()


def test_destination_tables_have_rows_size_and_freshness(changed: Client) -> None:
    changed.command("CREATE TABLE storeside.trips (n UInt64) ENGINE = MergeTree ORDER BY n")
    changed.command("INSERT INTO storeside.trips SELECT number FROM numbers(70)")
    load = {"kind": "load", "source": "s3://b/", "destination": "clickhouse://storeside.trips"}
    run_row(changed, "d/1", at="2100-01-01", done=3, detail=json.dumps({"rows": 70}), **load)
    run_row(changed, "d/2", at="2100-01-02", state="partial", failed=1, **load)
    run_row(changed, "e/1", at="2100-01-03", state="running", **load)
    run_row(changed, "e/4", at="2100-01-01", done=1, **{**load, "destination": "clickhouse://elsewhere.t"})
    run_row(changed, "e/2", at="2020-01-01", done=1, **{**load, "destination": "clickhouse://long.ago"})
    run_row(changed, "e/3", at="2100-01-01", done=1, source="s3://a", destination="ais://b")
    found = {row["table"]: row for row in destinations.destinations(Tables(changed))}
    assert list(found) == ["elsewhere.t", "storeside.trips"]
    trips, unseen = found["storeside.trips"], found["elsewhere.t"]
    assert trips["dags"] == ["d"]
    assert [int(trips[name]) for name in ("rows", "rows_loaded", "objects", "objects_failed")] == [70, 70, 3, 1]
    assert int(trips["bytes"]) > 0
    assert (trips["state"], unseen["rows"], unseen["bytes"]) == ("partial", None, None)
    assert int(trips["recorded_ms"]) - int(trips["loaded_ms"]) == 86_400_000
    assert [row["table"] for row in destinations.destinations(Tables(changed), "TRIP")] == ["storeside.trips"]
    assert [row["table"] for row in destinations.destinations(Tables(changed, ["e"]))] == ["elsewhere.t"]


def test_pipelines_have_what_they_moved_and_their_queues(client: Client) -> None:
    tables = Tables(client)
    run_row(client, "speech/1", at="2100-01-01", done=3, bytes_in=10)
    run_row(client, "speech/2", at="2100-01-02", done=4, bytes_in=10)
    run_row(client, "speech/2", "validate", at="2100-01-02", kind="validate", done=300, bytes_in=9)
    run_row(client, "old/1", done=4)
    client.fill("events", queue="https://sqs/1/q", message_id="m", run_id="events/1/ab")
    client.fill("event_batches", queue="https://sqs/1/q", batch="a", run_id="events/1", state="taken")
    client.fill("queue_depths", queue="https://sqs/1/q", visible=5, dead=2, oldest_seconds=90.0)
    found = {one.dag: one for one in overview.pipelines(tables)}
    assert set(found) == {"speech", "events"}
    assert (found["speech"].objects, found["speech"].bytes) == (7, 20)
    events = found["events"]
    assert [(queue.label, queue.waiting, queue.dead) for queue in events.queues] == [("q", 5, 2)]
    assert (events.waiting, events.dead, events.oldest_seconds) == (5, 2, 90.0)
    assert [one.dag for one in overview.pipelines(tables, "PEE")] == ["speech"]
    assert [one.dag for one in overview.pipelines(Tables(client, {"events"}))] == ["events"]


def test_a_filter_finds_the_queue_of_any_dag(client: Client) -> None:
    """Without a filter, the overview has the queues of the first DAGs by name."""
    client.command(
        "INSERT INTO storeside.events (queue, message_id, run_id, state) SELECT 'q' || toString(number), 'm',"
        " 'd' || leftPad(toString(number), 3, '0') || '/1', 'loaded' FROM numbers(600)"
    )
    client.fill("queue_depths", queue="q599", visible=5)
    (one,) = overview.pipelines(Tables(client), "D599")
    assert [(queue.label, queue.waiting) for queue in one.queues] == [("q599", 5)]


def test_later_runs_of_the_same_buckets_are_found(client: Client) -> None:
    pair = {"source": "ais://a", "destination": "ais://b", "done": 1}
    for day, run, other in (
        (1, "d/before", {}), (2, "d/r", {}), (3, "d/next", {}), (4, "d/else", {"destination": "ais://c"}),
        (5, "d/nothing", {"done": 0}), (6, "secret/r", {}), (7, "d/last", {"failed": 2, "done": 0}),
    ):  # fmt: skip
        run_row(client, run, at=f"2026-01-0{day} 00:00:00", **{**pair, **other})
    (mine,) = movement.stages(Tables(client), "d/r")
    assert movement.later_runs(Tables(client, {"d"}), mine) == ["d/next", "d/last"]
    assert movement.dags(Tables(client)) == ["d", "secret"]
    assert movement.dags(Tables(client, {"d"})) == ["d"]
    table = {"kind": "load", "destination": "clickhouse://db.t", "done": 1}
    for day, run, source in ((1, "d/1", "s3://b/x"), (2, "d/2", "s3://b/y"), (3, "d/3", "s3://bb/x")):
        run_row(client, run, at=f"2026-02-0{day} 00:00:00", source=source, **table)
    (load,) = movement.stages(Tables(client), "d/1")
    assert movement.later_runs(Tables(client), load) == ["d/2"]


def test_a_task_that_a_later_run_has_replaced_is_found(client: Client) -> None:
    pair = {"source": "ais://a", "destination": "ais://b"}
    for day, run, task, state, other in (
        (1, "d/1", "t", "running", {}), (2, "d/2", "t", "done", {}), (3, "d/3", "t", "running", {}),
        (1, "d/1", "other_pair", "running", {}), (2, "d/2", "other_pair", "done", {"source": "ais://c"}),
        (1, "secret/1", "t", "running", {}), (2, "secret/2", "t", "failed", {}),
    ):  # fmt: skip
        run_row(client, run, task, at=f"2026-01-0{day} 00:00:00", state=state, **{**pair, **other})
    assert movement.replaced(Tables(client)) == {("d/1", "t"), ("secret/1", "t")}
    assert movement.replaced(Tables(client, {"d"})) == {("d/1", "t")}


def test_a_status_is_looked_for_among_the_last_ones(client: Client) -> None:
    """Two attempts of one run: an object that failed at first is done, and the rows are not merged yet."""
    for n, (one, other) in enumerate([("failed", "done"), ("failed", "failed"), ("done", "failed")]):
        for at, status in enumerate((one, other)):
            when = f"2026-01-01 00:00:0{at}"
            client.fill(
                "objects", source="s3://b", destination="ais://b", object=str(n), status=status, run_id="d/r",
                recorded_at=when,
            )  # fmt: skip
            state = "loaded" if status == "done" else status
            client.fill(
                "loads", destination="db.t", bucket="b", key=str(n), state=state, run_id="d/r", recorded_at=when
            )
    tables = Tables(client)
    load = stage(kind="load", source="s3://b/", destination="clickhouse://db.t")
    for status, keys in (("failed", ["1", "2"]), ("done", ["0"]), ("", ["0", "1", "2"])):
        found = [
            movement.outcomes(tables, stage(source="s3://b"), status), movement.outcomes(tables, load, status),
            objects.search(tables, Search(status=status)),
        ]  # fmt: skip
        assert [[row["object"] for row in page.rows] for page in found] == [keys] * 3
        assert [row["key"] for row in objects.search_loads(tables, Search(status=status)).rows] == keys


def test_old_versions_of_rows_do_not_hide_the_objects_that_failed(client: Client) -> None:
    """A retry has processed all but the last of many objects, and ClickHouse has not merged their rows yet."""
    client.command("SYSTEM STOP MERGES")
    try:
        for second, is_failed in enumerate(("1", "number >= 998")):
            at = f"toDateTime64('2026-01-01 00:00:0{second}', 6)"
            client.command(
                "INSERT INTO storeside.objects (source, destination, object, status, run_id, recorded_at) SELECT"
                f" 's3://b', 'ais://b', leftPad(toString(number), 3, '0'), if({is_failed}, 'failed', 'done'), 'd/r',"
                f" {at} FROM numbers(1000)"
            )
            client.command(
                "INSERT INTO storeside.loads (destination, bucket, key, state, run_id, recorded_at) SELECT 'db.t',"
                f" 'b', leftPad(toString(number), 3, '0'), if({is_failed}, 'failed', 'loaded'), 'd/r', {at}"
                " FROM numbers(1000)"
            )
            if not second:  # the first try has ended: its failures are kept
                keep_failures(client, "d/r", "s3://b", "ais://b")
                keep_failures(client, "d/r", "s3://b/", "clickhouse://db.t")
        tables, wanted = Tables(client), Search(status="failed")
        load = stage(kind="load", source="s3://b/", destination="clickhouse://db.t")
        found = [
            movement.outcomes(tables, stage(source="s3://b"), "failed"), movement.outcomes(tables, load, "failed"),
            objects.search(tables, wanted), objects.search_loads(tables, wanted),
        ]  # fmt: skip
        names = [[row.get("object", row.get("key")) for row in page.rows] for page in found]
        assert names == [["998", "999"]] * 4
        assert [page.after for page in found] == [""] * 4
    finally:
        client.command("SYSTEM START MERGES")


def test_results_with_different_prefixes_have_outcomes_of_their_own(client: Client) -> None:
    """Two tasks make results of the same objects in the same bucket, such as two codecs."""
    prefixes = ("", "wav16/", "wav8/")
    for prepend in prefixes:
        client.command(
            "INSERT INTO storeside.objects (source, destination, prepend, object, destination_object, status, run_id)"
            f" SELECT 's3://b', 'ais://b', '{prepend}', leftPad(toString(number), 3, '0') || '.flac' AS name,"
            f" concat('{prepend}', name, '.wav'), if(number = 7, 'failed', 'done'), 'd/r' FROM numbers({PAGE + 1})"
        )
    tables, everything = Tables(client), len(prefixes) * (PAGE + 1)
    asked = (("wav16/007", False, 1), ("wav16/007", True, 1), ("007.f", False, 3), ("v8/", True, PAGE + 1))
    for text, anywhere, found in asked:
        wanted = Search(text, anywhere=anywhere)
        assert len(objects.search(tables, wanted).rows) == min(found, PAGE), text
        assert objects.count(tables, wanted) == found
    assert objects.count(tables, Search()) == everything
    for wanted in (Search(), Search(order="desc"), Search(sort="when"), Search(sort="size", order="desc")):
        listed = rows_of(lambda at, w=wanted: objects.search(tables, w, at), lambda row: row["destination_object"])
        assert len(set(listed)) == len(listed) == everything
    mine = stage(source="s3://b")
    listed = rows_of(lambda at: movement.outcomes(tables, mine, at=at), lambda row: row["destination_object"])
    assert len(set(listed)) == len(listed) == everything
    steps = objects.lineage(tables, Place("s3://b", "007.flac")).steps
    assert {step.destination.object for step in steps} == {f"{prepend}007.flac.wav" for prepend in prefixes}


def test_a_result_with_one_prefix_does_not_mend_the_failure_of_another(client: Client) -> None:
    tables, asked = Tables(client), ("d/r", "s3://b", "ais://b")
    for second, prepend, status in ((1, "wav8/", "failed"), (2, "wav16/", "done")):
        client.fill(
            "objects", source="s3://b", destination="ais://b", prepend=prepend, object="x", status=status,
            reason="why", destination_object=f"{prepend}x", run_id="d/r", recorded_at=f"2100-01-01 00:00:0{second}",
        )  # fmt: skip
        keep_failures(client, *asked)
    for merged in (False, True):
        (row,) = movement.outcomes(tables, stage(source="s3://b"), "failed").rows
        assert (row["object"], row["prepend"], row["reason"]) == ("x", "wav8/", "why")
        assert [row["objects"] for row in overview.open_failures(tables)] == [1]
        if not merged:
            client.command("OPTIMIZE TABLE storeside.failures FINAL")
    client.fill(
        "objects", source="s3://b", destination="ais://b", prepend="wav8/", object="x", status="done", run_id="d/r",
        recorded_at="2100-01-01 00:00:03",
    )  # fmt: skip
    keep_failures(client, *asked)
    assert movement.outcomes(tables, stage(source="s3://b"), "failed").rows == []
    assert overview.open_failures(tables) == []


def test_many_failures_of_one_dag_do_not_hide_those_of_another(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(overview, "_MOST_FAILURES", 10)
    for dag, count, second in (("few", 3, 1), ("many", 30, 2)):
        client.command(
            "INSERT INTO storeside.failures (run_id, source, destination, object, state, recorded_at) SELECT"
            f" '{dag}/r', 's3://b', 'ais://b', toString(number), 'failed', '2100-01-01 00:00:0{second}'"
            f" FROM numbers({count})"
        )
    found = {row["dag_id"]: (row["objects"], row["more"]) for row in overview.open_failures(Tables(client))}
    assert found == {"few": (3, 0), "many": (10, 1)}
    assert [row["dag_id"] for row in overview.open_failures(Tables(client), "FEW")] == ["few"]


@pytest.mark.parametrize(
    ("text", "stem"), [(".wav", ""), ("x/.wav", "x/"), ("a.b/c.flac", "a.b/c"), ("a.b/c", "a.b/c")]
)
def test_the_extension_of_a_text_is_not_looked_for_in_names_of_sources(client: Client, text: str, stem: str) -> None:
    assert Search(text).stem == stem
    step(client, "s3://b", "ais://b", f"{stem}1.mp3" if stem in ("", "x/") else f"{stem}.mp3", f"{stem}1{text}")
    assert len(objects.search(Tables(client), Search(text, anywhere=True)).rows) == 1


def test_loads_by_events_are_those_of_the_run_whose_batches_they_are(client: Client) -> None:
    for key, run in (("a", "d/r/0a1b2c3d"), ("b", "d/r/4e5f6a7b"), ("c", "d/r2/8c9d0e1f"), ("d", "d/later")):
        client.fill("loads", destination="db.t", bucket="b", key=key, state="loaded", rows=5, bytes=10, run_id=run)
    drain = stage(kind="events", source="s3://b/", destination="clickhouse://db.t")
    tables = Tables(client)
    assert [row["object"] for row in movement.outcomes(tables, drain).rows] == ["a", "b"]
    assert progress.load_progress(tables, drain).objects == 2


def test_rejected_rows_are_those_of_the_run(changed: Client) -> None:
    changed.command(
        "CREATE OR REPLACE TABLE storeside.`odd``name_rejected` (load_id UInt64, key String, row_number UInt64,"
        " reason String, raw String) ENGINE = ReplacingMergeTree ORDER BY (load_id, row_number)"
    )
    for load_id, run in ((1, "d/r"), (2, "d/other")):
        changed.fill(
            "loads", destination="storeside.odd`name", bucket="b", key=f"k{load_id}", load_id=load_id, state="loaded",
            rejected=1, run_id=run,
        )  # fmt: skip
        changed.fill(
            "`odd``name_rejected`", load_id=load_id, key=f"k{load_id}", row_number=5, reason="bad", raw="x,y"
        )
    load = stage(kind="load", source="s3://b/", destination="clickhouse://storeside.odd`name", detail={"rejected": 1})
    assert movement.rejected_rows(Tables(changed), load) == [
        {"key": "k1", "row_number": 5, "reason": "bad", "raw": "x,y"}
    ]


def test_progress_of_a_load_is_what_its_ledger_says(client: Client) -> None:
    def fill(key: str, state: str, second: int) -> None:
        at = f"2026-01-01 00:00:0{second}"
        client.fill(
            "loads", destination="db.t", bucket="b", key=key, state=state, bytes=10, run_id="d/r", recorded_at=at
        )

    for n, state in enumerate(("loaded", "loaded", "failed", "publishing")):
        fill(f"x/{n}", state, 5)
        fill(f"x/earlier{n}", state, 1)  # an earlier try
        fill(f"y/{n}", state, 5)  # another instance of the mapped task
    for source in ("s3://b/x", "s3://b/x/{0..9}", "s3://b/x/*"):
        begun = {"objects": 8, "bytes": 80, "started": datetime(2026, 1, 1, 0, 0, 4, tzinfo=UTC).timestamp()}
        load = stage(kind="load", source=source, destination="clickhouse://db.t", detail=begun)
        found = progress.load_progress(Tables(client), load)
        assert (found.objects, found.failed, found.bytes, found.share) == (2, 1, 20, 0.375), source
        assert found.eta == pytest.approx(5 / 3 * found.seconds)
    assert stage(kind="load", source="s3://b/{x").keys == ""


def test_the_picture_tells_what_storage_moved_from_what_a_worker_did() -> None:
    stages = [
        stage(kind="copy", source="s3://in", destination="ais://a", bytes_in=100, bytes_out=100),
        stage(bytes_in=100, bytes_out=300),
        stage(source="ais://b", destination="ais://facts", bytes_in=300, bytes_out=7, job_seconds=0.0),  # no job ran
        stage(kind="load", source="s3://t/", destination="clickhouse://db.t", bytes_in=50, detail={"loader": "push"}),
        stage(kind="copy", source="gs://x", destination="oci://y", bytes_in=5, bytes_out=5, job_seconds=0.0),
        stage(kind="export", source="hsds://x", destination="s3://y", bytes_in=6, bytes_out=6),
        stage(kind="validate", destination=""),
    ]
    picture = data_path(stages, [{"bucket": "ais://b", "rows": 4}])
    assert (picture.spared, picture.carried) == (607, 61)
    assert [(e.source.uri, e.destination.uri) for e in picture.edges] == [
        ("s3://in", "ais://a"), ("ais://a", "ais://b"), ("ais://b", "ais://facts"), ("s3://t/", "clickhouse://db.t"),
        ("gs://x", "oci://y"), ("hsds://x", "s3://y"),
        ("ais://facts", "clickhouse://speech.manifest"),
    ]  # fmt: skip
    assert [e.is_straight for e in picture.edges][:3] == [True, True, True]
    assert not data_path([]).edges


def test_the_load_of_the_manifest_is_one_edge_from_the_facts() -> None:
    stages = [
        stage(bytes_in=100, bytes_out=300),
        stage(source="ais://b", destination="ais://facts", bytes_in=300, bytes_out=7),
        stage(
            kind="load", source="ais://b", destination="clickhouse://speech.manifest", bytes_in=9,
            detail={"loader": "push", "rows": 4},
        ),
    ]  # fmt: skip
    picture = data_path(stages, [{"bucket": "ais://b", "rows": 4}])
    assert [(e.source.uri, e.destination.uri, e.rows, e.how) for e in picture.edges[2:]] == [
        ("ais://facts", "clickhouse://speech.manifest", 4, "the worker pushes")
    ]


def test_instances_of_a_mapped_task_have_one_edge_together() -> None:
    stages = [stage(task_id=f"t[{n}]", done=n, bytes_in=10, bytes_out=20) for n in range(3)]
    path = data_path([*stages, stage(kind="copy", source="s3://in", destination="ais://a", bytes_in=5)])
    (edge,) = [edge for edge in path.edges if edge.destination.uri == "ais://b"]
    assert (edge.objects, edge.bytes_in, edge.bytes_out) == (3, 30, 60)
    assert (len(path.edges), path.spared + path.carried) == (2, 115)


@pytest.mark.parametrize("selection", ["", "/", "/2026/", "/2026/**.json"])
def test_a_load_continues_the_path_of_the_bucket_that_a_transform_has_filled(selection: str) -> None:
    loads = [
        stage(kind="load", source=f"ais://facts{selection}", destination="clickhouse://db.t"),
        stage(kind="load", source="ais://facts2/", destination="clickhouse://db.u"),
    ]
    picture = data_path([stage(source="s3://in", destination="ais://facts"), *loads])
    assert [node.uri for node in picture.nodes] == [
        "s3://in", "ais://facts", "clickhouse://db.t", "ais://facts2/", "clickhouse://db.u",
    ]  # fmt: skip
    assert picture.nodes[3].name == "facts2"


def test_verdicts_show_what_failed(client: Client) -> None:
    expectations = [{"expectation": "a", "success": True}, {"expectation": "b", "success": False}]
    run_row(
        client,
        "d/1",
        kind="validate",
        state="failed",
        listed=10,
        failed=2,
        detail=json.dumps({"expectations": expectations}),
    )
    run_row(client, "d/2", kind="validate", detail="{not json", at="2026-01-02")
    broken, found = quality.verdicts(Tables(client)).rows
    assert broken.expectations == ()
    assert (found.rows, found.invalid, [e["expectation"] for e in found.failed]) == (10, 2, ["b"])


def test_examples_of_the_whole_manifest_are_no_objects() -> None:
    verdict = quality.Verdict("d/r", "d", "t", "ais://a", "", "failed", 3, 0, 1.0, 1.0, "", "", ())
    assert verdict.is_summary({"columns": ["rows", "expected_rows"]})
    assert not verdict.is_summary({"columns": ["duration_seconds"]})
    assert not replace(verdict, suite="mine").is_summary({"columns": ["rows"]})


def test_tasks_that_wait_or_measure_are_not_in_the_throughput(client: Client) -> None:
    for kind in ("copy", "events", "throughput", "transform benchmark", "validate"):
        run_row(client, f"d/{kind}", kind=kind, at="2100-01-01", done=10, bytes_in=100, seconds=2)
    (slice_,) = movement.throughput(Tables(client))
    assert (slice_["objects_per_second"], slice_["bytes_per_second"]) == (5, 50)


def test_verdicts_of_loads_are_found_by_their_table_and_task(client: Client) -> None:
    expectations = [{"expectation": "a", "success": True}, {"expectation": "b", "success": False}]
    load = {"kind": "load", "source": "s3://trips/2026/", "listed": 3}

    def detail(**verdict: Any) -> str:
        return json.dumps({"rows": 7, "verdict": {"rows": 9, "invalid": 2, "suite": "s", **verdict}})

    run_row(client, "d/1", "load", **load, state="failed", detail=detail(expectations=expectations, success=False))
    quarantined = detail(expectations=expectations, success=False, quarantine=True)
    run_row(client, "d/2", "load", at="2026-01-02", **load, destination="clickhouse://db.trips", detail=quarantined)
    run_row(
        client, "e/3", "load", at="2026-01-03", **load, detail=detail(success=True, expectations=expectations[:1])
    )
    run_row(client, "d/4", "load", at="2026-01-04", **load, detail=json.dumps({"rows": 7}))
    tables = Tables(client)
    passed, second, first = quality.verdicts(tables).rows
    assert (first.state, second.state, passed.state) == ("failed", "quarantined", "passed")
    assert (first.rows, first.invalid, first.suite, first.bucket) == (9, 2, "s", "s3://trips")
    assert [e["expectation"] for e in first.failed] == ["b"]
    assert quality.verdicts(tables, text="db.trips").rows == [second]
    assert quality.verdict(tables, "d/2", "d", "load") == second
    assert quality.verdict(tables, "d/2", "d", "other") is None
    assert quality.verdict(tables, "d/4", "d", "load") is None
    assert quality.verdict(Tables(client, ["d"]), "e/3", "e", "load") is None, "a DAG that the visitor may not read"


def test_queues_have_their_newest_depth_and_their_events(client: Client) -> None:
    client.fill("queue_depths", queue="q", visible=5, recorded_at="2026-01-01 00:00:00")
    client.command(
        "INSERT INTO storeside.queue_depths (queue, visible, dead, recorded_at)"
        " VALUES ('q', 9, 1, now64(3) - INTERVAL 1 SECOND), ('q', 2, 1, now64(3))"
    )
    fill_all(client, "d")
    tables = Tables(client)
    (row,) = queues.queues(tables)
    assert (row["visible"], row["dead"]) == (2, 1)
    waiting = [point["waiting"] for point in queues.history(tables, "q")]
    assert (max(waiting), waiting[-1]) == (9, 2), "the highest of a slice, and what is there now"
    assert [row["key"] for row in queues.events(tables, "q", "dead").rows] == ["x"]
    assert queues.events(tables, "q", "loaded").rows == []


def test_queues_have_the_dags_that_take_their_messages(client: Client) -> None:
    client.fill("events", queue="q", message_id="m", run_id="d/1/ab")
    client.fill("events", queue="q", message_id="n", run_id="from a shell")
    client.fill("event_batches", queue="q", batch="a", run_id="e/1", state="taken")
    client.fill("event_batches", queue="q", batch="b", state="open")
    client.fill("events", queue="other", message_id="m", run_id="f/1")
    assert queues.dags(Tables(client), "q") == ["d", "e"]
    assert queues.dags(Tables(client, {"e", "f"}), "q") == ["e"]
    assert queues.dags(Tables(client, set()), "q") == []
    for queue in ("q", "other", "third"):
        client.fill("queue_depths", queue=queue, visible=1)
    assert [row["queue"] for row in queues.queues(Tables(client, {"e"}))] == ["q"]
    assert [row["queue"] for row in queues.queues(Tables(client))] == ["other", "q", "third"]
    assert queues.queues(Tables(client, set())) == []


def test_benchmarks_are_read_by_the_kinds_of_their_columns(changed: Client) -> None:
    changed.command("DROP TABLE storeside.backend_benchmark")
    changed.command(
        "CREATE TABLE storeside.backend_benchmark (at DateTime, backend LowCardinality(String), part_mb UInt32,"
        " round UInt16, host String, mb_per_second Float64, note String) ENGINE = MergeTree ORDER BY at"
    )
    for backend, part, rate in (("s3", 8, 10.0), ("s3", 8, 30.0), ("s3", 16, 40.0), ("ais", 8, 80.0)):
        changed.fill(
            "backend_benchmark",
            backend=backend,
            part_mb=part,
            round=int(rate),
            host="one",
            mb_per_second=rate,
            note=str(rate),
        )
    tables = Tables(changed)
    (chart,) = benchmarks.charts(tables)
    assert (chart.measure, chart.by) == ("mb_per_second", ("backend", "part_mb"))
    assert [(bar.label, bar.value, bar.share) for bar in chart.bars] == [
        ("ais · 8", 80, 1), ("s3 · 8", 20, 0.25), ("s3 · 16", 40, 0.5),
    ]  # fmt: skip
    assert "backend_benchmark" not in benchmarks.missing(tables)


def test_measurements_with_different_numbers_of_loaders_have_different_bars(client: Client) -> None:
    """Even if other columns differ, too: a median over both would be of neither."""
    for number, loaders in enumerate((1, 1, 4)):
        client.fill(
            "throughput_runs", measurement=f"d/r/t/{number}", cluster=f"c{loaders}", nodes=loaders + 1,
            loaders=loaders, bucket=f"ais://b{loaders}", workload=str(loaders), object_bytes=loaders,
            dataset_bytes=loaders, mean=100.0 * loaders,
        )  # fmt: skip
    (chart,) = (chart for chart in benchmarks.charts(Tables(client)) if chart.measure == "mean")
    assert chart.by[2] == "loaders"
    assert [(bar.count, bar.value) for bar in chart.bars] == [(2, 100), (1, 400)]


def test_medians_are_of_one_case(client: Client) -> None:
    """However many columns differ: results of other buckets, formats or numbers of processes are other bars."""
    for number in range(3):
        for round_ in range(2):
            client.fill(
                "transform_benchmark", run_id=f"d/{number}", server=("fastapi", "flask", "http")[number],
                channel=("ws", "hpush", "hpull")[number], file_access=("", "file access", "")[number],
                direct_put=("", "direct put", "")[number], source=f"ais://b{number}", format=f"f{number}",
                targets=number + 1, objects=number + 1, processes=0, round=round_, seconds=1.0,
            )  # fmt: skip
    client.fill(
        "transform_benchmark", run_id="d/3", server="http", channel="hpull", source="ais://b2", format="f2",
        targets=3, objects=3, processes=7, seconds=9.0,
    )  # fmt: skip
    chart = next(chart for chart in benchmarks.charts(Tables(client)) if chart.measure == "seconds")
    assert chart.by == (
        "server", "channel", "file_access", "direct_put", "source", "format", "targets", "objects", "processes"
    )  # fmt: skip
    assert [(bar.value, bar.count) for bar in chart.bars] == [(1, 2), (1, 2), (1, 2), (9, 1)]


@pytest.mark.parametrize("name", ["100%", "%s", "{all_dags:Bool}", "it's", "a`b"])
def test_columns_of_benchmarks_may_have_any_name(changed: Client, name: str) -> None:
    changed.command("DROP TABLE storeside.backend_benchmark")
    column = name.replace("`", "\\`")
    changed.command(
        f"CREATE TABLE storeside.backend_benchmark (`{column}` String, seconds Float64)"
        " ENGINE = MergeTree ORDER BY tuple()"
    )
    changed.fill("backend_benchmark", **{name: "x", "seconds": 1.0})
    changed.fill("backend_benchmark", **{name: "y", "seconds": 3.0})
    (chart,) = benchmarks.charts(Tables(changed))
    assert chart.by == (name,)
    assert [(bar.label, bar.value) for bar in chart.bars] == [("x", 1.0), ("y", 3.0)]
    assert benchmarks.charts(Tables(changed, {"d"})) == [], "its rows belong to no DAG"


def test_queues_of_the_same_name_differ_and_show_no_account(client: Client) -> None:
    urls = [f"https://sqs.eu-west-3.amazonaws.com/{end}" for end in ("11/a", "11/b", "22/a")]
    for url in urls:
        client.fill("queue_depths", queue=url, visible=1)
    found = queues.queues(Tables(client))
    labels = {row["queue"]: row["label"] for row in found}
    assert labels[urls[1]] == "b"
    first, second = labels[urls[0]], labels[urls[2]]
    assert first != second
    assert not any("11" in label.partition("~")[0] or "amazonaws" in label for label in labels.values())
    for url, label in labels.items():
        for one in (queues.find(Tables(client), label), queues.find(Tables(client), url)):
            assert one is not None
            assert (one["queue"], one["label"]) == (url, label)
    assert queues.find(Tables(client), "a") is None, "it could be either"
    assert queues.find(Tables(client), "") is None


def test_a_queue_beyond_those_that_the_page_lists_is_found(client: Client) -> None:
    """The list shows the queues that were measured last; names that sort last, or old ones, have their pages, too."""
    client.command(
        "INSERT INTO storeside.queue_depths (queue, visible, recorded_at) SELECT"
        " 'https://sqs/1/' || if(number = 0, 'z-old', 'q' || leftPad(toString(number), 4, '0')), number,"
        f" now64(3) - INTERVAL 1 HOUR + INTERVAL number SECOND FROM numbers({queues.MOST_QUEUES + 5})"
    )
    client.fill("queue_depths", queue="https://sqs/2/q0300", visible=1, recorded_at="2100-01-01 00:00:00")
    client.fill("queue_depths", queue="https://sqs/2/z-old", visible=1)
    tables = Tables(client)
    shown = [row["queue"] for row in queues.queues(tables)]
    assert len(shown) == queues.MOST_QUEUES
    assert "https://sqs/1/z-old" not in shown
    assert shown == sorted(shown)
    found = queues.find(tables, "https://sqs/1/z-old")
    assert found is not None
    assert queues.find(tables, found["label"]) == found
    assert found["label"].startswith("z-old~"), "the other queue of this name is among those shown, this one is not"
    run_row(client, "d/1", done=1)
    client.fill("events", queue="https://sqs/1/z-old", message_id="m", run_id="d/1")
    (one,) = overview.pipelines(tables)
    assert [queue.label for queue in one.queues] == [found["label"]]


class Inserting:
    """Passes rows to the engine as the ledger's client does; the tables exist."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def insert(self, table: str, rows: list[list[Any]], *, column_names: tuple[str, ...], **_: Any) -> None:
        for row in rows:
            self._client.fill(table.partition(".")[2], **dict(zip(column_names, row, strict=True)))


def test_the_variants_of_transforms_are_charted(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    from storeside.measure.transforms import results
    from storeside.measure.transforms.variants import Variant

    monkeypatch.setattr(results, "migrate", lambda client: [])
    ws, push = Variant("fastapi", "ws", True, True), Variant("flask", "hpush", False, True)
    measured = [(None, (10.0, 20.0, 60.0)), (ws, (2.0, 4.0, 5.0)), (push, (5.0, 5.0, 8.0))]
    found = [results.Result(variant, seconds) for variant, seconds in measured]
    report = results.Report("ais://in", "wav", 2, 0, 100, 50_000_000, found, {"http": "it failed"})
    report.record(Inserting(client), "d/r")
    tables = Tables(client)
    by_measure = {chart.measure: chart for chart in benchmarks.charts(tables)}
    assert list(by_measure) == ["seconds", "objects_per_second", "megabytes_per_second"]
    assert {chart.by for chart in by_measure.values()} == {("server", "channel", "file_access", "direct_put")}
    bars = {measure: {bar.label: bar.value for bar in chart.bars} for measure, chart in by_measure.items()}
    labels = ("client", "fastapi · ws · file access · direct put", "flask · hpush · direct put")
    assert bars["seconds"] == dict(zip(labels, (20, 4, 5), strict=True))
    assert bars["objects_per_second"] == dict(zip(labels, (5, 25, 20), strict=True))
    assert bars["megabytes_per_second"] == dict(zip(labels, (2.5, 12.5, 10), strict=True))
    assert "transform_benchmark" not in benchmarks.missing(tables)
    assert len(benchmarks.charts(Tables(client, {"d"}))) == 3
    assert benchmarks.charts(Tables(client, {"e"})) == [], "rows of another DAG"
