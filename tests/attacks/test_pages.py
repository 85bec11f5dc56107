"""A user who may read and run some DAGs tries to see, or to send back, data of the others (findings 10 and 11).

The pages run in this process, with the stack's ClickHouse and SQS. The users' rights are those of an auth manager
with rights per DAG: a right for all DAGs, or for single ones.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import clickhouse_connect
import pytest
from airflow.api_fastapi.core_api.security import get_user
from fastapi.testclient import TestClient

from storeside.events.settle import ORIGIN, QUEUE, REASON
from storeside.ledger.objects import Ledger
from storeside.pages.tables import UnavailableError
from storeside.plugins.pages import access, limits
from storeside.plugins.pages.app import app
from storeside.stack.servers import clickhouse as server
from storeside.stack.servers.clickhouse_users import PAGES
from storeside.stack.settings import HOST, Stack
from tests.support import unique, until

if TYPE_CHECKING:
    from types_boto3_sqs import SQSClient


ACCOUNT = "000000000000"
OWN = {"Sec-Fetch-Site": "same-origin"}


@dataclass
class Rights:
    """An auth manager: a user may read and run these DAGs, or all DAGs with ``*``."""

    read: set[str] = field(default_factory=set)
    run: set[str] = field(default_factory=set)
    existing: set[str] = field(default_factory=set)

    def is_authorized_dag(self, *, method: str, user: Any, details: Any = None, access_entity: Any = None) -> bool:
        rights = self.read if method == "GET" else self.run
        return bool(rights) if details is None else bool({details.id, "*"} & rights)

    def get_authorized_dag_ids(self, *, user: Any, method: str) -> set[str]:
        return self.existing if "*" in self.read else self.existing & self.read


@pytest.fixture
def reader(stack: Stack, clickhouse: Any) -> Any:
    """A client of the pages' ClickHouse user."""
    return clickhouse_connect.get_client(
        host=HOST, port=stack.ports["clickhouse_http"], username=PAGES, password=server.passwords(stack)[PAGES],
        autogenerate_session_id=False,
    )  # fmt: skip


@pytest.fixture
def rights(monkeypatch: pytest.MonkeyPatch, reader: Any, sqs_client: Any) -> Rights:
    found = Rights()

    @contextmanager
    def session() -> Iterator[Any]:
        yield SimpleNamespace(query=lambda _: [(dag,) for dag in found.existing])

    monkeypatch.setattr(access, "get_auth_manager", lambda: found)
    monkeypatch.setattr(access, "create_session", session)
    monkeypatch.setattr(access, "Team", SimpleNamespace(get_all_team_names=set))
    monkeypatch.setattr("storeside.plugins.pages.access.DagModel.get_team_name", lambda _: None)
    monkeypatch.setattr(access, "clickhouse", lambda: reader)
    nothing = SimpleNamespace(all=list)  # in Airflow's database, which these tests do not need
    found_nothing = SimpleNamespace(execute=lambda _: nothing)
    for module in ("tasks", "runs"):
        monkeypatch.setattr(f"storeside.plugins.pages.{module}.create_session", lambda: nullcontext(found_nothing))
    monkeypatch.setattr("storeside.plugins.pages.queues.sqs", lambda: sqs_client)
    monkeypatch.setitem(app.dependency_overrides, get_user, lambda: SimpleNamespace(get_id=lambda: "ada"))
    return found


@pytest.fixture
def pages(rights: Rights) -> TestClient:
    return TestClient(app, root_path="/storeside", raise_server_exceptions=False, follow_redirects=False)


def ran(clickhouse: Any, dag: str) -> None:
    Ledger(clickhouse).create()
    columns = ["run_id", "dag_id", "task_id", "kind", "source", "destination", "state", "done"]
    row = [f"{dag}/r", dag, "copy", "copy", f"s3://of-{dag}", "ais://x", "done", 1]
    clickhouse.insert("storeside.runs", [row], column_names=columns)


# rows of DAGs that were deleted


def test_rows_of_a_deleted_dag_with_the_right_to_read_all_that_exist(
    pages: TestClient, rights: Rights, clickhouse: Any
) -> None:
    mine, deleted = unique("mine"), unique("deleted")
    ran(clickhouse, mine)
    ran(clickhouse, deleted)
    rights.read, rights.existing = {mine}, {mine}
    page = pages.get("/movement", params={"place": "s3://of-"}).text
    assert f"of-{mine}" in page
    assert f"of-{deleted}" not in page
    assert pages.get("/run", params={"dag": deleted, "run": "r"}).status_code == 403
    rights.read = {"*"}  # control
    assert f"of-{deleted}" in pages.get("/movement", params={"place": f"s3://of-{deleted}"}).text


def test_overview_etls_and_storage_of_another_dag(
    pages: TestClient, rights: Rights, clickhouse: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine, other = unique("mine"), unique("other")
    ran(clickhouse, mine)
    ran(clickhouse, other)
    columns = ["run_id", "dag_id", "task_id", "kind", "source", "destination", "state", "detail"]
    detail = json.dumps({"etls": [f"etl-of-{other}"], "aistore_conn_id": f"conn-of-{other}"})
    using = [f"{other}/r", other, "transform", "transform", f"ais://of-{other}", "ais://x", "running", detail]
    clickhouse.insert("storeside.runs", [using], column_names=columns)
    failure = [f"{other}/r", f"s3://of-{other}", "ais://x", "secret.flac", "failed", datetime.now(UTC)]
    names = ["run_id", "source", "destination", "object", "state", "recorded_at"]
    clickhouse.insert("storeside.failures", [failure], column_names=names)
    asked: list[str] = []

    def aistore(conn_id: str) -> Any:
        asked.append(conn_id)
        raise UnavailableError("it is not asked")

    for module in ("etls", "storage"):
        monkeypatch.setattr(f"storeside.plugins.pages.{module}.aistore", aistore)
    rights.read, rights.existing = {mine}, {mine, other}
    assert mine in pages.get("/overview").text
    for path in ("/overview", "/etls", "/storage", "/storage?conn_id=conn-of-" + other, "/movement", "/quality"):
        answer = pages.get(path)
        assert answer.status_code == 200, path
        assert other not in answer.text, path
    assert set(asked) <= {"aistore_default"}
    asked.clear()
    pages.get("/storage")
    assert asked == [], "only users who may read all DAGs see the cluster"
    run = {"dag": other, "run": "r", "status": "failed"}
    assert pages.get("/run", params=run).status_code == 403
    rights.read = {"*"}  # control
    assert other in pages.get("/overview").text


# benchmarks


def test_benchmarks_of_another_dag(pages: TestClient, rights: Rights, clickhouse: Any) -> None:
    mine, other = unique("mine"), unique("other")
    Ledger(clickhouse).create()
    columns = ["run_id", "backend", "operation", "object_size", "round", "seconds"]
    rows = [
        [f"{dag}/r", f"s3://of-{dag}", how, 1, 1, 1.0] for dag in (mine, other) for how in ("get cold", "put single")
    ]
    clickhouse.insert("storeside.backend_benchmark", rows, column_names=columns)
    measured = [[f"{dag}/r/t/1", f"ais://of-{dag}", 1.0] for dag in (mine, other)]
    clickhouse.insert("storeside.throughput_runs", measured, column_names=["measurement", "bucket", "mean"])
    rights.read, rights.existing = {mine}, {mine, other}
    page = pages.get("/benchmarks").text
    assert "median of" in page
    assert f"of-{other}" not in page
    rights.read = {"*"}  # control
    assert f"of-{other}" in pages.get("/benchmarks").text


def test_other_tables_named_like_benchmarks(pages: TestClient, rights: Rights, clickhouse: Any) -> None:
    table = unique("benchmark").replace("-", "_")
    clickhouse.command(f"CREATE TABLE storeside.{table} (who String, salary Float64) ENGINE = Memory")
    try:
        clickhouse.insert(f"storeside.{table}", [["ada", 1.0], ["bob", 2.0]], column_names=["who", "salary"])
        rights.read = {"*"}
        page = pages.get("/benchmarks")
        assert page.status_code == 200
        assert table not in page.text
    finally:
        clickhouse.command(f"DROP TABLE storeside.{table}")


# queues and their dead letters


@pytest.fixture
def shared(clickhouse: Any, sqs_client: SQSClient) -> dict[str, str]:
    """The URLs of two queues that share a dead-letter queue, by the DAG that takes their messages."""
    Ledger(clickhouse).create()
    name = unique("shared")
    dead = sqs_client.create_queue(QueueName=f"{name}-dead")["QueueUrl"]
    arn = sqs_client.get_queue_attributes(QueueUrl=dead, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]
    policy = {"RedrivePolicy": json.dumps({"deadLetterTargetArn": arn, "maxReceiveCount": "3"})}
    found = {"dead": dead}
    for dag in ("mine", "other"):
        url = sqs_client.create_queue(QueueName=f"{name}-{dag}", Attributes=policy)["QueueUrl"]
        found[dag] = url
        clickhouse.insert("storeside.queue_depths", [[url, 1]], column_names=["queue", "dead"])
        event = [[url, "m", f"{name}-{dag}/r", "dead"]]
        clickhouse.insert("storeside.events", event, column_names=["queue", "message_id", "run_id", "state"])
        given = {REASON: "why", ORIGIN: f"id-{dag}", QUEUE: f"{name}-{dag}"}
        send(sqs_client, dead, f"secret of {dag}", given)
    send(sqs_client, dead, "sent by hand", {})
    return found


def send(sqs: SQSClient, url: str, body: str, attributes: dict[str, str]) -> None:
    given: Any = {key: {"DataType": "String", "StringValue": value} for key, value in attributes.items()}
    sqs.send_message(QueueUrl=url, MessageBody=body, MessageAttributes=given)


def name_of(url: str) -> str:
    return url.rpartition("/")[2]


def waiting(sqs: SQSClient, url: str) -> int:
    names: Any = ["ApproximateNumberOfMessages"]
    return int(sqs.get_queue_attributes(QueueUrl=url, AttributeNames=names)["Attributes"][names[0]])


def restrict(rights: Rights, shared: dict[str, str]) -> None:
    rights.read = rights.run = {name_of(shared["mine"])}
    rights.existing = {name_of(shared["mine"]), name_of(shared["other"])}


def test_queues_of_another_dag_and_the_number_of_the_account(
    pages: TestClient, rights: Rights, shared: dict[str, str]
) -> None:
    restrict(rights, shared)
    mine, other = name_of(shared["mine"]), name_of(shared["other"])
    for page in (pages.get("/queues"), pages.get("/queues", params={"queue": mine})):
        assert page.status_code == 200
        assert mine in page.text
        assert other not in page.text
        assert ACCOUNT not in page.text
    for queue in (other, shared["other"]):
        page = pages.get("/queues", params={"queue": queue})
        assert "No queue of this name was measured" in page.text
        assert ACCOUNT not in page.text
        assert pages.get("/dead-letters", params={"queue": queue}).status_code == 404
        assert pages.post("/dead-letters", data={"queue": queue}, headers=OWN).status_code == 404
        form = {"queue": queue, "message": ["id-other"]}
        assert pages.post("/redrive", data=form, headers=OWN).status_code == 404


def test_dead_letters_of_another_queue_in_a_shared_dead_letter_queue(
    pages: TestClient, rights: Rights, shared: dict[str, str], sqs_client: SQSClient
) -> None:
    restrict(rights, shared)
    mine = name_of(shared["mine"])
    page = pages.post("/dead-letters", data={"queue": mine}, headers=OWN).text
    assert "secret of mine" in page
    assert "secret of other" not in page
    assert "sent by hand" not in page  # it may be of the other queue
    assert ACCOUNT not in page
    form = {"queue": mine, "message": ["id-mine", "id-other"]}
    answer = pages.post("/redrive", data=form, headers=OWN)
    assert answer.headers["location"].endswith(f"queue={mine}&sent=1&missed=1")
    until(lambda: waiting(sqs_client, shared["dead"]) == 2, 10, "the other two dead letters")
    assert (waiting(sqs_client, shared["mine"]), waiting(sqs_client, shared["other"])) == (1, 0)
    rights.read = rights.run = {"*"}  # control: who may see and run everything sees what names no queue
    assert "sent by hand" in pages.post("/dead-letters", data={"queue": mine}, headers=OWN).text


def test_a_forged_attribute_deletes_no_dead_letter(
    pages: TestClient, rights: Rights, shared: dict[str, str], sqs_client: SQSClient
) -> None:
    """A message that claims to be the copy of a dead letter would be deleted together with it, and only one sent."""
    restrict(rights, shared)
    mine = name_of(shared["mine"])
    send(sqs_client, shared["dead"], "forged", {ORIGIN: "id-mine", QUEUE: mine})
    pages.post("/redrive", data={"queue": mine, "message": ["id-mine"]}, headers=OWN)
    until(lambda: waiting(sqs_client, shared["mine"]) == 1, 10, "the dead letter")
    until(lambda: waiting(sqs_client, shared["dead"]) == 3, 10, "the other dead letters")


# other sites


def test_a_link_to_the_dead_letters_hides_none(
    pages: TestClient, rights: Rights, shared: dict[str, str], sqs_client: SQSClient
) -> None:
    rights.read = rights.run = {"*"}
    for _ in range(3):
        page = pages.get("/dead-letters", params={"queue": name_of(shared["mine"])})
        assert page.status_code == 200
        assert "secret" not in page.text
    found = sqs_client.receive_message(
        QueueUrl=shared["dead"], MaxNumberOfMessages=10, MessageSystemAttributeNames=["ApproximateReceiveCount"]
    )["Messages"]
    assert len(found) == 3
    assert {message["Attributes"]["ApproximateReceiveCount"] for message in found} == {"1"}


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Authorization": "Basic YWRhOmFkYQ=="},
        {"Authorization": "Negotiate YII="},
        {"Authorization": "Bearer"},
        {"Authorization": "Bearer "},
        {"Authorization": "Basic Bearer x", "Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Origin": "https://else.where"},
    ],
)
@pytest.mark.parametrize("path", ["/dead-letters", "/redrive"])
def test_forms_that_another_site_sends(
    pages: TestClient, rights: Rights, shared: dict[str, str], path: str, headers: dict[str, str]
) -> None:
    rights.read = rights.run = {"*"}
    answer = pages.post(path, data={"queue": name_of(shared["mine"]), "message": "id-mine"}, headers=headers)
    assert answer.status_code == 403
    assert "own pages" in answer.text


def test_slow_requests_leave_threads_to_others(
    pages: TestClient, rights: Rights, monkeypatch: pytest.MonkeyPatch, reader: Any
) -> None:
    """One user opens many pages while ClickHouse hangs: the excess gets 429, and another user a page."""
    rights.read = {"*"}
    hung, waits = threading.Event(), threading.Semaphore(0)

    class Hangs:
        def query(self, *given: Any, **named: Any) -> Any:
            waits.release()
            hung.wait(30)
            return reader.query(*given, **named)

    monkeypatch.setattr(access, "clickhouse", Hangs)
    allowed = limits.PAGES.most_of_a_user
    answers: list[Any] = []
    opened = [threading.Thread(target=lambda: answers.append(pages.get("/quality"))) for _ in range(allowed)]
    for one in opened:
        one.start()
    assert all(waits.acquire(timeout=20) for _ in range(allowed))
    for path in ("/quality", "/movement", "/benchmarks"):
        refused = pages.get(path)
        assert refused.status_code == 429
        assert refused.headers["retry-after"].isdecimal()
        assert "Too many requests" in refused.text
    monkeypatch.setattr(access, "clickhouse", lambda: reader)
    monkeypatch.setitem(app.dependency_overrides, get_user, lambda: SimpleNamespace(get_id=lambda: "bob"))
    assert pages.get("/quality").status_code == 200
    hung.set()
    for one in opened:
        one.join(30)
    assert [answer.status_code for answer in answers] == [200] * allowed
    assert not limits.PAGES.taken


def test_all_users_together_leave_threads_to_airflow() -> None:
    """Airflow's own requests need some of the API server's 40 threads."""
    assert limits.PAGES.most + limits.STREAMS.most <= 30
