"""Output of commands: the report, as a table of numbers or as one JSON object, and lines of progress."""

from __future__ import annotations

import dataclasses
import json
import shutil
import sys
import time
from collections.abc import Sequence
from typing import Any, Self

from storeside.amounts import counted, size

# Fields whose names are no plain words.
_NAMES = {"known_bad": "failed before"}
# Seconds between two lines of progress outside a terminal.
_LINE_SECONDS = 10.0
# Goes to the start of a terminal's line, and clears it.
_CLEAR = "\r\x1b[K"


class Lines:
    """Shows progress on stderr: on a terminal in one line that changes, elsewhere as a line every few seconds.

    The line is cleared when the context ends.
    """

    def __init__(self) -> None:
        self._is_terminal = sys.stderr.isatty()
        self._last = time.monotonic()

    def __call__(self, text: str) -> None:
        """Show a line, or leave it out. The width of a terminal cuts it off: a longer line would not be cleared."""
        if self._is_terminal:
            width = shutil.get_terminal_size().columns - 1
            print(f"{_CLEAR}{text[:width]}", end="\r", file=sys.stderr, flush=True)
        elif time.monotonic() - self._last >= _LINE_SECONDS:
            self._last = time.monotonic()
            print(text, file=sys.stderr, flush=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._is_terminal:
            print(_CLEAR, end="", file=sys.stderr, flush=True)


def log_format() -> str:
    """Return the format of log lines on stderr: on a terminal, each replaces the line of progress."""
    return f"{_CLEAR if sys.stderr.isatty() else ''}%(message)s"


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
