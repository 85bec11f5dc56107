"""A stack whose servers use HTTPS with a private authority. `make secure-test` runs more tests on such a stack."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import requests
from certifi import where

from storeside.aistore.buckets import Bucket
from storeside.aistore.cluster import Cluster
from storeside.doctor import __main__
from storeside.ledger.objects import Ledger
from storeside.stack import authn, cli, clients, demo
from storeside.stack.airflow import airflow
from storeside.stack.servers import s3
from storeside.stack.settings import Stack, StackError, default_folder
from storeside.stack.sql import Query
from storeside.stack.supervision.supervisor import Supervisor
from storeside.transform.bucket_job import BucketJob
from tests.conftest import FOLDER
from tests.integration.test_bucket_job import Drive
from tests.support import allow, put, sizes, small_spec, unique

PARTS = ("authn", "s3", "clickhouse", "podrunner", "aistore")


@pytest.fixture(scope="module")
def secure() -> Iterator[Stack]:
    """A stack with TLS and without Airflow, on a machine that trusts other authorities by default."""
    folder = FOLDER.with_name(f"{FOLDER.name}-tls")
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / "cache").exists():
        (folder / "cache").symlink_to(default_folder() / "cache", target_is_directory=True)
    allow(folder)
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("REQUESTS_CA_BUNDLE", where())
        stack = cli.up(folder, only=PARTS, tls=True)
        yield stack
        Supervisor(stack).stop()


@pytest.mark.parametrize(
    "port",
    ["s3", "clickhouse_http", "authn", "ais_proxy", "ais_proxy_control", "ais_target0_public", "ais_target0_data"],
)
def test_each_server_has_a_certificate_of_the_stack_and_speaks_no_http(secure: Stack, port: str) -> None:
    url = secure.url(port)
    requests.get(url, verify=str(secure.authority), timeout=10)
    with pytest.raises(requests.exceptions.SSLError, match="CERTIFICATE_VERIFY_FAILED"):
        requests.get(url, verify=where(), timeout=10)
    with suppress(requests.ConnectionError):  # a server closes the connection, or refuses the request
        assert requests.get(url.replace("https", "http"), timeout=10).status_code == 400


def test_a_refused_certificate_is_an_error_at_once(secure: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    """AIStore's client would try again for minutes."""
    tried, send = [], requests.adapters.HTTPAdapter.send

    def count(adapter: Any, request: Any, **options: Any) -> Any:
        tried.append(request.url)
        return send(adapter, request, **options)

    monkeypatch.setattr(requests.adapters.HTTPAdapter, "send", count)
    with pytest.raises(requests.exceptions.SSLError, match="CERTIFICATE_VERIFY_FAILED"):
        Cluster(secure.url("ais_proxy")).client().cluster().list_buckets()
    assert len(tried) == 1


def test_the_doctor_finds_it_well(
    secure: Stack, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in airflow.environment(secure).items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("AIRFLOW_HOME")
    assert __main__.main(["--bucket", s3.BUCKET, "--queue", s3.QUEUE]) == 0, capsys.readouterr().out


@pytest.mark.parametrize("communication", ["ws", "hpush", "hpull"])
def test_objects_are_transformed_by_a_chain(secure: Stack, drive: Drive, communication: str) -> None:
    """The servers of a chain speak HTTP to each other, and HTTPS to AIStore."""
    aistore, clickhouse = authn.cluster(secure).client(), demo.clickhouse_client(secure)
    Ledger(clickhouse).create()
    source, to = Bucket("ais", unique("in")), Bucket("ais", unique("out"))
    put(aistore, source, {f"{n}.txt": b"object %d" % n for n in range(3)})
    chain = (small_spec("upper") >> small_spec("wrap")).over(communication)
    found = drive(BucketJob(aistore, Ledger(clickhouse), source, to, run_id="run", spec=chain))
    assert (found.done, found.failed) == (3, 0), found
    assert sizes(aistore, to).keys() == {"0.txt", "1.txt", "2.txt"}


def test_the_command_loads_from_s3_and_from_aistore(secure: Stack, tmp_path: Path) -> None:
    name, aistore = unique("tables"), authn.cluster(secure).client()
    store = s3.of_stack("s3", secure)
    store.create_bucket(Bucket=name)
    store.put_object(Bucket=name, Key="a.csv", Body=b"n\n1\n")
    store.put_object(Bucket=name, Key="c.csv", Body=b"n\n2\n")
    put(aistore, Bucket("ais", name), {"b.csv": b"n\n3\n"})
    kept = {key: value for key, value in os.environ.items() if key != "AWS_CA_BUNDLE"}
    variables = {**kept, **clients.clients_environment(secure)}
    table = f"data.{name.replace('-', '_')}"
    reads = ["--set", "loader=pull", "--collection"]
    for source, options in (
        (f"s3://{name}/a", [*reads, "storeside_s3"]),
        (f"s3://{name}/c", ["--set", "loader=push"]),
        (f"ais://{name}/", ["--collection", "storeside_aistore"]),
    ):
        command = [sys.executable, "-m", "storeside.transfer", source, table, *options, "--json"]
        done = subprocess.run(command, env=variables, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["loaded"] == 1
    assert json.loads(Query(secure, as_json=True)(f"SELECT sum(n) AS n FROM {table}"))["n"] == 6


def test_the_status_is_well_and_the_choice_stays(secure: Stack, capsys: pytest.CaptureFixture[str]) -> None:
    folder = secure.state.parent
    assert cli.main(["--folder", str(folder), "status"]) == 0, capsys.readouterr().out
    assert cli.up(folder, only=PARTS) == secure
    with pytest.raises(StackError, match="is with TLS: run 'make down' and delete"):
        cli.up(folder, only=PARTS, tls=False)
