"""A statement that reads objects of one shape: their columns, the values that it computes, and checks of these."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import starmap

from storeside.sql.quoting import identifier, literal
from storeside.transfer.base.schema import Column
from storeside.transfer.base.staging_tables import STAGING
from storeside.transfer.request.object_format import Format
from storeside.transfer.tables.table import LOAD_ID, names_column
from storeside.transfer.types import partitions

# Columns of s3() that identify a row's object and its version.
_VIRTUAL = frozenset({"_path", "_etag", "_size", "_time", "_row_number"})


# The reason of an error of checks that ran together.
TOGETHER = "one of several columns has a value that is refused"
# ClickHouse analyses a check of one column in 7 ms, and a check of many columns together in little more. But it must
# copy their values, which made a load of 20 columns 6 % slower.
_MANY = 32
# The setting for CSV that has no blanks to trim. Without it, ClickHouse 26.9 counts a reference to the column's type
# at each value, and all parsers share that counter: they take 30 % more CPU.
TRIMMED = ("input_format_csv_trim_whitespaces", 1)


@dataclass(frozen=True)
class Check:
    """A check of each row's values: an expression that is true for a faulty row, and the reason of the error.

    `column` is the only column that the expression names, if it names one.
    """

    fault: str
    reason: str
    column: str = ""

    @property
    def condition(self) -> str:
        """The condition that fails a statement at a faulty row."""
        return f"throwIf({self.fault}, {literal(self.reason)}) = 0"


@dataclass(frozen=True)
class Projection:
    """The values of a table's columns, as expressions over the values that a `Reading` reads, with their checks.

    `where` is the condition for rows to load. The statement also stages the other rows, so that they are counted:
    their load id has all bits inverted.
    """

    values: tuple[tuple[str, str], ...]
    checks: tuple[Check, ...] = ()
    where: str = ""

    @property
    def conditions(self) -> str:
        """The conditions that fail a statement at a faulty row that is loaded."""
        return " AND ".join(
            replace(check, fault=f"if({self.where}, {check.fault}, 0)" if self.where else check.fault).condition
            for check in self.checks
        )

    @property
    def load_id(self) -> str:
        """The expression for the load id of a row."""
        return f"if({self.where}, {LOAD_ID}, bitNot({LOAD_ID}))" if self.where else LOAD_ID


@dataclass(frozen=True)
class Reading:
    """How to read objects of one shape: their columns, and the expression for each column of the table.

    :param form: format of the objects
    :param columns: columns that the table function reads, with the types that it gives them
    :param expressions: name and expression of each column of the table, or, with a `projection`, of the columns
        from which it computes the table's
    :param checks: conditions under which a value is refused, each with its reason
    :param by_arrow: whether a worker reads the objects, which have types that ClickHouse cannot read, or reads
        incompletely
    :param as_it_is: columns that the worker sends with their NULL structs; in all others, NULL lists, maps and
        structs become empty
    :param wrapped: columns whose values the worker puts into a struct each, which is NULL if the value is
    :param settings: settings of the statement beside those of the format
    :param partitions: columns with values in the keys of objects
    :param projection: how the columns of the table are computed; None if they are the `expressions`
    :param skips: whether the load ignores any other column of the objects
    :param hides: whether no error may quote values
    :param defaults: expressions over the table's values, for columns that are NULL
    :param together: whether the same check of many columns runs as one, whose error does not name the column: see
        `TOGETHER`
    :param kept: columns of JSON, with the table's types, whose floats refuse to lose digits; see `JsonValues`
    :param zone: time zone of texts of times in columns without one
    """

    form: Format
    columns: tuple[Column, ...]
    expressions: tuple[tuple[str, str], ...]
    checks: tuple[Check, ...] = ()
    by_arrow: bool = False
    as_it_is: frozenset[str] = frozenset()
    wrapped: frozenset[str] = frozenset()
    settings: tuple[tuple[str, int], ...] = ()
    partitions: tuple[Column, ...] = ()
    projection: Projection | None = None
    skips: bool = False
    hides: bool = False
    defaults: tuple[tuple[str, str], ...] = ()
    together: bool = False
    kept: tuple[Column, ...] = ()
    zone: str = "UTC"

    @property
    def hides_virtual(self) -> bool:
        """Whether a column has the name of a virtual column that ClickHouse needs to identify objects."""
        return any(column.name in _VIRTUAL for column in self.columns)

    def insert(self, staging: str, extra: Sequence[tuple[str, str]], source: str, only: str = "", *, key: str) -> str:
        """Return INSERT … SELECT … FROM `source` WHERE `only`; `extra` are further columns with their expressions.

        `key` is the expression for the key of a row's object.
        """
        in_key, faults = partitions.expressions(self.partitions, key, self.zone)
        pairs = [*self.expressions, *in_key, *extra]
        checks = (*(self._together() if self.together else self.checks), *starmap(Check, faults))
        conditions = " AND ".join(filter(None, (only, *(check.condition for check in checks))))
        if (made := self.projection) is not None:
            read = dict(self.expressions)
            # a column of the objects that gets another name may have the name of one that the load adds
            inner = {name: f"_storeside{name}" if name in read else name for name, _ in extra}
            added = [(inner[name], value) for name, value in extra]
            source = _selected([*self.expressions, *in_key, *added], source, conditions)
            others = [
                (name, made.load_id if name == LOAD_ID else identifier(inner.get(name, name)))
                for name, _ in (*in_key, *extra)
            ]
            pairs, conditions = [*made.values, *others], made.conditions
        if self.defaults:
            source, conditions = _selected(pairs, source, conditions), ""
            for name, default in _in_order(self.defaults):
                value = f"ifNull({identifier(name)}, {default}) AS {identifier(name)}"
                source = f"(SELECT * REPLACE ({value}) FROM {source})"
            pairs = [(name, identifier(name)) for name, _ in pairs]
        names = ", ".join(identifier(name) for name, _ in pairs)
        values = ", ".join(value for _, value in pairs)
        where = f" WHERE {conditions}" if conditions else ""
        return f"{STAGING}.{identifier(staging)} ({names}) SELECT {values} FROM {source}{where}"

    def _together(self) -> Iterator[Check]:
        """Yield the checks; one for all columns of the same type that have the same check, if they are many."""
        types = {c.name: c.type for c in self.columns}
        alike: dict[tuple[str, str], list[Check]] = {}
        for check in self.checks:
            kind, fault = types.get(check.column, ""), check.fault
            if kind and "`" not in kind:  # names of fields in the type could be taken for the column
                fault = fault.replace(identifier(check.column), "x")
            alike.setdefault((kind, fault), []).append(check)
        for (_, fault), some in alike.items():
            if len(some) < _MANY:
                yield from some
            else:
                names = ", ".join(identifier(check.column) for check in some)
                yield Check(f"arrayExists(x -> {fault}, [{names}])", TOGETHER)


def _selected(pairs: Sequence[tuple[str, str]], source: str, conditions: str) -> str:
    """Return the subquery of these names with their expressions."""
    read = ", ".join(f"{value} AS {identifier(name)}" for name, value in pairs)
    return f"(SELECT {read} FROM {source}{f' WHERE {conditions}' if conditions else ''})"


def _in_order(defaults: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    """Return defaults, each after those of the columns that its expression names. ClickHouse allows no circles."""
    rest, ordered = dict(defaults), []
    while rest:
        free = [n for n, text in rest.items() if not any(names_column(text, other) for other in rest if other != n)]
        ordered += [(name, rest.pop(name)) for name in free or list(rest)]
    return ordered
