"""Containers made of chunks: WAV, RF64, W64, AIFF, CAF, DSF, DSDIFF; and AU, which has one.

Formats: RIFF 1.0 and EBU Tech 3306 (RF64), Sony Wave64, AIFF-C of 1991, Apple's CAF specification, Sony's DSF 1.01
and DSDIFF 1.5, Sun's audio header.
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass, field, replace

from storeside.transformers.audio import errors

from . import raw
from .stated import DELAY, TOLERANCE_SECONDS, Bytes, Stated, big, bytes_after, little

_MOST_CHUNKS = 4_096
# A writer to a pipe does not know the size, and declares at least this one.
_UNKNOWN_SIZE = 0x7FFF0000
# WAVE_FORMAT_ of codecs with a fixed number of bits per sample: PCM, float, A-law, mu-law.
_FIXED = (1, 3, 6, 7)
_EXTENSIBLE = 0xFFFE
_FORMAT = 40  # bytes of WAVEFORMATEXTENSIBLE
# WAVE_FORMAT_ of codecs whose header has the samples per block: ADPCM of Microsoft and of IMA, GSM.
_BLOCKS = (2, 0x11, 0x31)
# More samples than a block of a compressed codec has; some encoders count a last block that they do not write.
_BLOCK_SAMPLES = 4_096
# AIFF-C's types of uncompressed samples.
_AIFF_TYPES = (b"NONE", b"twos", b"sowt", b"fl32", b"FL32", b"fl64", b"FL64", b"in24", b"in32", b"raw ")


# libsndfile's types of samples with the least byte first: the names of others in reverse.
_LITTLE = {b"42ni": 3, b"42n1": 3, b"23ni": 4}


@dataclass
class _Chunks:
    """The first chunk of each name; `rest` is the end of the last complete chunk, and `padding` aligns the next."""

    rest: int
    first: dict[bytes, tuple[int, int]] = field(default_factory=dict)
    cut: tuple[bytes, int, int] | None = None
    is_all: bool = True
    padding: bytes = b""

    def end_after(self, name: bytes, content: Bytes) -> bool:
        """Return whether complete chunks follow the chunk of this name to the end."""
        start, size = self.first.get(name, (0, 0))
        is_whole = self.is_all and not self.cut and self.rest + len(self.padding) >= content.size
        return is_whole and start > 0 and self.rest > start + size

    def body(self, content: Bytes, name: bytes, most: int = 64) -> bytes:
        start, size = self.first.get(name, (0, 0))
        return content.at(start, min(size, most)) if size > 0 else b""


@dataclass(frozen=True)
class _Form:
    """The form of a chunk's header: bytes of name and size, byte order, whether sizes count the header, alignment.

    A chunk named `another` starts another recording.
    """

    name: int
    size: int
    order: str
    counts_header: bool = False
    align: int = 1
    another: bytes = b""

    def read(self, content: Bytes, at: int) -> tuple[bytes, int] | None:
        head = content.at(at, self.name + self.size)
        if len(head) < self.name + self.size or not all(0x20 <= c < 0x7F for c in head[:4]):
            return None
        number = head[self.name :]
        size = big(number) if self.order == "big" else little(number)
        if self.counts_header:
            size -= len(head)
        return (head[:4], size) if size >= 0 else None


def _walk(content: Bytes, at: int, form: _Form) -> _Chunks:
    found = _Chunks(at)
    for _ in range(_MOST_CHUNKS):
        head = form.read(content, at)
        if head is None:
            return found
        name, size = head
        if name == form.another:
            return found
        start = at + form.name + form.size
        found.first.setdefault(name, (start, size))
        if start + size > content.size:
            found.cut = (name, start, size)
            return found
        at = start + size + -size % form.align
        found.rest = start + size
        found.padding = content.at(start + size, -size % form.align)
    found.is_all = False
    return found


def _length(content: Bytes, chunks: _Chunks, sound: bytes, is_unknown: bool, least: int = 0) -> Stated:
    """Compare the declared size of the chunk of samples with the bytes that exist.

    A chunk of the `least` size has no samples. If other chunks follow it, its size is known, although libav would
    read them as samples.
    """
    if chunks.first.get(sound, (0, -1))[1] == least and chunks.end_after(sound, content):
        raise errors.no_samples(sound.decode())
    if sound not in chunks.first or is_unknown or not chunks.is_all:
        return Stated(content.size)
    if chunks.cut and chunks.cut[0] == sound:
        _, start, size = chunks.cut
        raise errors.truncated_bytes(content.size - start, size)
    padding = 0 if any(chunks.padding) else len(chunks.padding)
    ignored = bytes_after(content.size - chunks.rest - padding, "last chunk")
    return Stated(chunks.rest, ignored, "yes")


def _with(stated: Stated, seconds: float | None, is_exact: bool = False, slack: int = 0) -> Stated:
    if stated.complete != "yes" or seconds is None or not 0 <= seconds < math.inf:
        return stated
    return Stated(stated.end, stated.ignored, stated.complete, seconds=seconds, is_exact=is_exact, slack=slack)


def wave(content: Bytes, at: int) -> Stated:
    """Read RIFF, RIFX, RF64 and BW64."""
    kind = content.at(at, 4)
    form = _Form(4, 4, "big" if kind == b"RIFX" else "little", align=2, another=kind)
    number = big if kind == b"RIFX" else little
    chunks = _walk(content, at + 12, form)
    start, size = chunks.first.get(b"data", (0, 0))
    if kind in (b"RF64", b"BW64") and size == 0xFFFFFFFF:
        stated = little(chunks.body(content, b"ds64", 16)[8:16])
        chunks = _resumed(content, chunks, start, stated, form)
        size = stated
        is_unknown = not stated
    else:
        is_unknown = not size or (size >= _UNKNOWN_SIZE and start + size > content.size)
    head = chunks.body(content, b"fmt ", _FORMAT)
    code, rate, pace, block = (number(head[a:b]) for a, b in ((0, 2), (4, 8), (8, 12), (12, 14)))
    channels, bits, valid = (number(head[a : a + 2]) for a in (2, 14, 18))
    is_aligned = code == _EXTENSIBLE and number is little
    if code == _EXTENSIBLE:
        code = number(head[24:26])
    else:
        valid = bits
    if code == 1 and kind == b"RIFX" and bits > 8:
        raise errors.not_readable("WAV with the most significant byte first (RIFX)")
    stated_length = _length(content, chunks, b"data", is_unknown)
    if code == 1 and channels:
        if is_aligned and bits == 8 * block // channels and raw.is_short(valid, bits, block // channels):
            return _filled(stated_length, start, 0 if is_unknown else size // block, head, block)
        raw.require_layout("WAV", valid, bits, block // channels)
    fact = number(chunks.body(content, b"fact", 4))
    if code in _FIXED and block and rate:
        return _with(stated_length, size // block / rate, is_exact=True)
    if fact and rate:
        return _in_blocks(_with(stated_length, fact / rate, is_exact=True, slack=_BLOCK_SAMPLES), head, size)
    return _with(stated_length, size / pace if pace else None)


def _filled(stated: Stated, start: int, frames: int, head: bytes, block: int) -> Stated:
    """Let libav read integers of fewer bits than their bytes have as those of all their bits.

    WAVEFORMATEXTENSIBLE aligns them with the most significant bit (Microsoft), so their values are the same.
    """
    form = head[:18] + head[14:16] + head[20:]
    made = b"RIFF" + bytes(4) + b"WAVEfmt " + struct.pack("<I", len(form)) + form + b"data" + bytes(4)
    place = replace(stated, end=start + frames * block) if frames else stated
    return raw.headed(place, start, made, frames, block, little(head[4:8]))


def _in_blocks(stated: Stated, head: bytes, size: int) -> Stated:
    """Cut the last block of a codec at the length that the `fact` chunk states.

    libsndfile states the samples of stereo divided by two: then the blocks count.
    """
    rate, block, most = little(head[4:8]), little(head[12:14]), little(head[18:20])
    if little(head[:2]) not in _BLOCKS or not block or not most or not stated.seconds:
        return stated
    full, samples = size // block * most, round(stated.seconds * rate)
    if samples <= full - most:
        return replace(stated, seconds=full / rate)
    return replace(stated, kept_seconds=(stated.seconds,)) if samples <= full + most else stated


def _resumed(content: Bytes, before: _Chunks, start: int, size: int, form: _Form) -> _Chunks:
    """Continue after a chunk of samples whose size is declared elsewhere."""
    first = {**before.first, b"data": (start, size)}
    if start + size > content.size:
        return _Chunks(before.rest, first, (b"data", start, size))
    after = _walk(content, start + size + size % 2, form)
    if not after.first:
        after.rest, after.padding = start + size, content.at(start + size, size % 2)
    after.first = {**after.first, **first}
    return after


def wave64(content: Bytes, at: int) -> Stated:
    """Read Sony Wave64, whose chunks have GUIDs as names."""
    chunks = _walk(content, at + 40, _Form(16, 8, "little", counts_header=True, align=8))
    start, size = chunks.first.get(b"data", (0, 0))
    # A muxer that cannot seek back leaves all bits of a size set, or its upper half.
    is_unknown = size <= 0 or size >= 1 << 62
    head = chunks.body(content, b"fmt ", _FORMAT)
    code, rate, pace, block = (little(head[a:b]) for a, b in ((0, 2), (4, 8), (8, 12), (12, 14)))
    channels, bits, valid = (little(head[a : a + 2]) for a in (2, 14, 18))
    is_aligned = code == _EXTENSIBLE
    if code == _EXTENSIBLE:
        code = little(head[24:26])
    else:
        valid = bits
    stated = _length(content, chunks, b"data", is_unknown)
    if code == 1 and channels:
        if is_aligned and bits == 8 * block // channels and raw.is_short(valid, bits, block // channels):
            return _filled(stated, start, 0 if is_unknown else size // block, head, block)
        raw.require_layout("W64", valid, bits, block // channels)
    if code in _FIXED and block and rate:
        return _with(stated, size // block / rate, is_exact=True)
    return _with(stated, size / pace if pace else None)


def aiff(content: Bytes, at: int) -> Stated:
    """Read AIFF, AIFF-C, and 8SVX, in which the chunk of samples is named BODY."""
    kind = content.at(at + 8, 4)
    chunks = _walk(content, at + 12, _Form(4, 4, "big", align=2, another=b"FORM"))
    if kind == b"8SVX":
        return _length(content, chunks, b"BODY", False)
    head = chunks.body(content, b"COMM", 22)
    start, size = chunks.first.get(b"SSND", (0, 0))
    channels, frames, bits = big(head[:2]), big(head[2:6]), big(head[6:8])
    stated = _length(content, chunks, b"SSND", size <= 8 and not frames)
    rate = _extended(head[8:18])
    width = _width(head[18:22], bits) if kind == b"AIFC" else 0
    if width and stated.complete == "yes" and size >= 8:
        first = start + 8 + big(content.at(start, 4))
        head = raw.little(channels, round(rate), width)
        return raw.headed(Stated(start + size, stated.ignored), first, head, frames, channels * width, rate)
    is_plain = kind == b"AIFF" or head[18:22] in _AIFF_TYPES
    return _with(stated, frames / rate if rate and frames and is_plain else None, is_exact=True)


def _width(kind: bytes, bits: int) -> int:
    """Return the bytes per sample of AIFF-C with the least byte first that libav does not read; 0 for any other.

    libav takes all samples of the type `sowt` for 16 bits, and does not know the types of libsndfile.
    """
    if kind == b"sowt":
        return 0 if 8 < bits <= 16 else -(-bits // 8)
    return _LITTLE.get(kind, 0)


def _extended(number: bytes) -> float:
    """Return a positive 80-bit number; 0 for any other value."""
    if len(number) < 10 or number[0] & 0x80:
        return 0.0
    exponent, mantissa = big(number[:2]) - 16_383 - 63, big(number[2:])
    return math.ldexp(mantissa, exponent) if -100 < exponent < 0 else 0.0


def caf(content: Bytes, at: int) -> Stated:
    """Read Apple's Core Audio Format."""
    chunks = _walk(content, at + 8, _Form(4, 8, "big"))
    _, size = chunks.first.get(b"data", (0, 0))
    head = chunks.body(content, b"desc", 32)
    packet, frames = big(head[16:20]), big(head[20:24])
    channels, bits = big(head[24:28]), big(head[28:32])
    if head[8:12] == b"lpcm" and channels and frames:
        raw.require_layout("CAF", bits, bits, packet // frames // channels)
    stated = _length(content, chunks, b"data", size >= 1 << 63 or size <= 4, least=4)
    rate: float = struct.unpack(">d", head[:8])[0] if len(head) >= 8 else 0.0
    if not rate > 0:
        return stated
    if b"pakt" in chunks.first:
        return _packets(stated, head, chunks.body(content, b"pakt", 24), rate)
    return _with(stated, (size - 4) // packet * frames / rate if packet and frames else None, is_exact=True)


def _packets(stated: Stated, head: bytes, table: bytes, rate: float) -> Stated:
    """Add the length that a table of packets declares: those without the delay and the padding of the encoder.

    ALAC's packets have no padding, although libsndfile counts some, and libav 62 drops it. Before libav 60, the delay
    of AAC stays.
    """
    packed, delay = head[8:12], big(table[16:20])
    frames, packet = big(table[8:16]), big(head[20:24])
    # FFmpeg before 6 counts a last packet that is not full as a full one.
    slack = packet - 1 if packet and frames == big(table[:8]) * packet else 0
    made = _with(stated, frames / rate, is_exact=packed == b"alac", slack=slack)
    if not made.seconds:
        return made
    return replace(
        made,
        tolerance=TOLERANCE_SECONDS,
        kept_seconds=(made.seconds,),
        keeps_packets=packed == b"alac",
        form=DELAY if packed != b"alac" and delay > 0 else "",
    )


def dsf(content: Bytes, at: int) -> Stated:
    """Read DSD streams in Sony's DSF."""
    head = content.at(at, 92)
    rate, samples, size = little(head[56:60]), little(head[64:72]), little(head[84:92])
    if head[28:32] != b"fmt " or head[80:84] != b"data" or size < 12 or not rate:
        return Stated(content.size)
    there = content.size - at - 80
    if there < size:
        raise errors.truncated_bytes(there - 12, size - 12)
    return Stated(content.size, complete="yes", seconds=samples / rate)


def dsdiff(content: Bytes, at: int) -> Stated:
    """Read DSD streams in DSDIFF, including compressed ones."""
    chunks = _walk(content, at + 16, _Form(4, 8, "big", align=2))
    return _length(content, chunks, b"DSD " if b"DSD " in chunks.first else b"DST ", False)


def au(content: Bytes, at: int) -> Stated:
    """Read the ``.snd`` header of Sun's audio files."""
    head = content.at(at, 24)
    start, size, rate, channels = (big(head[a : a + 4]) for a in (4, 8, 16, 20))
    width = {1: 1, 2: 1, 3: 2, 4: 3, 5: 4, 6: 4, 7: 8, 27: 1}.get(big(head[12:16]), 0)
    block = width * channels
    if not size or size == 0xFFFFFFFF:
        return Stated(content.size)
    there = content.size - at - start
    if there < size:
        raise errors.truncated_bytes(max(there, 0), size)
    end = at + start + size
    ignored = bytes_after(content.size - end, "samples")
    return _with(Stated(end, ignored, "yes"), size // block / rate if block and rate else None, is_exact=True)
