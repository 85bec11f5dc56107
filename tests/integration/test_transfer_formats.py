"""Objects' content arrives in ClickHouse unchanged: formats, compressions, dialects, types, keys; by both loaders."""

from __future__ import annotations

import bz2
import datetime as dt
import gzip
import io
import lzma
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from storeside.stack.settings import Stack
from storeside.transfer.formats import Csv
from storeside.transfer.source import Listed
from tests.transfers import Loading, jsonl, parquet

pytestmark = pytest.mark.timeout(120)

LOADERS = ("pull", "push")
UTC = dt.UTC


@pytest.fixture
def loading(stack: Stack, clickhouse: Any, s3_client: Any) -> Loading:
    return Loading(stack, clickhouse, s3_client)


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


DIALECTS: dict[str, tuple[dict[str, Any], bytes]] = {
    "delimiter": ({"delimiter": ";"}, b"n;s;b;t\n1;a,b;true;2020-01-02 03:04:05\n2;;false;\n"),
    "tab": ({"delimiter": "\t"}, b"n\ts\tb\tt\n1\ta,b\ttrue\t2020-01-02 03:04:05\n2\t\tfalse\t\n"),
    "no header": ({"names": ("n", "s", "b", "t")}, b'1,"a,b",true,2020-01-02 03:04:05\n2,,false,\n'),
    "names in another order": ({"names": ("t", "b", "n", "s")}, b'2020-01-02 03:04:05,true,1,"a,b"\n,false,2,\n'),
    "rows before the header": (
        {"skip_rows": 2}, b'made by x\n\nn,s,b,t\n1,"a,b",true,2020-01-02 03:04:05\n2,,false,\n',
    ),
    "CRLF": ({}, b'n,s,b,t\r\n1,"a,b",true,2020-01-02 03:04:05\r\n2,,false,\r\n'),
    "byte order mark": ({}, b'\xef\xbb\xbfn,s,b,t\n1,"a,b",true,2020-01-02 03:04:05\n2,,false,\n'),
    "one null": ({"null_values": ("NA",)}, b'n,s,b,t\n1,"a,b",true,2020-01-02 03:04:05\n2,,false,NA\n'),
    "nulls": ({"null_values": ("NA", "-")}, b'n,s,b,t\n1,"a,b",true,2020-01-02 03:04:05\n2,,false,-\n'),
    "quote": ({"quote": "'"}, b"n,s,b,t\n1,'a,b',true,2020-01-02 03:04:05\n2,,false,\n"),
    "escape": ({"escape": "\\"}, b"n,s,b,t\n1,a\\,b,true,2020-01-02 03:04:05\n2,,false,\n"),
    "booleans": (
        {"true_values": ("Y",), "false_values": ("N",)}, b'n,s,b,t\n1,"a,b",Y,2020-01-02 03:04:05\n2,,N,\n',
    ),
    "timestamps": (
        {"timestamp_formats": ("%d.%m.%Y %H:%M:%S",)}, b'n,s,b,t\n1,"a,b",true,02.01.2020 03:04:05\n2,,false,\n',
    ),
    "latin-1": ({"encoding": "latin-1"}, b'n,s,b,t\n1,"a,b",true,2020-01-02 03:04:05\n2,,false,\n'),
    "utf-16": (
        {"encoding": "utf-16"}, 'n,s,b,t\n1,"a,b",true,2020-01-02 03:04:05\n2,,false,\n'.encode("utf-16"),
    ),
}  # fmt: skip


@pytest.mark.parametrize("dialect", DIALECTS)
def test_csv_dialects(loading: Loading, dialect: str) -> None:
    options, content = DIALECTS[dialect]
    loading.create("n Int32, s Nullable(String), b Bool, t Nullable(DateTime('UTC'))")
    loading.put({"a.csv": content})
    report = loading.load(format="csv", csv=Csv(**options))
    assert loading.reasons() == {}
    assert report.rows == 2
    rows = loading.rows()
    assert rows[0] == (1, "a,b", True, dt.datetime(2020, 1, 2, 3, 4, 5))
    assert rows[1][0] == 2
    assert rows[1][1] in ("", None)
    assert rows[1][2:] == (False, None)


# Columns, with the time in UTC of the text "2024-07-01 10:00:00" in their zone; the server's is in the last ones.
CLOCKS = {
    "DateTime('Europe/Berlin')": 8, "DateTime64(3, 'Europe/Berlin')": 8, "DateTime64(9, 'America/New_York')": 14,
    "Nullable(DateTime('UTC'))": 10, "DateTime": None, "DateTime64(6)": None,
}  # fmt: skip


@pytest.mark.parametrize(
    "dialect", [{}, {"quote": "'"}, {"encoding": "latin-1"}, {"null_values": ("NA", "-")}], ids=str
)
def test_times_in_csv_dialects_have_the_zone_of_their_column(loading: Loading, dialect: dict[str, Any]) -> None:
    texts = ("2024-07-01 10:00:00", " 2024-07-02T10:00:00Z", "2024-07-03 10:00:00+05:00", "1720051200.0")
    loading.create(", ".join(f"c{n} {kind}" for n, kind in enumerate(CLOCKS)))
    loading.put({"a.csv": "\n".join(",".join([text] * len(CLOCKS)) for text in texts).encode()})
    loading.load(format="csv", csv=Csv(names=tuple(f"c{n}" for n in range(len(CLOCKS))), **dialect))
    assert loading.reasons() == {}
    (server,) = loading.query("SELECT toHour(toDateTime('2024-07-01 10:00:00'), 'UTC')")
    for n, hour in enumerate(CLOCKS.values()):
        found = [text for (text,) in loading.rows(f"formatDateTime(c{n}, '%d %H', 'UTC')", "1")]
        assert found == [f"01 {hour or server[0]:02}", "02 10", "03 05", "04 00"]


@pytest.mark.parametrize(("text", "kind", "taken"), [
    ("2024-02-31 00:00:00", "DateTime64(6)", False), ("soon", "DateTime", False),
    ("2024-07-01 10:00:00.5", "DateTime", False), ("2024-07-01 10:00:00.1234567", "DateTime64(6)", False),
    ("2024-07-01 10:00:00.1234560", "DateTime64(6)", True), ("2024-07-01 10:00:00", "Date", False),
    ("2024-02-31", "Date", False), ("2024-07-01 00:00:00", "Date", True), ("2024-02-29", "Date32", True),
    ("", "DateTime", False), ("", "Nullable(DateTime)", True),
])  # fmt: skip
def test_times_in_csv_dialects_are_loaded_whole_or_refused(
    loading: Loading, text: str, kind: str, taken: bool
) -> None:
    loading.create(f"n Int8, t {kind}")
    loading.put({"a.csv": f"n,t\n1,{text}\n".encode()})
    report = loading.load(format="csv", csv=Csv(quote="'"))
    assert report.loaded == taken, loading.reasons()


def test_times_of_a_new_table_in_csv_dialects(loading: Loading) -> None:
    loading.put({"a.csv": b"n,t,z\n1,2024-07-01 10:00:00,2024-07-01T10:00:00Z\n",
                 "b.csv": b"n,t,z\n2,2024-07-01 10:00:00.25,2024-07-01 10:00:00+02:00\n"})  # fmt: skip
    loading.load(format="csv", csv=Csv(quote="'"))
    assert loading.reasons() == {}
    kind = "Nullable(DateTime64(6))"
    assert loading.types() == {"n": "Nullable(Int64)", "t": kind, "z": kind}
    assert loading.rows("toString(t), formatDateTime(z, '%H', 'UTC')", "n") == [
        ("2024-07-01 10:00:00.000000", "10"), ("2024-07-01 10:00:00.250000", "08"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "hours"), [("DateTime('Europe/Berlin')", ("08", "09")), ("DateTime64(3, 'UTC')", ("10", "11"))]
)
def test_timestamp_formats_are_times_in_the_zone_of_their_column(
    loading: Loading, kind: str, hours: tuple[str, str]
) -> None:
    loading.create(f"t {kind}, d Date")
    loading.put({"a.csv": b"t,d\n01.07.2024 10:00:00,02.07.2024\n2024-07-01 11:00:00,2024-07-02\n"})
    loading.load(format="csv", csv=Csv(timestamp_formats=("%d.%m.%Y %H:%M:%S", "%d.%m.%Y")))
    assert loading.reasons() == {}
    assert loading.rows("formatDateTime(t, '%H', 'UTC'), toString(d)", "1") == [(h, "2024-07-02") for h in hours]


@pytest.mark.parametrize("is_new", [False, True])
def test_timestamp_formats_with_offsets(loading: Loading, is_new: bool) -> None:
    if not is_new:
        loading.create("t DateTime('Europe/Berlin')")
    loading.put({"a.csv": b"t\n01.07.2024 10:00:00 +0500\n2024-07-01 10:00:00Z\n"})
    loading.load(format="csv", csv=Csv(timestamp_formats=("%d.%m.%Y %H:%M:%S %z",)))
    assert loading.reasons() == {}
    assert loading.rows("formatDateTime(t, '%H', 'UTC')", "1") == [("05",), ("10",)]


def test_offsets_without_a_format_for_them_are_text(loading: Loading) -> None:
    loading.put({"a.csv": b"t,z\n01.07.2024 10:00:00,2024-07-01 10:00:00Z\n"})
    loading.load(format="csv", csv=Csv(timestamp_formats=("%d.%m.%Y %H:%M:%S",)))
    assert loading.rows("toString(t), z") == [("2024-07-01 10:00:00.000000", "2024-07-01 10:00:00Z")]


@pytest.mark.parametrize(("encoding", "text"), [("latin-1", "é"), ("utf-16", "ü→"), ("cp1251", "Ж")])
def test_encodings_with_their_own_letters_into_a_new_table(loading: Loading, encoding: str, text: str) -> None:
    loading.put({f"{n}.csv": f"n,s\n{n},{text}\n".encode(encoding) for n in range(2)})
    loading.load(format="csv", csv=Csv(encoding=encoding))
    assert loading.rows() == [(0, text), (1, text)]


@pytest.mark.parametrize("loader", LOADERS)
@pytest.mark.parametrize("options", [{}, {"quote": "'"}, {"encoding": "utf-16"}], ids=str)
def test_a_sample_of_csv_that_ends_within_quotes(loading: Loading, loader: str, options: dict[str, Any]) -> None:
    dialect = Csv(**options)
    text = "one\n" * 40
    rows = "".join(f"{n},{dialect.quote}{text}{dialect.quote},{n / 4}\n" for n in range(20))
    loading.put({"a.csv": f"n,s,f\n{rows}".encode(dialect.encoding)})
    loading.load(loader=loader, format="csv", csv=dialect, sample_bytes=900)
    assert loading.reasons() == {}
    assert loading.rows("n, s, f") == [(n, text, n / 4) for n in range(20)]


NESTED = [
    {"id": 1, "o": {"x": 1, "y": "a"}, "l": [1, 2], "m": [{"k": 1}]},
    {"id": 2, "o": {"x": 2, "y": "b"}, "l": [], "m": []},
]


@pytest.mark.parametrize("loader", LOADERS)
@pytest.mark.parametrize(
    ("nested", "kind", "value"),
    [
        ("tuple", "Nullable(Tuple(", {"x": 1, "y": "a"}),
        ("json", "Nullable(JSON)", {"x": 1, "y": "a"}),
        ("string", "Nullable(String)", '{"x": 1, "y": "a"}'),
    ],
)
def test_nested_json(loading: Loading, loader: str, nested: str, kind: str, value: Any) -> None:
    loading.put({"a.jsonl": jsonl(NESTED)})
    loading.load(loader=loader, nested=nested)
    assert loading.reasons() == {}
    assert loading.types()["o"].startswith(kind)
    rows = loading.rows("id, o, l", "id")
    assert rows[0] == (1, value, [1, 2])
    assert rows[1][2] == []


@pytest.mark.parametrize("loader", LOADERS)
def test_columns_are_deduced_from_several_objects(loading: Loading, loader: str) -> None:
    uuid = "6ba7b810-9dad-11d1-80b4-00c04fd430c8"
    many = b"".join(b'{"id": %d, "w": "%s"}\n' % (n, (b"red", b"green")[n % 2]) for n in range(1000, 3000))
    loading.put(
        {
            "a.jsonl": jsonl([{"id": 1, "u": uuid, "d": "2020-01-02", "n": 1}]),
            "b.jsonl": jsonl([{"id": 2, "u": None, "d": "2100-01-02", "n": 1.5}]),
            "c.jsonl": jsonl([{"id": 3, "late": True, "t": "2020-01-02T03:04:05Z"}]),
            "d.jsonl": many,
        }
    )
    report = loading.load(loader=loader)
    assert loading.reasons() == {}
    assert report.rows == 2003
    assert loading.types() == {
        "id": "Nullable(Int64)", "u": "Nullable(UUID)", "d": "Nullable(Date32)", "n": "Nullable(Float64)",
        "late": "Nullable(Bool)", "t": "Nullable(DateTime64(6))", "w": "LowCardinality(Nullable(String))",
    }  # fmt: skip
    rows = loading.rows("id, toString(u), toString(d), n, late, w", "id")
    assert rows[:3] == [
        (1, uuid, "2020-01-02", 1.0, None, None),
        (2, None, "2100-01-02", 1.5, None, None),
        (3, None, None, None, True, None),
    ]
    assert rows[3:] == [(n, None, None, None, None, ("red", "green")[n % 2]) for n in range(1000, 3000)]


def odd_objects(form: str, odd: str) -> dict[str, bytes]:
    """Return objects "a" to "d" and "good" with a column `n` of integers, except the object `odd` with structs."""
    rows = {
        name: [{"n": {"x": 1}} if name == odd else {"n": n}] for n, name in enumerate(("a", "b", "c", "d", "good"))
    }
    if form == "jsonl":
        return {f"{name}.jsonl": jsonl(some) for name, some in rows.items()}
    return {f"{name}.parquet": parquet({"n": [some[0]["n"]]}) for name, some in rows.items()}


@pytest.mark.parametrize("loader", LOADERS)
@pytest.mark.parametrize("form", ["jsonl", "parquet"])
@pytest.mark.parametrize("odd", ["a", "c"])
@pytest.mark.parametrize("by_events", [False, True])
def test_a_new_table_has_the_columns_of_most_objects(
    loading: Loading, loader: str, form: str, odd: str, by_events: bool
) -> None:
    objects = odd_objects(form, odd)
    loading.put(objects)
    transfer = loading.transfer(loader=loader)
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
def test_parquet_types_come_as_they_are(loading: Loading, loader: str) -> None:
    moment = dt.datetime(2020, 1, 2, 3, 4, 5, 678901)
    columns: dict[str, tuple[Any, list[Any], str, list[Any]]] = {
        # Arrow's type, values, ClickHouse's type, values in ClickHouse
        "i8": (pa.int8(), [-128, None], "Nullable(Int8)", [-128, None]),
        "u8": (pa.uint8(), [255, 0], "Nullable(UInt8)", [255, 0]),
        "u64": (pa.uint64(), [2**64 - 1, 0], "Nullable(UInt64)", [2**64 - 1, 0]),
        "f": (pa.float32(), [1.5, None], "Nullable(Float32)", [1.5, None]),
        "d": (pa.float64(), [0.1, -1e300], "Nullable(Float64)", [0.1, -1e300]),
        "b": (pa.bool_(), [True, None], "Nullable(Bool)", [True, None]),
        "s": (pa.string(), ["ü", ""], "Nullable(String)", ["ü", ""]),
        "day": (pa.date32(), [dt.date(1950, 5, 6), None], "Nullable(Date32)", [dt.date(1950, 5, 6), None]),
        "dec": (pa.decimal128(20, 4), [Decimal("-12.3456"), None], "Nullable(Decimal(20, 4))",
                [Decimal("-12.3456"), None]),
        "big": (pa.decimal256(60, 2), [Decimal("9" * 50 + ".25"), None], "Nullable(Decimal(60, 2))",
                [Decimal("9" * 50 + ".25"), None]),
        "us": (pa.timestamp("us"), [moment, None], "Nullable(DateTime64(6, 'UTC'))", [moment, None]),
        "tz": (pa.timestamp("us", "UTC"), [moment.replace(tzinfo=UTC), None], "Nullable(DateTime64(6, 'UTC'))",
               [moment, None]),
        "list": (pa.list_(pa.int32()), [[1, None], []], "Array(Nullable(Int32))", [[1, None], []]),
        "struct": (pa.struct([("x", pa.int16()), ("y", pa.string())]), [{"x": 1, "y": "a"}, {"x": None, "y": None}],
                   "Tuple(x Nullable(Int16), y Nullable(String))", [{"x": 1, "y": "a"}, {"x": None, "y": None}]),
        "map": (pa.map_(pa.string(), pa.int64()), [[("k", 1)], []], "Map(String, Nullable(Int64))", [{"k": 1}, {}]),
        "dict": (pa.dictionary(pa.int8(), pa.string()), ["red", None], "Nullable(String)", ["red", None]),
        "fixed": (pa.binary(3), [b"abc", None], "Nullable(FixedString(3))", [b"abc", None]),
        "large": (pa.large_string(), ["x", None], "Nullable(String)", ["x", None]),
    }  # fmt: skip
    table = pa.table({name: pa.array(values, kind) for name, (kind, values, _, _) in columns.items()})
    loading.put({"a.parquet": parquet(table)})
    loading.load(loader=loader)
    assert loading.reasons() == {}
    types = {name: " ".join(kind.split()).replace("( ", "(") for name, kind in loading.types().items()}
    assert types == {name: kind for name, (_, _, kind, _) in columns.items()}
    found = loading.query(f"SELECT * FROM {loading.table} ORDER BY isNull(i8)")
    assert [dict(zip(columns, row, strict=True)) for row in found] == [
        {name: values[n] for name, (_, _, _, values) in columns.items()} for n in range(2)
    ]


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


@pytest.mark.parametrize("loader", LOADERS)
def test_int96_timestamps(loading: Loading, loader: str) -> None:
    moment = dt.datetime(2020, 1, 2, 3, 4, 5, 678901)
    table = pa.table({"t": pa.array([moment], pa.timestamp("ns"))})
    loading.put({"a.parquet": parquet(table, use_deprecated_int96_timestamps=True)})
    loading.load(loader=loader)
    assert loading.rows("toString(t)") == [("2020-01-02 03:04:05.678901000",)]


def test_large_parquet_is_pushed_by_row_groups(loading: Loading, monkeypatch: pytest.MonkeyPatch) -> None:
    from storeside.transfer import push

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
    }
    report = loading.load("in/", loader=loader, format="csv", system_columns=("_object",))
    assert loading.reasons() == {}
    assert report.loaded == len(listed)
    assert sorted(loading.rows("_object, n")) == sorted((key, n) for key, n in keys.items() if key in listed)
    assert len(listed) > len(HOSTILE) - 3


@pytest.mark.parametrize("loader", LOADERS)
def test_system_columns(loading: Loading, loader: str) -> None:
    loading.put({f"{n}.csv": b"n\n" + b"".join(b"%d\n" % i for i in range(5)) for n in range(3)})
    before = dt.datetime.now(UTC).replace(tzinfo=None) - dt.timedelta(seconds=2)
    loading.load(loader=loader, system_columns=("_object", "_row_number", "_version", "_loaded_at"))
    etags = {o["Key"]: o["ETag"].strip('"') for o in loading.s3.list_objects_v2(Bucket=loading.bucket)["Contents"]}
    rows = loading.rows("_object, n, _row_number, _version, toTimeZone(_loaded_at, 'UTC')", "_object, n")
    assert [row[:4] for row in rows] == [(f"{n}.csv", i, i, etags[f"{n}.csv"]) for n in range(3) for i in range(5)]
    assert all(before < row[4].replace(tzinfo=None) < before + dt.timedelta(seconds=60) for row in rows)


def test_patterns_choose_objects(loading: Loading) -> None:
    loading.put({f"{a}/{b}.csv": f"n\n{a}{b}\n".encode() for a in range(3) for b in range(3)})
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
