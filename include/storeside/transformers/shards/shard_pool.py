"""Transforms the members of tar shards: a pool that takes shards and gives their members to the pool of workers.

The server reads a shard's headers and never its members' contents, which go to the isolated decoders like objects.
The result is delivered while it is made, so the memory depends on the size of members and not on that of shards. A
shard that is not a complete tar archive has no result.
"""

from __future__ import annotations

import asyncio
import hashlib
import io
import json
import os
import threading
import time
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import BinaryIO, TypeAlias

from storeside.transformers.contract import tar_archive
from storeside.transformers.contract.failures import Failure, LeftOut, Shard
from storeside.transformers.contract.job import Job
from storeside.transformers.contract.journal import Journal
from storeside.transformers.contract.members import LINES, OBJECTS, TAR, Members, line
from storeside.transformers.contract.tar_archive import Member, TarArchive, TarError
from storeside.transformers.settings import Settings
from storeside.transformers.transformer import Data
from storeside.transformers.workers import decoder
from storeside.transformers.workers.http_client import DeliveryError, HttpClient
from storeside.transformers.workers.pool import Content, Delivered, Outcome, Pool, Streamed
from storeside.transformers.workers.sidecar import Sidecars
from storeside.transformers.workers.source import Sources

from .gathering import Gathered, Gathering
from .pieces import deliver

# Shards at once: while one ends, the workers have the members of the next.
_SHARDS = 2
# Members of a shard whose names are remembered, and unchanged members that wait for a result before them.
_MOST_MEMBERS, _MOST_WAITING = 1_000_000, 1_000
# Tries of a member that fails for a temporary reason.
_TRIES = 2
_TYPES = {TAR: "application/x-tar", LINES: "application/x-ndjson", OBJECTS: "application/x-ndjson"}
_EXTENSION = ".tar"


class _AbandonedError(Exception):
    """AIStore no longer waits for the result."""


class ShardPool:
    """A pool whose objects are shards, on top of the `pool` for their members."""

    def __init__(self, pool: Pool, members: Members | Gathering, settings: Settings, journal: Journal) -> None:
        self._pool = pool
        self._members = members
        # The server itself reads the shard, so whether transformers may read files does not matter.
        self._settings = replace(settings, file_access=True)
        self._journal = journal
        self._places = asyncio.Semaphore(_SHARDS)
        self.mime_type = _TYPES[members.results]
        # The server reads shards as a whole, also if the transformer of their members is a stream.
        self.streams = False

    async def run(self) -> None:
        """Keep the workers running until cancelled. Raises BrokenTransformError if no worker can start."""
        await self._pool.run()

    async def ready(self) -> None:
        """Wait until the first worker is ready."""
        await self._pool.ready()

    async def submit(self, job: Job, content: Data = b"") -> asyncio.Future[Outcome]:
        """Start to transform a shard and return a future of its outcome; waits while others are transformed."""
        await self._places.acquire()
        outcome: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        threading.Thread(target=self._work, args=(job, content, outcome), daemon=True).start()
        return outcome

    def _work(self, job: Job, content: Data, outcome: asyncio.Future[Outcome]) -> None:
        loop = outcome.get_loop()
        shard = self._shard(job, loop, outcome)
        found: Outcome = job.failure("the server ended", final=False)
        try:
            found = shard.transform(content)
            report = shard.report()
            for failure in shard.failures:  # with the time of their shard, which distinguishes them from earlier ones
                self._journal.record(replace(failure, time=report.time))
            for left_out in shard.left_out:
                self._journal.record_left_out(replace(left_out, time=report.time))
            if not isinstance(found, Streamed):  # its members are not known yet
                self._journal.record_shard(report)
        except TarError as e:
            found = job.failure(str(e), final=True)
        except DeliveryError as e:
            found = job.failure(str(e), e.final)
        except Exception as e:
            found = job.failure(decoder.described(e), final=False)
        finally:
            with suppress(RuntimeError):  # the server ends
                loop.call_soon_threadsafe(self._end, outcome, found)

    def _shard(
        self, job: Job, loop: asyncio.AbstractEventLoop, outcome: asyncio.Future[Outcome]
    ) -> _Shard | Gathered:
        if isinstance(self._members, Gathering):
            return Gathered(job, self._members, self._settings, outcome, self._journal)
        return _Shard(job, self._members, self._settings, _Submitter(self._pool, loop), outcome)

    def _end(self, outcome: asyncio.Future[Outcome], found: Outcome) -> None:
        self._places.release()
        if not outcome.done():
            outcome.set_result(found)


@dataclass(frozen=True)
class _Submitter:
    """Passes members to the pool from another thread than that of its event loop."""

    pool: Pool
    loop: asyncio.AbstractEventLoop

    def submit(self, job: Job, content: bytes) -> Future[Outcome]:
        return asyncio.run_coroutine_threadsafe(self._outcome(job, content), self.loop)

    async def _outcome(self, job: Job, content: bytes) -> Outcome:
        return await (await self.pool.submit(job, content))


@dataclass(frozen=True)
class _Entry:
    """A member that is kept, or whose result is awaited; `name` is its name in the result."""

    member: Member
    name: str
    outcome: Future[Outcome] | None


class _Shard:
    """One shard, its result and its failures."""

    def __init__(
        self, job: Job, members: Members, settings: Settings, submitter: _Submitter, wanted: asyncio.Future[Outcome]
    ) -> None:
        self._job = job
        self._members = members
        self._settings = settings
        self._submitter = submitter
        self._wanted = wanted
        self._client = HttpClient(settings)
        self._beside = Sidecars(settings.sidecar_url, self._client, settings.token)
        # One member more than there are workers, so that none waits while a result is delivered.
        self._ahead = settings.workers + 1
        self._running = 0
        self._names: set[int] = set()
        self._facts = bytearray()
        self._transformed = self._kept = self._seen = self._bytes = 0
        self.failures: list[Failure] = []
        self.left_out: list[LeftOut] = []

    def transform(self, content: Data) -> Outcome:
        """Deliver or return the result. Raises TarError, DeliveryError and _AbandonedError."""
        returned = deliver(self._job, self._pieces(content), self._client, self._settings)
        return Delivered(self._bytes) if returned is None else Content(returned)

    def report(self) -> Shard:
        """Return the shard's line in the journal."""
        counts = self._transformed, self._kept, len(self.failures), len(self.left_out)
        return Shard(time.time(), self._job.bucket, self._job.object, *counts)

    def _pieces(self, content: Data) -> Iterator[Data]:
        """Yield the result. The file must not change until all of it is read."""
        sources = Sources(self._settings, self._client, decoder.OPENED)
        with sources.open(self._job, content) as given:
            assert not isinstance(given, str)  # noqa: S101 - OPENED
            with _file(given) as file:
                size = file.seek(0, os.SEEK_END)
                for piece in self._rewritten(TarArchive(file, size)):
                    self._bytes += len(piece)
                    yield piece

    def _rewritten(self, archive: TarArchive) -> Iterator[Data]:
        if self._members.results == OBJECTS and not self._job.object.endswith(_EXTENSION):
            raise TarError(f"its name does not end in {_EXTENSION}")
        waiting: deque[_Entry] = deque()
        for member in archive:
            if self._wanted.cancelled():
                raise _AbandonedError
            if (entry := self._entry(archive, member)) is not None:
                waiting.append(entry)
            while self._running > self._ahead or len(waiting) > _MOST_WAITING:
                yield from self._ended(archive, waiting.popleft())
        while waiting:
            yield from self._ended(archive, waiting.popleft())
        yield from self._checked()
        if self._facts:
            self._beside.put(f"{self._job.object}.jsonl", bytes(self._facts))
        if self._members.results == TAR:
            yield tar_archive.END

    def _entry(self, archive: TarArchive, member: Member) -> _Entry | None:
        """Return the entry of a member with a result; a member without one has failed, or leaves nothing."""
        self._seen += 1
        concerned = not member.is_folder and self._members.include(tar_archive.plain(member.name))
        if not concerned and self._members.results != TAR:
            return None
        name = self._members.renamed(member.name) if concerned else member.name
        if reason := member.refusal or self._refusal(member, name, concerned):
            self._fail(member, reason)
            return None
        if not concerned or self._members.results == OBJECTS:
            return _Entry(member, name, None)
        self._running += 1
        return _Entry(member, name, self._submitter.submit(self._job_of(member), archive.content(member)))

    def _refusal(self, member: Member, name: str, concerned: bool) -> str:
        if reason := tar_archive.outside(name):
            return f"its result would be named {name!r}: {reason}"
        if concerned and member.size > self._settings.largest_body:
            return f"it has more than {self._settings.largest_body} bytes ({self._settings.body_limit})"
        key = hash(tar_archive.plain(name))
        if key in self._names and not member.is_folder:
            return (
                f"an earlier member has the same name in the result, {name!r}: choose another extension for results"
            )
        if len(self._names) == _MOST_MEMBERS:
            raise TarError(f"it has more than {_MOST_MEMBERS} members")
        self._names.add(key)
        return ""

    def _ended(self, archive: TarArchive, entry: _Entry) -> Iterator[Data]:
        """Yield what the result contains of a member."""
        member = entry.member
        if entry.outcome is None and self._members.results == OBJECTS:
            yield from self._stored(member, archive.content(member))
            return
        if entry.outcome is None:
            self._kept += 1
            yield tar_archive.header(member, entry.name, member.size)
            yield from archive.pieces(member)
            yield tar_archive.padding(member.size)
            return
        outcome = entry.outcome.result()
        for _ in range(1, _TRIES):
            if isinstance(outcome, Failure) and not outcome.final:
                outcome = self._submitter.submit(self._job_of(member), archive.content(member)).result()
        self._running -= 1
        if isinstance(outcome, LeftOut):
            self.left_out.append(replace(outcome, object=self._job.object, member=tar_archive.plain(member.name)))
            return
        if not isinstance(outcome, Content):
            assert isinstance(outcome, Failure)  # noqa: S101 - a member has no pipeline
            self._fail(member, outcome.reason, outcome.final)
            return
        try:
            facts = line(self._named(member), outcome.sidecar) if outcome.sidecar else b""
            data = outcome.data if self._members.results == TAR else line(self._named(member), outcome.data)
        except (ValueError, RecursionError) as e:
            self._fail(member, f"its result is not one JSON object: {e}")
            return
        self._facts += facts
        self._transformed += 1
        if self._members.results == LINES:
            yield data
            return
        yield tar_archive.header(member, entry.name, len(data))
        yield data
        yield tar_archive.padding(len(data))

    def _stored(self, member: Member, content: bytes) -> Iterator[bytes]:
        """Store a member as an object, and yield its line in the list of the shard's members."""
        plain = tar_archive.plain(member.name)
        name = f"{self._job.object.removesuffix(_EXTENSION)}/{plain}"
        try:
            self._beside.put(name, content)
        except DeliveryError as e:
            if not e.final:
                raise
            self._fail(member, str(e))
            return
        self._transformed += 1
        facts = {"stored": name, "bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
        yield line(self._named(member), json.dumps(facts).encode())

    def _checked(self) -> Iterator[bytes]:
        """Raise an error if no member has a result; yield an empty line as the result of a shard without members.

        A shard whose members are all left out, except for those that failed, has a result without members.
        """
        if self._transformed or self._kept:
            return
        if not self._seen or self.left_out:
            if self._members.results != TAR:
                yield b"\n"  # AIStore does not distinguish an empty result from a missing one
            return
        if self.failures:
            first, count = self.failures[0], len(self.failures)
            reason = f"all its {count} members failed, such as {first.member!r}: {first.reason}"
            raise DeliveryError(reason, final=all(failure.final for failure in self.failures))
        raise TarError("no member of it has a result: their names match no pattern")

    def _fail(self, member: Member, reason: str, final: bool = True) -> None:
        failure = replace(self._job.failure(reason, final), member=tar_archive.plain(member.name) or member.name)
        self.failures.append(failure)

    def _job_of(self, member: Member) -> Job:
        return Job(self._named(member), self._job.bucket, arguments=self._job.arguments, is_member=True)

    def _named(self, member: Member) -> str:
        return f"{self._job.object}/{tar_archive.plain(member.name)}"


AnyPool: TypeAlias = Pool | ShardPool


def pool_for(transform: str, settings: Settings, journal: Journal) -> AnyPool:
    """Return the pool that the environment describes: for objects, for members of shards, or for plans of shards."""
    members, pool = Members.from_environment() or Gathering.from_environment(), Pool(transform, settings)
    return pool if members is None else ShardPool(pool, members, settings, journal)


def _file(given: int | Data) -> BinaryIO:
    if isinstance(given, int):
        return open(given, "rb", closefd=False)
    return io.BytesIO(given)
