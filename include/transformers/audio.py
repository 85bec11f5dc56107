"""Audio decoding, transcoding and measuring with libav, in process.

Nothing here trusts its input: containers come from a fixed list, nothing but the given bytes is ever
opened, and damage that libav would conceal is an error.
"""

from __future__ import annotations

import hashlib
import io
import math
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, BinaryIO, cast

import av
import numpy as np

from .formats import CODECS, LAYOUTS, AudioFormat

# libav's names of the containers that hold audio and cannot refer to other files. Playlists (hls, concat,
# dash, sdp) are left out on purpose: they make libav open what a recording's author names.
CONTAINERS = "aac,aiff,caf,flac,matroska,webm,mov,mp4,m4a,3gp,3g2,mj2,mp3,ogg,w64,wav"


class AudioError(ValueError):
    """The object is not audio that can be read whole; the message says why."""


def _open(source: str | bytes | bytearray) -> BinaryIO:
    if isinstance(source, str):
        # By descriptor, so that the file has no name: libav would guess the format from it, and resolve
        # references against it.
        return os.fdopen(os.open(source, os.O_RDONLY), "rb")
    return io.BytesIO(source)


def _reason(error: Exception) -> str:
    return (getattr(error, "strerror", None) or str(error)).lower()


class _Decoder:
    """Frames of the first audio stream of one object, with damage turned into `AudioError`."""

    def __init__(self, data: BinaryIO) -> None:
        if not data.read(1):
            raise AudioError("the object is empty")
        data.seek(0)
        try:
            self.container: Any = av.open(
                data,
                options={"format_whitelist": CONTAINERS, "protocol_whitelist": ""},
                metadata_errors="ignore",
            )
        except (av.FFmpegError, ValueError) as e:
            raise AudioError(f"not an audio container that can be read: {_reason(e)}") from e
        if not self.container.streams.audio:
            self.container.close()
            raise AudioError(f"the {self.container.format.name} container holds no audio stream")
        self.stream: Any = self.container.streams.audio[0]
        self.stream.codec_context.options = {"err_detect": "explode+crccheck"}
        self.stream.codec_context.thread_type = (
            "NONE"  # objects are the parallelism: threads within one cost more than they give
        )
        self.samples = 0

    @property
    def declared_samples(self) -> int | None:
        """Samples per channel that the header promises, where the container states them exactly."""
        if self.container.format.name not in ("flac", "wav") or not self.stream.duration:
            return None
        seconds = self.stream.duration * self.stream.time_base
        samples: int = round(seconds * self.stream.codec_context.sample_rate)
        return samples

    def frames(self) -> Iterator[Any]:
        try:
            for frame in self.container.decode(self.stream):
                self.samples += frame.samples
                yield frame
        except av.FFmpegError as e:
            raise AudioError(f"damaged {self.codec} data after {self.samples} samples: {_reason(e)}") from e
        declared = self.declared_samples
        if not self.samples:
            raise AudioError(f"the {self.codec} stream holds no audio samples")
        if declared and self.samples < declared - self.stream.codec_context.sample_rate // 100:
            raise AudioError(f"truncated: {self.samples} of {declared} declared samples are there")

    @property
    def codec(self) -> str:
        return str(self.stream.codec_context.name)

    def close(self) -> None:
        self.container.close()


def transcode(source: str | bytes | bytearray, target: AudioFormat) -> bytes:
    """Transcode one object.

    `source` is the object's content or the path of the file that holds it. Channels are mixed as the ffmpeg
    command's ``-ac`` does. Raises AudioError when the object cannot be decoded whole.
    """
    encoder, sample_format, _ = CODECS[target.container][target.codec]
    layout = LAYOUTS[target.channels]
    written = io.BytesIO()
    with _open(source) as data:
        decoder = _Decoder(data)
        try:
            with av.open(written, "w", format=target.container) as out:
                stream: Any = out.add_stream(encoder, rate=target.sample_rate, layout=layout)
                resampler = av.AudioResampler(
                    format=sample_format,
                    layout=layout,
                    rate=target.sample_rate,
                    frame_size=_frame_size(stream),
                )
                for frame in decoder.frames():
                    for resampled in resampler.resample(frame):
                        out.mux(stream.encode(resampled))
                for resampled in resampler.resample(None):
                    out.mux(stream.encode(resampled))
                out.mux(stream.encode(None))
        finally:
            decoder.close()
    return written.getvalue()


def _frame_size(stream: Any) -> int | None:
    """Samples per frame that the encoder insists on; None when any number will do."""
    stream.codec_context.open()
    return stream.codec_context.frame_size or None


@dataclass(frozen=True)
class AudioFacts:
    """What an audio object holds; levels are in dBFS, with silence as -200."""

    duration_seconds: float
    sample_rate: int
    channels: int
    samples: int
    bytes: int
    peak_dbfs: float
    rms_dbfs: float
    checksum: str
    codec: str


_SILENCE_DBFS = -200.0


def probe(source: str | bytes | bytearray) -> AudioFacts:
    """Measure one object: decode all of it, keep one frame at a time.

    `samples` is per channel; `checksum` is the SHA-256 of the object's bytes, in hex. Raises AudioError when
    the object cannot be decoded whole.
    """
    with _open(source) as data:
        digest = hashlib.file_digest(cast(Any, data), "sha256").hexdigest()
        size = data.seek(0, io.SEEK_END)
        data.seek(0)
        decoder = _Decoder(data)
        try:
            context = decoder.stream.codec_context
            peak, square_sum, values = 0.0, 0.0, 0
            for frame in decoder.frames():
                scaled = _as_float(frame)
                peak = max(peak, float(np.abs(scaled).max()))
                square_sum += float(np.dot(scaled, scaled))
                values += scaled.size
            return AudioFacts(
                duration_seconds=decoder.samples / context.sample_rate,
                sample_rate=context.sample_rate,
                channels=len(context.layout.channels),
                samples=decoder.samples,
                bytes=size,
                peak_dbfs=_dbfs(peak),
                rms_dbfs=_dbfs(math.sqrt(square_sum / values)),
                checksum=digest,
                codec=decoder.codec,
            )
        finally:
            decoder.close()


def _as_float(frame: Any) -> np.ndarray[Any, np.dtype[np.float64]]:
    array: np.ndarray[Any, np.dtype[Any]] = frame.to_ndarray().ravel()
    if array.dtype.kind == "f":
        return array.astype(np.float64)
    if array.dtype == np.uint8:
        return (array.astype(np.float64) - 128) / 128
    return array.astype(np.float64) / float(-np.iinfo(array.dtype).min)


def _dbfs(level: float) -> float:
    return 20 * math.log10(level) if level > 0 else _SILENCE_DBFS
