"""The readers of lines: each takes the lines of a file with their places, and yields segments.

RTTM is the format of NIST's rich transcription evaluations (2009 plan, appendix A), STM and CTM those of its scorer
sclite (doc/infmts.htm of SCTK). Kaldi's files are described in its documentation (data_prep). NeMo's manifests have a
JSON object per line.
"""

from __future__ import annotations

import json
import posixpath
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from .entries import Detail, Entry, Found, Lines, Place, SegmentsError, seconds

_NOTHING = "<NA>"
_NO_CONFIDENCE = ("NA", _NOTHING)
# These characters divide fields. Python's `split` also divides names and words, such as at U+00A0 and U+3000.
_BLANKS = " \t\r\n\f\v"
_BETWEEN = re.compile(f"[{_BLANKS}]+")
# Names of fields in lines of JSON, the first that a line has: NeMo's, Lhotse's supervisions, and other common ones.
_RECORDING = ("audio_filepath", "recording_id", "recording", "audio", "file_name", "file")
_LANGUAGE = ("language", "lang", "source_lang")
_TEXT = ("text", "transcript", "sentence")
_SPEAKER = ("speaker", "speaker_id")
_ID = ("id", "utt_id", "segment_id", "segment")
# STM's transcript of a segment that scorers ignore.
_IGNORED = "IGNORE_TIME_SEGMENT_IN_SCORING"


def rttm(lines: Lines) -> Iterator[Found]:
    """Read the lines ``SPEAKER <file> <channel> <start> <duration> <NA> <NA> <speaker> …``; others are left out.

    More than ten fields are a name with spaces, which some programs write, and which would shift the times.
    """
    for place, line in lines:
        fields = _split(line)
        if not fields or fields[0] != "SPEAKER":
            continue
        _require(fields, 8, place, "SPEAKER <file> <channel> <start> <duration> <NA> <NA> <speaker>", most=10)
        start, duration = seconds(fields[3], place), seconds(fields[4], place)
        yield Entry(
            fields[1], place, start, start + duration, _known(fields[2]), speaker=_known(fields[7]),
            text=_known(fields[5]),
        )  # fmt: skip


def stm(lines: Lines) -> Iterator[Found]:
    """Read the lines ``<file> <channel> <speaker> <start> <end> [<labels>] <text>``; ``;;`` begins a comment."""
    for place, line in lines:
        fields = _split(line, 6)
        if not fields or line.startswith(";;"):
            continue
        _require(fields, 5, place, "<file> <channel> <speaker> <start> <end> [<labels>] <text>")
        text = fields[5] if len(fields) > 5 else ""
        if text.startswith("<") and ">" in text:
            text = text.partition(">")[2].strip(_BLANKS)
        if text.upper() == _IGNORED:
            continue
        yield Entry(
            fields[0], place, seconds(fields[3], place), seconds(fields[4], place), _known(fields[1]), text=text,
            speaker=_known(fields[2]),
        )  # fmt: skip


def ctm(lines: Lines) -> Iterator[Found]:
    """Read the lines ``<file> <channel> <start> <duration> <word> [<confidence> …]``: each word is a segment.

    After the word is a number or NA. Anything else there shows a name with spaces, which would shift the times.
    """
    for place, line in lines:
        fields = _split(line)
        if not fields or line.startswith(";;"):
            continue
        _require(fields, 5, place, "<file> <channel> <start> <duration> <word>")
        if len(fields) > 5 and fields[5] not in _NO_CONFIDENCE and not _is_number(fields[5]):
            raise SegmentsError(
                f"{place}: {fields[5][:40]!r} is not the confidence of a word: a name or word has no spaces"
            )
        start = seconds(fields[2], place)
        yield Entry(
            fields[0], place, start, start + seconds(fields[3], place), _known(fields[1]), text=_known(fields[4])
        )


def jsonl(lines: Lines) -> Iterator[Found]:
    """Read lines of JSON: NeMo's ``audio_filepath``, ``offset``, ``duration``, ``text``, or ``start`` and ``end``.

    Without ``offset`` and ``start``, a line is a whole recording. It ends with its recording if its ``duration`` or
    ``end`` is null.
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
    is_open = start is not None and end is None and ("duration" in fields or "end" in fields)
    return Entry(
        name, place, start, end, _channel(fields, place), _first(fields, _ID, place),
        _first(fields, _TEXT, place), _first(fields, _SPEAKER, place), _first(fields, _LANGUAGE, place),
        is_open=is_open,
    )  # fmt: skip


def _channel(fields: Mapping[str, Any], place: str) -> str:
    """Return the channel, or those of Lhotse's segments that several channels share."""
    several = fields.get("channel")
    if not isinstance(several, list):
        return _first(fields, ("channel",), place)
    return "+".join(_first({"channel": one}, ("channel",), place) for one in several)


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
    """Read Kaldi's ``segments``: ``<utterance> <recording> <start> <end> [<channel>]``; an end of -1 is the last."""
    for place, line in lines:
        if fields := _split(line):
            form = "<utterance> <recording> <start> <end> [<channel>]"
            _require(fields, 4, place, form, most=5)
            start, end = seconds(fields[2], place), seconds(fields[3], place)
            channel, is_open = "".join(fields[4:]), end == -1
            yield Entry(
                fields[1], place, start, None if is_open else end, channel, fields[0], is_kaldi=True, is_open=is_open
            )


def kaldi_details(field: str) -> Callable[[Lines], Iterator[Found]]:
    """Return the reader of Kaldi's ``text``, ``utt2spk`` or ``utt2lang``: a `field` of an utterance on each line."""

    def read(lines: Lines) -> Iterator[Found]:
        for place, line in lines:
            if fields := _split(line, 2):
                yield Detail(posixpath.dirname(place), fields[0], field, "".join(fields[1:]))

    return read


def kaldi_places(lines: Lines) -> Iterator[Found]:
    """Read Kaldi's ``wav.scp``: ``<recording> <path>``. A command has no path, so the recording has its name."""
    for place, line in lines:
        if fields := _split(line, 2):
            name, where = fields[0], "".join(fields[1:])
            yield Place(posixpath.dirname(place), name, name if where.endswith("|") or not where else where)


def transcripts(lines: Lines) -> Iterator[Found]:
    """Read LibriSpeech's ``84-121123.trans.txt``: a recording of the same folder, and its text."""
    for place, line in lines:
        if fields := _split(line, 2):
            folder = posixpath.dirname(place)
            yield Entry(posixpath.join(folder, fields[0]), place, text="".join(fields[1:]))


def _known(text: str) -> str:
    return "" if text == _NOTHING else text


def _split(line: str, most: int = 0) -> list[str]:
    """Return the fields of a line, at most `most`: the last one is then the rest of the line."""
    stripped = line.strip(_BLANKS)
    return _BETWEEN.split(stripped, max(most - 1, 0)) if stripped else []


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _require(fields: list[str], count: int, place: str, form: str, most: int = sys.maxsize) -> None:
    if len(fields) < count:
        raise SegmentsError(f"{place}: the line has {len(fields)} fields, and {count} are needed: {form}")
    if len(fields) > most:
        raise SegmentsError(
            f"{place}: the line has {len(fields)} fields, and at most {most} are possible: {form}: no name has spaces"
        )
