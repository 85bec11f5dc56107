"""The interface of an endpoint for copies through the worker."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Protocol

from storeside.aistore.stored_objects import StoredObject
from storeside.copying.multipart import Limits


@dataclass(frozen=True)
class Head:
    """The current state of an object.

    `size` is in bytes. `version` is the version in listings, or empty if only a listing shows it. The endpoint
    compares `tag` in a conditional read. `md5` is the MD5 of the content in hex, or empty if the endpoint does not
    state it.
    """

    size: int
    version: str
    tag: str
    md5: str = ""
    content_type: str = ""
    metadata: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Upload:
    """A multipart upload that is not completed; `begun` is its start time."""

    id: str
    begun: datetime


class Store(Protocol):
    """One bucket of an endpoint. Threads share it. Every method raises errors of `storeside.copying.errors`.

    Writes are verified: the endpoint's answer about the stored content is compared with the content that was sent.
    """

    @property
    def name(self) -> str:
        """The bucket's name in the ledger, such as ``s3://bucket`` or ``oci://namespace/bucket``."""

    @property
    def endpoint(self) -> str:
        """The API and the server, such as ``s3 https://s3.eu-west-1.amazonaws.com``: the key of tuned settings."""

    @property
    def limits(self) -> Limits:
        """The limits of the endpoint's API."""

    @property
    def bucket(self) -> str:
        """The bucket's name."""

    def fronts(self) -> str:
        """Return the name of the backend bucket whose objects this bucket shows; empty if there is none."""

    def check(self, *, is_source: bool = False) -> None:
        """Raise CopyInputError when the bucket is unreachable with these credentials, region and addressing style.

        An ``ais://`` bucket that does not exist is created, unless the job reads it (`is_source`).
        """

    def list(self, prefix: str = "") -> Iterator[StoredObject]:
        """Stream the bucket's objects."""

    def refused(self, key: str) -> str | None:
        """Return why the endpoint cannot store an object of this name; None when it can."""

    def head(self, key: str) -> Head:
        """Return an object's metadata."""

    def fetch(self, key: str, size: int) -> tuple[Head, bytes]:
        """Read an object of `size` bytes in one piece. Raises ChangedError if it has another size, without a read."""

    def fetch_range(self, key: str, head: Head, start: int, size: int) -> bytes:
        """Read `size` bytes of an object. Raises ChangedError when it has another version than `head`."""

    def put(self, key: str, body: bytes, head: Head) -> str:
        """Write an object in one piece, with content type and metadata of `head`; return its version.

        The version is empty if listings show another one.
        """

    def begin(self, key: str, head: Head) -> str:
        """Begin a multipart upload; return its id."""

    def put_part(self, key: str, upload: str, number: int, body: bytes) -> str:
        """Write a part; return its tag."""

    def complete(self, key: str, upload: str, tags: Sequence[str]) -> str:
        """Create the object from all parts, whose tags are in order; return its version, like `put`."""

    def abort(self, key: str, upload: str) -> None:
        """Delete an upload and its parts; an upload that does not exist is no error."""

    def uploads(self, key: str) -> Iterator[Upload]:
        """Yield the multipart uploads of an object that are not completed."""

    def delete(self, key: str) -> None:
        """Delete an object; an object that does not exist is no error."""
