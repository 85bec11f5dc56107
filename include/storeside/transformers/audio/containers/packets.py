"""The samples of packets of Opus (RFC 6716, section 3.1) and of Vorbis (Vorbis I, sections 4.2 and 4.3)."""

from __future__ import annotations

from collections.abc import Callable

from .stated import little

# Bytes of a setup header from which the modes can be read: 64 modes of 41 bits, their number and the framing bit.
MODES = 330
_MOST_MODES = 64
_MODE = 41  # bits: a flag, 16 of the window, 16 of the transform, 8 of the mapping

Samples = Callable[[bytes], int]


def opus(packet: bytes) -> int:
    """Return the samples at 48 kHz of a packet that begins with these two bytes."""
    if not packet:
        return 0
    config, code = packet[0] >> 3, packet[0] & 3
    sizes = (480, 960, 1920, 2880) if config < 12 else (480, 960) * 2 if config < 16 else (120, 240, 480, 960)
    frames = packet[1:2][0] & 63 if code == 3 and len(packet) > 1 else (1, 2, 2, 0)[code]
    return sizes[config & 3] * frames


def vorbis(identification: bytes, setup: bytes) -> Samples | None:
    """Return the function for the packets of a stream, after whose first one all audio begins; None for no Vorbis.

    `identification` is the first header, and `setup` the last bytes of the third one. That header has no table of
    contents, so its modes are read from its end, as libav and liboggz do.
    """
    sizes = [1 << (identification[28] & 15), 1 << (identification[28] >> 4)] if len(identification) > 28 else []
    modes = _modes(little(setup))
    if not modes or not sizes:
        return None
    mask = (1 << (len(modes) - 1).bit_length()) - 1
    before = 0

    def samples(packet: bytes) -> int:
        nonlocal before
        mode = packet[0] >> 1 & mask if packet else 0
        size = sizes[modes[mode]] if mode < len(modes) else 0
        made, before = (before + size) // 4 if before else 0, size
        return made

    return samples


def _modes(setup: int) -> list[int]:
    """Return the flags of all modes: whether blocks are long."""
    at, flags, found = setup.bit_length() - 1, list[int](), list[int]()  # the highest bit is the framing bit
    while at >= _MODE + 6 and len(flags) < _MOST_MODES:
        at -= _MODE
        mode = setup >> at & ((1 << _MODE) - 1)
        if mode >> 33 >= _MOST_MODES or mode >> 1 & 0xFFFFFFFF:  # of the window and the transform only 0 exists
            break
        flags.insert(0, mode & 1)
        if (setup >> at - 6 & 63) + 1 == len(flags):
            found = list(flags)
    return found
