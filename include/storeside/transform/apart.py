"""Makes sure that the buckets of a job exist, and that no job writes into the bucket that it reads.

In the same bucket, a result could overwrite a source object, even one that the job refuses or has not processed yet.
Buckets are compared by where their objects are stored; see `storeside.aistore.places`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from storeside.aistore.buckets import Bucket
from storeside.aistore.errors import AIStoreInputError
from storeside.aistore.existence import require_bucket
from storeside.aistore.places import Clusters, place
from storeside.transform.state import Options

if TYPE_CHECKING:
    from aistore.sdk import Client


def require_readable(client: Client, source: Bucket, destination: Bucket, options: Options) -> None:
    """Raise AIStoreInputError unless the source of a job exists, and no other bucket of the job is the same one."""
    require_apart(
        client,
        {
            "source": source,
            "destination": destination,
            "quarantine": options.quarantine,
            "bucket of facts": options.sidecars,
        },
    )
    require_bucket(client, source)


def require_writable(client: Client, destination: Bucket, options: Options) -> None:
    """Create the buckets that a job writes to; remote ones must exist. Raises AIStoreInputError."""
    for bucket in (destination, options.sidecars):
        if bucket and bucket.is_remote:
            require_bucket(client, bucket)
        elif bucket:
            bucket.handle(client).create(exist_ok=True)


def require_apart(client: Client, buckets: Mapping[str, Bucket | None]) -> None:
    """Compare the buckets of a job. Each key is the use of its bucket, such as ``source`` or ``quarantine``.

    Raises AIStoreInputError, with both uses and the remedy, when two of them are the same bucket.
    """
    clusters = Clusters.of(client)
    seen: dict[Bucket, tuple[str, Bucket]] = {}
    for use, bucket in buckets.items():
        if bucket is None:
            continue
        where = place(client, bucket, clusters)
        if where in seen:
            raise AIStoreInputError(_refusal(use, bucket, *seen[where], where))
        seen[where] = use, bucket


def _refusal(use: str, bucket: Bucket, other_use: str, other: Bucket, where: Bucket) -> str:
    if bucket == other == where:
        named = f"{bucket} is both the {other_use} and the {use}"
    else:
        named = f"{other}, the {other_use}, and {bucket}, the {use}, are one bucket"
        named += f", {where}" if where not in (bucket, other) else ""
    in_place = ", or replace its objects with in_place=True" if use == "destination" else ""
    return (
        f"{named}: a write could replace objects that the job reads, or results. Name another bucket for the"
        f" {use}{in_place}"
    )
