"""Buckets by URI, and bucket listings as streams of bounded memory."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from http import HTTPStatus
from itertools import islice
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode

from storeside.aistore.entries import PAGE, entries
from storeside.aistore.errors import AIStoreInputError
from storeside.aistore.names import is_folder_marker, require_fit, require_fit_prefix, unfit

if TYPE_CHECKING:
    from aistore.sdk import Client
    from types_boto3_s3 import S3Client

# The provider's name in AIStore by the scheme of a URI.
PROVIDERS = {"ais": "ais", "s3": "aws", "gs": "gcp", "az": "azure", "oci": "oci"}
# AIStore's own scheme where it differs: AIStore writes oc://recordings, OCI's tools write oci://recordings.
_OWN_SCHEMES = {"oci": "oc"}
_SCHEMES = {own: scheme for scheme, own in _OWN_SCHEMES.items()}
_NAME = re.compile(r"[\w.-]+")
# Concurrent requests; the SDK keeps ten connections.
_THREADS = 8


@dataclass(frozen=True)
class Bucket:
    """An AIStore bucket, such as ``ais://speech``, ``s3://recordings`` or ``ais://@uuid#namespace/speech``.

    `namespace` is ``@uuid#name``. The UUID (or alias) of a remote AIStore cluster and the name are both optional.
    """

    scheme: str
    name: str
    namespace: str = ""

    @classmethod
    def parse(cls, uri: str) -> Bucket:
        """Parse ``scheme://name``. Raises AIStoreInputError, with the fault in `uri`.

        ``oc://``, AIStore's own scheme for buckets of OCI, means ``oci://``.
        """
        scheme, separator, name = uri.partition("://")
        scheme = _SCHEMES.get(scheme, scheme)
        namespace = ""
        if name[:1] in ("@", "#"):
            namespace, _, name = name.partition("/")
            cluster, _, space = namespace.partition("#")
            cluster = cluster if cluster != "@" else ""
            namespace = f"{cluster}#{space}" if cluster or space else ""  # the global namespace has neither
        name = name.rstrip("/")
        if not separator or scheme not in PROVIDERS:
            raise AIStoreInputError(
                f"bucket {uri!r}: write it as one of {', '.join(f'{s}://name' for s in PROVIDERS)}"
            )
        if not name or "/" in name:
            raise AIStoreInputError(
                f"bucket {uri!r}: needs the name of a bucket alone; set a prefix as a separate argument"
            )
        if name in (".", "..") or not _NAME.fullmatch(name):
            raise AIStoreInputError(f"bucket {uri!r}: a name has letters, digits, '.', '_' and '-'")
        if namespace and scheme != "ais":
            raise AIStoreInputError(f"bucket {uri!r}: only ais:// buckets have namespaces")
        return cls(scheme, name, namespace)

    @classmethod
    def split(cls, uri: str) -> tuple[Bucket, str]:
        """Return the bucket and the prefix of a URI such as ``ais://speech/2026/``. Raises AIStoreInputError."""
        parts = uri.split("/")
        until = 4 if parts[2:3] and parts[2][:1] in ("@", "#") else 3
        return cls.parse("/".join(parts[:until])), "/".join(parts[until:])

    def __str__(self) -> str:
        namespace = f"{self.namespace.removesuffix('#')}/" if self.namespace else ""
        return f"{self.scheme}://{namespace}{self.name}"

    @property
    def provider(self) -> str:
        """The provider's name in AIStore's API."""
        return PROVIDERS[self.scheme]

    @property
    def own_uri(self) -> str:
        """The bucket's URI in AIStore's messages, such as ``oc://recordings`` for ``oci://recordings``."""
        return f"{_OWN_SCHEMES.get(self.scheme, self.scheme)}{str(self).removeprefix(self.scheme)}"

    @property
    def is_remote(self) -> bool:
        """Whether the objects are stored outside the cluster: in a cloud bucket or in another AIStore cluster."""
        return self.scheme != "ais" or self.namespace.startswith("@")

    def handle(self, client: Client) -> Any:
        """Return the `aistore` SDK's bucket object for this bucket."""
        if not self.namespace:
            return client.bucket(self.name, provider=self.provider)
        from aistore.sdk.namespace import Namespace

        uuid, _, name = self.namespace.lstrip("@").partition("#")
        return client.bucket(self.name, provider=self.provider, namespace=Namespace(uuid=uuid, name=name))

    def fit(self, name: str) -> str:
        """Return the name of an object in this bucket. Raises AIStoreInputError if no object can have it."""
        return require_fit(name, f"object {name!r} of {self}")

    def object(self, client: Client, name: str) -> Any:
        """Return the `aistore` SDK's object of this name. Raises AIStoreInputError if no object can have it.

        This is the only way to an object whose name comes from outside: in the SDK's requests, a name with ``..``
        would be an object of another bucket.
        """
        return self.handle(client).object(self.fit(name))

    def objects(self, client: Client, names: Iterable[str]) -> Any:
        """Return the SDK's group of the objects with these names, for jobs; the only way to such a group.

        Raises AIStoreInputError for a name that no object can have, because AIStore's jobs do not check it.
        """
        return self.handle(client).objects(obj_names=[self.fit(name) for name in names])


@dataclass(frozen=True)
class StoredObject:
    """One entry of a listing; `size` is in bytes. `version` changes with the content."""

    name: str
    size: int
    version: str


def objects_url(endpoint: str, bucket: Bucket, prefix: str) -> str:
    """Return the URL in AIStore's API for objects of a bucket below a prefix; `endpoint` is the URL of AIStore.

    Raises AIStoreInputError for a prefix with which no name can begin.
    """
    query = {"provider": bucket.provider}
    if bucket.namespace:
        query["namespace"] = bucket.namespace
    path = f"objects/{bucket.name}/{require_fit_prefix(prefix, f'prefix {prefix!r} in {bucket}')}"
    return f"{endpoint.rstrip('/')}/v1/{quote(path)}?{urlencode(query)}"


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


def evict(client: Client, bucket: Bucket, names: Iterable[str]) -> str:
    """Submit a job that removes the cluster's copies of these objects of a cloud bucket; return its id."""
    return str(bucket.objects(client, names).evict())


def common_prefix(names: Iterable[str]) -> str:
    """Return the longest common prefix of all names, character by character (it may end inside a folder name)."""
    return os.path.commonprefix(list(names))  # noqa: RUF071 - object keys are not paths


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


def delete_objects(client: Client, bucket: Bucket, names: Iterable[str]) -> None:
    """Delete objects of a bucket, several at a time, and wait. An object that does not exist is no error.

    This is no deletion job of AIStore, which could still run while another task writes objects of these names. Raises
    AISError, and AIStoreInputError for a name that no object can have.
    """
    from aistore.sdk.errors import ErrObjNotFound

    def delete(name: str) -> None:
        with suppress(ErrObjNotFound):
            bucket.object(client, name).delete()

    with ThreadPoolExecutor(_THREADS, thread_name_prefix="delete") as pool:
        list(pool.map(delete, names))


def list_s3(client: S3Client, bucket: str, prefix: str = "") -> Iterator[StoredObject]:
    """Stream the objects of an S3 bucket without folder markers. The version is the ETag."""
    for page in client.get_paginator("list_objects_v2").paginate(
        Bucket=bucket, Prefix=prefix, PaginationConfig={"PageSize": PAGE}
    ):
        for entry in page.get("Contents", []):
            if is_folder_marker(entry["Key"], entry["Size"]):
                continue
            yield StoredObject(entry["Key"], entry["Size"], entry["ETag"].strip('"'))
