"""The doctor on the embedded stack: a healthy stack, each possible fault, and no secret in the findings."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from socketserver import BaseServer, UnixStreamServer
from threading import Thread
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import clickhouse_connect
import pytest
from botocore.awsrequest import AWSResponse

from storeside.aistore.cluster import Cluster
from storeside.aistore.pods import PodWatch
from storeside.doctor import __main__, clickhouse, connections
from storeside.doctor import s3 as bucket_checks
from storeside.doctor.examination import Systems, examine
from storeside.doctor.findings import Finding
from storeside.doctor.hsds import Service
from storeside.events.lease import Lease
from storeside.events.queue import Queue
from storeside.events.watch import Watch
from storeside.stack.airflow import airflow
from storeside.stack.building import nodes as aistore_build
from storeside.stack.servers import aistore, s3
from storeside.stack.servers.clickhouse import passwords
from storeside.stack.servers.clickhouse_users import LOADER
from storeside.stack.settings import HOST, Stack, default_folder
from storeside.transfer.request.source import Source
from tests.support import unique, until

if TYPE_CHECKING:
    from types_boto3_s3 import S3Client
    from types_boto3_sqs import SQSClient

PARTS = ("clickhouse", "s3", "sqs", "aistore", "pods")


@pytest.fixture
def bucket(s3_client: S3Client, sqs_client: SQSClient) -> Iterator[str]:
    """A bucket whose events go to a queue of the same name with dead letters."""
    name = unique("doctor")
    s3_client.create_bucket(Bucket=name)
    dead = sqs_client.create_queue(QueueName=f"{name}-dlq")["QueueUrl"]
    redrive = json.dumps({"deadLetterTargetArn": arn(sqs_client, dead), "maxReceiveCount": "5"})
    principal = {"Service": "s3.amazonaws.com"}
    may_send = {"Effect": "Allow", "Principal": principal, "Action": "sqs:SendMessage", "Resource": "*"}
    policy = json.dumps({"Version": "2012-10-17", "Statement": may_send})
    attributes = {"RedrivePolicy": redrive, "Policy": policy}
    url = sqs_client.create_queue(QueueName=name, Attributes=attributes)["QueueUrl"]  # type: ignore[arg-type]
    s3_client.put_bucket_notification_configuration(
        Bucket=name,
        NotificationConfiguration={
            "QueueConfigurations": [{"QueueArn": arn(sqs_client, url), "Events": ["s3:ObjectCreated:*"]}]
        },
    )
    for message in sqs_client.receive_message(QueueUrl=url).get("Messages", []):  # S3's message about the connection
        sqs_client.delete_message(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])
    yield name
    for queue in (url, dead):
        sqs_client.delete_queue(QueueUrl=queue)
    s3_client.delete_bucket(Bucket=name)  # fails if objects are left in it


def arn(sqs: SQSClient, url: str) -> str:
    return sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]


@pytest.fixture
def doctor(stack: Stack, bucket: str) -> Callable[..., list[Finding]]:
    """Examine the stack, or some of it, with changes to its connections and to the set of checks."""

    def run(
        only: tuple[str, ...] = PARTS, changes: dict[str, dict[str, Any]] | None = None, **more: Any
    ) -> list[Finding]:
        given = airflow.connections(stack)
        for conn_id, change in (changes or {}).items():
            extra = given[conn_id].get("extra", {}) | change.pop("extra", {})
            given[conn_id] |= {**change, "extra": extra}
        environment = {f"{connections.PREFIX}{conn_id}": json.dumps(value) for conn_id, value in given.items()}
        found = connections.found(environment, connections.IDS)
        systems = connections.systems(found, bucket, queue=bucket)
        left_out = {name: None for name in PARTS if name not in only}
        findings = examine(replace(systems, **{"event_seconds": 1.0, **left_out, **more}))
        said = "\n".join(line for finding in findings for line in finding.lines())
        for secret in [*stack.secrets.values(), *(c.get("password", "") for c in given.values())]:
            assert not secret or secret not in said
        return findings

    return run


def failed(findings: list[Finding]) -> dict[str, Finding]:
    return {f"{f.system} {f.check}": f for f in findings if f.state == "failed"}


# all is well


@pytest.mark.guarantee("doctor")
def test_the_stack_is_well_and_nothing_is_left(
    stack: Stack, bucket: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
    s3_client: S3Client, sqs_client: SQSClient, clickhouse: Any, aistore: Any,
) -> None:  # fmt: skip
    for name, value in airflow.environment(stack).items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("AIRFLOW_HOME")
    assert __main__.main(["--bucket", bucket, "--queue", bucket]) == 0
    said = capsys.readouterr().out
    for check in (
        *("ClickHouse  login", "ClickHouse  databases", "ClickHouse  reads S3", "ClickHouse  reads AIStore"),
        *("S3          put", "S3          delete", "SQS         redrive policy", "SQS         dead letters"),
        *("SQS         event of the probe",),
        *("AIStore     ETL", "AIStore     S3 API", "AIStore     reads S3", "Kubernetes  pods"),
    ):
        assert check in said
    # HSDS is a part of the stack once a test has requested it
    has_hsds = "HSDS_DEFAULT" in airflow.connections(stack)
    assert ("HSDS        login" if has_hsds else "not set, and therefore not checked: hsds_default") in said
    assert not any(secret in said for secret in stack.secrets.values())
    assert s3_client.list_objects_v2(Bucket=bucket)["KeyCount"] == 0
    url = sqs_client.get_queue_url(QueueName=bucket)["QueueUrl"]
    assert "Messages" not in sqs_client.receive_message(QueueUrl=url)
    assert not clickhouse.query("SELECT name FROM system.tables WHERE name LIKE 'doctor!_%' ESCAPE '!'").result_rows
    assert not [b.name for b in aistore.cluster().list_buckets() if b.name.startswith("storeside-doctor")]


def test_a_watcher_of_the_queue_may_take_the_event(
    doctor: Callable[..., list[Finding]], bucket: str, stack: Stack, sqs_client: SQSClient, clickhouse: Any
) -> None:
    late = s3.of_stack("sqs", stack)
    late.receive_message = lambda **_: time.sleep(0.1) or {}  # an empty answer comes after a while, as SQS's does
    findings: list[Finding] = []
    examined = Thread(target=lambda: findings.extend(doctor(event_seconds=20.0, sqs=lambda: late)))
    queue = Queue.find(sqs_client, bucket)
    with Lease(queue, 30) as lease:
        watch = Watch(queue, clickhouse, lease)
        examined.start()
        while examined.is_alive():
            assert watch.step() is None, "no run is started for it"
    assert not failed(findings)
    (finding,) = [f for f in findings if f.check == "event of the probe"]
    assert "another consumer of the queue received it" in finding.found


def test_nothing_is_put_when_nothing_may_be(
    doctor: Callable[..., list[Finding]], sqs_client: SQSClient, bucket: str
) -> None:
    findings = doctor(write=False)
    assert not failed(findings)
    assert {f.check for f in findings}.isdisjoint({"put", "get", "delete", "buckets", "reads AIStore"})
    assert {("ClickHouse", "reads S3"), ("S3", "list")} <= {(f.system, f.check) for f in findings}
    url = sqs_client.get_queue_url(QueueName=bucket)["QueueUrl"]
    assert "Messages" not in sqs_client.receive_message(QueueUrl=url)


@pytest.fixture
def silent() -> Iterator[int]:
    """A port that accepts connections and never answers."""
    with socket.create_server((HOST, 0)) as server:
        yield server.getsockname()[1]


def test_a_server_that_never_answers_is_given_up_and_the_others_are_looked_at(
    doctor: Callable[..., list[Finding]], silent: int
) -> None:
    hung = {"endpoint_url": f"http://{HOST}:{silent}"}
    findings = doctor(
        changes={
            "CLICKHOUSE_DEFAULT": {"host": HOST, "port": silent},
            "AWS_DEFAULT": {"extra": hung},
            "AISTORE_DEFAULT": {"host": HOST, "port": silent},
        },
        check_seconds=4.0,
    )
    wrong = failed(findings)
    assert set(wrong) == {"ClickHouse login", "SQS attributes", "S3 list", "AIStore login"}
    for finding in wrong.values():
        assert finding.found == "no answer within 4 s"
        assert "no firewall or security group drops the packets" in finding.remedy
    assert any(f.system == "Kubernetes" and f.state == "ok" for f in findings)


def test_a_check_that_hangs_later_is_named_by_the_one_before(
    doctor: Callable[..., list[Finding]], monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = "SELECT sleepEachRow(2.9) FROM numbers(3) SETTINGS max_block_size = 1"
    monkeypatch.setattr(clickhouse, "_use_databases", lambda client, _: client.command(slow))
    finding = failed(doctor(("clickhouse",), check_seconds=4.0))["ClickHouse after settings"]
    assert finding.found == "no answer within 4 s"


# ClickHouse


@pytest.mark.guarantee("doctor")
@pytest.mark.parametrize(
    ("change", "found", "remedy"),
    [
        ({"password": "not-the-password"}, "Authentication failed", "correct login and password"),
        ({"port": 1}, "Connection refused", "correct host and port"),
        ({"host": "nowhere.invalid"}, "nowhere.invalid", "correct host and port"),
        ({"schema": "nope"}, "Database nope does not exist", "leave the schema"),
        ({"extra": {"secure": True}}, "WRONG_VERSION_NUMBER", "the server speaks no TLS at this port"),
    ],
)
def test_clickhouse_does_not_let_in(
    doctor: Callable[..., list[Finding]], change: dict[str, Any], found: str, remedy: str
) -> None:
    findings = doctor(("clickhouse", "pods"), {"CLICKHOUSE_DEFAULT": change})
    (finding,) = failed(findings).values()
    assert (finding.system, finding.check) == ("ClickHouse", "login")
    assert found in finding.found
    assert remedy in finding.remedy
    assert any(f.system == "Kubernetes" for f in findings), "the others are looked at"


def test_clickhouse_allows_nothing(doctor: Callable[..., list[Finding]], stack: Stack) -> None:
    def read_only() -> Any:
        return clickhouse_connect.get_client(
            host=HOST, port=stack.ports["clickhouse_http"], username="storeside",
            password=stack.secrets["clickhouse"], settings={"readonly": "2"},
        )  # fmt: skip

    one_user = {"clickhouse": read_only, "ledger": None, "pages": None}
    finding = failed(doctor(("clickhouse",), **one_user))["ClickHouse databases"]
    assert "readonly mode" in finding.found
    assert finding.remedy.startswith(
        "GRANT SELECT, INSERT, ALTER, CREATE, DROP, TRUNCATE, OPTIMIZE ON storeside.* TO "
    )


def test_each_user_of_clickhouse_is_restricted(doctor: Callable[..., list[Finding]], stack: Stack) -> None:
    """The users of the embedded stack pass; a user with all rights instead of one of them fails."""
    findings = {f.check: f for f in doctor(("clickhouse",))}
    roles = ("loads", "ledger", "pages")
    assert {findings[f"limits of {role}"].state for role in roles} == {"ok"}

    def everything() -> Any:
        return clickhouse_connect.get_client(
            host=HOST, port=stack.ports["clickhouse_http"], username="storeside", password=stack.secrets["clickhouse"]
        )

    everything().insert("storeside.runs", [[unique("run")]], column_names=["run_id"])
    for role, word, remedy in (
        ("loads", "TRUNCATE on storeside.loads, storeside.objects", "REVOKE ALL ON storeside.* FROM storeside"),
        ("ledger", "TRUNCATE on any database.*", "instead of *.*"),
        ("pages", "INSERT on any database.*; ", "readonly = 2"),
        ("pages", "read rows of all DAGs in ", "row policies"),
    ):
        found = failed(doctor(("clickhouse",), **{"clickhouse" if role == "loads" else role: everything}))
        assert list(found) == [f"ClickHouse limits of {role}"]
        (finding,) = found.values()
        assert word in finding.found
        assert remedy in finding.remedy


def test_the_user_of_the_pages_may_read_too_little(doctor: Callable[..., list[Finding]], stack: Stack) -> None:
    def loader() -> Any:
        return clickhouse_connect.get_client(
            host=HOST, port=stack.ports["clickhouse_http"], username=LOADER, password=passwords(stack)[LOADER]
        )

    (finding,) = failed(doctor(("clickhouse",), pages=loader)).values()
    assert "storeside_loader may not read speech.manifest, storeside.backend_benchmark" in finding.found
    assert finding.remedy.startswith("GRANT SELECT ON speech.manifest, SELECT ON storeside.backend_benchmark, ")


def test_one_user_for_everything_is_reported(doctor: Callable[..., list[Finding]], stack: Stack) -> None:
    login = {"login": "storeside", "password": stack.secrets["clickhouse"]}
    findings = doctor(("clickhouse",), {"CLICKHOUSE_DEFAULT": login}, ledger=None, pages=None)
    assert not failed(findings)
    (finding,) = [f for f in findings if f.check == "separate users"]
    assert finding.state == "skipped"
    assert "set the connections of those users in its extras ledger_conn_id and pages_conn_id" in finding.found


def test_clickhouse_is_out_of_memory(doctor: Callable[..., list[Finding]], monkeypatch: pytest.MonkeyPatch) -> None:
    hungry = "SELECT length(groupArray(number)) FROM numbers(10000000) SETTINGS max_memory_usage = 1000000"
    monkeypatch.setattr(clickhouse, "_use_databases", lambda client, _: client.command(hungry))
    finding = failed(doctor(("clickhouse",)))["ClickHouse databases"]
    assert "MEMORY_LIMIT_EXCEEDED" in finding.found
    assert finding.remedy == "free disk space or memory of the ClickHouse server"


def test_clickhouse_is_too_old(doctor: Callable[..., list[Finding]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clickhouse, "SETTINGS", (*clickhouse.SETTINGS, "of_another_time"))
    finding = failed(doctor(("clickhouse",)))["ClickHouse settings"]
    assert "of_another_time" in finding.found
    assert "use ClickHouse 26.9 or newer" in finding.remedy


@pytest.mark.parametrize(
    ("extra", "remedy"),
    [
        ({"clickhouse_collection": "others"}, "GRANT NAMED COLLECTION ON others"),
        ({"clickhouse_collection": "", "clickhouse_endpoint": "http://127.0.0.1:1"}, "reach http://127.0.0.1:1"),
        ({"clickhouse_collection": ""}, "give the ClickHouse server keys: extra clickhouse_collection"),
    ],
)
def test_clickhouse_does_not_reach_s3(
    doctor: Callable[..., list[Finding]], extra: dict[str, Any], remedy: str
) -> None:
    for write in (True, False):
        finding = failed(doctor(("clickhouse", "s3"), {"AWS_DEFAULT": {"extra": extra}}, write=write))[
            "ClickHouse reads S3"
        ]
        assert remedy in finding.remedy


def test_clickhouse_reaches_another_store(doctor: Callable[..., list[Finding]], stack: Stack) -> None:
    findings = doctor(("clickhouse", "aistore"), aistore_endpoint="http://127.0.0.1:1")
    assert "set clickhouse_endpoint" in failed(findings)["ClickHouse reads AIStore"].remedy


# S3


@pytest.mark.parametrize(
    ("change", "found", "remedy"),
    [
        ({"login": "not-the-key"}, "InvalidAccessKeyId", "correct login (access key)"),
        ({"extra": {"endpoint_url": "http://127.0.0.1:1"}}, "Could not connect", "correct endpoint_url"),
    ],
)
def test_s3_does_not_let_in(
    doctor: Callable[..., list[Finding]],
    monkeypatch: pytest.MonkeyPatch,
    change: dict[str, Any],
    found: str,
    remedy: str,
) -> None:
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    finding = failed(doctor(("s3",), {"AWS_DEFAULT": change}))["S3 list"]
    assert found in finding.found
    assert remedy in finding.remedy


def test_s3_has_no_such_bucket(doctor: Callable[..., list[Finding]]) -> None:
    findings = failed(doctor(("s3", "aistore"), source=Source("no-such-bucket")))
    assert "create the bucket" in findings["S3 list"].remedy
    assert "give AIStore's targets credentials" in findings["AIStore reads S3"].remedy


@pytest.mark.guarantee("doctor")
@pytest.mark.parametrize("operation", ["PutObject", "GetObject", "DeleteObject"])
def test_s3_denies(doctor: Callable[..., list[Finding]], s3_client: S3Client, bucket: str, operation: str) -> None:
    """The embedded S3 has no policies, so its answer is replaced by AWS' answer."""
    body = b"<Error><Code>AccessDenied</Code><Message>Access Denied</Message></Error>"

    class Denial(AWSResponse):
        content = body

    def deny(**_: Any) -> AWSResponse:
        return Denial("http://s3", 403, {"content-type": "application/xml"}, None)

    event = f"before-send.s3.{operation}"
    s3_client.meta.events.register(event, deny)
    try:
        finding = failed(doctor(("s3",), s3=lambda: s3_client))[f"S3 {operation.removesuffix('Object').lower()}"]
    finally:
        s3_client.meta.events.unregister(event, deny)
    assert "AccessDenied" in finding.found
    assert f"allow s3:{operation} on arn:aws:s3:::{bucket}/*" in finding.remedy
    if operation == "DeleteObject":
        (left,) = s3_client.list_objects_v2(Bucket=bucket)["Contents"]
        s3_client.delete_object(Bucket=bucket, Key=left["Key"])


@pytest.mark.parametrize(
    ("status", "code", "remedy"),
    [
        (503, "SlowDown", "the server is overloaded or faulty"),
        (403, "RequestTimeTooSkewed", "set this machine's clock"),
        (400, "ExpiredToken", "renew aws_session_token"),
        (400, "AuthorizationHeaderMalformed", "correct region_name"),
        (400, "Strange", "see the error's text"),
    ],
)
def test_s3_refuses_for_another_reason_than_rights(
    doctor: Callable[..., list[Finding]], s3_client: S3Client, status: int, code: str, remedy: str
) -> None:
    """The embedded S3 does not refuse like that, so its answer is replaced by AWS' answer."""

    class Answer(AWSResponse):
        content = f"<Error><Code>{code}</Code><Message>no</Message></Error>".encode()

    def answer(**_: Any) -> AWSResponse:
        return Answer("http://s3", status, {"content-type": "application/xml"}, None)

    s3_client.meta.events.register("before-send.s3.PutObject", answer)
    try:
        finding = failed(doctor(("s3",), s3=lambda: s3_client))["S3 put"]
    finally:
        s3_client.meta.events.unregister("before-send.s3.PutObject", answer)
    assert remedy in finding.remedy
    assert "allow" not in finding.remedy


# SQS


def test_a_wrong_key_is_not_a_missing_policy_of_the_queue(
    doctor: Callable[..., list[Finding]],
) -> None:
    finding = failed(doctor(("sqs",), {"AWS_DEFAULT": {"login": "not-the-key"}}))["SQS attributes"]
    assert "InvalidClientTokenId" in finding.found
    assert finding.remedy.startswith("correct login (access key)")


def test_there_is_no_queue(doctor: Callable[..., list[Finding]]) -> None:
    assert "create the queue nobody" in failed(doctor(("sqs",), queue="nobody"))["SQS attributes"].remedy


def test_the_queue_has_no_dead_letters_and_gets_no_events(
    doctor: Callable[..., list[Finding]], sqs_client: SQSClient
) -> None:
    name = unique("deaf")
    url = sqs_client.create_queue(QueueName=name)["QueueUrl"]
    try:
        findings = failed(doctor(("s3", "sqs"), queue=name))
    finally:
        sqs_client.delete_queue(QueueUrl=url)
    assert "set a RedrivePolicy" in findings["SQS redrive policy"].remedy
    assert "send the s3:ObjectCreated:* events" in findings["SQS event of the probe"].remedy


def test_messages_of_others_stay_and_a_crowd_is_left_alone(
    doctor: Callable[..., list[Finding]], sqs_client: SQSClient, bucket: str
) -> None:
    url = sqs_client.get_queue_url(QueueName=bucket)["QueueUrl"]
    sqs_client.send_message(QueueUrl=url, MessageBody="not of us")
    assert not failed(doctor(("s3", "sqs")))
    (message,) = sqs_client.receive_message(QueueUrl=url, VisibilityTimeout=0)["Messages"]
    assert message["Body"] == "not of us"
    for n in range(20):
        sqs_client.send_message(QueueUrl=url, MessageBody=f"not of us {n}")
    findings = doctor(("s3", "sqs"))
    assert ("event of the probe", "skipped") in {(f.check, f.state) for f in findings}
    assert "put" not in {f.check for f in findings if f.system == "S3"}


def test_waiting_messages_are_received_once(sqs_client: SQSClient) -> None:
    """A queue that moves messages to its dead letters after three receives keeps those that wait."""
    dead = sqs_client.create_queue(QueueName=unique("dead"))["QueueUrl"]
    arn = sqs_client.get_queue_attributes(QueueUrl=dead, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]
    redrive = json.dumps({"deadLetterTargetArn": arn, "maxReceiveCount": "3"})
    url = sqs_client.create_queue(QueueName=unique("queue"), Attributes={"RedrivePolicy": redrive})["QueueUrl"]
    for n in range(2):
        sqs_client.send_message(QueueUrl=url, MessageBody=f"not of us {n}")
    waits = bucket_checks.Queue(sqs_client, url, 2)
    finding = bucket_checks.receive(waits, bucket_checks.Probe("b", "k", b""), 3, lambda _: False)
    assert finding.found == "none within 3 s"
    left = sqs_client.receive_message(
        QueueUrl=url, MaxNumberOfMessages=10, AttributeNames=["ApproximateReceiveCount"]
    )["Messages"]
    assert [m["Attributes"]["ApproximateReceiveCount"] for m in left] == ["2", "2"], "one receive is the test's"
    assert "Messages" not in sqs_client.receive_message(QueueUrl=dead)


# AIStore


def test_aistore_does_not_answer(doctor: Callable[..., list[Finding]]) -> None:
    finding = failed(doctor(("aistore",), {"AISTORE_DEFAULT": {"port": 1}}))["AIStore login"]
    assert "Connection refused" in finding.found
    assert "host, port and schema of a proxy" in finding.remedy
    finding = failed(doctor(("aistore",), {"AISTORE_DEFAULT": {"host": ""}}))["AIStore login"]
    assert "needs the host of an AIStore proxy" in finding.found


@pytest.fixture(scope="module")
def plain_cluster(tmp_path_factory: pytest.TempPathFactory, stack: Stack) -> Iterator[Callable[..., str]]:
    """Start one proxy and one target outside Kubernetes, without the features of the stack's cluster."""
    running: list[subprocess.Popen[bytes]] = []

    def start(auth: dict[str, Any], backend: dict[str, str] | None = None, features: int = 0) -> str:
        folder = tmp_path_factory.mktemp("aistore")
        made = Stack.create(folder, 1, secure=False)
        nodes = aistore.components(made, aistore_build.build(default_folder() / "cache"), backend=backend)
        for path in (folder / "state").rglob("ais.json"):
            path.write_text(json.dumps(json.loads(path.read_text()) | {"features": f"{features}", "auth": auth}))
        for node in nodes:
            node.directory.mkdir(parents=True, exist_ok=True)
            environment = {k: v for k, v in node.environment.items() if not k.startswith(("KUBERNETES", "MY_"))}
            with open(folder / f"{node.name}.log", "wb") as log:
                running.append(
                    subprocess.Popen(node.command, env={"HOME": str(folder), **environment}, cwd=node.directory,
                                     stdout=log, stderr=log)
                )  # fmt: skip
        until(lambda: all(node.healthy() for node in nodes), 30, "plain cluster")
        return made.url("ais_proxy")

    yield start
    for process in running:
        process.kill()
        process.wait()


def test_aistore_outside_kubernetes_with_its_defaults(
    doctor: Callable[..., list[Finding]], plain_cluster: Callable[..., str]
) -> None:
    url = plain_cluster({})
    findings = failed(doctor(("clickhouse",), aistore=lambda: Cluster(url), source=None))
    assert "requires Kubernetes" in findings["AIStore ETL"].found
    assert "deploy AIStore on Kubernetes" in findings["AIStore ETL"].remedy
    assert "ais config cluster features S3-API-via-Root S3-Reverse-Proxy" in findings["AIStore S3 API"].remedy
    assert "ClickHouse reads AIStore" in findings


def test_aistore_wants_a_token(doctor: Callable[..., list[Finding]], plain_cluster: Callable[..., str]) -> None:
    url = plain_cluster({"enabled": True, "signature": {"key": "a-secret-of-authn", "method": "HMAC"}})
    for token in ("", "not.a.token"):
        finding = failed(doctor((), aistore=lambda token=token: Cluster(url, token=token)))["AIStore login"]
        assert "a token from AIStore's AuthN" in finding.remedy


def test_aistore_puts_the_bucket_into_the_host(
    doctor: Callable[..., list[Finding]], plain_cluster: Callable[..., str], stack: Stack, bucket: str
) -> None:
    """The name of a server leads to <bucket>.localhost, which has no address; its path style works."""
    endpoint = stack.url("s3").replace(HOST, "localhost")
    server = dict(zip(aistore.BACKEND, (endpoint, "us-east-1", *s3.keys(stack)), strict=True))
    url = plain_cluster({}, server)
    source = Source(bucket, endpoint=endpoint)
    finding = failed(doctor((), aistore=lambda: Cluster(url), source=source, check_seconds=5))["AIStore reads S3"]
    assert "ais config cluster features S3-Use-Path-Style" in finding.remedy
    assert f"ais bucket props set s3://{bucket} features S3-Use-Path-Style" in finding.remedy
    url = plain_cluster({}, server, aistore.FEATURES)
    assert "AIStore reads S3" not in failed(doctor((), aistore=lambda: Cluster(url), source=source))


# Kubernetes


def test_kubernetes_does_not_let_in(doctor: Callable[..., list[Finding]], stack: Stack, tmp_path: Path) -> None:
    good = airflow.connections(stack)["AISTORE_DEFAULT"]["extra"]["kube_config"]
    record = json.loads(Path(good).read_text())
    record["users"][0]["user"] = {"token": "not-the-token"}
    stranger = tmp_path / "stranger"
    stranger.write_text(json.dumps(record))
    record["clusters"][0]["cluster"]["server"] = "https://127.0.0.1:1"
    gone = tmp_path / "gone"
    gone.write_text(json.dumps(record))
    for path, found, remedy in (
        (stranger, "401", "renew the token or the certificate"),
        (gone, "Connection refused", "reach the API server"),
        (tmp_path / "absent", "Invalid kube-config file", "correct kube_config"),
    ):
        finding = failed(doctor((), pods=PodWatch(str(path), "ais")))["Kubernetes pods"]
        assert found in finding.found
        assert remedy in finding.remedy
        assert "not-the-token" not in finding.found


# HSDS: a server of the test gives the two answers that matter, because the real one has its own environment


@pytest.fixture(params=["tcp", "unix"])
def hsds(request: pytest.FixtureRequest) -> Iterator[tuple[str, dict[str, Any]]]:
    answers: dict[str, Any] = {"state": "READY", "user": "Basic YWRtaW46c2VjcmV0"}

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            about = self.path.startswith("/about")
            self.send_response(200 if about or self.headers["Authorization"] == answers["user"] else 401)
            self.end_headers()
            self.wfile.write(json.dumps({"state": answers["state"], "domains": []}).encode())

        def address_string(self) -> str:
            return "client"

        def log_message(self, *_: Any) -> None:
            pass

    if request.param == "unix":
        pytest.importorskip("requests_unixsocket")
    folder = tempfile.mkdtemp()  # a socket's path is short
    server: BaseServer
    if request.param == "unix":
        server, url = UnixStreamServer(f"{folder}/sn", Handler), f"http+unix://{quote(folder, safe='')}%2Fsn"
    else:
        server = HTTPServer((HOST, 0), Handler)
        url = f"http://{HOST}:{server.server_port}"
    thread = Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    yield url, answers
    server.shutdown()
    thread.join()
    server.server_close()
    shutil.rmtree(folder)


def test_hsds(hsds: tuple[str, dict[str, Any]]) -> None:
    url, answers = hsds
    assert [f.state for f in examine(Systems(hsds=Service(url, "admin", "secret")))] == ["ok", "ok"]
    assert "correct login" in failed(examine(Systems(hsds=Service(url, "admin", "wrong"))))["HSDS login"].remedy
    answers["state"] = "WAITING"
    assert "WAITING" in failed(examine(Systems(hsds=Service(url, "admin", "secret"))))["HSDS ready"].found
    assert "correct host" in failed(examine(Systems(hsds=Service("http://127.0.0.1:1"))))["HSDS ready"].remedy
