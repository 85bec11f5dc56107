"""Transfers from run to run: new objects, overwritten ones, objects that are published together."""

from __future__ import annotations

import gzip
import io
import re
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from storeside.stack.servers.clickhouse_server import CLUSTER
from storeside.transfer.base.errors import StaleError, TransferInputError, TransferTransientError
from storeside.transfer.publish.publishing import publish
from storeside.transfer.request.source import Listed, Source
from storeside.transfer.run import batch, preparation
from storeside.transfer.run.engine import Transfer
from storeside.transfer.state import loads
from storeside.transfer.state.loads import Loaded
from tests.support import next_second, unique
from tests.transfers import Loading, jsonl, parquet, request_of

if TYPE_CHECKING:
    pass


def csv(*numbers: int) -> bytes:
    return b"n\n" + b"".join(b"%d\n" % n for n in numbers)


@pytest.mark.parametrize("loader", ["pull", "push"])
def test_a_second_run_takes_only_what_is_new(loading: Loading, loader: str) -> None:
    loading.put({"a.csv": csv(1), "b.csv": csv(2, 3)})
    first = loading.load(loader=loader)
    assert (first.loaded, first.skipped, first.rows, first.bytes) == (2, 0, 3, len(csv(1)) + len(csv(2, 3)))
    loading.put({"0.csv": csv(4)})  # of the same moment, or of an earlier one: it makes no difference
    second = loading.load(loader=loader)
    assert (second.loaded, second.skipped, second.rows) == (1, 2, 1)
    assert loading.load(loader=loader).loaded == 0
    assert loading.rows("n") == [(1,), (2,), (3,), (4,)]


@pytest.mark.parametrize(
    ("on_overwrite", "rows", "states"),
    [
        ("append", [(1,), (2,), (3,), (5,)], ["loaded", "loaded", "loaded"]),
        ("replace", [(3,), (5,)], ["loaded", "loaded", "replaced"]),
    ],
)
def test_an_overwritten_object(
    loading: Loading, on_overwrite: str, rows: list[tuple[int]], states: list[str]
) -> None:
    loading.put({"a.csv": csv(1, 2), "other.csv": csv(5)})
    loading.load(on_overwrite=on_overwrite)
    loading.put({"a.csv": csv(3)})
    loading.load(on_overwrite=on_overwrite)
    assert loading.rows("n") == rows
    found = loading.query(
        f"SELECT toString(state) FROM storeside.loads FINAL WHERE bucket = '{loading.bucket}' ORDER BY 1"
    )
    assert [state for (state,) in found] == states
    if on_overwrite == "replace":  # and back again
        loading.put({"a.csv": csv(1, 2)})
        loading.load(on_overwrite=on_overwrite)
        assert loading.rows("n") == [(1,), (2,), (5,)]


@pytest.mark.parametrize("loader", ["pull", "push"])
@pytest.mark.parametrize("key", ["a.csv", "a.csv.gz", "a.jsonl", "a.parquet"])
def test_an_object_overwritten_by_an_empty_one_has_no_rows_left(loading: Loading, loader: str, key: str) -> None:
    """The format of empty objects is unknown."""
    rows = {
        "a.csv": csv(1, 2), "a.csv.gz": gzip.compress(csv(1, 2)), "a.jsonl": jsonl([{"n": 1}, {"n": 2}]),
        "a.parquet": parquet({"n": [1, 2]}),
    }  # fmt: skip
    loading.put({key: rows[key], "b.csv": csv(3)})
    loading.load("b.csv", loader=loader)
    loading.load(key, loader=loader)
    assert loading.rows("n") == [(1,), (2,), (3,)]
    loading.put({key: b""})
    report = loading.load(key, loader=loader, on_overwrite="replace")
    assert (report.loaded, report.rows) == (1, 0)
    assert loading.rows("n") == [(3,)]
    assert loading.load(key, loader=loader, on_overwrite="replace").skipped == 1


def test_a_table_that_was_dropped_after_its_loads_is_missed(loading: Loading) -> None:
    loading.put({"a.csv": csv(1, 2)})
    loading.load()
    loading.clickhouse.command(f"DROP TABLE {loading.table}")
    with pytest.raises(TransferInputError, match=r"does not exist, but storeside.loads has 1 objects") as told:
        loading.load()
    statement = re.search(r"DELETE .* WHERE destination = '[^']*'", str(told.value))
    assert statement
    loading.clickhouse.command(statement[0])
    assert loading.load().loaded == 1
    assert loading.rows("n") == [(1,), (2,)]


def test_objects_that_another_run_publishes_are_not_looked_at_for_ever(loading: Loading) -> None:
    """Only loads of given objects, by events, record those that show no format as failed."""
    loading.put({"a": b"\0\1\2"})
    etag = loading.s3.head_object(Bucket=loading.bucket, Key="a")["ETag"].strip('"')
    objects = [Listed("a", etag, 3, "")]
    other = loading.transfer()
    other.loads.create()
    other.plan.record_listing([objects])
    other.plan.make(batch_bytes=1000, batch_objects=10, push=False, retry_failed=True)
    other.loads.record([Loaded(o, 1) for o in other.plan.unfinished()], "publishing")
    with pytest.raises(TransferTransientError, match="another run publishes 1 of the objects, such as 'a'"):
        loading.transfer(retry_failed=True).prepare(objects)


@pytest.mark.parametrize(("loader", "batches"), [("pull", [5]), ("push", [2, 2, 1])])
def test_objects_that_the_worker_sends_are_in_small_batches(
    loading: Loading, monkeypatch: pytest.MonkeyPatch, loader: str, batches: list[int]
) -> None:
    """It sends them one by one, so threads share them."""
    monkeypatch.setattr(preparation, "_MOST_PUSHED", 2)
    loading.put({f"{n}.csv": csv(n) for n in range(5)})
    transfer = loading.transfer(loader=loader)
    transfer.prepare()
    assert [batch.objects for batch in transfer.plan.batches()] == batches


@pytest.mark.parametrize("loader", ["pull", "push"])
def test_all_or_nothing(loading: Loading, loader: str) -> None:
    """Three batches; no row of the first two is visible if the third fails, and all rows are if it does not."""
    loading.put({f"{n}.csv": csv(n) for n in range(6)})
    loading.put({"5.csv": b"n\nfive\n"})
    loading.create("n UInt32")
    with pytest.raises(TransferInputError, match=r"1 object cannot be loaded, so none is: 5.csv"):
        loading.load(loader=loader, format="csv", all_or_nothing=True, batch_objects=2)
    assert loading.rows() == []
    assert [state for state, *_ in loading.ledger().values()] == ["failed"]
    with pytest.raises(TransferInputError, match=r"1 object cannot be loaded, so none is: 5.csv"):
        loading.load(loader=loader, format="csv", all_or_nothing=True, batch_objects=2)
    assert loading.rows() == []
    loading.put({"5.csv": csv(5)})
    report = loading.load(loader=loader, format="csv", all_or_nothing=True, batch_objects=2)
    assert (report.loaded, report.rows) == (6, 6)
    assert loading.rows() == [(n,) for n in range(6)]


def test_all_or_nothing_if_all_objects_fail(loading: Loading) -> None:
    loading.put({"0.csv": b"n\nzero\n", "1.csv": b"n\none\n"})
    loading.create("n UInt32")
    with pytest.raises(TransferInputError, match=r"2 objects cannot be loaded, so none is: 0.csv: .*; 1.csv: "):
        loading.load(format="csv", all_or_nothing=True)
    assert loading.rows() == []


def test_all_or_nothing_when_the_columns_change_meanwhile(loading: Loading) -> None:
    loading.put({f"{n}.csv": csv(n) for n in range(3)})
    loading.put({"3.csv": b"n,m\n3,4\n"})
    loading.create("n UInt32")
    with pytest.raises(StaleError, match=r"the columns of .* changed .* start the load again"):
        loading.load(format="csv", all_or_nothing=True, batch_objects=2, on_drift="add", parallel=1)
    assert loading.rows() == []
    loading.load(format="csv", all_or_nothing=True, batch_objects=2, on_drift="add")
    assert loading.rows("n, m") == [(0, None), (1, None), (2, None), (3, 4)]


def test_failed_objects_are_left_alone_until_asked_for(loading: Loading) -> None:
    loading.put({"good.csv": csv(1), "large.csv": csv(300)})
    loading.create("n UInt8")
    assert loading.load(format="csv").failed == 1
    again = loading.load(format="csv")
    assert (again.loaded, again.failed, again.known_bad, again.skipped) == (0, 0, 1, 1)
    loading.clickhouse.command(f"ALTER TABLE {loading.table} MODIFY COLUMN n UInt16")
    assert loading.load(format="csv", retry_failed=True).loaded == 1
    assert loading.rows("n") == [(1,), (300,)]


def test_keys_that_grow_with_time_are_listed_from_the_overlap_on(loading: Loading) -> None:
    loading.put({f"{n}.csv": csv(n) for n in range(1, 4)})
    assert loading.load(overlap_seconds=0).listed == 3
    loading.put({"0.csv": csv(0), "4.csv": csv(4)})
    # everything was written within the last minutes, so an overlap of an hour lists all of it
    all_of_it = loading.transfer(overlap_seconds=3600)
    assert all_of_it.prepare().listed == 5
    again = loading.transfer(overlap_seconds=0)
    assert again.prepare().listed == 5  # objects that are planned and not loaded are looked for
    for given_up in (all_of_it, again):
        given_up.plan.forget("load_plan")
    second = loading.load(overlap_seconds=0)
    assert (second.listed, second.loaded) == (1, 1)  # 0.csv sorts before loaded objects: the user ruled this out
    assert loading.load().loaded == 1
    assert loading.rows("n") == [(n,) for n in range(5)]


def test_partitions_and_a_replacing_table(loading: Loading) -> None:
    loading.clickhouse.command(
        f"CREATE TABLE {loading.table} (day Date, n UInt32, double UInt64 MATERIALIZED n * 2)"
        " ENGINE = ReplacingMergeTree PARTITION BY toYYYYMM(day) PRIMARY KEY day ORDER BY (day, n)"
    )
    days = [f"2026-{month:02}-01,{n}" for month in range(1, 13) for n in (1, 1, 2)]
    loading.put({"days.csv": ("day,n\n" + "\n".join(days) + "\n").encode()})
    assert loading.load(format="csv").rows == len(days)
    assert loading.query(f"SELECT count(), sum(double) FROM {loading.table} FINAL") == [(24, 72)]


def test_materialized_views_see_the_rows(loading: Loading) -> None:
    loading.create("n UInt32")
    loading.clickhouse.command(
        f"CREATE MATERIALIZED VIEW {loading.table}_sum ENGINE = SummingMergeTree ORDER BY tuple()"
        f" AS SELECT n FROM {loading.table}"
    )
    loading.put({"a.csv": csv(1, 2), "b.csv": csv(4)})
    loading.load(format="csv")
    assert loading.rows() == [(1,), (2,), (4,)]
    assert loading.query(f"SELECT sum(n) FROM {loading.table}_sum") == [(7,)]


def test_all_replicas_of_a_cluster_read(loading: Loading) -> None:
    loading.put({f"{n}.csv": csv(n) for n in range(5)})
    loading.create("n UInt32, _object LowCardinality(String), _row_number UInt64")
    source = Source(loading.bucket, "", collection="storeside_s3", cluster=CLUSTER)
    request = request_of(source, loading.table, "csv", loader="pull", system_columns=("_object", "_row_number"))
    transfer = Transfer(request, loading.client(), loading.s3, unique("run"))
    assert transfer.run(transfer.prepare()).loaded == 5
    assert loading.rows("n, _object, _row_number", "n") == [(n, f"{n}.csv", 0) for n in range(5)]


def test_a_slower_load_does_not_undo_a_newer_one(loading: Loading, monkeypatch: pytest.MonkeyPatch) -> None:
    """The slower load has staged a version when the object is overwritten; the other loads the new version."""
    loading.create("n UInt32")
    loading.put({"a.csv": csv(1), "b.csv": csv(5)})
    slow = loading.transfer(format="csv", on_overwrite="replace")
    prepared = slow.prepare()
    overtaken: list[Any] = []

    def publish_late(*given: Any, **how: Any) -> None:
        if not overtaken:
            overtaken.append(True)
            next_second()
            loading.put({"a.csv": csv(2, 3)})
            loading.load(format="csv", on_overwrite="replace")
        publish(*given, **how)

    monkeypatch.setattr(batch, "publish", publish_late)
    slow.run(prepared)
    assert loading.rows("n") == [(2,), (3,), (5,)]
    states = loading.query(
        f"SELECT key, toString(state), rows FROM storeside.loads FINAL WHERE bucket = '{loading.bucket}' ORDER BY ALL"
    )
    assert states == [("a.csv", "loaded", 2), ("a.csv", "replaced", 0), ("b.csv", "loaded", 1)]


def test_the_format_is_that_of_most_objects(loading: Loading) -> None:
    loading.put(
        {"_manifest.json": b'{"files": 3}', "README.md": b"# words", **{f"{n}.csv": csv(n) for n in range(3)}}
    )
    report = loading.load()
    assert (report.loaded, report.failed, report.ignored) == (3, 1, {"_*": 1})
    assert loading.rows("n") == [(n,) for n in range(3)]


def test_a_run_that_is_cleared_tries_its_failures_again(loading: Loading) -> None:
    loading.create("n UInt32")
    loading.put({"a.csv": csv(1), "bad.csv": b"n\nfive\n"})
    assert loading.load(format="csv", run_id="cleared").failed == 1
    loading.put({"bad.csv": csv(5)})
    again = loading.load(format="csv", run_id="cleared")
    assert (again.loaded, again.failed, again.failures) == (2, 0, ())  # over all its attempts
    loading.clickhouse.command(f"ALTER TABLE {loading.table} ADD COLUMN s UInt8")
    loading.put({"late.csv": b"n,s\n1,300\n"})
    assert loading.load(format="csv", run_id="cleared").failed == 1
    loading.clickhouse.command(f"ALTER TABLE {loading.table} MODIFY COLUMN s UInt16")
    assert loading.load(format="csv").failed == 0  # another run does not touch it
    assert loading.load(format="csv", run_id="cleared").loaded == 3
    assert loading.rows("n, s") == [(1, 0), (1, 300), (5, 0)]


def test_tasks_of_one_run_have_their_own_outcomes(loading: Loading) -> None:
    loading.create("n UInt32")
    loading.put({"a/1.csv": csv(1), "a/bad.csv": b"n\nfive\n", "b/2.csv": csv(2)})
    first = loading.load("a/", format="csv", run_id="mapped")
    assert (first.loaded, first.failed) == (1, 1)
    second = loading.load("b/*.csv", format="csv", run_id="mapped")
    assert (second.loaded, second.failed, second.rows) == (1, 0, 1)


def test_rows_are_replaced_in_a_table_with_a_projection(loading: Loading) -> None:
    loading.create("n UInt32, PROJECTION p (SELECT max(n))")
    loading.put({"a.csv": csv(1)})
    loading.load(format="csv", on_overwrite="replace")
    loading.put({"a.csv": csv(2, 3)})
    loading.load(format="csv", on_overwrite="replace")
    assert loading.rows("n") == [(2,), (3,)]


def test_a_table_with_views_takes_many_partitions(loading: Loading) -> None:
    loading.clickhouse.command(
        f"CREATE TABLE {loading.table} (n UInt32) ENGINE = MergeTree ORDER BY n PARTITION BY n"
    )
    view = f"{loading.table}_copy"
    loading.clickhouse.command(
        f"CREATE MATERIALIZED VIEW {view} ENGINE = MergeTree ORDER BY n AS SELECT n FROM {loading.table}"
    )
    loading.put({"a.csv": csv(*range(150))})
    assert loading.load(format="csv").rows == 150


def test_many_loads_are_named_in_several_statements(loading: Loading, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loads, "_SLICE", 2)
    loading.create("n UInt32")
    for n in (1, 100):
        loading.put({f"{key}.csv": csv(n + key) for key in range(5)})
        loading.load(format="csv", on_overwrite="replace", all_or_nothing=True)
    assert loading.rows("n") == [(100 + key,) for key in range(5)]
    monkeypatch.setattr(preparation, "MOST_AT_ONCE", 4)
    loading.put({f"{key}.csv": csv(key) for key in range(5)})
    with pytest.raises(TransferInputError, match="5 objects: all_or_nothing publishes at most 4"):
        loading.load(format="csv", all_or_nothing=True)


@pytest.mark.parametrize(
    ("engine", "order"),
    [
        *(("Null", ""), ("Log", ""), ("Memory", "")),
        # their merges change rows
        *((f"{kind}MergeTree", "ORDER BY n") for kind in ("Summing", "Aggregating", "Coalescing")),
    ],
)
def test_tables_that_cannot_be_exact_are_refused(loading: Loading, engine: str, order: str) -> None:
    loading.clickhouse.command(f"CREATE TABLE {loading.table} (n UInt32) ENGINE = {engine} {order}")
    loading.put({"a.csv": csv(1)})
    with pytest.raises(TransferInputError, match=f"has the engine {engine}.*MergeTree.*materialized view"):
        loading.transfer(format="csv").prepare()


def test_a_bucket_that_is_not_there(loading: Loading) -> None:
    loading.s3.delete_bucket(Bucket=loading.bucket)
    with pytest.raises(TransferInputError, match=f"no bucket '{loading.bucket}'"):
        loading.transfer(loader="push").prepare()


def test_defaults_of_the_table_stand_for_columns_that_objects_lack(loading: Loading) -> None:
    loading.create("n UInt32, source String DEFAULT 'csv', taken Date DEFAULT toDate('2026-01-02')")
    loading.put({"a.csv": csv(1), "b.csv": b"n,source\n2,file\n3,\n"})
    loading.load(format="csv")
    assert loading.rows("n, source, toString(taken)") == [
        (1, "csv", "2026-01-02"), (2, "file", "2026-01-02"), (3, "csv", "2026-01-02"),
    ]  # fmt: skip


def test_very_large_parquet_is_pushed_by_row_groups(loading: Loading, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("storeside.transfer.staging.push.WHOLE_PARQUET", 1000)
    table = pa.table({"n": pa.array(range(100_000), pa.int64()), "word": [f"w{n % 7}" for n in range(100_000)]})
    content = io.BytesIO()
    pq.write_table(table, content, row_group_size=9_000)
    loading.put({"n.parquet": content.getvalue()})
    assert loading.load(loader="push", system_columns=("_row_number",)).rows == 100_000
    assert loading.query(
        f"SELECT count(), countIf(n = _row_number), countIf(word = concat('w', toString(n % 7))) FROM {loading.table}"
    ) == [(100_000, 100_000, 100_000)]


def test_small_parquet_objects_are_fetched_once_for_footers_and_rows(loading: Loading) -> None:
    loading.put({f"many/{n:02}.parquet": parquet({"n": pa.array([n], pa.int64())}) for n in range(30)})
    report = loading.load("many/", format="parquet", loader="pull")
    assert (report.loaded, report.rows) == (30, 30)
    loading.clickhouse.command("SYSTEM FLUSH LOGS query_log")
    (fetched,) = loading.query(
        "SELECT sumIf(ProfileEvents['S3GetObject'], query LIKE '%ParquetMetadata%'),"
        " sumIf(ProfileEvents['S3GetObject'], query_kind = 'Insert'),"
        " sum(ProfileEvents['S3HeadObject']) FROM system.query_log WHERE type = 'QueryFinish'"
        " AND position(query, {bucket:String})"
        " AND (query LIKE '%ParquetMetadata%' OR query LIKE '%storeside_staging%')",
        bucket=loading.bucket,
    )
    assert fetched == (30, 0, 0)
