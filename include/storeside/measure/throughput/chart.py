"""Draws a measurement as SVG: the cluster, its targets, and the use of its disks over time."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from storeside.measure.throughput.tables import Second

_WIDTH, _HEIGHT = 860, 330
_TITLE = 26
_LEFT, _RIGHT, _TOP, _BOTTOM = 70, 20, 32, 40
_LEGEND = 8
_COLOURS = ("#2a78b8", "#e8a33d", "#4c9f70", "#b5473c", "#7d5ba6", "#3aa6a6", "#8c6d46", "#d06a9c")
_MB = 1e6


@dataclass(frozen=True)
class Panel:
    """Lines over time: (seconds, value) by label. `scale` divides the values, `bound` is a dashed line."""

    caption: str
    lines: Mapping[str, Sequence[tuple[float, float]]]
    scale: float = 1.0
    bound: float | None = None


def draw(
    title: str,
    rates: Mapping[str, Sequence[tuple[float, float]]],
    bound: float | None = None,
    seconds: Sequence[Second] = (),
) -> str:
    """Return an SVG with up to three panels, those of the figures that AIStore published.

    With `seconds`, the first panel shows the bytes per second of the cluster. The next shows those of each target in
    `rates`. The last shows the minimum, mean and maximum use of a disk, if AIStore reports disks. `bound` is the
    limit of a target in bytes per second.
    """
    panels = [Panel("MB/s per target", dict(sorted(rates.items())), _MB, bound)]
    if seconds:
        total = {"": [(s.at, s.rate) for s in seconds]}
        panels.insert(0, Panel("MB/s of the cluster", total, _MB, bound and bound * len(rates)))
    if any(s.disk_use for s in seconds):
        names = ("minimum", "mean", "maximum")
        use = {name: [(s.at, s.disk_use[n]) for s in seconds if s.disk_use] for n, name in enumerate(names)}
        panels.append(Panel("% use of a disk", use))
    last = max((at for panel in panels for line in panel.lines.values() for at, _ in line), default=1.0)
    height = _TITLE + _HEIGHT * len(panels)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" font-family="sans-serif"'
        ' font-size="12">',
        f'<rect width="{_WIDTH}" height="{height}" fill="#fff"/>',
        f'<text x="{_LEFT}" y="18" font-size="14">{escape(title)}</text>',
    ]
    for number, panel in enumerate(panels):
        parts += _panel(panel, last, _TITLE + number * _HEIGHT)
    return "\n".join([*parts, "</svg>\n"])


def _panel(panel: Panel, last: float, above: float) -> Iterator[str]:
    """Yield the elements of a panel whose time axis ends at `last` seconds; it begins at the height `above`."""
    highest = max([value for line in panel.lines.values() for _, value in line] + [panel.bound or 0.0, panel.scale])
    step = _step(highest)
    top = step * math.ceil(highest / step)
    foot = above + _HEIGHT - _BOTTOM

    def x(second: float) -> float:
        return _LEFT + (_WIDTH - _LEFT - _RIGHT) * second / last

    def y(value: float) -> float:
        return foot - (_HEIGHT - _TOP - _BOTTOM) * value / top

    for number in range(round(top / step) + 1):
        value = number * step
        yield f'<path d="M{_LEFT} {y(value):.1f}H{_WIDTH - _RIGHT}" stroke="#ddd"/>'
        yield f'<text x="{_LEFT - 8}" y="{y(value) + 4:.1f}" text-anchor="end">{value / panel.scale:g}</text>'
    for number in range(6):
        second = last * number / 5
        yield f'<text x="{x(second):.1f}" y="{foot + 18:.1f}" text-anchor="middle">{second:.0f} s</text>'
    caption = above + _TOP - 10
    yield f'<text x="{_LEFT}" y="{caption:.1f}" fill="#555">{escape(panel.caption)}</text>'
    if panel.bound:
        yield (
            f'<path d="M{_LEFT} {y(panel.bound):.1f}H{_WIDTH - _RIGHT}" stroke="#888" stroke-dasharray="6 4"/>'
            f'<text x="{_WIDTH - _RIGHT}" y="{y(panel.bound) - 5:.1f}" text-anchor="end" fill="#555">limit</text>'
        )
    for number, (label, line) in enumerate(panel.lines.items()):
        colour = _COLOURS[number % len(_COLOURS)]
        points = " ".join(f"{x(second):.1f},{y(value):.1f}" for second, value in line)
        yield (
            f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="1.6">'
            f"<title>{escape(label)}</title></polyline>"
        )
        if label and number < _LEGEND:
            at = _LEFT + 130 + 86 * number
            yield f'<text x="{at}" y="{caption:.1f}" fill="{colour}">{escape(label[:12])}</text>'


def _step(highest: float) -> float:
    """Return a round distance between grid lines, with four to ten lines below `highest`."""
    power = float(10 ** math.floor(math.log10(highest)))
    return next(power * part for part in (0.1, 0.2, 0.5, 1) if highest / (power * part) <= 10)
