"""The doctor's test objects: it removes them also after a failed check, and writes none without permission."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import boto3
import pytest
import requests
from aistore.sdk.errors import AISError
from botocore.exceptions import ClientError, EndpointConnectionError
from botocore.stub import Stubber
from clickhouse_connect.driver.exceptions import DatabaseError

from storeside.doctor import aistore, clickhouse, s3
from storeside.doctor.findings import Finding
from storeside.doctor.report import Report
from tests.unit.test_sql import Client, Engine

DENIED = AISError(403, "no access", "", None)  # type: ignore[arg-type]


def fail(error: Exception) -> Callable[[], None]:
    def do() -> None:
        raise error

    return do


class Storage:
    """A bucket of AIStore and a client of S3 that record the calls; `put` and `create` are what these calls do."""

    name = "storeside-doctor-x"

    def __init__(self, put: Callable[[], Any] = str, create: Callable[[], Any] = str) -> None:
        self.calls: list[str] = []
        self._put, self._create = put, create

    def bucket(self, name: str) -> Storage:
        return self

    object = bucket

    def get_writer(self) -> Storage:
        return self

    def create(self) -> None:
        self.calls.append("create")
        self._create()

    def put_content(self, content: bytes) -> None:
        self.calls.append("put")
        self._put()

    def delete(self, missing_ok: bool) -> None:
        self.calls.append("delete")

    def put_object(self, **given: Any) -> None:
        self.put_content(b"")

    def get_object(self, **given: Any) -> None:
        self.calls.append("get")

    def delete_object(self, **given: Any) -> None:
        self.calls.append("delete")


@pytest.fixture
def blocked() -> Iterator[Callable[[], Any]]:
    """A call that blocks until the test ends."""
    ended = threading.Event()
    yield ended.wait
    ended.set()


def probed(module: Any, storage: Storage, *given: str) -> tuple[bool, list[Finding]]:
    """Run a probe; return whether it was yielded, and the findings."""
    findings: list[Finding] = []
    with module.probe(storage, *given, Report(0.2, findings.append)) as probe:
        pass
    return probe is not None, findings


def test_a_bucket_of_aistore_is_removed(blocked: Callable[[], Any]) -> None:
    unreachable = fail(requests.ConnectionError("10.0.0.7 refused"))
    for put, remedy in ((blocked, "AIStore's targets"), (unreachable, "AIStore's targets"), (fail(DENIED), "user")):
        storage = Storage(put)
        yielded, findings = probed(aistore, storage)
        assert not yielded
        assert storage.calls == ["create", "put", "delete"]
        assert [(f.check, f.state) for f in findings] == [("buckets", "failed"), ("cleaning up", "ok")]
        assert remedy in findings[0].remedy
    storage = Storage()
    assert probed(aistore, storage)[0]
    assert storage.calls == ["create", "put", "delete"]


def test_a_bucket_that_is_refused_is_not_removed() -> None:
    storage = Storage(create=fail(DENIED))
    assert [(f.check, f.state) for f in probed(aistore, storage)[1]] == [("buckets", "failed")]
    assert storage.calls == ["create"]


def test_an_object_of_s3_is_removed(blocked: Callable[[], Any]) -> None:
    for put in (blocked, fail(EndpointConnectionError(endpoint_url="https://s3"))):
        storage = Storage(put)
        yielded, findings = probed(s3, storage, "trips")
        assert not yielded
        assert storage.calls == ["put", "delete"]
        assert [(f.check, f.state) for f in findings] == [("put", "failed"), ("delete", "ok")]
    storage = Storage()
    assert probed(s3, storage, "trips")[0]
    assert storage.calls == ["put", "get", "delete"]


def test_an_object_that_is_refused_is_not_removed() -> None:
    storage = Storage(fail(ClientError({"Error": {"Code": "AccessDenied"}}, "PutObject")))
    assert [(f.check, f.state) for f in probed(s3, storage, "trips")[1]] == [("put", "failed")]
    assert storage.calls == ["put"]


@pytest.mark.parametrize("name", ["events", "https://sqs.eu-central-1.amazonaws.com/123456789012/events"])
def test_a_queue_is_known_by_its_name_or_url(name: str) -> None:
    sqs = boto3.client("sqs", region_name="eu-central-1", aws_access_key_id="k", aws_secret_access_key="s")
    url = "https://sqs.eu-central-1.amazonaws.com/123456789012/events"
    findings: list[Finding] = []
    with Stubber(sqs) as answers:
        if name != url:
            answers.add_response("get_queue_url", {"QueueUrl": url}, {"QueueName": name})
        found = {"Attributes": {"ApproximateNumberOfMessages": "3"}}
        answers.add_response("get_queue_attributes", found, {"QueueUrl": url, "AttributeNames": ["All"]})
        queue = s3.queue(lambda: sqs, name, Report(5, findings.append))
    assert queue is not None, findings
    assert (queue.url, queue.waiting) == (url, 3)


class Recorded(Client):
    """ClickHouse in process, which records the statements and refuses one right."""

    def __init__(self, refused: str = "no right") -> None:
        super().__init__(Engine())
        self.statements: list[str] = []
        self._refused = refused

    def command(self, text: str, parameters: Any = None) -> None:
        self.statements.append(text)
        super().command(text, parameters)

    def query(self, text: str, parameters: Any = None) -> Any:
        self.statements.append(text)
        return super().query("SELECT 0" if self._refused in text else text, parameters)


def test_nothing_is_written_to_clickhouse_if_nothing_may_be() -> None:
    client = Recorded()
    findings = list(clickhouse.examine(client, write=False))  # type: ignore[arg-type]
    assert [(f.check, f.state) for f in findings][1:] == [("databases", "ok")]
    assert {text.split()[0] for text in client.statements} == {"SELECT", "CHECK"}
    assert client.query("SHOW DATABASES LIKE 'storeside%'").result_rows == []


@pytest.mark.parametrize(
    ("answer", "found"),
    [
        (
            [("s3://a", "ais://b", 3, None, None), ("s3://c", "ais://b", 4, None, None)],
            ["7 results .* s3://a -> ais://b"],
        ),
        ([], []),
        (DatabaseError("no ledger", code=60), []),
        (DatabaseError("too slow", code=159), ["too slow"]),
    ],
)
def test_results_that_may_be_of_older_versions_are_found(answer: Any, found: list[str]) -> None:
    def query(*_: Any, **__: Any) -> Any:
        if isinstance(answer, Exception):
            raise answer
        return SimpleNamespace(result_rows=answer)

    findings = list(clickhouse.results(SimpleNamespace(query=query)))  # type: ignore[arg-type]
    assert [finding.state for finding in findings] == ["failed"] * len(found)
    assert all(re.search(text, finding.found) for text, finding in zip(found, findings, strict=True))


@pytest.mark.parametrize("right", ["CREATE VIEW ON storeside.*", "TABLE ENGINE ON MergeTree"])
def test_a_missing_right_is_found_without_writing(right: str) -> None:
    finding = list(clickhouse.examine(Recorded(right), write=False))[-1]  # type: ignore[arg-type]
    assert finding.found == f"the user lacks {right}"
    assert finding.remedy.startswith("GRANT SELECT, INSERT, ALTER, CREATE, DROP")
