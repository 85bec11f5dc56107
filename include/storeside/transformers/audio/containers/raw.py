"""Headers for samples whose own header libav does not know, or misreads: WAV (RIFF 1.0) and Sun's audio header."""

from __future__ import annotations

import struct

from storeside.transformers.audio import errors

from .stated import Stated, bytes_after

# Numbers of Sun's audio header, for bytes per sample.
_SIGNED = {1: 2, 2: 3, 3: 4, 4: 5}
_UNKNOWN = 0xFFFFFFFF
# Larger sizes mean an unknown one, as in streams.
_MOST = 0x7FFF0000


def little(channels: int, rate: int, width: int) -> bytes:
    """Return the header of integers of `width` bytes with the least byte first; `rate` is in Hz."""
    if width == 1:
        return big(channels, rate, 1)  # WAV has no signed bytes
    block = channels * width
    _require(channels, rate, width)
    form = struct.pack("<HHIIHH", 1, channels, rate, rate * block & _UNKNOWN, block, 8 * width)
    # A size of 0 in the chunk of samples: they go on to the end.
    return b"RIFF" + bytes(4) + b"WAVEfmt " + struct.pack("<I", len(form)) + form + b"data" + bytes(4)


def big(channels: int, rate: int, width: int) -> bytes:
    """Return the header of integers of `width` bytes with the most significant byte first."""
    _require(channels, rate, width)
    return coded(channels, rate, _SIGNED[width])


def coded(channels: int, rate: int, code: int) -> bytes:
    """Return Sun's audio header with the number `code` of a coding: 1 is mu-law, 27 A-law."""
    return b".snd" + struct.pack(">IIIII", 24, _UNKNOWN, code, rate & _UNKNOWN, channels)


def _sized(head: bytes, size: int) -> bytes:
    if head.startswith(b".snd"):
        return head[:8] + struct.pack(">I", size) + head[12:]
    return head[:-4] + struct.pack("<I", size)


def _require(channels: int, rate: int, width: int) -> None:
    if width not in _SIGNED or not 0 < channels * width < 1 << 16 or not 0 < rate <= _UNKNOWN:
        raise errors.not_readable(f"{8 * width} bits per sample of {channels} channels at {rate} Hz")


def headed(place: Stated, start: int, head: bytes, frames: int, block: int, rate: float) -> Stated:
    """Return the length of `frames` of `block` bytes from byte `start`, and at most to the end of `place`.

    0 frames mean an unknown number. Raises AudioError if bytes are missing.
    """
    there = max(0, place.end - start)
    if not frames:
        return Stated(place.end, place.ignored, start=start, head=head)
    if there < frames * block:
        raise errors.truncated_bytes(there, frames * block)
    end = start + frames * block
    if frames * block < _MOST:
        head = _sized(head, frames * block)
    ignored = ", ".join(filter(None, (bytes_after(place.end - end, "samples"), place.ignored)))
    return Stated(end, ignored, "yes", frames / rate, is_exact=True, start=start, head=head)


def require_layout(what: str, valid: int, bits: int, sample_bytes: int) -> None:
    """Raise AudioError for integers that do not fill their bytes: libav takes them for shorter ones, and makes noise.

    `bits` is the number in the header, and `valid` that of the bits that count.
    """
    if is_short(valid, bits, sample_bytes):
        raise errors.not_readable(f"{what} with {min(valid, bits)} bits per sample in {sample_bytes} bytes")


def is_short(valid: int, bits: int, sample_bytes: int) -> bool:
    """Return whether integers leave a byte of each sample empty."""
    return 0 < min(valid, bits) <= 8 * (sample_bytes - 1)
