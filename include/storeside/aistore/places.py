"""Resolves bucket URIs, so that two URIs of the same bucket can be recognized.

An AIStore bucket may have a backend bucket (its property ``backend_bck``), and a URI may name a cluster by its UUID
or by an alias. So two different URIs may lead to the same objects.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from storeside.aistore.buckets import PROVIDERS, Bucket

if TYPE_CHECKING:
    from aistore.sdk import Client

_SCHEMES = {provider: scheme for scheme, provider in PROVIDERS.items()}
# Enough for AIStore's longest chain: the backend is another cluster's bucket, whose backend is a cloud bucket.
_MOST_FRONTS = 4


@dataclass(frozen=True)
class Clusters:
    """UUIDs of this cluster (`own`) and of attached clusters, by alias and by UUID."""

    own: str
    attached: Mapping[str, str]

    @classmethod
    def of(cls, client: Client) -> Clusters:
        """Request a cluster's UUID and its attached clusters. Raises AISError."""
        request = client.cluster().client.request
        own = request("get", path="cluster", params={"what": "smap"}).json().get("uuid", "")
        found = request("get", path="cluster", params={"what": "remote"}).json().get("a") or ()
        names = {name: entry["uuid"] for entry in found for name in (entry["uuid"], entry.get("alias", "")) if name}
        return cls(own, names)

    def canonical(self, bucket: Bucket) -> Bucket:
        """Return the bucket with its cluster's UUID instead of an alias, and without the UUID of this cluster."""
        cluster, _, space = bucket.namespace.partition("#")
        name = cluster.removeprefix("@")
        uuid = self.attached.get(name, name)
        cluster = f"@{uuid}" if uuid and uuid != self.own else ""
        return Bucket(bucket.scheme, bucket.name, f"{cluster}#{space}" if cluster or space else "")

    def answers(self, bucket: Bucket) -> bool:
        """Return whether a bucket's cluster is this cluster or attached to it."""
        cluster = bucket.namespace.partition("#")[0].removeprefix("@")
        return not cluster or cluster == self.own or cluster in self.attached


def place(client: Client, bucket: Bucket, clusters: Clusters) -> Bucket:
    """Return the bucket that stores the objects of `bucket`, with backend buckets and aliases resolved.

    Raises AISError when the cluster does not answer. A bucket that does not exist resolves to itself.
    """
    for _ in range(_MOST_FRONTS):
        bucket = clusters.canonical(bucket)
        # the objects of a cloud bucket are in the cloud
        backend = _backend(client, bucket) if bucket.scheme == "ais" and clusters.answers(bucket) else None
        if backend is None:
            break
        bucket = backend
    return bucket


def _backend(client: Client, bucket: Bucket) -> Bucket | None:
    """Return the backend bucket of an AIStore bucket; None if it has none or does not exist."""
    from aistore.sdk.const import HEADER_BUCKET_PROPS
    from aistore.sdk.errors import AISError
    from requests import codes

    try:
        found = bucket.handle(client).head()
    except AISError as e:
        if e.status_code != codes.not_found:
            raise
        return None
    backend = json.loads(found.get(HEADER_BUCKET_PROPS) or "{}").get("backend_bck") or {}
    if not backend.get("name"):
        return None
    space = backend.get("namespace") or {}
    cluster = f"@{space['uuid']}" if space.get("uuid") else ""
    namespace = f"{cluster}#{space.get('name', '')}" if cluster or space.get("name") else ""
    return Bucket(_SCHEMES[backend.get("provider") or "ais"], backend["name"], namespace)
