"""Where an object's content comes from: its file, the target, or the request."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import quote

from .http_client import DeliveryError, HttpClient
from .job import Job
from .settings import Settings
from .transformer import Source


class Sources:
    """Opens objects for a transformer, as their file or as their content."""

    def __init__(self, settings: Settings, client: HttpClient) -> None:
        self._settings = settings
        self._client = client

    @contextmanager
    def open(self, job: Job, content: bytes | memoryview) -> Iterator[Source]:
        """Yield the object's file or content, and check that the file does not change in between.

        Raises DeliveryError when the object cannot be read completely.
        """
        if job.needs_content:
            yield bytes(content)
        elif not job.file or _in_chunks(job.file):
            yield self._fetch(job)
        elif self._settings.file_access:
            with _opened(job.file) as descriptor:
                before = _version(os.fstat(descriptor))
                try:
                    yield job.file
                finally:  # also when the transform failed, which a changed file then explains
                    _require(job.file, before)
        else:
            with _opened(job.file) as descriptor:
                content = _read(descriptor)
            yield content

    def _fetch(self, job: Job) -> bytes:
        if not self._settings.target_url:
            raise DeliveryError("AIS_TARGET_URL is not set: the object cannot be fetched")
        query = "?latest-ver=true" if job.latest else ""
        url = f"{self._settings.target_url}/{quote(os.fsencode(job.uname), safe='@')}{query}"
        answer = self._client.request("GET", url)
        if answer.status != 200:
            raise DeliveryError(f"the target does not hand out the object: {answer.reason}")
        return answer.body


def _in_chunks(path: str) -> bool:
    """Whether the file is only the first chunk of its object, as after a multipart upload.

    AIStore 5.0 passes its path nevertheless (ext/etl: "TODO -- FIXME: consider chunked case"); such objects have a
    manifest beside them (fs/content.go, core/ufest.go).
    """
    manifest = path.replace("/%ob/", "/%ut/", 1)
    return manifest != path and os.path.lexists(manifest)


@contextmanager
def _opened(path: str) -> Iterator[int]:
    try:
        # Refuses a symbolic link, which may lead elsewhere, and a pipe, which would block.
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as e:
        raise DeliveryError(f"the object's file cannot be opened: {e.strerror}") from e
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise DeliveryError("what should be the object's file is not a file")
        yield descriptor
    finally:
        os.close(descriptor)


def _read(descriptor: int) -> bytes:
    with open(descriptor, "rb", buffering=0, closefd=False) as file:
        content = file.readall()
        if len(content) != os.fstat(descriptor).st_size:
            raise DeliveryError("the object changed while it was being read")
        return content


def _version(status: os.stat_result) -> tuple[int, int, int]:
    return status.st_ino, status.st_size, status.st_mtime_ns


def _require(path: str, version: tuple[int, int, int]) -> None:
    try:
        same = _version(os.lstat(path)) == version
    except OSError:
        same = False
    if not same:
        raise DeliveryError("the object changed while it was being transformed")
