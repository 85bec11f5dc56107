"""Segments that a job is given of a recording: places and texts, which the transformer cuts instead of speech."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from . import errors
from .limits import Limits

# Seconds by which the last segment may exceed its recording; it is then shortened. Kaldi's extract-segments allows as
# much (--max-overshoot).
OVERSHOOT_SECONDS = 0.5


@dataclass(frozen=True)
class Segment:
    """A part of a recording in seconds, with its text; unknown texts are empty.

    If it `is_open`, it ends with its recording, at the latest at its end.
    """

    start_seconds: float
    end_seconds: float
    id: str = ""
    text: str = ""
    speaker: str = ""
    language: str = ""
    is_open: bool = False

    def at(self, rate: int) -> tuple[int, int]:
        """Return its first sample, and the sample after its last one, at a rate in Hz."""
        return round(self.start_seconds * rate), round(self.end_seconds * rate)

    def facts(self) -> dict[str, Any]:
        """Return what the segment says of its audio."""
        return {"segment": self.id, "text": self.text, "speaker": self.speaker, "language": self.language}


def segments(arguments: str, limits: Limits) -> list[Segment] | None:
    """Return the segments in a job's entry of a recording, by their starts; None if it has no entry.

    A segment without times is the whole recording, and one without an end its rest. Raises AudioError if the job
    refuses the recording, and ValueError for anything but an entry.
    """
    entry = json.loads(arguments or "null")
    if entry is None:
        return None
    if "refused" in entry:
        raise errors.AudioError(str(entry["refused"]))
    found = [
        Segment(
            float(one.get("start", 0.0)), float(one.get("end", limits.seconds)), is_open="end" not in one,
            id=one.get("id", ""), text=one.get("text", ""), speaker=one.get("speaker", ""),
            language=one.get("language", ""),
        )
        for one in entry["segments"]
    ]  # fmt: skip
    return sorted(found, key=lambda one: (one.start_seconds, one.end_seconds))


def require_within(segment: Segment, seconds: float, samples: int) -> None:
    """Raise AudioError if a segment is not in a recording of these `seconds`, or has no `samples` of it."""
    is_late = segment.end_seconds > seconds + OVERSHOOT_SECONDS and not segment.is_open
    if is_late or segment.start_seconds >= seconds or not samples:
        end = "its end" if segment.is_open else f"{segment.end_seconds:g} s"
        raise errors.AudioError(
            f"the segment {segment.id!r} from {segment.start_seconds:g} to {end} is outside the"
            f" recording, which has {seconds:g} s: correct its times, or the name of its recording"
        )
