"""Compressed objects as other tools write them: frames to skip, padding, and several streams."""

from __future__ import annotations

import bz2
import gzip
import lzma
import struct

import lz4.frame
import pytest
import zstandard

from storeside.transfer.base.errors import TransferInputError
from tests.statements import Statements
from tests.transfers import Loaded

LOADERS = ("pull", "push")
TEXT = b"a,b\n1,x\n2,y\n"
ROWS = [(1, "x"), (2, "y")]


def skipped(kind: int, size: int) -> bytes:
    """Return a skippable frame (RFC 8878, 3.1.2), which readers of zstd and lz4 leave out."""
    return struct.pack("<II", 0x184D2A50 + kind, size) + b"s" * size


@pytest.mark.parametrize("loader", LOADERS)
def test_frames_to_skip_and_padding_are_no_content(reading: Statements, loader: str) -> None:
    zstd, lz4_ = zstandard.ZstdCompressor().compress(TEXT), lz4.frame.compress(TEXT)
    contents = {
        "pzstd.csv.zst": skipped(0, 4) + zstd, "unnamed": skipped(3, 4) + zstd,
        "long.csv.zst": skipped(15, 5_000) + zstd,
        "two.csv.zst": skipped(0, 4) + skipped(1, 0) + zstd + skipped(2, 9), "frame.csv.lz4": skipped(7, 12) + lz4_,
        "zeros.csv.gz": gzip.compress(TEXT) + bytes(512), "zeros.csv.xz": lzma.compress(TEXT) + bytes(512),
        "two.csv.gz": gzip.compress(TEXT[:8]) + gzip.compress(TEXT[8:]),
        "two.csv.bz2": bz2.compress(TEXT[:8]) + bz2.compress(TEXT[8:]),
    }  # fmt: skip
    reading.create("a Int64, b String")
    reading.cases({name: Loaded(content, ROWS) for name, content in contents.items()}, loader=loader, format="csv")
    for name, content in {
        **contents,
        "zeros.jsonl.gz": gzip.compress(b'{"a":1,"b":"x"}\n{"a":2,"b":"y"}') + bytes(9),
    }.items():
        other = reading.another()
        other.put({name: content})
        other.load(loader=loader, format="jsonl" if "jsonl" in name else "csv")
        assert other.rows() == ROWS, name


@pytest.mark.parametrize(("name", "content", "reason"), [
    ("a.csv.gz", gzip.compress(TEXT, mtime=0) + b"garbage", "its gzip content is broken"),
    ("a.csv.zst", zstandard.ZstdCompressor().compress(TEXT)[:-3], "its zstd content is broken"),
    ("a", b"\x00\x01\x02\x03", "shows its format, such as 'a': set `format`$"),
    ("a.parquet", b"PAR1", "not a whole Parquet file: .*upload it again, or write it again$"),
], ids=["gzip", "zstd", "binary", "parquet"])  # fmt: skip
def test_damage_is_the_reason_why_a_sample_shows_nothing(
    reading: Statements, name: str, content: bytes, reason: str
) -> None:
    reading.put({name: content})
    with pytest.raises(TransferInputError, match=reason):
        reading.load()
