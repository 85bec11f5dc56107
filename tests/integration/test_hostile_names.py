"""Hostile names of objects, columns and tables; in SQL, paths, headers and logs."""

from __future__ import annotations

import json
import logging
import random
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from storeside.sql.quoting import identifier, literal
from storeside.transfer.base.errors import TransferInputError
from storeside.transfer.request.options import TableOptions
from storeside.transfer.request.request import Request
from storeside.transfer.request.source import Source
from storeside.transfer.request.table_keys import Expression
from storeside.transfer.run.engine import Transfer
from tests.mailboxes import Mailbox
from tests.transfers import Loading, jsonl, parquet

FORGED = "FORGED 2026-01-01 ERROR all is lost"
KEYS = (
    f"a\n{FORGED}", f"a\r\n{FORGED}", "a\r\nSet-Cookie: x=1", "\x1b[2J\x1b]0;x\x07", "x' UNION ALL SELECT 1 --",
    "$(touch x)",
    "`touch x`", "|touch x", "a\u2028b", "\u202egnp.exe", "\u200b", "e\u0301", "\U0001f600", " ", "trailing ", ".",
    "..", "../x",
    "../../../../tmp/x", "a/../../b", "./a", "%2e%2e%2fx", "..\\x", "-rf", "--help", "a=b&c=d", "{x:String}", "%(x)s",
    "%s%n",
    "a\x7f", "\ufeff", "n" * 900,
)  # fmt: skip
COLUMNS = (
    "n", "`n`", '"n"', "'n'", "a`b", "a``b", 'a"b', "a'b", "a\\b", "a\\`b", "a;b", "a\nb", "a\tb", "a b", " a", "a.b",
    "--", "/*", "#",
    "{x:String}", "%(x)s", "%s", "%", "c" * 1_000, "\u202eb", "\u200b", "ü", "1", "select", "NULL",
    "n Int8) ENGINE = Null --",
    "x` String) ENGINE = Null AS SELECT * FROM system.users --", "\U0001f600", "Nullable(", "a, b",
)  # fmt: skip
# Characters of keys: control characters, characters with a meaning in s3() and URLs, and letters of several bytes.
NAMES = st.sampled_from(
    "".join(map(chr, range(32))) + "\x7f *?{}[]%+&=#;:,'\"`\\$()!~@^|<>.-_aZ9/\u00e9\u2028\U0001f600"
)
# The names of ClickHouse's virtual columns of s3().
VIRTUAL = ("_path", "_file", "_size", "_time", "_etag")


def taken(loading: Loading, prefix: str) -> dict[str, int]:
    """Put an object of each name, and return those that this S3 stores under exactly that name."""
    for n, name in enumerate(KEYS):
        loading.put({f"{prefix}{name}": jsonl([{"n": n}])})
    pages = loading.s3.get_paginator("list_objects_v2").paginate(Bucket=loading.bucket, Prefix=prefix)
    listed = {one["Key"] for page in pages for one in page.get("Contents", [])}
    kept = {f"{prefix}{name}": n for n, name in enumerate(KEYS) if f"{prefix}{name}" in listed and is_data(name)}
    assert len(kept) > len(KEYS) - 8
    return kept


def is_data(key: str) -> bool:
    """Whether a load reads an object of this name: it ignores markers of writers."""
    return not key.rpartition("/")[2].startswith((".", "_"))


def honest(caplog: pytest.LogCaptureFixture) -> bool:
    """Whether no line of the log was forged by an object's name."""
    lines = [line for record in caplog.records for line in record.getMessage().splitlines()]
    assert lines
    return not any(line.startswith(("FORGED", "Set-Cookie")) or "\x1b" in line for line in lines)


@pytest.mark.guarantee("hostile-names")
@pytest.mark.parametrize("loader", ["pull", "push"])
def test_keys_are_data(loading: Loading, loader: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    keys = taken(loading, "in/")
    bad = f"in/bad\n{FORGED}"
    loading.put({bad: b"{no"})
    report = loading.load("in/", loader=loader, format="jsonl", system_columns=("_object",))
    assert sorted(loading.rows("_object, n")) == sorted(keys.items())
    assert set(loading.reasons()) == {bad}
    assert report.failed == 1
    assert honest(caplog)


@pytest.mark.guarantee("hostile-names")
@pytest.mark.parametrize("loader", ["pull", "push"])
@settings(max_examples=2, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(names=st.sets(st.text(NAMES, min_size=1, max_size=12), min_size=25, max_size=60))
def test_any_key_is_loaded_or_fails_alone(
    stack: Any, clickhouse: Any, s3_client: Any, loader: str, names: set[str]
) -> None:
    loading = Loading(stack, clickhouse, s3_client)  # the fixture's bucket would hold the objects of all examples
    loading.put({f"in/{name}": jsonl([{"n": n}]) for n, name in enumerate(sorted(names))})
    loading.put({"in/a\0b": jsonl([{"n": -1}]), "in/\x01": b"{no", "plain": jsonl([{"n": -2}])})
    pages = loading.s3.get_paginator("list_objects_v2").paginate(Bucket=loading.bucket)
    listed = {one["Key"] for page in pages for one in page.get("Contents", [])}
    assert {"in/a\0b", "in/\x01", "plain"} <= listed
    wanted = {f"in/{name}": n for n, name in enumerate(sorted(names))} | {"in/a\0b": -1, "plain": -2}
    wanted = {key: n for key, n in wanted.items() if is_data(key) and key != "in/\x01"}
    loading.load(loader=loader, format="jsonl", system_columns=("_object",))
    assert dict(loading.rows("_object, n")) == {key: n for key, n in wanted.items() if key in listed}
    assert set(loading.reasons()) == {"in/\x01"}


def test_keys_in_events_are_data(mailbox: Mailbox, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    keys = taken(mailbox, "in/")
    mailbox.arrive(len(keys))
    mailbox.drain(format="jsonl")
    assert sorted(mailbox.rows("n")) == sorted((n,) for n in keys.values())
    assert set(mailbox.events()) >= {(key, "ObjectCreated:Put") for key in keys}
    assert mailbox.depth() == (0, 0)
    assert honest(caplog)


CONTENTS = {
    "parquet": lambda row: parquet(pa.table({name: [value] for name, value in row.items()})),
    "jsonl": lambda row: jsonl([row]),
    "csv": lambda row: "".join(
        ",".join('"' + str(cell).replace('"', '""') + '"' for cell in line) + "\n" for line in (row, row.values())
    ).encode(),
}


@pytest.mark.guarantee("hostile-names")
@pytest.mark.parametrize(("form", "loader"), [(form, "pull") for form in CONTENTS] + [("csv", "push")])
def test_columns_are_called_as_in_the_object(loading: Loading, loader: str, form: str) -> None:
    row = {name: f"v{n}" for n, name in enumerate(COLUMNS)}
    loading.put({"a": CONTENTS[form](row)})
    loading.load(loader=loader, format=form)
    assert loading.reasons() == {}
    found = loading.clickhouse.query(f"SELECT * FROM {loading.table}")
    assert dict(zip(found.column_names, found.first_row, strict=True)) == row
    # once more, into the table of that state, with one column more
    loading.put({"b": CONTENTS[form]({**row, "new`\n": "v"})})
    loading.load(loader=loader, format=form, on_drift="add")
    assert loading.reasons() == {}
    assert loading.rows(identifier("new`\n")) == [("v",), (None,)]


@pytest.mark.parametrize("form", CONTENTS)
def test_a_column_cannot_pass_for_what_tells_objects_apart(loading: Loading, form: str) -> None:
    """Rows that claim to be of another object stay with their own, or the object is refused."""
    victim = f"{loading.bucket}/in/victim"
    claims = dict.fromkeys(VIRTUAL, "x") | {"_path": victim, "_file": "victim", "n": "1"}
    loading.put({"in/victim": CONTENTS[form]({"n": "0"}), "in/attacker": CONTENTS[form](claims)})
    loading.load("in/", loader="pull", format=form)  # checks that ledger and table agree
    states = {key: (state, rows) for key, (state, rows, *_) in loading.ledger().items()}
    assert states == {"in/victim": ("loaded", 1), "in/attacker": ("loaded", 1)}, loading.reasons()
    assert loading.rows("toString(n), _path") == [("0", None), ("1", victim)]


@pytest.mark.parametrize("nested", ["tuple", "json", "string"])
def test_names_within_objects_are_data(loading: Loading, nested: str) -> None:
    inner = {name: {"x Int8)": 1, name: [{"y`": 2}]} for name in COLUMNS if name.strip() and len(name) < 100}
    loading.put({"a": jsonl([{"id": 7, "inner": inner}])})
    loading.load(format="jsonl", nested=nested)
    assert loading.rows("id") == [(7,)] if not loading.reasons() else len(loading.reasons()) == 1


@pytest.mark.guarantee("hostile-names")
@pytest.mark.parametrize(
    "table",
    ["a`b'c\"d\\e;f\n--/*{x:String}%(x)s\u202e", "`x`", "t" * 170],
)
def test_tables_are_called_as_asked_for(loading: Loading, table: str) -> None:
    before = loading.query("SELECT count() FROM system.databases")
    name = f"{table}{loading.bucket[-8:]}"
    request = Request(Source(loading.bucket, collection="storeside_s3"), f"data.{name}", on_bad_rows="keep")
    for key, content, rows in (("a.csv", b"n\n1\n", 1), ("b.csv", b"n\nno\n2\n", 1)):
        loading.put({key: content})
        transfer = Transfer(request, loading.client(), loading.s3, key)
        report = transfer.run(transfer.prepare())
        assert (report.loaded, report.rows) == (1, rows)
    tables = {found for (found,) in loading.query("SELECT name FROM system.tables WHERE database = 'data'")}
    assert {name, f"{name}_rejected"} <= tables
    assert loading.query("SELECT count() FROM system.databases") == before


@pytest.mark.parametrize(
    "expression",
    [
        "tuple() AS SELECT * FROM system.users", "n) AS SELECT 1 AS n --", "n) COMMENT ('x'", "n -- x", "n /* x",
        "n # x", "n; SELECT 1",
        "'", "`n", "(n", "n))((", "$a$)$a$", "\u2018(\u2019)", "n) SETTINGS (x = 1",
    ],
)  # fmt: skip
def test_an_expression_says_no_more_than_it_may(expression: str) -> None:
    for name in ("order_by", "partition_by"):
        if expression.startswith("tuple() AS"):
            continue  # ClickHouse refuses it within the parentheses that it gets: see below
        with pytest.raises(TransferInputError, match=name):
            TableOptions(**{name: Expression(expression)}).check()
        with pytest.raises(TransferInputError, match=name):
            TableOptions(**{name: expression}).check()


def test_expressions_stay_expressions(loading: Loading) -> None:
    loading.put({"a.csv": b"city,day\nx,2026-01-02\n"})
    with pytest.raises(TransferInputError):
        loading.transfer(order_by=Expression("tuple() AS SELECT 1 AS city, 2 AS day")).prepare()
    assert loading.query(f"EXISTS {loading.table}") == [(0,)]
    keys = dict(order_by="(city, toYear(day))", partition_by=Expression('concat(city, \')`"--\') || "city"'))
    assert loading.load(**keys).rows == 1
    made = loading.query(
        "SELECT sorting_key, partition_key FROM system.tables WHERE database || '.' || name = {t:String}",
        t=loading.table,
    )
    assert made == [("city, toYear(day)", "(concat(concat(city, ')`\"--'), city))")]


def test_any_name_and_any_text_come_back_from_clickhouse(clickhouse: Any) -> None:
    rng = random.Random(0)  # noqa: S311
    letters = "`'\"\\\n\t\r\0;-/*%{}():ab"
    names = {"".join(rng.choices(letters, k=rng.randrange(1, 12))) for _ in range(600)}
    names |= {
        "".join(chr(rng.choice((rng.randrange(1, 0xD800), rng.randrange(0xE000, 0x110000)))) for _ in range(5))
        for _ in range(100)
    }
    columns = ", ".join(f"{literal(name)} AS {identifier(name)}" for name in names)
    (found,) = clickhouse.raw_query(f"SELECT {columns}", fmt="JSONEachRow").decode().split("\n")[:-1]
    assert json.loads(found) == {name: name for name in names}
