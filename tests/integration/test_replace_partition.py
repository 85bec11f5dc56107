"""A partition is replaced by a load's objects in one step: no reader sees a mixed day or an empty one."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest

from storeside.events.errors import EventInputError
from storeside.events.load import EventLoad
from storeside.transfer.base.errors import TransferInputError
from storeside.transfer.request.after_load import AfterLoad
from storeside.transfer.request.source import Source
from storeside.transfer.state import lock
from tests.support import unique
from tests.transfers import Loading, jsonl, request_of

from .test_transfer_crashes import dies

if TYPE_CHECKING:
    from storeside.transfer.run.engine import Report

DAY, NEXT = "2026-01-05", "2026-01-06"


class Days(Loading):
    """A table that is partitioned by day. An object has ten rows of its day, with the same value."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.clickhouse.command(
            f"CREATE TABLE {self.table} (day Date, value Int64) ENGINE = MergeTree PARTITION BY day ORDER BY value"
        )

    def write(self, key: str, value: int, day: str = DAY) -> None:
        self.put({f"day={day}/{key}.jsonl": jsonl([{"day": day, "value": value}] * 10)})

    def delete(self, key: str, day: str = DAY) -> None:
        self.s3.delete_object(Bucket=self.bucket, Key=f"day={day}/{key}.jsonl")

    def swap(self, day: str = DAY, **options: Any) -> Report:
        return self.load(f"day={day}/", replace_partition=day, **options)

    def values(self, day: str = DAY) -> dict[int, int]:
        """Return the number of rows of a day by value."""
        found = self.query(f"SELECT value, count() FROM {self.table} WHERE day = '{day}' GROUP BY 1 ORDER BY 1")
        return {value: count for value, count in found}


@pytest.fixture
def days(stack: Any, clickhouse: Any, s3_client: Any) -> Days:
    made = Days(stack, clickhouse, s3_client)
    made.write("a", 1)
    made.write("b", 2)
    made.write("c", 50, NEXT)
    made.swap()
    made.swap(NEXT)
    assert (made.values(), made.values(NEXT)) == ({1: 10, 2: 10}, {50: 10})
    return made


@pytest.mark.guarantee("load-partition")
def test_a_day_is_replaced_and_no_reader_sees_a_mixed_or_an_empty_one(days: Days) -> None:
    seen: set[tuple[tuple[int, int], ...]] = set()
    stop = threading.Event()

    def read() -> None:
        client = days.client()
        query = f"SELECT groupUniqArray((value, n)) FROM (SELECT value, count() AS n FROM {days.table}"
        while not stop.is_set():
            rows = client.query(f"{query} WHERE day = '{DAY}' GROUP BY value ORDER BY value)").result_rows
            seen.add(tuple(sorted(rows[0][0])))

    reader = threading.Thread(target=read)
    reader.start()
    try:
        days.write("b", 3)  # overwritten
        days.write("d", 4)  # new
        report = days.swap(batch_objects=1)
        assert (report.loaded, report.removed) == (2, 1)
        days.delete("a")
        assert days.swap().removed == 1
    finally:
        stop.set()
        reader.join()
    states = [{1: 10, 2: 10}, {1: 10, 3: 10, 4: 10}, {3: 10, 4: 10}]
    assert seen <= {tuple(sorted(state.items())) for state in states}
    assert days.values() == states[-1]
    assert days.values(NEXT) == {50: 10}
    again = days.swap()
    assert (again.loaded, again.removed) == (0, 0)


@pytest.mark.guarantee("load-partition")
def test_a_day_with_a_bad_object_or_without_objects_stays_as_it_was(days: Days) -> None:
    days.write("a", 7)
    days.put({f"day={DAY}/bad.jsonl": b'{"day": "2026-01-05", "value": "x"}\n'})
    with pytest.raises(TransferInputError, match="1 object cannot be loaded, so none is"):
        days.swap()
    assert days.values() == {1: 10, 2: 10}
    for key in ("a", "b", "bad"):
        days.delete(key)
    assert days.swap().removed == 0
    assert days.values() == {1: 10, 2: 10}


def test_rows_that_no_load_has_written_are_replaced_and_those_of_other_loads_are_refused(days: Days) -> None:
    days.clickhouse.command(f"INSERT INTO {days.table} (day, value) VALUES ('{DAY}', 9)")
    days.write("e", 5)
    days.swap()
    assert days.values() == {1: 10, 2: 10, 5: 10}
    days.put({"late/x.jsonl": jsonl([{"day": DAY, "value": 6}])})
    days.load("late/")
    days.write("f", 8)
    with pytest.raises(TransferInputError, match=r"has rows of 's3://.*/late/x.jsonl', which .* does not select"):
        days.swap()
    assert days.values() == {1: 10, 2: 10, 5: 10, 6: 1}
    days.put({f"day={DAY}/wrong.jsonl": jsonl([{"day": NEXT, "value": 6}])})
    with pytest.raises(TransferInputError, match=f"the objects also have rows of the partition '{NEXT}'"):
        days.swap()


def test_an_object_that_another_run_loads_meanwhile_is_not_lost(days: Days) -> None:
    days.write("b", 3)

    def between(_: Any) -> None:
        days.write("late", 30)
        days.load(f"day={DAY}/late.jsonl")

    with pytest.raises(Exception, match="another run has loaded another state of"):
        days.swap(between=between)
    assert days.swap().loaded == 1
    assert days.values() == {1: 10, 3: 10, 30: 10}


@pytest.mark.parametrize("step", [25, pytest.param(1, marks=[pytest.mark.chaos, pytest.mark.timeout(1800)])])
def test_a_crash_after_any_statement(days: Days, monkeypatch: pytest.MonkeyPatch, step: int) -> None:
    monkeypatch.setattr(lock, "STALE_SECONDS", 0.5)
    source = Source(days.bucket, f"day={DAY}/", "storeside_s3")
    wanted = request_of(source, days.table, replace_partition=DAY)
    survived, is_killed, value = step // 2, True, 100
    while is_killed:
        value += 1
        days.write("b", value)
        days.write("x", -value)
        is_killed = dies(days, wanted, days.s3, survived)
        assert days.values() == {1: 10, value: 10, -value: 10}, survived
        days.delete("x")
        assert days.swap().removed == 1
        assert days.values() == {1: 10, value: 10}, survived
        survived += step
    assert survived > 15


def test_a_new_table_needs_partitions(loading: Loading) -> None:
    loading.put({"202601/a.jsonl": jsonl([{"day": "2026-01-05", "value": 1}])})
    name = unique("t").replace("-", "_")
    for given, reason in (
        ({}, "a new table cannot replace a partition: it has no partitions: create it with partition_by"),
        ({"partition_by": "(day, value)"}, "several parts: partition it by one column or function"),
    ):
        loading.table = f"data.{name}_{len(given)}"
        with pytest.raises(TransferInputError, match=reason):
            loading.load("202601/", replace_partition="202601", **given)
    loading.table = f"data.{name}"
    options: dict[str, Any] = {
        "replace_partition": "202601",
        "partition_by": "toYYYYMM(day)",
        "columns": {"day": "Date"},
    }
    assert loading.load("202601/", **options).loaded == 1
    loading.put({"202602/a.jsonl": jsonl([{"day": "2026-01-07", "value": 2}])})
    with pytest.raises(TransferInputError, match="no rows of this partition, but of the partition '202601'"):
        loading.load("202602/", **{**options, "replace_partition": "202602"})


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"remove_deleted": "5 %"}, "replace_partition excludes remove_deleted"),
        ({"after_load": AfterLoad("delete")}, "replace_partition excludes after_load"),
        ({"format": "delta"}, "replace_partition excludes format 'delta'"),
    ],
)
def test_what_excludes_the_option(options: dict[str, Any], reason: str) -> None:
    with pytest.raises(TransferInputError, match=reason):
        request_of(Source("bucket", "day/"), "data.t", replace_partition=DAY, **options)


def test_events_are_no_listing() -> None:
    wanted = request_of(Source("bucket", "day/"), "data.t", replace_partition=DAY)
    with pytest.raises(EventInputError, match="replace_partition: a load of events lists no bucket"):
        EventLoad(None, wanted, None, None, "run")  # type: ignore[arg-type]
