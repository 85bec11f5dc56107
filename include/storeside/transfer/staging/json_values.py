"""Refuses values of JSON that ClickHouse would change: texts in columns of numbers, long numbers, lists with booleans.

ClickHouse 26.9 reads ``""`` as the integer 0, and ``"007"`` and ``"+7"`` as 7, also within lists, maps and structs.
It reads ``1e-400`` as the float 0, and ``9007199254740993`` as the float 9007199254740992. In a ``JSON``
column it reads ``["a", true]`` as a list of two texts. For times see `json_moments`.
"""

from __future__ import annotations

import json
import math
import re
import struct
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from typing import Any

import msgspec

from storeside.sql.quoting import literal
from storeside.transfer.base.errors import LoadObjectError, guessed_time, mixed_list, no_number, not_kept, out_of_range
from storeside.transfer.base.schema import Column, arguments, bare
from storeside.transfer.formats.text_types import held, of
from storeside.transfer.objects.strict_json import depth_of
from storeside.transfer.staging.json_moments import Skips, is_guessed, is_moment, unusual
from storeside.transfer.statements.reading import Reading
from storeside.transfer.types.conversion import elements_of, inexact, parts_of

_BAD = '"(?:"|[+]|-?0[0-9])'
_ANYWHERE = re.compile(_BAD.encode())
_IN_VALUE = rf"(?:^|[\[,])[ \t\r\n]*{_BAD}"
# A text that begins as few times do.
_UNCLEAR = r'[ \t\r\n]*"(?:' + unusual(r"\x{10FFFF}") + ")"
_BEFORE_TEXT = r"[:\[,]"
_UNCLEAR_BYTES = r'[ \t\r\n]*"(?:' + unusual(r"\xff") + ")"
# Without a second way to read a text: many backslashes would make the search slow.
_ESCAPED_BYTES = r'"[^"\\]*+\\.(?:[^"\\]|\\.)*+"[ \t\r]*:'
# A boolean within a list.
_IN_LIST_IS_BOOLEAN = r"[\[,][ \t\r\n]*(?:true|false)[ \t\r\n]*[\],]"
_HAS_BOOLEAN = re.compile(_IN_LIST_IS_BOOLEAN.encode())
_NO_NUMBER = re.compile(r"$|[+]|-?0[0-9]")
# Texts of which a line with such a value has one.
_HINTS = ('""', '"+', '"0', '"-0')
_NUMBER = re.compile(r"U?Int\d+|Float\d+")
# A number beyond the range of a float has an exponent of two or three digits, or many digits.
_FAR = {"Float64": "[eE][-+]?0*[1-9][0-9]{2}|[0-9]{200}", "Float32": "[eE][-+]?0*[1-9][0-9]|[0-9]{30}"}
# Texts of which a line with a number near 0 has one. `position` takes a tenth of the time of `match`.
_FAR_HINTS = ("e-", "E-", "0" * 30)
_DIGITS = "[0-9]*[.]?[0-9]+(?:[eE][-+]?[0-9]+)?"
# The text before a number. Without it, the text of a UUID seems to have an exponent.
_BEFORE = r"[:,\[ \t]-?[0-9.]*"
# A number with more digits than every float returns, in a line, and in the value of a key or within a list.
_LONG = "[0-9.]{16}"
_KEY = r'"[ \t\r]*:'
_ESCAPED = r'"[^"]*\\[^"]*' + _KEY
_LONG_VALUE = r'[ \t\r]*"?(-?[0-9][0-9.]{15,}[eE]?)'
# A name that JSON writes as it is, unless it has an escape.
_PLAIN_NAME = re.compile(r"[A-Za-z0-9_ .-]+")
# Characters that a field of msgspec's structs cannot have in its name.
_NO_FIELD = re.compile(r'[\\"\x00-\x1f]')
_DECIMAL = re.compile(r"-?[0-9]+(?:\.[0-9]*)?", re.ASCII)
# The shapes of numbers in a document after `translate`, which takes a thirtieth of the time of a search by patterns:
# those with many digits, and those that may be beyond the range of a float.
_SHAPES = bytes.maketrans(b"123456789.E+", b"0000000000e-")
_LONG_SHAPE = b"0" * 16
_FAR_SHAPES = {"Float64": (b"e000", b"e-000", b"0" * 200), "Float32": (b"e00", b"e-00", b"0" * 30)}
_FLOAT = "Float64"
_FLOATS, _OF_JSON = of(_FLOAT), of(_FLOAT, "Int64", "UInt64")
# In the place of a key: no name of a column has a zero byte.
_IN_LIST, _ANY_KEY, _OF_JSON_TYPE = "\0list", "\0any", "\0JSON"
# Characters of a number whose digits the engine does not compare.
_SURELY_LOST = 40


def _number_of(kind: str) -> str:
    """Return the type of numbers of a column of them, or of arrays of them; empty for another column."""
    while (kind := bare(kind)).startswith("Array("):
        kind = kind[6:-1]
    return kind if _NUMBER.fullmatch(kind) else ""


def _without_variant(kind: str) -> str:
    """Return the type of lists, maps or structs whose column is read as a variant of it, because it may be NULL."""
    found = arguments(kind) if kind.startswith("Variant(") else []
    return found[0] if len(found) == 1 else kind


def _is_number(kind: str) -> bool:
    return _NUMBER.fullmatch(kind) is not None


def _is_json(kind: str) -> bool:
    return kind == "JSON"


def _texts(value: Any, kind: str, is_one: Callable[[str], bool]) -> Iterator[str]:
    """Yield the texts at the places of a value whose types fulfil a condition."""
    kind = bare(kind)
    if isinstance(value, dict):
        if kind.startswith("Map("):
            kinds = dict.fromkeys(value, parts_of(kind)[1][1])
        else:
            kinds = elements_of(kind) if kind.startswith("Tuple(") else {}
        for name, part in value.items():
            yield from _texts(part, kinds.get(name, ""), is_one)
    elif isinstance(value, list):
        if kind.startswith("Tuple("):
            for part, (_, of_part) in zip(value, parts_of(kind), strict=False):
                yield from _texts(part, of_part, is_one)
        elif kind.startswith("Array("):
            for part in value:
                yield from _texts(part, kind[6:-1], is_one)
    elif isinstance(value, str) and is_one(kind):
        yield value


def _as_float(number: str, kind: str) -> float:
    value = float(number)
    try:
        return float(struct.unpack("f", struct.pack("f", value))[0]) if kind == "Float32" else value
    except OverflowError:
        return math.inf


def _is_out_of_range(number: str, kind: str) -> bool:
    """Return whether a float of this type turns a number into infinity or zero."""
    value = _as_float(number, kind)
    return math.isinf(value) or (not value and re.match("[^eE]*[1-9]", number) is not None)


class _Text(str):
    """The text of a JSON number."""

    __slots__ = ()


def _is_lost(value: Any, kind: str) -> bool:
    """Return whether a column of a type lacks digits of a number in a value that has `_Text` for numbers."""
    kind = bare(kind)
    if isinstance(value, dict):
        if kind == "JSON":
            return any(_is_lost(part, kind) for part in value.values())
        if kind.startswith("Map("):
            return any(_is_lost(part, parts_of(kind)[1][1]) for part in value.values())
        kinds = elements_of(kind) if kind.startswith("Tuple(") else {}
        return any(_is_lost(part, kinds.get(name, "")) for name, part in value.items())
    if isinstance(value, list):
        part = parts_of(kind)[0][1] if kind.startswith("Array(") else kind
        # In a JSON column, ClickHouse 26.9 reads a list of integers as one of floats if a list before it has a float.
        return any(_is_lost(item, _FLOAT if part == "JSON" and isinstance(item, _Text) else part) for item in value)
    if kind == "JSON":
        return isinstance(value, _Text) and _is_inexact(value, _OF_JSON)
    return kind == _FLOAT and isinstance(value, str) and _is_inexact(value, _FLOATS)


def _is_inexact(number: str, types: int) -> bool:
    return _DECIMAL.fullmatch(number) is not None and not held(number) & types & ~of("String")


def _is_mixed(value: Any, kind: str) -> bool:
    """Return whether a list within a JSON column has booleans and texts, also in nested lists."""
    kind = bare(kind)
    if isinstance(value, dict):
        if kind == "JSON":
            return any(_is_mixed(part, kind) for part in value.values())
        if kind.startswith("Map("):
            return any(_is_mixed(part, parts_of(kind)[1][1]) for part in value.values())
        kinds = elements_of(kind) if kind.startswith("Tuple(") else {}
        return any(_is_mixed(part, kinds.get(name, "")) for name, part in value.items())
    if not isinstance(value, list):
        return False
    if kind == "JSON":
        return _has_both(value) or any(_is_mixed(item, kind) for item in value)
    return kind.startswith("Array(") and any(_is_mixed(item, parts_of(kind)[0][1]) for item in value)


def _has_both(items: list[Any]) -> bool:
    """Return whether values at one depth of nested lists are texts and booleans."""
    while items:
        if {bool, str} <= {type(item) for item in items}:
            return True
        items = [part for item in items if isinstance(item, list) for part in item]
    return False


class JsonValues:
    """The values that columns refuse when a load reads them from JSON; those of `reading.kept` also refuse to lose digits.
    """

    def __init__(self, reading: Reading) -> None:
        self.kept = reading.kept
        columns = [replace(c, type=_without_variant(c.type)) for c in reading.columns]
        kinds = {c.name: _number_of(c.type) for c in columns}
        self.names = [name for name, kind in kinds.items() if kind]
        self.structs = [c for c in columns if not kinds[c.name] and _names_in(c, _is_number)]
        self.moments = [c for c in columns if _names_in(c, is_moment)]
        self._plain_moments = [c for c in self.moments if is_moment(bare(c.type))]
        self._documents = [c for c in columns if _names_in(c, _is_json)]
        self._skips = Skips(self._plain_moments, reading.zone)
        self._types = {c.name: c.type for c in columns}
        self.floats = {name: kind for name, kind in kinds.items() if kind in _FAR}
        self._far_shapes = {shape for kind in self.floats.values() for shape in _FAR_SHAPES[kind]}
        self._far = re.compile("|".join(sorted({_FAR[kind] for kind in self.floats.values()})).encode())

    @property
    def condition(self) -> str:
        """The condition that a `line` may have such a value in one of the columns; the worker then decides."""
        found = [self._condition_of_texts] if self.names or self.structs else []
        found += [self._condition_of_floats] if self.floats else []
        found += [self._condition_of_digits] if self.kept else []
        found += [self._condition_of_moments] if self.moments else []
        if self._documents:
            found.append(f"if(position(line, '[') > 0, match(line, {literal(_IN_LIST_IS_BOOLEAN)}), 0)")
        return f"({' OR '.join(found)})" if found else "0"

    @property
    def _condition_of_texts(self) -> str:
        hints = " OR ".join(
            f"position(line, {literal(hint)}) > 0" for hint in _HINTS
        )  # half of multiSearchAny's time
        raws = " OR ".join(
            [f"match(JSONExtractRaw(line, {literal(name)}), {literal(_IN_VALUE)})" for name in self.names]
            + [
                f"match(JSONExtractRaw(line, {literal(c.name)}), {literal(_within(_names_in(c, _is_number), _BAD))})"
                for c in self.structs
            ]
        )
        return f"if({hints}, startsWith(trimLeft(line), '[') OR {raws}, 0)"

    @property
    def _condition_of_floats(self) -> str:
        """The condition that a number may become 0; a check of the load finds infinity."""
        zeros = " OR ".join(
            f"arrayExists(x -> to{kind}OrZero(x) = 0, extractAll(JSONExtractRaw(line, {literal(name)}),"
            f" {literal(_DIGITS)}))"
            for name, kind in self.floats.items()
        )
        is_far = f"match(line, {literal(f'{_BEFORE}(?:{self._far.pattern.decode()})')})"
        hints = " OR ".join(f"position(line, {literal(hint)}) > 0" for hint in _FAR_HINTS)
        return f"if({hints}, if({is_far}, startsWith(trimLeft(line), '[') OR {zeros}, 0), 0)"

    @property
    def _condition_of_digits(self) -> str:
        """The condition that a float may lack digits of a number; JSONExtractRaw itself would round it."""
        lost = [
            f"arrayExists(x -> {fault}, extractAll(line, {literal(pattern)}))"
            for pattern, fault in _searches(self.kept)
        ]
        return f"if(multiMatchAny(line, [{literal(_LONG)}]), {' OR '.join(lost)}, 0)"

    @property
    def _condition_of_moments(self) -> str:
        """The condition that ClickHouse may guess a part of a time, or change it."""
        plain = {c.name for c in self._plain_moments}
        found = []
        if plain:  # the first pattern takes half of the time of one with escapes
            found = [f"multiMatchAny(line, [{literal(_written(plain) + _UNCLEAR)}])"]
            found += [f"position(line, '\\\\') > 0 AND match(line, {literal(_ESCAPED + _UNCLEAR)})"]
        found += [
            f"match(JSONExtractRaw(line, {literal(c.name)}), {literal(_within(_names_in(c, is_moment), _UNCLEAR))})"
            for c in self.moments
            if c.name not in plain
        ]
        return " OR ".join(filter(None, [*found, self._skips.condition]))

    @cached_property
    def _unclear(self) -> re.Pattern[bytes]:
        """The pattern of a document that may have such a time; any text may be one in lists, maps and structs."""
        plain = {c.name for c in self._plain_moments}
        is_plain = len(plain) == len(self.moments)
        before = f"{_written(plain)}|{_ESCAPED_BYTES}" if is_plain else _BEFORE_TEXT
        return re.compile(f"(?:{before}){_UNCLEAR_BYTES}".encode())

    def fault(self, document: bytes) -> str:
        """Return which column has such a value in a document; empty if none has."""
        is_text = (self.names or self.structs) and _ANYWHERE.search(document)
        is_unclear = self.moments and (self._skips.columns or self._unclear.search(document))
        shapes = document.translate(_SHAPES) if self.floats or self.kept else b""
        is_far = any(shape in shapes for shape in self._far_shapes) and self._far.search(document)
        is_long = self.kept and _LONG_SHAPE in shapes
        is_mixed = self._documents and _HAS_BOOLEAN.search(document)
        if not (is_text or is_unclear or is_far or is_long or is_mixed):
            return ""
        try:
            found = self._decoder.decode(document)
        except msgspec.MsgspecError:  # it is no object: the load refuses it
            return ""
        numbers = [*self.names, *(c.name for c in self.structs)]
        if is_text and (name := self._with_text(found, numbers, _is_number, _NO_NUMBER.match)):
            return no_number(name)
        if is_unclear and (reason := self._unclear_time(found)):
            return reason
        if is_mixed:
            for column in self._documents:
                if _is_mixed(self._value(found, column.name), column.type):
                    return mixed_list(column.name)
        return self._named(found) or (self._losing(found) if is_long else "")

    def checked(self, pieces: Iterable[bytes]) -> Iterator[bytes]:
        """Yield pieces of JSON Lines unchanged, after their check. Raises LoadObjectError with row and column."""
        if not (self.names or self.structs or self.moments or self._documents or self.kept):
            yield from pieces
            return
        row, rest = 0, b""
        for piece in pieces:
            *lines, rest = (rest + piece).split(b"\n")
            row, rest = self._check(lines, row, rest)
            yield piece
        self._check([rest], row, b"")

    def _check(self, lines: Sequence[bytes], row: int, rest: bytes) -> tuple[int, bytes]:
        """Check the documents in lines; return the next row, and the beginning of a document with the `rest`."""
        pending: list[bytes] = []
        depth = 0
        for line in lines:
            pending.append(line)
            depth += depth_of(line) if len(pending) > 1 or line.count(b"{") != line.count(b"}") else 0
            if depth > 0:
                continue
            document = b"\n".join(pending)
            if reason := self.fault(document):
                raise LoadObjectError(f"row {row}, {reason}")
            row += bool(document.strip())
            pending, depth = [], 0
        return row, b"\n".join([*pending, rest])

    def _with_text(
        self, found: Any, names: Iterable[str], is_one: Callable[[str], bool], is_wrong: Callable[[str], object]
    ) -> str:
        """Return the first of these columns that has a wrong text at a place of these types; empty if none has."""
        for name in names:
            if b'"' in self._raw(found, name):
                value = self._value(found, name)
                if any(is_wrong(text) for text in _texts(value, self._types[name], is_one)):
                    return name
        return ""

    def _unclear_time(self, found: Any) -> str:
        if name := self._with_text(found, [c.name for c in self.moments], is_moment, is_guessed):
            return guessed_time(name)
        return self._skips.fault(lambda name: self._value(found, name))

    def _named(self, found: Any) -> str:
        for name, kind in self.floats.items():
            raw = self._raw(found, name)
            if any(_is_out_of_range(number, kind) for number in re.findall(_DIGITS, raw.decode("latin-1"))):
                return out_of_range(name, kind)
        return ""

    def _losing(self, found: Any) -> str:
        for column in self.kept:
            raw = self._raw(found, column.name)
            with suppress(ValueError, RecursionError):  # the load refuses it
                value = json.loads(raw or b"null", parse_int=_Text, parse_float=_Text)
                if _is_lost(value, column.type):
                    return not_kept(column.name, _FLOAT)
        return ""

    def _value(self, found: Any, name: str) -> Any:
        """Return the value of a column in a document; None for one that the load refuses."""
        with suppress(ValueError, RecursionError):
            return json.loads(self._raw(found, name) or b"null")
        return None

    def _raw(self, found: Any, name: str) -> bytes:
        return bytes(found.get(name, b"") if isinstance(found, dict) else getattr(found, self._fields[name]))

    @cached_property
    def _fields(self) -> dict[str, str]:
        names = dict.fromkeys([*self.names, *(c.name for c in (*self.structs, *self.moments, *self._documents, *self.kept))])
        return {name: f"f{number}" for number, name in enumerate(names)}

    @cached_property
    def _decoder(self) -> msgspec.json.Decoder[Any]:
        fields: list[Any] = [
            (field, msgspec.Raw, msgspec.field(default=msgspec.Raw(), name=name))
            for name, field in self._fields.items()
        ]
        if any(map(_NO_FIELD.search, self._fields)):
            return msgspec.json.Decoder(dict[str, msgspec.Raw])
        return msgspec.json.Decoder(msgspec.defstruct("Row", fields))


def _searches(columns: Iterable[Column]) -> Iterator[tuple[str, str]]:
    """Yield patterns of long numbers in a line, each with the condition that such an `x` may lose digits."""
    names: set[str] = set()
    for column in columns:
        names |= _names_of_floats(column.name, column.type)
    lost = f"NOT match(x, '[eE]$') AND (length(x) > {_SURELY_LOST} OR {inexact('x')})"
    if _OF_JSON_TYPE in names:
        whole = " AND ".join(f"isNull(CAST(x, 'Nullable({kind})'))" for kind in ("Int64", "UInt64"))
        yield _KEY + _LONG_VALUE, f"{whole} AND {lost}"
        yield rf"[\[,]{_LONG_VALUE}", lost  # an integer, too: see `_is_lost`
    if keys := names - {_OF_JSON_TYPE, _IN_LIST}:
        yield f"(?:{_key(keys)}){_LONG_VALUE}", lost
    if _IN_LIST in names:
        yield rf"[\[,]{_LONG_VALUE}", lost


def _key(names: Collection[str]) -> str:
    """Return the pattern of one of these keys; any name may be written with escapes."""
    return "|".join(filter(None, [_written(names), _ESCAPED]))


def _written(names: Collection[str]) -> str:
    """Return the pattern of one of these keys without escapes, or of any key if a name is not plain."""
    is_plain = all(map(_PLAIN_NAME.fullmatch, names))
    return (f'"(?:{"|".join(map(re.escape, sorted(names)))})' if is_plain else "") + _KEY


def _names_of_floats(name: str, kind: str) -> set[str]:
    """Return the names of the keys of floats in a column, `_IN_LIST` for those in lists, and `_OF_JSON_TYPE`."""
    return _names_of(name, kind, lambda key, core: _OF_JSON_TYPE if core == "JSON" else key if core == _FLOAT else "")


def _names_in(column: Column, is_one: Callable[[str], bool]) -> set[str]:
    """Return the names of the keys of values in a column whose types fulfil a condition; see `_names_of`."""
    return _names_of(column.name, column.type, lambda key, core: key if is_one(core) else "")


def _names_of(name: str, kind: str, key_of: Callable[[str, str], str]) -> set[str]:
    """Return what `key_of` returns for the keys and types of values in a column; the keys of some are `_IN_LIST`."""
    kind = bare(kind)
    if kind.startswith("Tuple("):
        return {found for field, part in elements_of(kind).items() for found in _names_of(field, part, key_of)}
    if kind.startswith("Array("):
        return _names_of(_IN_LIST, kind[6:-1], key_of)
    if kind.startswith("Map("):
        return _names_of(_ANY_KEY, parts_of(kind)[1][1], key_of)
    return {found for found in (key_of(name, kind),) if found}


def _within(names: Collection[str], bad: str) -> str:
    """Return the pattern of a `bad` text at one of these keys in the value of a column."""
    written = "|".join(map(re.escape, sorted({*names} - {_IN_LIST, _ANY_KEY})))
    key = f'"(?:{written})"' if written and _ANY_KEY not in names else '"'
    keyed = {*names} - {_IN_LIST}
    in_list = _IN_LIST in names or any(name.isdecimal() for name in keyed)  # a struct without names is a list
    found = [rf"{key}[ \t\r\n]*:[ \t\r\n]*{bad}"] if keyed else []
    return "|".join([*found, rf"[\[,][ \t\r\n]*{bad}"] if in_list else found)
