"""Statements select, rename, cast, mask and compute columns, and filter rows; by both loaders."""

from __future__ import annotations

import dataclasses
import hashlib
import io
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.orc
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from storeside.sql.quoting import identifier
from storeside.transfer.base.errors import TransferInputError
from storeside.transfer.formats.parquet import Facts, ParquetObject
from storeside.transfer.request.column_options import Columns
from storeside.transfer.request.object_format import Csv
from storeside.transfer.request.table_keys import Expression
from tests.avro_files import avro, record
from tests.statements import Statements
from tests.transfers import jsonl, parquet

LOADERS = ("pull", "push")
EMAILS = ["ann@example.org", "bob@example.org", None, "z"]
ROWS: dict[str, list[Any]] = {
    "id": [1, 2, 3, 4], "email": EMAILS, "ts": [f"2026-01-0{n} 12:00:00" for n in (1, 2, 3, 4)],
    "price": ["1.50", "2.25", "3", None], "junk": ["a", "b", "c", "d"],
}  # fmt: skip
CHOSEN = Columns(
    drop=("junk",),
    rename={"ts": "taken_at"},
    cast={"price": "Nullable(Decimal(9, 2))", "ts": "DateTime('UTC')"},
    mask={"email": "sha256"},
    compute={"day": Expression("toDate(ts)"), "twice": Expression("price * 2")},
    where=Expression("id != 2"),
)


def hashed(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def arrow(columns: dict[str, Any]) -> bytes:
    table, sink = pa.table(columns), io.BytesIO()
    with pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue()


def orc(columns: dict[str, Any]) -> bytes:
    sink = io.BytesIO()
    pa.orc.write_table(pa.table(columns), sink)
    return sink.getvalue()


def lines(columns: dict[str, Any]) -> bytes:
    return jsonl([dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)])


def csv(columns: dict[str, Any]) -> bytes:
    rows = zip(*columns.values(), strict=True)
    texts = [",".join("" if value is None else str(value) for value in row) for row in rows]
    return "\n".join([",".join(columns), *texts, ""]).encode()


def in_avro(columns: dict[str, Any]) -> bytes:
    texts: dict[str, Any] = {name: ["null", "string"] for name in columns if name != "id"}
    made = {n: c if n == "id" else [(int(v is not None), v) for v in c] for n, c in columns.items()}
    rows = [dict(zip(made, row, strict=True)) for row in zip(*made.values(), strict=True)]
    return avro(record(id="long", **texts), rows)


FORMATS = {"parquet": parquet, "csv": csv, "jsonl": lines, "arrow": arrow, "orc": orc, "avro": in_avro}


@pytest.mark.parametrize("loader", LOADERS)
@pytest.mark.parametrize("form", FORMATS)
def test_all_options_with_a_new_table(reading: Statements, loader: str, form: str) -> None:
    reading.put({f"{n}/x.{form}": FORMATS[form](ROWS) for n in (1, 2)})
    report = reading.load(loader=loader, chosen=CHOSEN, system_columns=("_object", "_row_number"))
    assert reading.reasons() == {}
    assert (report.rows, report.filtered) == (6, 2)
    types = reading.types()
    assert list(types)[-4:-2] == ["day", "twice"]
    assert types["email"] == "Nullable(String)"
    assert types["taken_at"] == "DateTime('UTC')"
    assert "junk" not in types
    masks = [None if email is None else hashed(email) for email in EMAILS]
    expected = [
        (n, masks[n - 1], f"2026-01-0{n} 12:00:00", price, f"2026-01-0{n}", twice, f"{folder}/x.{form}", n - 1)
        for n, price, twice in ((1, 1.5, 3.0), (3, 3.0, 6.0), (4, None, None)) for folder in (1, 2)
    ]  # fmt: skip
    names = "id, email, toString(taken_at), toFloat64(price), toString(day), toFloat64(twice), _object, _row_number"
    assert reading.rows(names, "id, _object") == expected
    reading.put({f"{n}/x.{form}": FORMATS[form](ROWS) for n in (3,)})  # a later run, with the table
    assert reading.load(loader=loader, chosen=CHOSEN, system_columns=("_object", "_row_number")).rows == 3
    assert reading.rows(names, "id, _object")[2] == (*expected[0][:6], f"3/x.{form}", 0)


@pytest.mark.parametrize("loader", LOADERS)
@pytest.mark.parametrize("form", FORMATS)
def test_selected_columns_and_an_existing_table(reading: Statements, loader: str, form: str) -> None:
    """Columns that are not selected never count as drift; the load adds the computed column."""
    reading.create("id UInt8, taken_at Nullable(String), note String DEFAULT 'none'")
    chosen = Columns(
        select=("id", "ts"), cast={"id": "UInt32"}, rename={"ts": "taken_at"},
        compute={"hour": Expression("substring(ts, 12, 2)"), "id": Expression("id + length(junk)")},
    )  # fmt: skip
    reading.put({f"x.{form}": FORMATS[form](ROWS)})
    reading.load(loader=loader, format=form, chosen=chosen)
    assert reading.reasons() == {}
    assert reading.rows("id, taken_at, note, hour", "id") == [
        (n + 1, f"2026-01-0{n} 12:00:00", "none", "12") for n in (1, 2, 3, 4)
    ]


@pytest.mark.parametrize("loader", LOADERS)
@pytest.mark.parametrize("form", FORMATS)
def test_casts_lose_nothing(reading: Statements, loader: str, form: str) -> None:
    wide = {**ROWS, "price": ["1.50", "2.255", "3", None]}
    wrong = {**ROWS, "ts": ["2026-01-01 12:00:00", "2026-02-31 12:00:00", "x", None]}
    chosen = Columns(
        select=("id", "price", "ts"), cast={"price": "Nullable(Decimal(9, 2))", "ts": "Nullable(Date32)"}
    )  # fmt: skip
    days = {**ROWS, "ts": [text[:10] for text in ROWS["ts"]]}
    objects = {"wide": {**days, "price": wide["price"]}, "wrong": wrong, "good": days}
    reading.put({f"{name}.{form}": FORMATS[form](rows) for name, rows in objects.items()})
    reading.load(loader=loader, format=form, chosen=chosen)
    reasons = reading.reasons()
    assert set(reasons) == {f"wide.{form}", f"wrong.{form}"}
    assert "column 'price' has a value that Nullable(Decimal(9, 2)) cannot hold" in reasons[f"wide.{form}"]
    assert "column 'ts'" in reasons[f"wrong.{form}"]
    assert reading.rows("id, toFloat64(price), toString(ts)", "id")[1] == (2, 2.25, "2026-01-02")


def test_casts_of_numbers_lose_nothing(reading: Statements) -> None:
    chosen = Columns(cast={"f": "Int64", "t": "Date32"})
    moment = pa.array([1_767_225_600_000_000], pa.timestamp("us", "UTC"))  # a midnight
    good = {"f": [2.0], "t": moment}
    later = pa.array([1_767_225_600_000_001], pa.timestamp("us", "UTC"))
    objects = {
        "good": good,
        "f": {**good, "f": [2.5]},
        "t": {**good, "t": later},
        "nan": {**good, "f": [float("nan")]},
    }
    reading.put({f"{name}.parquet": parquet(columns) for name, columns in objects.items()})
    reading.load(chosen=chosen)
    assert set(reading.reasons()) == {"f.parquet", "t.parquet", "nan.parquet"}
    assert reading.rows("f, toString(t)") == [(2, "2026-01-01")]


@pytest.mark.parametrize("loader", LOADERS)
def test_a_condition_with_nulls_and_objects_without_rows_to_load(reading: Statements, loader: str) -> None:
    """NULL excludes a row. A footer's counts of rows and NULLs hold for the rows that were read."""
    chosen = Columns(where=Expression("n > 10"), compute={"tenth": Expression("intDiv(100, n - 10)")})
    reading.put({"none.parquet": parquet({"n": [1, 2, None], "s": ["a", None, "c"]}),
                 "some.parquet": parquet({"n": [11, None, 10, 12], "s": [None, None, "x", "y"]})})  # fmt: skip
    report = reading.load(loader=loader, chosen=chosen)
    assert (report.loaded, report.rows, report.filtered) == (2, 2, 5)
    assert reading.rows("n, s, tenth", "n") == [(11, None, 100), (12, "y", 50)]
    again = reading.load(loader=loader, chosen=Columns(where=Expression("n < 10")))  # the objects are loaded already
    assert (again.loaded, again.skipped, reading.rows("count()", "1")) == (0, 2, [(2,)])


@pytest.mark.parametrize("loader", LOADERS)
@pytest.mark.parametrize("lost", [0, 1])
def test_a_footer_with_another_count_is_refused_with_a_condition_too(
    reading: Statements, monkeypatch: pytest.MonkeyPatch, loader: str, lost: int
) -> None:
    real = ParquetObject.facts

    def facts(self: ParquetObject) -> Facts:
        told = real(self)
        nulls = tuple(count + 1 for count in told.nulls) if lost else told.nulls
        return dataclasses.replace(told, rows=told.rows + 1 - lost, nulls=nulls)

    reading.create("n Nullable(Int64)")
    reading.put({"x.parquet": parquet({"n": [1, None, 3]})})
    monkeypatch.setattr(ParquetObject, "facts", facts)
    reading.load(loader=loader, format="parquet", chosen=Columns(where=Expression("n = 1")))
    expected = "column 'n' has 2 NULLs, but 1 arrived" if lost else "it has 4 rows, but 3 arrived"
    assert expected in reading.reasons()["x.parquet"]


@pytest.mark.parametrize("loader", LOADERS)
@pytest.mark.parametrize("form", ["parquet", "csv", "jsonl"])
def test_drift_with_options(reading: Statements, loader: str, form: str) -> None:
    """Dropped columns are no drift; other new columns are, with their new names."""
    chosen = Columns(drop=("junk",), rename={"new": "fresh"}, mask={"email": "redact"})
    old = {name: ROWS[name] for name in ("id", "email", "junk")}
    new = {**old, "new": ["p", "q", "r", "s"]}
    make = FORMATS[form]
    reading.put({f"1.{form}": make(old)})
    sampled = {name: c for name, c in {**new}.items()}
    reading.put({f"2.{form}": make(sampled)})
    reading.load("1", loader=loader, chosen=dataclasses.replace(chosen, rename={}))
    assert list(reading.types()) == ["id", "email"]
    assert reading.load("2", loader=loader, chosen=chosen).failed == 1
    assert reading.load("2", loader=loader, chosen=chosen, on_drift="rest", retry_failed=True).failed == 0
    assert reading.rows("countIf(_rest = map('new', 's'))", "1") == [(1,)]
    reading.put({f"3.{form}": make(new)})
    assert reading.load("3", loader=loader, chosen=chosen, on_drift="add").failed == 0
    assert reading.rows("fresh, email", "fresh NULLS FIRST")[-1] == ("s", "***")
    reading.client.command(f"ALTER TABLE {reading.table} MODIFY COLUMN id Nullable(Int32)")
    reading.put({f"4.{form}": make({**new, "id": [0.5, 1.5, 2.5, 3.5]})})
    assert reading.load("4", loader=loader, chosen=chosen, on_drift="widen").failed == 0
    assert reading.types()["id"] == "Nullable(Float64)"
    assert reading.rows("fresh, email", "id")[0] == ("p", "***")


@pytest.mark.parametrize("loader", LOADERS)
@pytest.mark.parametrize("form", ["parquet", "csv", "jsonl"])
def test_a_wider_column_rounds_no_row_of_the_table(reading: Statements, loader: str, form: str) -> None:
    large = 2**53 + 1
    reading.create("id Nullable(Int64), price Nullable(Decimal(38, 10)) DEFAULT 0, small Nullable(Int32) DEFAULT 7")
    reading.put({"first.csv": f"id,price\n{large},1234567890123456.1234567891\n".encode()})
    reading.load("first", format="csv")
    wrong, good = {"id": [0.5], "price": [1.5]}, {"id": [1], "small": [2.5]}
    reading.put({f"next/{name}": FORMATS[form](columns) for name, columns in (("wrong", wrong), ("good", good))})
    reading.load("next/", loader=loader, format=form, on_drift="widen")
    assert list(reading.reasons()) == ["next/wrong"]
    reading.load("next/", loader=loader, format=form, on_drift="widen", retry_failed=True)
    assert "(column 'id' stays Nullable(Int64), because Float64 cannot hold" in reading.reasons()["next/wrong"]
    assert list(reading.types().values()) == ["Nullable(Int64)", "Nullable(Decimal(38, 10))", "Nullable(Float64)"]
    assert reading.rows("toString(id), toString(price), small", "id") == [
        ("1", "0", 2.5), (str(large), "1234567890123456.1234567891", 7),
    ]  # fmt: skip


@pytest.mark.parametrize("loader", LOADERS)
@pytest.mark.parametrize("quote", ['"', "'"])
def test_csv_without_a_header_and_dialects(reading: Statements, loader: str, quote: str) -> None:
    """ClickHouse parses one of the dialects, pyarrow the other; a column that is not loaded may change its type."""
    rows = b"".join(b"%d,%s,%d\n" % (n, b"x" if n == 60_000 else b"7", n % 2) for n in range(60_001))
    headed = {"head/x.csv": b"n,junk,odd\n" + rows}
    for name, keys, names, chosen in (
        ("names", "bare/", ("n", "junk", "odd"), Columns(drop=("junk", "other"), where=Expression("odd = '1'"))),
        ("selected", "head/", (), Columns(select=("n",), cast={"odd": "UInt8"}, where=Expression("odd = 1"))),
    ):
        reading = reading.another()
        reading.create("n Int64" if name == "selected" else "n Int64, odd Nullable(String)")
        reading.put({**headed, "bare/x.csv": rows})
        csv = Csv(quote=quote, names=names)
        report = reading.load(keys, loader=loader, format="csv", csv=csv, chosen=chosen)
        assert reading.reasons() == {}
        assert (report.rows, report.filtered) == (30_000, 30_001)
        assert reading.rows("sum(n), max(n)", "1") == [(900_000_000, 59_999)]


NAMES = ["a`b", "c\\'d", 'e"f', "g,h = i", "j\nk", "{l:String}", "m%sn", "`); DROP TABLE x; --"]


@pytest.mark.parametrize("loader", LOADERS)
@pytest.mark.parametrize("form", ["jsonl", "parquet"])
def test_hostile_names(reading: Statements, loader: str, form: str) -> None:
    columns = {name: [str(n), "x"] for n, name in enumerate(NAMES)}
    targets = [f"to {name}" for name in NAMES]
    chosen = Columns(
        select=tuple(NAMES), rename=dict(zip(NAMES, targets, strict=True)), cast={NAMES[0]: "String"},
        mask={name: "redact" for name in NAMES[2:]}, compute={"`x` '": Expression("length(`a\\`b`)")},
    )  # fmt: skip
    reading.put({f"x.{form}": FORMATS[form](columns)})
    reading.load(loader=loader, chosen=chosen)
    assert list(reading.types()) == [*targets, "`x` '"]
    assert reading.rows("*") == [
        ("0", "1", *["***"] * (len(NAMES) - 2), 1),
        ("x", "x", *["***"] * (len(NAMES) - 2), 1),
    ]


REFUSED: list[tuple[Columns, str]] = [
    (Columns(select=("nope",)), "select 'nope': no sampled object has this column"),
    (Columns(drop=("nope",)), "drop 'nope'"),
    (Columns(rename={"nope": "b"}), "rename 'nope'"),
    (Columns(cast={"nope": "Int8"}), "cast 'nope'"),
    (Columns(mask={"nope": "redact"}), "mask 'nope'"),
    (Columns(rename={"id": "email"}), "columns email: two columns of the objects get this name"),
    (Columns(compute={"x": Expression("nope + 1")}), "Unknown expression or function identifier `nope`"),
    (Columns(compute={"x": Expression("id +")}), "compute 'x' 'id +': Syntax error"),
    (Columns(compute={"x": Expression("nofunction(id)")}), "ClickHouse has no function nofunction"),
    (Columns(compute={"x": Expression("now()")}), "its result may differ from one run to the next"),
    (Columns(compute={"x": Expression("(SELECT 1)")}), "without subqueries"),
    (Columns(compute={"x": Expression("(FROM numbers(3))")}), "without subqueries"),
    (Columns(compute={"x": Expression("file('/etc/passwd')")}), "it reads more than the row"),
    (Columns(compute={"x": Expression("dictGet('d', 'a', id)")}), "it reads more than the row"),
    (Columns(compute={"x": Expression("arrayJoin([1, 2])")}), "use other functions"),
    (Columns(compute={"x": Expression("sum(id)")}), "use other functions"),
    (Columns(where=Expression("id IN storeside.loads")), "write a list of constants after IN"),
    (Columns(where=Expression("row_number() OVER () = 1")), "and OVER"),
    (Columns(where=Expression("junk")), "where 'junk' is Nullable(String): write a condition"),
    (Columns(where=Expression("_storeside_load = 1")), "Unknown expression or function identifier"),
]


@pytest.mark.parametrize(("chosen", "reason"), REFUSED, ids=[reason for _, reason in REFUSED])
def test_options_that_are_refused_before_anything_is_loaded(
    reading: Statements, chosen: Columns, reason: str
) -> None:
    reading.put({"x.csv": csv(ROWS)})
    with pytest.raises(TransferInputError) as refused:
        reading.load(chosen=chosen)
    assert reason in str(refused.value)
    assert reading.query(f"EXISTS TABLE {reading.table}") == [(0,)]


def test_tables_that_do_not_fit_the_options_are_refused(reading: Statements) -> None:
    reading.put({"x.csv": csv(ROWS)})
    reading.create("id Int64, email UInt64, junk String")
    for chosen, reason in (
        (Columns(mask={"email": "sha256"}), "column 'email' of .* is UInt64, which holds no masked values"),
        (Columns(select=("id", "email")), "column 'junk' of .* is String and needs a value"),
    ):
        with pytest.raises(TransferInputError, match=reason):
            reading.load(format="csv", chosen=chosen)


def test_masks(reading: Statements) -> None:
    texts = ["", "1234567", "12345678", "ümläut und mehr", None]
    for mask, expected in {
        "sha256": [hashed(text) if text is not None else None for text in texts],
        "redact": ["***"] * 4 + [None],
        "last4": ["***", "***", "***5678", "***mehr", None],
    }.items():
        reading.put({f"{mask}.parquet": parquet({"n": list(range(5)), "s": texts, "m": [mask] * 5})})
        reading.load(mask, chosen=Columns(mask={"s": mask}))
        assert reading.query(f"SELECT s FROM {reading.table} WHERE m = '{mask}' ORDER BY n") == [
            (s,) for s in expected
        ]
    reading.put({"number.jsonl": jsonl([{"n": 9, "s": 12345678.0, "m": "x"}, {"n": 10, "s": {"a": 1}, "m": "x"}])})
    reading.load("number", chosen=Columns(mask={"s": "last4"}))
    assert reading.query(f"SELECT s FROM {reading.table} WHERE n > 8 ORDER BY n")[1] == ("***: 1}",)


NUMBERS = st.none() | st.integers(-(2**40), 2**40)
TEXTS = st.none() | st.text("abc üé'`\\{}:@1", min_size=1, max_size=12)
COMPUTED: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "double": ("n * 2", lambda t: pc.multiply(t["n"], 2)),
    "size": ("lengthUTF8(s)", lambda t: pc.utf8_length(t["s"])),
    "s": ("upperUTF8(ifNull(s, 'none'))", lambda t: pc.utf8_upper(pc.fill_null(t["s"], "none"))),
}
CONDITIONS: dict[str, tuple[str, Callable[[Any], Any]] | None] = {
    "all": None,
    "n": ("n > 0", lambda t: pc.greater(t["n"], 0)),
    "s": ("s LIKE '%a%' OR n IS NULL", lambda t: pc.or_kleene(pc.match_substring(t["s"], "a"), pc.is_null(t["n"]))),
}


@st.composite
def choices(draw: st.DrawFn) -> tuple[Columns, list[str], str]:
    """Return options, the computed columns and the name of the condition."""
    computed = draw(st.lists(st.sampled_from(sorted(COMPUTED)), unique=True))
    condition = draw(st.sampled_from(sorted(CONDITIONS)))
    free = [name for name in ("n", "s", "x") if name not in computed]
    kept = draw(st.sets(st.sampled_from(["n", "s", "x"])))
    by_name = draw(st.booleans())
    read = [name for name in free if name in kept]
    where = CONDITIONS[condition]
    chosen = Columns(
        select=("id", *sorted(kept)) if by_name else (),
        drop=() if by_name else tuple(sorted({"n", "s", "x"} - kept)),
        rename={name: f"new {name}" for name in read if draw(st.booleans())},
        cast={"n": "Nullable(Int64)", "x": "Nullable(Int64)"},
        mask={"m": draw(st.sampled_from(["sha256", "redact"]))},
        compute={name: Expression(COMPUTED[name][0]) for name in computed},
        where=Expression(where[0]) if where else None,
    )
    return chosen, computed, condition


def expected(table: pa.Table, chosen: Columns, computed: list[str], condition: str) -> dict[str, list[Any]]:
    """Return the rows that pyarrow makes with these options: the second implementation."""
    found = {name: table[name] for name in ("id", "n", "s", "x") if chosen.reads(name) and name not in computed}
    found = {chosen.rename.get(name, name): column for name, column in found.items()}
    if chosen.reads("m"):
        found["m"] = pa.array(
            [v and (hashed(v) if chosen.mask["m"] == "sha256" else "***") for v in table["m"].to_pylist()],
            pa.string(),
        )
    found |= {name: COMPUTED[name][1](table) for name in computed}
    made = pa.table(found)
    where = CONDITIONS[condition]
    return (made.filter(where[1](table)) if where else made).to_pydict()


@settings(
    max_examples=3, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True, phases=[Phase.generate]
)
@given(st.lists(st.tuples(NUMBERS, TEXTS, NUMBERS, TEXTS), min_size=1, max_size=20), choices())
def test_pull_push_and_pyarrow_make_the_same_rows(
    reading: Statements, rows: list[tuple[Any, ...]], choice: tuple[Columns, list[str], str]
) -> None:
    columns = dict(zip("nsxm", map(list, zip(*rows, strict=True)), strict=True))
    kinds = {"n": pa.int64(), "s": pa.string(), "x": pa.int64(), "m": pa.string()}
    table = pa.table(
        {"id": list(range(len(rows))), **{name: pa.array(columns[name], kind) for name, kind in kinds.items()}}
    )
    chosen, computed, condition = choice
    want = expected(table, chosen, computed, condition)
    for loader in LOADERS:
        for form, content in (("parquet", parquet(table)), ("jsonl", lines(table.to_pydict()))):
            reading = reading.another()
            reading.put({f"x.{form}": content})
            report = reading.load(loader=loader, chosen=chosen)
            assert reading.reasons() == {}
            names = ", ".join(identifier(name) for name in want)
            assert reading.rows(names, "id") == list(zip(*want.values(), strict=True))
            assert (report.rows, report.filtered) == (len(want["id"]), len(rows) - len(want["id"]))


def test_times_in_keys_are_whole(reading: Statements, loader: str) -> None:
    """ClickHouse makes 10 January of this year of 10, and 1:30 of 2:30 where clocks are set forward."""
    good = ("2026-01-02", "2026-01-02 03%3A04%3A05", "1767315845", "__HIVE_DEFAULT_PARTITION__")
    wrong = ("10", "10%3A00", "2026-01", "1%2F2%2F2026", "2026-01-02T25%3A00%3A00", "2026-03-29 02%3A30%3A00")
    reading.create("n Int64, t Nullable(DateTime('Europe/Berlin'))")
    reading.put({f"t={value}/a.parquet": parquet({"n": [1]}) for value in (*good, *wrong)})
    reading.load(loader=loader, partition_columns=("t",))
    assert set(reading.reasons()) == {f"t={value}/a.parquet" for value in wrong}
    times = [f"2026-01-02 {time}" for time in ("00:00:00", "02:04:05", "03:04:05")]
    assert reading.rows("toString(t)") == [(time,) for time in (*times, None)]
