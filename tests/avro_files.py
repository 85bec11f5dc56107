"""Writes Avro object container files, so that tests know each value and each byte.

The format is that of https://avro.apache.org/docs/1.12.0/specification/. Values are those of the underlying type: a
date is a number of days, a decimal the bytes of its unscaled number. A value of a union is a pair of the branch's
number and its value.
"""

from __future__ import annotations

import bz2
import importlib
import json
import lzma
import struct
import zlib
from collections.abc import Sequence
from typing import Any

SYNC = bytes(range(16))
# Named types that were written: a schema may refer to them by name.
_NAMED: dict[str, Any] = {}
CODECS = ("null", "deflate", "snappy", "zstandard", "bzip2", "xz")


def avro(schema: Any, rows: Sequence[Any], *, codec: str = "null", per_block: int = 1000) -> bytes:
    """Return a file with these rows in blocks of `per_block` rows."""
    content = header(schema, codec)
    for begin in range(0, len(rows), per_block):
        some = rows[begin : begin + per_block]
        content += block(len(some), b"".join(encoded(schema, row) for row in some), codec)
    return content


def header(schema: Any, codec: str = "null", **metadata: bytes) -> bytes:
    """Return a file's header."""
    text = schema if isinstance(schema, bytes) else json.dumps(schema).encode()
    entries = {"avro.schema": text, "avro.codec": codec.encode(), **metadata}
    packed = b"".join(sized(name.encode()) + sized(value) for name, value in entries.items())
    return b"Obj\x01" + long(len(entries)) + packed + long(0) + SYNC


def block(count: int, values: bytes, codec: str = "null") -> bytes:
    """Return a block of `count` encoded rows."""
    return long(count) + sized(_compressed(values, codec)) + SYNC


def long(number: int) -> bytes:
    """Return an integer in Avro's notation."""
    rest = number << 1 if number >= 0 else (-number << 1) - 1
    found = bytearray()
    while rest > 0x7F:
        found.append(rest & 0x7F | 0x80)
        rest >>= 7
    return bytes([*found, rest])


def sized(content: bytes) -> bytes:
    """Return bytes after their number."""
    return long(len(content)) + content


def record(**fields: Any) -> dict[str, Any]:
    """Return the schema of a record with these fields."""
    return {"type": "record", "name": "row", "fields": [{"name": n, "type": t} for n, t in fields.items()]}


def encoded(schema: Any, value: Any) -> bytes:
    """Return a value in Avro's binary encoding."""
    if isinstance(schema, list):
        branch, inner = value
        return long(branch) + encoded(schema[branch], inner)
    schema = _NAMED.get(schema, schema) if isinstance(schema, str) else schema
    kind = schema["type"] if isinstance(schema, dict) else schema
    if isinstance(schema, dict) and "name" in schema:
        _NAMED[schema["name"]] = schema
    if isinstance(kind, (dict, list)):
        return encoded(kind, value)
    if kind in ("record", "array", "map"):
        return _nested(schema, kind, value)
    if kind == "enum":
        return long(schema["symbols"].index(value))
    return _plain(kind, value)


def _plain(kind: str, value: Any) -> bytes:
    if kind in ("int", "long"):
        return long(value)
    if kind in ("string", "bytes"):
        return sized(value.encode() if isinstance(value, str) else value)
    if kind in ("float", "double"):
        return struct.pack("<f" if kind == "float" else "<d", value)
    if kind == "boolean":
        return bytes([value])
    return b"" if kind == "null" else bytes(value)


def _nested(schema: Any, kind: str, value: Any) -> bytes:
    if kind == "record":
        return b"".join(encoded(field["type"], value[field["name"]]) for field in schema["fields"])
    items = [encoded(schema["items"], one) for one in value] if kind == "array" else [
        sized(name.encode()) + encoded(schema["values"], one) for name, one in value.items()
    ]  # fmt: skip
    return (long(len(items)) + b"".join(items) if items else b"") + long(0)


def _compressed(values: bytes, codec: str) -> bytes:
    pa: Any = importlib.import_module("pyarrow")
    if codec == "snappy":
        return bytes(pa.Codec("snappy").compress(values, asbytes=True)) + zlib.crc32(values).to_bytes(4, "big")
    if codec == "deflate":
        packer = zlib.compressobj(wbits=-15)
        return packer.compress(values) + packer.flush()
    if codec == "zstandard":
        return bytes(pa.Codec("zstd").compress(values, asbytes=True))
    if codec == "bzip2":
        return bz2.compress(values)
    return lzma.compress(values) if codec == "xz" else values
