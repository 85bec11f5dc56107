"""Inventories whose objects stop to arrive."""

from __future__ import annotations

import hashlib
import io
import json
from typing import Any

import pytest
from botocore.exceptions import ResponseStreamingError
from botocore.response import StreamingBody

from storeside.transfer.base.errors import TransferTransientError
from storeside.transfer.objects.inventory import Inventory

KEY = "daily/2026-01-01T01-00Z/manifest.json"
MANIFEST = json.dumps({
    "sourceBucket": "trips", "fileFormat": "CSV", "fileSchema": "Bucket, Key, Size, LastModifiedDate, ETag",
    "creationTimestamp": "1767229200000", "files": [{"key": "data.csv.gz", "MD5checksum": "0" * 32}],
}).encode()  # fmt: skip


class _Broken(io.BytesIO):
    def read(self, *_: Any) -> bytes:
        raise ResponseStreamingError(error="connection reset")


class _S3:
    """A bucket of inventories, from which the object `broken` does not arrive."""

    def __init__(self, broken: str) -> None:
        self._broken = broken

    def get_object(self, *, Bucket: str, Key: str) -> dict[str, Any]:
        content = MANIFEST if Key == KEY else hashlib.md5(MANIFEST, usedforsecurity=False).hexdigest().encode()
        raw = _Broken() if Key.endswith(self._broken) else io.BytesIO(content)
        return {"Body": StreamingBody(raw, len(content))}  # type: ignore[arg-type]


@pytest.mark.parametrize("broken", ["manifest.json", "manifest.checksum", "data.csv.gz"])
def test_an_interrupted_read_is_tried_again(broken: str) -> None:
    s3: Any = _S3(broken)
    with pytest.raises(TransferTransientError, match=f"{broken}: .*connection reset"):
        list(Inventory.find(s3, f"s3://inventories/{KEY}", "trips").read(s3, ""))
