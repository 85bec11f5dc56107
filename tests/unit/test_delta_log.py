"""Damaged logs of Delta tables, whose reason is a sentence."""

from __future__ import annotations

import io
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa
import pytest

from storeside.transfer.base.errors import TransferInputError
from storeside.transfer.lakes.snapshots import snapshot_of
from storeside.transfer.request.source import Source

if TYPE_CHECKING:
    from types_boto3_s3 import S3Client

LAST = "_delta_log/00000000000000000001.json"
DAMAGE = {
    "a cut commit": (
        LAST,
        lambda content: content[:-20],
        r"line \d+ of its commit",
    ),
    "zeros": (
        LAST,
        lambda content: content[:9] + bytes(5) + content[14:],
        "line 1 of",
    ),
    "no action": (
        LAST,
        lambda content: b'{"add": {"path": 1}}\n',
        "restore its log",
    ),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_log_of_a_delta_table_is_named_without_stacks(damage: str, tmp_path: Path) -> None:
    deltalake = pytest.importorskip("deltalake")
    for n in range(2):
        deltalake.write_deltalake(str(tmp_path / "t"), pa.table({"n": [n]}), mode="append")
    name, change, said = DAMAGE[damage]
    (tmp_path / "t" / name).write_bytes(change((tmp_path / "t" / name).read_bytes()))
    with pytest.raises(TransferInputError, match="version 1 of the table cannot be read: ") as e:
        snapshot_of(cast("S3Client", Folder(tmp_path)), "delta", Source("bucket", "t/"))
    assert re.search(said, str(e.value))
    assert "<unknown>" not in str(e.value)


class Folder:
    """A bucket whose objects are the files of a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def get_paginator(self, _: str) -> Folder:
        return self

    def paginate(self, Prefix: str, **_: Any) -> Any:
        found = [path for path in sorted((self.folder / Prefix).rglob("*")) if path.is_file()]
        return [{"Contents": [{"Key": str(p.relative_to(self.folder)), "Size": p.stat().st_size} for p in found]}]

    def get_object(self, Key: str, **_: Any) -> Any:
        content = (self.folder / Key).read_bytes()
        return {"ContentLength": len(content), "Body": io.BytesIO(content)}
