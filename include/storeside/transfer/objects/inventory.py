"""Reads a listing that S3 Inventory wrote, for buckets whose objects are too many to list.

Formats, fields and their meaning: https://docs.aws.amazon.com/AmazonS3/latest/userguide/storage-inventory-location.html
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from tempfile import TemporaryFile
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote_plus

from storeside.aistore.names import FOLDER_ENDS
from storeside.transfer.base.errors import LoadObjectError, TransferInputError
from storeside.transfer.objects.content import s3_error
from storeside.transfer.request.source import place_of, uri_of

if TYPE_CHECKING:
    import pyarrow as pa
    from types_boto3_s3 import S3Client

log = logging.getLogger(__name__)

# Columns of an inventory by their names in CSV. In Parquet and ORC, `LastModifiedDate` is `last_modified_date`.
_NEEDED = ("Key", "Size", "LastModifiedDate", "ETag")
_VERSIONS = ("IsLatest", "IsDeleteMarker")
_DATE = re.compile(r"(?:.*/)?\d{4}-\d\d-\d\dT\d\d-\d\dZ/")
_OLD = timedelta(days=2)
_ROWS = 1 << 17
_LARGEST_MANIFEST = 16 << 20
_ENCODED = "[%+]"


@dataclass(frozen=True)
class Inventory:
    """One inventory of a bucket: its files with their MD5 digests, their format and the columns of CSV."""

    uri: str
    bucket: str
    place: str
    form: str
    columns: tuple[str, ...]
    files: tuple[tuple[str, str], ...]

    @classmethod
    def find(cls, client: S3Client, uri: str, bucket: str) -> Inventory:
        """Return the inventory of `bucket` with the URI of a manifest, or the newest one below the URI of a folder.

        Raises TransferInputError if there is none, or if it lacks a column that a load needs.
        """
        place, key = place_of(uri, "inventory")
        if not key.endswith("manifest.json"):
            key = _newest(client, place, key)
        try:
            manifest = _manifest(client, place, key)
            columns = tuple(name.strip() for name in manifest["fileSchema"].split(","))
            found = cls(
                uri_of(place, key), manifest["sourceBucket"], place, manifest["fileFormat"],
                columns if manifest["fileFormat"] == "CSV" else tuple(_names(manifest["fileSchema"])),
                tuple((file["key"], file["MD5checksum"]) for file in manifest["files"]),
            )  # fmt: skip
            made = datetime.fromtimestamp(int(manifest["creationTimestamp"]) / 1000, UTC)
        except (KeyError, TypeError, ValueError, AttributeError) as e:
            raise TransferInputError(
                f"inventory {uri_of(place, key)}: it is not a manifest of S3 Inventory: {e!r}"
            ) from e
        found._check(bucket)
        is_old = datetime.now(UTC) - made > _OLD
        log.log(
            logging.WARNING if is_old else logging.INFO,
            "%s: %d files, made at %s; newer objects are not in it", found.uri, len(found.files), made.isoformat(),
        )  # fmt: skip
        return found

    def _check(self, bucket: str) -> None:
        if self.bucket != bucket:
            raise TransferInputError(f"inventory {self.uri}: it lists the bucket {self.bucket}, not {bucket}")
        if self.form not in ("CSV", "Parquet", "ORC"):
            raise TransferInputError(f"inventory {self.uri}: unknown format {self.form!r}: use CSV, ORC or Parquet")
        if missing := [name for name in _NEEDED if name not in self.columns]:
            raise TransferInputError(
                f"inventory {self.uri}: it lacks {', '.join(missing)}: add Size, Last modified and ETag to the"
                " additional metadata fields of its configuration"
            )

    def read(self, client: S3Client, prefix: str) -> Iterator[pa.RecordBatch]:
        """Yield key, etag, size and modified of the current objects with a prefix, in any order.

        Raises TransferInputError for a file that is not the one of the manifest.
        """
        import pyarrow as pa

        for key, digest in self.files:
            with TemporaryFile() as file:
                found = hashlib.md5(usedforsecurity=False)
                with _body(client, self.place, key) as body:
                    for chunk in body.iter_chunks(1 << 20):
                        found.update(chunk)
                        file.write(chunk)
                if found.hexdigest() != digest:
                    raise self._error(key, "its MD5 digest is not that of the manifest: use another inventory")
                file.seek(0)
                try:
                    for batch in self._batches(file):
                        yield _current(batch, prefix, is_csv=self.form == "CSV")
                except (pa.ArrowException, KeyError, OSError) as e:
                    raise self._error(key, f"it does not have the columns of the manifest: {e}") from e

    def _error(self, key: str, reason: str) -> TransferInputError:
        return TransferInputError(f"inventory {self.uri}: {uri_of(self.place, key)}: {reason}")

    def _batches(self, file: Any) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa
        from pyarrow import csv, orc, parquet

        wanted = [name for name in (*_NEEDED, *_VERSIONS) if name in self.columns]
        if self.form == "CSV":
            texts = dict.fromkeys(self.columns, pa.string())
            yield from csv.open_csv(
                pa.CompressedInputStream(pa.PythonFile(file, "r"), "gzip"),
                read_options=csv.ReadOptions(column_names=self.columns, block_size=8 << 20),
                convert_options=csv.ConvertOptions(include_columns=wanted, column_types=texts),
            )
            return
        stored = [_snake(name) for name in wanted]
        if self.form == "Parquet":
            batches: Iterator[pa.RecordBatch] = parquet.ParquetFile(
                file, page_checksum_verification=True
            ).iter_batches(_ROWS, columns=stored)
        else:
            stripes = orc.ORCFile(file)
            batches = (stripes.read_stripe(n, columns=stored) for n in range(stripes.nstripes))
        for batch in batches:
            yield batch.select(stored).rename_columns(wanted)


def _newest(client: S3Client, bucket: str, folder: str) -> str:
    """Return the key of the newest manifest below a folder."""
    from botocore.exceptions import BotoCoreError, ClientError

    folder = folder.rstrip("/") + "/" if folder else ""
    try:
        pages = client.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=folder, Delimiter="/")
        found = [entry["Prefix"] for page in pages for entry in page.get("CommonPrefixes", ())]
        for day in sorted(filter(_DATE.fullmatch, found), reverse=True):
            if client.list_objects_v2(Bucket=bucket, Prefix=f"{day}manifest.checksum", MaxKeys=1).get("Contents"):
                return f"{day}manifest.json"
    except (BotoCoreError, ClientError) as e:
        raise s3_error(e, bucket, folder) from e
    raise TransferInputError(
        f"inventory {uri_of(bucket, folder)}: it has no folder such as 2026-01-01T01-00Z/ with a manifest: write the"
        " folder of the inventory's configuration, s3://inventories/trips/daily/"
    )


def _manifest(client: S3Client, bucket: str, key: str) -> dict[str, Any]:
    """Return a manifest. Raises TransferInputError if it is incomplete."""
    with _body(client, bucket, key) as body:
        manifest = body.read(_LARGEST_MANIFEST)
    with _body(client, bucket, f"{key.removesuffix('.json')}.checksum") as body:
        checksum = body.read(64).decode("ascii", "replace").strip()
    if hashlib.md5(manifest, usedforsecurity=False).hexdigest() != checksum:
        raise TransferInputError(f"inventory {uri_of(bucket, key)}: manifest.checksum differs: use another inventory")
    found = json.loads(manifest)
    if not isinstance(found, dict):
        raise TypeError("it is no object")
    return found


@contextmanager
def _body(client: S3Client, bucket: str, key: str) -> Iterator[Any]:
    """Open the content of an object of the inventory. Raises TransferError, also when a read in the block fails."""
    from botocore.exceptions import BotoCoreError, ClientError

    try:
        yield client.get_object(Bucket=bucket, Key=key)["Body"]
    except (BotoCoreError, ClientError) as e:
        error = s3_error(e, bucket, key)
        if isinstance(error, LoadObjectError):
            error = TransferInputError(f"inventory {uri_of(bucket, key)}: {error}")
        raise error from e


def _names(message: str) -> Iterator[str]:
    """Yield the columns of the schema of Parquet or ORC in a manifest, by their names in CSV."""
    by_name = {_snake(name): name for name in (*_NEEDED, *_VERSIONS)}
    for word in re.findall(r"\w+", message):
        if word in by_name:
            yield by_name[word]


def _snake(name: str) -> str:
    return "e_tag" if name == "ETag" else re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()


def _current(batch: pa.RecordBatch, prefix: str, *, is_csv: bool) -> pa.RecordBatch:
    """Return key, etag, size and modified of the objects with a prefix that exist and are no folder markers."""
    import pyarrow as pa
    import pyarrow.compute as pc

    keep: Any = pa.scalar(value=True)
    for name, wanted in zip(_VERSIONS, ("true", "false"), strict=True):
        if name in batch.schema.names:
            keep = pc.and_(keep, pc.equal(pc.utf8_lower(pc.cast(batch[name], pa.string())), wanted))
    keys, sizes = pc.cast(batch["Key"], pa.string()), batch["Size"]
    if is_csv:
        keys, sizes = _decoded(keys), pc.if_else(pc.equal(sizes, ""), "0", sizes)
    sizes = pc.cast(sizes, pa.uint64())
    keep = pc.and_(keep, pc.starts_with(keys, prefix))
    for end in FOLDER_ENDS:
        keep = pc.and_not(keep, pc.and_(pc.ends_with(keys, end), pc.equal(sizes, 0)))
    times = batch["LastModifiedDate"]
    if not is_csv:
        times = pc.strftime(pc.cast(times, pa.timestamp("s"), safe=False), "%Y-%m-%dT%H:%M:%SZ")
    columns = {"key": keys, "etag": pc.cast(batch["ETag"], pa.string()), "size": sizes, "modified": times}
    return pa.RecordBatch.from_pydict(columns).filter(keep)


def _decoded(keys: pa.Array) -> pa.Array:
    """Return keys that CSV has URL-encoded; most have no such character."""
    import pyarrow as pa
    import pyarrow.compute as pc

    encoded = pc.match_substring_regex(keys, _ENCODED)
    if not pc.any(encoded).as_py():
        return keys
    texts: Sequence[str] = keys.filter(encoded).to_pylist()
    return pc.replace_with_mask(keys, encoded, pa.array(map(unquote_plus, texts), pa.string()))
