"""Draws a measurement as SVG: a line per target over time."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape

_WIDTH, _HEIGHT = 860, 360
_LEFT, _RIGHT, _TOP, _BOTTOM = 70, 20, 46, 42
_LEGEND = 8
_COLOURS = ("#2a78b8", "#e8a33d", "#4c9f70", "#b5473c", "#7d5ba6", "#3aa6a6", "#8c6d46", "#d06a9c")


def draw(title: str, rates: Mapping[str, Sequence[tuple[float, float]]], bound: float | None = None) -> str:
    """Return an SVG of each target's bytes per second over time in seconds; `bound` per target is a dashed line."""
    seconds = max((second for line in rates.values() for second, _ in line), default=1.0)
    highest = max([rate for line in rates.values() for _, rate in line] + [bound or 0.0, 1.0])
    step = _step(highest)
    top = step * math.ceil(highest / step)

    def x(second: float) -> float:
        return _LEFT + (_WIDTH - _LEFT - _RIGHT) * second / seconds

    def y(rate: float) -> float:
        return _HEIGHT - _BOTTOM - (_HEIGHT - _TOP - _BOTTOM) * rate / top

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" font-family="sans-serif"'
        ' font-size="12">',
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="#fff"/>',
        f'<text x="{_LEFT}" y="18" font-size="14">{escape(title)}</text>',
    ]
    for number in range(round(top / step) + 1):
        rate = number * step
        parts.append(f'<path d="M{_LEFT} {y(rate):.1f}H{_WIDTH - _RIGHT}" stroke="#ddd"/>')
        parts.append(f'<text x="{_LEFT - 8}" y="{y(rate) + 4:.1f}" text-anchor="end">{rate / 1e6:g}</text>')
    for number in range(6):
        second = seconds * number / 5
        parts.append(
            f'<text x="{x(second):.1f}" y="{_HEIGHT - _BOTTOM + 18}" text-anchor="middle">{second:.0f} s</text>'
        )
    parts.append(f'<text x="{_LEFT}" y="{_TOP - 10}" fill="#555">MB/s per target</text>')
    if bound:
        parts.append(
            f'<path d="M{_LEFT} {y(bound):.1f}H{_WIDTH - _RIGHT}" stroke="#888" stroke-dasharray="6 4"/>'
            f'<text x="{_WIDTH - _RIGHT}" y="{y(bound) - 5:.1f}" text-anchor="end" fill="#555">limit</text>'
        )
    for number, (node, line) in enumerate(sorted(rates.items())):
        colour = _COLOURS[number % len(_COLOURS)]
        points = " ".join(f"{x(second):.1f},{y(rate):.1f}" for second, rate in line)
        parts.append(
            f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="1.6">'
            f"<title>{escape(node)}</title></polyline>"
        )
        if number < _LEGEND:
            at = _LEFT + 130 + 86 * number
            parts.append(f'<text x="{at}" y="{_TOP - 10}" fill="{colour}">{escape(node[:12])}</text>')
    return "\n".join([*parts, "</svg>\n"])


def _step(highest: float) -> float:
    """Return a round distance between grid lines, with four to ten lines below `highest`."""
    power = float(10 ** math.floor(math.log10(highest)))
    return next(power * part for part in (0.1, 0.2, 0.5, 1) if highest / (power * part) <= 10)
