"""The DAG that transforms a bucket and loads the results into a table, on the whole embedded stack."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from storeside.stack.airflow.api import AirflowApi
from storeside.stack.settings import CHECKOUT, Stack
from tests import accessibility
from tests.e2e.test_pages import DESK, PHONE, Site, browser  # noqa: F401 (fixture)
from tests.mailboxes import Mailbox
from tests.support import also_in_forms, started_by_events, unique, until

if TYPE_CHECKING:
    from playwright.sync_api import Browser
    from types_boto3_s3 import S3Client

DAG = "transform_to_clickhouse"
pytestmark = pytest.mark.dags(DAG)
TEXTS = {path.name: path.read_bytes() for path in sorted((CHECKOUT / "tests" / "data" / "texts").glob("*.txt"))}


@pytest.fixture(scope="module")
def suite(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A suite that one of the texts breaks, with a name that is markup."""
    path = tmp_path_factory.mktemp("suites") / "texts.json"
    words = {"column": "words", "min_value": 1500, "max_value": 3000}
    expectations = [
        {"type": "expect_column_values_to_be_between", "kwargs": words, "description": "a <b>chapter</b> is long"},
        {"type": "expect_column_values_to_not_be_null", "kwargs": {"column": "words"}},
    ]
    path.write_text(json.dumps({"name": "texts <i>", "expectations": expectations}))
    return path


@pytest.fixture(scope="module")
def api(api: AirflowApi, suite: Path) -> Iterator[AirflowApi]:
    with also_in_forms(api, transformers=["text_facts"], suites=[str(suite)]):
        yield api


def run(api: AirflowApi, state: str = "success", **conf: Any) -> dict[str, dict[str, Any]]:
    """Run the DAG; return the results of its tasks."""
    found = api.trigger(DAG, conf)
    assert api.wait(DAG, found)["state"] == state, api.log(DAG, found, "load")
    values = {task: api.xcom(DAG, found, task) for task in ("transform", "load")}
    return {task: dict(json.loads(value) if isinstance(value, str) else value) for task, value in values.items()}


@pytest.mark.essential
def test_texts_become_rows_of_facts(api: AirflowApi, s3_client: S3Client, clickhouse: Any) -> None:
    source, table = unique("novel"), f"data.{unique('facts').replace('-', '_')}"
    s3_client.create_bucket(Bucket=source)
    for name, content in {**TEXTS, "cover.txt": b"\xff\xd8\xff\xe0"}.items():
        s3_client.put_object(Bucket=source, Key=name, Body=content)
    fields = {"source": f"s3://{source}", "destination": f"ais://{unique('facts')}", "table": table}
    found = run(api, **fields)
    assert (found["transform"]["done"], found["transform"]["failed"]) == (5, 1), found
    assert (found["load"]["loaded"], found["load"]["failed"], found["load"]["rows"]) == (5, 0, 5), found

    def words() -> list[int]:
        return [row[0] for row in clickhouse.query(f"SELECT words FROM {table} ORDER BY object").result_rows]

    assert words() == [1554, 1962, 1534, 1945, 1021]
    idle = api.trigger(DAG, fields)
    assert api.wait(DAG, idle)["state"] == "success"
    states = {task["task_id"]: task["state"] for task in api.task_instances(DAG, idle)}
    assert (states["transform"], states["load"]) == ("success", "skipped"), "no task starts with nothing to load"
    s3_client.put_object(Bucket=source, Key="sense-and-sensibility-01.txt", Body=b"Short now.")
    changed = run(api, **fields)
    assert (changed["transform"]["done"], changed["load"]["loaded"], changed["load"]["skipped"]) == (1, 1, 4), changed
    assert words() == [2, 1962, 1534, 1945, 1021], "the rows of the changed text replace the old ones"


def test_texts_that_break_a_suite_go_to_the_quarantine_or_keep_all_from_being_published(
    api: AirflowApi, airflow: Stack, s3_client: S3Client, clickhouse: Any, suite: Path,
    browser: Browser,  # noqa: F811
) -> None:  # fmt: skip
    source, table = unique("novel"), f"data.{unique('facts').replace('-', '_')}"
    s3_client.create_bucket(Bucket=source)
    for name, content in TEXTS.items():
        s3_client.put_object(Bucket=source, Key=name, Body=content)
    fields = {"source": f"s3://{source}", "destination": f"ais://{unique('facts')}", "suite": str(suite)}
    found = run(api, **fields, table=table, on_failed_expectations="quarantine")["load"]
    assert (found["loaded"], found["rows"], found["rejected"]) == (5, 4, 1), found
    assert found["verdict"] == {"success": False, "rows": 5, "invalid": 1, "suite": "texts <i>"}
    (bad,) = clickhouse.query(f"SELECT reasons FROM {table}_quarantine").result_rows
    assert bad == (["a <b>chapter</b> is long: words"],)

    failed = api.trigger(DAG, {**fields, "table": f"{table}_2", "on_failed_expectations": "fail"})
    assert api.wait(DAG, failed)["state"] == "failed"
    assert "not met in 1 of 5 rows, such as 1021 in" in api.log(DAG, failed, "load")
    assert clickhouse.query(f"SELECT count() FROM {table}_2").first_row == (0,)

    refused = api.trigger(DAG, {**fields, "table": table, "suite": "os:getcwd"})
    assert api.wait(DAG, refused)["state"] == "failed"
    assert "'os:getcwd' is not one of the suites that forms may use" in api.log(DAG, refused, "transform")

    site = Site(airflow, api, clickhouse, s3_client, source, table, failed, None)
    until(lambda: "<main" in site.get("quality").text, 60, "pages")  # the first request loads them
    context = browser.new_context(viewport=DESK)
    context.add_cookies([{"name": "_token", "value": site.token("admin"), "url": site.airflow}])
    tab = context.new_page()
    for path in (site.url("quality", text=table), _verdict(site, failed)):
        for size in (DESK, PHONE):
            tab.set_viewport_size(size)
            tab.goto(path)
            assert tab.evaluate("document.documentElement.scrollWidth <= innerWidth"), (path, size)
            assert accessibility.findings(tab) == []
            if folder := os.environ.get("STORESIDE_PICTURES"):
                tab.screenshot(path=f"{folder}/{'quality' if 'quality' in path else 'verdict'}-{size['width']}.png")
    text = tab.locator("main").inner_text() if tab.locator("main").count() else tab.locator("body").inner_text()
    assert "a <b>chapter</b> is long" in text
    assert "Nothing of this load was published" in text
    tab.goto(site.url("quality", text=table))
    states = tab.locator("details.verdict > summary .state").all_inner_texts()
    assert sorted(states) == ["failed", "quarantined"]
    context.close()


def _verdict(site: Site, run: str) -> str:
    return site.url("verdict", run=f"{DAG}/{run}", dag=DAG, task="load")


def test_events_start_runs_when_the_variable_names_a_queue(
    mailbox: Mailbox, api: AirflowApi, clickhouse: Any, s3_client: S3Client, suite: Path
) -> None:
    settings = {
        "source": f"s3://{mailbox.bucket}", "destination": f"ais://{unique('facts')}", "table": mailbox.table,
        "queue": mailbox.name, "suite": str(suite), "on_failed_expectations": "quarantine",
    }  # fmt: skip
    with started_by_events(api, DAG, {"lease_events", "transform", "load", "settle_events"}, **settings):
        for name, content in {**TEXTS, "cover.txt": b"\xff\xd8\xff\xe0"}.items():
            s3_client.put_object(Bucket=mailbox.bucket, Key=name, Body=content)
        until(lambda: list(mailbox.dead()) == ["cover.txt"] and mailbox.depth() == (0, 0), 200, "settled messages", 1)
        assert clickhouse.query(f"SELECT count() FROM {mailbox.table}").first_row == (4,)
        assert clickhouse.query(f"SELECT count() FROM {mailbox.table}_quarantine").first_row == (1,)
        assert {state for found in mailbox.events().values() for state, _ in found} == {"loaded", "dead"}
        assert any(found["run_type"] == "asset_triggered" for found in api.runs(DAG))
