"""Objects read by a worker, by ranges and as streams: never whole."""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from include.transfer.errors import ObjectError, TransferError, TransientError, UsageError
from include.transfer.formats import compression_of

if TYPE_CHECKING:
    from types_boto3_s3 import S3Client

CHUNK = 1 << 20
_BUSY = frozenset({"SlowDown", "503", "500", "InternalError", "RequestTimeout", "Throttling", "ServiceUnavailable"})

_REASONS = {
    **dict.fromkeys(("PreconditionFailed", "412"), "it was overwritten after it was listed; the next run loads that"),
    **dict.fromkeys(("NoSuchKey", "404"), "it was deleted after it was listed"),
    **dict.fromkeys(("AccessDenied", "403"), "S3 denies the access to it (403): allow s3:GetObject on it"),
}


def s3_error(error: Any, bucket: str, key: str) -> TransferError:
    """Return the error of ours for one of botocore's about an object."""
    from botocore.exceptions import ClientError

    if not isinstance(error, ClientError):
        return TransientError(f"s3://{bucket}/{key}: {error}")
    code = str(error.response.get("Error", {}).get("Code", ""))
    if code in _BUSY:
        return TransientError(f"s3://{bucket}/{key}: {code}")
    if code == "NoSuchBucket":
        return UsageError(f"there is no bucket {bucket!r} at this endpoint")
    return ObjectError(_REASONS.get(code, f"S3 says {code}: {error}"))


class Content(io.RawIOBase):
    """An object as a seekable file; every read is one request of just these bytes."""

    def __init__(self, client: S3Client, bucket: str, key: str, size: int, etag: str = "") -> None:
        self.client, self.bucket, self.key, self.size = client, bucket, key, size
        self._condition: dict[str, Any] = {"IfMatch": f'"{etag}"'} if etag and "@" not in etag else {}
        self._position = 0

    def readable(self) -> bool:
        """Tell that it can be read."""
        return True

    def seekable(self) -> bool:
        """Tell that it can be read anywhere."""
        return True

    def tell(self) -> int:
        """Return the position."""
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Move to a position, or relative to here or to the end."""
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self.size}[whence]
        self._position = max(0, start + offset)
        return self._position

    def readinto(self, buffer: Any) -> int:
        """Fill a buffer from here."""
        content = self.range(self._position, min(len(buffer), self.size - self._position))
        buffer[: len(content)] = content
        self._position += len(content)
        return len(content)

    def range(self, start: int, length: int) -> bytes:
        """Return bytes of the object. Raises ObjectError or TransientError."""
        from botocore.exceptions import BotoCoreError, ClientError

        if length <= 0:
            return b""
        try:
            answer = self.client.get_object(
                Bucket=self.bucket, Key=self.key, Range=f"bytes={start}-{start + length - 1}", **self._condition
            )
            return bytes(answer["Body"].read())
        except (BotoCoreError, ClientError) as e:
            raise s3_error(e, self.bucket, self.key) from e

    def stream(self) -> Iterator[bytes]:
        """Yield the whole content in pieces of a megabyte."""
        from botocore.exceptions import BotoCoreError, ClientError

        try:
            body = self.client.get_object(Bucket=self.bucket, Key=self.key, **self._condition)["Body"]
            yield from body.iter_chunks(CHUNK)
        except (BotoCoreError, ClientError) as e:
            raise s3_error(e, self.bucket, self.key) from e

    def plain(self) -> Any:
        """Return the content as a file that is read once, decompressed by what it is compressed with."""
        from botocore.exceptions import BotoCoreError, ClientError

        kind = compression_of(self.range(0, 10))
        try:
            body = self.client.get_object(Bucket=self.bucket, Key=self.key, **self._condition)["Body"]
        except (BotoCoreError, ClientError) as e:
            raise s3_error(e, self.bucket, self.key) from e
        return opened(body, kind)

    def sample(self, most: int) -> bytes:
        """Return the first bytes, decompressed; of text, up to the last whole line where there is more."""
        raw = self.range(0, min(most, self.size))
        file = opened(io.BytesIO(raw), compression_of(raw))
        content = b""
        whole = len(raw) == self.size
        try:
            while len(content) < 4 * most and (piece := file.read(1 << 16)):
                content += piece
        except OSError as e:  # cut off, which a sample may be
            if not content:
                raise ObjectError(f"its {compression_of(raw)} content is broken: {e}") from e
            whole = False
        if whole and len(content) < 4 * most:
            return content
        return content[: content.rfind(b"\n") + 1] or content


def opened(file: Any, kind: str) -> Any:
    """Return a readable file of what `file` holds compressed as `kind`; of several members one after the other.

    Reading raises OSError where the content is broken or cut off.
    """
    if not kind:
        return file
    if kind == "xz":
        import lzma

        return lzma.open(file)
    if kind == "snappy":
        raise ObjectError("a worker cannot read snappy content: let ClickHouse read it, or store it as gzip or zstd")
    import pyarrow as pa

    return pa.CompressedInputStream(pa.PythonFile(file, mode="r"), kind)
