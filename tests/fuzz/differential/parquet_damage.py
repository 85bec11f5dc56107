"""Where the damage of a Parquet file can change values: in column chunks without checksums whose bytes differ."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from storeside.transfer.base.schema import UNNAMED
from storeside.transfer.formats.thrift import Decoder, Struct
from tests.fuzz.differential.thrift import footer_of

Rows = Sequence[Mapping[str, Any]]


def explains(original: bytes, content: bytes, rows: Rows, undamaged: Rows, same: Callable[[Any, Any], bool]) -> bool:
    """Return whether rows differ from those of the undamaged file only where damaged pages predict it.

    A whole footer predicts the number of rows, and the values of all other columns and row groups.
    """
    start, footer = footer_of(original)
    if content[-(len(original) - start) :] != original[start:] or len(rows) != len(undamaged):
        return False
    at = 0
    for group in footer[4][1][1]:
        changed = [chunk for chunk in _chunks(group) if _changes_values(original, content, chunk)]
        damaged = {chunk[3][1][1][0].decode() or UNNAMED for chunk in changed}
        count = group[3][1]
        for row, whole in zip(rows[at : at + count], undamaged[at : at + count], strict=True):
            if any(name not in damaged and not same(row.get(name), value) for name, value in whole.items()):
                return False
        at += count
    return True


def _chunks(group: Struct) -> Iterator[Struct]:
    """Yield the metadata of a row group's column chunks."""
    return (chunk[3][1] for chunk in group[1][1][1])


def _changes_values(original: bytes, content: bytes, chunk: Struct) -> bool:
    """Return whether a chunk has damage that no checksum shows; checksums are of pages, without their headers."""
    begin = chunk[11][1] if chunk.get(11, (0, 0))[1] else chunk[9][1]
    end = begin + chunk[7][1]
    if content[begin:end] == original[begin:end]:
        return False
    at = begin
    while at < end:
        decoder = Decoder(original, at)
        header = decoder.struct()
        following = decoder.at + header[3][1]
        has_checksum = 4 in header and content[at : decoder.at] == original[at : decoder.at]
        if not has_checksum and content[at:following] != original[at:following]:
            return True
        at = following
    return False
