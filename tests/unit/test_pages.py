"""The pages as the API server returns them, without ClickHouse, AIStore and SQS, or with ones that hang."""

from __future__ import annotations

import json
import re
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.api_fastapi.core_api.security import get_user
from airflow.sdk import BaseHook, Connection
from airflow.sdk.exceptions import AirflowNotFoundException
from fastapi.testclient import TestClient
from sqlalchemy import create_engine, text
from sqlalchemy.orm import Session
from sqlalchemy.pool import StaticPool

from storeside import sql
from storeside.pages.tables import UnavailableError
from storeside.plugins.pages import access, connections, movement
from storeside.plugins.pages.app import app
from storeside.plugins.pages.instances import Instance, instance
from storeside.plugins.storeside_plugin import StoresidePlugin
from storeside.stack.settings import HOST

QUEUE = "http://sqs/000000000000/events"


class Tables:
    """Storeside's tables: rows of runs, newest first, and the ledger's steps and loads of any object."""

    def __init__(self) -> None:
        self.runs: list[dict[str, Any]] = []
        self.loads: list[dict[str, Any]] = []
        self.dags: frozenset[str] | None = None
        self.queue_dags: list[str] = []

    def may_read(self, dag: str) -> bool:
        return True

    def rows(self, statement: str, **asked: Any) -> list[dict[str, Any]]:
        if statement == sql.query("pages_movements"):
            found = [dict(row) for row in self.runs if asked["state"] in ("", row["state"])]
            return [row for row in found if asked["run"] in ("", row["run_id"])][: asked["limit"]]
        if statement == sql.query("pages_loads_of"):
            return [dict(row) for row in self.loads]
        if statement == sql.query("pages_queue_dags"):
            return [{"dag": dag} for dag in self.queue_dags if self.dags is None or dag in self.dags]
        return [{"queue": QUEUE}] if statement == sql.query("pages_queues") else []

    def run(self, task: str, state: str = "running", kind: str = "transform", **detail: Any) -> None:
        row = {
            "run_id": "d/r", "task_id": task, "kind": kind, "source": "ais://a", "state": state,
            "destination": "ais://b", "seconds": 1.0, "job_seconds": 0.0, "recorded_ms": 1000,
            "detail": json.dumps(detail),
        }  # fmt: skip
        self.runs.append(row | dict.fromkeys(("listed", "skipped", "done", "failed", "bytes_in", "bytes_out"), 0))


@pytest.fixture
def tables(monkeypatch: pytest.MonkeyPatch) -> Tables:
    found = Tables()
    monkeypatch.setitem(app.dependency_overrides, access.tables, lambda: found)
    for let_in in (access.require_read, access.require_same_origin):
        monkeypatch.setitem(app.dependency_overrides, let_in, lambda: None)
    monkeypatch.setitem(app.dependency_overrides, get_user, lambda: SimpleNamespace(get_id=lambda: "ada"))
    for module in ("movement", "queues"):
        monkeypatch.setattr(f"storeside.plugins.pages.{module}.may_run", lambda *_: True)
    monkeypatch.setattr(movement, "may_stop", lambda *_: True)
    return found


@pytest.fixture
def pages(tables: Tables) -> TestClient:
    return TestClient(app, root_path="/storeside", raise_server_exceptions=False, follow_redirects=False)


class Airflow:
    """Airflow's table of task instances."""

    def __init__(self) -> None:
        self.engine = create_engine("sqlite://", poolclass=StaticPool, connect_args={"check_same_thread": False})
        self._do("CREATE TABLE task_instance (dag_id TEXT, run_id TEXT, task_id TEXT, map_index INT, state TEXT)")

    @contextmanager
    def session(self) -> Iterator[Session]:
        with Session(self.engine) as session:
            yield session

    def has(self, task: str, state: str | None = "running", map_index: int = -1) -> None:
        values = {"task": task, "map_index": map_index, "state": state}
        self._do("INSERT INTO task_instance VALUES ('d', 'r', :task, :map_index, :state)", values)

    def _do(self, statement: str, values: dict[str, Any] | None = None) -> None:
        with self.engine.begin() as connection:
            connection.execute(text(statement), values)


@pytest.fixture
def airflow(monkeypatch: pytest.MonkeyPatch) -> Airflow:
    found = Airflow()
    monkeypatch.setattr(movement, "create_session", found.session)
    return found


@pytest.fixture
def known(monkeypatch: pytest.MonkeyPatch) -> dict[str, Connection]:
    """Airflow's connections."""
    found: dict[str, Connection] = {}

    def get(conn_id: str) -> Connection:
        if conn_id not in found:
            raise AirflowNotFoundException(f"The conn_id `{conn_id}` isn't defined")
        return found[conn_id]

    monkeypatch.setattr(BaseHook, "get_connection", staticmethod(get))
    return found


@pytest.fixture
def hung() -> Iterator[int]:
    """The port of a server that accepts requests and never answers."""
    with socket.create_server((HOST, 0), backlog=64) as server:
        yield server.getsockname()[1]


def states(page: str) -> dict[str, str]:
    """Return each task's state in the table of runs."""
    rows = re.findall(r'</a><br>(\S+) <span.*?<span class="state [^"]*">([^<]*)<', page, re.DOTALL)
    return dict(rows)


# running tasks


def test_a_movement_is_cut_off_when_airflow_says_so_however_many_move(
    pages: TestClient, tables: Tables, airflow: Airflow
) -> None:
    for n in range(30):
        tables.run(f"load{n}", kind="load")
        airflow.has(f"load{n}", None if n == 29 else "deferred")
    for task, state in (("dead", "failed"), ("retried", "up_for_retry")):
        tables.run(task, kind="load")
        airflow.has(task, state)
    tables.run("forgotten", kind="load")  # its run was deleted
    tables.run("ended", "done", kind="load")
    page = pages.get("/movement").text
    shown = states(page)
    assert {task for task, state in shown.items() if state == "cut off"} == {"dead", "forgotten"}
    assert (shown["load29"], shown["retried"], shown["ended"]) == ("running", "running", "done")
    assert page.count("<article") == 20
    assert "The newest 20 of 31 that move." in page


def test_what_was_cut_off_takes_no_room_of_what_moves(pages: TestClient, tables: Tables, airflow: Airflow) -> None:
    for n in range(30):
        tables.run(f"dead{n}", kind="load")
        airflow.has(f"dead{n}", "failed")
    tables.run("long", kind="load")
    airflow.has("long")
    page = pages.get("/live").text
    assert re.findall(r"<article.*?<b>(\S+)</b>", page, re.DOTALL) == ["long"]
    assert "The newest" not in page


# mapped tasks


@pytest.mark.parametrize(
    ("recorded", "expected"),
    [
        ("load", Instance("load", -1)),
        ("load[0]", Instance("load", 0)),
        ("group.load[12]", Instance("group.load", 12)),
    ],
)
def test_names_of_task_instances_are_read(recorded: str, expected: Instance) -> None:
    assert instance(recorded) == expected


def test_each_instance_of_a_mapped_task_has_its_state_and_its_buttons(
    pages: TestClient, tables: Tables, airflow: Airflow
) -> None:
    for n, state in enumerate(("running", "failed", "success")):
        tables.run(f"load[{n}]", "done" if state == "success" else "running", kind="load")
        airflow.has("load", state, n)
    page = pages.get("/movement").text
    assert states(page) == {"load[0]": "running", "load[1]": "cut off", "load[2]": "done"}
    (cancel,) = re.findall(r'data-action="cancel" ([^>]*)>', page)
    assert cancel == 'data-dag="d" data-run="r" data-task="load" data-map-index="0"'


def test_a_task_that_is_not_mapped_has_no_index(pages: TestClient, tables: Tables, airflow: Airflow) -> None:
    tables.run("load", kind="load")
    airflow.has("load")
    page = pages.get("/live").text
    assert 'data-action="cancel" data-dag="d" data-run="r" data-task="load">' in page


def test_the_page_of_a_run_leads_to_the_instances_of_its_tasks(
    pages: TestClient, tables: Tables, airflow: Airflow
) -> None:
    for task in ("copy", "load[0]", "load[1]"):
        tables.run(task, "done")

    def chosen(**asked: str) -> str:
        page = pages.get("/run", params={"dag": "d", "run": "r", **asked}).text
        (task,) = re.findall(r"<option selected>([^<]*)<", page)
        return str(task)

    page = pages.get("/run", params={"dag": "d", "run": "r"}).text
    assert re.findall(r'href="/dags/d/runs/r/tasks/([^"]*)"', page) == ["copy", "load/mapped/0", "load/mapped/1"]
    assert chosen(task="load[1]") == chosen(task="load", map_index="1") == "load[1]"
    assert chosen(task="load") == "load[0]"
    assert chosen(task="copy", map_index="{MAP_INDEX}") == "copy"  # as Airflow leaves it


def test_airflow_is_asked_which_instance_its_tab_is_of() -> None:
    (tab,) = [view for view in StoresidePlugin.external_views if view["destination"] == "task_instance"]
    assert tab["href"].endswith("&task={TASK_ID}&map_index={MAP_INDEX}")


# failures


def actions(pages: TestClient) -> list[str]:
    """Return the actions and links that the page of a run offers for failures, and whether they are disabled."""
    page = pages.get("/run", params={"dag": "d", "run": "r"}).text
    form = page.partition('class="filter"')[2].partition("</form>")[0]
    found = re.findall(r'data-action="(\w+)"|class="button" href="([^"]*)"|<button type="button" (disabled)', form)
    return ["".join(each) for each in found]


@pytest.mark.parametrize(
    ("kind", "detail", "offered"),
    [
        ("load", {}, "retry"),
        ("events", {"queue": "events"}, "/storeside/dead-letters?queue=events"),
        ("events", {"queue": QUEUE}, "/storeside/dead-letters?queue=events"),  # without the account
        ("events", {}, "/storeside/queues"),  # a row of an earlier version
    ],
)
def test_dead_letters_are_sent_back_and_not_tried_by_clearing(
    pages: TestClient,
    tables: Tables,
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
    detail: dict[str, Any],
    offered: str,
) -> None:
    tables.run("load", "partial", kind, **detail)
    assert actions(pages) == []
    tables.runs[0]["failed"] = 2
    assert actions(pages) == [offered]
    monkeypatch.setattr(movement, "may_run", lambda *_: False)
    assert actions(pages) == ["retry" if kind == "load" else "disabled"]


def test_a_task_names_its_queue_and_the_page_knows_its_url(
    pages: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    class DeadLetters:
        def __init__(self, queue: Any, *, unclaimed: bool) -> None:
            assert queue.url == QUEUE

        def listed(self, _: int) -> list[Any]:
            return []

    monkeypatch.setattr("storeside.plugins.pages.queues.sqs", lambda: None)
    monkeypatch.setattr("storeside.events.dead_letters.DeadLetters", DeadLetters)
    for queue in ("events", QUEUE):
        page = pages.post("/dead-letters", data={"queue": queue}).text
        assert "There are no dead letters" in page
        assert "000000000000" not in page
    for queue in ("event", "http://sqs/000000000000/other", "0"):
        assert pages.get("/dead-letters", params={"queue": queue}).status_code == 404
        assert pages.post("/dead-letters", data={"queue": queue}).status_code == 404


@pytest.mark.parametrize(
    ("readable", "runnable", "takes_messages", "status"),
    [
        (None, {"d", "e"}, ["d"], 503),  # no SQS here: the request reached it
        ({"d"}, {"d"}, ["c", "d"], 503),
        ({"d", "e"}, {"e"}, ["d"], 403),
        ({"d"}, {"d", "e"}, ["e"], 403),
        ({"d"}, {"d"}, [], 403),
        (None, set(), ["d"], 403),
        (None, set(), [], 403),
        (None, {None}, [], 503),
    ],
)
def test_dead_letters_are_for_those_who_may_run_a_dag_of_their_queue(
    pages: TestClient, tables: Tables, monkeypatch: pytest.MonkeyPatch, readable: set[str] | None,
    runnable: set[str | None], takes_messages: list[str], status: int,
) -> None:  # fmt: skip
    tables.dags, tables.queue_dags = (None if readable is None else frozenset(readable)), takes_messages
    monkeypatch.setattr("storeside.plugins.pages.queues.may_run", lambda user, dag=None: dag in runnable)

    def no_sqs() -> Any:
        raise UnavailableError("there is no SQS here")

    monkeypatch.setattr("storeside.plugins.pages.queues.sqs", no_sqs)
    for answer in (
        pages.post("/dead-letters", data={"queue": "events"}),
        pages.post("/redrive", data={"queue": QUEUE, "message": "m"}),
    ):
        assert answer.status_code == status
    offered = pages.get("/dead-letters", params={"queue": "events"})
    assert offered.status_code == (200 if status == 503 else status), "it never reaches SQS"


# connections without a server


def test_progress_is_asked_of_the_cluster_that_the_task_asks(
    pages: TestClient, tables: Tables, airflow: Airflow, monkeypatch: pytest.MonkeyPatch
) -> None:
    tables.run("here", aistore_conn_id="aistore_other", job="one")
    tables.run("too", aistore_conn_id="aistore_other", job="two")
    tables.run("old", job="three")
    for task in ("here", "too", "old"):
        airflow.has(task)
    asked, opened = {}, []
    monkeypatch.setattr(movement, "aistore", lambda conn_id: opened.append(conn_id) or conn_id)

    def snapshots(client: str, job: str) -> list[Any]:
        asked[job] = client
        return []

    monkeypatch.setattr("storeside.aistore.jobs.newest_snapshots", snapshots)
    assert pages.get("/live").status_code == 200
    assert asked == {"one": "aistore_other", "two": "aistore_other", "three": "aistore_default"}
    assert sorted(opened) == ["aistore_default", "aistore_other"]


def test_a_cluster_that_cannot_be_asked_is_said_beside_what_moves(
    pages: TestClient, tables: Tables, airflow: Airflow, known: dict[str, Connection]
) -> None:
    with socket.create_server((HOST, 0)) as server:
        closed = server.getsockname()[1]
    known["no_host"] = Connection(conn_id="no_host", conn_type="generic")
    known["down"] = Connection(conn_id="down", conn_type="generic", host=HOST, port=closed)
    extra = json.dumps({"client_cert": "/nowhere.pem"})
    known["no_file"] = Connection(conn_id="no_file", conn_type="generic", host=f"https://{HOST}:1", extra=extra)
    said = {
        "aistore_default": "connection aistore_default does not lead to AIStore: The conn_id",
        "no_host": "needs the host of an AIStore proxy",
        "down": "the cluster does not answer for now",
        "no_file": "/nowhere.pem",
    }
    for conn_id in said:
        tables.run(conn_id, aistore_conn_id=conn_id, job="x", objects=4)
        airflow.has(conn_id)
    for path in ("/movement", "/live", "/run?dag=d&run=r"):
        answer = pages.get(path)
        assert answer.status_code == 200
        articles = re.findall(r"<article.*?</article>", answer.text, re.DOTALL)
        for article, why in zip(articles, said.values(), strict=True):
            assert why in article
            assert "<b>0</b> of 4 objects" in article


@pytest.mark.parametrize(
    "conn", [None, Connection(conn_id="aws_default", conn_type="aws", extra='{"role_arn": "x"}')]
)
def test_dead_letters_without_a_connection_that_works_say_so(
    pages: TestClient, known: dict[str, Connection], conn: Connection | None
) -> None:
    if conn:
        known["aws_default"] = conn
    for answer in (
        pages.post("/dead-letters", data={"queue": QUEUE}),
        pages.post("/redrive", data={"queue": QUEUE, "message": "m"}),
    ):
        assert answer.status_code == 503
        assert "the connection aws_default does not lead to SQS" in answer.text


def test_audio_without_a_connection_says_so(
    pages: TestClient, known: dict[str, Connection], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("storeside.plugins.pages.audio.is_known", lambda *_: True)
    answer = pages.get("/audio", params={"bucket": "ais://a", "object": "a.wav"})
    assert answer.status_code == 503
    assert "the connection aistore_default does not lead to AIStore" in answer.text


# a ClickHouse that hangs


def test_a_page_does_not_wait_for_clickhouse_as_long_as_a_load_does(
    known: dict[str, Connection], hung: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    patient = json.dumps({"connect_timeout": 600, "send_receive_timeout": 600})
    known["clickhouse_default"] = Connection(
        conn_id="clickhouse_default", conn_type="clickhouse", host=HOST, port=hung, extra=patient
    )
    assert connections.PATIENCE["send_receive_timeout"] <= 15
    monkeypatch.setitem(connections.PATIENCE, "send_receive_timeout", 1)
    began = time.monotonic()
    with pytest.raises(UnavailableError, match="the connection clickhouse_default does not lead to ClickHouse"):
        connections.clickhouse()
    assert time.monotonic() - began < 5


# loads by events


def test_an_object_loaded_by_events_leads_to_the_run_of_its_batch(pages: TestClient, tables: Tables) -> None:
    for run in ("d/scheduled__2026-01-01T00:00:00+00:00/1a2b3c4d", "d/manual__1", "by hand"):
        load = {"destination": "db.t", "version": "v", "load_id": "1", "status": "loaded", "reason": "", "rows": 1}
        tables.loads.append({**load, "rejected": 0, "bytes": 1, "run_id": run, "recorded_ms": 0})
    page = pages.get("/object", params={"bucket": "s3://b", "object": "k"}).text
    assert re.findall(r'href="/storeside/run\?([^"]*)">([^<]*)<', page) == [
        ("dag=d&amp;run=scheduled__2026-01-01T00%3A00%3A00%2B00%3A00", "scheduled__2026-01-01T00:00:00+00:00"),
        ("dag=d&amp;run=manual__1", "manual__1"),
    ]
    assert "run by hand</p>" in page
