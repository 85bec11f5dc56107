"""Transcoding with libav through PyAV, in process, to every `AudioFormat`."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from itertools import chain
from typing import Any

import av

from . import errors
from . import libav_filters as filters
from .errors import AudioError
from .formats import MUXERS, AudioFormat
from .input import open_input
from .libav_decoder import Decoder, reason
from .limits import Limits
from .measure import measure
from .signal import Signal, SignalFacts

_Steps = Callable[[Any], list[filters.Filter]]


def transcode(source: str | bytes | bytearray, target: AudioFormat, limits: Limits) -> memoryview:
    """Transcode one object. Raises AudioError."""
    return _transcode(source, target, limits, None)[0]


def transcode_and_measure(
    source: str | bytes | bytearray, target: AudioFormat, limits: Limits
) -> tuple[memoryview, SignalFacts, float]:
    """Transcode one object, and return the facts of the transcoded part of the source as well. Raises AudioError.

    The number is that of the decoded seconds.
    """
    signal = Signal(target.start_seconds, target.end_seconds)
    data, seconds = _transcode(source, target, limits, signal)
    return data, signal.facts(), seconds


def _transcode(
    source: str | bytes | bytearray, target: AudioFormat, limits: Limits, signal: Signal | None
) -> tuple[memoryview, float]:
    written = io.BytesIO()
    steps = _filters(source, target, limits)
    with open_input(source) as data:
        decoder = Decoder(data, limits, target.channel_index)
        try:
            # Bit-exact: the result depends only on the audio, not on the version of the library that writes it.
            muxer = MUXERS.get(target.container, target.container)
            with av.open(written, "w", format=muxer, options={"fflags": "+bitexact"}) as out:
                for packets in _encoded(decoder, target, steps, out, signal):
                    out.mux(packets)
                    _require_size(written, limits)
        finally:
            decoder.close()
    _require_size(written, limits)
    return written.getbuffer(), decoder.samples / decoder.rate


def _filters(source: str | bytes | bytearray, target: AudioFormat, limits: Limits) -> _Steps:
    before = filters.segment(target)
    measured = measure(source, target, limits) if target.is_measured else None

    def steps(found: Any) -> list[filters.Filter]:
        if measured is None:
            return before + filters.form(target, target.written_by.sample_format, found)
        part = filters.part(measured.start, measured.end) + filters.gain(measured.gain)
        made = filters.exactly(target, target.written_by.sample_format, found)
        return before + filters.form(target, "flt", found) + part + made

    return steps


def _stream(out: Any, target: AudioFormat, layout: str) -> Any:
    """Add the result's stream and open it, so that its number of samples per frame is known."""
    codec = target.written_by
    form: dict[str, Any] = {"rate": target.sample_rate, "layout": layout}
    if target.bit_rate is not None:
        form["bit_rate"] = target.bit_rate
    stream = out.add_stream(codec.encoder, **form)
    stream.codec_context.format = codec.sample_format
    stream.codec_context.open()
    return stream


def _encoded(decoder: Decoder, target: AudioFormat, steps: _Steps, out: Any, signal: Signal | None) -> Iterator[Any]:
    """Yield all packets of the result."""
    samples = 0
    frames = decoder.frames(target.end_seconds)
    if signal:
        frames = signal.of(frames, decoder.codec)
    first = next(frames)
    try:
        stream = _stream(out, target, filters.layout(target, first.layout))
        graph = filters.Filters(steps, stream.codec_context.frame_size or None)
        for frame in chain((first,), frames, (None,)):
            for made in graph.process(frame):
                samples += made.samples
                yield stream.encode(made)
        if not samples:
            raise _too_short(decoder, target)
        yield stream.encode(None)
    except AudioError:
        raise
    except (av.FFmpegError, ValueError) as e:  # a sample format or layout that libav cannot convert
        raise errors.not_transcodable(
            decoder.codec, decoder.channels, decoder.rate, decoder.samples, reason(e)
        ) from e


def _too_short(decoder: Decoder, target: AudioFormat) -> AudioError:
    if decoder.samples <= target.start_seconds * decoder.rate:
        return errors.before_segment(decoder.samples / decoder.rate, target.start_seconds)
    return errors.too_short(decoder.samples, target.sample_rate)


def _require_size(written: io.BytesIO, limits: Limits) -> None:
    if written.tell() > limits.result_bytes:
        raise errors.too_large(limits.result_bytes)
