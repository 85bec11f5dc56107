"""Audio decoding, transcoding and measuring with libav, in process.

Nothing here trusts its input: containers come from a fixed list, nothing but the given bytes is ever
opened, and damage that libav would conceal is an error.
"""

from __future__ import annotations

import hashlib
import io
import math
import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Any, BinaryIO, cast

import av
import numpy as np

from .formats import CODECS, LAYOUTS, AudioFormat

# libav's names of the containers that hold audio and cannot refer to other files. Playlists (hls, concat,
# dash, sdp) are left out on purpose: they make libav open what a recording's author names.
CONTAINERS = "aac,aiff,caf,flac,matroska,webm,mov,mp4,m4a,3gp,3g2,mj2,mp3,ogg,w64,wav"


# Rates of recordings: beyond them is damage, and a tiny object at 1 Hz would become a huge result.
SOURCE_RATES = range(1_000, 768_001)
# Sizes from here on stand in WAV files that were written to a pipe, whose writer did not know the size.
_UNKNOWN_SIZE = 0x7FFF0000


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
        _refuse_truncated_wav(data)
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
        try:
            self._require_decodable()
        except AudioError:
            self.container.close()
            raise
        self.stream.codec_context.options = {"err_detect": "explode+crccheck"}
        self.stream.codec_context.thread_type = (
            "NONE"  # objects are the parallelism: threads within one cost more than they give
        )
        self.samples = 0

    def _require_decodable(self) -> None:
        context = self.stream.codec_context
        if context is None:
            raise AudioError(f"the codec in the {self.container.format.name} container is not known")
        if context.sample_rate not in SOURCE_RATES:
            raise AudioError(f"the sample rate {context.sample_rate} Hz is not that of a recording")

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


def _refuse_truncated_wav(data: BinaryIO) -> None:
    """Compare what a WAV file declares with what is there: libav ends without a word where the file does."""
    if data.read(4) != b"RIFF" or data.read(8)[4:] != b"WAVE":
        return
    rate = 0  # bytes per second
    while len(head := data.read(8)) == 8:
        name, size = head[:4], int.from_bytes(head[4:], "little")
        start = data.tell()
        if name == b"data":
            there = data.seek(0, io.SEEK_END) - start
            if size < _UNKNOWN_SIZE and there < size - rate // 100:
                raise AudioError(f"truncated: {there} of {size} declared bytes of samples are there")
            return
        if name == b"fmt " and len(form := data.read(16)) == 16:
            (rate,) = struct.unpack_from("<I", form, 8)
        data.seek(start + size + size % 2)


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
                _encode(decoder, resampler, stream, out)
        finally:
            decoder.close()
    if not written.tell():
        raise AudioError(f"too short: {decoder.samples} samples become none at {target.sample_rate} Hz")
    return written.getvalue()


def _encode(decoder: _Decoder, resampler: Any, stream: Any, out: Any) -> None:
    try:
        for frame in chain(decoder.frames(), (None,)):
            for resampled in resampler.resample(frame):
                out.mux(stream.encode(resampled))
        out.mux(stream.encode(None))
    except AudioError:
        raise
    except (av.FFmpegError, ValueError) as e:  # a form or timestamps that no recording has, or that change within it
        form = decoder.stream.codec_context
        raise AudioError(
            f"{decoder.codec} of {len(form.layout.channels)} channels at {form.sample_rate} Hz cannot be transcoded"
            f" after {decoder.samples} samples: {_reason(e)}"
        ) from e


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
            if not math.isfinite(square_sum):
                raise AudioError(f"the {decoder.codec} samples are not all numbers")
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
