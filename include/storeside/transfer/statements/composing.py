"""Composes the statement with which both loaders read objects into a staging table; see also `reading`."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

from storeside.sql.quoting import identifier, literal
from storeside.transfer.base.errors import (
    NO_COLUMNS,
    DriftError,
    LoadObjectError,
    lacks,
    no_number,
    not_kept,
    out_of_range,
    skipped_time,
)
from storeside.transfer.base.schema import (
    FLOAT,
    INTEGERS,
    MOMENT,
    NOTHING,
    Column,
    bare,
    is_nested,
    is_nullable,
    loose,
    nullable,
    resolved,
    same,
)
from storeside.transfer.formats.nulls import holds, keeps, refusal
from storeside.transfer.formats.parquet import Nested, Shape
from storeside.transfer.formats.registry import settings_of
from storeside.transfer.request.object_format import Format
from storeside.transfer.request.options import REST, SYSTEM_COLUMNS, refuse_own
from storeside.transfer.state.loads import LONG
from storeside.transfer.statements.reading import TRIMMED, Check, Reading
from storeside.transfer.tables.table import Destination
from storeside.transfer.types import partitions
from storeside.transfer.types.conversion import (
    beyond_range,
    beyond_years,
    clock_time,
    code,
    code_in_list,
    converted,
    fits,
    guessed,
    is_list,
    map_in,
    reading,
    skipped,
    whole,
    without_zeros,
)

_CODED = re.compile(r"U?Int\d+|Float64")  # the types whose values may be codes in CSV
_LIST_OF_NUMBERS = re.compile(
    r"(?:(?:Array\()+|Map\((?:String|LowCardinality\(String\)|U?Int\d+), )(?:Nullable\()?(?:U?Int\d+|Float64)\)+"
)
_FLOATS = re.compile(r"JSON$|.*\bFloat64\b", re.DOTALL)  # the types that hold floats of JSON
TWICE = "column {!r} has an object with a name twice"
_STRING = re.compile(r"'(?:[^'\\]|\\.)*+'?", re.DOTALL)  # of a default's expression


def text_reading(
    form: Format,
    destination: Destination,
    rest: Sequence[Column] = (),
    ignored: Sequence[Column] = (),
    *,
    empty_nulls: bool = False,
    keeps_codes: bool | None = None,
    exact: bool = False,
    names_once: bool = False,
    plain: bool = False,
) -> Reading:
    """Return how to read text objects, which may have any column of the table.

    `rest` lists columns of the objects that the table lacks; the load stores them in the column `_rest`. The values
    of `ignored` columns are read and not used. With `empty_nulls`, a NULL list, map or struct becomes empty if its
    column cannot be NULL. With `keeps_codes`, columns of numbers in CSV refuse codes, and floats in JSON refuse
    numbers whose digits they do not hold (see `Reading.kept`); by default, those columns do that were inferred from
    text. With `exact`, integers of JSON, and lists and maps of numbers in CSV, are read as text, which they need for
    numbers such as 5.0 and 1e3. With `names_once`, `JSON` columns refuse objects that may have a name twice. The
    numbers of `plain` objects need no
    checks, and their texts are valid; see `staging.proof`.
    """
    data = [c for c in destination.columns if c.name not in destination.partitions and not destination.is_own(c)]
    if form.csv.names:
        data = _named(form.csv.names, data, {c.name for c in (*rest, *ignored)}, destination)
    columns, expressions, later = [], [], _later_defaults(destination, data)
    refusing = destination.inferred if keeps_codes is None else keeps_codes
    coded = _refusing_codes(form, data, False if plain else refusing)
    lists = _refusing_lists(form, destination, data, refusing)
    whole_lists = _refusing_lists(form, destination, data, True) if exact else []
    if form.has_fields:
        checks, as_text = [*map(_code, coded)], {c.name for c in coded}
        checks += [_not_kept(c, code_in_list(_text_of_list(c), c.type)) for c in lists]
        checks += [_is_list(c) for c in whole_lists or lists]
    else:
        whole = [c for c in data if exact and INTEGERS.fullmatch(bare(c.type))]
        checks, as_text = [*map(_no_number, whole)], {c.name for c in whole}
    for c in data:
        kind = "Nullable(String)" if c.name in as_text else reading(form, c.type, plain=plain)
        default = destination.defaults.get(c.name)
        if default is not None:  # for missing or NULL values
            kind = nullable(kind)
        is_padded = form.has_fields
        as_list = c.type if form.is_native and (c in lists or c in whole_lists) else ""
        column, value, kind = _read_as(c.name, kind, empty_nulls=empty_nulls, as_list=as_list)
        columns.append(column)
        if (clock := clock_time(form, value, c.type, destination.zone)) is not None:
            value, kind, fault = clock
            checks.append(Check(fault, f"column {c.name!r} has a value that is no date and time of {c.type}", c.name))
        target = nullable(c.type) if default else c.type
        made = converted(value, kind, target, padded=is_padded)
        at_once = default and c.name not in later
        expressions.append((c.name, f"ifNull({made}, CAST({default}, {literal(c.type)}))" if at_once else made))
        # an invalid text is no missing value
        checks += whole_value(c.name, value, kind, target, destination.zone, padded=is_padded)
        checks += [] if plain else _in_range(form, c, as_text)
    remedy = ": set csv.encoding to the object's" if form.has_fields else ""
    checks += [valid_text(c.name, remedy) for c in data if bare(c.type) == "String" and not plain]
    checks += [check for c in columns if names_once and (check := _twice(c))]
    if rest:
        columns += rest if form.is_native else [Column(c.name, "Nullable(String)") for c in rest]
        expressions.append((REST, as_map(rest)))
    if ignored:  # ClickHouse does not read a column that no expression names, and refuses the object that has it
        columns += ignored
        names = ", ".join(identifier(c.name) for c in ignored)
        checks.append(Check(f"ignore({names})", "an ignored column is used"))
    if form.csv.names:
        order = {name: n for n, name in enumerate(form.csv.names)}
        columns.sort(key=lambda c: order[c.name])
    trimmed = (TRIMMED,) if plain and form.csv.delimiter != "\t" else ()  # plain objects have no blanks to trim
    return Reading(
        form, tuple(columns), tuple(expressions), tuple(checks), partitions=in_keys(destination),
        settings=(*trimmed, *((("prefer_column_name_to_alias", 1),) if later else ())), defaults=tuple(later.items()),
        kept=() if form.has_fields else tuple(coded), zone=destination.zone,
    )  # fmt: skip


def _read_as(name: str, kind: str, *, empty_nulls: bool, as_list: str) -> tuple[Column, str, str]:
    """Return a column of objects that is read as type `kind`, the expression for its value, and the value's type.

    With the type `as_list`, it is the text of a list or map, which `_is_list` checks; see also `text_reading`.
    """
    value = identifier(name)
    if as_list:
        text = f"trimBoth({value}, ' \\t')"
        is_map = as_list.startswith("Map(")
        value = without_zeros(f"if(empty({text}), '{'{}' if is_map else '[]'}', {text})", as_list)
        return (
            (Column(name, "String"), map_in(value, kind), kind)
            if is_map
            else (Column(name, "String"), value, "String")
        )
    if empty_nulls and is_nested(kind) and not is_nullable(kind):
        made = f"ifNull(variantElement({value}, {literal(kind)}), defaultValueOfTypeName({literal(kind)}))"
        return Column(name, f"Variant({kind})"), made, kind
    return Column(name, kind), value, kind


def _later_defaults(destination: Destination, columns: Sequence[Column]) -> dict[str, str]:
    """Return the defaults that may name columns: they must see the table's values, not the objects' texts."""
    later = {}
    for c in columns:
        default = destination.defaults.get(c.name, "")
        names = re.findall(r"`|(?<![\w.])[A-Za-z_]\w*\b(?!\()", _STRING.sub("", default))
        if {name.upper() for name in names} - {"NULL", "TRUE", "FALSE"}:
            later[c.name] = f"CAST({default}, {literal(c.type)})"
    return later


def _named(
    names: Sequence[str], data: Sequence[Column], others: Collection[str], destination: Destination
) -> list[Column]:
    """Return the columns of CSV without a header in the order of its `names`. Raises DriftError."""
    by_name = {c.name: c for c in data}
    if unknown := [name for name in names if name not in by_name and name not in others]:
        raise lacks(destination.name, unknown)
    return [by_name[name] for name in names if name in by_name]


def in_keys(destination: Destination) -> tuple[Column, ...]:
    """Return the columns of a table whose values are in keys."""
    return tuple(column for column in destination.columns if column.name in destination.partitions)


def whole_value(
    name: str, value: str, source: str, target: str, zone: str = "UTC", *, padded: bool = False
) -> list[Check]:
    """Return the checks for values that the conversion would truncate or guess; none if it takes each as it is."""
    checks = []
    if unclear := guessed(value, source, target, padded=padded):
        reason = "without a year, month or day, or with an unknown order of day and month: see csv.timestamp_formats"
        checks.append(Check(unclear, f"column {name!r} has a date {reason}", name))
    if never := skipped(value, source, target, zone, padded=padded):
        checks.append(Check(never, skipped_time(name), name))
    if not (kept := whole(value, source, target, padded=padded)):
        return checks
    lost = f"column {name!r} has a value that {target} cannot hold"
    return [*checks, Check(f"NOT ({kept})", lost, name)]


def _refusing_codes(form: Format, data: Sequence[Column], those: Collection[str] | bool) -> list[Column]:
    """Return the columns of numbers that refuse codes: all, none, or `those`; in JSON those with floats."""
    if those is False:
        return []
    is_one = _CODED.fullmatch if form.has_fields else _FLOATS.match
    return [c for c in data if is_one(bare(c.type)) and (those is True or c.name in those)]


def _refusing_lists(
    form: Format, destination: Destination, data: Sequence[Column], those: Collection[str] | bool
) -> list[Column]:
    """Return the columns of lists and maps of numbers in CSV that refuse codes, and are read as text for that."""
    if not form.has_fields or those is False:
        return []
    found = (c for c in data if _LIST_OF_NUMBERS.fullmatch(c.type) and c.name not in destination.defaults)
    return [c for c in found if those is True or c.name in those]


def _text_of_list(column: Column) -> str:
    return f"trimBoth(ifNull({identifier(column.name)}, ''), ' \\t')"


def _is_list(column: Column) -> Check:
    """Return the check for a text that is no list or map of the column's numbers."""
    value, name = _text_of_list(column), column.name
    fault = f"notEmpty({value}) AND NOT {is_list(value, column.type)}"
    return Check(fault, f"column {name!r} has a value that {column.type} cannot hold", name)


def _code(column: Column) -> Check:
    """Return the check for text that a column of numbers does not keep."""
    return _not_kept(column, code(identifier(column.name), bare(column.type)))


def _not_kept(column: Column, fault: str) -> Check:
    return Check(fault, not_kept(column.name, bare(column.type)), column.name)


def _no_number(column: Column) -> Check:
    """Return the check for a text that is no JSON number, in a column of integers that is read as text."""
    value = identifier(column.name)
    return Check(f"isNotNull({value}) AND match({value}, '^($|[+]|-?0[0-9])')", no_number(column.name), column.name)


def _twice(column: Column) -> Check | None:
    """Return the check that no object in a column of JSON has a value at a path, and others below it; see `Names`.

    The paths with zero bytes for points sort so that those below a path follow it.
    """
    name, kind = identifier(column.name), bare(column.type)
    value = name
    while kind.startswith("Array("):
        value, kind = f"arrayFlatten({value})", bare(kind[6:-1])
    if not re.match(r"JSON\b", kind):
        return None
    is_list = value != name
    paths = "arraySort(arrayMap(p -> replaceAll(p, '.', '\\0'), JSONAllPaths(assumeNotNull({}))))"
    fault = "arrayExists((p, q) -> startsWith(q, concat(p, '\\0')), {0}, arrayPopFront(arrayPushBack({0}, '')))"
    item = fault.format(paths.format("x" if is_list else value))
    return Check(f"arrayExists(x -> {item}, {value})" if is_list else item, TWICE.format(column.name))


def _in_range(form: Format, column: Column, as_text: Collection[str]) -> list[Check]:
    """Return the check for numbers beyond a float's range; `JsonValues` has that for numbers of JSON that become 0.

    Only columns of floats have this check and, in JSON, arrays of floats.
    """
    name, kind = identifier(column.name), bare(column.type)
    if FLOAT.fullmatch(kind):
        is_text = form.has_fields or column.name in as_text
        fault = beyond_range(name, kind) if is_text else f"isInfinite(assumeNotNull({name}))"  # 0 for NULL
    elif form.has_documents and (found := re.fullmatch(r"Array\((?:Nullable\()?(B?Float\d+)\)+", kind)):
        kind, fault = found[1], f"arrayExists(x -> isInfinite(ifNull(x, 0)), {name})"
    else:
        return []
    return [Check(fault, out_of_range(column.name, kind), column.name)]


def valid_text(name: str, remedy: str = "") -> Check:
    """Return the check for invalid UTF-8: ClickHouse accepts any bytes in a String. Its reason ends with `remedy`."""
    valid = f"isValidUTF8(assumeNotNull({identifier(name)}))"  # an empty text for NULL
    return Check(f"NOT {valid}", f"column {name!r} has invalid UTF-8{remedy}", name)


def typed_reading(
    form: Format,
    destination: Destination,
    shape: Shape,
    nulls: frozenset[Nested] = frozenset(),
    *,
    keep_rest: bool,
    refuse_nulls: bool,
) -> Reading:
    """Return how to read Parquet, ORC or Arrow objects of a shape into a table.

    `nulls` lists the lists, maps and structs that are NULL somewhere. Raises DriftError for columns that the table
    lacks, unless `keep_rest`, and for columns that it cannot hold. With `refuse_nulls`, raises LoadObjectError for
    NULLs that a column cannot hold; otherwise they become empty.
    """
    partitions.both((column.name for column in shape.columns), destination.partitions)
    ways, rest = [], []
    for column, keeping in zip(shape.columns, shape.keeping, strict=True):
        here = [nested for nested in nulls if nested.path[0] == column.name]
        target = destination.type_of(column.name)
        if target is None:
            rest.append(Column(column.name, resolved(column.type)))
        elif not fits(column.type, target):
            raise DriftError(
                f"column {column.name!r} is {column.type}, which {destination.name} cannot convert to {target}"
            )
        way = None if target is None else _way(column, keeping, target, here, refuse_nulls)
        lost = [nested for nested in here if way is None or not way.keeps(nested)]
        if lost and refuse_nulls:
            raise refusal(lost, target or f"column {REST}")
        if way is not None:
            ways.append(way)
    check_columns(destination, [c.name for c in shape.columns], [] if keep_rest else [c.name for c in rest])
    expressions = [(way.read.name, way.expression) for way in ways]
    texts = [valid_text(way.read.name) for way in ways if way.read.name in shape.texts]
    if rest:
        expressions.append((REST, as_map(rest)))
    return Reading(
        form,
        (*(way.read for way in ways), *rest),
        tuple(expressions),
        (*(check for way in ways for check in way.checks), *texts),
        bool(shape.foreign) or any(way.sent for way in ways),
        frozenset(way.read.name for way in ways if way.sent == "as it is"),
        frozenset(way.read.name for way in ways if way.sent == "wrapped"),
        partitions=in_keys(destination),
        zone=destination.zone,
    )


def check_columns(destination: Destination, names: Sequence[str], unknown: Sequence[str]) -> None:
    """Raise DriftError for `unknown` columns, and LoadObjectError if one that needs a value is absent, or all are."""
    if not names:
        raise LoadObjectError(NO_COLUMNS)
    refuse_own(names, destination.own)
    if unknown:
        raise lacks(destination.name, unknown)
    for column in destination.columns:
        is_empty = is_nested(column.type) or nullable(column.type) == column.type
        is_ours = column.name in (*SYSTEM_COLUMNS, REST, *destination.defaults, *destination.partitions)
        if column.name not in names and not (is_empty or is_ours):  # ClickHouse would insert 0 or an empty text
            raise LoadObjectError(
                f"it lacks column {column.name!r}, which is {column.type} in {destination.name}: make the column"
                " Nullable, or give it a default"
            )


@dataclass(frozen=True)
class _Way:
    """How to read one Parquet column; `sent` is how a worker must send it if ClickHouse cannot read it."""

    read: Column
    expression: str
    checks: Sequence[Check] = ()
    sent: str = ""

    def keeps(self, nested: Nested) -> bool:
        """Return whether the column keeps the NULLs of this list, map or struct."""
        return (self.sent == "as it is" and nested.kind == "struct") or (
            self.sent == "wrapped" and len(nested.path) == 1
        )


def _way(column: Column, keeping: str, target: str, nulls: Sequence[Nested], refuse_nulls: bool) -> _Way:
    way = _reading(column, keeping, target, nulls, refuse_nulls)
    here = identifier(column.name)
    value = f"tupleElement(assumeNotNull({here}), 'v')" if way.sent == "wrapped" else here
    return replace(way, checks=[*within_years(column.name, value, resolved(column.type)), *way.checks])


def within_years(name: str, value: str, kind: str) -> list[Check]:
    """Return the check for moments of a typed format that ClickHouse would show as others; none without moments."""
    beyond = beyond_years(value, kind)
    reason = f"column {name!r} has a time outside the years 0 to 9999: correct its unit, or leave out the column"
    return [Check(beyond, reason)] if beyond else []


def _reading(column: Column, keeping: str, target: str, nulls: Sequence[Nested], refuse_nulls: bool) -> _Way:
    name, here = column.name, identifier(column.name)
    if bare(column.type) == NOTHING:
        return only_nulls(name, target, refuse_nulls)
    if any(nested.kind == "struct" for nested in nulls) and keeps(keeping, target):
        return _Way(Column(name, target), here, sent="as it is")
    kind = resolved(column.type)
    if clock := re.fullmatch(r"Time64\((\d)\)", bare(kind)):
        return _time_of_day(name, kind, target, int(clock.group(1)))
    if holds(target) and any(len(nested.path) == 1 for nested in nulls):
        value = converted(f"tupleElement(assumeNotNull({here}), 'v')", kind, target)
        read = Column(name, f"Nullable(Tuple(v {kind}))")
        return _Way(read, f"if(isNull({here}), NULL, {value})", sent="wrapped")
    if same(kind, target) or (
        loose(kind) == loose(target)
        and (is_nested(kind) or MOMENT.fullmatch(bare(kind)))
        and "Nullable(Tuple(" not in target
    ):
        if target.startswith("Nullable(Tuple("):  # ClickHouse's reader does not produce this type
            target, here = bare(target), f"CAST({here}, {literal(target)})"
        return _Way(Column(name, target), here)  # ClickHouse's reader refuses a NULL
    return _Way(Column(name, kind), converted(here, kind, target), whole_value(name, here, kind, target))


def _time_of_day(name: str, kind: str, target: str, digits: int) -> _Way:
    """Return how to read times of day: ClickHouse's reader makes moments of 1970 of them, and times would wrap."""
    moment = f"DateTime64({digits}, 'UTC')"
    first, end = (f"toDateTime64('1970-01-{day} 00:00:00', {digits}, 'UTC')" for day in ("01", "02"))
    here = identifier(name)
    fault = f"{here} < {first} OR {here} >= {end}"
    outside = Check(f"ifNull({fault}, 0)", f"column {name!r} has a time that is not within a day")
    read = Column(name, nullable(moment) if is_nullable(kind) else moment)
    time = f"CAST({here}, {literal(kind)})"
    return _Way(read, converted(time, kind, target), [outside, *whole_value(name, time, kind, target)])


def only_nulls(name: str, target: str, refuse_nulls: bool) -> _Way:
    """Return how to read a column that has only NULLs."""
    here = identifier(name)
    check = Check(f"{here} IS NOT NULL", f"column {name!r} has a value, but its type declares that all are NULL")
    made = f"CAST({here}, {literal(target)})"
    if is_nested(target) and not is_nullable(target) and not refuse_nulls:
        made = f"defaultValueOfTypeName({literal(target)})"
    return _Way(Column(name, "Nullable(String)"), made, [check])


def as_map(columns: Sequence[Column]) -> str:
    """Return the map of these columns' names to their values as text, without NULLs."""
    pairs = ", ".join(f"{literal(c.name)}, toString({identifier(c.name)})" for c in columns)
    return f"CAST(mapFilter((k, v) -> v IS NOT NULL, map({pairs})), 'Map(String, String)')"


def settings(form: Format, **more: Any) -> dict[str, Any]:
    """Return the settings of a statement that loads rows; `more` adds to them or replaces them."""
    return {
        **settings_of(form),
        "async_insert": 0,
        "insert_allow_materialized_columns": 1,  # the load id is one
        "insert_null_as_default": 0,
        "input_format_null_as_default": 0,
        # Texts in JSON columns stay texts: ClickHouse 26.9 makes 2024-03-01 of "2024-02-30", and today of "12:00".
        "input_format_try_infer_dates": 0,
        "input_format_try_infer_datetimes": 0,
        "insert_deduplicate": 0,
        "optimize_on_insert": 0,
        "use_hive_partitioning": 0,
        # ClickHouse 26.9 looks for the checks' conditions in ORC's row indexes, and reads no row of a stripe without.
        "input_format_orc_filter_push_down": 0,
        **LONG,
        # Each column has its own check, and ClickHouse 26.9 merges n of them in n * n steps.
        "query_plan_merge_filters": 0,
        "query_plan_merge_expressions": 0,
        "max_partitions_per_insert_block": 0,
        "s3_retry_attempts": 10,
        "throw_on_max_partitions_per_insert_block": 0,
        **more,
    }
