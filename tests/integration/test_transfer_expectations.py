"""Loads whose rows are checked against a Great Expectations suite before they are published."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from storeside.errors import BadInput, StoresideError
from storeside.quality.errors import QualityError
from storeside.transfer.base.errors import ExpectationsError, TransferInputError
from storeside.transfer.request.options import Expectations
from storeside.transfer.request.source import Source
from storeside.transfer.state import lock
from tests.integration.test_transfer_crashes import Killed, dies
from tests.transfers import Loading, jsonl, request_of

if TYPE_CHECKING:
    pass


def csv(start: int, stop: int) -> bytes:
    return ("n,text\n" + "".join(f"{n},value {n}\n" for n in range(start, stop))).encode()


def quarantined(loading: Loading, columns: str = "key, row") -> list[tuple[Any, ...]]:
    return loading.query(f"SELECT {columns} FROM {loading.table}_quarantine ORDER BY ALL")


@pytest.mark.guarantee("load-expectations")
def test_rows_that_break_expectations_keep_the_whole_load_from_being_published(
    loading: Loading, suite: Callable[..., str]
) -> None:
    loading.put({"good.csv": csv(0, 50), "bad.csv": csv(50, 100), "other.csv": csv(0, 10)})
    loading.create("n UInt32, text String")
    given = Expectations(suite())
    transfer = loading.transfer(format="csv", batch_objects=1, expectations=given)
    with pytest.raises(ExpectationsError) as failed:
        transfer.run(transfer.prepare())
    assert "(max_value: 89): n: not met in 10 of 110 rows, such as 90 in 'bad.csv', 91" in str(failed.value)
    assert failed.value.verdict["invalid"] == 10
    assert loading.rows() == []
    assert loading.ledger() == {}
    assert [name for name in loading.left(transfer) if name.startswith("load_")] == []

    loading.put({"bad.csv": csv(50, 90)})
    report = loading.load(format="csv", batch_objects=1, expectations=given)
    assert (report.rows, report.loaded) == (100, 3)
    assert report.verdict
    assert report.verdict["success"]
    assert loading.load(format="csv", expectations=given).verdict is None


@pytest.mark.guarantee("load-expectations")
@pytest.mark.parametrize("loader", ["pull", "push"])
def test_rows_that_break_expectations_go_to_the_quarantine(
    loading: Loading, suite: Callable[..., str], loader: str
) -> None:
    loading.put({"a.csv": csv(0, 50), "b.csv": csv(50, 100), "c.csv": csv(95, 97)})
    loading.create("n UInt32, text String")
    given = Expectations(suite(), "quarantine")
    report = loading.load(format="csv", loader=loader, batch_objects=2, expectations=given)
    assert (report.loaded, report.rows, report.rejected) == (3, 90, 12)
    assert loading.rows("n") == [(n,) for n in range(90)]
    assert loading.ledger()["c.csv"] == ("loaded", 0, 2, "")
    bad = [("b.csv", n) for n in range(90, 100)] + [("c.csv", n) for n in (95, 96)]
    assert [(key, json.loads(row)["n"]) for key, row in quarantined(loading)] == bad
    reason = "column values to be between (max_value: 89): n"
    ledger = loading.query(
        "SELECT key, load_id, version, bucket, {reason:String} FROM storeside.loads FINAL"
        " WHERE bucket = {bucket:String} AND key != 'a.csv'",
        bucket=loading.bucket, reason=reason,
    )  # fmt: skip
    assert set(quarantined(loading, "key, load_id, version, bucket, arrayJoin(reasons)")) == set(ledger)
    assert report.verdict
    found = {name: report.verdict[name] for name in ("success", "rows", "invalid", "suite", "quarantine")}
    assert found == {"success": False, "rows": 102, "invalid": 12, "suite": "numbers", "quarantine": True}

    again = loading.load(format="csv", loader=loader, expectations=given)
    assert (again.loaded, again.skipped) == (0, 3)
    assert len(quarantined(loading)) == 12


def test_a_new_version_replaces_the_quarantined_rows_of_the_old_one(
    loading: Loading, suite: Callable[..., str]
) -> None:
    loading.put({"a.csv": csv(80, 100), "b.csv": csv(90, 92)})
    loading.create("n UInt32, text String")
    options = {"format": "csv", "on_overwrite": "replace", "expectations": Expectations(suite(), "quarantine")}
    loading.load(**options)
    assert Counter(key for key, _ in quarantined(loading)) == {"a.csv": 10, "b.csv": 2}
    loading.put({"a.csv": csv(85, 93)})
    loading.load(**options)
    assert loading.rows("n") == [(n,) for n in range(85, 90)]
    assert Counter(key for key, _ in quarantined(loading)) == {"a.csv": 3, "b.csv": 2}
    loading.put({"b.csv": csv(1, 2)})
    assert loading.load(format="csv", on_overwrite="replace").rows == 1  # without a suite
    assert Counter(key for key, _ in quarantined(loading)) == {"a.csv": 3}


@pytest.mark.guarantee("load-expectations")
@pytest.mark.parametrize("replaced", [False, True])
@pytest.mark.parametrize(
    ("anywhere", "step"),
    [
        ("table", 24),
        pytest.param("table", 8, marks=pytest.mark.exhaustive),
        *(
            pytest.param(name, 1, marks=[pytest.mark.chaos, pytest.mark.timeout(1800)])
            for name in ("table", "shards")
        ),
    ],
    indirect=["anywhere"],
)
def test_a_crash_after_any_statement_leaves_each_row_once(
    anywhere: Loading, suite: Callable[..., str], monkeypatch: pytest.MonkeyPatch, step: int, replaced: bool
) -> None:
    """The rows of both tables are those of one undisturbed load, wherever the run was killed."""
    loading = anywhere
    monkeypatch.setattr(lock, "STALE_SECONDS", 0.5)
    loading.create("n UInt32, text String")
    source = Source(loading.bucket, "", collection="storeside_s3")
    given = Expectations(suite(), "quarantine")
    request = request_of(
        source, loading.table, "csv", loader="pull", batch_objects=2, parallel=1, expectations=given,
        on_overwrite="replace" if replaced else "append",
    )  # fmt: skip
    crashes = 0
    objects = {"all.csv": csv(95, 99), "none.csv": csv(0, 9), "some.csv": csv(80, 95)}
    for survived in range(5, 500, step):
        if replaced:
            # each object has another version, with a row of another text
            loading.put({key: body + f"{50},run {survived}\n".encode() for key, body in objects.items()})
        else:
            loading.put(objects)
            loading.truncate()
            loading.clickhouse.command(f"TRUNCATE TABLE IF EXISTS {loading.table}_quarantine")
            loading.clickhouse.command("CREATE DATABASE IF NOT EXISTS storeside")
            if crashes:
                loading.clickhouse.command(f"DELETE FROM storeside.loads WHERE bucket = '{loading.bucket}'")
        if not dies(loading, request, loading.s3, survived):
            break
        crashes += 1
        added = 3 if replaced else 0
        good = sorted([*range(9), *range(80, 90), *[50] * added])
        assert [n for (n,) in loading.rows("n")] == good, f"killed after {survived} statements"
        bad = Counter(json.loads(row)["n"] for _, row in quarantined(loading))
        assert bad == Counter([*range(95, 99), *range(90, 95)]), f"killed after {survived} statements"
    assert crashes > 20 / step


def test_a_run_without_the_suite_settles_what_a_killed_run_has_quarantined(
    loading: Loading, suite: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rows of an object are in the table or in the quarantine, and not in both."""
    monkeypatch.setattr(lock, "STALE_SECONDS", 0.5)
    loading.put({"all.csv": csv(95, 99), "some.csv": csv(80, 95)})
    loading.create("n UInt32, text String")
    transfer = loading.transfer(format="csv", expectations=Expectations(suite(), "quarantine"))
    command = transfer.client.command

    def dying(statement: str, *args: Any, **kwargs: Any) -> Any:
        if "ATTACH PARTITION" in statement:
            raise Killed
        return command(statement, *args, **kwargs)

    transfer.client.command = dying
    with pytest.raises(Killed):
        transfer.run(transfer.prepare())
    assert len(quarantined(loading)) == 9
    loading.load(format="csv")
    assert len(loading.rows()) == 19
    assert quarantined(loading) == []


def test_a_run_that_was_overtaken_adds_nothing_to_the_quarantine(
    loading: Loading, suite: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lock, "STALE_SECONDS", 0.5)
    loading.put({"all.csv": csv(95, 99), "some.csv": csv(80, 95)})
    loading.create("n UInt32, text String")
    options = {"format": "csv", "loader": "pull", "expectations": Expectations(suite(), "quarantine")}
    slow = loading.transfer(**options)
    command = slow.client.command
    overtaken: list[int] = []

    def standing_still(statement: str, *args: Any, **kwargs: Any) -> Any:
        if statement.startswith("INSERT INTO `data`") and "_quarantine" in statement and not overtaken:
            loading.let_the_lock_age()
            overtaken.append(loading.load(**options).rows)
        return command(statement, *args, **kwargs)

    slow.client.command = standing_still
    slow.run(slow.prepare())
    assert overtaken == [10]
    assert len(loading.rows()) == 10
    assert len(quarantined(loading)) == 9


def test_hostile_names_and_values_stay_data(loading: Loading, suite: Callable[..., str]) -> None:
    """Names of columns, keys, values and descriptions with quotes, line feeds and markup change no statement."""
    column, key = "a`b'); DROP TABLE x; --\\", "in/'\"`\\;--\u202e.jsonl"
    bad = "'); DROP TABLE data.x; --\n\\ <script>" + "x" * 1000
    loading.put({key: jsonl([{column: "good"}, {column: bad}, {column: bad}]), "b.jsonl": jsonl([{column: "good"}])})
    found = {
        "type": "expect_column_values_to_be_in_set",
        "kwargs": {"column": column, "value_set": ["good", "it's\\"]},
        "description": "only 'good'`\\\n<b>",
    }
    short = {"type": "expect_column_values_to_match_regex", "kwargs": {"column": column, "regex": "^[^']*$\\\\?"}}
    given = suite(found, {**short, "severity": "warning"})
    with pytest.raises(ExpectationsError) as failed:
        loading.load(format="jsonl", expectations=Expectations(given))
    assert "not met in 2 of 4 rows" in str(failed.value)
    assert "\n" not in str(failed.value)
    assert len(str(failed.value)) < 3000
    report = loading.load(format="jsonl", expectations=Expectations(given, "quarantine"))
    assert (report.rows, report.rejected) == (2, 2)
    (first, second) = quarantined(loading, "key, row, reasons")
    assert first == second == (key, first[1], [f"{found['description']}: {column}"])
    assert json.loads(first[1]) == {column: bad}
    assert report.verdict
    assert all(len(value) <= 200 for e in report.verdict["expectations"] for _, value in e["examples"])


def test_columns_of_all_types_are_checked_and_quarantined(loading: Loading, suite: Callable[..., str]) -> None:
    columns = (
        "i Int8, u UInt64, big Int256, d Decimal(10, 2), f32 Float32, s FixedString(3), low LowCardinality(String),"
        " day Date, day32 Date32, at DateTime('Europe/Berlin'), exact DateTime64(6), b Bool, id UUID,"
        " e Enum8('x' = 1),"
        " ip IPv4, list Array(UInt8), m Map(String, UInt8), t Tuple(a UInt8, b Nullable(String)), n Nullable(UInt8)"
    )
    loading.create(columns)
    row = {
        "i": -1, "u": 2**64 - 1, "big": 10**40, "d": 0.1, "f32": 0.5, "s": "abc", "low": "x", "day": "2026-01-02",
        "day32": "1950-01-01", "at": "2026-01-02 03:04:05", "exact": "2026-01-02 03:04:05.5", "b": True,
        "id": "00000000-0000-0000-0000-000000000001", "e": "x", "ip": "127.0.0.1", "list": [1, 2], "m": {"k": 1},
        "t": {"a": 1, "b": None}, "n": None,
    }  # fmt: skip
    loading.put({"a.jsonl": jsonl([row, {**row, "i": 100}])})

    def between(column: str, low: Any, high: Any) -> dict[str, Any]:
        bounds = {"column": column, "min_value": low, "max_value": high}
        return {"type": "expect_column_values_to_be_between", "kwargs": bounds}

    def among(column: str, *values: Any) -> dict[str, Any]:
        return {"type": "expect_column_values_to_be_in_set", "kwargs": {"column": column, "value_set": list(values)}}

    met = [
        among("u", 2**64 - 1), between("big", 0, 1e41), between("d", 0.1, 0.1), among("f32", 0.5), among("s", "abc"),
        among("low", "x"), between("day", "2026-01-02", "2026-01-02"), between("day32", "1950-01-01", "1950-01-01"),
        between("at", "2026-01-02T03:04:05+01:00", "2026-01-02T02:04:05"),
        between("exact", "2026-01-02T03:04:05.500000", "2026-01-02T03:04:05.500000"), among("b", True),
        among("id", row["id"]), among("e", "x"), among("ip", "127.0.0.1"), among("list", "[1,2]"),
        among("m", '{"k":1}'), among("t", '{"a":1,"b":null}'),
        {"type": "expect_column_values_to_be_null", "kwargs": {"column": "n"}},
    ]  # fmt: skip
    given = Expectations(suite(*met, between("i", -1, 99)), "quarantine")
    report = loading.load(format="jsonl", expectations=given)
    assert report.verdict
    failed = [e["columns"] for e in report.verdict["expectations"] if not e["success"]]
    assert failed == [("i",)]
    assert (report.rows, report.rejected) == (1, 1)
    ((_, kept),) = quarantined(loading)
    assert json.loads(kept)["i"] == 100


@pytest.mark.parametrize(
    ("expectation", "reason"),
    [
        (
            {"type": "expect_column_values_to_not_be_null", "kwargs": {"column": "absent"}},
            "has no columns absent; it",
        ),
        (
            {"type": "expect_column_values_to_be_between", "kwargs": {"column": "n", "max_value": "x"}},
            "holds a number, which cannot be compared with 'x'",
        ),
        (
            {"type": "expect_column_values_to_match_regex", "kwargs": {"column": "n", "regex": "x"}},
            "holds a number, not a text",
        ),
        (
            {"type": "expect_column_values_to_match_regex", "kwargs": {"column": "text", "regex": "(?=x)"}},
            "the rows cannot be checked",
        ),
    ],
)
def test_suites_that_do_not_fit_the_table_publish_nothing(
    loading: Loading, suite: Callable[..., str], expectation: dict[str, Any], reason: str
) -> None:
    loading.put({"a.csv": csv(0, 5)})
    loading.create("n UInt32, text String")
    with pytest.raises(StoresideError, match=reason) as failed:
        loading.load(format="csv", expectations=Expectations(suite(expectation)))
    assert isinstance(failed.value, BadInput)
    assert loading.rows() == []


def test_expectations_of_all_rows_see_the_whole_load(loading: Loading, suite: Callable[..., str]) -> None:
    loading.put({"a.csv": csv(0, 5), "b.csv": csv(4, 8)})
    loading.create("n UInt32, text String")
    unique_n = {"type": "expect_column_values_to_be_unique", "kwargs": {"column": "n"}}
    count = {"type": "expect_table_row_count_to_be_between", "kwargs": {"min_value": 8, "max_value": 9}}
    with pytest.raises(ExpectationsError, match="not met in 2 of 9 rows, such as 4 in"):
        loading.load(format="csv", batch_objects=1, expectations=Expectations(suite(unique_n, count)))
    with pytest.raises(QualityError, match="cannot choose rows for the quarantine"):
        loading.load(format="csv", expectations=Expectations(suite(unique_n), "quarantine"))
    loading.put({"b.csv": csv(5, 7)})
    with pytest.raises(ExpectationsError, match="the load has 7 rows"):
        loading.load(format="csv", batch_objects=1, expectations=Expectations(suite(unique_n, count)))
    loading.put({"b.csv": csv(5, 8)})
    assert loading.load(format="csv", batch_objects=1, expectations=Expectations(suite(unique_n, count))).rows == 8


def test_a_table_of_the_same_name_is_left_alone(loading: Loading, suite: Callable[..., str]) -> None:
    loading.put({"a.csv": csv(80, 100)})
    loading.create("n UInt32, text String")
    loading.clickhouse.command(f"CREATE TABLE {loading.table}_quarantine (load_id UInt64) ENGINE = Memory")
    with pytest.raises(TransferInputError, match="is not a quarantine of Storeside: rename that table"):
        loading.load(format="csv", expectations=Expectations(suite(), "quarantine"))
    assert loading.rows() == []


def test_objects_that_cannot_be_read_do_not_keep_the_others_from_being_checked(
    loading: Loading, suite: Callable[..., str]
) -> None:
    loading.put({"a.csv": csv(0, 5), "broken.csv": b"n,text\nx,y\n"})
    loading.create("n UInt32, text String")
    report = loading.load(format="csv", expectations=Expectations(suite()))
    assert (report.loaded, report.failed, report.rows) == (1, 1, 5)


def test_a_load_without_good_rows_is_not_taken_for_whole(
    loading: Loading, suite: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that dies before it fills the quarantine leaves a load of 0 rows, all of which are in the table."""
    monkeypatch.setattr(lock, "STALE_SECONDS", 0.5)
    loading.put({"all.csv": csv(95, 99)})
    loading.create("n UInt32, text String")
    options = {"format": "csv", "expectations": Expectations(suite(), "quarantine")}
    transfer = loading.transfer(**options)
    command = transfer.client.command

    def dying(statement: str, *args: Any, **kwargs: Any) -> Any:
        if statement.startswith("INSERT INTO `data`") or statement.startswith("INSERT INTO data"):
            raise Killed
        return command(statement, *args, **kwargs)

    transfer.client.command = dying
    with pytest.raises(Killed):
        transfer.run(transfer.prepare())
    assert loading.ledger()["all.csv"][:3] == ("publishing", 0, 4)
    loading.load(**options)
    assert loading.rows() == []
    assert len(quarantined(loading)) == 4
