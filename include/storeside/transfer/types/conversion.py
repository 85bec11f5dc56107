"""SQL expressions that convert a value to another type without loss, or fail.

Types are texts in ClickHouse's notation.
"""

from __future__ import annotations

import re

from storeside.sql.quoting import literal
from storeside.transfer.base.schema import (
    CLOCK,
    FLOAT,
    INTEGER,
    INTEGERS,
    MOMENT,
    NOTHING,
    NUMBER,
    TIME,
    arguments,
    bare,
    digits_of,
    fraction_of,
    is_nested,
    is_nullable,
    loose,
    nullable,
    same,
    scale_of,
    unquoted,
)
from storeside.transfer.request.object_format import Format

# A type within a list, map or struct, after the name of an element.
_ELEMENT = re.compile(r"(`(?:[^`\\]|\\.)*` |\w+ )?(.*)", re.DOTALL)
# The digits of the largest decimals.
_MOST_DIGITS = 76
_MICROSECONDS, NANOSECONDS = 6, 9
# The most digits of a second with which a moment can have each year up to 9999.
_LARGER_FRACTION = 7
# The moments that become a DateTime: https://clickhouse.com/docs/sql-reference/data-types/datetime. The cast refuses
# the last second of its range.
_SECONDS_RANGE = "BETWEEN toDateTime64('1970-01-01', 9, 'UTC') AND toDateTime64('2106-02-07 06:28:14', 9, 'UTC')"
# Digits of a number of seconds since 1970, in this century.
_SECONDS = 10
# In place of an exponent that is not a number of 32 bits: no decimal type has so many digits.
_NO_EXPONENT = -1_000_000
# The numbers of decimal digits that floats always return.
_FLOAT_DIGITS = {"BFloat16": 2, "Float32": 6, "Float64": 15}
# The type of times that pyarrow has parsed: instants, or what a clock in UTC shows if the text had no offset.
PARSED = f"DateTime64({_MICROSECONDS}, 'UTC')"
# A date with a time that a date can hold; ClickHouse ignores any time after a date.
_MIDNIGHT = r"^[0-9]{4}-[0-9]{2}-[0-9]{2}[ T]00:00(:00(\.0*)?)?$"
_DECIMAL = r"^[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?$"
# A code with an exponent: several digits, and an exponent without a sign, such as 12E4.
_CODE_WITH_EXPONENT = "-?[0-9]{2,}[eE][0-9]"
# A code within a list: also a number with a plus, or with a zero before another digit.
CODE_IN_LIST = rf"(?:^|[\[,:{{(])[ \t]*(?:[+]|[+-]?0[0-9]|{_CODE_WITH_EXPONENT})"
# The numbers in a list or map, of floats and of integers, which may have a fraction of zeros.
_FLOATS_WITHIN = r"-?[0-9.]+(?:e[-+]?[0-9]+)?|null|nan|-?inf|-?infinity"
_INTEGERS_WITHIN = r"-?[0-9]+(?:\.0*)?|null"
# A list of numbers, or of lists, and a map of texts or integers to numbers.
_LIST = r"(?i)^\[([ \t]*[\[\]]*[ \t]*({})?[ \t]*[\[\]]*[ \t]*(,|\]$))+$"
_KEY = r"(?:'(?:[^'\\]|\\.)*'|-?[0-9]+)"
_MAP = rf"(?i)^\{{{{[ \t]*(?:\}}}}$|(?:{_KEY}[ \t]*:[ \t]*(?:{{}})[ \t]*(?:,[ \t]*|\}}}}$))+)$"
_QUOTED = r"'(?:[^'\\]|\\.)*'"
_ZEROS = r"([0-9])\.0*([ \t]*[,\]}])"
# The first and the last second of the years 0 to 9999, since 1970.
_YEARS = (-62_167_219_200, 253_402_300_799)
# Texts of a moment that ClickHouse need not guess: they have a year, a month and a day, and a time within a day. It
# would take the current year for that of 10:00, 5 and 0000-00-00, the first day for 2024-01, and the next day for
# 25:00.
# Dates with points are day first by convention; with slashes or dashes, their order of day and month is unknown.
_YEAR = "(?:[0-9]{3}[1-9]|[0-9]{2}[1-9]0|[0-9][1-9]00|[1-9]000)"
_MONTH, _DAY = "(?:0?[1-9]|1[0-2])", "(?:0?[1-9]|[12][0-9]|3[01])"
_NAMES = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_NAME = f"(?:{'|'.join(''.join(f'[{c.upper()}{c}]' for c in name) for name in _NAMES)})[A-Za-z]{{0,6}}"
_HOUR, _SIXTY = "(?:[01]?[0-9]|2[0-3])", "[0-5]?[0-9]"
_TIME_OF_DAY = f"(?:{_HOUR}(?::{_SIXTY}(?::(?:{_SIXTY}|60))?)?|24:00(?::00)?)"
_COMPACT_TIME = "(?:[01][0-9]|2[0-3])(?:[0-5][0-9]){2}"
_ANY_YEAR = f"(?:{_YEAR}|[0-9]{{2}})"
_DATES = (
    f"{_YEAR}[-/. ]{_MONTH}[-/. ]{_DAY}", f"{_YEAR}(?:0[1-9]|1[0-2])(?:0[1-9]|[12][0-9]|3[01])(?:{_COMPACT_TIME})?",
    rf"{_DAY}\.{_MONTH}\.{_ANY_YEAR}", f"{_DAY}[-/ .]?{_NAME}[-/ .,]*{_ANY_YEAR}",
    f"{_NAME}[-/ .]*{_DAY}(?:,? +|[-,/]){_ANY_YEAR}", f"{_YEAR}[-/ .]?{_NAME}[-/ .]?{_DAY}",
    f"{_NAME} +{_DAY} +{_TIME_OF_DAY}(?: [A-Za-z]+)? +{_YEAR}",
)  # fmt: skip
# A fraction, a zone and an offset, which is less than 20 hours.
_AFTER_TIME = "(?:[^0-9:+-][^+-]*)?(?:[+-](?:[01]?[0-9])(?::?[0-5][0-9])?(?:[^0-9:].*)?)?"
# How those of 20 hours or more begin.
_FAR_OFFSETS = tuple(f"{sign}{ten}" for sign in "+-" for ten in range(2, 10))
_NUMBERS_OF_SECONDS = r"[0-9]{9,10}(?:\.[0-9]*)?|[0-9]{13}|[0-9]{16}|[0-9]{19}"
CLEAR_MOMENT = (
    f"^(?:|{_NUMBERS_OF_SECONDS}|(?:[A-Za-z]{{3,9}},? +)?(?:{'|'.join(_DATES)})"
    f"(?:[ T,]*(?:{_TIME_OF_DAY}|{_COMPACT_TIME}){_AFTER_TIME}|T| ?[A-Z]{{1,3}})?)$"
)
# Zones whose clocks are never set forward.
WITHOUT_CLOCK_CHANGES = frozenset({"UTC", "Etc/UTC", "GMT", "Etc/GMT", "Universal", "Zulu"})
# The longest time by which a clock was set forward since 1970, in seconds; changes of the day's date are longer.
_LONGEST_GAP = 7_200
# A moment in a text with an offset or the name of UTC, or a number of seconds.
_NO_LOCAL_TIME = r"(?i)^[0-9.]+$|:.*(Z|UTC|GMT|[-+][0-9]{1,2}(:?[0-9]{2})?)$"
# A moment without a zone: its text would be that of the server's.
_LOCAL_MOMENT = re.compile(r"DateTime64\(\d\)")
# Types that accept any text, or raise an error for it, whether they are Nullable or not.
_TAKES_TEXT = re.compile(r"String|Enum|Variant\(|Dynamic|JSON|Bool")


def reading(form: Format, target: str, *, plain: bool = False) -> str:
    """Return the type to read a value of a text object as, before its conversion to type `target`.

    ClickHouse wraps integers that are out of range when it parses them (tried with 26.9: 300 becomes 44 in UInt8).
    So they are read into a larger type and then cast with a check. It turns 31 February into a day of March, and
    truncates decimals and fractions of a second: these are read as a type that lets `whole` detect the loss. It
    parses an empty quoted CSV field as the integer 0, so integers in CSV are read as text, and an empty text is NULL.
    Moments in CSV are read as text, too, and so are floats (see `beyond_range`) and UUIDs, which it parses without
    spaces around them. In JSON Lines a number is another moment than the text of its digits.

    None of this concerns the numbers of a `plain` object, whose integers are within Int64; see `staging.proof`.
    """
    core = bare(target)
    if plain and (INTEGERS.fullmatch(core) or FLOAT.fullmatch(core)):
        return nullable("Int64" if INTEGER.fullmatch(core) else core)
    if not form.is_native:  # pyarrow parses and checks the values, except times without `timestamp_formats`
        known = {"UInt64": "UInt64", "Bool": "Bool"}
        kind = known.get(core) or ("Int64" if INTEGER.fullmatch(core) else "String")
        return f"Nullable({PARSED if form.csv.timestamp_formats and TIME.fullmatch(core) else kind})"
    if is_nested(core):
        return _larger_within(target, csv=form.has_fields)
    if core in ("String", "JSON") or core.startswith(("FixedString", "Variant(", "Dynamic")):
        # Never LowCardinality: ClickHouse skips spaces before a CSV value of any type but String.
        return f"Nullable({core})" if is_nullable(target) else core
    is_text = any(kinds.fullmatch(core) for kinds in (INTEGERS, FLOAT, MOMENT)) or core.startswith(("Time64", "UUID"))
    if form.has_fields and is_text:
        return "Nullable(String)"
    return nullable(_larger(core))


def _larger(core: str) -> str:
    """Return the type to read text as when ClickHouse would otherwise lose a part of the value; see `reading`."""
    if INTEGER.fullmatch(core):
        return "Int128"
    if core in ("Int128", "UInt128"):
        return "Int256"
    if core in ("Date", "Date32") or core.startswith("Decimal"):
        return "String"
    if -1 < fraction_of(core) < _LARGER_FRACTION:
        digits = _LARGER_FRACTION if core.startswith("DateTime64") else NANOSECONDS
        zone = re.search(r"'.*'", core)
        return f"DateTime64({digits}{f', {zone.group()}' if zone else ''})"
    return f"Time64({NANOSECONDS})" if core.startswith("Time64") else core


def _parsed(moment: str) -> str:
    """Return the type to parse the text of a moment as: without a fraction, ClickHouse refuses 1720051200.0."""
    return nullable(moment if moment.startswith("DateTime64") else _larger(moment))


def _larger_within(kind: str, *, csv: bool) -> str:
    """Return a type with larger types of the values in a list, map or struct; the others stay as they are.

    A number within a list of CSV cannot be read as text.
    """
    core = bare(kind)
    if is_nested(core):
        parts = ", ".join(f"{name}{_larger_within(part, csv=csv)}" for name, part in parts_of(core))
        larger = f"{core[: core.index('(')]}({parts})"
    elif csv and (scale := scale_of(core)) is not None:
        larger = f"Decimal({_MOST_DIGITS}, {_MOST_DIGITS - digits_of(core) + scale})"
    else:
        larger = _larger(core)
    if larger == core:
        return kind
    return f"Nullable({larger})" if is_nullable(kind) else larger


def parts_of(kind: str) -> list[tuple[str, str]]:
    """Return the types within a list, map or struct, each after the name of its element, which may be empty."""
    found = (_ELEMENT.fullmatch(part) for part in arguments(kind))
    return [(part.group(1) or "", part.group(2)) for part in found if part]


def elements_of(kind: str) -> dict[str, str]:
    """Return the types within a struct by the names of its elements; an unnamed element has its number as a name."""
    return {unquoted(name.strip()) or str(n): part for n, (name, part) in enumerate(parts_of(kind))}


def clock_time(form: Format, value: str, target: str, server_zone: str) -> tuple[str, str, str] | None:
    """Return how to read a date and time that pyarrow has parsed by a format; None for other values and formats.

    Returns the expression for the time, its type, and a condition that is true for a time that the type cannot hold.
    A time without an offset is one in the zone of `target`, by default `server_zone`, as in other CSV.
    """
    if not form.csv.timestamp_formats or form.csv.has_offsets or fraction_of(bare(target)) < 0:
        return None
    kind = _larger(bare(target))
    time = f"parseDateTime64BestEffortOrNull(toString({value}), {', '.join(arguments(kind))})"
    fault = f"isNotNull({value}) AND isNull({time})"
    if (zone_of(target) or server_zone) not in WITHOUT_CLOCK_CHANGES:
        fault += f" OR {_skips(time, value, '1')}"
    return time, nullable(kind), fault


def _unpadded(value: str) -> str:
    """Return the expression that removes spaces and tabs around a text."""
    return f"trimBoth({value}, ' \\t')"


def whole(value: str, source: str, target: str, *, padded: bool = False, depth: int = 0) -> str:
    """Return the condition that `converted` loses no part of a value; empty if the conversion itself ensures that.

    `depth` is the number of lists around the value.
    """
    a, b = bare(source), bare(target)
    if a == "String" and is_nested(b):
        source = _larger_within(target, csv=True)
        value, a = f"CAST({value}, {literal(source)})", bare(source)
    if is_nested(a):
        kept = _whole_within(value, a, b, depth)
        return f"(isNull({value}) OR {kept})" if kept and is_nullable(source) else kept
    if depth and a.startswith("FixedString") and b == "String":  # in lists, the conversion removes zero bytes
        return f"NOT ifNull(endsWith({value}, '\\0'), 0)"
    if a != "String":
        return " AND ".join(_whole_value(value, source, b))
    column = _unpadded(value) if padded else value
    checks = [f"ifNull({kept}, 1)"] if (kept := _whole_text(column, b)) else []
    if valid := _valid_text(column, b, target):
        # ClickHouse evaluates all but the first condition only for rows that need them, whose texts it copies
        empty = f" OR empty({column})" if padded else ""
        checks.append(f"({' AND '.join(valid)} OR isNull({column}){empty})")
    return " AND ".join(checks)


def _whole_within(value: str, a: str, b: str, depth: int) -> str:
    """Return the condition that no value in a list, map or struct loses a part."""
    kind, pairs = a[: a.index("(")], list(zip(parts_of(a), parts_of(b), strict=False))
    if a == b or not b.startswith(f"{kind}("):
        return ""
    if kind == "Tuple":
        fields = (f"tupleElement(assumeNotNull({value}), {n})" for n in range(1, len(pairs) + 1))
        checks = [whole(f, one, other, depth=depth) for f, ((_, one), (_, other)) in zip(fields, pairs, strict=True)]
        return " AND ".join(filter(None, checks))
    lists = [f"mapKeys({value})", f"mapValues({value})"] if kind == "Map" else [value]
    item, checks = f"x{depth}", []
    for items, ((_, one), (_, other)) in zip(lists, pairs, strict=True):
        if kept := whole(item, one, other, depth=depth + 1):
            checks.append(f"arrayAll({item} -> ifNull({kept}, 1), {items})")
    return " AND ".join(checks)


def beyond_years(value: str, kind: str, depth: int = 0) -> str:
    """Return the condition that a value, or one within it, is a moment outside the years 0 to 9999; empty if none is.

    ClickHouse 26.9 stores such moments of Parquet, ORC, Arrow and Avro, and shows each as the first or last one of
    these years. Moments in nanoseconds are within them, because they have 64 bits. `depth` is the number of lists
    around the value.
    """
    core, item = bare(kind), f"x{depth}"
    if core.startswith("DateTime64") and fraction_of(core) < NANOSECONDS:
        return f"ifNull(toInt64({value}) NOT BETWEEN {_YEARS[0]} AND {_YEARS[1]}, 0)"
    if core.startswith("Variant("):
        kinds = ((f"variantElement({value}, {literal(part)})", part) for part in arguments(core))
        return " OR ".join(filter(None, (beyond_years(one, part, depth) for one, part in kinds)))
    if not is_nested(core):
        return ""
    parts = [part for _, part in parts_of(core)]
    if core.startswith("Tuple("):
        fields = (f"tupleElement(assumeNotNull({value}), {n})" for n in range(1, len(parts) + 1))
        return " OR ".join(filter(None, (beyond_years(f, p, depth) for f, p in zip(fields, parts, strict=True))))
    lists = [f"mapKeys({value})", f"mapValues({value})"] if core.startswith("Map(") else [value]
    found = [(items, beyond_years(item, part, depth + 1)) for items, part in zip(lists, parts, strict=False)]
    return " OR ".join(f"arrayExists({item} -> {beyond}, {items})" for items, beyond in found if beyond)


def _whole_value(value: str, source: str, b: str) -> list[str]:
    """Return the conditions that type `b` has all digits of a value that is no text."""
    a, kept = bare(source), ""
    if is_cut(a, b):
        kept = f"CAST({converted(value, source, nullable(b))}, {literal(nullable(a))}) = {value}"
    elif a.startswith("Decimal") and digits_of(a) > _FLOAT_DIGITS.get(b, digits_of(a)):
        text = f"toString(CAST({value}, {literal(nullable(b))}))"  # as a number, 0.29 * 100 is 28.999999999999996
        kept = f"CAST({text}, {literal(nullable(a))}) = {value}"
    checks = [f"ifNull({kept}, 1)"] if kept else []
    if a.startswith("Decimal") and b.startswith("Decimal") and a != b:  # a text with too many digits becomes NULL
        checks.append(f"(isNull({value}) OR isNotNull(CAST(toString({value}), {literal(nullable(b))})))")
    return checks


def _whole_text(text: str, b: str) -> str:
    """Return the condition that type `b` has all digits of a valid text; empty for types that have."""
    if b in ("Date", "Date32"):  # a day beyond the end of a month becomes a day of the next month
        day, date = f"substring({text}, -2)", f"CAST({text}, {literal(nullable(b))})"
        kept = f"{day} NOT IN ('29', '30', '31') OR toDayOfMonth({date}) = toInt8OrZero({day})"
        is_day = f"toDayOfMonth({date}) = toInt8OrZero(substring({text}, 9, 2))"
        return f"if(position({text}, ':') = 0, {kept}, match({text}, {literal(_MIDNIGHT)}) AND {is_day})"
    if (scale := scale_of(b)) is not None:
        return _has_few_digits(text, scale)
    return _has_short_fraction(text, b) if MOMENT.fullmatch(b) or CLOCK.fullmatch(b) else ""


def _valid_text(text: str, b: str, target: str) -> list[str]:
    """Return the conditions that a text is a value of type `b`, where the conversion to `target` does not ensure it.

    A cast to a Nullable type returns NULL for an invalid text. A cast to a plain integer wraps: 300 becomes 44.
    """
    if _TAKES_TEXT.match(b) or is_nested(b):
        return []
    valid = []
    if INTEGERS.fullmatch(b):
        valid.append(_is_integer(text, b))
    elif MOMENT.fullmatch(b):
        moment = f"CAST({text}, {literal(_parsed(b))})"
        valid.append(
            f"isNotNull({moment})" if b.startswith("DateTime64") else f"ifNull({moment} {_SECONDS_RANGE}, 0)"
        )
    elif is_nullable(target) or b == "UUID" or FLOAT.fullmatch(b):
        valid.append(f"isNotNull(CAST({text}, {literal(nullable(b))}))")
    if b.startswith("Decimal"):  # ClickHouse parses 1.5.5 as 1.55, and e5 as 0
        valid.append(f"match({text}, {literal(_DECIMAL)})")
    return valid


def guessed(value: str, source: str, target: str, *, padded: bool = False) -> str:
    """Return the condition that a text is no clear moment; empty if `source` is no text or `target` no moment."""
    if bare(source) != "String" or not MOMENT.fullmatch(bare(target)):
        return ""
    text = f"assumeNotNull({_unpadded(value) if padded else value})"  # an empty text for NULL
    # Comparisons decide for most texts, such as 2026-01-02 10:00:00: a match takes as long as all of them.
    parts = ((5, 1, "= '-'"), (8, 1, "= '-'"), (12, 2, "<= '23'"), (15, 1, "<= '5'"), (18, 1, "<= '5'"))
    sure = [f"substring({text}, {at}, {length}) {is_fine}" for at, length, is_fine in parts]
    sure += [f"substring({text}, -6, 2) NOT IN {_FAR_OFFSETS}"]
    sure += [f"position({text}, '-00') = 0", f"{text} >= '0001'"]
    return f"NOT ({' AND '.join(sure)}) AND NOT match({text}, {literal(CLEAR_MOMENT)})"


def skipped(value: str, source: str, target: str, server_zone: str, *, padded: bool = False) -> str:
    """Return the condition that a text is a local time that no clock of its zone shows; empty if none can be.

    Clocks that are set forward from 2 to 3 show no 2:30: ClickHouse 26.9 reads 2:30 as 1:30, and a day without a
    midnight as the day before. Texts with an offset and numbers of seconds are no local times. The zone of a type
    without one is `server_zone`.
    """
    b, zone = bare(target), zone_of(target) or server_zone
    if bare(source) != "String" or not MOMENT.fullmatch(b) or zone in WITHOUT_CLOCK_CHANGES:
        return ""
    text = _unpadded(value) if padded else value
    moment = f"CAST({text}, {literal(_parsed(b))})"
    local = f"NOT match({text}, {literal(_NO_LOCAL_TIME)})"
    return _skips(moment, f"CAST({text}, {literal(_parsed(_in_utc(b)))})", local)


def _skips(moment: str, shown: str, is_local: str) -> str:
    """Return the condition that a moment does not show, in its zone, what a text says, which is `shown` in UTC.

    Most moments need no more than one comparison: no clock is set forward in the hours after them.
    """
    offset = f"timezoneOffset({moment})"
    soon = f"timezoneOffset(addSeconds({moment}, {_LONGEST_GAP})) > {offset}"
    differs = f"dateDiff('second', {moment}, {shown}) != {offset} AND {is_local}"
    return f"ifNull(if({soon}, {differs}, 0), 0)"


def zone_of(kind: str) -> str:
    """Return the time zone in a type; empty if it has none."""
    found = re.search("'(.*)'", bare(kind))
    return found.group(1) if found else ""


def _in_utc(core: str) -> str:
    """Return the type of a moment with its digits, in UTC."""
    return f"DateTime64({fraction_of(core)}, 'UTC')" if core.startswith("DateTime64") else "DateTime('UTC')"


def _integer(text: str, b: str) -> str:
    """Return the expression for the integer in a text that `_is_integer` accepts; others have any value."""
    plain = _parsed_integer(text, b)
    return f"if(isNull({plain}), {_parsed_decimal(text, b)}, {plain})"


def _is_integer(text: str, b: str) -> str:
    """Return the condition that a text is an integer of type `b`, with a fraction of zeros, or an exponent.

    A cast to a plain integer wraps: 300 becomes 44. A cast to a Nullable type returns NULL.
    """
    is_whole = f"match({text}, {literal(_DECIMAL)}) AND {_has_few_digits(text, 0)}"
    return f"(isNotNull({_parsed_integer(text, b)}) OR {is_whole} AND isNotNull({_parsed_decimal(text, b)}))"


def _parsed_decimal(text: str, b: str) -> str:
    return _parsed_integer(f"toString(CAST({text}, 'Nullable(Decimal({_MOST_DIGITS}, 0))'))", b)


def _parsed_integer(text: str, b: str) -> str:
    if b in ("Int128", "UInt128"):  # these wrap even if they are Nullable
        return f"accurateCastOrNull(CAST({text}, 'Nullable(Int256)'), {literal(b)})"
    return f"CAST({text}, {literal(nullable(b))})"


def code(text: str, b: str) -> str:
    """Return the condition that a number of type `b` does not keep a text.

    The text is a code, or has too many digits. A code begins with a plus, or with a zero before another digit; after
    the digits comes the colon. Or it has several digits before an exponent without a sign. Most values need no more
    than comparisons.
    """
    text = f"assumeNotNull({_unpadded(text)})"  # an empty text for NULL
    is_code = (
        f"({text} >= '00' AND {text} < '0:' OR {text} < '0' AND match({text}, '^([+]|-0[0-9])')"
        f" OR positionCaseInsensitive({text}, 'e') > 2 AND match({text}, '^{_CODE_WITH_EXPONENT}'))"
    )
    if b != "Float64":
        return is_code
    is_long = f"length({text}) > {_FLOAT_DIGITS['Float64']} AND match({text}, '^-?[0-9]*[.]?[0-9]*$')"
    return f"({is_code} OR if({is_long}, {inexact(text)}, 0))"


def code_in_list(text: str, kind: str) -> str:
    """Return the condition that a list or map of numbers of type `kind` does not keep a number in its text.

    See `code`. The keys of a map are texts, and left out.
    """
    if kind.startswith("Map("):
        text = f"if(position({text}, '\\'') > 0, replaceRegexpAll({text}, {literal(_QUOTED)}, ''), {text})"
    is_code = f"match({text}, {literal(CODE_IN_LIST)})"
    if "Float64" not in kind:
        return is_code
    long = r"[\[,:][ \t]*(-?[0-9.]{16,}[eE]?)"  # no comma after it, which the next match needs
    lost = f"NOT match(x, '[eE]$') AND {inexact('x')}"
    return f"({is_code} OR arrayExists(x -> {lost}, extractAll({text}, {literal(long)})))"


def is_list(text: str, kind: str) -> str:
    """Return the condition that a text has the form of a list or map of numbers of this type, also of such lists."""
    numbers = _FLOATS_WITHIN if "Float64" in kind else _INTEGERS_WITHIN
    if kind.startswith("Map("):
        return f"match({text}, {literal(_MAP.format(numbers))})"
    ends = f"countSubstrings({text}, ']')" if kind.startswith("Array(Array(") else "1"
    return f"(match({text}, {literal(_LIST.format(numbers))}) AND countSubstrings({text}, '[') = {ends})"


def without_zeros(text: str, kind: str) -> str:
    """Return the expression for the text of a list or map without the fractions of its integers, which are zeros."""
    if "Float64" in kind:
        return text
    return f"if(position({text}, '.') > 0, replaceRegexpAll({text}, {literal(_ZEROS)}, '\\\\1\\\\2'), {text})"


def map_in(text: str, kind: str) -> str:
    """Return the expression for the map in a text that `is_list` accepts; ClickHouse casts no text to a map."""
    (_, key), (_, value) = parts_of(kind)
    pair = rf"({_KEY})[ \t]*:[ \t]*({_FLOATS_WITHIN})"
    pairs = f"replaceRegexpAll(substring({text}, 2, length({text}) - 2), {literal(f'(?i){pair}')}, '(\\\\1,\\\\2)')"
    return f"CAST(CAST(concat('[', {pairs}, ']'), {literal(f'Array(Tuple({key}, {value}))')}), {literal(kind)})"


def inexact(text: str) -> str:
    """Return the condition that a Float64 has other digits than a number without an exponent, or very many."""
    decimal = f"Nullable(Decimal({_MOST_DIGITS}, {_MOST_DIGITS // 2}))"
    same = f"CAST(toString(toFloat64OrNull({text})), '{decimal}') = CAST({text}, '{decimal}')"
    return f"NOT ifNull({same}, 0)"


def beyond_range(text: str, b: str) -> str:
    """Return the condition that a float of type `b` turns the number in a text of CSV into infinity or zero."""
    text = _unpadded(text)
    value = f"CAST({text}, {literal(nullable(b))})"  # as in `converted`: ClickHouse computes it once
    return f"if(ifNull(isInfinite({value}) OR {value} = 0, 0), ifNull(match({text}, '^[^eE]*[1-9]'), 0), 0)"


def _has_few_digits(text: str, scale: int) -> str:
    """Return the condition that a decimal number in a text has at most `scale` digits after its point.

    Zeros at its end do not count, except in an integer with an exponent: 100e-2 has two digits.
    """
    point = f"position({text}, '.')"
    digits = f"if({point} = 0, 0, length(trim(TRAILING '0' FROM {text})) - {point})"
    plain = f"{digits} <= {scale}" if scale else f"NOT match({text}, '[.][0-9]*[1-9]')"
    digits = f"length(trim(TRAILING '0' FROM extract({text}, '[.]([0-9]*)')))"
    exponent = f"toInt32OrDefault(extract({text}, '[eE][+]?(.*)'), toInt32({_NO_EXPONENT}))"
    scaled = f"NOT match({text}, '^[^eE]*[1-9]') OR {digits} - {exponent} <= {scale}"
    return f"if(positionCaseInsensitive({text}, 'e') = 0, {plain}, {scaled})"


def _has_short_fraction(text: str, kind: str) -> str:
    """Return the condition that a moment or a time in a text has no digit of a second that its type lacks.

    ClickHouse also parses milliseconds, microseconds and nanoseconds since 1970: integers of 13, 16 and 19 digits.
    """
    clock = CLOCK.fullmatch(kind)
    digits = int(clock.group(1) or 0) if clock else fraction_of(kind)
    # The point of a fraction follows a time or a large number; points of 31.12.2026 do not.
    before = "" if clock else "(?::[0-9]{1,2}|[0-9]{5})"
    longer = f"{before}[.][0-9]{{{digits}}}[0-9]*[1-9]"
    kept = f"NOT (position({text}, '.') > 0 AND match({text}, '{longer}'))"
    if clock:
        return kept
    number = f"position({text}, ':') = 0 AND match({text}, '^(?:[0-9]{{13}}|[0-9]{{16}}|[0-9]{{19}})$')"
    return f"{kept} AND NOT ({number} AND match(substring({text}, {_SECONDS + digits + 1}), '[1-9]'))"


def is_cut(a: str, b: str) -> bool:
    """Return whether type `a` has fractions of a second, decimal digits or values that type `b` lacks."""
    if (digits := scale_of(a)) is not None and (others := scale_of(b)) is not None:
        return digits > others
    if TIME.fullmatch(a) and TIME.fullmatch(b):
        return fraction_of(a) > fraction_of(b)
    if (one := CLOCK.fullmatch(a)) and (other := CLOCK.fullmatch(b)):
        return int(one.group(1) or 0) > int(other.group(1) or 0)
    return (a, b) == ("UInt8", "Bool")


def converted(value: str, source: str, target: str, *, padded: bool = False) -> str:
    """Return the expression that converts a value of type `source` to type `target`, or fails.

    It never wraps or truncates a value that `whole` accepts, or replaces it with a default. With `padded`, text that
    is converted to another type may have spaces and tabs around it.
    """
    a, b = bare(source), bare(target)
    if same(a, b) and (is_nullable(target) or not is_nullable(source)):
        return value
    decimals = a.startswith("Decimal") and b.startswith("Decimal")  # accurateCast does not check these
    if decimals or (b == "String" and a != b):
        # toString removes the zero bytes at the end of a FixedString
        text = f"concat({value}, '')" if a.startswith("FixedString") else f"toString({value})"
        return f"CAST({text}, {literal(target)})"
    if a == "String" and is_nested(b):  # its values would wrap, or lose digits
        larger = _larger_within(target, csv=True)
        return converted(f"CAST({value}, {literal(larger)})", larger, target)
    if a == "String" and MOMENT.fullmatch(b) and target != (parsed := _parsed(b)):  # the check parses it, too
        return f"CAST({converted(value, source, parsed, padded=padded)}, {literal(target)})"
    if a == "String" or b.startswith("Variant("):
        text = _unpadded(value) if padded and a == "String" else value
        return f"CAST({_integer(text, b) if a == 'String' and INTEGERS.fullmatch(b) else text}, {literal(target)})"
    made = f"accurateCast({value}, {literal(target)})"
    has_null = is_nested(a) and is_nullable(source) and is_nullable(target)  # a NULL struct has empty texts: no dates
    return f"if(isNull({value}), NULL, {made})" if has_null else made


def fits(source: str, target: str) -> bool:
    """Return whether values of a type can be loaded into a column of another; single values may be out of range."""
    a, b = bare(source), bare(target)
    if is_nested(a) and a.partition("(")[0] == b.partition("(")[0]:
        return _fits_within(a, b)
    if loose(a) == loose(b) or b in ("String", "Dynamic") or a == NOTHING or are_clocks(a, b):
        return not (b == "String" and "Variant(" in a and _LOCAL_MOMENT.search(a, a.index("Variant(")))
    if b.startswith("Variant("):
        return any(same(a, kind) for kind in arguments(b))
    if NUMBER.fullmatch(a) and NUMBER.fullmatch(b):
        return not (INTEGERS.fullmatch(b) and not INTEGERS.fullmatch(a)) and not (
            b.startswith("Decimal") and "Float" in a
        )
    if TIME.fullmatch(a) and TIME.fullmatch(b):
        return b.startswith("DateTime64") or "Time" not in a
    return (a, b) in {("String", "UUID"), ("String", "JSON"), ("Bool", "UInt8"), ("UInt8", "Bool")} or b.startswith(
        ("Enum", "FixedString")
    )


def _fits_within(a: str, b: str) -> bool:
    if a.startswith("Tuple(") and [*elements_of(a)] != [*elements_of(b)]:
        return False
    return all(fits(one, other) for one, other in zip(elements_of(a).values(), elements_of(b).values(), strict=True))


def are_clocks(a: str, b: str) -> bool:
    """Return whether both types are times of a day."""
    return CLOCK.fullmatch(a) is not None and CLOCK.fullmatch(b) is not None
