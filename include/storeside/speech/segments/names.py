"""The names of files of segments and texts; this module imports quickly."""

from __future__ import annotations

import fnmatch

from storeside.aistore.buckets import Bucket

from .entries import SegmentsError

# Patterns of the last part of names in lower case: files with a segment or a text on each line, and others.
BY_LINES = (
    "*.rttm", "*.stm", "*.ctm", "*.jsonl", "*.trans.txt", "segments", "text", "utt2spk", "utt2lang", "wav.scp",
)  # fmt: skip
_KNOWN = (*BY_LINES, "*.txt", "*.lab", "*.json", "*.textgrid")


def pattern_of(name: str) -> str | None:
    """Return the pattern of the files of segments and texts that an object's name matches; None for other objects."""
    last = name.rpartition("/")[2].lower()
    return next((one for one in _KNOWN if fnmatch.fnmatchcase(last, one)), None)


def place_of(uri: str) -> tuple[Bucket, str]:
    """Return the bucket, and the name of an object or of a folder, which ends with a slash.

    Raises AIStoreInputError, and SegmentsError for an object whose name has no known ending.
    """
    bucket, name = Bucket.split(uri)
    if name and not name.endswith("/") and pattern_of(name) is None:
        raise SegmentsError(
            f"segments {uri!r}: a file is named as one of {', '.join(_KNOWN)}, and a folder ends with a slash"
        )
    return bucket, name
