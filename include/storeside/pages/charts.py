"""Converts numbers to coordinates of small SVG charts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, floor, log10

WIDTH, HEIGHT = 560, 120
# Points that are further apart than this many times the time between measurements have a gap between them.
_GAP = 1.5


@dataclass(frozen=True)
class Line:
    """A chart over time: SVG coordinates, and the ends of both axes.

    `pieces` are the lines between measurements that follow each other; a time without measurements has none.
    """

    label: str
    pieces: tuple[str, ...]
    dots: tuple[tuple[float, float, float, float], ...]
    top: float
    start: float
    end: float
    last: float

    @property
    def highest(self) -> float:
        """The highest value; `top` is the end of the axis."""
        return max(value for *_, value in self.dots)


def slice_seconds(hours: int = 24) -> int:
    """Return the length of the time slices in a chart of the last hours, in seconds."""
    return max(hours * 3600 // 96, 60)


def line(label: str, points: Sequence[tuple[float, float]], every: float) -> Line | None:
    """Return the chart of (time, value) points in a box of `WIDTH` by `HEIGHT`; None without points.

    `every` is the time between measurements in seconds. Points that are further apart are not connected: nothing was
    measured between them. 0 means single measurements, of which none are connected.
    """
    if not points:
        return None
    start, end = points[0][0], points[-1][0]
    top = rounded_up(max(value for _, value in points))
    span = (end - start) or 1
    dots = [
        (round((at - start) / span * WIDTH, 1), round(HEIGHT - value / top * HEIGHT, 1), at, value)
        for at, value in points
    ]
    pieces: list[list[str]] = []
    before = -math.inf
    for x, y, at, _ in dots:
        if at - before > _GAP * every:
            pieces.append([])
        pieces[-1].append(f"{x},{y}")
        before = at
    drawn = tuple(" ".join(piece) for piece in pieces if len(piece) > 1)
    return Line(label, drawn, tuple(dots), top, start, end, points[-1][1])


def rounded_up(value: float) -> float:
    """Return the smallest one-digit number times a power of ten that is not below `value`; 1 for 0 or less."""
    if value <= 0:
        return 1.0
    unit = 10.0 ** floor(log10(value))
    return float(ceil(value / unit) * unit)
