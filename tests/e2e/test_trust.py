"""An attacker's targets on the whole embedded stack: secrets, open ports, pages that accept any input.

This file is the last: it inspects everything that the session's runs have left.
"""

from __future__ import annotations

import base64
import contextlib
import http.client
import json
import os
import re
import secrets
import socket
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import jwt
import psutil
import pytest
import requests

from storeside.aistore.buckets import Bucket
from storeside.sql.migrate import migrate
from storeside.sql.quoting import identifier
from storeside.stack import authn
from storeside.stack.airflow.api import AirflowApi
from storeside.stack.settings import CHECKOUT, Stack
from storeside.stack.supervision.processes import MARK, marked
from tests.e2e.test_pages import ROUTES, fill, wav
from tests.support import put, sizes, unique, until, until_known

if TYPE_CHECKING:
    from types_boto3_s3 import S3Client
    from types_boto3_sqs import SQSClient


DAGS = ("ingest", "s3_to_clickhouse")
# Files that hold secrets because a process must read them there, and that only their owner may read.
KEPT = re.compile(
    r"stack\.json|run/(supervisord\.conf|clickhouse\.json|programs/[^/]+\.json)|airflow/passwords\.json"
    r"|podrunner/serviceaccount/token|redis/redis\.conf|aistore/(join|[^/]+/(ais\.json|\.ais\.conf))"
)
EVERYWHERE = frozenset({"api-server", "execution-api", "scheduler", "dag-processor", "triggerer", "worker"})
S3_KEYS = {"s3_access_key", "s3_secret_key"}


def knows(component: str) -> set[str]:
    """Return the secrets that the environment of a component's processes must hold."""
    if component.removesuffix("-2") in EVERYWHERE:  # Airflow's connections, and the servers of CeleryExecutor
        return {
            "postgres",
            "redis",
            "clickhouse_loader",
            "clickhouse_ledger",
            "clickhouse_pages",
            "airflow_jwt",
            "authn_airflow",
            *S3_KEYS,
        }
    if component == "authn":
        return {"authn_key", "authn_admin"}
    return S3_KEYS if component == "s3" or component.startswith(("ais-", "hsds-s3-")) else set()


class Watch(threading.Thread):
    """Looks for secrets in places that show them only briefly: command lines, environments, running queries."""

    def __init__(self, stack: Stack, marks: dict[str, str]) -> None:
        super().__init__(daemon=True)
        self.stack, self.marks = stack, marks
        self.seen: set[str] = set()
        self.looks = 0
        self.bucket = ""
        self.runs: list[tuple[str, str]] = []
        self.ended = threading.Event()

    def run(self) -> None:
        login = ("storeside", self.stack.secrets["clickhouse"])
        session = requests.Session()
        session.trust_env = False
        while not self.ended.wait(0.05):
            for process in Path("/proc").glob("[0-9]*"):
                self._look(process)
            query = "SELECT query FROM system.processes"
            text = session.post(self.stack.url("clickhouse_http"), data=query, auth=login, timeout=10).text
            self.seen |= {f"{name} in a running query" for name, secret in self.marks.items() if secret in text}
            self.looks += 1

    def _look(self, process: Path) -> None:
        try:
            line = (process / "cmdline").read_bytes()
            environment = (process / "environ").read_bytes()
        except OSError:
            return
        mark = re.search(rb"(?:^|\0)" + MARK.encode() + rb"=([^\0]*)", environment)
        component = os.fsdecode(mark[1]).rpartition("/")[2] if mark else ""
        if int(process.name) == os.getpid():
            return
        for name, secret in self.marks.items():
            if secret.encode() in line:
                self.seen.add(f"{name} in the command line of {component or process.name}")
            if secret.encode() in environment and name not in knows(component):
                self.seen.add(f"{name} in the environment of {component or process.name}")


@pytest.fixture(scope="module")
def marks(airflow: Stack) -> dict[str, str]:
    """Every secret of the stack, and some of connections that are made for this test, by description."""
    token = (airflow.state / "podrunner" / "serviceaccount" / "token").read_text()
    own = ("s3 secret", "s3 session token", "database password", "extra token")
    return {
        **airflow.secrets,
        "pod runner's token": token,
        **{name: f"marked-{secrets.token_hex(16)}" for name in own},
        "AIStore token": authn.current_token(airflow),
    }


@pytest.fixture(scope="module")
def used(
    airflow: Stack, api: AirflowApi, marks: dict[str, str], s3_client: S3Client, aistore: Any
) -> Iterator[Watch]:
    """Runs whose connections have marked secrets: a successful run, and a failing run for each server."""
    for dag in DAGS:
        until_known(api, dag)
        api.request("PATCH", f"dags/{dag}", json={"is_paused": False})
    s3 = {"region_name": "us-east-1", "endpoint_url": airflow.url("s3")}
    ais = {"host": "127.0.0.1", "port": airflow.ports["ais_proxy"], "schema": "http", "conn_type": "http"}
    good = {"conn_type": "aws", "login": airflow.secrets["s3_access_key"], "password": marks["s3 secret"]}
    connections: dict[str, dict[str, Any]] = {
        "marked_s3": {**good, "extra": {**s3, "api_token": marks["extra token"]}},
        "marked_s3_bad": {**good, "login": "nobody", "extra": {**s3, "aws_session_token": marks["s3 session token"]}},
        "marked_ais": {**ais, "password": marks["AIStore token"]},
        "marked_ais_bad": {**ais, "port": 1, "password": marks["AIStore token"]},
        "marked_database": {"conn_type": "clickhouse", "host": "127.0.0.1", "password": marks["database password"]},
    }
    for name, connection in connections.items():
        extra = {"extra": json.dumps(connection["extra"])} if "extra" in connection else {}
        api.request("POST", "connections", json={"connection_id": name, **connection, **extra})
    source = unique("marked")
    s3_client.create_bucket(Bucket=source)
    s3_client.put_object(Bucket=source, Key="good.csv", Body=b"n\n1\n")
    s3_client.put_object(Bucket=source, Key="bad.csv.gz", Body=b"no")
    watch = Watch(airflow, marks)
    watch.start()
    load = api.trigger("s3_to_clickhouse", {"bucket": source, "table": "data.marked"})
    watch.bucket, watch.runs = source, [("s3_to_clickhouse", load)]
    conf = {"source": f"s3://{source}", "destination": f"ais://{source}", "way": "worker"}
    for s3_end, ais_end in (
        ("marked_s3", "marked_ais"),
        ("marked_s3_bad", "marked_ais"),
        ("marked_s3", "marked_ais_bad"),
    ):
        run = api.trigger("ingest", {**conf, "source_connection": s3_end, "destination_connection": ais_end})
        watch.runs.append(("ingest", run))
        until(lambda: _tried(api, run), 120, f"first attempt with {s3_end} and {ais_end}")  # noqa: B023
        api.request("PATCH", f"dags/ingest/dagRuns/{quote(run, safe='')}", json={"state": "failed"})
    assert api.wait("s3_to_clickhouse", load)["state"] == "success"
    assert sizes(aistore, Bucket("ais", source)) == {"good.csv": 4, "bad.csv.gz": 2}
    yield watch
    watch.ended.set()
    watch.join(30)


def _tried(api: AirflowApi, run: str) -> bool:
    """Whether the copy of a run has ended, or waits for another attempt."""
    tasks = {task["task_id"]: task["state"] for task in api.task_instances("ingest", run)}
    return tasks.get("copy_through_worker") in ("success", "failed", "up_for_retry")


# secrets


@pytest.mark.guarantee("no-secrets")
def test_no_secret_is_seen_while_work_is_done(used: Watch) -> None:
    until(lambda: used.looks > 20, 60, "looks at processes")
    assert not used.seen
    command = [sys.executable, "-c", "input()", used.marks["s3 secret"]]
    variables = {**os.environ, "ANY": used.marks["AIStore token"]}
    with subprocess.Popen(command, stdin=subprocess.PIPE, env=variables) as leaking:
        until(lambda: len(used.seen) == 2, 30, "control: a leaking process is seen")
        leaking.communicate()
    assert {text.partition(" in ")[0] for text in used.seen} == {"s3 secret", "AIStore token"}


@pytest.mark.guarantee("no-secrets")
def test_no_file_of_the_stack_holds_a_secret(airflow: Stack, used: Watch, marks: dict[str, str]) -> None:
    """Logs, Airflow's database with XComs and rendered templates, the queues, data in ClickHouse and AIStore."""
    forms = {
        name: {secret.encode(), quote(secret, safe="").encode(), base64.b64encode(secret.encode()).rstrip(b"=")}
        for name, secret in marks.items()
        if name != "s3_access_key"  # a name, not a secret: S3 writes a bucket's owner
    }
    holding: dict[str, set[str]] = {}
    looked = set()
    # folders appear and disappear as well; `os.walk` skips them
    paths = (Path(folder, name) for folder, _, names in os.walk(airflow.state) for name in names)
    for path in (path for path in paths if path.is_file() and not path.is_symlink()):
        name = str(path.relative_to(airflow.state))
        with contextlib.suppress(FileNotFoundError):  # parts that are merged meanwhile
            content, mode = path.read_bytes(), path.stat().st_mode
            looked.add(name)
            found = {secret for secret, ways in forms.items() if any(way in content for way in ways)}
            if found and not (KEPT.fullmatch(name) and not mode & 0o077):
                holding[name] = found
    database = "airflow/airflow.db" if airflow.executor == "local" else "postgres/PG_VERSION"
    assert {database, "logs/scheduler.log", "logs/clickhouse.log", "stack.json"} <= looked
    assert any("task_id=copy_through_worker" in name for name in looked)
    assert not holding


@pytest.mark.guarantee("no-secrets")
def test_no_table_of_clickhouse_holds_a_secret(clickhouse: Any, used: Watch, marks: dict[str, str]) -> None:
    clickhouse.command("SYSTEM FLUSH LOGS")
    tables = clickhouse.query(
        "SELECT database, name FROM system.tables WHERE database = 'storeside' AND engine NOT LIKE '%View'"
        " OR database = 'system' AND (endsWith(name, '_log') OR name IN ('errors', 'processes', 'query_cache',"
        " 'named_collections', 'settings', 'tables', 'users'))"
    ).result_rows
    assert {("system", "query_log"), ("storeside", "objects"), ("storeside", "loads")} <= set(tables)
    for database, name in tables:
        rows = f"SELECT * FROM {identifier(database)}.{identifier(name)} LIMIT 1000000"
        found = clickhouse.raw_query(rows, fmt="JSONEachRow")  # not all of it is text: names of objects are any bytes
        shown = {mark for mark, secret in marks.items() if secret.encode() in found and mark != "s3_access_key"}
        assert not shown, f"{database}.{name}"
    queries = clickhouse.query("SELECT count() FROM system.query_log WHERE query LIKE '%data.marked%'")
    assert queries.first_row[0]


@pytest.mark.guarantee("no-secrets")
def test_no_answer_of_the_api_shows_a_secret(
    airflow: Stack, api: AirflowApi, used: Watch, marks: dict[str, str]
) -> None:
    viewer = AirflowApi(airflow.url("airflow"), "viewer", airflow.secrets["airflow_viewer"])
    dags = [dag["dag_id"] for dag in api.get("dags")["dags"]]
    paths = [
        "connections", "connections/marked_s3", "connections/marked_ais", "variables", "plugins", "config",
        "importErrors",
        *(f"{kind}/{dag}{rest}" for dag in dags for kind, rest in (("dagSources", ""), ("dags", "/details"))),
    ]  # fmt: skip
    answered = 0
    for user in (api, viewer):
        for path in paths:
            try:
                text = user.request("GET", path).text
                answered += 1
            except requests.HTTPError as refused:
                text = refused.response.text
            assert not {name for name, secret in marks.items() if secret in text and name != "s3_access_key"}, path
    assert answered > 2 * len(dags)
    assert json.loads(api.request("GET", "connections/marked_s3").text)["password"] == "***"


@pytest.mark.guarantee("no-secrets")
def test_no_page_shows_a_secret(
    airflow: Stack, used: Watch, marks: dict[str, str], visitor: requests.Session, clickhouse: Any, aistore: Any,
    sqs_client: SQSClient,
) -> None:  # fmt: skip
    """Not even to an administrator, who may see all pages."""
    audio, where = Bucket("ais", unique("marked")), {"bucket": f"s3://{used.bucket}"}
    put(aistore, audio, {"speech.wav": wav()})
    fill(clickhouse, audio)
    queue = {"queue": dead_letter(clickhouse, sqs_client)}
    runs = [{"dag": dag, "run": run} for dag, run in used.runs]
    # Each page with content that it shows of this, so that an empty one does not pass for one without secrets.
    pages: list[tuple[str, dict[str, str], str]] = [
        ("/", {}, "Data movement"), ("/movement", {"place": used.bucket}, "data.marked"), ("/live", runs[0], ""),
        ("/run", runs[0], "data.marked"), ("/run", {**runs[0], "status": "failed"}, "bad.csv.gz"),
        *(("/run", run, run["run"]) for run in runs[1:]),
        ("/objects", {"text": "bad", **where}, "bad.csv.gz"), ("/queues", queue, queue["queue"].rpartition("/")[2]),
        *(("/object", {"object": name, **where}, name) for name in ("good.csv", "bad.csv.gz")),
        ("/dead-letters", queue, "Read the dead letters"), ("/quality", {}, "expect_x"),
        ("/corpus", {}, "&lt;b&gt;loud"),
        ("/verdict", {"run": "pages/run", "dag": "pages", "task": "validate"}, "expect_x"),
        ("/benchmarks", {}, "Benchmarks"), ("/overview", {}, "Overview"), ("/etls", {}, "ETLs"),
        ("/storage", {}, "Storage"),
        ("/audio", {"bucket": str(audio), "object": "speech.wav"}, "WAVE"), ("/tables", {}, "data.marked"),
        ("/movement.csv", {"place": used.bucket}, "data.marked"), ("/run.csv", runs[0], "good.csv"),
        ("/objects.csv", {"bucket": str(audio)}, "speech.wav"), ("/queues.csv", queue, "event"),
        ("/loads.csv", {"text": "bad", **where}, "bad.csv.gz"), ("/quality.csv", {}, "expect_x"),
        ("/corpus.csv", {}, "hours_after"), ("/benchmarks.csv", {}, "measurements"),
        ("/tables.csv", {}, "data.marked"),
        ("/overview.csv", {}, "s3_to_clickhouse"), ("/etls.csv", {}, "connection"), ("/storage.csv", {}, "target"),
    ]  # fmt: skip
    with_etl = {"/etl-log"}  # shows what a transformer writes
    assert {path for path, _, _ in pages} == {path for method, path in ROUTES if method == "get"} - with_etl
    visitor.headers["Origin"] = airflow.url("airflow")
    pages.append(("/dead-letters", queue, "a dead letter"))
    for n, (path, query, part) in enumerate(pages):
        address = f"{airflow.url('airflow')}/storeside{path}"
        if n == len(pages) - 1:
            answer = visitor.post(address, data=query, timeout=30)
        else:
            answer = visitor.get(address, params=query, timeout=30)
        assert answer.status_code == 200, (path, query, answer.text[-500:])
        assert part.encode() in answer.content, (path, query)
        said = answer.content + repr(answer.headers).encode()
        shown = {name for name, secret in marks.items() if secret.encode() in said and name != "s3_access_key"}
        assert not shown, (path, query)


def dead_letter(clickhouse: Any, sqs_client: SQSClient) -> str:
    """Return the URL of a queue that Storeside measures, with a dead letter."""
    migrate(clickhouse)
    dead = sqs_client.create_queue(QueueName=unique("dead"))["QueueUrl"]
    arn = sqs_client.get_queue_attributes(QueueUrl=dead, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]
    policy = json.dumps({"deadLetterTargetArn": arn, "maxReceiveCount": "3"})
    queue = sqs_client.create_queue(QueueName=unique("live"), Attributes={"RedrivePolicy": policy})["QueueUrl"]
    sqs_client.send_message(QueueUrl=dead, MessageBody="a dead letter")
    clickhouse.insert("storeside.queue_depths", [[queue, 0, 1]], column_names=["queue", "visible", "dead"])
    return queue


# ports and tokens


@pytest.mark.guarantee("closed")
def test_every_port_is_on_loopback(airflow: Stack) -> None:
    heard: dict[int, str] = {}
    for process in marked(airflow.state):
        with contextlib.suppress(psutil.NoSuchProcess):
            for socket_ in process.net_connections("inet"):
                if socket_.status == psutil.CONN_LISTEN or (socket_.type == socket.SOCK_DGRAM and not socket_.raddr):
                    heard[socket_.laddr.port] = f"{socket_.laddr.ip} of {' '.join(process.cmdline())[:80]}"
    assert set(airflow.ports.values()) <= set(heard)
    assert not {port: who for port, who in heard.items() if not who.startswith(("127.0.0.", "::1 "))}


def test_secrets_are_random_and_long(airflow: Stack, tmp_path: Path) -> None:
    one, other = (Stack.create(tmp_path / name, 1).secrets for name in ("one", "other"))
    assert not set(one.values()) & set(other.values())
    assert len(set(one.values())) == len(one)
    assert all(len(secret) >= 32 for secret in one.values())
    assert stat.S_IMODE(airflow.state.stat().st_mode) == 0o700


# pages


@pytest.fixture(scope="module")
def visitor(airflow: Stack) -> requests.Session:
    login = {"username": "admin", "password": airflow.secrets["airflow_admin"]}
    session = requests.Session()
    session.trust_env = False
    token = session.post(f"{airflow.url('airflow')}/auth/token", json=login, timeout=30).json()["access_token"]
    session.cookies.set("_token", token)
    return session


def raw(stack: Stack, method: str, path: str, headers: dict[str, str] | None = None, body: bytes = b"") -> Any:
    """Send a request exactly as written, and return status, headers and text of the answer."""
    connection = http.client.HTTPConnection("127.0.0.1", stack.ports["airflow"], timeout=30)
    with contextlib.closing(connection):
        connection.putrequest(method, path, skip_accept_encoding=True)
        for name, value in (headers or {}).items():
            connection.putheader(name, value)
        connection.endheaders(body or None)
        answer = connection.getresponse()
        return answer.status, dict(answer.headers), answer.read().decode(errors="replace")


VALUES = (
    "'; DROP TABLE storeside.objects --", "`\\'\"", "../../../etc/passwd", "\r\nSet-Cookie: taken=1\r\n\r\n<script>",
    "\0", "[" * 3_000,
    '["", 1e999, ""]', "n" * 6_000, "\u202e\ufeff", "{{7*7}}{text:String}", "%ff%00", "-1", "99999999999999999999",
)  # fmt: skip
PARAMETERS = (
    "dag", "run", "task", "status", "after", "before", "place", "kind", "state", "text", "bucket", "object", "queue",
    "anywhere", "after_load", "sent",
)  # fmt: skip


@pytest.mark.parametrize("path", sorted(path for method, path in ROUTES if method == "get" and path != "/"))
def test_pages_take_no_parameter_for_more_than_a_value(airflow: Stack, visitor: requests.Session, path: str) -> None:
    code = "".join(file.read_text() for file in (CHECKOUT / "plugins" / "pages").glob("*.py"))
    route = re.search(rf'\.get\("{path}".*?\ndef \w+\((.*?)\) ->', code, re.DOTALL)
    assert route
    signature = route[1]
    taken = [name for name in PARAMETERS if re.search(rf"\b{name}:", signature)]
    needed = {name: "x" for name in taken if not re.search(rf"\b{name}: [^,=]*=", signature)}
    for n, name in enumerate(taken):
        for value in VALUES[n % 3 :: 3]:
            answer = visitor.get(
                f"{airflow.url('airflow')}/storeside{path}", params={**needed, name: value}, timeout=30,
                allow_redirects=False,
            )  # fmt: skip
            assert answer.status_code in (200, 400, 404, 422), (name, value, answer.text[-500:])
            assert "taken" not in answer.cookies
            assert "<script>" not in answer.text or answer.headers["Content-Type"] == "application/json"
            assert answer.headers["X-Content-Type-Options"] == "nosniff"


@pytest.mark.parametrize(
    "path",
    [
        "../app.py",
        "..%2fapp.py",
        "%2e%2e/app.py",
        "%2e%2e%2fapp.py",
        "..%5capp.py",
        "%2fetc/passwd",
        "/etc/passwd",
        "pages.css/../../app.py",
        "..%00/app.py",
    ],
)
def test_static_files_are_those_of_their_folder(airflow: Stack, path: str) -> None:
    status, _, text = raw(airflow, "GET", f"/storeside/static/{path}")
    assert status in (400, 401, 404)
    assert "FastAPI(" not in text
    assert "root:" not in text


@pytest.mark.parametrize("headers", [{"Content-Length": str(10 << 30)}, {"Transfer-Encoding": "chunked"}])
def test_large_bodies_are_turned_away_unread(airflow: Stack, headers: dict[str, str]) -> None:
    form = {"Content-Type": "application/x-www-form-urlencoded", **headers}
    status, answered, text = raw(airflow, "POST", "/storeside/redrive", form)
    assert status == 413, text
    assert "default-src 'none'" in answered["content-security-policy"]


def test_forged_and_outdated_tokens_open_nothing(airflow: Stack, visitor: requests.Session) -> None:
    token = visitor.cookies["_token"]
    claims = jwt.decode(token, options={"verify_signature": False})
    algorithm = jwt.get_unverified_header(token)["alg"]
    head, body, signature = token.split(".")
    forged = {
        "unsigned": jwt.encode(claims, "", "none"),
        "of another key": jwt.encode(claims, secrets.token_urlsafe(64), algorithm),
        "out of date": jwt.encode({**claims, "exp": 1}, airflow.secrets["airflow_jwt"], algorithm),
        "without signature": f"{head}.{body}.",
        "of another head": f"{jwt.encode(claims, '', 'none').split('.')[0]}.{body}.{signature}",
        "nothing": "",
    }
    for what, value in forged.items():
        for headers in ({"Cookie": f"_token={value}"}, {"Authorization": f"Bearer {value}"}):
            status, _, _ = raw(airflow, "GET", "/storeside/movement", headers)
            assert status in (401, 403), what
    assert raw(airflow, "GET", "/storeside/movement", {"Cookie": f"_token={token}"})[0] == 200


@pytest.mark.parametrize("method", ["PUT", "DELETE", "PATCH", "TRACE", "OPTIONS"])
def test_other_methods_do_nothing(airflow: Stack, visitor: requests.Session, method: str) -> None:
    cookie = {"Cookie": f"_token={visitor.cookies['_token']}", "Content-Length": "0"}
    for path in ("redrive", "movement", "audio"):
        assert raw(airflow, method, f"/storeside/{path}", cookie)[0] in (400, 401, 405)
