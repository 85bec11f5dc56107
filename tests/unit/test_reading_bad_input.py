"""Malformed objects: each fails with its own reason, all others are loaded, none partially.

Loads run in the process, without servers.
"""

from __future__ import annotations

import datetime as dt
import gzip
import itertools
import lzma
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from storeside.transfer.base.errors import TransferInputError
from tests.statements import Statements
from tests.transfers import Loaded, Refused, jsonl, parquet

LOADERS = ("pull", "push")


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
        "2020-01-02 03:04:05.5": "'t' has a value that DateTime('UTC') cannot hold",
    },
    "d": {"2200-01-02": "out of bounds", "1066-01-02": "out of bounds", "2020-02-31": "'d'", "2021-02-29": "'d'"},
    "dec": {"1.239": "'dec'", "123456789.01": "too big", "1e50": "too big"},
    "h": {"-1": "'h'", "340282366920938463463374607431768211456": "'h'"},
    "s": {"\udcff\udcfe": "'s' has invalid UTF-8"},
    "m": {"2020-01-02 03:04:05.6789": "'m'"},
}  # fmt: skip


@pytest.mark.parametrize(("form", "loader"), [("csv", "pull"), ("csv", "push"), ("jsonl", "push")])
def test_values_that_a_column_cannot_hold(reading: Statements, loader: str, form: str) -> None:
    reading.create(TYPES)

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

    cases: dict[str, Loaded | Refused] = {}
    for column, wrong in WRONG.items():
        for n, (value, word) in enumerate(wrong.items()):
            is_moment = form == "csv" and column == "t"
            reason = "'t' has a value that DateTime('UTC') cannot hold" if is_moment else word
            cases[f"{column}{n}"] = Refused(write({**GOOD, column: value}), reason)
    if form == "jsonl":
        # The check for JSON comes first.
        cases["s0"] = Refused(cases["s0"].content, "row 0 is not JSON (RFC 8259): invalid UTF-8 at byte")
        cases["u4"] = Refused(cases["u4"].content.replace(b'"u": ,', b'"u": null,'), WRONG["u"][""])
    shown = "u, i, toString(t), toString(d), toString(dec), toString(h), s, toString(m)"
    for u in (2, 255):
        rows = [(u, 3, GOOD["t"], GOOD["d"], "1.5", "7", "x", GOOD["m"])]
        cases[f"good{u}"] = Loaded(write({**GOOD, "u": str(u)}), rows, shown)
    reading.cases(cases, f".{form}", loader=loader)


@pytest.mark.parametrize("loader", LOADERS)
def test_wrong_values_within_nested_json(reading: Statements, loader: str) -> None:
    reading.create("a Array(UInt8), t Tuple(x Int8, y Nullable(String)), m Map(String, UInt16)")
    good = {"a": [1, 255], "t": {"x": -128, "y": "s"}, "m": {"k": 65535}}
    reading.cases({
        "array": Refused(jsonl([{**good, "a": [1, 256]}]), "'a'"),
        "tuple": Refused(jsonl([{**good, "t": {"x": 128, "y": None}}]), "'t'"),
        "map": Refused(jsonl([{**good, "m": {"k": -1}}]), "'m'"),
        "unknown": Refused(jsonl([{**good, "t": {"x": 1, "y": "s", "z": 2}}]), "'t'"),
        # a key without a column, after all others
        "late": Refused(jsonl([{**good, "late": 1}]), "late"),
        "twice": Refused(b'{"a": [1], "t": {"x": 1, "y": "s"}, "m": {}, "a": [2]}\n', "Duplicate field"),
        "good": Loaded(jsonl([good]), [([1, 255], {"x": -128, "y": "s"}, {"k": 65535})]),
    }, ".jsonl", loader=loader)  # fmt: skip


ROWS_OF_BIG = [(n, f"x{n * 7919 % 10007}") for n in range(60_000)]
BIG = b"n,s\n" + b"".join(b"%d,%b\n" % (n, s.encode()) for n, s in ROWS_OF_BIG)


def broken_objects() -> dict[str, Refused]:
    """Return broken CSV objects."""
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
    return {key: Refused(content, word) for key, (content, word) in found.items()}


@pytest.mark.parametrize("loader", LOADERS)
def test_broken_text(reading: Statements, loader: str) -> None:
    broken = broken_objects()
    reading.create("n Int64, s String")
    report = reading.cases({
        **broken,
        "good.csv": Loaded(BIG, ROWS_OF_BIG),
        "good.csv.gz": Loaded(gzip.compress(BIG), ROWS_OF_BIG),
        "header.csv": Loaded(b"n,s\n"),
    }, loader=loader, format="csv")  # fmt: skip
    assert (report.loaded, report.failed, report.rows) == (3, len(broken), 120_000)


@pytest.mark.parametrize("loader", LOADERS)
def test_broken_parquet(reading: Statements, loader: str) -> None:
    reading.create("n Int64, s Nullable(String)")
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
    cases: dict[str, Loaded | Refused] = {key: Refused(content, word) for key, (content, word) in broken.items()}
    for n in range(3):
        cases[f"good{n}.parquet"] = Loaded(good, [(n, f"s{n}") for n in range(1000)])
    reading.cases(cases, loader=loader, format="parquet")
    assert all(reading.reasons().values())


@pytest.mark.parametrize("loader", LOADERS)
def test_parquet_values_are_never_cut(reading: Statements, loader: str) -> None:
    reading.create("n UInt8, d Decimal(9, 2), t DateTime64(3), f Float32")
    moment = dt.datetime(2020, 1, 2, 3, 4, 5, 678000)

    def row(n: int = 1, d: str = "1.2500", t: dt.datetime = moment, f: float = 0.5) -> bytes:
        columns = {
            "n": pa.array([n], pa.int64()), "d": pa.array([Decimal(d)], pa.decimal128(18, 4)),
            "t": pa.array([t], pa.timestamp("us")), "f": pa.array([f], pa.float64()),
        }  # fmt: skip
        return parquet(columns)

    shown = "n, toString(d), toString(t), f"
    reading.cases({
        "good": Loaded(row(), [(1, "1.25", "2020-01-02 03:04:05.678", 0.5)], shown),
        "n": Refused(row(n=256), "'n'"),
        "d": Refused(row(d="1.2345"), "'d'"),
        "D": Refused(row(d="99999999.2500"), "'d'"),
        "t": Refused(row(t=moment.replace(microsecond=678901)), "'t'"),
        "f": Refused(row(f=0.1), "'f'"),
    }, ".parquet", loader=loader)  # fmt: skip


def test_mixed_formats_under_one_prefix(reading: Statements) -> None:
    reading.cases({
        "a.csv": Loaded(b"n,s\n1,x\n", [(1, "x")]),
        "b.jsonl": Refused(jsonl([{"n": 2, "s": "y"}]), ""),
        "c.parquet": Refused(parquet({"n": [3]}), "is a Parquet file"),
    }, format="csv")  # fmt: skip


# bad rows; tests/integration/test_transfer_bad_input.py has those that are kept


@pytest.mark.parametrize("loader", LOADERS)
def test_bad_rows_over_the_limit_fail_their_object(reading: Statements, loader: str) -> None:
    reading.create("n Int64, s String")
    reading.cases({
        "bad": Refused(b"n,s\n" + 3 * b"1,x\nbad,y\n", "over 2 rows"),
        "good": Loaded(b"n,s\n-1,fine\n", [(-1, "fine")]),
        "one": Loaded(b"n,s\n1,a\nx,b\n2,c\n", [(1, "a"), (2, "c")]),
        "two": Loaded(b"n,s\n1,a\nx,b\ny,c\n", [(1, "a")]),
    }, ".csv", loader=loader, on_bad_rows="skip", max_bad_rows=2)  # fmt: skip


def test_bad_json_rows(reading: Statements) -> None:
    lines = [b'{"n": 1}', b"{", b"[2]", b"", b'{"n": "x"}', b'{"n": 5}', b"nonsense", b'{"n": 1e30}', b'{"n": 8}']
    reading.create("n Int64")
    reading.put({"a.jsonl": b"\n".join(lines)})
    report = reading.load(on_bad_rows="keep", system_columns=("_row_number",))
    assert (report.rows, report.rejected) == (3, 5)
    assert reading.rows("n, _row_number") == [(1, 0), (5, 4), (8, 7)]
    assert [raw for (raw,) in reading.query(f"SELECT raw FROM {reading.table}_rejected ORDER BY row_number")] == [
        "{", "[2]", '{"n": "x"}', "nonsense", '{"n": 1e30}',
    ]  # fmt: skip


def test_bad_rows_beside_structs_of_a_new_table(reading: Statements) -> None:
    reading.put({"a.jsonl": b'{"n": 1, "t": {"x": 1, "y": "a"}}\n[1]\n{"n": 2, "t": {"x": 2, "y": "b"}}\n'})
    report = reading.load(on_bad_rows="keep")
    assert reading.reasons() == {}
    assert (report.rows, report.rejected) == (2, 1)


def test_bad_rows_beside_a_value_after_the_sample(reading: Statements) -> None:
    rows = "".join(f'{{"n": {n}}}\n' for n in range(20))
    reading.put({"a.jsonl": f'{rows}{{"n": "x"}}\n[1]\n'.encode()})
    report = reading.load(on_bad_rows="keep", sample_bytes=50)
    assert (report.rows, report.rejected, reading.types()) == (21, 1, {"n": "Nullable(String)"})


def test_bad_rows_beside_a_new_field(reading: Statements) -> None:
    reading.create("n Nullable(Int64)")
    reading.put({"a.jsonl": b'{"n": 1}\n{"m": 2}\n[1]\n'})
    report = reading.load(on_bad_rows="keep", on_drift="add")
    assert (report.rows, report.rejected) == (2, 1)
    assert sorted(reading.types()) == ["m", "n"]


@pytest.mark.parametrize("on_drift", ["fail", "add", "rest"])
def test_bad_rows_and_a_new_field_have_one_outcome_in_all_orders(reading: Statements, on_drift: Any) -> None:
    good, new, wrong, no_json = b'{"n": 1}', b'{"n": 2, "m": 3}', b'{"n": "x"}', b'{"n" 1}'
    objects = {
        f"{n}-{m}.jsonl": b"\n".join(order)
        for n, rows in enumerate([(good, new, wrong), (good, new, no_json), (new, wrong, no_json)])
        for m, order in enumerate(itertools.permutations(rows))
    }
    reading.put(objects)
    reading.create("n Nullable(Int64)")
    report = reading.load(on_bad_rows="keep", on_drift=on_drift)
    if on_drift == "add":
        assert (report.loaded, report.rows, report.rejected) == (18, 30, 24)
        assert reading.query(f"SELECT n, m, count() FROM {reading.table} GROUP BY ALL ORDER BY n") == [
            (1, None, 12), (2, 3, 18)
        ]  # fmt: skip
        return
    assert report.failed == 18
    assert on_drift == "rest" or all("Unknown field" in reason for reason in reading.reasons().values())
    table = f"{reading.table}_rejected"
    assert reading.query(f"EXISTS TABLE {table}") == [(0,)] or reading.query(f"SELECT count() FROM {table}") == [(0,)]


def test_a_new_field_behind_a_bad_row_is_added(reading: Statements) -> None:
    reading.create("n Nullable(Int64)")
    reading.put({"a.jsonl": b'{"n": "x"}\n{"n": 2, "m": 3}\n'})
    report = reading.load(on_bad_rows="keep", on_drift="add")
    assert (report.rows, report.rejected) == (1, 1)
    assert reading.query(f"SELECT n, m FROM {reading.table}") == [(2, 3)]
    assert reading.query(f"SELECT row_number FROM {reading.table}_rejected") == [(0,)]


def test_names_in_text_that_is_no_json_are_no_fields(reading: Statements) -> None:
    reading.create("n Int64")
    reading.cases({
        "no-json": Loaded(b'{"n": 1}\n{"m": 01}\n', [(1,)]),
        "json": Refused(b'{"n": 1}\n{"m": 1}\n', "Unknown field"),
    }, ".jsonl", on_bad_rows="skip")  # fmt: skip


def test_objects_without_a_field_show_no_columns(reading: Statements) -> None:
    reading.put({"a.jsonl": b"{}\n{}\n"})
    with pytest.raises(TransferInputError, match="no sampled object has a row with a field: create"):
        reading.load()


def test_a_row_that_does_not_end(reading: Statements, monkeypatch: pytest.MonkeyPatch) -> None:
    from storeside.transfer.formats import text_rows

    monkeypatch.setattr(text_rows, "LONGEST_ROW", 1 << 20)
    reading.create("n Int64, s String")
    long = b"1," + b"x" * (5 << 20)
    reading.cases({
        "long": Refused(b"n,s\nbad,y\n" + long + b"\n", "does not end within 1 MB"),
        "good": Loaded(b"n,s\n1,x\n", [(1, "x")]),
    }, ".csv", on_bad_rows="skip")  # fmt: skip


def expect(reading: Statements, failing: Mapping[str, str], rows: Mapping[str, int]) -> None:
    """Check that exactly these objects fail, for reasons with these words, and the others have these row counts."""
    reasons = reading.reasons()
    assert {key: word for key, word in failing.items() if word not in reasons.get(key, "")} == {}, reasons
    assert set(reasons) == set(failing)
    loads = reading.newest()
    counts = reading.query(f"SELECT _storeside_load, count() FROM {reading.table} GROUP BY 1")
    assert {loads[load][0]: count for load, count in counts} == rows


# drift


@pytest.mark.parametrize(
    ("form", "loader"), [("csv", "pull"), ("jsonl", "push"), ("parquet", "pull"), ("parquet", "push")]
)
def test_drift(reading: Statements, loader: str, form: str) -> None:
    def write(rows: list[dict[str, Any]]) -> bytes:
        if form == "jsonl":
            return jsonl(rows)
        if form == "parquet":
            return parquet(pa.Table.from_pylist(rows))
        return b"".join(",".join(map(str, row)).encode() + b"\n" for row in [[*rows[0]], *(r.values() for r in rows)])

    reading.create("n Nullable(Int8), s Nullable(String)")
    objects = {
        "a": [{"n": 1, "s": "x"}],
        "more": [{"n": 2, "s": "y", "z": 7}],
        "wide": [{"n": 3, "s": "y"}, {"n": 300, "s": "y"}],
        "less": [{"n": 4}],
        "order": [{"s": "z", "n": 5}],
    }
    reading.put({f"{name}.{form}": write(rows) for name, rows in objects.items()})
    reading.load(loader=loader)
    expect(
        reading, {f"more.{form}": "z", f"wide.{form}": "n"}, {f"a.{form}": 1, f"less.{form}": 1, f"order.{form}": 1}
    )
    assert reading.rows() == [(1, "x"), (4, None), (5, "z")]

    reading.load(loader=loader, on_drift="rest", retry_failed=True)
    expect(reading, {f"wide.{form}": "n"}, {f"a.{form}": 1, f"less.{form}": 1, f"order.{form}": 1, f"more.{form}": 1})
    assert (2, "y", {"z": "7"}) in reading.rows()

    reading.put({f"again.{form}": write([{"n": 6, "s": "y", "z": 8}])})
    reading.load(loader=loader, on_drift="add", retry_failed=True)
    assert set(reading.reasons()) == {f"wide.{form}"}
    assert reading.rows("n, z", "n")[-1] == (6, 8)

    reading.load(loader=loader, on_drift="widen", retry_failed=True)
    assert reading.reasons() == {}
    assert reading.rows("n", "n") == [(1,), (2,), (3,), (4,), (5,), (6,), (300,)]
    assert reading.types()["n"] in ("Nullable(Int64)", "Nullable(Int16)")


def test_a_table_that_cannot_become_wide_enough_costs_only_that_object(reading: Statements) -> None:
    reading.create("id UInt32, s String", order_by="id")
    reading.cases({
        "good": Loaded(b"id,s\n1,x\n", [(1, "x")]),
        "letters": Refused(b"id,s\nabc,y\n", "part of its key"),
    }, ".csv", on_drift="widen", format="csv")  # fmt: skip
