"""Attacks on the embedded ClickHouse's files and environment by anyone whose SQL it executes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
import requests

from storeside.stack import cli
from storeside.stack.servers import clickhouse
from storeside.stack.settings import Stack
from storeside.stack.supervision.component import Component
from storeside.stack.supervision.supervisor import Status, Supervisor

SECRET = "a-token-of-the-user-who-starts-the-stack"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    stack = Stack.create(tmp_path_factory.mktemp("secrets"), 0)
    stack.save()
    names = ("GITHUB_TOKEN", "OPENAI_API_KEY", "AWS_SECRET_ACCESS_KEY", "AIRFLOW_CONN_X", "KUBECONFIG", "DB_PASSWORD")
    with pytest.MonkeyPatch.context() as patch:
        for name in names:
            patch.setenv(name, SECRET)
        Supervisor(stack).start([clickhouse.components(stack)])
    yield stack
    Supervisor(stack).stop()


def query(server: Stack, text: str) -> requests.Response:
    with requests.Session() as session:
        session.trust_env = False
        login = ("storeside", server.secrets["clickhouse"])
        return session.post(server.url("clickhouse_http"), data=text.encode(), auth=login, timeout=30)


def secrets(server: Stack) -> list[str]:
    return [SECRET, *server.secrets.values()]


def test_no_file_that_sql_reads_has_a_secret(server: Stack) -> None:
    """The attacker reads all files in the folder of the engine, which Landlock must leave readable."""
    assert query(server, "SELECT 1").ok
    folder = server.state / "clickhouse"
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert folder / ".clickhouse-local" / "config.xml" in files
    for path in files:
        content = path.read_bytes()
        assert not [secret for secret in secrets(server) if secret.encode() in content], path
    # and the collection whose keys are in no file still has them
    answer = query(server, "SELECT * FROM s3(storeside_s3, filename = 'b/k.csv') SETTINGS s3_retry_attempts = 1")
    assert "CSV" in answer.text or "S3" in answer.text


@pytest.mark.parametrize(
    "path",
    [
        "{state}/stack.json", "{state}/run/clickhouse.json", "{state}/run/supervisord.conf",
        "{state}/run/programs/clickhouse.json", "{state}/clickhouse/../stack.json", "/etc/passwd",
        "/proc/{parent}/environ", "/proc/{parent}/root{state}/stack.json", "/proc/self/root{state}/stack.json",
        "/proc/self/cwd/../../../etc/passwd",
    ],
)  # fmt: skip
def test_sql_reads_no_other_file(server: Stack, path: str) -> None:
    """The attacker executes any SQL function on a kernel with Landlock."""
    path = path.format(state=server.state, parent=os.getpid())
    for text in (f"SELECT file('{path}')", f"SELECT toUInt8(reverse(file('{path}')))"):
        answer = query(server, text)
        assert not answer.ok, answer.text
        assert not [s for s in secrets(server) if s in answer.text or s[::-1] in answer.text]
        assert "root:" not in answer.text


def test_the_environment_of_the_engine_has_no_secret(server: Stack) -> None:
    """The attacker reads /proc/self/environ, which Landlock leaves readable."""
    answer = query(server, "SELECT file('/proc/self/environ')")
    assert answer.ok
    assert "PATH=" in answer.text
    assert not [secret for secret in secrets(server) if secret in answer.text]
    pid = next(entry.pid for entry in Supervisor(server).status() if entry.name == "clickhouse")
    for process in (psutil.Process(pid), psutil.Process(pid).parent()):
        assert process is not None
        assert SECRET not in process.environ().values()


def test_a_kernel_that_confines_nothing_is_reported(
    server: Stack, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without Landlock the attacks above succeed: the owner of the stack must know it."""
    component = Component("clickhouse", ("x",), lambda: True)
    status = Status("clickhouse", "running", True, 1, 1.0)
    monkeypatch.setattr(cli, "stages", lambda stack, only, start: [[component]])
    monkeypatch.setattr(Supervisor, "status", lambda self, components: [status])
    folder = ["--folder", str(Path(server.state).parent)]
    assert cli.main([*folder, "status"]) == 0
    assert "warning" not in capsys.readouterr().err
    monkeypatch.setattr("storeside.transformers.isolation.landlock.is_available", lambda: False)
    assert cli.main([*folder, "status"]) == 0
    assert "warning: clickhouse: this kernel has no Landlock: SQL can read all files" in capsys.readouterr().err
