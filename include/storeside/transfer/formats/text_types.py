"""The rules by which values of text objects decide the type of a column: "Types from text" in docs/transfer/text.md.

Each form of a value has the types that hold it. A column has the first type, in the order of `TYPES`, that holds all
of its values. So neither the order of rows nor that of objects matters.
"""

from __future__ import annotations

import datetime
import math
import re
from collections.abc import Callable, Collection
from decimal import Decimal
from functools import cache

# The types of columns, the preferred one first. Every value is a String.
TYPES = ("Bool", "Int64", "UInt64", "Int128", "Float64", "Date32", "DateTime64(6)", "DateTime64(9)", "UUID", "String")
_BITS = {kind: 1 << n for n, kind in enumerate(TYPES)}
# A set of types is the sum of their bits.
Types = int


@cache
def of(*kinds: str) -> Types:
    """Return the set of these types and String."""
    return sum(_BITS[kind] for kind in {*kinds, "String"})


# The types that hold NULL, and a column without values.
ANY: Types = of(*TYPES)
TEXT: Types = of("String")
# The most decimal digits of a number that every Float64 returns, and those of a double's own notation.
_SURE_DIGITS = 15
# Every integer with at most this number of digits fits into 128 bits.
_INT128_DIGITS = 38
# The digits of a second that DateTime64(6) and DateTime64(9) hold.
_MICROSECONDS, _NANOSECONDS = 6, 9
# The years in which DateTime64(9) holds every moment: https://clickhouse.com/docs/sql-reference/data-types/datetime64.
_NANOSECOND_YEARS = range(1900, 2262)
_MONTHS = ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"]
_DAYS = ["mon", "tue", "wed", "thu", "fri", "sat", "sun"]
_TIME = (
    r"(?P<hour>\d{1,2})(?::(?P<minute>\d{2})(?::(?P<second>\d{2})(?:\.(?P<fraction>\d*))?)?)?(?P<half> ?[AaPp][Mm])?"
    r"(?: ?(?:Z|UTC|GMT|[+-](?P<offset>\d{2})(?::?[0-5]\d)?))?"
)
_DAY, _YEAR = r"(?P<day>\d{1,2})", r"(?P<year>\d{4})"
_MONTH = rf"(?P<month>(?i:{'|'.join(_MONTHS)})[a-z]{{0,6}})"


def _integer(found: re.Match[str]) -> Types:
    value = int(found.group())
    if len(found.group().lstrip("-")) > _INT128_DIGITS:
        return TEXT
    kinds = ["Int128"]
    if -(1 << 63) <= value < 1 << 63:
        kinds.append("Int64")
    if 0 <= value < 1 << 64:
        kinds.append("UInt64")
    if _is_exact(found.group()):
        kinds.append("Float64")
    return of(*kinds)


def _fraction(found: re.Match[str]) -> Types:
    return of("Float64") if _is_exact(found.group()) else TEXT


def _exponent(found: re.Match[str]) -> Types:
    return _with_exponent(found.group())


def _with_exponent(number: str) -> Types:
    value = float(number)
    is_zero = not re.search("[1-9]", number.lower().partition("e")[0])
    return of("Float64") if math.isfinite(value) and (value != 0 or is_zero) else TEXT


def _is_exact(number: str) -> bool:
    """Return whether a Float64 has all digits of a number without an exponent; zeros at either end do not count."""
    whole, _, fraction = number.lstrip("-").partition(".")
    digits = (whole + fraction.rstrip("0")).lstrip("0")
    if len(digits) <= _SURE_DIGITS or (not fraction and len(digits.rstrip("0")) <= _SURE_DIGITS):
        return True
    return Decimal(repr(float(number))) == Decimal(number)


def _date(found: re.Match[str]) -> Types:
    if (day := _day(found)) is None:
        return TEXT
    return of("Date32", *_moments(day, 0))


def _moment(found: re.Match[str]) -> Types:
    """Return the types of a date with a time, or with a month's name, which a Date32 does not parse."""
    parts = found.groupdict()
    day = _day(found)
    hour, minute, second, offset = (int(parts[name] or 0) for name in ("hour", "minute", "second", "offset"))
    hours = range(1, 13) if parts["half"] else range(24)
    is_time = (parts["hour"] is None or hour in hours) and minute < 60 and second < 60 and offset <= 14
    return of(*_moments(day, len((parts["fraction"] or "").rstrip("0")))) if day and is_time else TEXT


def _moments(day: datetime.date, digits: int) -> list[str]:
    """Return the types that hold a moment of this day with this number of digits of a second."""
    kinds = ["DateTime64(6)"] if digits <= _MICROSECONDS else []
    return [*kinds, "DateTime64(9)"] if digits <= _NANOSECONDS and day.year in _NANOSECOND_YEARS else kinds


def _day(found: re.Match[str]) -> datetime.date | None:
    """Return the day of a date; None if the calendar has no such day."""
    month = found["month"]
    number = int(month) if month.isdecimal() else _MONTHS.index(month[:3].lower()) + 1
    try:
        return datetime.date(int(found["year"]), number, int(found["day"]))
    except ValueError:
        return None


_ISO = r"(?P<year>\d{4})(?P<dash>[-/])(?P<month>\d{1,2})(?P=dash)(?P<day>\d{1,2})"
_NUMBER = r"-?(?:0|[1-9]\d*)"
Form = tuple[str, re.Pattern[str], Callable[[re.Match[str]], Types]]


def _form(name: str, text: str, types: Callable[[re.Match[str]], Types]) -> Form:
    shape = re.compile(text, re.ASCII)
    return name, shape, types


# The forms of values with the types that hold them. A value of no form is text: so are codes, which begin with a
# plus, or with a zero before another digit, or have an exponent as no program writes it: 12E4 is 1.2E5 or 12E+4.
FORMS: tuple[Form, ...] = (
    _form("integer", _NUMBER, _integer),
    _form("fraction", rf"(?:{_NUMBER}\.\d*|-?\.\d+)", _fraction),
    _form("exponent", rf"(?:(?:-?\d|{_NUMBER}\.\d*|-?\.\d+)[eE][+-]?|{_NUMBER}[eE][+-])\d+", _exponent),
    _form("special float", "(?i:-?inf|-?infinity|nan)", lambda found: of("Float64")),
    _form("boolean", "true|false", lambda found: of("Bool")),
    _form("date", _ISO, _date),
    _form("moment", rf"{_ISO}[ T]{_TIME}", _moment),
    _form("day before month", rf"(?i:(?:{'|'.join(_DAYS)}), ?)?{_DAY} {_MONTH} {_YEAR}(?: {_TIME})?", _moment),
    _form("month before day", rf"{_MONTH} {_DAY},? {_YEAR}(?: {_TIME})?", _moment),
    _form("UUID", "[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", lambda found: of("UUID")),
)
MOMENTS = of("Date32", "DateTime64(6)", "DateTime64(9)")
NUMBERS = frozenset({"integer", "fraction", "exponent", "special float"})
# The forms that begin with a digit, a sign or a point, with a year, and with a letter.
_NUMERIC = tuple(form for form in FORMS if form[0] not in ("boolean", "month before day"))
_DATED = tuple(form for form in FORMS if form[0] in ("date", "moment", "UUID"))
_LITERAL = tuple(form for form in FORMS if form not in _NUMERIC or form[0] not in ("integer", "fraction", "exponent"))
_BEGINNINGS = frozenset({*_MONTHS, *_DAYS, "inf", "nan", "tru", "fal"})
_UUID_LENGTH = 36
_LONGEST = 64  # characters of a text that may have a form
_INTEGERS = of("Int64", "UInt64", "Int128", "Float64")
_FLOATS = of("Float64")
_SHORT = re.compile(r"(0|[1-9]\d{0,14})(\.\d{1,15})?", re.ASCII)


def held(text: str, without: Collection[str] = ()) -> Types:
    """Return the types that hold a text: those of its form; only String if it has none, or one of `without`."""
    if not text or len(text) > _LONGEST:
        return TEXT
    if text[0] in "0123456789-.":
        if not without and len(text) <= _SURE_DIGITS and (short := _SHORT.fullmatch(text)):
            return _FLOATS if short[2] else _INTEGERS
        forms = _DATED if text[4:5] in ("-", "/") else _NUMERIC
    elif text[:3].lower() in _BEGINNINGS or len(text) == _UUID_LENGTH:
        forms = _LITERAL
    else:
        return TEXT
    for name, shape, types in forms:
        if found := shape.fullmatch(text):
            return TEXT if name in without else types(found)
    return TEXT


def held_in_json(number: str) -> Types:
    """Return the types that hold a number of JSON, which is no code."""
    return _with_exponent(number) if "e" in number or "E" in number else held(number)


def type_of(types: Types) -> str:
    """Return the first of these types."""
    return next(kind for kind in TYPES if types & _BITS[kind])
