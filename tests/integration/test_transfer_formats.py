"""Objects in S3 arrive in ClickHouse unchanged: compressions, keys, large objects, system columns; by both loaders.

tests/unit/test_reading_formats.py has dialects and types.
"""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
from collections.abc import Callable

import pyarrow as pa
import pytest

from storeside.transfer.request.source import Listed, Source
from tests.transfers import Loading, jsonl, parquet

LOADERS = ("pull", "push")


def by_arrow(content: bytes, kind: str) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, kind) as stream:
        stream.write(content)
    return sink.getvalue().to_pybytes()


def hadoop_snappy(content: bytes) -> bytes:
    """Compress as Hadoop does: blocks with a length, here of several pieces each."""
    found = b""
    for n in range(0, len(content), 60):
        block = content[n : n + 60]
        found += len(block).to_bytes(4, "big")
        for piece in (block[:40], block[40:]):
            if piece:
                raw = pa.compress(piece, "snappy", asbytes=True)
                found += len(raw).to_bytes(4, "big") + raw
    return found


def framed_snappy(content: bytes) -> bytes:
    """Compress in the framing format: a chunk that is compressed, a stored one, one to skip; without checksums."""
    raw = pa.compress(content[:50], "snappy", asbytes=True)
    chunks = ((0xFF, b"sNaPpY"), (0x00, b"\0\0\0\0" + raw), (0xFE, b"padding"), (0x01, b"\0\0\0\0" + content[50:]))
    return b"".join(bytes([kind]) + len(body).to_bytes(3, "little") + body for kind, body in chunks)


COMPRESSIONS: dict[str, tuple[str, Callable[[bytes], bytes]]] = {
    "none": ("", bytes),
    "gzip": (".gz", gzip.compress),
    "gzip, two members": (".gz", lambda c: gzip.compress(c[:100]) + gzip.compress(c[100:])),
    "zstd": (".zst", lambda c: by_arrow(c, "zstd")),
    "xz": (".xz", lzma.compress),
    "bz2": (".bz2", bz2.compress),
    "lz4": (".lz4", lambda c: by_arrow(c, "lz4")),
    "snappy of Hadoop": (".snappy", hadoop_snappy),
    "framed snappy": (".sz", framed_snappy),
}


@pytest.mark.parametrize(("form", "loader"), [("csv", "pull"), ("csv", "push"), ("jsonl", "pull")])
def test_text_in_every_compression_under_true_and_false_names(loading: Loading, loader: str, form: str) -> None:
    expected, objects = [], {}
    for n, (suffix, compress) in enumerate(COMPRESSIONS.values()):
        rows = [(100 * n + i, f"row {i}, ü") for i in range(20)]
        expected += rows
        if form == "csv":
            content = "n,s\n" + "".join(f'{i},"{s}"\n' for i, s in rows)
        else:
            content = "".join(f'{{"n": {i}, "s": "{s}"}}\n' for i, s in rows)
        name = list(COMPRESSIONS)[n]
        objects[f"{name}.{form}{suffix}"] = compress(content.encode())
        if form == "csv" and name != "snappy of Hadoop":  # it has no magic number: only its name shows the format
            objects[f"{name}, unnamed.{form}"] = compress(content.encode())
            objects[f"{name}, misnamed.{form}{'.gz' if name != 'gzip' else '.xz'}"] = compress(content.encode())
            expected += 2 * rows
    loading.put(objects)
    report = loading.load(loader=loader, system_columns=("_object", "_row_number"))
    assert (report.loaded, report.failed, report.rows) == (len(objects), 0, 20 * len(objects))
    assert loading.rows("n, s") == sorted(expected)
    assert loading.query(f"SELECT count(DISTINCT n) FROM {loading.table} WHERE n % 100 != _row_number") == [(0,)]
    assert loading.types() == {
        "n": "Nullable(Int64)", "s": "Nullable(String)", "_object": "LowCardinality(String)", "_row_number": "UInt64",
    }  # fmt: skip


def odd_objects(form: str, odd: str) -> dict[str, bytes]:
    """Return objects "a" to "d" and "good" with a column `n` of integers, except the object `odd` with structs."""
    rows = {
        name: [{"n": {"x": 1}} if name == odd else {"n": n}] for n, name in enumerate(("a", "b", "c", "d", "good"))
    }
    if form == "jsonl":
        return {f"{name}.jsonl": jsonl(some) for name, some in rows.items()}
    return {f"{name}.parquet": parquet({"n": [some[0]["n"]]}) for name, some in rows.items()}


def test_the_statement_of_wide_text_is_longer_than_an_address(loading: Loading) -> None:
    """It has 170 KB; a parameter of ClickHouse's addresses has at most 128 KiB."""
    names = [f"column_{n:03}" for n in range(400)]
    loading.create(", ".join(f"{name} Int32" for name in names))
    rows = [",".join(names), *(",".join([str(n)] * 400) for n in range(3))]
    content = "\n".join([*rows, ""]).encode()
    bad = "\n".join([*rows, ",".join(["x"] * 400), ""]).encode()
    loading.put({"a.csv": bad, "a.csv.gz": gzip.compress(content), "a.csv.xz": lzma.compress(content)})
    report = loading.load(loader="push", on_bad_rows="skip")
    assert loading.reasons() == {}
    assert (report.loaded, report.rows, report.rejected) == (3, 9, 1)
    assert loading.query(f"SELECT sum(column_000), sum(column_399) FROM {loading.table}") == [(9, 9)]


@pytest.mark.parametrize(("form", "odd"), [("parquet", "a"), ("parquet", "c")])
@pytest.mark.parametrize("by_events", [False, True])
def test_a_new_table_has_the_columns_of_most_objects(loading: Loading, form: str, odd: str, by_events: bool) -> None:
    objects = odd_objects(form, odd)
    loading.put(objects)
    transfer = loading.transfer()
    listed = [
        Listed(o["Key"], o["ETag"].strip('"'), o["Size"], "")
        for o in loading.s3.list_objects_v2(Bucket=loading.bucket)["Contents"]
    ]
    transfer.run(transfer.prepare(listed if by_events else None))
    assert [*loading.reasons()] == [f"{odd}.{form}"]
    assert loading.types() == {"n": "Nullable(Int64)"}
    assert len(loading.rows()) == 4


def test_overrides_and_layout(loading: Loading) -> None:
    loading.put({"a.csv": b"day,n,s,amount\n2020-01-02,1,x,1.10\n2020-02-03,2,y,2.25\n"})
    columns = {"n": "UInt16", "s": "LowCardinality(String)", "amount": "Decimal(9, 2)", "day": "Date"}
    loading.load(columns=columns, order_by="(day, n)", partition_by="toYYYYMM(day)")
    assert loading.reasons() == {}
    assert loading.types() == columns
    assert loading.rows("n, s, toString(amount), toString(day)") == [
        (1, "x", "1.1", "2020-01-02"), (2, "y", "2.25", "2020-02-03"),
    ]  # fmt: skip
    parts = f"FROM system.parts WHERE database || '.' || table = '{loading.table}' AND active"
    assert loading.query(f"SELECT count(DISTINCT partition) {parts}") == [(2,)]


@pytest.mark.parametrize("loader", LOADERS)
def test_parquet_of_many_row_groups_in_every_compression(loading: Loading, loader: str) -> None:
    rows = 20_000
    compressions = ("snappy", "gzip", "zstd", "lz4", "brotli", "none")
    table = pa.table({"n": range(rows), "s": [f"s{n % 97}" for n in range(rows)]})
    loading.put({c: parquet(table, row_group_size=rows // 20, compression=c) for c in compressions})
    loading.load(loader=loader, system_columns=("_object", "_row_number"))
    assert loading.query(
        "SELECT _object, count(), sum(n), countIf(n != _row_number), countIf(s != concat('s', toString(n % 97)))"
        f" FROM {loading.table} GROUP BY 1 ORDER BY 1"
    ) == [(c, rows, rows * (rows - 1) // 2, 0, 0) for c in sorted(compressions)]


def test_large_parquet_is_pushed_by_row_groups(loading: Loading, monkeypatch: pytest.MonkeyPatch) -> None:
    from storeside.transfer.staging import push

    monkeypatch.setattr(push, "WHOLE_PARQUET", 1000)
    rows = 30_000
    loading.put({"a.parquet": parquet({"n": range(rows), "s": [f"s{n}" for n in range(rows)]}, row_group_size=7_000)})
    loading.load(loader="push", system_columns=("_row_number",))
    assert loading.query(
        f"SELECT count(), sum(n), countIf(s != concat('s', toString(n))), countIf(n != _row_number) FROM"
        f" {loading.table}"
    ) == [(rows, rows * (rows - 1) // 2, 0, 0)]


HOSTILE = (
    "a b", "a#b", "a?b", "a+b", "a%20b", "a%2Bb", "ü", "a{b}c", "a*b", "a'b", 'a"b', "a\\b", "a&b=c", ";", "a//b",
    "a:b", "\u05d0\u05d1", "n" * 200, "a,b", "{a,b}", "[a]", "a?versionId=x", "..a", "~", "a$b", "a`b", "a\tb",
    "a=1/b", "**", "a%b", "x.zip", "{0..9}",
)  # fmt: skip


@pytest.mark.parametrize("loader", LOADERS)
def test_hostile_keys_load_exactly_their_own_rows(loading: Loading, loader: str) -> None:
    keys = {f"in/{name}.csv" if not name.endswith(".zip") else f"in/{name}": n for n, name in enumerate(HOSTILE)}
    loading.put({key: b"n\n%d\n" % n for key, n in keys.items()})
    for key in ("in/a", "other/a b.csv", "in-/x.csv"):  # keys that a glob or an unquoted key could match
        loading.put({key: b"n\n-1\n"})
    loading.s3.delete_object(Bucket=loading.bucket, Key="in/a")
    listed = {
        o["Key"]
        for page in loading.s3.get_paginator("list_objects_v2").paginate(Bucket=loading.bucket, Prefix="in/")
        for o in page.get("Contents", [])
        if not Source(loading.bucket, "in/").ignores(o["Key"])
    }
    report = loading.load("in/", loader=loader, format="csv", system_columns=("_object",))
    assert loading.reasons() == {}
    assert (report.loaded, sum(report.ignored.values())) == (len(listed), 1)
    assert sorted(loading.rows("_object, n")) == sorted((key, n) for key, n in keys.items() if key in listed)
    assert len(listed) > len(HOSTILE) - 3


@pytest.mark.parametrize("loader", LOADERS)
def test_system_columns(loading: Loading, loader: str) -> None:
    loading.put({f"{n}.csv": b"n\n" + b"".join(b"%d\n" % i for i in range(5)) for n in range(3)})
    clock = "SELECT toTimeZone(now64(6), 'UTC')"
    ((before,),) = loading.query(clock)
    loading.load(loader=loader, system_columns=("_object", "_row_number", "_version", "_loaded_at"))
    etags = {o["Key"]: o["ETag"].strip('"') for o in loading.s3.list_objects_v2(Bucket=loading.bucket)["Contents"]}
    rows = loading.rows("_object, n, _row_number, _version, toTimeZone(_loaded_at, 'UTC')", "_object, n")
    assert [row[:4] for row in rows] == [(f"{n}.csv", i, i, etags[f"{n}.csv"]) for n in range(3) for i in range(5)]
    ((after,),) = loading.query(clock)
    assert all(before.replace(microsecond=0) <= row[4] <= after for row in rows)


def test_patterns_choose_objects(loading: Loading) -> None:
    loading.put({f"{a}/{b}.csv": f"n\n{10 * a + b}\n".encode() for a in range(3) for b in range(3)})
    report = loading.load("{0..1}/[12]".replace("[12]", "{1,2}") + ".csv")
    assert (report.listed, report.skipped, report.loaded) == (4, 0, 4)
    assert [n for (n,) in loading.rows("n")] == [1, 2, 11, 12]


def test_large_text_over_several_requests(loading: Loading) -> None:
    rows = 200_000
    out = io.BytesIO()
    out.write(b"n,s\n")
    for n in range(rows):
        out.write(b'%d,"line %d\nof two"\n' % (n, n))
    content = out.getvalue()
    loading.put({"a.csv": content, "b.csv.gz": gzip.compress(content, 1), "c.csv.zst": by_arrow(content, "zstd")})
    report = loading.load(loader="push", system_columns=("_row_number",))
    assert report.rows == 3 * rows
    assert loading.query(
        f"SELECT count(), sum(n), countIf(n != _row_number), countIf(s != concat('line ', toString(n), '\\nof two'))"
        f" FROM {loading.table}"
    ) == [(3 * rows, 3 * rows * (rows - 1) // 2, 0, 0)]
