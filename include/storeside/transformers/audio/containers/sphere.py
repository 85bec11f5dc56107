"""NIST SPHERE: a header of text, and samples (sp_header of NIST's SPHERE 2.6)."""

from __future__ import annotations

import re

from storeside.transformers.audio import errors

from . import raw
from .stated import Bytes, Stated

_MOST_HEADER = 1 << 20
_FIELD = re.compile(rb"^(\w+) -(?:i|r|s\d+) (.*)$", re.MULTILINE)
# Names of codings, and their numbers in Sun's audio header; 0 for integers.
_CODINGS = {"pcm": 0, "linear": 0, "mu-law": 1, "mulaw": 1, "ulaw": 1, "alaw": 27, "a-law": 27}


def sphere(content: Bytes, at: int) -> Stated:
    """Read the fields of the header. Raises AudioError for a coding without a decoder, and if samples are missing."""
    size = content.at(at + 8, 8).strip()
    length = int(size) if size.isdigit() else 0
    if not 16 <= length <= _MOST_HEADER:
        raise errors.not_readable(f"SPHERE with a header of {length} bytes")
    text = content.at(at, length).partition(b"end_head")[0]
    fields = {name.decode(): value.strip().decode("latin-1") for name, value in _FIELD.findall(text)}
    channels, frames, rate, width = (
        _number(fields, name, default)
        for name, default in (("channel_count", 1), ("sample_count", 0), ("sample_rate", 0), ("sample_n_bytes", 0))
    )
    coding, _, packed = fields.get("sample_coding", "pcm").lower().partition(",")
    if packed or coding not in _CODINGS:
        raise errors.compressed(f"SPHERE with the coding {fields['sample_coding'][:60]!r}")
    if channels > 1 and fields.get("channels_interleaved", "TRUE").upper() == "FALSE":
        raise errors.not_readable("SPHERE with one channel after the other")
    width = 1 if _CODINGS[coding] else width
    if not rate or not channels:
        raise errors.not_readable("SPHERE without a sample rate")
    head = _head(fields, channels, rate, width, _CODINGS[coding])
    return raw.headed(Stated(content.size), at + length, head, frames, channels * width, rate)


def _number(fields: dict[str, str], name: str, default: int) -> int:
    try:
        return max(0, int(float(fields.get(name, default))))
    except (ValueError, OverflowError):
        return default


def _head(fields: dict[str, str], channels: int, rate: int, width: int, code: int) -> bytes:
    if code:
        return raw.coded(channels, rate, code)
    order = fields.get("sample_byte_format", "1" if width == 1 else "")
    ascending = "".join(map(str, range(width)))
    # libsndfile writes the order of 2 bytes for any width.
    if width > 1 and order in (ascending, "01"):
        return raw.little(channels, rate, width)
    if width == 1 or order in (ascending[::-1], "10"):
        return raw.big(channels, rate, width)
    raise errors.not_readable(f"SPHERE of {width} bytes per sample in the order {order[:20]!r}")
