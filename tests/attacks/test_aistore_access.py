"""A local user without a token tries to use a secure stack's AIStore through all ports of its nodes (finding 4)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import psutil
import pytest
import requests
from aistore.sdk.errors import AISError

from storeside.aistore.buckets import Bucket
from storeside.aistore.cluster import Cluster
from storeside.stack import authn, demo
from storeside.stack.processes import marked
from storeside.stack.settings import HOST, Stack
from tests.support import put, read, small_spec, unique

pytestmark = pytest.mark.timeout(180)

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
def client(secure_stack: Stack) -> Any:
    return authn.cluster(secure_stack).client()


@pytest.fixture(scope="module")
def bucket(client: Any) -> Iterator[Bucket]:
    made = Bucket("ais", unique("private"))
    put(client, made, {"secret": b"the content"})
    yield made
    made.handle(client).delete()


def ports(stack: Stack) -> list[int]:
    return [port for name, port in stack.ports.items() if name.startswith(NODES)]


def configuration(client: Any) -> Any:
    return client.cluster().client.request("get", path="cluster", params={"what": "cluster_config"}).json()["auth"]


@pytest.mark.parametrize("sender", SENDERS, ids=lambda s: s.get("ais-caller-name", "client"))
def test_no_port_serves_a_request_without_a_token(
    secure_stack: Stack, client: Any, bucket: Bucket, sender: dict[str, str]
) -> None:
    before = configuration(client)
    served = []
    for port in ports(secure_stack):
        for method, path, body in CALLS:
            url = f"http://{HOST}:{port}{path.format(bucket=bucket.name)}"
            answer = requests.request(
                method, url, json=body, headers=sender, params={"provider": "ais"}, timeout=10, allow_redirects=False
            )
            if answer.ok:  # a redirect counts too
                served.append((port, method, path, answer.status_code, answer.text[:80]))
    assert served == []
    assert configuration(client) == before
    assert read(client, bucket, "secret") == b"the content"
    assert client.cluster().list_etls() == []


def test_forged_and_foreign_tokens_are_refused(secure_stack: Stack, client: Any) -> None:
    good = authn.current_token(secure_stack)
    head, body, signature = good.split(".")
    unsigned = "eyJhbGciOiJub25lIiwidHlwIjoiSldUIn0"
    for token in ("x", f"{unsigned}.{body}.", f"{head}.{body}.{signature[::-1]}", f"{unsigned}.{body}.{signature}"):
        with pytest.raises(AISError, match="401"):
            Cluster(secure_stack.url("ais_proxy"), token=token).client(patient=False).cluster().list_buckets()
    client.cluster().list_buckets()


def test_a_redirect_serves_only_its_request(secure_stack: Stack, client: Any, bucket: Bucket) -> None:
    """A target trusts the proxy's signature, which must not be good for another object."""
    put(client, bucket, {"other": b"another content"})
    url = f"{secure_stack.url('ais_proxy')}/v1/objects/{bucket.name}/other?provider=ais"
    headers = {"Authorization": f"Bearer {authn.current_token(secure_stack)}"}
    to = requests.get(url, headers=headers, timeout=10, allow_redirects=False).headers["Location"]
    assert requests.get(to, timeout=10).content == b"another content"
    assert not requests.get(to.replace("/other?", "/secret?"), timeout=10).ok
    assert not requests.delete(to, timeout=10).ok


def test_users_may_do_only_their_own_work(secure_stack: Stack, client: Any, bucket: Bucket) -> None:
    proxy = secure_stack.url("ais_proxy")
    reader = Cluster(proxy, token=authn.token(secure_stack, "clickhouse")).client(patient=False)
    assert read(reader, bucket, "secret") == b"the content"
    writer = Cluster(proxy, token=authn.token(secure_stack, "transformer")).client(patient=False)
    bucket.handle(writer).object("facts").get_writer().put_content(b"facts")
    for attempt in (
        lambda: put(reader, bucket, {"mine": b""}),
        lambda: bucket.handle(reader).object("secret").delete(),
        lambda: reader.cluster().client.request("put", path="etl", json=ETL),
        lambda: reader.cluster().client.request("put", path="cluster", json=SET),
        lambda: read(writer, bucket, "secret"),
        lambda: bucket.handle(writer).object("secret").delete(),
        lambda: writer.cluster().client.request("put", path="etl", json=ETL),
        lambda: writer.cluster().list_buckets(),
    ):
        with pytest.raises(AISError, match=r"401|403"):
            attempt()


def test_authn_gives_nothing_to_strangers(secure_stack: Stack) -> None:
    url = f"{secure_stack.url('authn')}/v1"
    user = {"id": "mine", "pass": "mine", "roles": [{"name": "airflow", "desc": "", "clusters": []}]}
    reader = {"Authorization": f"Bearer {authn.token(secure_stack, 'clickhouse')}"}
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


def test_every_socket_is_on_loopback(secure_stack: Stack) -> None:
    open_to = set()
    for process in marked(secure_stack.state):
        with suppress(psutil.Error):
            for connection in process.net_connections("inet"):
                if connection.status == psutil.CONN_LISTEN:
                    open_to.add(connection.laddr.ip)
    assert open_to <= {"127.0.0.1", "::1"}


def test_secrets_are_in_files_of_their_owner(secure_stack: Stack) -> None:
    secrets = [value for name, value in secure_stack.secrets.items() if name.startswith(("authn", "ais"))]
    secrets += [authn.token(secure_stack, user) for user in ("clickhouse", "transformer")]
    readable = []
    for path in secure_stack.state.rglob("*"):
        if path.is_file() and path.stat().st_mode & 0o077 and path.stat().st_size < 10_000_000:
            content = path.read_bytes()
            readable += [str(path) for secret in secrets if secret.encode() in content]
    assert readable == []
    lines = [" ".join(process.cmdline()) for process in marked(secure_stack.state)]
    assert not [line for line in lines for secret in secrets if secret in line]


def test_queries_of_clickhouse_hold_no_token(secure_stack: Stack, client: Any, bucket: Bucket) -> None:
    house = demo.clickhouse_client(secure_stack)
    source = f"url = '{secure_stack.url('ais_proxy')}/{bucket.name}/secret', format = 'RawBLOB'"
    found = house.query(f"SELECT * FROM s3(storeside_aistore, {source}, structure = 'c String')").result_rows
    assert str(found[0][0]).strip("b'") == "the content"
    house.command("SYSTEM FLUSH LOGS")
    logged = json.dumps(house.query("SELECT query FROM system.query_log").result_rows)
    assert authn.token(secure_stack, "clickhouse") not in logged
