"""Audio transcoding and measuring, in process.

The native library, where it is built, makes WAV of 16-bit PCM, the format that speech recognition reads; PyAV makes
everything else. Both are libav and refuse the same objects in the same words; their samples differ only where their
versions of libav do, and by no more than 2 of the 65,536 steps.
"""

from __future__ import annotations

from collections.abc import Callable

from . import audio_native
from .audio_errors import AudioError
from .audio_facts import AudioFacts
from .audio_limits import Limits
from .formats import AudioFormat
from .transformer import Data

__all__ = ["AudioError", "AudioFacts", "probe", "transcode"]

_Engine = Callable[["str | bytes | bytearray", AudioFormat, Limits], Data]


def transcode(source: str | bytes | bytearray, target: AudioFormat, limits: Limits | None = None) -> Data:
    """Transcode one object.

    `source` is the object's content or the path of the file that holds it. Channels are mixed as with the ffmpeg
    command's ``-ac``. Raises AudioError when the object cannot be decoded completely or exceeds the limits.
    """
    return engine(target)(source, target, limits or Limits())


def engine(target: AudioFormat) -> _Engine:
    """Return the engine that makes that format on this machine, with its libraries loaded."""
    if target.is_wav_s16 and target.is_whole and audio_native.is_available():
        return _native
    from . import audio_libav

    return audio_libav.transcode


def _native(source: str | bytes | bytearray, target: AudioFormat, limits: Limits) -> Data:
    """Transcode with the native library; use PyAV for what only its newer libav can decode."""
    try:
        return audio_native.transcode(source, target, limits)
    except audio_native.NotSupported:
        from . import audio_libav

        return audio_libav.transcode(source, target, limits)


def probe(source: str | bytes | bytearray | memoryview, limits: Limits | None = None) -> AudioFacts:
    """Measure one object: decode all of it, one frame in memory at a time.

    Raises AudioError when the object cannot be decoded completely or exceeds the limits.
    """
    from . import audio_facts

    return audio_facts.probe(source, limits or Limits())
