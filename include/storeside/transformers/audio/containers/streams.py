"""Streams of frames, with or without a header: FLAC, MP3, AMR, WavPack, Monkey's Audio, True Audio.

Formats: RFC 9639; ISO/IEC 11172-3 with the Xing, LAME and VBRI headers as libavformat's mp3dec.c reads them;
WavPack 5; Monkey's Audio 3.98; TTA1. Tags: ID3v1, ID3v2, APEv2, Lyrics3v2.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from storeside.transformers.audio import errors

from .stated import Buffered, Bytes, Stated, big, bytes_after, exactly, little

_MOST_TAGS = 16
_WINDOW = 64 << 10
# Bytes by which encoders may state too few.
_LEAST_RECORDING = 4 << 10
_SYNC = re.compile(rb"\xff[\xe2-\xff]")


def after_id3(content: Bytes) -> int:
    """Return the offset at which the recording starts, after ID3v2 tags."""
    at = 0
    for _ in range(_MOST_TAGS):
        head = content.at(at, 10)
        if head[:3] != b"ID3" or len(head) < 10 or any(c & 0x80 for c in head[6:10]):
            break
        size = head[6] << 21 | head[7] << 14 | head[8] << 7 | head[9]
        at += 10 + size + (10 if head[5] & 0x10 else 0)
    return at


def before_tags(content: Bytes, start: int) -> tuple[int, str]:
    """Return the offset of the tags after a recording, and their names."""
    end, names = content.size, []
    for _ in range(_MOST_TAGS):
        size, name = _tag(content, end)
        if not size or end - size <= start:
            break
        end -= size
        names.append(name)
    return end, ", ".join(dict.fromkeys(reversed(names)))


def _tag(content: Bytes, end: int) -> tuple[int, str]:
    if content.at(end - 128, 3) == b"TAG":
        extended = content.at(end - 128 - 227, 4) == b"TAG+"
        return 128 + (227 if extended else 0), "ID3v1 tag"
    foot = content.at(end - 32, 32)
    if foot[:8] == b"APETAGEX":
        return little(foot[12:16]) + (32 if little(foot[20:24]) & 1 << 31 else 0), "APE tag"
    foot = content.at(end - 15, 15)
    if foot[6:] == b"LYRICS200" and foot[:6].isdigit():
        return int(foot[:6]) + 15, "Lyrics3 tag"
    return 0, ""


def flac(content: Bytes, at: int) -> Stated:
    """Read STREAMINFO, in which 0 samples mean an unknown number."""
    end, ignored = before_tags(content, at)
    number = big(content.at(at + 18, 8))
    return exactly(end, ignored, number & (1 << 36) - 1, number >> 44)


# --- MP3

_RATES = {3: (44_100, 48_000, 32_000), 2: (22_050, 24_000, 16_000), 0: (11_025, 12_000, 8_000)}
_BIT_RATES = {
    (1, 1): (32, 64, 96, 128, 160, 192, 224, 256, 288, 320, 352, 384, 416, 448),
    (1, 2): (32, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320, 384),
    (1, 3): (32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320),
    (2, 1): (32, 48, 56, 64, 80, 96, 112, 128, 144, 160, 176, 192, 224, 256),
    (2, 2): (8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160),
}


@dataclass(frozen=True)
class _Frame:
    """One frame's header: version and layer, rate (Hz), samples per channel, size in bytes, channels."""

    form: tuple[int, int, int]
    samples: int
    size: int
    side: int

    @classmethod
    def read(cls, head: bytes) -> _Frame | None:
        if len(head) < 4 or head[0] != 0xFF or head[1] & 0xE0 != 0xE0:
            return None
        version, layer = head[1] >> 3 & 3, 4 - (head[1] >> 1 & 3)
        bits, rate = head[2] >> 4, head[2] >> 2 & 3
        if version == 1 or layer == 4 or bits in (0, 15) or rate == 3:
            return None
        hertz = _RATES[version][rate]
        speed = _BIT_RATES[(1, layer) if version == 3 else (2, min(layer, 2))][bits - 1] * 1_000
        padding = head[2] >> 1 & 1
        samples = 384 if layer == 1 else 576 if layer == 3 and version != 3 else 1_152
        size = (12 * speed // hertz + padding) * 4 if layer == 1 else samples // 8 * speed // hertz + padding
        mono = head[3] >> 6 == 3
        side = (17 if mono else 32) if version == 3 else (9 if mono else 17)
        return cls((version, layer, hertz), samples, size, side)


def mp3(content: Bytes, at: int) -> Stated | None:
    """Read the first frame, which may declare the number of frames, and find the end of the last; None if no MP3."""
    found = _first_frame(content, at)
    if found is None:
        return None
    place, frame = found
    head = content.at(place, 4 << 10)
    tags_at, tags = before_tags(content, place)
    end = _last_end(content, place, tags_at, frame)
    before = f"{place - at} byte{'s' if place - at > 1 else ''} before the first frame" if place > at else ""
    ignored = ", ".join(filter(None, (before, bytes_after(tags_at - end, "last frame"), tags)))
    samples = _stated_samples(head, frame)
    if _is_followed(content, place, end, _stated_bytes(head, frame)):
        samples = None  # they are those of the first of several recordings
    # Some encoders count the frame that declares the number, and a decoder may drop its first frame.
    stated = exactly(end, ignored, samples or 0, frame.form[2], 2 * frame.samples)
    if samples is not None and _has_stated_frames(content.at(place, min(end - place, _WINDOW)), frame):
        return replace(stated, complete="yes", kept_seconds=(samples / frame.form[2],))
    return stated


def _first_frame(content: Bytes, at: int) -> tuple[int, _Frame] | None:
    """Return offset and header of the first frame that is followed by one of the same form, as libav chooses it."""
    window = content.at(at, _WINDOW)
    for match in _SYNC.finditer(window):
        start = match.start()
        frame = _Frame.read(window[start : start + 4])
        if frame is None:
            continue
        after = content.at(at + start + frame.size, 4)
        following = _Frame.read(after)
        if (following and following.form == frame.form) or (not after and start == 0):
            return at + start, frame
    return None


def _stated_samples(head: bytes, frame: _Frame) -> int | None:
    """Return the samples per channel in a Xing, Info or VBRI header without those that players cut, or None."""
    at = 4 + frame.side
    if head[at : at + 4] in (b"Xing", b"Info"):
        flags, frames = big(head[at + 4 : at + 8]), big(head[at + 8 : at + 12])
        if not flags & 1 or not frames:
            return None
        after = at + 8 + 4 * (flags & 1) + 4 * (flags >> 1 & 1) + 100 * (flags >> 2 & 1) + 4 * (flags >> 3 & 1)
        delay = head[after + 21 : after + 24]
        cut = (big(delay) >> 12) + (big(delay) & 0xFFF) if head[after : after + 4] in _GAPLESS else 0
        return max(0, frames * frame.samples - cut)
    if head[36:40] == b"VBRI":
        return big(head[50:54]) * frame.samples
    return None


def _has_stated_frames(window: bytes, frame: _Frame) -> bool:
    """Return whether the frames of a short recording are those that its Xing or Info header counts, and the header's.

    libav cuts padding only in the last frame, but that of some samples fills more than one.
    """
    at = 4 + frame.side
    return (
        window[at : at + 4] in (b"Xing", b"Info")
        and big(window[at + 8 : at + 12]) + 1 == _chain(window, 0, None).frames
    )


def _stated_bytes(head: bytes, frame: _Frame) -> int:
    """Return the bytes of all frames in a Xing, Info or VBRI header; 0 without them."""
    at = 4 + frame.side
    if head[at : at + 4] in (b"Xing", b"Info"):
        flags = big(head[at + 4 : at + 8])
        after = at + 8 + 4 * (flags & 1)
        return big(head[after : after + 4]) if flags & 2 else 0
    return big(head[46:50]) if head[36:40] == b"VBRI" else 0


def _is_followed(content: Bytes, place: int, end: int, size: int) -> bool:
    """Return whether another recording follows the `size` bytes at `place`, in an object that has joined several."""
    after = place + size
    if not size or end - after < _LEAST_RECORDING:
        return False
    return content.at(after, 3) == b"ID3" or bool(_chain_of(content.at(after, _WINDOW), 0, None, _CHAIN))


# Encoders whose delay and padding libav applies (mp3dec.c).
_GAPLESS = (b"LAME", b"Lavf", b"Lavc")


def _last_end(content: Bytes, first: int, end: int, form: _Frame) -> int:
    """Return the offset after the last complete frame; `end` if the frames do not show it.

    Raises AudioError if the last frame is truncated.
    """
    start = max(first, end - _WINDOW)
    window = content.at(start, end - start)
    chain = _chain_of(window, 0, form, 1 if start == first else _CHAIN)
    if chain is None or _chain_of(window, chain.end, None, 2):
        return end  # damage or another recording in the middle; libav detects it
    if chain.cut:
        raise errors.cut_frame(len(window) - chain.end, chain.cut)
    return start + chain.end


@dataclass(frozen=True)
class _Chain:
    """Consecutive frames: their number, the offset after them, and the size of a truncated frame that follows."""

    end: int
    frames: int
    cut: int


# A chain of this number of frames is no coincidence. The second number bounds the search of one window.
_CHAIN = 4
_MOST_FRAMES = 10_000


def _chain_of(window: bytes, start: int, form: _Frame | None, least: int) -> _Chain | None:
    """Return the first chain of at least `least` frames of one form."""
    looked_at = 0
    for match in _SYNC.finditer(window, start):
        found = _chain(window, match.start(), form)
        if found.frames >= least:
            return found
        looked_at += 1 + found.frames
        if looked_at > _MOST_FRAMES:
            return None
    return None


def _chain(window: bytes, at: int, form: _Frame | None) -> _Chain:
    frames = 0
    while frame := _Frame.read(window[at : at + 4]):
        form = form or frame
        if frame.form != form.form:
            break
        if at + frame.size > len(window):
            return _Chain(at, frames, frame.size)
        at += frame.size
        frames += 1
    return _Chain(at, frames, 0)


# --- AMR

# Bytes of a frame by its type, with the byte that has the type (RFC 4867, 5.3). The last type of both is NO_DATA.
_NARROW = (13, 14, 16, 18, 20, 21, 27, 32, 6, 1, 1, 1, 1, 1, 1, 1)
_WIDE = (18, 24, 33, 37, 41, 47, 51, 59, 61, 6, 1, 1, 1, 1, 1, 1)
_WITHOUT_DATA = {14: "SPEECH_LOST", 15: "NO_DATA"}
# Frames of 20 ms in 12 hours.
_MOST_SPEECH = 2_160_000


def amr(content: Bytes, at: int) -> Stated:
    """Read the types of all frames. Raises AudioError for a frame without data: libav cannot decode it."""
    is_wide = content.at(at, 9) == b"#!AMR-WB\n"
    data, sizes = Buffered(content, 256 << 10), _WIDE if is_wide else _NARROW
    at += 9 if is_wide else 6
    for number in range(_MOST_SPEECH):
        head = data.at(at, 1)
        if not head:
            break
        kind = head[0] >> 3 & 15
        if kind in _WITHOUT_DATA and (is_wide or kind == len(_NARROW) - 1):
            raise errors.without_data(_WITHOUT_DATA[kind], number)
        at += sizes[kind]
    return Stated(content.size)


# --- others


_MOST_BLOCKS = 1_000_000
# WavPack's sample rates, by the number in a block's flags (wavpack.h).
_WAVPACK_RATES = (
    6_000, 8_000, 9_600, 11_025, 12_000, 16_000, 22_050, 24_000, 32_000, 44_100, 48_000, 64_000, 88_200, 96_000,
    192_000,
)  # fmt: skip


def wavpack(content: Bytes, at: int) -> Stated:
    """Read the first block, which declares the samples of all blocks."""
    end, ignored = before_tags(content, at)
    head = content.at(at, 32)
    flags, samples, number = little(head[24:28]), little(head[12:16]), little(head[24:28]) >> 23 & 15
    if len(head) < 32 or samples == 0xFFFFFFFF or flags >> 31 or number >= len(_WAVPACK_RATES):
        return Stated(end, ignored)
    # The number is that of the first of several recordings, which libav reads as one.
    total = 0 if _starts_again(content, at) else samples | head[11] << 32
    return exactly(end, ignored, total, _WAVPACK_RATES[number])


def _starts_again(content: Bytes, at: int) -> bool:
    """Return whether another recording follows, whose blocks count from 0 again."""
    last = 0
    for _ in range(_MOST_BLOCKS):
        head = content.at(at, 32)
        if len(head) < 32 or head[:4] != b"wvpk":
            break
        index = little(head[16:20]) | head[10] << 32
        if little(head[20:24]):
            if index < last:
                return True
            last = index
        at += 8 + little(head[4:8])
    return False


def ape(content: Bytes, at: int) -> Stated:
    """Read the header of Monkey's Audio, version 3.98 or newer."""
    end, ignored = before_tags(content, at)
    head = content.at(at, 16)
    info = content.at(at + little(head[8:12]), 24)
    if len(info) < 24 or little(head[4:6]) < 3_980:
        return Stated(end, ignored)
    blocks, last, frames = (little(info[a : a + 4]) for a in (4, 8, 12))
    return exactly(end, ignored, (frames - 1) * blocks + last if frames else 0, little(info[20:24]))


def tta(content: Bytes, at: int) -> Stated:
    """Read the header of True Audio, and the sizes of its frames."""
    end, ignored = before_tags(content, at)
    head = content.at(at, 18)
    samples, rate = little(head[14:18]), little(head[10:14])
    frames = -(-samples // (256 * rate // 245)) if rate else 0
    sizes = content.at(at + 22, 4 * frames) if 4 * frames < end - at else b""
    last = at + 26 + len(sizes) + sum(little(sizes[n : n + 4]) for n in range(0, len(sizes), 4))
    if sizes and last < end:
        end, ignored = last, ", ".join(filter(None, (bytes_after(end - last, "last frame"), ignored)))
    return exactly(end, ignored, samples, rate)
