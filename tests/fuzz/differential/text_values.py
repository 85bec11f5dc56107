"""Texts of values as people and programs write them, for generated CSV and JSON Lines."""

from __future__ import annotations

import datetime as dt
import random
import uuid
from collections.abc import Callable

_EDGES = [0, 1, 2**53 + 1, 2**63 - 1, 2**63, 2**64 - 1, 2**64, 2**127 - 1, 10**38 - 1, 10**38, 10**45 + 7]
_FRACTIONS = (
    "1.5",
    "0.1",
    ".5",
    "1.",
    "-0.0",
    "1.50",
    "5.0",
    "-.25",
    "100.000",
    "0.12345678901234567",
    "3.14159265358979",
)
_EXPONENTS = ("1e-05", "1E5", "2.5e+3", "1e400", "5e-324", "1e-400", "0e9", "-1.e2", "1e308", "12345678901234567e3")
_CODES = (
    "02134", "007", "+49170123456", "0830", "-007", "+7", "+0", "00", "00.5", "000", "1_000", "0x10", "1,5", "--1",
    "1-", "12345678901234567890123456789012345678901", "9007199254740993.5", "1e", "e5", ".", "-", "+", "1 2", "٣",
)  # fmt: skip
_NO_DAYS = ("2024-02-30", "2023-02-29", "1/2/2024", "31.12.2024", "2024-13-01", "0000-01-01", "2024-01-01 24:00:00",
            "2024-01-01 10:60", "10:00", "2024-01", "20240131", "2024-1-1/", "2024/01-02", "12.5.2024")  # fmt: skip
_TEXTS = (
    "x", "é", "😀", 'say "hi"', "it's", "a b", " a", "b ", "NA", "-", "null", "NULL", "None", "TRUE", "True", "yes",
    "#", "a\nb", "a,b", "a;b", "a|b", "a\tb", "\\", "\\a", '"', "''", "{}", "[", "nan ", "NaN", "INF", "infinity",
    "inf", "\u00a0", "\u2028", "1\u00a0000", "_version", "0.0.1", "1.2.3.4", "id", "é" * 30,
)  # fmt: skip
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")


def integer(rng: random.Random) -> str:
    """Return an integer, of any size."""
    if rng.random() < 0.6:
        return str(rng.randrange(-(10 ** rng.randrange(1, 17)), 10 ** rng.randrange(1, 17)))
    return str(rng.choice((1, 1, -1)) * (rng.choice(_EDGES) + rng.choice((0, 0, 1, -1))))


def small(rng: random.Random) -> str:
    """Return an integer that every type of numbers holds."""
    return str(rng.randrange(-99, 1000))


def number(rng: random.Random) -> str:
    """Return a number with a fraction or an exponent, or an integer."""
    kind = rng.random()
    if kind < 0.3:
        return repr(rng.randrange(-(10**9), 10**9) / rng.choice((10, 1000, 7)))
    if kind < 0.55:
        return rng.choice(_FRACTIONS)
    return rng.choice(_EXPONENTS) if kind < 0.8 else integer(rng)


def code(rng: random.Random) -> str:
    """Return a code, or digits in a notation that no type of numbers keeps."""
    if rng.random() < 0.5:
        return rng.choice(_CODES)
    return rng.choice(("0", "+", "00", "-0", "")) + str(rng.randrange(10 ** rng.randrange(1, 42)))


def _day(rng: random.Random) -> dt.date:
    first, last = rng.choice(((1, 9999), (1800, 2400), (1960, 2030), (1960, 2030)))
    begin = dt.date(first, 1, 1).toordinal()
    return dt.date.fromordinal(rng.randrange(begin, dt.date(last, 12, 31).toordinal() + 1))


def date(rng: random.Random) -> str:
    """Return a date; rarely one that no calendar has, or without a clear order."""
    if rng.random() < 0.06:
        return rng.choice(_NO_DAYS)
    day = _day(rng)
    if rng.random() < 0.8:
        return f"{day:%Y}".zfill(4) + f"-{day:%m-%d}"
    return rng.choice(("{y:04}/{m:02}/{d:02}", "{y:04}-{m}-{d}", "{y:04}/{m}/{d}")).format(
        y=day.year, m=day.month, d=day.day
    )


def moment(rng: random.Random) -> str:
    """Return a date with a time in one of many notations."""
    day = _day(rng)
    hour, minute, second = rng.randrange(24), rng.randrange(60), rng.randrange(60)
    fraction = rng.choice(("", "", ".5", ".123", ".123456", ".000001", ".123456789", ".500000000", ".1234567891"))
    zone = rng.choice(("", "", "Z", "+02:00", "-0530", " UTC", "+14:00", "-11"))
    clock = f"{hour:02}:{minute:02}:{second:02}{fraction}"
    iso = f"{day.year:04}-{day.month:02}-{day.day:02}"
    month = _MONTHS[day.month - 1]
    half = f"{hour % 12 or 12}:{minute:02}{rng.choice((' ', ''))}{'AP'[hour > 11]}M"
    return rng.choice((
        f"{iso} {clock}{zone}", f"{iso}T{clock}{zone}", f"{iso} {clock}", f"{iso} {hour:02}:{minute:02}",
        f"{iso}T{clock}Z",
        f"{day.day} {month} {day.year:04}", f"{month} {day.day}, {day.year:04}", f"{iso} {half}",
        f"{day:%a}, {day.day:02} {month} {day.year:04} {hour:02}:{minute:02}:{second:02} GMT",
    ))  # fmt: skip


def boolean(rng: random.Random) -> str:
    """Return a boolean; rarely in another notation."""
    return rng.choice(("true", "false")) if rng.random() < 0.97 else rng.choice(("True", "FALSE", "0", "1", "yes"))


def text(rng: random.Random) -> str:
    """Return a text."""
    if rng.random() < 0.85:
        return rng.choice(_TEXTS)
    return "".join(rng.choices(" \tab\"',;|é\n0", k=rng.randrange(8)))


def identifier(rng: random.Random) -> str:
    """Return a UUID; rarely in capitals."""
    found = str(uuid.UUID(int=rng.getrandbits(128)))
    return found if rng.random() < 0.97 else found.upper()


def numbers(rng: random.Random) -> str:
    """Return a list of numbers, as programs write it; rarely with a code."""
    kinds = (small,) if rng.random() < 0.5 else (small, small, integer, number, code)
    items = [rng.choice(kinds)(rng) for _ in range(rng.randrange(4))]
    return f"[{','.join(items)}]"


Maker = Callable[[random.Random], str]
KINDS: dict[str, Maker] = {
    "small": small, "integer": integer, "number": number, "code": code, "date": date, "moment": moment,
    "boolean": boolean, "text": text, "identifier": identifier, "numbers": numbers,
}  # fmt: skip
# Kinds whose values often share a column.
NEIGHBOURS = {
    "small": ("integer", "number", "code"), "integer": ("number", "code"), "number": ("integer", "code"),
    "date": ("moment",), "moment": ("date",), "boolean": ("small",), "identifier": ("text",), "code": ("small",),
    "text": ("small", "date"), "numbers": ("code", "text"),
}  # fmt: skip


def mixed(rng: random.Random, kind: str) -> Maker:
    """Return a maker of the values of one column: mostly of one kind, in some columns also of another."""
    other = rng.choice(NEIGHBOURS[kind])
    share = rng.choice((0, 0, 0, 0.1, 0.5))
    return lambda rng: KINDS[other if rng.random() < share else kind](rng)
