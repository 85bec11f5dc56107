"""Copies from and to clouds: which of them are current, and the error for those that AIStore left out."""

from __future__ import annotations

from typing import Any

import pytest

from storeside.aistore.buckets import Bucket
from storeside.aistore.errors import AIStoreInputError, AIStoreTransientError
from storeside.ledger.scope import Pending
from storeside.transform import copies

OURS, OCI, S3 = Bucket("ais", "ours"), Bucket("oci", "in"), Bucket("s3", "in")


@pytest.mark.parametrize(
    ("source", "listed", "kept", "current", "same"),
    [
        (S3, "v1", {"version": "v1", "ETag": "e1"}, {}, True),
        (S3, "e1", {"ETag": "e1"}, {}, True),
        (S3, "e2", {"ETag": "e1"}, {"ETag": "e1"}, False),  # the source changed back: its version is another one
        (OCI, "md5==", {"MD5": "md5==", "ETag": "e1"}, {}, True),
        (OCI, "new==", {"MD5": "md5==", "ETag": "e1"}, {"ETag": "e2"}, False),
        # an object in parts: OCI lists an MD5 of its parts, which AIStore does not keep
        (OCI, "parts==-3", {"ETag": "e1"}, {"ETag": "e1"}, True),
        (OCI, "parts==-3", {"ETag": "e1"}, {"ETag": "e2"}, False),
        (OCI, "", {"ETag": "e1"}, {"ETag": "e1"}, True),
        (OCI, "parts==-3", {}, {}, False),
    ],
)
def test_a_copy_is_of_the_listed_version(
    monkeypatch: pytest.MonkeyPatch,
    source: Bucket,
    listed: str,
    kept: dict[str, str],
    current: dict[str, str],
    same: bool,
) -> None:
    def custom(client: Any, bucket: Bucket, name: str) -> dict[str, str]:
        return kept if bucket == OURS else current

    monkeypatch.setattr(copies, "_custom", custom)
    assert copies._is_copy(None, Pending("a", "a", 1, listed), source, OURS) == same  # type: ignore[arg-type]


def test_what_aistore_never_writes_to_a_cloud_is_not_retried() -> None:
    error = copies.not_copied("2", "a.txt", OURS, OCI)
    assert isinstance(error, AIStoreInputError)
    for part in ("2 objects of ais://ours", "'a.txt'", "oc://in", "StorageCopyBucketOperator"):
        assert part in str(error)


@pytest.mark.parametrize(("source", "destination"), [(S3, OURS), (OCI, S3), (OURS, Bucket("ais", "other"))])
def test_other_missing_copies_are_retried(source: Bucket, destination: Bucket) -> None:
    error = copies.not_copied("1", "a", source, destination)
    assert isinstance(error, AIStoreTransientError)
    assert "a retry copies them" in str(error)
