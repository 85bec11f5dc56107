"""What an endpoint has to do for its objects to be moved."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Protocol

from include.storage.buckets import StoredObject
from include.storage.multipart import Limits


@dataclass(frozen=True)
class Head:
    """An object as it is now.

    `version` is that of a listing, or empty where only listings have it, `tag` what the endpoint compares in a
    conditional read, `md5` the MD5 of the content in hex where the endpoint knows it.
    """

    size: int
    version: str
    tag: str
    md5: str = ""
    content_type: str = ""
    metadata: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Upload:
    """A multipart upload that was begun and not completed."""

    key: str
    id: str
    begun: datetime


class Store(Protocol):
    """One bucket of an endpoint. Threads share it. Every method raises errors of `include.storage.errors`.

    Writes are checked: what the endpoint says that it stored is compared with what was sent.
    """

    @property
    def name(self) -> str:
        """The bucket as the ledger names it, such as ``s3://bucket`` or ``oci://namespace/bucket``."""

    @property
    def endpoint(self) -> str:
        """The API and the server, such as ``s3 https://s3.eu-west-1.amazonaws.com``: what settings are tuned for."""

    @property
    def limits(self) -> Limits:
        """What the endpoint takes."""

    @property
    def bucket(self) -> str:
        """The bucket's name."""

    def fronts(self) -> str:
        """Return the name of the bucket that this one is a front of, and whose objects it has; empty for none."""

    def check(self) -> None:
        """Raise UsageError when the bucket cannot be reached with these credentials, region and style."""

    def list(self, prefix: str = "") -> Iterator[StoredObject]:
        """Stream the bucket's objects."""

    def refused(self, key: str) -> str | None:
        """Return why the endpoint cannot hold an object of this name; None when it can."""

    def head(self, key: str) -> Head:
        """Return what is known of an object."""

    def fetch(self, key: str) -> tuple[Head, bytes]:
        """Read an object in one piece."""

    def fetch_range(self, key: str, head: Head, start: int, size: int) -> bytes:
        """Read a range of an object. Raises ChangedError when it is not any more the one of `head`."""

    def put(self, key: str, body: bytes, head: Head) -> str:
        """Write an object in one piece, with content type and metadata of `head`; returns its version.

        The version is empty where a listing would show another.
        """

    def begin(self, key: str, head: Head) -> str:
        """Begin a multipart upload; returns its id."""

    def put_part(self, key: str, upload: str, number: int, body: bytes) -> str:
        """Write a part; returns its tag."""

    def complete(self, key: str, upload: str, tags: Sequence[str]) -> str:
        """Make an object of all parts, whose tags are in order; returns its version, like `put`."""

    def abort(self, key: str, upload: str) -> None:
        """Drop an upload and its parts; one that is gone is no error."""

    def uploads(self, key: str) -> Iterator[Upload]:
        """Yield the uploads of an object that were begun and not completed."""

    def delete(self, key: str) -> None:
        """Delete an object; one that is gone is no error."""
