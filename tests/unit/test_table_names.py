"""Names of tables in keys, and the INSERTs that loads of several tables share."""

from __future__ import annotations

import re
import threading
from typing import Any

import pytest

from storeside.operators import restrictions
from storeside.transfer.many.listing import Named, groups
from storeside.transfer.many.names import TableNames
from storeside.transfer.many.report import TableOutcome, TablesReport
from storeside.transfer.request.request import Request
from storeside.transfer.request.source import Source, matches
from storeside.transfer.state.loads import Inserts


def names(keys: str, table: str = "raw.{table}", **options: Any) -> TableNames:
    return TableNames(Request(Source("exports", keys), table, **options))


@pytest.mark.parametrize(
    ("keys", "key", "name"),
    [
        ("raw/{table}/", "raw/trips/2026/a.csv", "trips"),
        ("raw/{table}/", "raw//a.csv", ""),
        ("raw/{table}/", "in/raw/trips/a.csv", None),
        ("raw/{table}_*.csv", "raw/a_b_1.csv", "a_b"),
        ("raw/{table}.csv", "raw/trips.csv", "trips"),
        ("{2025,2026}/{table}/**.parquet", "2026/trips/x/y.parquet", "trips"),
        ("{2025,2026}/{table}/**.parquet", "2026/trips/x/y.csv", None),
        ("raw.{table}", "rawxtrips", None),
    ],
)
def test_the_name_in_a_key(keys: str, key: str, name: str | None) -> None:
    found = names(keys)
    assert matches(found.regex, key) == (name is not None)
    if name is not None:
        match = re.search(found.regex, key)
        assert match
        assert match[1] == name
        if name:
            assert found.of(name).source.selects(key)
            assert found.of(name).table == f"raw.{name}"


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("trips_2026-01", ""), ("Größe", ""), ("x" * 150, ""), ("x" * 151, "at most 150"), ("ü" * 40, "at most 150"),
        ("", "letters, digits"), ("a.b", "letters, digits"), ("a`b", "letters, digits"), ("a b", "letters, digits"),
        ("a\n", "letters, digits"), ("{a}", "letters, digits"), ("a*", "letters, digits"),
    ],
)  # fmt: skip
def test_a_name_from_a_key_is_plain(name: str, said: str) -> None:
    fault = names("raw/{table}/").fault(name)
    assert said in fault
    assert bool(said) == bool(fault)


def test_a_key_names_no_table_that_belongs_to_another_one_or_to_storeside() -> None:
    assert names("raw/{table}/").fault("trips_rejected") == ""
    assert "belongs to another one" in names("raw/{table}/", on_bad_rows="keep").fault("trips_rejected")
    assert "no load writes to" in names("raw/{table}/", "speech.{table}").fault("manifest")
    assert names("raw/{table}/", "speech.{table}").fault("manifests") == ""


def test_a_form_accepts_only_listed_names() -> None:
    field = restrictions._Field("table", "table", (), "raw.{table}")
    form = restrictions.Form([field], {"tables": ["raw.{table}", "raw.a*"]})
    assert form.fault("raw.{table}", "raw.ab") == ""
    assert "not one of the tables that forms may use" in form.fault("raw.{table}", "raw.b")
    assert form.fault("other.{table}", "raw.b") == ""


def test_small_tables_that_follow_each_other_share_statements() -> None:
    named = [Named("a", 1), Named("b", 100), Named("c", 101), Named("d", 1), Named("e", 1, "no"), Named("f", 950)]
    named += [Named(f"g{n:02}", 90) for n in range(20)]
    found = [[one.name for one in group] for group in groups(named)]
    assert found[:5] == [["a", "b"], ["c"], ["d"], ["e"], ["f"]]
    assert [len(group) for group in found[5:]] == [11, 9]
    assert [name for group in found for name in group] == [one.name for one in named]


def test_threads_share_inserts_and_an_error_reaches_all_of_them() -> None:
    started, go_on = threading.Event(), threading.Event()
    statements: list[list[Any]] = []

    class Client:
        def insert(self, table: str, rows: list[Any], **_: Any) -> None:
            statements.append([row[0] for row in rows])
            started.set()
            assert go_on.wait(30)
            if "bad" in statements[-1]:
                raise RuntimeError("refused")

    inserts = Inserts(Client())
    errors: list[str] = []

    def insert(name: str) -> None:
        try:
            inserts.insert([[name]])
        except RuntimeError as e:
            errors.append(f"{name}: {e}")

    first = threading.Thread(target=insert, args=("first",))
    first.start()
    assert started.wait(30)
    others = [threading.Thread(target=insert, args=(name,)) for name in ("bad", "good")]
    for thread in others:
        thread.start()
    while len(inserts._waiting) < 2:
        started.wait(0.01)
    go_on.set()
    for thread in (first, *others):
        thread.join()
    assert statements[0] == ["first"]
    assert sorted(statements[1]) == ["bad", "good"]
    assert sorted(errors) == ["bad: refused", "good: refused"]


def test_a_report_names_the_first_failed_tables() -> None:
    report = TablesReport()
    for n in range(30):
        report.add(TableOutcome(f"t{n}", f"raw.t{n}", "s3://in/", 2, error="x" * 900, again=n == 3))
    report.add(TableOutcome("a b", "", "s3://in", 4, error="no name"))
    report.add(TableOutcome("c", "raw.c", "s3://in/", 5))
    assert (report.tables, report.failed_tables, report.unchanged, report.failed, report.skipped) == (32, 31, 1, 4, 5)
    assert (report.listed, len(report.failures), report.again) == (69, 20, True)
    assert report.failures[0] == ("raw.t0", "x" * 500)
