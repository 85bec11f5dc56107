"""Decides about copies and results at the destination that a job left unchanged.

AIStore does not write an object again when the checksum is the same, and the same content gets no new version. So an
unchanged copy may be a copy of the current source, by a dead run or another user.
"""

from __future__ import annotations

import logging
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from storeside.aistore.buckets import Bucket, delete_objects
from storeside.aistore.errors import AIStoreError, AIStoreInputError, AIStoreTransientError, said
from storeside.ledger.objects import Ledger
from storeside.ledger.scope import Pending, Scope

if TYPE_CHECKING:
    from aistore.sdk import Client

log = logging.getLogger(__name__)

_WINDOW = 10_000
# Concurrent HEAD requests; the SDK keeps ten connections.
_THREADS = 8


def accept(client: Client, ledger: Ledger, scope: Scope, source: Bucket, destination: Bucket) -> bool:
    """Accept copies of the current source and delete other unchanged copies; return whether any were deleted.

    For a copy from a remote bucket, AIStore keeps that bucket's ETag and version. For copies within the cluster, the
    ledger has compared the checksums: an unchanged copy with another checksum is old, or its buckets have no
    checksums. Copies from or to a remote bucket are never deleted, because another storage system would have to
    restore them or would see the deletion.
    """
    if not (source.is_remote or destination.is_remote):
        return make_way(client, ledger, scope, destination)
    after = ""
    with ThreadPoolExecutor(_THREADS, thread_name_prefix="head") as pool:
        while window := ledger.unchanged(scope, after, _WINDOW):
            after = window[-1].object
            same = pool.map(lambda p: _is_copy(client, p, source, destination), window)
            ledger.accept(scope, [p for p, is_same in zip(window, same, strict=True) if is_same])
    return False


def make_way(client: Client, ledger: Ledger, scope: Scope, destination: Bucket) -> bool:
    """Delete unchanged objects, and accept any later object of their names; return whether there were any.

    A new result with the same content looks like an old one. After the deletion, any object of that name is a result
    of the next try.
    """
    after = ""
    while window := ledger.unchanged(scope, after, _WINDOW):
        after = window[-1].object
        delete_objects(client, destination, [p.destination_object for p in window])
        ledger.accept(scope, window)
    return bool(after)


def not_copied(count: str, example: str, source: Bucket, destination: Bucket) -> AIStoreError:
    """Return the error for objects that a job did not copy, although the objects are not at fault.

    AIStore 5.0 copies an object of an ``ais://`` bucket within its target if this target stores the copy, too. Then
    it does not write the copy to the destination's backend, and no retry does.
    """
    what = f"{count} objects of {source} were not copied to {destination}, such as {example!r}"
    if destination.is_remote and not source.is_remote:
        return AIStoreInputError(
            f"{what}: AIStore 5.0 does not write all copies of an ais:// bucket to {destination.own_uri}, only to its"
            " own disks: copy with StorageCopyBucketOperator (s3://, oci://), or write there with a transform, whose"
            " results AIStore does write"
        )
    return AIStoreTransientError(f"{what}: the source did not answer AIStore, a retry copies them")


def _is_copy(client: Client, p: Pending, source: Bucket, destination: Bucket) -> bool:
    """Return whether the copy's metadata has the listed version of the source, or the current one if none is."""
    kept = _custom(client, destination, p.destination_object)
    if p.version and p.version in kept.values():
        return True
    # OCI's listings have an MD5, which AIStore does not keep for objects that were uploaded in parts.
    # The version of an object that was uploaded to S3 in parts may be a time.
    is_unknown = not p.version or p.version.endswith("Z") or source.scheme == "oci"
    return is_unknown and "ETag" in kept and kept["ETag"] == _custom(client, source, p.object).get("ETag")


def _custom(client: Client, bucket: Bucket, name: str) -> dict[str, str]:
    """Return AIStore's custom metadata of an object; empty when AIStore does not answer."""
    from aistore.sdk.errors import AISError

    try:
        found: dict[str, str] = bucket.object(client, name).head("custom").custom_metadata
    except AISError:
        return {}
    return found


def remove_left_out(client: Client, ledger: Ledger, scope: Scope, destination: Bucket) -> None:
    """Delete the earlier results of objects that the job left out, as a new result would have replaced them.

    Raises AISError.
    """
    after = ""
    while window := ledger.results_of_left_out(scope, after, _WINDOW):
        after = window[-1]
        delete_objects(client, destination, window)
        log.info("%s: deleted %d earlier results of objects that are left out", destination, len(window))


def remove_empty(client: Client, ledger: Ledger, scope: Scope, destination: Bucket) -> None:
    """Delete the empty objects that failed WebSocket transforms leave at the destination."""
    from aistore.sdk.errors import AISError

    after = ""
    while window := ledger.empty_results(scope, after, _WINDOW):
        after = window[-1]
        try:
            delete_objects(client, destination, window)
        except AISError as e:
            log.warning("%s: cannot delete all empty results: %s", destination, said(e))
