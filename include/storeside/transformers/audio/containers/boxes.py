"""Containers made of nested elements: MP4 and QuickTime, Matroska and WebM, ASF (WMA).

Formats: ISO/IEC 14496-12, RFC 8794 and RFC 9559, Microsoft's ASF specification 01.20.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator

from storeside.transformers.audio import errors

from . import tracks
from .stated import FRAGMENTS, TOLERANCE_SECONDS, Buffered, Bytes, Stated, big, bytes_after, little

_MOST_ELEMENTS = 256
_TOP_BOXES = frozenset(
    b"ftyp moov mdat free skip wide pnot udta uuid meta moof mfra sidx styp emsg ssix prft pdin bloc".split()
)


def mp4(content: Bytes, at: int) -> Stated:
    """Read the top-level boxes, and the length that the index declares for the first audio track."""
    moov: tuple[int, int] | None = None
    is_open, end, another = False, at, 0
    moofs: list[tuple[int, int]] = []
    for name, start, stop in tracks.boxes(content, at, content.size):
        if name not in _TOP_BOXES:
            continue  # belongs to the recording if a known one follows
        if stop > content.size:
            if name == b"mdat" or moov is None:
                raise errors.truncated_bytes(max(0, content.size - start), stop - start)
            break
        if name == b"ftyp" and moov and not another:
            another = end
        moov = moov or ((start, stop) if name == b"moov" else None)
        # Fragments are written one after another, and no box declares their number.
        moofs += [(start, stop)] if name == b"moof" else []
        is_open = is_open or name == b"moof" or (name == b"mdat" and big(content.at(start - 8, 4)) == 0)
        end = stop
    if moov is None:
        return Stated(content.size)
    tracks.require_layout(content, moov)
    if another and not is_open:  # libav reads the first of several recordings, and fragments of all
        end = another
    ignored = bytes_after(content.size - end, "last box")
    seconds, length = tracks.shown_seconds(content, *moov), tracks.length(content, moov, moofs)
    kept = (length.seconds,) if length and length.seconds else ()
    if is_open:
        return Stated(end, ignored, kept_seconds=kept, form=FRAGMENTS if length and length.delay else "")
    return Stated(
        end,
        ignored,
        "yes",
        kept[0] if kept else seconds,
        tolerance=TOLERANCE_SECONDS,
        kept_seconds=kept,
        keeps_edges=bool(length and length.is_aac),
    )


# --- Matroska

_SEGMENT, _INFO, _TRACKS, _TRACK, _CLUSTER = 0x18538067, 0x1549A966, 0x1654AE6B, 0xAE, 0x1F43B675
_SCALE, _DURATION = 0x2AD7B1, 0x4489
_BLOCK_GROUP = 0xA0
# The elements of a segment, a cluster and a group of blocks; and those of a live recording that follows another one.
_PARTS = frozenset((
    *(0x114D9B74, _INFO, _TRACKS, _CLUSTER, 0x1C53BB6B, 0x1941A469, 0x1043A770, 0x1254C367, 0xEC, 0xBF),
    *(0xE7, 0x5854, 0xA7, 0xAB, 0xA3, _BLOCK_GROUP, 0xAF),
    *(0xA1, 0xA2, 0x75A1, 0x9B, 0xFA, 0xFB, 0xFD, 0xA4, 0x75A2, 0x8E, 0xC8, 0xCB),
    *(0x1A45DFA3, _SEGMENT),
))  # fmt: skip
# More elements than 12 hours have in blocks of 20 ms.
_MOST_BLOCKS = 3_000_000
_AHEAD = 4 << 10


def _head(content: Bytes | Buffered, at: int) -> tuple[int, int, int]:
    """Return an element's identifier, its size (-1 if it declares none), and the size of both numbers.

    The last is 0 without an element at this offset.
    """
    head = content.at(at, 16)
    name, a = _number(head)
    size, b = _number(head[a:])
    mark = 1 << 7 * b
    size &= mark - 1
    return name, (-1 if size == mark - 1 else size), a + b if a and b else 0


def _number(head: bytes) -> tuple[int, int]:
    """Return a number of variable size, with the bit that marks the size, and its size in bytes; 0 without one."""
    if not head or not head[0]:
        return 0, 0
    size = 9 - head[0].bit_length()
    return (big(head[:size]), size) if len(head) >= size else (0, 0)


def _elements(content: Bytes, at: int, end: int) -> Iterator[tuple[int, int, int]]:
    """Yield identifier, start of the body and size (-1 if not declared) of each element."""
    for _ in range(_MOST_ELEMENTS):
        name, size, head = _head(content, at)
        if at >= end or not head:
            return
        at += head
        yield name, at, size
        if size < 0:
            return
        at += size


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
    # The duration is that of the longest track, so it is exact only for a single track.
    is_exact = seconds is not None and tracks == 1
    broken = _break(Buffered(content, _AHEAD), start, end)
    if broken is not None and size < 0 and not _goes_on(content, broken + 1):
        broken = None  # a live recording ends anywhere
    if broken is not None and not is_exact:
        raise errors.damaged_at("element", broken)
    # libav continues at the next cluster after a break, and decodes less without an error.
    return Stated(
        end,
        bytes_after(content.size - end, "segment"),
        "yes" if broken is None and (size >= 0 or is_exact) else "unknown",
        seconds=seconds,
        is_exact=is_exact and (size < 0 or broken is not None),
        slack=8_192,
    )


def _break(content: Buffered, at: int, end: int) -> int | None:
    """Return the offset at which no element is, of a segment's body; None if its elements reach its end."""
    ends = [end]
    for _ in range(_MOST_BLOCKS):
        while at == ends[-1]:
            ends.pop()
            if not ends:
                return None
        name, size, head = _head(content, at)
        if name not in _PARTS or not head or (size < 0 and name not in (_CLUSTER, _SEGMENT)):
            return at
        body = at + head
        if size < 0:  # its elements end where the next cluster or segment starts
            at = body
        elif body + size > ends[-1]:
            return at
        elif name in (_CLUSTER, _BLOCK_GROUP, _SEGMENT):
            at = body
            ends.append(body + size)
        else:
            at = body + size
    return None


def _goes_on(content: Bytes, at: int) -> bool:
    return Buffered(content, 1 << 20).find(_CLUSTER.to_bytes(4, "big"), at) >= 0


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
_ASF_DATA = bytes.fromhex("3626b2758e66cf11a6d900aa0062ce6c")
_ASF_INDEXES = (
    bytes.fromhex("90080033b1e5cf1189f400a0c90349cb"),  # simple
    bytes.fromhex("d329e2d6da35d111903400a0c90349be"),  # plain
    bytes.fromhex("f803b1fead12644c840f2a1d2f7ad48c"),  # of media objects
    bytes.fromhex("d03fb73c4a0c034895edf7b6228f0c5c"),  # of time codes
)
_DATA_HEADER = 50
# The first bytes of a packet with error correction data, which are empty.
_PACKET = b"\x82\0\0"


def asf(content: Bytes, at: int) -> Stated:
    """Read the file properties of Windows Media Audio, all top-level objects, and the first bytes of all packets."""
    end = at + little(content.at(at + 16, 8))
    place = at + 30
    for _ in range(_MOST_ELEMENTS):
        head = content.at(place, 104)
        size = little(head[16:24])
        if len(head) < 24 or place >= end or size < 24:
            break
        if head[:16] == _ASF_PROPERTIES and len(head) == 104:
            return _asf_length(content, at, end, head)
        place += size
    return Stated(content.size)


def _asf_length(content: Bytes, at: int, data: int, head: bytes) -> Stated:
    size, duration, preroll, flags = (little(head[a:b]) for a, b in ((40, 48), (64, 72), (80, 88), (88, 92)))
    if flags & 1 or not size:  # broadcast: sizes and durations are not valid
        return Stated(content.size)
    end = _asf_end(content, data)
    # Programs that change the tags often leave the size of the file as it was.
    if end is None:
        end = at + size
        if content.size < end:
            raise errors.truncated_bytes(content.size - at, size)
    _require_packets(content, data, end, head)
    seconds = duration / 1e7 - preroll / 1e3
    ignored = bytes_after(content.size - end, "last packet")
    return Stated(end, ignored, "yes", seconds=seconds if seconds > 0 else None, tolerance=TOLERANCE_SECONDS)


def _asf_end(content: Bytes, data: int) -> int | None:
    """Return the offset after the packets at `data` and the indexes; None if there are no packets.

    Raises AudioError if one of them is truncated.
    """
    place = data
    for _ in range(_MOST_ELEMENTS):
        head = content.at(place, 24)
        size = little(head[16:24])
        if place == data and (head[:16] != _ASF_DATA or size <= _DATA_HEADER):
            return None
        if head[:16] not in (_ASF_DATA, *_ASF_INDEXES) or size < len(head):
            break
        if place + size > content.size:
            raise errors.truncated_bytes(content.size - place, size)
        place += size
    return place


def _require_packets(content: Bytes, at: int, end: int, head: bytes) -> None:
    """Raise AudioError for bytes that are no packet: libav skips them, and decodes less without an error."""
    smallest, largest = little(head[92:96]), little(head[96:100])
    if content.at(at, 16) != _ASF_DATA or smallest != largest or smallest < len(_PACKET):
        return
    first = at + _DATA_HEADER
    count = min(little(head[56:64]), (end - first) // smallest, _MOST_BLOCKS)
    if content.at(first, 3) != _PACKET:
        return
    for place in range(first, first + count * smallest, smallest):
        if content.at(place, 3) != _PACKET:
            raise errors.damaged_at("packet", place)
