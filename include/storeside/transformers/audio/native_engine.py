"""Transcoding to WAV of 16-bit PCM with the native library."""

from __future__ import annotations

import math
import struct
import threading
from collections.abc import Callable

from storeside.transformers.native.converter import ConversionError, Converter, Pcm, Status, Target, load

from . import errors
from .containers.stated import Stated
from .engines import native_cells
from .formats import AudioFormat
from .input import CONTAINERS, SOURCE_RATES, open_input
from .limits import Limits
from .signal import SignalFacts

_SAMPLE_BYTES = 2
_PLAIN_HEADER, _EXTENSIBLE_HEADER = 44, 68
# KSDATAFORMAT_SUBTYPE_PCM in the byte order of WAVEFORMATEXTENSIBLE.
_PCM_GUID = bytes.fromhex("0100000000001000800000aa00389b71")

_of_thread = threading.local()


class NotSupported(errors.AudioError):
    """The table of engines leaves the object to PyAV, or this version of libav cannot decode it."""


def is_available() -> bool:
    """Return whether the native library is installed and was built from the current source."""
    return load() is not None


def transcode(source: str | bytes | bytearray, target: AudioFormat, limits: Limits) -> memoryview:
    """Transcode one object to 16-bit PCM WAV with the target's rate and channels.

    Raises the same AudioErrors as the other engines, and NotSupported.
    """
    return _converted(source, target, limits, measures=False)[0]


def transcode_and_measure(
    source: str | bytes | bytearray, target: AudioFormat, limits: Limits
) -> tuple[memoryview, SignalFacts, float]:
    """Transcode like `transcode`, and return the facts and the seconds of the source as well."""
    data, pcm = _converted(source, target, limits, measures=True)
    silence, clipped, *estimates = pcm.signal
    signal = SignalFacts(silence, clipped, *(None if math.isnan(value) else value for value in estimates))
    return data, signal, pcm.samples / pcm.rate


def _converted(
    source: str | bytes | bytearray, target: AudioFormat, limits: Limits, *, measures: bool
) -> tuple[memoryview, Pcm]:
    with open_input(source) as opened:
        stated = opened.stated
        if stated.seconds and stated.seconds > limits.seconds:
            raise errors.too_long(limits.seconds)
        if stated.form:
            raise NotSupported(f"the table of engines leaves to PyAV: {stated.form}")
        wanted = _target(target, limits, stated)
        wanted.measures = measures
        descriptor, content = (opened.fileno(), None) if isinstance(source, str) else (-1, source)
        try:
            pcm = _converter().convert(wanted, content, descriptor, stated.start, stated.end)
        except ConversionError as e:
            raise _meaning(e, target, limits) from e
    stated.require(pcm.samples, pcm.rate)
    header = _header(target, len(pcm.data), pcm.mask)
    pcm.data[: len(header)] = header
    return pcm.data, pcm


def _target(target: AudioFormat, limits: Limits, stated: Stated) -> Target:
    cells, others = native_cells()
    return Target(
        containers=CONTAINERS.encode(),
        cells=cells,
        other_forms=others,
        max_seconds=limits.seconds,
        max_bytes=limits.result_bytes,
        headroom=_EXTENSIBLE_HEADER if _is_extensible(target) else _PLAIN_HEADER,
        min_source_rate=SOURCE_RATES[0],
        max_source_rate=SOURCE_RATES[-1],
        rate=target.sample_rate,
        channels=target.channels,
        expected_seconds=stated.exact_seconds,
        kept_seconds=sum(stated.kept_seconds) if stated.kept_seconds else -1,
        keeps_edges=stated.keeps_edges,
        keeps_packets=stated.keeps_packets,
        channel=-1 if target.channel_index is None else target.channel_index,
        head=stated.head,
        head_bytes=len(stated.head),
    )


def _converter() -> Converter:
    """Return this thread's converter."""
    try:
        converter: Converter = _of_thread.converter
    except AttributeError:
        library = load()
        if library is None:
            raise RuntimeError("the native audio library is not available") from None
        converter = _of_thread.converter = Converter(library)
    return converter


def _is_extensible(target: AudioFormat) -> bool:
    """Return whether libav writes the longer header, which plain WAV needs for many channels or a high rate."""
    return target.channels > 2 or target.sample_rate > 48_000


def _header(target: AudioFormat, size: int, mask: int) -> bytes:
    """Return the header of a WAV file of `size` bytes in total."""
    frame = target.channels * _SAMPLE_BYTES
    bits = 8 * _SAMPLE_BYTES
    extensible = _is_extensible(target)
    form = struct.pack(
        "<HHIIHH",
        0xFFFE if extensible else 1,
        target.channels,
        target.sample_rate,
        target.sample_rate * frame,
        frame,
        bits,
    )
    if extensible:
        form += struct.pack("<HHI", 22, bits, mask) + _PCM_GUID
    body = b"WAVEfmt " + struct.pack("<I", len(form)) + form
    return b"RIFF" + struct.pack("<I", size - 8) + body + b"data" + struct.pack("<I", size - len(body) - 16)


def _meaning(e: ConversionError, target: AudioFormat, limits: Limits) -> errors.AudioError:
    error = _MEANING[e.status](e, target, limits)
    # Older versions lack decoders, and take packets for damage that newer ones know, as of a chain of Opus.
    if e.status in (Status.UNKNOWN_CODEC, Status.NO_SAMPLES, Status.DAMAGED) or (
        e.is_not_implemented and not e.samples
    ):
        return NotSupported(str(error))
    return error


_MEANING: dict[Status, Callable[[ConversionError, AudioFormat, Limits], errors.AudioError]] = {
    Status.NOT_AUDIO: lambda e, _target, _limits: errors.not_audio(e.reason),
    Status.NO_STREAM: lambda e, _target, _limits: errors.no_stream(e.container),
    Status.UNKNOWN_CODEC: lambda e, _target, _limits: errors.unknown_codec(e.container),
    Status.BAD_RATE: lambda e, _target, _limits: errors.bad_rate(e.rate),
    Status.DAMAGED: lambda e, _target, _limits: errors.damaged(e.codec, e.samples, e.reason),
    Status.NO_SAMPLES: lambda e, _target, _limits: errors.no_samples(e.codec),
    Status.NOT_MIXABLE: lambda e, _target, _limits: errors.not_transcodable(
        e.codec, e.channels, e.rate, e.samples, e.reason
    ),
    Status.FORM_CHANGED: lambda e, _target, _limits: errors.form_changed(e.codec, e.samples),
    Status.NO_CHANNEL: lambda e, target, _limits: errors.no_channel((target.channel_index or 0) + 1, e.channels),
    Status.TOO_LONG: lambda _e, _target, limits: errors.too_long(limits.seconds),
    Status.TOO_LARGE: lambda _e, _target, limits: errors.too_large(limits.result_bytes),
    Status.TOO_SHORT: lambda e, target, _limits: errors.too_short(e.samples, target.sample_rate),
}
