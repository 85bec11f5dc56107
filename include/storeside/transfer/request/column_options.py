"""Options that select, rename, cast, mask, compute and filter columns while objects are read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from storeside.transfer.base.errors import TransferInputError
from storeside.transfer.base.schema import bare
from storeside.transfer.request.table_keys import Expression, checked

# The type of masked values.
MASKED = "Nullable(String)"
# Expressions of masked values; `{}` is a text that may be NULL, and NULL stays NULL.
MASKS = {
    "sha256": "lower(hex(SHA256({})))",
    "redact": "if(isNull({}), NULL, '***')",
    "last4": "if(lengthUTF8({0}) < 8, '***', concat('***', substringUTF8({0}, -4)))",
}


@dataclass(frozen=True)
class Columns:
    """Which columns a load reads, and how it changes them. All names but those after ``rename`` and of `compute` are
    the objects' names.

    The load masks and casts the values first. Expressions then see these values. A form may contain the first five
    options; only code can contain an `Expression`.

    :param select: the only columns that are loaded; the load ignores any other column of the objects
    :param drop: columns that are not loaded
    :param rename: columns of the table by columns of the objects, such as ``{"ts": "pickup_time"}``
    :param cast: ClickHouse types by column; a value that the type cannot hold fails its object
    :param mask: ``sha256``, ``redact`` or ``last4`` by column; docs/transfer/columns.md states their limits
    :param compute: expressions by column of the table, such as ``{"day": Expression("toDate(pickup_time)")}``
    :param where: an expression that is true for the rows to load
    """

    select: tuple[str, ...] = ()
    drop: tuple[str, ...] = ()
    rename: Mapping[str, str] = field(default_factory=dict)
    cast: Mapping[str, str] = field(default_factory=dict)
    mask: Mapping[str, str] = field(default_factory=dict)
    compute: Mapping[str, Expression] = field(default_factory=dict)
    where: Expression | None = None

    def __post_init__(self) -> None:
        for name in ("select", "drop", "rename", "mask"):  # a form has one text such as "a, b" or "a=b, c=d"
            given = getattr(self, name)
            if isinstance(given, str) and "{{" not in given:
                parts = [part.strip() for part in given.split(",") if part.strip()]
                given = tuple(parts) if name in ("select", "drop") else _pairs(name, parts)
            if isinstance(given, list):  # JSON has only lists
                given = tuple(given)
            object.__setattr__(self, name, given)

    def __bool__(self) -> bool:
        """Whether any option is set."""
        return self != Columns()

    @property
    def expressions(self) -> dict[str, Expression]:
        """All expressions, by the options that contain them."""
        named = {f"compute {name!r}": e for name, e in self.compute.items()}
        return named if self.where is None else {**named, "where": self.where}

    def reads(self, name: str) -> bool:
        """Return whether the table gets the values of a column of the objects."""
        return name not in self.drop and (not self.select or name in self.select)

    def target(self, name: str) -> str | None:
        """Return the table's column for a column of the objects; None if its values are not loaded."""
        target = self.rename.get(name, name)
        return target if self.reads(name) and target not in self.compute else None

    def source(self, target: str) -> str | None:
        """Return the objects' column for a column of the table; None if its values do not come from one."""
        renamed = next((name for name, other in self.rename.items() if other == target), None)
        name = renamed or (target if target not in self.rename else None)
        return name if name is not None and self.target(name) == target else None

    def made(self, name: str, kind: str) -> str:
        """Return the type of a column's values after its mask or cast; `kind` without them."""
        return MASKED if name in self.mask else self.cast.get(name, kind)

    def check(self, taken: Iterable[str] = ()) -> None:
        """Raise TransferInputError for options that contradict each other; `taken` are names of other columns."""
        for name in ("select", "drop", "rename", "mask"):
            if isinstance(text := getattr(self, name), str):
                raise TransferInputError(f"{name} {text!r}: write names separated by commas")
        for option, expression in self.expressions.items():
            if not isinstance(expression, Expression):
                raise TransferInputError(f'{option}: write the SQL in code, as Expression("…")')
            checked(option, expression)
        self._check_names(taken)

    def _check_names(self, taken: Iterable[str]) -> None:
        for name, kind in self.mask.items():
            if kind not in MASKS:
                raise TransferInputError(f"mask {name!r}: {kind!r} is not a mask: choose one of {', '.join(MASKS)}")
        if both := {*self.select} & {*self.drop}:
            raise TransferInputError(f"columns {_listed(both)}: select or drop them, not both")
        if both := {*self.mask} & {*self.cast, *self.compute}:
            raise TransferInputError(f"columns {_listed(both)}: a masked column can be neither cast nor computed")
        if unread := [name for name in self.rename if not self.reads(name)]:
            raise TransferInputError(f"rename {_listed(unread)}: these columns are not loaded: select them")
        targets = [*self.rename.values(), *self.compute, *(n for n in self.select if n not in self.rename)]
        twice = {name for name in targets if targets.count(name) > 1 and not self._replaces(name, targets)}
        if twice := twice | ({*taken} & {*targets, *self.mask, *self.cast}):
            raise TransferInputError(f"columns {_listed(twice)}: each column of the table needs one source")
        if not all((*targets, *self.rename, *self.mask, *self.cast)):
            raise TransferInputError("columns: write a name for each column")

    def _replaces(self, name: str, targets: Sequence[str]) -> bool:
        """Return whether a computed column only replaces the selected column of its name."""
        return name in self.compute and name in self.select and targets.count(name) == 2

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Columns:
        """Create options from the values of `dataclasses.asdict`, also after a round trip through JSON."""
        where = values.get("where")
        compute = {name: Expression(**e) for name, e in values.get("compute", {}).items()}
        return cls(**{**values, "compute": compute, "where": Expression(**where) if where else None})


def masked(value: str, mask: str, kind: str) -> str:
    """Return the expression that masks a value of the type `kind`."""
    text = f"CAST({value if bare(kind) == 'String' else f'toString({value})'}, {MASKED!r})"
    text = f"CAST(toValidUTF8({text}), {MASKED!r})" if mask == "last4" else text
    return f"CAST({MASKS[mask].format(text)}, {MASKED!r})"


def _pairs(option: str, texts: Iterable[str]) -> dict[str, str]:
    """Return a mapping for texts such as ``a=b``. Raises TransferInputError."""
    found = {}
    for text in texts:
        name, _, value = (part.strip() for part in text.partition("="))
        if not name or not value:
            raise TransferInputError(f"{option} {text!r}: write column={'kind' if option == 'mask' else 'new name'}")
        found[name] = value
    return found


def _listed(names: Iterable[str]) -> str:
    return ", ".join(repr(name) for name in sorted(names))
