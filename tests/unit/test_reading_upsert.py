"""Changes of rows: values that `Upsert` needs, unknown operations, tables that fit, and the view of current rows."""

from __future__ import annotations

import re
from itertools import permutations
from typing import Any

import pytest
from clickhouse_connect.driver.exceptions import DatabaseError

from storeside.transfer.base.errors import TransferInputError
from storeside.transfer.request.column_options import Columns
from storeside.transfer.request.object_format import Csv
from storeside.transfer.request.table_keys import Expression
from storeside.transfer.request.upsert import Upsert
from tests.statements import Statements
from tests.transfers import jsonl, parquet

CHANGES = Upsert(("id",), "v", "op")
LOADERS = ("pull", "push")


def change(op: Any, version: Any, name: Any = None, key: Any = 1) -> dict[str, Any]:
    return {"op": op, "id": key, "v": version, "name": name}


def columns(rows: list[dict[str, Any]]) -> bytes:
    return parquet({name: [row.get(name) for row in rows] for name in rows[0]})


def current(table: Statements, shown: str = "*") -> list[tuple[Any, ...]]:
    return table.query(f"SELECT {shown} FROM {table.table}_current ORDER BY ALL")


@pytest.mark.parametrize("order", permutations("abc"))
def test_the_highest_version_counts_in_any_order_of_arrival(reading: Statements, order: tuple[str, ...]) -> None:
    changes = {
        "a": [change("I", 1, "new"), change("c", 1, "other", 2)],
        "b": [change("U", 2, "newer"), change("r", 5, "third", 3)],
        "c": [change("D", 3), change("u", 2, "again", 2)],
    }
    for key in order:
        reading.put({f"{key}.jsonl": jsonl(changes[key])})
        assert reading.load(upsert=CHANGES).loaded == 1
    assert current(reading, "id, v, name") == [(2, 2, "again"), (3, 5, "third")]
    names = {row[0] for row in reading.query(f"DESCRIBE TABLE {reading.table}_current")}
    assert names == {"id", "v", "name"}


@pytest.mark.parametrize("loader", LOADERS)
def test_only_objects_without_a_value_are_refused(reading: Statements, loader: str) -> None:
    good = [change("I", 1, "a"), change("U", 2, "b", 2)]
    objects = {
        "0": (good, ""),
        "key": ([*good, change("I", 1, "x", None)], "column 'id' has a NULL"),
        "version": ([change("I", None, "x", 4)], "column 'v' has a NULL"),
        "null": ([change(None, 1, "x", 4)], "column 'op' has a NULL"),
        "op": ([change("I", 1, "x", 4), change("Q", 2, "x", 5)], "column 'op' has an unknown operation Q"),
        "lacks": ([{"op": "I", "v": 1, "name": "x"}], "'id'"),
    }
    for suffix, content in (("jsonl", jsonl), ("parquet", columns)):
        table = reading.another()
        table.put({f"{name}.{suffix}": content(rows) for name, (rows, _) in objects.items()})
        report = table.load(loader=loader, upsert=CHANGES, sample_objects=1)
        reasons = {key.partition(".")[0]: reason for key, reason in table.reasons().items()}
        assert report.loaded == 1, reasons
        assert {name for name, (_, reason) in objects.items() if reason} == set(reasons)
        for name, reason in reasons.items():
            assert objects[name][1] in reason, (suffix, name, reason)
        assert current(table, "id, name") == [(1, "a"), (2, "b")]


def test_a_csv_without_a_header_and_an_empty_key(reading: Statements) -> None:
    """As DMS writes it."""
    reading.put(
        {"0.csv": b"I,1,2026-01-01 00:00:00.1,a\nD,2,2026-01-02 00:00:00,b\n", "1.csv": b"I,,2026-01-01 00:00:00,a\n"}
    )
    report = reading.load(upsert=CHANGES, format="csv", csv=Csv(names=("op", "id", "v", "name")))
    assert (report.loaded, report.failed) == (1, 1)
    assert "column 'id' has a NULL" in reading.reasons()["1.csv"]
    assert current(reading, "id, name") == [(1, "a")]


@pytest.mark.parametrize(("deleted", "kept"), [(True, False), (1, 0), ("true", "false"), ("d", "u"), ("1", "0")])
def test_marks_of_deletions(reading: Statements, deleted: Any, kept: Any) -> None:
    rows = [change(kept, 1, "a"), change(deleted, 2, "b"), change(kept, 1, "c", 2)]
    reading.put({"0.jsonl": jsonl(rows)})
    reading.load(upsert=CHANGES)
    assert current(reading, "id, name") == [(2, "c")]


def test_a_number_that_marks_no_deletion(reading: Statements) -> None:
    reading.put({"0.jsonl": jsonl([change(1, 1), change(0, 1)]), "1.jsonl": jsonl([change(2, 1)])})
    reading.load(upsert=CHANGES)
    assert "column 'op' has a number that is neither 0 nor 1" in reading.reasons()["1.jsonl"]


@pytest.mark.parametrize("loader", LOADERS)
def test_rows_without_a_value_are_left_out_on_request(reading: Statements, loader: str) -> None:
    rows = [change("I", 1, "a"), change("I", 1, "x", None), change("Q", 1, "y", 2), change("u", 2, "b", 3)]
    reading.put({"0.jsonl": jsonl(rows)})
    report = reading.load(upsert=CHANGES, loader=loader, on_bad_rows="skip")
    assert (report.loaded, report.rejected) == (1, 2)
    assert current(reading, "id, name") == [(1, "a"), (3, "b")]


def test_computed_and_renamed_columns(reading: Statements) -> None:
    """Debezium's whole envelope: the key of a deletion is in the row before it."""
    rows = [
        {"op": "c", "ts_ms": 1, "before": None, "after": {"id": 1, "name": "a"}},
        {"op": "c", "ts_ms": 1, "before": None, "after": {"id": 2, "name": "b"}},
        {"op": "d", "ts_ms": 2, "before": {"id": 1, "name": "a"}, "after": None},
    ]
    reading.put({"0.jsonl": jsonl(rows), "1.jsonl": jsonl([{**rows[0], "after": None}])})
    chosen = Columns(
        select=("op", "ts_ms"), rename={"ts_ms": "v"},
        compute={
            "id": Expression("JSONExtract(ifNull(after, before), 'id', 'Nullable(Int64)')"),
            "name": Expression("JSONExtract(after, 'name', 'Nullable(String)')"),
        },
    )  # fmt: skip
    report = reading.load(upsert=CHANGES, chosen=chosen)
    assert (report.loaded, report.failed) == (1, 1), reading.reasons()
    assert "column 'id' has a NULL" in reading.reasons()["1.jsonl"]
    assert current(reading, "id, name") == [(2, "b")]


def test_a_view_shows_columns_that_were_added(reading: Statements) -> None:
    reading.put({"0.jsonl": jsonl([change("I", 1, "a")])})
    reading.load(upsert=CHANGES)
    reading.put({"1.jsonl": jsonl([{**change("I", 1, "a", 2), "more": 5}])})
    reading.load(upsert=CHANGES, on_drift="add")
    reading.put({"2.jsonl": jsonl([change("I", 1, "a", 3)])})
    reading.load(upsert=CHANGES, on_drift="add")
    assert current(reading, "id, more") == [(1, None), (2, 5), (3, None)]


def test_keys_and_versions_stay_without_null_when_types_are_widened(reading: Statements) -> None:
    reading.put({"0.jsonl": jsonl([change("I", 1, "a")])})
    reading.load(upsert=CHANGES)
    reading.put({
        "1.jsonl": jsonl([{**change("I", 1, "a", 2), "more": 5}]),
        "2.jsonl": jsonl([{**change("I", 1, "x", None), "even": 5}]),
        "3.jsonl": jsonl([change("I", 1, "x", 2.5)]),
    })  # fmt: skip
    assert reading.load(upsert=CHANGES, on_drift="widen").loaded == 1
    assert reading.rows("id, more") == [(1, None), (2, 5)]
    reasons = reading.reasons()
    assert "column 'id' has a NULL" in reasons["2.jsonl"]
    assert "column 'id'" in reasons["3.jsonl"]
    assert reading.types()["id"] == "Int64"


@pytest.mark.parametrize("made", ["TABLE {} (x UInt8) ENGINE = Memory", "VIEW {} AS SELECT 7 AS x"])
def test_a_view_or_table_of_that_name_stays(reading: Statements, made: str) -> None:
    reading.client.command("CREATE " + made.format(f"{reading.table}_current"))
    reading.put({"0.jsonl": jsonl([change("I", 1, "a")])})
    assert reading.load(upsert=CHANGES).loaded == 1
    assert [row[0] for row in reading.query(f"DESCRIBE TABLE {reading.table}_current")] == ["x"]


def test_a_user_without_the_right_to_create_views(reading: Statements) -> None:
    """The engine of the test has no users, so the answer of a server is given."""
    reading.put({"0.jsonl": jsonl([change("I", 1, "a")])})
    command = reading.client.command

    def refused(statement: str, *args: Any, **more: Any) -> Any:
        if "VIEW" in statement:
            raise DatabaseError("Not enough privileges. (ACCESS_DENIED)", code=497)
        return command(statement, *args, **more)

    reading.client.command = refused  # type: ignore[method-assign]
    try:
        with pytest.raises(
            TransferInputError, match=r"GRANT CREATE VIEW, DROP VIEW ON `data`.*, or create it: CREATE"
        ):
            reading.load(upsert=CHANGES)
    finally:
        reading.client.command = command  # type: ignore[method-assign]


UNFIT = {
    "engine": ("id Int64, v Int64, op String", "MergeTree ORDER BY id", "has the engine MergeTree"),
    "key": ("id Int64, v Int64, op String", "ReplacingMergeTree(v) ORDER BY (id, op)", "replaces rows of the key"),
    "no version": ("id Int64, v Int64, op String", "ReplacingMergeTree ORDER BY id", "highest position"),
    "version": ("id Int64, v Int64, w Int64 DEFAULT 0, op String", "ReplacingMergeTree(w) ORDER BY id", "highest w"),
    "deletions": ("id Int64, v Int64, op String", "ReplacingMergeTree(v) ORDER BY id", "deletions from no column"),
    "NULL": (
        "id Nullable(Int64), v Int64, op String", "MergeTree ORDER BY v PARTITION BY v % 2", "has the engine",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", UNFIT)
def test_a_table_that_does_not_fit_is_refused_and_the_statements_help(reading: Statements, case: str) -> None:
    definition, engine, reason = UNFIT[case]
    reading.client.command(
        f"CREATE TABLE {reading.table} ({definition}, name Nullable(String) DEFAULT 'none',"
        f" _storeside_load UInt64 MATERIALIZED 0) ENGINE = {engine}"
    )
    reading.client.command(f"INSERT INTO {reading.table} (id, v, op, name) VALUES (1, 1, 'I', 'a'), (1, 2, 'U', 'b')")
    reading.put({"0.jsonl": jsonl([change("D", 3), change("I", 1, "c", 2)])})
    with pytest.raises(TransferInputError, match=reason) as refused:
        reading.load(upsert=CHANGES)
    for statement in str(refused.value).partition("\n")[2].split(";\n"):
        reading.client.command(statement)
    assert reading.load(upsert=CHANGES).loaded == 1
    assert current(reading, "id, name") == [(2, "c")]
    reading.client.command(f"DROP TABLE {reading.table}_upsert")


def test_a_table_that_marks_deletions_by_another_column(reading: Statements) -> None:
    reading.put({"0.jsonl": jsonl([change("I", 1, "a")])})
    reading.load(upsert=CHANGES)
    reading.put({"1.jsonl": jsonl([change("I", 1, "a")])})
    with pytest.raises(TransferInputError, match=r"takes deletions from lower.*not from name"):
        reading.load(upsert=Upsert(("id",), "v", "name"))


@pytest.mark.parametrize(
    ("upsert", "reason"),
    [
        (Upsert(("id",), "name"), "'name' is String, and ClickHouse compares whole numbers"),
        (Upsert(("id",), "price"), "'price' is Float64"),
        (Upsert(("other",), "v"), "'other': .* has no such column"),
        (Upsert(("id",), "v", "price"), "'price' is Float64, and deletions are marked by"),
    ],
)
def test_types_that_do_not_fit(reading: Statements, upsert: Upsert, reason: str) -> None:
    reading.put({"0.jsonl": jsonl([{**change("I", 1, "a"), "price": 1.5}])})
    with pytest.raises(TransferInputError, match=reason):
        reading.load(upsert=upsert)


def test_parts_of_a_load_keep_all_rows_until_merges(reading: Statements) -> None:
    """The count of a load's rows tells whether it was published."""
    reading.put({"0.jsonl": jsonl([change("I", n, "a") for n in range(5)])})
    reading.load(upsert=CHANGES)
    assert reading.query(f"SELECT count() FROM {reading.table}") == [(5,)]


def test_the_key_orders_the_table_and_is_not_nullable(reading: Statements) -> None:
    reading.put({"0.parquet": columns([{**change("I", 1, "a"), "part": "x"}])})
    reading.load(upsert=Upsert(("part", "id"), "v", "op"), partition_by="part")
    types = reading.types()
    assert [types[name] for name in ("part", "id", "v", "op")] == ["String", "Int64", "Int64", "String"]
    (found,) = reading.query(
        "SELECT sorting_key, partition_key, engine_full FROM system.tables"
        " WHERE concat(database, '.', name) = {name:String}",
        name=reading.table,
    )
    assert found[:2] == ("part, id", "(part)")
    assert re.match(r"ReplacingMergeTree\(v, _storeside_deleted\)", found[2])
