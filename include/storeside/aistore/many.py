"""Reads many small objects with few requests: AIStore's GetBatch returns the objects of a request as one tar archive.

GetBatch (``/v1/ml/moss``, docs/get_batch.md of AIStore 5.0) has no object that is not on a disk of the cluster, and
fails for minutes after a target joined or left. So each object that an answer lacks, or has with another size than
the listing, is requested separately.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from tarfile import AREGTYPE, BLOCKSIZE, GNUTYPE_LONGNAME, REGTYPE, XGLTYPE, XHDTYPE
from typing import TYPE_CHECKING

from storeside.aistore.buckets import Bucket
from storeside.aistore.errors import said

if TYPE_CHECKING:
    from aistore.sdk import Client

log = logging.getLogger(__name__)

# Objects and bytes of one request, whose answer is in memory. A request costs as much as 40 objects.
BATCH_OBJECTS, BATCH_BYTES = 10_000, 16 << 20
# Requests for batches, and for the objects that they lack, at the same time.
_BATCHES, _SINGLES = 3, 8

# The name of an object and its size in bytes by a listing.
Wanted = tuple[str, int]
# The name of an object and its content, which is None if the object does not exist.
Read = tuple[str, "bytes | None"]


def read_many(client: Client, bucket: Bucket, wanted: Iterable[Wanted]) -> Iterator[list[Read]]:
    """Yield the contents of the objects in their order, in batches; some batches are read ahead.

    Memory is bounded by a few times `BATCH_BYTES`, or by the largest objects. Raises AISError and RequestException.
    """
    source = _Source(client, bucket)
    waiting: deque[Future[list[Read]]] = deque()
    with ThreadPoolExecutor(_BATCHES, thread_name_prefix="batch") as pool:
        try:
            for batch in _batches(wanted):
                waiting.append(pool.submit(source.read, batch))
                if len(waiting) == _BATCHES:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()


class _Source:
    """Reads batches of objects of one bucket."""

    def __init__(self, client: Client, bucket: Bucket) -> None:
        self._sdk = client
        self._client = client.cluster().client
        self._bucket = bucket
        # GetBatch reads no remote objects that the cluster has not cached, nor their current versions.
        self._at_once = not bucket.is_remote

    def read(self, batch: list[Wanted]) -> list[Read]:
        """Return the contents of a batch in its order."""
        found: dict[str, bytes] = {}
        if self._at_once and len(batch) > 1:
            found = self._archive(batch)
        missing = [name for name, size in batch if len(found.get(name, b"")) != size or name not in found]
        if missing:
            with ThreadPoolExecutor(min(_SINGLES, len(missing)), thread_name_prefix="object") as pool:
                found |= {name: content for name, content in pool.map(self._one, missing) if content is not None}
        return [(name, found.get(name)) for name, _ in batch]

    def _archive(self, batch: list[Wanted]) -> dict[str, bytes]:
        """Return the contents that GetBatch returns, which may be a part of them or none."""
        from aistore.sdk.errors import AISError
        from requests import RequestException

        found: dict[str, bytes] = {}
        try:
            answer = self._client.request(
                "get",
                path=f"ml/moss/{self._bucket.name}",
                params={"provider": self._bucket.provider, **_namespace(self._bucket)},
                json={"in": [{"objname": name} for name, _ in batch], "coer": True, "onob": True, "strm": True},
            )
            for name, content in members(answer.content):
                found[name] = content
        except (AISError, RequestException, ValueError) as e:
            log.info(
                "%s: AIStore did not return all objects of a batch, reading them one by one: %s",
                self._bucket,
                said(e),
            )
            self._at_once = bool(found)  # a request that fails as a whole may take long
        return found

    def _one(self, name: str) -> Read:
        from aistore.sdk.errors import ErrObjNotFound

        try:
            return name, self._bucket.object(self._sdk, name).get_reader().read_all()
        except ErrObjNotFound:
            return name, None


def _namespace(bucket: Bucket) -> dict[str, str]:
    return {"namespace": bucket.namespace} if bucket.namespace else {}


def _batches(wanted: Iterable[Wanted]) -> Iterator[list[Wanted]]:
    entries = iter(wanted)
    while first := list(islice(entries, 1)):
        batch, total = first, first[0][1]
        while total < BATCH_BYTES and len(batch) < BATCH_OBJECTS and (entry := next(entries, None)):
            batch.append(entry)
            total += entry[1]
        yield batch


def members(archive: bytes) -> Iterator[tuple[str, bytes]]:
    """Yield the names and contents of the files of a tar archive from AIStore.

    It trusts the headers more than `tarfile` does, and takes a fraction of its time. Raises ValueError for anything
    else; all members before are valid.
    """
    at, name = 0, ""
    while at + BLOCKSIZE <= len(archive):
        header = archive[at : at + BLOCKSIZE]
        if not header.strip(b"\0"):
            return
        size, kind = int(header[124:136].rstrip(b"\0 ") or b"0", 8), header[156:157]
        start = at + BLOCKSIZE
        content = archive[start : start + size]
        if len(content) < size or header[257:262] != b"ustar":
            raise ValueError(f"the archive ends at byte {at}, or is damaged there")
        if kind == XHDTYPE:
            name = _pax_path(content) or name
        elif kind == GNUTYPE_LONGNAME:
            name = _text(content)
        elif kind in (REGTYPE, AREGTYPE):
            yield name or _ustar_name(header), content
            name = ""
        elif kind != XGLTYPE:
            raise ValueError(f"the archive has a member of the type {kind!r} at byte {at}")
        at = start + -(-size // BLOCKSIZE) * BLOCKSIZE
    raise ValueError("the archive has no end mark")


def _ustar_name(header: bytes) -> str:
    name, prefix = _text(header[:100]), _text(header[345:500])
    return f"{prefix}/{name}" if prefix and header[262:263] == b"\0" else name


def _text(field: bytes) -> str:
    return field.partition(b"\0")[0].decode("utf-8", "surrogateescape")


def _pax_path(content: bytes) -> str:
    """Return the path in a pax header, which consists of records ``length key=value`` with a line feed each."""
    while content:
        digits, _, rest = content.partition(b" ")
        length = int(digits)
        key, _, value = rest[: length - len(digits) - 2].partition(b"=")
        if key == b"path":
            return value.decode("utf-8", "surrogateescape")
        content = content[length:]
    return ""
