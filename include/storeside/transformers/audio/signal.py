"""Facts of a decoded recording before it is mixed and resampled, with numpy; native/signal.c computes the same."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    import numpy as np

    _Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]

FRAMES_PER_SECOND = 50
SILENCE_DBFS = -50.0
CLIPPED_RUN = 3
NOISE_PERCENT, SPEECH_PERCENT = 15, 95
BAND_THRESHOLD_DB = -50.0
_BAND_FLOOR = 1e-13  # of a tone at full scale: the FFT's own noise is lower
LOWEST_DBFS = -100
_FEWEST_FRAMES = 25  # for the signal-to-noise ratio: half a second
_STEPS = 10  # of levels, per dB
_WIDEST_BIN = 32  # Hz
_PERIOD = 4  # lengths of a spectrum from the start of one to the start of the next
_LOWEST_BIN = 2  # a constant offset reaches bins 0 and 1
# The largest magnitudes of ITU-T G.711, as 16-bit samples.
_LARGEST = {"pcm_mulaw": 32_124 / 32_768, "pcm_alaw": 32_256 / 32_768}


@dataclass(frozen=True)
class SignalFacts:
    """Facts of the decoded samples of a recording, in its own channels, rate and level; docs/audio.md defines them.

    `silence_share` is the share of frames of 20 ms below -50 dBFS, `clipped_share` the share of samples in runs of
    three or more at full scale, both 0 to 1. `bandwidth_hz` is the highest frequency in Hz at which the mean spectrum
    is at most 50 dB below its peak. `snr_db` is the difference in dB between the 95th and the 15th percentile of the
    frames' levels. A fact that cannot be estimated, because the recording is silent or too short, is None.
    """

    silence_share: float
    clipped_share: float
    bandwidth_hz: float | None
    snr_db: float | None


class Signal:
    """Computes the facts of one recording, or of its part from `start` to `end` (seconds), frame by frame."""

    def __init__(self, start: float = 0.0, end: float = math.inf) -> None:
        self._bounds = (start, end)
        self._seen = 0  # samples per channel, also those outside the bounds
        self._rate = 0
        self._limit = 1.0
        self._waiting: list[_Array] = []  # numpy is fast only with long arrays
        self._waiting_samples = 0
        self._values = self._clipped = self._silent = self._frames = self._spectra = 0

    def of(self, frames: Iterator[Any], codec: str) -> Iterator[Any]:
        """Yield the frames of a recording after adding them."""
        for frame in frames:
            for packed in interleaved(frame):
                self.add(packed, packed.to_ndarray(), codec)
            yield frame

    def add(self, frame: Any, samples: _Array, codec: str) -> None:
        """Add a decoded frame and its `samples`, as PyAV returns them; `codec` is libav's name of the decoder."""
        import numpy as np

        channels = len(frame.layout.channels)
        values = samples.T if frame.format.is_planar else samples.reshape(-1, channels)
        if not self._rate:
            self._start(frame.sample_rate, channels, samples.dtype, codec)
        first, last = (
            min(max(0, round(bound * self._rate) - self._seen), len(values)) if bound < math.inf else len(values)
            for bound in self._bounds
        )
        self._seen += len(values)
        self._waiting.append(_scaled(values[first:last]))
        self._waiting_samples += last - first
        if self._waiting_samples >= self._rate:
            self._work(np.concatenate(self._waiting))

    def facts(self) -> SignalFacts:
        """Return the facts after the last frame."""
        import numpy as np

        if self._waiting_samples:
            self._work(np.concatenate(self._waiting))
        if len(self._part):
            self._judge((self._part**2).mean(dtype=np.float64).reshape(1))
        if len(self._rest) >= self._size:
            self._add_spectra(self._rest[np.newaxis, : self._size])
        return SignalFacts(
            self._silent / self._frames, self._clipped / self._values, self._bandwidth(), self._ratio()
        )

    def _start(self, rate: int, channels: int, kind: Any, codec: str) -> None:
        import numpy as np

        self._rate = rate
        # The second largest value of the sample format, or of 16 bits; G.711's steps are too wide for that.
        self._limit = _LARGEST.get(codec) or (126 / 128 if kind == np.uint8 else 32_766 / 32_768)
        self._frame = rate // FRAMES_PER_SECOND
        self._size = 1 << max(0, math.ceil(math.log2(rate / _WIDEST_BIN)))
        self._window = (0.5 - 0.5 * np.cos(2 * np.pi * np.arange(self._size) / self._size)).astype(np.float32)
        self._power = np.zeros(self._size // 2 + 1)
        self._histogram = np.zeros(-LOWEST_DBFS * _STEPS + 1, np.int64)
        self._part = self._rest = np.zeros((0, channels), np.float32)
        self._runs = [0] * channels

    def _work(self, values: _Array) -> None:
        import numpy as np

        self._waiting, self._waiting_samples = [], 0
        self._values += values.size
        self._count_runs(np.abs(values) >= np.float32(self._limit))
        frames, self._part = _whole(self._part, values, self._frame)
        self._judge((frames**2).mean(axis=(1, 2), dtype=np.float64))
        periods, self._rest = _whole(self._rest, values, _PERIOD * self._size)
        self._add_spectra(periods[:, : self._size])

    def _count_runs(self, clipped: _Array) -> None:
        for channel, before in enumerate(self._runs):
            self._runs[channel] = self._counted(clipped[:, channel], before)

    def _counted(self, clipped: _Array, before: int) -> int:
        """Count the samples in long runs; return the length of the run at the end, `before` that at the start."""
        import numpy as np

        if not clipped.any():
            return 0
        edges = np.flatnonzero(np.diff(clipped, prepend=False, append=False))
        starts, ends = edges[::2], edges[1::2]
        lengths = ends - starts
        if starts[0] == 0:
            lengths[0] += before
            self._clipped -= before if before >= CLIPPED_RUN else 0
        self._clipped += int(lengths[lengths >= CLIPPED_RUN].sum())
        return int(lengths[-1]) if ends[-1] == len(clipped) else 0

    def _judge(self, powers: _Array) -> None:
        import numpy as np

        levels = 10 * np.log10(np.maximum(powers, 10 ** (LOWEST_DBFS / 10)))
        steps = np.rint((levels - LOWEST_DBFS) * _STEPS).astype(int).clip(0, len(self._histogram) - 1)
        self._histogram += np.bincount(steps, minlength=len(self._histogram))
        self._frames += len(powers)
        self._silent += int((powers < 10 ** (SILENCE_DBFS / 10)).sum())

    def _add_spectra(self, parts: _Array) -> None:
        import numpy as np

        spectra = np.fft.rfft(parts * self._window[:, np.newaxis], axis=1)
        self._power += (spectra.real**2 + spectra.imag**2).sum(axis=(0, 2))
        self._spectra += len(parts)

    def _bandwidth(self) -> float | None:
        import numpy as np

        band = self._power[_LOWEST_BIN:]
        peak = float(band.max())
        tone = (self._size / 4) ** 2 * self._spectra * len(self._runs)
        if not self._spectra or peak < _BAND_FLOOR * tone:
            return None
        highest = _LOWEST_BIN + int(np.flatnonzero(band >= peak * 10 ** (BAND_THRESHOLD_DB / 10))[-1])
        return highest * self._rate / self._size

    def _ratio(self) -> float | None:
        import numpy as np

        reached = self._histogram.cumsum() * 100
        noise, speech = (
            int(np.searchsorted(reached, self._frames * percent)) for percent in (NOISE_PERCENT, SPEECH_PERCENT)
        )
        return (speech - noise) / _STEPS if self._frames >= _FEWEST_FRAMES and speech else None


def interleaved(frame: Any) -> Iterator[Any]:
    """Yield the frame, interleaved if it has many channels, and with 32 bits if it has 64, which numpy does not get.

    PyAV 18.1 counts a frame's planes up to a null pointer. With more than 8 planes there is no null pointer, and PyAV
    crashes.
    """
    packed = frame.format.packed.name
    if packed != "s64" and (not frame.format.is_planar or len(frame.layout.channels) < 8):
        yield frame
        return
    from .libav_filters import Filters

    packer = Filters(lambda _: [("aformat", f"sample_fmts={'s32' if packed == 's64' else packed}")])
    yield from packer.process(frame)
    yield from packer.process(None)


def _scaled(samples: _Array) -> _Array:
    """Return samples of any PCM type with full scale 1; larger values count as full scale, and NaN counts as 0."""
    import numpy as np

    if samples.dtype.kind == "f":
        return np.nan_to_num(samples.astype(np.float32), copy=False, nan=0, posinf=1, neginf=-1).clip(-1, 1)
    values = samples.astype(np.float32)
    if samples.dtype.kind == "u":  # 8-bit samples, in which the middle value is silence
        values -= 128
    return values / np.float32(2.0 ** (8 * samples.dtype.itemsize - 1))


def _whole(before: _Array, values: _Array, size: int) -> tuple[_Array, _Array]:
    """Return as many whole pieces of `size` samples as there are, and the rest."""
    import numpy as np

    joined = np.concatenate([before, values])
    count = len(joined) // size
    return joined[: count * size].reshape(count, size, joined.shape[1]), joined[count * size :]
