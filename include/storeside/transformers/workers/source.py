"""Reads an object's content from its file, from the target, or from the request."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeAlias
from urllib.parse import quote

from storeside.transformers.contract.job import Job, place_of
from storeside.transformers.settings import Settings
from storeside.transformers.transformer import Data

from . import decoder, wire
from .http_client import DeliveryError, HttpClient, reason
from .pipe import filled

# An object as its path, as an open file's descriptor, or as its content.
Given: TypeAlias = str | int | Data


class Sources:
    """Opens objects for a decoder, which `takes` files by path, opened, or copied into memory."""

    def __init__(self, settings: Settings, client: HttpClient, takes: str) -> None:
        self._settings = settings
        self._client = client
        self._takes = takes
        self._roots = [os.path.realpath(root) for root in settings.roots]

    @contextmanager
    def open(self, job: Job, content: Data) -> Iterator[Given]:
        """Yield the object's file or content, and check that the file does not change meanwhile.

        Raises DeliveryError if the object cannot be read completely.
        """
        if job.needs_content:
            yield content
        elif not job.file or _in_chunks(job.file):
            yield self._fetch(job)
        elif not self._settings.file_access:
            with self._opened(job.file) as descriptor:
                content = self._read(descriptor)
            yield content
        else:
            with self._unchanged(job.file) as descriptor, self._given(job.file, descriptor) as given:
                yield given

    @contextmanager
    def stream(self, job: Job, content: int | Data) -> Iterator[int | Data]:
        """Yield the object as an open file, which may be a pipe; content that came with the request stays as it is.

        Raises DeliveryError at the end if the object was not read completely, or changed.
        """
        if job.needs_content:
            yield content
        elif not job.file or _in_chunks(job.file):
            url = self._url(job)
            try:
                with self._client.download(url) as answer:
                    if answer.status != 200:
                        raise DeliveryError(f"the target does not return the object: {reason(answer)}")
                    with filled(answer.pieces) as reader:
                        yield reader
            except OSError as e:
                raise DeliveryError(f"the target did not return the whole object: {e}") from e
        else:
            with self._unchanged(job.file) as descriptor:
                yield descriptor

    @contextmanager
    def _unchanged(self, path: str) -> Iterator[int]:
        with self._opened(path) as descriptor:
            before = _version(os.fstat(descriptor))
            try:
                yield descriptor
            finally:  # also after a failed transform, which a changed file may explain
                _require(path, before)

    @contextmanager
    def _given(self, path: str, descriptor: int) -> Iterator[Given]:
        if self._takes == decoder.PATH:
            yield path
        elif self._takes == decoder.OPENED:
            yield descriptor
        else:
            self._require_size(descriptor)
            copy = wire.copied(descriptor)
            try:
                yield copy
            finally:
                os.close(copy)

    @contextmanager
    def _opened(self, path: str) -> Iterator[int]:
        """Open an object's file below the mounted roots; no part of its path may be a symbolic link."""
        try:
            # O_NONBLOCK: opening a pipe must not wait for its writer.
            descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as e:
            raise DeliveryError(f"the object's file cannot be opened: {e.strerror}") from e
        try:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                raise DeliveryError("the path of the object's file is not a regular file")
            if not status.st_nlink:
                raise DeliveryError("the object changed while it was being opened")
            self._require_place(path, os.readlink(f"/proc/self/fd/{descriptor}"))
            yield descriptor
        finally:
            os.close(descriptor)

    def _require_place(self, path: str, opened: str) -> None:
        root = next((root for root in self._roots if opened.startswith(f"{root.rstrip('/')}/")), None)
        if root is None:
            raise DeliveryError(
                f"{path!r} is not below a mounted folder of AIStore; AIS_MOUNTS lists further folders", final=True
            )
        if not opened.endswith(place_of(path)):
            raise DeliveryError(f"{path!r} is a link to another path", final=True)

    def _require_size(self, descriptor: int) -> None:
        if os.fstat(descriptor).st_size > self._settings.largest_body:
            limit = self._settings.largest_body
            raise DeliveryError(f"the object has more than {limit} bytes ({self._settings.body_limit})", final=True)

    def _read(self, descriptor: int) -> bytes:
        self._require_size(descriptor)
        with open(descriptor, "rb", buffering=0, closefd=False) as file:
            content = file.readall()
            if len(content) != os.fstat(descriptor).st_size:
                raise DeliveryError("the object changed while it was being read")
            return content

    def _fetch(self, job: Job) -> bytes:
        answer = self._client.request("GET", self._url(job))
        if answer.status != 200:
            raise DeliveryError(f"the target does not return the object: {reason(answer)}")
        return answer.body

    def _url(self, job: Job) -> str:
        if not self._settings.target_url:
            raise DeliveryError("AIS_TARGET_URL is not set: the object cannot be fetched")
        query = "?latest-ver=true" if job.latest else ""
        return f"{self._settings.target_url}/{quote(os.fsencode(job.uname), safe='@')}{query}"


def _in_chunks(path: str) -> bool:
    """Return whether the file is only the first chunk of its object, as after a multipart upload.

    AIStore 5.0 passes the path of this chunk (ext/etl: "TODO -- FIXME: consider chunked case"). Such an object has a
    manifest beside its file (fs/content.go, core/ufest.go).
    """
    manifest = path.replace("/%ob/", "/%ut/", 1)
    return manifest != path and os.path.lexists(manifest)


def _version(status: os.stat_result) -> tuple[int, int, int]:
    return status.st_ino, status.st_size, status.st_mtime_ns


def _require(path: str, version: tuple[int, int, int]) -> None:
    try:
        same = _version(os.lstat(path)) == version
    except OSError:
        same = False
    if not same:
        raise DeliveryError("the object changed while it was being transformed")
