"""Whether a loaded value is the value of the file, in a column whose type the load has inferred.

Python reads the file. A column of any type must return each value: numbers with all their digits, moments to the last
digit of a second, and texts letter by letter. Nothing here knows which type the product should have inferred.
"""

from __future__ import annotations

import datetime as dt
import json
import math
import re
import uuid
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

from storeside.transfer.base.schema import bare
from storeside.transfer.types.conversion import elements_of, parts_of

# Unquoted texts of CSV that may be NULL; Python's csv module does not tell whether a value was quoted.
_NULLS = ("", "\\N")
_SPACE = " \t"
_JSON_NUMBER = re.compile(r"-?(?:0|[1-9]\d*)?(?:\.\d*)?(?:[eE][+-]?\d+)?", re.ASCII)
_ZONE = re.compile(r"(.*:\d{2}(?:\.\d+)?) ?(?:(Z|UTC|GMT)|([+-])(\d{2}):?(\d{2})?)")
_POINT = re.compile(r"(?<![\w.])(\d*)\.(\d*)")  # within a list: .5 and 5. are no numbers of JSON
_FRACTION = re.compile(r"(:\d{2})\.(\d+)")
_FORMATS = (
    "%Y-%m-%d", "%Y/%m/%d", "%Y-%m-%d %H:%M", "%Y-%m-%d %H:%M:%S", "%Y-%m-%dT%H:%M:%S", "%Y-%m-%d %I:%M %p",
    "%Y-%m-%d %I:%M%p", "%d %b %Y", "%b %d, %Y", "%a, %d %b %Y %H:%M:%S",
)  # fmt: skip


class Number(str):
    """The text of a JSON number."""

    __slots__ = ()


def parsed(text: str) -> Any:
    """Return Python's value of a JSON document, with numbers as `Number`. Raises ValueError."""
    return json.loads(text, parse_int=Number, parse_float=Number, parse_constant=Number)


def is_same(kind: str, source: Any, loaded: str | None) -> bool:
    """Return whether a column of a type has a value.

    `source` is a text of CSV, or a value as `parsed` returns it. `loaded` is what `shown` selects.
    """
    if bare(kind) == "JSON":
        return _is_object_same(source, None if loaded is None else parsed(loaded))
    if is_nested(kind) and loaded is not None:
        return _is_nested_same(kind, source, parsed(loaded))
    return _is_scalar_same(bare(kind), source, loaded)


def is_nested(kind: str) -> bool:
    """Return whether a type is that of lists or structs."""
    return bare(kind).startswith(("Array(", "Tuple("))


def _is_object_same(source: Any, loaded: Any) -> bool:
    """Return whether a value of a JSON column, which has no NULLs in objects, is the same."""
    if isinstance(source, dict) and isinstance(loaded, dict):
        given = {name: value for name, value in source.items() if value not in (None, {})}
        return given.keys() == loaded.keys() and all(_is_object_same(v, loaded[n]) for n, v in given.items())
    if isinstance(source, list) and isinstance(loaded, list):
        return len(source) == len(loaded) and all(_is_object_same(a, b) for a, b in zip(source, loaded, strict=True))
    if isinstance(source, Number) and isinstance(loaded, Number):
        return any(_is_number_same(kind, source, loaded) for kind in ("Int64", "Float64"))
    return type(source) is type(loaded) and bool(source == loaded)


def _is_nested_same(kind: str, source: Any, loaded: Any) -> bool:
    kind = bare(kind)
    if isinstance(source, str) and not isinstance(source, Number):  # a list in CSV
        if source.strip(_SPACE) in _NULLS:
            return loaded in (None, [])
        source = parsed(_POINT.sub(lambda found: f"{found[1] or 0}.{found[2] or 0}", source))
    if kind.startswith("Array("):
        ((_, part),) = parts_of(kind)
        if source is None:
            return loaded == []
        return (
            isinstance(source, list)
            and len(source) == len(loaded)
            and all(_is_part_same(part, a, b) for a, b in zip(source, loaded, strict=True))
        )
    if source is None:
        return loaded is None
    kinds = elements_of(kind)
    return (
        isinstance(source, dict)
        and source.keys() <= kinds.keys()
        and all(_is_part_same(part, source.get(name), loaded[name]) for name, part in kinds.items())
    )


def _is_part_same(kind: str, source: Any, loaded: Any) -> bool:
    if is_nested(kind):
        return (source is None) if loaded is None else _is_nested_same(kind, source, loaded)
    if isinstance(loaded, bool):
        return loaded is source
    return _is_scalar_same(bare(kind), source, None if loaded is None else str(loaded))


def _is_scalar_same(kind: str, source: Any, loaded: str | None) -> bool:
    if loaded is None or source is None:
        return loaded is None and (source is None or (type(source) is str and source.strip(_SPACE) in _NULLS))
    if kind == "String":
        return loaded == source if type(source) is str else _is_json_same(source, loaded)
    if kind == "Bool":
        return loaded == {True: "true", False: "false"}.get(source, source)
    if not isinstance(source, str):
        return False
    text = source.strip(_SPACE)
    if kind == "UUID":
        return loaded == text == str(uuid.UUID(loaded))
    return _is_moment_same(text, loaded) if kind.startswith("Date") else _is_number_same(kind, text, loaded)


def _is_json_same(source: Any, loaded: str) -> bool:
    try:
        return bool(parsed(loaded) == source)
    except ValueError:
        return False


def _is_number_same(kind: str, text: str, loaded: str) -> bool:
    """Return whether a number has all digits of a text that is one."""
    if kind == "Float64" and re.fullmatch("-?inf|-?infinity|nan", text.lower()):
        return float(text) == float(loaded) or (math.isnan(float(text)) and math.isnan(float(loaded)))
    if not _JSON_NUMBER.fullmatch(text) or not re.search(r"\d", text):
        return False
    if "e" in text.lower():
        is_zero = Decimal(text) == 0
        return float(text) == float(loaded) and math.isfinite(float(text)) and (is_zero or float(text) != 0)
    # A double that has an integer of more than 17 digits is shown with other digits: 2 to the power of 64.
    exact = Decimal(float(loaded)) if kind == "Float64" else Decimal(loaded)
    return Decimal(text) in (exact, Decimal(loaded))


def _is_moment_same(text: str, loaded: str) -> bool:
    found = moment(text)
    return found is not None and found == moment(loaded)


def moment(text: str) -> tuple[dt.datetime, str] | None:
    """Return the whole second of a moment in UTC and the digits after it; None for a text that is none."""
    offset = dt.timedelta()
    if zone := _ZONE.fullmatch(text):
        text = zone[1]
        if zone[3]:
            offset = dt.timedelta(hours=int(zone[4]), minutes=int(zone[5] or 0)) * (-1 if zone[3] == "-" else 1)
    digits = ""
    if fraction := _FRACTION.search(text):
        digits, text = fraction[2].rstrip("0"), _FRACTION.sub(r"\1", text)
    for form in _FORMATS:
        try:
            return dt.datetime.strptime(text, form) - offset, digits
        except (ValueError, OverflowError):
            continue
    return None


def shown(name: str, kind: str) -> str:
    """Return the expression whose text `is_same` compares; `name` is quoted."""
    return f"toJSONString({name})" if is_nested(kind) else f"toString({name})"


def are_rows_same(
    kinds: Sequence[str], expected: Sequence[Sequence[Any]], loaded: Sequence[Sequence[str | None]]
) -> bool:
    """Return whether a table has these rows in this order."""
    return len(expected) == len(loaded) and all(
        is_same(kind, a, b)
        for one, other in zip(expected, loaded, strict=True)
        for kind, a, b in zip(kinds, one, other, strict=True)
    )
