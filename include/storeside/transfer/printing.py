"""Formats the report that a command prints: as a table, or as one JSON object."""

from __future__ import annotations

import dataclasses
import json
from typing import Any


def report_text(report: Any, *, as_json: bool) -> str:
    """Return a report (a dataclass of numbers) as one line of JSON, or as one line per number.

    The table leaves out fields that are not numbers, such as failures, which a command prints separately.
    """
    fields = dataclasses.asdict(report)
    if as_json:
        return json.dumps(fields)
    numbers = {name: value for name, value in fields.items() if isinstance(value, int | float)}
    width = max(map(len, numbers))
    return "\n".join(f"{name.replace('_', ' '):<{width}}  {_number(name, value)}" for name, value in numbers.items())


def _number(name: str, value: float) -> str:
    if name.endswith("seconds"):
        return f"{value:,.1f}"
    return f"{value:,}" if name != "bytes" or value < 1_000_000 else f"{value:,} ({value / 1e6:,.1f} MB)"
