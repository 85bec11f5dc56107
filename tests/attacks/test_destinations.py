"""Attacks on the ledger's tables, which record the outcomes of objects and decide which rows the pages show."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import clickhouse_connect
import pytest
from clickhouse_connect.driver.exceptions import DatabaseError

from storeside.sql.migrate import migrate, tables
from storeside.sql.visibility import POLICIES
from storeside.stack.servers import clickhouse as server
from storeside.stack.servers.clickhouse_users import LEDGER, LOADER, PAGES
from storeside.stack.settings import HOST, Stack
from storeside.transfer.base.errors import TransferInputError
from tests.attacks.forms import load, started, task_of
from tests.support import unique
from tests.transfers import Loading, environment

DESTINATIONS = [
    *("storeside.objects", "storeside.events", "storeside.queue_depths", "storeside.loads", "Storeside.objects"),
    *("storeside_staging.lock_x", "system.users", "information_schema.tables", "INFORMATION_SCHEMA.tables"),
    *("speech.manifest",),
]
DAGS = {"s3_to_clickhouse": "load", "s3_events_to_clickhouse": "load_events", "hsds_export": "load"}


@pytest.fixture
def user(stack: Stack, clickhouse: object) -> Callable[[str], Any]:
    """Log in as a user of Airflow's connections."""

    def login(name: str) -> Any:
        return clickhouse_connect.get_client(
            host=HOST, port=stack.ports["clickhouse_http"], username=name, password=server.passwords(stack)[name]
        )

    return login


@pytest.mark.parametrize("table", DESTINATIONS)
@pytest.mark.parametrize("dag", DAGS)
def test_a_form_names_no_table_that_authorises(loading: Loading, dag: str, table: str) -> None:
    """The attacker may trigger a DAG that loads a table, and calls the API, which a form's pattern does not stop."""
    loading.put({"a.csv": b"status\ndone\n"})
    task = task_of(dag, DAGS[dag], table=table, bucket=loading.bucket)
    with pytest.raises(TransferInputError, match="no load writes to"):
        load(task, loading)


def test_a_form_creates_no_database(loading: Loading, monkeypatch: pytest.MonkeyPatch) -> None:
    """The attacker may trigger a DAG that loads any table of the databases that exist."""
    monkeypatch.setenv(
        "AIRFLOW_VAR_STORESIDE_FORMS", '{"read": ["s3://*"], "tables": ["*.*"], "databases": ["data"]}'
    )
    loading.put({"a.csv": b"n\n1\n"})
    database = unique("absent").replace("-", "_")
    task = started("s3_to_clickhouse", "load", {"bucket": loading.bucket, "table": f"{database}.rows"})
    with pytest.raises(TransferInputError, match=f"the database '{database}' does not exist"):
        load(task, loading)
    assert loading.query(f"EXISTS DATABASE {database}") == [(0,)]


def test_the_command_line_names_none(loading: Loading) -> None:
    """The attacker may run the command with the loader's password."""
    command = [sys.executable, "-m", "storeside.transfer", f"s3://{loading.bucket}/", "storeside.objects"]
    done = subprocess.run(command, env=environment(loading.stack), capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "no load writes to storeside" in done.stderr


STATEMENTS = [
    "SELECT * FROM {t}",
    "INSERT INTO {t} SELECT * FROM {t}",
    "ALTER TABLE {t} DELETE WHERE 1",
    "ALTER TABLE {t} ADD COLUMN attack UInt8",
    "DELETE FROM {t} WHERE 1",
    "TRUNCATE TABLE {t}",
    "DROP TABLE {t}",
    "RENAME TABLE {t} TO data.attack",
    "EXCHANGE TABLES {t} AND data.attacker",
    "CREATE TABLE data.attack AS {t} ENGINE = Buffer('storeside', 'loads', 1, 0, 0, 1, 1, 1, 1)",
    "CREATE TABLE data.attack (n UInt8) ENGINE = Merge('storeside', '.*')",
    "CREATE MATERIALIZED VIEW data.attack TO {t} AS SELECT 'x' AS bucket FROM data.attacker",
    "CREATE TABLE storeside.attack (n UInt8) ENGINE = MergeTree ORDER BY n",
    "CREATE VIEW storeside.results AS SELECT 1",
    "SELECT * FROM cluster('storeside', {t})",
    "DROP DATABASE storeside",
]


@pytest.mark.parametrize("statement", STATEMENTS)
def test_the_loader_has_no_right_on_the_ledger(loading: Loading, user: Callable[[str], Any], statement: str) -> None:
    """The attacker makes the loader execute any statement."""
    migrate(loading.clickhouse)
    loading.clickhouse.command("CREATE TABLE IF NOT EXISTS data.attacker (n UInt8) ENGINE = MergeTree ORDER BY n")
    own = {"storeside.loads", "storeside.objects", "storeside.events", "storeside.queue_depths", "speech.manifest"}
    client = user(LOADER)
    for table in own:
        with pytest.raises(DatabaseError, match="Not enough privileges"):
            client.command(statement.format(t=table))


def test_the_ledger_writer_has_no_right_on_tables_of_users(loading: Loading, user: Callable[[str], Any]) -> None:
    """The attacker makes the ledger's user execute any statement."""
    loading.create("n UInt8")
    client = user(LEDGER)
    for statement in (
        "SELECT * FROM {t}", "INSERT INTO {t} VALUES (1)", "DROP TABLE {t}", "ALTER TABLE {t} DELETE WHERE 1",
        "CREATE TABLE data.attack (n UInt8) ENGINE = MergeTree ORDER BY n", "CREATE DATABASE attack",
        "SELECT * FROM s3(storeside_s3, filename = 'x/y.csv')",
    ):  # fmt: skip
        with pytest.raises(DatabaseError, match="Not enough privileges"):
            client.command(statement.format(t=loading.table))


def test_the_reader_of_the_pages_writes_nothing_and_reads_no_table_of_users(
    loading: Loading, user: Callable[[str], Any]
) -> None:
    """The attacker makes the pages execute any statement."""
    loading.create("n UInt8")
    client = user(PAGES)
    for table in {*tables()} & {*POLICIES}:
        client.query(f"SELECT * FROM {table} LIMIT 1")
        for statement in ("INSERT INTO {t} SELECT * FROM {t}", "TRUNCATE TABLE {t}", "DROP TABLE {t}"):
            with pytest.raises(DatabaseError, match=r"Not enough privileges|readonly mode"):
                client.command(statement.format(t=table))
    for statement in (
        f"SELECT * FROM {loading.table}", "SELECT * FROM system.query_log", "SELECT 1 SETTINGS readonly = 0",
        "SELECT * FROM s3(storeside_s3, filename = 'x/y.csv')", "CREATE TEMPORARY TABLE t (n UInt8)",
        "SET readonly = 0", "CREATE DATABASE attack",
    ):  # fmt: skip
        with pytest.raises(DatabaseError, match=r"Not enough privileges|readonly mode"):
            client.command(statement)
