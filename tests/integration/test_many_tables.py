"""One run loads each object into the table that its key names: exactly once, and no table sinks another one."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import threading
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pytest
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException

from storeside.events.errors import EventInputError
from storeside.events.load import EventLoad
from storeside.operators import S3ToClickHouseOperator
from storeside.operators.shared import run_key
from storeside.stack import demo
from storeside.stack.servers.clickhouse_users import LEDGER, LOADER
from storeside.stack.settings import CHECKOUT
from storeside.transfer.base.errors import TransferInputError, TransferTransientError
from storeside.transfer.many import listing
from storeside.transfer.many.tables_transfer import TablesTransfer
from storeside.transfer.request.source import Source
from storeside.transfer.run.engine import Transfer
from storeside.transfer.run.preview import preview
from tests.support import task_context, unique, until
from tests.transfers import environment, jsonl, request_of

if TYPE_CHECKING:
    from storeside.transfer.many.report import TableOutcome, TablesReport
    from storeside.transfer.request.request import Request


class Tables:
    """A bucket whose keys name tables; the tables of this test have a common beginning."""

    def __init__(self, stack: Any, clickhouse: Any, s3: Any) -> None:
        self.stack, self.clickhouse, self.s3 = stack, clickhouse, s3
        self.bucket = unique("many")
        self.start = unique("many").replace("-", "_")
        self.table = f"data.{self.start}_{{table}}"
        self.outcomes: dict[str, TableOutcome] = {}
        s3.create_bucket(Bucket=self.bucket)

    def put(self, objects: Mapping[str, bytes]) -> None:
        for key, content in objects.items():
            self.s3.put_object(Bucket=self.bucket, Key=key, Body=content)

    def request(self, keys: str = "raw/{table}/", **options: Any) -> Request:
        return request_of(Source(self.bucket, keys, collection="storeside_s3"), self.table, **options)

    def transfer(
        self, keys: str = "raw/{table}/", run: str = "", allowed: Callable[[str], str] = lambda table: "",
        **options: Any,
    ) -> TablesTransfer:  # fmt: skip
        client, ledger = (demo.clickhouse_client(self.stack, user) for user in (LOADER, LEDGER))
        return TablesTransfer(
            self.request(keys, **options), client, self.s3, run or uuid.uuid4().hex, ledger, allowed=allowed
        )

    def load(self, keys: str = "raw/{table}/", **options: Any) -> TablesReport:
        self.outcomes = {}
        report = self.transfer(keys, **options).run(lambda o: self.outcomes.__setitem__(o.name, o))
        left = (
            "SELECT count() FROM storeside.load_listings WHERE key IN (SELECT key FROM storeside.loads WHERE bucket"
        )
        assert self.rows(f"{left} = '{self.bucket}')") == [(0,)]
        return report

    def rows(self, statement: str) -> list[tuple[Any, ...]]:
        return [tuple(row) for row in self.clickhouse.query(statement).result_rows]

    def names(self) -> list[str]:
        """Return the names of the tables that exist, without their beginning."""
        found = self.rows(
            f"SELECT name FROM system.tables WHERE database = 'data' AND startsWith(name, '{self.start}') ORDER BY 1"
        )
        return [name.removeprefix(f"{self.start}_") for (name,) in found]

    def ids(self) -> dict[str, list[int]]:
        """Return the sorted values of the column id, by table."""
        return {
            name: [n for (n,) in self.rows(f"SELECT id FROM data.`{self.start}_{name}` ORDER BY id")]
            for name in self.names()
        }

    def command(self, *options: str) -> list[str]:
        place = (f"s3://{self.bucket}/raw/{{table}}/", self.table, "--collection", "storeside_s3", *options)
        return [sys.executable, "-m", "storeside.transfer", *place]

    def run(self, *options: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.command(*options), env=environment(self.stack), cwd=CHECKOUT, check=False, capture_output=True,
            text=True, timeout=120,
        )  # fmt: skip


@pytest.fixture
def tables(stack: Any, clickhouse: Any, s3_client: Any) -> Tables:
    return Tables(stack, clickhouse, s3_client)


def some(names: Sequence[str], first: int = 0) -> dict[str, bytes]:
    return {f"raw/{name}/{first}.jsonl": jsonl([{"id": n} for n in range(first, first + 3)]) for name in names}


@pytest.mark.guarantee("load-tables")
def test_a_bad_table_and_names_that_no_table_can_have_leave_the_others_alone(tables: Tables) -> None:
    hostile = ["a.b", "x`; DROP TABLE data.y", "a b", "", "é" * 60, "../up", "t'--"]
    tables.put({
        **some(["trips", "taxis", "Größe", "with-dash", *hostile]),
        "raw/bad/0.jsonl": b'{"id": 1}\n{"id": ',
        "raw/mixed/0.jsonl": jsonl([{"id": 7}]),
        "raw/mixed/1.jsonl": b'{"id": 8}\n{"id": ',
        "raw/trips/_SUCCESS": b"",
        "other/trips/0.jsonl": jsonl([{"id": 99}]),
    })  # fmt: skip
    report = tables.load()
    good = {"trips": [0, 1, 2], "taxis": [0, 1, 2], "Größe": [0, 1, 2], "with-dash": [0, 1, 2], "mixed": [7]}
    assert {name: ids for name, ids in tables.ids().items() if ids} == good
    refused = {*hostile, "..", "bad", "mixed"} - {"../up"}
    assert {name for name, outcome in tables.outcomes.items() if outcome.reason} == refused
    assert (report.changed, report.loaded, report.rows) == (5, 5, 13)
    assert report.failed_tables == len(refused)
    assert not report.again
    reasons = dict(report.failures)
    assert "letters, digits" in reasons["a.b"]
    assert "raw/mixed/1.jsonl" in reasons[f"data.{tables.start}_mixed"]
    assert "raw/bad/0.jsonl" in tables.outcomes["bad"].reason


def test_a_second_run_loads_only_what_is_new(tables: Tables) -> None:
    tables.put(some([f"t{n}" for n in range(40)]))
    assert tables.load().rows == 120
    began = [one for one in tables.outcomes.values() if one.report]
    assert len(began) == 40
    again = tables.load()
    assert (again.unchanged, again.skipped, again.loaded, again.failed_tables) == (40, 40, 0, 0)
    assert not [one for one in tables.outcomes.values() if one.report]
    tables.put({**some(["t7"], 100), **some(["new"])})
    third = tables.load()
    assert (third.tables, third.unchanged, third.changed, third.rows) == (41, 39, 2, 6)
    assert tables.ids()["t7"] == [0, 1, 2, 100, 101, 102]
    tables.clickhouse.command(f"DROP TABLE data.{tables.start}_t3 SYNC")
    fourth = tables.load()
    assert [table for table, _ in fourth.failures] == [f"data.{tables.start}_t3"]
    assert "does not exist, but storeside.loads has 1 objects" in fourth.failures[0][1]


def test_tables_with_many_objects_and_patterns_with_the_name_anywhere(
    tables: Tables, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listing, "_FEW", 3)
    monkeypatch.setattr(listing, "_TABLES", 2)
    monkeypatch.setattr(listing, "_NAMES", 2)
    names = ["aa", "bb", "cc", "dd", "a_a"]
    tables.put({
        f"in/{day}/{name}_{n}.jsonl": jsonl([{"id": 10 * day + n}])
        for day in (1, 2) for name in names for n in range(3 if name == "cc" else 1)
    })  # fmt: skip
    report = tables.load("in/{1,2}/{table}_*.jsonl")
    assert (report.tables, report.changed, report.loaded) == (5, 5, 14)
    assert tables.ids() == {**{name: [10, 20] for name in names}, "cc": [10, 11, 12, 20, 21, 22]}
    assert tables.load("in/{1,2}/{table}_*.jsonl").loaded == 0


@pytest.mark.guarantee("load-tables")
def test_a_run_that_is_killed_and_repeated_loads_each_row_once(tables: Tables) -> None:
    names = [f"k{n:02}" for n in range(30)]
    tables.put(some(names))
    loaded = f"SELECT count() FROM storeside.loads FINAL WHERE bucket = '{tables.bucket}' AND state = 'loaded'"
    for least in (1, 8, 16):
        running = subprocess.Popen(
            tables.command("--run-id", "same" + tables.start), env=environment(tables.stack), cwd=CHECKOUT,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        until(lambda least=least: tables.rows(loaded)[0][0] >= least, 120, "loaded tables")
        running.send_signal(signal.SIGKILL)
        running.wait()
    done = tables.run("--run-id", "same" + tables.start, "--json")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["tables"] == 30
    assert report["unchanged"] >= 10
    assert tables.ids() == {name: [0, 1, 2] for name in names}
    assert tables.load().unchanged == 30


def test_two_runs_at_the_same_time_load_each_row_once(tables: Tables) -> None:
    names = [f"p{n:02}" for n in range(20)]
    tables.put(some(names))
    reports: list[TablesReport] = []
    threads = [threading.Thread(target=lambda: reports.append(tables.transfer().run())) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(report.loaded for report in reports) >= 20
    assert [report.failures for report in reports] == [[], []]
    assert tables.ids() == {name: [0, 1, 2] for name in names}


def test_the_command_prints_the_totals_of_each_table(tables: Tables) -> None:
    tables.put({**some(["good", "bad name"]), "raw/broken/0.jsonl": b"{"})
    done = tables.run("--format", "jsonl")
    assert done.returncode == 1
    assert f"data.{tables.start}_good: 1 object, 3 rows" in done.stdout
    assert re.search(r"^failed tables +2$", done.stdout, re.MULTILINE)
    assert "bad name: a table's name from a key has letters, digits" in done.stderr
    assert re.search(rf"^data\.{tables.start}_broken: .*row 0", done.stderr, re.MULTILINE)
    assert tables.run("--accept-failed", "ada").returncode == 2
    assert tables.run("--preview").returncode == 2


def test_tables_that_are_not_allowed_are_not_made(tables: Tables) -> None:
    tables.put(some(["yes", "no"]))
    report = tables.load(allowed=lambda table: "it is secret" if table.endswith("_no") else "")
    assert report.failures == [("no", "it is secret")]
    assert tables.names() == ["yes"]


def test_tables_beside_others_are_not_filled_by_keys(tables: Tables) -> None:
    tables.put(some(["x", "x_rejected", "x_quarantine"]))
    report = tables.load(on_bad_rows="keep")
    assert [name for name, _ in report.failures] == ["x_rejected"]
    assert tables.names() == ["x", "x_quarantine"]


def test_removed_objects_of_a_table(tables: Tables) -> None:
    tables.put({**some(["a", "b"]), **some(["a", "b"], 10)})
    tables.load(remove_deleted="50 %")
    tables.s3.delete_object(Bucket=tables.bucket, Key="raw/a/0.jsonl")
    report = tables.load(remove_deleted="50 %")
    assert report.removed == 1
    assert tables.ids() == {"a": [10, 11, 12], "b": [0, 1, 2, 10, 11, 12]}


def test_a_server_that_is_gone_ends_the_run_and_the_next_one_continues(tables: Tables) -> None:
    tables.put(some([f"t{n:02}" for n in range(30)]))
    transfer = tables.transfer()
    real, left = transfer.ledger.insert, [4]

    def insert(*arguments: Any, **named: Any) -> Any:
        if arguments[0] == "storeside.loads":
            left[0] -= 1
            if left[0] < 0:
                raise TransferTransientError("the server is gone")
        return real(*arguments, **named)

    transfer.ledger.insert = insert
    with pytest.raises(TransferTransientError, match="the server is gone"):
        transfer.run()
    assert tables.load().failed_tables == 0
    assert tables.ids() == {f"t{n:02}": [0, 1, 2] for n in range(30)}


@pytest.mark.usefixtures("connections")
def test_a_task_shows_each_changed_table_and_fails_for_the_bad_ones(tables: Tables) -> None:
    tables.put({**some(["a", "b", "c d"]), "raw/bad/0.jsonl": b'{"id": 1}\n{"id": '})
    task = S3ToClickHouseOperator(
        task_id="load", source=f"s3://{tables.bucket}/raw/{{table}}/", table=tables.table, on_failed_objects="report"
    )
    context = task_context()
    found = task.execute(context)
    assert (found["tables"], found["changed"], found["failed_tables"], found["rows"]) == (4, 2, 2, 6)
    shown = (
        "SELECT task_id, state, done, failed FROM storeside.runs FINAL"
        f" WHERE run_id = '{run_key(context)}' ORDER BY task_id"
    )
    start = f"data.{tables.start}"
    assert tables.rows(shown) == [
        ("t", "partial", 0, 1), (f"t[{start}_a]", "done", 1, 0), (f"t[{start}_b]", "done", 1, 0),
        (f"t[{start}_bad]", "partial", 0, 1),
    ]  # fmt: skip
    task.on_failed_objects = "fail"
    with pytest.raises(AirflowFailException, match=r"2 of 4 tables failed, such as .* The others are loaded"):
        task.execute(task_context())
    nothing = S3ToClickHouseOperator(
        task_id="load", source=f"s3://{tables.bucket}/none/{{table}}/", table=tables.table, on_nothing="skip"
    )
    with pytest.raises(AirflowSkipException, match="no object matches"):
        nothing.execute(task_context())


def test_other_loads_refuse_keys_that_name_tables(tables: Tables, stack: Any) -> None:
    request, client = tables.request(), tables.clickhouse
    with pytest.raises(TransferInputError, match="this load fills one table"):
        Transfer(request, client, tables.s3, "run").prepare()
    with pytest.raises(TransferInputError, match="a preview shows one table"):
        preview(request, client, tables.s3)
    with pytest.raises(EventInputError, match="a load of events fills one table"):
        EventLoad(None, request, client, tables.s3, "run")
    for keys, table in (("raw/", tables.table), ("raw/{table}/", "data.x"), ("{table}/{table}", tables.table)):
        with pytest.raises(TransferInputError, match="once in the keys, and once in the name of the table"):
            request_of(Source(tables.bucket, keys), table)
    for option in ({"overlap_seconds": 0}, {"format": "iceberg"}):
        with pytest.raises(TransferInputError, match="those of many tables, in one listing"):
            tables.request("raw/{table}/", **option)
    with pytest.raises(TransferInputError, match="they name no tables"):
        TablesTransfer(request_of(Source(tables.bucket, "raw/"), "data.x"), client, tables.s3, "run")
