"""Fetches the objects of a remote bucket into an AIStore cluster, and finds objects that are still missing."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from storeside.aistore.buckets import Bucket
from storeside.aistore.entries import Entry, entries
from storeside.aistore.errors import NO_REASON, PASSING, is_refusal, said
from storeside.aistore.existence import require_bucket
from storeside.aistore.names import is_folder_marker, unfit
from storeside.copying.errors import CopyInputError

if TYPE_CHECKING:
    from aistore.sdk import Client

# Maximum number of missing objects that are requested for their reasons.
_EXAMPLES = 20
# Statuses of transient errors: AIStore answers 400 even while a target is down.
_PASSING = PASSING | {400}
# AIStore takes a text with one of these for a template of names, and any other text for a prefix
# (`NewParsedTemplate` in cmn/cos/template.go of AIStore 1.5).
_TEMPLATES = ("{", "@", "%")


@dataclass(frozen=True)
class Missing:
    """Number and bytes of the objects that the cluster lacks, with (object, reason) of the first of them.

    `passing` is the number of examples that may succeed later: they appeared after the job's listing, or their server
    was busy.
    """

    objects: int
    bytes: int
    examples: tuple[tuple[str, str], ...] = ()
    passing: int = 0


class Prefetch:
    """A job in which the cluster fetches the objects of a remote bucket below `prefix`.

    Raises CopyInputError for a bucket that is not remote, and for a prefix that AIStore would take for a template.
    """

    def __init__(self, client: Client, bucket: Bucket, prefix: str = "") -> None:
        if not bucket.is_remote:
            raise CopyInputError(f"prefetch {bucket}: its objects are in the cluster: name a remote bucket")
        if (place := _literal(prefix)) < len(prefix):
            begin = f"a prefix that ends before it, such as {prefix[:place]!r}" if place else "the whole bucket"
            raise CopyInputError(
                f"prefetch {bucket}, prefix {prefix!r}: AIStore would take {prefix[place]!r} for a part of a template"
                f" and fetch objects with other names: fetch {begin}"
            )
        self.client = client
        self.bucket = bucket
        self.prefix = prefix

    def check(self) -> None:
        """Raise AIStoreInputError when the bucket does not exist."""
        require_bucket(self.client, self.bucket)

    def submit(self, *, latest: bool, workers: int, blob_threshold: int) -> str:
        """Submit the job, which fetches missing objects and, with `latest`, changed ones; return its id.

        Objects of `blob_threshold` bytes or more are fetched in parallel chunks; 0 means none.
        """
        # "*" is AIStore's template for all objects; the SDK refuses an empty one
        group = self.bucket.handle(self.client).objects(obj_template=self.prefix or "*")
        return str(
            group.prefetch(
                continue_on_error=True,
                latest=latest,
                num_workers=workers or None,
                blob_threshold=blob_threshold or None,
            )
        )

    def missing(self, *, reasons: bool = False) -> Missing:
        """Count objects that the cluster lacks; with `reasons`, request the first of them for their reasons.

        Raises CopyInputError for a name with ``..``: a job of AIStore 5.0 would write the object into another bucket.
        """
        objects = size = passing = 0
        examples: list[tuple[str, str]] = []
        for entry in self._missing():
            if ".." in entry.name.split("/"):
                raise CopyInputError(
                    f"prefetch {self.bucket}: {entry.name!r}: {unfit(entry.name)}: rename it, fetch a prefix without"
                    " it, or copy the bucket, which leaves it out"
                )
            objects += 1
            size += entry.size
            if reasons and len(examples) < _EXAMPLES:
                reason, passes = self._reason(entry.name)
                examples.append((entry.name, reason))
                passing += passes
        return Missing(objects, size, tuple(examples), passing)

    def is_empty(self) -> bool:
        """Return whether the backend has no object below the prefix."""
        return not any(entries(self.client, self.bucket, self.prefix, "name", page=1))

    def _reason(self, name: str) -> tuple[str, bool]:
        """Return why an object is missing, and whether the reason is transient.

        A forbidden HEAD concerns this object only, because the same credentials have just listed the bucket.
        """
        from aistore.sdk.errors import AISError
        from requests import RequestException

        if reason := unfit(name):
            return reason, False
        try:
            self.bucket.object(self.client, name).head()
        except AISError as e:
            final = is_refusal(e.status_code) and e.status_code not in _PASSING
            return said(e), not final
        except RequestException as e:
            return said(e), True
        return NO_REASON, True

    def _missing(self) -> Iterator[Entry]:
        from aistore.sdk.list_object_flag import ListObjectFlag

        found = entries(self.client, self.bucket, self.prefix, flags=[ListObjectFlag.NOT_CACHED])
        # AIStore's job does not fetch folder markers, but this listing has them.
        return (entry for entry in found if not is_folder_marker(entry.name, entry.size))


def _literal(prefix: str) -> int:
    """Return the number of leading characters of a prefix that AIStore takes literally."""
    places = [prefix.find(text) for text in _TEMPLATES if text in prefix]
    return min(places, default=len(prefix) - prefix.endswith("*"))
