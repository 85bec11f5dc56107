"""Attacks with metadata of Iceberg and Delta tables that take the memory of a worker when they are unpacked.

The attacker may write objects into the folder of a table that is loaded. They need no server.
"""

from __future__ import annotations

import gzip
import io
import json
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pyarrow import parquet

from storeside.transfer.base.errors import LoadObjectError, TransferInputError
from storeside.transfer.formats.avro_container import uncompressed
from storeside.transfer.lakes import snapshots
from storeside.transfer.request.source import Source
from tests import avro_files
from tests.avro_files import avro

MB = 1 << 20
CODECS = ("deflate", "snappy", "zstandard", "bzip2")
SOURCE = Source("lake", "t/")
METADATA: dict[str, Any] = {
    "format-version": 2, "table-uuid": "9c12d441-03fe-4693-9a96-a0705ddf69c1", "location": "s3://lake/t",
    "last-sequence-number": 1, "last-updated-ms": 1, "last-column-id": 1, "current-schema-id": 0,
    "schemas": [{"type": "struct", "schema-id": 0, "fields": [
        {"id": 1, "name": "n", "required": False, "type": "long"},
    ]}],
    "default-spec-id": 0, "partition-specs": [{"spec-id": 0, "fields": []}], "last-partition-id": 999,
    "default-sort-order-id": 0, "sort-orders": [{"order-id": 0, "fields": []}], "current-snapshot-id": 7,
    "snapshots": [{
        "snapshot-id": 7, "sequence-number": 1, "timestamp-ms": 1, "summary": {"operation": "append"},
        "manifest-list": "s3://lake/t/metadata/list.avro", "schema-id": 0,
    }],
}  # fmt: skip


class Bucket:
    """A store of objects: the part of boto3's client that reads metadata."""

    def __init__(self, **objects: bytes) -> None:
        self.objects = {f"t/{key}": content for key, content in objects.items()}
        self.read: list[str] = []

    def get_object(self, Bucket: str, Key: str) -> dict[str, Any]:
        self.read.append(Key)
        content = self.objects[Key]
        return {"ContentLength": len(content), "Body": io.BytesIO(content)}

    def get_paginator(self, _: str) -> Any:
        return self

    def paginate(self, Bucket: str, Prefix: str) -> list[Any]:
        return [{"Contents": [{"Key": k, "Size": len(v)} for k, v in self.objects.items() if k.startswith(Prefix)]}]


def load(bucket: Bucket, form: str) -> snapshots.Snapshot:
    return snapshots.snapshot_of(cast(Any, bucket), form, SOURCE)


@pytest.fixture(autouse=True)
def _limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """The bombs stay small, because their limit is."""
    monkeypatch.setattr(snapshots, "MOST_BYTES", MB)


def iceberg(manifests: bytes, metadata: bytes = b"") -> Bucket:
    metadata = metadata or json.dumps(METADATA).encode()
    return Bucket(**{"metadata/v1.metadata.json": metadata, "metadata/list.avro": manifests})


@pytest.mark.parametrize("codec", CODECS)
def test_a_list_of_manifests_is_unpacked_within_its_limit(codec: str) -> None:
    bomb = avro("bytes", [bytes(MB // 2)] * 3, codec=codec, per_block=1)
    assert len(bomb) < MB // 4
    with pytest.raises(TransferInputError, match=r"list\.avro: its metadata has more than 1 MB when it is unpacked"):
        load(iceberg(bomb), "iceberg")


@pytest.mark.parametrize("codec", CODECS)
def test_one_block_is_unpacked_within_its_limit(codec: str) -> None:
    """Each codec stops at the limit, and not at the end of its block."""
    bomb = avro("bytes", [bytes(40 * MB)], codec=codec)
    with pytest.raises(OverflowError):
        uncompressed(bomb, MB)


@pytest.mark.parametrize("codec", ["null", *CODECS])
def test_control_a_file_at_the_limit_is_read(codec: str) -> None:
    rows = [b"a" * n for n in range(1000)]
    plain = avro("bytes", rows)
    assert uncompressed(avro("bytes", rows, codec=codec), len(plain)) == (plain, 1000)


@pytest.mark.parametrize("codec", CODECS)
def test_a_damaged_block_is_an_error_of_the_table(codec: str) -> None:
    damaged = (
        avro_files.header("bytes", codec) + avro_files.long(1) + avro_files.sized(b"\x07" * 50) + avro_files.SYNC
    )
    with pytest.raises(TransferInputError, match="cannot be read as Iceberg's metadata"):
        load(iceberg(damaged), "iceberg")


@pytest.mark.parametrize("change", [lambda file: file[:-5], lambda file: file[:-16] + bytes(16)])
def test_a_file_that_is_cut_off_or_has_another_marker_is_refused(change: Any) -> None:
    with pytest.raises(LoadObjectError, match=r"cut off|corrupt"):
        uncompressed(change(avro("bytes", [b"a"])), MB)


def test_a_block_states_more_entries_than_a_table_has_files() -> None:
    entries = avro_files.header("bytes") + avro_files.block(1 << 40, b"")
    with pytest.raises(TransferInputError, match="it has 1099511627776 entries, over 600000: rewrite the manifests"):
        load(iceberg(entries), "iceberg")


def test_the_metadata_file_is_unpacked_within_its_limit() -> None:
    bomb = gzip.compress(json.dumps(METADATA).encode() + b" " * 4 * MB)
    assert len(bomb) < MB // 4
    with pytest.raises(TransferInputError, match=r"v1\.metadata\.json: its metadata has more than 1 MB"):
        load(iceberg(b"", bomb), "iceberg")


def test_a_large_file_is_not_even_fetched() -> None:
    with pytest.raises(TransferInputError, match=r"v1\.metadata\.json: its metadata has more than 1 MB"):
        load(iceberg(b"", b" " * (MB + 1)), "iceberg")


def test_all_metadata_together_have_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise many manifests, each below the limit, fill the memory."""
    manifests = avro("bytes", [bytes(MB // 2)], codec="deflate")
    monkeypatch.setattr(snapshots, "MOST_TOTAL", MB // 2)
    with pytest.raises(TransferInputError, match="s3://lake/t/: its metadata has more than 0 MB"):
        load(iceberg(manifests), "iceberg")


def delta(folder: Path) -> Bucket:
    """Return a Delta table with a checkpoint."""
    write_deltalake(folder, pa.table({"n": [1]}))
    DeltaTable(folder).create_checkpoint()
    return Bucket(
        **{str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}
    )


CHECKPOINT = f"t/_delta_log/{0:020}.checkpoint.parquet"


def packed(table: pa.Table, **options: Any) -> bytes:
    file = io.BytesIO()
    parquet.write_table(table, file, **options)
    return file.getvalue()


@pytest.mark.parametrize("codec", ["snappy", "gzip", "brotli", "lz4", "zstd"])
def test_a_checkpoint_is_unpacked_within_its_limit(tmp_path: Path, codec: str) -> None:
    bucket = delta(tmp_path / "t")
    table = parquet.read_table(io.BytesIO(bucket.objects[CHECKPOINT]))
    more = table.append_column("x", pa.array(["x" * 4 * MB] * len(table)))
    bucket.objects[CHECKPOINT] = packed(more, compression=codec, use_dictionary=False, write_statistics=False)
    assert len(bucket.objects[CHECKPOINT]) < MB
    with pytest.raises(TransferInputError, match=r"checkpoint\.parquet: its metadata has more than 1 MB"):
        load(bucket, "delta")


def test_a_checkpoint_of_many_rows_in_few_bytes_is_refused(tmp_path: Path) -> None:
    bucket = delta(tmp_path / "t")
    bucket.objects[CHECKPOINT] = packed(pa.table({"x": pa.nulls(4 * MB, pa.string())}))
    assert len(bucket.objects[CHECKPOINT]) < MB // 10
    with pytest.raises(TransferInputError, match=r"checkpoint\.parquet: its metadata has more than 1 MB"):
        load(bucket, "delta")


def test_a_damaged_checkpoint_is_an_error_of_the_table(tmp_path: Path) -> None:
    bucket = delta(tmp_path / "t")
    content = bytearray(bucket.objects[CHECKPOINT])
    content[4:20] = b"\xff" * 16
    bucket.objects[CHECKPOINT] = bytes(content)
    with pytest.raises(TransferInputError, match=r"checkpoint\.parquet: it cannot be read as a checkpoint: a page"):
        load(bucket, "delta")


def test_all_files_of_the_log_together_have_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bucket = delta(tmp_path / "t")
    monkeypatch.setattr(snapshots, "MOST_TOTAL", MB // 4)
    assert load(bucket, "delta").id == "0"
    table = parquet.read_table(io.BytesIO(bucket.objects[CHECKPOINT]))
    more = table.append_column("x", pa.array(["x" * (MB // 8)] * len(table)))
    bucket.objects[CHECKPOINT] = packed(more, compression="zstd", use_dictionary=False, write_statistics=False)
    with pytest.raises(TransferInputError, match="s3://lake/t/: its metadata has more than 0 MB"):
        load(bucket, "delta")
