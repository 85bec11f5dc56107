"""Containers made of nested elements: MP4 and QuickTime, Matroska and WebM, ASF (WMA).

Formats: ISO/IEC 14496-12, RFC 8794 and RFC 9559, Microsoft's ASF specification 01.20.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator

from storeside.transformers import audio_errors as errors

from .stated import Bytes, Stated, big, bytes_after, little

_MOST_BOXES = 100_000
_MOST_ELEMENTS = 256
_TOP_BOXES = frozenset(
    b"ftyp moov mdat free skip wide pnot udta uuid meta moof mfra sidx styp emsg ssix prft pdin bloc".split()
)


def _boxes(content: Bytes, at: int, end: int) -> Iterator[tuple[bytes, int, int]]:
    """Yield name, start of the body and end of each box; a box with size 0 ends at `end`."""
    for _ in range(_MOST_BOXES):
        head = content.at(at, 16)
        if len(head) < 8 or at + 8 > end:
            return
        size, start = big(head[:4]), at + 8
        if size == 1 and len(head) == 16:
            size, start = big(head[8:]), at + 16
        elif size == 0:
            size = end - at
        if size < start - at:
            return
        yield head[4:8], start, at + size
        at += size


def mp4(content: Bytes, at: int) -> Stated:
    """Read the top-level boxes, and the length that the index declares for the first audio track."""
    moov: tuple[int, int] | None = None
    is_open, end = False, at
    for name, start, stop in _boxes(content, at, content.size):
        if name not in _TOP_BOXES:
            break
        if stop > content.size:
            if name == b"mdat" or moov is None:
                raise errors.truncated_bytes(max(0, content.size - start), stop - start)
            break
        moov = (start, stop) if name == b"moov" else moov
        # Fragments are written one after another, and no box declares their number.
        is_open = is_open or name == b"moof" or (name == b"mdat" and big(content.at(start - 8, 4)) == 0)
        end = stop
    if moov is None:
        return Stated(content.size)
    ignored = bytes_after(content.size - end, "last box")
    seconds = _track_seconds(content, *moov)
    if is_open:
        return Stated(end, ignored)
    return Stated(end, ignored, "yes", seconds=seconds)


def _inside(content: Bytes, place: tuple[int, int], *path: bytes) -> tuple[int, int] | None:
    """Return start and end of the body of the first box at this path of names."""
    for wanted in path:
        found = next(((start, end) for name, start, end in _boxes(content, *place) if name == wanted), None)
        if found is None:
            return None
        place = found
    return place


def _track_seconds(content: Bytes, start: int, end: int) -> float | None:
    """Return the duration of the first audio track in seconds, after its edit list."""
    scale = 0
    for name, body, stop in _boxes(content, start, end):
        if name == b"mvhd":
            head = content.at(body, 32)
            scale = big(head[20:24] if head[:1] == b"\1" else head[12:16])
        if name == b"trak":
            kind = _inside(content, (body, stop), b"mdia", b"hdlr")
            header = _inside(content, (body, stop), b"tkhd")
            if kind and header and content.at(kind[0], 12)[8:] == b"soun":
                head = content.at(header[0], 36)
                units = big(head[28:36] if head[:1] == b"\1" else head[20:24])
                return units / scale if scale and 0 < units < 0xFFFFFFFF else None
    return None


# --- Matroska

_SEGMENT, _INFO, _TRACKS, _TRACK, _CLUSTER = 0x18538067, 0x1549A966, 0x1654AE6B, 0xAE, 0x1F43B675
_SCALE, _DURATION = 0x2AD7B1, 0x4489


def _number(content: Bytes, at: int, keeps_mark: bool) -> tuple[int, int]:
    """Return a number of variable size and its size in bytes; (-1, size) if all bits are set, (0, 0) without one."""
    head = content.at(at, 8)
    if not head or not head[0]:
        return 0, 0
    size = 9 - head[0].bit_length()
    if len(head) < size:
        return 0, 0
    value = big(head[:size])
    if keeps_mark:
        return value, size
    value &= (1 << 7 * size) - 1
    return (-1 if value == (1 << 7 * size) - 1 else value), size


def _elements(content: Bytes, at: int, end: int) -> Iterator[tuple[int, int, int]]:
    """Yield identifier, start of the body and size (-1 if not declared) of each element."""
    for _ in range(_MOST_ELEMENTS):
        name, a = _number(content, at, True)
        size, b = _number(content, at + a, False)
        if at >= end or not a or not b:
            return
        yield name, at + a + b, size
        if size < 0:
            return
        at += a + b + size


def matroska(content: Bytes, at: int) -> Stated:
    """Read the size of the segment and the duration of the recording."""
    segment = next(((s, n) for name, s, n in _elements(content, at, content.size) if name == _SEGMENT), None)
    if segment is None:
        return Stated(content.size)
    start, size = segment
    end = start + size if size >= 0 else content.size
    if end > content.size:
        raise errors.truncated_bytes(content.size - start, size)
    seconds, tracks = None, 0
    for name, body, length in _elements(content, start, end):
        if name == _CLUSTER:
            break
        if name == _INFO:
            seconds = _matroska_seconds(content, body, body + length)
        if name == _TRACKS:
            tracks = sum(kind == _TRACK for kind, _, _ in _elements(content, body, body + length))
    if size >= 0:
        return Stated(end, bytes_after(content.size - end, "segment"), "yes", seconds=seconds)
    # The duration is that of the longest track, so it is exact only for a single track.
    is_exact = seconds is not None and tracks == 1
    return Stated(
        content.size, complete="yes" if is_exact else "unknown", seconds=seconds, is_exact=is_exact, slack=8_192
    )


def _matroska_seconds(content: Bytes, start: int, end: int) -> float | None:
    scale, duration = 1_000_000, 0.0
    for name, body, size in _elements(content, start, end):
        if name == _SCALE:
            scale = big(content.at(body, min(max(size, 0), 8)))
        if name == _DURATION and size in (4, 8):
            number = content.at(body, size)
            duration = struct.unpack(">f" if size == 4 else ">d", number)[0] if len(number) == size else 0.0
    seconds = duration * scale / 1e9
    return seconds if 0 < seconds < math.inf else None


# --- ASF

_ASF_PROPERTIES = bytes.fromhex("a1dcab8c47a9cf118ee400c00c205365")


def asf(content: Bytes, at: int) -> Stated:
    """Read the file properties of Windows Media Audio."""
    end = at + little(content.at(at + 16, 8))
    place = at + 30
    for _ in range(_MOST_ELEMENTS):
        head = content.at(place, 104)
        size = little(head[16:24])
        if len(head) < 24 or place >= end or size < 24:
            break
        if head[:16] == _ASF_PROPERTIES and len(head) == 104:
            return _asf_length(content, at, head)
        place += size
    return Stated(content.size)


def _asf_length(content: Bytes, at: int, head: bytes) -> Stated:
    size, duration, preroll, flags = (little(head[a:b]) for a, b in ((40, 48), (64, 72), (80, 88), (88, 92)))
    if flags & 1 or not size:  # broadcast: sizes and durations are not valid
        return Stated(content.size)
    if content.size - at < size:
        raise errors.truncated_bytes(content.size - at, size)
    seconds = duration / 1e7 - preroll / 1e3
    ignored = bytes_after(content.size - at - size, "last packet")
    return Stated(at + size, ignored, "yes", seconds=seconds if seconds > 0 else None)
