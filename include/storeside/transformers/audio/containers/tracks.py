"""The first audio track of MP4 and QuickTime (ISO/IEC 14496-12), whose boxes declare its length several times."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from . import raw
from .stated import Bytes, big

_MOST_BOXES = 100_000
_Place = tuple[int, int]


def boxes(content: Bytes, at: int, end: int) -> Iterator[tuple[bytes, int, int]]:
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


def inside(content: Bytes, place: tuple[int, int], *path: bytes) -> tuple[int, int] | None:
    """Return start and end of the body of the first box at this path of names."""
    for wanted in path:
        found = next(((start, end) for name, start, end in boxes(content, *place) if name == wanted), None)
        if found is None:
            return None
        place = found
    return place


def shown_seconds(content: Bytes, start: int, end: int) -> float | None:
    """Return the duration of the first audio track in seconds, after its edit list."""
    scale = _scale(content, inside(content, (start, end), b"mvhd"))[0]
    for track in _audio_tracks(content, (start, end)):
        if header := inside(content, track, b"tkhd"):
            head = content.at(header[0], 36)
            units = big(head[28:36] if head[:1] == b"\1" else head[20:24])
            return units / scale if scale and 0 < units < 0xFFFFFFFF else None
    return None


@dataclass(frozen=True)
class Length:
    """The samples to play of a track: their seconds, whether others come before them, and whether they are AAC."""

    seconds: float
    delay: bool
    is_aac: bool


def length(content: Bytes, moov: _Place, moofs: Sequence[_Place]) -> Length | None:
    """Return the length of the first audio track, to a sample where its boxes declare it so; None if they do not.

    An encoder's delay and padding do not count. The edit list counts in ticks of the movie, often milliseconds, so
    the track's own length is used where both agree within a tick.
    """
    track = next(_audio_tracks(content, moov), None)
    scale = _scale(content, inside(content, moov, b"mvhd"))[0]
    own, total = _scale(content, inside(content, track, b"mdia", b"mdhd")) if track else (0, 0)
    if not track or not own or not scale:
        return None
    if moofs:
        total += sum(_fragment(content, moov, track, moof) for moof in moofs)
    edits = _edits(content, inside(content, track, b"edts", b"elst"))
    shown = [edit for edit in edits if edit[1] >= 0]
    if len(shown) > 1 or total <= 0:
        return None
    duration, delay = shown[0] if shown else (0, 0)
    seconds = (total - delay) / own
    if duration and duration / scale < seconds - 1 / scale:
        seconds = min(seconds, duration / scale if scale == own else (duration + 1) / scale)
    if valid := _valid_samples(content, moov):
        seconds = min(seconds, valid / own)
    return Length(seconds, delay > 0, _is_aac(content, track)) if seconds > 0 else None


def _audio_tracks(content: Bytes, moov: _Place) -> Iterator[_Place]:
    for name, body, stop in boxes(content, *moov):
        if name == b"trak":
            kind = inside(content, (body, stop), b"mdia", b"hdlr")
            if kind and content.at(kind[0], 12)[8:] == b"soun":
                yield body, stop


def require_layout(content: Bytes, moov: _Place) -> None:
    """Raise AudioError if the first audio track has PCM of integers that leave a part of their bytes empty.

    Apple's second version of the description (QuickTime File Format, `lpcm`) states bits and bytes; libav reads the
    bits alone.
    """
    track = next(_audio_tracks(content, moov), None)
    place = inside(content, track, b"mdia", b"minf", b"stbl", b"stsd") if track else None
    entry = content.at(place[0] + 8, 72) if place else b""
    channels, bits, flags, packet, frames = (big(entry[at : at + 4]) for at in (48, 56, 60, 64, 68))
    if entry[4:8] == b"lpcm" and entry[16:18] == b"\0\2" and not flags & _FLOAT and channels and frames:
        raw.require_layout("QuickTime", bits, bits, packet // frames // channels)


_FLOAT = 1


def _is_aac(content: Bytes, track: _Place) -> bool:
    place = inside(content, track, b"mdia", b"minf", b"stbl", b"stsd")
    found = _CODEC.search(content.at(place[0], 256)) if place else None
    return found is not None and found[1] in b"\x40\x66\x67\x68"


# The type of objects in a track's descriptors (ISO/IEC 14496-1).
_CODEC = re.compile(rb"esds\0{4}\x03\x80{0,3}.{4}\x04\x80{0,3}.(.)", re.DOTALL)


def _scale(content: Bytes, place: _Place | None) -> _Place:
    """Return ticks per second and the duration in ticks of a movie's or a track's header."""
    head = content.at(place[0], 32) if place else b""
    if head[:1] == b"\1":
        return big(head[20:24]), big(head[24:32])
    return big(head[12:16]), big(head[16:20]) if head[16:20] != b"\xff" * 4 else 0


def _edits(content: Bytes, place: _Place | None) -> list[tuple[int, int]]:
    """Return duration and start of each edit; the start is -1 of an empty one."""
    if not place:
        return []
    head = content.at(place[0], 8)
    width = 8 if head[:1] == b"\1" else 4
    table = content.at(place[0] + 8, min(big(head[4:8]), _MOST_EDITS) * (2 * width + 4))
    edits = []
    for at in range(0, len(table) - 2 * width, 2 * width + 4):
        start = int.from_bytes(table[at + width : at + 2 * width], "big", signed=True)
        edits.append((big(table[at : at + width]), start))
    return edits


_MOST_EDITS = 256


def _valid_samples(content: Bytes, moov: _Place) -> int:
    """Return the number of samples in iTunes' note about delay and padding; 0 without one."""
    notes = inside(content, moov, b"udta")
    found = _ITUNES.search(content.at(notes[0], min(notes[1] - notes[0], _MOST_NOTES))) if notes else None
    return int(found[1], 16) if found else 0


_MOST_NOTES = 256 << 10
_ITUNES = re.compile(rb"iTunSMPB.{4,32}? [0-9A-F]{8} [0-9A-F]{8} [0-9A-F]{8} ([0-9A-F]{16})", re.DOTALL)

# --- fragments

_MOST_SAMPLES = 1 << 20


def _fragment(content: Bytes, moov: _Place, track: _Place, moof: _Place) -> int:
    """Return the duration, in the track's ticks, of the track's samples in a fragment."""
    place = inside(content, track, b"tkhd")
    head = content.at(place[0], 24) if place else b""
    wanted = head[20:24] if head[:1] == b"\1" else head[12:16]
    usual = 0
    extends = inside(content, moov, b"mvex") or (0, 0)
    for name, body, _ in boxes(content, *extends):
        if name == b"trex" and content.at(body + 4, 4) == wanted:
            usual = big(content.at(body + 12, 4))
    total = 0
    for name, body, stop in boxes(content, *moof):
        if name == b"traf":
            total += _run(content, (body, stop), wanted, usual)
    return total


def _run(content: Bytes, traf: _Place, wanted: bytes, usual: int) -> int:
    total = 0
    for name, body, _ in boxes(content, *traf):
        head = content.at(body, 32)
        flags = big(head[1:4])
        if name == b"tfhd":
            if head[4:8] != wanted:
                return 0
            at = 8 + 8 * (flags & 1) + 4 * (flags >> 1 & 1)
            usual = big(head[at : at + 4]) if flags & 8 else usual
        if name == b"trun":
            total += _samples(content, body, flags, min(big(head[4:8]), _MOST_SAMPLES), usual)
    return total


def _samples(content: Bytes, body: int, flags: int, count: int, usual: int) -> int:
    if not flags & 0x100:
        return count * usual
    first = body + 8 + 4 * (flags & 1) + 4 * (flags >> 2 & 1)
    width = 4 * (flags >> 8 & 0xF).bit_count()
    table = content.at(first, count * width)
    return sum(big(table[at : at + 4]) for at in range(0, len(table), width))
