"""Protobuf and MsgPack: rows of Python's protobuf and of ClickHouse are loaded with the request's schema."""

from __future__ import annotations

import gzip
import io
import struct
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.proto import serialize_length_prefixed

from storeside.transfer.base.errors import TransferInputError
from storeside.transfer.request.column_options import Columns
from storeside.transfer.request.object_format import MessageSchema
from tests.transfers import Loading, each_storage

PROTO = """
syntax = "proto3";
package shop;
enum Color { RED = 0; GREEN = 1; }
message Trip {
  message Stop { double at = 1; optional string note = 2; }
  int64 n = 1;
  optional int32 o = 2;
  string s = 3;
  bytes raw = 4;
  bool b = 5;
  repeated sint32 r = 6;
  map<string, Stop> stops = 7;
  optional Color c = 8;
  Stop first = 9;
  repeated Stop more = 10;
  oneof pick { string left = 11; uint64 right = 12; }
  float f = 13;
}
"""
TRIP = MessageSchema(PROTO, "Trip")
Field = descriptor_pb2.FieldDescriptorProto


def message_classes() -> tuple[Any, Any]:
    """Return Python's classes of Trip and of an envelope, from descriptors that were written by hand from `PROTO`."""
    file = descriptor_pb2.FileDescriptorProto(name="trip.proto", package="shop", syntax="proto3")
    color = file.enum_type.add(name="Color")
    color.value.add(name="RED", number=0)
    color.value.add(name="GREEN", number=1)
    trip = file.message_type.add(name="Trip")

    def add(owner: Any, name: str, number: int, kind: Any, **more: Any) -> None:
        if more.pop("optional", False):
            more |= {"proto3_optional": True, "oneof_index": len(owner.oneof_decl)}
            owner.oneof_decl.add(name=f"_{name}")
        label = Field.LABEL_REPEATED if more.pop("repeated", False) else Field.LABEL_OPTIONAL
        owner.field.add(name=name, number=number, type=kind, label=label, **more)

    stop = trip.nested_type.add(name="Stop")
    add(stop, "at", 1, Field.TYPE_DOUBLE)
    add(stop, "note", 2, Field.TYPE_STRING, optional=True)
    entry = trip.nested_type.add(name="StopsEntry")
    entry.options.map_entry = True
    add(entry, "key", 1, Field.TYPE_STRING)
    add(entry, "value", 2, Field.TYPE_MESSAGE, type_name=".shop.Trip.Stop")
    trip.oneof_decl.add(name="pick")
    add(trip, "n", 1, Field.TYPE_INT64)
    add(trip, "s", 3, Field.TYPE_STRING)
    add(trip, "raw", 4, Field.TYPE_BYTES)
    add(trip, "b", 5, Field.TYPE_BOOL)
    add(trip, "r", 6, Field.TYPE_SINT32, repeated=True)
    add(trip, "stops", 7, Field.TYPE_MESSAGE, repeated=True, type_name=".shop.Trip.StopsEntry")
    add(trip, "first", 9, Field.TYPE_MESSAGE, type_name=".shop.Trip.Stop")
    add(trip, "more", 10, Field.TYPE_MESSAGE, repeated=True, type_name=".shop.Trip.Stop")
    add(trip, "left", 11, Field.TYPE_STRING, oneof_index=0)
    add(trip, "right", 12, Field.TYPE_UINT64, oneof_index=0)
    add(trip, "f", 13, Field.TYPE_FLOAT)
    add(trip, "o", 2, Field.TYPE_INT32, optional=True)
    add(trip, "c", 8, Field.TYPE_ENUM, optional=True, type_name=".shop.Color")
    add(file.message_type.add(name="Trips"), "rows", 1, Field.TYPE_MESSAGE, repeated=True, type_name=".shop.Trip")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)  # type: ignore[no-untyped-call]
    classes = (message_factory.GetMessageClass(pool.FindMessageTypeByName(f"shop.{n}")) for n in ("Trip", "Trips"))
    return next(classes), next(classes)


Trip, Trips = message_classes()


def trip(n: int) -> Any:
    """Return a message; its number decides which of its fields have a value."""
    made = Trip(
        n=n - 5, s=f"é {n}" * (n % 3), raw=bytes([255, n % 256]) * (n % 2), b=n % 2 == 0, r=[-n, 0, n][: n % 4]
    )
    if n % 3:
        made.o = (n % 3 - 1) * 2147483647
        made.c = n % 2
        made.first.at = n / 7
    if n % 4 == 1:
        made.first.note = ""
        made.left = ""
    elif n % 4 == 2:
        made.right = (1 << 64) - 1
    for i in range(n % 3):
        made.stops[f"k{i}"].at = i
        made.more.add(at=-i, note="x" if i else None)
    made.f = n / 2
    return made


def stop_of(stop: Any) -> dict[str, Any]:
    return {"at": stop.at, "note": stop.note if stop.HasField("note") else None}


def row_of(made: Any) -> tuple[Any, ...]:
    """Return the row that must be loaded for a message."""

    def present(name: str) -> Any:
        return getattr(made, name) if made.HasField(name) else None

    color = present("c")
    return (
        made.n, present("o"), made.s, made.raw, made.b, list(made.r),
        {key: stop_of(stop) for key, stop in made.stops.items()}, None if color is None else ("RED", "GREEN")[color],
        stop_of(made.first) if made.HasField("first") else None, [stop_of(stop) for stop in made.more],
        present("left"), present("right"), made.f,
    )  # fmt: skip


def delimited(messages: Iterable[Any]) -> bytes:
    """Return messages, each after its length."""
    written = io.BytesIO()
    for made in messages:
        serialize_length_prefixed(made, written)
    return written.getvalue()


def stored(loading: Loading) -> list[tuple[Any, ...]]:
    """Return the rows of trips, with their bytes unchanged."""
    names = "n, o, s, hex(raw), b, r, stops, toString(c), first, more, left, right, f"
    found = loading.rows(names, "n")
    return [(*row[:3], bytes.fromhex(row[3]), *row[4:]) for row in found]


@each_storage
@pytest.mark.parametrize("loader", ["pull", "push"])
def test_messages_of_python_are_loaded_unchanged_and_bad_objects_fail_alone(loading: Loading, loader: str) -> None:
    messages = [trip(n) for n in range(200)]
    whole = delimited(messages[:50])
    bad = {
        "bad/cut": whole[:-1], "bad/garbage": b"n,s\n1,2\n" * 10, "bad/damaged": whole + b"\x01\x0f",
        "bad/enum": delimited([trip(1)]) + b"\x02\x40\x07", "bad/text": b"\x03\x1a\x01\xff",
    }  # fmt: skip
    objects = {
        "a.pb": whole,
        "b.pb.gz": gzip.compress(delimited(messages[50:100])),
        "c": delimited(messages[100:150]),
        "d": gzip.compress(delimited(messages[150:])),
        "empty": b"",
    }
    loading.put({**objects, **bad})
    options: dict[str, Any] = {"format": "protobuf", "schema": TRIP, "loader": loader}
    report = loading.load(**options, system_columns=("_object", "_row_number"))
    assert (report.loaded, report.failed) == (len(objects), len(bad))
    assert stored(loading) == [row_of(made) for made in messages]
    assert loading.query(f"SELECT countIf(_row_number != (n + 5) % 50) FROM {loading.table}") == [(0,)]
    types = loading.types()
    assert types["o"] == "Nullable(Int32)"
    assert types["b"] == "Bool"
    assert types["n"] == "Int64"
    reasons = loading.reasons()
    assert reasons.keys() == bad.keys()
    assert "while reading field 'c'" in reasons["bad/enum"]
    assert "add the value to the enum" in reasons["bad/enum"]
    assert "column 's' has invalid UTF-8" in reasons["bad/text"]
    assert "upload" in reasons["bad/cut"]
    assert not any("__cache__" in reason or "proto3" in reason for reason in reasons.values())
    again = loading.load(**options, system_columns=("_object", "_row_number"))
    assert (again.loaded, again.failed, again.known_bad) == (0, 0, len(bad))


@pytest.mark.parametrize("loader", ["pull", "push"])
@pytest.mark.parametrize("form", ["protobufsingle", "protobuflist"])
def test_single_messages_and_envelopes(loading: Loading, loader: str, form: str) -> None:
    messages = [trip(n) for n in range(1, 30)]
    if form == "protobufsingle":
        loading.put({f"{n}": made.SerializeToString() for n, made in enumerate(messages)})
    else:
        loading.put(
            {
                "a": delimited([Trips(rows=messages[:10])]),
                "b.gz": gzip.compress(delimited([Trips(rows=messages[10:])])),
            }
        )
    assert loading.load(format=form, schema=TRIP, loader=loader).failed == 0
    assert stored(loading) == [row_of(made) for made in messages]


def test_an_existing_table_and_options_for_columns(loading: Loading) -> None:
    loading.put({"a": delimited([trip(7)]), "b": delimited([trip(8)]), "big": delimited([Trip(n=1 << 40, o=1)])})
    loading.create(
        "n Int32, o Nullable(String), more Array(Tuple(at Float64, note Nullable(String))), extra String DEFAULT 'x'"
    )
    drift = loading.load("a", format="protobuf", schema=TRIP)
    assert drift.failed == 1
    assert "columns 's', 'raw'" in loading.reasons()["a"]
    chosen = Columns(select=("n", "o", "more"))
    report = loading.load(format="protobuf", schema=TRIP, chosen=chosen, retry_failed=True)
    assert (report.loaded, report.failed) == (2, 1)
    assert [row[:2] for row in loading.rows("n, o", "n")] == [(2, "0"), (3, "2147483647")]
    assert "column 'n'" in loading.reasons()["big"]
    added = loading.load("big", format="protobuf", schema=TRIP, retry_failed=True, on_drift="widen")
    assert added.failed == 0
    assert loading.types()["n"] == "Int64"
    assert "first" in loading.types()


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        (MessageSchema(PROTO, "Tripp"), "message 'Tripp': the schema has no such message, but Trip"),
        (MessageSchema(PROTO.replace("int64 n", "Time n"), "Trip"), "'Time' is not in it"),
        (MessageSchema(PROTO.replace("= 13;", "= 12;"), "Trip"), "ClickHouse does not accept it: found an error"),
        (MessageSchema("'); DROP TABLE data.x; --", "Trip"), "is no Protobuf schema"),
    ],
)
def test_a_bad_schema_fails_the_load(loading: Loading, schema: MessageSchema, reason: str) -> None:
    loading.put({"a": delimited([trip(7)])})
    with pytest.raises(TransferInputError, match=reason):
        loading.load(format="protobuf", schema=schema)
    assert loading.ledger() == {}


def test_quotes_and_backslashes_in_a_schema_are_no_sql(loading: Loading) -> None:
    loading.put({"a": delimited([trip(7)])})
    hostile = f"// '); DROP TABLE {loading.table}; -- \\' {{x:String}} %s &settings=1 {'é ' * 10_000}\n{PROTO}"
    assert loading.load(format="protobuf", schema=MessageSchema(hostile, "Trip")).loaded == 1


def test_the_command_reads_a_schema_from_a_file(loading: Loading, tmp_path: Path) -> None:
    loading.put({"a": delimited([trip(7)])})
    (tmp_path / "trip.proto").write_text(PROTO)
    command = [
        sys.executable, "-m", "storeside.transfer", f"s3://{loading.bucket}/", loading.table, "--format", "protobuf",
        "--schema", str(tmp_path / "trip.proto"), "--message", "Trip",
    ]  # fmt: skip
    subprocess.run(command, env=loading.variables(), check=True)
    assert stored(loading) == [row_of(trip(7))]


@pytest.mark.parametrize("loader", ["pull", "push"])
def test_msgpack(loading: Loading, clickhouse: Any, loader: str) -> None:
    query = (
        "SELECT toInt64(number) - 5, if(number % 2, NULL, toString(number)), [number], number / 2 FROM numbers(50)"
    )
    rows = clickhouse.raw_query(query, fmt="MsgPack")
    wrong = b"\xcd\x01\x2c\xc0\x90\xcb" + struct.pack(">d", 1)
    loading.put(
        {
            "a": rows,
            "b.gz": gzip.compress(rows),
            "cut": rows[:-1],
            "wide": wrong,
            "more": rows + b"\x01",
            "empty": b"",
        }
    )
    with pytest.raises(TransferInputError, match="set the types of"):
        loading.load(format="msgpack", loader=loader)
    loading.create("f Float64, n Int8, s Nullable(String), l Array(UInt8)")
    schema = MessageSchema(names=("n", "s", "l", "f"))
    report = loading.load(format="msgpack", schema=schema, loader=loader)
    assert (report.loaded, report.failed, report.rows) == (3, 3, 100)
    expected = [(n - 5, None if n % 2 else str(n), [n], n / 2) for n in range(50)]
    assert loading.query(f"SELECT DISTINCT n, s, l, f FROM {loading.table} ORDER BY n") == expected
    reasons = loading.reasons()
    assert "column 'n'" in reasons["wide"] or "out of range" in reasons["wide"]
    assert "Not enough values" in reasons["more"]


def test_a_table_is_made_for_msgpack(loading: Loading) -> None:
    loading.put({"a": b"\x01\xa1a\xff\xa1b"})
    assert loading.load(format="msgpack", columns={"n": "Int16", "s": "LowCardinality(String)"}).rows == 2
    assert loading.rows() == [(-1, "b"), (1, "a")]
