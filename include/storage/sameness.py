"""Whether two stores are one bucket, which no copy may read and write at once.

Endpoints have several addresses, and OCI and AIStore offer a bucket under several APIs. What tells is a multipart
upload that is begun in one store: no object comes of it, and the other store lists it when both are one bucket.
"""

from __future__ import annotations

import uuid

from include.storage.claims import Claims
from include.storage.errors import DeniedError, UsageError
from include.storage.store import Head, Store

_KEY = "storeside-same-bucket-"


def require_other_bucket(source: Store, destination: Store, claims: Claims) -> None:
    """Raise UsageError when `destination` is the bucket of `source`, or could be and this cannot be found out.

    Buckets of different names are different: APIs of one bucket have the same name for it. A front of a bucket counts
    as every bucket of that name: which server is behind AIStore cannot be asked. `claims` has the upload aborted by a
    later run if this one is killed meanwhile.
    """
    fronted, also = source.fronts(), destination.fronts()
    if source.bucket == destination.bucket:
        same = (source.endpoint, source.name) == (destination.endpoint, destination.name)
        same = same or _shares_uploads(source, destination, claims)
    else:
        same = bool(fronted or also) and (fronted or source.bucket) == (also or destination.bucket)
    if same:
        raise UsageError(
            f"{destination.name} ({destination.endpoint}) is the bucket that is copied, {source.name}"
            f" ({source.endpoint}): a copy could overwrite objects of the source. Name another bucket"
        )


def _shares_uploads(source: Store, destination: Store, claims: Claims) -> bool:
    key = _KEY + uuid.uuid4().hex
    claims.open([key])
    begun = destination.begin(key, Head(0, "", ""))
    try:
        return any(True for _ in source.uploads(key))
    except DeniedError as e:
        raise UsageError(
            f"{source.name} ({source.endpoint}) and {destination.name} ({destination.endpoint}) may be one bucket"
            f" under two addresses, and the request that tells is denied: {e}; or copy into a bucket of another name"
        ) from e
    finally:
        destination.abort(key, begun)
        claims.close()
