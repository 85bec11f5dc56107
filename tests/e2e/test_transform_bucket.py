"""The DAG that transforms any bucket, on the whole embedded stack: by form, with an existing ETL, on events."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

from storeside.aistore import etl as etls
from storeside.aistore.buckets import Bucket
from storeside.aistore.existing import stage_of
from storeside.aistore.spec import TRANSFORMER_IMAGE, EtlSpec, transformer_command
from storeside.stack.airflow.api import AirflowApi
from storeside.stack.settings import CHECKOUT
from tests.mailboxes import Mailbox
from tests.support import also_in_forms, put, read, sizes, started_by_events, unique, until

if TYPE_CHECKING:
    from types_boto3_s3 import S3Client

DAG = "transform_bucket"
pytestmark = pytest.mark.dags(DAG)
TEXTS = {path.name: path.read_bytes() for path in sorted((CHECKOUT / "tests" / "data" / "texts").glob("*.txt"))}
WORDS = (1554, 1962, 1534, 1945, 1021)


@pytest.fixture(scope="module")
def api(api: AirflowApi) -> Iterator[AirflowApi]:
    with also_in_forms(api, transformers=["text_facts"], etls=["upper-*"], queues=["*-*"]):
        yield api


def result(api: AirflowApi, run: str) -> dict[str, Any]:
    value = api.xcom(DAG, run, "transform")
    return dict(json.loads(value) if isinstance(value, str) else value)


def run(api: AirflowApi, state: str = "success", **conf: Any) -> str:
    found = api.trigger(DAG, conf)
    assert api.wait(DAG, found)["state"] == state, api.log(DAG, found, "transform")
    return str(found)


@pytest.mark.essential
def test_chapters_of_a_novel_become_facts(api: AirflowApi, s3_client: S3Client, aistore: Any) -> None:
    source, to = unique("novel"), Bucket("ais", unique("facts"))
    s3_client.create_bucket(Bucket=source)
    for name, content in {**TEXTS, "cover.txt": b"\xff\xd8\xff\xe0"}.items():
        s3_client.put_object(Bucket=source, Key=name, Body=content)
    fields = {"source": f"s3://{source}", "destination": str(to)}
    assert result(api, run(api, **fields, plan_only=True))["pending"] == 6
    found = result(api, run(api, **fields))
    assert (found["done"], found["failed"]) == (5, 1), found
    assert found["examples"][0][0] == "cover.txt"
    assert "not text in utf-8" in found["examples"][0][1]
    facts = [json.loads(read(aistore, to, name)) for name in sorted(sizes(aistore, to))]
    assert tuple(fact["words"] for fact in facts) == WORDS
    # changed in S3, and cached in AIStore
    s3_client.put_object(Bucket=source, Key="sense-and-sensibility-01.txt", Body=b"Short now.")
    again = result(api, run(api, **fields))
    assert (again["done"], again["skipped"], again["known_bad"]) == (1, 4, 1), again
    assert json.loads(read(aistore, to, "sense-and-sensibility-01.json"))["words"] == 2


def test_an_existing_etl_survives_its_runs(api: AirflowApi, aistore: Any) -> None:
    name, source, to = unique("upper"), Bucket("ais", unique("in")), Bucket("ais", unique("out"))
    put(aistore, source, {"a.txt": b"a", "bad.txt": b"bad"})
    fields = {"source": str(source), "destination": str(to), "existing_etl": name, "extensions": {}}
    missing = run(api, "failed", **fields)
    assert f"there is no ETL {name} in the cluster" in api.log(DAG, missing, "transform")
    (task,) = api.task_instances(DAG, missing)
    assert task["try_number"] == 1, "no retry helps"
    message = {
        "name": name, "communication": "hpush://", "init_timeout": "30s", "obj_timeout": "45s",
        "support_direct_put": True,
        "runtime": {
            "image": TRANSFORMER_IMAGE, "command": list(transformer_command("tests.transformers:upper")),
            "env": etls._of_the_cluster(aistore, EtlSpec(name, TRANSFORMER_IMAGE)),
        },
    }  # fmt: skip
    aistore.cluster().client.request("put", path="etl", timeout=60, json=message)
    try:
        failed = run(api, "failed", **fields, on_failure="fail")
        assert "1 of 2 objects failed, such as 'bad.txt': this object is bad" in api.log(DAG, failed, "transform")
        assert stage_of(aistore, name) == "Running"
        assert read(aistore, to, "a.txt") == b"A"
        assert result(api, run(api, **fields, retry_failed=True))["failed"] == 1
        assert stage_of(aistore, name) == "Running"
        refused = run(api, "failed", **{**fields, "existing_etl": "payroll-etl"})
        assert "existing_etl: 'payroll-etl' is not one of the etls" in api.log(DAG, refused, "transform")
    finally:
        etls.discard(aistore, name)


def test_events_start_runs_when_the_variable_names_a_queue(
    mailbox: Mailbox, api: AirflowApi, s3_client: S3Client, aistore: Any
) -> None:
    to = Bucket("ais", unique("facts"))
    settings = {"source": f"s3://{mailbox.bucket}", "destination": str(to), "queue": mailbox.name}
    put(aistore, to, {})
    with started_by_events(api, DAG, {"lease_events", "transform", "settle_events"}, **settings):
        for name, content in {**TEXTS, "cover.txt": b"\xff\xd8\xff\xe0"}.items():
            s3_client.put_object(Bucket=mailbox.bucket, Key=name, Body=content)
        until(lambda: len(sizes(aistore, to)) == 5, 150, "results", 1)
        until(lambda: mailbox.depth() == (0, 0), 60, "empty queue", 1)
        assert list(mailbox.dead()) == ["cover.txt"]
        assert {state for found in mailbox.events().values() for state, _ in found} == {"loaded", "dead"}
        assert any(found["run_type"] == "asset_triggered" for found in api.runs(DAG))
