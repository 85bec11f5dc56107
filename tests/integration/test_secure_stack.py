"""AuthN in the stack: logins of Airflow's connection, faults of AuthN and of nodes, tokens that expire."""

from __future__ import annotations

import http.server
import json
import threading
import time
from base64 import urlsafe_b64encode
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from storeside.aistore.buckets import Bucket
from storeside.aistore.cluster import Cluster, cluster_of
from storeside.aistore.errors import AIStoreInputError, AIStoreTransientError
from storeside.aistore.login import Login
from storeside.copying.s3 import AIStoreStore
from storeside.doctor.connections import Connection, found, systems
from storeside.doctor.examination import examine
from storeside.measure.throughput.load import environment
from storeside.stack import authn
from storeside.stack.airflow import airflow
from storeside.stack.settings import HOST, Stack
from storeside.transform.bucket_job import BucketJob
from storeside.transform.state import Summary
from tests.support import kill, put, sizes, small_spec, unique, until

Drive = Callable[[BucketJob], Summary]


def connection(stack: Stack) -> Connection:
    return Connection.parse("aistore_default", json.dumps(airflow.connections(stack)["AISTORE_DEFAULT"]))


def test_the_connection_of_airflow_logs_in(stack: Stack, aistore: Any) -> None:
    bucket = Bucket("ais", unique("copied"))
    cluster = cluster_of(connection(stack))
    store = AIStoreStore(cluster, bucket.name, 2)
    store.check()
    store.client.put_object(Bucket=bucket.name, Key="a", Body=b"content")
    assert sizes(aistore, bucket) == {"a": 7}
    assert environment(cluster)["AIS_AUTHN_TOKEN"].count(".") == 2
    assert "authn_airflow" not in repr(cluster)
    assert stack.secrets["authn_airflow"] not in repr(cluster)


def test_the_doctor_finds_nothing_and_names_a_wrong_password(stack: Stack) -> None:
    variables = {f"AIRFLOW_CONN_{name}": json.dumps(value) for name, value in airflow.connections(stack).items()}
    ids = {"aistore": "aistore_default", "clickhouse": "clickhouse_default", "aws": "aws_default"}
    assert [f for f in examine(systems(found(variables, ids), "recordings")) if f.state == "failed"] == []
    wrong = replace(authn.cluster(stack), password="wrong")
    (finding, *_) = examine(replace(systems({}, "recordings"), aistore=lambda: wrong))
    assert "user 'airflow'" in str(finding)
    assert "authn_url" in finding.remedy


def test_a_password_can_be_changed(stack: Stack) -> None:
    """Under Compose, `.env` has the password of Airflow's user."""
    other = "another password"
    changed = replace(stack, secrets=stack.secrets | {"authn_clickhouse": other})

    def login(password: str) -> Login:
        return Login(stack.url("authn"), "clickhouse", password, str(stack.authority) if stack.tls else True)

    try:
        authn.change_password(changed, "clickhouse")
        assert str(login(other))
        with pytest.raises(AIStoreInputError, match="refused"):
            str(login(stack.secrets["authn_clickhouse"]))
    finally:
        authn.change_password(stack, "clickhouse")
    assert str(login(stack.secrets["authn_clickhouse"]))


def test_killed_nodes_join_again(stack: Stack, aistore: Any) -> None:
    bucket = Bucket("ais", unique("kept"))
    put(aistore, bucket, {f"{n}": b"x" for n in range(20)})

    def all_there() -> bool:
        return len(sizes(aistore, bucket)) == 20 and len(aistore.cluster().get_info().tmap) == 2

    for node in ("ais-target-0", "ais-proxy", "authn"):
        kill(stack, node, all_there)
    until(lambda: _transforms(aistore, bucket), 90, "transform after the kills", interval=2)


def _transforms(client: Any, bucket: Bucket) -> bool:
    from aistore.sdk.errors import AISError

    from storeside.aistore import etl as etls

    try:
        (name,) = etls.ensure(client, small_spec("upper", communication="hpush"))
        to = Bucket("ais", unique("out"))
        client.job(bucket.handle(client).transform(name, to_bck=to.handle(client))).wait(timeout=30)
        done = len(sizes(client, to)) == 20
        etls.discard(client, name)
    except (AISError, AIStoreTransientError):  # AIStore rebalances
        return False
    return done


class ShortLived(http.server.BaseHTTPRequestHandler):
    """AuthN whose tokens live for two seconds, and a cluster that accepts only those that have not expired."""

    logins = 0

    def do_POST(self) -> None:
        type(self).logins += 1
        if json.loads(self.rfile.read(int(self.headers["Content-Length"])))["password"] != "right":
            self.send_error(401)
            return
        body = urlsafe_b64encode(json.dumps({"exp": time.time() + 2}).encode()).rstrip(b"=").decode()
        self._send({"token": f"head.{body}.{self.logins}"})

    def do_GET(self) -> None:
        from storeside.aistore.login import expiry

        if expiry(self.headers.get("Authorization", "").removeprefix("Bearer ")) < time.time():
            self.send_error(401)
            return
        self._send([])

    def _send(self, answer: Any) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps(answer).encode())

    def log_message(self, *_: Any) -> None: ...


def test_a_job_outlives_its_token() -> None:
    server = http.server.ThreadingHTTPServer((HOST, 0), ShortLived)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    url = f"http://{HOST}:{server.server_port}"
    try:
        client = Cluster(url, authn=url, username="airflow", password="right").client(patient=False)
        asked = [0]

        def renewed() -> bool:
            client.cluster().list_buckets()  # after the end of a token, the answer is 401
            asked[0] += 1
            return ShortLived.logins >= 3

        until(renewed, 120, "third token", 0.05)
        assert asked[0] > 10, "renewed before it expires, and not for every request"
        with pytest.raises(AIStoreInputError, match="correct login and password"):
            str(Login(url, "airflow", "wrong"))
    finally:
        server.shutdown()
        server.server_close()
    with pytest.raises(AIStoreTransientError, match="no answer"):
        str(Login(url, "airflow", "right"))


def test_a_valid_token_stays_in_use_while_authn_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("_LEFT", 0.95), ("_SECONDS", 0.5), ("_AGAIN", 0.1)):
        monkeypatch.setattr(f"storeside.aistore.login.{name}", value)
    server = http.server.ThreadingHTTPServer((HOST, 0), ShortLived)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    login = Login(f"http://{HOST}:{server.server_port}", "airflow", "right")
    token, began = str(login), time.monotonic()
    server.shutdown()
    server.server_close()
    with pytest.raises(AIStoreTransientError, match="no answer"):
        until(lambda: str(login) != token, 60, "end of the token")
    assert time.monotonic() - began > 1  # it is renewed after 0.1 s, and expires after 2 s
