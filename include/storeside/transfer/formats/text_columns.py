"""The columns of text objects, from their rows and the rules in `text_types`."""

from __future__ import annotations

import itertools
import json
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal, NoReturn

from storeside.sql.quoting import identifier
from storeside.transfer.base.errors import LoadObjectError
from storeside.transfer.base.schema import NOTHING, UNNAMED, Column
from storeside.transfer.formats.text_rows import fields
from storeside.transfer.formats.text_types import ANY, MOMENTS, NUMBERS, TEXT, Types, held, held_in_json, of, type_of
from storeside.transfer.objects.strict_json import JOINED, depth_of, joined_hint
from storeside.transfer.request.object_format import Csv, Format

Nested = Literal["tuple", "json", "string"]
# Returns the type of a column of CSV whose values are these lists or maps.
Ask = Callable[[Sequence[str]], str]

# A column is LowCardinality when this many values have at most this share of distinct ones.
_ENOUGH_ROWS, _DISTINCT = 1000, 0.05
# Distinct values that are remembered; a column with more is not LowCardinality.
_REMEMBERED = 10_000
# Lists and maps of CSV whose types the engine infers.
_ASKED = 1000
_BLOCK = 2000
_BLANK = " \t"
# JSON has types for numbers and booleans, so texts of their forms are texts.
_NO_TEXTS = frozenset({*NUMBERS, "boolean"})
# The types for which spaces alone are NULL, and String.
_BLANKS: Types = ANY & ~of("Bool", "UUID") | TEXT
# Every integer up to this one is a double.
_LARGEST_EXACT = 1 << 53
_WHOLE = of("Int64", "UInt64", "Int128")
# Levels of objects in JSON: a struct with more is no useful type.
_DEEPEST = 14
_DELIMITERS = (";", "\t", "|", ",", "\x01", "~")


class _Number(str):
    """The text of a JSON number with a fraction or an exponent."""

    __slots__ = ()


@dataclass
class Place:
    """The facts about the values at one place: a column, a field of a struct, or the elements of a list.

    `types` hold all scalars. `distinct` are the remembered texts, or None if there are too many, or other values.
    `lists` are values of CSV that may be lists or maps, unless it `has_other` values.
    `position` is the largest position of a field among its object's fields: it orders fields in the same way for any
    order of the objects.
    """

    types: Types = ANY
    count: int = 0
    distinct: set[Any] | None = field(default_factory=set)
    lists: set[str] = field(default_factory=set)
    has_other: bool = False
    fields: dict[str, Place] = field(default_factory=dict)
    element: Place | None = None
    has_objects: bool = False
    position: int = 0

    def field_at(self, name: str, position: int) -> Place:
        """Return the place of a field, which is at this position in one of the objects."""
        found = self.fields.setdefault(name, Place())
        found.position = max(found.position, position)
        return found

    def remember(self, values: Iterable[Any]) -> set[Any]:
        """Remember distinct values, and return those that are new."""
        new = set(values)
        if self.distinct is not None:
            new -= self.distinct
            self.distinct |= new
            if len(self.distinct) > _REMEMBERED:
                self.distinct = None
        return new

    def merge(self, other: Place) -> None:
        """Add what is known of other values at the same place."""
        self.types &= other.types
        self.count += other.count
        self.position = max(self.position, other.position)
        self.has_objects |= other.has_objects
        self.has_other |= other.has_other
        self._ask_about(other.lists)
        if other.distinct is None:
            self.distinct = None
        else:
            self.remember(other.distinct)
        for name, place in other.fields.items():
            self.field_at(name, place.position).merge(place)
        if other.element is not None:
            self.element = self.element or Place()
            self.element.merge(other.element)

    def _ask_about(self, texts: Iterable[str]) -> None:
        self.lists = set(sorted({*self.lists, *texts})[:_ASKED])

    # CSV

    def add_tokens(self, tokens: Sequence[str], dialect: _Dialect) -> None:
        """Add the values of a column of CSV, as they are in the rows, with their quotes."""
        self.count += len(tokens) - sum(map(tokens.count, dialect.nulls))
        for token in self.remember(set(tokens) - dialect.nulls):
            value = dialect.value(token)
            if value[:1] in ("[", "{"):
                self._ask_about([value])
            else:
                self.has_other = True
            if self.types != TEXT:
                self.types &= dialect.types(token, value)

    # JSON

    def add_values(self, values: Sequence[Any]) -> None:
        """Add JSON values; a number with a fraction or an exponent is a `_Number`."""
        by_kind: dict[type, list[Any]] = defaultdict(list)
        for value in values:
            by_kind[type(value)].append(value)
        by_kind.pop(type(None), None)
        if lists := by_kind.pop(list, None):
            self.element = self.element or Place()
            self.element.add_values([*itertools.chain.from_iterable(lists)])
        if objects := by_kind.pop(dict, None):
            self.has_objects = True
            self._add_objects(objects)
        for kind, scalars in by_kind.items():
            self.count += len(scalars)
            if kind is not str:
                self.distinct = None
            new = self.remember(scalars) if kind is str else {*scalars}
            for scalar in new if self.types != TEXT else ():
                self.types &= _SCALARS[kind](scalar)

    def _add_objects(self, objects: Iterable[dict[str, Any]]) -> None:
        columns: dict[str, list[Any]] = defaultdict(list)
        for found in objects:
            for position, (name, value) in enumerate(found.items()):
                columns[name].append(value)
                place = self.fields.get(name)
                if place is None or place.position < position:
                    self.field_at(name, position)
        for name, values in columns.items():
            self.fields[name].add_values(values)

    # types

    def kind(self, nested: Nested, ask: Ask, *, is_column: bool = False) -> str:
        """Return the type that holds all values; values of several kinds are text."""
        kinds = bool(self.count) + self.has_objects + (self.element is not None)
        if kinds != 1:
            return "Nullable(String)" if kinds else f"Nullable({NOTHING})"
        if self.element is not None:
            return f"Array({self.element.kind('string' if nested == 'string' else 'tuple', ask)})"
        if self.has_objects:
            return self._struct(nested, is_column=is_column)
        return self._scalar(ask, is_column=is_column)

    def _scalar(self, ask: Ask, *, is_column: bool) -> str:
        if self.types not in (TEXT, _BLANKS):
            return f"Nullable({type_of(self.types)})"
        if self.lists and not self.has_other:
            return ask(sorted(self.lists))
        return "LowCardinality(Nullable(String))" if is_column and self._is_low else "Nullable(String)"

    @property
    def _is_low(self) -> bool:
        return self.count >= _ENOUGH_ROWS and 0 < len(self.distinct or ()) <= self.count * _DISTINCT

    def _struct(self, nested: Nested, *, is_column: bool) -> str:
        if nested == "string" or ("" in self.fields and nested == "tuple"):  # no field of a struct has an empty name
            return "Nullable(String)"
        if nested == "json" and is_column and self.fields:
            return "Nullable(JSON)"
        if not self.fields:
            return f"Nullable({NOTHING})"
        parts = (f"{identifier(name)} {place.kind('tuple', _no_list)}" for name, place in self.ordered())
        return f"Nullable(Tuple({', '.join(parts)}))"

    def ordered(self) -> list[tuple[str, Place]]:
        """Return the fields in their order."""
        return sorted(self.fields.items(), key=lambda item: (item[1].position, item[0]))

    def columns(self, nested: Nested, given: Mapping[str, str], ask: Ask) -> list[Column]:
        """Return the fields as columns; those with a `given` type have it."""
        return [
            Column(name, given.get(name) or place.kind(nested, ask, is_column=True)) for name, place in self.ordered()
        ]


def _no_list(values: Sequence[str]) -> str:
    raise AssertionError(f"JSON has no lists in texts: {values}")


def _whole_number(value: int) -> Types:
    return _EXACT if 0 <= value <= _LARGEST_EXACT else held(str(value))


_EXACT = held("1")
_SCALARS: dict[type, Callable[[Any], Types]] = {
    bool: lambda value: of("Bool"),
    int: _whole_number,
    _Number: lambda number: held_in_json(str(number)),
    str: lambda text: held(text, _NO_TEXTS),
}


def _token(csv: Csv) -> str:
    """Return the expression for a field of a row; a quote without an end is read once."""
    quote, escape, end = map(re.escape, (csv.quote, csv.escape, csv.delimiter))
    if not quote:
        return rf"[^{end}]*+"
    within = rf"(?:[^{quote}{escape}]|{escape}.)*+" if escape else rf"(?:[^{quote}]|{quote}{quote})*+"
    return rf"{quote}{within}{quote}?[^{end}]*+|[^{end}]*+"


class _Dialect:
    """How a dialect of CSV writes values."""

    def __init__(self, csv: Csv) -> None:
        self.csv = csv
        self.nulls = frozenset({"", *csv.null_values})
        self.bools = frozenset({*csv.true_values, *csv.false_values})
        self._token = re.compile(_token(csv), re.DOTALL)

    def tokens(self, row: str) -> list[str]:
        """Return the fields of a row, with their quotes."""
        quote, delimiter = self.csv.quote, self.csv.delimiter
        if not quote or quote not in row:
            return row.split(delimiter)
        found, at = [], 0
        while at <= len(row):
            match = self._token.match(row, at)
            found.append(match[0] if match else "")
            at = match.end() + 1 if match else len(row) + 1
        return found

    def value(self, token: str) -> str:
        """Return the text of a field without its quotes."""
        quote = self.csv.quote
        if not quote or token[:1] != quote:
            return token
        end = token.rfind(quote)
        inner = token[1:end] if end else token[1:]
        return inner.replace(2 * quote, quote) if not self.csv.escape else inner

    def types(self, token: str, value: str) -> Types:
        """Return the types that hold a field."""
        if self.csv.quote and token[:1] == self.csv.quote:
            return self._moment(value, held(value, _NO_TEXTS))
        if value in self.bools:
            return of("Bool")
        stripped = value.strip(_BLANK)
        if not stripped:
            return _BLANKS
        found = held(stripped)
        if found & of("Bool") != TEXT and (self.bools or stripped != value):
            return TEXT
        return self._moment(stripped, found)

    def _moment(self, value: str, found: Types) -> Types:
        """Return the types of a value that may be written in a format of the request."""
        csv = self.csv
        if not csv.timestamp_formats:
            return found
        if any(_matches(value, form) for form in csv.timestamp_formats):
            return of("DateTime64(6)")
        has_zone = re.search(r"(?:Z|UTC|GMT|[+-]\d{2}:?\d{0,2})$", value) and len(value) > len("2026-01-02")
        return TEXT if found & MOMENTS != TEXT and has_zone and not csv.has_offsets else found


def _matches(value: str, form: str) -> bool:
    try:
        datetime.strptime(value, form)
    except ValueError:
        return False
    return True


def columns_of_csv(rows: Iterable[bytes], form: Format, *, skips_bad: bool) -> Place:
    """Return the facts about the columns of CSV in UTF-8; its first row is the header unless columns have names.

    Rows with too few or too many fields are left out with `skips_bad`. Raises LoadObjectError for them, for names
    that are not clear, and for a first row that is no header.
    """
    dialect, rows = _Dialect(form.csv), iter(rows)
    names = [*form.csv.names] or _header(next(rows), form.csv)
    root, count, left_out = Place(), 0, ""
    others_have: Counter[int] = Counter()
    for position, name in enumerate(names):
        root.field_at(name, position)
    others = _delimiters(names[0], form.csv) if len(names) == 1 and not form.csv.names else {}
    for block in _blocks(rows):
        table = []
        for row in block:
            text = row[:-1].decode("utf-8", "replace")
            if others:
                others = dict(others.items() & _delimiters(text, form.csv).items())
            tokens = dialect.tokens(text)
            if len(tokens) == len(names) or (len(tokens) == len(names) + 1 and not tokens[-1]):
                table.append(tokens)
            else:
                left_out = left_out or f"row {count} has {_fields(len(tokens))}"
                others_have[len(tokens)] += 1
            count += 1
        for name, column in zip(names, zip(*table, strict=False), strict=False):
            root.fields[name].add_tokens(column, dialect)
    if not form.csv.names:
        if others and count:
            raise _other_delimiter(*others.popitem())
        _refuse_no_header(names, root)
    if left_out and not (skips_bad and any(place.distinct != set() for place in root.fields.values())):
        of_names = "csv.names has" if form.csv.names else "the header has"
        raise LoadObjectError(f"{left_out}, but {of_names} {len(names)} names: {_remedy(others_have, count)}")
    return root


def _remedy(others: Counter[int], rows: int) -> str:
    """Return the remedy for rows with other numbers of fields than the header; `others` counts the rows of each."""
    fields, most = others.most_common(1)[0]
    if 2 * most > rows and fields > 1:
        return (
            f"most of its rows have {fields} fields: set csv.skip_rows to the number of lines before the header, or"
            f" csv.names to the names of {fields} columns"
        )
    return 'correct its rows, or set `on_bad_rows` to "skip" or "keep"'


def _blocks(rows: Iterator[bytes]) -> Iterator[list[bytes]]:
    while block := [*itertools.islice(rows, _BLOCK)]:
        yield block


def _fields(count: int) -> str:
    return "1 field" if count == 1 else f"{count} fields"


def _header(row: bytes, csv: Csv) -> list[str]:
    """Return the names in a header. Raises LoadObjectError if two columns have one name, or none."""
    names = fields(row, csv) or [""]
    if not all(map(_is_unicode, names)):
        raise LoadObjectError("its header is no text in csv.encoding: set that of the object")
    seen: dict[str, int] = {}
    for number, name in enumerate(names, 1):
        if name in seen:
            fault = "have no name" if name in ("", UNNAMED) else f"have the name {name!r}"
            raise LoadObjectError(
                f"columns {seen[name]} and {number} {fault}: set csv.names to the names of its {len(names)} columns,"
                f" and csv.skip_rows to {csv.skip_rows + 1}"
            )
        seen[name] = number
    return names


def _is_unicode(name: str) -> bool:
    return name.isascii() or not re.search("[\ud800-\udfff]", name)


def _delimiters(row: str, csv: Csv) -> dict[str, int]:
    """Return how often other delimiters are in a row, without those in quotes and those that are not in it."""
    outside = re.sub(r'"[^"]*"', "", row) if '"' in row else row
    return {d: count for d in _DELIMITERS if d != csv.delimiter and (count := outside.count(d))}


def _other_delimiter(delimiter: str, count: int) -> LoadObjectError:
    """Return the error for rows of one column that each have another delimiter as often as the header."""
    shown = "a tab" if delimiter == "\t" else repr(delimiter)
    return LoadObjectError(
        f"each of its rows has one column with {shown} {count} times: set csv.delimiter to {shown}, or set csv.names"
        " and csv.skip_rows if it has one column"
    )


def _refuse_no_header(names: Sequence[str], root: Place) -> None:
    """Raise LoadObjectError if each name in the header has the form of the values below it.

    Integers are also names of columns. So a text above other texts counts as a value only if it is one of them, or if
    another name is no integer and has the form of its column, such as a date.
    """
    is_typed = is_certain = has_text = False
    for name in names:
        place, found = root.fields[name], held(name.strip())
        if name in ("", UNNAMED):
            continue
        if place.count > 0 and found & place.types != TEXT:
            is_typed = True
            is_certain |= found & _WHOLE == TEXT
        elif name not in (place.distinct or ()):
            if not place.count or place.types != TEXT:
                return
            has_text = True
    if is_typed and (is_certain or not has_text):
        raise LoadObjectError(NO_HEADER.format(count=len(names)))


NO_HEADER = (
    "its first row has values where the names of columns are expected: set csv.names to the names of its {count}"
    " columns; if that row is a header, set csv.skip_rows to leave it out"
)


def columns_of_json(rows: Iterable[bytes], *, is_strict: bool, skips_bad: bool, deep: bool) -> Place:
    """Return the facts about the fields of JSON objects, one in each row.

    Rows that are no JSON objects are left out with `skips_bad`, or unless `is_strict`. Raises LoadObjectError for
    them, and for objects that are too `deep` for a struct.
    """
    root, number, left_out = Place(), 0, ""
    for block in _blocks(_documents(rows)):
        objects = []
        for document in block:
            try:
                objects.append(_object(document, number, deep=deep))
            except RecursionError as e:
                left_out = left_out or f"row {number} is not JSON (RFC 8259): {e}"
            except ValueError as e:
                left_out = left_out or f"row {number} is not JSON (RFC 8259): {e}{joined_hint(e)}"
            number += 1
        root.add_values(objects)
    if left_out and (not root.fields or (is_strict and not skips_bad)):
        remedy = "" if left_out.endswith(JOINED) else ': correct it, or set `on_bad_rows` to "skip" or "keep"'
        raise LoadObjectError(f"{left_out}{remedy}")
    return root


def _documents(rows: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the documents in lines; without the last one if it has no end, unless there is no other."""
    pending: list[bytes] = []
    depth, found = 0, False
    for row in rows:
        if not pending and row.rstrip(b" \t\r\n,").endswith(b"}") and row.count(b"{") == row.count(b"}"):
            found = True
            yield row
            continue
        pending.append(row)
        depth += depth_of(row)
        if depth <= 0:
            found = True
            yield b"".join(pending)
            pending, depth = [], 0
    if pending and not found:
        yield b"".join(pending)


def _object(document: bytes, number: int, *, deep: bool) -> dict[str, Any]:
    """Return the object in a document. Raises ValueError, and LoadObjectError if it is too `deep`."""
    found = _DECODER.decode(document.decode().lstrip("\ufeff"))
    if not isinstance(found, dict):
        raise ValueError("it is no object")
    if deep and document.count(b"{") > _DEEPEST:
        _refuse_deep(document, number)
    return found


def _constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON value")


_DECODER = json.JSONDecoder(parse_float=_Number, parse_constant=_constant)
_BRACE = re.compile(rb'"(?:[^"\\]|\\.)*+"?|[{}]', re.DOTALL)  # a string without an end is read once


def _refuse_deep(row: bytes, number: int) -> None:
    """Raise LoadObjectError for objects that are so deep that a struct is no useful type."""
    depth = deepest = 0
    for found in _BRACE.finditer(row):
        depth += {b"{": 1, b"}": -1}.get(found.group(), 0)
        deepest = max(deepest, depth)
    if deepest > _DEEPEST:
        raise LoadObjectError(
            f"row {number} has {deepest} levels of nested objects, but types are inferred for at most {_DEEPEST}: set"
            ' `nested` to "string"'
        )
