"""Finds lists, maps and structs of Parquet that are NULL: ClickHouse's arrays, maps and tuples cannot be NULL.

ClickHouse's reader silently turns them into empty values, or tuples of NULLs. For most objects the footer proves that
they have none: a column without NULL values has no NULL around it either. Otherwise the definition levels of one
column decide. Newer writers count these in the footer (`SizeStatistics`); for other writers, the worker reads them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from storeside.transfer.base.errors import LoadObjectError
from storeside.transfer.base.schema import alike, bare, is_nullable
from storeside.transfer.formats.parquet import Facts, Nested, ParquetObject, Shape, batches_of, faults, renamed

# How footers name the writers that count the NULLs of dictionaries wrongly.
_MISCOUNTS = "parquet-cpp"
_BATCH_ROWS = 65_536


def holds(target: str) -> bool:
    """Return whether a column of this type can be NULL."""
    return is_nullable(target) or bare(target).startswith(("Variant(", "Dynamic"))


def keeps(keeping: str, target: str) -> bool:
    """Return whether a column's type `target` keeps all structs that are NULL, as the type `keeping` does."""
    return alike(keeping, target)


def wanted(shape: Shape, targets: dict[str, str | None], *, refuse: bool) -> list[Nested]:
    """Return the lists, maps and structs for which NULLs matter.

    `targets` are the types of the table's columns; with `refuse`, a NULL that a column cannot hold is an error.
    """
    if refuse:
        return list(shape.nested)
    keeping = {column.name: kept for column, kept in zip(shape.columns, shape.keeping, strict=True)}
    found = []
    for nested in shape.nested:
        name = nested.path[0]
        target = targets.get(name)
        if target is not None and (holds(target) if len(nested.path) == 1 else keeps(keeping[name], target)):
            found.append(nested)
    return found


def possible(facts: Facts, among: Iterable[Nested]) -> list[Nested]:
    """Return the lists, maps and structs that may be NULL: each such NULL counts in all columns below it."""
    return [nested for nested in among if all(facts.nulls[n] for n in nested.leaves)]


def present(parquet: ParquetObject, among: Sequence[Nested]) -> frozenset[Nested]:
    """Return the lists, maps and structs that are NULL somewhere in an object. Raises LoadObjectError."""
    if not among:
        return frozenset()
    counts = {nested: parquet.footer.at_level(nested.leaves, nested.level) for nested in among}
    unknown = [nested for nested, count in counts.items() if count is None]
    return frozenset({nested for nested, count in counts.items() if count} | _by_levels(parquet, unknown))


def miscounted(parquet: ParquetObject, facts: Facts) -> bool:
    """Return whether a footer counts no NULL in a column although a struct around it is NULL somewhere.

    pyarrow writes such footers for dictionaries in structs, such as pandas' categoricals: it counts the NULLs of the
    dictionary alone (tried with 26.0.1). ClickHouse 26.9 relies on the count: without an error, it gives rows the
    values of other rows. Newer versions of pyarrow also count definition levels, which give the true count. For files
    without these counts, the worker reads the levels. Raises LoadObjectError.
    """
    structs = [nested for nested in facts.shape.nested if nested.kind == "struct"]
    columns = {n for nested in structs for n in nested.leaves if facts.nulls[n] == 0}
    if not columns:
        return False
    footer = parquet.footer
    counts = {n: footer.without_value(n) for n in columns}
    if any(counts.values()):
        return True
    unknown = {n for n, count in counts.items() if count is None and footer.has_dictionary(n)}
    if not unknown or not footer.writer.startswith(_MISCOUNTS):
        return False
    return bool(_by_levels(parquet, [nested for nested in structs if unknown.intersection(nested.leaves)]))


def _by_levels(parquet: ParquetObject, among: Sequence[Nested]) -> set[Nested]:
    """Read the smallest column of each until a NULL is found."""
    if not among:
        return set()
    file = parquet.file(pre_buffer=False)
    with faults():
        sizes = parquet.footer.sizes([n for nested in among for n in nested.leaves])
        leaves = {min(nested.leaves, key=lambda n: sizes[n]) for nested in among}
        paths = [file.schema.column(n).path for n in leaves]
        left = {nested.path: nested for nested in among}
        whole = {field.name: field.type for field in renamed(file.schema_arrow)}
        found = set()
        for batch in batches_of(file.iter_batches(_BATCH_ROWS, columns=paths)):
            for name, array in zip(batch.schema.names, batch.columns, strict=True):
                for path in null_paths(array, (name,), whole.get(name)):
                    if path in left:
                        found.add(left.pop(path))
            if not left:
                break
    return found


def null_paths(array: Any, path: tuple[str, ...], whole: Any = None) -> set[tuple[str, ...]]:
    """Return the paths of lists, maps and structs that are NULL somewhere in an array.

    `whole` is the array's type with all columns below it. If only some columns of a map are read, pyarrow makes a
    list of structs.
    """
    import pyarrow.types as of

    array = getattr(array, "storage", array)
    kind = array.type
    whole = getattr(whole, "storage_type", whole) or kind
    if not (of.is_struct(kind) or of.is_map(kind) or hasattr(kind, "value_field")):
        return set()
    found = {path} if array.null_count else set()
    if array.null_count:  # everything within a NULL is NULL
        array = _without_null(array)
    if of.is_struct(kind):
        parts = [(field.name, array.field(n), whole.field(field.name).type) for n, field in enumerate(kind)]
    elif of.is_map(kind):
        entries = as_lists(array).flatten()
        parts = [("key", entries.field(0), whole.key_type), ("value", entries.field(1), whole.item_type)]
    elif of.is_map(whole):
        entries = array.flatten()
        types = {whole.key_field.name: ("key", whole.key_type), whole.item_field.name: ("value", whole.item_type)}
        parts = [
            (types[field.name][0], entries.field(n), types[field.name][1]) for n, field in enumerate(entries.type)
        ]
    else:
        parts = [("[]", array.flatten(), whole.value_type)]
    return found.union(*(null_paths(part, (*path, name), inner) for name, part, inner in parts))


def _without_null(array: Any) -> Any:
    """Return the values of an array that are not NULL."""
    import numpy as np
    import pyarrow as pa

    try:
        return array.drop_null()
    except pa.ArrowNotImplementedError:  # pyarrow 26.0.1 can neither take nor filter views of text within others
        is_valid = array.is_valid().to_numpy(zero_copy_only=False)
        edges = np.flatnonzero(np.diff(is_valid.astype(np.int8), prepend=0, append=0)).tolist()
        runs = zip(edges[::2], edges[1::2], strict=True)
        return pa.concat_arrays([array.slice(0, 0), *(array.slice(begin, end - begin) for begin, end in runs)])


def as_lists(array: Any) -> Any:
    """Return an array of maps as one of lists of structs with the fields key and value."""
    import pyarrow as pa

    kind = array.type
    entry = pa.struct([pa.field("key", kind.key_type, nullable=False), pa.field("value", kind.item_type)])
    return array.cast(pa.list_(entry))


def emptied(array: Any) -> Any:
    """Return an array in which NULL lists and maps are empty, and NULL structs are structs of NULLs."""
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.types as of

    kind = array.type
    if of.is_run_end_encoded(kind):
        array = pc.run_end_decode(array)
        kind = array.type
    if isinstance(kind, pa.BaseExtensionType):
        return emptied(array.storage) if of.is_nested(kind.storage_type) else array
    if of.is_struct(kind):
        parts = [emptied(_nulled(part, array)) for part in array.flatten()]
        fields = [pa.field(field.name, part.type) for field, part in zip(kind, parts, strict=True)]
        return pa.StructArray.from_arrays(parts, fields=fields)
    return _emptied_list(array) if hasattr(kind, "value_field") or of.is_map(kind) else array


def _nulled(part: Any, struct: Any) -> Any:
    """Return a field of a struct with NULL where the struct is; `flatten` leaves out run-end encoded fields."""
    import pyarrow.compute as pc
    import pyarrow.types as of

    return pc.if_else(struct.is_valid(), pc.run_end_decode(part), None) if of.is_run_end_encoded(part.type) else part


def _emptied_list(array: Any) -> Any:
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.types as of

    kind = array.type
    if of.is_map(kind):
        lists = as_lists(array)
        ends = pc.cumulative_sum(pc.fill_null(pc.list_value_length(lists), 0).cast(pa.int32()))
        entries = lists.flatten()
        return pa.MapArray.from_arrays(
            pa.concat_arrays([pa.array([0], pa.int32()), ends]), entries.field(0), emptied(entries.field(1))
        )
    # Lists of fixed size and list views are not cast to lists, because pyarrow 26.0.1 crashes for some of them. A
    # NULL list of fixed size still has values: `flatten` and the offsets leave them out.
    made, offset = (pa.ListArray, pa.int32()) if of.is_list(kind) else (pa.LargeListArray, pa.int64())
    ends = pc.cumulative_sum(pc.fill_null(pc.list_value_length(array), 0).cast(offset))
    return made.from_arrays(pa.concat_arrays([pa.array([0], offset), ends]), emptied(array.flatten()))


def wrapped(array: Any) -> Any:
    """Return an array of structs that are NULL where the array was; their one field `v` has no nested NULLs."""
    import pyarrow as pa

    value = emptied(array)
    return pa.StructArray.from_arrays([value], fields=[pa.field("v", value.type)], mask=array.is_null())


def refusal(nulls: Iterable[Nested], target: str) -> LoadObjectError:
    """Return the error for NULL lists, maps or structs that a column cannot hold."""
    first = min(nulls, key=lambda nested: (len(nested.path), nested.path))
    where = ".".join(first.path)
    type_ = "Nullable(Tuple(…))" if first.kind == "struct" else f"Variant({bare(target)})"
    such = f"give the column a type that holds NULL, such as {type_}, or " if len(first.path) == 1 else ""
    empty = {"struct": "tuples of NULLs", "list": "empty lists", "map": "empty maps"}[first.kind]
    return LoadObjectError(
        f"column {where!r} has a {first.kind} that is NULL, which {target} cannot hold: {such}load it with"
        f' on_null_nested="empty", which makes them {empty}'
    )
