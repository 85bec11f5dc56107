"""Detects whether two stores are the same bucket, which a copy must not read and write at the same time.

Endpoints have several addresses, and OCI and AIStore offer a bucket under several APIs. So the test begins a
multipart upload in one store, which creates no object. The other store lists the upload if both are the same bucket.
"""

from __future__ import annotations

import uuid

from storeside.copying.claims import Claims
from storeside.copying.errors import CopyInputError, DeniedError
from storeside.copying.store import Head, Store

_KEY = "storeside-same-bucket-"


def require_other_bucket(source: Store, destination: Store, claims: Claims) -> None:
    """Raise CopyInputError when `destination` is the bucket of `source`, or may be and the test is impossible.

    Buckets with different names are different, because all APIs of one bucket use the same name. A bucket with a
    backend bucket counts as every bucket of the backend's name, because AIStore does not report the backend's server.
    `claims` lets a later run abort the upload if this run is killed.
    """
    fronted, also = source.fronts(), destination.fronts()
    if source.bucket == destination.bucket:
        same = (source.endpoint, source.name) == (destination.endpoint, destination.name)
        same = same or _shares_uploads(source, destination, claims)
    else:
        same = bool(fronted or also) and (fronted or source.bucket) == (also or destination.bucket)
    if same:
        raise CopyInputError(
            f"{destination.name} ({destination.endpoint}) is the same bucket as the source {source.name}"
            f" ({source.endpoint}): a copy could overwrite objects of the source: name another bucket"
        )


def _shares_uploads(source: Store, destination: Store, claims: Claims) -> bool:
    key = _KEY + uuid.uuid4().hex
    claims.open([key])
    begun = destination.begin(key, Head(0, "", ""))
    try:
        return any(True for _ in source.uploads(key))
    except DeniedError as e:
        raise CopyInputError(
            f"{source.name} ({source.endpoint}) and {destination.name} ({destination.endpoint}) may be one bucket"
            f" under two addresses, and the test is denied: {e}; or copy into a bucket of another name"
        ) from e
    finally:
        destination.abort(key, begun)
        claims.close()
