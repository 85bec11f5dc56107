"""The ClickHouse launcher with a real server."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import clickhouse_connect
import psutil
import pytest
import requests

from storeside.stack import demo
from storeside.stack.servers import clickhouse
from storeside.stack.servers.clickhouse_server import Config, load_engine, serve
from storeside.stack.settings import HOST, Stack, StackError
from storeside.stack.supervision.processes import marked
from storeside.stack.supervision.supervisor import Supervisor
from tests.support import until


class Server:
    """A stack with only ClickHouse."""

    def __init__(self, folder: Path) -> None:
        self.stack = Stack.create(folder, 0)
        self.supervisor = Supervisor(self.stack)
        self.login = ("storeside", self.stack.secrets["clickhouse"])
        self.supervisor.start([clickhouse.components(self.stack)])

    def query(self, text: str, login: tuple[str, str] | None = None) -> requests.Response:
        with requests.Session() as session:
            session.trust_env = False
            url = self.stack.url("clickhouse_http")
            return session.post(url, data=text.encode(), auth=login or self.login, timeout=30)

    def rows(self, text: str) -> str:
        response = self.query(text)
        assert response.ok, response.text
        return response.text.strip()

    @property
    def pid(self) -> int:
        return self.supervisor.status()[0].pid or 0


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = Server(tmp_path_factory.mktemp("click house"))
    yield server
    server.supervisor.stop()
    assert not marked(server.stack.state)


def test_logins(server: Server) -> None:
    assert server.rows("SELECT currentUser(), currentDatabase()") == "storeside\tstoreside"
    assert server.query("SELECT 1", ("storeside", "wrong")).status_code == 403
    assert server.query("SELECT 1", ("storeside", "")).status_code == 403
    for login in (("default", ""), ("default", server.login[1]), ("", "")):
        assert not server.query("SELECT 1", login).ok
    with requests.Session() as session:
        session.trust_env = False
        assert not session.get(server.stack.url("clickhouse_http"), params={"query": "SELECT 1"}, timeout=10).ok


@pytest.mark.parametrize(
    "query",
    [
        "SELECT * FROM file('/etc/passwd', 'LineAsString')",
        "SELECT file('/etc/passwd')",
        "CREATE TABLE outside (l String) ENGINE = File(LineAsString, '/etc/passwd')",
        "CREATE TABLE outside (l String) ENGINE = URL('http://127.0.0.1/', LineAsString)",
        "SELECT * FROM url('http://127.0.0.1/', 'LineAsString')",
        "SELECT * FROM remote('127.0.0.1', system.one)",
        "SELECT * FROM sqlite('/tmp/x.db', 't')",
        "SELECT * FROM filesystem('/etc')",
        "SELECT * FROM executable('x.sh', 'TSV', 'a String')",
        "CREATE DICTIONARY d (a UInt64) PRIMARY KEY a SOURCE(NULL()) LAYOUT(FLAT()) LIFETIME(0)",
        "CREATE TABLE x (a Int8) ENGINE = MergeTree ORDER BY a SETTINGS disk = disk(type = local, path = '/etc/')",
        "BACKUP TABLE system.one TO File('/tmp/x')",
        "CREATE USER other",
        "SYSTEM SHUTDOWN",
        "SYSTEM STOP LISTEN HTTP",
    ],
)
def test_no_way_out(server: Server, query: str) -> None:
    response = server.query(query)
    assert not response.ok, query
    assert "root:" not in response.text


def test_loading_is_allowed(server: Server) -> None:
    for query in (
        "CREATE DATABASE other",
        "CREATE TABLE other.raw (a Int32, b String) ENGINE = MergeTree PARTITION BY a % 2 ORDER BY a",
        "CREATE TABLE other.stage AS other.raw",
        "CREATE MATERIALIZED VIEW other.sums ENGINE = SummingMergeTree ORDER BY a AS SELECT a FROM other.raw",
        "INSERT INTO other.stage SELECT number, toString(number) FROM numbers(1000)",
        "ALTER TABLE other.raw ATTACH PARTITION ALL FROM other.stage",
        "ALTER TABLE other.stage MOVE PARTITION 1 TO TABLE other.raw",
        "ALTER TABLE other.raw REPLACE PARTITION 0 FROM other.stage",
        "EXCHANGE TABLES other.raw AND other.stage",
        "ALTER TABLE other.raw ADD COLUMN c String DEFAULT 'x'",
        "DELETE FROM other.raw WHERE a < 5",
        "CREATE TEMPORARY TABLE t (a Int8)",
        "OPTIMIZE TABLE other.raw FINAL",
        "TRUNCATE TABLE other.raw",
        "SYSTEM FLUSH LOGS",
        "KILL QUERY WHERE query_id = 'mine' SYNC",
        "DROP DATABASE other SYNC",
    ):
        server.rows(query)
    assert server.rows("SELECT count() > 0 FROM system.query_log WHERE query LIKE '%MOVE PARTITION%'") == "1"


def test_own_queries_can_be_killed_and_the_server_cannot(server: Server) -> None:
    server.query("KILL QUERY WHERE user = 'default' SYNC")
    assert [server.rows("SELECT 1") for _ in range(30)] == ["1"] * 30


def test_named_collections(server: Server) -> None:
    response = server.query(
        "SELECT * FROM s3(storeside_s3, filename = 'bucket/k.csv') SETTINGS s3_retry_attempts = 1"
    )
    assert "CSV" in response.text or "S3" in response.text  # it tried: nothing serves S3 here
    assert server.stack.secrets["s3_secret_key"] not in server.rows("SELECT * FROM system.named_collections")
    assert server.query("SELECT * FROM s3(other, filename = 'bucket/k.csv')").status_code == 403


def test_secrets_stay_private(server: Server) -> None:
    folder = server.stack.state / "clickhouse"
    for name in ("clickhouse/users.xml", "run/clickhouse.json", "clickhouse/.clickhouse-local/config.xml"):
        assert (server.stack.state / name).stat().st_mode & 0o077 == 0
    assert server.login[1] not in (folder / "users.xml").read_text()
    assert server.login[1] not in " ".join(psutil.Process(server.pid).cmdline())


def test_answers_go_through_no_file(server: Server) -> None:
    """Through a file, an answer has no rows while ClickHouse's disk is full; see `whole_answers`."""
    client = demo.clickhouse_client(server.stack)
    plain = clickhouse_connect.get_client(
        host=HOST, port=server.stack.ports["clickhouse_http"], username=server.login[0], password=server.login[1],
        autogenerate_session_id=False,
    )  # fmt: skip
    asked = "SELECT number, randomString(1000) FROM numbers(10000)"
    for query_id, one in (("memory", client), ("file", plain)):
        assert one.query(asked, settings={"query_id": query_id}).row_count == 10_000
    client.command("SYSTEM FLUSH LOGS")
    written = client.query(
        "SELECT query_id, ProfileEvents['WriteBufferFromFileDescriptorWrite'] > 0 FROM system.query_log"
        " WHERE query_id IN ('memory', 'file') AND type = 'QueryFinish'"
    ).result_rows
    assert {query_id: bool(has_file) for query_id, has_file in written} == {"memory": False, "file": True}


def test_kill_keeps_rows(server: Server) -> None:
    server.rows("CREATE TABLE kept (a Int32) ENGINE = MergeTree ORDER BY a")
    server.rows("INSERT INTO kept SELECT number FROM numbers(100000)")
    killed = server.pid
    os.kill(killed, signal.SIGKILL)
    until(lambda: server.pid not in (0, killed) and clickhouse.healthy(server.stack), 90, "new server")
    assert server.rows("SELECT count(), sum(a) FROM kept") == "100000\t4999950000"


def test_second_server_and_clean_stop(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = str(server.stack.state / "clickhouse")
    with pytest.raises(StackError, match="another ClickHouse server runs in"):
        serve(Config(folder, 1, 2, "x"))
    with monkeypatch.context() as patch:
        patch.setattr("storeside.stack.servers.clickhouse_server.PINNED", "1.0")
        with pytest.raises(StackError, match=r"needs chdb-core==1\.0, found chdb-core 26\.9\.0; install"):
            load_engine()
    server.supervisor.stop()
    assert not marked(server.stack.state)
    log = (server.stack.state / "logs" / "supervisord.log").read_text()
    assert "stopped: clickhouse (exit status 0)" in log


def test_one_line_when_it_cannot_start(tmp_path: Path) -> None:
    config = tmp_path / "config.json"
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        record = {"folder": str(tmp_path / "ch"), "http_port": port, "tcp_port": port, "password": "x"}
        config.write_text(json.dumps(record))
        command = [sys.executable, "-m", "storeside.stack.servers.clickhouse_server", "--config", str(config)]
        result = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert result.returncode == 1
    assert result.stderr.startswith(f"port {port} of clickhouse is taken by pid {os.getpid()}")
    assert len(result.stderr.splitlines()) == 1
