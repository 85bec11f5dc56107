"""Content arrives in ClickHouse unchanged: dialects of CSV, times, encodings, nested JSON, types of Parquet.

Loads run in the process, without servers.
"""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any
from zoneinfo import ZoneInfo

import pyarrow as pa
import pytest

from storeside.transfer.request.object_format import Csv
from tests.statements import Statements
from tests.transfers import Loaded, Refused, jsonl, parquet

LOADERS = ("pull", "push")
UTC = dt.UTC


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
def test_csv_dialects(reading: Statements, dialect: str) -> None:
    options, content = DIALECTS[dialect]
    reading.create("n Int32, s Nullable(String), b Bool, t Nullable(DateTime('UTC'))")
    reading.put({"a.csv": content})
    report = reading.load(format="csv", csv=Csv(**options))
    assert reading.reasons() == {}
    assert report.rows == 2
    rows = reading.rows()
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
def test_times_in_csv_dialects_have_the_zone_of_their_column(reading: Statements, dialect: dict[str, Any]) -> None:
    texts = ("2024-07-01 10:00:00", " 2024-07-02T10:00:00Z", "2024-07-03 10:00:00+05:00", "1720051200.0")
    reading.create(", ".join(f"c{n} {kind}" for n, kind in enumerate(CLOCKS)))
    reading.put({"a.csv": "\n".join(",".join([text] * len(CLOCKS)) for text in texts).encode()})
    reading.load(format="csv", csv=Csv(names=tuple(f"c{n}" for n in range(len(CLOCKS))), **dialect))
    assert reading.reasons() == {}
    (server,) = reading.query("SELECT toHour(toDateTime('2024-07-01 10:00:00'), 'UTC')")
    for n, hour in enumerate(CLOCKS.values()):
        found = [text for (text,) in reading.rows(f"formatDateTime(c{n}, '%d %H', 'UTC')", "1")]
        assert found == [f"01 {hour or server[0]:02}", "02 10", "03 05", "04 00"]


# Texts, and the value that each becomes in a column of the type, as text; None if it is refused.
MOMENTS: list[tuple[str, str, str | None]] = [
    ("2024-02-31 00:00:00", "DateTime64(6)", None), ("soon", "DateTime", None),
    ("2024-07-01 10:00:00.5", "DateTime", None), ("2024-07-01 10:00:00.1234567", "DateTime64(6)", None),
    ("2024-07-01 10:00:00.1234560", "DateTime64(6)", "2024-07-01 10:00:00.123456"),
    ("2024-07-01 10:00:00", "Date", None), ("2024-02-31", "Date", None),
    ("2024-07-01 00:00:00", "Date", "2024-07-01"), ("2024-02-29", "Date32", "2024-02-29"),
    ("", "DateTime", None), ("", "Nullable(DateTime)", ""),
]  # fmt: skip


def test_times_in_csv_dialects_are_loaded_whole_or_refused(reading: Statements) -> None:
    columns = {kind: f"c{n}" for n, kind in enumerate(dict.fromkeys(kind for _, kind, _ in MOMENTS))}
    reading.create(", ".join(f"{name} {kind}" for kind, name in columns.items()))
    cases: dict[str, Loaded | Refused] = {}
    for n, (text, kind, value) in enumerate(MOMENTS):
        given = {name: text if other == kind else "2024-01-01" for other, name in columns.items()}
        content = f"{','.join(given)}\n{','.join(given.values())}\n".encode()
        name = f"{n} {kind} {text or 'nothing'}"
        shown = f"ifNull(toString({columns[kind]}), '')"
        cases[name] = Refused(content, "") if value is None else Loaded(content, [(value,)], shown)
    reading.cases(cases, format="csv", csv=Csv(quote="'"))


def test_times_of_a_new_table_in_csv_dialects(reading: Statements) -> None:
    reading.put({"a.csv": b"n,t,z\n1,2024-07-01 10:00:00,2024-07-01T10:00:00Z\n",
                 "b.csv": b"n,t,z\n2,2024-07-01 10:00:00.25,2024-07-01 10:00:00+02:00\n"})  # fmt: skip
    reading.load(format="csv", csv=Csv(quote="'"))
    assert reading.reasons() == {}
    kind = "Nullable(DateTime64(6))"
    assert reading.types() == {"n": "Nullable(Int64)", "t": kind, "z": kind}
    assert reading.rows("toString(t), formatDateTime(z, '%H', 'UTC')", "n") == [
        ("2024-07-01 10:00:00.000000", "10"), ("2024-07-01 10:00:00.250000", "08"),
    ]  # fmt: skip


def test_timestamp_formats_are_times_in_the_zone_of_their_column(reading: Statements) -> None:
    reading.create("t DateTime('Europe/Berlin'), u DateTime64(3, 'UTC'), d Date")
    one, other = "01.07.2024 10:00:00", "2024-07-01 11:00:00"
    content = f"t,u,d\n{one},{one},02.07.2024\n{other},{other},2024-07-02\n".encode()
    hours = "formatDateTime(t, '%H', 'UTC'), formatDateTime(u, '%H', 'UTC'), toString(d)"
    case = Loaded(content, [("08", "10", "2024-07-02"), ("09", "11", "2024-07-02")], hours)
    reading.cases({"a": case}, format="csv", csv=Csv(timestamp_formats=("%d.%m.%Y %H:%M:%S", "%d.%m.%Y")))


@pytest.mark.parametrize("is_new", [False, True])
def test_timestamp_formats_with_offsets(reading: Statements, is_new: bool) -> None:
    if not is_new:
        reading.create("t DateTime('Europe/Berlin')")
    reading.put({"a.csv": b"t\n01.07.2024 10:00:00 +0500\n2024-07-01 10:00:00Z\n"})
    reading.load(format="csv", csv=Csv(timestamp_formats=("%d.%m.%Y %H:%M:%S %z",)))
    assert reading.reasons() == {}
    assert reading.rows("formatDateTime(t, '%H', 'UTC')", "1") == [("05",), ("10",)]


def test_offsets_without_a_format_for_them_are_text(reading: Statements) -> None:
    reading.put({"a.csv": b"t,z\n01.07.2024 10:00:00,2024-07-01 10:00:00Z\n"})
    reading.load(format="csv", csv=Csv(timestamp_formats=("%d.%m.%Y %H:%M:%S",)))
    assert reading.rows("toString(t), z") == [("2024-07-01 10:00:00.000000", "2024-07-01 10:00:00Z")]


@pytest.mark.parametrize(("encoding", "text"), [("latin-1", "é"), ("utf-16", "ü→"), ("cp1251", "Ж")])
def test_encodings_with_their_own_letters_into_a_new_table(reading: Statements, encoding: str, text: str) -> None:
    reading.put({f"{n}.csv": f"n,s\n{n},{text}\n".encode(encoding) for n in range(2)})
    reading.load(format="csv", csv=Csv(encoding=encoding))
    assert reading.rows() == [(0, text), (1, text)]


@pytest.mark.parametrize(  # the worker parses the last two dialects, with both loaders
    ("loader", "options"),
    [("pull", {}), ("push", {}), ("pull", {"quote": "'"}), ("pull", {"encoding": "utf-16"})], ids=str,
)  # fmt: skip
def test_a_sample_of_csv_that_ends_within_quotes(reading: Statements, loader: str, options: dict[str, Any]) -> None:
    dialect = Csv(**options)
    text = "one\n" * 40
    rows = "".join(f"{n},{dialect.quote}{text}{dialect.quote},{n / 4}\n" for n in range(20))
    reading.put({"a.csv": f"n,s,f\n{rows}".encode(dialect.encoding)})
    reading.load(loader=loader, format="csv", csv=dialect, sample_bytes=900)
    assert reading.reasons() == {}
    assert reading.rows("n, s, f") == [(n, text, n / 4) for n in range(20)]


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
def test_nested_json(reading: Statements, loader: str, nested: str, kind: str, value: Any) -> None:
    reading.put({"a.jsonl": jsonl(NESTED)})
    reading.load(loader=loader, nested=nested)
    assert reading.reasons() == {}
    assert reading.types()["o"].startswith(kind)
    rows = reading.rows("id, o, l", "id")
    assert rows[0] == (1, value, [1, 2])
    assert rows[1][2] == []


@pytest.mark.parametrize("loader", LOADERS)
def test_columns_are_deduced_from_several_objects(reading: Statements, loader: str) -> None:
    uuid = "6ba7b810-9dad-11d1-80b4-00c04fd430c8"
    many = b"".join(b'{"id": %d, "w": "%s"}\n' % (n, (b"red", b"green")[n % 2]) for n in range(1000, 3000))
    reading.put(
        {
            "a.jsonl": jsonl([{"id": 1, "u": uuid, "d": "2020-01-02", "n": 1}]),
            "b.jsonl": jsonl([{"id": 2, "u": None, "d": "2100-01-02", "n": 1.5}]),
            "c.jsonl": jsonl([{"id": 3, "late": True, "t": "2020-01-02T03:04:05Z"}]),
            "d.jsonl": many,
        }
    )
    report = reading.load(loader=loader)
    assert reading.reasons() == {}
    assert report.rows == 2003
    assert reading.types() == {
        "id": "Nullable(Int64)", "u": "Nullable(UUID)", "d": "Nullable(Date32)", "n": "Nullable(Float64)",
        "late": "Nullable(Bool)", "t": "Nullable(DateTime64(6))", "w": "LowCardinality(Nullable(String))",
    }  # fmt: skip
    rows = reading.rows("id, toString(u), toString(d), n, late, w", "id")
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
@pytest.mark.parametrize("odd", ["a", "c"])
def test_a_new_table_has_the_columns_of_most_objects(reading: Statements, loader: str, odd: str) -> None:
    reading.put(odd_objects("parquet", odd))
    reading.load(loader=loader)
    assert [*reading.reasons()] == [f"{odd}.parquet"]
    assert reading.types() == {"n": "Nullable(Int64)"}
    assert len(reading.rows()) == 4


@pytest.mark.parametrize("loader", LOADERS)
@pytest.mark.parametrize("odd", ["a", "c"])
def test_values_of_several_kinds_in_json_objects_are_text(reading: Statements, loader: str, odd: str) -> None:
    reading.put(odd_objects("jsonl", odd))
    reading.load(loader=loader)
    assert reading.reasons() == {}
    assert reading.types() == {"n": "Nullable(String)"}
    assert sorted(reading.rows()) == sorted(('{"x": 1}',) if n == odd else (str(i),) for i, n in enumerate("abcde"))


@pytest.mark.parametrize("loader", LOADERS)
def test_parquet_types_come_as_they_are(reading: Statements, loader: str) -> None:
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
    reading.put({"a.parquet": parquet(table)})
    reading.load(loader=loader)
    assert reading.reasons() == {}
    types = {name: " ".join(kind.split()).replace("( ", "(") for name, kind in reading.types().items()}
    assert types == {name: kind for name, (_, _, kind, _) in columns.items()}
    found = reading.query(f"SELECT * FROM {reading.table} ORDER BY isNull(i8)")
    assert [dict(zip(columns, row, strict=True)) for row in found] == [
        {name: values[n] for name, (_, _, _, values) in columns.items()} for n in range(2)
    ]


@pytest.mark.parametrize("loader", LOADERS)
def test_int96_timestamps(reading: Statements, loader: str) -> None:
    moment = dt.datetime(2020, 1, 2, 3, 4, 5, 678901)
    table = pa.table({"t": pa.array([moment], pa.timestamp("ns"))})
    reading.put({"a.parquet": parquet(table, use_deprecated_int96_timestamps=True)})
    reading.load(loader=loader)
    assert reading.rows("toString(t)") == [("2020-01-02 03:04:05.678901000",)]


# By zone: local times that its clocks do not show, and times before, after and beside them that exist.
GAPS = {
    "Europe/Berlin": (
        ["2026-03-29 02:00:00", "2026-03-29T02:59:59", "2026-03-29 02:30:00.000"],
        [
            "2026-03-29 01:59:59", "2026-03-29 03:00:00", "2026-03-29 02:30:00+01:00", "2026-03-29 02:30:00Z",
            "2026-03-29 01:30:00", "2026-10-25 02:30:00", "1774744200", "2026-03-29",
        ],
    ),
    "Africa/Cairo": (
        ["2026-04-24", "2026-04-24 00:30:00"], ["2026-04-23 23:30:00", "2026-04-24 01:00:00", "2026-04-25"]
    ),
    "Australia/Lord_Howe": (["2026-10-04 02:15:00"], ["2026-10-04 01:45:00", "2026-10-04 02:30:00"]),
    "Atlantic/Azores": (
        ["2026-03-29 00:30:00"], ["2026-03-28 23:30:00", "2026-03-29 00:30:00Z", "2026-03-29 01:00:00"]
    ),
    "Antarctica/Troll": (
        ["2026-03-29 01:30:00", "2026-03-29 02:30:00"], ["2026-03-29 00:59:59", "2026-03-29 03:00:00"]
    ),
    "UTC": ([], ["2026-03-29 02:30:00"]),
    "Asia/Kolkata": ([], ["2026-03-29 02:30:00"]),
}  # fmt: skip


@pytest.mark.parametrize("zone", GAPS)
@pytest.mark.parametrize("kind", ["DateTime({})", "Nullable(DateTime64(3, {}))"])
@pytest.mark.parametrize(
    ("form", "template"), [("csv", "t\n{}\n"), ("jsonl", '{{"t": "{}"}}\n')], ids=["csv", "jsonl"]
)
def test_times_that_no_clock_shows_are_refused(
    reading: Statements, zone: str, kind: str, form: str, template: str
) -> None:
    skipped, shown = GAPS[zone]
    cases: dict[str, Loaded | Refused] = {
        text: Refused(template.format(text).encode(), "no clock of its time zone shows") for text in skipped
    }
    for text in shown:
        moment = dt.datetime.fromtimestamp(int(text), dt.UTC) if text.isdigit() else dt.datetime.fromisoformat(text)
        moment = moment if moment.tzinfo else moment.replace(tzinfo=ZoneInfo(zone))
        rows = [(int(moment.timestamp()),)]
        cases[text] = Loaded(template.format(text).encode(), rows, "toInt64(toUnixTimestamp(assumeNotNull(t)))")
    reading.create(f"t {kind.format(repr(zone))}")
    reading.cases(cases, format=form)


def test_times_that_no_clock_of_the_server_shows_are_refused(
    reading: Statements, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading.client, "server_tz", ZoneInfo("Europe/Berlin"), raising=False)
    reading.client.set_client_setting("session_timezone", "Europe/Berlin")
    try:
        reading.put({"a.csv": b"t\n2026-03-29 01:30:00\n", "b.csv": b"t\n2026-03-29 02:30:00\n"})
        reading.put({"c.jsonl": b'{"t":"2026-03-29 02:30:00"}\n'})
        reading.load(format="csv", keys="*.csv")
        reading.load(format="jsonl", keys="*.jsonl")
        assert all("no clock of its time zone shows" in reading.reasons()[key] for key in ("b.csv", "c.jsonl"))
        assert reading.rows("toString(t)") == [("2026-03-29 01:30:00.000000",)]
    finally:
        reading.client.set_client_setting("session_timezone", "UTC")


def test_times_of_a_format_that_no_clock_shows_are_refused(reading: Statements) -> None:
    reading.create("t DateTime('Europe/Berlin')")
    cases = {
        "skipped": Refused(b"t\n29.03.2026 02:30:00\n", "no date and time of DateTime('Europe/Berlin')"),
        "before": Loaded(b"t\n29.03.2026 01:30:00\n", [("2026-03-29 01:30:00",)], "toString(t)"),
    }
    reading.cases(cases, format="csv", csv=Csv(timestamp_formats=("%d.%m.%Y %H:%M:%S",)))
