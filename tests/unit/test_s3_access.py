"""Access to S3: a role for ClickHouse, public buckets, requester pays and KMS keys, as requests on the wire."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace
from typing import Any

import boto3
import pytest
from botocore.config import Config

from storeside.aistore.buckets import Bucket
from storeside.copying.s3_access import Access
from storeside.doctor.connections import Connection, systems
from storeside.doctor.examination import examine
from storeside.events.settle import Settled
from storeside.operators import AISCopyBucketOperator, HSDSExportDatasetOperator
from storeside.operators.bases.queue import QueueOperator
from storeside.transfer import cli
from storeside.transfer.base.errors import TransferInputError
from storeside.transfer.request.request import Request
from storeside.transfer.request.source import Source, source_of
from tests.unit.test_sql import Engine

ROLE = "arn:aws:iam::123456789012:role/storeside/reader"


@pytest.fixture(scope="module")
def engine() -> Engine:
    engine = Engine()
    engine.session.query("CREATE NAMED COLLECTION access AS url = 'http://127.0.0.1:1/', access_key_id = 'key'")
    return engine


@pytest.fixture
def server() -> Iterator[tuple[str, list[dict[str, str]]]]:
    """A server that answers each request with a CSV object; the URL, and the headers of the requests."""
    seen: list[dict[str, str]] = []

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _answer(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            seen.append({name.lower(): value for name, value in self.headers.items()})
            self.send_response(200)
            size = "0" if self.command == "PUT" else "2"
            for name, value in (
                ("ETag", '"e"'),
                ("Content-Length", size),
                ("Last-Modified", self.date_time_string()),
            ):
                self.send_header(name, value)
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(b"7\n")

        do_GET = do_HEAD = do_PUT = _answer

        def log_message(self, *_: Any) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as http:
        thread = threading.Thread(target=http.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{http.server_port}", seen
        http.shutdown()
        thread.join()


@pytest.mark.parametrize("collection", ["", "access"])
@pytest.mark.parametrize(
    "given", [{}, {"role_arn": ROLE}, {"public": True}, {"requester_pays": True},
              {"role_arn": ROLE, "requester_pays": True}, {"public": True, "requester_pays": True}],
    ids=str,
)  # fmt: skip
def test_clickhouse_accepts_the_statements(engine: Engine, collection: str, given: dict[str, Any]) -> None:
    source = Source("bucket", "", collection, "http://127.0.0.1:1", **given)
    assert engine.run(f"EXPLAIN SELECT * FROM {source.objects(['k'], 'CSV', 'a Int8')}")
    assert engine.run(f"EXPLAIN SELECT * FROM {source.objects(['k', 'l'], 'CSV', 'a Int8', 'gzip')}")


def test_a_wrong_name_of_an_argument_would_be_refused(engine: Engine) -> None:
    statement = Source("bucket", "", "", "http://127.0.0.1:1", role_arn=ROLE).objects(["k"], "CSV", "a Int8")
    with pytest.raises(RuntimeError, match="Invalid credential argument"):
        engine.run(f"EXPLAIN SELECT * FROM {statement.replace('role_arn', 'arn_of_role')}")


def test_requests_of_clickhouse(engine: Engine, server: tuple[str, list[dict[str, str]]]) -> None:
    url, seen = server
    engine.session.query(
        f"CREATE NAMED COLLECTION wire AS url = '{url}/', access_key_id = 'key', secret_access_key = 'secret'"
    )

    def signed_and_paid(source: Source) -> set[tuple[bool, bool]]:
        seen.clear()
        assert engine.run(f"SELECT * FROM {source.objects(['k'], 'CSV', 'a Int8')}") == [[7]]
        return {("authorization" in headers, "x-amz-request-payer" in headers) for headers in seen}

    assert signed_and_paid(Source("bucket", "", "wire", url)) == {(True, False)}
    assert signed_and_paid(Source("bucket", "", "wire", url, public=True)) == {(False, False)}
    assert signed_and_paid(Source("bucket", "", "", url, public=True, requester_pays=True)) == {(False, True)}
    # ClickHouse accepts the header together with a collection, and does not send it.
    statement = Source("bucket", "", "wire", url).objects(["k"], "CSV", "a Int8")
    seen.clear()
    assert engine.run(f"SELECT * FROM {statement[:-1]}, headers('x-amz-request-payer' = 'requester'))") == [[7]]
    assert not any("x-amz-request-payer" in headers for headers in seen)


def test_the_worker_reads_if_clickhouse_cannot_pay() -> None:
    source = Source("bucket", "", "wire", requester_pays=True)
    assert source.only_by_worker
    assert not Source("bucket", requester_pays=True).only_by_worker
    with pytest.raises(TransferInputError, match="does not send that the requester pays"):
        Request(source, "data.t", loader="pull")


def test_requests_of_the_worker(server: tuple[str, list[dict[str, str]]]) -> None:
    url, seen = server

    def client(access: Access) -> Any:
        return access.given_to(
            boto3.client(
                "s3", endpoint_url=url, aws_access_key_id="key", aws_secret_access_key="secret",
                region_name="us-east-1", config=Config(s3={"addressing_style": "path"}),
            )
        )  # fmt: skip

    for access in (Access(), Access(public=True), Access(requester_pays=True)):
        client(access).head_object(Bucket="bucket", Key="k")
    assert ["authorization" in headers for headers in seen] == [True, False, True]
    assert ["x-amz-request-payer" in headers for headers in seen] == [False, False, True]
    assert "x-amz-request-payer" in seen[2]["authorization"]
    seen.clear()
    for access in (Access(), Access(kms_key="alias/loads")):
        client(access).put_object(Bucket="bucket", Key="k", Body=b"x")
    assert [headers.get("x-amz-server-side-encryption") for headers in seen] == [None, "aws:kms"]
    assert seen[1]["x-amz-server-side-encryption-aws-kms-key-id"] == "alias/loads"


def test_requests_of_the_operators(server: tuple[str, list[dict[str, str]]], monkeypatch: pytest.MonkeyPatch) -> None:
    url, seen = server
    extra = {
        "endpoint_url": url, "region_name": "us-east-1", "requester_pays": "true", "sse_kms_key_id": "alias/exports",
        "config_kwargs": {"s3": {"addressing_style": "path"}},
    }  # fmt: skip
    given = {"conn_type": "aws", "login": "key", "password": "a secret", "extra": extra}
    monkeypatch.setenv("AIRFLOW_CONN_AWS_DEFAULT", json.dumps(given))
    monkeypatch.setattr(
        "storeside.aistore.stored_objects.list_s3", lambda s3, *_: s3.head_object(Bucket="in", Key="k")
    )
    copy = AISCopyBucketOperator(task_id="copy", source="s3://in", destination="ais://out")
    listing = copy.listing(Bucket.parse("s3://in"))
    assert listing is not None
    list(listing())

    class Exporter:
        def __init__(self, client: Any, s3: Any, *_: Any) -> None:
            s3.put_object(Bucket="out", Key="k", Body=b"x")
            raise KeyError("stop")

    monkeypatch.setattr("storeside.hsds.export.Exporter", Exporter)
    monkeypatch.setattr("storeside.operators.operators.hsds.HSDSHook", lambda conn_id: SimpleNamespace(client=None))
    monkeypatch.setattr("storeside.operators.operators.hsds.run_key", lambda context: "d/r")
    export = HSDSExportDatasetOperator(task_id="export", domain="/d", dataset="/x", bucket="out", prefix="p/")
    with pytest.raises(KeyError):
        export.execute({})  # type: ignore[typeddict-item]

    monkeypatch.setattr(QueueOperator, "conn", lambda self: (None, None))
    settle = QueueOperator(task_id="settle", sqs_queue="q")

    def settled(queue: Any, client: Any, s3: Any) -> Settled:
        s3.head_object(Bucket="in", Key="k")
        return Settled()

    settle.settled(settled)
    assert [headers.get("x-amz-request-payer") for headers in seen] == ["requester"] * 3
    assert [headers.get("x-amz-server-side-encryption-aws-kms-key-id") for headers in seen] == [
        None, "alias/exports", None,
    ]  # fmt: skip


def test_requests_of_the_doctor(server: tuple[str, list[dict[str, str]]]) -> None:
    url, seen = server
    extra = {
        "endpoint_url": url, "public": True, "requester_pays": True,
        "config_kwargs": {"s3": {"addressing_style": "path"}, "retries": {"total_max_attempts": 1}},
    }  # fmt: skip
    given = {"conn_type": "aws", "login": "key", "password": "a secret", "extra": extra}
    connection = Connection.parse("aws_default", json.dumps(given))
    examine(systems({"aws": connection}, "bucket", write=False))
    assert seen
    assert all("x-amz-request-payer" in headers and "authorization" not in headers for headers in seen)


def test_the_connection_describes_the_access() -> None:
    extra = {"clickhouse_role_arn": ROLE, "requester_pays": True}
    assert source_of(extra, "trips") == Source(
        "trips", endpoint="https://s3.us-east-1.amazonaws.com", role_arn=ROLE, requester_pays=True
    )
    assert source_of({"public": True}, "trips").public
    assert Access.of({"public": True, "sse_kms_key_id": "k"}) == Access(public=True, kms_key="k")
    assert Access.of({"public": "false", "requester_pays": "False"}) == Access()
    assert Access.of({"public": "true", "requester_pays": "1"}) == Access(public=True, requester_pays=True)
    assert not source_of({"requester_pays": "false", "public": "false"}, "trips").public


@pytest.mark.parametrize(
    "wrong", [{"role_arn": "reader"}, {"role_arn": f"{ROLE}')"}, {"role_arn": ROLE, "public": True}]
)
def test_wrong_roles_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(TransferInputError, match="write arn:aws:iam::123456789012:role/name"):
        Source("trips", **wrong)


def test_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cli, "given_source", lambda uri, collection: Source("trips"))
    given = ["s3://trips", "data.t", "--role-arn", ROLE, "--requester-pays"]
    found = cli.request(cli.transfer_arguments("storeside.transfer", "").parse_args(given))
    assert found.source == Source("trips", role_arn=ROLE, requester_pays=True)
