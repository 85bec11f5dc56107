"""Bounds on what one audio object may cost."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

# Sizes in RIFF files, WAV among them, have 32 bits.
RIFF_BYTES = (1 << 32) - 1


@dataclass(frozen=True)
class Limits:
    """How long a recording and how large its result may be.

    `seconds` limits both the declared and the decoded length. The default, 12 hours, is beyond a day's
    conference or a night's observation in one file; the decompression of a small hostile object ends there.
    `result_bytes` is 2 GiB by default: a result must fit into a process' memory. The ffmpeg command obeys only
    `result_bytes` and its CPU time limit. Raises ValueError.
    """

    seconds: int = 12 * 3600
    result_bytes: int = 2 << 30

    def __post_init__(self) -> None:
        if self.seconds < 1:
            raise ValueError(f"AUDIO_MAX_SECONDS is {self.seconds}: at least 1 is needed")
        if not 1 <= self.result_bytes <= RIFF_BYTES:
            raise ValueError(f"AUDIO_MAX_RESULT_BYTES is {self.result_bytes}: use 1 to {RIFF_BYTES}, as WAV can have")

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None) -> Limits:
        """Read the limits from ``AUDIO_MAX_SECONDS`` and ``AUDIO_MAX_RESULT_BYTES``."""
        env = os.environ if environment is None else environment
        return cls(
            seconds=int(env.get("AUDIO_MAX_SECONDS", cls.seconds)),
            result_bytes=int(env.get("AUDIO_MAX_RESULT_BYTES", cls.result_bytes)),
        )
