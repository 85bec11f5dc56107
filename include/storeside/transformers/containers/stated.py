"""The length that a container declares, and the bounded reads that determine it."""

from __future__ import annotations

import io
from dataclasses import dataclass
from typing import BinaryIO

from storeside.transformers import audio_errors as errors

# Seconds by which a recording may be shorter than the samples that its container declares, because encoders round.
_SLACK_SECONDS = 0.01


@dataclass(frozen=True)
class Stated:
    """The length that a container declares.

    The recording is in the object from byte `start` up to, but without, byte `end`; libav reads only this range. Only
    ID3v2 tags may precede it. `ignored` describes the bytes after it ("" if there are none). `complete` is "yes" if
    the container declares its length and all of it exists, otherwise "unknown". `seconds` is the declared length, or
    None. With `is_exact`, decoding must yield the declared samples per channel, minus at most `slack`.
    """

    end: int
    ignored: str = ""
    complete: str = "unknown"
    seconds: float | None = None
    is_exact: bool = False
    slack: int = 0
    start: int = 0

    @property
    def exact_seconds(self) -> float:
        """The seconds that decoding must yield, without slack; 0 if the container does not declare them."""
        return self.seconds if self.is_exact and self.seconds else 0.0

    def has_all(self, samples: int, rate: int) -> bool:
        """Return whether all declared samples per channel were decoded; later data are not part of the recording."""
        return 0 < round(self.exact_seconds * rate) <= samples

    def require(self, samples: int, rate: int) -> None:
        """Compare the length with the decoded samples per channel. Raises AudioError if samples are missing."""
        declared = round(self.exact_seconds * rate)
        if samples < declared - max(self.slack, round(_SLACK_SECONDS * rate)):
            raise errors.truncated(samples, declared)


def exactly(end: int, ignored: str, samples: int, rate: int, slack: int = 0) -> Stated:
    """Return the length of a container that declares `samples` per channel at `rate` in Hz; 0 means unknown."""
    if not samples or not rate:
        return Stated(end, ignored)
    return Stated(end, ignored, "yes", samples / rate, is_exact=True, slack=slack)


class Bytes:
    """Bounded reads of an object; `size` is in bytes."""

    def __init__(self, data: BinaryIO) -> None:
        self._data = data
        self.size = data.seek(0, io.SEEK_END)

    def at(self, start: int, count: int) -> bytes:
        """Return up to `count` bytes from `start`; fewer, or none, at the end of the object."""
        if not 0 <= start < self.size:
            return b""
        self._data.seek(start)
        found = self._data.read(count)
        while found and len(found) < count and (more := self._data.read(count - len(found))):
            found += more
        return found


def big(content: bytes) -> int:
    """Return an unsigned big-endian number; 0 for empty content."""
    return int.from_bytes(content, "big")


def little(content: bytes) -> int:
    """Return an unsigned little-endian number; 0 for empty content."""
    return int.from_bytes(content, "little")


def bytes_after(count: int, what: str) -> str:
    """Return the description of ignored bytes; "" if there are none."""
    if not count:
        return ""
    return f"{count} byte{'s' if count > 1 else ''} after the {what}"
