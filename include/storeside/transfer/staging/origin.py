"""The load id and the system columns of rows: where they come from."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from storeside.sql.quoting import literal
from storeside.transfer.request.source import Source
from storeside.transfer.state.loads import Planned
from storeside.transfer.tables.table import LOAD_ID

# The version of the object that ClickHouse reads, in the plan's notation.
PULLED_VERSION = "trim(BOTH '\"' FROM _etag)"


def pulled_columns(source: Source, objects: Sequence[Planned], system: Sequence[str]) -> list[tuple[str, str]]:
    """Return load id and system columns for objects that ClickHouse reads, computed from its virtual columns.

    The response of AIStore states the version in its headers. ClickHouse stores them once per row, which made a load
    of Parquet take eight times as long, so the versions are compared after the reading: see `Reader.check_unchanged`.
    """
    version = PULLED_VERSION
    if source.by_url:
        version = f"transform(_path, {_paths(source, objects)}, {_array(o.version for o in objects)}, '')"
    values = {
        "_object": source.key,
        "_row_number": "assumeNotNull(_row_number)",
        "_version": version,
        "_loaded_at": "now64(3)",
    }
    return [(LOAD_ID, _load_id(source, objects)), *((name, values[name]) for name in system)]


def _load_id(source: Source, objects: Sequence[Planned]) -> str:
    """Return the expression for a row's load id: that of its object, or 0 for any other object or version.

    `_path` and `_etag` have low cardinality, so ClickHouse evaluates `transform` once per object and block. A hash of
    both would be computed for each row, which makes a load of many rows half as fast.
    """
    numbers = {version: n for n, version in enumerate(dict.fromkeys(o.version for o in objects), 1)}
    paths = _paths(source, objects)
    ids = f"CAST({[o.load_id for o in objects]}, 'Array(UInt64)')"
    if source.by_url:
        return f"transform(_path, {paths}, {ids}, toUInt64(0))"
    versions = _array([*numbers, *(f'"{version}"' for version in numbers)])  # some endpoints quote the ETag
    expected = f"transform(_path, {paths}, {[numbers[o.version] for o in objects]}, 0)"
    read = f"transform(_etag, {versions}, {[*numbers.values()] * 2}, -1)"
    return f"if({expected} = {read}, transform(_path, {paths}, {ids}, toUInt64(0)), toUInt64(0))"


def _paths(source: Source, objects: Sequence[Planned]) -> str:
    return _array(source.path_of(o.key) for o in objects)


def _array(texts: Iterable[str]) -> str:
    return f"[{', '.join(map(literal, texts))}]"


def pushed_columns(planned: Planned, system: Sequence[str], first_row: int = 0) -> list[tuple[str, str]]:
    """Return load id and system columns for rows that a worker sends; `first_row` is the number of the first."""
    values = {
        "_object": literal(planned.key),
        "_row_number": f"{first_row} + rowNumberInAllBlocks()",
        "_version": literal(planned.version),
        "_loaded_at": "now64(3)",
    }
    return [(LOAD_ID, f"toUInt64({planned.load_id})"), *((name, values[name]) for name in system)]
