"""Checks before a job that a bucket exists, because AIStore's own error does not always name the bucket."""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING

from storeside.aistore.buckets import Bucket
from storeside.aistore.errors import AIStoreInputError

if TYPE_CHECKING:
    from aistore.sdk import Client


def require_bucket(client: Client, bucket: Bucket) -> None:
    """Request a bucket from AIStore, which requests a remote bucket from its backend.

    Raises AIStoreInputError when the bucket does not exist, and AISError for other failures.
    """
    from aistore.sdk.errors import AISError

    try:
        bucket.handle(client).head()
    except AISError as e:
        if e.status_code != HTTPStatus.NOT_FOUND:
            raise
        reach = "; AIStore's targets reach it with their own endpoint and keys" if bucket.is_remote else ""
        raise AIStoreInputError(f"there is no bucket {bucket}: create it, or correct its name{reach}") from e
