"""Malformed objects: each fails with its own reason, all others are loaded, none partially."""

from __future__ import annotations

import gzip
import http.client
import lzma
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import SplitResult, unquote, urlsplit

import pyarrow as pa
import pytest

from storeside.stack import s3
from storeside.stack.settings import HOST, Stack
from storeside.transfer.engine import Transfer
from storeside.transfer.errors import TransferInputError, TransferTransientError
from storeside.transfer.request import Request
from storeside.transfer.source import Source
from tests.transfers import Loading, jsonl, parquet

pytestmark = pytest.mark.timeout(120)

LOADERS = ("pull", "push")


@pytest.fixture
def loading(stack: Stack, clickhouse: Any, s3_client: Any) -> Loading:
    return Loading(stack, clickhouse, s3_client)


def expect(loading: Loading, failing: Mapping[str, str], rows: Mapping[str, int]) -> None:
    """Check that exactly these objects fail, for reasons with these words, and the others have these row counts."""
    reasons = loading.reasons()
    assert {key: word for key, word in failing.items() if word not in reasons.get(key, "")} == {}, reasons
    assert set(reasons) == set(failing)
    loaded = {key: count for key, (state, count, _, _) in loading.ledger().items() if state == "loaded"}
    assert loaded == rows


# A row of each kind of wrong value, words of its reason, and its column.
TYPES = "u UInt8, i Int64, t DateTime('UTC'), d Date, dec Decimal(9, 2), h UInt128, s String, m DateTime64(3, 'UTC')"
GOOD = {
    "u": "2", "i": "3", "t": "2020-01-02 03:04:05", "d": "2020-01-02", "dec": "1.5", "h": "7", "s": "x",
    "m": "2020-01-02 03:04:05.678",
}  # fmt: skip
WRONG = {
    "u": {"300": "'u'", "-1": "'u'", "1.5": "'u'", "zz": "'u'", "": "NULL"},
    "i": {"100000000000000000000": "'i'", "1e20": "'i'", "9223372036854775808": "'i'"},
    "t": {
        "2200-01-02 03:04:05": "out of bounds", "1950-01-02 03:04:05": "out of bounds", "2020-13-45 00:00:00": "'t'",
        "2020-01-02 03:04:05.5": "whole",
    },
    "d": {"2200-01-02": "out of bounds", "1066-01-02": "out of bounds", "2020-02-31": "'d'", "2021-02-29": "'d'"},
    "dec": {"1.239": "'dec'", "123456789.01": "too big", "1e50": "too big"},
    "h": {"-1": "'h'", "340282366920938463463374607431768211456": "'h'"},
    "s": {"\udcff\udcfe": "'s' has invalid UTF-8"},
    "m": {"2020-01-02 03:04:05.6789": "'m'"},
}  # fmt: skip


@pytest.mark.parametrize(("form", "loader"), [("csv", "pull"), ("csv", "push"), ("jsonl", "push")])
def test_values_that_a_column_cannot_hold(loading: Loading, loader: str, form: str) -> None:
    loading.create(TYPES)
    objects, failing = {}, {}

    def write(values: Mapping[str, str]) -> bytes:
        if form == "csv":
            text = ",".join(values) + "\n" + ",".join(values.values()) + "\n"
        else:
            as_numbers = {"u", "i", "h", "dec"}
            parts = (f'"{k}": {v if k in as_numbers and v[:1] not in "z" else repr_(v)}' for k, v in values.items())
            text = "{" + ", ".join(parts) + "}\n"
        return text.encode("utf-8", "surrogateescape")

    def repr_(text: str) -> str:
        return f'"{text}"' if text else "null"

    for column, wrong in WRONG.items():
        for n, (value, word) in enumerate(wrong.items()):
            objects[f"{column}{n}.{form}"] = write({**GOOD, column: value})
            # JSON continues after the 1 of 1.5 or 1e20, and then misses a comma.
            failing[f"{column}{n}.{form}"] = "Cannot parse" if form == "jsonl" and value in ("1.5", "1e20") else word
            if form == "csv" and column == "t":
                failing[f"{column}{n}.{form}"] = "'t' has a value that DateTime('UTC') cannot hold whole"
    if form == "jsonl":
        failing["s0.jsonl"] = "row 0 is not JSON (RFC 8259): invalid UTF-8 at byte"  # the check for JSON comes first
        objects["u4.jsonl"] = write({**GOOD, "u": ""}).replace(b'"u": ,', b'"u": null,')
    loading.put({**objects, f"good1.{form}": write(GOOD), f"good2.{form}": write({**GOOD, "u": "255"})})
    loading.load(loader=loader)
    expect(loading, failing, {f"good1.{form}": 1, f"good2.{form}": 1})
    assert loading.rows("u, i, toString(t), toString(d), toString(dec), toString(h), s, toString(m)") == [
        (u, 3, GOOD["t"], GOOD["d"], "1.5", "7", "x", GOOD["m"]) for u in (2, 255)
    ]


@pytest.mark.parametrize("loader", LOADERS)
def test_wrong_values_within_nested_json(loading: Loading, loader: str) -> None:
    loading.create("a Array(UInt8), t Tuple(x Int8, y Nullable(String)), m Map(String, UInt16)")
    good = {"a": [1, 255], "t": {"x": -128, "y": "s"}, "m": {"k": 65535}}
    loading.put(
        {
            "array.jsonl": jsonl([{**good, "a": [1, 256]}]),
            "tuple.jsonl": jsonl([{**good, "t": {"x": 128, "y": None}}]),
            "map.jsonl": jsonl([{**good, "m": {"k": -1}}]),
            "unknown.jsonl": jsonl([{**good, "t": {"x": 1, "y": "s", "z": 2}}]),
            "late.jsonl": jsonl([{**good, "late": 1}]),  # a key without a column, after all others
            "twice.jsonl": b'{"a": [1], "t": {"x": 1, "y": "s"}, "m": {}, "a": [2]}\n',
            "good.jsonl": jsonl([good]),
        }
    )
    loading.load(loader=loader)
    failing = {
        "array": "'a'",
        "tuple": "'t'",
        "map": "'m'",
        "unknown": "'t'",
        "late": "late",
        "twice": "Duplicate field",
    }
    expect(loading, {f"{name}.jsonl": word for name, word in failing.items()}, {"good.jsonl": 1})
    assert loading.rows() == [([1, 255], {"x": -128, "y": "s"}, {"k": 65535})]


BIG = b"n,s\n" + b"".join(b"%d,x%d\n" % (n, n * 7919 % 10007) for n in range(60_000))


def broken_objects() -> dict[str, tuple[bytes, str]]:
    """Return broken CSV objects, each with a word of its reason."""
    gz, xz = gzip.compress(BIG), lzma.compress(BIG)
    found = {
        "damaged.csv.gz": (gz[: len(gz) // 2] + bytes(80) + gz[len(gz) // 2 + 80 :], "inflate"),
        "cut.csv.gz": (gz[: len(gz) // 2], "inflate"),
        "begun.csv.gz": (gz[:5], "inflate"),
        "cut.csv.xz": (xz[:-100], "lzma"),
        "parquet.csv": (parquet({"n": [1]}), "is a Parquet file"),
        "unknown.csv": (b"n,s,z\n1,x,2\n", "z"),
        "twice.csv": (b"n,n,s\n1,2,x\n", "Duplicate field"),
        "less.csv": (b"n,s\n1\n", "row 0"),
        "more.csv": (b"n,s\n1,x,2\n", "row 0"),
        "utf-16.csv": ("n,s\n1,x\n".encode("utf-16"), "it is text in UTF-16"),
        "zeros.csv": (bytes(10_000), "Unknown field"),
    }
    for kind, suffix in (("zstd", "zst"), ("lz4", "lz4"), ("bz2", "bz2")):
        sink = pa.BufferOutputStream()
        with pa.CompressedOutputStream(sink, kind) as stream:
            stream.write(BIG)
        content = sink.getvalue().to_pybytes()
        found[f"cut.csv.{suffix}"] = (content[: len(content) * 2 // 3], "content is broken")
        found[f"cut {kind}, misnamed.csv"] = (content[: len(content) * 2 // 3], "content is broken")
    return found


@pytest.mark.parametrize("loader", LOADERS)
def test_broken_text(loading: Loading, loader: str) -> None:
    broken = broken_objects()
    loading.create("n Int64, s String")
    loading.put({key: content for key, (content, _) in broken.items()})
    loading.put({"good.csv": BIG, "good.csv.gz": gzip.compress(BIG), "empty.csv": b"", "header.csv": b"n,s\n"})
    report = loading.load(loader=loader, format="csv")
    rows = {"good.csv": 60_000, "good.csv.gz": 60_000, "empty.csv": 0, "header.csv": 0}
    expect(loading, {key: word for key, (_, word) in broken.items()}, rows)
    assert (report.loaded, report.failed, report.rows) == (4, len(broken), 120_000)
    assert loading.query(f"SELECT count(), sum(n), countIf(s != concat('x', toString(n * 7919 % 10007))) FROM"
                         f" {loading.table}") == [(120_000, 60_000 * 59_999, 0)]  # fmt: skip


@pytest.mark.parametrize("loader", LOADERS)
def test_broken_parquet(loading: Loading, loader: str) -> None:
    loading.create("n Int64, s Nullable(String)")
    good = parquet({"n": range(1000), "s": [f"s{n}" for n in range(1000)]}, row_group_size=100)
    table = pa.table([pa.array([1]), pa.array([2])], names=["n", "n"])
    damaged = bytearray(good)
    damaged[200:1200] = bytes(1000)
    broken = {
        "cut.parquet": (good[: len(good) // 2], "Parquet"),
        "begun.parquet": (good[:4], "Parquet"),
        "damaged.parquet": (bytes(damaged), ""),
        "no-footer.parquet": (good[:-8] + b"\0" * 4 + b"PAR1", ""),
        "text.parquet": (b"n,s\n1,x\n" * 10, "does not begin like a Parquet file"),
        "empty.parquet": (b"", "empty"),
        "twice.parquet": (parquet(table), "2 times"),
        "unknown.parquet": (parquet({"n": [1], "s": ["x"], "z": [1]}), "'z'"),
        "type.parquet": (parquet({"n": ["x"], "s": ["x"]}), "cannot convert"),
        "null.parquet": (parquet({"n": pa.array([1, None], pa.int64()), "s": ["x", "y"]}), "column n"),
        "wide.parquet": (parquet({"n": pa.array([2**64 - 1], pa.uint64()), "s": ["x"]}), "'n'"),
        "decimal.parquet": (parquet({"n": pa.array([1.5], pa.float64()), "s": ["x"]}), "cannot convert"),
    }
    loading.put({key: content for key, (content, _) in broken.items()})
    loading.put({f"good{n}.parquet": good for n in range(3)})
    loading.load(loader=loader, format="parquet")
    expect(loading, {key: word for key, (_, word) in broken.items()}, {f"good{n}.parquet": 1000 for n in range(3)})
    assert all(loading.reasons().values())
    assert loading.query(f"SELECT sum(n), countIf(s != concat('s', toString(n))) FROM {loading.table}") == [
        (3 * 499_500, 0)
    ]


@pytest.mark.parametrize("loader", LOADERS)
def test_parquet_values_are_never_cut(loading: Loading, loader: str) -> None:
    import datetime as dt
    from decimal import Decimal

    loading.create("n UInt8, d Decimal(9, 2), t DateTime64(3), f Float32")
    moment = dt.datetime(2020, 1, 2, 3, 4, 5, 678000)

    def row(n: int = 1, d: str = "1.2500", t: dt.datetime = moment, f: float = 0.5) -> bytes:
        columns = {
            "n": pa.array([n], pa.int64()), "d": pa.array([Decimal(d)], pa.decimal128(18, 4)),
            "t": pa.array([t], pa.timestamp("us")), "f": pa.array([f], pa.float64()),
        }  # fmt: skip
        return parquet(columns)

    loading.put(
        {
            "good.parquet": row(),
            "n.parquet": row(n=256),
            "d.parquet": row(d="1.2345"),
            "D.parquet": row(d="99999999.2500"),
            "t.parquet": row(t=moment.replace(microsecond=678901)),
            "f.parquet": row(f=0.1),
        }
    )
    loading.load(loader=loader)
    failing = {"n": "'n'", "d": "'d'", "D": "'d'", "t": "'t'", "f": "'f'"}
    expect(loading, {f"{name}.parquet": word for name, word in failing.items()}, {"good.parquet": 1})
    assert loading.rows("n, toString(d), toString(t), f") == [(1, "1.25", "2020-01-02 03:04:05.678", 0.5)]


def test_mixed_formats_under_one_prefix(loading: Loading) -> None:
    loading.put({"a.csv": b"n,s\n1,x\n", "b.jsonl": jsonl([{"n": 2, "s": "y"}]), "c.parquet": parquet({"n": [3]})})
    loading.load(format="csv")
    expect(loading, {"b.jsonl": "", "c.parquet": "is a Parquet file"}, {"a.csv": 1})
    assert loading.rows() == [(1, "x")]


# bad rows

ROWS = [b'%d,row" %d\n' % (n, n) for n in range(2000)]
BAD = {0: b"zero,x\n", 1: b"1e3,x\n", 700: b'7,"a\nb",c\n', 1000: b"300,\xff\n", 1998: b"\n,x\n", 1999: b"9\n"}


def with_bad_rows() -> bytes:
    lines = [*ROWS]
    for n, line in BAD.items():
        lines[n] = line.lstrip(b"\n")
    return b"n,s\n" + b"".join(lines)


@pytest.mark.parametrize("loader", LOADERS)
@pytest.mark.parametrize("compressed", [False, True])
def test_bad_rows_are_skipped_or_kept(loading: Loading, loader: str, compressed: bool) -> None:
    content = with_bad_rows()
    key = "bad.csv.gz" if compressed else "bad.csv"
    loading.create("n Int64, s String")
    loading.put({key: gzip.compress(content) if compressed else content, "good.csv": b"n,s\n-1,fine\n"})
    report = loading.load(loader=loader, on_bad_rows="keep", system_columns=("_object", "_row_number"))
    assert (report.loaded, report.failed, report.rows, report.rejected) == (2, 0, 2001 - len(BAD), len(BAD))
    assert loading.ledger()[key][:3] == ("loaded", 2000 - len(BAD), len(BAD))
    assert loading.rows("n, s, _row_number", "n") == [
        (-1, "fine", 0), *((n, f'row" {n}', n) for n in range(2000) if n not in BAD),
    ]  # fmt: skip
    kept = loading.query(
        f"SELECT row_number, raw, key, reason FROM {loading.table}_rejected FINAL ORDER BY row_number"
    )
    assert [(row, raw, kept_key) for row, raw, kept_key, _ in kept] == [
        (n, line.strip(b"\n").decode("utf-8", "backslashreplace"), key) for n, line in BAD.items()
    ]
    assert all(reason for *_, reason in kept)


@pytest.mark.parametrize("loader", LOADERS)
def test_bad_rows_over_the_limit_fail_their_object(loading: Loading, loader: str) -> None:
    loading.create("n Int64, s String")
    loading.put({"bad.csv": with_bad_rows(), "good.csv": b"n,s\n-1,fine\n", "one.csv": b"n,s\n1,a\nx,b\n2,c\n"})
    loading.load(loader=loader, on_bad_rows="skip", max_bad_rows=len(BAD) - 1)
    expect(loading, {"bad.csv": f"over {len(BAD) - 1} rows"}, {"good.csv": 1, "one.csv": 2})
    assert loading.rows() == [(-1, "fine"), (1, "a"), (2, "c")]


@pytest.mark.parametrize("loader", LOADERS)
def test_rejected_rows_are_those_of_the_last_try(
    loading: Loading, loader: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("storeside.transfer.salvage._KEPT_AT_ONCE", 1)
    loading.create("n UInt8")
    loading.put({"bad.csv": b"n\n1\n300\nx\n"})

    def rejected() -> list[tuple[Any, ...]]:
        return loading.query(f"SELECT row_number, raw FROM {loading.table}_rejected FINAL ORDER BY 1")

    loading.load(loader=loader, format="csv", on_bad_rows="keep", max_bad_rows=1)
    expect(loading, {"bad.csv": "over 1 rows"}, {})
    assert rejected() == []
    loading.clickhouse.command(  # a try that was killed
        f"INSERT INTO {loading.table}_rejected (load_id, key, row_number, raw)"
        f" SELECT load_id, key, 1, '300' FROM storeside.loads WHERE bucket = '{loading.bucket}'"
    )
    loading.clickhouse.command(f"ALTER TABLE {loading.table} MODIFY COLUMN n UInt16")
    loading.load(loader=loader, format="csv", on_bad_rows="keep", max_bad_rows=1, retry_failed=True)
    assert (loading.rows("n"), rejected()) == ([(1,), (300,)], [(2, "x")])


def test_bad_json_rows(loading: Loading) -> None:
    lines = [b'{"n": 1}', b"{", b"[2]", b"", b'{"n": "x"}', b'{"n": 5}', b"nonsense", b'{"n": 1e30}', b'{"n": 8}']
    loading.create("n Int64")
    loading.put({"a.jsonl": b"\n".join(lines)})
    report = loading.load(on_bad_rows="keep", system_columns=("_row_number",))
    assert (report.rows, report.rejected) == (3, 5)
    assert loading.rows("n, _row_number") == [(1, 0), (5, 4), (8, 7)]
    assert [raw for (raw,) in loading.query(f"SELECT raw FROM {loading.table}_rejected ORDER BY row_number")] == [
        "{", "[2]", '{"n": "x"}', "nonsense", '{"n": 1e30}',
    ]  # fmt: skip


def test_a_row_that_does_not_end(loading: Loading, monkeypatch: pytest.MonkeyPatch) -> None:
    from storeside.transfer import records

    monkeypatch.setattr(records, "LONGEST_ROW", 1 << 20)
    loading.create("n Int64, s String")
    long = b"1," + b"x" * (5 << 20)
    loading.put({"long.csv": b"n,s\nbad,y\n" + long + b"\n", "good.csv": b"n,s\n1,x\n"})
    loading.load(on_bad_rows="skip")
    expect(loading, {"long.csv": "does not end within 1 MB"}, {"good.csv": 1})


# drift


@pytest.mark.parametrize(
    ("form", "loader"), [("csv", "pull"), ("jsonl", "push"), ("parquet", "pull"), ("parquet", "push")]
)
def test_drift(loading: Loading, loader: str, form: str) -> None:
    def write(rows: list[dict[str, Any]]) -> bytes:
        if form == "jsonl":
            return jsonl(rows)
        if form == "parquet":
            return parquet(pa.Table.from_pylist(rows))
        return b"".join(",".join(map(str, row)).encode() + b"\n" for row in [[*rows[0]], *(r.values() for r in rows)])

    loading.create("n Nullable(Int8), s Nullable(String)")
    objects = {
        "a": [{"n": 1, "s": "x"}],
        "more": [{"n": 2, "s": "y", "z": 7}],
        "wide": [{"n": 3, "s": "y"}, {"n": 300, "s": "y"}],
        "less": [{"n": 4}],
        "order": [{"s": "z", "n": 5}],
    }
    loading.put({f"{name}.{form}": write(rows) for name, rows in objects.items()})
    loading.load(loader=loader)
    expect(
        loading, {f"more.{form}": "z", f"wide.{form}": "n"}, {f"a.{form}": 1, f"less.{form}": 1, f"order.{form}": 1}
    )
    assert loading.rows() == [(1, "x"), (4, None), (5, "z")]

    loading.load(loader=loader, on_drift="rest", retry_failed=True)
    expect(loading, {f"wide.{form}": "n"}, {f"a.{form}": 1, f"less.{form}": 1, f"order.{form}": 1, f"more.{form}": 1})
    assert (2, "y", {"z": "7"}) in loading.rows()

    loading.put({f"again.{form}": write([{"n": 6, "s": "y", "z": 8}])})
    loading.load(loader=loader, on_drift="add", retry_failed=True)
    assert set(loading.reasons()) == {f"wide.{form}"}
    assert loading.rows("n, z", "n")[-1] == (6, 8)

    loading.load(loader=loader, on_drift="widen", retry_failed=True)
    assert loading.reasons() == {}
    assert loading.rows("n", "n") == [(1,), (2,), (3,), (4,), (5,), (6,), (300,)]
    assert loading.types()["n"] in ("Nullable(Int64)", "Nullable(Int16)")


def test_a_table_that_cannot_become_wide_enough_costs_only_that_object(loading: Loading) -> None:
    loading.create("id UInt32, s String", order_by="id")
    loading.put({"good.csv": b"id,s\n1,x\n", "letters.csv": b"id,s\nabc,y\n"})
    loading.load(on_drift="widen", format="csv")
    expect(loading, {"letters.csv": "part of its key"}, {"good.csv": 1})


# objects that change or cannot be read


@pytest.mark.parametrize("loader", LOADERS)
@pytest.mark.parametrize("form", ["csv", "parquet"])
def test_objects_that_are_deleted_or_overwritten_after_the_listing(loading: Loading, loader: str, form: str) -> None:
    def write(n: int) -> bytes:
        return b"n\n%d\n" % n if form == "csv" else parquet({"n": [n]})

    loading.create("n Int64")
    loading.put({f"{n}.{form}": write(n) for n in range(4)})

    def change(_: Any) -> None:
        loading.s3.delete_object(Bucket=loading.bucket, Key=f"1.{form}")
        loading.put({f"2.{form}": write(22)})

    loading.load(loader=loader, between=change)
    expect(loading, {f"1.{form}": "deleted", f"2.{form}": "overwritten"}, {f"0.{form}": 1, f"3.{form}": 1})
    assert loading.rows() == [(0,), (3,)]
    loading.load(loader=loader)  # the new version is another object
    assert loading.rows() == [(0,), (3,), (22,)]
    loading.put({f"{n}.{form}": write(n) for n in (1, 2)})
    loading.load(loader=loader)  # the versions that were listed at first exist again
    assert loading.rows() == [(0,), (1,), (2,), (3,), (22,)]


@pytest.mark.parametrize("form", ["csv", "parquet"])
def test_many_objects_are_listed_again_instead_of_asked_for(loading: Loading, form: str) -> None:
    """One request per object to read, none for others; empty objects and those no longer listed are noticed."""

    def write(*numbers: int) -> bytes:
        if form == "csv":
            return b"n\n" + b"".join(b"%d\n" % n for n in numbers)
        return parquet({"n": pa.array(numbers, pa.int64())})

    objects = {f"ü/{n:02} +.{form}": write(1) for n in range(60)} | {f"ü/empty.{form}": write()}
    if form == "csv":
        objects["ü/zipped.csv.gz"] = gzip.compress(write(1))
    loading.put(objects)
    loading.create("n Int64")
    transfer = loading.transfer("ü/", loader="pull", format=form)
    prepared = transfer.prepare()
    loading.s3.delete_object(Bucket=loading.bucket, Key=f"ü/07 +.{form}")
    loading.put({f"ü/08 +.{form}": write(2), f"ü/later.{form}": write(2)})
    report = transfer.run(prepared)
    loading.check(report)
    wrong = {f"ü/07 +.{form}": "deleted", f"ü/08 +.{form}": "overwritten"}
    expect(loading, wrong, {key: 0 if "empty" in key else 1 for key in objects if key not in wrong})
    loading.clickhouse.command("SYSTEM FLUSH LOGS")
    read, heads = loading.query(
        "SELECT max(read), argMax(head, read) FROM (SELECT ProfileEvents['EngineFileLikeReadFiles'] AS read,"
        " ProfileEvents['S3HeadObject'] AS head FROM system.query_log"
        " WHERE startsWith(query_id, {prefix:String}) AND type = 'QueryFinish')",
        prefix=f"storeside-load_{transfer.id}_",
    )[0]
    assert read > 20  # of the statement that read most of them
    assert heads == 0


@dataclass
class Faults:
    """An S3 server's answers in place of objects: by key, a status and how often."""

    denied: set[str] = field(default_factory=set)
    slow: dict[str, int] = field(default_factory=dict)
    cut: dict[str, int] = field(default_factory=dict)
    bare_etags: bool = False
    refused: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)


class FaultyHandler(BaseHTTPRequestHandler):
    """Answers with a fault, or as the server behind it does."""

    protocol_version = "HTTP/1.1"
    faults: Faults
    upstream: SplitResult
    access_key: str

    def log_message(self, *_: Any) -> None:
        pass

    def do_GET(self) -> None:
        key = unquote(urlsplit(self.path).path).split("/", 2)[-1]
        with self.faults.lock:
            busy = self.faults.slow.get(key, 0)
            self.faults.slow[key] = busy - 1
            cut = self.command == "GET" and self.faults.cut.get(key, 0) > 0
            self.faults.cut[key] = self.faults.cut.get(key, 0) - cut
        if self.faults.bare_etags and not self.headers.get("If-Match", '"').startswith('"'):
            self.faults.refused += 1
            self._fail(412, "PreconditionFailed")
        elif key in self.faults.denied:
            self._fail(403, "AccessDenied")
        elif busy > 0:
            self._fail(503, "SlowDown")
        else:
            self._forward(cut)

    do_HEAD = do_GET

    def _fail(self, status: int, code: str) -> None:
        body = f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>no</Message></Error>".encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/xml")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    def _forward(self, cut: bool) -> None:
        connection = http.client.HTTPConnection(self.upstream.hostname or HOST, self.upstream.port)
        headers = {name: value for name, value in self.headers.items() if name.lower() != "host"}
        headers.setdefault(
            "Authorization",
            f"AWS4-HMAC-SHA256 Credential={self.access_key}/20200101/us-east-1/s3/aws4_request,"
            " SignedHeaders=host, Signature=0",
        )
        connection.request(self.command, self.path, headers=headers)
        answer = connection.getresponse()
        body = answer.read()
        if self.faults.bare_etags and body.startswith(b"<") and b"<ListBucketResult" in body:
            body = body.replace(b"&quot;", b"").replace(b'<ETag>"', b"<ETag>").replace(b'"</ETag>', b"</ETag>")
        self.send_response(answer.status)
        for name, value in answer.getheaders():
            if name.lower() not in ("transfer-encoding", "connection", "date", "server", "content-length"):
                self.send_header(name, value)
        length = answer.getheader("Content-Length") if self.command == "HEAD" else len(body)
        self.send_header("Content-Length", str(length))
        self.end_headers()
        self.wfile.write(body[: len(body) // 2] if cut else body)
        if cut:
            self.close_connection = True
        connection.close()


@contextmanager
def faulty(stack: Stack, faults: Faults) -> Iterator[str]:
    """Run a faulty proxy of the stack's S3 that signs requests of clients without keys."""
    handler = type("Handler", (FaultyHandler,), {"faults": faults, "upstream": urlsplit(stack.url("s3")),
                                                 "access_key": s3.keys(stack)[0]})  # fmt: skip
    server = ThreadingHTTPServer((HOST, 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://{HOST}:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()


@pytest.mark.parametrize("form", ["csv", "parquet"])
def test_etags_that_are_others_in_listings_than_in_answers(loading: Loading, stack: Stack, form: str) -> None:
    """Like AIStore: it refuses the listed ETag, so ClickHouse requests the objects one by one."""
    loading.create("n Int64")
    loading.put({f"{n}.{form}": b"n\n%d\n" % n if form == "csv" else parquet({"n": [n]}) for n in range(30)})
    faults = Faults(bare_etags=True)
    with faulty(stack, faults) as url:
        client = s3.client("s3", url, *s3.keys(stack))
        request = Request(Source(loading.bucket, endpoint=url), loading.table, loader="pull", format=form)
        transfer = Transfer(request, loading.client(), client, loading.table)
        report = transfer.run(transfer.prepare())
    assert faults.refused
    assert (report.loaded, report.failed) == (30, 0)
    assert loading.rows("n", "n") == [(n,) for n in range(30)]


@pytest.mark.parametrize("loader", LOADERS)
@pytest.mark.parametrize("form", ["csv", "parquet"])
def test_a_denied_object_fails_alone_and_a_busy_server_is_waited_for(
    loading: Loading, stack: Stack, loader: str, form: str
) -> None:
    loading.create("n Int64")
    loading.put({f"{n}.{form}": b"n\n%d\n" % n if form == "csv" else parquet({"n": [n]}) for n in range(4)})
    faults = Faults(denied={f"1.{form}"}, slow={f"2.{form}": 2})
    with faulty(stack, faults) as url:
        client = s3.client("s3", url, *s3.keys(stack))
        source = Source(loading.bucket, endpoint=url)
        transfer = Transfer(
            Request(source, loading.table, loader=loader, format=form), loading.client(), client, loading.table
        )
        report = transfer.run(transfer.prepare())
    loading.check(report)
    expect(loading, {f"1.{form}": "403"}, {f"{n}.{form}": 1 for n in (0, 2, 3)})
    assert loading.rows() == [(0,), (2,), (3,)]
    assert faults.slow[f"2.{form}"] < 0


@pytest.mark.timeout(400)  # ClickHouse and boto3 repeat each request many times
@pytest.mark.parametrize(("form", "loader"), [("parquet", "pull"), ("csv", "push")])
def test_an_object_for_which_s3_is_too_busy_fails_alone(
    loading: Loading, stack: Stack, monkeypatch: pytest.MonkeyPatch, loader: str, form: str
) -> None:
    monkeypatch.setattr("storeside.transfer.staged.ATTEMPTS", 2)
    loading.create("n Int64")
    loading.put({f"{n}.{form}": b"n\n%d\n" % n if form == "csv" else parquet({"n": [n]}) for n in range(4)})
    faults = Faults(slow={f"2.{form}": 1 << 20})
    with faulty(stack, faults) as url:
        source = Source(loading.bucket, endpoint=url)
        request = Request(source, loading.table, loader=loader, format=form)
        transfer = Transfer(request, loading.client(), s3.client("s3", url, *s3.keys(stack)), loading.table)
        report = transfer.run(transfer.prepare())
        loading.check(report)
        expect(loading, {f"2.{form}": "it cannot be read at the moment"}, {f"{n}.{form}": 1 for n in (0, 1, 3)})
        faults.slow = {}
        again = Transfer(request, loading.client(), s3.client("s3", url, *s3.keys(stack)), "again")
        assert again.run(again.prepare()).loaded == 1  # without `retry_failed`
    assert loading.rows() == [(0,), (1,), (2,), (3,)]


@pytest.mark.timeout(400)
def test_a_server_that_is_too_busy_for_all_objects_ends_the_load(
    loading: Loading, stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("storeside.transfer.staged.ATTEMPTS", 1)
    loading.create("n Int64")
    loading.put({f"{n}.csv": b"n\n%d\n" % n for n in range(8)})
    with faulty(stack, Faults(slow={f"{n}.csv": 1 << 20 for n in range(8)})) as url:
        request = Request(Source(loading.bucket, endpoint=url), loading.table, loader="push", format="csv")
        transfer = Transfer(request, loading.client(), s3.client("s3", url, *s3.keys(stack)), loading.table)
        with pytest.raises(TransferTransientError, match=r"503|SlowDown"):
            transfer.run(transfer.prepare())
    assert len(loading.reasons()) == 1


def test_an_answer_that_breaks_off_is_asked_for_again(loading: Loading, stack: Stack) -> None:
    loading.create("n Int64, s String")
    loading.put({"a.csv": BIG, "b.csv.gz": gzip.compress(BIG)})
    faults = Faults(cut={"a.csv": 1, "b.csv.gz": 1})
    with faulty(stack, faults) as url:
        client = s3.client("s3", url, *s3.keys(stack))
        request = Request(Source(loading.bucket, endpoint=url), loading.table, loader="push", format="csv")
        transfer = Transfer(request, loading.client(), client, loading.table)
        report = transfer.run(transfer.prepare())
    loading.check(report)
    assert faults.cut["a.csv"] == faults.cut["b.csv.gz"] == 0
    expect(loading, {}, {"a.csv": 60_000, "b.csv.gz": 60_000})
    assert loading.query(f"SELECT sum(n) FROM {loading.table}") == [(60_000 * 59_999,)]


# requests that cannot be carried out


def test_requests_that_cannot_be_carried_out_say_why(loading: Loading) -> None:
    loading.put({"a.csv": b"n,s\n1,x\n"})
    with pytest.raises(TransferInputError, match="'absent' has a type but is in no sample"):
        loading.load(columns={"absent": "Int8"})
    loading.clickhouse.command(f"CREATE TABLE {loading.table} (n Int64) ENGINE = Memory")
    with pytest.raises(TransferInputError, match="engine Memory"):
        loading.load()
    loading.clickhouse.command(f"DROP TABLE {loading.table}")
    with pytest.raises(TransferInputError, match="cannot read"):
        loading.load(loader="pull", collection="absent")
    loading.put({"b": b"\0\1\2"})
    with pytest.raises(TransferInputError, match=r"such as 'b': set `format`"):
        loading.load("b")


def test_all_or_nothing_loads_nothing_beside_a_bad_object(loading: Loading) -> None:
    loading.create("n Int64")
    loading.put({"a.csv": b"n\n1\n", "b.csv": b"n\nx\n", "c.csv": b"n\n3\n"})
    with pytest.raises(TransferInputError, match=r"1 objects cannot be loaded.*b\.csv"):
        loading.load(all_or_nothing=True)
    assert loading.rows() == []
    loading.put({"b.csv": b"n\n2\n"})
    loading.load(all_or_nothing=True, batch_objects=1)
    assert loading.rows() == [(1,), (2,), (3,)]


@pytest.mark.parametrize("loader", LOADERS)
@pytest.mark.parametrize(
    ("key", "content", "reason"),
    [
        ("a.parquet", parquet({"n": [1]}), "it is a Parquet file"),
        ("a.csv.gz", b"\x1f\x8bx", "its gzip content is broken"),
    ],
)
def test_objects_that_show_no_columns_do_not_count_as_loaded(
    loading: Loading, loader: str, key: str, content: bytes, reason: str
) -> None:
    loading.put({key: content})
    with pytest.raises(TransferInputError, match=f"{key}.: {reason}"):
        loading.transfer(loader=loader, format="csv").prepare()
    loading.put({"header.csv": b"n\n"})
    with pytest.raises(TransferInputError, match=f"{key}.: {reason}"):
        loading.transfer(loader=loader, format="csv").prepare()
    assert [key for key, (state, *_) in loading.ledger().items() if state == "loaded"] == ["header.csv"]
