"""Refuses texts in columns of times of JSON whose time ClickHouse would guess, or would change.

ClickHouse 26.9 takes the current year for ``"10:00"``, the first day for ``"2024-01"`` and the next day for
``"25:00"``. It reads ``"2026-03-29 02:30:00"``, which no clock in Berlin shows, as 1:30.
"""

from __future__ import annotations

import re
import zoneinfo
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import cached_property

from storeside.sql.quoting import literal
from storeside.transfer.base.errors import guessed_time, skipped_time
from storeside.transfer.base.schema import MOMENT, Column, bare
from storeside.transfer.staging.json_places import (
    ESCAPED_KEY,
    ESCAPED_KEY_BYTES,
    Row,
    names_in,
    parts,
    within,
    written_key,
)
from storeside.transfer.types.conversion import CLEAR_MOMENT, WITHOUT_CLOCK_CHANGES, skipped, zone_of

# How most times begin in JSON, such as 2026-01-02T10:00:00: the pattern of each part, and its characters by the
# pattern before them in the part.
_DIGITS = "0123456789"
_DIGIT, _DASH, _COLON = ("[0-9]", {"": _DIGITS}), ("-", {"": "-"}), (":", {"": ":"})
_MONTH = ("(?:0[1-9]|1[0-2])", {"": "01", "0": "123456789", "1": "012"})
_DAY = ("(?:0[1-9]|[12][0-9]|3[01])", {"": "0123", "0": "123456789", "[12]": _DIGITS, "3": "01"})
_HOUR = ("(?:[01][0-9]|2[0-3])", {"": "012", "[01]": _DIGITS, "2": "0123"})
_SIXTY = ("[0-5][0-9]", {"": "012345", "[0-5]": _DIGITS})
# A date may end before the time, and a time before the seconds.
_USUAL: tuple[tuple[str, dict[str, str]], ...] = (
    ("[1-9]", {"": "123456789"}), _DIGIT, _DIGIT, _DIGIT, _DASH, _MONTH, _DASH, _DAY,
    ("[T ]", {"": 'T "'}), _HOUR, _COLON, _SIXTY, (":", {"": ':"Z+-'}), _SIXTY,
)  # fmt: skip
# An offset of 20 hours or more after a whole time.
_FAR_OFFSET = "[0-9.]* *[+-][2-9][0-9]"
_CLEAR = re.compile(CLEAR_MOMENT)
# Characters of a text of a time, with the name of its zone; a longer one is none.
_MOST = 100
_LOCAL = re.compile(r"([0-9]{4})-([0-9]{2})-([0-9]{2})(?:[T ]([0-9]{2}):([0-9]{2})(?::([0-9]{2})(?:\.[0-9]*)?)?)?")


def _is_moment(kind: str) -> bool:
    """Return whether a type without Nullable is DateTime or DateTime64."""
    return MOMENT.fullmatch(kind) is not None


def _unusual(last: str) -> str:
    """Return the pattern of a text that does not begin as most times do; the worker then compares all of it.

    `last` is the last character that a text has, as it is written in a pattern. The classes of characters are no
    negated ones, of which ClickHouse's multiMatchAny uses the first part only: see
    `findings/clickhouse-multimatch-negated-class.sh`.
    """
    found = _FAR_OFFSET
    for usual, after in reversed(_USUAL):
        others = [f"{before}[{_others(characters, last)}]" for before, characters in after.items()]
        found = "|".join([*others, f"{usual}(?:{found})"])
    return found


def _others(characters: str, last: str) -> str:
    """Return the ranges of all characters but these, up to the `last`."""
    ranges, begin = [], 0
    for code in sorted(map(ord, characters)):
        ranges += [f"\\x{begin:02x}-\\x{code - 1:02x}"] if begin < code else []
        begin = code + 1
    return "".join([*ranges, f"\\x{begin:02x}-{last}"])


def is_guessed(text: str) -> bool:
    """Return whether ClickHouse guesses a part of the time in a text."""
    return len(text) > _MOST or _CLEAR.fullmatch(text) is None


def _is_skipped(text: str, zone: zoneinfo.ZoneInfo) -> bool:
    """Return whether no clock of a zone shows the time in a text, which has neither an offset nor a zone."""
    if (found := _LOCAL.fullmatch(text)) is None:
        return False
    try:
        local = datetime(*(int(part or 0) for part in found.groups()))  # type: ignore[arg-type]  # six parts
        shown = local.replace(tzinfo=zone).astimezone(UTC).astimezone(zone)
    except (ValueError, OverflowError):  # the load refuses it, or no clock is set forward in its year
        return False
    return shown.replace(tzinfo=None) != local


# A text that begins as few times do, in a line. On the worker, the opposite of the others takes half of the time.
_UNCLEAR = r'[ \t\r\n]*"(?:' + _unusual(r"\x{10FFFF}") + ")"
_DATE, _CLOCK = "".join(part for part, _ in _USUAL[:8]), "".join(part for part, _ in _USUAL[8:12])
_UNCLEAR_BYTES = rf'[ \t\r\n]*"(?!{_DATE}(?:"|{_CLOCK}(?:["Z+-]|:{_SIXTY[0]}(?!{_FAR_OFFSET}))))'
_BEFORE_TEXT = r"[:\[,]"
_ESCAPED = re.compile((ESCAPED_KEY_BYTES + _UNCLEAR_BYTES).encode())


class Moments:
    """The columns of times; one without a time zone has that of the server."""

    def __init__(self, columns: Sequence[Column], server_zone: str) -> None:
        self._server_zone = server_zone
        self._columns = [c for c in columns if names_in(c, _is_moment)]
        self._plain = [c for c in self._columns if _is_moment(bare(c.type))]
        # those whose clocks are set forward
        self._skipping = [c for c in self._plain if self._zone(c) not in WITHOUT_CLOCK_CHANGES]

    def _zone(self, column: Column) -> str:
        return zone_of(column.type) or self._server_zone

    @property
    def names(self) -> list[str]:
        """The columns whose values are compared."""
        return [c.name for c in self._columns]

    @property
    def condition(self) -> str:
        """The condition that a `line` may have such a time; empty if none can."""
        found = []
        if self._plain:  # the first pattern takes half of the time of one with escapes
            keys = written_key([c.name for c in self._plain])
            found = [f"multiMatchAny(line, [{literal(keys + _UNCLEAR)}])"]
            found += [f"position(line, '\\\\') > 0 AND match(line, {literal(ESCAPED_KEY + _UNCLEAR)})"]
        for c in self._columns:
            if c not in self._plain:
                pattern = within(names_in(c, _is_moment), _UNCLEAR)
                found.append(f"match(JSONExtractRaw(line, {literal(c.name)}), {literal(pattern)})")
        for c in self._skipping:
            text = f"JSONExtractString(line, {literal(c.name)})"
            found.append(skipped(text, "String", bare(c.type), self._server_zone))
        return " OR ".join(found)

    def may_be_in(self, document: bytes) -> bool:
        """Return whether a document may have such a time."""
        if self._skipping or any(pattern.search(document) for pattern in self._unclear):
            return True
        return bool(self._plain) and b"\\" in document and _ESCAPED.search(document) is not None

    @cached_property
    def _unclear(self) -> list[re.Pattern[bytes]]:
        """The patterns of a text with such a time; within lists, maps and structs, any text may be one.

        A search for one name takes a third of the time of one for two.
        """
        is_plain = len(self._plain) == len(self._columns)
        keys = [written_key([name]) for name in self.names] if is_plain else [_BEFORE_TEXT]
        return [re.compile(f"{before}{_UNCLEAR_BYTES}".encode()) for before in keys]

    def fault(self, row: Row) -> str:
        """Return which column has such a time; empty if none has."""
        for c in self._columns:
            if b'"' in row.raw(c.name):
                texts = (p for p, kind in parts(row.value(c.name), c.type) if isinstance(p, str) and _is_moment(kind))
                if any(map(is_guessed, texts)):
                    return guessed_time(c.name)
        for c in self._skipping:
            text = row.value(c.name)
            if isinstance(text, str) and _is_skipped(text, zoneinfo.ZoneInfo(self._zone(c))):
                return skipped_time(c.name)
        return ""
