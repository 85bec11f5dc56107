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


# A damaged container sends libav to offsets that no file has. An offset behind the end counts as the end, also where
# the system does not accept it, and an offset before the beginning is a failed seek. An exception instead would
# make the object's failure one that is tried again, and PyAV prints exceptions that it cannot raise.
_NO_SUCH_PLACE = -errno.EINVAL


class _File(io.FileIO):
    size: int
    stated: Stated
    is_bounded = False

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        offset, whence, base = _placed(self, offset, whence)
        try:
            return super().seek(offset, whence) - base
        except OSError:
            if offset < 0:
                return _NO_SUCH_PLACE
            super().seek(0, io.SEEK_END)
            return offset - base

    def tell(self) -> int:
        return super().tell() - (self.stated.start if self.is_bounded else 0)

    def read(self, size: int | None = -1, /) -> bytes:
        return super().read(_bounded(self, size) if self.is_bounded else size)


class _Content(io.BytesIO):
    size: int
    stated: Stated
    is_bounded = False

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        offset, whence, base = _placed(self, offset, whence)
        try:
            return super().seek(offset, whence) - base
        except ValueError:
            return _NO_SUCH_PLACE

    def tell(self) -> int:
        return super().tell() - (self.stated.start if self.is_bounded else 0)

    def read(self, size: int | None = -1, /) -> bytes:
        return super().read(_bounded(self, size) if self.is_bounded else size)


Input: TypeAlias = _File | _Content


def _placed(data: Input, offset: int, whence: int) -> tuple[int, int, int]:
    """Return the object's offset of an offset in the recording, and where the recording begins."""
    if not data.is_bounded:
        return offset, whence, 0
    start = data.stated.start
    if whence == io.SEEK_CUR:
        return offset, whence, start
    place = offset + (start if whence == io.SEEK_SET else data.stated.end)
    return (place if place >= start else -1), io.SEEK_SET, start


def _bounded(data: Input, size: int | None) -> int:
    left = max(0, data.stated.end - data.stated.start - data.tell())
    return left if size is None or size < 0 else min(size, left)
