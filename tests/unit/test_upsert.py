"""The option for changes of rows: refused values, and the spellings of commands and forms."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from storeside.transfer import cli
from storeside.transfer.base.errors import TransferInputError
from storeside.transfer.base.schema import Column
from storeside.transfer.request.named_options import with_options
from storeside.transfer.request.options import TableOptions
from storeside.transfer.request.request import Request
from storeside.transfer.request.source import Source
from storeside.transfer.request.table_keys import Expression
from storeside.transfer.request.upsert import Upsert, columns_of
from storeside.transfer.tables.creation import ddl, statements

CHANGES = Upsert(("id", "part"), "v", "op")
COLUMNS = [
    Column("id", "Nullable(Int64)"), Column("part", "LowCardinality(Nullable(String))"),
    Column("v", "Nullable(DateTime64(6))"), Column("op", "Nullable(String)"), Column("name", "Nullable(String)"),
]  # fmt: skip


def request(**options: Any) -> Request:
    table = replace(options.pop("table_options", TableOptions()), upsert=options.pop("upsert", CHANGES))
    return Request(Source("trips"), "data.trips", table_options=table, **options)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"upsert": Upsert((), "v")}, "name the columns of the key"),
        ({"upsert": Upsert(("id",))}, "name the column that orders the changes of a key.*any order"),
        ({"upsert": Upsert(("id",), "id")}, "'id': name different columns"),
        ({"upsert": Upsert(("id",), "_version")}, "'_version': name different columns"),
        ({"on_overwrite": "replace"}, "on_overwrite 'replace'.*use 'append'"),
        ({"format": "iceberg"}, "format 'iceberg'.*omit upsert"),
        ({"format": "delta"}, "format 'delta'.*omit upsert"),
        ({"table_options": TableOptions(order_by="id")}, "omit order_by"),
        ({"table_options": TableOptions(engine="ReplacingMergeTree(v)")}, "engine without arguments"),
        ({"table_options": TableOptions(partition_by="toYYYYMM(v)")}, "partition_by .*columns of the key only"),
        (
            {"table_options": TableOptions(cluster="c", sharding_key="cityHash64(name)")},
            "sharding_key .*columns of the key only",
        ),
        (
            {"table_options": TableOptions(cluster="c", sharding_key=Expression("rand()"))},
            "sharding_key .*columns of the key only",
        ),
    ],
)
def test_what_an_upsert_refuses(options: dict[str, Any], reason: str) -> None:
    with pytest.raises(TransferInputError, match=reason):
        request(**options)


def test_keys_of_partitions_and_shards() -> None:
    request(table_options=TableOptions(partition_by="toYear(id)", cluster="c", sharding_key="cityHash64(part)"))


@pytest.mark.parametrize(
    ("sql", "names"),
    [
        ("(`a b`, toYYYYMM(`c`))", {"a b", "c"}),
        ('f("q", x) + 1', {"q", "x"}),
        ("concat(a, 'b', t.c)", {"a", "t"}),
        ("rand()", set()),
        ("", set()),
    ],
)
def test_the_columns_of_a_key(sql: str, names: set[str]) -> None:
    assert columns_of(sql) == names


def test_commands_forms_and_triggers_have_the_option() -> None:
    parser = cli.transfer_arguments("storeside.transfer", "x")
    flags = ["--set=upsert.key=id, part", "--set=upsert.version=v", "--set=upsert.deleted=op"]
    assert cli.request(parser.parse_args(["s3://trips", "data.trips", *flags])).upsert == CHANGES
    assert not cli.request(parser.parse_args(["s3://trips", "data.trips"])).upsert
    options = {"upsert.key": ["id", "part"], "upsert.version": "v", "upsert.deleted": "op"}
    assert with_options(Request(Source("trips"), "data.trips"), options) == request()
    assert Request.from_dict(json.loads(json.dumps(request().to_dict()))) == request()
    old = request(upsert=Upsert()).to_dict()
    del old["table_options"]["upsert"]
    assert Request.from_dict(old) == request(upsert=Upsert())


def test_an_upsert_may_make_an_object_fail() -> None:
    plain = request(upsert=Upsert())
    assert len({plain.digest, request().digest, request(upsert=Upsert(("id",), "v")).digest}) == 3


def test_a_new_table() -> None:
    text = ddl("d.t", COLUMNS, TableOptions(upsert=CHANGES), ["v"])
    assert "ENGINE = ReplacingMergeTree(`v`, `_storeside_deleted`)\nORDER BY (`id`, `part`)" in text
    assert "`id` Int64,\n    `part` LowCardinality(String),\n    `v` DateTime64(6) COMMENT" in text
    assert "_storeside_deleted UInt8 MATERIALIZED lower(toString(`op`)) IN ('d', 'true', '1')" in text
    local, whole = statements("d.t", COLUMNS, TableOptions(cluster="c", sharding_key="id", upsert=CHANGES))
    assert "`t_local`" in local
    assert "ReplacingMergeTree(`v`" in local
    assert "Distributed(" in whole


@pytest.mark.parametrize(
    ("given", "made"),
    [
        ("MergeTree", "ReplacingMergeTree(`v`)"),
        ("ReplacingMergeTree", "ReplacingMergeTree(`v`)"),
        ("ReplicatedMergeTree", "ReplicatedReplacingMergeTree(`v`)"),
        ("SharedReplacingMergeTree", "SharedReplacingMergeTree(`v`)"),
    ],
)
def test_engines(given: str, made: str) -> None:
    assert Upsert(("id",), "v").engine(given) == made
