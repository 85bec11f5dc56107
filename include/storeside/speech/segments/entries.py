"""One segment in a file of a corpus, or what another file says of it, before anything is checked against audio."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeAlias

from storeside.errors import BadInput, StoresideError

# Segments of one recording, whose entry a server reads at once; and characters of one text.
MOST_SEGMENTS, LONGEST_TEXT = 100_000, 1_000_000
# Seconds: a frame of most recognisers. A shorter segment has nothing to hear.
SHORTEST = 0.01


class SegmentsError(StoresideError, BadInput):
    """A file of segments or texts cannot be read; the message states the file, the line and the reason."""


@dataclass(frozen=True)
class Entry:
    """A segment of a recording, in seconds; without `start` and `end`, it is the whole recording.

    Unknown texts are empty.

    :param recording: its name in the file
    :param place: the file, and the line in it
    :param start: seconds
    :param end: seconds
    :param channel: number or letter
    :param id: its name
    :param text: the spoken words
    :param speaker: name of the person
    :param language: code or name
    :param is_kaldi: other files of the same folder describe it
    :param is_open: it has no `end`, because it ends with its recording
    """

    recording: str
    place: str
    start: float | None = None
    end: float | None = None
    channel: str = ""
    id: str = ""
    text: str = ""
    speaker: str = ""
    language: str = ""
    is_kaldi: bool = False
    is_open: bool = False

    @property
    def fault(self) -> str:
        """Why its recording cannot be cut; empty if it can."""
        where = f"segment {self.id!r} in {self.place}" if self.id else f"the segment in {self.place}"
        if reason := _wrong_times(self.start, math.inf if self.is_open else self.end, self.is_open):
            return f"{where} {reason}"
        if len(self.text) > LONGEST_TEXT:
            return f"the text of {where} has {len(self.text)} characters, more than {LONGEST_TEXT}"
        if not all(map(_is_unicode, (self.id, self.text, self.speaker, self.language))):
            return f"a text of {where} is not Unicode"
        return ""


@dataclass(frozen=True)
class Detail:
    """The text, speaker or language of the utterance `id` in a file of Kaldi's data folder `folder`."""

    folder: str
    id: str
    field: str
    value: str


@dataclass(frozen=True)
class Place:
    """The path of the recording `id` in a `wav.scp` of Kaldi's data folder `folder`."""

    folder: str
    id: str
    path: str


Found: TypeAlias = Entry | Detail | Place


def _wrong_times(start: float | None, end: float | None, is_open: bool) -> str:
    if start is None or end is None:
        return "" if start is end else "has one time only: state its start and its end"
    if not (math.isfinite(start) and (math.isfinite(end) or is_open)):
        return "has a time that is not a number of seconds"
    if start < 0:
        return f"begins at {start:g} s, before its recording"
    return f"from {start:g} to {end:g} s is shorter than {SHORTEST} s" if end - start < SHORTEST else ""


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def seconds(text: str, place: str) -> float:
    """Return a time in seconds. Raises SegmentsError for anything but a number; NaN is one."""
    try:
        return float(text)
    except ValueError as e:
        raise SegmentsError(f"{place}: {text[:40]!r} is not a time in seconds") from e


Lines: TypeAlias = Iterator[tuple[str, str]]
