"""Hyperslab selections in the users' notation: ``0:1000, :, ::2``."""

from __future__ import annotations

import re
from collections.abc import Sequence

from storeside.hsds.errors import HsdsInputError

_RANGE = re.compile(r"\s*+(?P<start>-?\d++)?\s*+:\s*+(?P<stop>-?\d++)?\s*+(?::\s*+(?P<step>\d++)?\s*+)?")
_INDEX = re.compile(r"\s*+-?\d++\s*+")


def parse(text: str, shape: Sequence[int]) -> tuple[range, ...]:
    """Return the selected indexes of each dimension; trailing dimensions without a selection are selected completely.

    As in Python, negative numbers count from the end. Unlike in Python, a single index keeps its dimension, and
    indexes outside the shape are an error.

    Raises:
        HsdsInputError: the text is not a selection, selects no element, or exceeds `shape`.
    """
    plain = text.strip().removeprefix("[").removesuffix("]").strip()
    parts = plain.split(",") if plain not in ("", "...") else []
    if len(parts) > len(shape):
        raise HsdsInputError(f"selection {text!r}: has {len(parts)} dimensions, the dataset has {len(shape)}")
    chosen = [_dimension(part, length, d, text) for d, (part, length) in enumerate(zip(parts, shape, strict=False))]
    return (*chosen, *(range(length) for length in shape[len(parts) :]))


def _dimension(part: str, length: int, dimension: int, text: str) -> range:
    where = f"selection {text!r}, dimension {dimension}"
    if _INDEX.fullmatch(part):
        index = int(part)
        start = index + length if index < 0 else index
        stop, step = start + 1, 1
    elif match := _RANGE.fullmatch(part):
        start, stop = (_end(match[name], default, length) for name, default in (("start", 0), ("stop", length)))
        step = int(match["step"] or 1)
    else:
        raise HsdsInputError(f"{where}: {part.strip()!r} is neither an index nor start:stop:step")
    if step < 1:
        raise HsdsInputError(f"{where}: the step must be 1 or more")
    if not 0 <= start <= length or not 0 <= stop <= length:
        raise HsdsInputError(f"{where}: {part.strip()!r} is out of range, the dataset has {length}")
    if start >= stop and part.strip() != ":":
        raise HsdsInputError(f"{where}: {part.strip()!r} selects nothing")
    return range(start, stop, step)


def _end(given: str | None, default: int, length: int) -> int:
    if given is None:
        return default
    return int(given) + length if given.startswith("-") else int(given)
