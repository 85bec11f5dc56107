"""The rows of Iceberg's data files as a snapshot has them: without deleted rows, and with the table's columns.

The worker writes them into a temporary Parquet file, which a load then reads like an object.
"""

from __future__ import annotations

import io
import json
import os
import tempfile
import threading
import weakref
import zlib
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import IO, TYPE_CHECKING, Any

from storeside.transfer.base.errors import LoadObjectError, TransferInputError, about
from storeside.transfer.formats.parquet import ParquetObject, faults, row_groups
from storeside.transfer.lakes.fields import Fields, have_ids, repeated
from storeside.transfer.objects.content import Content
from storeside.transfer.request.source import EDIT, Source

if TYPE_CHECKING:
    from types_boto3_s3 import S3Client

    from storeside.transfer.state.loads import Planned

# The columns of a file with position deletes.
PATH, _POSITION = 2147483546, 2147483545
_MAGIC = b"\xd1\xd39d"
# Bytes of edited files that are kept for their next use; each is used twice, for its columns and for its rows.
_KEPT = 1 << 30
# Rows of a file of deletes, and bytes of a deletion vector, that are in memory.
_MOST_DELETES, _MOST_BYTES = 20_000_000, 256 << 20
REWRITE = "rewrite the table's data files, for example with Spark's rewrite_data_files"


@dataclass(frozen=True)
class DeleteFile:
    """A file of row-level deletes.

    :param key: its key in the bucket
    :param size: its size in bytes
    :param rows: the number of its deletes
    :param columns: ids of the columns whose values delete a row; empty for positions
    :param offset: first byte of a deletion vector in the file
    :param length: bytes of the deletion vector; 0 for a Parquet file
    """

    key: str
    size: int
    rows: int
    columns: tuple[int, ...] = ()
    offset: int = 0
    length: int = 0


@dataclass(frozen=True)
class Edit:
    """How the rows of a data file differ from its content.

    :param path: the file's location as position deletes name it
    :param deletes: the files with deletes that apply to it
    :param fields: the table's columns by field id; None if the file's own columns are those
    :param constants: values of columns that the file may lack, by field id
    """

    path: str
    deletes: tuple[DeleteFile, ...] = ()
    fields: Fields | None = None
    constants: Mapping[int, Any] = field(default_factory=dict)

    @property
    def digest(self) -> str:
        """A digest of all that changes the rows of the file, for its version in the ledger."""
        decisive = [sorted((o.key, o.offset) for o in self.deletes), self.fields.decisive if self.fields else []]
        return sha256(json.dumps(decisive).encode()).hexdigest()[:16]


class Editor:
    """Reads data files with the client of the load, and applies their edits, by key."""

    def __init__(self, client: S3Client, source: Source, edits: Mapping[str, Edit]) -> None:
        self.client, self.source, self.edits = client, source, edits
        self._kept: OrderedDict[tuple[str, str], Content] = OrderedDict()
        self._lock = threading.Lock()

    def content(self, o: Planned) -> Content:
        """Return the edited content of a planned file. Raises LoadObjectError and TransferTransientError."""
        name = (o.key, o.version)
        with self._lock:
            found = self._kept.get(name)
        if found is None:
            try:
                found = self._edited(o, self.edits[o.key])
            except LoadObjectError as e:
                raise about(e, o.key) from e
            with self._lock:
                self._kept[name] = found
                while len(self._kept) > 1 and sum(c.size for c in self._kept.values()) > _KEPT:
                    self._kept.popitem(last=False)
        return found

    def _edited(self, o: Planned, edit: Edit) -> Content:
        import pyarrow.parquet as pq

        original = Content(self.client, self.source.bucket, o.key, o.size, o.version.partition(EDIT)[0])
        schema, batches = row_groups(original)
        fields = edit.fields if edit.fields and not edit.fields.are_in(schema) else None
        if fields is None and not edit.deletes:
            return original
        kept = self._without_deleted(batches, schema, edit) if edit.deletes else batches
        if fields is not None:
            schema, kept = fields.schema(schema, edit.constants), fields.projected(kept, schema, edit.constants)
        file = tempfile.TemporaryFile()  # noqa: SIM115 - `EditedContent` closes it
        try:
            with faults(), pq.ParquetWriter(file, schema) as writer:
                for batch in kept:
                    if batch.num_rows:
                        writer.write_batch(batch)
            file.flush()
            return EditedContent(file, self.source.bucket, o.key)
        except BaseException:
            file.close()
            raise

    def _without_deleted(self, batches: Iterable[Any], schema: Any, edit: Edit) -> Iterator[Any]:
        """Yield the rows that no delete removes."""
        import numpy as np

        gone = self._positions(edit)
        ids = sorted({o.columns for o in edit.deletes if o.columns})
        if ids and not have_ids(schema):
            raise LoadObjectError(f"its columns have no field ids, and its rows are deleted by values: {REWRITE}")
        values = [found for columns in ids for found in self._values(columns, edit)]
        start = 0
        for batch in batches:
            first, last = np.searchsorted(gone, [start, start + batch.num_rows])
            keep = np.ones(batch.num_rows, bool)
            keep[gone[first:last] - start] = False
            for deleted in values:
                keep &= ~deleted.among(batch, schema)
            start += batch.num_rows
            with faults():
                yield batch if keep.all() else batch.filter(_array(keep))

    def _positions(self, edit: Edit) -> Any:
        """Return the numbers of the deleted rows of a data file, in their order."""
        import numpy as np

        found = [np.empty(0, np.int64)]
        for o in edit.deletes:
            if o.length:
                _require_few(o)
                found.append(_vector(self._content(o).range(o.offset, o.length), o))
            elif not o.columns:
                found += [self._of_path(batch, edit.path, o) for batch in self._batches(o)]
        return np.unique(np.concatenate(found))

    def _of_path(self, batch: Any, path: str, o: DeleteFile) -> Any:
        import numpy as np
        import pyarrow.compute as pc

        paths, positions = Fields.column(batch, batch.schema, PATH), Fields.column(batch, batch.schema, _POSITION)
        if paths is None or positions is None:
            raise LoadObjectError(f"{o.key}: it has no columns of position deletes: {REWRITE}")
        return np.asarray(positions.filter(pc.equal(_plain(paths), path)).cast("int64"))

    def _values(self, columns: tuple[int, ...], edit: Edit) -> Iterator[_Values]:
        """Yield the values of columns that delete rows of a data file, one for all files with the same types."""
        import pyarrow as pa

        parts: dict[tuple[Any, ...], list[list[Any]]] = {}
        for o in edit.deletes:
            if o.columns == columns:
                for batch in self._batches(o):
                    found = [Fields.column(batch, batch.schema, number) for number in columns]
                    for number, column in zip(columns, found, strict=True):
                        if column is None:
                            raise LoadObjectError(f"{o.key}: it lacks the column {number}, which it deletes by")
                    parts.setdefault(tuple(column.type for column in found), []).append(found)
        constants = {**(edit.fields.defaults if edit.fields else {}), **edit.constants}
        for some in parts.values():
            arrays = [pa.chunked_array(chunks) for chunks in zip(*some, strict=True)]
            yield _Values(columns, arrays, constants)

    def _content(self, o: DeleteFile) -> Content:
        return Content(self.client, self.source.bucket, o.key, o.size)

    def _batches(self, o: DeleteFile) -> Iterator[Any]:
        """Yield the rows of a file of deletes, as many as the table states."""
        _require_few(o)
        left = o.rows
        for batch in row_groups(self._content(o))[1]:
            left -= batch.num_rows
            if left < 0:
                raise LoadObjectError(f"{o.key}: it has more deletes than the table states, {o.rows}: restore it")
            yield batch


class _Values:
    """Rows of values, one array for each column; a row is deleted if its columns have the values of one of them.

    A NULL equals a NULL.
    """

    def __init__(self, columns: Sequence[int], arrays: Sequence[Any], constants: Mapping[int, Any]) -> None:
        self.columns, self.arrays, self.constants = columns, arrays, constants

    def among(self, batch: Any, schema: Any) -> Any:
        """Return which rows of a batch are deleted, as an array of numpy."""
        import numpy as np
        import pyarrow.compute as pc

        mine: Any = None
        theirs: Any = None  # numbers of the combinations of the columns so far
        for number, stored in zip(self.columns, self.arrays, strict=True):
            column = Fields.column(batch, schema, number)
            if column is None:
                column = repeated(self.constants.get(number), _plain(stored).type, batch.num_rows)
            column, values = _alike(column, stored)
            distinct = pc.unique(values)
            here, there = pc.index_in(column, distinct), pc.index_in(values, distinct)
            if mine is None:
                mine, theirs = here, there
                continue
            size = len(distinct)
            mine = pc.add(pc.multiply(mine.cast("int64"), size), here.cast("int64"))
            theirs = pc.add(pc.multiply(theirs.cast("int64"), size), there.cast("int64"))
            distinct = pc.unique(theirs)
            mine, theirs = pc.index_in(mine, distinct, skip_nulls=True), pc.index_in(theirs, distinct)
        return np.asarray(pc.is_valid(mine))


def _require_few(o: DeleteFile) -> None:
    """Raise LoadObjectError for more deletes than a worker holds in memory."""
    if o.rows > _MOST_DELETES or o.length > _MOST_BYTES:
        raise LoadObjectError(f"{o.key}: it has {o.rows} deletes, over {_MOST_DELETES}: {REWRITE}")


def _alike(column: Any, values: Any) -> tuple[Any, Any]:
    """Return two arrays of a column in the wider of their types. Raises LoadObjectError for values without equality.

    Iceberg forbids deletes by numbers of floating point: NaN and the two zeros have no agreed equality.
    """
    import pyarrow as pa

    deleted, stored = values.type, column.type
    column, values = _plain(column), _plain(values)
    if any(pa.types.is_floating(array.type) or pa.types.is_nested(array.type) for array in (column, values)):
        raise LoadObjectError(f"its rows are deleted by values of {deleted}, which a load does not compare")
    if column.type == values.type:
        return column, values
    both = (column.type, values.type)
    if all(pa.types.is_integer(kind) for kind in both):
        wide = pa.int64()
    elif all(pa.types.is_decimal(kind) for kind in both) and both[0].scale == both[1].scale:
        wide = pa.decimal128(max(kind.precision for kind in both), both[0].scale)
    else:
        raise LoadObjectError(f"its rows are deleted by values of {deleted}, and its column is {stored}")
    return column.cast(wide), values.cast(wide)


def _plain(array: Any) -> Any:
    """Return an array without an extension type, such as that of UUIDs, and with the one type of texts or bytes.

    Writers that use Arrow state its type in the file, such as a text with offsets of 64 bits, and others do not.
    """
    import pyarrow.types as of

    kind = getattr(array.type, "storage_type", array.type)
    kind = kind.value_type if of.is_dictionary(kind) else kind
    if of.is_string(kind) or of.is_large_string(kind) or of.is_string_view(kind):
        kind = "large_string"
    elif of.is_binary(kind) or of.is_large_binary(kind) or of.is_binary_view(kind):
        kind = "large_binary"
    return array if array.type == kind else array.cast(kind)


def _vector(blob: bytes, o: DeleteFile) -> Any:
    """Return the positions of a deletion vector, in their order. Raises LoadObjectError unless it is intact."""
    import numpy as np
    from pyroaring import BitMap64

    end = 4 + int.from_bytes(blob[:4], "big")
    body = blob[4:end]
    is_whole = len(blob) == o.length == end + 4 and body.startswith(_MAGIC)
    if not is_whole or zlib.crc32(body) != int.from_bytes(blob[end:], "big"):
        raise LoadObjectError(f"{o.key}: the deletion vector at byte {o.offset} is damaged: restore the file")
    found = BitMap64.deserialize(body[4:])
    if len(found) != o.rows:  # a few bytes may be billions of positions
        raise LoadObjectError(
            f"{o.key}: the deletion vector at byte {o.offset} has {len(found)} positions, and the table states"
            f" {o.rows}: restore the file"
        )
    return np.asarray(found.to_array(), np.int64)


def _array(mask: Any) -> Any:
    import pyarrow as pa

    return pa.array(mask)


class EditedContent(Content):
    """The content of a temporary file in the place of an object; the file ends with it."""

    def __init__(self, file: IO[bytes], bucket: str, key: str) -> None:
        super().__init__(None, bucket, key, os.fstat(file.fileno()).st_size)
        self.file = file
        weakref.finalize(self, file.close)

    def _get(self, reach: tuple[int, int] | None = None) -> _Body:
        first, last = reach or (0, self.size - 1)
        return _Body(self, first, last + 1)


class _Body(io.RawIOBase):
    """A part of a file, read as the body of a response of S3 is; several may be read at the same time."""

    def __init__(self, whole: EditedContent, start: int, end: int) -> None:
        self._whole, self._position, self._end = whole, start, end

    def readable(self) -> bool:
        """Return True."""
        return True

    def read(self, size: int = -1) -> bytes:
        """Return up to `size` bytes, all that are left if it is negative."""
        left = self._end - self._position
        content = os.pread(self._whole.file.fileno(), left if size < 0 else min(size, left), self._position)
        self._position += len(content)
        return content

    def iter_chunks(self, size: int) -> Iterator[bytes]:
        """Yield the rest in pieces of this number of bytes."""
        while content := self.read(size):
            yield content


def refuse_other_names(client: S3Client, source: Source, fields: Fields, o: Planned) -> None:
    """Raise TransferInputError if a file has a column of the table under another name, by its footer."""
    content = Content(client, source.bucket, o.key, o.size, o.version)
    try:
        is_wrong = not fields.are_in(ParquetObject(content).schema, most=True)
    except LoadObjectError:  # the load states the reason
        return
    if is_wrong:
        raise TransferInputError(
            f"{source.uri}: {o.key!r} has columns under other names than the table, which no longer has the schema"
            f" with which it was written: {REWRITE}"
        )
