"""Uploads into the stack's S3: names, a missing bucket, and messages."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from storeside.stack.settings import StackError
from storeside.stack.upload import upload
from tests.support import unique

if TYPE_CHECKING:
    from types_boto3_s3 import S3Client


def test_a_folder_keeps_its_names_and_the_bucket_is_created(s3_client: S3Client, tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "é a.csv").write_text("n\n1\n")
    (tmp_path / "b.csv").write_text("n\n")
    bucket = unique("mine")
    assert upload(s3_client, tmp_path, f"s3://{bucket}/new") == f"2 files, 6 B -> s3://{bucket}/new/"
    assert upload(s3_client, tmp_path / "b.csv", f"s3://{bucket}") == f"1 file, 2 B -> s3://{bucket}/"
    listed = [found["Key"] for found in s3_client.list_objects_v2(Bucket=bucket)["Contents"]]
    assert sorted(listed) == ["b.csv", "new/b.csv", "new/sub/é a.csv"]


@pytest.mark.parametrize(
    ("source", "to", "error"),
    [
        ("b.csv", "ais://x", "TO=ais://x: write s3://bucket/prefix"),
        ("b.csv", "s3:///x", "TO=s3:///x: write s3://bucket/prefix"),
        ("none", "s3://x", "none: it does not exist"),
        ("empty", "s3://x", "empty: the folder has no files"),
    ],
)
def test_wrong_places_are_refused(s3_client: S3Client, tmp_path: Path, source: str, to: str, error: str) -> None:
    (tmp_path / "b.csv").write_text("n\n")
    (tmp_path / "empty").mkdir()
    with pytest.raises(StackError, match=error):
        upload(s3_client, tmp_path / source, to)
