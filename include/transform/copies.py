"""Copies and results that a job has left at the destination as they were before it.

AIStore writes what is there with the same checksum not at all, and the same content without a new version. So such a
copy may well be of the source as it is now: made by a run that died, or by somebody else.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

from include.storage.buckets import Bucket, delete_objects

from .ledger import Ledger, Pending, Scope

_WINDOW = 10_000
# HEAD requests at once; the SDK keeps ten connections.
_THREADS = 8


def accept(client: Any, ledger: Ledger, scope: Scope, source: Bucket, destination: Bucket) -> bool:
    """Accept copies of the source as it is now, and make way for others; returns whether any were deleted.

    With what it copies from a remote bucket AIStore keeps the ETag and the version there. Of what it copies within
    the cluster the ledger has compared the checksums: a copy without the source's is old, or of buckets that have
    none. Nothing is deleted where that would depend on another storage to make it again, or be felt there.
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


def make_way(client: Any, ledger: Ledger, scope: Scope, destination: Bucket) -> bool:
    """Delete what is as it was before, and accept whatever is there later; returns whether there was any.

    What is made again as it was cannot be told from what was not made; what is there then was made by the next try.
    """
    after = ""
    while window := ledger.unchanged(scope, after, _WINDOW):
        after = window[-1].object
        delete_objects(client, destination, [p.destination_object for p in window])
        ledger.accept(scope, window)
    return bool(after)


def _is_copy(client: Any, p: Pending, source: Bucket, destination: Bucket) -> bool:
    """Tell whether AIStore has noted with the copy the version that the source was listed with, or else has now."""
    kept = _custom(client, destination, p.destination_object)
    if p.version:
        return p.version in (kept.get("ETag"), kept.get("version"))
    return "ETag" in kept and kept["ETag"] == _custom(client, source, p.object).get("ETag")


def _custom(client: Any, bucket: Bucket, name: str) -> dict[str, str]:
    """Return what AIStore has noted of an object, or nothing where it does not answer."""
    from aistore.sdk.errors import AISError

    try:
        found: dict[str, str] = bucket.handle(client).object(name).head("custom").custom_metadata
    except AISError:
        return {}
    return found
