"""Buckets by URI, and their listings as bounded streams."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from types_boto3_s3 import S3Client

# scheme of a URI -> provider as AIStore names it
PROVIDERS = {"ais": "ais", "s3": "aws", "gs": "gcp", "az": "azure", "oci": "oci"}
# Objects per page of a listing: bounds the memory of a listing of any length.
PAGE = 1000


@dataclass(frozen=True)
class Bucket:
    """A bucket as AIStore sees it, such as ``ais://speech`` or ``s3://recordings``."""

    scheme: str
    name: str

    @classmethod
    def parse(cls, uri: str) -> Bucket:
        """Read ``scheme://name``; raises ValueError that names what is wrong with `uri`."""
        scheme, separator, name = uri.partition("://")
        name = name.rstrip("/")
        if not separator or scheme not in PROVIDERS:
            raise ValueError(f"bucket {uri!r}: write it as one of {', '.join(f'{s}://name' for s in PROVIDERS)}")
        if not name or "/" in name:
            raise ValueError(f"bucket {uri!r}: needs a bucket's name alone; a prefix is an argument of its own")
        return cls(scheme, name)

    def __str__(self) -> str:
        return f"{self.scheme}://{self.name}"

    @property
    def provider(self) -> str:
        """The provider's name in AIStore's API."""
        return PROVIDERS[self.scheme]

    def handle(self, client: Any) -> Any:
        """Return the `aistore` SDK's bucket for this one."""
        return client.bucket(self.name, provider=self.provider)


@dataclass(frozen=True)
class StoredObject:
    """One entry of a listing; `version` changes whenever the content does."""

    name: str
    size: int
    version: str


def list_aistore(client: Any, bucket: Bucket, prefix: str = "") -> Iterator[StoredObject]:
    """Stream the objects of `bucket` as the AIStore cluster behind `client` lists them.

    The version of a remote object is the backend's version or checksum, whichever there is. In AIStore's own buckets
    its counter is joined with the checksum: the counter alone stays as it is when a transform overwrites an object
    from another target (AIStore 5.0), and starts again after a deletion. What a WebSocket transform wrote has no
    checksum; its size stands in.
    """
    listing = bucket.handle(client).list_objects_iter(
        prefix=prefix, props="name,size,version,checksum", page_size=PAGE
    )
    for entry in listing:
        version = entry.version or entry.checksum
        if bucket.scheme == "ais":
            version = f"{entry.version}/{entry.checksum or entry.size}"
        yield StoredObject(entry.name, int(entry.size), version)


def list_s3(client: S3Client, bucket: str, prefix: str = "") -> Iterator[StoredObject]:
    """Stream the objects of an S3 bucket; the version is the ETag. Folder markers are left out."""
    for page in client.get_paginator("list_objects_v2").paginate(
        Bucket=bucket, Prefix=prefix, PaginationConfig={"PageSize": PAGE}
    ):
        for entry in page.get("Contents", []):
            if entry["Key"].endswith("/") and not entry["Size"]:
                continue
            yield StoredObject(entry["Key"], entry["Size"], entry["ETag"].strip('"'))
