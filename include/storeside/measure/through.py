"""Measures cloud buckets through AIStore's own backends, as the comparison of OCI's APIs in AIStore's blog does.

A PUT ends when the object is in the cloud, and a GET follows an eviction, so that AIStore reads from the cloud.
AIStore's settings decide about parts. For ``s3://`` they are the bucket's property ``extra.aws.multipart_size``; the
benchmark changes it for each operation if it may. For ``oci://`` they are variables of the targets, see
`storeside.measure.oci_settings`: compare clusters that were started with other values.
"""

from __future__ import annotations

import io
import json
import logging
import os
import threading
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from storeside.aistore.buckets import Bucket
from storeside.aistore.errors import said
from storeside.copying.errors import CopyCancelled, CopyInputError, CopyTransientError
from storeside.measure.backends import FEW, GET_BYTES, PUT_BYTES, Result
from storeside.measure.tuner import scratch_name

if TYPE_CHECKING:
    from aistore.sdk import Client

log = logging.getLogger(__name__)

OPERATIONS = ("get cold", "get large", "put as set")
# Operations on s3:// buckets whose property may be changed, with its values in bytes: -1 is one piece, and S3 accepts
# no parts below 5 MiB.
_S3_PARTS = {"put single": -1, "put few parts": FEW, "put many parts": 5 << 20}
_BLOCK = 1 << 20
_EVICT_SECONDS = 60.0


class Body(io.RawIOBase):
    """A file of `size` random bytes: one block in memory, repeated. A request can send it again from its start."""

    def __init__(self, size: int, stop: threading.Event | None = None) -> None:
        self._size, self._at, self._stop = size, 0, stop
        self._block = os.urandom(_BLOCK)

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True."""
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Move to an offset from the start, the position or the end; return the new position."""
        self._at = offset + {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._size}[whence]
        return self._at

    def tell(self) -> int:
        """Return the position."""
        return self._at

    def readinto(self, buffer: Any) -> int:
        """Fill the buffer, up to the end of a block. Raises CopyCancelled once `stop` is set."""
        if self._stop is not None and self._stop.is_set():
            raise CopyCancelled("stopped")
        start = self._at % _BLOCK
        count = min(len(buffer), self._size - self._at, _BLOCK - start)
        buffer[:count] = self._block[start : start + count]
        self._at += count
        return count


@dataclass(frozen=True)
class Through:
    """A cloud bucket behind an AIStore cluster. `label` tells clusters with different settings apart.

    With `change_parts`, the benchmark sets the part size of an ``s3://`` bucket for each operation, and restores it.
    Other writers to the bucket use the same part size meanwhile.
    """

    client: Client = field(repr=False)
    bucket: Bucket
    endpoint: str
    label: str = ""
    change_parts: bool = False

    def __post_init__(self) -> None:
        if self.bucket.scheme == "ais":
            raise CopyInputError(
                f"{self.bucket}: AIStore stores it itself; name an s3://, gs://, az:// or oci:// bucket"
            )

    @property
    def name(self) -> str:
        """The name in tables, such as ``oci://bench through AIStore, 10 MB segments``."""
        return f"{self.bucket} through AIStore{f', {self.label}' if self.label else ''}"

    @property
    def operations(self) -> tuple[str, ...]:
        """The operations that are measured."""
        if self.bucket.scheme == "s3" and self.change_parts:
            return (*OPERATIONS[:2], *_S3_PARTS)
        return OPERATIONS

    def put(self, key: str, size: int, stop: threading.Event | None = None) -> float:
        """Write an object and return the seconds until it is in the cloud."""
        body = Body(size, stop)
        started = time.perf_counter()
        with _errors(self.bucket, key):
            # the SDK's put_content needs all bytes in memory
            self.client.cluster().client.request(
                "put",
                path=f"objects/{self.bucket.name}/{self.bucket.fit(key)}",
                params={"provider": self.bucket.provider},
                data=io.BufferedReader(body, _BLOCK),
            )
        return time.perf_counter() - started

    def get_cold(self, key: str, size: int, stop: threading.Event | None = None) -> float:
        """Evict an object and read it; return the seconds of the read."""
        self._evict(key)
        found = self.bucket.object(self.client, key)
        started = time.perf_counter()
        with _errors(self.bucket, key):
            raw = found.get_reader().raw()
            try:
                count = 0
                while piece := raw.read(_BLOCK):
                    count += len(piece)
                    if stop is not None and stop.is_set():
                        raise CopyCancelled("stopped")
            finally:
                raw.close()
        if count != size:
            raise CopyTransientError(f"{self.bucket}/{key}: AIStore sent {count} of {size} bytes")
        return time.perf_counter() - started

    def delete(self, key: str) -> None:
        """Delete an object; an object that does not exist is no error."""
        from aistore.sdk.errors import ErrObjNotFound

        with _errors(self.bucket, key), suppress(ErrObjNotFound):
            self.bucket.object(self.client, key).delete()

    @contextmanager
    def parts_of(self, operation: str) -> Iterator[None]:
        """Set the part size of an operation, and restore the bucket's own afterwards."""
        if operation not in _S3_PARTS:
            yield
            return
        before = self._part_size()
        self._set_part_size(_S3_PARTS[operation])
        try:
            yield
        finally:
            self._set_part_size(before)

    def part_size(self, operation: str) -> int:
        """Return the bytes of a part that the benchmark has set; 0 for one piece, or for AIStore's own settings."""
        return max(_S3_PARTS.get(operation, 0), 0)

    def _evict(self, key: str) -> None:
        group = self.bucket.objects(self.client, [key])
        with _errors(self.bucket, key):
            self.client.job(job_id=group.evict()).wait(timeout=int(_EVICT_SECONDS))

    def _part_size(self) -> Any:
        from aistore.sdk.const import HEADER_BUCKET_PROPS

        with _errors(self.bucket):
            props = json.loads(self.bucket.handle(self.client).head().get(HEADER_BUCKET_PROPS) or "{}")
        return ((props.get("extra") or {}).get("aws") or {}).get("multipart_size", 0)

    def _set_part_size(self, size: Any) -> None:
        body = {"action": "set-bprops", "value": {"extra": {"aws": {"multipart_size": str(size)}}}}
        with _errors(self.bucket):
            self.client.cluster().client.request(
                "patch", path=f"buckets/{self.bucket.name}", params={"provider": self.bucket.provider}, json=body
            )


def benchmark(
    subjects: Sequence[Through],
    *,
    rounds: int = 3,
    get_bytes: int = GET_BYTES,
    put_bytes: int = PUT_BYTES,
    scope: str = "",
    stop: threading.Event | None = None,
) -> list[Result]:
    """Measure all subjects alternately, `rounds` times each; the objects are deleted afterwards.

    "get cold" reads `get_bytes`, "get large" and the PUTs move `put_bytes`. A benchmark with the same `scope` removes
    the objects of a killed one when it reaches the same round. Raises CopyError, also for what AIStore refuses.
    """
    if not subjects or rounds < 1 or put_bytes < 1:
        raise CopyInputError("benchmark: needs at least one bucket, one round and one byte")
    seconds: dict[tuple[Through, str], list[float]] = defaultdict(list)
    for number in range(rounds):
        for operation in dict.fromkeys(o for subject in subjects for o in subject.operations):
            for subject in subjects:
                if operation in subject.operations:
                    key = scratch_name(scope and f"{scope}/{number}")
                    size = get_bytes if operation == "get cold" else put_bytes
                    took = _measure(subject, operation, key, size, stop)
                    seconds[subject, operation].append(took)
                    log.info("round %d: %s: %s: %.2f s", number + 1, subject.name, operation, took)
    return [
        Result(
            subject.name, subject.endpoint, operation, get_bytes if operation == "get cold" else put_bytes,
            subject.part_size(operation), 1, tuple(found),
        )
        for (subject, operation), found in seconds.items()
    ]  # fmt: skip


def _measure(subject: Through, operation: str, key: str, size: int, stop: threading.Event | None) -> float:
    with subject.parts_of(operation):
        try:
            if operation.startswith("put"):
                return subject.put(key, size, stop)
            subject.put(key, size, stop)
            return subject.get_cold(key, size, stop)
        finally:
            subject.delete(key)


@contextmanager
def _errors(bucket: Bucket, key: str = "") -> Iterator[None]:
    """Raise errors of AIStore as CopyInputError for a refusal, otherwise as CopyTransientError."""
    from aistore.sdk.errors import AISError, JobInfoNotFound, Timeout
    from requests import RequestException

    from storeside.aistore.errors import is_refusal

    what = f"{bucket}/{key}" if key else str(bucket)
    try:
        yield
    except AISError as e:
        kind = CopyInputError if is_refusal(e.status_code) else CopyTransientError
        raise kind(f"{what} through AIStore: {said(e)}") from e
    except (RequestException, TimeoutError, Timeout, JobInfoNotFound) as e:
        raise CopyTransientError(f"{what} through AIStore: {e}") from e
