"""Malformed objects in S3, objects that change, and faults of servers: all others are loaded, none partially.

tests/unit/test_reading_bad_input.py has the values, and everything that is refused.
"""

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

from storeside.stack.servers import s3
from storeside.stack.settings import HOST, Stack
from storeside.transfer.base.errors import ARCHIVED, TransferInputError, TransferTransientError
from storeside.transfer.request.request import Request
from storeside.transfer.request.source import Source
from storeside.transfer.run.engine import Transfer
from tests.transfers import Loaded, Loading, Refused, parquet

LOADERS = ("pull", "push")


def expect(loading: Loading, failing: Mapping[str, str], rows: Mapping[str, int]) -> None:
    """Check that exactly these objects fail, for reasons with these words, and the others have these row counts."""
    reasons = loading.reasons()
    assert {key: word for key, word in failing.items() if word not in reasons.get(key, "")} == {}, reasons
    assert set(reasons) == set(failing)
    loaded = {key: count for key, (state, count, _, _) in loading.ledger().items() if state == "loaded"}
    assert loaded == rows


BIG = b"n,s\n" + b"".join(b"%d,x%d\n" % (n, n * 7919 % 10007) for n in range(60_000))


@pytest.mark.parametrize("loader", LOADERS)
def test_broken_text(loading: Loading, loader: str) -> None:
    gz, xz, zstd = gzip.compress(BIG), lzma.compress(BIG), pa.compress(BIG, "zstd", asbytes=True)
    loading.create("n Int64, s String")
    broken = {
        "damaged.csv.gz": (gz[: len(gz) // 2] + bytes(80) + gz[len(gz) // 2 + 80 :], "inflate"),
        "cut.csv.xz": (xz[:-100], "lzma"),
        "cut.csv.zst": (zstd[: len(zstd) * 2 // 3], "content is broken"),
        "cut zstd, misnamed.csv": (zstd[: len(zstd) * 2 // 3], "content is broken"),
        "parquet.csv": (parquet({"n": [1]}), "is a Parquet file"),
        "utf-16.csv": ("n,s\n1,x\n".encode("utf-16"), "it is text in UTF-16"),
    }
    loading.put({key: content for key, (content, _) in broken.items()})
    loading.put({"good.csv": BIG, "good.csv.gz": gz, "empty.csv": b"", "header.csv": b"n,s\n"})
    report = loading.load(loader=loader, format="csv")
    rows = {"good.csv": 60_000, "good.csv.gz": 60_000, "empty.csv": 0, "header.csv": 0}
    expect(loading, {key: word for key, (_, word) in broken.items()}, rows)
    assert (report.loaded, report.failed, report.rows) == (4, len(broken), 120_000)
    assert loading.query(f"SELECT count(), sum(n), countIf(s != concat('x', toString(n * 7919 % 10007))) FROM"
                         f" {loading.table}") == [(120_000, 60_000 * 59_999, 0)]  # fmt: skip


@pytest.mark.parametrize("loader", LOADERS)
def test_broken_parquet(loading: Loading, loader: str) -> None:
    rows = [(n, f"s{n}") for n in range(1000)]
    good = parquet({"n": [n for n, _ in rows], "s": [s for _, s in rows]}, row_group_size=100)
    damaged = bytearray(good)
    damaged[200:1200] = bytes(1000)
    loading.create("n Int64, s Nullable(String)")
    loading.cases({
        "cut": Refused(good[: len(good) // 2], "Parquet"),
        "damaged": Refused(bytes(damaged), ""),
        "text": Refused(b"n,s\n1,x\n" * 10, "does not begin like a Parquet file"),
        "empty": Refused(b"", "empty"),
        "good1": Loaded(good, rows),
        "good2": Loaded(good, rows),
    }, ".parquet", loader=loader, format="parquet")  # fmt: skip


# bad rows


ROWS = [b'%d,row" %d\n' % (n, n) for n in range(2000)]
BAD = {0: b"zero,x\n", 1: b"1e-3,x\n", 700: b'7,"a\nb",c\n', 1000: b"300,\xff\n", 1998: b"\n,x\n", 1999: b"9\n"}


def with_bad_rows() -> bytes:
    lines = [*ROWS]
    for n, line in BAD.items():
        lines[n] = line.lstrip(b"\n")
    return b"n,s\n" + b"".join(lines)


@pytest.mark.parametrize("loader", LOADERS)
def test_bad_rows_are_kept(loading: Loading, loader: str) -> None:
    content = with_bad_rows()
    loading.create("n Int64, s String")
    good = [(n, f'row" {n}', n) for n in range(2000) if n not in BAD]
    columns = "n, s, _row_number"
    cases = {
        "bad.csv": Loaded(content, good, columns),
        "bad.csv.gz": Loaded(gzip.compress(content), good, columns),
        "good.csv": Loaded(b"n,s\n-1,fine\n", [(-1, "fine", 0)], columns),
    }
    report = loading.cases(cases, loader=loader, on_bad_rows="keep", system_columns=("_object", "_row_number"))
    assert (report.loaded, report.failed, report.rows, report.rejected) == (
        3, 0, 2 * len(good) + 1, 2 * len(BAD),
    )  # fmt: skip
    kept = loading.query(
        f"SELECT row_number, raw, key, reason FROM {loading.table}_rejected FINAL ORDER BY key, row_number"
    )
    for key in ("bad.csv", "bad.csv.gz"):
        assert loading.ledger()[key][:3] == ("loaded", 2000 - len(BAD), len(BAD))
        assert [(row, raw) for row, raw, of, _ in kept if of == key] == [
            (n, line.strip(b"\n").decode("utf-8", "backslashreplace")) for n, line in BAD.items()
        ]
    assert len(kept) == 2 * len(BAD)
    assert all(reason for *_, reason in kept)


@pytest.mark.parametrize("loader", LOADERS)
def test_rejected_rows_are_those_of_the_last_try(
    loading: Loading, loader: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("storeside.transfer.run.salvage._KEPT_AT_ONCE", 1)
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
def test_archived_objects_are_tried_until_they_are_restored(loading: Loading, loader: str) -> None:
    """Five of them, as many as a sample has, come before the other. A restored object has the same ETag."""
    classes = ["GLACIER", "DEEP_ARCHIVE", "GLACIER", "GLACIER", "GLACIER", "STANDARD"]
    names = [f"{n}.csv" for n in range(6)]
    for name, storage in zip(names, classes, strict=True):
        loading.s3.put_object(Bucket=loading.bucket, Key=name, Body=b"n\n1\n", StorageClass=storage)
    for done in (1, 0):
        report = loading.load(loader=loader)
        assert (report.loaded, report.failed, report.known_bad, report.skipped) == (done, 5, 0, 1 - done)
        assert loading.reasons() == dict.fromkeys(names[:5], ARCHIVED)
    loading.put(dict.fromkeys(names[:5], b"n\n1\n"))
    assert loading.load(loader=loader).loaded == 5


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


@pytest.mark.parametrize(("form", "loader"), [("parquet", "pull"), ("csv", "push")])
def test_an_object_for_which_s3_is_too_busy_fails_alone(
    loading: Loading, stack: Stack, monkeypatch: pytest.MonkeyPatch, loader: str, form: str
) -> None:
    monkeypatch.setattr("storeside.transfer.staging.staging.ATTEMPTS", 2)
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


def test_a_server_that_is_too_busy_for_all_objects_ends_the_load(
    loading: Loading, stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("storeside.transfer.staging.staging.ATTEMPTS", 1)
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
    for loader in ("auto", "pull"):
        with pytest.raises(TransferInputError, match="collection 'absent': ClickHouse has no named"):
            loading.load(loader=loader, collection="absent")
    loading.put({"b": b"\0\1\2"})
    with pytest.raises(TransferInputError, match=r"such as 'b': set `format`"):
        loading.load("b")


def test_all_or_nothing_loads_nothing_beside_a_bad_object(loading: Loading) -> None:
    loading.create("n Int64")
    loading.put({"a.csv": b"n\n1\n", "b.csv": b"n\nx\n", "c.csv": b"n\n3\n"})
    with pytest.raises(TransferInputError, match=r"1 object cannot be loaded.*b\.csv"):
        loading.load(all_or_nothing=True)
    assert loading.rows() == []
    loading.put({"b.csv": b"n\n2\n"})
    loading.load(all_or_nothing=True, batch_objects=1)
    assert loading.rows() == [(1,), (2,), (3,)]


@pytest.mark.parametrize(
    ("key", "content", "reason"),
    [
        ("a.parquet", parquet({"n": [1]}), "it is a Parquet file"),
        ("a.csv.gz", b"\x1f\x8bx", "its gzip content is broken"),
    ],
)
def test_objects_that_show_no_columns_do_not_count_as_loaded(
    loading: Loading, key: str, content: bytes, reason: str
) -> None:
    loading.put({key: content})
    with pytest.raises(TransferInputError, match=f"{key}.: {reason}"):
        loading.transfer(format="csv").prepare()
    loading.put({"header.csv": b"n\n"})
    with pytest.raises(TransferInputError, match=f"{key}.: {reason}"):
        loading.transfer(format="csv").prepare()
    assert [key for key, (state, *_) in loading.ledger().items() if state == "loaded"] == ["header.csv"]
