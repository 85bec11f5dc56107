"""Formats the report that a command prints: as a table of its numbers, or as one JSON object."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Sequence
from typing import Any

from storeside.amounts import counted, size

# Fields whose names are no plain words.
_NAMES = {"known_bad": "failed before"}


def report_text(report: Any, *, as_json: bool) -> str:
    """Return a report (a dataclass of numbers) as one line of JSON, or as one line per number.

    The table leaves out zeros, unless all numbers are, and fields that are not numbers, such as failures, which a
    command prints separately.
    """
    fields = dataclasses.asdict(report)
    if as_json:
        return json.dumps(fields)
    numbers = {name: value for name, value in fields.items() if isinstance(value, int | float)}
    numbers = {name: numbers[name] for name in sorted(numbers, key=_NAMES.__contains__) if numbers[name]} or numbers
    names = {name: _NAMES.get(name, name.replace("_", " ")) for name in numbers}
    width = max(map(len, names.values()))
    return "\n".join(f"{names[name]:<{width}}  {_number(name, value)}" for name, value in numbers.items())


def say_objects(what: str, count: int, first: Sequence[Sequence[str]]) -> None:
    """Print the first of `count` objects, as names with reasons, on stderr, and how many more there are."""
    for name, reason in first:
        print(f"{what}: {name!r}: {reason}", file=sys.stderr)
    if count > len(first):
        print(f"{what}: {counted(count - len(first), 'object')} more", file=sys.stderr)


def _number(name: str, value: float) -> str:
    if name.endswith("seconds"):
        return f"{value:,.1f}"
    return size(value) if name == "bytes" else f"{value:,}"
