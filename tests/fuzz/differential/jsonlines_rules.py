"""The rows that docs/differences.md says a file of JSON has, where the convention of JSON Lines has none.

Each loaded value must be the value that these rules read from the text.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tests.fuzz.differential.text import Refused, Rows

SPANNING = "JSON documents that span lines"
OTHER_TYPE = "JSON values of another type than the column"
MISSING = "Missing fields"
INTENDED = (SPANNING, OTHER_TYPE, MISSING)

_SPACE = re.compile(r"[ \t\r\n]*")
_INTEGER = re.compile(r"-?(0|[1-9][0-9]*)")
_NUMBER = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?")
_LITERALS = {"true": True, "false": False, "null": None}


@dataclass(frozen=True)
class Value:
    """The text of a JSON value with its parts; `parsed` is Python's value."""

    raw: str
    parsed: Any
    fields: tuple[tuple[str, Value], ...] = ()
    elements: tuple[Value, ...] = ()


class Reading:
    """A text as the documented rules read it; `used` has the titles of those that were needed."""

    def __init__(self, text: str, columns: Mapping[str, str]) -> None:
        self.text, self.columns = text, columns
        self.used: set[str] = set()
        self.at = 0

    def rows(self) -> Rows:
        """Return the rows. Raises Refused where no rule makes rows of the text."""
        documents = []
        last_line = -1
        self._skip()
        while self.at < len(self.text):
            if self.text.count("\n", 0, self.at) == last_line:
                raise Refused("a line has the end of one document and the beginning of the next")
            first_line = self.text.count("\n", 0, self.at)
            document = self._value()
            last_line = self.text.count("\n", 0, self.at)
            if first_line != last_line or isinstance(document.parsed, list):
                self.used.add(SPANNING)
            documents.append(document)
            self._skip()
        each = [one for doc in documents for one in (doc.elements if isinstance(doc.parsed, list) else (doc,))]
        return [self._row(one) for one in each]

    def _skip(self) -> None:
        found = _SPACE.match(self.text, self.at)
        assert found is not None
        self.at = found.end()

    def _value(self) -> Value:
        begin = self.at
        try:
            parsed, end = json.JSONDecoder().raw_decode(self.text, self.at)
        except (ValueError, RecursionError) as e:
            raise Refused(str(e)) from e
        if isinstance(parsed, dict):
            fields = tuple(self._fields())
            self.at = end
            if len({name for name, _ in fields}) < len(fields):
                raise Refused("a name comes twice")
            return Value(self.text[begin:end], parsed, fields=fields)
        if isinstance(parsed, list):
            elements = tuple(self._elements())
            self.at = end
            return Value(self.text[begin:end], parsed, elements=elements)
        self.at = end
        raw = self.text[begin:end]
        if not raw.startswith('"') and raw not in _LITERALS and not _NUMBER.fullmatch(raw):
            raise Refused(f"{raw} is no JSON")
        return Value(raw, parsed)

    def _fields(self) -> list[tuple[str, Value]]:
        found = []
        while self._goes_on("}"):
            name = self._value()
            self._skip()
            self.at += 1  # the colon
            self._skip()
            found.append((name.parsed, self._value()))
        return found

    def _elements(self) -> list[Value]:
        found = []
        while self._goes_on("]"):
            found.append(self._value())
        return found

    def _goes_on(self, end: str) -> bool:
        """Go to the next part of an object or array, which is known to be valid; tell whether there is one."""
        self._skip()
        self.at += 1 if self.text[self.at] in "{[," or self.text[self.at] == end else 0
        was_end = self.text[self.at - 1] == end
        self._skip()
        if not was_end and self.text[self.at] == end:  # an empty one
            self.at += 1
            return False
        return not was_end

    def _row(self, document: Value) -> tuple[Any, ...]:
        if not isinstance(document.parsed, dict):
            raise Refused("a document is no object")
        given = dict(document.fields)
        if set(given) - set(self.columns):
            raise Refused("unknown fields")
        return tuple(self._typed(given.get(name), kind) for name, kind in self.columns.items())

    def _typed(self, value: Value | None, kind: str) -> Any:
        if kind.startswith("Array("):
            return self._array(value)
        if value is None or value.raw == "null":
            return None
        if kind.startswith("Nullable(Tuple("):
            return self._tuple(value)
        return self._flat(value, kind.removeprefix("Nullable(").removesuffix(")"))

    def _array(self, value: Value | None) -> list[Any]:
        if value is None:
            return []
        if not isinstance(value.parsed, list):
            raise Refused("no array")
        return [None if one.raw == "null" else self._flat(one, "Int64") for one in value.elements]

    def _tuple(self, value: Value) -> dict[str, Any]:
        if not isinstance(value.parsed, dict) or set(value.parsed) - {"x", "y"}:
            raise Refused("another tuple")
        given = dict(value.fields)
        return {
            "x": self._typed(given.get("x"), "Nullable(Int64)"),
            "y": self._typed(given.get("y"), "Nullable(String)"),
        }

    def _flat(self, value: Value, kind: str) -> Any:
        is_text = isinstance(value.parsed, str)
        if kind == "String":
            if not is_text:
                self.used.add(OTHER_TYPE)
            return value.parsed if is_text else value.raw
        if kind == "Bool":
            return self._truth(value)
        if isinstance(value.parsed, bool | list | dict):
            raise Refused(f"{value.raw} is no number")
        raw = value.parsed if is_text else value.raw
        if is_text:
            self.used.add(OTHER_TYPE)
        if kind == "Float64":
            if not _NUMBER.fullmatch(raw) or math.isinf(float(raw)):
                raise Refused(f"{raw} is no Float64")
            return float(raw)
        bits = int(kind[3:]) - 1
        if not _INTEGER.fullmatch(raw) or not -(2**bits) <= int(raw) < 2**bits:
            raise Refused(f"{raw} is no {kind}")
        return int(raw)

    def _truth(self, value: Value) -> bool:
        if isinstance(value.parsed, bool):
            return value.parsed
        self.used.add(OTHER_TYPE)
        if value.raw not in ("0", "1"):
            raise Refused(f"{value.raw} is no Bool")
        return value.raw == "1"


def section(content: bytes, rows: Rows, columns: Mapping[str, str]) -> str:
    """Return the title of the rule by which a file has these rows; empty if no rule explains them."""
    try:
        reading = Reading(content.decode("utf-8-sig"), columns)
        predicted = reading.rows()
    except (Refused, UnicodeDecodeError):
        return ""
    is_predicted = len(predicted) == len(rows) and all(map(_same, predicted, rows))
    return min(reading.used, key=INTENDED.index) if is_predicted and reading.used else ""


def _same(one: tuple[Any, ...], other: tuple[Any, ...]) -> bool:
    return all(type(a) is type(b) and a == b for a, b in zip(one, other, strict=True))
