"""The pages as the API server returns them, without ClickHouse, AIStore and SQS, or with ones that hang."""

from __future__ import annotations

import html
import json
import re
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from airflow.api_fastapi.core_api.security import get_user
from airflow.sdk import BaseHook, Connection
from airflow.sdk.exceptions import AirflowNotFoundException
from botocore.exceptions import ReadTimeoutError
from clickhouse_connect.driver.exceptions import DatabaseError, OperationalError
from fastapi.testclient import TestClient
from requests import ReadTimeout
from sqlalchemy import create_engine, text
from sqlalchemy.orm import Session
from sqlalchemy.pool import StaticPool

from storeside import __version__, sql
from storeside.aistore import jobs
from storeside.pages.tables import Tables as RealTables
from storeside.pages.tables import UnavailableError
from storeside.plugins.pages import access, connections, etls, movement, overview, runs, storage, tasks
from storeside.plugins.pages.app import app
from storeside.plugins.pages.instances import Instance, instance
from storeside.plugins.pages.render import number
from storeside.plugins.storeside_plugin import StoresidePlugin
from storeside.stack.settings import HOST

QUEUE = "http://sqs/000000000000/events"


def is_query(statement: str, name: str) -> bool:
    """Return whether a statement is in this file, with any direction: the first line of a file is a comment."""
    return statement.partition("\n")[0] == sql.query(name).partition("\n")[0]


class Tables:
    """Storeside's tables: rows of runs, newest first, and the ledger's steps and loads of any object."""

    def __init__(self) -> None:
        self.runs: list[dict[str, Any]] = []
        self.loads: list[dict[str, Any]] = []
        self.later: list[str] = []
        self.dags: frozenset[str] | None = None
        self.queue_dags: list[str] = []
        self.depth: dict[str, float] = {"dead": 0, "oldest_seconds": 0.0}
        self.answers: dict[str, list[dict[str, Any]]] = {}

    def may_read(self, dag: str) -> bool:
        return True

    def begin(self) -> None:
        """Each part of a download has its own time."""

    def rows(self, statement: str, **asked: Any) -> list[dict[str, Any]]:
        if is_query(statement, "pages_movements"):
            found = [dict(row) for row in self.runs if asked["state"] in ("", row["state"])]
            return [row for row in found if asked["run"] in ("", row["run_id"])][: asked["limit"]]
        if is_query(statement, "pages_queue_dags"):
            return [{"dag": dag} for dag in self.queue_dags if self.dags is None or dag in self.dags]
        depth = {**dict.fromkeys(("visible", "in_flight", "delayed", "recorded_ms"), 0), **self.depth}
        answers: dict[str, list[dict[str, Any]]] = {
            "pages_later_runs": [{"run_id": run} for run in self.later],
            "pages_dags": [{"dag_id": row["run_id"].partition("/")[0]} for row in self.runs],
            "pages_loads_of": self.loads,
            "pages_queues": [{"queue": QUEUE, "of_this_name": 1, **depth}],
            **self.answers,
        }
        return [dict(row) for name, rows in answers.items() if is_query(statement, name) for row in rows]

    def run(self, task: str, state: str = "running", kind: str = "transform", **detail: Any) -> None:
        row = {
            "run_id": "d/r", "task_id": task, "kind": kind, "source": "ais://a", "state": state,
            "destination": "ais://b", "seconds": 1.0, "job_seconds": 0.0, "recorded_ms": 1000,
            "detail": json.dumps(detail),
        }  # fmt: skip
        self.runs.append(row | dict.fromkeys(("listed", "skipped", "done", "failed", "bytes_in", "bytes_out"), 0))


class Airflow:
    """Airflow's tables of runs and task instances."""

    def __init__(self) -> None:
        self.engine = create_engine("sqlite://", poolclass=StaticPool, connect_args={"check_same_thread": False})
        self._do(
            "CREATE TABLE task_instance (dag_id TEXT, run_id TEXT, task_id TEXT, map_index INT, state TEXT,"
            " try_number INT, start_date TEXT, end_date TEXT, operator TEXT, priority_weight INT)"
        )
        self._do(
            "CREATE TABLE dag_run (dag_id TEXT, run_id TEXT, state TEXT, run_after TEXT, end_date TEXT,"
            " run_type TEXT, triggering_user_name TEXT)"
        )
        self._do("CREATE TABLE dag (dag_id TEXT, is_paused BOOL)")

    @contextmanager
    def session(self) -> Iterator[Session]:
        with Session(self.engine) as session:
            yield session

    def runs(self, state: str, dag: str = "d", run: str = "r", days_ago: float = 0) -> None:
        at = (datetime.now(UTC) - timedelta(days=days_ago)).strftime("%Y-%m-%d %H:%M:%S.%f")
        values = {"dag": dag, "run": run, "state": state, "at": at}
        self._do("INSERT INTO dag_run VALUES (:dag, :run, :state, :at, :at, 'manual', 'ada')", values)

    def has(
        self, task: str, state: str | None = "running", map_index: int = -1, dag: str = "d", run: str = "r",
        operator: str = "AISCopyBucketOperator", began: str | None = None, ended: str | None = None,
        weight: int = 1,
    ) -> None:  # fmt: skip
        values = {
            "dag": dag, "run": run, "task": task, "map_index": map_index, "state": state, "operator": operator,
            "began": began, "ended": ended, "weight": weight,
        }  # fmt: skip
        self._do(
            "INSERT INTO task_instance"
            " VALUES (:dag, :run, :task, :map_index, :state, 2, :began, :ended, :operator, :weight)",
            values,
        )

    def _do(self, statement: str, values: dict[str, Any] | None = None) -> None:
        with self.engine.begin() as connection:
            connection.execute(text(statement), values)


@pytest.fixture
def airflow(monkeypatch: pytest.MonkeyPatch) -> Airflow:
    found = Airflow()
    for module in (tasks, runs):
        monkeypatch.setattr(module, "create_session", found.session)
    return found


@pytest.fixture
def tables(monkeypatch: pytest.MonkeyPatch, airflow: Airflow) -> Tables:
    found = Tables()
    monkeypatch.setitem(app.dependency_overrides, access.tables, lambda: found)
    for let_in in (access.require_read, access.require_same_origin):
        monkeypatch.setitem(app.dependency_overrides, let_in, lambda: None)
    user = SimpleNamespace(get_id=lambda: "7", get_name=lambda: "ada")
    monkeypatch.setitem(app.dependency_overrides, get_user, lambda: user)
    for module in ("movement", "queues", "failures"):
        monkeypatch.setattr(f"storeside.plugins.pages.{module}.may_run", lambda *_: True)
    monkeypatch.setattr(etls, "may_read_any_log", lambda _: False)
    for may in ("may_stop", "may_read_logs", "may_read_runs"):
        monkeypatch.setattr(movement, may, lambda *_: True)
    for module in (overview, etls, storage):
        monkeypatch.setattr(module, "may_read_runs", lambda *_: True)
    return found


@pytest.fixture
def pages(tables: Tables) -> TestClient:
    return TestClient(app, root_path="/storeside", raise_server_exceptions=False, follow_redirects=False)


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


def test_the_foot_of_a_page_states_the_version(pages: TestClient) -> None:
    assert f"<footer>Storeside {__version__}</footer>" in pages.get("/movement").text


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


# runs as Airflow knows them


def run_page(pages: TestClient) -> str:
    answer = pages.get("/run", params={"dag": "d", "run": "r"})
    assert answer.status_code == 200
    return str(answer.text)


def test_tasks_that_have_not_started_follow_in_the_order_of_the_dag(pages: TestClient, airflow: Airflow) -> None:
    """Databases sort missing dates differently, and return equal rows in any order."""
    airflow.runs("running")
    for task, weight in (("last", 1), ("first", 3), ("middle", 2)):
        airflow.has(task, None, weight=weight)
    airflow.has("begun", "running", began="2026-01-01 00:00:00", weight=1)
    found = tasks.run_of("d", "r")
    assert found is not None
    assert [task.name for task in found.tasks] == ["begun", "first", "middle", "last"]


@pytest.mark.parametrize(
    ("path", "choices"),
    [
        ("/movement", "dag, place, kind, state, sort, order, after, back"), ("/overview", "dag"),
        ("/objects", "text, bucket, status"), ("/queues", "queue, state"), ("/quality", "text"), ("/run", "dag, run"),
        ("/corpus", "bucket"),
        ("/storage", "conn_id"), ("/live", "dag, place"), ("/object", "bucket, object"),
    ],
)  # fmt: skip
def test_an_unknown_filter_is_named_with_those_of_the_page(pages: TestClient, path: str, choices: str) -> None:
    answer = pages.get(path, params={"dga": "d", "dag": "d", "run": "r", "bucket": "b", "object": "o"})
    assert answer.status_code == 400
    assert "unknown filter &#39;dga&#39;" in answer.text
    assert f"the filters of this page are {choices}" in answer.text
    assert "this page has no filters" in pages.get("/etls?dga=1").text


def test_an_unknown_kind_is_not_shown_as_all(pages: TestClient) -> None:
    assert '<option value="leap" selected>leap</option>' in pages.get("/movement", params={"kind": "leap"}).text


@pytest.mark.parametrize(("path", "name"), [("/run", "dag"), ("/run", "run"), ("/run", "task"), ("/movement", "dag")])
def test_a_name_with_nul_does_not_reach_airflows_database(pages: TestClient, path: str, name: str) -> None:
    """PostgreSQL's driver raises ValueError for it; SQLite accepts it."""
    answer = pages.get(path, params={"dag": "d", "run": "r", name: "a\0b"})
    assert answer.status_code == 400
    assert "has no NUL character" in answer.text


def tasks_of(page: str) -> list[tuple[str, str]]:
    """Return the tasks in the table of a run's page, with their states."""
    table = page.partition("<h2>Tasks</h2>")[2].partition("</table>")[0]
    return re.findall(r'data-top>([^<]*)</a>.*?<span class="state [^"]*">([^<]*)<', table, re.DOTALL)


def test_a_run_that_failed_before_it_moved_data_looks_failed(pages: TestClient, airflow: Airflow) -> None:
    airflow.runs("failed")
    airflow.has("copy", "failed", began="2026-01-01 00:00:00", ended="2026-01-01 00:00:05")
    airflow.has("transcode", "upstream_failed")
    page = run_page(pages)
    assert tasks_of(page) == [("copy", "failed"), ("transcode", "upstream_failed")]
    head = page.partition("</h1>")[2][:600]
    assert '<span class="state failed">failed</span>' in head
    assert "everything was up to date" not in page
    assert "<b>copy</b>" in page
    assert "before it recorded a movement of data" in page
    assert 'href="/dags/d/runs/r/tasks/copy?try_number=2"' in page
    assert 'data-dag="d" data-run="r" data-task="copy" data-map-index="-1" data-attempt="2"' in page
    assert "5.0 s" in page


def test_a_failed_task_is_failed_whatever_it_recorded(pages: TestClient, tables: Tables, airflow: Airflow) -> None:
    airflow.runs("failed")
    tables.run("copy", "done")
    tables.run("load", "partial", "load")
    tables.run("gone", "done")
    airflow.has("copy", "success", began="2026-01-01 00:00:00")
    airflow.has("load", "failed", began="2026-01-01 00:00:01")
    airflow.has("publish", None)
    page = run_page(pages)
    assert tasks_of(page) == [("copy", "done"), ("load", "failed"), ("publish", "none"), ("gone", "done")]
    assert states(pages.get("/movement").text) == {"copy": "done", "load": "failed", "gone": "done"}
    assert "everything was up to date" not in page
    assert "the run failed" in page


def test_a_task_that_was_cut_off_has_the_time_that_airflow_knows(
    pages: TestClient, tables: Tables, airflow: Airflow
) -> None:
    airflow.runs("failed")
    tables.run("copy")
    tables.runs[-1]["seconds"] = 0.0
    airflow.has("copy", "failed", began="2026-01-01 00:00:00", ended="2026-01-01 01:00:00")
    assert '<td class="num nowrap">60 min 0 s</td>' in run_page(pages)
    assert '<td class="num nowrap"></td>' in pages.get("/movement").text


def test_a_run_that_moved_nothing_was_up_to_date_only_if_it_succeeded(
    pages: TestClient, tables: Tables, airflow: Airflow
) -> None:
    tables.run("copy", "done")
    airflow.has("copy", "success")
    airflow.runs("success")
    assert "everything was up to date" in run_page(pages)


def test_a_run_in_which_objects_failed_is_not_green(pages: TestClient, tables: Tables, airflow: Airflow) -> None:
    airflow.runs("success")
    airflow.has("copy", "success")
    tables.run("copy", "done")
    assert '<span class="state success">success</span>' in run_page(pages)
    tables.run("load", "partial")
    page = run_page(pages)
    assert '<span class="state partial">partial</span>' in page.partition("</h1>")[2][:400]
    assert '<span class="state success">' not in page
    assert "everything was up to date" not in page


def test_an_unknown_run_is_not_an_empty_one(pages: TestClient, airflow: Airflow) -> None:
    unknown = pages.get("/run", params={"dag": "d", "run": "r"})
    assert unknown.status_code == 404
    assert "Airflow has no run" in unknown.text
    airflow.runs("running")
    airflow.has("copy", "queued")
    page = run_page(pages)
    assert "No task of this run has recorded a movement of data yet" in page
    assert tasks_of(page) == [("copy", "queued")]


def test_a_run_that_airflow_has_deleted_is_shown_as_recorded(pages: TestClient, tables: Tables) -> None:
    tables.run("copy", "done")
    page = run_page(pages)
    assert "Airflow no longer has this run" in page
    assert tasks_of(page) == [("copy", "done")]


def test_many_task_instances_do_not_hide_the_failed_ones(pages: TestClient, airflow: Airflow) -> None:
    airflow.runs("failed")
    for n in range(300):
        airflow.has("load", "failed" if n > 295 else "success", n, began=f"2026-01-01 00:{n // 60:02}:{n % 60:02}")
    page = run_page(pages)
    shown = tasks_of(page)
    assert len(shown) == tasks.MOST_TASKS
    assert [name for name, state in shown if state == "failed"] == [f"load[{n}]" for n in range(296, 300)]
    assert "200 of 300 task instances" in page
    assert page.count("data-error") == 3
    assert "1 more tasks failed" in page


def test_logs_and_runs_are_for_users_who_may_read_them(
    pages: TestClient, airflow: Airflow, monkeypatch: pytest.MonkeyPatch
) -> None:
    airflow.runs("failed")
    airflow.has("copy", "failed")
    monkeypatch.setattr(movement, "may_read_logs", lambda *_: False)
    assert "data-error" not in run_page(pages)
    assert "failed-runs" in pages.get("/movement").text
    monkeypatch.setattr(movement, "may_read_runs", lambda *_: False)
    assert pages.get("/run", params={"dag": "d", "run": "r"}).status_code == 403
    assert "failed-runs" not in pages.get("/movement").text


def test_the_states_of_tasks_are_for_users_who_may_read_them(
    pages: TestClient, tables: Tables, airflow: Airflow, monkeypatch: pytest.MonkeyPatch
) -> None:
    airflow.runs("running")
    airflow.has("copy", "deferred")
    airflow.has("gone", "failed")
    tables.run("copy", "running")
    tables.run("gone", "done")
    assert "deferred" in pages.get("/live").text
    shown = pages.get("/movement").text.count("failed</")
    monkeypatch.setattr(movement, "may_read_runs", lambda *_: False)
    assert "deferred" not in pages.get("/live").text
    page = pages.get("/movement").text
    assert "deferred" not in page
    assert page.count("failed</") == shown - 1  # the filter has this state, too


def test_failed_runs_are_listed_even_if_they_recorded_nothing(
    pages: TestClient, tables: Tables, airflow: Airflow
) -> None:
    for dag, operator in (("d", "AISCopyBucketOperator"), ("e", "BashOperator"), ("known", "MyOperator")):
        airflow.runs("failed", dag)
        airflow.has("first", "failed", dag=dag, operator=operator)
        airflow.has("second", "upstream_failed", dag=dag, operator=operator)
    airflow.runs("failed", "d", "old", days_ago=8)
    airflow.runs("success", "d", "good")
    tables.run("copy", "done")
    tables.runs[0]["run_id"] = "known/earlier"

    def listed(**asked: str) -> list[str]:
        page = pages.get("/movement", params=asked).text
        part = page.partition('<ul class="failed-runs">')[2].partition("</ul>")[0]
        return re.findall(r'href="/storeside/run\?dag=(\w+)&amp;run=r">.*?</bdi></span>: first</li>', part)

    assert sorted(listed()) == ["d", "known"]
    assert listed(dag="d") == ["d"]
    assert listed(dag="e") == []
    tables.dags = frozenset({"known"})
    assert listed() == ["known"]


def test_rejected_rows_that_the_pages_may_not_read_do_not_hide_the_run(
    pages: TestClient, tables: Tables, airflow: Airflow, monkeypatch: pytest.MonkeyPatch
) -> None:
    airflow.runs("success")
    tables.run("load", "done", "load", rejected=3)
    tables.runs[0]["destination"] = "clickhouse://analytics.trips"
    rows = tables.rows

    def denied(statement: str, **asked: Any) -> list[dict[str, Any]]:
        if "_rejected" in statement:
            return RealTables(Hangs(DatabaseError("", code=497))).rows(statement)  # type: ignore[arg-type]
        return rows(statement, **asked)

    monkeypatch.setattr(tables, "rows", denied)
    page = run_page(pages)
    assert "may not read <code>analytics.trips_rejected</code>" in page
    assert ("load", "done") in tasks_of(page)


def test_outcomes_that_a_later_run_replaced_lead_to_it(pages: TestClient, tables: Tables, airflow: Airflow) -> None:
    airflow.runs("success")
    tables.run("copy", "partial")
    tables.runs[0]["failed"] = 5
    assert "replaced" not in run_page(pages)
    tables.later = ["d/next", "d/last"]
    page = run_page(pages)
    assert "The outcomes of this task's objects were replaced by later runs" in page.replace("&#39;", "'")
    found = re.findall(r'href="/storeside/run\?dag=d&amp;run=(\w+)"', page.partition("Later runs")[2])
    assert found == ["next", "last"]


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


def test_failed_objects_are_for_those_who_may_start_runs_or_clear_tasks(
    pages: TestClient, tables: Tables, monkeypatch: pytest.MonkeyPatch
) -> None:
    tables.run("load", "partial", "load")
    tables.runs[0]["failed"] = 2
    for may_run, may_stop in ((True, False), (False, True), (False, False)):
        monkeypatch.setattr(movement, "may_run", lambda *_, may=may_run: may)
        monkeypatch.setattr(movement, "may_stop", lambda *_, may=may_stop: may)
        is_disabled = re.search(r'data-action="retry"[^>]* disabled', run_page(pages)) is not None
        assert is_disabled == (not may_run and not may_stop)


class Ledger:
    """A ClickHouse client that keeps the parameters of statements."""

    def __init__(self) -> None:
        self.asked: list[dict[str, Any]] = []

    def query(self, text: str, parameters: dict[str, Any]) -> Any:
        return SimpleNamespace(result_rows=[(1,)], first_row=(1,))

    def command(self, text: str, parameters: dict[str, Any]) -> None:
        self.asked.append(parameters)


@pytest.mark.parametrize("kind", ["load", "transform"])
def test_known_failures_are_accepted_in_the_name_of_the_visitor(
    pages: TestClient, tables: Tables, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    known = [[name, "it is <b>bad</b>"] for name in ("a\nb", "open", "by bob", "since")]
    tables.run("t[2]", "partial", kind, known_bad=30, known_failures=known)
    now = [
        {"object": name, "is_open": is_open, "accepted_by": who, "accepted_ms": 1000}
        for name, is_open, who in (("a\nb", 1, ""), ("open", 1, ""), ("by bob", 0, "bob"))
    ]
    tables.answers |= {"pages_known_loads": now, "pages_known_results": now}
    ledger, roles = Ledger(), []
    monkeypatch.setattr("storeside.plugins.pages.failures.clickhouse", lambda role: roles.append(role) or ledger)
    page = run_page(pages)
    assert "did not try 30 objects again" in page
    assert "30 objects failed for good before; this task found all others up to date" in page
    assert "everything was up to date" not in page
    assert "it is &lt;b&gt;bad" in page
    assert "by bob, <time" in page
    where = {"load": "ais://b", "transform": "ais://a"}[kind]  # the table, or the source
    (rest,) = re.findall(r'<p>26 more are not listed here. <a href="([^"]*)"', page)
    assert parse_qs(urlsplit(html.unescape(rest)).query) == {"bucket": [where], "status": ["failed"]}
    ids = re.findall(r'name="failure" value="(\w+)"', page)
    assert len(ids) == 2
    form = {"dag": "d", "run": "r", "task": "t[2]", "failure": [ids[0], "of another"]}
    answer = pages.post("/accept", data=form)
    assert (answer.status_code, roles) == (303, ["ledger_conn_id"])
    ((asked,),) = [ledger.asked]
    assert (asked["who"], asked.get("keys", asked.get("names"))) == ("ada", ["a\nb"])
    assert "1 failure accepted" in pages.get(answer.headers["location"].removeprefix("/storeside")).text
    for status, changed in (
        (404, {"task": "t"}), (404, {"failure": ["of another"]}), (404, {"run": "x"}), (400, {"failure": []}),
    ):  # fmt: skip
        assert pages.post("/accept", data={**form, **changed}).status_code == status
    monkeypatch.setattr("storeside.plugins.pages.failures.may_run", lambda *_: False)
    assert pages.post("/accept", data=form).status_code == 403
    monkeypatch.setattr(movement, "may_run", lambda *_: False)
    assert re.search(r"<button disabled[^>]*>Accept", run_page(pages))
    assert len(ledger.asked) == 1


def test_objects_that_are_left_out_are_counted_by_reason(pages: TestClient, tables: Tables) -> None:
    tables.run("t", "done", "transform", left_out=3, left_out_reasons={"shorter <than> 1 s": 2, "no speech": 1})
    page = run_page(pages)
    assert "left out 3 objects" in page
    assert re.search(r"shorter &lt;than&gt; 1 s</td><td[^>]*>2</td>", page)
    assert '<option value="left_out">left out</option>' in page
    assert "3 left out" in pages.get("/movement").text


def test_totals_do_not_hide_objects_that_failed_before(pages: TestClient, tables: Tables) -> None:
    tables.run("t", "partial", known_bad=2)
    counted = dict.fromkeys(("objects_done", "objects_failed", "bytes_read", "bytes_written"), 0)
    for with_known, said in ((1, r"none failed \(<[^>]*>1 task left out objects"), (0, "none failed, 0 B read")):
        tables.answers["pages_movement_totals"] = [{"tasks": 2, **counted, "tasks_with_known": with_known}]
        assert re.search(said, pages.get("/movement").text)


def test_a_task_names_its_queue_and_the_page_knows_its_url(
    pages: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    class DeadLetters:
        def __init__(self, queue: Any, *, unclaimed: bool) -> None:
            assert queue.url == QUEUE

        has_more = False

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
        "aistore_default": "connection aistore_default does not lead to AIStore: Airflow has no connection of this",
        "no_host": "needs the host of an AIStore proxy",
        "down": "the cluster does not answer for now",
        "no_file": "a file that the connection no_file names is missing",
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


def test_a_cluster_that_hangs_is_asked_once_for_all_that_moves(
    pages: TestClient, tables: Tables, airflow: Airflow, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each request waits for its time-out of five seconds."""
    asked: list[str] = []

    def newest_snapshots(_: object, job: str) -> list[Any]:
        asked.append(job)
        raise ReadTimeout

    monkeypatch.setattr(jobs, "newest_snapshots", newest_snapshots)
    monkeypatch.setattr(movement, "aistore", lambda _: None)
    for n in range(20):
        tables.run(f"t{n}", aistore_conn_id="one" if n % 2 else "other", job=f"job{n}", objects=4)
        airflow.has(f"t{n}")
    page = pages.get("/live").text
    assert page.count("the cluster does not answer for now") == 20
    assert len(asked) == 2


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
    monkeypatch.setattr("storeside.plugins.pages.audio.is_done", lambda *_: True)
    answer = pages.get("/audio", params={"bucket": "ais://a", "object": "a.wav"})
    assert answer.status_code == 503
    assert "the connection aistore_default does not lead to AIStore" in answer.text


# A ClickHouse that hangs. The connections' own 600 s are longer than a test may take.


def test_a_page_does_not_wait_for_clickhouse_as_long_as_a_load_does(
    known: dict[str, Connection], hung: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    patient = json.dumps({"connect_timeout": 600, "send_receive_timeout": 600})
    known["clickhouse_default"] = Connection(
        conn_id="clickhouse_default", conn_type="clickhouse", host=HOST, port=hung, extra=patient
    )
    assert connections.PATIENCE["send_receive_timeout"] <= 15
    monkeypatch.setitem(connections.PATIENCE, "send_receive_timeout", 1)
    with pytest.raises(UnavailableError, match="the connection clickhouse_default does not lead to ClickHouse"):
        connections.clickhouse()


def test_a_page_does_not_wait_for_sqs_as_long_as_a_task_does(
    known: dict[str, Connection], hung: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    patient = {"read_timeout": 600}
    extra = {"endpoint_url": f"http://{HOST}:{hung}", "region_name": "us-east-1", "config_kwargs": patient}
    known["aws_default"] = Connection(
        conn_id="aws_default", conn_type="aws", login="a", password="b", extra=json.dumps(extra)
    )
    assert connections.SQS_PATIENCE["read_timeout"] <= 15  # type: ignore[operator]
    monkeypatch.setitem(connections.SQS_PATIENCE, "read_timeout", 1)
    client = connections.sqs()
    with pytest.raises(ReadTimeoutError):
        client.list_queues()


class Hangs:
    """A ClickHouse client that gets no answer, or one with an error code."""

    def __init__(self, error: Exception, meanwhile: Callable[[], object] = lambda: None) -> None:
        self.error, self.meanwhile = error, meanwhile
        self.asked = 0

    def query(self, *_: Any, **__: Any) -> Any:
        self.asked += 1
        self.meanwhile()
        raise self.error


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (OperationalError("HTTPConnectionPool(host='10.0.0.7'): Read timed out."), "does not answer"),
        (DatabaseError("Code: 159. DB::Exception: Timeout `x`", code=159), "within 10 seconds"),
        (DatabaseError("Code: 497. DB::Exception: Not enough privileges", code=497), "Give it the grants"),
        (DatabaseError("Code: 62. DB::Exception: Syntax error", code=62), "error 62"),
    ],
)
@pytest.mark.parametrize(
    "path", ["/movement", "/live", "/run?dag=d&run=r", "/objects", "/queues", "/quality", "/corpus", "/benchmarks"]
)
def test_an_error_of_clickhouse_is_a_page_that_says_what_to_do(
    pages: TestClient, monkeypatch: pytest.MonkeyPatch, path: str, error: Exception, said: str
) -> None:
    client = Hangs(error)
    monkeypatch.setitem(app.dependency_overrides, access.tables, lambda: RealTables(client))  # type: ignore[arg-type]
    answer = pages.get(path)
    assert answer.status_code == 503
    assert "<h1>Not now</h1>" in answer.text
    assert said in answer.text
    assert client.asked == 1
    for part in ("DB::Exception", "HTTPConnectionPool", "10.0.0.7", "`"):
        assert part not in answer.text


def test_the_statements_of_a_page_have_a_time_limit_together(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("storeside.pages.tables.time", SimpleNamespace(monotonic=lambda: now[0]))
    client = Hangs(DatabaseError("", code=60), lambda: now.append(now.pop() + 15))
    found = RealTables(client)  # type: ignore[arg-type]
    assert found.rows("SELECT 1") == []
    assert found.rows("SELECT 2") == []
    with pytest.raises(UnavailableError, match="did not finish"):
        found.rows("SELECT 3")
    assert client.asked == 2


def test_a_hung_clickhouse_is_named_without_the_libraries_text(
    known: dict[str, Connection], hung: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server((HOST, 0)) as server:
        closed = server.getsockname()[1]
    monkeypatch.setitem(connections.PATIENCE, "send_receive_timeout", 1)
    for port, reason in ((hung, "did not answer in time"), (closed, "no server answers at its host and port")):
        known["clickhouse_default"] = Connection(
            conn_id="clickhouse_default", conn_type="clickhouse", host=HOST, port=port
        )
        with pytest.raises(UnavailableError) as failed:
            connections.clickhouse()
        assert str(failed.value).startswith("the connection clickhouse_default does not lead to ClickHouse: ")
        assert reason in str(failed.value)
        assert HOST not in str(failed.value)


def test_the_page_of_a_recording_has_the_facts_that_are_known(pages: TestClient, tables: Tables) -> None:
    facts = {"silence_share": 0.25, "clipped_share": 0, "bandwidth_hz": 7_968.75, "snr_db": None}
    levels = dict.fromkeys(("duration_seconds", "sample_rate", "bytes", "peak_dbfs", "rms_dbfs", "recorded_ms"), 1)
    names = dict.fromkeys(("checksum", "codec", "complete", "ignored", "source_version"), "x")
    tables.answers["pages_manifest_of"] = [{**facts, **levels, **names, "channels": 1, "run_id": "d/r"}]
    page = pages.get("/object", params={"bucket": "ais://b", "object": "a.wav"}).text
    for label, value in (("silence", "0.25 of frames"), ("clipped", "0 of samples"), ("bandwidth", "7,969 Hz")):
        assert f"<dt>{label}</dt><dd>{value}</dd>" in page
    assert "signal-to-noise ratio" not in page


# what pages never show


@pytest.mark.parametrize("path", ["/run", "/run?dag=d", "/object", "/dead-letters", "/audio?bucket=b", "/queues?x=y"])
def test_an_incomplete_address_is_a_page_and_not_json(pages: TestClient, path: str) -> None:
    answer = pages.get(path)
    assert answer.headers["content-type"].startswith("text/html")
    if path != "/queues?x=y":
        assert answer.status_code == 400
        assert "lacks a valid value for: " in answer.text
    assert '{"detail"' not in answer.text


def test_a_fault_of_a_page_is_a_page(pages: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any) -> Any:
        raise RuntimeError("the `secret` of a library")

    monkeypatch.setattr("storeside.plugins.pages.movement.movements.kinds", fails)
    answer = pages.get("/movement")
    assert answer.status_code == 500
    assert "This page has a defect" in answer.text
    assert "library" not in answer.text
    assert "default-src 'none'" in answer.headers["content-security-policy"]


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (0, "0"), (5.88e-07, "< 0.001"), (-1e-9, "> -0.001"), (0.001, "0.001"), (0.00123, "0.00123"), (1.5, "1.5"),
        (12.34, "12.3"), (1234.5, "1,234"), (12_345_678, "12,345,678"), (1e21, "1,000,000,000,000,000,000,000"),
        (float("nan"), "unknown"), (float("inf"), "unknown"),
    ],
)  # fmt: skip
def test_numbers_have_no_exponent(value: float, shown: str) -> None:
    assert number(value) == shown


def test_pages_contain_no_backticks(pages: TestClient, airflow: Airflow) -> None:
    airflow.runs("failed")
    for path in ("/movement", "/run?dag=d&run=r", "/objects", "/quality", "/benchmarks"):
        answer = pages.get(path)
        assert answer.status_code == 200, path
        assert "`" not in answer.text


# loads by events


def test_an_object_loaded_by_events_leads_to_the_run_of_its_batch(pages: TestClient, tables: Tables) -> None:
    for run in ("d/scheduled__2026-01-01T00:00:00+00:00/1a2b3c4d", "d/manual__1", "by hand"):
        load = {"destination": "db.t", "version": "v", "load_id": "1", "status": "loaded", "reason": "", "rows": 1}
        tables.loads.append({**load, "rejected": 0, "bytes": 1, "run_id": run, "recorded_ms": 0})
    page = pages.get("/object", params={"bucket": "s3://b", "object": "k"}).text
    assert re.findall(r'href="/storeside/run\?([^"]*)">(?:<span class="run" title="([^"]*)">)?([^<]*)<', page) == [
        ("dag=d&amp;run=scheduled__2026-01-01T00%3A00%3A00%2B00%3A00", "scheduled__2026-01-01T00:00:00+00:00", ""),
        ("dag=d&amp;run=manual__1", "", "manual__1"),
    ]
    assert "run by hand</p>" in page


def with_verdict(verdict: dict[str, Any], kind: str = "load") -> dict[str, Any]:
    """Return the row of a load's run with this verdict."""
    return {
        "run_id": "d/r", "dag_id": "d", "task_id": "load", "kind": kind, "source": "s3://b/x", "state": "done",
        "destination": "clickhouse://db.t", "listed": 1, "done": 1, "failed": 0, "seconds": 1.0, "recorded_ms": 1,
        "detail": json.dumps({"verdict": verdict}),
    }  # fmt: skip


def test_a_verdict_shows_values_as_text(pages: TestClient, tables: Tables) -> None:
    expectation = {
        "expectation": "expect_x", "columns": ["<i>c</i>"], "severity": "critical", "description": "<b>d</b>",
        "success": False, "element_count": 3, "missing_count": 0, "unexpected_count": 1,
        "examples": [["<script>k", "<script>v\u202e"]],
    }  # fmt: skip
    both = [expectation, {**expectation, "success": True}]
    verdict = {
        "expectations": both,
        "rows": 3,
        "invalid": 1,
        "suite": "<u>s</u>",
        "summary": "",
        "success": False,
        "quarantine": True,
    }
    tables.answers["pages_verdicts"] = [with_verdict(verdict)]
    for path in ("/quality", "/verdict?run=d/r&dag=d&task=load"):
        answer = pages.get(path)
        assert answer.status_code == 200
        assert "quarantined" in answer.text
        for markup in ("<script>k", "<script>v", "<b>d", "<i>c", "<u>s", "\u202e"):
            assert markup not in answer.text
        assert "&lt;script&gt;v\\u202e" in answer.text
        assert "/object?bucket=s3%3A%2F%2Fb&amp;object=%3Cscript%3Ek" in answer.text
    assert "in the table db.t_quarantine" in pages.get("/verdict?run=d/r&dag=d&task=load").text
    tables.answers["pages_verdicts"] = []
    assert pages.get("/verdict?run=d/r&dag=d&task=load").status_code == 404
    assert pages.get("/verdict?run=d/r").status_code == 400


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ({"quarantine": True}, "The invalid rows are in the table db.t_quarantine; the others were published."),
        ({"by_object": True}, "Each object with invalid rows failed as a whole; the other objects were published."),
        ({}, "Nothing of this load was published."),
    ],
)
def test_a_verdict_states_what_was_published(
    pages: TestClient, tables: Tables, more: dict[str, bool], told: str
) -> None:
    verdict = {"expectations": [], "rows": 3, "invalid": 1, "suite": "s", "summary": "", "success": False, **more}
    tables.answers["pages_verdicts"] = [with_verdict(verdict)]
    assert re.findall(r"[^<>]*published\.", pages.get("/verdict?run=d/r&dag=d&task=load").text) == [told]


def test_an_earlier_verdict_on_events_is_of_single_objects(pages: TestClient, tables: Tables) -> None:
    verdict = {"expectations": [], "rows": 3, "invalid": 1, "suite": "s", "summary": "", "success": False}
    tables.answers["pages_verdicts"] = [with_verdict(verdict, "events")]
    assert "the other objects were published." in pages.get("/verdict?run=d/r&dag=d&task=load").text
