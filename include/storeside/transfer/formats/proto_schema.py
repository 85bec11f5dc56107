"""Reads Protobuf schemas: the columns of a message, with what ClickHouse's own inference leaves out.

ClickHouse 26.9 infers no presence (`optional`, members of a `oneof`), takes bool for UInt8 and bytes for text, and
flattens messages of one field. https://protobuf.dev/reference/protobuf/proto3-spec/ has the syntax. The package
proto-schema-parser is not used, because it skips text that it does not understand instead of refusing it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from operator import itemgetter

from storeside.sql.quoting import identifier, literal
from storeside.transfer.base.errors import TransferInputError
from storeside.transfer.base.schema import Column, nullable

_SCALARS = {
    "double": "Float64", "float": "Float32", "int32": "Int32", "sint32": "Int32", "sfixed32": "Int32",
    "int64": "Int64", "sint64": "Int64", "sfixed64": "Int64", "uint32": "UInt32", "fixed32": "UInt32",
    "uint64": "UInt64", "fixed64": "UInt64", "bool": "Bool", "string": "String", "bytes": "String",
}  # fmt: skip
_WORD = re.compile(
    r"""\s+ | //[^\n]* | /\*(?:[^*]|\*(?!/))*+(?:\*/)?
    | (?P<word> "(?:[^"\\]|\\.)*+"? | '(?:[^'\\]|\\.)*+'? | \.?[A-Za-z_][\w.]* | [-+]?\d[\w.]* | . )""",
    re.VERBOSE | re.DOTALL,
)
_LABELS = ("optional", "required", "repeated")
_SKIPPED = ("option", "reserved", "extensions", "import", "package", "syntax", "extend", "service")
# Fields of a message, also those of messages within it: types may double their number at each level.
_MOST_FIELDS = 10_000
_NOT_READ = "schema: it ends within a message, or is no Protobuf schema: correct it"


@dataclass(frozen=True)
class _Field:
    """A field; `kind` is its type in the schema, and that of the values of a map with keys of type `key`."""

    name: str
    kind: str
    label: str = ""
    key: str = ""


@dataclass
class ProtoSchema:
    """The messages and enums of a schema, by their names with those of the messages around them.

    Raises TransferInputError for a text that it does not understand. ClickHouse must also accept the schema, because
    this reading does not find all mistakes.
    """

    text: str
    messages: dict[str, list[_Field]] = field(default_factory=dict)
    enums: dict[str, dict[str, int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._words = [found["word"] for found in _WORD.finditer(self.text) if found["word"]]
        self._words.reverse()
        self._package = ""
        try:
            while self._words:
                self._statement("", None)
        except TransferInputError:
            raise
        except (IndexError, ValueError, RecursionError):  # no more words, a number that is none, or deep messages
            raise TransferInputError(_NOT_READ) from None

    def columns(self, message: str) -> tuple[list[Column], set[str]]:
        """Return the columns of a message, and the names of those that must be UTF-8.

        Fields that tell an absent value from a default are Nullable, and so are messages.
        """
        if message not in self.messages:
            known = ", ".join(name for name in self.messages if "." not in name) or "none"
            raise TransferInputError(f"schema.message {message!r}: the schema has no such message, but {known}")
        self._left = _MOST_FIELDS
        fields = self.messages[message]
        columns = [Column(f.name, self._type(f, message, (message,))) for f in fields]
        return columns, {f.name for f in fields if (f.kind, f.label, f.key) in _TEXTS}

    def _type(self, f: _Field, scope: str, around: tuple[str, ...]) -> str:
        self._left -= 1
        if self._left < 0:
            raise TransferInputError(f"schema: a message has more than {_MOST_FIELDS} fields: divide it")
        kind = _SCALARS.get(f.kind) or self._named(f.kind, scope, around)
        if f.key:
            return f"Map({_SCALARS.get(f.key, 'String')}, {kind})"
        if f.label == "repeated":
            return f"Array({kind})"
        if kind.startswith("Tuple("):
            return kind if f.label == "required" else f"Nullable({kind})"
        return nullable(kind) if f.label == "optional" else kind

    def _named(self, name: str, scope: str, around: tuple[str, ...]) -> str:
        """Return the type of a message or enum, whose name is looked up from the innermost message outward."""
        parts = scope.split(".")
        scopes = [".".join(parts[:n]) for n in range(len(parts), 0, -1)]
        short = name.removeprefix(".").removeprefix(f"{self._package}.")
        for found in [*(f"{outer}.{name}" for outer in scopes), name, short]:
            if found in self.enums:
                return _enum(self.enums[found])
            if found in self.messages:
                if found in around:
                    raise TransferInputError(
                        f"schema: message {found!r} contains itself: ClickHouse reads no such type"
                    )
                inner = [(f, self._type(f, found, (*around, found))) for f in self.messages[found]]
                if not inner:
                    raise TransferInputError(
                        f"schema: message {found!r} has no fields: remove the fields of its type"
                    )
                return f"Tuple({', '.join(f'{identifier(f.name)} {kind}' for f, kind in inner)})"
        raise TransferInputError(
            f"schema: {name!r} is not in it: write it into the schema, because ClickHouse imports no other file"
        )

    def _statement(self, scope: str, message: list[_Field] | None) -> None:
        word = self._words.pop()
        if word == ";":
            return
        if word == "message":
            name = self._opened(scope)
            self.messages[name] = []
            self._until_closed(name, self.messages[name])
        elif word == "enum":
            self._enum(self._opened(scope))
        elif word == "edition":
            raise TransferInputError("schema: editions are not read: write it in proto3 or proto2")
        elif word in _SKIPPED:
            self._skip(word)
        elif word == "oneof" and message is not None:
            self._opened(scope)
            members: list[_Field] = []
            self._until_closed(scope, members)
            message += [_Field(f.name, f.kind, "optional") for f in members]
        elif message is None:
            raise TransferInputError(_NOT_READ)
        else:
            message.append(self._field(word))

    def _until_closed(self, scope: str, message: list[_Field]) -> None:
        while self._words[-1] != "}":
            self._statement(scope, message)
        self._words.pop()

    def _opened(self, scope: str) -> str:
        """Read a name and the brace after it; return the name with those of the messages around it."""
        name = self._words.pop()
        self._expect("{")
        return f"{scope}.{name}" if scope else name

    def _field(self, word: str) -> _Field:
        label = word if word in _LABELS else ""
        kind, key = (self._words.pop() if label else word), ""
        if kind == "group":
            raise TransferInputError("schema: groups are not read: write a message and a field of its type")
        if kind == "map" and self._words[-1] == "<":
            self._expect("<")
            key = self._words.pop()
            self._expect(",")
            kind = self._words.pop()
            self._expect(">")
        name = self._words.pop()
        self._expect("=")
        self._skip("")
        return _Field(name, kind, label, key)

    def _enum(self, name: str) -> None:
        values = self.enums[name] = {}
        while (word := self._words.pop()) != "}":
            if word in ("option", "reserved"):
                self._skip("")
            elif word != ";":
                self._expect("=")
                number = self._words.pop()
                values[word] = int(number + self._words.pop() if number == "-" else number, 0)
                self._skip("")

    def _skip(self, statement: str) -> None:
        """Skip to the end of a statement, which may have braces."""
        depth = 0
        if statement == "package":
            self._package = self._words[-1]
        while (word := self._words.pop()) != ";" or depth:
            depth += (word == "{") - (word == "}")
            if word == "}" and not depth and statement in ("extend", "service"):
                return

    def _expect(self, wanted: str) -> None:
        if self._words.pop() != wanted:
            raise TransferInputError(_NOT_READ)


_TEXTS = {("string", label, "") for label in ("", "optional", "required")}


def _enum(values: dict[str, int]) -> str:
    """Return the type of an enum. ClickHouse refuses those with two names of one value, or with larger values."""
    size = 8 if all(-(1 << 7) <= number < 1 << 7 for number in values.values()) else 16
    named = sorted(values.items(), key=itemgetter(1))
    return f"Enum{size}({', '.join(f'{literal(name)} = {number}' for name, number in named)})"
