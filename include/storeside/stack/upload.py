"""Uploads files into a bucket of the stack's S3."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from storeside.amounts import counted, size
from storeside.stack.settings import StackError

if TYPE_CHECKING:
    from types_boto3_s3 import S3Client


def upload(client: S3Client, source: Path, to: str) -> str:
    """Upload a file, or all files below a folder, to ``s3://bucket/prefix``, and return a line about it.

    A missing bucket is created. Names below a folder stay as they are, after the prefix.

    Raises:
        StackError: `source` does not exist or has no files, or `to` has no bucket of S3.
    """
    scheme, _, place = to.partition("://")
    bucket, _, prefix = place.partition("/")
    if scheme != "s3" or not bucket:
        raise StackError(f"TO={to}: write s3://bucket/prefix")
    if not source.exists():
        raise StackError(f"FROM={source}: it does not exist")
    folder = source if source.is_dir() else source.parent
    paths = [path for path in sorted(folder.rglob("*")) if path.is_file()] if source.is_dir() else [source]
    if not paths:
        raise StackError(f"FROM={source}: the folder has no files")
    if bucket not in {found["Name"] for found in client.list_buckets()["Buckets"]}:
        client.create_bucket(Bucket=bucket)
    start = f"{prefix.rstrip('/')}/" if prefix else ""
    for path in paths:
        client.upload_file(str(path), bucket, start + path.relative_to(folder).as_posix())
    return (
        f"{counted(len(paths), 'file')}, {size(sum(path.stat().st_size for path in paths))} -> s3://{bucket}/{start}"
    )
