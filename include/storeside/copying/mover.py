"""Copies objects from one store to another through this process, in one piece or in parts.

A thread reads one range into memory and writes it from there, because its checksum precedes its content. One pool of
threads works on the parts of all objects, so neither many small objects nor a single large one leaves threads idle.
"""

from __future__ import annotations

import hashlib
import logging
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import TypeVar

from storeside.copying.errors import (
    CopyCancelled,
    CopyError,
    CopyInputError,
    CopyObjectError,
    CopyTransientError,
    changed,
)
from storeside.copying.multipart import Part, Profile
from storeside.copying.store import Head, Store
from storeside.ledger.scope import Pending

log = logging.getLogger(__name__)

# Attempts of one request in addition to those of the endpoint's client, and the seconds before the second attempt.
ATTEMPTS = 3
DELAY = 0.5
TICK_SECONDS = 1.0
STOPPED = "the copy was stopped"
_T = TypeVar("_T")


@dataclass(frozen=True)
class Outcome:
    """The outcome of one object: its version at the destination, or the reason why it could not be copied."""

    wanted: Pending
    version: str = ""
    error: CopyError | None = None


class _Upload:
    """One object that is being copied in parts."""

    def __init__(self, wanted: Pending, head: Head, id: str, parts: int) -> None:
        self.wanted, self.head, self.id = wanted, head, id
        self.tags = [""] * parts
        self.left = parts
        self.error: CopyError | None = None
        self.digest = hashlib.md5(usedforsecurity=False)
        self.hashed = 0
        self.turn = threading.Condition()

    def hash(self, part: Part, body: bytes) -> None:
        """Add a part to the MD5 of the whole object, after all earlier parts, which were submitted first."""
        if not self.head.md5:
            return
        with self.turn:
            self.turn.wait_for(lambda: self.hashed == part.number - 1 or self.error is not None)
            self.digest.update(body)
            self.hashed = part.number
            self.turn.notify_all()

    def fail(self, error: CopyError) -> None:
        """Record the first error of the upload, and wake threads that wait for an earlier part."""
        with self.turn:
            self.error = self.error or error
            self.turn.notify_all()

    def are_last(self, parts: int = 1) -> bool:
        """Count parts as finished; return whether they were the last."""
        with self.turn:
            self.left -= parts
            return parts > 0 and self.left == 0


class Mover:
    """Copies objects with the threads and part sizes of `profile`; `stop` ends it early and aborts its uploads.

    The caller's thread calls `tick` every second while it waits. `left` has the destination names that may still have
    an upload, because an answer was lost or an abort failed. Raises CopyInputError when the destination does not
    accept the part sizes.
    """

    def __init__(
        self,
        source: Store,
        destination: Store,
        profile: Profile | None = None,
        stop: threading.Event | None = None,
        tick: Callable[[], None] = lambda: None,
    ) -> None:
        self.source = source
        self.destination = destination
        self.profile = profile or Profile()
        for _, settings in self.profile.steps:
            settings.check(destination.limits, destination.endpoint)
        self.stop = stop or threading.Event()
        self.tick = tick
        self.bytes = 0
        self.left: set[str] = set()
        self._finished: SimpleQueue[Outcome] = SimpleQueue()
        self._fatal: CopyInputError | None = None
        self._counting = threading.Lock()

    def copy(self, wanted: Iterable[Pending]) -> Iterator[Outcome]:
        """Copy objects and yield each outcome in the order in which they finish.

        An object's `version` is that of the source's listing; if it is empty, any current version is copied.

        Raises CopyInputError as soon as an endpoint refuses every request; running uploads are aborted first.
        """
        threads = self.profile.concurrency
        # Bounds the pool's queue, which could otherwise have millions of entries.
        self._room = threading.Semaphore(2 * threads)
        begun = ended = 0
        with ThreadPoolExecutor(threads, thread_name_prefix="storage") as self._pool:
            try:
                for one in wanted:
                    if self.stop.is_set():
                        break
                    begun += 1
                    self._begin(one)
                    with suppress(Empty):
                        while True:
                            outcome = self._finished.get_nowait()
                            ended += 1
                            yield outcome
                while ended < begun:
                    try:
                        outcome = self._finished.get(timeout=TICK_SECONDS)
                    except Empty:
                        self.tick()
                        continue
                    ended += 1
                    yield outcome
            finally:
                if ended < begun:
                    self.stop.set()
        if self._fatal:
            raise self._fatal

    def copy_one(self, wanted: Pending) -> str:
        """Copy one object and return its version at the destination. Raises CopyError when it cannot be copied."""
        outcomes = list(self.copy([wanted]))
        if not outcomes:
            raise CopyCancelled(STOPPED)
        if error := outcomes[0].error:
            raise error
        return outcomes[0].version

    def parts(self, size: int) -> list[Part]:
        """Return the parts of an object of this size; none when it is copied in one piece."""
        return self.profile.for_size(size).parts(size, self.destination.limits)

    def _begin(self, one: Pending) -> None:
        try:
            if reason := self.destination.refused(one.destination_object):
                raise CopyObjectError(f"{self.destination.name} cannot store {one.destination_object!r}: {reason}")
            parts = self.parts(one.size)
            if not parts:
                self._submit(self._whole, one)
                return
            head, upload = self._prepared(one)
        except CopyError as e:
            self._end(one, error=e)
            return
        under_way = _Upload(one, head, upload, len(parts))
        submitted = 0
        try:
            for part in parts:
                self._submit(self._part, under_way, part)
                submitted += 1
        except BaseException:  # even if this thread must exit, the thread of the last part aborts the upload
            under_way.fail(CopyCancelled(STOPPED))
            if under_way.are_last(len(parts) - submitted):
                self._complete(under_way)
            raise

    def _prepared(self, one: Pending) -> tuple[Head, str]:
        """Return the state of an object and the id of a new upload for it. Raises CopyError."""
        try:
            head = self._again(lambda: self.source.head(one.object))
            self._same(one, head)
            return head, self._again(lambda: self._begin_upload(one.destination_object, head))
        except CopyError:
            raise
        except Exception as e:
            raise _unexpected(self.source, one, e) from e

    def _begin_upload(self, key: str, head: Head) -> str:
        try:
            return self.destination.begin(key, head)
        except (CopyInputError, CopyObjectError):
            raise
        except Exception:  # the answer may be lost
            self.left.add(key)
            raise

    def _submit(self, work: Callable[..., None], *arguments: object) -> None:
        while not self._room.acquire(timeout=TICK_SECONDS):
            self.tick()

        def run() -> None:
            try:
                work(*arguments)
            finally:
                self._room.release()

        self._pool.submit(run)

    def _same(self, one: Pending, head: Head) -> None:
        if head.size != one.size or (one.version and head.version and head.version != one.version):
            raise changed(f"{self.source.name}/{one.object}")

    def _whole(self, one: Pending) -> None:
        try:
            head, body = self._again(lambda: self.source.fetch(one.object, one.size))
            self._same(one, head)
            self._compare(one, head, hashlib.md5(body, usedforsecurity=False).hexdigest() if head.md5 else "")
            version = self._again(lambda: self.destination.put(one.destination_object, body, head))
        except CopyError as e:
            self._end(one, error=e)
        except Exception as e:
            self._end(one, error=_unexpected(self.source, one, e))
        else:
            self._count(len(body))
            self._end(one, version)

    def _part(self, upload: _Upload, part: Part) -> None:
        one = upload.wanted
        try:
            if upload.error is None:
                body = self._again(lambda: self.source.fetch_range(one.object, upload.head, part.start, part.size))
                upload.hash(part, body)
                if upload.error is None:
                    upload.tags[part.number - 1] = self._again(
                        lambda: self.destination.put_part(one.destination_object, upload.id, part.number, body)
                    )
                    self._count(part.size)
        except CopyError as e:
            upload.fail(e)
        except Exception as e:
            upload.fail(_unexpected(self.source, one, e))
        if upload.are_last():
            self._complete(upload)

    def _complete(self, upload: _Upload) -> None:
        one, key = upload.wanted, upload.wanted.destination_object
        try:
            if upload.error:
                raise upload.error
            self._compare(one, upload.head, upload.digest.hexdigest() if upload.head.md5 else "")
            version = self._again(lambda: self.destination.complete(key, upload.id, upload.tags))
        except Exception as e:
            self._abort(key, upload.id)
            self._end(one, error=e if isinstance(e, CopyError) else _unexpected(self.source, one, e))
        else:
            self._end(one, version)

    def _abort(self, key: str, upload: str) -> None:
        try:
            self.destination.abort(key, upload)
        except Exception as e:
            self.left.add(key)
            log.warning("%r: cannot abort an upload, a later run aborts it: %s", key, e)

    def _compare(self, one: Pending, head: Head, md5: str) -> None:
        if md5 != head.md5:
            raise CopyTransientError(
                f"{self.source.name}/{one.object}: received MD5 {md5}, the source states {head.md5}"
            )

    def _again(self, request: Callable[[], _T]) -> _T:
        for attempt in range(ATTEMPTS):
            if self.stop.is_set():
                raise self._fatal or CopyCancelled(STOPPED)
            try:
                return request()
            except CopyTransientError as e:
                if attempt == ATTEMPTS - 1:
                    raise
                log.info("retrying: %s", " ".join(str(e).split()))
                self.stop.wait(DELAY * 2**attempt)
        raise AssertionError("there is at least one attempt")

    def _count(self, size: int) -> None:
        with self._counting:
            self.bytes += size

    def _end(self, one: Pending, version: str = "", error: CopyError | None = None) -> None:
        if isinstance(error, CopyInputError):
            self._fatal = self._fatal or error
            self.stop.set()
        if error:
            # the frames of a traceback would keep the object's bytes in memory until the outcome is consumed
            error.__traceback__ = error.__cause__ = error.__context__ = None
        self._finished.put(Outcome(one, version, error))


def _unexpected(source: Store, one: Pending, error: Exception) -> CopyError:
    log.exception("unexpected error of %r in %s", one.object, source.name, exc_info=error)
    return CopyObjectError(f"{one.object!r} in {source.name}: {error!r}")
