"""The readers of lines: each takes the lines of a file with their places, and yields segments.

RTTM is the format of NIST's rich transcription evaluations (2009 plan, appendix A), STM and CTM those of its scorer
sclite (doc/infmts.htm of SCTK). Kaldi's files are described in its documentation (data_prep). NeMo's manifests have a
JSON object per line.
"""

from __future__ import annotations

import json
import posixpath
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from .entries import Detail, Entry, Found, Lines, Place, SegmentsError, seconds

_NOTHING = "<NA>"
# Names of fields in lines of JSON, the first that a line has: NeMo's, Lhotse's supervisions, and other common ones.
_RECORDING = ("audio_filepath", "recording_id", "recording", "audio", "file_name", "file")
_LANGUAGE = ("language", "lang", "source_lang")
_TEXT = ("text", "transcript", "sentence")
_SPEAKER = ("speaker", "speaker_id")
_ID = ("id", "utt_id", "segment_id", "segment")
# STM's transcript of a segment that scorers ignore.
_IGNORED = "IGNORE_TIME_SEGMENT_IN_SCORING"


def rttm(lines: Lines) -> Iterator[Found]:
    """Read the lines ``SPEAKER <file> <channel> <start> <duration> <NA> <NA> <speaker> …``; others are left out."""
    for place, line in lines:
        fields = line.split()
        if not fields or fields[0] != "SPEAKER":
            continue
        _require(fields, 8, place, "SPEAKER <file> <channel> <start> <duration> <NA> <NA> <speaker>")
        start, duration = seconds(fields[3], place), seconds(fields[4], place)
        yield Entry(
            fields[1], place, start, start + duration, _known(fields[2]), speaker=_known(fields[7]),
            text=_known(fields[5]),
        )  # fmt: skip


def stm(lines: Lines) -> Iterator[Found]:
    """Read the lines ``<file> <channel> <speaker> <start> <end> [<labels>] <text>``; ``;;`` begins a comment."""
    for place, line in lines:
        if not line.strip() or line.startswith(";;"):
            continue
        fields = line.split(None, 5)
        _require(fields, 5, place, "<file> <channel> <speaker> <start> <end> [<labels>] <text>")
        text = fields[5].strip() if len(fields) > 5 else ""
        if text.startswith("<") and ">" in text:
            text = text.partition(">")[2].strip()
        if text.upper() == _IGNORED:
            continue
        yield Entry(
            fields[0], place, seconds(fields[3], place), seconds(fields[4], place), _known(fields[1]), text=text,
            speaker=_known(fields[2]),
        )  # fmt: skip


def ctm(lines: Lines) -> Iterator[Found]:
    """Read the lines ``<file> <channel> <start> <duration> <word> …``: each word is a segment."""
    for place, line in lines:
        if not line.strip() or line.startswith(";;"):
            continue
        fields = line.split()
        _require(fields, 5, place, "<file> <channel> <start> <duration> <word>")
        start = seconds(fields[2], place)
        yield Entry(
            fields[0], place, start, start + seconds(fields[3], place), _known(fields[1]), text=_known(fields[4])
        )


def jsonl(lines: Lines) -> Iterator[Found]:
    """Read lines of JSON: NeMo's ``audio_filepath``, ``offset``, ``duration``, ``text``, or ``start`` and ``end``.

    Without ``offset`` and ``start``, a line is a whole recording.
    """
    for place, line in lines:
        if line.strip():
            yield of_json(parsed(line, place), place)


def of_json(fields: Mapping[str, Any], place: str, recording: str = "") -> Entry:
    """Return the segment of a JSON object; `recording` is its name if the object has none. Raises SegmentsError."""
    name = _first(fields, _RECORDING, place) or recording
    if not name:
        raise SegmentsError(f"{place}: there is no recording: name it in one of the fields {', '.join(_RECORDING)}")
    start, end = _times(fields, place)
    return Entry(
        name, place, start, end, _first(fields, ("channel",), place), _first(fields, _ID, place),
        _first(fields, _TEXT, place), _first(fields, _SPEAKER, place), _first(fields, _LANGUAGE, place),
    )  # fmt: skip


def _times(fields: Mapping[str, Any], place: str) -> tuple[float | None, float | None]:
    found = {name: fields[name] for name in ("offset", "start", "end", "duration") if fields.get(name) is not None}
    for name, value in found.items():
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise SegmentsError(f"{place}: {name} {str(value)[:40]!r} is not a time in seconds")
    try:
        numbers = {name: float(value) for name, value in found.items()}
    except OverflowError as e:
        raise SegmentsError(f"{place}: a time is too large") from e
    start = numbers.get("offset", numbers.get("start"))
    if start is None and "end" not in numbers:
        return None, None  # NeMo's duration of a whole recording
    if start is not None and "end" not in numbers and "duration" in numbers:
        return start, start + numbers["duration"]
    return start, numbers.get("end")


def parsed(text: str, place: str) -> Mapping[str, Any]:
    """Return a JSON object. Raises SegmentsError for anything else."""
    try:
        fields = json.loads(text)
    except (ValueError, RecursionError) as e:
        raise SegmentsError(f"{place}: this is no JSON object: {e}") from e
    if not isinstance(fields, dict):
        raise SegmentsError(f"{place}: this is no JSON object: write one per line")
    return fields


def _first(fields: Mapping[str, Any], names: tuple[str, ...], place: str) -> str:
    for name in names:
        value = fields.get(name)
        if value is None or value == []:
            continue
        if isinstance(value, bool) or not isinstance(value, str | int):
            raise SegmentsError(f"{place}: {name} is neither a text nor a whole number")
        return str(value)
    return ""


def kaldi_segments(lines: Lines) -> Iterator[Found]:
    """Read Kaldi's ``segments``: ``<utterance> <recording> <start> <end>``."""
    for place, line in lines:
        if fields := line.split():
            _require(fields, 4, place, "<utterance> <recording> <start> <end>")
            start, end = seconds(fields[2], place), seconds(fields[3], place)
            yield Entry(fields[1], place, start, end, id=fields[0], is_kaldi=True)


def kaldi_details(field: str) -> Callable[[Lines], Iterator[Found]]:
    """Return the reader of Kaldi's ``text``, ``utt2spk`` or ``utt2lang``: a `field` of an utterance on each line."""

    def read(lines: Lines) -> Iterator[Found]:
        for place, line in lines:
            if not line.strip():
                continue
            name, *value = line.split(None, 1)
            yield Detail(posixpath.dirname(place), name, field, value[0].strip() if value else "")

    return read


def kaldi_places(lines: Lines) -> Iterator[Found]:
    """Read Kaldi's ``wav.scp``: ``<recording> <path>``. A command has no path, so the recording has its name."""
    for place, line in lines:
        if not line.strip():
            continue
        name, *path = line.split(None, 1)
        where = path[0].strip() if path else ""
        yield Place(posixpath.dirname(place), name, name if where.endswith("|") or not where else where)


def transcripts(lines: Lines) -> Iterator[Found]:
    """Read LibriSpeech's ``84-121123.trans.txt``: a recording of the same folder, and its text."""
    for place, line in lines:
        if line.strip():
            name, *text = line.split(None, 1)
            folder = posixpath.dirname(place)
            yield Entry(posixpath.join(folder, name), place, text=text[0].strip() if text else "")


def _known(text: str) -> str:
    return "" if text == _NOTHING else text


def _require(fields: list[str], count: int, place: str, form: str) -> None:
    if len(fields) < count:
        raise SegmentsError(f"{place}: the line has {len(fields)} fields, and {count} are needed: {form}")
