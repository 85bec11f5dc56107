"""Sources of imports into HSDS: a dataset of a local HDF5 file, or the rows of Parquet files."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from storeside.hsds.errors import HsdsInputError, HsdsTransientError
from storeside.hsds.export import s3_call
from storeside.hsds.plan import Slab
from storeside.hsds.variable import INEXPRESSIBLE, has_references, is_expressible
from storeside.transfer.base import errors as transfer
from storeside.transfer.objects.content import Content
from storeside.transfer.objects.listing import list_objects

if TYPE_CHECKING:
    from types_boto3_s3 import S3Client

TableLayout = Literal["table", "wide", "array"]
LAYOUTS: tuple[TableLayout, ...] = get_args(TableLayout)
# The indexes that exports write: a column before the values, or several with the layout `long`.
_INDEXES = {name: pa.field(name, pa.uint64(), nullable=False) for name in ("i0", "i1")}
_CHUNK_BYTES = 2 << 20
# The file, the rows, and the statistics of the first column of a row group.
_Ends = tuple[str, int, Any]


class Hdf5Source:
    """A dataset of a local HDF5 file, which has its values: a file may name any other file of the worker instead."""

    def __init__(self, file: Any, path: str) -> None:
        import h5py

        found = file.get(path)
        if not isinstance(found, h5py.Dataset) or found.shape is None:
            raise HsdsInputError(f"{file.filename}: has no dataset {path!r} with values")
        if found.file != file or found.external or found.is_virtual:
            raise HsdsInputError(
                f"{file.filename}: {path!r} names other files or datasets, which have its values (an external link,"
                " external storage or a virtual dataset): write the values into this file"
            )
        if has_references(found.dtype):
            raise HsdsInputError(
                f"{file.filename}: {path!r} has references to objects of this file, which lead nowhere in HSDS:"
                " import the datasets to which they refer"
            )
        if not is_expressible(found.dtype):
            raise HsdsInputError(
                f"{file.filename}: {path!r} has elements that HSDS's format cannot express: {INEXPRESSIBLE}"
            )
        status = Path(file.filename).stat()
        self._dataset = found
        self.dtype: np.dtype[Any] = found.dtype
        self.shape: tuple[int, ...] = found.shape
        self.chunks: tuple[int, ...] = found.chunks or chunks_of(found.shape, found.dtype)
        self.identity = f"{Path(file.filename).resolve()}|{path}|{status.st_size}|{status.st_mtime_ns}"

    def read(self, slab: Slab) -> np.ndarray[Any, Any]:
        """Return the elements of a slab. Raises HsdsInputError if the file is damaged."""
        selection = tuple(slice(d.start, d.stop, d.step) for d in slab.dimensions)
        try:
            return np.asarray(self._dataset[selection], self.dtype.base)
        except OSError as e:
            raise HsdsInputError(f"{self._dataset.file.filename}, {slab.select}: cannot be read: {e}") from e


class ParquetSource:
    """Parquet files in sequence as one dataset, without the column ``i0`` that exports add.

    The layout `table` reads each row as an element with one field per column. `wide` reads each row from columns of
    one type. `array` reads a single column with lists of equal length. One row group is in memory at a time.
    """

    def __init__(self, files: Sequence[tuple[str, Callable[[], Any]]], layout: str, identity: str) -> None:
        if layout not in LAYOUTS:
            raise HsdsInputError(f"layout {layout!r}: choose one of {', '.join(LAYOUTS)}")
        if not files:
            raise HsdsInputError("there are no Parquet files to import: correct the path or prefix")
        self.layout, self.identity = layout, f"{identity}|{layout}"
        self._files = files
        self._groups: list[tuple[int, int, int]] = []  # first row, file, row group
        self._lock = threading.Lock()
        self._held: tuple[int, pa.Table] | None = None
        rows, self._schema, ends = self._look()
        columns = self._without_index()
        if len(columns) < len(self._schema.names):
            _check_index(ends)
        self._columns = columns
        self._kinds = [element_type(self._schema.field(name)) for name in columns]
        self.dtype, inner = self._element()
        self.shape = (rows, *inner)
        self.chunks = chunks_of(self.shape, self.dtype)

    def read(self, slab: Slab) -> np.ndarray[Any, Any]:
        """Return the elements of a slab of whole rows. Raises HsdsInputError for NULL and for unequal lists."""
        rows = slab.dimensions[0]
        with self._lock:
            table = pa.concat_tables(list(self._rows(rows.start, rows.stop)))
        if self.layout == "array":
            return self._lists(table)
        plain = [self._plain(table.column(name), name, self._kinds[n]) for n, name in enumerate(self._columns)]
        if self.layout == "wide":
            return np.column_stack(plain)
        if self.dtype.names is None:
            return plain[0]
        found = np.empty(len(rows), self.dtype)
        for name, values in zip(self._columns, plain, strict=True):
            found[name] = values
        return found

    def _look(self) -> tuple[int, pa.Schema, list[_Ends]]:
        schema, rows, ends = None, 0, list[_Ends]()
        for number, (name, _) in enumerate(self._files):
            with self._opened(number) as file:
                if schema is not None and not schema.equals(file.schema_arrow):
                    raise HsdsInputError(f"{name}: its columns differ from {self._files[0][0]}: import it separately")
                schema = schema or file.schema_arrow
                for group in range(file.num_row_groups):
                    found = file.metadata.row_group(group)
                    self._groups.append((rows, number, group))
                    ends.append((name, found.num_rows, found.column(0).statistics))
                    rows += found.num_rows
        return rows, schema, ends

    def _without_index(self) -> list[str]:
        """Return the columns without the index ``i0``, if it is as exports write it."""
        names: list[str] = self._schema.names
        indexes = [n for n in names[:2] if n in _INDEXES and self._schema.field(n).equals(_INDEXES[n])]
        if indexes == [*_INDEXES]:
            raise HsdsInputError(
                f"{self._files[0][0]}: has the layout 'long' of exports, whose rows are elements: export with 'wide'"
                " or 'array', or rename the columns i0 and i1 to import them as values"
            )
        return names[1:] if indexes[:1] == names[:1] and len(names) > 1 else names

    @contextmanager
    def _opened(self, number: int) -> Iterator[pq.ParquetFile]:
        name, opening = self._files[number]
        try:
            with opening() as raw:
                yield pq.ParquetFile(raw, page_checksum_verification=True)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError) as e:
            raise HsdsInputError(f"{name}: is not a Parquet file that can be read: {e}") from e
        except transfer.TransferTransientError as e:
            raise HsdsTransientError(str(e)) from e
        except (transfer.TransferError, OSError) as e:
            raise HsdsInputError(f"{name}: {e}") from e

    def _rows(self, start: int, stop: int) -> Iterator[pa.Table]:
        """Yield the rows of a range, row group after row group."""
        for n, (first, number, group) in enumerate(self._groups):
            end = self._groups[n + 1][0] if n + 1 < len(self._groups) else self.shape[0]
            if first >= stop or end <= start:
                continue
            if self._held is None or self._held[0] != n:
                self._held = None
                with self._opened(number) as file:
                    self._held = n, file.read_row_group(group, columns=self._columns)
            low, high = max(start, first), min(stop, end)
            yield self._held[1].slice(low - first, high - low)

    def _element(self) -> tuple[np.dtype[Any], tuple[int, ...]]:
        """Return the type of the elements, and the dimensions after that of the rows."""
        self._check_columns()
        if self.layout == "table":
            if len(self._columns) == 1:
                return self._kinds[0], ()
            return np.dtype(list(zip(self._columns, self._kinds, strict=True))), ()
        if self.layout == "wide":
            return self._kinds[0], (len(self._columns),)
        with self._opened(0) as file:
            first = next(file.iter_batches(1, columns=self._columns), None)
        inner, value = [], first.column(0).to_pylist()[0] if first else None
        while isinstance(value, list):
            inner.append(len(value))
            value = value[0] if value else None
        if not inner or 0 in inner:
            raise HsdsInputError(f"layout 'array': column {self._columns[0]!r} has no lists with values")
        return self._kinds[0], tuple(inner)

    def _check_columns(self) -> None:
        """Raise HsdsInputError for columns that do not fit the layout."""
        if self.layout == "array":
            if len(self._columns) != 1 or self._kinds[0].kind == "O":
                raise HsdsInputError(
                    f"layout 'array': needs one column of lists of numbers, there are {self._columns}"
                )
            return
        for name in self._columns:
            if pa.types.is_nested(self._schema.field(name).type):
                alone = "" if len(self._columns) == 1 else ", with files that have only this column"
                raise HsdsInputError(f"layout {self.layout!r}: column {name!r} has lists: choose 'array'{alone}")
        if self.layout == "wide":
            if any(kind.kind not in "iufb" for kind in self._kinds):
                raise HsdsInputError("layout 'wide': needs columns of numbers only: choose 'table'")
            # A common type would round: for int64 and float32 it is float64, which cannot represent 2^53 + 1.
            first = self._schema.field(self._columns[0])
            for field in map(self._schema.field, self._columns):
                if field.type != first.type:
                    raise HsdsInputError(
                        f"layout 'wide': column {first.name!r} is {first.type}, column {field.name!r} is"
                        f" {field.type}: cast them to one type, or choose 'table'"
                    )

    def _lists(self, table: pa.Table) -> np.ndarray[Any, Any]:
        column = table.column(0).combine_chunks()
        shape, name = (len(column), *self.shape[1:]), self._columns[0]
        for length in self.shape[1:]:
            if column.null_count or pc.any(pc.not_equal(pc.list_value_length(column), length)).as_py():
                raise HsdsInputError(
                    f"column {name!r}: has NULL, or lists without {length} values, as in the first row"
                )
            column = column.flatten()
        return self._plain(column, name, self.dtype).reshape(shape)

    def _plain(self, column: Any, name: str, kind: np.dtype[Any]) -> np.ndarray[Any, Any]:
        if column.null_count:
            raise HsdsInputError(f"column {name!r}: has NULL, which HDF5 lacks: fill it in, or omit the rows")
        found = np.asarray(column.to_pylist(), object) if kind.kind == "O" else column.to_numpy(**_zero(column))
        return found.astype(kind, copy=False)


def _check_index(groups: Iterable[_Ends]) -> None:
    """Raise HsdsInputError if ``i0`` does not continue: a file is missing, or is of another export."""
    last: int | None = None
    steps: set[float] = set()
    for name, rows, ends in groups:
        if not rows:
            continue
        if not ends or not ends.has_min_max:
            last = None
            continue
        steps |= {ends.min - last} if last is not None else set()
        steps |= {(ends.max - ends.min) / (rows - 1)} if rows > 1 else set()
        if len(steps) > 1 or min(steps, default=1) <= 0:
            raise HsdsInputError(
                f"{name}: its index i0 does not continue that of the rows before: import all files of one export,"
                " and no others, or rename the column i0 to import it as values"
            )
        last = ends.max


def _zero(column: Any) -> dict[str, bool]:
    return {} if isinstance(column, pa.ChunkedArray) else {"zero_copy_only": False}


def element_type(field: pa.Field) -> np.dtype[Any]:
    """Return the NumPy type of a column's values. Raises HsdsInputError for types without an HDF5 equivalent."""
    kind = field.type
    while pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        kind = kind.value_type
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return np.dtype("O", metadata={"vlen": str})
    if pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind):
        found: np.dtype[Any] = np.dtype(kind.to_pandas_dtype())
        return found
    raise HsdsInputError(f"column {field.name!r}: HDF5 has no type for {field.type}: cast it to a number or a string")


def chunks_of(shape: Sequence[int], dtype: np.dtype[Any]) -> tuple[int, ...]:
    """Return chunks of about 2 MB, with whole rows if they fit; HSDS recommends 1 to 4 MB."""
    chunk, size = [max(n, 1) for n in shape], max(dtype.itemsize, 1)
    for n in range(len(chunk)):
        rest = size * int(np.prod(chunk[n + 1 :], dtype=np.int64))
        chunk[n] = max(1, min(chunk[n], _CHUNK_BYTES // rest))
    return tuple(chunk)


def local_parquet(path: Path, layout: str) -> ParquetSource:
    """Return one Parquet file, or all in a folder, sorted by name. Raises HsdsInputError if there is none."""
    files = sorted(path.glob("**/*.parquet")) if path.is_dir() else [path]
    missing = [file for file in files if not file.is_file()]
    if missing:
        raise HsdsInputError(f"{missing[0]}: this file does not exist on the worker")
    told = [[str(file), file.stat().st_size, file.stat().st_mtime_ns] for file in files]
    return ParquetSource([(str(file), partial(file.open, "rb")) for file in files], layout, digest(told))


def s3_parquet(s3: S3Client, bucket: str, prefix: str, layout: str) -> ParquetSource:
    """Return the Parquet objects below a prefix, sorted by key. Raises HsdsInputError without objects or access."""

    def found() -> list[Any]:
        return [o for page in list_objects(s3, bucket, prefix) for o in page if o.key.endswith(".parquet")]

    listed = s3_call(found, f"s3://{bucket}/{prefix}")

    def opening(key: str, size: int, etag: str) -> Callable[[], Any]:
        return lambda: Content(s3, bucket, key, size, etag)

    files = [(f"s3://{bucket}/{o.key}", opening(o.key, o.size, o.etag)) for o in listed]
    return ParquetSource(files, layout, digest([[bucket, o.key, o.etag, o.size] for o in listed]))


def digest(value: Any) -> str:
    """Return a short hash that identifies a value."""
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()[:16]
