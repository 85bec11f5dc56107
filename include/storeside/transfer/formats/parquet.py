"""Reads footers and rows of Parquet objects on the worker."""

from __future__ import annotations

import contextlib
import itertools
import logging
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from storeside.transfer.base import damage
from storeside.transfer.base.errors import WRITE_TIMESTAMP, LoadObjectError, TransferInputError
from storeside.transfer.base.schema import UNNAMED, Column
from storeside.transfer.formats.parquet_footer import Footer, last_bytes
from storeside.transfer.objects.content import Content
from storeside.transfer.objects.streams import CHUNK
from storeside.transfer.types.arrow_types import arrow_columns, field_type

log = logging.getLogger(__name__)

_BATCH_ROWS = 65_536
# The worker fetches a row group of at most this number of bytes at once. It fetches a larger one a column and a
# megabyte at a time: that takes more requests, but the memory does not grow with the row group.
WHOLE_ROW_GROUP = 128 << 20
# pyarrow's logical types that ClickHouse 26.9 refuses to read. pyarrow reports a type that it does not know as
# "UNDEFINED".
_FOREIGN = frozenset({"GEOMETRY", "GEOGRAPHY", "VARIANT", "UNDEFINED"})


class Rows(NamedTuple):
    """Rows as Arrow's batches of a schema."""

    schema: Any
    batches: Iterator[Any]


@dataclass(frozen=True)
class Nested:
    """A list, map or struct that may be NULL.

    `path` has the names from the column down to the value, with "[]" for the elements of a list. `level` is the
    definition level of a NULL, and `leaves` are the numbers of its Parquet columns.
    """

    path: tuple[str, ...]
    kind: str
    level: int
    leaves: tuple[int, ...]


@dataclass(frozen=True)
class Shape:
    """The columns of a Parquet, ORC or Arrow object.

    `keeping` has their types with Nullable tuples for structs that may be NULL. `flat` has the unnested columns that
    may be NULL, each with its number. `foreign` has the columns that ClickHouse cannot read, `texts` those whose
    values ClickHouse must check for invalid UTF-8.
    """

    columns: tuple[Column, ...]
    keeping: tuple[str, ...]
    nested: tuple[Nested, ...] = ()
    flat: tuple[tuple[str, int], ...] = ()
    foreign: tuple[str, ...] = ()
    texts: tuple[str, ...] = ()


@dataclass(frozen=True)
class Facts:
    """The facts in a footer: columns, rows, and the number of NULLs in each Parquet column."""

    shape: Shape
    rows: int
    nulls: tuple[int, ...]


class ParquetObject:
    """A Parquet object, whose footer is fetched once at first use. Every method raises LoadObjectError."""

    def __init__(self, content: Content) -> None:
        self.content = content

    @cached_property
    def _tail(self) -> bytes:
        return last_bytes(self.content)

    @cached_property
    def footer(self) -> Footer:
        """The decoded footer, after the check for contradictions."""
        footer = Footer(self._tail)
        footer.check()
        return footer

    @cached_property
    def _of_footer(self) -> Any:
        """A pyarrow file of the footer alone, which has a schema and no rows."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        with faults(unreadable="Parquet"):
            return pq.ParquetFile(pa.BufferReader(self._tail))

    @property
    def schema(self) -> Any:
        """The Arrow schema, with the ids of fields as metadata."""
        return self._of_footer.schema_arrow

    def facts(self) -> Facts:
        """Return columns, rows and counts of NULLs from the footer."""
        file, footer = self._of_footer, self.footer  # checked before `_shape` relies on it
        with faults():
            shape = _shape(file)
        return Facts(shape, footer.rows, footer.null_counts())

    def file(self, *, pre_buffer: bool, int96_unit: str | None = None) -> Any:
        """Return a pyarrow file of the object; with `pre_buffer`, each read first fetches all bytes that it needs.

        INT96 becomes timestamps of the unit; nanoseconds if it is None.
        """
        import pyarrow as pa
        import pyarrow.parquet as pq

        metadata = self._of_footer.metadata
        with faults():
            return pq.ParquetFile(
                pa.PythonFile(self.content, mode="r"), metadata=metadata, buffer_size=CHUNK, pre_buffer=pre_buffer,
                page_checksum_verification=True, coerce_int96_timestamp_unit=int96_unit,
            )  # fmt: skip


def columns_of(schema: Any) -> list[Column]:
    """Return the columns of an Arrow schema. Raises LoadObjectError for unsupported types and invalid names."""
    try:
        with faults():
            return arrow_columns(schema)
    except TransferInputError as e:
        raise LoadObjectError(str(e)) from e


def row_groups(content: Content) -> tuple[Any, Iterator[Any]]:
    """Return the Arrow schema of an object and its rows in batches, one row group after the other."""
    parquet = ParquetObject(content)
    file = parquet.file(pre_buffer=True)
    with faults():
        groups = range(file.num_row_groups)
        if any(file.metadata.row_group(n).total_byte_size > WHOLE_ROW_GROUP for n in groups):
            file = parquet.file(pre_buffer=False)
        int96 = [path for path, kind in _leaves(file) if kind == "INT96"]
        coarse = parquet.file(pre_buffer=False, int96_unit="us") if int96 else None

        def group(n: int) -> Iterator[Any]:
            # One row group per call, because pyarrow holds all row groups of one call in memory.
            if coarse is not None:
                _check_int96(file, coarse, n, int96)
            return batches_of(file.iter_batches(_BATCH_ROWS, row_groups=[n]))

        return file.schema_arrow, itertools.chain.from_iterable(map(group, groups))


def _leaves(file: Any) -> Iterator[tuple[str, str]]:
    """Yield the path and the physical type of each Parquet column."""
    for n in range(len(file.schema)):
        yield file.schema.column(n).path, file.schema.column(n).physical_type


def _check_int96(file: Any, coarse: Any, group: int, paths: list[str]) -> None:
    """Raise LoadObjectError for an INT96 outside the years of nanoseconds, 1677 to 2262, which pyarrow would wrap.

    `coarse` is the file in microseconds. Their conversion to nanoseconds, unlike that of INT96, fails.
    """
    import pyarrow as pa

    readers = (each.iter_batches(_BATCH_ROWS, row_groups=[group], columns=paths) for each in (file, coarse))
    for fine, micros in zip(*map(batches_of, readers), strict=True):
        for name, wanted, array in zip(fine.schema.names, fine.columns, micros.columns, strict=True):
            try:
                array.cast(wanted.type)
            except pa.ArrowInvalid as e:
                raise LoadObjectError(
                    f"column {name!r} has an INT96 timestamp outside the years 1677 to 2262: {WRITE_TIMESTAMP}"
                ) from e


class Parquet:
    """Parquet."""

    def columns(self, content: Content) -> list[Column]:
        """Return the columns of the footer."""
        return list(ParquetObject(content).facts().shape.columns)

    def body(self, content: Content, *, by_arrow: bool, is_large: bool, wrapped: frozenset[str]) -> Rows | None:
        """Return the rows of an object that ClickHouse cannot read, or that is too large for one request."""
        return Rows(*row_groups(content)) if by_arrow or is_large else None


def batches_of(reader: Any) -> Iterator[Any]:
    """Yield the batches of a pyarrow reader. Raises LoadObjectError if the content turns out to be corrupt.

    pyarrow reads damaged Parquet pages into arrays with impossible offsets or indices. Its functions end the process
    when they use these.
    """
    with faults():
        for batch in reader:
            for name, array in zip(batch.schema.names, batch.columns, strict=True):
                with faults(f"column {name!r}: "):
                    array.validate(full=True)
            yield batch


@contextlib.contextmanager
def faults(what: str = "", *, unreadable: str = "") -> Iterator[None]:
    """Turn pyarrow's errors about corrupt content into a LoadObjectError with the prefix `what`.

    With `unreadable`, the format's name, pyarrow opens a file.
    """
    import pyarrow as pa

    try:
        yield
    except (pa.ArrowException, OSError, UnicodeError) as e:
        raise LoadObjectError(damage.unreadable(e, unreadable) if unreadable else f"{what}{damage.words(e)}") from e


def renamed(schema: Any) -> Any:
    """Return an Arrow schema in which every column has a name."""
    import pyarrow as pa

    return pa.schema([field.with_name(field.name or UNNAMED) for field in schema])


def _shape(file: Any) -> Shape:
    schema = renamed(file.schema_arrow)
    leaves = [file.schema.column(n) for n in range(len(file.schema))]
    walk = Walk()
    foreign, flat = [], []
    for field, original in zip(schema, file.schema_arrow, strict=True):
        numbers = walk.field(field, (field.name,), 0)
        strange = [str(leaves[n].logical_type) for n in numbers if leaves[n].logical_type.type in _FOREIGN]
        # ClickHouse 26.9 reads a map without values, which is a set of keys, as a tuple.
        is_set = not _has_maps(field.type) and any(leaves[n].path.endswith(".key_value.key") for n in numbers)
        if strange or is_set or not original.name:
            foreign.append(field.name)
        if strange:
            log.info(
                "column %r: no ClickHouse type for %s: loading the stored values", field.name, ", ".join(strange)
            )
        if field.nullable and not _parts(getattr(field.type, "storage_type", field.type)):
            flat.append((field.name, numbers[0]))
    columns = columns_of(schema)
    keeping = tuple(field_type(field, keep=True) for field in schema)
    return Shape(tuple(columns), keeping, tuple(walk.found), tuple(flat), tuple(foreign))


class Walk:
    """Finds the lists, maps and structs that may be NULL, in the order of the columns of Parquet."""

    def __init__(self) -> None:
        self.found: list[Nested] = []
        self._next = 0

    def field(self, field: Any, path: tuple[str, ...], level: int) -> tuple[int, ...]:
        """Return the numbers of a field's Parquet columns; `level` is the level of its parent."""
        kind = getattr(field.type, "storage_type", field.type)
        here = level + field.nullable
        if not (parts := _parts(kind)):
            self._next += 1
            return (self._next - 1,)
        name = "struct" if not hasattr(kind, "value_field") and not hasattr(kind, "key_field") else "list"
        name = "map" if hasattr(kind, "key_field") else name
        numbers = tuple(
            n for label, part in parts for n in self.field(part, (*path, label), here + (name != "struct"))
        )
        if field.nullable:
            self.found.append(Nested(path, name, level, numbers))
        return numbers


def _has_maps(kind: Any) -> bool:
    """Return whether a type is a map, or has one."""
    import pyarrow.types as of

    return of.is_map(kind) or any(_has_maps(part.type) for _, part in _parts(getattr(kind, "storage_type", kind)))


def _parts(kind: Any) -> list[tuple[str, Any]]:
    """Return the fields of a type with their names; none if it is not nested."""
    import pyarrow.types as of

    if of.is_map(kind):
        return [("key", kind.key_field), ("value", kind.item_field)]
    if of.is_struct(kind):
        return [(part.name, part) for part in kind]
    return [("[]", kind.value_field)] if hasattr(kind, "value_field") else []
