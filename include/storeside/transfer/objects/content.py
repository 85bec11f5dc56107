"""Reads objects on the worker by range or as a stream, so no object is held in memory as a whole."""

from __future__ import annotations

import copy
import functools
import io
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, cast

from storeside.copying.errors import passes
from storeside.copying.s3 import head_object
from storeside.transfer.base.damage import broken
from storeside.transfer.base.errors import (
    ARCHIVED,
    DELETED,
    DENIED,
    OVERWRITTEN,
    GoneError,
    LoadObjectError,
    NoAccessError,
    TransferError,
    TransferInputError,
    TransferTransientError,
    about,
)
from storeside.transfer.objects.aistore_objects import open_object
from storeside.transfer.objects.archives import Archive, Members, kind_by_name
from storeside.transfer.objects.streams import CHUNK, Pieces, limited, opened, pieces
from storeside.transfer.objects.strict_json import Values, checked
from storeside.transfer.request.known_formats import typed_format
from storeside.transfer.request.object_format import compression_of, is_hadoop_snappy, skippable
from storeside.transfer.request.source import in_aistore

if TYPE_CHECKING:
    from aistore.sdk import Client
    from types_boto3_s3 import S3Client

    from storeside.transfer.request.request import Request
    from storeside.transfer.state.loads import Planned

# Bytes per read: a sample ends within a compressed stream, and a single read beyond that end would fail.
_SIP = 1 << 6
# First bytes that show whether an object is an archive: a header of tar.
_HEAD = 1 << 9
# A block-compressed stream yields nothing before its first block is complete; lz4 blocks have up to 4 MB.
_LONGEST_BLOCK = 4 * CHUNK + CHUNK
# Skippable frames before the first frame of zstd or lz4: `pzstd` writes one.
_MOST_SKIPPED = 8
_DENIED = ("AccessDenied", "403")
_REASONS: dict[str, tuple[type[LoadObjectError], str]] = {
    **dict.fromkeys(("PreconditionFailed", "412"), (GoneError, OVERWRITTEN)),
    **dict.fromkeys(("NoSuchKey", "404"), (GoneError, DELETED)),
    **dict.fromkeys(_DENIED, (NoAccessError, DENIED)),
    "InvalidObjectState": (NoAccessError, ARCHIVED),
}


def s3_error(error: Any, bucket: str, key: str) -> TransferError:
    """Return our error for botocore's `error` about an object, or about a listing of a prefix `key`."""
    from botocore.exceptions import ClientError

    if not isinstance(error, ClientError):
        return TransferTransientError(f"s3://{bucket}/{key}: {error}")
    code = str(error.response.get("Error", {}).get("Code", ""))
    if passes(error):
        return about(TransferTransientError(f"s3://{bucket}/{key}: {code}"), key)
    if code == "NoSuchBucket":
        return TransferInputError(f"there is no bucket {bucket!r} at this endpoint: create it, or correct its name")
    if error.operation_name == "ListObjectsV2":
        remedy = f": allow s3:ListBucket on s3://{bucket}" if code in _DENIED else ""
        return TransferInputError(f"s3://{bucket} cannot be listed: {error}{remedy}")
    kind, reason = _REASONS.get(code, (LoadObjectError, f"S3 answered {code}: {error}"))
    return kind(reason)


def head_of(client: S3Client, bucket: str, key: str) -> Any:
    """Return S3's answer to a HEAD for an object; None if the object does not exist. Raises TransferError."""
    from botocore.exceptions import BotoCoreError, ClientError

    try:
        return head_object(client, bucket, key)
    except ClientError as e:
        if e.response["ResponseMetadata"]["HTTPStatusCode"] == HTTPStatus.NOT_FOUND:
            return None
        raise s3_error(e, bucket, key) from e
    except BotoCoreError as e:
        raise s3_error(e, bucket, key) from e


def current_version(client: S3Client, bucket: str, key: str) -> str | None:
    """Return the ETag that an object of S3 has now; None if the object does not exist. Raises TransferError."""
    head = head_of(client, bucket, key)
    return None if head is None else str(head["ETag"].strip('"'))


class Content(io.RawIOBase):
    """An object as a seekable file; every read is one request for exactly these bytes.

    `client` is a boto3 client, or a client of AIStore's SDK for a bucket such as ``ais://results``. With `etag`, a
    read raises GoneError if the object has another version. `most` is the maximum size of the decompressed
    content in bytes; 0 means no limit. `members` states what is read of an archive.
    """

    def __init__(
        self, client: S3Client | Client, bucket: str, key: str, size: int, etag: str = "", most: int = 0,
        members: Members | None = None,
    ) -> None:  # fmt: skip
        self.client, self.bucket, self.key, self.size, self.etag = client, bucket, key, size, etag
        self.most, self.members = most, members or Members()
        self._position = 0
        self._held: bytes | None = None

    def readable(self) -> bool:
        """Return True; pyarrow checks this before it reads."""
        return True

    def seekable(self) -> bool:
        """Return True, because a range request can start anywhere."""
        return True

    def close(self) -> None:
        """Do nothing: no connection is open between reads, and pyarrow closes its files when it drops them."""

    def tell(self) -> int:
        """Return the position of the next read, in bytes."""
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Move to a position, absolute or relative to the current position or the end."""
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self.size}[whence]
        self._position = max(0, start + offset)
        return self._position

    def read(self, size: int = -1) -> bytes:
        """Return up to `size` bytes, all that are left if it is negative; a corrupt object may ask for any number."""
        content = self.range(self._position, self.size if size < 0 else size)
        self._position += len(content)
        return content

    def readinto(self, buffer: Any) -> int:
        """Fill a buffer from the current position; return the number of bytes read."""
        content = self.range(self._position, len(buffer))
        buffer[: len(content)] = content
        self._position += len(content)
        return len(content)

    def range(self, start: int, length: int) -> bytes:
        """Return up to `length` bytes from byte `start`. Raises LoadObjectError or TransferTransientError."""
        from botocore.exceptions import BotoCoreError

        length = min(length, self.size - start)
        if length <= 0:  # S3 refuses an empty range
            return b""
        body = self._get((start, start + length - 1))
        try:
            return bytes(body.read())
        except BotoCoreError as e:
            raise s3_error(e, self.bucket, self.key) from e

    def hold(self) -> None:
        """Read the whole content now and keep it in memory, so that no other read is a request; for small objects."""
        self._held = b"".join(self.stream())

    def _get(self, reach: tuple[int, int] | None = None) -> Any:
        """Return the body of a response: the whole object, or the bytes from the first to the last of `reach`.

        Compares the ETag of S3 here, because AIStore's S3 API ignores `IfMatch`.
        """
        from botocore.exceptions import BotoCoreError, ClientError

        if self._held is not None:
            first, last = reach or (0, len(self._held) - 1)
            return _Held(self._held[first : last + 1])
        if in_aistore(self.bucket):
            return open_object(cast("Client", self.client), self.bucket, self.key, self.size, self.etag, reach)
        condition: Any = {"IfMatch": f'"{self.etag}"'} if self.etag else {}
        if reach:
            condition["Range"] = f"bytes={reach[0]}-{reach[1]}"
        try:
            answer = cast("S3Client", self.client).get_object(Bucket=self.bucket, Key=self.key, **condition)
        except (BotoCoreError, ClientError) as e:
            raise s3_error(e, self.bucket, self.key) from e
        if self.etag and answer.get("ETag", "").strip('"') != self.etag:
            answer["Body"].close()
            raise GoneError(OVERWRITTEN)
        return answer["Body"]

    @functools.cached_property
    def compression(self) -> str:
        """The content's compression; empty if it is not compressed, and ``archive`` for an archive."""
        return "archive" if self.archive else self._compression

    @functools.cached_property
    def archive(self) -> Archive | None:
        """The content as an archive, if its name shows one and it does not begin like a text."""
        if not (kind := kind_by_name(self.key)) or not self.size or (kind == "zip" and self._compression):
            return None
        packed = self._compression if kind == "tar" else ""
        head = self._beginning(self.range(0, CHUNK), packed, _HEAD)[0] if packed else self.range(0, _HEAD)
        if typed_format(head) or (head and b"\0" not in head):
            return None
        other = copy.copy(self)  # with a separate position
        other.seek(0)
        stream = (lambda: opened(self._stream(), packed)) if packed else None
        return Archive(kind, other, self.size, self.members, self.most, stream)

    @property
    def title(self) -> str:
        """The name that shows the format: of an archive's first member that was read, otherwise of the object."""
        return (self.archive.first if self.archive else "") or self.key

    @functools.cached_property
    def _compression(self) -> str:
        head = self.range(0, 10)
        at = 0
        for _ in range(_MOST_SKIPPED):
            if not (skipped := skippable(head)):
                break
            at += skipped
            head = self.range(at, 10)
        return compression_of(head) or ("hadoop-snappy" if is_hadoop_snappy(self.key, head) else "")

    def stream(self) -> Iterator[bytes]:
        """Yield the whole content in pieces of a megabyte."""
        from botocore.exceptions import BotoCoreError

        body = self._get()
        self._streams.add(body)
        try:
            yield from body.iter_chunks(CHUNK)
        except BotoCoreError as e:
            raise s3_error(e, self.bucket, self.key) from e
        finally:
            body.close()

    @functools.cached_property
    def _streams(self) -> weakref.WeakSet[Any]:
        return weakref.WeakSet()  # a reader that stops early, without an error, closes its connection at once

    def _stream(self) -> _Body:
        body = _Body(self._get(), self)
        self._streams.add(body)
        return body

    @contextmanager
    def released(self) -> Iterator[None]:
        """Close the connections of streams at the end: those of a reader that an error keeps alive, too."""
        try:
            yield
        finally:
            while self._streams:
                self._streams.pop().close()

    def plain(self) -> Any:
        """Return the decompressed content as a file that can be read once.

        A read raises LimitError when compressed content decompresses to more than `most` bytes.
        """
        if self.archive:
            return limited(Pieces(self.archive.pieces()), self.most)
        kind = self.compression
        file = opened(self._stream(), kind)
        return limited(file, self.most) if kind else file

    def json_lines(self, values: Values | None = None) -> Iterator[bytes]:
        """Yield the decompressed content after the checks of `strict_json`, those of an archive by member."""
        if not self.archive:
            return checked(pieces(self.plain()), values)
        check = functools.partial(checked, values=values)
        return pieces(limited(Pieces(self.archive.pieces(check=check)), self.most))

    def sample(self, most: int) -> bytes:
        """Return about the first `most` bytes, decompressed; a truncated text ends with its last whole line.

        Raises LimitError if compressed content decompresses to more bytes than the object may have.
        """
        if self.archive:
            return self._sample_of_members(most)
        kind = self.compression
        for reach in (most, CHUNK, _LONGEST_BLOCK):
            raw = self.range(0, max(reach, most))
            content, error = self._beginning(raw, kind, most)
            if content or len(raw) == self.size:
                break
        if error and not content:
            raise LoadObjectError(broken(f"its {kind} content", error))
        if len(raw) == self.size and len(content) < most and not error:
            return content
        return content[: content.rfind(b"\n") + 1] or content

    def _beginning(self, raw: bytes, kind: str, most: int) -> tuple[bytes, OSError | None]:
        """Return the decompressed first bytes of an object, and the error if they end early."""
        file = limited(opened(io.BytesIO(raw), kind), self.most if kind else 0)
        content = bytearray()
        try:
            while len(content) < most and (piece := file.read(_SIP if kind else CHUNK)):
                content += piece
        except OSError as e:
            return bytes(content), e
        return bytes(content), None

    def _sample_of_members(self, most: int) -> bytes:
        archive = cast("Archive", self.archive)
        file, content = limited(Pieces(archive.pieces(sampled=True)), self.most), bytearray()
        try:
            while len(content) < most and (piece := file.read(most - len(content))):
                content += piece
        except LoadObjectError:
            if not content:
                raise
        return bytes(content[: content.rfind(b"\n") + 1] or content)


def content_of(client: S3Client | Client, request: Request, o: Planned, etag: str = "") -> Content:
    """Return the content of an object as a load reads it; for `etag` see `Content`."""
    members = Members(request.format, request.read.csv)
    return Content(client, request.source.bucket, o.key, o.size, etag, request.limits.bytes_of(o.size), members)


class _Held(io.BytesIO):
    """Bytes in the place of a response."""

    def iter_chunks(self, size: int) -> Iterator[bytes]:
        """Yield the bytes in pieces of `size`."""
        return iter(lambda: self.read(size), b"")


class _Body:
    """The body of a response, whose reads raise this package's errors."""

    closed = False  # pyarrow reads this attribute

    def __init__(self, body: Any, content: Content) -> None:
        self._body, self._content = body, content

    def read(self, size: int) -> bytes:
        """Return up to `size` bytes; none at the end."""
        from botocore.exceptions import BotoCoreError

        try:
            return bytes(self._body.read(size))
        except BotoCoreError as e:
            raise s3_error(e, self._content.bucket, self._content.key) from e

    def readable(self) -> bool:
        """Return True; pyarrow checks this before it reads."""
        return True

    def close(self) -> None:
        """Release the connection."""
        self._body.close()

    def __del__(self) -> None:
        self._body.close()  # a reader that stops at a wrong row does not close it
