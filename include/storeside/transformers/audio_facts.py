"""Facts and levels of an audio object."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from .audio_errors import AudioError
from .audio_input import open_input
from .audio_limits import Limits
from .containers.stated import Stated
from .formats import AudioFormat
from .transformer import Data, open_source

_Samples: TypeAlias = np.ndarray[Any, np.dtype[Any]]
SILENCE_DBFS = -200.0
# More bytes than precede the samples of a WAV file that this package writes (44 or 68).
_HEADER_BYTES = 128


@dataclass(frozen=True)
class AudioFacts:
    """The measured facts of an audio object.

    `samples` is per channel; `bytes` and `checksum` (SHA-256, hex) are the object's; levels are in dBFS over all
    channels together, with silence as -200; `codec` is libav's name of the decoder.

    `complete` is "yes" when the container states how long the recording is and all of it is there, "unknown" when
    nothing states it; "no" is for readers that keep truncated recordings, which this package refuses.
    `declared_seconds` is the stated length, None when there is none. `ignored` names bytes behind the recording that
    were not read, such as "ID3v1 tag". Facts of a transcoded result take these three from the source recording.
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


def probe(source: str | bytes | bytearray | memoryview, limits: Limits) -> AudioFacts:
    """Measure one object: decode all of it, one frame in memory at a time. Raises AudioError."""
    from .audio_decoder import Decoder

    with open_input(source) as data:
        size, stated = data.size, data.stated
        digest = _digest(source)
        data.seek(0)  # both may share one position
        decoder = Decoder(data, limits)
        levels = _Levels()
        try:
            for frame in decoder.frames():
                for packed in _packed(frame):
                    levels.add(packed.to_ndarray().ravel())
            if not levels.are_finite:
                raise AudioError(f"the {decoder.codec} samples are not all numbers")
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
                complete=stated.complete,
                declared_seconds=stated.seconds,
                ignored=stated.ignored,
            )
        finally:
            decoder.close()


def _digest(source: str | bytes | bytearray | memoryview) -> str:
    if not isinstance(source, str):
        return hashlib.sha256(source).hexdigest()
    with open(open_source(source), "rb", buffering=0) as data:
        return hashlib.file_digest(data, "sha256").hexdigest()


def _packed(frame: Any) -> Iterator[Any]:
    """Yield the frame, interleaved if it has many channels.

    PyAV 18.1 counts a frame's planes up to a null pointer; with more than 8 planes there is none, and it crashes.
    """
    if not frame.format.is_planar or len(frame.layout.channels) < 8:
        yield frame
        return
    from .audio_filters import Filters

    packer = Filters(lambda _: [("aformat", f"sample_fmts={frame.format.packed.name}")])
    yield from packer.process(frame)
    yield from packer.process(None)


def stated_of(source: str | bytes | bytearray | memoryview) -> Stated:
    """Return the stated length of an object, read from its container. Raises AudioError."""
    with open_input(source) as data:
        return data.stated


def facts_of_wav(data: Data, target: AudioFormat) -> AudioFacts:
    """Return what `probe` says of a result in WAV of 16-bit PCM, without decoding it."""
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


# Samples at a time: OpenBLAS starts threads for vectors from 10,001 values on (kernel/x86_64/ddot.c), and the square
# sum of this number of 16-bit samples fits into a double without rounding.
_CHUNK = 8_192


class _Levels:
    """Peak and RMS of samples that arrive in pieces.

    Square sums of integers are kept exactly, so that levels of 16-bit samples do not depend on the pieces.
    """

    def __init__(self) -> None:
        self._peak = 0.0
        self._square_sum: float | int = 0
        self._count = 0
        self._full_scale = 1.0

    def add(self, samples: _Samples) -> None:
        """Add samples of one PCM type, the same for all pieces."""
        for start in range(0, len(samples), _CHUNK):
            self._add(samples[start : start + _CHUNK])

    def _add(self, samples: _Samples) -> None:
        values = samples.astype(np.float64)
        whole = samples.dtype.kind != "f"
        if whole:
            self._full_scale = 2.0 ** (8 * samples.dtype.itemsize - 1)
        if samples.dtype.kind == "u":  # 8 bits, with silence at the middle value
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
        """The level of the sample farthest from silence."""
        return _dbfs(self._peak / self._full_scale)

    @property
    def rms_dbfs(self) -> float:
        """The root mean square of all samples."""
        return _dbfs(math.sqrt(self._square_sum / self._count) / self._full_scale)


def _dbfs(level: float) -> float:
    return 20 * math.log10(level) if level > 0 else SILENCE_DBFS
