"""The DAG that cuts recordings into utterances and loads their facts, on the whole embedded stack."""

from __future__ import annotations

import io
import json
import os
import re
import tarfile
from typing import TYPE_CHECKING, Any

import pytest

from storeside.aistore.buckets import Bucket
from storeside.stack.airflow.api import AirflowApi
from storeside.stack.settings import Stack
from tests import accessibility
from tests.e2e.test_pages import DESK, Site, browser  # noqa: F401 (fixture)
from tests.integration.test_utterances import talk
from tests.mailboxes import Mailbox
from tests.support import read, sizes, started_by_events, unique, until

if TYPE_CHECKING:
    from playwright.sync_api import Browser
    from types_boto3_s3 import S3Client

DAG = "speech_utterances"
pytestmark = pytest.mark.dags(DAG)


def facts_in_shards(aistore: Any, bucket: Bucket, prefix: str) -> list[tuple[Any, ...]]:
    """Return shard, member and start of each utterance, as the members of the shards say."""
    found = []
    for name in sizes(aistore, bucket):
        if not name.startswith(prefix):
            continue
        with tarfile.open(fileobj=io.BytesIO(read(aistore, bucket, name))) as shard:
            files = {member.name: shard.extractfile(member).read() for member in shard}
        for member, content in files.items():
            if member.endswith(".json"):
                facts = json.loads(content)
                assert facts["member"] in files
                found.append((name, facts["member"], facts["start_seconds"]))
    return sorted(found)


@pytest.mark.essential
def test_recordings_become_shards_and_rows(
    api: AirflowApi, airflow: Stack, aistore: Any, s3_client: S3Client, clickhouse: Any,
    browser: Browser,  # noqa: F811
) -> None:  # fmt: skip
    source, table, folder = unique("talks"), f"data.{unique('utterances').replace('-', '_')}", unique("in")
    s3_client.create_bucket(Bucket=source)
    recordings = {"one.wav": talk(0, 1), "two.wav": talk(2), "cut.wav": talk(3)[:-40_000]}
    for name, content in recordings.items():
        s3_client.put_object(Bucket=source, Key=f"{folder}/{name}", Body=content)
    form = {"source": f"s3://{source}", "table": table, "prefix": f"{folder}/"}

    def run() -> tuple[str, dict[str, Any]]:
        found = api.trigger(DAG, form)
        assert api.wait(DAG, found)["state"] == "success", api.log(DAG, found, "load")
        values = {task: api.xcom(DAG, found, task) for task in ("cut", "load")}
        return found, {task: json.loads(v) if isinstance(v, str) else v for task, v in values.items()}

    first, found = run()
    assert (found["cut"]["done"], found["cut"]["failed"]) == (2, 1), found
    assert (found["load"]["loaded"], found["load"]["rows"]) == (2, 3), found
    query = f"SELECT shard, member, start_seconds FROM {table} ORDER BY ALL"
    rows = clickhouse.query(query).result_rows
    assert rows == facts_in_shards(aistore, Bucket("ais", "utterances"), folder)
    assert [row[1] for row in rows] == [f"{folder}/{name}.flac" for name in ("one-00001", "one-00002", "two-00001")]
    s3_client.put_object(Bucket=source, Key=f"{folder}/one.wav", Body=talk(4))
    _, again = run()
    assert (again["cut"]["done"], again["cut"]["skipped"], again["load"]["loaded"]) == (1, 1, 1), again
    changed = clickhouse.query(query).result_rows
    assert [row[1] for row in changed] == [f"{folder}/one-00001.flac", f"{folder}/two-00001.flac"]
    assert changed == facts_in_shards(aistore, Bucket("ais", "utterances"), folder)
    _look(Site(airflow, api, clickhouse, s3_client, source, table, first, Bucket("ais", "utterances")), browser)


def _look(site: Site, browser: Browser) -> None:  # noqa: F811
    """The page of the run names the recording that failed, with its reason; the form has all fields."""
    until(lambda: "<main" in site.get("overview").text, 60, "pages")  # the first request loads them
    context = browser.new_context(viewport=DESK)
    context.add_cookies([{"name": "_token", "value": site.token("admin"), "url": site.airflow}])
    tab = context.new_page()
    tab.goto(site.url("run", dag=DAG, run=site.run))
    text = tab.locator("main").inner_text()
    assert "cut.wav" in text
    assert "truncated" in text
    assert tab.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert accessibility.findings(tab) == []
    if folder := os.environ.get("STORESIDE_PICTURES"):
        tab.screenshot(path=f"{folder}/utterances-run.png", full_page=True)
        tab.set_viewport_size({"width": 1400, "height": 2600})
        tab.goto(f"{site.airflow}/dags/{DAG}")
        tab.get_by_role("button", name=re.compile("^Trigger")).first.click()
        tab.wait_for_timeout(6_000)
        tab.screenshot(path=f"{folder}/utterances-form.png")
        tab.goto(f"{site.airflow}/dags/{DAG}/runs/{site.run}")
        tab.wait_for_timeout(6_000)
        tab.screenshot(path=f"{folder}/utterances-airflow.png")
    context.close()


def test_events_start_runs_when_the_variable_names_a_queue(
    mailbox: Mailbox, api: AirflowApi, clickhouse: Any, s3_client: S3Client
) -> None:
    settings = {
        "source": f"s3://{mailbox.bucket}", "table": mailbox.table, "queue": mailbox.name,
        "utterances": f"ais://{unique('utterances')}", "facts": f"ais://{unique('facts')}",
    }  # fmt: skip
    tasks = {"lease_events", "cut", "facts", "load", "settle_events"}
    with started_by_events(api, DAG, tasks, **settings):
        for name, content in {"one.wav": talk(1), "cut.wav": talk(1)[:-40_000]}.items():
            s3_client.put_object(Bucket=mailbox.bucket, Key=name, Body=content)
        until(lambda: list(mailbox.dead()) == ["cut.wav"] and mailbox.depth() == (0, 0), 200, "settled messages", 1)
        assert clickhouse.query(f"SELECT member FROM {mailbox.table}").result_rows == [("one-00001.flac",)]
        assert {state for found in mailbox.events().values() for state, _ in found} == {"loaded", "dead"}
