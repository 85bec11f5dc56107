"""The facts of an audio object: its form, length, levels and checksum."""

from __future__ import annotations

import hashlib
import math
from dataclasses import asdict, dataclass
from typing import Any, TypeAlias

import numpy as np

from storeside.transformers.transformer import Data, open_source

from .containers.stated import Stated
from .errors import AudioError
from .formats import AudioFormat
from .input import open_input
from .limits import Limits
from .signal import Signal, interleaved

_Samples: TypeAlias = np.ndarray[Any, np.dtype[Any]]
SILENCE_DBFS = -200.0
# More than the header size of any WAV file that this package writes (44 or 68 bytes).
_HEADER_BYTES = 128


@dataclass(frozen=True)
class AudioFacts:
    """The measured facts of an audio object.

    Levels are in dBFS over all channels; silence has -200. For a transcoded result, the facts from `complete` to
    `ignored` describe the source recording, and so do the last four; see `SignalFacts`. Those are None in facts from
    transformers of earlier versions.

    :param duration_seconds: length of the audio
    :param sample_rate: Hz
    :param channels: number of channels
    :param samples: samples per channel
    :param bytes: size of the object
    :param peak_dbfs: highest level
    :param rms_dbfs: mean level
    :param checksum: SHA-256 of the object, hex
    :param codec: libav's name of the decoder
    :param complete: "yes" if the container declares the length of the recording and all of it exists, "unknown" if it
        declares no length. "no" is reserved for readers that keep truncated recordings, which this package rejects
    :param declared_seconds: the declared length, or None
    :param ignored: unread bytes after the recording, such as "ID3v1 tag"
    :param silence_share: share of silent frames, 0 to 1
    :param clipped_share: share of clipped samples, 0 to 1
    :param bandwidth_hz: effective bandwidth in Hz
    :param snr_db: estimate of the signal-to-noise ratio in dB
    """

    duration_seconds: float
    sample_rate: int
    channels: int
    samples: int
    bytes: int
    peak_dbfs: float
    rms_dbfs: float
    checksum: str
    codec: str
    complete: str = "unknown"
    declared_seconds: float | None = None
    ignored: str = ""
    silence_share: float | None = None
    clipped_share: float | None = None
    bandwidth_hz: float | None = None
    snr_db: float | None = None


def probe(source: str | bytes | bytearray | memoryview, limits: Limits) -> AudioFacts:
    """Measure one object: decode all of it, with one frame in memory at a time. Raises AudioError."""
    from .libav_decoder import Decoder

    with open_input(source) as data:
        size, stated = data.size, data.stated
        digest = _digest(source)
        data.seek(0)  # `data` and `source` may share one file position
        decoder = Decoder(data, limits)
        levels, signal = _Levels(), Signal()
        try:
            for frame in decoder.frames():
                for packed in interleaved(frame):
                    samples = packed.to_ndarray()
                    levels.add(samples.ravel())
                    signal.add(packed, samples, decoder.codec)
            if not levels.are_finite:
                raise AudioError(f"the {decoder.codec} samples contain values that are not finite numbers")
            return AudioFacts(
                duration_seconds=decoder.samples / decoder.rate,
                sample_rate=decoder.rate,
                channels=decoder.channels,
                samples=decoder.samples,
                bytes=size,
                peak_dbfs=levels.peak_dbfs,
                rms_dbfs=levels.rms_dbfs,
                checksum=digest,
                codec=decoder.codec,
                complete=stated.completeness(decoder.samples / decoder.rate),
                declared_seconds=stated.seconds,
                ignored=stated.ignored,
                **asdict(signal.facts()),
            )
        finally:
            decoder.close()


def _digest(source: str | bytes | bytearray | memoryview) -> str:
    if not isinstance(source, str):
        return hashlib.sha256(source).hexdigest()
    with open(open_source(source), "rb", buffering=0) as data:
        return hashlib.file_digest(data, "sha256").hexdigest()


def stated_of(source: str | bytes | bytearray | memoryview) -> Stated:
    """Return what an object's container declares about its length. Raises AudioError."""
    with open_input(source) as data:
        return data.stated


def facts_of_wav(data: Data, target: AudioFormat) -> AudioFacts:
    """Return the facts that `probe` would measure of a result in WAV of 16-bit PCM, without decoding the result."""
    start = bytes(data[:_HEADER_BYTES]).index(b"data") + 8
    values = np.frombuffer(data, "<i2", offset=start)
    rate, channels = target.sample_rate, target.channels
    levels = _Levels()
    levels.add(values)
    samples = len(values) // channels
    return AudioFacts(
        duration_seconds=samples / rate,
        sample_rate=rate,
        channels=channels,
        samples=samples,
        bytes=len(data),
        peak_dbfs=levels.peak_dbfs,
        rms_dbfs=levels.rms_dbfs,
        checksum=hashlib.sha256(data).hexdigest(),
        codec="pcm_s16le",
        complete="yes",
        declared_seconds=samples / rate,
    )


def levels(samples: _Samples) -> tuple[float, float]:
    """Return the peak and the RMS level in dBFS of samples of any PCM type; there must be at least one."""
    found = _Levels()
    found.add(samples)
    return found.peak_dbfs, found.rms_dbfs


# Samples per step. OpenBLAS starts threads for vectors of more than 10,000 values (kernel/x86_64/ddot.c), and a
# double holds the square sum of this number of 16-bit samples without rounding.
_CHUNK = 8_192


class _Levels:
    """Peak and RMS of samples that arrive in pieces.

    Square sums of integers are exact, so the levels of 16-bit samples do not depend on the size of the pieces.
    """

    def __init__(self) -> None:
        self._peak = 0.0
        self._square_sum: float | int = 0
        self._count = 0
        self._full_scale = 1.0

    def add(self, samples: _Samples) -> None:
        """Add samples; all pieces must have the same PCM type."""
        for start in range(0, len(samples), _CHUNK):
            self._add(samples[start : start + _CHUNK])

    def _add(self, samples: _Samples) -> None:
        values = samples.astype(np.float64)
        whole = samples.dtype.kind != "f"
        if whole:
            self._full_scale = 2.0 ** (8 * samples.dtype.itemsize - 1)
        if samples.dtype.kind == "u":  # 8-bit samples, in which the middle value is silence
            values -= self._full_scale
        self._peak = max(self._peak, float(values.max()), -float(values.min()))
        square_sum = np.dot(values, values)
        self._square_sum += int(square_sum) if whole else float(square_sum)
        self._count += len(values)

    @property
    def are_finite(self) -> bool:
        """Whether all samples are finite numbers."""
        return math.isfinite(self._square_sum)

    @property
    def peak_dbfs(self) -> float:
        """The peak level in dBFS."""
        return _dbfs(self._peak / self._full_scale)

    @property
    def rms_dbfs(self) -> float:
        """The root mean square level in dBFS."""
        return _dbfs(math.sqrt(self._square_sum / self._count) / self._full_scale)


def _dbfs(level: float) -> float:
    return 20 * math.log10(level) if level > 0 else SILENCE_DBFS
