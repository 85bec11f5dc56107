"""The rows that a worker sends as Arrow: of Parquet and ORC, and of dialects of CSV that pyarrow parses."""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from storeside.transfer.base.errors import lacks
from storeside.transfer.base.schema import UNNAMED, bare
from storeside.transfer.formats.nulls import emptied, wrapped
from storeside.transfer.formats.parquet import batches_of, faults, renamed
from storeside.transfer.formats.text_rows import one_column
from storeside.transfer.objects.content import Content
from storeside.transfer.objects.streams import CHUNK
from storeside.transfer.request.object_format import Csv
from storeside.transfer.staging.private import quiet
from storeside.transfer.statements.reading import Reading
from storeside.transfer.types.conversion import PARSED


def first_of(schema: Any, batches: Iterator[Any], most_rows: int) -> tuple[Any, Iterator[Any]]:
    """Return Arrow batches with up to `most_rows` rows in all; 0 means no limit."""

    def first() -> Iterator[Any]:
        left = most_rows
        for batch in batches:
            yield batch.slice(0, left)
            left -= len(batch)
            if left <= 0:
                return

    return schema, first() if most_rows else batches


def stream(schema: Any, batches: Iterator[Any]) -> Iterator[bytes]:
    """Yield the rows as a stream of Arrow's IPC format."""
    import pyarrow as pa

    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, schema) as writer:
        for batch in batches:
            writer.write_batch(batch)
            if sink.tell() >= CHUNK:
                yield sink.getvalue()
                sink.seek(0)
                sink.truncate()
    yield sink.getvalue()


def sendable(schema: Any, batches: Iterator[Any], reading: Reading) -> tuple[Any, Iterator[Any]]:
    """Return the rows of a Parquet object as Arrow arrays that ClickHouse's Arrow reader accepts.

    That reader refuses values that the Parquet reader accepts: NULL structs for tuples, and some kinds of lists.
    """
    import pyarrow as pa

    schema = renamed(schema)

    def changed(name: str, array: Any) -> Any:
        if name in reading.as_it_is:
            return array
        return wrapped(array) if name in reading.wrapped else emptied(array)

    def columns(arrays: Sequence[Any]) -> list[Any]:
        return [changed(name, array) for name, array in zip(schema.names, arrays, strict=True)]

    with faults():
        empty = columns([pa.nulls(0, field.type) for field in schema])
    sent = pa.schema([pa.field(name, array.type) for name, array in zip(schema.names, empty, strict=True)])

    def rows() -> Iterator[Any]:
        for batch in batches:
            with faults():
                yield pa.RecordBatch.from_arrays(columns(batch.columns), schema=sent)

    return sent, rows()


def csv_batches(content: Content, reading: Reading) -> tuple[Any, Iterator[Any]]:
    """Return the rows of a CSV object that pyarrow parses. Raises LoadObjectError, also DriftError."""
    import pyarrow as pa

    dialect = reading.form.csv
    types = {column.name: _arrow_type(column.type, dialect) for column in reading.columns}
    if UNNAMED in types:
        types[""] = types[UNNAMED]
    has_one = _has_one_column(content.sample(CHUNK), dialect)
    with quiet(reading.hides):
        reader = csv_reader(content.plain(), dialect, types, has_one=has_one)
        with faults():
            unknown = [name for name in reader.schema.names if (name or UNNAMED) not in types]
        if unknown and reading.skips:  # types that the first rows show may not fit later rows
            reader = csv_reader(
                content.plain(), dialect, types | dict.fromkeys(unknown, pa.string()), has_one=has_one
            )
        elif unknown:
            raise lacks("the table", unknown)

    schema = reader.schema.with_metadata(None)
    named = schema if "" not in schema.names else schema_of([name or UNNAMED for name in schema.names], schema)

    def batches() -> Iterator[Any]:
        with quiet(reading.hides):
            for batch in batches_of(reader):
                yield batch.rename_columns(named.names)

    return named, batches()


def schema_of(names: Sequence[str], schema: Any) -> Any:
    """Return a schema with other names."""
    import pyarrow as pa

    return pa.schema([field.with_name(name) for name, field in zip(names, schema, strict=True)])


def _arrow_type(kind: str, csv: Csv) -> Any:
    import pyarrow as pa

    kinds = {"Int64": pa.int64(), "UInt64": pa.uint64(), "Bool": pa.bool_()}
    if (core := bare(kind)) == PARSED:
        return pa.timestamp("us", "UTC" if csv.has_offsets else None)
    return kinds.get(core, pa.string())


def _has_one_column(sample: bytes, csv: Csv) -> bool:
    """Return whether the first row of a CSV dialect has a single column."""
    if csv.names:
        return len(csv.names) == 1
    lines = sample.decode(csv.encoding, "replace").splitlines()[csv.skip_rows :]
    return one_column(next(filter(None, lines), "").encode(csv.encoding, "replace"), csv)


def csv_reader(file: Any, csv: Csv, types: Mapping[str, Any], *, has_one: bool = False) -> Any:
    """Return pyarrow's streaming reader of a CSV dialect. If the text `has_one` column, blank lines are empty values.

    The first rows decide the type of columns without one. Raises LoadObjectError when these rows cannot be read.
    """
    import pyarrow as pa
    import pyarrow.csv as pc

    with faults():
        return pc.open_csv(
            file if isinstance(file, pa.NativeFile) else pa.PythonFile(file, mode="r"),
            read_options=pc.ReadOptions(
                block_size=4 * CHUNK,
                skip_rows=csv.skip_rows,
                encoding=csv.encoding,
                column_names=list(csv.names) or None,
            ),
            parse_options=pc.ParseOptions(
                delimiter=csv.delimiter,
                quote_char=csv.quote or False,
                escape_char=csv.escape or False,
                newlines_in_values=True,
                ignore_empty_lines=not has_one,
            ),
            convert_options=pc.ConvertOptions(
                column_types=types,
                null_values=["", *csv.null_values],
                strings_can_be_null=True,
                quoted_strings_can_be_null=False,
                true_values=list(csv.true_values) or None,
                false_values=list(csv.false_values) or None,
                timestamp_parsers=[*csv.timestamp_formats, pc.ISO8601] if csv.timestamp_formats else None,
            ),
        )
