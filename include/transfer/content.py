"""Objects read by a worker, by ranges and as streams: never whole."""

from __future__ import annotations

import bz2
import functools
import io
import lzma
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from include.storage.errors import passes
from include.transfer.errors import DELETED, DENIED, ObjectError, TransferError, TransientError, UsageError
from include.transfer.formats import compression_of, is_hadoop_snappy

if TYPE_CHECKING:
    from types_boto3_s3 import S3Client

CHUNK = 1 << 20
# A sample ends somewhere in a compressed stream: where that is, a read as a whole fails.
_SIP = 1 << 6
# Of what is compressed in blocks nothing can be had before the first one is there; lz4's are up to 4 MB.
_LONGEST_BLOCK = 4 * CHUNK + CHUNK
_OVERWRITTEN = "it was overwritten after it was listed; the next run loads that"
_REASONS = {
    **dict.fromkeys(("PreconditionFailed", "412"), _OVERWRITTEN),
    **dict.fromkeys(("NoSuchKey", "404"), DELETED),
    **dict.fromkeys(("AccessDenied", "403"), DENIED),
}


def s3_error(error: Any, bucket: str, key: str) -> TransferError:
    """Return the error of ours for one of botocore's about an object, or a listing of what begins with `key`."""
    from botocore.exceptions import ClientError

    if not isinstance(error, ClientError):
        return TransientError(f"s3://{bucket}/{key}: {error}")
    code = str(error.response.get("Error", {}).get("Code", ""))
    if passes(error):
        return TransientError(f"s3://{bucket}/{key}: {code}")
    if code == "NoSuchBucket":
        return UsageError(f"there is no bucket {bucket!r} at this endpoint")
    if error.operation_name == "ListObjectsV2":
        remedy = f": allow s3:ListBucket on s3://{bucket}" if code in ("AccessDenied", "403") else ""
        return UsageError(f"s3://{bucket} cannot be listed: {error}{remedy}")
    return ObjectError(_REASONS.get(code, f"S3 says {code}: {error}"))


class Content(io.RawIOBase):
    """An object as a seekable file; every read is one request of just these bytes.

    With its `etag` it is that version of the object; reading another one raises ObjectError.
    """

    def __init__(self, client: S3Client, bucket: str, key: str, size: int, etag: str = "") -> None:
        self.client, self.bucket, self.key, self.size, self.etag = client, bucket, key, size, etag
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
        content = self.range(self._position, len(buffer))
        buffer[: len(content)] = content
        self._position += len(content)
        return len(content)

    def range(self, start: int, length: int) -> bytes:
        """Return bytes of the object. Raises ObjectError or TransientError."""
        from botocore.exceptions import BotoCoreError

        length = min(length, self.size - start)
        if length <= 0:  # S3 refuses an empty range
            return b""
        body = self._get(Range=f"bytes={start}-{start + length - 1}")
        try:
            return bytes(body.read())
        except BotoCoreError as e:
            raise s3_error(e, self.bucket, self.key) from e

    def _get(self, **what: Any) -> Any:
        """Return the body of an answer. The ETag is compared as well, as AIStore does not look at the condition."""
        from botocore.exceptions import BotoCoreError, ClientError

        condition: Any = {"IfMatch": f'"{self.etag}"'} if self.etag else {}
        try:
            answer = self.client.get_object(Bucket=self.bucket, Key=self.key, **condition, **what)
        except (BotoCoreError, ClientError) as e:
            raise s3_error(e, self.bucket, self.key) from e
        if self.etag and answer.get("ETag", "").strip('"') != self.etag:
            answer["Body"].close()
            raise ObjectError(_OVERWRITTEN)
        return answer["Body"]

    @functools.cached_property
    def compression(self) -> str:
        """What the content is compressed with; empty when it is not."""
        head = self.range(0, 10)
        return compression_of(head) or ("hadoop-snappy" if is_hadoop_snappy(self.key, head) else "")

    def stream(self) -> Iterator[bytes]:
        """Yield the whole content in pieces of a megabyte."""
        from botocore.exceptions import BotoCoreError

        body = self._get()
        try:
            yield from body.iter_chunks(CHUNK)
        except BotoCoreError as e:
            raise s3_error(e, self.bucket, self.key) from e

    def plain(self) -> Any:
        """Return the content as a file that is read once, decompressed by what it is compressed with."""
        kind = self.compression
        return opened(_Body(self._get(), self), kind)

    def sample(self, most: int) -> bytes:
        """Return the first bytes, decompressed; of text, up to the last whole line where there is more."""
        kind = self.compression
        for reach in (most, CHUNK, _LONGEST_BLOCK):
            raw = self.range(0, max(reach, most))
            content, error = _beginning(raw, kind, most)
            if content or len(raw) == self.size:
                break
        if error and not content:
            raise ObjectError(f"its {kind} content is broken: {error}")
        if len(raw) == self.size and len(content) < most and not error:
            return content
        return content[: content.rfind(b"\n") + 1] or content


def _beginning(raw: bytes, kind: str, most: int) -> tuple[bytes, OSError | None]:
    """Return what the first bytes of an object hold, and where they end early, the error."""
    file = opened(io.BytesIO(raw), kind)
    content = bytearray()
    try:
        while len(content) < most and (piece := file.read(_SIP if kind else CHUNK)):
            content += piece
    except OSError as e:
        return bytes(content), e
    return bytes(content), None


def opened(file: Any, kind: str) -> Any:
    """Return a readable file of what `file` holds compressed as `kind`; of several members one after the other.

    Reading raises OSError where the content is broken or cut off.
    """
    import pyarrow as pa

    if not kind:
        return file
    if kind == "xz":
        return _Decompressed(lzma.open(file))
    if kind == "bz2":  # pyarrow fails at a second member that is empty
        return _Decompressed(bz2.open(file))
    if kind in ("snappy", "hadoop-snappy"):
        return _Snappy(file, kind)
    return _Decompressed(pa.CompressedInputStream(pa.PythonFile(file, mode="r"), kind))


class _Body:
    """The body of an answer, whose faults are those of this package."""

    closed = False  # pyarrow asks

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
        """Tell that it can be read."""
        return True

    def close(self) -> None:
        """Let go of the connection."""
        self._body.close()


class _Decompressed:
    """A decompressing file, whose faults are all OSErrors."""

    closed = False  # pyarrow asks

    def __init__(self, file: Any) -> None:
        self._file = file

    def read(self, size: int) -> bytes:
        """Return up to `size` bytes; none at the end."""
        import pyarrow as pa

        try:
            return bytes(self._file.read(size))
        except (lzma.LZMAError, EOFError, ValueError, pa.ArrowException) as e:
            raise OSError(str(e)) from e

    def readable(self) -> bool:
        """Tell that it can be read."""
        return True

    def close(self) -> None:
        """Let go of what it reads from."""
        self._file.close()


class _Snappy:
    """A snappy stream, in the framing format or in that of Hadoop, which pyarrow has no reader for.

    https://github.com/google/snappy/blob/main/framing_format.txt; Hadoop writes blocks of a decompressed length and
    pieces of a compressed one, both big-endian.
    """

    closed = False
    _MOST = 64 << 20

    def __init__(self, file: Any, kind: str) -> None:
        self._file = file
        self._blocks = self._framed() if kind == "snappy" else self._hadoop()
        self._block = io.BytesIO()

    def read(self, size: int) -> bytes:
        """Return up to `size` bytes; none at the end."""
        while not (content := self._block.read(size)):
            if (block := next(self._blocks, None)) is None:
                return b""
            self._block = io.BytesIO(block)
        return content

    def readable(self) -> bool:
        """Tell that it can be read."""
        return True

    def close(self) -> None:
        """Let go of what it reads from."""
        self._file.close()

    def _framed(self) -> Iterator[bytes]:
        while head := self._file.read(4):
            body = self._exactly(int.from_bytes(head[1:], "little"))
            if head[0] == 0:
                yield _unsnapped(body[4:])
            elif head[0] == 1:
                yield body[4:]
            elif head[0] < 0x80:
                raise OSError(f"snappy stream has an unknown chunk {head[0]:#x}")

    def _hadoop(self) -> Iterator[bytes]:
        while head := self._file.read(4):
            left = int.from_bytes(head, "big")
            while left > 0:
                piece = _unsnapped(self._exactly(int.from_bytes(self._exactly(4), "big")))
                left -= len(piece)
                yield piece

    def _exactly(self, size: int) -> bytes:
        content = self._file.read(size) if size <= self._MOST else b""
        if len(content) < size:
            raise OSError("snappy stream is cut off, or none")
        return bytes(content)


def _unsnapped(block: bytes) -> bytes:
    """Return the content of a block of raw snappy, which begins with its length."""
    import pyarrow as pa

    length = shift = 0
    for byte in block[:5]:
        length |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            break
    if length > _Snappy._MOST:
        raise OSError("snappy stream has a block that is too long")
    try:
        return bytes(pa.decompress(block, decompressed_size=length, codec="snappy", asbytes=True))
    except pa.ArrowException as e:
        raise OSError(str(e)) from e
