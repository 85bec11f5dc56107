"""Types: of Arrow in ClickHouse, merged, compared, read from text and converted; in ClickHouse's own engine."""

from __future__ import annotations

import json
import string
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from clickhouse_connect.driver.binding import bind_query
from clickhouse_connect.driver.exceptions import DatabaseError
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from storeside.sql.quoting import literal
from storeside.transfer.base.errors import TransferInputError
from storeside.transfer.base.schema import Column, bare, nullable, with_overrides
from storeside.transfer.request.object_format import Csv, Format
from storeside.transfer.request.options import TableOptions
from storeside.transfer.tables import creation
from storeside.transfer.types.arrow_types import arrow_columns, arrow_type
from storeside.transfer.types.conversion import converted, fits, guessed, reading, whole
from storeside.transfer.types.inference import merge, wider
from storeside.transfer.types.widening import widens
from tests import in_memory


class Engine:
    """chdb, with the part of clickhouse-connect's client that the schema needs."""

    def __init__(self) -> None:
        from chdb.session import Session

        self.session = Session(in_memory.engine())
        self.first_row: Any = None

    def run(self, text: str) -> list[list[Any]]:
        try:
            answer = self.session.query(text, "JSONCompactEachRow").data()
        except Exception as e:
            raise DatabaseError(str(e)) from e
        return [json.loads(line) for line in answer.splitlines()]

    def query(self, text: str, parameters: dict[str, Any], settings: dict[str, Any]) -> Engine:
        statement, bound = bind_query(text, parameters)
        for name, value in bound.items():
            statement = statement.replace(f"{{{name.removeprefix('param_')}:String}}", literal(value))
        options = ", ".join(f"{name} = {value!r}" for name, value in settings.items())
        self.first_row = self.run(f"{statement} SETTINGS {options}")[0]
        return self


class Server:
    """The methods of clickhouse-connect's client that create a table, on chdb."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    def command(self, text: str) -> None:
        try:
            self.engine.run(text)
        except DatabaseError as e:
            error: Any = DatabaseError(str(e))
            error.code = int(str(e).partition("Code: ")[2].partition(".")[0])
            raise error from e


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    found = Engine()
    yield found
    found.session.close()


# At least the types in the table of
# https://double.cloud/blog/posts/2023/10/native-s3-connector-vs-airbyte-s3-connector/.
ARROW = {
    pa.int64(): "Int64", pa.int32(): "Int32", pa.int16(): "Int16", pa.int8(): "Int8", pa.uint64(): "UInt64",
    pa.uint32(): "UInt32", pa.uint16(): "UInt16", pa.uint8(): "UInt8", pa.float32(): "Float32",
    pa.float64(): "Float64", pa.float16(): "Float32", pa.binary(): "String", pa.binary(5): "FixedString(5)",
    pa.string(): "String", pa.large_string(): "String", pa.large_binary(): "String", pa.string_view(): "String",
    pa.bool_(): "Bool", pa.timestamp("s"): "DateTime64(0, 'UTC')",
    pa.timestamp("ms"): "DateTime64(3, 'UTC')", pa.timestamp("us"): "DateTime64(6, 'UTC')",
    pa.timestamp("ns"): "DateTime64(9, 'UTC')",
    pa.timestamp("us", "Europe/Berlin"): "DateTime64(6, 'UTC')", pa.date32(): "Date32", pa.date64(): "Date32",
    pa.time32("s"): "Time64(3)", pa.time32("ms"): "Time64(3)", pa.time64("us"): "Time64(6)",
    pa.time64("ns"): "Time64(9)", pa.uuid(): "UUID", pa.json_(): "String", pa.bool8(): "Int8",
    pa.duration("s"): "Int64", pa.binary_view(): "String", pa.list_view(pa.int8()): "Array(Nullable(Int8))",
    pa.run_end_encoded(pa.int32(), pa.string()): "String", pa.list_(pa.time64("us")): "Array(Nullable(Time64(6)))",
    pa.decimal256(60, 5): "Decimal(60, 5)", pa.dictionary(pa.int8(), pa.time64("ns")): "Time64(9)",
    pa.decimal128(9, 2): "Decimal(9, 2)", pa.decimal256(76, 10): "Decimal(76, 10)",
    pa.dictionary(pa.int8(), pa.string()): "String", pa.list_(pa.int8()): "Array(Nullable(Int8))",
    pa.large_list(pa.field("item", pa.int8(), nullable=False)): "Array(Int8)",
    pa.list_(pa.float32(), 3): "Array(Nullable(Float32))", pa.map_(pa.string(), pa.int8()):
    "Map(String, Nullable(Int8))", pa.struct([("a b", pa.int8()), ("c", pa.list_(pa.string()))]):
    "Tuple(`a b` Nullable(Int8), `c` Array(Nullable(String)))",
}  # fmt: skip


@pytest.mark.parametrize("kind", ARROW, ids=str)
def test_arrow_types(engine: Engine, kind: pa.DataType) -> None:
    assert arrow_type(kind, "c") == ARROW[kind]
    assert engine.run(f"SELECT isNull(defaultValueOfTypeName({literal(ARROW[kind])}))") == [[0]]
    column = arrow_columns(pa.schema([("c", kind)]))[0]
    assert column.type == nullable(ARROW[kind])
    assert engine.run(f"SELECT count() FROM null({literal(column.definition)})") == [[0]]


@pytest.mark.parametrize("kind", [pa.month_day_nano_interval(), pa.dense_union([])], ids=str)
def test_arrow_types_without_a_counterpart_are_named(kind: pa.DataType) -> None:
    with pytest.raises(TransferInputError, match="column 'c': ClickHouse has no type"):
        arrow_type(kind, "c")


def test_names_that_are_there_twice_are_refused() -> None:
    with pytest.raises(TransferInputError, match="column 'a' occurs 2 times"):
        arrow_columns(pa.schema([("a", pa.int8()), ("b", pa.int8()), ("a", pa.string())]))


@pytest.mark.parametrize(
    ("one", "other", "both"),
    [
        ("Int8", "Int64", "Int64"), ("Int64", "UInt64", "Int128"), ("Int64", "Float64", "Float64"),
        ("Nullable(Int64)", "Float32", "Nullable(Float64)"), ("Int8", "String", "String"),
        ("Nullable(Bool)", "String", "Nullable(String)"), ("Date32", "DateTime64(6)", "DateTime64(6)"),
        ("DateTime64(3)", "DateTime64(6)", "DateTime64(6)"), ("UUID", "String", "String"),
        ("Decimal(9, 2)", "Decimal(18, 4)", "Decimal(18, 4)"),
        ("Array(Int8)", "Array(Nullable(Int64))", "Array(Nullable(Int64))"),
        ("LowCardinality(Nullable(String))", "LowCardinality(String)", "LowCardinality(Nullable(String))"),
        ("LowCardinality(String)", "Nullable(String)", "Nullable(String)"), ("Bool", "Bool", "Bool"),
        ("Date32", "String", "String"), ("Array(Int8)", "String", "String"),
        ("DateTime64(3, 'UTC')", "DateTime64(6, 'UTC')", "DateTime64(6, 'UTC')"),
        ("Decimal(18, 2)", "Decimal(18, 4)", "Decimal(20, 4)"), ("Decimal(9, 0)", "Decimal(9, 9)", "Decimal(18, 9)"),
        ("Decimal(76, 0)", "Decimal(9, 9)", "String"),
        ("Nullable(Decimal(9, 2))", "Decimal(9, 3)", "Nullable(Decimal(10, 3))"),
        ("Array(Int64)", "Array(Float64)", "Array(Float64)"), ("Array(Int64)", "Array(UInt64)", "Array(Int128)"),
        ("Array(Array(Int8))", "Array(Array(Nothing))", "Array(Array(Nullable(Int8)))"),
        ("Array(FixedString(3))", "Array(Nullable(String))", "Array(Nullable(String))"),
        ("Array(Int64)", "Array(String)", "String"), ("Array(Tuple(a Int8))", "Array(Tuple(b Int8))", "String"),
        ("Map(String, Int64)", "Map(String, Float64)", "Map(String, Float64)"),
        ("Map(String, Int64)", "Map(String, Nullable(String))", "String"),
        ("Tuple(a Int8, `b` Int8)", "Tuple(a Int64, `b` Float32)", "Tuple(a Int64, `b` Float32)"),
        (
            "Tuple(a Nullable(Int64), b Int64)", "Tuple(a Int64, b Nullable(Int64))",
            "Tuple(a Nullable(Int64), b Nullable(Int64))",
        ),
        ("Nullable(Tuple(a Int64))", "Tuple(a Nullable(Int64))", "Nullable(Tuple(a Nullable(Int64)))"),
    ],
)  # fmt: skip
def test_a_wider_type_takes_the_values_of_both(engine: Engine, one: str, other: str, both: str) -> None:
    assert wider(engine, one, other) == both
    assert wider(engine, other, one) == both
    assert wider(engine, both, one) == both
    for kind in (one, other):
        assert fits(kind, both)


def test_the_zone_of_a_column_stays(engine: Engine) -> None:
    for kind in ("DateTime64(6)", "Array(DateTime64(6, 'Europe/Berlin'))", "Tuple(t DateTime64(6))"):
        other = kind.replace("DateTime64(6)", "DateTime64(6, 'UTC')").replace("Europe/Berlin", "UTC")
        assert wider(engine, kind, other) == kind
    assert wider(engine, "DateTime64(6)", "Nullable(DateTime64(6, 'UTC'))") == "Nullable(DateTime64(6))"


def test_tuples_have_no_wider_type(engine: Engine) -> None:
    with pytest.raises(TransferInputError, match="as JSON or as strings"):
        wider(engine, "Tuple(a Int8)", "Tuple(a Int8, b Int8)")


def test_a_column_that_some_samples_lack_may_be_null(engine: Engine) -> None:
    samples = [[Column("a", "Int8"), Column("b", "Int8")], [Column("b", "Int16"), Column("c", "Array(Int8)")]]
    assert merge(engine, samples, {}) == [
        Column("a", "Nullable(Int8)"), Column("b", "Int16"), Column("c", "Array(Int8)"),
    ]  # fmt: skip
    assert merge(engine, [], {}) == []


def test_overrides_are_of_columns_that_are_there() -> None:
    columns = [Column("a", "Int8"), Column("b", "Int8")]
    assert with_overrides(columns, {"b": "String"}) == [Column("a", "Int8"), Column("b", "String")]
    with pytest.raises(TransferInputError, match="'c' has a type but is in no sample: choose from a, b"):
        with_overrides(columns, {"c": "String"})


# A value is taken completely or refused

INTEGERS = {
    "Int8": 8,
    "UInt8": 8,
    "Int16": 16,
    "UInt32": 32,
    "Int64": 64,
    "UInt64": 64,
    "Int128": 128,
    "UInt128": 128,
}
FEW = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def load(engine: Engine, form: Format, target: str, content: str) -> list[list[Any]]:
    """Load a column `c` as a transfer does; return the values as text. Raises DatabaseError."""
    source = reading(form, target)
    options = (
        "date_time_input_format = 'best_effort', date_time_overflow_behavior = 'throw', session_timezone = 'UTC',"
        " cast_string_to_date_time_mode = 'best_effort'"
    )
    kept = whole("`c`", source, target) or "1"
    return engine.run(
        f"SELECT toString({converted('`c`', source, target)})"
        f" FROM format({form.clickhouse}, {literal(f'c {source}')}, {literal(content)})"
        f" WHERE throwIf(NOT ({kept}), 'cut') = 0 SETTINGS {options}"
    )


@FEW
@given(st.sampled_from(sorted(INTEGERS)), st.integers(-(2**129), 2**129) | st.integers(-300, 300), st.booleans())
def test_integers_are_taken_whole_or_refused(engine: Engine, target: str, value: int, as_json: bool) -> None:
    bits = INTEGERS[target]
    low, high = (0, 2**bits - 1) if target.startswith("U") else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    form = Format("jsonl") if as_json else Format("csv", Csv(names=("c",)))
    content = f'{{"c": {value}}}\n' if as_json else f"{value}\n"
    if abs(value) >= 2**127 and bits <= 64:  # outside the type that they are read as; see `reading`
        value %= 2**64
        content = content[:0] + (f'{{"c": {value}}}\n' if as_json else f"{value}\n")
    if low <= value <= high:
        assert load(engine, form, target, content) == [[str(value)]]
    else:
        with pytest.raises(DatabaseError):
            load(engine, form, target, content)


@FEW
@given(st.decimals(-(10**8), 10**8, places=4), st.integers(0, 4))
def test_decimals_are_taken_whole_or_refused(engine: Engine, value: Any, places: int) -> None:
    value = round(value, places)
    form = Format("csv", Csv(names=("c",)))
    if value == round(value, 2) and abs(value) < 10**7:
        (((text,),)) = load(engine, form, "Decimal(9, 2)", f"{value}\n")
        assert float(text) == float(value)
    else:
        with pytest.raises(DatabaseError):
            load(engine, form, "Decimal(9, 2)", f"{value}\n")


@pytest.mark.parametrize("as_json", [True, False])
@pytest.mark.parametrize(
    ("target", "text", "value"),
    [
        ("Decimal(9, 2)", "1.239e0", None), ("Decimal(9, 2)", "1239e-3", None), ("Decimal(18, 6)", "1.5e-07", None),
        ("Decimal(9, 2)", "1.2300E0", "1.23"), ("Decimal(9, 2)", "1.5e+3", "1500"),
        ("Decimal(9, 2)", "-0.00015e4", "-1.5"), ("Decimal(9, 2)", "0e-7", "0"), ("Decimal(9, 2)", "0.000E-9", "0"),
        ("Decimal(9, 2)", "123456e-2", "1234.56"), ("Decimal(9, 2)", "1e7", None), ("Decimal(9, 0)", "1.5e1", "15"),
        ("Decimal(9, 2)", "1e999999999", None), ("Decimal(9, 2)", "1e-99999999999", None),
        ("Decimal(76, 70)", "1.5e-70", None), ("Nullable(Decimal(18, 8))", "1.5e-07", "0.00000015"),
    ],
)  # fmt: skip
def test_decimals_with_exponents_are_taken_whole_or_refused(
    engine: Engine, target: str, text: str, value: str | None, as_json: bool
) -> None:
    form = Format("jsonl") if as_json else Format("csv", Csv(names=("c",)))
    content = f'{{"c": {text}}}\n' if as_json else f"{text}\n"
    if value is not None:
        assert load(engine, form, target, content) == [[value]]
    else:
        with pytest.raises(DatabaseError):
            load(engine, form, target, content)


@FEW
@given(st.integers(1900, 2299), st.integers(1, 12), st.integers(1, 31), st.sampled_from(["Date32", "Date"]))
def test_dates_are_taken_whole_or_refused(engine: Engine, year: int, month: int, day: int, target: str) -> None:
    import datetime as dt

    text = f"{year}-{month:02}-{day:02}"
    try:
        there = dt.date(year, month, day)
    except ValueError:
        there = None
    if there and (target == "Date32" or dt.date(1970, 1, 1) <= there <= dt.date(2149, 6, 6)):
        for content in (text, f"{year}{month:02}{day:02}", f"{year}-{month}-{day}"):
            assert load(engine, Format("csv", Csv(names=("c",))), target, f"{content}\n") == [[text]]
    else:
        with pytest.raises(DatabaseError):
            load(engine, Format("csv", Csv(names=("c",))), target, f"{text}\n")


@pytest.mark.parametrize(
    ("target", "value", "taken"),
    [
        ("DateTime('UTC')", "2020-01-02 03:04:05", True), ("DateTime('UTC')", "2020-01-02 03:04:05.5", False),
        ("DateTime('UTC')", "1720051200.0", True), ("DateTime", "1720051200", True),
        ("DateTime", "1720051200.5", False), ("DateTime('UTC')", "2106-02-07 06:28:14", True),
        ("DateTime", "1899-12-31 00:00:00", False), ("DateTime('UTC')", "9999-12-31 00:00:00", False),
        ("DateTime", "2262-04-12 00:00:00", False), ("DateTime", "3000-01-01 00:00:00", False),
        ("DateTime('UTC')", "2106-02-08 00:00:00", False), ("DateTime('UTC')", "1969-12-31 23:59:59", False),
        ("DateTime64(3, 'UTC')", "2020-01-02 03:04:05.678", True),
        ("DateTime64(3, 'UTC')", "2020-01-02 03:04:05.678901", False),
        ("Date", "2024-07-01 00:00:00", True), ("Date", "2024-07-01T00:00:00.000", True),
        ("Date", "2024-07-01 10:00:00", False), ("Date32", "2024-02-31 00:00:00", False),
        ("DateTime64(9)", "2020-01-01 00:00:00.0000000001", False),
        ("DateTime64(9, 'UTC')", "2300-01-01 00:00:00", False), ("Nullable(DateTime64(0))", "\\N", True),
        ("Bool", "true", True), ("UUID", "6ba7b810-9dad-11d1-80b4-00c04fd430c8", True), ("UUID", "6ba7b810", False),
        ("FixedString(2)", "ab", True), ("FixedString(2)", "abc", False), ("Enum8('a' = 1)", "a", True),
        ("Enum8('a' = 1)", "b", False), ("Nullable(Int8)", "\\N", True), ("Int8", "\\N", False),
        ("LowCardinality(String)", "x", True), ("Float32", "1.5", True), ("IPv4", "1.2.3.4", True),
        ("IPv4", "1.2.3.400", False), ("Array(UInt8)", '"[1,255]"', True), ("Array(UInt8)", '"[1,256]"', False),
        ("Map(String, Int8)", "\"{'a':127}\"", True), ("Map(String, Int8)", "\"{'a':128}\"", False),
    ],
)  # fmt: skip
def test_values_are_taken_or_refused(engine: Engine, target: str, value: str, taken: bool) -> None:
    form = Format("csv", Csv(names=("c",)))
    if taken:
        assert len(load(engine, form, target, f"{value}\n")) == 1
    else:
        with pytest.raises(DatabaseError):
            load(engine, form, target, f"{value}\n")


@pytest.mark.parametrize("as_json", [True, False])
@pytest.mark.parametrize(
    ("target", "text", "value"),
    [
        ("DateTime64(6)", "2024-01-01T00:00:00.1234567Z", None),
        ("DateTime64(3)", "2024-01-01T00:00:00.1230007Z", None),
        ("DateTime", "2024-01-01T00:00:00.0000009Z", None), ("DateTime", "2024-01-01T00:00:00.000000001", None),
        ("Nullable(DateTime64(6))", "2024-01-01 00:00:00.1234560000", "2024-01-01 00:00:00.123456"),
        ("DateTime64(6)", "9999-12-31 23:59:59", "9999-12-31 23:59:59.000000"),
        ("DateTime64(6, 'Asia/Tokyo')", "2024-01-01 00:00:00.5+02:00", "2024-01-01 07:00:00.500000"),
        ("DateTime64(9)", "1900-01-01 00:00:00.123456789", "1900-01-01 00:00:00.123456789"),
        ("DateTime", "31.12.2024 10:00:00", "2024-12-31 10:00:00"), ("DateTime", "1700000000", "2023-11-14 22:13:20"),
        ("DateTime", "31.12.2024 10:00", "2024-12-31 10:00:00"), ("DateTime64(6)", "2024-02-31 10:00:00", None),
        ("DateTime", "20240131101112", "2024-01-31 10:11:12"), ("DateTime", "20240131101112.5", None),
        ("DateTime64(3)", "1700000000123", "2023-11-14 22:13:20.123"), ("DateTime", "1700000000123", None),
        ("DateTime", "1700000000000", "2023-11-14 22:13:20"), ("DateTime64(6)", "1700000000123456789", None),
        ("DateTime", "1700000000.5", None), ("DateTime", "2106-02-08 00:00:00", None), ("DateTime64(3)", "x", None),
        ("Nullable(DateTime)", "2106-02-08 00:00:00", None), ("Nullable(DateTime64(3))", "x", None),
        ("Time64(3)", "01:02:03.123456", None), ("Time64(3)", "01:02:03.1230", "01:02:03.123"),
        ("Nullable(Time64(6))", "01:02:03.1234567", None), ("Time64(9)", "5.123456789", "00:00:05.123456789"),
    ],
)  # fmt: skip
def test_fractions_of_a_second_are_taken_whole_or_refused(
    engine: Engine, target: str, text: str, value: str | None, as_json: bool
) -> None:
    form = Format("jsonl") if as_json else Format("csv", Csv(names=("c",)))
    content = f'{{"c": "{text}"}}\n' if as_json else f"{text}\n"
    if value is not None:
        assert load(engine, form, target, content) == [[value]]
    else:
        with pytest.raises(DatabaseError):
            load(engine, form, target, content)


WITHIN = [
    ("Array(Decimal(9, 2))", "[1.239]", None), ("Array(Decimal(9, 2))", "[1.23, 1e2]", "[1.23,100]"),
    ("Array(Decimal(9, 2))", "[12345678.5]", None), ("Array(Nullable(Decimal(18, 6)))", "[1.5e-07]", None),
    ("Array(Date)", '["2024-02-31"]', None), ("Array(Date)", '["2024-02-29"]', "['2024-02-29']"),
    ("Array(Nullable(Date32))", '["2024-02-29", "x"]', None), ("Array(Nullable(UInt8))", "[300, null]", None),
    ("Array(DateTime)", '["2024-01-01T00:00:00.9Z"]', None),
    ("Array(DateTime)", '["2024-01-01T00:00:00Z"]', "['2024-01-01 00:00:00']"),
    ("Array(DateTime64(6))", '["9999-12-31 00:00:00"]', "['9999-12-31 00:00:00.000000']"),
    ("Array(DateTime64(6))", '["2024-01-01 00:00:00.1234567"]', None),
    ("Array(Time64(3))", '["01:02:03.1234"]', None),
    ("Array(Array(Decimal(9, 2)))", "[[1], [2.5, 2.555]]", None),
    ("Array(Array(Decimal(9, 2)))", "[[1], [2.5], []]", "[[1],[2.5],[]]"),
]  # fmt: skip
STRUCTS = [
    ("Map(String, Decimal(9, 2))", '{"a": 1.239}', None), ("Map(String, Decimal(9, 2))", '{"a": 1.2}', "{'a':1.2}"),
    ("Map(Date, Int8)", '{"2024-02-31": 1}', None), ("Map(Date, Int8)", '{"2024-02-28": 1}', "{'2024-02-28':1}"),
    ("Tuple(d Date, n Int8)", '{"d": "2024-02-31", "n": 1}', None), ("Tuple(n Int8)", '{"n": 300}', None),
    ("Nullable(Tuple(`a b` Nullable(Date), l Array(Int8)))", '{"a b": "2024-02-28"}', "('2024-02-28',[])"),
    ("Nullable(Tuple(d Nullable(Date), l Array(Decimal(9, 2))))", '{"d": null, "l": [1.239]}', None),
    ("Nullable(Tuple(d Date, l Array(Decimal(9, 2))))", "null", None),
    ("Array(Tuple(Decimal(9, 2), Int8))", "[[1.25, 3]]", "[(1.25,3)]"),
    ("Array(Tuple(Decimal(9, 2), Int8))", "[[1.255, 3]]", None), ("Tuple(j JSON, n Int8)", '{"n": 300}', None),
]  # fmt: skip


@pytest.mark.parametrize(("target", "text", "value"), [*WITHIN, *STRUCTS])
def test_values_within_lists_maps_and_structs_of_json(
    engine: Engine, target: str, text: str, value: str | None
) -> None:
    form, content = Format("jsonl"), f'{{"c": {text}}}\n'
    if value is not None or text == "null":
        assert load(engine, form, target, content) == [[value]]
    else:
        with pytest.raises(DatabaseError):
            load(engine, form, target, content)


def test_a_null_struct_with_dates(engine: Engine) -> None:
    content = '{"c": null}\n{"c": {"d": "2024-02-28"}}\n{"c": null}\n'
    assert load(engine, Format("jsonl"), "Nullable(Tuple(d Date))", content) == [[None], ["('2024-02-28')"], [None]]


@pytest.mark.parametrize("quote", ['"', "'"])
@pytest.mark.parametrize(("target", "text", "value"), WITHIN)
def test_values_within_lists_of_csv(engine: Engine, target: str, text: str, value: str | None, quote: str) -> None:
    """ClickHouse parses one of the dialects. The values of the other are texts, which pyarrow has parsed."""
    text = text.replace('"', "'").replace("null", "NULL")
    form = Format("csv", Csv(names=("c",), quote=quote))
    if value is not None:
        assert load(engine, form, target, f'"{text}"\n') == [[value]]
    else:
        with pytest.raises(DatabaseError):
            load(engine, form, target, f'"{text}"\n')


@pytest.mark.parametrize(
    ("text", "taken"),
    [
        ("1/2/2024", False), ("13/1/2024", False), ("1-2-24", False), ("01-02-2024T10:00:00Z", False),
        ("10:00 1/2/2024", False), ("Tue 1/2/2024 1:00 PM", False), (" 1/2/2024", False), ("1/2", False),
        ("1-2 10:00", False), ("12.5", False), ("10:00", False), ("10:00:00.5", False),
        ("2024-1-2", True), ("2024/01/02", True), ("2024-01-02 10:00:00-01", True),
        ("2024-01-02T10:00:00.12-01:00", True),
        ("1.2.2024 10:00", True), ("31-Jan-2024", True), ("1700000000.25", True), ("", True),
    ],
)  # fmt: skip
def test_moments_without_a_clear_date(engine: Engine, text: str, taken: bool) -> None:
    condition = guessed(literal(text), "Nullable(String)", "DateTime64(3, 'Asia/Tokyo')", padded=True)
    assert engine.run(f"SELECT toUInt8({condition})") == [[int(not taken)]]


def test_numbers_in_json_are_seconds(engine: Engine) -> None:
    for number, moment in (("-5.5", "1969-12-31 23:59:54.500000"), ("2024", "1970-01-01 00:33:44.000000")):
        assert load(engine, Format("jsonl"), "DateTime64(6)", f'{{"c": {number}}}\n') == [[moment]]
    with pytest.raises(DatabaseError):
        load(engine, Format("jsonl"), "DateTime64(6)", '{"c": 1700000000.1234567}\n')


@pytest.mark.parametrize(
    ("source", "target", "fit"),
    [
        ("Int64", "Int8", True), ("Nullable(Int64)", "Nullable(UInt64)", True), ("Float64", "Int64", False),
        ("Float64", "Decimal(9, 2)", False), ("Decimal(9, 2)", "Int64", False), ("Int64", "Decimal(9, 2)", True),
        ("String", "Int64", False), ("Int64", "String", True), ("String", "UUID", True), ("Int64", "UUID", False),
        ("DateTime64(6)", "Date", False), ("Date32", "DateTime64(3)", True), ("DateTime64(6)", "DateTime64(3)", True),
        ("Array(Int64)", "Array(Int8)", True), ("Array(String)", "Array(Int8)", False), ("Float64", "Int128", False),
        ("Tuple(`x` Int8)", "Tuple(x Int8)", True), ("Bool", "UInt8", True),
        ("String", "LowCardinality(String)", True),
    ],
)  # fmt: skip
def test_types_that_may_hold_each_other(source: str, target: str, fit: bool) -> None:
    assert fits(source, target) == fit


WIDENS = {
    ("Int32", "Float64"): True, ("Int64", "Float64"): False, ("UInt16", "Float32"): True, ("Int32", "Float32"): False,
    ("Int8", "Int64"): True, ("UInt8", "Int16"): True, ("UInt64", "Int64"): False, ("Int8", "UInt64"): False,
    ("UInt64", "Int128"): True, ("Decimal(38, 10)", "Float64"): False, ("Decimal(9, 2)", "Decimal(18, 4)"): True,
    ("Decimal(9, 2)", "Decimal(9, 4)"): False, ("Decimal(18, 4)", "Decimal(38, 2)"): False,
    ("Int64", "Decimal(38, 2)"): True, ("Int64", "Decimal(18, 2)"): False, ("Float32", "Float64"): True,
    ("Float64", "Float32"): False, ("Float64", "String"): True, ("Array(Int64)", "String"): False,
    ("FixedString(5)", "String"): False, ("Date", "Date32"): True, ("Date32", "DateTime64(6)"): True,
    ("Date32", "DateTime64(9)"): False, ("Date", "DateTime"): False, ("DateTime", "DateTime64(9)"): True,
    ("DateTime64(3)", "DateTime64(6)"): True, ("DateTime64(6)", "DateTime64(9)"): False, ("Bool", "Int64"): True,
    ("DateTime64(6)", "DateTime64(3)"): False, ("Bool", "Float64"): False, ("Time64(3)", "Time64(6)"): True,
    ("Tuple(a Int8)", "Tuple(a Nullable(Int8))"): True, ("Array(Int64)", "Array(Nullable(Int64))"): True,
    ("Array(Decimal(9, 2))", "Array(Float64)"): False, ("Nullable(Int32)", "Nullable(Float64)"): True,
    ("LowCardinality(String)", "Nullable(String)"): True, ("UUID", "Dynamic"): False,
}  # fmt: skip


@pytest.mark.parametrize(("source", "target"), WIDENS)
def test_types_that_hold_every_value_of_another(source: str, target: str) -> None:
    assert widens(source, target) == WIDENS[source, target]


@pytest.mark.parametrize(
    ("source", "target", "value", "taken"),
    [
        ("Int64", "Int8", "127", True), ("Int64", "Int8", "128", False), ("Nullable(Int64)", "Int8", "NULL", False),
        ("Decimal(18, 4)", "Decimal(9, 2)", "1.25", True), ("Decimal(18, 4)", "Decimal(9, 2)", "1.2345", False),
        ("Decimal(18, 4)", "Decimal(9, 2)", "99999999.25", False), ("Bool", "UInt8", "1", True),
        ("UInt8", "Bool", "2", False), ("Date32", "Date", "'2020-01-02'", True),
        ("Date32", "Date", "'1950-01-02'", False),
        ("DateTime64(6)", "DateTime64(3)", "'2020-01-02 03:04:05.678'", True),
        ("DateTime64(6)", "DateTime64(3)", "'2020-01-02 03:04:05.678901'", False),
        ("Float64", "Float32", "0.5", True), ("Float64", "Float32", "0.1", False), ("Int64", "String", "5", True),
        ("Int64", "Float64", "9007199254740993", False), ("FixedString(3)", "String", "'abc'", True),
        ("Nullable(Decimal(18, 4))", "Nullable(Decimal(9, 2))", "NULL", True),
        ("Decimal(38, 10)", "Float64", "'1234567890123456.7'", False), ("Decimal(38, 10)", "Float64", "'0.29'", True),
        ("Decimal(38, 0)", "Float64", "'9007199254740993'", False), ("Decimal(15, 2)", "Float64", "'0.29'", True),
        ("Decimal(9, 4)", "Float32", "'12345.6789'", False), ("Decimal(9, 4)", "Float32", "'0.1234'", True),
        ("Nullable(Decimal(38, 10))", "Nullable(Float64)", "NULL", True),
        ("Array(FixedString(4))", "Array(String)", "['ab']", False),
        ("Array(Nullable(FixedString(2)))", "Array(Nullable(String))", "['ab',NULL]", True),
        ("FixedString(4)", "String", "'ab\\0\\0'", True),
        ("Nullable(FixedString(2))", "LowCardinality(Nullable(String))", "NULL", True),
        ("Array(Decimal(38, 10))", "Array(Float64)", "['1234567890123456.7']", False),
        ("Array(Nullable(Decimal(38, 10)))", "Array(Nullable(Float64))", "[0.29,NULL]", True),
        ("Array(Array(Decimal(18, 4)))", "Array(Array(Decimal(9, 2)))", "[[1.25],[]]", True),
        ("Array(Array(Decimal(18, 4)))", "Array(Array(Decimal(9, 2)))", "[[1.25],[1.255]]", False),
        ("Array(Decimal(38, 0))", "Array(Decimal(9, 2))", "['12345678901234567890']", False),
    ],
)  # fmt: skip
def test_conversions_take_values_whole_or_refuse_them(
    engine: Engine, source: str, target: str, value: str, taken: bool
) -> None:
    kept = whole("`c`", source, target) or "1"
    statement = (
        f"SELECT toTypeName(x), toString(x) FROM (SELECT {converted('`c`', source, target)} AS x FROM"
        f" (SELECT CAST({value}, {literal(source)}) AS c) WHERE throwIf(NOT ({kept}), 'cut') = 0)"
        " SETTINGS date_time_overflow_behavior = 'throw'"
    )
    if taken:
        ((kind, text),) = engine.run(statement)
        assert kind == target
        same = {"NULL": None, "true": "1"} if target == "UInt8" else {"NULL": None, "1": "true"}
        assert text == same.get(value, value.strip("'").replace("\\0", "\0"))
    else:
        with pytest.raises(DatabaseError):
            engine.run(statement)


@pytest.mark.parametrize(
    ("kind", "core"),
    [
        ("Nullable(Int8)", "Int8"), ("LowCardinality(Nullable(String))", "String"), ("Array(Nullable(Int8))",) * 2,
        ("Nullable(Enum8('a)' = 1))", "Enum8('a)' = 1)"),
    ],
)  # fmt: skip
def test_bare_types(kind: str, core: str) -> None:
    assert bare(kind) == core


@FEW
@given(text=st.text(st.sampled_from(string.printable + "ü"), max_size=20))
def test_literals_and_columns_are_read_as_what_they_are(engine: Engine, text: str) -> None:
    assert engine.run(f"SELECT {literal(text)}") == [[text]]
    if text:
        definition = Column(text, "Int8").definition
        assert engine.run(f"DESCRIBE TABLE null({literal(definition)})")[0][:2] == [text, "Int8"]


def test_a_load_creates_a_database_only_if_it_may(engine: Engine) -> None:
    server: Any = Server(engine)
    statement = creation.ddl("absent.trips", [Column("n", "UInt8")], TableOptions())
    found = "SELECT count() FROM system.tables WHERE database = 'absent'"
    with pytest.raises(TransferInputError, match="the database 'absent' does not exist, and forms may not create it"):
        creation._execute(server, "absent.trips", statement, with_database=False)
    assert engine.run("SELECT count() FROM system.databases WHERE name = 'absent'") == [[0]]
    creation._execute(server, "absent.trips", statement, with_database=True)
    creation._execute(server, "absent.trips", statement, with_database=False)
    assert engine.run(found) == [[1]]
