"""Limits for the lengths of recordings and the size of a result."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

# RIFF files, such as WAV, store sizes in 32 bits.
RIFF_BYTES = (1 << 32) - 1


@dataclass(frozen=True)
class Limits:
    """The minimum and maximum length of a recording and the maximum size of its result.

    `seconds` limits both the declared and the decoded length. The default, 12 hours, allows a day's conference or a
    night's observation in one file, and bounds the decompression of a small hostile object. `result_bytes` is 2 GiB
    by default: a result must fit into the memory of one process. The ffmpeg command applies only `result_bytes` and
    its own limit of CPU time. A transcode leaves out results, and a probe recordings, that are shorter than
    `min_seconds`. Raises ValueError for limits out of range.
    """

    seconds: int = 12 * 3600
    result_bytes: int = 2 << 30
    min_seconds: float = 0.0

    def __post_init__(self) -> None:
        if self.seconds < 1:
            raise ValueError(f"AUDIO_MAX_SECONDS is {self.seconds}: set it to at least 1")
        if not 1 <= self.result_bytes <= RIFF_BYTES:
            raise ValueError(f"AUDIO_MAX_RESULT_BYTES is {self.result_bytes}: use 1 to {RIFF_BYTES}, WAV's maximum")
        if not 0 <= self.min_seconds <= self.seconds:
            raise ValueError(f"AUDIO_MIN_SECONDS is {self.min_seconds}: use 0 to {self.seconds} (AUDIO_MAX_SECONDS)")

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None) -> Limits:
        """Read the limits from ``AUDIO_MAX_SECONDS``, ``AUDIO_MAX_RESULT_BYTES`` and ``AUDIO_MIN_SECONDS``."""
        env = os.environ if environment is None else environment
        return cls(
            seconds=int(env.get("AUDIO_MAX_SECONDS", cls.seconds)),
            result_bytes=int(env.get("AUDIO_MAX_RESULT_BYTES", cls.result_bytes)),
            min_seconds=float(env.get("AUDIO_MIN_SECONDS", cls.min_seconds)),
        )
