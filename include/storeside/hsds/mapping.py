"""Converts the elements of a dataset to columns of a table, for each type and layout."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import pyarrow as pa

from storeside.hsds.errors import HsdsInputError
from storeside.hsds.plan import Slab

Layout = Literal["long", "wide", "array"]
LAYOUTS: tuple[Layout, ...] = get_args(Layout)
VALUE = "value"
MOST_WIDE = 1000
# Assumed bytes of a variable-length element: its content, and the overhead of NumPy, Python and Arrow.
VARIABLE_BYTES = 256
_INDEX = pa.uint64()
_NUMBERS = {
    "int8": pa.int8(), "int16": pa.int16(), "int32": pa.int32(), "int64": pa.int64(), "uint8": pa.uint8(),
    "uint16": pa.uint16(), "uint32": pa.uint32(), "uint64": pa.uint64(), "float16": pa.float32(),
    "float32": pa.float32(), "float64": pa.float64(), "bool": pa.bool_(),
}  # fmt: skip


class Leaf(NamedTuple):
    """A column of the table: its name, the path of fields to it in an element, and its NumPy type."""

    name: str
    fields: tuple[str, ...]
    dtype: np.dtype[Any]


@dataclass(frozen=True)
class Mapping:
    """The mapping of a dataset to a table.

    `long` has a row per element, with its indexes ``i0``, ``i1``, …. `wide` has a row per index of the first
    dimension and a column per index of the second, ``c0``, ``c1``, …. `array` has a row per index of the first
    dimension, with arrays. The fields of a compound type become columns; fields of a nested type are named
    ``outer_inner``.
    """

    dtype: np.dtype[Any]
    rank: int
    layout: str
    columns: range

    def __post_init__(self) -> None:
        if self.layout == "array" and self.rank < 2:
            raise HsdsInputError(f"layout 'array': needs two dimensions, the dataset has {self.rank}: choose 'long'")
        if self.layout == "wide" and (self.rank != 2 or len(self.leaves) > 1):
            raise HsdsInputError("layout 'wide': needs two dimensions and single values: choose 'long' or 'array'")
        if self.layout == "wide" and len(self.columns) > MOST_WIDE:
            raise HsdsInputError(
                f"layout 'wide': would make {len(self.columns)} columns, more than {MOST_WIDE}: choose 'array'"
            )
        names = self.schema.names
        double = sorted({name for name in names if names.count(name) > 1})
        if double:
            raise HsdsInputError(f"columns {', '.join(double)}: exist twice: rename the fields of the dataset")

    @cached_property
    def leaves(self) -> list[Leaf]:
        """The columns into which one element is split."""
        return _leaves(self.dtype)

    @property
    def whole_rows(self) -> bool:
        """Whether a slab must contain all elements of its first indexes."""
        return self.layout != "long"

    @property
    def element_bytes(self) -> int:
        """Bytes of an element in NumPy or Arrow, whichever needs more; estimated for variable lengths."""
        indexes = 8 * self.rank if self.layout == "long" else 0
        content = VARIABLE_BYTES if self.dtype.hasobject else self.dtype.itemsize
        return indexes + max(content, sum(_arrow_bytes(leaf.dtype) for leaf in self.leaves))

    @cached_property
    def schema(self) -> pa.Schema:
        """The columns of the table. No column is nullable, because HDF5 has no NULL."""
        indexes = [(f"i{n}", _INDEX) for n in range(self.rank if self.layout == "long" else 1)]
        kinds = [(leaf.name, arrow_type(leaf.dtype, leaf.name)) for leaf in self.leaves]
        if self.layout == "wide":
            kinds = [(f"c{n}", kinds[0][1]) for n in self.columns]
        elif self.layout == "array":
            for _ in range(self.rank - 1):
                kinds = [(name, pa.list_(pa.field("item", kind, nullable=False))) for name, kind in kinds]
        return pa.schema([pa.field(name, kind, nullable=False) for name, kind in (*indexes, *kinds)])

    def table(self, slab: Slab, elements: np.ndarray[Any, Any]) -> pa.Table:
        """Return the elements of a slab, which have the slab's shape, as a table.

        Raises:
            HsdsInputError: a string is not UTF-8.
        """
        if self.layout == "wide":
            (leaf,) = self.leaves
            values = [leaf_column(leaf, elements[:, n]) for n in range(elements.shape[1])]
        else:
            flat = elements.reshape((slab.count, *elements.shape[self.rank :]))
            values = [leaf_column(leaf, flat) for leaf in self.leaves]
            if self.layout == "array":
                values = [_nested(column, slab.shape) for column in values]
        return pa.Table.from_arrays([*self._indexes(slab), *values], schema=self.schema)

    def _indexes(self, slab: Slab) -> list[pa.Array]:
        """Return the index columns of a slab's elements."""
        found = []
        for n, dimension in enumerate(slab.dimensions if self.layout == "long" else slab.dimensions[:1]):
            numbers = np.arange(dimension.start, dimension.stop, dimension.step, dtype=np.uint64)
            if self.layout == "long":
                inner = math.prod(slab.shape[n + 1 :])
                numbers = np.tile(np.repeat(numbers, inner), math.prod(slab.shape[:n]))
            found.append(_numbers(numbers, _INDEX))
        return found


def arrow_type(dtype: np.dtype[Any], name: str) -> pa.DataType:
    """Return the Arrow type of a column. Raises HsdsInputError for types without an Arrow equivalent."""
    if dtype.subdtype:
        kind = arrow_type(dtype.subdtype[0], name)
        for _ in dtype.shape:
            kind = pa.list_(pa.field("item", kind, nullable=False))
        return kind
    if (variable := _variable(dtype)) is not None:
        if variable in (str, bytes):
            return pa.string()
        return pa.list_(pa.field("item", arrow_type(np.dtype(variable), name), nullable=False))
    if dtype.kind in "SU":
        return pa.string()
    if dtype.kind == "V" and not dtype.names:
        return pa.binary()
    found = _NUMBERS.get(dtype.newbyteorder("=").name)
    if found is None:
        raise HsdsInputError(f"column {name!r}: there is no column type for elements of {dtype}: omit the field")
    return found


def leaf_column(leaf: Leaf, elements: np.ndarray[Any, Any]) -> pa.Array:
    """Return one column of a one-dimensional array of elements."""
    values = elements
    for field in leaf.fields:
        values = values[field]
    return _column(values, leaf.dtype, leaf.name)


def _column(values: np.ndarray[Any, Any], dtype: np.dtype[Any], name: str) -> pa.Array:
    kind = arrow_type(dtype, name)
    if dtype.subdtype:
        return _nested(_column(values.reshape(-1), dtype.base, name), (len(values), *dtype.shape))
    if _variable(dtype) is not None:
        return _from_objects(values, dtype, kind, name)
    if dtype.kind == "S":
        # NumPy drops trailing zero bytes, as HDF5's padding requires.
        return _text(pa.array(values.astype(object), pa.binary()), name)
    if dtype.kind == "V":
        return pa.array([bytes(v) for v in values], pa.binary())
    return _numbers(np.ascontiguousarray(values, kind.to_pandas_dtype()), kind)


def _numbers(values: np.ndarray[Any, Any], kind: pa.DataType) -> pa.Array:
    """Return numbers as a column that shares their memory. `pa.array` would load pandas, which takes 60 MB."""
    content = np.packbits(values, bitorder="little") if values.dtype == bool else values
    return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(content)])


def _from_objects(values: np.ndarray[Any, Any], dtype: np.dtype[Any], kind: pa.DataType, name: str) -> pa.Array:
    """Return a column of variable-size elements; HSDS returns 0 for elements that were never written."""
    if _variable(dtype) in (str, bytes):
        texts: Callable[[Any], bytes] = lambda v: v.encode() if isinstance(v, str) else v or b""  # noqa: E731
        return _text(pa.array([texts(v) for v in values], pa.binary()), name)
    empty = np.zeros(0, kind.value_type.to_pandas_dtype())
    arrays = [v if isinstance(v, np.ndarray) else empty for v in values]
    offsets = np.zeros(len(arrays) + 1, np.int32)
    np.cumsum([len(v) for v in arrays], out=offsets[1:])
    base = np.dtype(_variable(dtype))
    flat = _column(np.concatenate(arrays).astype(base) if arrays else np.zeros(0, base), base, name)
    return pa.ListArray.from_arrays(_numbers(offsets, pa.int32()), flat, type=kind)


def _text(column: pa.Array, name: str) -> pa.Array:
    try:
        return column.cast(pa.string())
    except pa.ArrowInvalid as e:
        raise HsdsInputError(
            f"column {name!r}: has strings that are not UTF-8: write them as UTF-8, or as opaque values"
        ) from e


def _nested(column: pa.Array, shape: tuple[int, ...]) -> pa.Array:
    """Fold a column of all elements into lists, with one level for each dimension after the first."""
    for n in range(len(shape) - 1, 0, -1):
        offsets = np.arange(0, math.prod(shape[:n]) * shape[n] + 1, shape[n], dtype=np.int32)
        kind = pa.list_(pa.field("item", column.type, nullable=False))
        column = pa.ListArray.from_arrays(_numbers(offsets, pa.int32()), column, type=kind)
    return column


def _leaves(dtype: np.dtype[Any], fields: tuple[str, ...] = ()) -> list[Leaf]:
    if not dtype.names:
        return [Leaf("_".join(fields) or VALUE, fields, dtype)]
    return [leaf for name in dtype.names for leaf in _leaves(dtype[name], (*fields, name))]


def _variable(dtype: np.dtype[Any]) -> Any:
    """Return the base type of variable-length elements; None for other elements."""
    return dict(dtype.metadata or {}).get("vlen") if dtype.kind == "O" else None


def _arrow_bytes(dtype: np.dtype[Any]) -> int:
    if dtype.hasobject:
        return VARIABLE_BYTES
    return 2 * dtype.itemsize if dtype == np.float16 else dtype.itemsize
