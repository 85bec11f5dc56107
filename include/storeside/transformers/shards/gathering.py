"""Makes tar shards of objects: the object that AIStore sends is a plan, and the result is a tar archive.

A plan lists names and sizes of objects of one bucket. The server reads them from AIStore in this order and sends the
archive while it reads, so the memory does not depend on the shard's size. AIStore's request for many objects at once
(GetBatch, ``/v1/ml/moss``) keeps the order, but has no object that is not on a disk of the cluster, and fails for
minutes after a target joined or left (docs/get_batch.md of AIStore 5.0). So the server requests each object that its
answer lacks separately; an object is missing only if this request also fails.
"""

from __future__ import annotations

import asyncio
import io
import json
import os
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any
from urllib.parse import parse_qs, quote, urlsplit

from storeside.transformers.contract import tar_archive
from storeside.transformers.contract.failures import Failure, LeftOut, Shard
from storeside.transformers.contract.job import Job
from storeside.transformers.contract.journal import Journal
from storeside.transformers.contract.members import TAR
from storeside.transformers.contract.names import unfit
from storeside.transformers.contract.tar_archive import Member, TarArchive, TarError
from storeside.transformers.settings import Settings
from storeside.transformers.transformer import Data
from storeside.transformers.workers import decoder
from storeside.transformers.workers.http_client import DeliveryError, HttpClient, reason
from storeside.transformers.workers.pool import Content, Delivered, Outcome, Streamed
from storeside.transformers.workers.source import Sources

from .pieces import deliver, joined

# The variable that `EtlSpec.gathering` writes.
SOURCE_URL = "SHARD_SOURCE_URL"
# Bytes and objects of one request for many objects, whose answer is in memory. Each request takes about 0.1 s.
_BATCH_BYTES, _BATCH_OBJECTS = 16 << 20, 10_000
_OBJECTS, _BATCHES = "/v1/objects/", "/v1/ml/moss/"
_MODE = 0o644
_MISSING, _REFUSED = 404, (401, 403)
_REMEDY = ": the pods of this ETL need a token in AIS_AUTHN_TOKEN that may read the source"

# Name and size in bytes.
Planned = tuple[str, int]


@dataclass(frozen=True)
class Gathering:
    """The bucket whose objects become members: ``http://proxy:51080/v1/objects/<bucket>/?provider=ais``.

    Raises ValueError for any other URL.
    """

    url: str
    results = TAR

    def __post_init__(self) -> None:
        parts = urlsplit(self.url)
        if parts.scheme not in ("http", "https") or not parts.path.startswith(_OBJECTS):
            raise ValueError(f"{SOURCE_URL}={self.url!r} must be the URL of a bucket's objects in AIStore")

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None) -> Gathering | None:
        """Read the variable; None if the server makes no shards. Raises ValueError if the variable is invalid."""
        env = os.environ if environment is None else environment
        return cls(env[SOURCE_URL]) if env.get(SOURCE_URL) else None

    @property
    def batch_url(self) -> str:
        """The URL of requests for many objects; empty for a remote bucket, whose objects may not be on a disk."""
        parts = urlsplit(self.url)
        query = parse_qs(parts.query)
        if query.get("provider") != ["ais"] or query.get("namespace", ["#"])[0].startswith("@"):
            return ""
        path = parts.path.replace(_OBJECTS, _BATCHES, 1).rstrip("/")
        return parts._replace(path=path).geturl()

    def object_url(self, name: str) -> str:
        """Return the URL of one object, of a remote bucket in its current version."""
        parts = urlsplit(self.url)
        query = parts.query if self.batch_url else f"{parts.query}&latest-ver=true"
        return parts._replace(path=parts.path + quote(os.fsencode(name)), query=query).geturl()


class Gathered:
    """One shard that is made of objects."""

    def __init__(
        self, job: Job, gathering: Gathering, settings: Settings, wanted: asyncio.Future[Outcome], journal: Journal
    ) -> None:
        self._job = job
        self._journal = journal
        self._gathering = gathering
        self._batch_url = gathering.batch_url
        # The server itself reads the plan, so whether transformers may read files does not matter.
        self._settings = replace(settings, file_access=True)
        self._wanted = wanted
        self._client = HttpClient(settings)
        self._headers = {"Authorization": f"Bearer {settings.token}"} if settings.token else {}
        self._bytes = self._count = 0
        self.failures: list[Failure] = []
        self.left_out: list[LeftOut] = []

    def transform(self, content: Data) -> Outcome:
        """Deliver or return the shard. Raises DeliveryError."""
        pieces = self._pieces(self._plan(content))
        if self._job.pipeline:
            returned = deliver(self._job, pieces, self._client, self._settings)
            return Delivered(self._bytes) if returned is None else Content(returned)
        # AIStore expects a shard that this target stores as the answer, which begins after the first pieces
        made = joined(pieces)
        return Streamed(self._recorded(chain([next(made)], made)))

    def _recorded(self, pieces: Iterable[Data]) -> Iterator[bytes]:
        """Yield the pieces, and record an error, because an answer that has begun cannot contain the reason."""
        try:
            yield from map(bytes, pieces)
        except DeliveryError as e:
            self._journal.record(self._job.failure(str(e), e.final))
            raise

    def report(self) -> Shard:
        """Return the shard's line in the journal."""
        return Shard(time.time(), self._job.bucket, self._job.object, 0, self._count, 0)

    def _plan(self, content: Data) -> list[Planned]:
        sources = Sources(self._settings, self._client, decoder.OPENED)
        with sources.open(self._job, content) as given:
            assert not isinstance(given, str)  # noqa: S101 - OPENED
            if not isinstance(given, int):
                return planned(bytes(given))
            with open(given, "rb", closefd=False) as file:
                return planned(file.read())

    def _pieces(self, plan: list[Planned]) -> Iterator[Data]:
        for piece in archive(self._members(plan)):
            self._bytes += len(piece)
            yield piece

    def _members(self, plan: list[Planned]) -> Iterator[tuple[str, Data]]:
        for batch in _batches(plan):
            for (name, size), content in zip(batch, self._contents(batch), strict=True):
                if len(content) != size:
                    raise DeliveryError(
                        f"{name}: it has {len(content)} bytes, and had {size} when the shard was planned: run the"
                        " task again",
                        final=True,
                    )
                self._count += 1
                yield name, content
                del content  # a part of the answer for a batch, which would stay in memory during the next request

    def _contents(self, batch: list[Planned]) -> Iterator[Data]:
        found: dict[str, Data] = {}
        if self._batch_url and len(batch) > 1:
            found = self._at_once(batch)
            if not found:
                self._batch_url = ""  # it may fail slowly
        for name, size in batch:
            if self._wanted.cancelled():
                raise DeliveryError("AIStore no longer waits for the shard")
            content = found.pop(name, None)
            yield content if content is not None and len(content) == size else self._one(name, size)

    def _at_once(self, batch: list[Planned]) -> dict[str, Data]:
        """Return the contents that AIStore returns for a request for all objects of a batch."""
        request = {"in": [{"objname": name} for name, _ in batch], "coer": True, "onob": True, "strm": True}
        headers = {**self._headers, "Content-Type": "application/json"}
        found: dict[str, Data] = {}
        try:
            answer = self._client.request("GET", self._batch_url, json.dumps(request).encode(), headers)
            if answer.status != 200:
                return {}
            content = memoryview(answer.body)
            answered = TarArchive(io.BytesIO(answer.body), len(answer.body))
            wanted = {name for name, _ in batch}
            for member in answered:
                if member.name in wanted and not member.refusal:
                    found[member.name] = content[member.offset : member.offset + member.size]
        except (DeliveryError, TarError):  # the members before the error are complete
            pass
        return found

    def _one(self, name: str, size: int) -> bytes:
        if size > self._settings.largest_body:
            limit = f"{self._settings.largest_body} bytes ({self._settings.body_limit})"
            raise DeliveryError(f"{name}: it has more than {limit}", final=True)
        answer = self._client.request("GET", self._gathering.object_url(name), headers=self._headers)
        if answer.status != 200:
            remedy = _REMEDY if answer.status in _REFUSED else ""
            raise DeliveryError(f"{name}: {reason(answer)}{remedy}", final=answer.status == _MISSING)
        return answer.body


def planned(content: bytes) -> list[Planned]:
    """Return the names and sizes in a plan: a JSON list of lists, which begin with name and size.

    Raises DeliveryError for anything else, and for a name that would be an object of another bucket.
    """
    try:
        found: Any = json.loads(content)
        plan = [(str(name), int(size)) for name, size, *_ in found]
    except (ValueError, TypeError, OverflowError, RecursionError) as e:
        raise DeliveryError("it is not the plan of a shard", final=True) from e
    for name, _ in plan:
        if why := unfit(name):
            raise DeliveryError(f"{name!r} cannot be a member of a shard: {why}", final=True)
    return plan


def _batches(plan: list[Planned]) -> Iterator[list[Planned]]:
    batch: list[Planned] = []
    total = 0
    for entry in plan:
        if batch and (total + entry[1] > _BATCH_BYTES or len(batch) == _BATCH_OBJECTS):
            yield batch
            batch, total = [], 0
        batch.append(entry)
        total += entry[1]
    if batch:
        yield batch


def archive(members: Iterable[tuple[str, Data]]) -> Iterator[Data]:
    """Yield a tar archive of names and contents, without times: the same members make the same bytes."""
    for name, content in members:
        yield tar_archive.header(Member(name, len(content), 0, _MODE, 0), name, len(content))
        yield content
        yield tar_archive.padding(len(content))
        del content
    yield tar_archive.END
