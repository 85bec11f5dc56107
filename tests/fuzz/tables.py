"""Fuzzing of what reads tables and events: ``python -m tests.fuzz.tables --inputs 100000``.

Parquet, CSV in dialects, compressed text and event messages, whole and damaged. Parsers may refuse what they are
given by their own errors, in bounded time, and do nothing else. Input n of a seed is always the same.
"""

from __future__ import annotations

import argparse
import bz2
import contextlib
import decimal
import functools
import gzip
import io
import json
import lzma
import random
import resource
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from storeside.events.errors import NotificationError
from storeside.events.notifications import newest, parse
from storeside.transfer.base.errors import LoadObjectError, TransferInputError
from storeside.transfer.base.schema import Column
from storeside.transfer.formats import parquet as objects
from storeside.transfer.formats.encoding import in_utf8
from storeside.transfer.formats.registry import TEXTS
from storeside.transfer.formats.text_columns import columns_of_csv
from storeside.transfer.objects.content import Content
from storeside.transfer.objects.streams import opened
from storeside.transfer.request.object_format import Csv, Format, format_of
from storeside.transfer.staging import arrow_rows
from tests.benchmarks.measure import bench, machine
from tests.fuzz import recordings
from tests.transfers import jsonl, parquet

# Seconds that one input may take on a busy machine; most take less than a millisecond.
SLOW = 60
# Their share of the inputs.
BOMBS = 0.002
_SAMPLE = 1 << 18


class Held(Content):
    """An object whose content is here instead of in S3."""

    def __init__(self, key: str, content: bytes) -> None:
        self.key, self.bucket, self.size, self.most = key, "fuzz", len(content), 0
        self._bytes, self._position = content, 0

    def range(self, start: int, length: int) -> bytes:
        return self._bytes[start : start + length]

    def stream(self) -> Iterator[bytes]:
        yield self._bytes

    def plain(self) -> Any:
        return opened(io.BytesIO(self._bytes), self.compression)


def read_parquet(content: bytes, _: random.Random) -> None:
    """Read columns and rows as a push does."""
    held = Held("a.parquet", content)
    with contextlib.suppress(LoadObjectError):
        objects.ParquetObject(held).facts()
        schema, batches = objects.row_groups(held)
        for n, _piece in enumerate(arrow_rows.stream(schema, batches)):
            if n == 100:
                break


DIALECTS = (
    Csv("\t"), Csv(";", quote="'"), Csv("|", quote="", escape="\\"), Csv("\t", encoding="latin-1"),
    Csv("\t", encoding="utf-16"),
    Csv("\t", null_values=("NA", "-"), true_values=("Y",), false_values=("N",), timestamp_formats=("%d.%m.%Y",)),
    Csv("\t", skip_rows=2), Csv("\t", names=("a", "b")),
)  # fmt: skip


def csv_columns(sample: bytes, dialect: Csv) -> list[Column]:
    """Return the columns of a dialect that ClickHouse does not read."""
    form = Format("csv", replace(dialect, encoding="utf-8"))
    rows = [raw for _, raw in TEXTS["csv"].records(io.BytesIO(in_utf8(sample, dialect)), form)]
    return columns_of_csv(rows, form, skips_bad=True).columns("tuple", {}, lambda values: "String") if rows else []


def read_csv(content: bytes, rng: random.Random) -> None:
    """Deduce the columns of a dialect that ClickHouse does not read, and parse all rows, some as other types."""
    dialect = rng.choice(DIALECTS)
    held = Held("a.csv", content)
    with contextlib.suppress(LoadObjectError):
        columns = csv_columns(held.sample(_SAMPLE), dialect)
        kinds = (pa.int64(), pa.float64(), pa.bool_(), pa.string(), pa.timestamp("us"))
        types = {column.name: rng.choice(kinds) for column in columns if rng.random() < 0.7}
        for _batch in objects.batches_of(arrow_rows.csv_reader(held.plain(), dialect, types)):
            pass


def read_text(content: bytes, rng: random.Random) -> None:
    """Recognise, sample and split text, compressed or not."""
    held = Held(rng.choice(("a.csv.gz", "a.jsonl", "a.snappy", "a.csv.zst", "a")), content)
    with contextlib.suppress(LoadObjectError, TransferInputError):
        format_of(held.key, held.sample(4_096))
    with contextlib.suppress(LoadObjectError):
        held.sample(_SAMPLE)
    for name in ("csv", "jsonl"):
        with contextlib.suppress(LoadObjectError):
            for n, _record in enumerate(TEXTS[name].records(held.plain(), Format(name))):
                if n == 10_000:
                    break


def read_event(content: bytes, _: random.Random) -> None:
    """Read a message of a queue."""
    for errors in ("replace", "surrogateescape"):
        with contextlib.suppress(NotificationError):
            newest(parse(content.decode("utf-8", errors)))


@functools.cache
def corpora() -> dict[Callable[[bytes, random.Random], None], list[bytes]]:
    """Return good inputs by what reads them."""
    return {
        read_parquet: list(_parquets()),
        read_csv: list(_csvs()),
        read_text: list(_texts()),
        read_event: list(_events()),
    }


def _parquets() -> Iterator[bytes]:
    rows = range(40)
    struct = [{"a": n, "b": [{"c": str(n), "d": n / 2}]} for n in rows]
    columns = {
        "n": pa.array(rows), "s": pa.array([f"s{n}" for n in rows]), "f": pa.array([n / 3 for n in rows]),
        "d": pa.array([decimal.Decimal(n) / 100 for n in rows]), "t": pa.array(rows, pa.timestamp("us", "UTC")),
        "x": pa.array([b"\0" * 8 for _ in rows], pa.binary(8)), "o": pa.array(["a", None] * 20).dictionary_encode(),
        "m": pa.array([[(str(n), n)] for n in rows], pa.map_(pa.string(), pa.int32())), "r": pa.array(struct),
        "date": pa.array(rows, pa.int32()).cast(pa.date32()), "h": pa.array(rows, pa.float32()).cast(pa.float16()),
    }  # fmt: skip
    for codec in ("none", "snappy", "gzip", "zstd", "brotli", "lz4"):
        yield parquet(pa.table(columns), compression=codec, row_group_size=15)
    yield parquet(pa.table(columns), version="1.0", data_page_version="1.0", use_dictionary=False)
    yield parquet(pa.table(columns), data_page_version="2.0", write_page_index=True)
    yield parquet(pa.table({name: pa.array([1]) for name in map(str, range(300))}))


def _csvs() -> Iterator[bytes]:
    for delimiter in "\t;|,":
        lines = [
            ("id", "name", "at", "ok"),
            *((str(n), f'"n{delimiter}{n}"', "02.01.2026", "YN"[n % 2]) for n in range(30)),
        ]
        yield "\n".join(delimiter.join(line) for line in lines).encode()
        yield "\r\n".join(delimiter.join(line) for line in lines).encode("utf-16")


def _texts() -> Iterator[bytes]:
    text = jsonl({"n": n, "s": "x" * (n % 50), "r": {"a": [n]}} for n in range(200))
    arrow = [_by_arrow(kind, text) for kind in ("zstd", "lz4", "gzip")]
    block = pa.compress(text, "snappy", asbytes=True)
    framed = b"\xff\x06\x00\x00sNaPpY\x00" + (len(block) + 4).to_bytes(3, "little") + bytes(4) + block
    hadoop = len(text).to_bytes(4, "big") + len(block).to_bytes(4, "big") + block
    yield from (text, gzip.compress(text), bz2.compress(text), lzma.compress(text), framed, hadoop, *arrow)


def snappy_bomb() -> bytes:
    """Return 64 MB in one block of 3 MB."""
    packed = pa.compress(bytes(64 << 20), "snappy", asbytes=True)
    return b"\xff\x06\x00\x00sNaPpY\x00" + (len(packed) + 4).to_bytes(3, "little") + bytes(4) + packed


@functools.cache
def bombs() -> dict[Callable[[bytes, random.Random], None], list[bytes]]:
    """Return what unpacks to much, or is nested deeply, by what reads it."""
    much = bytes(200 << 20)
    packed = [gzip.compress(much), _by_arrow("zstd", much), bz2.compress(much), snappy_bomb()]
    events = [b"[" * 100_000, b'{"Records":' * 50_000, b'{"Records": [' + b"1" * 100_000 + b"]}"]
    return {read_text: packed, read_csv: packed[:1], read_event: events}


def _by_arrow(kind: str, content: bytes) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, kind) as stream:
        stream.write(content)
    return sink.getvalue().to_pybytes()


def _events() -> Iterator[bytes]:
    item = {"key": "a+b%2B.csv", "size": 1, "eTag": "e", "versionId": "v", "sequencer": "00A"}
    s3 = {"bucket": {"name": "b"}, "object": item}
    record = {"eventVersion": "2.1", "eventName": "ObjectCreated:Put", "eventTime": "2026-01-01T00:00:00Z", "s3": s3}
    detail = {"bucket": {"name": "b"}, "object": {"key": "k", "size": 1, "etag": "e"}, "reason": "PutObject"}
    bridged = {"source": "aws.s3", "detail-type": "Object Created", "time": "2026-01-01T00:00:00Z", "detail": detail}
    for message in ({"Records": [record, record]}, bridged, {"Event": "s3:TestEvent"}):
        text = json.dumps(message)
        yield text.encode()
        yield json.dumps({"Type": "Notification", "Message": text}).encode()


@dataclass
class Found:
    """The results of all inputs."""

    inputs: Counter[str] = field(default_factory=Counter)
    wrong: Counter[str] = field(default_factory=Counter)
    slowest: float = 0.0
    slowest_input: str = ""


def fuzz(inputs: int, seed: int = 1, first: int = 0, seconds: float = 1e9) -> tuple[Found, int]:
    """Try inputs; return the findings and the number of the next input."""
    found, until = Found(), time.monotonic() + seconds
    for number in range(first, first + inputs):
        if time.monotonic() > until:
            return found, number
        rng = random.Random(f"{seed}/{number}")  # noqa: S311
        reader = list(corpora())[number % 4]
        corpus = corpora()[reader]
        is_bomb = rng.random() < BOMBS and reader in bombs()
        content = rng.choice(bombs()[reader]) if is_bomb else recordings.mutated(rng, corpus)
        started = time.monotonic()
        try:
            reader(content, rng)
        except Exception as e:
            frames = traceback.extract_tb(e.__traceback__)
            ours = next((f for f in reversed(frames) if "/include/storeside/" in f.filename), frames[-1])
            where = f"{Path(ours.filename).name}:{ours.lineno}"
            found.wrong[f"{reader.__name__}: {type(e).__name__} at {where}: {e}"[:160]] += 1
        took = time.monotonic() - started
        found.inputs[reader.__name__] += 1
        if took > found.slowest:
            found.slowest, found.slowest_input = took, f"input {number} ({reader.__name__}, {len(content)} bytes)"
        if took > SLOW:
            found.wrong[f"{reader.__name__}: input {number} took {took:.0f} s"] += 1
    return found, first + inputs


def main(arguments: Sequence[str] | None = None) -> int:
    """Try inputs and report; returns 1 when something is wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--inputs", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--first", type=int, default=0, help="number of the first input")
    parser.add_argument("--seconds", type=float, default=1e9, help="end earlier, and say where to go on")
    given = parser.parse_args(arguments)
    started = time.monotonic()
    found, following = fuzz(given.inputs, given.seed, given.first, given.seconds)
    print(machine())
    print(f"inputs {given.first} to {following - 1} of seed {given.seed} in {time.monotonic() - started:.0f} s")
    print(*(f"{count:8} {name}" for name, count in found.inputs.items()), sep="\n")
    print(f"slowest: {found.slowest_input}")
    for line, count in found.wrong.most_common(100):
        print(f"WRONG {count} x {line}")
    bench("fuzz_tables.inputs", following - given.first, "inputs")
    bench("fuzz_tables.wrong", sum(found.wrong.values()), "findings")
    bench("fuzz_tables.slowest", found.slowest, "s")
    bench("fuzz_tables.peak", resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3, "MB")
    return 1 if found.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
