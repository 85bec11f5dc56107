"""Opens an audio object, and checks its container before libav reads it."""

from __future__ import annotations

import errno
import io
from typing import TypeAlias

from storeside.transformers.transformer import open_source

from . import errors
from .containers.stated import Stated
from .containers.survey import survey

# libav's names of the containers that contain audio and cannot refer to other files. Playlists (hls, concat, dash,
# sdp) are excluded on purpose: libav would open files that the author of a playlist chooses.
CONTAINERS = (
    "aac,ac3,aiff,amr,ape,asf,au,caf,dsf,eac3,flac,iff,matroska,webm,mov,mp4,m4a,3gp,3g2,mj2,mp3,ogg,tta,w64,wav,wv"
)
# Sample rates of recordings in Hz. Other rates are damage, and a tiny object at 1 Hz would become a huge result.
SOURCE_RATES = range(1_000, 768_001)


def open_input(source: str | bytes | bytearray | memoryview) -> Input:
    """Open an object's content or its file, unbuffered.

    The returned file has the attributes `size`, in bytes, and `stated`, the container's declared length. Reads end at
    the end of the recording, before tags or other bytes after it. Raises AudioError for an empty object, and for one
    with fewer bytes than its container declares.
    """
    # Open by descriptor, so that libav sees no file name: it would guess the format from the name and resolve
    # references relative to it.
    data: _File | _Content = _File(open_source(source)) if isinstance(source, str) else _Content(source)
    try:
        if not data.read(1):
            raise errors.empty()
        data.size = data.seek(0, io.SEEK_END)
        found = survey(data)
        if found.head:
            return _Headed(data, found)
        data.stated, data.is_bounded = found, (found.start, found.end) != (0, data.size)
        data.seek(0)
    except BaseException:
        data.close()
        raise
    return data


_NO_SUCH_PLACE = -errno.EINVAL


class _Recording:
    """Reads a recording in a file of `io`, the next base class; reads end at the end of the recording.

    A damaged container makes libav seek to offsets that do not exist. An offset after the end counts as the end, even
    if the system rejects it, and an offset before the start is a failed seek. This class raises no exception for
    them: PyAV would print the exception, and AIStore would try the object again.
    """

    size: int
    stated: Stated
    is_bounded = False

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        offset, whence, base = self._placed(offset, whence)
        try:
            return super().seek(offset, whence) - base  # type: ignore[misc, no-any-return]
        except (OSError, ValueError):
            if offset < 0:
                return _NO_SUCH_PLACE
            super().seek(0, io.SEEK_END)  # type: ignore[misc]
            return offset - base

    def tell(self) -> int:
        place: int = super().tell()  # type: ignore[misc]
        return place - (self.stated.start if self.is_bounded else 0)

    def read(self, size: int | None = -1, /) -> bytes:
        return super().read(self._bounded(size) if self.is_bounded else size)  # type: ignore[misc, no-any-return]

    def _placed(self, offset: int, whence: int) -> tuple[int, int, int]:
        """Return the offset in the object for an offset in the recording, `whence`, and the recording's start."""
        if not self.is_bounded:
            return offset, whence, 0
        start = self.stated.start
        if whence == io.SEEK_CUR:
            return offset, whence, start
        place = offset + (start if whence == io.SEEK_SET else self.stated.end)
        return (place if place >= start else -1), io.SEEK_SET, start

    def _bounded(self, size: int | None) -> int:
        left = max(0, self.stated.end - self.stated.start - self.tell())
        return left if size is None or size < 0 else min(size, left)


class _File(_Recording, io.FileIO):
    pass


class _Content(_Recording, io.BytesIO):
    pass


class _Headed(io.RawIOBase):
    """Reads the header that replaces a recording's own one, and then the recording's samples."""

    def __init__(self, data: _File | _Content, stated: Stated) -> None:
        self.size, self.stated = data.size, stated
        self._data = data
        self._head = stated.head
        self._end = len(self._head) + stated.end - stated.start
        self._at = 0

    def fileno(self) -> int:
        return self._data.fileno()

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        place = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._end}[whence]
        if place < 0:
            return _NO_SUCH_PLACE
        self._at = place
        return place

    def tell(self) -> int:
        return self._at

    def read(self, size: int | None = -1, /) -> bytes:
        left = max(0, self._end - self._at)
        size = left if size is None or size < 0 else min(size, left)
        made = self._head[self._at : self._at + size]
        if len(made) < size:
            self._data.seek(self.stated.start + self._at + len(made) - len(self._head))
            made += self._data.read(size - len(made))
        self._at += len(made)
        return made

    def close(self) -> None:
        self._data.close()
        super().close()


Input: TypeAlias = _File | _Content | _Headed
