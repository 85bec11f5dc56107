"""Writes an inventory of the objects that `listing_server` lists, for ``make bench-transfer``."""

from __future__ import annotations

import io
from typing import Any

import pyarrow as pa
from pyarrow import parquet

from tests.benchmarks import listing_server
from tests.inventories import STORED, publish

FIELDS = ("Bucket", "Key", "Size", "LastModifiedDate", "ETag")
_ROWS = 1_000_000


def write(s3: Any, bucket: str, folder: str, count: int) -> None:
    """Store the inventory of `count` objects in a folder of the bucket that it describes, unless it exists."""
    if s3.list_objects_v2(Bucket=bucket, Prefix=folder, MaxKeys=1).get("Contents"):
        return
    files = [_file(bucket, range(first, min(first + _ROWS, count))) for first in range(0, count, _ROWS)]
    publish(s3, bucket, folder, bucket, "Parquet", files, FIELDS)


def _file(bucket: str, numbers: range) -> bytes:
    entries = list(map(listing_server.entry, numbers))
    columns = {
        STORED["Bucket"]: pa.repeat(bucket, len(entries)),
        STORED["Key"]: pa.array([e.key for e in entries]),
        STORED["Size"]: pa.array([e.size for e in entries], pa.int64()),
        STORED["LastModifiedDate"]: pa.array([e.modified for e in entries], pa.timestamp("ms", "UTC")),
        STORED["ETag"]: pa.array([e.etag for e in entries]),
    }
    buffer = io.BytesIO()
    parquet.write_table(pa.table(columns), buffer)
    return buffer.getvalue()
