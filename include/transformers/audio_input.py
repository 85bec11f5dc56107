"""How an audio object is opened, and what is checked before libav sees it."""

from __future__ import annotations

import errno
import io
import os
import struct
from typing import BinaryIO

from . import audio_errors as errors

# libav's names of the containers that hold audio and cannot refer to other files. Playlists (hls, concat,
# dash, sdp) are left out on purpose: they make libav open what a recording's author names.
CONTAINERS = "aac,aiff,caf,flac,matroska,webm,mov,mp4,m4a,3gp,3g2,mj2,mp3,ogg,w64,wav"
# Rates of recordings: beyond them is damage, and a tiny object at 1 Hz would become a huge result.
SOURCE_RATES = range(1_000, 768_001)
# Sizes from here on stand in WAV files that were written to a pipe, whose writer did not know the size.
_UNKNOWN_SIZE = 0x7FFF0000


def open_input(source: str | bytes | bytearray | memoryview) -> BinaryIO:
    """Open an object's content or the file that holds it, unbuffered.

    Raises AudioError for an empty object and for a WAV file that is shorter than it declares.
    """
    # By descriptor, so that the file has no name: libav would guess the format from it, and resolve
    # references against it.
    data: BinaryIO = (
        _File(os.open(source, os.O_RDONLY | os.O_CLOEXEC)) if isinstance(source, str) else _Content(source)
    )
    try:
        head = data.read(12)
        if not head:
            raise errors.empty()
        if head[:4] == b"RIFF" and head[8:] == b"WAVE":
            _refuse_truncated_wav(data)
        data.seek(0)
    except BaseException:
        data.close()
        raise
    return data


# A damaged container sends libav to places that no file has. What lies behind the end is the end, also where the
# system knows no such offset, and what lies before the beginning is a failed seek. An exception instead would make
# the object one that is tried again, and PyAV prints those that it cannot raise.
_NO_SUCH_PLACE = -errno.EINVAL


class _File(io.FileIO):
    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        try:
            return super().seek(offset, whence)
        except OSError:
            if offset < 0:
                return _NO_SUCH_PLACE
            super().seek(0, io.SEEK_END)
            return offset


class _Content(io.BytesIO):
    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        try:
            return super().seek(offset, whence)
        except ValueError:
            return _NO_SUCH_PLACE


def _refuse_truncated_wav(data: BinaryIO) -> None:
    """Compare what a WAV file declares with what is there: libav ends without a word where the file does."""
    rate = 0  # bytes per second
    while len(head := data.read(8)) == 8:
        name, size = head[:4], int.from_bytes(head[4:], "little")
        start = data.tell()
        if name == b"data":
            there = data.seek(0, io.SEEK_END) - start
            if size < _UNKNOWN_SIZE and there < size - rate // 100:
                raise errors.AudioError(f"truncated: {there} of {size} declared bytes of samples are there")
            return
        if name == b"fmt " and len(form := data.read(16)) == 16:
            (rate,) = struct.unpack_from("<I", form, 8)
        data.seek(start + size + size % 2)
