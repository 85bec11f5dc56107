"""A lock that tasks share through an AIStore cluster, because AIStore offers its users no locks.

Each contender creates its own bucket and then lists the buckets of the same lock. It holds the lock when the list has
no other bucket. One node, the primary proxy, creates and lists buckets, so at least one of two contenders sees the
other. If both do, both delete their buckets and try again after a random pause. Each bucket name belongs to one
contender, so a task that breaks an old lock cannot delete a third task's lock.
"""

from __future__ import annotations

import hashlib
import json
import logging
import random
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any

from storeside.aistore.errors import AIStoreTransientError
from storeside.errors import Transient

if TYPE_CHECKING:
    from aistore.sdk import Client

log = logging.getLogger(__name__)

PREFIX = "storeside-lock-"
# Seconds between two attempts; a random factor keeps contenders from colliding again.
_PAUSE = 0.2


@contextmanager
def locked(client: Client, what: str, *, stale_seconds: float, patience_seconds: float) -> Iterator[None]:
    """Hold the cluster-wide lock named `what`; other tasks wait for it.

    `stale_seconds` is longer than any task needs the lock. A task deletes an older lock, because its holder is dead.
    Raises AIStoreTransientError when another task still holds the lock after `patience_seconds`.
    """
    prefix = _prefix(what)
    deadline = time.monotonic() + patience_seconds
    while (bucket := _taken(client, prefix, stale_seconds)) is None:
        if time.monotonic() > deadline:
            raise AIStoreTransientError(f"{what}: locked by another task for more than {patience_seconds:g} s")
        time.sleep(_PAUSE * random.uniform(0.5, 1.5))  # noqa: S311 - not a secret
    try:
        yield
    finally:
        _remove(bucket)


def break_lock(client: Client, what: str) -> None:
    """Delete the lock named `what`, whose holder is known to be dead."""
    for bucket in client.cluster().list_buckets():
        if bucket.name.startswith(_prefix(what)):
            client.bucket(bucket.name).delete(missing_ok=True)


def _prefix(what: str) -> str:
    return f"{PREFIX}{hashlib.sha256(what.encode()).hexdigest()[:24]}-"


def _taken(client: Client, prefix: str, stale_seconds: float) -> Any | None:
    """Try once to get the lock. Return its bucket, or None while another task has a bucket."""
    if _others(client, prefix, "", stale_seconds):
        return None
    bucket = client.bucket(prefix + uuid.uuid4().hex[:16])
    bucket.create()
    try:
        others = _others(client, prefix, bucket.name, stale_seconds)
    except BaseException:
        _remove(bucket)
        raise
    if others:
        _remove(bucket)
        return None
    return bucket


def _others(client: Client, prefix: str, own: str, stale_seconds: float) -> bool:
    """Return whether other tasks contend for the lock or hold it; delete stale locks."""
    names = [b.name for b in client.cluster().list_buckets() if b.name.startswith(prefix) and b.name != own]
    found = False
    for name in names:
        age = age_of(client, name)
        if age is not None and age > stale_seconds:
            log.info("lock %s is %.0f s old, so its task is dead: deleting it", name, age)
            client.bucket(name).delete(missing_ok=True)
        elif age is not None:
            found = True
    return found


def _remove(bucket: Any) -> None:
    from aistore.sdk.errors import AISError
    from requests import RequestException

    try:
        bucket.delete(missing_ok=True)
    except (AISError, RequestException, Transient) as e:  # the next contender deletes it when it is stale
        log.info("lock %s cannot be deleted for now: %s", bucket.name, e)


def age_of(client: Client, name: str) -> float | None:
    """Return the age of a bucket in seconds by the cluster's clock; None if it does not exist."""
    from aistore.sdk.const import HEADER_BUCKET_PROPS
    from aistore.sdk.errors import AISError
    from requests import codes

    try:
        head = client.bucket(name).head()
    except AISError as e:  # only the status, because the answer to a HEAD request has no body
        if e.status_code != codes.not_found:
            raise
        return None
    created = int(json.loads(head[HEADER_BUCKET_PROPS])["created"]) / 1e9
    return parsedate_to_datetime(head["Date"]).timestamp() - created
