"""CSV and JSON Lines in S3: objects with and without rows, and the statements that read and check them.

tests/unit/test_reading_text.py has the values, and everything that is refused.
"""

from __future__ import annotations

import gzip
import logging
import re
from typing import Any

import pytest

from storeside.stack.servers import s3
from storeside.stack.settings import Stack
from storeside.transfer.run.engine import Prepared
from tests.transfers import Loaded, Loading, Refused, jsonl

LOADERS = ("pull", "push")
EMPTY = {
    "csv": [b"", b"\n", b" \n", b"n,s\n", b"n,s", b"\xef\xbb\xbfn,s\r\n", b"n,s\n\n\n"],
    "jsonl": [b"", b"\n", b" "],
    "tsv": [b"", b"n\ts\n"],
}
CASES: dict[str, dict[str, Loaded | Refused]] = {
    "csv": {
        "rows": Loaded(b'n,s\n1, x \n2,"a\n,b"\n', [(1, " x "), (2, "a\n,b")]),
        "blank lines": Loaded(b"\nn,s\r\n\r\n3,y\r\n", [(3, "y")]),
        "bad": Refused(b"n,s\n1,x\nbad,y\n2,z\n", re.compile("^row 1, column 'n'")),
        "utf8": Refused(b"n,s\n1,\xff\n", "row 0, column 's' has invalid UTF-8"),
    },
    "jsonl": {
        "rows": Loaded(b'{"n": 1, "s": "x"}\n{"n": 2}\n', [(1, "x"), (2, None)]),
        "array": Loaded(b'[{"n": 3},\n {"s": "z"}]', [(3, None), (None, "z")]),
        "bad": Refused(b'{"n": 1}\n{"n": "bad"}\n', "(row 1)"),
        "forbidden": Refused(
            b'{"n": 0}\n{"s": "\\a"}\n', "row 1 is not JSON (RFC 8259): Invalid \\escape at character 8"
        ),
    },
    "tsv": {
        "rows": Loaded(b'n\ts\n1\t x \n\t"a\tb"\n', [(1, " x "), (None, "a\tb")]),
        "bad": Refused(b"n\ts\n1x\t\n", "column 'n'"),
    },
}


@pytest.mark.guarantee("load-values")
@pytest.mark.parametrize("loader", LOADERS)
@pytest.mark.parametrize("form", CASES)
def test_text_is_loaded_or_refused(loading: Loading, loader: str, form: str) -> None:
    loading.create("n Nullable(Int64), s Nullable(String)")
    empty = {f"empty/{n}": Loaded(content) for n, content in enumerate(EMPTY[form])}
    prepared: list[Prepared] = []
    loading.cases({**CASES[form], **empty}, f".{form}", loader=loader, between=prepared.append)
    assert [(one.format, one.push) for one in prepared] == [(form, loader == "push")]


def statements_of(loading: Loading, what: str) -> list[Any]:
    """Return start, end and parsers of the logged statements that read this bucket and contain a text."""
    loading.clickhouse.command("SYSTEM FLUSH LOGS")
    return loading.query(
        "SELECT query_start_time_microseconds, event_time_microseconds, Settings['max_parsing_threads']"
        " FROM system.query_log WHERE type = 'QueryFinish' AND position(query, {what:String})"
        " AND position(query, {bucket:String}) AND NOT position(query, 'query_log')",
        what=what, bucket=loading.bucket,
    )  # fmt: skip


def test_json_lines_are_checked_while_they_are_loaded(loading: Loading) -> None:
    loading.create("n Int64")
    loading.put({"a.jsonl": b'{"n": 1234567}\n' * 3_000_000})  # so long that both run even if one begins late
    loading.load()
    ((load_began, load_ended, _),) = statements_of(loading, "JSONEachRow")
    ((check_began, check_ended, _),) = statements_of(loading, "isValidJSON")
    assert check_began < load_ended
    assert load_began < check_ended


@pytest.mark.parametrize(("key", "halved"), [("a.csv", True), ("a.jsonl", True), ("a.csv.gz", False)])
def test_half_of_the_cores_parse_text_that_is_not_compressed(loading: Loading, key: str, halved: bool) -> None:
    loading.create("n Int64")
    content = b'{"n": 1}\n' if "json" in key else b"n\n1\n"
    loading.put({key: gzip.compress(content) if key.endswith(".gz") else content})
    loading.load()
    cores = int(loading.query("SELECT getSetting('max_threads')")[0][0])
    ((_, _, parsers),) = statements_of(loading, "INSERT INTO storeside_staging")
    assert parsers == (str(max(1, cores // 2)) if halved else "")
    assert loading.rows() == [(1,)]


@pytest.mark.parametrize("form", ["csv", "jsonl"])
def test_an_object_without_rows_alone(loading: Loading, form: str, caplog: pytest.LogCaptureFixture) -> None:
    """Preparation finds that there is nothing to load, before a loader runs."""
    caplog.set_level(logging.INFO)
    found = {}
    for n, content in enumerate(EMPTY[form]):
        key = f"{n}/a.{form}"
        loading.put({key: content})
        transfer = loading.transfer(f"{n}/", format=form)
        report = transfer.run(transfer.prepare())
        said = f"1 objects have no rows, such as '{key}': {loading.table} is created when an object has one"
        found[content] = (report.loaded, report.failed, report.rows, said in caplog.text)
    assert found == dict.fromkeys(EMPTY[form], (1, 0, 0, True))
    assert not [one for one in caplog.records if one.levelno >= logging.WARNING]
    assert loading.query(f"EXISTS {loading.table}") == [(0,)]
    loading.put({f"b.{form}": b"n,s\n1,x\n" if form == "csv" else jsonl([{"n": 1, "s": "x"}])})
    assert loading.load(format=form).rows == 1
    assert loading.rows() == [(1, "x")]


@pytest.mark.parametrize("compressed", [False, True])
def test_the_row_of_a_faulty_value_is_found_without_reading_the_rest(
    loading: Loading, stack: Stack, compressed: bool
) -> None:
    """ClickHouse looks for it, up to that row; the worker reads the object's first bytes only."""
    client = s3.of_stack("s3", stack)
    ranges: list[str] = []
    client.meta.events.register(
        "provide-client-params.s3.GetObject", lambda params, **_: ranges.append(params.get("Range", "whole"))
    )
    rows, faulty = 1_000_000, 1000
    content = b"n,s\n" + b"".join(b"%d,%b\n" % (n % 99, b"\xff" if n == faulty else b"x") for n in range(rows))
    loading.create("n UInt8, s String")
    loading.put({"a.csv": gzip.compress(content, 1) if compressed else content})
    loading.load(format="csv", s3=client)
    assert loading.reasons() == {
        "a.csv": f"row {faulty}, column 's' has invalid UTF-8: set csv.encoding to the object's"
    }
    assert set(ranges) == {"bytes=0-9"}
    loading.clickhouse.command("SYSTEM FLUSH LOGS")
    ((read,),) = loading.query(
        "SELECT read_rows FROM system.query_log WHERE type = 'QueryFinish' AND query LIKE 'SELECT _row_number FROM%'"
        " AND position(query, {bucket:String})",
        bucket=loading.bucket,
    )
    assert faulty < read < rows // 2
