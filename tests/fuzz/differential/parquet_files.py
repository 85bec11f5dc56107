"""Parquet files of generated schemas, values and options of the writer, whole and slightly damaged."""

from __future__ import annotations

import copy
import datetime as dt
import io
import random
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from storeside.transfer.formats.thrift import BINARY, I32, STRUCT, Decoder, Struct
from tests.fuzz.differential.thrift import encoded, footer_of, with_footer

# Types of flat columns, each with one of its values.
Values = Callable[[random.Random], Any]
# ClickHouse 26.9 may read forever from a damaged page that is compressed with gzip, zstd or brotli: see Bad input in
# docs/transfer/formats.md.
SAFE_CODECS = ("none", "snappy", "lz4")

_DAY = 24 * 3600


def _integer(bits: int, *, signed: bool = True) -> Values:
    low, high = (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if signed else (0, (1 << bits) - 1)
    return lambda r: r.choice((low, high, 0, 1, r.randint(low, high)))


def _decimal(precision: int, scale: int) -> Values:
    def one(r: random.Random) -> Decimal:
        digits = r.randint(-(10**precision) + 1, 10**precision - 1)
        return Decimal((int(digits < 0), tuple(map(int, str(abs(digits)))), -scale))

    return one


def _text(r: random.Random) -> str:
    return r.choice(("", " ", "a", "NULL", "ü→\U0001f600", "x\0y", "tab\t'\"\\", "z" * r.randint(0, 40)))


FLAT: tuple[tuple[pa.DataType, Values], ...] = (
    *((pa.type_for_alias(f"int{n}"), _integer(n)) for n in (8, 16, 32, 64)),
    *((pa.type_for_alias(f"uint{n}"), _integer(n, signed=False)) for n in (8, 16, 32, 64)),
    (pa.bool_(), lambda r: r.random() < 0.5),
    (pa.float32(), lambda r: r.choice((0.0, -0.0, 1.5, float("inf"), float("nan"), r.uniform(-1e9, 1e9)))),
    (pa.float64(), lambda r: r.choice((0.0, -1.5e300, float("-inf"), float("nan"), r.uniform(-1e9, 1e9)))),
    (pa.float16(), lambda r: r.choice((0.0, 1.5, -2.25, 65504.0))),
    (pa.string(), _text),
    (pa.large_string(), _text),
    (pa.string_view(), _text),
    (pa.dictionary(pa.int8(), pa.string()), _text),
    (pa.binary(), lambda r: r.randbytes(r.randint(0, 20))),
    (pa.large_binary(), lambda r: r.randbytes(r.randint(0, 20))),
    (pa.binary(5), lambda r: r.randbytes(5)),
    (pa.uuid(), lambda r: r.randbytes(16)),
    (pa.json_(), lambda r: r.choice(('{"a": 1.50}', "null", "[1, 2]", '"x"', '{"b": null, "a": 1}'))),
    (pa.date32(), lambda r: dt.date(1970, 1, 1) + dt.timedelta(r.randint(-25000, 120000))),
    (pa.date64(), lambda r: dt.date(1970, 1, 1) + dt.timedelta(r.randint(-25000, 120000))),
    (pa.time32("s"), lambda r: r.randint(0, _DAY - 1)),
    (pa.time32("ms"), lambda r: r.randint(0, _DAY * 10**3 - 1)),
    (pa.time64("us"), lambda r: r.randint(0, _DAY * 10**6 - 1)),
    (pa.time64("ns"), lambda r: r.randint(0, _DAY * 10**9 - 1)),
    *((pa.timestamp(u), lambda r, n=n: r.randint(-(10**9) * n, 4 * 10**9 * n)) for u, n in
      (("s", 1), ("ms", 10**3), ("us", 10**6), ("ns", 10**9))),
    (pa.timestamp("us", "Europe/Berlin"), lambda r: r.randint(-(10**15), 4 * 10**15)),
    (pa.duration("ms"), lambda r: r.randint(-(10**12), 10**12)),
    (pa.decimal128(9, 2), _decimal(9, 2)),
    (pa.decimal128(18, 0), _decimal(18, 0)),
    (pa.decimal128(38, 10), _decimal(38, 10)),
    (pa.decimal256(76, 20), _decimal(76, 20)),
    (pa.null(), lambda r: None),
)  # fmt: skip
_KEYS = (pa.string(), pa.int32(), pa.date32())


def generated_type(r: random.Random, depth: int = 0) -> tuple[pa.DataType, Values]:
    """Return a type, nested or not, and what makes its values."""
    if depth >= 3 or r.random() < (0.65 if not depth else 0.75):
        return r.choice([one for one in FLAT if not depth or _nests(one[0])])
    kind = r.choice(("list", "large_list", "fixed", "view", "map", "struct", "struct"))
    if kind == "struct":
        parts = []
        for n in range(r.randint(1, 3)):
            of, values = generated_type(r, depth + 1)
            is_optional = of == pa.null() or isinstance(of, pa.DictionaryType) or r.random() < 0.75
            parts.append((pa.field(f"f{n}", of, is_optional), _optional(values, is_optional)))
        return pa.struct([field for field, _ in parts]), lambda r: {f.name: make(r) for f, make in parts}
    of, values = generated_type(r, depth + 1)
    is_optional = of == pa.null() or isinstance(of, pa.DictionaryType) or r.random() < 0.75
    item = _optional(values, is_optional)
    if kind == "map":
        keys = r.choice(_KEYS)
        return pa.map_(keys, pa.field("value", of, is_optional)), lambda r: [
            (_key(keys, n), item(r)) for n in range(r.choice((0, 1, 3)))
        ]
    field = pa.field("item", of, is_optional)
    if kind == "fixed":
        return pa.list_(field, 2), lambda r: [item(r), item(r)]
    made = {"list": pa.list_, "large_list": pa.large_list, "view": pa.list_view}[kind]
    return made(field), lambda r: [item(r) for _ in range(r.choice((0, 1, 2, 5)))]


def _nests(kind: pa.DataType) -> bool:
    """Whether pyarrow makes and divides arrays of a type within others."""
    return not isinstance(kind, pa.BaseExtensionType) and kind != pa.string_view()


def _key(kind: pa.DataType, n: int) -> Any:
    return {"string": f"k{n}", "int32": n, "date32[day]": dt.date(2020, 1, 1 + n)}[str(kind)]


def _optional(values: Values, is_optional: bool, share: float = 0.2) -> Values:
    return lambda r: None if is_optional and r.random() < share else values(r)


class Family:
    """Files with the same columns; the NULLs of each, its rows and how it is written are its own."""

    def __init__(self, r: random.Random) -> None:
        self.columns = []
        for n in range(r.randint(1, 5)):
            kind, values = generated_type(r)
            self.columns.append((pa.field(f"c{n}", kind, kind == pa.null() or r.random() < 0.8), values))
        self.schema = pa.schema([field for field, _ in self.columns])

    def file(self, r: random.Random, codecs: tuple[str, ...] = (*SAFE_CODECS, "gzip", "brotli", "zstd")) -> bytes:
        """Return a whole file, compressed by one of these codecs."""
        while True:
            rows = r.choice((0, 1, 7, 30, 120))
            share = r.choice((0, 0, 0.1, 0.5, 1))
            arrays = []
            for field, values in self.columns:
                make = _optional(values, field.nullable, share)
                arrays.append(_array([make(r) for _ in range(rows)], field.type))
            try:
                content = written(pa.Table.from_arrays(arrays, schema=self.schema), r, r.choice(codecs))
                made = pq.ParquetFile(io.BytesIO(content))
                for n in range(made.num_row_groups):
                    made.read_row_group(n)
            except (pa.ArrowException, OSError):
                continue  # pyarrow cannot write and read all that it makes, such as dictionaries in NULL structs
            return content


def _array(values: list[Any], kind: pa.DataType) -> pa.Array:
    if isinstance(kind, pa.BaseExtensionType):
        return pa.ExtensionArray.from_storage(kind, pa.array(values, kind.storage_type))
    return pa.array(values, kind)


def written(table: pa.Table, r: random.Random, codec: str) -> bytes:
    """Return a table as Parquet, by chosen options of the writer."""
    options = {
        "compression": codec,
        "version": r.choice(("1.0", "2.4", "2.6")),
        "use_dictionary": r.random() < 0.5,
        "data_page_version": r.choice(("1.0", "2.0")),
        "data_page_size": r.choice((64, 1024, 1 << 20)),
        "row_group_size": r.choice((10, 100, 1 << 20)),
        "write_statistics": r.random() < 0.8,
        "write_page_index": r.random() < 0.3,
        "write_page_checksum": r.random() < 0.2,
        "store_schema": r.random() < 0.8,
        "use_byte_stream_split": False,
    }
    sink = io.BytesIO()
    try:
        pq.write_table(table, sink, **options)
    except pa.ArrowException:
        # Older versions have no nanoseconds, and pyarrow does not divide all that is nested into row groups.
        sink = io.BytesIO()
        pq.write_table(table, sink, **{**options, "version": "2.6", "row_group_size": 1 << 20})
    return sink.getvalue()


# Faults of files.


def flipped_bit(content: bytes, r: random.Random) -> bytes:
    """Change a bit of the pages."""
    start, _ = footer_of(content)
    return _flipped(content, r.randrange(4, max(start, 5)), r)


def flipped_footer_bit(content: bytes, r: random.Random) -> bytes:
    """Change a bit of the footer."""
    start, _ = footer_of(content)
    return _flipped(content, r.randrange(start, len(content)), r)


def _flipped(content: bytes, at: int, r: random.Random) -> bytes:
    return content[:at] + bytes([content[at] ^ 1 << r.randrange(8)]) + content[at + 1 :]


def without_bytes(content: bytes, r: random.Random) -> bytes:
    """Take some bytes out of the pages."""
    start, _ = footer_of(content)
    at = r.randrange(4, max(start, 5))
    return content[:at] + content[min(at + r.randint(1, 40), start) :]


def zeroed(content: bytes, r: random.Random) -> bytes:
    """Write zeros over some bytes of the pages, as a lost block of a disk does."""
    start, _ = footer_of(content)
    at = r.randrange(4, max(start, 5))
    size = min(r.choice((1, 8, 64, 4096)), start - at)
    return content[:at] + bytes(size) + content[at + size :]


def changed_footer(content: bytes, r: random.Random) -> bytes:
    """Change one number of the footer."""
    _, footer = footer_of(content)
    changed = copy.deepcopy(footer)
    places: list[tuple[Struct, int]] = [(changed, 3)]  # rows
    for group in changed[4][1][1]:
        places.append((group, 3))
        for chunk in group[1][1][1]:
            metadata = chunk[3][1]
            # codec, values, sizes, offsets
            places += [(metadata, n) for n in (4, 5, 6, 7, 9, 11) if n in metadata]
            if 12 in metadata and 3 in metadata[12][1]:
                places.append((metadata[12][1], 3))  # NULLs
    for element in changed[2][1][1][1:]:
        places += [(element, n) for n in (1, 2, 3, 5, 6, 7, 8) if n in element]
    place, n = r.choice(places)
    kind, value = place[n]
    place[n] = (kind, max(value + r.choice((-1, 1, 1, 5)), 0))
    return with_footer(content, changed)


def changed_page(content: bytes, r: random.Random) -> bytes:
    """Change one number in the header of a data page, where its length stays the same."""
    _, footer = footer_of(content)
    chunks = [chunk[3][1] for group in footer[4][1][1] for chunk in group[1][1][1] if chunk[3][1][5][1]]
    if not chunks:
        return flipped_footer_bit(content, r)
    start = r.choice(chunks)[9][1]
    decoder = Decoder(content, start)
    header = decoder.struct()
    places: list[tuple[Struct, int]] = [(header, 2), (header, 3)]  # sizes
    for n in (5, 8):  # data pages of both versions
        if n in header:
            places += [(header[n][1], m) for m in (1, 2, 3, 5) if m in header[n][1] and header[n][1][m][0] == I32]
    place, n = r.choice(places)
    kind, value = place[n]
    place[n] = (kind, max(value + r.choice((-1, 1, 1, 3)), 0))
    body = encoded(header)
    if len(body) != decoder.at - start:
        return flipped_bit(content, r)
    return content[:start] + body + content[decoder.at :]


def another_logical_type(content: bytes, r: random.Random) -> bytes:
    """Give a column a logical type that few readers know, or that does not suit it."""
    _, footer = footer_of(content)
    changed = copy.deepcopy(footer)
    leaves = [element for element in changed[2][1][1][1:] if 1 in element]
    element = r.choice(leaves)
    element.pop(6, None)
    geometry: Struct = {1: (BINARY, b"EPSG:4326")} if r.random() < 0.3 else {}
    kind = r.choice(((17, geometry), (18, {}), (16, {}), (25, {}), (13, {}), (4, {}), (12, {}), (11, {}), (1, {})))
    element[10] = (STRUCT, {kind[0]: (STRUCT, kind[1])})
    return with_footer(content, changed)


def cut_off(content: bytes, r: random.Random) -> bytes:
    """Cut the file off."""
    return content[: r.randrange(len(content))]


FAULTS = (
    flipped_bit, flipped_footer_bit, without_bytes, zeroed, changed_footer, changed_footer, changed_page,
    changed_page, another_logical_type, cut_off,
)  # fmt: skip
