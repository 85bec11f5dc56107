"""Schemas of Protobuf: the columns of a message, in ClickHouse's own engine."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest

from storeside.sql.quoting import literal
from storeside.transfer.base.errors import TransferInputError
from storeside.transfer.formats.messages import Protobuf
from storeside.transfer.formats.proto_schema import ProtoSchema
from storeside.transfer.formats.registry import settings_of
from storeside.transfer.request.object_format import Format, MessageSchema
from tests.unit.test_transfer_schema import Engine

SCHEMA = """
syntax = "proto3"; // a "comment {
package shop.v1;
option java_package = "shop;}";
/* message Hidden { int32 no = 1; } */
enum Color { option deprecated = false; RED = 0; GREEN = 1 [deprecated = true]; MINUS = -0x2; }
message Trip {
  reserved 40, 50 to 60; reserved "old";
  int64 n = 1; optional int32 o = 2; string s = 3; bytes raw = 4; bool b = 5; optional bool ob = 6;
  repeated sint32 r = 7 [packed = true]; map<string, Stop> stops = 8; Color c = 9; optional Color oc = 10;
  message Stop { double at = 1; optional string note = 2; Inner inner = 3; message Inner { fixed64 k = 1; } }
  Stop first = 11; repeated .shop.v1.Trip.Stop more = 12; Trip.Stop.Inner one = 13;
  oneof pick { string left = 14; uint32 right = 15; };
  map<int32, bool> flags = 16; repeated shop.v1.Color colors = 17; optional string os = 18;
}
service Empty { rpc Do (Trip) returns (Trip){ option deprecated = true; } }
"""
STOP = "Tuple(`at` Float64, `note` Nullable(String), `inner` Nullable(Tuple(`k` UInt64)))"
COLOR = "Enum8('MINUS' = -2, 'RED' = 0, 'GREEN' = 1)"
COLUMNS = {
    "n": "Int64", "o": "Nullable(Int32)", "s": "String", "raw": "String", "b": "Bool", "ob": "Nullable(Bool)",
    "r": "Array(Int32)", "stops": f"Map(String, {STOP})", "c": COLOR, "oc": f"Nullable({COLOR})",
    "first": f"Nullable({STOP})", "more": f"Array({STOP})", "one": "Nullable(Tuple(`k` UInt64))",
    "left": "Nullable(String)", "right": "Nullable(UInt32)", "flags": "Map(Int32, Bool)",
    "colors": f"Array({COLOR})", "os": "Nullable(String)",
}  # fmt: skip


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Described]:
    with contextlib.chdir(tmp_path_factory.mktemp("engine")):  # it stores schemas in the current folder
        found = Engine()
        yield Described(found)
        found.session.close()


class Described:
    """The part of clickhouse-connect's client that the check of a schema needs."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.result_rows: list[list[Any]] = []

    def query(self, text: str, settings: dict[str, Any]) -> Described:
        options = ", ".join(f"{n} = {literal(v) if isinstance(v, str) else v}" for n, v in settings.items())
        self.result_rows = self.engine.run(f"{text} SETTINGS {options}")
        return self


def form(text: str, message: str = "A") -> Format:
    return Format("protobuf", schema=MessageSchema(text, message))


def check_schema(engine: Described, wanted: Format) -> None:
    Protobuf().check(engine, wanted, settings_of(wanted))


def test_the_columns_of_a_message(engine: Described) -> None:
    columns, texts = ProtoSchema(SCHEMA).columns("Trip")
    assert {c.name: c.type for c in columns} == COLUMNS
    assert texts == {"s", "os", "left"}
    check_schema(engine, form(SCHEMA, "Trip"))
    types = engine.engine.run(f"SELECT count() FROM null({literal(', '.join(c.definition for c in columns))})")
    assert types == [[0]]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('syntax = "proto3"; message A { int32 n = ', "ends within a message"),
        ('syntax = "proto3"; message A { int32 n 1; }', "is no Protobuf schema"),
        ('syntax = "proto3"; message A { int32 n = x; }', "found an error at line 0, column 41"),
        ('syntax = "proto3"; message B { int32 n = 1; }', "message 'A': the schema has no such message, but B"),
        ('syntax = "proto3"; message A { Other o = 1; }', "'Other' is not in it: write it into the schema"),
        ('syntax = "proto3"; message A { google.protobuf.Timestamp t = 1; }', "imports no other file"),
        ('syntax = "proto3"; import "b.proto"; message A { int32 n = 1; }', '"b.proto" was not found'),
        ('syntax = "proto3"; message A { A a = 1; }', "'A' contains itself"),
        ('syntax = "proto3"; message A { B b = 1; } message B { repeated B c = 1; }', "'B' contains itself"),
        ('syntax = "proto3"; message A { B b = 1; } message B { }', "'B' has no fields"),
        ('syntax = "proto2"; message A { optional group G = 1 { optional int32 x = 2; } }', "groups are not read"),
        ('edition = "2023"; message A { int32 n = 1; }', "editions are not read"),
        ('syntax = "proto3"; enum E { X = 0; Y = 32768; } message A { E e = 1; }', "only 8-bit and 16-bit enums"),
        ("{" * 100_000, "is no Protobuf schema"),
        ("message A { " * 100_000, "is no Protobuf schema"),
        (
            "syntax = 'proto3'; message A { int32 n = 1; int32 m = 2; } message A0 { A a = 1; }"
            + "".join(f"message A{n} {{ A{n - 1} a = 1; A{n - 1} b = 2; }}" for n in range(1, 40))
            + "message Big { A39 a = 1; }",
            "more than 10000 fields",
        ),
    ],
)  # fmt: skip
def test_a_bad_schema_is_refused(engine: Described, text: str, reason: str) -> None:
    with pytest.raises(TransferInputError, match=reason) as refused:
        check_schema(engine, form(text, "Big" if "Big" in text else "A"))
    assert "__cache__" not in str(refused.value)


@pytest.mark.parametrize(
    ("schema", "format", "reason"),
    [
        (MessageSchema(), "protobuf", "schema.text, schema.message"),
        (MessageSchema("message A {}"), "protobufsingle", "schema.message"),
        (MessageSchema("message A {}", "A"), "csv", "has no schema"),
        (MessageSchema("message A {}", "A"), "msgpack", "has no schema"),
        (MessageSchema("message A {}", "A", ("n",)), "protobuf", "schema.names"),
        (MessageSchema("//" + "x" * (1 << 15), "A"), "protobuflist", "exceeds 32 KB"),
    ],
)
def test_schemas_that_do_not_fit_the_format(schema: MessageSchema, format: str, reason: str) -> None:
    with pytest.raises(TransferInputError, match=reason):
        schema.check(format)
