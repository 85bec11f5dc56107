"""Converts audio to 16-bit PCM with a small C library on libav: the fast path of `transcode` if the library is built.

``python -m storeside.transformers.native.build`` builds it. Loading it besides PyAV is safe: PyAV's wheel contains
its own libav under other sonames, this library keeps its libav to itself (RTLD_LOCAL), and both use versioned
symbols.
"""

from __future__ import annotations

import ctypes
import logging
import os
import weakref
from dataclasses import dataclass
from enum import IntEnum
from functools import cache
from pathlib import Path

from .build import LIBRARIES, library_path, source_digest

log = logging.getLogger(__name__)

# Memory of larger results is returned to the system instead of being reused.
_KEPT_BYTES = 64 << 20
# AVERROR_PATCHWELCOME of libavutil/error.h.
_PATCHWELCOME = -int.from_bytes(b"PAWE", "little")


class Status(IntEnum):
    """The result of a conversion; pcm.c has the same values."""

    OK = 0
    UNREADABLE = 1
    NOT_AUDIO = 2
    NO_STREAM = 3
    UNKNOWN_CODEC = 4
    BAD_RATE = 5
    DAMAGED = 6
    NO_SAMPLES = 7
    NOT_MIXABLE = 8
    FORM_CHANGED = 9
    TOO_LONG = 10
    TOO_LARGE = 11
    TOO_SHORT = 12
    NO_MEMORY = 13
    NO_CHANNEL = 14


class Target(ctypes.Structure):
    """The wanted result and the accepted input; sizes are in bytes and include `headroom`, the space for a header.

    `cells` and `other_forms` are those of `engines.native_cells`. With `measures`, the conversion also computes
    the source's `SignalFacts`.
    `channel` is the number of the only channel to convert, from 0, or -1 for all.
    `expected_seconds` is the exact length that the container declares, or 0. Damage after that length is not part of
    the recording. Samples after `kept_seconds` are dropped, unless it is -1, and `keeps_packets` and `keeps_edges`
    prevent libav from dropping any. libav reads the `head_bytes` of `head` before the recording.
    """

    _fields_ = (
        ("containers", ctypes.c_char_p),
        ("cells", ctypes.c_char_p),
        ("other_forms", ctypes.c_char_p),
        ("max_seconds", ctypes.c_int64),
        ("max_bytes", ctypes.c_int64),
        ("headroom", ctypes.c_int64),
        ("expected_seconds", ctypes.c_double),
        ("min_source_rate", ctypes.c_int),
        ("max_source_rate", ctypes.c_int),
        ("rate", ctypes.c_int),
        ("channels", ctypes.c_int),
        ("measures", ctypes.c_int),
        ("keeps_packets", ctypes.c_int),
        ("keeps_edges", ctypes.c_int),
        ("channel", ctypes.c_int),
        ("kept_seconds", ctypes.c_double),
        ("head", ctypes.c_char_p),
        ("head_bytes", ctypes.c_int64),
    )


class _SignalFacts(ctypes.Structure):
    _fields_ = tuple((name, ctypes.c_double) for name in ("silence_share", "clipped_share", "bandwidth_hz", "snr_db"))


class _Block(ctypes.Structure):
    _fields_ = (("data", ctypes.c_void_p), ("capacity", ctypes.c_int64))


class _Outcome(ctypes.Structure):
    _fields_ = (
        ("size", ctypes.c_int64),
        ("samples", ctypes.c_int64),
        ("mask", ctypes.c_uint64),
        ("status", ctypes.c_int),
        ("error", ctypes.c_int),
        ("rate", ctypes.c_int),
        ("channels", ctypes.c_int),
        ("container", ctypes.c_char * 64),
        ("codec", ctypes.c_char * 32),
        ("signal", _SignalFacts),
    )


@dataclass(frozen=True)
class Pcm:
    """A converted object: `data` starts with the headroom; `mask` is the WAV channel mask of the result.

    `samples` is the number of decoded samples per channel; `rate` is the source's sample rate in Hz. `signal` has the
    facts of the source, if the target `measures`; their order is that of `SignalFacts`, and NaN stands for None.
    """

    data: memoryview
    mask: int
    samples: int
    rate: int
    signal: tuple[float, float, float, float]


class ConversionError(Exception):
    """The object was not converted.

    `samples` is the number of decoded samples per channel. `rate` (Hz), `channels`, `container` and `codec` describe
    the source as far as they are known. `reason` is libav's error text in lower case. `is_not_implemented` means that
    libav recognises the format but cannot decode it.
    """

    def __init__(self, outcome: _Outcome, reason: str) -> None:
        self.status = Status(outcome.status)
        super().__init__(f"{self.status.name}: {reason}")
        self.reason = reason
        self.samples: int = outcome.samples
        self.is_not_implemented: bool = outcome.error == _PATCHWELCOME
        self.rate: int = outcome.rate
        self.channels: int = outcome.channels
        self.container: str = outcome.container.decode(errors="replace")
        self.codec: str = outcome.codec.decode(errors="replace")


class Converter:
    """Converts one object at a time, and reuses resampler and memory for the next; threads must not share it."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library
        self._handle = library.storeside_open()
        if not self._handle:
            raise MemoryError
        weakref.finalize(self, library.storeside_close, self._handle).atexit = False
        self._spare: list[_Block] = []
        self._outcome = _Outcome()

    def convert(
        self, target: Target, content: bytes | bytearray | None, descriptor: int, start: int, end: int
    ) -> Pcm:
        """Convert the bytes from `start` up to, but without, `end` of `content`, or of an open file if it is None.

        The result is not copied: its memory is reused when no reference to it exists. Raises ConversionError if the
        object cannot be converted, and OSError if the file cannot be read.
        """
        outcome = self._outcome
        block = self._spare.pop() if self._spare else _Block()
        pointer = (ctypes.c_char * len(content)).from_buffer(content) if isinstance(content, bytearray) else content
        place = (pointer, descriptor, start, end)
        if self._library.storeside_convert(self._handle, target, *place, block, outcome):
            self._reclaim(block)
            raise self._error(outcome)
        owner = (ctypes.c_ubyte * block.capacity).from_address(block.data)
        weakref.finalize(owner, self._reclaim, block).atexit = False
        heard = outcome.signal
        signal = (heard.silence_share, heard.clipped_share, heard.bandwidth_hz, heard.snr_db)
        return Pcm(memoryview(owner).cast("B")[: outcome.size], outcome.mask, outcome.samples, outcome.rate, signal)

    def _reclaim(self, block: _Block) -> None:
        if self._spare or block.capacity > _KEPT_BYTES:
            self._library.storeside_free(block)
        else:
            self._spare.append(block)

    def _error(self, outcome: _Outcome) -> Exception:
        if outcome.status == Status.NO_MEMORY:
            return MemoryError()
        if outcome.status == Status.UNREADABLE:
            return OSError(outcome.error, os.strerror(outcome.error))
        text = ctypes.create_string_buffer(128)
        if outcome.error:
            self._library.storeside_reason(outcome.error, text, len(text))
        return ConversionError(outcome, text.value.decode(errors="replace").lower())

    def __del__(self) -> None:
        while self._spare:
            self._library.storeside_free(self._spare.pop())


@cache
def load() -> ctypes.CDLL | None:
    """Return the library; None if it is not built, cannot be loaded, or was built from another source."""
    path = library_path()
    if not path.exists():
        log.info("no native audio library at %s: PyAV decodes audio", path)
        return None
    try:
        library = _declared(ctypes.CDLL(str(path)))
        _check(library, path)
    except (OSError, AttributeError, RuntimeError) as e:
        log.warning("PyAV decodes audio: %s; rebuild the library: python -m storeside.transformers.native.build", e)
        return None
    log.info("the native library at %s converts audio to 16-bit PCM", path)
    return library


def _declared(library: ctypes.CDLL) -> ctypes.CDLL:
    pointer = ctypes.POINTER
    library.storeside_open.restype = ctypes.c_void_p
    library.storeside_close.argtypes = (ctypes.c_void_p,)
    library.storeside_close.restype = None
    library.storeside_free.argtypes = (pointer(_Block),)
    library.storeside_free.restype = None
    library.storeside_built_from.restype = ctypes.c_char_p
    library.storeside_versions.argtypes = (pointer(ctypes.c_uint),)
    library.storeside_versions.restype = None
    library.storeside_reason.argtypes = (ctypes.c_int, ctypes.c_char_p, ctypes.c_size_t)
    library.storeside_reason.restype = None
    library.storeside_convert.argtypes = (
        ctypes.c_void_p,
        pointer(Target),
        ctypes.c_void_p,
        ctypes.c_int,
        ctypes.c_int64,
        ctypes.c_int64,
        pointer(_Block),
        pointer(_Outcome),
    )
    return library


def _check(library: ctypes.CDLL, path: Path) -> None:
    if not library.storeside_built_from().decode().startswith(source_digest()):
        raise RuntimeError(f"{path} was built from another version of pcm.c")
    versions = (ctypes.c_uint * (2 * len(LIBRARIES)))()
    library.storeside_versions(versions)
    for name, built, running in zip(LIBRARIES, versions[::2], versions[1::2], strict=True):
        # Within a major version structures keep their layout; minor versions append fields.
        if built >> 16 != running >> 16 or running < built:
            raise RuntimeError(f"{path} was built for {name} {_version(built)}, and {_version(running)} is installed")


def _version(number: int) -> str:
    return f"{number >> 16}.{number >> 8 & 0xFF}.{number & 0xFF}"
