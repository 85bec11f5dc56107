"""How objects are read into a table when the request has options for their columns.

The reader of each format reads the objects as if the table had the objects' columns: with their masks and casts, and
with the conversions and checks of any load. The statement then computes the table's columns from them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING

from clickhouse_connect.driver.exceptions import DatabaseError

from storeside.sql.quoting import identifier, literal
from storeside.transfer.base.errors import LoadObjectError, lacks
from storeside.transfer.base.schema import Column, bare, nullable, resolved, structure
from storeside.transfer.formats.avro_schema import AvroShape
from storeside.transfer.formats.parquet import Nested, Shape
from storeside.transfer.request.column_options import MASKED, Columns, masked
from storeside.transfer.request.object_format import Format
from storeside.transfer.request.options import REST
from storeside.transfer.request.upsert import NO_UPSERT, Upsert
from storeside.transfer.statements.avro_reading import avro_reading
from storeside.transfer.statements.composing import text_reading, typed_reading, whole_value
from storeside.transfer.statements.reading import Check, Projection, Reading
from storeside.transfer.tables.table import Destination
from storeside.transfer.types import computing
from storeside.transfer.types.conversion import converted, fits

if TYPE_CHECKING:
    from clickhouse_connect.driver.client import Client

# The type of text that an expression uses and the table lacks.
TEXT = "Nullable(String)"


class Readings:
    """How objects are read into a table; `columns` and `upsert` are options of the request."""

    def __init__(self, client: Client, columns: Columns, upsert: Upsert = NO_UPSERT) -> None:
        self.client = client
        self.upsert = upsert
        self.columns = replace(columns, cast=_as_stored(client, columns.cast)) if columns.cast else columns
        self._types: dict[tuple[Column, ...], dict[str, str]] = {}

    @cached_property
    def used(self) -> frozenset[str]:
        """The names that expressions use. Raises TransferInputError for expressions that are not allowed."""
        return computing.used(self.client, self.columns.expressions)

    def types(self, read: Sequence[Column]) -> dict[str, str]:
        """Return the types of the expressions over these columns. Raises TransferInputError."""
        scope = tuple(c for c in read if c.name in self.used)
        if scope not in self._types:
            self._types[scope] = computing.types(self.client, scope, self.columns.expressions)
        return self._types[scope]

    def stored_as(self, column: Column, destination: Destination) -> str | None:
        """Return the type that holds the values of an object's column; None if the table has none for it."""
        target = self.columns.target(column.name)
        kind = None if target is None else destination.type_of(target)
        if kind is None and column.name in {*self.used, *self.columns.mask}:
            kind = column.type
        return None if kind is None or column.name in self.columns.mask else self.columns.made(column.name, kind)

    def known(self, found: Iterable[Column], destination: Destination) -> list[Column]:
        """Return the columns of objects that are loaded, without those that only expressions use."""
        return [
            c for c in found
            if (target := self.columns.target(c.name)) is not None
            and (destination.type_of(target) is not None or c.name not in self.used)
        ]  # fmt: skip

    def stores_nulls(self, name: str, destination: Destination) -> str | None:
        """Return the table's column that has the NULLs of an object's column; None if there is none."""
        target = self.columns.target(name)
        kind = None if target is None else destination.type_of(target)
        changed = kind is not None and self.columns.made(name, kind) != kind
        return None if kind is None or (changed and self.columns.where) else target

    def text(
        self,
        form: Format,
        destination: Destination,
        rest: Sequence[Column] = (),
        *,
        empty_nulls: bool = False,
        keeps_codes: bool | None = None,
        exact: bool = False,
        names_once: bool = False,
        plain: bool = False,
    ) -> Reading:
        """Return how to read text objects; see `text_reading`."""
        seen = self._seen(destination)
        if not self.columns:
            reading = text_reading(
                form, seen, rest, empty_nulls=empty_nulls, keeps_codes=keeps_codes, exact=exact,
                names_once=names_once, plain=plain,
            )  # fmt: skip
            return replace(reading, checks=(*self._faults(reading.expressions, destination), *reading.checks))
        loaded = self._loaded(seen)
        extra = self.used - {*loaded, *destination.partitions}
        if form.csv.names:
            extra &= set(form.csv.names)
        read = [Column(name, self.columns.made(name, c.type)) for name, c in loaded.items()]
        read += [Column(name, self.columns.made(name, TEXT)) for name in sorted(extra)]
        names = {c.name for c in (*read, *rest)}
        others = form.csv.names if self.columns.select else self.columns.drop
        ignored = [
            Column(name, TEXT) for name in dict.fromkeys(others)
            if name not in names and (not form.csv.names or name in form.csv.names)
        ]  # fmt: skip
        reading = text_reading(
            form, _as(seen, read, self._plain(loaded)), rest, ignored, empty_nulls=empty_nulls,
            keeps_codes=keeps_codes, exact=exact, names_once=names_once, plain=plain,
        )  # fmt: skip
        kinds = {c.name: c.type for c in read}
        return self._projected(reading, destination, kinds, dict.fromkeys(self.columns.mask, TEXT))

    def typed(
        self,
        form: Format,
        destination: Destination,
        shape: Shape,
        nulls: frozenset[Nested] = frozenset(),
        *,
        keep_rest: bool,
        refuse_nulls: bool,
    ) -> Reading:
        """Return how to read Parquet, ORC or Arrow objects; see `typed_reading`."""

        def read(seen: Destination, names: Iterable[str]) -> Reading:
            some = shape if not self.columns else _only(shape, set(names))
            of_them = frozenset(nested for nested in nulls if nested.path[0] in names)
            return typed_reading(form, seen, some, of_them, keep_rest=keep_rest, refuse_nulls=refuse_nulls)

        return self._stated({c.name: c.type for c in shape.columns}, destination, read)

    def avro(
        self, form: Format, destination: Destination, shape: AvroShape, *, keep_rest: bool, refuse_nulls: bool
    ) -> Reading:
        """Return how to read Avro objects; see `avro_reading`."""

        def read(seen: Destination, names: Iterable[str]) -> Reading:
            some = replace(shape, fields=tuple(field for field in shape.fields if field.name in names))
            return avro_reading(form, seen, some, keep_rest=keep_rest, refuse_nulls=refuse_nulls)

        return self._stated({field.name: field.type for field in shape.fields}, destination, read)

    def _stated(
        self,
        found: Mapping[str, str],
        destination: Destination,
        read: Callable[[Destination, Iterable[str]], Reading],
    ) -> Reading:
        """Return how to read objects that state their columns, `found`, with types."""
        seen = self._seen(destination)
        if not self.columns:
            reading = read(seen, found)
            return replace(reading, checks=(*self._faults(reading.expressions, destination), *reading.checks))
        loaded = self._loaded(seen)
        kinds: dict[str, str] = {name: self.columns.made(name, c.type) for name, c in loaded.items()}
        own = {name: resolved(kind) for name, kind in found.items() if self.needs(name)}
        twice = [name for name in own if name not in loaded and self.columns.target(name) in _targets(loaded)]
        if twice:
            raise LoadObjectError(
                f"column {twice[0]!r} and another both become {self.columns.target(twice[0])!r}: drop one of them"
            )
        casts = {}
        for name, kind in own.items():
            if name in self.columns.mask:
                kinds[name] = kind
            elif (cast := self.columns.cast.get(name)) is not None:
                kinds[name] = cast if fits(kind, cast) else kind
                casts[name] = cast
            elif name in self.used and name not in loaded:
                kinds[name] = kind
        if not own:
            raise LoadObjectError(
                "it has none of the columns that the load reads: correct `columns`, or leave it out"
            )
        reading = read(_as(seen, [Column(n, k) for n, k in kinds.items()], self._plain(loaded)), own)
        expressions, checks = dict(reading.expressions), list(reading.checks)
        for name, cast in casts.items():
            if kinds[name] != cast:
                expressions[name], more = _cast(name, expressions[name], kinds[name], cast)
                checks += more
                kinds[name] = cast
        kinds = {name: kind for name, kind in kinds.items() if name in own}
        reading = replace(reading, expressions=tuple(expressions.items()), checks=tuple(checks))
        return self._projected(reading, destination, kinds, own)

    def _projected(
        self, reading: Reading, destination: Destination, kinds: dict[str, str], own: Mapping[str, str]
    ) -> Reading:
        """Return a reading of columns of the types `kinds` with the masks and the values of the table's columns.

        `own` are the types of values before their masks.
        """
        options = self.columns
        expressions = [
            (name, masked(value, options.mask[name], own[name]) if name in options.mask else value)
            for name, value in reading.expressions
        ]
        kinds |= {name: MASKED for name in options.mask if name in kinds}
        unknown = [
            name for name in kinds
            if (target := options.target(name)) and destination.type_of(target) is None and name not in self.used
        ]  # fmt: skip
        if unknown:
            raise lacks(destination.name, unknown)
        scope = [*(Column(name, kind) for name, kind in kinds.items()), *reading.partitions]
        types = self.types(scope)
        where = f"ifNull(({options.where.text}), 0)" if options.where else ""
        values: list[tuple[str, str]] = []
        checks: list[Check] = []
        stored: list[tuple[str, str]] = []
        for column in destination.columns:
            if (computed := options.compute.get(column.name)) is not None:
                value, kind = f"({computed.text})", types[f"compute {column.name!r}"]
            elif (name := options.source(column.name)) is not None and name in kinds:
                value, kind = identifier(name), kinds[name]
            else:
                continue
            stored.append((column.name, value))
            made, more = _cast(column.name, value, kind, column.type)
            if where and made != identifier(options.source(column.name) or ""):
                made = f"if({where}, {made}, defaultValueOfTypeName({literal(column.type)}))"
            values.append((column.name, made))
            checks += more
        if any(name == REST for name, _ in expressions):
            values.append((REST, identifier(REST)))
        settings = {"prefer_column_name_to_alias": 1}
        if options.select:
            settings["input_format_skip_unknown_fields"] = 1
        if options.mask:  # the query log has ClickHouse's own errors, which quote values
            settings["log_queries"] = 0
        return replace(
            reading, expressions=tuple(expressions), settings=(*reading.settings, *settings.items()),
            projection=Projection(tuple(values), (*self._faults(stored, destination), *checks), where),
            skips=bool(options.select),
            hides=bool(options.mask), defaults=tuple((options.target(n) or n, made) for n, made in reading.defaults),
        )  # fmt: skip

    def _seen(self, destination: Destination) -> Destination:
        """Return a table as if the columns of `upsert` held NULL, so that a check finds it and not a parser."""
        names = {*self.upsert.columns} - {*destination.partitions}
        columns = (replace(c, type=nullable(c.type)) if c.name in names else c for c in destination.columns)
        return replace(destination, columns=tuple(columns)) if self.upsert else destination

    def _faults(self, expressions: Iterable[tuple[str, str]], destination: Destination) -> list[Check]:
        """Return the checks of the columns of `upsert`. Raises LoadObjectError if an object lacks one of them."""
        if not self.upsert:
            return []
        values = dict(expressions)
        for name in self.upsert.columns:
            if name not in (*values, *destination.partitions):
                raise LoadObjectError(f"it lacks column {name!r}, which `upsert` needs in each row")
        kinds = {c.name: c.type for c in destination.columns}
        return [Check(fault, reason) for fault, reason in self.upsert.faults(values, kinds)]

    def _loaded(self, destination: Destination) -> dict[str, Column]:
        """Return the columns of a table whose values are in the objects, by the objects' names."""
        found: dict[str, Column] = {}
        for column in destination.columns:
            if column.name not in destination.partitions and not destination.is_own(column):
                name = self.columns.source(column.name)
                found |= {} if name is None else {name: column}
        return found

    def _plain(self, loaded: Mapping[str, Column]) -> dict[str, Column]:
        """Return those of the columns that are neither masked nor cast."""
        return {name: c for name, c in loaded.items() if name not in {*self.columns.mask, *self.columns.cast}}

    def needs(self, name: str) -> bool:
        """Return whether the load reads a column of the objects."""
        return self.columns.target(name) is not None or name in self.used


def _as_stored(client: Client, casts: Mapping[str, str]) -> dict[str, str]:
    """Return types as ClickHouse writes them, which the checks of values need: Decimal(9, 2) for Decimal(9,2)."""
    given = structure(Column(name, kind) for name, kind in casts.items())
    settings = {"allow_suspicious_low_cardinality_types": 1}
    try:
        rows = client.query(f"DESCRIBE TABLE null({literal(given)})", settings=settings).result_rows
    except DatabaseError:  # the statement that uses the type states its fault
        return dict(casts)
    return {row[0]: row[1] for row in rows}


def _targets(loaded: Mapping[str, Column]) -> set[str]:
    return {column.name for column in loaded.values()}


def _as(destination: Destination, columns: Sequence[Column], plain: Mapping[str, Column]) -> Destination:
    """Return a table as if it had these columns of objects; `plain` are those that it stores as they are."""
    partitions = [column for column in destination.columns if column.name in destination.partitions]
    defaults = {
        name: destination.defaults[c.name] for name, c in plain.items() if c.name in destination.defaults
    }  # fmt: skip
    inferred = frozenset(name for name, c in plain.items() if c.name in destination.inferred)
    # the columns have the names of the objects' own, so the load adds none of them
    return replace(
        destination, columns=(*columns, *partitions), defaults=defaults, inferred=inferred, own=()
    )  # fmt: skip


def _only(shape: Shape, names: set[str]) -> Shape:
    """Return a shape with these columns alone."""
    kept = [(c, k) for c, k in zip(shape.columns, shape.keeping, strict=True) if c.name in names]
    return replace(
        shape,
        columns=tuple(c for c, _ in kept),
        keeping=tuple(k for _, k in kept),
        nested=tuple(nested for nested in shape.nested if nested.path[0] in names),
        flat=tuple((name, leaf) for name, leaf in shape.flat if name in names),
        texts=tuple(name for name in shape.texts if name in names),
    )


def _cast(name: str, value: str, source: str, target: str) -> tuple[str, list[Check]]:
    """Return the expression that converts a value without loss, and its checks; any two types may be given."""
    made = converted(value, source, target)
    checks = whole_value(name, value, source, target)
    if not fits(source, target) and bare(source) != "String":
        back = f"CAST({converted(value, source, nullable(target))}, {literal(nullable(source))})"
        lost = f"column {name!r} has a value that {target} cannot hold"
        checks.append(Check(f"NOT ifNull({back} = {value}, isNull({value}))", lost))
    return made, checks
