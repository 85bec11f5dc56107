"""Reads schemas and rows of ORC and Arrow objects on the worker."""

from __future__ import annotations

import io
import struct
from collections.abc import Iterator
from functools import cached_property
from typing import Any

from storeside.transfer.base.errors import LoadObjectError
from storeside.transfer.base.schema import Column
from storeside.transfer.formats.nulls import null_paths
from storeside.transfer.formats.orc_rows import stripes
from storeside.transfer.formats.parquet import (
    Facts,
    Nested,
    Rows,
    Shape,
    Walk,
    batches_of,
    columns_of,
    faults,
    renamed,
)
from storeside.transfer.objects.content import Content
from storeside.transfer.objects.streams import CHUNK
from storeside.transfer.types.arrow_types import field_type

# The mark before each message of a stream; a length of 0 after it ends the stream:
# https://arrow.apache.org/docs/format/Columnar.html#ipc-streaming-format
_MARK = b"\xff\xff\xff\xff"
# Bytes per request while only the headers of messages are read.
_HEADERS = 1 << 16
# Arrow types that ClickHouse 26.9 reads exactly. The worker reads objects with columns of other types.
_EXACT = (
    "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float", "double", "string",
    "large_string", "binary", "large_binary", "date32[day]",
)  # fmt: skip
_TEXT = ("string", "large_string")


class ColumnarObject:
    """An ORC or Arrow object. Every method raises LoadObjectError."""

    def __init__(self, content: Content, form: str) -> None:
        self.content = content
        self.form = form

    @cached_property
    def _file(self) -> Any:
        """A pyarrow reader, which has read the object's schema."""
        import pyarrow as pa
        from pyarrow import orc

        self.content.seek(0)
        # A file or stream of Arrow consists of many short messages, which are read one after the other.
        ahead = {"arrowstream": _Stream, "arrow": _Ahead}.get(self.form)
        file = pa.PythonFile(ahead(self.content) if ahead else self.content, mode="r")
        name = {"orc": "ORC", "arrow": "Arrow"}.get(self.form, "Arrow stream")
        with faults(unreadable=name):
            if self.form == "orc":
                return orc.ORCFile(file)
            if self.form == "arrow":
                return pa.ipc.open_file(file)
            check_end(self.content)
            return pa.ipc.open_stream(file)

    @cached_property
    def schema(self) -> Any:
        """The Arrow schema, in which every column has a name."""
        with faults():
            return renamed(self._file.schema)

    def columns(self) -> list[Column]:
        """Return the columns of the object."""
        return columns_of(self.schema)

    def facts(self) -> Facts:
        """Return the columns; the number of rows is -1 unless the footer states it, as ORC's does."""
        columns = tuple(self.columns())  # raises LoadObjectError, `field_type` TransferInputError
        keeping = tuple(field_type(field, keep=True) for field in self.schema)
        shape = Shape(
            columns, keeping, tuple(self._nested()),
            foreign=tuple(
                field.name for field, original in zip(self.schema, self._file.schema, strict=True)
                if not (_is_exact(field.type) and original.name)
            ),
            texts=tuple(field.name for field in self.schema if str(field.type) in _TEXT),
        )  # fmt: skip
        return Facts(shape, self._file.nrows if self.form == "orc" else -1, ())

    def _nested(self) -> list[Nested]:
        walk = Walk()
        for field in self.schema:
            walk.field(field, (field.name,), 0)
        return walk.found

    def nulls(self) -> frozenset[Nested]:
        """Return the lists, maps and structs that are NULL somewhere; this reads the rows if any may be."""
        left = {nested.path: nested for nested in self._nested()}
        found = set()
        for batch in batches_of(self._batches()) if left else ():
            for name, array in zip(batch.schema.names, batch.columns, strict=True):
                found |= {left.pop(path) for path in null_paths(array, (name,)) if path in left}
            if not left:
                break
        return frozenset(found)

    def rows(self) -> tuple[Any, Iterator[Any]]:
        """Return the Arrow schema and the rows in batches, with types that ClickHouse's reader accepts."""
        import pyarrow as pa

        schema = pa.schema([field.with_type(_sent(field.type)) for field in self.schema])

        def batches() -> Iterator[Any]:
            for batch in batches_of(self._batches()):
                with faults():
                    arrays = [_cast(array, field.type) for array, field in zip(batch.columns, schema, strict=True)]
                    yield pa.RecordBatch.from_arrays(arrays, schema=schema)

        return schema, batches()

    def _batches(self) -> Iterator[Any]:
        """Yield each stripe or batch of the object."""
        file = self._file
        each: Iterator[Any]
        if self.form == "orc":
            each = stripes(self.content)
        elif self.form == "arrow":
            each = map(file.get_batch, range(file.num_record_batches))
        else:
            del self._file  # a stream can be read once
            each = file
        for batch in each:
            yield batch.rename_columns(self.schema.names)


class Columnar:
    """ORC, Arrow's file format, or Arrow's stream, which pyarrow reads on the worker."""

    def __init__(self, form: str) -> None:
        self._form = form

    def columns(self, content: Content) -> list[Column]:
        """Return the columns of the schema."""
        return ColumnarObject(content, self._form).columns()

    def header(self, content: Content) -> tuple[tuple[Shape, frozenset[Nested]], int]:
        """Return the columns with the NULLs in them, and the number of rows."""
        found = ColumnarObject(content, self._form)
        told = found.facts()
        return (told.shape, found.nulls()), told.rows

    def body(self, content: Content, *, by_arrow: bool, is_large: bool, wrapped: frozenset[str]) -> Rows | None:
        """Return the rows of an object that ClickHouse cannot read, or that is too large for one request."""
        if by_arrow or is_large:
            return Rows(*ColumnarObject(content, self._form).rows())
        return None


class _Ahead(io.BufferedReader):
    """An Arrow file that is requested in pieces of a megabyte."""

    def __init__(self, content: Content) -> None:
        super().__init__(content, CHUNK)
        self._size = content.size

    def read(self, size: int | None = -1) -> bytes:
        """Return up to `size` bytes. A corrupt length would otherwise take all memory."""
        left = max(0, self._size - self.tell())
        return super().read(left if size is None or size < 0 else min(size, left))


class _Stream:
    """An Arrow stream as a file that refuses messages which claim to be longer than the object.

    pyarrow 26.0.1 allocates the memory for a message before it reads it: a corrupt length would take all memory.
    """

    closed = False  # pyarrow reads this attribute

    def __init__(self, content: Content) -> None:
        self._file = io.BufferedReader(content, CHUNK)
        self._size = content.size
        self._at = self._next = 0  # the position, and the end of the message whose body is read
        self._head = b""

    def read(self, size: int) -> bytes:
        """Return up to `size` bytes; none at the end. Raises OSError for a message that exceeds the object."""
        found = self._file.read(min(size, self._size - self._at))
        if self._at >= self._next:
            self._head += found
            self._check()
        self._at += len(found)
        return found

    def _check(self) -> None:
        """Find the end of the message whose header is being read, as soon as its lengths have arrived."""
        if (header := _header(self._head)) is None:
            return
        begin, end = header
        if len(self._head) >= end > begin:
            end += _body_length(self._head[begin:end])
            self._next, self._head = self._next + end, b""
        if self._next + (end if self._head else 0) > self._size:
            raise OSError(f"a message ends after the object's {self._size} bytes")

    def readable(self) -> bool:
        """Return True; pyarrow checks this before it reads."""
        return True

    def close(self) -> None:
        """Do nothing: no connection is open between reads."""


def check_end(content: Content) -> None:
    """Raise LoadObjectError unless an Arrow stream ends with its first end mark; this reads the headers of messages.

    ClickHouse and pyarrow take a stream that is cut between two messages for complete, and ignore what follows the
    first end mark, such as a second stream.
    """
    at = first = 0
    window, ahead = b"", _HEADERS

    def wanted(size: int) -> bytes:
        """Return `size` bytes from `at`; fewer at the end of the object."""
        nonlocal first, window, ahead
        if at + size > first + len(window):
            # Short messages follow each other: it takes fewer requests to read their bodies, too.
            ahead = min(2 * ahead, CHUNK) if at < first + len(window) + _HEADERS else _HEADERS
            first, window = at, content.range(at, min(max(size, ahead), content.size - at))
        return window[at - first : at - first + size]

    while at < content.size and (header := _header(wanted(8))) is not None:
        begin, end = header
        if end == begin:
            if at + end == content.size:
                return
            raise LoadObjectError(
                f"{content.size - at - end} bytes follow the mark of the Arrow stream's end: write one stream per"
                " object"
            )
        if at + end > content.size:
            break
        at += end + _body_length(wanted(end)[begin:])
    raise LoadObjectError(
        "it does not end with the mark of an Arrow stream's end, so it may be truncated: close the writer"
    )


def _header(head: bytes) -> tuple[int, int] | None:
    """Return where the metadata of the message that begins with `head` begin and end; None if `head` is too short."""
    begin = 8 if head.startswith(_MARK) else 4  # old streams have no mark before the length
    if len(head) < begin:
        return None
    return begin, begin + max(0, int.from_bytes(head[begin - 4 : begin], "little", signed=True))


def _body_length(message: bytes) -> int:
    """Return the field `bodyLength` of a message: https://github.com/apache/arrow/blob/main/format/Message.fbs.

    Raises OSError for a message without such a field.
    """
    try:
        (table,) = struct.unpack_from("<I", message)
        (back,) = struct.unpack_from("<i", message, table)
        size, *_, field = struct.unpack_from("<6H", message, table - back) if table >= back else (0, 0)
        if size < 12 or not field:  # the vtable has no entry for the fourth field: the default is 0
            return 0
        (length,) = struct.unpack_from("<q", message, table + field)
    except struct.error as e:
        raise OSError("a message has a corrupt header") from e
    if length < 0:
        raise OSError("a message has a corrupt header")
    return int(length)


def _is_exact(kind: Any) -> bool:
    import pyarrow.types as of

    return str(kind) in _EXACT or of.is_timestamp(kind) or of.is_decimal(kind)


def _sent(kind: Any) -> Any:
    """Return the type to send for a type that ClickHouse's Arrow reader refuses or reads as another."""
    import pyarrow as pa
    import pyarrow.types as of

    if of.is_date64(kind):
        return pa.date32()
    if of.is_duration(kind):
        return pa.int64()
    if of.is_null(kind):
        return pa.string()
    return pa.time32("ms") if kind == pa.time32("s") else kind


def _cast(array: Any, kind: Any) -> Any:
    return array if array.type == kind else array.cast(kind)
