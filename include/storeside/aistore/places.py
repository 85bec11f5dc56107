"""Resolves bucket URIs, so that two URIs of the same bucket can be recognized.

An AIStore bucket may front another bucket (its property ``backend_bck``), and a cluster may be named by its UUID or
by an alias. So two different URIs may lead to the same objects.
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
# AIStore's deepest chain: a front of another cluster's bucket, which itself fronts a bucket in the cloud.
_MOST_FRONTS = 4


@dataclass(frozen=True)
class Clusters:
    """Cluster UUIDs: `own`, and those of attached clusters by alias and by UUID."""

    own: str
    attached: Mapping[str, str]

    @classmethod
    def of(cls, client: Client) -> Clusters:
        """Ask a cluster for its own UUID and for the clusters attached to it. Raises AISError."""
        request = client.cluster().client.request
        own = request("get", path="cluster", params={"what": "smap"}).json().get("uuid", "")
        found = request("get", path="cluster", params={"what": "remote"}).json().get("a") or ()
        names = {name: entry["uuid"] for entry in found for name in (entry["uuid"], entry.get("alias", "")) if name}
        return cls(own, names)

    def canonical(self, bucket: Bucket) -> Bucket:
        """Return the bucket with its cluster's UUID instead of an alias, and without a UUID for the own cluster."""
        cluster, _, space = bucket.namespace.partition("#")
        name = cluster.removeprefix("@")
        uuid = self.attached.get(name, name)
        cluster = f"@{uuid}" if uuid and uuid != self.own else ""
        return Bucket(bucket.scheme, bucket.name, f"{cluster}#{space}" if cluster or space else "")

    def answers(self, bucket: Bucket) -> bool:
        """Tell whether a bucket's cluster is this one or attached to it."""
        cluster = bucket.namespace.partition("#")[0].removeprefix("@")
        return not cluster or cluster == self.own or cluster in self.attached


def place(client: Client, bucket: Bucket, clusters: Clusters) -> Bucket:
    """Return the bucket that stores the objects of `bucket`, with fronts and aliases resolved.

    Raises AISError when the cluster cannot tell. A bucket that does not exist resolves to itself.
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
    """Return the bucket that an AIStore bucket fronts; None if it fronts none or does not exist."""
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
