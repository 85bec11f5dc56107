"""Buckets by URI, and the requests for objects by their names."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode

from storeside.aistore.errors import AIStoreInputError
from storeside.aistore.names import require_fit, require_fit_prefix

if TYPE_CHECKING:
    from aistore.sdk import Client

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


def objects_url(endpoint: str, bucket: Bucket, prefix: str) -> str:
    """Return the URL in AIStore's API for objects of a bucket below a prefix; `endpoint` is the URL of AIStore.

    Raises AIStoreInputError for a prefix with which no name can begin.
    """
    query = {"provider": bucket.provider}
    if bucket.namespace:
        query["namespace"] = bucket.namespace
    path = f"objects/{bucket.name}/{require_fit_prefix(prefix, f'prefix {prefix!r} in {bucket}')}"
    return f"{endpoint.rstrip('/')}/v1/{quote(path)}?{urlencode(query)}"


def evict(client: Client, bucket: Bucket, names: Iterable[str]) -> str:
    """Submit a job that removes the cluster's copies of these objects of a cloud bucket; return its id."""
    return str(bucket.objects(client, names).evict())


def common_prefix(names: Iterable[str]) -> str:
    """Return the longest common prefix of all names, character by character (it may end inside a folder name)."""
    return os.path.commonprefix(list(names))  # noqa: RUF071 - object keys are not paths


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
