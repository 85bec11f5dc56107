"""The tables that the stack's commands print."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict

from storeside.stack.supervision.supervisor import Status


def print_components(found: Iterable[Status], *, as_json: bool) -> None:
    """Print the components as a table followed by their faults, or each as one line of JSON."""
    if as_json:
        for entry in found:
            print(json.dumps(asdict(entry)))
        return
    entries = list(found)
    print_table([("component", "state", "pid", "up"), *map(_row, entries)])
    for entry in entries:
        if entry.trouble:
            print(f"{entry.name}: {entry.trouble}")


def print_table(rows: Sequence[tuple[str, ...]]) -> None:
    """Print rows with aligned columns."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def _row(entry: Status) -> tuple[str, ...]:
    state = "healthy" if entry.healthy else f"{entry.state}, not healthy"
    uptime = "" if entry.uptime is None else f"{entry.uptime:.0f} s"
    return entry.name, state, str(entry.pid or ""), uptime
