"""The ClickHouse types of an Avro schema, and the schema with which ClickHouse reads the same bytes.

The notation is that of https://avro.apache.org/docs/1.12.0/specification/. A record of one field has the encoding of
that field, so a schema with such a record around a nullable list describes the same bytes. ClickHouse 26.9 has a type
that holds NULL for the record, and none for the list.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from storeside.sql.quoting import identifier
from storeside.transfer.base.errors import LoadObjectError
from storeside.transfer.base.schema import NOTHING, NUMBER, nullable

_PLAIN = {
    "null": NOTHING, "boolean": "Bool", "int": "Int32", "long": "Int64", "float": "Float32", "double": "Float64",
    "bytes": "String", "string": "String",
}  # fmt: skip
_LOGICAL = {
    ("int", "date"): "Date32",
    ("long", "timestamp-millis"): "DateTime64(3, 'UTC')",
    ("long", "timestamp-micros"): "DateTime64(6, 'UTC')",
    ("long", "timestamp-nanos"): "DateTime64(9, 'UTC')",
    ("long", "local-timestamp-millis"): "DateTime64(3, 'UTC')",
    ("long", "local-timestamp-micros"): "DateTime64(6, 'UTC')",
    ("long", "local-timestamp-nanos"): "DateTime64(9, 'UTC')",
    ("string", "uuid"): "UUID",
}
# ClickHouse 26.9 deduces a number for these.
_UNKNOWN_LOGICAL = [
    ("long", name)
    for name in ("timestamp-nanos", "local-timestamp-millis", "local-timestamp-micros", "local-timestamp-nanos")
]
# Digits of a time of day after the second.
_TIMES = {("int", "time-millis"): 3, ("long", "time-micros"): 6}
# The digits of ClickHouse's decimals by their bytes.
_DIGITS = {4: 9, 8: 18, 16: 38, 32: 76}
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_DEEPEST = 100


@dataclass(frozen=True)
class AvroField:
    """A column of an Avro object.

    `stored` is the type with which ClickHouse reads it, `type` the type of its values. `digits` are those of a time
    of day after the second; -1 for other types. `list` is "list" or "map" if the column is a list or map that may be
    NULL; `inner` has the paths of such lists and maps within it. Text must be UTF-8 if the column `is_text`.
    """

    name: str
    stored: str
    type: str
    digits: int = -1
    list: str = ""
    inner: tuple[tuple[str, ...], ...] = ()
    is_text: bool = False


@dataclass(frozen=True)
class AvroShape:
    """The columns of an Avro schema, or of a schema of messages.

    ClickHouse cannot read an Avro schema if it `is_foreign`: see `sent_schema`.
    """

    fields: tuple[AvroField, ...]
    is_foreign: bool = False


def shape_of(schema: Any) -> AvroShape:
    """Return the columns of a schema. Raises LoadObjectError for a schema that ClickHouse cannot read exactly."""
    return _walked(copy.deepcopy(schema))[0]


def sent_schema(schema: Any, wrapped: frozenset[str]) -> Any:
    """Return a schema of the same encoding that ClickHouse can read; see the module for `wrapped` columns.

    Decimals get the fewest digits for which ClickHouse uses as many bytes as they have.
    """
    _, made = _walked(copy.deepcopy(schema))
    for n, field in enumerate(made["fields"]):
        if field["name"] in wrapped:
            branches = field["type"]
            at = next(i for i, branch in enumerate(branches) if branch != "null")
            record = {"type": "record", "name": f"storeside_{n}", "fields": [{"name": "v", "type": branches[at]}]}
            field["type"] = [*branches[:at], record, *branches[at + 1 :]]
            field.pop("default", None)
    return made


def _walked(schema: Any) -> tuple[AvroShape, Any]:
    """Return the columns of a schema, which is changed so that ClickHouse can read it, and the schema."""
    if not isinstance(schema, dict) or schema.get("type") != "record":
        raise LoadObjectError("its Avro schema is not a record: use a record, whose fields become the columns")
    walk = _Walk()
    if schema.get("name") == "":  # as polars writes it
        schema["name"], walk.is_foreign = "storeside", True
    walk.define(schema, "")
    return AvroShape(tuple(walk.columns(schema)), walk.is_foreign), schema


class _Walk:
    """Walks through a schema, and remembers the types that it names."""

    def __init__(self) -> None:
        self.is_foreign = False
        self._named: dict[str, str] = {}
        self._lists: list[tuple[tuple[str, ...], str]] = []

    def define(self, schema: Mapping[str, Any], space: str) -> tuple[str, str]:
        """Return the full name and the namespace of a named type."""
        name = schema.get("name")
        if not isinstance(name, str) or not name:
            raise LoadObjectError("its Avro schema has a type without a name")
        if "." not in name:
            space = str(schema.get("namespace") or space)
            name = f"{space}.{name}" if space else name
        return name, name.rpartition(".")[0]

    def columns(self, schema: Mapping[str, Any]) -> Iterator[AvroField]:
        """Yield the columns of the outermost record."""
        name, space = self.define(schema, "")
        self._named[name] = ""  # a column of this type would contain itself
        for field in _fields(schema):
            self._lists = []
            yield self._column(field, space)

    def _column(self, field: Mapping[str, Any], space: str) -> AvroField:
        name, kind = field["name"], field["type"]
        stored = self.kind(kind, space, (name,))
        own = [what for path, what in self._lists if path == (name,)]
        inner = tuple(path for path, _ in self._lists if path != (name,))
        digits = _TIMES.get(_plain_logical(kind), -1)
        made = AvroField(name, stored, stored, digits, own[0] if own else "", inner, _is_text(kind))
        if digits < 0:
            return made
        time = f"Time64({digits})"
        return replace(made, type=nullable(time) if stored.startswith("Nullable(") else time)

    def kind(self, schema: Any, space: str, path: tuple[str, ...]) -> str:
        """Return the ClickHouse type of a schema."""
        if len(path) > _DEEPEST:
            raise LoadObjectError("its Avro schema is nested too deeply")
        if isinstance(schema, list):
            return self._union(schema, space, path)
        if isinstance(schema, str):
            return _PLAIN.get(schema) or self._known(schema, space, path)
        if not isinstance(schema, dict) or "type" not in schema:
            raise _refusal(path, f"has an invalid Avro type {schema!r:.80}")
        kind = schema["type"]
        if isinstance(kind, dict | list):
            return self.kind(kind, space, path)
        makers = {"record": self._record, "enum": self._enum, "fixed": self._fixed, "array": self._array,
                  "map": self._map}  # fmt: skip
        if kind in makers:
            return makers[kind](schema, space, path)
        logical = schema.get("logicalType")
        if (kind, logical) == ("bytes", "decimal"):
            return _decimal(schema, path)
        return _LOGICAL.get((kind, str(logical))) or self.kind(kind, space, path)

    def _known(self, name: str, space: str, path: tuple[str, ...]) -> str:
        full = name if "." in name or not space else f"{space}.{name}"
        found = self._named.get(full, self._named.get(name))
        if not found:
            unknown = f"has the type {name!r}, which its Avro schema does not define"
            what = "contains itself" if found == "" else unknown
            raise _refusal(path, f"{what}: ClickHouse has no type for it")
        return found

    def _union(self, branches: list[Any], space: str, path: tuple[str, ...]) -> str:
        others = [branch for branch in branches if branch != "null"]
        if not others:
            return NOTHING
        if len(others) > 1:
            kinds = [self._branch(branch, space, path) for branch in others]
            _check_union(others, kinds, path)
            return f"Variant({', '.join(sorted(kinds))})"
        found = self.kind(others[0], space, path)
        if len(others) == len(branches):
            return found
        if found.startswith("Tuple("):
            return f"Nullable({found})"
        if found.startswith(("Array(", "Map(")):
            self._lists.append((path, "list" if found.startswith("Array(") else "map"))
        return nullable(found)

    def _branch(self, schema: Any, space: str, path: tuple[str, ...]) -> str:
        """Return the type of one of several branches, as ClickHouse deduces it: it compares the names of types."""
        found = self.kind(schema, space, path)
        if _plain_logical(schema) in _UNKNOWN_LOGICAL:
            return "Int64"
        return found.replace(", 'UTC')", ")")

    def _record(self, schema: Mapping[str, Any], space: str, path: tuple[str, ...]) -> str:
        full, space = self.define(schema, space)
        self._named[full] = ""
        fields = [(field["name"], field["type"]) for field in _fields(schema)]
        parts = [(name, self.kind(kind, space, (*path, name))) for name, kind in fields]
        if not parts:
            raise _refusal(path, "is a record without fields: ClickHouse has no type for it")
        self._named[full] = f"Tuple({', '.join(f'{identifier(part)} {kind}' for part, kind in parts)})"
        return self._named[full]

    def _enum(self, schema: Mapping[str, Any], space: str, path: tuple[str, ...]) -> str:
        self._named[self.define(schema, space)[0]] = "String"
        return "String"

    def _array(self, schema: Mapping[str, Any], space: str, path: tuple[str, ...]) -> str:
        return f"Array({self._inner(schema.get('items'), space, (*path, '[]'))})"

    def _map(self, schema: Mapping[str, Any], space: str, path: tuple[str, ...]) -> str:
        return f"Map(String, {self._inner(schema.get('values'), space, (*path, 'value'))})"

    def _inner(self, schema: Any, space: str, path: tuple[str, ...]) -> str:
        if (found := self.kind(schema, space, path)) == NOTHING:
            raise _refusal(path, "has the Avro type null: ClickHouse has no type for it")
        return found

    def _fixed(self, schema: dict[str, Any], space: str, path: tuple[str, ...]) -> str:
        size = schema.get("size")
        if not isinstance(size, int) or size < 1:
            raise _refusal(path, f"has the size {size!r} of an Avro fixed")
        found = f"FixedString({size})"
        if schema.get("logicalType") == "decimal":
            found = _decimal(schema, path)
            digits, scale = schema["precision"], schema.get("scale", 0)
            if size > max(_DIGITS):
                raise _refusal(path, f"is a decimal of {size} bytes: ClickHouse holds at most 32")
            if 10**digits > 1 << 8 * size - 1:
                raise _refusal(
                    path, f"is a decimal of {digits} digits, which {size} bytes cannot hold: correct its schema"
                )
            fewest = max((most for length, most in _DIGITS.items() if length < size), default=0) + 1
            if digits < fewest:  # ClickHouse's library ignores a decimal with more digits than its bytes can hold
                schema["precision"] = fewest
                self.is_foreign = True
                found = f"Decimal({fewest}, {scale})"
        self._named[self.define(schema, space)[0]] = found
        return found


def _fields(schema: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    fields = schema.get("fields")
    if not isinstance(fields, list):
        raise LoadObjectError("its Avro schema has a record without a list of fields")
    names = []
    for field in fields:
        if not isinstance(field, dict) or "type" not in field or not _NAME.fullmatch(str(field.get("name"))):
            raise LoadObjectError(
                f"its Avro schema has the field {field!r:.80}: a field needs a type, and a name of letters, digits"
                " and '_'"
            )
        names.append(field["name"])
    if twice := {name for name in names if names.count(name) > 1}:
        raise LoadObjectError(f"column {min(twice)!r} occurs twice in its Avro schema: give each its own name")
    return fields


def _decimal(schema: Mapping[str, Any], path: tuple[str, ...]) -> str:
    digits, scale = schema.get("precision"), schema.get("scale", 0)
    found = f"is a decimal of precision {digits!r} and scale {scale!r}"
    if not isinstance(digits, int) or not isinstance(scale, int) or not 0 <= scale <= digits or digits < 1:
        raise _refusal(path, f"{found}, which Avro forbids: correct its schema")
    if digits > max(_DIGITS.values()):
        raise _refusal(path, f"{found}: ClickHouse holds at most 76 digits")
    return f"Decimal({digits}, {scale})"


def _check_union(branches: list[Any], kinds: list[str], path: tuple[str, ...]) -> None:
    """Refuse a union whose values ClickHouse cannot tell apart."""
    alike = [kind for kind in kinds if NUMBER.fullmatch(kind)], [kind for kind in kinds if "Date" in kind]
    named = [branch for branch in branches if isinstance(branch, dict)]
    enums = any(branch.get("type") == "enum" for branch in named)
    if any((branch.get("type"), branch.get("logicalType")) == ("fixed", "decimal") for branch in named):
        raise _refusal(
            path, "is an Avro union with a decimal of type fixed, which ClickHouse cannot read: write it as bytes"
        )
    nested = any("Nullable(" in kind or "Variant(" in kind for kind in kinds)
    if len(set(kinds)) < len(kinds) or any(len(some) > 1 for some in alike) or enums or nested:
        raise _refusal(
            path, f"is an Avro union of {', '.join(kinds)}, which ClickHouse cannot tell apart: write one type"
        )


def _bare(schema: Any) -> Any:
    """Return a schema without the union with null around it."""
    if isinstance(schema, list):
        others = [branch for branch in schema if branch != "null"]
        return _bare(others[0]) if len(others) == 1 else None
    is_wrapped = isinstance(schema, dict) and isinstance(schema.get("type"), dict | list)
    return _bare(schema["type"]) if is_wrapped else schema


def _plain_logical(schema: Any) -> tuple[Any, Any]:
    bare = _bare(schema)
    if not isinstance(bare, dict) or not isinstance(bare.get("type"), str):
        return None, None
    return bare["type"], bare.get("logicalType")


def _is_text(schema: Any) -> bool:
    return _bare(schema) == "string" or _plain_logical(schema) == ("string", None)


def _refusal(path: tuple[str, ...], what: str) -> LoadObjectError:
    return LoadObjectError(f"column {'.'.join(path)!r} {what}")
