"""The rows that docs/differences.md says a CSV file has, where Python's csv module has others or refuses it.

Each reading applies only the rules with the given titles: the loaded rows must be those of one reading.
"""

from __future__ import annotations

import datetime as dt
import math
import re
from collections.abc import Iterator, Mapping
from decimal import Decimal, InvalidOperation
from typing import Any

from storeside.transfer.request.object_format import Csv
from tests.fuzz.differential.text import Refused, Rows

AFTER_QUOTES = "Spaces after a closing quote"
TEXT_AFTER_QUOTES = "Text after a closing quote, in dialects that pyarrow parses"
CARRIAGE_RETURN = "Carriage returns within CSV values"
LAST_DELIMITER = "A delimiter at the end of a CSV row"
OPEN_QUOTE = "A quote that is never closed"
OTHER_NOTATIONS = "Other notations of numbers and dates"
INTENDED = (
    AFTER_QUOTES, TEXT_AFTER_QUOTES, CARRIAGE_RETURN, LAST_DELIMITER, OPEN_QUOTE, OTHER_NOTATIONS,
)  # fmt: skip

SPACE = " \t"


class Reading:
    """A file as the documented rules read it; `used` has the titles of those that were needed."""

    def __init__(self, text: str, dialect: Csv, columns: Mapping[str, str]) -> None:
        self.text, self.dialect, self.columns = text, dialect, columns
        self.used: set[str] = set()
        self.at = 0

    def rows(self) -> Rows:
        """Return the rows. Raises Refused where no rule makes rows of the file."""
        self._skip_lines()
        records = [record for record in self._records() if record is not None]
        while records and not "".join(value for value, _ in records[0]).strip():
            records.pop(0)
        if not records:
            return []
        header = [value for value, _ in records.pop(0)]
        if set(header) - set(self.columns) or len(set(header)) < len(header):
            raise Refused("other columns")
        rows = []
        for record in records:
            if record == [("", False)] and len(header) > 1:
                continue
            if len(record) == len(header) + 1 and record[-1] == ("", False) and self.dialect.is_native:
                self.used.add(LAST_DELIMITER)
                record.pop()
            if len(record) != len(header):
                raise Refused("another number of fields")
            given = dict(zip(header, record, strict=True))
            rows.append(tuple(self._typed(*given.get(n, ("", False)), kind) for n, kind in self.columns.items()))
        return rows

    def _skip_lines(self) -> None:
        for _ in range(self.dialect.skip_rows):
            end = self.text.find("\n", self.at)
            if "\r" in self.text[self.at : end - 1]:
                self.used.add(CARRIAGE_RETURN)
            self.at = end + 1 if end >= 0 else len(self.text)

    def _records(self) -> Iterator[list[tuple[str, bool]]]:
        while self.at < len(self.text):
            record = []
            while True:
                value, quoted, ended = self._field()
                record.append((value, quoted))
                if ended:
                    break
            yield record

    def _field(self) -> tuple[str, bool, bool]:
        """Return a value, whether it was quoted, and whether the row ends behind it."""
        if not self.text.startswith(self.dialect.quote, self.at):
            value, ended = self._plain()
            return value, False, ended
        value = self._quoted()
        behind, ended = self._plain()
        if behind:
            is_space = not behind.strip(SPACE)
            if not is_space and self.dialect.is_native:
                raise Refused("text behind a closing quote")
            self.used.add(AFTER_QUOTES if is_space else TEXT_AFTER_QUOTES)
            value += "" if self.dialect.is_native else behind
        return value, True, ended

    def _quoted(self) -> str:
        quote, value = self.dialect.quote, ""
        self.at += 1
        while True:
            end = self.text.find(quote, self.at)
            if end < 0:
                self.used.add(OPEN_QUOTE)
                value, self.at = value + self.text[self.at :], len(self.text)
                return value
            value += self.text[self.at : end]
            self.at = end + 1
            if not self.text.startswith(quote, self.at):
                return value
            value, self.at = value + quote, self.at + 1

    def _plain(self) -> tuple[str, bool]:
        """Return what comes before the next delimiter or the end of the row, and whether it is the latter."""
        found = re.compile(rf"{re.escape(self.dialect.delimiter)}|\r?\n|\r").search
        begin = at = self.at
        while (end := found(self.text, at)) is not None:
            if end[0] == "\r" and self.dialect.is_native:
                self.used.add(CARRIAGE_RETURN)
                at = end.end()
                continue
            self.at = end.end()
            return self.text[begin : end.start()], end[0] != self.dialect.delimiter
        self.at = len(self.text)
        return self.text[begin:], True

    def _typed(self, text: str, quoted: bool, kind: str) -> Any:
        kind = kind.removeprefix("Nullable(").removesuffix(")")
        if kind.count("(") > kind.count(")"):
            kind += ")"
        is_null = not quoted and (text in self.dialect.null_values or not text)
        if kind == "String":
            return None if is_null else text
        if is_null or not text.strip(SPACE):
            return None
        text = text.strip(SPACE)
        try:
            return self._number(text, kind)
        except (ValueError, InvalidOperation) as e:
            raise Refused(f"{text!r} is no {kind}") from e

    def _number(self, text: str, kind: str) -> Any:
        if kind == "Date32":
            parts = re.fullmatch(r"(\d{4})-(\d{1,2})-(\d{1,2})", text)
            if parts is None:
                raise Refused(f"{text!r} is no date")
            if len(text) < 10:
                self.used.add(OTHER_NOTATIONS)
            return dt.date(*map(int, parts.groups()))
        if not kind.startswith("Int"):
            if not re.fullmatch(r"[+-]?(\d+\.\d*|\.?\d+)([eE][+-]?\d+)?", text):
                raise Refused(f"{text!r} is no number")
            if re.search(r"\.(\D|$)|^[+-]?\.", text):
                self.used.add(OTHER_NOTATIONS)
            return float(text) if kind == "Float64" else Decimal(text)
        if not self.dialect.is_native and (hexadecimal := re.fullmatch(r"(-?)0[xX]([0-9a-fA-F]+)", text)):
            self.used.add(OTHER_NOTATIONS)
            return int("".join(hexadecimal.groups()), 16)
        if not re.fullmatch(r"[+-]?\d+", text):
            raise Refused(f"{text!r} is no integer")
        return int(text)


def same(one: Any, other: Any) -> bool:
    """Return whether two values are the same; NaN is the same as NaN."""
    if isinstance(one, float) and isinstance(other, float):
        return one == other or (math.isnan(one) and math.isnan(other))
    return type(one) is type(other) and bool(one == other)


def section(content: bytes, rows: Rows, dialect: Csv, columns: Mapping[str, str]) -> str:
    """Return the title of the rule by which a file has these rows; empty if no rule explains them."""
    try:
        text = content.decode("utf-8-sig" if dialect.encoding == "utf-8" else dialect.encoding)
        reading = Reading(text, dialect, columns)
        predicted = reading.rows()
    except (Refused, UnicodeDecodeError):
        return ""
    are_same = len(predicted) == len(rows) and all(
        all(map(same, one, other)) for one, other in zip(predicted, rows, strict=True)
    )
    return min(reading.used, key=INTENDED.index) if are_same and reading.used else ""
