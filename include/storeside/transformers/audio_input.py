"""Open an audio object, and check it before libav reads it."""

from __future__ import annotations

import errno
import io
from typing import TypeAlias

from . import audio_errors as errors
from .containers.stated import Stated
from .containers.survey import survey
from .transformer import open_source

# libav's names of the containers that hold audio and cannot refer to other files. Playlists (hls, concat,
# dash, sdp) are left out on purpose: they make libav open files that a recording's author names.
CONTAINERS = (
    "aac,ac3,aiff,amr,ape,asf,au,caf,dsf,eac3,flac,iff,matroska,webm,mov,mp4,m4a,3gp,3g2,mj2,mp3,ogg,tta,w64,wav,wv"
)
# Rates of recordings: a rate outside is damage, and a tiny object at 1 Hz would become a huge result.
SOURCE_RATES = range(1_000, 768_001)


def open_input(source: str | bytes | bytearray | memoryview) -> Input:
    """Open an object's content or the file that holds it, unbuffered.

    `size` is in bytes, `stated` is what its container states; reads end at the end of the recording, before tags or
    other bytes behind it.
    Raises AudioError for an empty object and for one that has fewer bytes than its container states.
    """
    # By descriptor, so that the file has no name: otherwise libav would guess the format from the name and resolve
    # references against it.
    data: Input = _File(open_source(source)) if isinstance(source, str) else _Content(source)
    try:
        if not data.read(1):
            raise errors.empty()
        data.size = data.seek(0, io.SEEK_END)
        found = survey(data)
        data.stated, data.is_bounded = found, (found.start, found.end) != (0, data.size)
        data.seek(0)
    except BaseException:
        data.close()
        raise
    return data


_NO_SUCH_PLACE = -errno.EINVAL


class _Recording:
    """Reads a recording in a file of `io`, the next base class; reads end at the recording's end.

    A damaged container sends libav to offsets that no file has. An offset behind the end counts as the end, also if
    the system does not accept it, and an offset before the beginning is a failed seek. After an exception the object
    would be tried again, and PyAV prints exceptions that it cannot raise.
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
        """Return the object's offset of an offset in the recording, and where the recording begins."""
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


Input: TypeAlias = _File | _Content
