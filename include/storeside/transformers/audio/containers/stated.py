"""The length that a container declares, and the bounded reads that determine it."""

from __future__ import annotations

import io
import math
from dataclasses import dataclass
from typing import BinaryIO

from storeside.transformers.audio import errors

# Seconds by which a recording may be shorter than the samples that its container declares, because encoders round.
_SLACK_SECONDS = 0.01
# The same where the declared length is only about that of the samples: two frames of AAC at 8 kHz, and rounding.
TOLERANCE_SECONDS = 0.3
# Forms of recordings: see `engines`.
CHAIN = "chain"
FRAGMENTS = "fragments with an edit list"
DELAY = "delay in the table of packets"
EARLY = "start within a packet"


@dataclass(frozen=True)
class Stated:
    """The length that a container declares.

    The recording is in the object from byte `start` up to, but without, byte `end`; libav reads only this range,
    after `head`.

    :param end: byte after the recording
    :param ignored: describes the bytes after it; empty if there are none
    :param complete: "yes" if the container declares its length and all of it exists, otherwise "unknown"
    :param seconds: the declared length, or None
    :param is_exact: decoding must yield the declared samples per channel, minus at most `slack`; without slack, also
        no more
    :param slack: samples per channel that may be missing
    :param start: first byte of the recording
    :param tolerance: seconds by which a recording may be shorter or longer; with a larger difference it is not known
        to be complete
    :param head: bytes that replace a header that libav does not know; without them, only ID3v2 tags may precede the
        recording
    :param kept_seconds: lengths of the links of an Ogg chain, or the length of any other recording, after which only
        an encoder's padding follows; without one, all is kept
    :param early: samples per channel before each link, or before the recording, that decoding yields
    :param keeps_packets: libav must not cut padding at the end, because it would cut samples
    :param keeps_edges: libav must not cut at the end of an MP4 edit list, whose ticks are longer than samples
    :param form: a chain, fragments, a delay or samples before the start, which versions of libav decode differently
    """

    end: int
    ignored: str = ""
    complete: str = "unknown"
    seconds: float | None = None
    is_exact: bool = False
    slack: int = 0
    start: int = 0
    tolerance: float = math.inf
    head: bytes = b""
    kept_seconds: tuple[float, ...] = ()
    early: tuple[int, ...] = ()
    keeps_packets: bool = False
    keeps_edges: bool = False
    form: str = ""

    @property
    def exact_seconds(self) -> float:
        """The seconds that decoding must yield, without slack; 0 if the container does not declare them."""
        return self.seconds if self.is_exact and self.seconds else 0.0

    def has_all(self, samples: int, rate: int) -> bool:
        """Return whether all declared samples per channel were decoded; later data are not part of the recording."""
        return 0 < round(self.exact_seconds * rate) <= samples

    def completeness(self, seconds: float) -> str:
        """Return whether a recording with this number of decoded seconds is complete: "yes" or "unknown"."""
        if self.seconds is None:
            return self.complete
        most = TOLERANCE_SECONDS if self.is_exact else self.tolerance
        return self.complete if -self.tolerance <= seconds - self.seconds <= most else "unknown"

    def require(self, samples: int, rate: int) -> None:
        """Compare the length with the decoded samples per channel.

        Raises AudioError if samples are missing, or if there are more, which are noise if a header is misread.
        """
        declared, rounding = round(self.exact_seconds * rate), round(_SLACK_SECONDS * rate)
        if samples < declared - max(self.slack, rounding):
            raise errors.truncated(samples, declared)
        if declared and not self.slack and samples > declared + rounding:
            raise errors.contradictory(samples, declared)


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


class Buffered:
    """Reads of an object from its start to its end, `ahead` bytes at a time."""

    def __init__(self, content: Bytes, ahead: int) -> None:
        self.size = content.size
        self._content = content
        self._ahead = ahead
        self._start, self._end, self._window = 0, 0, b""

    def at(self, start: int, count: int) -> bytes:
        """Return up to `count` bytes from `start`; fewer, or none, at the end of the object."""
        if start < self._start or (start + count > self._end and self._end < self.size):
            self._start, self._window = start, self._content.at(start, max(count, self._ahead))
            self._end = start + len(self._window)
        start -= self._start
        return self._window[start : start + count]

    def find(self, wanted: bytes, start: int) -> int:
        """Return the offset of the first occurrence at or after `start`; -1 without one."""
        while self.at(start, len(wanted)):
            if (found := self._window.find(wanted, start - self._start)) >= 0:
                return self._start + found
            start = max(start + 1, self._end - len(wanted) + 1)
        return -1


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
