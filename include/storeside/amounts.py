"""Amounts in texts for people: counts with their unit, bytes, rates, and lists of counts."""

from __future__ import annotations

_UNITS = ("B", "kB", "MB", "GB", "TB", "PB")
# Below this duration in seconds, a rate describes fixed costs, such as a connection, and not the work.
_SHORTEST = 1.0


def counted(number: int, unit: str) -> str:
    """Return a count with its unit, whose plural ends with s: ``1 object``, ``2,000 objects``."""
    return f"{number:,} {unit}{'' if number == 1 else 's'}"


def size(count: float) -> str:
    """Return a number of bytes in the unit in which it is below 1,000: ``824 B``, ``41.5 MB``."""
    unit = 0
    while round(count, 1 if unit else 0) >= 1000 and unit < len(_UNITS) - 1:
        count, unit = count / 1000, unit + 1
    return f"{count:,.1f} {_UNITS[unit]}" if unit else f"{count:,.0f} B"


def rate(number: float, seconds: float, unit: str) -> str:
    """Return ``, 2,500 rows/s`` for the end of a list; empty for less than a second, which tells no rate."""
    return f", {number / seconds:,.{0 if number >= 10 * seconds else 1}f} {unit}/s" if seconds >= _SHORTEST else ""


def byte_rate(count: float, seconds: float) -> str:
    """Return ``, 41.5 MB/s`` like `rate`."""
    return f", {size(count / seconds)}/s" if seconds >= _SHORTEST else ""


def others(*numbers: tuple[int, str]) -> str:
    """Return the numbers that are not zero, for the end of a list: ``, 2 failed, 1 loaded before``."""
    return "".join(f", {number:,} {what}" for number, what in numbers if number)
