"""Options of loads by name, which forms and the command line set."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import fields, is_dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storeside.transfer import cli
from storeside.transfer.base.errors import TransferInputError
from storeside.transfer.request.column_options import Columns
from storeside.transfer.request.named_options import named_options, parsed, require_option, with_options
from storeside.transfer.request.object_format import Csv
from storeside.transfer.request.options import Batches, LoadLimits, ReadOptions, TableOptions
from storeside.transfer.request.request import Request
from storeside.transfer.request.source import Source

REQUEST = Request(Source("trips"), "data.trips")
# A value of each kind that no option has by default.
VALUES: dict[str, Any] = {
    "boolean": None,
    "integer": 7,
    "number": 7.5,
    "string": "x",
    "array": ["a", "b"],
    "object": {"a": "String"},
}
SPECIAL = {
    "csv.encoding": "latin-1",
    "table.engine": "ReplacingMergeTree",
    "table.order_by": "a",
    "table.partition_by": "toYYYYMM(a)",
    "table.ttl": "a + INTERVAL 30 DAY",
    "table.system_columns": ["_object", "_version"],
    "columns.mask": {"a": "sha256"},
    "remove_deleted": "5 %",
}
GIVEN = {
    "csv.quote": "'",
    "csv.null_values": ["", "NA"],
    "csv.skip_rows": 2,
    "read.strict_json": False,
    "columns.rename": {"ts": "taken_at"},
    "table.columns": {"price": "Decimal(10, 2)"},
    "table.ttl": "taken_at + INTERVAL 30 DAY",
    "batches.parallel": 4,
    "limits.rows": 1_000_000,
    "loader": "push",
    "overlap_seconds": 60.5,
}
WANTED = Request(
    Source("trips"),
    "data.trips",
    loader="push",
    overlap_seconds=60.5,
    read=ReadOptions(
        csv=Csv(quote="'", null_values=("", "NA"), skip_rows=2),
        strict_json=False,
        columns=Columns(rename={"ts": "taken_at"}),
    ),
    table_options=TableOptions({"price": "Decimal(10, 2)"}, ttl="taken_at + INTERVAL 30 DAY"),
    batches=Batches(parallel=4),
    limits=LoadLimits(rows=1_000_000),
)


def _value(name: str) -> Any:
    option = named_options()[name]
    if option.kind == "boolean":
        return not _of(REQUEST, name)
    return SPECIAL.get(name, option.choices[-1] if option.choices else VALUES[option.kind])


def _of(request: Request, name: str) -> Any:
    """Return the value of an option, found by its name alone."""
    prefix, _, last = name.rpartition(".")
    groups: dict[str, Any] = {
        "": request, "read": request.read, "csv": request.read.csv, "columns": request.read.columns,
        "schema": request.read.schema,
        "table": request.table_options, "batches": request.batches, "limits": request.limits,
        "upsert": request.upsert,
    }  # fmt: skip
    return getattr(groups[prefix], last)


def test_every_option_of_a_load_has_a_name() -> None:
    by_code = {"table", "create_database", "columns.compute", "columns.where"}  # an argument, a right, and SQL
    named = set(named_options())
    for prefix, options in (
        ("", REQUEST), ("read.", REQUEST.read), ("csv.", REQUEST.read.csv), ("columns.", REQUEST.read.columns),
        ("schema.", REQUEST.read.schema),
        ("table.", REQUEST.table_options), ("batches.", REQUEST.batches), ("limits.", REQUEST.limits),
        ("upsert.", REQUEST.upsert),
    ):  # fmt: skip
        for field in fields(options):
            name = prefix + field.name
            if not is_dataclass(getattr(options, field.name)) and name not in by_code:
                assert name in named, name
    assert not named & by_code


@pytest.mark.parametrize("name", named_options())
def test_each_option_changes_its_own_value(name: str) -> None:
    value = _value(name)
    more = {"table.sharding_key": "a"} if name == "table.cluster" else {}
    more = {"table.cluster": "shards"} if name == "table.sharding_key" else more
    if name in ("schema.text", "schema.message") or value == "protobuf":
        more = {"format": "protobuf", "schema.text": "x", "schema.message": "x"}
    upsert = {"upsert.key": ["k"], "upsert.version": "v"}
    more |= {n: v for n, v in upsert.items() if n != name} if name.startswith("upsert.") else {}
    more |= {"format": "msgpack"} if name == "schema.names" else {}
    found = with_options(REQUEST, {**more, name: value})
    same = tuple(value) if isinstance(value, list) else value
    assert _of(found, name) == same != _of(REQUEST, name)
    changed = {other for other in named_options() if _of(found, other) != _of(REQUEST, other)}
    assert changed == {name, *more}
    assert require_option(name, value).kind == named_options()[name].kind


def test_a_form_and_a_command_set_the_same_options() -> None:
    assert with_options(REQUEST, json.loads(json.dumps(GIVEN))) == WANTED
    texts = [f"{name}={value if isinstance(value, str) else json.dumps(value)}" for name, value in GIVEN.items()]
    assert with_options(REQUEST, parsed(texts)) == WANTED


def test_lists_are_separated_by_commas_or_json() -> None:
    assert parsed(["columns.drop=email,phone"]) == {"columns.drop": ["email", "phone"]}
    assert parsed(['csv.null_values=["", "n,a"]']) == {"csv.null_values": ["", "n,a"]}


def test_the_command_reads_options() -> None:
    parser = cli.transfer_arguments("storeside.transfer", "x")
    found = cli.request(parser.parse_args(["s3://trips", "data.trips", "--delimiter=;", "--set=csv.quote='"]))
    assert found.read.csv == Csv(";", "'")


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"csv.quot": "'"}, "unknown option 'csv.quot': choose from csv.quote"),
        ({"columns.where": "1"}, "unknown option 'columns.where': choose from"),
        ({"table": "data.other"}, "unknown option 'table': choose from table"),
        ({"limits.rows": "5"}, "option limits.rows '5': write a whole number"),
        ({"limits.rows": True}, "option limits.rows True: write a whole number"),
        ({"limits.rows": 0}, "rows 0: needs to be 1 or more"),
        ({"read.strict_json": 1}, "option read.strict_json 1: write true or false"),
        ({"csv.null_values": "NA"}, "option csv.null_values 'NA': write a list of strings"),
        ({"table.columns": ["a"]}, "option table.columns \\['a'\\]: write an object with string values"),
        ({"table.columns": {"a": "Int64 DEFAULT 1"}}, "column 'a' has the type 'Int64 DEFAULT 1'"),
        ({"table.engine": "MergeTree ORDER BY sleep(3)"}, "choose one of MergeTree, "),
        ({"table.engine": "SummingMergeTree"}, "option table.engine 'SummingMergeTree': choose one of MergeTree, "),
        ({"table.engine": "ReplicatedMergeTree('/tables/a', 'b')"}, "option table.engine .*: choose one of"),
        ({"table.engine": "MergeTree()"}, "option table.engine .*: choose one of"),
        ({"create_database": True}, "unknown option 'create_database'"),
        ({"table.ttl": "sleep(3)"}, "ttl"),
        ({"overlap_seconds": float("nan")}, "overlap_seconds nan: needs to be 0 or more"),
        ({"overlap_seconds": 1e300}, r"overlap_seconds 1e\+300: needs to be 316224000 or less"),
        ({"csv.skip_rows": 1 << 60}, r"csv\.skip_rows .*: needs to be 1000000 or less"),
        *(
            ({"csv.encoding": name}, f"csv encoding .{name}.: use an encoding of Python for texts")
            for name in ("no-such", "rot13", "punycode", "idna", "undefined", "unicode_escape", "raw_unicode_escape")
        ),
        ({"read.sample_objects": 100, "read.sample_bytes": 6 << 20}, "100 samples of 6291456 bytes: the"),
        ({"on_drift": "no"}, "on_drift 'no': choose one of"),
    ],
)
def test_invalid_options_name_the_option_and_the_remedy(options: dict[str, Any], error: str) -> None:
    with pytest.raises(TransferInputError, match=error):
        with_options(REQUEST, options)


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("limits.rows", "option 'limits.rows': write NAME=VALUE"),
        ("limits.rows=many", "option limits.rows 'many': write a whole number, as JSON"),
        ("csv.names=[a", "option csv.names '\\[a': write a list of strings"),
    ],
)
def test_invalid_texts_name_the_option_and_the_remedy(text: str, error: str) -> None:
    with pytest.raises(TransferInputError, match=error):
        parsed([text])


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=4,
)


@given(st.sampled_from(sorted(named_options())), JSON)
def test_no_value_fails_differently(name: str, value: Any) -> None:
    try:
        require_option(name, value)
    except TransferInputError:
        with pytest.raises(TransferInputError):
            with_options(REQUEST, {name: value})
        return
    with suppress(TransferInputError):  # a value of the right type may still be invalid, such as 0 rows
        with_options(REQUEST, {name: value})


LIMITS = {name: option.range for name, option in named_options().items() if option.range}


@pytest.mark.parametrize("name", LIMITS)
def test_a_number_has_a_ceiling_also_in_code(name: str) -> None:
    least, most = LIMITS[name] or (0, 0)
    request = Request(Source("bucket"), "data.t", read=ReadOptions(sample_objects=1))
    for value in (least, most):
        with_options(request, {name: value})
    for value, remedy in ((least - 1, f"{least}"), (most + 1, f"{most}")):
        with pytest.raises(TransferInputError, match=rf"{value}: needs .*\b{remedy}\b"):
            with_options(request, {name: value})
