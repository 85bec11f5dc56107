"""What a container states about its length, and the bounded reads that find that out."""

from __future__ import annotations

import io
from dataclasses import dataclass
from typing import BinaryIO

from storeside.transformers import audio_errors as errors

# Seconds by which recordings may end before the length that a container states in samples: encoders round.
_SLACK_SECONDS = 0.01


@dataclass(frozen=True)
class Stated:
    """What a container states about its length.

    The recording lies in the object from byte `start` to before byte `end`; libav reads nothing else. `ignored`
    names what follows ("" when nothing does); only ID3v2 tags precede it. `complete` is "yes" when the container
    states its length and all of it is there, otherwise "unknown". `seconds` is the stated length; None when nothing
    states it. When `is_exact`, decoding must give the stated samples per channel, except for up to `slack` of them.
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
        """The number of seconds that decoding must give, without slack; 0 if any number is right."""
        return self.seconds if self.is_exact and self.seconds else 0.0

    def has_all(self, samples: int, rate: int) -> bool:
        """Whether all stated samples per channel were decoded: what follows is not part of the recording."""
        return 0 < round(self.exact_seconds * rate) <= samples

    def require(self, samples: int, rate: int) -> None:
        """Compare with the decoded samples per channel. Raises AudioError when they are fewer than stated."""
        declared = round(self.exact_seconds * rate)
        if samples < declared - max(self.slack, round(_SLACK_SECONDS * rate)):
            raise errors.truncated(samples, declared)


def exactly(end: int, ignored: str, samples: int, rate: int, slack: int = 0) -> Stated:
    """Return what a container states that has `samples` per channel at `rate` in Hz; 0 means unknown."""
    if not samples or not rate:
        return Stated(end, ignored)
    return Stated(end, ignored, "yes", samples / rate, is_exact=True, slack=slack)


class Bytes:
    """Bounded reads of an object; `size` is in bytes."""

    def __init__(self, data: BinaryIO) -> None:
        self._data = data
        self.size = data.seek(0, io.SEEK_END)

    def at(self, start: int, count: int) -> bytes:
        """Return up to `count` bytes from `start` on; fewer, or none, at the end of the object."""
        if not 0 <= start < self.size:
            return b""
        self._data.seek(start)
        found = self._data.read(count)
        while found and len(found) < count and (more := self._data.read(count - len(found))):
            found += more
        return found


def big(content: bytes) -> int:
    """Return an unsigned big-endian number; 0 for no bytes."""
    return int.from_bytes(content, "big")


def little(content: bytes) -> int:
    """Return an unsigned little-endian number; 0 for no bytes."""
    return int.from_bytes(content, "little")


def bytes_after(count: int, what: str) -> str:
    """Return the description of ignored bytes; "" for none."""
    if not count:
        return ""
    return f"{count} byte{'s' if count > 1 else ''} after the {what}"
