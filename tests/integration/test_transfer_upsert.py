"""Changes of keys in objects: each order of arrival, kills at any statement, merges, shards, and removed sources."""

from __future__ import annotations

import sys
from itertools import permutations
from typing import TYPE_CHECKING, Any

import pytest

from storeside.transfer.publish import publishing
from storeside.transfer.request.after_load import AfterLoad
from storeside.transfer.request.request import Request
from storeside.transfer.request.source import Source
from storeside.transfer.request.upsert import Upsert
from storeside.transfer.run.engine import Report, Transfer
from storeside.transfer.run.preview import preview
from storeside.transfer.state import lock
from tests.benchmarks import upsert
from tests.cluster import ShardedLoading
from tests.support import unique
from tests.transfers import Loading, jsonl, request_of

from .test_transfer_crashes import Killed, dies

if TYPE_CHECKING:
    from collections.abc import Callable

CHANGES = Upsert(("id",), "v", "op")
ORDERS = list(permutations([("I", 1, "new"), ("U", 2, "newer"), ("D", 3, "")]))


def change(op: str, version: int, name: str, key: int | None) -> dict[str, Any]:
    return {"op": op, "id": key, "v": version, "name": name}


def in_all_orders(number: int) -> bytes:
    """Return the object with the change `number` of each order; the keys 100, … have no deletion."""
    rows = []
    for key, order in enumerate(ORDERS):
        rows.append(change(*order[number], key))
        op, version, name = order[number]
        rows.append(change("u" if op == "D" else op, version, name or "last", 100 + key))
    return jsonl(rows)


EXPECTED = [(100 + key, 3, "last") for key in range(len(ORDERS))]


def run(loading: Loading, **options: Any) -> Report:
    """Load; merges may remove rows at any time, so the table need not have all rows of the ledger."""
    transfer = loading.transfer(upsert=CHANGES, **options)
    return transfer.run(transfer.prepare())


def current(loading: Loading) -> list[tuple[Any, ...]]:
    return loading.query(f"SELECT id, v, name FROM {loading.table}_current ORDER BY ALL")


def merge(loading: Loading) -> None:
    loading.clickhouse.command(f"OPTIMIZE TABLE {loading.table} FINAL")


@pytest.mark.parametrize("loader", ["pull", "push"])
def test_each_order_of_arrival_and_objects_that_arrive_twice(loading: Loading, loader: str) -> None:
    for number in range(3):
        loading.put({f"{number}.jsonl": in_all_orders(number), "bad.jsonl": jsonl([change("I", 1, "x", None)])})
        report = run(loading, loader=loader)
        assert (report.loaded, report.failed) == (1, int(number == 0))
        merge(loading)
    assert current(loading) == EXPECTED
    loading.put({f"again/{number}.jsonl": in_all_orders(number) for number in (2, 0, 1)})
    assert run(loading, loader=loader).loaded == 3
    assert current(loading) == EXPECTED
    assert "column 'id' has a NULL" in loading.reasons()["bad.jsonl"]


@pytest.mark.guarantee("load-upserts")
@pytest.mark.parametrize("step", [9, pytest.param(1, marks=[pytest.mark.chaos, pytest.mark.timeout(1800)])])
def test_a_kill_after_any_statement_loses_no_change(
    loading: Loading, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    monkeypatch.setattr(lock, "STALE_SECONDS", 0.5)
    loading.put({f"{number}.jsonl": in_all_orders(number) for number in range(3)})
    source = Source(loading.bucket, "", collection="storeside_s3")
    request = request_of(source, loading.table, loader="pull", batch_objects=1, parallel=1, upsert=CHANGES)
    survived, crashes = 5, 0
    while dies(loading, request, loading.s3, survived):
        crashes += 1
        merge(loading)
        assert current(loading) == EXPECTED, f"killed after {survived} statements"
        forget(loading)
        survived += step
    assert crashes > 25 / step


def forget(loading: Loading) -> None:
    for statement in (
        f"DROP TABLE {loading.table} SYNC", f"DROP VIEW {loading.table}_current",
        f"DELETE FROM storeside.loads WHERE destination = '{loading.table}'",
    ):  # fmt: skip
        loading.clickhouse.command(statement)


@pytest.mark.guarantee("load-upserts")
def test_a_merge_between_publication_and_record_loses_no_change(
    loading: Loading, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second object's row replaces that of the first. If it were removed and its object is gone, none is left."""
    loading.put({"1.jsonl": jsonl([change("I", 1, "a", 1)])})
    run(loading)
    loading.put({"2.jsonl": jsonl([change("U", 2, "b", 1), change("U", 3, "c", 1)])})
    finish: Callable[..., Any] = publishing._finish

    def killed(*_: Any) -> None:
        monkeypatch.setattr(publishing, "_finish", finish)
        raise Killed

    monkeypatch.setattr(publishing, "_finish", killed)
    with pytest.raises(Killed):
        run(loading)
    merge(loading)
    loading.s3.delete_object(Bucket=loading.bucket, Key="2.jsonl")
    loading.put({"3.jsonl": jsonl([change("I", 1, "d", 2)])})
    run(loading)
    assert current(loading) == [(1, 3, "c"), (2, 1, "d")]
    assert {key: state for key, (state, *_) in loading.ledger().items()} == dict.fromkeys(
        ("1.jsonl", "2.jsonl", "3.jsonl"), "loaded"
    )


def test_objects_are_removed_after_their_changes_are_recorded(loading: Loading) -> None:
    loading.put({f"{number}.jsonl": in_all_orders(number) for number in range(3)})
    assert run(loading, after_load=AfterLoad("delete")).handled == 3
    assert current(loading) == EXPECTED
    assert "Contents" not in loading.s3.list_objects_v2(Bucket=loading.bucket)


def test_a_preview_shows_the_view_and_refuses_what_a_load_refuses(loading: Loading) -> None:
    loading.put({"1.jsonl": in_all_orders(0), "bad.jsonl": jsonl([change("Q", 1, "x", 1)])})
    request = loading.transfer(upsert=CHANGES).request
    found = preview(request, loading.client(), loading.s3)
    created, view = found.statements[-2:]
    assert "ENGINE = ReplacingMergeTree(`v`, `_storeside_deleted`)" in created
    assert view.startswith(f"CREATE OR REPLACE VIEW `data`.`{loading.table[5:]}_current` AS SELECT")
    assert [(key, "unknown operation Q" in reason) for key, reason in found.refused] == [("bad.jsonl", True)]
    name = loading.table[5:]
    assert loading.query(f"SELECT name FROM system.tables WHERE startsWith(name, '{name}')") == []
    loading.create("id Int64, v Int64, op String, name Nullable(String)")
    assert "has the engine MergeTree" in preview(request, loading.client(), loading.s3).problem


def test_many_changes_out_of_order_and_twice_with_kills(loading: Loading) -> None:
    """The small version of ``make bench-upsert``."""
    made = upsert.changes(4000)
    loading.put(dict(upsert.objects(made, 6)))
    command = [
        *(sys.executable, "-m", "storeside.transfer", f"s3://{loading.bucket}/", loading.table),
        *("--collection", "storeside_s3", "--set", "batches.objects=2", "--run-id", unique("run")),
        *("--set", "upsert.key=id", "--set", "upsert.version=version", "--set", "upsert.deleted=op"),
    ]
    assert upsert.load_with_kills(command, loading.variables(), 2, 1, loading.kill_engine) > 0
    rows = loading.query(f"SELECT id, version, value FROM {loading.table}_current")
    found = {key: (version, value) for key, version, value in rows}
    assert upsert.difference(found, upsert.expected(made)) == 0
    assert len(rows) == len(found) > 100


@pytest.mark.parametrize("anywhere", ["shards"], indirect=True)
def test_all_rows_of_a_key_are_on_one_shard(anywhere: ShardedLoading) -> None:
    loading = anywhere
    options = {"cluster": "shards", "sharding_key": "cityHash64(id)"}
    source = Source(loading.bucket, "", collection="storeside_s3")
    request = request_of(source, loading.table, loader="pull", upsert=CHANGES, **options)
    for number in range(3):
        loading.put({f"{number}.jsonl": in_all_orders(number)})
        load(loading, request)
    assert current(loading) == EXPECTED
    assert loading.cluster.client(1).query(f"SELECT count() FROM {loading.table}_current").first_row == (len(ORDERS),)
    counts = loading.on_shards("uniqExact(id)")
    assert sum(counts) == 2 * len(ORDERS)
    assert min(counts) > 0


def load(loading: Loading, request: Request) -> None:
    transfer = Transfer(request, loading.client(), loading.s3, unique("run"), servers=loading.servers())
    assert transfer.run(transfer.prepare()).failed == 0
