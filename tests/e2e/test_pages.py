"""The pages in Airflow: access, content in a real browser, and actions."""

from __future__ import annotations

import json
import os
import re
import shutil
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

import pytest
import requests

from storeside.aistore import etl as etls
from storeside.aistore import jobs
from storeside.aistore.buckets import Bucket
from storeside.ledger.objects import Ledger
from storeside.quality.verdict import ExpectationOutcome, Verdict
from storeside.sql.migrate import migrate
from storeside.stack.airflow.api import AirflowApi
from storeside.stack.settings import CHECKOUT, Stack
from tests.support import put, small_spec, unique, unpause, until, until_known

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page, Route
    from types_boto3_s3 import S3Client
    from types_boto3_sqs import SQSClient


DAG = "s3_to_clickhouse"
HOSTILE = 'in/<script>alert("1")</script>\u202e\'.csv'
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
ROUTES = sorted(
    (method, path)
    for file in (CHECKOUT / "plugins" / "pages").glob("*.py")
    for method, path in re.findall(r'@(?:router|app)\.(get|post|put|delete)\("(/[^"]*)"', file.read_text())
)
PHONE, DESK = {"width": 390, "height": 800}, {"width": 1400, "height": 900}


@dataclass
class Site:
    """The pages with the data that tests prepared for them."""

    stack: Stack
    api: AirflowApi
    clickhouse: Any
    s3: S3Client
    bucket: str
    table: str
    run: str
    audio: Bucket

    @property
    def airflow(self) -> str:
        return self.stack.url("airflow")

    def session(self, user: str | None) -> requests.Session:
        """Return a session that sends requests like this user's browser, with only the cookie."""
        session = requests.Session()
        session.trust_env = False
        session.headers["Connection"] = "close"
        if user:
            session.cookies.set("_token", self.token(user))
        return session

    def token(self, user: str) -> str:
        login = {"username": user, "password": self.stack.secrets[f"airflow_{user}"]}
        return str(requests.post(f"{self.airflow}/auth/token", json=login, timeout=30).json()["access_token"])

    def url(self, path: str, **query: str) -> str:
        return f"{self.airflow}/storeside/{path}" + (f"?{urlencode(query)}" if query else "")

    def get(self, path: str, user: str | None = "admin", headers: dict[str, str] | None = None, **query: str) -> Any:
        return self.session(user).get(self.url(path, **query), headers=headers, timeout=30, allow_redirects=False)

    @property
    def pages(self) -> list[str]:
        """The addresses of all pages."""
        run = {"dag": DAG, "run": self.run}
        return [
            self.url("movement"), self.url("run", **run), self.url("run", **run, status="failed"),
            self.url("objects"), self.url("object", bucket=f"s3://{self.bucket}", object=HOSTILE),
            self.url("object", bucket=str(self.audio), object="speech.wav"), self.url("queues"),
            self.url("quality"), self.url("verdict", run="pages/run", dag="pages", task="validate"),
            self.url("corpus"),
            self.url("tables"), self.url("benchmarks"), self.url("overview"), self.url("etls"), self.url("storage"),
        ]  # fmt: skip


@pytest.fixture(scope="module")
def site(airflow: Stack, api: AirflowApi, clickhouse: Any, aistore: Any, s3_client: S3Client) -> Site:
    unpause(api, DAG)
    assert api.get("plugins/importErrors")["import_errors"] == []
    bucket, table = unique("pages"), f"data.{unique('pages').replace('-', '_')}"
    s3_client.create_bucket(Bucket=bucket)
    for key, body in {
        "in/good.csv": b"n,x\n1,a\n2,b\n",
        HOSTILE: b"n,x\n3,c\n1,2,3\n",
        "in/bad.csv.gz": b"no",
    }.items():
        s3_client.put_object(Bucket=bucket, Key=key, Body=body)
    run = api.trigger(DAG, {"bucket": bucket, "table": table, "on_bad_rows": "keep", "order_by": "n"})
    audio = Bucket("ais", unique("pages"))
    recording = next((CHECKOUT / "tests" / "data" / "speech").glob("*.flac")).read_bytes()
    put(aistore, audio, {"speech.wav": wav(), "speech.flac": recording, "secret.wav": b"not in the ledger"})
    fill(clickhouse, audio)
    assert api.wait(DAG, run)["state"] == "success"
    found = Site(airflow, api, clickhouse, s3_client, bucket, table, run, audio)
    found.get("overview")  # the first request loads the pages
    return found


def wav() -> bytes:
    """Return a second of a tone."""
    import io
    import math
    import struct
    import wave

    out = io.BytesIO()
    with wave.open(out, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(16_000)
        file.writeframes(b"".join(struct.pack("<h", int(9000 * math.sin(n / 10))) for n in range(16_000)))
    return out.getvalue()


def fill(clickhouse: Any, audio: Bucket) -> None:
    """Insert a transcode and a verdict into the tables."""
    made = [
        [str(audio), str(audio), "speech.flac", "v", "effect", "speech.wav", "done", 100, 32_044, "pages/run"],
        [str(audio), str(audio), "loud.flac", "v", "effect", "loud.wav", "left_out", 100, 0, "pages/run"],
    ]
    told = [["", '{"duration_seconds": 1.0}'], ["<b>loud</b>", '{"duration_seconds": 3.0}']]
    names = ["source", "destination", "object", "version", "effect", "destination_object", "status", "bytes_in"]
    clickhouse.insert(
        "storeside.objects", [[*one, *other] for one, other in zip(made, told, strict=True)],
        column_names=[*names, "bytes_out", "run_id", "reason", "facts"],
    )  # fmt: skip
    failed = ExpectationOutcome(
        "expect_x", ("n",), "critical", "n is small", False, 9, 0, 2, (("<b>key</b>", 10),)
    )  # fmt: skip
    detail = json.dumps(asdict(Verdict(False, 9, (failed,))))
    row = ["pages/run", "pages", "validate", "validate", str(audio), "failed", 9, 7, 2, 1.0, detail]
    names = [
        "run_id",
        "dag_id",
        "task_id",
        "kind",
        "source",
        "state",
        "listed",
        "done",
        "failed",
        "seconds",
        "detail",
    ]
    clickhouse.insert("storeside.runs", [row], column_names=names)


# access


@pytest.mark.guarantee("closed")
@pytest.mark.parametrize(("method", "path"), ROUTES)
def test_nobody_gets_in_without_signing_in(site: Site, method: str, path: str) -> None:
    answer = site.session(None).request(method, site.url(path[1:]), timeout=30, allow_redirects=False)
    assert answer.status_code == 401
    assert "Sign in" in answer.text


@pytest.mark.guarantee("closed")
def test_a_viewer_sees_and_does_not_touch(site: Site) -> None:
    for address in site.pages:
        assert site.session("viewer").get(address, timeout=30).status_code == 200, address
    page = site.get("run", "viewer", dag=DAG, run=site.run, status="failed").text
    assert re.search(r'data-action="retry"[^>]* disabled', page)
    assert not re.search(r'data-action="retry"[^>]* disabled', site.get("run", dag=DAG, run=site.run).text)
    queue = unique("queue")
    migrate(site.clickhouse)
    site.clickhouse.insert("storeside.queue_depths", [[queue, 1]], column_names=["queue", "dead"])
    assert site.get("dead-letters", "viewer", queue=queue).status_code == 403
    own = {"Origin": site.airflow, "Sec-Fetch-Site": "same-origin"}
    form = {"queue": queue, "message": "m"}
    assert site.session("viewer").post(site.url("redrive"), data=form, headers=own, timeout=30).status_code == 403
    form = {"dag": DAG, "run": site.run, "task": "load", "failure": "f"}
    assert site.session("viewer").post(site.url("accept"), data=form, headers=own, timeout=30).status_code == 403


@pytest.mark.parametrize(
    "headers",
    [{}, {"Origin": "https://else.where"}, {"Sec-Fetch-Site": "cross-site"}, {"Sec-Fetch-Site": "same-site"}],
)
def test_what_other_sites_send_is_turned_away(site: Site, headers: dict[str, str]) -> None:
    for to, form in (
        ("redrive", {"queue": "q", "message": "m"}),
        ("accept", {"dag": DAG, "run": site.run, "task": "load", "failure": "f"}),
    ):
        answer = site.session("admin").post(site.url(to), data=form, headers=headers, timeout=30)
        assert answer.status_code == 403
        assert "own pages" in answer.text


def test_a_queue_that_is_not_ours_is_not_touched(site: Site) -> None:
    form, own = {"queue": f"{site.stack.url('s3')}/000000000000/else", "message": "m"}, {"Origin": site.airflow}
    answer = site.session("admin").post(site.url("redrive"), data=form, headers=own, timeout=30)
    assert answer.status_code == 404


def test_every_answer_forbids_what_is_not_ours(site: Site) -> None:
    for address in (*site.pages, site.url("nothing"), site.url("objects", after="x"), site.url("static/pages.js")):
        policy = site.session("admin").get(address, timeout=30).headers["Content-Security-Policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy


def test_a_hostile_name_is_only_text(site: Site) -> None:
    page = site.get("run", dag=DAG, run=site.run).text
    assert "alert(" in page
    assert "<script>alert" not in page
    assert "\u202e" not in page
    assert "<b>key</b>" not in site.get("quality").text
    assert "&lt;b&gt;key" in site.get("quality").text
    assert "left out: &lt;b&gt;loud" in site.get("corpus").text


@pytest.mark.parametrize("query", [{"after": "x"}, {"status": "' OR 1"}, {"after": '["a"]'}])
def test_changed_addresses_are_refused(site: Site, query: dict[str, str]) -> None:
    answer = site.get("objects", **query)
    assert answer.status_code == 400


# audio


def test_audio_comes_in_the_ranges_that_are_asked_for(site: Site) -> None:
    whole, where = wav(), {"bucket": str(site.audio), "object": "speech.wav"}
    answer = site.get("audio", **where)
    assert (answer.status_code, answer.content, answer.headers["Content-Type"]) == (200, whole, "audio/wav")
    for asked, expected, said in (
        ("bytes=0-9", whole[:10], f"bytes 0-9/{len(whole)}"),
        ("bytes=100-", whole[100:], f"bytes 100-{len(whole) - 1}/{len(whole)}"),
        ("bytes=-50", whole[-50:], f"bytes {len(whole) - 50}-{len(whole) - 1}/{len(whole)}"),
        (f"bytes=10-{10 * len(whole)}", whole[10:], f"bytes 10-{len(whole) - 1}/{len(whole)}"),
    ):
        part = site.get("audio", headers={"Range": asked}, **where)
        assert (part.status_code, part.content, part.headers["Content-Range"]) == (206, expected, said)
        assert part.headers["Content-Length"] == str(len(expected))
    beyond = site.get("audio", headers={"Range": f"bytes={len(whole)}-"}, **where)
    assert (beyond.status_code, beyond.headers["Content-Range"]) == (416, f"bytes */{len(whole)}")


@pytest.mark.parametrize("name", ["secret.wav", "absent.wav", "../speech.wav", "speech"])
def test_only_audio_of_the_ledger_is_handed_out(site: Site, name: str) -> None:
    assert site.get("audio", bucket=str(site.audio), object=name).status_code == 404


# in Airflow


def test_task_instances_link_to_the_page_of_their_run(site: Site) -> None:
    links = site.api.get(f"dags/{DAG}/dagRuns/{site.run}/taskInstances/load/links")["extra_links"]
    page = site.session("admin").get(f"{site.airflow}{links['Data movement']}", timeout=30)
    assert page.status_code == 200
    assert "in/bad.csv.gz" in page.text


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    if CHROMIUM is None:
        pytest.skip("there is no Chromium here: apt-get install chromium")
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
        )
        yield browser
        browser.close()


@pytest.fixture
def tab(site: Site, browser: Browser) -> Iterator[Page]:
    """A tab of a signed-in administrator; every error in it fails the test."""
    context = browser.new_context(viewport=DESK)
    context.add_cookies([{"name": "_token", "value": site.token("admin"), "url": site.airflow}])
    tab = context.new_page()
    wrong: list[str] = []
    tab.on("pageerror", lambda error: wrong.append(str(error)))
    tab.on("console", lambda message: wrong.append(message.text) if message.type == "error" else None)
    yield tab
    context.close()
    assert not wrong


def test_every_page_fits_a_desk_and_a_phone_in_light_and_dark(site: Site, tab: Page) -> None:
    backgrounds = set()
    for size, scheme in ((DESK, "light"), (PHONE, "dark")):
        tab.set_viewport_size(size)  # type: ignore[arg-type]
        tab.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
        for address in site.pages:
            tab.goto(address)
            assert tab.evaluate("document.documentElement.scrollWidth <= innerWidth"), (address, size)
            assert tab.locator("h1").count() == 1
            backgrounds.add((scheme, tab.evaluate("getComputedStyle(document.body).backgroundColor")))
    assert len(backgrounds) == 2


@pytest.mark.essential
def test_waveforms_of_the_recording_and_its_twin_are_drawn(site: Site, tab: Page) -> None:
    tab.goto(site.url("object", bucket=str(site.audio), object="speech.flac"))
    tab.locator("figure.player[data-drawn]").nth(1).wait_for()
    tab.locator("audio").nth(1).evaluate("a => new Promise(done => { a.onseeked = done; a.currentTime = 0.5 })")
    assert tab.locator("audio").nth(1).evaluate("a => a.duration") == pytest.approx(1, abs=0.1)


def test_the_keyboard_is_enough(site: Site, tab: Page) -> None:
    tab.goto(site.url("objects"))
    tab.keyboard.press("Tab")
    assert tab.evaluate("document.activeElement.className") == "skip"
    tab.keyboard.press("Enter")
    assert tab.evaluate("document.activeElement.id") == "content"
    tab.keyboard.press("Tab")
    assert tab.evaluate("document.activeElement.name") == "text"
    tab.keyboard.type("in/bad")
    tab.keyboard.press("Enter")
    tab.wait_for_url("**text=in*")
    tab.get_by_role("link", name="in/bad.csv.gz").first.focus()
    tab.keyboard.press("Enter")
    tab.wait_for_url("**/object?*")
    assert "in/bad.csv.gz" in tab.inner_text("h1")


def test_airflow_shows_the_pages_and_they_take_its_colours(site: Site, tab: Page) -> None:
    tab.add_init_script("localStorage.setItem('theme', 'dark')")
    tab.goto(f"{site.airflow}/plugin/storeside")
    frame = tab.frame_locator("iframe")
    frame.get_by_role("link", name="Data movement").click()
    frame.get_by_role("heading", name="Data movement").wait_for()
    assert frame.locator("html").get_attribute("data-theme") == "dark"
    frame.get_by_role("link", name=DAG).first.click()
    frame.get_by_role("link", name="open in Airflow").click()
    tab.wait_for_url(f"**/dags/{DAG}/runs/**")


def click_twice(tab: Page, name: str) -> None:
    tab.get_by_role("button", name=name).click()
    tab.get_by_role("button", name="sure?").click()


def test_an_open_page_waits_for_its_last_answer_before_it_asks_again(site: Site, tab: Page) -> None:
    asked: list[Route] = []

    def hang(route: Route) -> None:
        asked.append(route)

    tab.route(re.compile(r"/live\?"), hang)
    tab.goto(site.url("movement"))
    tab.wait_for_timeout(5_000)
    assert len(asked) == 1
    asked[0].fulfill(body="<p>at last</p>")
    tab.get_by_text("at last").wait_for()
    tab.wait_for_timeout(3_000)
    assert len(asked) == 2
    asked[1].fulfill(body="")


def test_of_a_mapped_task_one_instance_is_cancelled(site: Site, tab: Page) -> None:
    sent: list[tuple[str, str]] = []

    def airflow(route: Route) -> None:
        sent.append((route.request.method, route.request.url))
        route.fulfill(json={})

    button = '<button data-action="cancel" data-dag="d" data-run="r" data-task="t" data-map-index="3">Cancel</button>'
    tab.route(re.compile(r"/live\?"), lambda route: route.fulfill(body=f'<article data-key="k">{button}</article>'))
    tab.route(re.compile("/api/v2/"), airflow)
    tab.goto(site.url("movement"))
    click_twice(tab, "Cancel")
    tab.get_by_text("was set to failed").wait_for()
    assert sent == [("PATCH", f"{site.airflow}/api/v2/dags/d/dagRuns/r/taskInstances/t/3")]


def moving(*keys: str) -> str:
    """Return what the pages show about running movements."""
    button = '<button data-action="cancel" data-dag="d" data-run="r" data-task="t">Cancel</button>'
    articles = (
        f'<article data-key="{key}" data-objects="1" data-bytes="1"><svg class="spark"></svg>{button}</article>'
        for key in keys
    )
    return f"<p>in {len(keys)} tasks</p>" + "".join(articles)


def test_the_question_before_a_cancellation_outlasts_new_figures(site: Site, tab: Page) -> None:
    asked: list[Route] = []

    def answer(route: Route) -> None:
        asked.append(route)
        route.fulfill(body=moving("k"))

    tab.route(re.compile(r"/live\?"), answer)
    tab.route(re.compile("/api/v2/"), lambda route: route.fulfill(json={}))
    tab.goto(site.url("movement"))
    tab.get_by_role("button", name="Cancel").click()
    before = len(asked)
    tab.wait_for_timeout(3_500)
    assert len(asked) > before
    tab.get_by_role("button", name="Cancel: sure?").click()
    tab.get_by_text("was set to failed").wait_for()


def test_an_open_page_says_when_its_figures_are_old(site: Site, tab: Page) -> None:
    page = tab.context.new_page()  # the console of the first one may have no error
    answers: dict[str, Any] = {"body": moving("k")}
    page.route(re.compile(r"/live\?"), lambda route: route.fulfill(**answers) if answers else route.abort())
    page.goto(site.url("movement"))
    page.get_by_text("in 1 tasks").wait_for()
    answers["status"] = 503
    page.get_by_text(re.compile(r"^These figures are of \d\d:\d\d:\d\d: a server that the pages need")).wait_for()
    answers.clear()
    page.get_by_text("Airflow does not answer").wait_for()
    answers["body"] = moving("k")
    page.get_by_text("These figures are of").wait_for(state="detached")


def test_a_task_that_ends_does_not_take_away_what_is_typed(site: Site, tab: Page) -> None:
    keys = ["one", "two"]
    tab.route(re.compile(r"/live\?"), lambda route: route.fulfill(body=moving(*keys)))
    tab.goto(site.url("movement"))
    field = tab.get_by_label("Bucket or table contains")
    tab.get_by_text("in 2 tasks").wait_for()
    field.fill("recordings")
    field.blur()
    keys[:] = ["two", "three"]  # one ends and another begins
    tab.get_by_text("A task has ended").wait_for()
    assert field.input_value() == "recordings"
    with tab.expect_navigation():
        tab.get_by_role("button", name="Load the page again").click()
    tab.get_by_text("in 2 tasks").wait_for()
    with tab.expect_navigation():  # nothing is typed: the lists are loaded again
        keys[:] = ["three"]


def test_failed_objects_are_tried_again(site: Site, tab: Page) -> None:
    site.s3.put_object(Bucket=site.bucket, Key="in/bad.csv.gz", Body=b"still no")
    tab.goto(site.url("run", dag=DAG, run=site.run, task="load"))
    click_twice(tab, "Retry the 1 failed")
    tab.get_by_text("tries the failed objects again").wait_for()
    newest = max(site.api.runs(DAG), key=lambda run: run["run_after"])
    assert newest["conf"] == {**site.api.run(DAG, site.run)["conf"], "retry_failed": True}
    assert site.api.wait(DAG, newest["dag_run_id"])["state"] == "success"


def failed(site: Site, kind: str, **detail: Any) -> str:
    """Record a run with two failures, and return the address of its page."""
    run = unique("failed")
    row = {
        "run_id": f"pages/{run}", "dag_id": "pages", "task_id": "move[3]", "kind": kind, "source": "s3://in/",
        "destination": "clickhouse://d.t", "state": "partial", "failed": 2, "seconds": 1.0,
        "detail": json.dumps(detail),
    }  # fmt: skip
    Ledger(site.clickhouse).record_run(row)
    return site.url("run", dag="pages", run=run)


def test_a_run_that_failed_before_it_moved_data_shows_its_error_and_its_log(site: Site, tab: Page) -> None:
    until_known(site.api, "ingest")
    site.api.request("PATCH", "dags/ingest", json={"is_paused": False})
    run = site.api.trigger("ingest", {"source": "s3://payroll", "way": "worker"})
    assert site.api.wait("ingest", run)["state"] == "failed"
    tab.goto(site.url("movement"))
    line = tab.locator(".failed-runs li", has=tab.get_by_title(run, exact=True))
    line.wait_for()
    line.get_by_role("link").click()
    tab.locator(".sub .state.failed").wait_for()
    error = tab.locator("section.error")
    error.get_by_text("AirflowFailException: source: 's3://payroll' is not one of the buckets").wait_for()
    assert "before it recorded a movement of data" in error.inner_text()
    assert "up to date" not in tab.inner_text("main")
    tasks = tab.get_by_role("region", name="Tasks").locator("tbody tr")
    found = {row.split("\t")[0]: row.split("\t")[1] for row in tasks.all_inner_texts()}
    assert found == {"copy": "skipped", "prefetch": "skipped", "copy_through_worker": "failed"}
    for size in (DESK, PHONE):
        tab.set_viewport_size(size)  # type: ignore[arg-type]
        assert tab.evaluate("document.documentElement.scrollWidth <= innerWidth"), size
        if folder := os.environ.get("STORESIDE_SCREENSHOTS"):
            tab.screenshot(path=f"{folder}/failed-run-{size['width']}.png", full_page=True)
    error.get_by_role("link", name="its log").click()
    tab.wait_for_url("**/tasks/copy_through_worker?try_number=1*")


def test_a_run_that_does_not_exist_is_not_an_empty_one(site: Site) -> None:
    unknown = site.get("run", dag=DAG, run="no such run")
    assert unknown.status_code == 404
    assert "Airflow has no run" in unknown.text


def test_the_task_of_a_dag_that_has_no_such_parameter_is_cleared(site: Site, tab: Page) -> None:
    sent: list[tuple[str, str, Any]] = []

    def airflow(route: Route) -> None:
        asked = route.request
        sent.append((asked.method, asked.url.partition("/api/v2/")[2], asked.post_data_json))
        route.fulfill(json={"params": {"prefix": {}}})

    address = failed(site, "load")
    tab.route(re.compile("/api/v2/"), airflow)
    tab.goto(address)
    click_twice(tab, "Retry the 2 failed")
    tab.get_by_text("Task move 3 was cleared").wait_for()
    cleared = {
        "dry_run": False, "dag_run_id": address.rpartition("=")[2], "only_failed": False,
        "include_downstream": True, "task_ids": [["move", 3]],
    }  # fmt: skip
    assert sent == [("GET", "dags/pages/details", None), ("POST", "dags/pages/clearTaskInstances", cleared)]


def test_a_running_load_is_shown_and_cancelled(site: Site, tab: Page) -> None:
    table = f"data.{unique('slow').replace('-', '_')}"
    site.clickhouse.command(
        f"CREATE TABLE {table} (n UInt32, slow UInt8 MATERIALIZED sleepEachRow(0.001)) ENGINE = MergeTree ORDER BY n"
    )
    bucket = unique("slow")
    site.s3.create_bucket(Bucket=bucket)

    def put_one(n: int) -> None:
        site.s3.put_object(Bucket=bucket, Key=f"{n}.csv", Body=b"n\n%d\n" % n)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(put_one, range(2500)))
    run = site.api.trigger(DAG, {"bucket": bucket, "table": table, "format": "csv"})
    tab.goto(site.url("movement", place=bucket))
    tab.locator("article.live", has_text=table).wait_for(timeout=60_000)
    assert tab.get_by_role("progressbar").count() == 1
    click_twice(tab, "Cancel")
    tab.get_by_text("was set to failed").wait_for()
    assert site.api.wait(DAG, run)["state"] == "failed"
    reading = (
        f"SELECT count() FROM system.processes WHERE query LIKE '%{bucket}%' AND query_id LIKE 'storeside-load%'"
    )
    until(lambda: site.clickhouse.query(reading).first_row[0] == 0, 30, "end of the queries")
    tab.get_by_text("Nothing moves at the moment").wait_for()
    assert tab.get_by_text("was set to failed").is_visible()
    tab.get_by_role("button", name="Load the page again").click()
    tab.get_by_text("cut off").wait_for()


def test_a_job_of_aistore_is_followed(site: Site, tab: Page, aistore: Any) -> None:
    """The bar moves with AIStore's own counters, and is replaced by the result."""
    source, destination = Bucket("ais", unique("live")), Bucket("ais", unique("live"))
    destination.handle(aistore).create()
    put(aistore, source, {f"{n}.txt": b"slow" for n in range(200)})
    spec = small_spec("slow", environment={"SECONDS": "0.4"})
    site.api.request("PATCH", "dags/ingest", json={"is_paused": True})  # its tasks wait
    run, runs = site.api.trigger("ingest", {"source": str(source)}), Ledger(site.clickhouse)
    row = {
        "run_id": f"ingest/{run}", "dag_id": "ingest", "task_id": "copy", "kind": "transform",
        "source": str(source), "destination": str(destination),
    }  # fmt: skip
    (etl,) = etls.ensure(aistore, spec)
    try:
        job = source.handle(aistore).transform(etl, destination.handle(aistore), timeout="1m", num_workers=1)
        detail = {"job": job, "objects": 200, "started": time.time()}
        runs.record_run({**row, "state": "running", "detail": json.dumps(detail)})
        tab.goto(site.url("run", dag="ingest", run=run))
        bar = tab.get_by_role("progressbar")
        seen = [until(lambda: int(float(bar.get_attribute("value") or 0)), 60, "progress")]
        seen.append(
            until(lambda: (v := int(float(bar.get_attribute("value") or 0))) > seen[0] and v, 60, "more of it")
        )
        assert 0 < seen[0] < seen[1] <= 100
        assert job in tab.inner_text("#live")
        tab.locator("#live .spark polyline").wait_for()
        runs.record_run({**row, "state": "done", "done": 200, "seconds": 1.0})
        tab.locator("#live").wait_for(state="hidden")
        assert tab.locator("tbody .state").first.inner_text() == "done"
    finally:
        jobs.abort(aistore, job)
        etls.discard(aistore, etl)


def test_known_failures_are_accepted(site: Site, tab: Page) -> None:
    migrate(site.clickhouse)
    bucket, run, names = unique("known"), unique("failed"), ("a <b>&.csv", "b.csv", "since.csv")
    kept = {"version": "v", "reason": "no <b>table</b>", "run_id": "pages/before"}
    loaded = {"destination": "d.t", "bucket": bucket, "state": "failed", "kind": "object"}
    made = {"source": f"s3://{bucket}", "destination": "ais://to", "status": "failed", "effect": "e", "prepend": "x/"}
    for table, column, row in (("loads", "key", loaded), ("objects", "object", made)):
        rows = [[*row.values(), *kept.values(), name] for name in names[:2]]
        site.clickhouse.insert(f"storeside.{table}", rows, column_names=[*row, *kept, column])
    detail = {"known_bad": 25, "known_failures": [[name, kept["reason"]] for name in names], "prepend": "x/"}
    for task, to in (("load", "clickhouse://d.t"), ("transform", "ais://to")):
        Ledger(site.clickhouse).record_run({
            "run_id": f"pages/{run}", "dag_id": "pages", "task_id": task, "kind": task, "source": f"s3://{bucket}",
            "destination": to, "state": "partial", "listed": 30, "skipped": 5, "seconds": 1.0,
            "detail": json.dumps(detail),
        })  # fmt: skip
    for task, table, name in (("load", "loads", "key"), ("transform", "objects", "object")):
        tab.goto(site.url("run", dag="pages", run=run, task=task))
        section = tab.get_by_role("region", name="Failed for good before")
        assert section.get_by_text("processed since").count() == 1
        section.get_by_role("row", name="a <b>&.csv").get_by_role("checkbox").check()
        tab.get_by_role("button", name="Accept the chosen failures").click()
        tab.get_by_text("1 failure accepted").wait_for()
        section.get_by_role("row", name="a <b>&.csv").get_by_text("by admin").wait_for()
        rows = site.clickhouse.query(
            f"SELECT {name}, accepted_by FROM storeside.{table} FINAL ORDER BY 1"
        ).result_rows
        assert [row for row in rows if row[0] in names] == [(names[0], "admin"), (names[1], "")]
    tab.goto(site.url("movement", dag="pages"))
    assert tab.get_by_text("25 before").count() == 2


@pytest.mark.parametrize("way", ["queues", "run"])
def test_dead_letters_are_listed_and_sent_back(site: Site, tab: Page, sqs_client: SQSClient, way: str) -> None:
    migrate(site.clickhouse)
    dead = sqs_client.create_queue(QueueName=unique("dead"))["QueueUrl"]
    arn = sqs_client.get_queue_attributes(QueueUrl=dead, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]
    policy = json.dumps({"deadLetterTargetArn": arn, "maxReceiveCount": "3"})
    queue = sqs_client.create_queue(QueueName=unique("live"), Attributes={"RedrivePolicy": policy})["QueueUrl"]
    site.clickhouse.insert("storeside.queue_depths", [[queue, 0, 1]], column_names=["queue", "visible", "dead"])
    reason = {"storeside.reason": {"DataType": "String", "StringValue": "no <b>table</b>"}}
    for body in ("first", "second"):
        sqs_client.send_message(QueueUrl=dead, MessageBody=body, MessageAttributes=reason)
    if way == "queues":
        tab.goto(site.url("queues", queue=queue))
        tab.get_by_role("link", name="Dead letters…").click()
    else:
        tab.goto(failed(site, "events", queue=queue.rpartition("/")[2]))
        assert tab.get_by_role("button", name="Retry").count() == 0
        tab.get_by_role("link", name="Send back dead letters (2)…").click()
    tab.get_by_role("button", name="Read the dead letters").click()
    tab.get_by_role("cell", name="no <b>table</b>").first.wait_for()
    tab.get_by_role("row", name="second").get_by_role("checkbox").check()
    tab.get_by_role("button", name="Send the chosen ones back").click()
    tab.get_by_text("1 sent back").wait_for()
    tab.get_by_role("button", name="Read the dead letters").click()
    tab.get_by_role("cell", name="no <b>table</b>").first.wait_for()
    (message,) = sqs_client.receive_message(QueueUrl=queue, WaitTimeSeconds=5)["Messages"]
    assert message["Body"] == "second"
    assert tab.get_by_role("cell", name="no <b>table</b>").count() == 1
