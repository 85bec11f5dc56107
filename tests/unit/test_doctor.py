from __future__ import annotations

import asyncio
import json
import os
import socket
import ssl
import subprocess
import sys
from typing import Any

import pytest
import requests
from airflow.sdk import BaseHook
from airflow.sdk import Connection as AirflowConnection
from airflow.sdk.exceptions import AirflowFailException, AirflowNotFoundException, TaskDeferred
from botocore.exceptions import ConnectTimeoutError
from urllib3.exceptions import MaxRetryError, ReadTimeoutError

from storeside.doctor import __main__, connections
from storeside.doctor.connections import Connection
from storeside.doctor.examination import Systems, examine
from storeside.doctor.findings import Finding, System, without_secrets
from storeside.doctor.remedies import TIME_OUT, answered, reach
from storeside.operators.operators.doctor import CheckConnectionsOperator
from storeside.operators.triggers import doctor as triggers
from storeside.operators.triggers.doctor import CheckConnectionsTrigger

FIELDS = {"conn_type": "aws", "host": "h", "port": 1, "login": "me", "password": "p/w"}
FORMS = {
    "json": json.dumps(
        {
            "conn_type": "aws",
            "host": "h",
            "port": "1",
            "login": "me",
            "password": "p/w",
            "extra": {"region_name": "r"},
        }
    ),
    "json with extra as text": json.dumps(
        {
            "conn_type": "aws",
            "host": "h",
            "port": 1,
            "login": "me",
            "password": "p/w",
            "extra": '{"region_name": "r"}',
        }
    ),
    "uri": "aws://me:p%2Fw@h:1/?region_name=r",
    "uri with extra": "aws://me:p%2Fw@h:1/?__extra__=%7B%22region_name%22%3A+%22r%22%7D",
}


@pytest.mark.parametrize("text", FORMS.values(), ids=FORMS)
def test_connections_are_read_as_airflow_reads_them(text: str) -> None:
    ours = Connection.parse("c", text)
    assert ours == Connection("c", "h", 1, "me", "p/w", "", {"region_name": "r"})
    airflows = AirflowConnection.from_json(text, "c") if text[0] == "{" else AirflowConnection.from_uri(text, "c")
    for name in ("host", "port", "login", "password", "extra_dejson"):
        assert getattr(ours, name) == getattr(airflows, name), name


@pytest.mark.parametrize(
    "text", ['{"password": "hidden"', '{"port": "hidden"}', '{"extra": "hidden"}', "aws://h:hidden"]
)
def test_a_connection_that_cannot_be_read_is_named_and_not_shown(
    text: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_AWS_DEFAULT", text)
    assert __main__.main([]) == 2
    said = capsys.readouterr().err
    assert said == "error: AIRFLOW_CONN_AWS_DEFAULT: write it as Airflow's JSON or URI\n"


def test_nothing_to_examine(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    for conn_id in connections.IDS.values():
        monkeypatch.delenv(f"AIRFLOW_CONN_{conn_id.upper()}", raising=False)
    assert __main__.main([]) == 2
    assert "no connection is set: set at least one of AIRFLOW_CONN_CLICKHOUSE_DEFAULT" in capsys.readouterr().err
    monkeypatch.setenv("AIRFLOW_CONN_AWS_DEFAULT", "aws://")
    assert __main__.main(["--bucket", "s3://x"]) == 2
    assert "bucket 's3://x'" in capsys.readouterr().err


def test_secrets_are_blotted_out() -> None:
    found = Finding("S", "c", "failed", "refused a/b, a%2Fb and a/b-longer by http://u:a/b@h")
    (said,) = without_secrets([found], ["", "a/b", "a/b-longer"])
    assert said.found == "refused ***, *** and *** by http://u:***@h"


@pytest.mark.parametrize("secret", ["token-0123456789", "two  words\nof a secret"])
def test_an_error_is_shortened_after_its_secrets_are_replaced(secret: str) -> None:
    """Otherwise the begin of a secret could remain, which nothing recognizes."""
    (said,) = without_secrets([System("S").failed("c", f"{'x' * 390}{secret} end", "r")], [secret])
    assert said.found == f"{'x' * 390}*** end"
    (said,) = without_secrets([System("S").failed("c", f"{'x' * 390}{secret}{'y' * 50}", "r")], [secret])
    assert said.found == f"{'x' * 390}***yyyyyyy"


def test_extras_that_are_secrets_are_known() -> None:
    given = Connection(
        "c", password="p", extra_dejson={"aws_session_token": "t", "region_name": "r", "client_key": 5}
    )
    assert given.secrets() == ["p", "t", "5"]
    assert "'p'" not in repr(given)
    assert "'t'" not in repr(given)


@pytest.mark.guarantee("doctor")
def test_what_nobody_thought_of_hides_nothing() -> None:
    def surprise() -> Any:
        raise KeyError("hidden")

    (first, second) = examine(Systems(clickhouse=surprise, aistore=surprise, secrets=["hidden"]))
    assert (first.system, second.system) == ("ClickHouse", "AIStore")
    assert first.found == "KeyError: '***'"


def test_each_finding_is_told_before_the_next_check_begins() -> None:
    told: list[Finding] = []

    def fail() -> Any:
        raise OSError(f"{len(told)} before")

    findings = examine(Systems(clickhouse=fail, aistore=fail), told.append)
    assert told == findings
    assert [f.found for f in told] == ["0 before", "1 before"]


def test_lines_appear_while_the_checks_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second server answers nothing for a while; the first one's line must not wait for it."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        environment = {
            "PATH": os.environ["PATH"],
            "PYTHONPATH": "include",
            "AIRFLOW_CONN_CLICKHOUSE_DEFAULT": '{"host": "127.0.0.1", "port": 1}',
            "AIRFLOW_CONN_AISTORE_DEFAULT": json.dumps({"host": "127.0.0.1", "port": port}),
        }
        command = [sys.executable, "-m", "storeside.doctor"]
        with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            process.stdout.readline()
            first = process.stdout.readline()
            running = process.poll() is None
            process.kill()
    assert first.startswith("ClickHouse  login                  failed")
    assert running


# remedies by kind of error


@pytest.mark.parametrize(
    ("error", "remedy"),
    [
        (TimeoutError(), TIME_OUT),
        (ConnectTimeoutError(endpoint_url="http://s3"), TIME_OUT),
        (requests.ConnectionError(MaxRetryError(None, "/", ReadTimeoutError(None, "/", "slow"))), TIME_OUT),  # type: ignore[arg-type]
        (requests.exceptions.SSLError("[SSL: WRONG_VERSION_NUMBER] wrong"), "the server speaks no TLS"),
        (requests.exceptions.SSLError("x"), "the TLS handshake failed"),
        (requests.ConnectionError(MaxRetryError(None, "/", ssl.SSLError("x"))), "the TLS handshake failed"),  # type: ignore[arg-type]
        (ConnectionRefusedError(), "host and port"),
    ],
)
def test_a_time_out_a_certificate_and_a_closed_port_need_different_remedies(error: Exception, remedy: str) -> None:
    assert reach(error, "host and port").startswith(remedy)


def test_a_busy_server_needs_no_rights() -> None:
    assert [answered(status, "allow it") for status in (400, 403)] == ["allow it", "allow it"]
    assert all("overloaded" in answered(status, "allow it") for status in (429, 500, 503))


# the operator


AWS = AirflowConnection(conn_id="aws_default", conn_type="aws", password="secret")
GOOD = Finding("S3", "list", "ok", "there")
BAD = Finding("S3", "put", "failed", "denied", "allow it")


@pytest.fixture
def known(monkeypatch: pytest.MonkeyPatch) -> dict[str, AirflowConnection]:
    there = {name: AWS for name in ("aws_default", "clickhouse_default", "aistore_default")}

    def get(conn_id: str) -> AirflowConnection:
        if conn_id not in there:
            raise AirflowNotFoundException(conn_id)
        return there[conn_id]

    monkeypatch.setattr(BaseHook, "get_connection", get)
    return there


def operator(**arguments: Any) -> CheckConnectionsOperator:
    return CheckConnectionsOperator(task_id="check", bucket="bbb", **arguments)


def test_the_task_fails_with_what_to_mend(known: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[str, Any] = {}

    def look(found: Any, bucket: str, queue: str, *, write: bool) -> list[Finding]:
        asked.update(found=list(found), bucket=bucket, queue=queue, write=write)
        return [GOOD, *([BAD] if write else [])]

    monkeypatch.setattr("storeside.operators.hooks.doctor.look", look)
    assert operator(write="False").execute({}) == {"checks": 1, "skipped": 0}
    assert asked == {"found": ["clickhouse", "aws", "aistore"], "bucket": "bbb", "queue": "", "write": False}
    with pytest.raises(AirflowFailException, match="1 of 2 checks failed: S3 put: denied -> allow it"):
        operator().execute({})


def test_hsds_may_be_absent_and_the_others_may_not(known: dict[str, Any]) -> None:
    del known["aws_default"]
    with pytest.raises(AirflowFailException, match="connection aws_default does not exist"):
        operator().execute({})


def test_the_triggerer_gets_ids_and_gives_findings(known: Any) -> None:
    with pytest.raises(TaskDeferred) as deferred:
        operator(where="triggerer", sqs_queue="q").execute({})
    path, arguments = deferred.value.trigger.serialize()
    assert path == "storeside.operators.triggers.doctor.CheckConnectionsTrigger"
    assert "secret" not in json.dumps(arguments)
    assert CheckConnectionsTrigger(**arguments).serialize() == (path, arguments)
    event = {"findings": [vars(GOOD), vars(BAD)]}
    with pytest.raises(AirflowFailException, match="S3 put: denied"):
        operator().finish({}, event)


def test_a_bucket_that_cannot_be_one_fails_at_once_from_the_triggerer_too(
    known: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(triggers, "SETTLE_SECONDS", 0)

    async def connection(conn_id: str) -> AirflowConnection:
        return known[conn_id]

    monkeypatch.setattr(BaseHook, "aget_connection", connection)
    trigger = CheckConnectionsTrigger({"aws": "aws_default"}, "s3://b", "", False)

    async def events() -> list[Any]:
        return [event.payload async for event in trigger.run()]

    (event,) = asyncio.run(events())
    assert event["error"].startswith("bucket 's3://b': a bucket's name has")
    with pytest.raises(AirflowFailException, match="bucket 's3://b'"):
        operator().finish({}, event)
    late = operator(clickhouse_conn_id=None, aistore_conn_id=None, hsds_conn_id=None)
    late.bucket = "s3://b"  # as if a template had become it
    with pytest.raises(AirflowFailException, match="bucket 's3://b'"):
        late.execute({})


def test_a_flag_that_is_none_is_named(known: Any) -> None:
    late = operator()
    late.write = "maybe"  # as if a template had become it
    with pytest.raises(AirflowFailException, match=r"^write 'maybe' is neither true nor false"):
        late.execute({})
