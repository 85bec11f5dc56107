"""A local user without a token tries to use the stack's AIStore through all ports of its nodes (finding 4)."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
import requests
from aistore.sdk.errors import AISError

from storeside.aistore.buckets import Bucket
from storeside.aistore.cluster import Cluster
from storeside.stack import authn
from storeside.stack.settings import HOST, Stack
from storeside.stack.supervision.processes import marked
from tests.support import put, read, small_spec, unique

NODES = ("ais_proxy", "ais_target0", "ais_target1")
# Headers of a request from a node to another node, for a sender inside and outside the cluster.
SENDERS = [
    {},
    {"ais-caller-id": "aisproxy", "ais-caller-name": "p[aisproxy]"},
    {"ais-caller-id": "aistarget0", "ais-caller-name": "t[aistarget0]"},
    {"ais-caller-id": "stranger", "ais-caller-name": "p[stranger]"},
]
SET = {"action": "set-config", "value": {"auth": {"client_auth_required": False}}}
ETL = small_spec("upper", etl_name="evil-etl", communication="hpush").message()
CALLS: list[tuple[str, str, Any]] = [
    ("PUT", "/v1/etl", ETL),
    ("POST", "/v1/txn/begin", {"action": "etl-init", "value": ETL}),
    ("GET", "/v1/etl", None),
    ("PUT", "/v1/cluster", SET),
    ("PUT", "/v1/daemon", SET),
    ("PUT", "/v1/daemon", {"action": "shutdown-node"}),
    ("PUT", "/v1/cluster", {"action": "shutdown"}),
    ("POST", "/v1/cluster/autoreg", {"smap": None}),
    ("POST", "/v1/cluster/join-by-admin", {"daemon_id": "stranger"}),
    ("PUT", "/v1/metasync", {}),
    ("GET", "/v1/buckets", {"action": "list"}),
    ("POST", "/v1/buckets/new", {"action": "create-bck"}),
    ("GET", "/v1/objects/{bucket}/secret", None),
    ("PUT", "/v1/objects/{bucket}/secret", {}),
    ("DELETE", "/v1/objects/{bucket}/secret", None),
    ("GET", "/{bucket}/secret", None),
    ("GET", "/s3/{bucket}/secret", None),
    ("PUT", "/s3/{bucket}/secret", {}),
    ("PUT", "/v1/vote/voteres", {}),
]


@pytest.fixture(scope="module")
def bucket(aistore: Any) -> Iterator[Bucket]:
    made = Bucket("ais", unique("private"))
    put(aistore, made, {"secret": b"the content"})
    yield made
    made.handle(aistore).delete()


def ports(stack: Stack) -> list[int]:
    return [port for name, port in stack.ports.items() if name.startswith(NODES)]


def configuration(client: Any) -> Any:
    return client.cluster().client.request("get", path="cluster", params={"what": "cluster_config"}).json()["auth"]


def etls(client: Any) -> list[tuple[str, str]]:
    return sorted((etl.id, etl.stage) for etl in client.cluster().list_etls())


@pytest.mark.parametrize("sender", SENDERS, ids=lambda s: s.get("ais-caller-name", "client"))
def test_no_port_serves_a_request_without_a_token(
    stack: Stack, aistore: Any, bucket: Bucket, sender: dict[str, str]
) -> None:
    before = configuration(aistore), etls(aistore)
    served = []
    for port in ports(stack):
        for method, path, body in CALLS:
            url = f"http://{HOST}:{port}{path.format(bucket=bucket.name)}"
            answer = requests.request(
                method, url, json=body, headers=sender, params={"provider": "ais"}, timeout=10, allow_redirects=False
            )
            if answer.ok:  # a redirect counts too
                served.append((port, method, path, answer.status_code, answer.text[:80]))
    assert served == []
    assert (configuration(aistore), etls(aistore)) == before
    assert read(aistore, bucket, "secret") == b"the content"


def test_forged_and_foreign_tokens_are_refused(stack: Stack, aistore: Any) -> None:
    good = authn.current_token(stack)
    head, body, signature = good.split(".")
    unsigned = "eyJhbGciOiJub25lIiwidHlwIjoiSldUIn0"
    for token in ("x", f"{unsigned}.{body}.", f"{head}.{body}.{signature[::-1]}", f"{unsigned}.{body}.{signature}"):
        with pytest.raises(AISError, match="401"):
            Cluster(stack.url("ais_proxy"), token=token).client(patient=False).cluster().list_buckets()
    aistore.cluster().list_buckets()


def test_a_redirect_serves_only_its_request(stack: Stack, aistore: Any, bucket: Bucket) -> None:
    """A target trusts the proxy's signature, which must not be good for another object."""
    put(aistore, bucket, {"other": b"another content"})
    url = f"{stack.url('ais_proxy')}/v1/objects/{bucket.name}/other?provider=ais"
    headers = {"Authorization": f"Bearer {authn.current_token(stack)}"}
    to = requests.get(url, headers=headers, timeout=10, allow_redirects=False).headers["Location"]
    assert requests.get(to, timeout=10).content == b"another content"
    assert not requests.get(to.replace("/other?", "/secret?"), timeout=10).ok
    assert not requests.delete(to, timeout=10).ok


def test_users_may_do_only_their_own_work(stack: Stack, aistore: Any, bucket: Bucket) -> None:
    proxy = stack.url("ais_proxy")
    reader = Cluster(proxy, token=authn.token(stack, "clickhouse")).client(patient=False)
    assert read(reader, bucket, "secret") == b"the content"
    writer = Cluster(proxy, token=authn.token(stack, "transformer")).client(patient=False)
    bucket.handle(writer).object("facts").get_writer().put_content(b"facts")
    gatherer = Cluster(proxy, token=authn.token(stack, "gatherer")).client(patient=False)
    assert read(gatherer, bucket, "secret") == b"the content"
    for attempt in (
        lambda: put(reader, bucket, {"mine": b""}),
        lambda: bucket.handle(reader).object("secret").delete(),
        lambda: reader.cluster().client.request("put", path="etl", json=ETL),
        lambda: reader.cluster().client.request("put", path="cluster", json=SET),
        lambda: bucket.handle(gatherer).object("secret").get_writer().put_content(b"mine"),
        lambda: bucket.handle(gatherer).object("secret").delete(),
        lambda: gatherer.cluster().client.request("put", path="etl", json=ETL),
        lambda: gatherer.cluster().list_buckets(),
        lambda: read(writer, bucket, "secret"),
        lambda: bucket.handle(writer).object("secret").delete(),
        lambda: writer.cluster().client.request("put", path="etl", json=ETL),
        lambda: writer.cluster().list_buckets(),
    ):
        with pytest.raises(AISError, match=r"401|403"):
            attempt()


def test_authn_gives_nothing_to_strangers(stack: Stack) -> None:
    url = f"{stack.url('authn')}/v1"
    user = {"id": "mine", "pass": "mine", "roles": [{"name": "airflow", "desc": "", "clusters": []}]}
    reader = {"Authorization": f"Bearer {authn.token(stack, 'clickhouse')}"}
    for headers in ({}, reader):
        for method, path, body in (
            ("POST", "users", user),
            ("GET", "users", None),
            ("PUT", "users/admin", {"id": "admin", "pass": "mine"}),
            ("DELETE", "users/airflow", None),
            ("POST", "roles", user["roles"][0]),
            ("GET", "daemon", None),
            ("PUT", "daemon", {"auth": {"secret": "mine"}}),
        ):
            answer = requests.request(method, f"{url}/{path}", json=body, headers=headers, timeout=10)
            assert not answer.ok, (method, path, headers, answer.text)
    for name, password in (("admin", "admin"), ("admin", ""), ("airflow", "airflow")):
        assert not requests.post(f"{url}/users/{name}", json={"password": password}, timeout=10).ok


def test_every_socket_is_on_loopback(stack: Stack) -> None:
    open_to = set()
    for process in marked(stack.state):
        with suppress(psutil.Error):
            for connection in process.net_connections("inet"):
                if connection.status == psutil.CONN_LISTEN:
                    open_to.add(connection.laddr.ip)
    assert open_to <= {"127.0.0.1", "::1"}


def test_secrets_are_in_files_of_their_owner(stack: Stack) -> None:
    secrets = [value for name, value in stack.secrets.items() if name.startswith(("authn", "ais"))]
    secrets += [authn.token(stack, user) for user in ("clickhouse", "transformer", "gatherer")]
    readable = []
    # AIStore and ClickHouse remove files and folders meanwhile: `os.walk` skips such folders
    for path in (Path(folder, name) for folder, _, names in os.walk(stack.state) for name in names):
        with suppress(FileNotFoundError):
            if path.is_file() and path.stat().st_mode & 0o077 and path.stat().st_size < 10_000_000:
                content = path.read_bytes()
                readable += [str(path) for secret in secrets if secret.encode() in content]
    assert readable == []
    lines = [" ".join(process.cmdline()) for process in marked(stack.state)]
    assert not [line for line in lines for secret in secrets if secret in line]


def test_queries_of_clickhouse_hold_no_token(stack: Stack, clickhouse: Any, bucket: Bucket) -> None:
    source = f"url = '{stack.url('ais_proxy')}/{bucket.name}/secret', format = 'RawBLOB'"
    found = clickhouse.query(f"SELECT * FROM s3(storeside_aistore, {source}, structure = 'c String')").result_rows
    assert str(found[0][0]).strip("b'") == "the content"
    clickhouse.command("SYSTEM FLUSH LOGS")
    logged = json.dumps(clickhouse.query("SELECT query FROM system.query_log").result_rows)
    assert authn.token(stack, "clickhouse") not in logged
