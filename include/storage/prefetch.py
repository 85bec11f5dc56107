"""Remote objects brought into the cluster that fronts their bucket, and what is still missing afterwards."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from include.storage.buckets import PAGE, Bucket
from include.storage.names import unfit
from include.transform.errors import said

# Missing objects whose reasons are asked for, one by one.
_EXAMPLES = 20
NO_REASON = "AIStore ended the job without this object and gave no reason"
# Answers to a HEAD that may be others soon: 400 is also what AIStore says while a target is down.
_PASSING = frozenset({400, 408, 429})
_BAD_REQUEST, _SERVER_ERROR = 400, 500


@dataclass(frozen=True)
class Missing:
    """Objects and bytes that are not in the cluster, and why, for the first of them.

    Of these `passing` have no reason of their own: they came after the job's listing, or their server was busy.
    """

    objects: int
    bytes: int
    examples: tuple[tuple[str, str], ...] = ()
    passing: int = 0


class Prefetch:
    """Has a cluster fetch the objects of a remote bucket, those below `prefix`.

    Raises ValueError for a bucket of the cluster's own.
    """

    def __init__(self, client: Any, bucket: Bucket, prefix: str = "") -> None:
        if not bucket.is_remote:
            raise ValueError(f"prefetch {bucket}: its objects are in the cluster; name a remote bucket")
        self.client = client
        self.bucket = bucket
        self.prefix = prefix

    def submit(self, *, latest: bool, workers: int, blob_threshold: int) -> str:
        """Start the job that fetches what is missing, and with `latest` what has changed; returns its id."""
        group = self.bucket.handle(self.client).objects(obj_template=self.prefix)
        return str(
            group.prefetch(
                continue_on_error=True,
                latest=latest,
                num_workers=workers or None,
                blob_threshold=blob_threshold or None,
            )
        )

    def missing(self, *, reasons: bool = False) -> Missing:
        """Count what the backend has and the cluster does not; with `reasons`, ask AIStore why for the first."""
        objects = size = passing = 0
        examples: list[tuple[str, str]] = []
        for entry in self._missing():
            objects += 1
            size += int(entry.size)
            if reasons and len(examples) < _EXAMPLES:
                reason, passes = self._reason(entry.name)
                examples.append((entry.name, reason))
                passing += passes
        return Missing(objects, size, tuple(examples), passing)

    def _reason(self, name: str) -> tuple[str, bool]:
        """Return why an object is missing, and whether that may pass.

        A HEAD that is forbidden is the object's own affair: the same credentials have just listed the bucket.
        """
        from aistore.sdk.errors import AISError
        from requests import RequestException

        if reason := unfit(name):
            return reason, False
        try:
            self.bucket.handle(self.client).object(name).head()
        except AISError as e:
            final = _BAD_REQUEST <= e.status_code < _SERVER_ERROR and e.status_code not in _PASSING
            return said(e), not final
        except RequestException as e:
            return said(e), True
        return NO_REASON, True

    def _missing(self) -> Iterator[Any]:
        from aistore.sdk.list_object_flag import ListObjectFlag

        return iter(
            self.bucket.handle(self.client).list_objects_iter(
                prefix=self.prefix, props="name,size", page_size=PAGE, flags=[ListObjectFlag.NOT_CACHED]
            )
        )
