"""Converts numbers to coordinates of small SVG charts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, floor, log10

WIDTH, HEIGHT = 560, 120


@dataclass(frozen=True)
class Line:
    """A line through points: SVG coordinates, and the ends of both axes."""

    label: str
    unit: str
    points: str
    dots: tuple[tuple[float, float, float, float], ...]
    top: float
    start: float
    end: float
    last: float

    @property
    def highest(self) -> float:
        """The highest value; `top` is the end of the axis."""
        return max(value for *_, value in self.dots)


def line(label: str, unit: str, points: Sequence[tuple[float, float]]) -> Line | None:
    """Return the line through (time, value) points in a box of `WIDTH` by `HEIGHT`; None without points."""
    if not points:
        return None
    start, end = points[0][0], points[-1][0]
    top = rounded_up(max(value for _, value in points))
    span = (end - start) or 1
    dots = [
        (round((at - start) / span * WIDTH, 1), round(HEIGHT - value / top * HEIGHT, 1), at, value)
        for at, value in points
    ]
    return Line(label, unit, " ".join(f"{x},{y}" for x, y, _, _ in dots), tuple(dots), top, start, end, points[-1][1])


def rounded_up(value: float) -> float:
    """Return the smallest one-digit number times a power of ten that is not below `value`; 1 for 0 or less."""
    if value <= 0:
        return 1.0
    unit = 10.0 ** floor(log10(value))
    return float(ceil(value / unit) * unit)
