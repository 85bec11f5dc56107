"""The objects that a bucket has, as streams of bounded memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from http import HTTPStatus
from itertools import islice
from typing import TYPE_CHECKING

from storeside.aistore.entries import PAGE, entries
from storeside.aistore.names import is_folder_marker, unfit

if TYPE_CHECKING:
    from aistore.sdk import Client
    from types_boto3_s3 import S3Client
from storeside.aistore.buckets import Bucket, common_prefix

# Concurrent requests; the SDK keeps ten connections.
_THREADS = 8


@dataclass(frozen=True)
class StoredObject:
    """One entry of a listing; `size` is in bytes. `version` changes with the content."""

    name: str
    size: int
    version: str


# Up to this many names are looked up one by one; for more, `find_aistore` lists all objects with their common prefix.
FEW = 1000


def list_aistore(client: Client, bucket: Bucket, prefix: str = "", page: int = PAGE) -> Iterator[StoredObject]:
    """Stream the objects of `bucket` from a listing of the AIStore cluster behind `client`.

    A listing of a remote bucket shows the current state of its backend, not the objects that AIStore has cached.
    The version of a remote object is the backend's version, its checksum if it has no version, or else the time of
    its last change. The version of an object in an ``ais://`` bucket joins AIStore's counter with the checksum. The
    counter alone does not change when a transform overwrites an object from another target (AIStore 5.0), and it
    starts again after a deletion. A WebSocket result has no checksum, so its size is used.
    """
    from aistore.sdk.list_object_flag import ListObjectFlag

    flags = [ListObjectFlag.ONLY_REMOTE_PROPS] if bucket.is_remote else []
    props = "name,size,version,checksum,custom" if bucket.is_remote else "name,size,version,checksum"
    for found in entries(client, bucket, prefix, props, page=page, flags=flags):
        # AIStore lists neither a version nor a checksum of an object that was uploaded to S3 in parts
        version = found.version or found.checksum or custom_metadata(found.custom).get("LastModified", "")
        if bucket.scheme == "ais":
            version = f"{found.version}/{found.checksum or found.size}"
        yield StoredObject(found.name, found.size, version)


def list_held(client: Client, bucket: Bucket, prefix: str = "") -> Iterator[StoredObject]:
    """Stream the copies of a remote bucket's objects that the cluster holds, which may be older than the objects.

    The version of a copy has all notations of its object's version, one a line; it is empty if they are unknown.
    """
    from aistore.sdk.list_object_flag import ListObjectFlag

    flags = [ListObjectFlag.CACHED]
    for found in entries(client, bucket, prefix, "name,size,version,custom", flags=flags):
        kept = custom_metadata(found.custom)
        known = [found.version, *kept.values()]
        if bucket.scheme == "oci" and "md5" not in kept:
            known = []  # OCI's listings have an MD5, which AIStore does not keep for objects uploaded in parts
        yield StoredObject(found.name, found.size, "\n".join(filter(None, known)))


def custom_metadata(text: str) -> dict[str, str]:
    """Return AIStore's custom metadata from a listing: ``[source:aws ETag:…]``. A value ends at a space."""
    pairs = (item.partition(":") for item in text.removeprefix("[").removesuffix("]").split(" "))
    return {name: value for name, _, value in pairs if value}


def find_aistore(client: Client, bucket: Bucket, names: Iterable[str]) -> Iterator[StoredObject]:
    """Yield the objects of these names that exist, like `list_aistore`."""
    wanted = set(names)
    if len(wanted) > FEW:
        yield from (o for o in list_aistore(client, bucket, common_prefix(wanted)) if o.name in wanted)
    elif bucket.is_remote:
        for name in sorted(wanted):  # the first object below a prefix is the one whose name equals it
            yield from (o for o in islice(list_aistore(client, bucket, name, page=1), 1) if o.name == name)
    else:
        with ThreadPoolExecutor(_THREADS, thread_name_prefix="find") as pool:
            yield from filter(None, pool.map(lambda name: _found(client, bucket, name), sorted(wanted)))


def _found(client: Client, bucket: Bucket, name: str) -> StoredObject | None:
    """Return an object in the cluster, like `list_aistore`; None if it does not exist."""
    from aistore.sdk.errors import AISError

    if unfit(name):
        return None
    try:
        there = bucket.object(client, name).head("size,version,checksum")
    except AISError as e:
        if e.status_code != HTTPStatus.NOT_FOUND:
            raise
        return None
    return StoredObject(name, there.size, f"{there.obj_version}/{there.checksum_value or there.size}")


def list_s3(client: S3Client, bucket: str, prefix: str = "") -> Iterator[StoredObject]:
    """Stream the objects of an S3 bucket without folder markers. The version is the ETag."""
    for page in client.get_paginator("list_objects_v2").paginate(
        Bucket=bucket, Prefix=prefix, PaginationConfig={"PageSize": PAGE}
    ):
        for entry in page.get("Contents", []):
            if is_folder_marker(entry["Key"], entry["Size"]):
                continue
            yield StoredObject(entry["Key"], entry["Size"], entry["ETag"].strip('"'))
