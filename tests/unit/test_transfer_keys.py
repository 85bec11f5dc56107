"""ORDER BY, PARTITION BY and TTL of new tables: the SQL that a text may contain."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storeside.operators.operators.clickhouse import S3ToClickHouseOperator
from storeside.transfer.base.errors import TransferInputError
from storeside.transfer.base.schema import Column
from storeside.transfer.request.options import TableOptions
from storeside.transfer.request.request import Request
from storeside.transfer.request.source import Source
from storeside.transfer.request.table_keys import FUNCTIONS, WITH_NUMBER, Expression, key, ttl
from storeside.transfer.tables.creation import ddl

NAME = r"`(?:[^`\\]|\\.)+`"
TERM = rf"(?:{NAME}|(?:{'|'.join(FUNCTIONS)})\({NAME}\)|(?:{'|'.join(WITH_NUMBER)})\({NAME}, \d+\))"


@pytest.mark.parametrize(
    ("text", "sql"),
    [
        ("tuple()", ""),
        ("", ""),
        ("n", "`n`"),
        (" ( city , toYYYYMM(taken_at) ) ", "`city`, toYYYYMM(`taken_at`)"),
        ("city, modulo(id, 16)", "`city`, modulo(`id`, 16)"),
        ("`odd``name`".replace("``", "\\`"), r"`odd\`name`"),
        ('"two words"', "`two words`"),
        ("toDate", "`toDate`"),  # a column may have the name of a function
        ("über", "`über`"),
    ],
)
def test_columns_and_functions_are_assembled(text: str, sql: str) -> None:
    assert key("order_by", text) == sql


@pytest.mark.parametrize(
    "text",
    [
        "toUInt8(reverse(file('launcher.json')))", "n, file('x')", "toDate(file('x'))", "hostName()", "(n", "n)",
        "n DESC", "n + 1", "1", "toDate(n, m)", "modulo(n, m)", "n,", ",n", "(n), (m)", "lower(upper(n))",
        "n) AS SELECT 1 --", "'n'", "n; SELECT 1", "n -- x", "`n", "todate(n)", "getSetting(n)", "toDate(n", "\0",
    ],
)  # fmt: skip
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(
        TransferInputError, match=r"partition_by .*functions are toDate, .* in code: partition_by=Expr"
    ):
        key("partition_by", text)
    with pytest.raises(TransferInputError, match="order_by"):
        TableOptions(order_by=text).check()


@given(st.text(st.sampled_from("nm(),+`\"\\'-/*; \n\0ü1") | st.characters(), max_size=30) | st.just("toDate(n)"))
def test_whatever_is_accepted_has_only_quoted_columns_and_listed_functions(text: str) -> None:
    try:
        sql = key("order_by", text)
    except TransferInputError:
        return
    assert re.fullmatch(rf"(?:{TERM}(?:, {TERM})*)?", sql, re.DOTALL), sql


def test_a_lifetime_is_an_interval_after_a_column() -> None:
    assert ttl("toDateTime(taken_at) + interval 30 day") == "toDateTime(`taken_at`) + INTERVAL 30 DAY"
    assert ttl("") == ""
    assert ttl("expires_at") == "`expires_at`"
    for text in ("now() + INTERVAL 1 DAY", "a + INTERVAL 1 DAY DELETE", "a + INTERVAL b DAY", "a + 1"):
        with pytest.raises(TransferInputError, match=r"ttl .*write column \+ INTERVAL 30 DAY"):
            ttl(text)


def test_a_column_of_the_key_is_not_nullable() -> None:
    columns = [Column("city", "Nullable(String)"), Column("n", "Nullable(UInt8)")]
    text = ddl("data.t", columns, TableOptions(order_by="city", ttl=Expression("today()")))
    assert "`city` String," in text
    assert "`n` Nullable(UInt8)" in text
    assert text.endswith("ORDER BY (`city`)\nTTL today()")


def test_an_expression_survives_a_deferral_and_no_template_becomes_one() -> None:
    options = TableOptions(order_by=Expression("concat(a, b)"), ttl=Expression("today()"))
    request = Request(Source("trips"), "d.t", table_options=options)
    assert Request.from_dict(json.loads(json.dumps(request.to_dict()))) == request
    task = S3ToClickHouseOperator(
        task_id="load",
        bucket="trips",
        table="d.t",
        table_options=replace(options, partition_by=Expression("{{ key }}")),
    )
    task.render_template_fields({"key": "file('x')"})  # type: ignore[arg-type]
    assert task.table_options.partition_by == Expression("{{ key }}")


@pytest.mark.parametrize(
    "type", ["String", "Nullable(Enum8('a' = -1, 'b)--' = 2))", "DateTime64(3, 'UTC')", "Tuple(a Int8)"]
)
def test_a_type_is_a_type(type: str) -> None:
    TableOptions(columns={"c": type}).check()


@pytest.mark.parametrize(
    "type",
    [
        "UInt8 DEFAULT file('x')",
        "UInt8) ENGINE = Null --",
        "Tuple(a Int8) DEFAULT f(1)",
        "",
        "'x'",
        "a, b Int8",
        "DEFAULT (f(1))",
        "Alias(f(1))",
        "Array(Int8 --\n)",
        "Enum8('a' = --1)",
    ],
)
def test_a_type_is_nothing_else(type: str) -> None:
    with pytest.raises(TransferInputError, match="column 'c' has the type"):
        TableOptions(columns={"c": type}).check()


@pytest.mark.parametrize("engine", ["MergeTree", "ReplicatedReplacingMergeTree('/t/{shard}', '{replica}', v)"])
def test_an_engine_has_quoted_text_and_columns(engine: str) -> None:
    TableOptions(engine=engine).check()
    for more in (" ORDER BY file('x')", "(file('x'))", "() TTL x"):
        with pytest.raises(TransferInputError, match="engine"):
            TableOptions(engine=engine + more).check()


@pytest.mark.parametrize(
    "table",
    ["storeside.objects", "storeside_staging.x", "system.one", "information_schema.t", "INFORMATION_SCHEMA.t",
     "Storeside.events"],
)  # fmt: skip
def test_no_load_names_our_databases(table: str) -> None:
    with pytest.raises(TransferInputError, match="no load writes to storeside, storeside_staging, system, inform"):
        Request(Source("trips"), table)
