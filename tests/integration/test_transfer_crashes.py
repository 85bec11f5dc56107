"""A transfer that is killed at any point, and repeated: no row is lost or duplicated."""

from __future__ import annotations

import asyncio
import gzip
import io
import logging
import os
import random
import secrets
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from threading import Event
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from airflow.sdk.exceptions import TaskDeferralTimeout, TaskDeferred
from clickhouse_connect.driver.exceptions import OperationalError
from pyarrow.csv import read_csv

from storeside.operators.bases import deferring
from storeside.operators.operators.clickhouse import S3ToClickHouseOperator
from storeside.sql.migrate import migrate
from storeside.stack.airflow import airflow
from storeside.stack.settings import CHECKOUT
from storeside.transfer.base.errors import FailureKind, LeftError, TransferError, TransferTransientError
from storeside.transfer.base.staging_tables import BROKEN, STAGING
from storeside.transfer.request.column_options import Columns
from storeside.transfer.request.request import Request
from storeside.transfer.request.source import Source
from storeside.transfer.request.table_keys import Expression
from storeside.transfer.run.engine import Transfer
from storeside.transfer.state import lock
from tests.shards import tar
from tests.support import unique, until
from tests.transfers import Loading, parquet, request_of
from tests.unit.test_transfer_archives import zipped

if TYPE_CHECKING:
    pass

ROWS = 50
# Tests of both kinds of destination, of which `make test` runs the first.
ANYWHERE = pytest.mark.parametrize(
    "anywhere", ["table", pytest.param("shards", marks=pytest.mark.chaos)], indirect=True
)


def csv(number: int) -> bytes:
    lines = (f"{number},{number * ROWS + n},value {number}-{n}" for n in range(ROWS))
    return ("object,row,text\n" + "\n".join(lines) + "\n").encode()


def packed_csv(number: int) -> bytes:
    """Return an archive with the rows of `csv` in two members."""
    header, *lines = csv(number).splitlines(keepends=True)
    halves = (lines[: ROWS // 2], lines[ROWS // 2 :])
    return gzip.compress(tar((f"{n}.csv", header + b"".join(half)) for n, half in enumerate(halves)))


def packed_parquet(number: int) -> bytes:
    """Return an archive with the rows of `csv` in two members."""
    table = read_csv(io.BytesIO(csv(number)))
    halves = (table.slice(0, ROWS // 2), table.slice(ROWS // 2))
    return zipped([(f"{n}.parquet", parquet(half)) for n, half in enumerate(halves)])


class Killed(BaseException):
    """The process is gone."""


def mortal(client: Any, left: list[int]) -> Any:
    """Return a client of a process that is killed after `left` statements of all its clients: others do nothing."""

    def limited(call: Callable[..., Any]) -> Callable[..., Any]:
        def send(*args: Any, **kwargs: Any) -> Any:
            left[0] -= 1
            if left[0] < 0:
                raise Killed
            return call(*args, **kwargs)

        return send

    for name in ("command", "query", "insert", "raw_insert"):
        setattr(client, name, limited(getattr(client, name)))
    return client


def dies(loading: Loading, request: Request, reader: Any, survived: int) -> bool:
    """Load in a process that is killed after `survived` statements; return False if it needed no more.

    After a kill, another run loads the same objects first, which must not wait for the dead one or trust it. Then the
    same run loads again.
    """
    run = unique("run")
    try:
        run_mortal(loading, request, reader, run, survived)
    except Killed:
        for again in (unique("run"), run):
            transfer = Transfer(request, loading.client(), reader, again, servers=loading.servers())
            transfer.run(transfer.prepare())
        return True
    return False


# Rows of the object 1 are filtered, and the rows 0, 10, … of the others.
CHOSEN = Columns(
    rename={"object": "number"}, cast={"row": "UInt32"}, mask={"text": "sha256"},
    compute={"tenth": Expression("intDiv(row, 10)")}, where=Expression("object != 1 AND row % 10 != 0"),
)  # fmt: skip
CHAOS = [pytest.mark.chaos, pytest.mark.timeout(1800)]


def run_mortal(loading: Loading, request: Request, reader: Any, run: str, survived: int) -> None:
    """Load in a process that is killed after `survived` statements. Raises Killed."""
    left = [survived]
    client, servers = mortal(loading.client(), left), loading.servers(lambda client: mortal(client, left))
    transfer = Transfer(request, client, reader, run, servers=servers)
    transfer.run(transfer.prepare())


@pytest.mark.guarantee("load-once")
@pytest.mark.parametrize(
    ("anywhere", "step", "chosen"),
    [
        ("table", 8, None),
        ("table", 20, CHOSEN),
        ("shards", 24, None),
        pytest.param("table", 4, None, marks=pytest.mark.exhaustive),
        pytest.param("shards", 16, None, marks=pytest.mark.exhaustive),
        pytest.param("table", 1, None, marks=CHAOS),
        pytest.param("table", 1, CHOSEN, marks=CHAOS),
        pytest.param("shards", 1, None, marks=CHAOS),
        pytest.param("shards", 4, CHOSEN, marks=CHAOS),
    ],
    indirect=["anywhere"],
)
def test_a_crash_after_any_statement(
    anywhere: Loading, monkeypatch: pytest.MonkeyPatch, step: int, chosen: Columns | None
) -> None:
    """The same run is killed after some statements, then after more, and each time repeated."""
    loading = anywhere
    monkeypatch.setattr(lock, "STALE_SECONDS", 0.5)
    loading.put({f"{n}.csv": csv(n) for n in range(3)})
    loading.put({"broken.csv": b"object,row,text\n1,2,three,four\n"})
    number = "number" if chosen else "object"
    loading.create(f"{number} UInt32, row UInt32, text String{', tenth UInt32' if chosen else ''}")
    request = _request(loading, chosen=chosen or Columns())
    kept = [n for n in range(3) if not (chosen and n == 1)]
    rows = ROWS - ROWS // 10 if chosen else ROWS
    crashes = 0
    for survived in range(5, 500, step):
        loading.truncate()
        if crashes:
            loading.clickhouse.command(f"DELETE FROM storeside.loads WHERE bucket = '{loading.bucket}'")
        if not dies(loading, request, loading.s3, survived):
            break
        crashes += 1
        counts = loading.query(f"SELECT {number}, count(), uniqExact(row) FROM {loading.table} GROUP BY 1 ORDER BY 1")
        assert counts == [(n, rows, rows) for n in kept], f"killed after {survived} statements"
    assert crashes > 30 / step
    states = loading.query(
        "SELECT key, toString(state), rows, filtered FROM storeside.loads FINAL WHERE bucket = {bucket:String}"
        " ORDER BY key",
        bucket=loading.bucket,
    )
    assert states == [
        *((f"{n}.csv", "loaded", *((rows, ROWS - rows) if n in kept else (0, ROWS))) for n in range(3)),
        ("broken.csv", "failed", 0, 0),
    ]


@pytest.mark.parametrize(("anywhere", "step"), [("table", 5), ("shards", 20)], indirect=["anywhere"])
def test_a_crash_while_versions_are_replaced(anywhere: Loading, monkeypatch: pytest.MonkeyPatch, step: int) -> None:
    """Wherever the run is killed, the next one leaves the rows of each object's last version, once."""
    loading = anywhere
    monkeypatch.setattr(lock, "STALE_SECONDS", 0.5)
    loading.create("object UInt32, row UInt32, text String")
    version = crashes = 0
    for survived in range(5, 500, step):
        version += 1
        loading.put({f"{n}.csv": csv(100 * version + n) for n in range(3)})
        try:
            run_mortal(loading, _replacing(loading), loading.s3, unique("run"), survived)
        except Killed:
            crashes += 1
        else:
            break
        transfer = Transfer(
            _replacing(loading), loading.client(), loading.s3, unique("run"), servers=loading.servers()
        )
        transfer.run(transfer.prepare())
        counts = loading.query(f"SELECT object, count(), uniqExact(row) FROM {loading.table} GROUP BY 1 ORDER BY 1")
        assert counts == [(100 * version + n, ROWS, ROWS) for n in range(3)], f"killed after {survived} statements"
    assert crashes > 25 / step
    states = loading.query(
        "SELECT toString(state), count() FROM storeside.loads FINAL WHERE bucket = {bucket:String}"
        " GROUP BY 1 ORDER BY 1",
        bucket=loading.bucket,
    )
    assert states == [("loaded", 3), ("replaced", 3 * (version - 1))]


def _replacing(loading: Loading) -> Request:
    return replace(_request(loading), on_overwrite="replace")


def _request(loading: Loading, **options: Any) -> Request:
    source = Source(loading.bucket, "", collection="storeside_s3")
    return request_of(source, loading.table, "csv", loader="pull", batch_objects=2, parallel=1, **options)


@pytest.mark.guarantee("load-two-runs")
@ANYWHERE
def test_two_runs_at_once_load_each_object_once(anywhere: Loading) -> None:
    loading = anywhere
    loading.put({f"{n:03}.csv": csv(n) for n in range(60)})
    loading.create("object UInt32, row UInt32, text String")
    transfers = [
        loading.transfer("", format="csv", loader=loader, batch_objects=7) for loader in ("pull", "push", "pull")
    ]
    prepared = [transfer.prepare() for transfer in transfers]
    assert [found.planned for found in prepared] == [60, 60, 60]
    with ThreadPoolExecutor(3) as pool:
        reports = list(pool.map(lambda pair: pair[0].run(pair[1]), zip(transfers, prepared, strict=True)))
    assert all(report.failed == 0 for report in reports)
    assert loading.query(f"SELECT count(), uniqExact(row) FROM {loading.table}") == [(60 * ROWS, 60 * ROWS)]


@pytest.mark.guarantee("load-fenced")
@ANYWHERE
def test_a_slow_holder_of_the_lock_cannot_publish_any_more(
    anywhere: Loading, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that stops while it publishes is overtaken; when it continues, its rows are not there twice."""
    loading = anywhere
    monkeypatch.setattr(lock, "STALE_SECONDS", 0.5)
    loading.put({f"{n}.csv": csv(n) for n in range(3)})
    loading.create("object UInt32, row UInt32, text String")
    slow = loading.transfer("", format="csv", loader="pull")
    command = slow.client.command
    overtaken: list[int] = []

    def standing_still(statement: str, *args: Any, **kwargs: Any) -> Any:
        if "ATTACH PARTITION" in statement and not overtaken:
            loading.let_the_lock_age()
            overtaken.append(loading.load("", format="csv", loader="pull").rows)
        return command(statement, *args, **kwargs)

    slow.client.command = standing_still
    report = slow.run(slow.prepare())
    assert overtaken == [3 * ROWS]
    assert report.failed == 0
    assert loading.query(f"SELECT count(), uniqExact(row) FROM {loading.table}") == [(3 * ROWS, 3 * ROWS)]


def test_what_dead_runs_have_left_is_swept_when_it_is_old(loading: Loading) -> None:
    client = loading.clickhouse
    client.command(f"CREATE DATABASE IF NOT EXISTS {STAGING}")

    def told(name: str, what: str) -> Any:
        return client.query(f"SELECT {what} FROM system.tables WHERE name = {{n:String}}", parameters={"n": name})

    def table(label: str, hours: float, broken: bool = False) -> str:
        """Make a table `hours` old; a lock may have been broken just now, or equally long ago."""
        name = f"{label}_{secrets.token_hex({'facts': 8, 'lock': 12}[label])}"
        client.command(f"CREATE TABLE {STAGING}.`{name}` (x UInt8) ENGINE = Null")
        file, uuid = told(name, "metadata_path, toString(uuid)").first_row
        age(file, hours)
        if broken:
            lock._break(client, name, uuid, unique("staging"))
            name = BROKEN + uuid
        return name

    def age(file: str, hours: float) -> None:
        os.utime(loading.stack.state / "clickhouse" / "data" / file, (time.time() - hours * 3600,) * 2)

    stays = table("facts", 167), table("lock", 30, broken=True), table("lock", 30, broken=True)
    age(told(stays[-1], "metadata_path").first_row[0], 0.9)
    goes = table("facts", 169), table("lock", 0, broken=True)
    age(told(goes[-1], "metadata_path").first_row[0], 1.1)
    loading.put({"a.csv": b"n\n1\n"})
    assert loading.load(format="csv").loaded == 1
    assert [len(told(name, "name").result_rows) for name in (*stays, *goes)] == [1, 1, 1, 0, 0]
    for name in stays:
        client.command(f"DROP TABLE {STAGING}.`{name}`")


def test_who_was_overtaken_leaves_the_lock_of_the_next_alone(
    loading: Loading, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lock, "STALE_SECONDS", 1.5)
    migrate(loading.clickhouse)
    order: list[str] = []

    third_tried = Event()

    def hold(name: str, client: Any, until_tried: Event | None = None) -> None:
        with lock.locked(client, loading.table, name, f"staging_{name}"):
            order.append(f"{name} in")
            assert until_tried is None or until_tried.wait(60)
            order.append(f"{name} out")

    third_client = loading.client()
    query = third_client.query

    def looks(statement: str, *args: Any, **kwargs: Any) -> Any:
        """The third one has met the lock when it asks for its holder."""
        found = query(statement, *args, **kwargs)
        third_tried.set()
        return found

    third_client.query = looks

    with ThreadPoolExecutor(2) as pool:
        with lock.locked(loading.client(), loading.table, "slow", "staging_slow"):
            loading.let_the_lock_age()
            second = pool.submit(hold, "second", loading.client(), third_tried)
            until(lambda: order, 30, "second holder")
        third = pool.submit(hold, "third", third_client)
        second.result()
        third.result()
    assert order == ["second in", "second out", "third in", "third out"]


def test_an_insert_whose_connection_was_lost_is_waited_for(loading: Loading) -> None:
    """A table with a view is filled by an INSERT, which continues without its client."""
    loading.put({f"{n}.csv": csv(n) for n in range(3)})
    loading.create("object UInt32, row UInt32, text String")
    loading.clickhouse.command(
        f"CREATE MATERIALIZED VIEW {loading.table}_slow ENGINE = MergeTree ORDER BY tuple()"
        f" AS SELECT row, sleepEachRow(0.015) AS slow FROM {loading.table}"
    )
    transfer = loading.transfer("", format="csv", loader="pull")
    command, lost = transfer.client.command, []

    def losing(statement: str, *args: Any, **kwargs: Any) -> Any:
        if not statement.startswith("INSERT INTO") or "storeside_staging" not in statement or lost:
            return command(statement, *args, **kwargs)
        sender = threading.Thread(target=command, args=(statement, *args), kwargs=kwargs)
        sender.start()
        running = f"SELECT count() FROM system.processes WHERE query_id = '{kwargs['settings']['query_id']}'"
        # On a busy machine the statement may end between two looks.
        seen = lambda: loading.query(running) == [(1,)] or not sender.is_alive()  # noqa: E731 - shorter
        lost.append(until(seen, 20, "INSERT", interval=0.02))
        raise OperationalError("the connection was lost")

    transfer.client.command = losing
    assert transfer.run(transfer.prepare()).loaded == 3
    assert lost
    assert loading.query(f"SELECT count(), uniqExact(row) FROM {loading.table}") == [(3 * ROWS, 3 * ROWS)]


def test_a_failure_does_not_take_the_place_of_a_load_of_another_run(loading: Loading) -> None:
    loading.put({"0.csv": csv(0)})
    loading.create("object UInt32, row UInt32, text String")
    slow = loading.transfer("", format="csv", loader="pull")
    slow.prepare()
    (planned,) = slow.plan.objects(0)
    assert loading.load("", format="csv", loader="pull").loaded == 1
    slow.loads.record_failed([(planned, FailureKind.OBJECT, "403")])
    assert slow.loads.states([planned]) == {planned.load_id: "loaded"}


def test_a_listing_that_arrives_twice_is_refused(loading: Loading) -> None:
    loading.put({"0.csv": csv(0)})
    transfer = loading.transfer("", format="csv", loader="pull", overlap_seconds=60.0)  # so that it is stored
    insert = transfer.loads.client.insert

    def twice(table: str, *args: Any, **kwargs: Any) -> Any:
        if table == "load_listings":
            insert(table, *args, **kwargs)
        return insert(table, *args, **kwargs)

    transfer.loads.client.insert = twice
    with pytest.raises(TransferTransientError, match="stored 2 of 1 listed objects"):
        transfer.prepare()


@ANYWHERE
def test_a_run_goes_on_with_a_query_that_outlived_its_process(
    anywhere: Loading, caplog: pytest.LogCaptureFixture
) -> None:
    loading = anywhere
    caplog.set_level(logging.INFO)
    rows = 2_000_000
    loading.put({"large.csv": b"n\n" + b"\n".join(b"%d" % n for n in range(rows)) + b"\n"})
    loading.create("n UInt32, slow UInt8 MATERIALIZED sleepEachRow(0.000001)")
    run = unique("run")
    first = loading.transfer("", format="csv", loader="pull", run_id=run)
    prepared = first.prepare()

    def leave_when_it_reads() -> None:
        until(lambda: _reading(loading, first), 20, "query of the load")
        first.leave()

    threading.Thread(target=leave_when_it_reads).start()
    with pytest.raises(LeftError):
        first.run(prepared)
    assert _reading(loading, first)
    second = loading.transfer("", format="csv", loader="pull", run_id=run)
    assert second.run(prepared).rows == rows
    assert "waiting for the statement of an earlier process" in caplog.text
    assert loading.query(f"SELECT count(), uniqExact(n) FROM {loading.table}") == [(rows, rows)]


def _reading(loading: Loading, transfer: Transfer) -> bool:
    return bool(
        loading.query(
            "SELECT 1 FROM system.processes WHERE startsWith(query_id, {prefix:String})",
            prefix=f"storeside-load_{transfer.id}_",
        )
    )


@ANYWHERE
def test_a_cancelled_transfer_kills_its_queries_and_leaves_nothing(anywhere: Loading) -> None:
    loading = anywhere
    loading.put({"large.csv": b"n\n" + b"\n".join(b"%d" % n for n in range(2_000_000)) + b"\n"})
    loading.create("n UInt32, slow UInt8 MATERIALIZED sleepEachRow(0.000001)")
    transfer = loading.transfer("", format="csv", loader="pull")
    prepared = transfer.prepare()

    def cancel() -> None:
        until(lambda: _reading(loading, transfer), 20, "query of the load")
        transfer.cancel()

    threading.Thread(target=cancel).start()
    with pytest.raises(TransferError):
        transfer.run(prepared)
    until(lambda: not _reading(loading, transfer), 20, "end of the query")
    assert loading.query(f"SELECT count() FROM {loading.table}") == [(0,)]


@pytest.mark.guarantee("time-limit")
def test_a_load_whose_time_is_over_leaves_no_query(loading: Loading, monkeypatch: pytest.MonkeyPatch) -> None:
    """When the time is over, the triggerer only ends the trigger: the task that wakes up ends the queries."""
    for name, value in airflow.environment(loading.stack).items():
        if name.startswith("AIRFLOW_CONN_"):
            monkeypatch.setenv(name, value)
    loading.put({"large.csv": b"n\n" + b"\n".join(b"%d" % n for n in range(4_000_000)) + b"\n"})
    loading.create("n UInt32, slow UInt8 MATERIALIZED sleepEachRow(0.0000025)")  # 10 s; a block may take 3 s
    told: dict[str, Any] = {}
    instance = SimpleNamespace(
        dag_id="d", task_id="load", map_index=-1, xcom_push=told.__setitem__, xcom_pull=lambda key, **_: told[key]
    )
    context: Any = {"dag_run": SimpleNamespace(dag_id="d", run_id=unique("run")), "ti": instance}
    monkeypatch.setattr(deferring, "get_current_context", lambda: context)
    monkeypatch.setattr(deferring, "TRIGGERER_SECONDS", 0.0)  # here the triggerer has already stopped waiting
    task = S3ToClickHouseOperator(
        task_id="load", bucket=loading.bucket, table=loading.table, format="csv", loader="pull",
        execution_timeout=timedelta(minutes=1),
    )  # fmt: skip
    with pytest.raises(TaskDeferred) as deferred:
        task.execute(context)
    trigger: Any = deferred.value.trigger
    transfer = asyncio.run(trigger.engine())

    def pull() -> None:
        with suppress(LeftError):
            trigger.work(transfer)

    triggerer = threading.Thread(target=pull)
    triggerer.start()
    until(lambda: _reading(loading, transfer), 20, "query of the load")
    transfer.leave()
    triggerer.join(20)
    assert _reading(loading, transfer), "the query ends by itself"
    with pytest.raises(TaskDeferralTimeout):
        task.resume_execution("__fail__", {"error": "Trigger timeout"}, context)
    until(lambda: not _reading(loading, transfer), 20, "end of the query")
    assert loading.query(f"SELECT count() FROM {loading.table}") == [(0,)]


@pytest.mark.guarantee("load-once")
@pytest.mark.parametrize(
    ("anywhere", "objects", "kills", "form"),
    [
        ("table", 60, 3, "csv"),
        ("table", 40, 2, "tgz"),
        pytest.param("table", 200, 6, "csv", marks=pytest.mark.exhaustive),
        pytest.param("table", 60, 4, "zip", marks=pytest.mark.exhaustive),
        pytest.param("table", 2000, 50, "csv", marks=[pytest.mark.chaos, pytest.mark.timeout(1800)]),
        pytest.param("table", 400, 20, "zip", marks=[pytest.mark.chaos, pytest.mark.timeout(1800)]),
        pytest.param("shards", 400, 20, "csv", marks=[pytest.mark.chaos, pytest.mark.timeout(1800)]),
    ],
    indirect=["anywhere"],
)
def test_kill_9_of_worker_and_engine_at_random(anywhere: Loading, objects: int, kills: int, form: str) -> None:
    """Archives are of two members: of CSV (tgz), or of Parquet (zip), each of which is an INSERT."""
    loading = anywhere
    make = {"csv": csv, "tgz": packed_csv, "zip": packed_parquet}[form]
    loading.put({f"{n:05}.{form}": make(n) for n in range(objects)})
    loading.create("object UInt32, row UInt32, text String", "row")
    chance = random.Random(7)  # noqa: S311
    command = [
        *(sys.executable, "-m", "storeside.transfer", f"s3://{loading.bucket}/", loading.table),
        *("--collection", "storeside_s3", "--run-id", unique("run")),
        *("--format", "parquet" if form == "zip" else "csv"),
        *("--set", f"batches.objects={max(5, objects // 100)}"),
    ]
    killed = 0
    deadline = time.monotonic() + 1500
    while True:
        assert time.monotonic() < deadline
        loader = ("pull", "push")[killed % 2]
        worker = subprocess.Popen([*command, "--set", f"loader={loader}"], cwd=CHECKOUT, env=loading.variables())
        if killed < kills:
            time.sleep(chance.uniform(1.5, 4))  # the kill comes at a random time; Python's start takes a second of it
            killed += 1
            if chance.random() < 0.3:
                loading.kill_engine(killed)
            else:
                worker.kill()
        if worker.wait(timeout=300) == 0 and killed >= kills:
            break
    assert loading.query(f"SELECT count(), uniqExact(row), sum(row) FROM {loading.table}") == [
        (objects * ROWS, objects * ROWS, sum(range(objects * ROWS)))
    ]
    assert loading.query(
        "SELECT count(), sum(rows) FROM storeside.loads FINAL WHERE bucket = {bucket:String} AND state = 'loaded'",
        bucket=loading.bucket,
    ) == [(objects, objects * ROWS)]
