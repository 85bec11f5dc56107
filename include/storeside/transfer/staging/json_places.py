"""Where the values of columns are in a document of JSON: by their types, and as patterns of its text."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import suppress
from functools import cached_property
from typing import Any

import msgspec

from storeside.transfer.base.schema import Column, bare
from storeside.transfer.types.conversion import elements_of, parts_of

# After the name in a key.
KEY_END = r'"[ \t\r]*:'
# A key that is written with escapes. The worker's pattern begins at the last escape: one that begins at the key would
# search a text of many escapes once from each of its quotes.
ESCAPED_KEY = r'"[^"]*\\[^"]*' + KEY_END
ESCAPED_KEY_BYTES = r'\\.[^"\\]*+' + KEY_END
# In the place of a key: no name of a column has a zero byte.
IN_LIST, ANY_KEY = "\0list", "\0any"
# A name that JSON writes as it is, unless it has an escape.
_PLAIN_NAME = re.compile(r"[A-Za-z0-9_ .-]+")
# Characters that a field of msgspec's structs cannot have in its name.
_NO_FIELD = re.compile(r'[\\"\x00-\x1f]')


class Documents:
    """Reads the values of some columns in documents."""

    def __init__(self, names: Iterable[str]) -> None:
        self._fields = {name: f"f{number}" for number, name in enumerate(dict.fromkeys(names))}

    def row(self, document: bytes) -> Row | None:
        """Return the row in a document; None if it is no object, which the load refuses."""
        with suppress(msgspec.MsgspecError):
            return Row(self._decoder.decode(document), self._fields)
        return None

    @cached_property
    def _decoder(self) -> msgspec.json.Decoder[Any]:
        if any(map(_NO_FIELD.search, self._fields)):
            return msgspec.json.Decoder(dict[str, msgspec.Raw])
        fields: list[Any] = [
            (field, msgspec.Raw, msgspec.field(default=msgspec.Raw(), name=name))
            for name, field in self._fields.items()
        ]
        return msgspec.json.Decoder(msgspec.defstruct("Row", fields))


class Row:
    """The columns of one document."""

    def __init__(self, found: Any, fields: dict[str, str]) -> None:
        self._found, self._fields = found, fields

    def raw(self, name: str) -> bytes:
        """Return the text of a column's value; empty if the document has none."""
        found = self._found
        return bytes(found.get(name, b"") if isinstance(found, dict) else getattr(found, self._fields[name]))

    def value(self, name: str, **options: Any) -> Any:
        """Return the value of a column; `options` are those of `json.loads`. None for one that the load refuses."""
        with suppress(ValueError, RecursionError):
            return json.loads(self.raw(name) or b"null", **options)
        return None


def parts(value: Any, kind: str) -> Iterator[tuple[Any, str]]:
    """Yield the parts of lists, maps and structs with their types; a value of type `JSON` is one part."""
    kind = bare(kind)
    if kind.startswith("Array(") and isinstance(value, list):
        for part in value:
            yield from parts(part, kind[6:-1])
    elif kind.startswith("Map(") and isinstance(value, dict):
        for part in value.values():
            yield from parts(part, parts_of(kind)[1][1])
    elif kind.startswith("Tuple(") and isinstance(value, dict):
        kinds = elements_of(kind)
        for name, part in value.items():
            yield from parts(part, kinds.get(name, ""))
    elif kind.startswith("Tuple(") and isinstance(value, list):
        for part, (_, of_part) in zip(value, parts_of(kind), strict=False):
            yield from parts(part, of_part)
    else:
        yield value, kind


def names_in(column: Column, is_one: Callable[[str], bool]) -> set[str]:
    """Return the names of the keys of values in a column whose types fulfil a condition; see `names_of`."""
    return names_of(column.name, column.type, lambda key, core: key if is_one(core) else "")


def names_of(name: str, kind: str, keyed_by: Callable[[str, str], str]) -> set[str]:
    """Return what `keyed_by` returns for the keys and types of values in a column; the keys of some are `IN_LIST`."""
    kind = bare(kind)
    if kind.startswith("Tuple("):
        return {found for field, part in elements_of(kind).items() for found in names_of(field, part, keyed_by)}
    if kind.startswith("Array("):
        return names_of(IN_LIST, kind[6:-1], keyed_by)
    if kind.startswith("Map("):
        return names_of(ANY_KEY, parts_of(kind)[1][1], keyed_by)
    return {found for found in (keyed_by(name, kind),) if found}


def within(names: Collection[str], bad: str) -> str:
    """Return the pattern of a `bad` text at one of these keys in the value of a column."""
    written = "|".join(map(re.escape, sorted({*names} - {IN_LIST, ANY_KEY})))
    key = f'"(?:{written})"' if written and ANY_KEY not in names else '"'
    keyed = {*names} - {IN_LIST}
    in_list = IN_LIST in names or any(name.isdecimal() for name in keyed)  # a struct without names is a list
    found = [rf"{key}[ \t\r\n]*:[ \t\r\n]*{bad}"] if keyed else []
    return "|".join([*found, rf"[\[,][ \t\r\n]*{bad}"] if in_list else found)


def key_of(names: Collection[str]) -> str:
    """Return the pattern of one of these keys; any name may be written with escapes."""
    return "|".join(filter(None, [written_key(names), ESCAPED_KEY]))


def written_key(names: Collection[str]) -> str:
    """Return the pattern of one of these keys without escapes, or of any key if a name is not plain."""
    is_plain = all(map(_PLAIN_NAME.fullmatch, names))
    return (f'"(?:{"|".join(map(re.escape, sorted(names)))})' if is_plain else "") + KEY_END
