"""Writes inventories of a bucket in the formats of S3 Inventory."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import time
from collections.abc import Sequence
from datetime import datetime
from typing import Any, NamedTuple
from urllib.parse import quote_plus

import pyarrow as pa
from pyarrow import orc, parquet

FORMATS = ("CSV", "Parquet", "ORC")
# The fields by their names in CSV, with their names in Parquet and ORC.
STORED = {
    "Bucket": "bucket", "Key": "key", "VersionId": "version_id", "IsLatest": "is_latest",
    "IsDeleteMarker": "is_delete_marker", "Size": "size", "LastModifiedDate": "last_modified_date", "ETag": "e_tag",
    "StorageClass": "storage_class",
}  # fmt: skip
FIELDS = tuple(STORED)
_KINDS = {
    "Size": pa.int64(), "LastModifiedDate": pa.timestamp("ms"), "IsLatest": pa.bool_(), "IsDeleteMarker": pa.bool_(),
}  # fmt: skip


class Entry(NamedTuple):
    """One row of an inventory; a delete marker has neither size nor ETag."""

    key: str
    size: int | None
    modified: datetime
    etag: str | None
    is_latest: bool = True
    is_delete_marker: bool = False

    def values(self, bucket: str) -> dict[str, Any]:
        """Return the values of all fields."""
        return {
            "Bucket": bucket, "Key": self.key, "VersionId": "", "IsLatest": self.is_latest,
            "IsDeleteMarker": self.is_delete_marker, "Size": self.size, "LastModifiedDate": self.modified,
            "ETag": self.etag, "StorageClass": "STANDARD",
        }  # fmt: skip


def file(form: str, bucket: str, entries: Sequence[Entry], fields: Sequence[str] = FIELDS) -> bytes:
    """Return one file of an inventory."""
    rows = [entry.values(bucket) for entry in entries]
    if form == "CSV":

        def text(name: str, value: Any) -> str:
            if isinstance(value, bool):
                return str(value).lower()
            if isinstance(value, datetime):
                return value.strftime("%Y-%m-%dT%H:%M:%S.000Z")
            return quote_plus(value) if name == "Key" else str("" if value is None else value)

        lines = (",".join(f'"{text(name, row[name])}"' for name in fields) for row in rows)
        return gzip.compress("".join(f"{line}\n" for line in lines).encode())
    columns = {STORED[name]: pa.array([row[name] for row in rows], _KINDS.get(name, pa.string())) for name in fields}
    buffer = io.BytesIO()
    (parquet if form == "Parquet" else orc).write_table(pa.table(columns), buffer)
    return buffer.getvalue()


def digest(content: bytes) -> str:
    """Return the MD5 digest with which S3 describes files."""
    return hashlib.md5(content, usedforsecurity=False).hexdigest()


def publish(
    s3: Any, place: str, folder: str, bucket: str, form: str, files: Sequence[bytes], fields: Sequence[str] = FIELDS
) -> None:
    """Store an inventory as S3 does: files, manifest, and then the checksum of the manifest."""
    described = []
    for n, content in enumerate(files):
        key = f"{folder}data/{digest(content)}-{n}"
        s3.put_object(Bucket=place, Key=key, Body=content)
        described.append({"key": key, "size": len(content), "MD5checksum": digest(content)})
    parts = (f"optional binary {STORED[name]} (UTF8);" for name in fields)
    schema = ", ".join(fields) if form == "CSV" else f"message s3.inventory {{ {' '.join(parts)} }}"
    if form == "ORC":
        schema = f"struct<{','.join(f'{STORED[name]}:string' for name in fields)}>"
    manifest = json.dumps(
        {
            "sourceBucket": bucket, "destinationBucket": f"arn:aws:s3:::{place}", "version": "2016-11-30",
            "creationTimestamp": str(int(time.time() * 1000)), "fileFormat": form, "fileSchema": schema,
            "files": described,
        }
    ).encode()  # fmt: skip
    day = f"{folder}2026-11-24T01-00Z/"
    s3.put_object(Bucket=place, Key=f"{day}manifest.json", Body=manifest)
    s3.put_object(Bucket=place, Key=f"{day}manifest.checksum", Body=digest(manifest).encode())
