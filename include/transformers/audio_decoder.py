"""Audio decoding with libav through PyAV.

Nothing here trusts its input: containers come from a fixed list, nothing but the given bytes is ever
opened, and damage that libav would conceal is an error.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, BinaryIO

import av

from . import audio_errors as errors
from .audio_errors import AudioError
from .audio_input import CONTAINERS, SOURCE_RATES
from .audio_limits import Limits


def reason(error: Exception) -> str:
    """Return what libav says of a failure."""
    return (getattr(error, "strerror", None) or str(error)).lower()


class Decoder:
    """Frames of the first audio stream of one object, with damage turned into `AudioError`.

    `samples` is how many were decoded so far, per channel.
    """

    def __init__(self, data: BinaryIO, limits: Limits) -> None:
        try:
            self.container: Any = av.open(
                data,
                options={"format_whitelist": CONTAINERS, "protocol_whitelist": ""},
                metadata_errors="ignore",
            )
        except (av.FFmpegError, ValueError) as e:
            raise errors.not_audio(reason(e)) from e
        self.limits = limits
        self.samples = 0
        self._form: tuple[Any, ...] | None = None
        try:
            self.stream: Any = self._decodable_stream()
        except AudioError:
            self.container.close()
            raise
        self.stream.codec_context.options = {"err_detect": "explode+crccheck"}
        # Objects are the parallelism: threads within one cost more than they give.
        self.stream.codec_context.thread_type = "NONE"

    def _decodable_stream(self) -> Any:
        if not self.container.streams.audio:
            raise errors.no_stream(self.container.format.name)
        stream = self.container.streams.audio[0]
        if stream.codec_context is None:
            raise errors.unknown_codec(self.container.format.name)
        _require_rate(stream.codec_context.sample_rate)
        declared = self._declared_samples(stream)
        if declared and declared // stream.codec_context.sample_rate > self.limits.seconds:
            raise errors.too_long(self.limits.seconds)
        return stream

    def _declared_samples(self, stream: Any) -> int | None:
        """Samples per channel that the header promises, where the container states them exactly."""
        if self.container.format.name not in ("flac", "wav") or not stream.duration:
            return None
        samples: int = round(stream.duration * stream.time_base * stream.codec_context.sample_rate)
        return samples

    def frames(self, seconds: float = math.inf) -> Iterator[Any]:
        """Decode the stream to its end, or its first seconds; only at the end is it clear that nothing is missing."""
        try:
            for frame in self.container.decode(self.stream):
                if frame.samples:
                    self._require_form(frame)
                    self.samples += frame.samples
                    yield frame
                    if self.samples > self.limits.seconds * self.rate:
                        raise errors.too_long(self.limits.seconds)
                    if self.samples >= seconds * self.rate:
                        return
        except av.FFmpegError as e:
            raise errors.damaged(self.codec, self.samples, reason(e)) from e
        if not self.samples:
            raise errors.no_samples(self.codec)
        declared = self._declared_samples(self.stream)
        if declared and self.samples < declared - self.stream.codec_context.sample_rate // 100:
            raise errors.truncated(self.samples, declared)

    def _require_form(self, frame: Any) -> None:
        form = (frame.sample_rate, frame.format.name, frame.layout.name)
        if self._form is None:
            _require_rate(frame.sample_rate)
            self._form = form
        elif form != self._form:
            raise errors.form_changed(self.codec, self.samples)

    @property
    def rate(self) -> int:
        """Samples per second and channel; what was decoded comes before what the header says."""
        return int(self._form[0] if self._form else self.stream.codec_context.sample_rate)

    @property
    def channels(self) -> int:
        """How many channels the stream has."""
        return len(self.stream.codec_context.layout.channels)

    @property
    def codec(self) -> str:
        """The name of libav's decoder."""
        return str(self.stream.codec_context.name)

    def close(self) -> None:
        """Let go of the object."""
        self.container.close()


def _require_rate(rate: int) -> None:
    if rate not in SOURCE_RATES:
        raise errors.bad_rate(rate)
