"""Lists, maps and structs of Parquet that are NULL: ClickHouse's arrays, maps and tuples cannot be.

ClickHouse's reader makes them empty, or tuples of NULLs, without a word. The footer tells, for most objects, that
there are none: a column of which no value is NULL has no NULL around it either. Where it does not, the levels of one
column are looked at: counted in the footer by newer writers (`SizeStatistics`), else read.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from include.transfer.content import Content
from include.transfer.errors import ObjectError
from include.transfer.footer import Footer
from include.transfer.parquet import Facts, Nested, Shape, batches_of, faults, parquet_file
from include.transfer.schema import bare, is_nullable

_BATCH_ROWS = 65_536


def holds(target: str) -> bool:
    """Tell whether a column of this type can be NULL."""
    return is_nullable(target) or bare(target).startswith(("Variant(", "Dynamic"))


def keeps(keeping: str, target: str) -> bool:
    """Tell whether a column is of the type that keeps all structs that are NULL."""
    return keeping.replace("`", "") == target.replace("`", "")


def wanted(shape: Shape, targets: dict[str, str | None], *, refuse: bool) -> list[Nested]:
    """Return the lists, maps and structs of which it matters whether some are NULL.

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
    """Return those of which some may be NULL, by the footer's counts: a NULL is one of each of its columns."""
    return [nested for nested in among if all(facts.nulls[n] for n in nested.leaves)]


def present(content: Content, among: Sequence[Nested]) -> frozenset[Nested]:
    """Return those of which some are NULL in an object. Raises ObjectError."""
    if not among:
        return frozenset()
    footer = Footer(content)
    counts = {nested: footer.at_level(nested.leaves, nested.level) for nested in among}
    unknown = [nested for nested, count in counts.items() if count is None]
    return frozenset({nested for nested, count in counts.items() if count} | _by_levels(content, footer, unknown))


def _by_levels(content: Content, footer: Footer, among: Sequence[Nested]) -> set[Nested]:
    """Read, of each, its smallest column, until a NULL is there."""
    if not among:
        return set()
    file = parquet_file(content, pre_buffer=False)
    with faults():
        sizes = footer.sizes([n for nested in among for n in nested.leaves])
        leaves = {min(nested.leaves, key=lambda n: sizes[n]) for nested in among}
        paths = [file.schema.column(n).path for n in leaves]
        left = {nested.path: nested for nested in among}
        found = set()
        for batch in batches_of(file.iter_batches(_BATCH_ROWS, columns=paths)):
            for name, array in zip(batch.schema.names, batch.columns, strict=True):
                for path in _null_paths(array, (name,)):
                    if path in left:
                        found.add(left.pop(path))
            if not left:
                break
    return found


def _null_paths(array: Any, path: tuple[str, ...]) -> set[tuple[str, ...]]:
    """Return the paths of lists, maps and structs that are NULL somewhere in an array."""
    import pyarrow.types as of

    array = getattr(array, "storage", array)
    kind = array.type
    if not (of.is_struct(kind) or of.is_map(kind) or hasattr(kind, "value_field")):
        return set()
    found = {path} if array.null_count else set()
    if array.null_count:  # of what is in a NULL, all is NULL
        array = array.drop_null()
    if of.is_struct(kind):
        parts = [(kind.field(n).name, array.field(n)) for n in range(kind.num_fields)]
    elif of.is_map(kind):
        entries = array.flatten()
        parts = [("key", entries.field(0)), ("value", entries.field(1))]
    else:
        parts = [("[]", array.flatten())]
    return found.union(*(_null_paths(part, (*path, name)) for name, part in parts))


def emptied(array: Any) -> Any:
    """Return an array with empty lists and maps, and structs of NULLs, for those that are NULL."""
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
        parts = [emptied(part) for part in array.flatten()]
        fields = [pa.field(field.name, part.type) for field, part in zip(kind, parts, strict=True)]
        return pa.StructArray.from_arrays(parts, fields=fields)
    return _emptied_list(array) if hasattr(kind, "value_field") or of.is_map(kind) else array


def _emptied_list(array: Any) -> Any:
    import pyarrow as pa
    import pyarrow.types as of

    kind = array.type
    if of.is_map(kind):
        return pa.MapArray.from_arrays(array.offsets, array.keys, emptied(array.items))
    if not (of.is_list(kind) or of.is_large_list(kind)):
        return _emptied_list(array.cast(pa.large_list(kind.value_field)))
    made = pa.LargeListArray if of.is_large_list(kind) else pa.ListArray
    return made.from_arrays(array.offsets, emptied(array.values))


def wrapped(array: Any) -> Any:
    """Return an array of structs, NULL where the array was, whose one field `v` has nothing nested that is NULL."""
    import pyarrow as pa

    value = emptied(array)
    return pa.StructArray.from_arrays([value], fields=[pa.field("v", value.type)], mask=array.is_null())


def refusal(nulls: Iterable[Nested], target: str) -> ObjectError:
    """Return the error about lists, maps or structs that are NULL and that a column cannot hold."""
    first = min(nulls, key=lambda nested: (len(nested.path), nested.path))
    where = ".".join(first.path)
    type_ = "Nullable(Tuple(…))" if first.kind == "struct" else f"Variant({bare(target)})"
    such = f"give the column a type that holds NULL, such as {type_}, or " if len(first.path) == 1 else ""
    empty = {"struct": "tuples of NULLs", "list": "empty lists", "map": "empty maps"}[first.kind]
    return ObjectError(
        f"column {where!r} has a {first.kind} that is NULL, which {target} cannot hold: {such}load it with"
        f' on_null_nested="empty", which makes them {empty}'
    )
