"""Checks the options of `Columns` against sampled objects and the table, and finds the columns of the table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from storeside.transfer.base.errors import TransferInputError
from storeside.transfer.base.schema import Column, bare, is_nested, nullable, resolved, with_overrides
from storeside.transfer.request.column_options import MASKED
from storeside.transfer.request.options import REST, SYSTEM_COLUMNS
from storeside.transfer.state.plan import Plan
from storeside.transfer.statements.projection import TEXT, Readings
from storeside.transfer.tables.table import Destination
from storeside.transfer.types.partitions import deduced, shown_by_keys


def of_new_table(
    readings: Readings, sampled: Sequence[Column], in_keys: Sequence[Column], given: Mapping[str, str], *, text: bool
) -> list[Column]:
    """Return the columns of a new table for the columns of sampled objects; `given` are types that a user chose.

    `text` means that the objects state no types. Raises TransferInputError.
    """
    options = readings.columns
    check_names(readings, sampled, None)
    inferred = [
        Column(options.target(c.name) or "", options.made(c.name, c.type))
        for c in sampled if options.target(c.name) is not None
    ]  # fmt: skip
    if twice := {name for name, times in Counter(c.name for c in inferred).items() if times > 1}:
        raise TransferInputError(f"columns {', '.join(sorted(twice))}: two columns of the objects get this name")
    loaded = with_overrides([*inferred, *in_keys], {n: k for n, k in given.items() if n not in options.compute})
    kinds = {options.source(c.name) or c.name: c.type for c in loaded}
    made = _computed(readings, _scope(readings, sampled, kinds, in_keys, text=text))
    return [*loaded, *(Column(c.name, given.get(c.name, c.type)) for c in made)]


def missing(
    readings: Readings, sampled: Sequence[Column], in_keys: Sequence[Column], destination: Destination, *, text: bool
) -> list[Column]:
    """Return the computed, cast and masked columns that a table lacks. Raises TransferInputError."""
    options = readings.columns
    check_names(readings, sampled, destination)
    kinds = {
        name: kind for c in destination.columns
        if (name := options.source(c.name)) is not None and (kind := c.type)
    }  # fmt: skip
    names = {c.name for c in sampled}
    scope = _scope(
        readings, [*sampled, *(Column(n, TEXT) for n in kinds if n not in names)], kinds, in_keys, text=text
    )
    changed = [
        Column(options.target(name) or "", options.made(name, "")) for name in {**options.mask, **options.cast}
        if name in names and options.target(name) is not None
    ]  # fmt: skip
    return [c for c in (*changed, *_computed(readings, scope)) if destination.type_of(c.name) is None]


def check_table(readings: Readings, destination: Destination) -> None:
    """Raise TransferInputError if a table needs a value that no column has, or cannot hold masked values."""
    options = readings.columns
    for column in destination.columns:
        name = options.source(column.name)
        if name in options.mask and bare(column.type) != "String":
            raise TransferInputError(
                f"column {column.name!r} of {destination.name} is {column.type}, which holds no masked values:"
                f" make it {MASKED}"
            )
        is_ours = column.name in (*SYSTEM_COLUMNS, REST, *destination.defaults, *destination.partitions)
        is_empty = is_nested(column.type) or nullable(column.type) == column.type
        if name is None and column.name not in options.compute and not (is_ours or is_empty):
            raise TransferInputError(
                f"column {column.name!r} of {destination.name} is {column.type} and needs a value: load it, compute"
                " it, make it Nullable, or give it a default"
            )


def check_names(readings: Readings, sampled: Iterable[Column], destination: Destination | None) -> None:
    """Raise TransferInputError for names that are neither in a sampled object nor in the table.

    A dropped column may be missing if the table exists, because later objects may lack it.
    """
    options = readings.columns
    known = {c.name for c in sampled}
    if destination is not None:
        known |= {name for c in destination.columns if (name := options.source(c.name)) is not None} | {*options.drop}
    for option in ("select", "drop", "rename", "cast", "mask"):
        for name in getattr(options, option):
            if name not in known:
                raise TransferInputError(
                    f"{option} {name!r}: no sampled object has this column: correct the name, or sample more objects;"
                    f" columns are {', '.join(sorted(known))}"
                )


def of_keys(plan: Plan, names: Sequence[str], given: Mapping[str, str]) -> list[Column]:
    """Return the columns whose values are in keys, with the types that are `given` or that the planned keys show."""
    found = deduced(names, plan.facts(shown_by_keys(names)))
    return [Column(c.name, given.get(c.name, c.type)) for c in found]


def _scope(
    readings: Readings,
    sampled: Iterable[Column],
    kinds: Mapping[str, str],
    in_keys: Sequence[Column],
    *,
    text: bool,
) -> list[Column]:
    """Return the columns that expressions see; `kinds` are the types of those that the table has."""
    options = readings.columns
    own = {c.name: TEXT if text else resolved(c.type) for c in sampled}
    seen = {name: options.made(name, kinds.get(name, kind)) for name, kind in own.items()}
    return [*(Column(name, kind) for name, kind in seen.items()), *in_keys]


def _computed(readings: Readings, scope: Sequence[Column]) -> list[Column]:
    """Return the computed columns with their types. Raises TransferInputError."""
    types = readings.types(scope)
    return [Column(name, types[f"compute {name!r}"]) for name in readings.columns.compute]
