"""The columns of Iceberg tables by field id, and files that have them under other names or in older types."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from storeside.transfer.base.errors import LoadObjectError
from storeside.transfer.formats.parquet import faults

if TYPE_CHECKING:
    from pyiceberg.schema import Schema

_ID = b"PARQUET:field_id"


@dataclass(frozen=True)
class Fields:
    """The columns of a `schema`; `decisive` are the ids and names of those that some file has in another way."""

    table: Schema
    decisive: tuple[tuple[int, str, str], ...] = ()

    @staticmethod
    def column(batch: Any, schema: Any, number: int) -> Any:
        """Return the column with a field id, also within structs; None if the batch has none."""
        import pyarrow.compute as pc

        if (path := _path(schema, number)) is None:
            return None
        found = batch.column(path[0])
        return pc.struct_field(found, path[1:]) if path[1:] else found

    @property
    def defaults(self) -> dict[int, Any]:
        """The values that older files have in columns which they lack, by field id."""
        found = {number: self.table.find_field(number).initial_default for number, _, _ in self.decisive}
        return {number: value for number, value in found.items() if value is not None}

    def are_in(self, schema: Any, *, most: bool = False) -> bool:
        """Return whether a file's columns have the names of the table's columns, and none has another id.

        The file may have fewer columns if `most`. A file without ids is read by its names then.
        """
        ids = {name: _id(part) for part in schema for name in (part.name,)}
        if most and not any(number is not None for number in ids.values()):
            return True
        return _same(self.table.fields, schema, most=most)

    def schema(self, of_file: Any, constants: Mapping[int, Any]) -> Any:
        """Return the Arrow schema of projected rows. Raises LoadObjectError."""
        import pyarrow as pa

        batch = pa.RecordBatch.from_arrays([pa.nulls(0, part.type) for part in of_file], schema=of_file)
        return self._batch(batch, of_file, constants).schema

    def projected(self, batches: Iterable[Any], of_file: Any, constants: Mapping[int, Any]) -> Iterator[Any]:
        """Yield batches of a file with the table's columns. Raises LoadObjectError for types without a promotion."""
        for batch in batches:
            yield self._batch(batch, of_file, constants)

    def _batch(self, batch: Any, of_file: Any, constants: Mapping[int, Any]) -> Any:
        import pyarrow as pa

        if not have_ids(of_file):
            raise LoadObjectError(
                "its columns have no field ids, and columns of the table were renamed or made again: rewrite it"
            )
        with faults():
            parts = [(part, batch.column(n)) for n, part in enumerate(of_file)]
            made = _struct(self.table.fields, parts, batch.num_rows, constants)
            return pa.RecordBatch.from_arrays([array for _, array in made], schema=pa.schema([f for f, _ in made]))


def have_ids(schema: Any) -> bool:
    """Return whether the columns of a file have field ids."""
    return all(_id(part) is not None for part in schema)


def _id(part: Any) -> int | None:
    number = (part.metadata or {}).get(_ID)
    return int(number) if number is not None else None


def _path(parts: Iterable[Any], number: int) -> list[int] | None:
    """Return the numbers of the fields, from the column down to a field within structs, by its id."""
    import pyarrow as pa

    for n, part in enumerate(parts):
        if _id(part) == number:
            return [n]
        if pa.types.is_struct(part.type) and (below := _path(part.type, number)) is not None:
            return [n, *below]
    return None


def _same(fields: Iterable[Any], parts: Iterable[Any], *, most: bool) -> bool:
    """Return whether the parts of a file have the names and ids of the table's fields, at all depths."""
    known = {field.field_id: field for field in fields}
    names = {field.name for field in known.values()}
    found = set()
    for part in parts:
        number = _id(part)
        if number is None or (number not in known and (part.name in names or not most)):
            return False
        if number in known:
            found.add(number)
            if part.name != known[number].name or not _same_inside(known[number].field_type, part.type, most=most):
                return False
    return most or found == set(known)


def _same_inside(wanted: Any, kind: Any, *, most: bool) -> bool:
    if wanted.is_primitive:
        return True
    if wanted.is_struct:
        return _same(wanted.fields, kind, most=most)
    if hasattr(wanted, "element_field"):
        return _same_inside(wanted.element_type, kind.value_type, most=most)
    return _same_inside(wanted.key_type, kind.key_type, most=most) and _same_inside(
        wanted.value_type, kind.item_type, most=most
    )


def _struct(
    fields: Iterable[Any], parts: list[tuple[Any, Any]], rows: int, constants: Mapping[int, Any]
) -> list[tuple[Any, Any]]:
    """Return the table's fields with their arrays, from those of a file."""
    import pyarrow as pa

    known = {_id(part): array for part, array in parts}
    made = []
    for field in fields:
        array = known.get(field.field_id)
        array = _missing(field, rows, constants) if array is None else _converted(field.field_type, array)
        made.append((pa.field(field.name, array.type), array))
    return made


def _converted(wanted: Any, array: Any) -> Any:
    """Return an array in the table's type."""
    import pyarrow as pa

    if wanted.is_primitive:
        return _promoted(wanted, array)
    array = pa.concat_arrays([array.take(pa.array(range(len(array)), pa.int64()))])  # without an offset
    mask = array.is_null()
    if wanted.is_struct:
        parts = [(array.type.field(n), array.field(n)) for n in range(array.type.num_fields)]
        made = _struct(wanted.fields, parts, len(array), {})
        return pa.StructArray.from_arrays([a for _, a in made], fields=[f for f, _ in made], mask=mask)
    if hasattr(wanted, "element_field"):
        values = _converted(wanted.element_type, array.values)
        part = pa.field("element", values.type)
        return type(array).from_arrays(array.offsets, values, type=_list(array, part), mask=mask)
    keys, items = _converted(wanted.key_type, array.keys), _converted(wanted.value_type, array.items)
    part = pa.field("value", items.type)
    return pa.MapArray.from_arrays(array.offsets, keys, items, pa.map_(keys.type, part), mask=mask)


def _list(array: Any, part: Any) -> Any:
    import pyarrow as pa

    return pa.large_list(part) if pa.types.is_large_list(array.type) else pa.list_(part)


def _promoted(wanted: Any, array: Any) -> Any:
    """Return an array in a primitive type of the table. Raises LoadObjectError unless Iceberg promotes its type."""
    import pyarrow as pa
    from pyiceberg.io.pyarrow import schema_to_pyarrow

    target, kind = schema_to_pyarrow(wanted, include_field_ids=False), array.type
    of = pa.types
    is_wider = (
        (of.is_integer(kind) and of.is_int64(target))
        or (of.is_float32(kind) and of.is_float64(target))
        or (of.is_decimal(kind) and of.is_decimal(target) and kind.scale == target.scale)
        or (of.is_date(kind) and of.is_timestamp(target) and target.tz is None)
    )
    if is_wider:
        return array.cast(target)
    if kind == target or _is_alike(kind, target):
        return array
    raise LoadObjectError(f"it has {kind} where the table has {wanted}: rewrite the file")


def _is_alike(kind: Any, target: Any) -> bool:
    """Return whether two types of Arrow hold the same values, such as texts with offsets of 32 and 64 bits."""
    import pyarrow.types as of

    groups = (
        (of.is_string, of.is_large_string, of.is_string_view),
        (of.is_binary, of.is_large_binary, of.is_binary_view, of.is_fixed_size_binary),
        (of.is_timestamp,), (of.is_time,), (of.is_null,),
    )  # fmt: skip
    stored = getattr(kind, "storage_type", kind)
    wanted = getattr(target, "storage_type", target)
    return any(any(is_a(stored) for is_a in group) and any(is_a(wanted) for is_a in group) for group in groups)


def _missing(field: Any, rows: int, constants: Mapping[int, Any]) -> Any:
    """Return the values of a column that a file lacks: of its partition, its initial default, or NULL."""
    import pyarrow as pa
    from pyiceberg.io.pyarrow import schema_to_pyarrow

    target = schema_to_pyarrow(field.field_type, include_field_ids=False)
    value = constants.get(field.field_id, field.initial_default)
    if value is None:
        if field.required:
            raise LoadObjectError(f"it lacks the column {field.name!r}, which has no NULL and no default")
        return pa.nulls(rows, target)
    return repeated(value, target, rows)


def repeated(value: Any, kind: Any, rows: int) -> Any:
    """Return an array with the same value in each row; it may be a text in Iceberg's notation of the type."""
    import pyarrow as pa

    plain = getattr(kind, "storage_type", kind)
    scalar = pa.scalar(value).cast(plain) if isinstance(value, str) else pa.scalar(value, plain)
    return pa.repeat(scalar, rows).cast(kind)
