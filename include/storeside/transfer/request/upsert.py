"""The option for changes of rows: the newest version of a key replaces the others, and a deletion removes the key."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from storeside.sql.quoting import identifier, literal
from storeside.transfer.base.errors import UNKNOWN_OPERATION, TransferInputError
from storeside.transfer.base.schema import INTEGERS, MOMENT, Column, bare, is_nullable

# The hidden column that is 1 for a deletion; see `Upsert.marker`.
DELETED = "_storeside_deleted"
# Operations of Debezium (c, r, u, d) and of DMS (I, U, D), and booleans as text.
_KEEPS = ("c", "r", "u", "i", "false", "0")
_DELETES = ("d", "true", "1")
_TEXT = re.compile(r"(?:Fixed)?String(?:\(\d+\))?|Enum(?:8|16)\(.*\)", re.DOTALL)
_TOKEN = re.compile(
    r"'(?:[^'\\]|\\.)*+'?|(?:`((?:[^`\\]|\\.)*+)`?|\"((?:[^\"\\]|\\.)*+)\"?|(?<![\w.])([^\W\d]\w*))(\s*\()?",
    re.DOTALL,
)
_ESCAPE = re.compile(r"\\(.)", re.DOTALL)


@dataclass(frozen=True)
class Upsert:
    """The rows are changes: of each key, the row with the highest version counts, in whatever order rows arrive.

    Names are those of the table's columns. No row may have a NULL in one of them: its object fails.

    :param key: the columns that identify a row; a new table is sorted by them
    :param version: the column that orders the changes of a key: a whole number, or a date or time. The order in
        which objects arrive is not the order of changes, so it is required
    :param deleted: the column that marks deletions: a boolean, 0 or 1, or an operation, of which ``d`` and ``D``
        delete and ``c``, ``r``, ``u``, ``I`` and ``U`` do not. Without it, no row deletes
    """

    key: tuple[str, ...] = ()
    version: str = ""
    deleted: str = ""

    def __post_init__(self) -> None:
        given = self.key  # a form has one text with commas, JSON has only lists
        texts = given.split(",") if isinstance(given, str) and "{{" not in given else given
        if not isinstance(texts, str):
            object.__setattr__(self, "key", tuple(filter(None, (text.strip() for text in texts))))

    def __bool__(self) -> bool:
        return bool(self.key or self.version or self.deleted)

    @property
    def columns(self) -> tuple[str, ...]:
        """All columns that the option names."""
        return (*self.key, self.version, *((self.deleted,) if self.deleted else ()))

    @property
    def sorting_key(self) -> str:
        """The SQL between the parentheses of ORDER BY."""
        return ", ".join(map(identifier, self.key))

    def check(self, reserved: Collection[str] = ()) -> None:
        """Raise TransferInputError for invalid options; `reserved` are names of columns that a load fills itself."""
        if not self:
            return
        if not self.key:
            raise TransferInputError("upsert: name the columns of the key: key=('id',)")
        if not self.version:
            raise TransferInputError(
                "upsert: name the column that orders the changes of a key, such as version='updated_at': objects may"
                " arrive in any order, so without it an old row could replace a newer one"
            )
        names = self.columns
        if wrong := sorted({name for name in names if names.count(name) > 1 or name in (*reserved, DELETED)}):
            raise TransferInputError(
                f"upsert {', '.join(map(repr, wrong))}: name different columns of the objects, and none that a load"
                " adds"
            )

    def require_of_key(self, option: str, sql: str) -> None:
        """Raise TransferInputError if rows of a key could be in several partitions or shards; `sql` divides rows."""
        if sql and not (columns_of(sql) and columns_of(sql) <= {*self.key}):
            raise TransferInputError(
                f"upsert: {option} {sql} uses other columns than those of the key, {', '.join(self.key)}, so the rows"
                " of a key could be apart, and ClickHouse would not replace them: use columns of the key only"
            )

    def engine(self, given: str) -> str:
        """Return the engine of a new table; `given` is the requested engine, without arguments."""
        plain = given.partition("(")[0]
        name = plain if "Replacing" in plain else plain.replace("MergeTree", "ReplacingMergeTree")
        arguments = [self.version, *((DELETED,) if self.deleted else ())]
        return f"{name}({', '.join(map(identifier, arguments))})"

    def fitted(self, table: str, columns: Sequence[Column]) -> list[Column]:
        """Return the columns of a new table, of which those of the option are never Nullable.

        Raises TransferInputError if a column is missing, or has a type that does not fit.
        """
        kinds = {c.name: c.type for c in columns}
        if DELETED in kinds:
            raise TransferInputError(f"column {DELETED!r} has the name of a hidden column: rename it, or drop it")
        self.require(table, kinds)
        return [Column(c.name, _plain(c.type) if c.name in self.columns else c.type) for c in columns]

    def require(self, table: str, kinds: Mapping[str, str]) -> None:
        """Raise TransferInputError unless a table with columns of these types can have the option's changes."""
        for name in self.columns:
            if name not in kinds:
                raise TransferInputError(
                    f"upsert {name!r}: {table} has no such column: correct the name; columns are"
                    f" {', '.join(sorted(kinds))}"
                )
        kind = bare(kinds[self.version])
        if not (INTEGERS.fullmatch(kind) or MOMENT.fullmatch(kind) or kind in ("Date", "Date32")):
            raise TransferInputError(
                f"upsert: the version {self.version!r} is {kind}, and ClickHouse compares whole numbers, dates and"
                f" times only: give it such a type, table_options.columns={{{self.version!r}: 'DateTime64(6)'}}, or"
                " name another column"
            )
        if self.deleted:
            self.marker(kinds[self.deleted])

    def marker(self, kind: str) -> str:
        """Return the expression that is 1 for a deletion; `kind` is the type of the column `deleted`.

        Raises TransferInputError for a type whose values tell no deletion.
        """
        name, plain = identifier(self.deleted), bare(kind)
        if _TEXT.fullmatch(plain):
            return f"lower(toString({name})) IN ({', '.join(map(literal, _DELETES))})"
        if plain == "Bool" or INTEGERS.fullmatch(plain):
            return f"{name} = 1"
        raise TransferInputError(
            f"upsert: the column {self.deleted!r} is {plain}, and deletions are marked by a boolean, by 0 and 1, or"
            " by an operation: compute such a column"
        )

    def faults(self, values: Mapping[str, str], kinds: Mapping[str, str]) -> list[tuple[str, str]]:
        """Return the conditions for values that refuse an object, each with its reason.

        `values` are the expressions for the table's columns that are read from the object's content, and `kinds` the
        types of the table's columns.
        """
        found = [
            (f"isNull({values[name]})", f"column {name!r} has a NULL, but `upsert` needs a value of it in each row")
            for name in self.columns if name in values
        ]  # fmt: skip
        if self.deleted not in values or (kind := bare(kinds[self.deleted])) == "Bool":
            return found
        value = values[self.deleted]
        if INTEGERS.fullmatch(kind):
            reason = f"column {self.deleted!r} has a number that is neither 0 nor 1, so it marks no deletion"
            return [*found, (f"ifNull({value} NOT IN (0, 1), 0)", reason)]
        # The cast fails with an error that quotes the value, which a reason of `throwIf` cannot: see `errors.plain`.
        known = ", ".join(map(literal, (*_KEEPS, *_DELETES)))
        reason = f"column {self.deleted!r} has {UNKNOWN_OPERATION} "
        text = f"concat({literal(reason)}, toString({value}))"
        cast = f"CAST(if(lower(toString({value})) IN ({known}), '', {text}), 'Nullable(Enum8(\\'\\' = 0))')"
        return [*found, (f"ifNull(toInt8({cast}) < 0, 0)", reason)]


NO_UPSERT = Upsert()


def columns_of(sql: str) -> set[str]:
    """Return the names of columns in the SQL of a key."""
    names = ((m[1] or m[2] or m[3], m[4]) for m in _TOKEN.finditer(sql))
    return {_ESCAPE.sub(r"\1", name) for name, called in names if name and not called}


def _plain(kind: str) -> str:
    return f"LowCardinality({bare(kind)})" if is_nullable(kind) and kind.startswith("LowCard") else _bare(kind)


def _bare(kind: str) -> str:
    return bare(kind) if is_nullable(kind) else kind
