"""The index of entries that a job is given beside its objects, such as the segments of each recording.

AIStore passes no arguments to the ETL of a bucket, so the job stores an index: a table of places, and after it the
entries, one line of JSON each. An entry's slot is a hash of its object's name. A server reads two places of the table
and then the lines between them, so its memory does not grow with the number of objects.
"""

from __future__ import annotations

import hashlib
import json
import os
import struct
from collections.abc import Iterable
from typing import IO, Any

SLOTS = 1 << 14
_PLACE = struct.Struct("<Q")


def slot(name: str) -> int:
    """Return the slot of the object `name`, from 0."""
    digest = hashlib.sha256(os.fsencode(name)).digest()
    return int.from_bytes(digest[:4], "big") % SLOTS


def places_of(name: str) -> tuple[int, int]:
    """Return the first and the last byte of the two places in the table that enclose the object's slot."""
    first = slot(name) * _PLACE.size
    return first, first + 2 * _PLACE.size - 1


def places(content: bytes) -> tuple[int, int]:
    """Return where the lines of a slot begin and end. Raises ValueError for other bytes."""
    if len(content) != 2 * _PLACE.size:
        raise ValueError(f"{len(content)} bytes are not two places")
    (start,), (end,) = _PLACE.iter_unpack(content)
    if end < start:
        raise ValueError(f"a slot cannot end at {end} and begin at {start}")
    return start, end


def line(name: str, entry: Any) -> bytes:
    """Return the line of an object."""
    return json.dumps([name, entry], allow_nan=False).encode() + b"\n"


def found(lines: bytes, name: str) -> str | None:
    """Return the entry of the object `name` as JSON; None if the lines of its slot have none. Raises ValueError."""
    for one in lines.splitlines():
        known, entry = json.loads(one)
        if known == name:
            return json.dumps(entry)
    return None


def write(file: IO[bytes], lines: Iterable[tuple[int, bytes]]) -> None:
    """Write an index; the lines come with their slots, in the order of these."""
    starts = [0] * (SLOTS + 1)
    file.seek(_PLACE.size * (SLOTS + 1))
    at = 0
    for number, one in lines:
        while at <= number:
            starts[at] = file.tell()
            at += 1
        file.write(one)
    starts[at:] = [file.tell()] * (SLOTS + 1 - at)
    file.seek(0)
    for start in starts:
        file.write(_PLACE.pack(start))
