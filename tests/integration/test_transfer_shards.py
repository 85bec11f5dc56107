"""Loads into Distributed tables of a cluster of two shards, with the users of Airflow's connections."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from airflow.sdk.execution_time.context import OutletEventAccessors
from clickhouse_connect.driver.exceptions import DatabaseError, OperationalError

from storeside.doctor import clickhouse as doctor
from storeside.doctor import connections
from storeside.doctor.examination import examine
from storeside.operators.operators.clickhouse import S3ToClickHouseOperator
from storeside.sql import roles
from storeside.stack.airflow import airflow
from storeside.stack.servers.clickhouse_users import LEDGER, LOADER
from storeside.stack.settings import HOST, Stack
from storeside.transfer.base.errors import StaleError, TransferError, TransferInputError, TransferTransientError
from storeside.transfer.rebuild import rebuild
from storeside.transfer.request.source import Source
from storeside.transfer.run.engine import Transfer
from storeside.transfer.state import lock
from storeside.transfer.state.loads import Planned
from storeside.transfer.tables.servers import Servers
from storeside.transfer.tables.table import existing
from tests.cluster import PASSWORD, SHARDS, Cluster, ShardedLoading, proxy_of
from tests.support import unique, until
from tests.transfers import environment, request_of

if TYPE_CHECKING:
    from types_boto3_s3 import S3Client

ROWS = 50


@pytest.fixture
def loading(cluster: Cluster, stack: Stack, s3_client: S3Client) -> ShardedLoading:
    return ShardedLoading(cluster, stack, s3_client)


def csv(number: int) -> bytes:
    return b"object,row\n" + b"\n".join(b"%d,%d" % (number, number * ROWS + n) for n in range(ROWS)) + b"\n"


def counts(loading: ShardedLoading) -> list[tuple[Any, ...]]:
    return loading.query(f"SELECT count(), uniqExact(row) FROM {loading.table}")


def before(client: Any, part: str, pause: Any) -> Any:
    """Call `pause` before the client's first statement that contains this text; return the client."""
    command, paused = client.command, []

    def paused_command(statement: str, *args: Any, **kwargs: Any) -> Any:
        if part in statement and not paused:
            paused.append(statement)
            pause()
        return command(statement, *args, **kwargs)

    client.command = paused_command
    return client


def slow_at(loading: ShardedLoading, part: str, pause: Any) -> Transfer:
    """Return a load that pauses before its first such statement on the second shard."""
    servers = loading.cluster.servers(LOADER, lambda client: before(client, part, pause))
    return loading.transfer(format="csv", loader="pull", servers=servers)


def test_rows_reach_their_shards_and_every_server_shows_all_of_them(loading: ShardedLoading) -> None:
    loading.put({f"{n}.csv": csv(n) for n in range(3)})
    loading.create("object UInt32, row UInt32")
    report = loading.load(format="csv", loader="pull", batch_objects=2)
    assert (report.loaded, report.rows) == (3, 3 * ROWS)
    assert loading.on_shards("groupUniqArray(row % 2)") == [[0], [1]]
    assert loading.load(format="csv", loader="pull").skipped == 3
    with proxy_of(loading.cluster.http) as port:
        through = loading.cluster.client(port=port)
        servers = {
            tuple(through.query(f"SELECT tcpPort(), count() FROM {loading.table}").first_row) for _ in range(4)
        }
    assert servers == {(port, 3 * ROWS) for port in loading.cluster.tcp}


@pytest.mark.parametrize("loader", ["pull", "push"])
def test_all_objects_are_published_together_in_a_table_with_new_columns(loading: ShardedLoading, loader: str) -> None:
    """Tables with views take rows by INSERT, on each shard."""
    loading.put({f"{n}.csv": csv(n) for n in range(3)} | {"more.csv": b"object,row,text\n7,1000,a\n7,1001,\n"})
    loading.create("object UInt32, row UInt32", key="cityHash64(object, `row`)")
    second = loading.cluster.client(1)
    second.command(
        f"CREATE MATERIALIZED VIEW {loading.table}_view ENGINE = Log AS SELECT row FROM {loading.table}_local"
    )
    assert loading.load("more", format="csv", loader=loader, on_drift="add").loaded == 1
    report = loading.load(format="csv", loader=loader, all_or_nothing=True, batch_objects=1)
    assert (report.loaded, report.failed) == (3, 0)
    assert counts(loading) == [(3 * ROWS + 2, 3 * ROWS + 2)]
    assert loading.query(f"SELECT count() FROM {loading.table} WHERE text = 'a'") == [(1,)]
    seen = second.query(f"SELECT count() FROM {loading.table}_view").first_row[0]
    assert [seen, seen > 0] == [loading.on_shards("count()")[1], True]
    columns = second.query(f"SELECT name FROM system.columns WHERE table = '{loading.table[5:]}'").result_rows
    assert ("text",) in columns


@pytest.mark.guarantee("load-once-shards")
def test_a_run_that_is_overtaken_between_two_shards_publishes_nothing_more(
    loading: ShardedLoading, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lock, "STALE_SECONDS", 0.5)
    loading.put({f"{n}.csv": csv(n) for n in range(3)})
    loading.create("object UInt32, row UInt32")
    seen: list[Any] = []

    def overtake() -> None:
        seen.append(loading.on_shards("count()"))
        loading.let_the_lock_age()
        seen.append(loading.load(format="csv", loader="pull").rows)

    slow = slow_at(loading, "ATTACH PARTITION", overtake)
    report = slow.run(slow.prepare())
    assert seen == [[75, 0], 3 * ROWS]
    assert counts(loading) == [(3 * ROWS, 3 * ROWS)]
    loading.check(report)


def test_a_late_statement_of_a_lost_connection_adds_no_row(loading: ShardedLoading) -> None:
    """The statement that divides the rows arrives twice: late, when its repetition has divided and counted them."""
    loading.put({"0.csv": csv(0)})
    loading.create("object UInt32, row UInt32")
    transfer = loading.transfer(format="csv", loader="pull")
    command, lost = transfer.client.command, []

    def losing(statement: str, *args: Any, **kwargs: Any) -> Any:
        if not lost and "_all` (" in statement:
            lost.append(lambda: command(statement, *args, **kwargs))
            raise OperationalError("the connection was lost")
        if "ATTACH PARTITION" in statement:
            lost[0]()
        return command(statement, *args, **kwargs)

    transfer.client.command = losing
    report = transfer.run(transfer.prepare())
    assert lost
    assert counts(loading) == [(ROWS, ROWS)]
    loading.check(report)
    assert loading.left(transfer) == []


def test_only_the_holder_of_the_lock_removes_rows_of_a_shard(loading: ShardedLoading) -> None:
    """The condition of a DELETE is read on the server of the shard, where the holder has put a mark."""
    loading.put({"0.csv": csv(0)})
    loading.create("object UInt32, row UInt32")
    loading.load(format="csv", loader="pull")
    transfer = loading.transfer(format="csv", loader="pull")
    destination = existing(transfer.client, loading.table, transfer.servers)
    ((load_id,),) = loading.query(f"SELECT DISTINCT _storeside_load FROM {loading.table}")
    objects = [Planned("0.csv", "", 0, 0.0, load_id)]

    def held(owner: str) -> Any:
        return lock.locked(transfer.client, destination.name, owner, "nothing", destination.others)

    with held("first") as first:
        pass
    with held("second") as second:
        with pytest.raises(StaleError, match="broke the lock"):
            destination.remove(objects, first)
        assert loading.on_shards("count()") == [25, 25]
        for other in destination.others:  # the first holder puts its mark late
            other.command(f"DROP TABLE storeside_staging.{second.name}")
            holder = json.dumps({"owner": "first", "staging": "nothing"})
            other.command(f"CREATE TABLE storeside_staging.{second.name} (x UInt8) ENGINE = Null COMMENT '{holder}'")
        with pytest.raises(StaleError, match="broke the lock"):
            destination.remove(objects, second)
        assert loading.on_shards("count()") == [0, 25]
    with held("third") as third:
        destination.remove(objects, third)
    assert loading.on_shards("count()") == [0, 0]


@pytest.mark.guarantee("load-once-shards")
def test_a_server_that_is_down_is_named_and_a_later_run_loads_each_row_once(
    loading: ShardedLoading, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second server is killed after the first shard has its rows."""
    monkeypatch.setattr(lock, "STALE_SECONDS", 0.5)
    monkeypatch.setattr("storeside.transfer.staging.staging.Staging.wait", lambda *_: None)
    loading.put({f"{n}.csv": csv(n) for n in range(3)})
    loading.create("object UInt32, row UInt32")
    cluster = loading.cluster
    slow = slow_at(loading, "ATTACH PARTITION", lambda: cluster.kill(1))
    prepared = slow.prepare()
    with pytest.raises(TransferTransientError, match=str(cluster.http[1])):
        slow.run(prepared)
    assert cluster.client().query(f"SELECT count() FROM {loading.table}_local").first_row[0] == 75
    down = loading.transfer(format="csv", loader="pull")
    with pytest.raises(TransferTransientError, match=f"server {cluster.name(1)} of the cluster"):
        down.prepare()
    cluster.start(1)
    cluster.ready()
    assert loading.load(format="csv", loader="pull").loaded == 3
    assert counts(loading) == [(3 * ROWS, 3 * ROWS)]


def test_a_cancelled_load_ends_on_all_servers(loading: ShardedLoading) -> None:
    """The second shard takes its rows slowly when the load is stopped."""
    loading.put({"large.csv": b"row\n" + b"\n".join(b"%d" % n for n in range(1_000_000)) + b"\n"})
    loading.create("row UInt32")
    loading.cluster.client(1).command(
        f"ALTER TABLE {loading.table}_local ADD COLUMN slow UInt8 MATERIALIZED sleepEachRow(0.000003)"
    )
    transfer = loading.transfer(format="csv", loader="pull")
    prepared = transfer.prepare()

    def statements() -> list[int]:
        query = f"SELECT count() FROM system.processes WHERE initial_query_id LIKE 'storeside-load_{transfer.id}%'"
        return [loading.cluster.client(number).query(query).first_row[0] for number in range(SHARDS)]

    def cancel() -> None:
        until(lambda: statements()[1], 30, "INSERT on the second shard")
        transfer.cancel()

    thread = threading.Thread(target=cancel)
    thread.start()
    with pytest.raises((TransferError, DatabaseError)):
        transfer.run(prepared)
    thread.join()
    until(lambda: statements() == [0, 0], 10, "end of the statements")
    assert loading.on_shards("count()") == [0, 0]


def test_a_lost_ledger_is_rebuilt(loading: ShardedLoading) -> None:
    loading.put({f"{n}.csv": csv(n) for n in range(3)})
    loading.create("object UInt32, row UInt32")
    loading.load(format="csv", loader="pull")
    loading.clickhouse.command(f"DELETE FROM storeside.loads WHERE bucket = '{loading.bucket}'")
    loader, tables = loading.cluster.client(user=LOADER), loading.cluster.client(user=LEDGER)
    source = Source(loading.bucket, collection="storeside_s3")
    found = rebuild(source, loading.table, loader, loading.s3, tables, loading.cluster.servers(LOADER))
    assert (found.recorded, found.rows, found.other_rows) == (3, 3 * ROWS, 0)
    assert loading.load(format="csv", loader="pull").skipped == 3


def test_a_table_that_no_load_can_fill_is_refused(loading: ShardedLoading) -> None:
    loading.put({"0.csv": csv(0)})
    client = loading.clickhouse
    loading.create("object UInt32, row UInt32", key="")
    with pytest.raises(TransferInputError, match="no sharding key"):
        loading.load(format="csv")
    local = ", ".join(f"{loading.table}_local".split("."))
    client.command(f"CREATE OR REPLACE TABLE {loading.table} (row UInt32) ENGINE = Distributed(shards, {local}, row)")
    transfer = loading.transfer(format="csv", servers=Servers())
    with pytest.raises(
        TransferInputError, match="no server of shard 2 is known: add its address to the extra `servers`"
    ):
        transfer.prepare()
    loading.cluster.client(1).command(f"DROP TABLE {loading.table}_local SYNC")
    with pytest.raises(TransferInputError, match=f"shard 2 of 'shards' has no table {loading.table}_local"):
        loading.load(format="csv")
    client.command(f"CREATE MATERIALIZED VIEW {loading.table}_view ENGINE = Log AS SELECT row FROM {loading.table}")
    with pytest.raises(TransferInputError, match="materialized views, which see no rows of loads"):
        loading.load(format="csv")


def test_a_load_into_a_table_of_one_server_needs_no_other_server(loading: ShardedLoading) -> None:
    loading.put({"0.csv": csv(0)})
    loading.clickhouse.command(
        f"CREATE TABLE {loading.table} (object UInt32, row UInt32) ENGINE = MergeTree ORDER BY ()"
    )

    def refuse(name: str) -> Any:
        raise OperationalError(f"no connection to {name}")

    transfer = loading.transfer(format="csv", loader="pull", servers=Servers(("127.0.0.1:1",), refuse))
    assert transfer.run(transfer.prepare()).rows == ROWS


def test_tasks_and_commands_name_the_servers_although_their_connection_leads_to_a_proxy(
    loading: ShardedLoading, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Through the proxy each statement would reach another server than the one before."""
    cluster = loading.cluster
    names = [cluster.name(number) for number in range(SHARDS)]
    loading.put({f"{n}.csv": csv(n) for n in range(3)})
    loading.create("object UInt32, row UInt32")
    with proxy_of(cluster.http) as port:
        for name, connection in airflow.connections(loading.stack).items():
            if name.startswith("CLICKHOUSE"):
                connection |= {"host": HOST, "port": port, "password": PASSWORD}
                connection["extra"] = {
                    **connection["extra"],
                    "servers": names if name == "CLICKHOUSE_DEFAULT" else "",
                }
            monkeypatch.setenv(f"AIRFLOW_CONN_{name}", json.dumps(connection))
        told: dict[str, Any] = {}
        instance = SimpleNamespace(
            dag_id="d", task_id="load", map_index=-1, xcom_push=told.__setitem__, xcom_pull=lambda key, **_: told[key]
        )
        run = SimpleNamespace(dag_id="d", run_id=unique("run"))
        context: Any = {"dag_run": run, "ti": instance, "outlet_events": OutletEventAccessors()}
        task = S3ToClickHouseOperator(task_id="load", bucket=loading.bucket, table=loading.table, format="csv")
        assert task.execute(context)["loaded"] == 3
    assert counts(loading) == [(3 * ROWS, 3 * ROWS)]
    command = [sys.executable, "-m", "storeside.transfer", f"s3://{loading.bucket}/", loading.table, "--json"]
    variables = {"CLICKHOUSE_SERVERS": ",".join(names), "CLICKHOUSE_PASSWORD": PASSWORD, "CLICKHOUSE_PORT": "1"}
    found = subprocess.run(command, env=environment(loading.stack) | variables, capture_output=True, check=True)
    assert json.loads(found.stdout)["skipped"] == 3


def test_a_new_table_is_created_on_all_shards(loading: ShardedLoading) -> None:
    """The user needs the right to create Distributed tables, which the loading user does not have."""
    loading.put({f"{n}.csv": csv(n) for n in range(3)})
    options = {"cluster": "shards", "sharding_key": "row", "order_by": "row"}
    with pytest.raises(TransferInputError, match="TABLE ENGINE ON Distributed"):
        loading.load(format="csv", **options)
    request = request_of(Source(loading.bucket, collection="storeside_s3"), loading.table, "csv", **options)
    transfer = Transfer(request, loading.client(), loading.s3, unique("run"), servers=loading.servers())
    assert transfer.run(transfer.prepare()).rows == 3 * ROWS
    assert sorted(loading.on_shards("groupUniqArray(row % 2)")) == [[0], [1]]
    assert loading.cluster.client(1).query(f"SELECT count() FROM {loading.table}").first_row[0] == 3 * ROWS
    wrong = request_of(Source(loading.bucket), f"{loading.table}_2", "csv", **{**options, "cluster": "none"})
    transfer = Transfer(wrong, loading.client(), loading.s3, unique("run"), servers=loading.servers())
    with pytest.raises(TransferInputError, match="no cluster 'none'"):
        transfer.prepare()


def test_the_doctor_finds_several_servers_behind_an_address(cluster: Cluster) -> None:
    assert doctor.one_server(cluster.client).state == "ok"
    with proxy_of(cluster.http) as port:
        finding = doctor.one_server(lambda: cluster.client(port=port))
    assert (finding.state, "lead to 2 servers" in finding.found) == ("failed", True)
    extra = {"servers": [cluster.name(0), cluster.name(1)], roles.LEDGER: "clickhouse_ledger"}
    given = {"conn_type": "clickhouse", "host": HOST, "port": 1, "password": PASSWORD}
    variables = {
        "AIRFLOW_CONN_CLICKHOUSE_DEFAULT": json.dumps({**given, "login": LOADER, "extra": extra}),
        "AIRFLOW_CONN_CLICKHOUSE_LEDGER": json.dumps({**given, "login": LEDGER}),
    }
    systems = connections.systems(connections.found(variables, {"clickhouse": "clickhouse_default"}), "none")
    findings = {finding.check: finding.state for finding in examine(systems)}
    assert findings["one server"] == findings["login"] == findings["login of ledger"] == "ok"
