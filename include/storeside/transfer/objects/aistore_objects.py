"""Lists and reads the objects of an ``ais://`` bucket through AIStore's own API, and compares their versions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from http import HTTPStatus
from itertools import islice
from typing import TYPE_CHECKING, Any

from storeside.aistore.buckets import Bucket
from storeside.aistore.entries import PAGE
from storeside.aistore.errors import said
from storeside.aistore.names import is_folder_marker
from storeside.aistore.stored_objects import list_aistore
from storeside.transfer.base.errors import (
    DELETED,
    OVERWRITTEN,
    GoneError,
    LoadObjectError,
    NoAccessError,
    TransferError,
    TransferInputError,
    TransferTransientError,
)
from storeside.transfer.request.source import Listed

if TYPE_CHECKING:
    from aistore.sdk import Client
    from aistore.sdk.obj.object_attributes import ObjectAttributes

# Objects that are requested one by one, threads that do so, and how many times as many objects a listing may have.
_FEW, _THREADS, _LISTED = 20, 8, 16
_REFUSALS = (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN)


def list_bucket(client: Client, uri: str, prefix: str) -> Iterator[list[Listed]]:
    """Yield a bucket's objects page by page; folder markers are left out.

    The version of an object is AIStore's counter with the checksum, or with the size if there is no checksum. It is
    empty if the object has neither counter nor checksum. AIStore lists no time of the last change.
    """
    from aistore.sdk.errors import AISError
    from requests import RequestException

    try:
        listing = list_aistore(client, Bucket.parse(uri), prefix)
        while page := list(islice(listing, PAGE)):
            yield [
                Listed(o.name, "" if o.version == f"/{o.size}" else o.version, o.size, "")
                for o in page
                if not is_folder_marker(o.name, o.size)
            ]
    except (AISError, RequestException) as e:
        raise _listing_error(e, uri) from e


def open_object(
    client: Client, uri: str, key: str, size: int, version: str, reach: tuple[int, int] | None = None
) -> Body:
    """Request an object of `size` bytes, or the bytes from the first to the last of `reach`; a target sends them.

    Raises LoadObjectError if AIStore answers with another version than `version`, unless `version` is empty.
    """
    from aistore.sdk.errors import AISError
    from requests import RequestException

    found = Bucket.parse(uri).object(client, key)
    part = f"bytes={reach[0]}-{reach[1]}" if reach else None
    try:
        reader = found.get_reader(byte_range=part)
        body = Body(reader.raw(), uri, key)
        there = _version(reader.attributes, size if reach else reader.attributes.size)
        if reach and version not in ("", there):  # with `enable_read_range`, the checksum is that of the part
            there = _version(now := found.head("size,version,checksum"), now.size)
    except (AISError, RequestException) as e:
        raise _object_error(e, uri, key) from e
    if version not in ("", there):
        body.close()
        raise GoneError(OVERWRITTEN)
    return body


def changed(
    client: Client, uri: str, expected: Mapping[str, str], prefix: str, listed: int
) -> LoadObjectError | None:
    """Return the error of the first object that no longer has the expected version; None if all have theirs.

    `expected` has the versions by key. Below `prefix`, which all keys have, the bucket had `listed` objects; 0 if
    unknown. One listing replaces many requests if most of its objects are expected.
    """
    from aistore.sdk.errors import AISError
    from requests import RequestException

    bucket = Bucket.parse(uri)
    found: dict[str, str] = {}
    try:
        if len(expected) > _FEW and listed <= _LISTED * len(expected):
            found = {o.name: o.version for o in list_aistore(client, bucket, prefix) if o.name in expected}
        else:
            with ThreadPoolExecutor(min(_THREADS, len(expected))) as pool:
                versions = pool.map(lambda key: _current(client, bucket, uri, key), expected)
                found = dict(zip(expected, versions, strict=True))
    except (AISError, RequestException) as e:
        raise _listing_error(e, uri) from e
    for key, version in expected.items():
        if found.get(key, "") != version:
            error = GoneError(OVERWRITTEN if found.get(key) else DELETED)
            error.key = key
            return error
    return None


def _current(client: Client, bucket: Bucket, uri: str, key: str) -> str:
    """Return the version of an object; empty if it does not exist."""
    from aistore.sdk.errors import AISError
    from requests import RequestException

    try:
        now = bucket.object(client, key).head("size,version,checksum")
    except (AISError, RequestException) as e:
        if getattr(e, "status_code", 0) == HTTPStatus.NOT_FOUND:
            return ""
        raise _object_error(e, uri, key) from e
    return _version(now, now.size)


def _version(attributes: ObjectAttributes, size: int) -> str:
    """Return the version in the notation of `list_aistore`."""
    return f"{attributes.obj_version}/{attributes.checksum_value or size}"


class Body:
    """The body of a response, whose reads raise this package's errors."""

    def __init__(self, raw: Any, uri: str, key: str) -> None:
        self._raw, self._uri, self._key = raw, uri, key

    def read(self, size: int | None = None) -> bytes:
        """Return up to `size` bytes, or the rest; none at the end. A response that ends early is an error."""
        from requests import RequestException
        from urllib3.exceptions import HTTPError

        try:
            return bytes(self._raw.read(size))
        except (HTTPError, RequestException, OSError) as e:
            raise _object_error(e, self._uri, self._key) from e

    def iter_chunks(self, size: int) -> Iterator[bytes]:
        """Yield the rest in pieces of `size` bytes."""
        while piece := self.read(size):
            yield piece

    def close(self) -> None:
        """Release the connection."""
        self._raw.close()


def _object_error(error: Any, uri: str, key: str) -> TransferError:
    """Return our error for an error of AIStore's SDK, or of the connection, about an object."""
    status = getattr(error, "status_code", 0)
    if status in _REFUSALS:
        return NoAccessError(f"AIStore denies access to it ({status}): allow the connection's user to read {uri}")
    if status == HTTPStatus.NOT_FOUND:
        return GoneError(DELETED)
    if status == HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
        return GoneError(OVERWRITTEN)
    return TransferTransientError(f"{uri}/{key}: {said(error)}")


def _listing_error(error: Any, uri: str) -> TransferError:
    from aistore.sdk.errors import ErrBckNotFound, ErrRemoteBckNotFound

    status = getattr(error, "status_code", 0)
    if isinstance(error, ErrBckNotFound | ErrRemoteBckNotFound) or status == HTTPStatus.NOT_FOUND:
        return TransferInputError(f"there is no bucket {uri} in this cluster: create it, or correct its name")
    if status in _REFUSALS:
        return TransferInputError(
            f"{uri} cannot be listed: {said(error)}: give the AIStore connection a user, or a token, that may list"
            " and read the bucket"
        )
    return TransferTransientError(f"{uri} cannot be listed: {said(error)}")
