"""Audio transcoding and measuring, in process.

The native library, if it is built, writes WAV of 16-bit PCM, the usual input of speech recognition. PyAV writes all
other formats. Both use libav and reject the same objects with the same error texts. Their samples differ only if
their versions of libav differ, and then mostly by at most 2 of the 65,536 steps.
"""

from __future__ import annotations

from collections.abc import Callable

from storeside.transformers.transformer import Data

from . import native_engine
from .errors import AudioError
from .facts import AudioFacts
from .formats import AudioFormat
from .limits import Limits
from .signal import SignalFacts

__all__ = ["AudioError", "AudioFacts", "probe", "transcode"]

_Engine = Callable[["str | bytes | bytearray", AudioFormat, Limits], Data]
_MeasuringEngine = Callable[["str | bytes | bytearray", AudioFormat, Limits], tuple[Data, SignalFacts, float]]


def transcode(source: str | bytes | bytearray, target: AudioFormat, limits: Limits | None = None) -> Data:
    """Transcode one object.

    `source` is the object's content or the path of its file. Channels are mixed as with the ffmpeg command's ``-ac``.
    Raises AudioError if the object cannot be decoded completely or exceeds the limits.
    """
    return engine(target)(source, target, limits or Limits())


def engine(target: AudioFormat) -> _Engine:
    """Return the engine that writes this format on this machine, with its libraries loaded."""
    if _is_native(target):
        return _native
    from . import libav_engine

    return libav_engine.transcode


def measuring_engine(target: AudioFormat) -> _MeasuringEngine:
    """Return the engine like `engine`; it also returns the facts and the seconds of the source."""
    if _is_native(target):
        return _native_measuring
    from . import libav_engine

    return libav_engine.transcode_and_measure


def _is_native(target: AudioFormat) -> bool:
    return target.is_wav_s16 and target.is_whole and native_engine.is_available()


def _native(source: str | bytes | bytearray, target: AudioFormat, limits: Limits) -> Data:
    """Transcode with the native library; use PyAV for codecs that only its newer libav can decode."""
    try:
        return native_engine.transcode(source, target, limits)
    except native_engine.NotSupported:
        from . import libav_engine

        return libav_engine.transcode(source, target, limits)


def _native_measuring(
    source: str | bytes | bytearray, target: AudioFormat, limits: Limits
) -> tuple[Data, SignalFacts, float]:
    try:
        return native_engine.transcode_and_measure(source, target, limits)
    except native_engine.NotSupported:
        from . import libav_engine

        return libav_engine.transcode_and_measure(source, target, limits)


def probe(source: str | bytes | bytearray | memoryview, limits: Limits | None = None) -> AudioFacts:
    """Measure one object: decode all of it, with one frame in memory at a time.

    Raises AudioError if the object cannot be decoded completely or exceeds the limits.
    """
    from . import facts

    return facts.probe(source, limits or Limits())
