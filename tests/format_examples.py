"""Objects of each format with the columns ``n``, a number, ``s``, a text, and others, for the contract of formats."""

from __future__ import annotations

import gzip
import io
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyarrow import orc

from storeside.transfer.request.object_format import MessageSchema
from tests.avro_files import avro, record
from tests.transfers import parquet

Row = Sequence[int | str | None]


@dataclass(frozen=True)
class Example:
    """How to write objects of a format.

    `make` returns an object with these names and rows; all columns but ``s`` are numbers. `read` returns further
    options of its load, by names. `cut` removes the end, so that a reader must notice.
    """

    make: Callable[[Sequence[str], Sequence[Row]], bytes]
    read: Callable[[Sequence[str]], dict[str, Any]] = lambda names: {}
    cut: Callable[[bytes], bytes] = lambda content: content[:-1]
    has_one_row: bool = False


def packed_and_cut(content: bytes) -> bytes:
    """Return a text compressed and cut: without compression, no reader notices the end of a text."""
    return gzip.compress(content)[:-3]


def separated(delimiter: str) -> Callable[[Sequence[str], Sequence[Row]], bytes]:
    def make(names: Sequence[str], rows: Sequence[Row]) -> bytes:
        lines = [names, *([r"\N" if value is None else str(value) for value in row] for row in rows)]
        return "".join(f"{delimiter.join(line)}\n" for line in lines).encode()

    return make


def json_lines(names: Sequence[str], rows: Sequence[Row]) -> bytes:
    return "".join(f"{json.dumps(dict(zip(names, row, strict=True)))}\n" for row in rows).encode()


def table(names: Sequence[str], rows: Sequence[Row]) -> pa.Table:
    kinds = [pa.string() if name == "s" else pa.int64() for name in names]
    columns = [pa.array([row[n] for row in rows], kind) for n, kind in enumerate(kinds)]
    return pa.table(columns, names=list(names))


def in_orc(names: Sequence[str], rows: Sequence[Row]) -> bytes:
    sink = io.BytesIO()
    orc.write_table(table(names, rows), sink)
    return sink.getvalue()


def in_arrow(new: Callable[..., Any]) -> Callable[[Sequence[str], Sequence[Row]], bytes]:
    def make(names: Sequence[str], rows: Sequence[Row]) -> bytes:
        sink = io.BytesIO()
        whole = table(names, rows)
        with new(sink, whole.schema) as writer:
            writer.write_table(whole)
        return sink.getvalue()

    return make


def in_avro(names: Sequence[str], rows: Sequence[Row]) -> bytes:
    schema = record(**{name: ["null", "string" if name == "s" else "long"] for name in names})
    return avro(
        schema,
        [{name: (int(value is not None), value) for name, value in zip(names, row, strict=True)} for row in rows],
    )


def varint(number: int) -> bytes:
    """Return a number in groups of seven bits, as Protobuf and ClickHouse write it."""
    found = bytearray()
    while number > 0x7F:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*found, number])


def sized(content: bytes) -> bytes:
    return varint(len(content)) + content


def message(row: Row) -> bytes:
    """Return a Protobuf message whose fields have the numbers 1, 2, …; NULL fields are absent."""
    fields = b""
    for number, value in enumerate(row, 1):
        if isinstance(value, int):
            fields += varint(number << 3) + varint(value)
        elif value is not None:
            fields += varint(number << 3 | 2) + sized(value.encode())
    return fields


def proto(names: Sequence[str]) -> dict[str, Any]:
    fields = " ".join(
        f"optional {'string' if name == 's' else 'int64'} {name} = {number};" for number, name in enumerate(names, 1)
    )
    return {"schema": MessageSchema(f'syntax = "proto3"; message A {{ {fields} }}', "A")}


def in_msgpack(names: Sequence[str], rows: Sequence[Row]) -> bytes:
    def value(given: int | str | None) -> bytes:
        if given is None:
            return b"\xc0"
        return bytes([given]) if isinstance(given, int) else bytes([0xA0 | len(given)]) + given.encode()

    return b"".join(value(given) for row in rows for given in row)


def named(names: Sequence[str]) -> dict[str, Any]:
    kinds = {name: f"Nullable({'String' if name == 's' else 'Int64'})" for name in names}
    return {"schema": MessageSchema(names=tuple(names)), "columns": kinds}


# By the name of the format.
EXAMPLES = {
    "parquet": Example(lambda names, rows: parquet(table(names, rows))),
    "csv": Example(separated(","), cut=packed_and_cut),
    "tsv": Example(separated("\t"), cut=packed_and_cut),
    "jsonl": Example(json_lines, cut=packed_and_cut),
    "avro": Example(in_avro),
    "orc": Example(in_orc),
    "arrow": Example(in_arrow(pa.ipc.new_file)),
    "arrowstream": Example(in_arrow(pa.ipc.new_stream)),
    "protobuf": Example(lambda names, rows: b"".join(sized(message(row)) for row in rows), proto),
    "protobufsingle": Example(lambda names, rows: b"".join(map(message, rows)), proto, has_one_row=True),
    # an envelope, whose field 1 has the messages
    "protobuflist": Example(
        lambda names, rows: sized(b"".join(varint(1 << 3 | 2) + sized(message(row)) for row in rows)), proto
    ),
    "msgpack": Example(in_msgpack, named),
}
