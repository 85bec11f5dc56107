"""Overview, ETLs and storage as the API server returns them; links of listings; what is around the pages."""

from __future__ import annotations

import asyncio
import base64
import json
import re
import time
from collections.abc import Iterator
from email.utils import formatdate
from types import SimpleNamespace
from typing import Any

import pytest
from aistore.sdk.const import HEADER_BUCKET_PROPS
from aistore.sdk.types import ETLDetails, ETLInfo, Smap, Snode
from fastapi.testclient import TestClient
from markupsafe import escape
from requests import ReadTimeout
from sqlalchemy import event
from sqlalchemy.dialects import mysql, postgresql, sqlite
from sqlalchemy.engine import Dialect
from sqlalchemy.sql import ClauseElement
from starlette.middleware.gzip import GZipMiddleware

from storeside.aistore import control_plane
from storeside.pages import charts
from storeside.pages.objects import entries
from storeside.pages.storage import State, read_target, read_version
from storeside.pages.tables import UnavailableError, write_cursor
from storeside.plugins import storeside_plugin
from storeside.plugins.pages import etls, overview, runs, storage, tasks
from storeside.plugins.pages.render import moment, prose, run_name, size, span
from storeside.plugins.storeside_plugin import Pages, StoresidePlugin
from tests.unit.test_pages import Airflow, Tables, airflow, is_query, known, pages, tables  # noqa: F401 (fixtures)

pytestmark = pytest.mark.filterwarnings("error")


def rows_of(page: str) -> dict[str, str]:
    """Return the rows of the overview's table by DAG."""
    body = page.partition("<tbody>")[2].partition("</tbody>")[0]
    rows = body.split("<tr>")[1:]
    return {re.findall(r"\?dag=([\w.]+)\"", row)[0]: row for row in rows}


def attention(row: str) -> list[str]:
    return re.findall(r"<div><a [^>]*>([^<]*)</a></div>", row)


# overview


def test_the_overview_begins_with_what_needs_attention(
    pages: TestClient,  # noqa: F811
    tables: Tables,  # noqa: F811
    airflow: Airflow,  # noqa: F811
) -> None:
    for dag, states in (("quiet", ["success"]), ("broken", ["success", "failed", "failed"]), ("events", ["success"])):
        for n, state in enumerate(states):
            airflow.runs(state, dag, f"r{n}", days_ago=1 - n / 10)
            airflow.has("copy", state, dag=dag, run=f"r{n}")
    airflow.runs("failed", "others")
    airflow.has("echo", "failed", dag="others", operator="BashOperator")
    tables.answers = {
        "pages_pipelines": [{"dag_id": "quiet", "objects_done": 12, "bytes_read": 3_000_000, "recorded_ms": 1000}],
        "pages_open_failures": [{"dag_id": "broken", "objects": 3, "newest_run": "broken/r1"}],
        "pages_partial_runs": [{"dag_id": dag, "run_id": f"{dag}/r0"} for dag in ("broken", "events")],
        "pages_dag_queues": [{"dag_id": "events", "queue": "http://sqs/000000000000/events"}],
    }
    tables.depth = {"dead": 2, "oldest_seconds": 7200.0, "recorded_ms": time.time() * 1000}
    answer = pages.get("/overview")
    assert answer.status_code == 200
    rows = rows_of(answer.text)
    assert list(rows) == ["broken", "events", "quiet"]
    assert attention(rows["broken"]) == ["The last 2 runs failed", "3 objects failed and not processed since"]
    assert 'href="/storeside/run?dag=broken&amp;run=r1&amp;status=failed"' in rows["broken"]
    assert attention(rows["events"]) == ["2 dead letters in events", "Messages in events wait for 2.0 h"]
    assert '<td class="num"><a href="/storeside/queues?queue=events">0</a></td>' in rows["events"]
    tables.depth["recorded_ms"] = (time.time() - 3 * 3600) * 1000
    old = rows_of(pages.get("/overview").text)["events"]
    assert attention(old)[1] == "Messages in events waited for 2.0 h at the last measurement"
    assert 'queue=events">0</a><br><span class="dim nowrap">3.0 h ago' in old
    assert attention(rows["quiet"]) == []
    assert re.findall(r'dot-link (\w+)"', rows["broken"]) == ["partial", "failed", "failed"]
    assert re.findall(r'dot-link (\w+)"', rows["events"]) == ["partial"], "half of it failed"
    assert re.findall(r'dot-link (\w+)"', rows["quiet"]) == ["success"]
    assert "12 objects, 3.0 MB in 30 days" in rows["quiet"]
    assert "2 need attention" in answer.text
    assert "000000000000" not in answer.text
    assert list(rows_of(pages.get("/overview", params={"dag": "ROK"}).text)) == ["broken"]


def test_the_overview_shows_no_runs_of_dags_whose_runs_one_may_not_read(
    pages: TestClient,  # noqa: F811
    tables: Tables,  # noqa: F811
    airflow: Airflow,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for dag in ("mine", "other"):
        airflow.runs("failed", dag, "r")
        airflow.has("copy", "failed", dag=dag)
    tables.dags = frozenset({"mine"})
    assert list(rows_of(pages.get("/overview").text)) == ["mine"]
    monkeypatch.setattr(overview, "may_read_runs", lambda *_: False)
    assert "No pipeline has run" in pages.get("/overview").text


@pytest.mark.parametrize(
    ("part", "statement", "said"),
    [
        ("failures", "pages_open_failures", "Failed objects"),
        ("queues", "pages_dag_queues", "Queues"),
        ("runs", "pages_partial_runs", "Runs in which some objects failed"),
    ],
)
def test_a_slow_part_of_the_overview_does_not_hide_the_rest(
    pages: TestClient,  # noqa: F811
    tables: Tables,  # noqa: F811
    airflow: Airflow,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
    part: str,
    statement: str,
    said: str,
) -> None:
    airflow.runs("success")
    airflow.has("copy", "success")
    rows = tables.rows

    def slow(text: str, **asked: Any) -> list[dict[str, Any]]:
        if is_query(text, statement):
            raise UnavailableError(f"no answer: {part}")
        return rows(text, **asked)

    monkeypatch.setattr(tables, "rows", slow)
    page = pages.get("/overview").text
    assert f"{said} are not shown: no answer: {part}" in page
    assert "none needs attention" not in page
    assert list(rows_of(page)) == ["d"]
    assert (">?</td>" in page) == (part == "failures")


def test_runs_beyond_the_limit_are_the_oldest(
    pages: TestClient,  # noqa: F811
    airflow: Airflow,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(runs, "_MOST_DAGS", 2)
    for dag in ("a", "b", "c"):
        for n in range(20):
            airflow.has("copy", "success", dag=dag, run=f"r{n}")
            airflow.runs("failed" if n == 19 else "success", dag, f"r{n}", days_ago=20 - n)
    rows = rows_of(pages.get("/overview").text)
    assert {dag: attention(row) for dag, row in rows.items()} == {dag: ["The last run failed"] for dag in "abc"}


@pytest.mark.parametrize("dialect", [mysql.dialect(), postgresql.dialect(), sqlite.dialect()])
def test_statements_are_for_each_database_of_airflow(
    airflow: Airflow,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
    dialect: Dialect,
) -> None:
    asked: list[str] = []
    event.listen(airflow.engine, "before_execute", lambda _, statement, *__: asked.append(compiled(statement)))

    def compiled(statement: Any) -> str:
        return str(statement.compile(dialect=dialect)) if isinstance(statement, ClauseElement) else ""

    airflow.runs("success")
    airflow.has("copy", "success")
    assert tasks.run_of("d", "r")
    assert tasks.failed_runs(["d"], "d", None) == []
    assert runs.latest(["d"], "d", ["d"])
    assert runs.started_by([("d", "r")])
    assert len(list(filter(None, asked))) >= 8
    assert not [statement for statement in asked if "NULLS" in statement]


# listings


def test_listings_keep_filter_and_order_in_their_addresses(
    pages: TestClient,  # noqa: F811
    tables: Tables,  # noqa: F811
) -> None:
    for n in range(51):
        tables.run(f"t{n}", "done", kind="load")
    asked = {"dag": "d", "place": "ais", "sort": "failed", "order": "asc"}
    page = pages.get("/movement", params=asked).text
    assert 'rel="prev"' not in page
    (following,) = re.findall(r'href="/storeside/(movement\?[^"]*)" rel="next"', page)
    for part in ("dag=d", "place=ais", "sort=failed", "order=asc"):
        assert part in following
    assert 'aria-sort="ascending"' in page
    assert re.search(r'order=desc">Failed', page.replace("&amp;", "&"))
    second = pages.get("/" + following.replace("&amp;", "&")).text
    assert 'rel="prev"' in second
    assert re.search(r'back=[^"]*" rel="prev"', second)
    assert pages.get("/movement", params={"sort": "seconds; DROP"}).status_code == 400
    assert pages.get("/movement", params={"back": "[1]"}).status_code == 400
    assert pages.get("/objects", params={"order": "x"}).status_code == 400
    assert pages.get("/objects", params={"after": write_cursor((0, "a", "b", "c", ""))}).status_code == 200


def test_filters_have_suggestions(pages: TestClient, tables: Tables) -> None:  # noqa: F811
    tables.answers = {"pages_places": [{"place": 'ais://"x'}]}
    for path in ("/movement", "/objects", "/quality"):
        page = pages.get(path).text
        assert '<option value="ais://&#34;x"></option>' in page
        assert re.search(r'<input name="\w+"[^>]* list="known-', page)


def test_an_object_is_one_entry_with_its_copies_transforms_facts_and_loads() -> None:
    def copied(source: str, name: str, destination: str, result: str, status: str = "done") -> dict[str, Any]:
        return {
            "source": source, "object": name, "destination": destination, "destination_object": result,
            "status": status, "reason": "", "recorded_ms": 1000,
        }  # fmt: skip

    def loaded(bucket: str, key: str) -> dict[str, Any]:
        return {
            "bucket_uri": bucket, "key": key, "destination": "db.t", "status": "loaded", "reason": "",
            "recorded_ms": 0,
        }  # fmt: skip

    rows = [
        copied("ais://rec", "a.flac", "ais://wav", "a.wav"),
        copied("ais://rec", "b.flac", "ais://wav", "b.wav", "failed"),
        copied("ais://wav", "a.wav", "ais://facts", "x/a.json"), copied("s3://rec", "a.flac", "ais://rec", "a.flac"),
    ]  # fmt: skip
    found = entries(rows, [loaded("ais://facts", "x/a.json"), loaded("ais://wav", "b.wav")])
    assert [(one.place.bucket, one.place.object, len(one.outcomes)) for one in found] == [
        ("s3://rec", "a.flac", 4), ("ais://rec", "b.flac", 1), ("ais://wav", "b.wav", 1),
    ]  # fmt: skip
    assert (found[0].outcomes[0].destination, found[0].outcomes[-1].destination) == ("ais://rec", "db.t")


def test_on_a_phone_entries_take_the_place_of_the_tables(
    pages: TestClient,  # noqa: F811
    tables: Tables,  # noqa: F811
) -> None:
    name = "folder/" * 9 + "<b>.flac"
    tables.answers["pages_objects"] = [
        {
            "source": "s3://a", "object": name, "prepend": "", "destination": "ais://b", "destination_object": name,
            "status": "done", "reason": "", "bytes_in": 1, "bytes_out": 1, "recorded_ms": 0, "run_id": "d/r",
        }
    ]  # fmt: skip
    page = pages.get("/objects").text
    entry = page.partition('<ul class="entries"')[2].partition("</ul>")[0]
    assert f"<bdi>folder/f…{escape(name[-33:])}</bdi>" in entry
    assert f'title="{escape(name)}"' in entry
    assert "s3://a → ais://b" in entry


# destination tables


def test_tables_have_rows_size_and_freshness(
    pages: TestClient,  # noqa: F811
    tables: Tables,  # noqa: F811
) -> None:
    now = time.time() * 1000
    row = {
        "table": "data.trips", "dags": ["load_trips"], "objects": 3, "rows_loaded": 70, "objects_failed": 1,
        "state": "partial", "loaded_ms": now - 7_200_000, "recorded_ms": now - 60_000, "rows": 12_345,
        "bytes": 2_000_000,
    }  # fmt: skip
    unseen = {**row, "table": "data.<b>", "rows": None, "bytes": None, "loaded_ms": 0}
    tables.answers["pages_destinations"] = [row]
    page = pages.get("/tables").text
    assert "grant it <code>SHOW TABLES</code>" not in page
    for shown in ("12,345", "2.0 MB", "2.0 h ago", "1 min 0 s ago", "70 rows", 'href="/storeside/tables.csv?"'):
        assert shown in page, shown
    tables.answers["pages_destinations"] = [unseen]
    page = pages.get("/tables", params={"text": "d"}).text
    assert "data.&lt;b&gt;" in page
    assert "grant it <code>SHOW TABLES</code>" in page
    assert 'href="/storeside/tables.csv?text=d" download' in page
    assert "12,345" not in page


# times, and Airflow's menu


def test_times_can_be_shown_in_airflows_time_zone() -> None:
    assert moment(1.4) == '<time datetime="1970-01-01T00:00:01Z" data-at="1">1970-01-01 00:00:01 UTC</time>'


@pytest.mark.parametrize(
    ("run", "at"),
    [
        ("manual__2026-11-23T07:52:32.793615+00:00_f96970c8", "2026-11-23 07:52:32"),
        ("scheduled__2026-11-23T07:45:00+00:00", "2026-11-23 07:45:00"),
        ("asset_triggered__2026-11-23T09:45:00.1+02:00_xY1", "2026-11-23 07:45:00"),
        ("backfill__2026-11-23T07:45:00Z", "2026-11-23 07:45:00"),
    ],
)
def test_the_id_of_a_run_is_its_time_with_the_id_on_hover(run: str, at: str) -> None:
    assert re.fullmatch(
        rf'<span class="run" title="{re.escape(run)}"><time [^>]*>{at} UTC</time></span>', run_name(run)
    )


@pytest.mark.parametrize(
    "run", ["manual__1", "nightly <b>", "manual__2026-99-23T07:45:00+00:00", "x__2026-11-23T07:45:00+00:00<b>"]
)
def test_an_id_without_a_time_is_shown_as_it_is(run: str) -> None:
    assert run_name(run) == escape(run)


def test_long_reasons_take_two_lines_until_they_are_asked_for(
    pages: TestClient,  # noqa: F811
    tables: Tables,  # noqa: F811
) -> None:
    tables.run("t", "partial", "transform")
    row = {
        "object": "a", "prepend": "", "destination_object": "", "status": "failed", "bytes_in": 1, "bytes_out": 0,
        "recorded_ms": 0,
    }  # fmt: skip
    tables.answers["pages_outcomes"] = [{**row, "reason": "too long " * 20}, {**row, "reason": "no audio"}]
    page = pages.get("/run", params={"dag": "d", "run": "r"}).text
    assert re.search(
        r'<td class="reason"><div class="clamp" tabindex="0" title="(too long ){20}">(too long ){20}</div>', page
    )
    assert '<td class="reason">no audio</td>' in page
    css = (etls_folder() / "static" / "pages.css").read_text()
    assert re.search(r"\.clamp \{[^}]*-webkit-line-clamp: 2;", css)


def test_a_chart_has_no_line_over_time_that_was_not_measured() -> None:
    drawn = charts.line("l", [(0, 1), (900, 2), (1800, 1), (7200, 1), (8100, 2), (20_000, 1)], every=900)
    assert drawn is not None
    assert [len(piece.split()) for piece in drawn.pieces] == [3, 2]
    assert len(drawn.dots) == 6
    single = charts.line("l", [(0, 1), (900, 2)], every=0)
    assert single is not None
    assert (single.pieces, len(single.dots)) == ((), 2)


@pytest.mark.parametrize(
    ("write", "value", "text"),
    [
        (span, 59.94, "59.9 s"), (span, 59.97, "1 min 0 s"), (span, 119.7, "2 min 0 s"), (span, 125, "2 min 5 s"),
        (size, 999, "999 B"), (size, 999_940, "999.9 kB"), (size, 999_999, "1.0 MB"), (size, 2e18, "2000.0 PB"),
    ],
)  # fmt: skip
def test_times_and_sizes_are_rounded_before_their_units(write: Any, value: float, text: str) -> None:
    assert write(value) == text


def test_backticks_become_code_and_names_stay_text() -> None:
    assert prose("use `make <up>` or\u202e") == "use <code>make &lt;up&gt;</code> or\\u202e"
    assert "`" not in prose("an odd ` one, and `two`")


def test_the_menu_has_one_entry_with_icon_and_category() -> None:
    (entry,) = (view for view in StoresidePlugin.external_views if view["destination"] == "nav")
    assert entry["category"] == "browse"
    for name in ("icon", "icon_dark_mode"):
        path = entry[name].removeprefix("/storeside/static/")
        assert (etls_folder() / "static" / path).read_text().startswith("<svg")


def test_airflows_home_links_to_the_overview() -> None:
    (app,) = StoresidePlugin.react_apps
    assert app["destination"] == "dashboard"
    script = (etls_folder() / "static" / app["bundle_url"].removeprefix("/storeside/static/")).read_text()
    assert f'globalThis["{app["name"]}"]' in script
    (entry,) = (view for view in StoresidePlugin.external_views if view["destination"] == "nav")
    assert (entry["href"], f'"plugin/{entry["url_route"]}"' in script) == ("/storeside/overview", True)


def etls_folder() -> Any:
    from pathlib import Path

    return Path(etls.__file__).parent


def test_the_first_page_is_not_blank_while_the_pages_load(monkeypatch: pytest.MonkeyPatch) -> None:
    """A browser gets a page that loads itself again; a script waits. Airflow's event loop continues to run."""
    import threading

    goes_on = threading.Event()

    async def loaded(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    def load() -> Any:
        goes_on.wait(10)
        return loaded

    monkeypatch.setattr(storeside_plugin, "_load", load)
    monkeypatch.setattr(storeside_plugin, "_PATIENCE", 0.01)

    async def ask(app: Any, *headers: tuple[bytes, bytes]) -> list[dict[str, Any]]:
        sent: list[dict[str, Any]] = []

        async def send(message: dict[str, Any]) -> None:
            sent.append(message)

        given = [(b"accept-encoding", b"gzip"), *headers]  # Airflow compresses answers
        await app({"type": "http", "method": "GET", "headers": given}, None, send)
        return sent

    async def visit() -> None:
        app, opens = GZipMiddleware(Pages(), minimum_size=1_000_000), (b"sec-fetch-mode", b"navigate")
        script = asyncio.create_task(ask(app))
        start, body = await ask(app, opens)
        assert start["status"] == 200
        assert b"The pages start" in body["body"]
        assert b"default-src 'none'" in dict(start["headers"])[b"content-security-policy"]
        assert not script.done()
        goes_on.set()
        assert (await script)[0]["status"] == 204
        assert (await ask(app, opens))[0]["status"] == 204

    asyncio.run(visit())


# ETLs


class Request:
    """AIStore's answers to requests without the SDK's own methods."""

    def __init__(self, answers: dict[str, Any]) -> None:
        self.answers = answers

    def request(self, method: str, *, path: str, headers: Any = None, **_: Any) -> Any:
        found = self.answers[(headers or {}).get("ais-node-id", path)]
        return SimpleNamespace(json=lambda: found)


class Etl:
    def __init__(self, name: str) -> None:
        self.name = name

    def view(self, job: str) -> ETLDetails:
        variables = {"STORESIDE_SPEC": "x", "STORESIDE_KEPT_BY": "nightly/run<1>"}
        runtime = {"image": "storeside:1", "env": [{"name": k, "value": v} for k, v in variables.items()]}
        error = {"obj_name": "bad<b>.flac", "msg": "no audio", "ecode": 500}
        return ETLDetails(
            init_msg={"name": self.name, "communication": "ws://", "runtime": runtime},
            obj_errors=[error] if job == "job1" else None,
        )


class Client:
    def __init__(self, etls: list[str], answers: dict[str, Any], jobs: list[str] | None = None) -> None:
        self.client = Request(answers)
        self.etls, self.jobs = etls, jobs or []
        self.records: dict[str, float] = {}  # the ages of buckets

    def list_buckets(self) -> list[Any]:
        return [SimpleNamespace(name=name) for name in self.records]

    def bucket(self, name: str) -> Any:
        created = json.dumps({"created": str(int((1e6 - self.records[name]) * 1e9))})
        head = {HEADER_BUCKET_PROPS: created, "Date": formatdate(1e6, usegmt=True)}
        return SimpleNamespace(head=lambda: head)

    def cluster(self) -> Client:
        return self

    def list_etls(self, stages: list[str]) -> list[ETLInfo]:
        return [ETLInfo(id=name, stage="Running", obj_count=7) for name in self.etls]

    def etl(self, name: str) -> Etl:
        return Etl(name)

    def get_info(self) -> Smap:
        node = {"daemon_id": "x", "daemon_type": "target"}
        nodes = {"t1": Snode(**node), "t2": Snode(**node, flags=4)}
        return Smap(tmap=nodes, pmap={"p": Snode(**node)}, proxy_si=Snode(**node))

    def list_running_jobs(self) -> list[str]:
        return self.jobs


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Client:
    healthy = [{"target_id": "t1", "health_status": "Running"}, {"target_id": "t2", "health_status": "Running"}]
    ill = [healthy[0], {"target_id": "t2", "health_status": "Failed"}]
    disk = {"used": "375000", "avail": "125000"}
    capacity = {
        "total_used": "750000",
        "total_avail": "250000",
        "pct_max": 75,
        "mountpaths": {"/a": disk, "/b": disk},
    }
    client = Client(
        ["wav-1", "other-2"],
        {
            "etl/wav-1/health": healthy, "etl/other-2/health": ill,
            "t1": {"ais_version": "5.0.v1.5.0", "capacity": capacity, "cluster": {"flags": "6"}},
            "t2": {"ais_version": "5.0", "capacity": capacity, "cluster": {"flags": str(6 | 1 << 3 | 1 << 13)}},
        },
        ["rebalance[g1]", "etl-bck[x]"],
    )  # fmt: skip
    for module in (etls, storage):
        monkeypatch.setattr(module, "aistore", lambda _: client)
    monkeypatch.setattr(etls, "may_read_any_log", lambda _: False)
    monkeypatch.setattr(control_plane, "unanswering", lambda *_: [])
    return client


def test_etls_have_their_runs_and_who_started_them(
    pages: TestClient,  # noqa: F811
    tables: Tables,  # noqa: F811
    airflow: Airflow,  # noqa: F811
    cluster: Client,
) -> None:
    airflow.runs("running", "d", "r")
    airflow.has("transcode")
    airflow.has("cancelled", "failed")
    detail = '{"etls": ["wav-1"], "job": "job1", "aistore_conn_id": "aistore_default"}'
    use = {"run_id": "d/r", "task_id": "transcode", "state": "running", "detail": detail, "recorded_ms": 0}
    tables.answers = {"pages_etl_runs": [use, {**use, "detail": "{broken"}, {**use, "detail": '{"etls": "x"}'}]}
    tables.answers["pages_etl_runs"] += [{**use, "task_id": task} for task in ("cancelled", "forgotten")]
    page = pages.get("/etls").text
    assert 'href="/storeside/run?dag=d&amp;run=r&amp;task=transcode">d</a>' in page
    assert "r, started by ada" in page
    assert "cancelled" not in page, "their rows stay"
    assert "forgotten" not in page
    assert "bad&lt;b&gt;.flac</bdi>: no audio" in page
    assert "runs beside 2 targets" in page
    assert "t2: failed" in page
    assert '<span class="state unhealthy">unhealthy</span>' in page
    tables.dags = frozenset({"d"})
    page = pages.get("/etls").text
    assert "wav-1" in page
    assert "other-2" not in page
    tables.answers = {}
    assert "wav-1" not in pages.get("/etls").text


def test_an_idle_etl_has_the_run_that_keeps_it_and_its_idle_time(
    pages: TestClient,  # noqa: F811
    cluster: Client,
) -> None:
    cluster.records = {"storeside-etl-kept-wav-1": 7200, "storeside-etl-left-wav-1": 9e4, "wav-1": 1}
    page = pages.get("/etls").text
    assert page.count("no task that is recorded, for 2.0 h") == 1
    assert page.count("no task that is recorded<") == 1
    assert page.count('kept by nightly <a href="/storeside/run?dag=nightly&amp;run=run%3C1%3E">run&lt;1&gt;</a>') == 2


class Answer:
    """A streamed answer of AIStore, in parts of at most a megabyte."""

    def __init__(self, content: bytes) -> None:
        self.content = content
        self.is_closed = False

    def iter_content(self, size: int) -> Iterator[bytes]:
        for n in range(0, len(self.content), size):
            yield self.content[n : n + size]

    def close(self) -> None:
        self.is_closed = True


def test_an_etl_links_to_the_logs_of_its_pods(
    pages: TestClient,  # noqa: F811
    tables: Tables,  # noqa: F811
    cluster: Client,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(etls, "may_read_any_log", lambda _: True)
    lines = [f"line {n}" for n in range(600)] + ["a <b>bad</b> \u202e recording"]
    content = json.dumps([{"target_id": "t2", "logs": base64.b64encode("\n".join(lines).encode()).decode()}])
    request, answer = cluster.client.request, Answer(content.encode())
    asked: list[str] = []

    def reply(method: str, path: str, **options: Any) -> Any:
        if "/logs/" not in path:
            return request(method, path=path, **options)
        asked.append(path)
        assert options == {"stream": True}
        return answer

    monkeypatch.setattr(cluster.client, "request", reply)
    page = pages.get("/etls").text
    (link,) = re.findall(r'href="/storeside(/etl-log[^"]*etl=wav-1[^"]*target=t2)"', page)
    shown = pages.get(link.replace("&amp;", "&")).text
    assert asked == ["etl/wav-1/logs/t2"]
    assert "a &lt;b&gt;bad&lt;/b&gt; \\u202e recording" in shown
    assert ("line 101\n" in shown, "line 100\n" in shown) == (True, False)
    assert answer.is_closed
    answer.content = b'[{"target_id":"t2","logs":null}]'
    assert "has written nothing" in pages.get(link.replace("&amp;", "&")).text
    for other in (b"{}", b"[]", b'[{"target_id":"t2"}]', b"[1]", b"no JSON"):
        answer.content = other
        assert pages.get(link.replace("&amp;", "&")).status_code == 503, other
    answer.content = b"x" * (9 << 20)
    assert "too large for a page" in pages.get(link.replace("&amp;", "&")).text
    where = {"conn_id": "aistore_default", "etl": "wav-1", "target": "t2"}
    for name, value in (("etl", "absent"), ("target", "../t2"), ("conn_id", "other")):
        assert pages.get("/etl-log", params={**where, name: value}).status_code == 404
    monkeypatch.setattr(etls, "may_read_any_log", lambda _: False)
    assert pages.get("/etl-log", params=where).status_code == 403
    assert "etl-log" not in pages.get("/etls").text
    monkeypatch.setattr(etls, "may_read_any_log", lambda _: True)
    tables.dags = frozenset({"d"})
    assert pages.get("/etl-log", params=where).status_code == 403
    assert len(asked) == 8


def test_a_cluster_that_hangs_is_not_asked_about_each_etl(
    pages: TestClient,  # noqa: F811
    cluster: Client,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[str] = []

    def view(self: Etl, _: str) -> None:
        asked.append(self.name)
        raise ReadTimeout

    monkeypatch.setattr(Etl, "view", view)
    page = pages.get("/etls").text
    assert asked == ["wav-1"]
    assert page.count("not known") == len(cluster.etls)


@pytest.mark.parametrize("path", ["/etls", "/storage"])
def test_a_cluster_without_a_connection_is_named(
    pages: TestClient,  # noqa: F811
    known: dict[str, Any],  # noqa: F811
    path: str,
) -> None:
    answer = pages.get(path)
    assert answer.status_code == 200
    assert (
        "the connection aistore_default does not lead to AIStore: Airflow has no connection of this id" in answer.text
    )


# storage


def test_storage_shows_capacity_rebalance_and_what_is_stuck(
    pages: TestClient,  # noqa: F811
    tables: Tables,  # noqa: F811
    airflow: Airflow,  # noqa: F811
    cluster: Client,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    page = pages.get("/storage").text
    assert "AIStore 5.0: 2 targets, 1 proxy, 1.5 MB used, 500.0 kB free; <b>it rebalances</b>" in page
    assert "Nothing is stuck" in page
    assert re.findall(r'<span class="state [^"]*">([^<]*)<', page) == ["ready", "in maintenance"]
    assert "<div>rebalances</div><div>a disk is faulty</div>" in page
    stuck = control_plane.Target("aistarget2", "no answer to ETLs within 3 s", stuck=True)
    monkeypatch.setattr(control_plane, "unanswering", lambda *_: [stuck])
    cluster.client.answers["aistarget2"] = {}
    monkeypatch.setattr(
        cluster, "get_info", lambda: Smap(tmap={"aistarget2": node()}, pmap={}, proxy_si=node()), raising=False
    )
    tables.run("dead")
    airflow.has("dead", "failed")
    page = pages.get("/storage").text
    assert "does not answer: no answer to ETLs within 3 s" in page
    assert "make restart COMPONENT=ais-target-2" in page
    assert "d, dead</a> was cut off: ais://a → ais://b" in page
    assert "clear the task in Airflow" in page
    for task in ("done_since", "forgotten"):
        tables.run(task)
    airflow.has("done_since", "failed")
    tables.answers = {"pages_replaced": [{"run_id": "d/r", "task_id": "done_since"}]}
    page = pages.get("/storage").text
    assert "d, dead</a> was cut off" in page
    assert "done_since" not in page
    assert "forgotten" not in page, "Airflow has deleted its run"


@pytest.mark.parametrize(
    ("checks", "flags", "shown"),
    [
        (["stuck", "stuck"], 0, "stuck"),
        (["stuck", ""], 0, "no answer"),  # it was busy
        (["down"], 0, "no answer"),
        (["down"], 1 << 2, "in maintenance"),
    ],
)
def test_only_a_target_that_is_stuck_has_to_be_restarted(
    pages: TestClient,  # noqa: F811
    cluster: Client,
    monkeypatch: pytest.MonkeyPatch,
    checks: list[str],
    flags: int,
    shown: str,
) -> None:
    def unanswering(*_: object) -> list[control_plane.Target]:
        found = checks.pop(0)
        return [control_plane.Target("t1", "no answer to ETLs within 3 s", found == "stuck")] if found else []

    monkeypatch.setattr(control_plane, "unanswering", unanswering)
    smap = Smap(tmap={"t1": Snode(daemon_id="t1", daemon_type="target", flags=flags)}, pmap={}, proxy_si=node())
    monkeypatch.setattr(cluster, "get_info", lambda: smap, raising=False)
    page = pages.get("/storage").text
    assert re.findall(r'<span class="state [^"]*">([^<]*)<', page) == [shown]
    assert ("To restart it" in page) == (shown == "stuck")
    assert ("does not answer" in page) == (shown != "in maintenance")
    assert "every target answers" not in page or shown == "in maintenance"
    assert checks == []


def node() -> Snode:
    return Snode(daemon_id="x", daemon_type="target")


def test_the_state_of_the_cluster_is_for_users_who_may_read_all_dags(
    pages: TestClient,  # noqa: F811
    tables: Tables,  # noqa: F811
    cluster: Client,
) -> None:
    tables.dags = frozenset({"d"})
    page = pages.get("/storage").text
    assert "t1" not in page
    assert "for users who may read all DAGs" in page


def test_an_incomplete_status_of_a_target_has_no_figures() -> None:
    assert (read_target("t", {}).percent, read_target("t", {"capacity": None, "cluster": None}).alerts) == (0, ())


def test_a_disk_that_targets_share_counts_once() -> None:
    def target(name: str, host: str, *ids: str) -> Any:
        disks = {
            f"/disk{n}": {"used": "600", "avail": "400", "fs": {"Fs": "/dev/sda", "FsType": "ext4", "FsID": found}}
            for n, found in enumerate(ids)
        }
        return read_target(name, {"capacity": {"total_used": "600", "mountpaths": disks}}, host)

    shared = State("5.0", (target("t1", "10.0.0.1", "1,2"), target("t2", "10.0.0.1", "1,2", "3,4")), 1)
    assert (shared.used, shared.free, shared.shared, len(shared.disks)) == (1200, 800, 1, 2)
    apart = State("5.0", (target("t1", "10.0.0.1", "1,2"), target("t2", "10.0.0.2", "1,2")), 1)
    assert (apart.used, apart.shared) == (1200, 0)
    assert apart.targets[0].used == 600
    unknown = State("5.0", (target("t1", "", "1,2"), target("t2", "", "1,2")), 1)
    assert (unknown.used, unknown.shared) == (1200, 0)


@pytest.mark.parametrize(
    ("hosts", "shown"), [(("a", "a"), "600 B used, 400 B free (1 disk"), (("a", "b"), "1.2 kB used")]
)
def test_targets_of_one_host_share_a_file_system(
    pages: TestClient,  # noqa: F811
    cluster: Client,
    monkeypatch: pytest.MonkeyPatch,
    hosts: tuple[str, str],
    shown: str,
) -> None:
    """AIStore gives the address of a node as its URL, and no name of its host."""
    system = {"Fs": "/dev/vda", "FsType": "ext4", "FsID": "2113258377,-760310340"}
    nodes = {}
    for n, host in enumerate(hosts):
        disk = {"used": "600", "avail": "400", "disks": ["vda"], "fs": system}
        cluster.client.answers[f"t{n}"] = {"capacity": {"total_used": "600", "mountpaths": {f"/mp/{n}": disk}}}
        net = {"node_hostname": "", "daemon_port": str(n), "direct_url": f"http://{host}:{n}"}
        nodes[f"t{n}"] = Snode(daemon_id=f"t{n}", daemon_type="target", public_net=net)
    smap = Smap(tmap=nodes, pmap={}, proxy_si=node())
    monkeypatch.setattr(cluster, "get_info", lambda: smap, raising=False)
    assert shown in pages.get("/storage").text


@pytest.mark.parametrize(("stated", "version"), [("5.0.v1.5.0", "5.0"), ("5.1.abc", "5.1"), ("", ""), (None, "")])
def test_aistore_has_the_version_of_its_documentation(stated: str | None, version: str) -> None:
    assert read_version({"ais_version": stated}) == version
