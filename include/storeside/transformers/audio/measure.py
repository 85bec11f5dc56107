"""The first of two passes over a recording: finds the silence at its ends and measures its loudness."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import chain
from typing import Any

import av
import numpy as np

from . import errors
from . import libav_filters as filters
from .errors import AudioError
from .formats import AudioFormat
from .input import open_input
from .libav_decoder import Decoder, reason
from .limits import Limits

MAX_TRUE_PEAK_DBTP = -1.0  # EBU R 128, recommendation (h)
_UNMEASURABLE_LUFS = -70.0  # BS.1770-4's absolute gate; libav returns it if no block is louder
_OVERSAMPLING = 4  # for true peaks (BS.1770-4, annex 2)
# Windows of 10 ms whose RMS is below the threshold count as silence; 0.1 s of silence stays at each end.
_WINDOWS_PER_SECOND = 100
_MARGIN_SECONDS = 0.1


@dataclass(frozen=True)
class Measured:
    """The part of a recording to keep, in samples at the target's rate, and its gain in decibels."""

    start: int
    end: int
    gain: float


def measure(source: str | bytes | bytearray, target: AudioFormat, limits: Limits) -> Measured:
    """Decode an object up to the end of the target's segment, and measure it in the target's form.

    Raises AudioError if the object cannot be decoded, or is silent although silence must be trimmed.
    """
    loudness = _Loudness() if target.loudness_lufs is not None else None
    sound = _Sound(target)

    def chain_of_filters(found: Any) -> list[filters.Filter]:
        made = filters.form(target, "flt", found)
        levels = [("ebur128", "metadata=1"), *filters.exactly(target, "flt", found)] if loudness else []
        return [*filters.segment(target), *made, *levels]

    graph = filters.Filters(chain_of_filters)
    with open_input(source) as data:
        decoder = Decoder(data, limits, target.channel_index)
        try:
            for frame in chain(decoder.frames(target.end_seconds), (None,)):
                for made in graph.process(frame):
                    sound.add(made)
                    if loudness:
                        loudness.add(made)
        except (av.FFmpegError, ValueError) as e:  # a sample format or layout that libav cannot convert
            if isinstance(e, AudioError):
                raise
            raise errors.not_transcodable(
                decoder.codec, decoder.channels, decoder.rate, decoder.samples, reason(e)
            ) from e
        finally:
            decoder.close()
    start, end = sound.bounds()
    return Measured(start, end, loudness.gain(target.loudness_lufs) if loudness else 0.0)


class _Loudness:
    def __init__(self) -> None:
        self._integrated = _UNMEASURABLE_LUFS
        self._peak = 0.0
        self._resampler: Any = None

    def add(self, frame: Any) -> None:
        self._integrated = float(frame.metadata.get("lavfi.r128.I", self._integrated))
        if self._resampler is None:
            self._resampler = av.AudioResampler("flt", frame.layout.name, _OVERSAMPLING * frame.sample_rate)
        self._resample(frame)

    def _resample(self, frame: Any) -> None:
        for made in self._resampler.resample(frame):
            self._peak = max(self._peak, float(np.abs(made.to_ndarray()).max(initial=0)))

    def gain(self, wanted: float | None) -> float:
        """Return the gain in dB for the wanted loudness, or less if the true peak would exceed its maximum.

        No frame may be added afterwards.
        """
        if self._resampler is not None:
            self._resample(None)  # the last samples
        if wanted is None or not self._integrated > _UNMEASURABLE_LUFS or not self._peak:
            return 0.0
        return min(wanted - self._integrated, MAX_TRUE_PEAK_DBTP - 20 * math.log10(self._peak))


class _Sound:
    """Finds the first and the last window that is louder than the threshold."""

    def __init__(self, target: AudioFormat) -> None:
        self._target = target
        self._window = max(1, target.sample_rate // _WINDOWS_PER_SECOND)
        self._power = np.empty(0)  # of samples that do not fill a window
        self._windows = 0
        self._first: int | None = None
        self._last = 0
        self._samples = 0
        threshold = target.trim_silence_dbfs
        self._threshold = None if threshold is None else 10 ** (threshold / 10)

    def add(self, frame: Any) -> None:
        self._samples += frame.samples
        if self._threshold is None:
            return
        values = frame.to_ndarray().reshape(-1, self._target.channels).astype(np.float64)
        self._power = np.concatenate([self._power, (values**2).mean(axis=1)])
        count = len(self._power) // self._window
        self._judge(self._power[: count * self._window].reshape(count, self._window).mean(axis=1))
        self._power = self._power[count * self._window :]

    def _judge(self, powers: Any) -> None:
        loud = np.flatnonzero(powers > self._threshold)
        if len(loud):
            self._first = self._windows + int(loud[0]) if self._first is None else self._first
            self._last = self._windows + int(loud[-1])
        self._windows += len(powers)

    def bounds(self) -> tuple[int, int]:
        """Return the range of samples to keep: the first sample, and the one after the last."""
        if self._threshold is None or not self._samples:
            return 0, self._samples
        if len(self._power):
            self._judge(self._power.mean(keepdims=True))
        if self._first is None:
            raise AudioError(f"no part of the recording is louder than {self._target.trim_silence_dbfs} dBFS")
        margin = round(_MARGIN_SECONDS * self._target.sample_rate)
        start = max(0, self._first * self._window - margin)
        return start, min(self._samples, (self._last + 1) * self._window + margin)
