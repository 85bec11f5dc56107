"""Parquet: files through the product's loaders into ClickHouse, and through pyarrow.

Files of one schema share a table, which the product creates from the first file. ClickHouse pulls each file, and the
worker pushes it: every other file as Arrow by row groups, like a large object, the others whole. Files that pyarrow
reads are staged together, the others alone. The staged values are compared one by one.
"""

from __future__ import annotations

import io
import math
import random
import re
import uuid
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.types as of

from storeside.sql.quoting import identifier
from storeside.stack.settings import Stack
from storeside.transfer.base.errors import LoadObjectError, TransferError
from storeside.transfer.base.schema import UNNAMED, arguments, bare
from storeside.transfer.base.staging_tables import STAGING
from storeside.transfer.tables.table import LOAD_ID
from tests.fuzz.differential.loading import ARROW, PULL, PUSH, Load, Loading
from tests.fuzz.differential.outcome import Outcome
from tests.fuzz.differential.parquet_damage import explains
from tests.fuzz.differential.parquet_files import FAULTS, SAFE_CODECS, Family
from tests.fuzz.differential.text import server

# Files that share a table.
TOGETHER = 100
# Tables that are compared at a time.
_AT_ONCE = 2
_FAULTY = 0.5
# Numbers as they are, so that nothing is rounded on the way into Python.
_AS_STORED = {
    "DateTime64": "int", "Time64": "int", "Date32": "int", "String": "bytes", "FixedString": "bytes",
    "UUID": "string",
}  # fmt: skip
REFUSED = object()
# Sections of docs/differences.md.
HARMLESS = "Damage to Parquet that changes no value"
PAGES = "Damage to Parquet pages without checksums"
INTENDED = (HARMLESS, PAGES)


@dataclass(frozen=True)
class File:
    """A file: how it can be made again, its content, what was done to it, and its content before that."""

    name: str
    content: bytes
    fault: str = ""
    original: bytes = b""


def compare(files: int, seed: int) -> Outcome:
    """Compare a number of files of a seed."""
    with server() as (stack, client, store):
        return compare_with(stack, client, store, files, seed)


def compare_with(stack: Stack, client: Any, store: Any, files: int, seed: int) -> Outcome:
    """Compare with running servers."""
    outcome = Outcome("parquet")
    counts = [min(TOGETHER, files - begin) for begin in range(0, files, TOGETHER)]
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        for one in pool.map(lambda n: _Comparison(client, store, seed, n).run(counts[n]), range(len(counts))):
            outcome.add(one)
    return outcome


class _Comparison:
    """The comparison of files that share their columns."""

    def __init__(self, client: Any, store: Any, seed: int, number: int) -> None:
        self.client, self.store, self.outcome = client, store, Outcome("parquet")
        self.random = random.Random(f"{seed}/{number}")  # noqa: S311
        self.label = f"seed {seed}, table {number}"
        self.empty = self.random.random() < 0.5

    def run(self, count: int) -> Outcome:
        """Compare a number of files."""
        family = Family(self.random)
        first = File("0000", family.file(random.Random(f"{self.label}/0")))  # noqa: S311
        files = [first, *(self._file(family, n) for n in range(1, count))]
        expected = {file.name: read_by_pyarrow(file.content) for file in files}
        readable = {name for name, rows in expected.items() if rows is not REFUSED}
        # Columns that can hold NULL keep the difference; the other half of the tables has the types that are deduced.
        try:
            loading = Loading(
                self.client, self.store, {file.name: file.content for file in files},
                f"data.fuzz_{uuid.uuid4().hex[:12]}", format="parquet", loader=PULL, sample_objects=1,
                on_null_nested="empty" if self.empty else "refuse", system_columns=("_row_number",),
            )  # fmt: skip
        except TransferError as e:
            for file in files:
                self._judge(file, expected[file.name], {PULL: f"no table: {e}"})
            return self.outcome
        found: dict[str, dict[str, Any]] = {file.name: {} for file in files}
        for loader, some in ((PULL, files), (PUSH, files[::2]), (ARROW, files[1::2])):
            for name, rows in read(loading, [file.name for file in some], readable, loader).items():
                found[name][loader] = rows
        loading.close()
        for file in files:
            self._judge(file, expected[file.name], found[file.name])
        return self.outcome

    def _file(self, family: Family, n: int) -> File:
        r = random.Random(f"{self.label}/{n}")  # noqa: S311
        if r.random() >= _FAULTY:
            return File(f"{n:04}", family.file(r))
        fault = r.choice(FAULTS)
        original = family.file(r, SAFE_CODECS)
        return File(f"{n:04}", fault(original, r), fault.__name__, original)

    def _judge(self, file: File, expected: Any, found: Mapping[str, Any]) -> None:
        outcome = self.outcome
        outcome.files += 1
        again = f"{self.label}, file {file.name}, {file.fault or 'whole'}"
        refusals = [rows for rows in found.values() if isinstance(rows, str)]
        for loader, rows in found.items():
            if isinstance(rows, str):
                continue
            wanted = expected if expected is REFUSED or not self.empty else emptied(expected)
            if equal(rows, wanted):
                continue
            undamaged = read_by_pyarrow(file.original) if file.fault else wanted
            undamaged = emptied(undamaged) if self.empty else undamaged
            if file.fault and equal(rows, undamaged):
                outcome.intended[HARMLESS] += 1
            elif file.fault and explains(file.original, file.content, rows, undamaged, equal):
                outcome.intended[PAGES] += 1
            elif expected is REFUSED:
                outcome.silent.append(f"{again}: {loader} loads other values than the undamaged file has")
            else:
                outcome.silent.append(f"{again}: {loader} loads other values: {_difference(rows, wanted)}")
            return
        if refusals:
            outcome.refused += 1
            if expected is not REFUSED:
                loaders = ",".join(name for name, rows in found.items() if isinstance(rows, str))
                outcome.stricter[f"{file.fault or 'whole'}: {loaders}: {_plain(refusals[0])}"] += 1
        else:
            outcome.equal += 1


def read(loading: Loading, names: Sequence[str], readable: Collection[str], loader: str) -> dict[str, Any]:
    """Return what a loader makes of each file: its rows, or the reason why it refuses it."""
    load = loading.load(loader)
    found: dict[str, Any] = {name: "the object is empty" for name in names if name not in loading.planned}
    together: list[Any] = []
    alone: list[Any] = []
    for o in (loading.planned[name] for name in names if name in loading.planned):
        try:
            load.groups([o])
        except LoadObjectError:
            alone.append(o)
        else:
            (together if o.key in readable else alone).append(o)
    for objects in (together, *([o] for o in alone)):
        found |= load.read(objects, lambda table: _rows(load, table))
    load.close()
    return found | load.noted.reasons


def _rows(load: Load, table: str) -> dict[int, list[Any]]:
    names = [c.name for c in load.destination.columns if not c.name.startswith("_row")]
    kinds = [load.destination.type_of(name) or "" for name in names]
    columns = ", ".join(identifier(name) for name in names)
    order = f"{LOAD_ID}, _row_number" if load.destination.type_of("_row_number") else LOAD_ID
    found: dict[int, list[Any]] = {}
    for load_id, *values in load.client.query(
        f"SELECT {LOAD_ID}, {columns} FROM {STAGING}.{identifier(table)} ORDER BY {order}",
        query_formats=_AS_STORED,
    ).result_rows:
        made = {n: canonical(value, kind) for n, value, kind in zip(names, values, kinds, strict=True)}
        found.setdefault(load_id, []).append(made)
    return found


def _plain(reason: str) -> str:
    return re.sub(r"\d+", "N", re.sub(r"[`'\"][^`'\"]*[`'\"]|\b(c|f)\d\b", "…", reason))[:110]


def _difference(rows: Any, wanted: Any) -> str:
    if len(rows) != len(wanted):
        return f"{len(rows)} rows instead of {len(wanted)}"
    for n, (one, other) in enumerate(zip(rows, wanted, strict=True)):
        for name in other:
            if not equal(one.get(name), other[name]):
                return f"row {n}, {name}: {one.get(name)!r:.120} instead of {other[name]!r:.120}"
    return "columns"


def equal(one: Any, other: Any) -> bool:
    """Return whether values are the same; NaN is the same as NaN."""
    if isinstance(one, float) and isinstance(other, float):
        return one == other or (math.isnan(one) and math.isnan(other))
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(map(equal, one, other))
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(equal(one[key], other[key]) for key in one)
    return bool(one == other)


@dataclass(frozen=True)
class Null:
    """A list, map or struct that is NULL, with its value if it may become empty."""

    empty: Any

    def __eq__(self, other: object) -> bool:
        return other is None

    def __hash__(self) -> int:
        return 0


def emptied(value: Any) -> Any:
    """Return a value with empty lists, maps and structs for those that are NULL."""
    if isinstance(value, Null):
        return value.empty
    if isinstance(value, list | tuple):
        return [emptied(one) for one in value]
    if isinstance(value, dict):
        return {key: emptied(one) for key, one in value.items()}
    return value


def read_by_pyarrow(content: bytes) -> Any:
    """Return the rows that pyarrow reads, or REFUSED."""
    try:
        file = pq.ParquetFile(io.BytesIO(content))
        # One after the other: pyarrow cannot read nested dictionaries of several row groups at once.
        tables = [file.schema_arrow.empty_table(), *map(file.read_row_group, range(file.num_row_groups))]
        for table in tables:
            table.validate(full=True)
        columns = [
            [value for table in tables for chunk in table.columns[n].chunks for value in plain(chunk)]
            for n in range(len(file.schema_arrow))
        ]
        names = [name or UNNAMED for name in file.schema_arrow.names]
    except (pa.ArrowException, OSError, UnicodeError, OverflowError, ValueError):
        return REFUSED
    return [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]


def plain(array: pa.Array) -> list[Any]:
    """Return the values of an array: times as numbers, text as bytes, lists, dictionaries for structs and maps."""
    kind = array.type
    if isinstance(kind, pa.BaseExtensionType):
        values = plain(array.storage)
        as_uuid = isinstance(kind, pa.UuidType)
        return [str(uuid.UUID(bytes=value)) if as_uuid and value is not None else value for value in values]
    if of.is_dictionary(kind):
        return plain(array.dictionary_decode())
    if of.is_struct(kind):
        names = [field.name for field in kind]
        parts = list(zip(*(plain(part) for part in array.flatten()), strict=True)) or [()] * len(array)
        nothing = {field.name: _nothing(field.type) for field in kind}
        return [
            dict(zip(names, row, strict=True)) if there.as_py() else Null(nothing)
            for row, there in zip(parts, array.is_valid(), strict=True)
        ]
    if of.is_map(kind) or hasattr(kind, "value_field"):
        return [_list(one, map_=of.is_map(kind)) for one in array]
    return _flat(array)


def _list(one: pa.Scalar, *, map_: bool) -> Any:
    if not one.is_valid:
        return Null({} if map_ else [])
    if not map_:
        return plain(one.values)
    return dict(zip(plain(one.values.field(0)), plain(one.values.field(1)), strict=True))


def _nothing(kind: pa.DataType) -> Any:
    """Return what a field of a struct is in a struct that is NULL."""
    if of.is_struct(kind):
        return {field.name: _nothing(field.type) for field in kind}
    return {} if of.is_map(kind) else [] if hasattr(kind, "value_field") else None


def _flat(array: pa.Array) -> list[Any]:
    kind = array.type
    if of.is_date64(kind):
        array = array.cast(pa.date32())
    if of.is_timestamp(kind) or of.is_time64(kind) or of.is_date64(kind) or of.is_duration(kind):
        width = pa.int32() if of.is_date64(kind) else pa.int64()
        return list(array.cast(width).to_pylist())
    if of.is_date32(kind) or of.is_time32(kind):
        return list(array.cast(pa.int32()).to_pylist())
    if of.is_string(kind) or of.is_large_string(kind) or of.is_string_view(kind):
        return [None if value is None else value.encode() for value in array.to_pylist()]
    return list(array.to_pylist())


def canonical(value: Any, kind: str) -> Any:
    """Return a value that ClickHouse has given, as `plain` has it."""
    kind = bare(kind)
    if value is None or not kind.endswith(")"):
        return value
    if kind.startswith("Array("):
        return [canonical(one, kind[6:-1]) for one in value]
    if kind.startswith("Map("):
        keys, values = arguments(kind)
        return {canonical(key, keys): canonical(one, values) for key, one in value.items()}
    if kind.startswith("Tuple("):
        kinds = [part.partition(" ") for part in arguments(kind)]
        return {name.strip("`"): canonical(value[name.strip("`")], of_) for name, _, of_ in kinds}
    return value
