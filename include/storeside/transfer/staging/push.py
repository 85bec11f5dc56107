"""The push loader: a worker streams objects that ClickHouse cannot reach or cannot address."""

from __future__ import annotations

import gzip
import io
import itertools
import lzma
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from clickhouse_connect.driver.exceptions import OperationalError

from storeside.sql.quoting import literal
from storeside.transfer.base import queries
from storeside.transfer.base.errors import DriftError, TransferError
from storeside.transfer.base.schema import UNNAMED, bare, structure
from storeside.transfer.formats.nulls import emptied, wrapped
from storeside.transfer.formats.parquet import Rows, batches_of, faults, renamed
from storeside.transfer.formats.registry import TEXTS, TYPED
from storeside.transfer.formats.text_rows import one_column
from storeside.transfer.objects.content import Content
from storeside.transfer.objects.streams import CHUNK, gathered, pieces
from storeside.transfer.objects.strict_json import checked
from storeside.transfer.request.object_format import Csv, Format
from storeside.transfer.staging.json_numbers import Numbers
from storeside.transfer.staging.origin import pushed_columns
from storeside.transfer.staging.private import quiet
from storeside.transfer.state.loads import Planned
from storeside.transfer.statements.composing import settings
from storeside.transfer.statements.reading import Reading
from storeside.transfer.types.conversion import PARSED

if TYPE_CHECKING:
    from clickhouse_connect.driver.client import Client

# ClickHouse keeps the whole body of a Parquet request in memory, so the worker sends larger objects by row group.
WHOLE_PARQUET = 256 << 20
# Encodings that ClickHouse accepts in requests. It does not detect truncated zstd and lz4 streams, and some builds
# lack bz2: the worker decompresses those.
_ENCODINGS = {"gzip": "gzip", "xz": "xz", "": None}
# The functions that pack a statement for a body of each encoding: streams of gzip and xz may follow each other.
_PACKERS: dict[str | None, Callable[[bytes], bytes]] = {"gzip": gzip.compress, "xz": lzma.compress, None: bytes}


def push(
    client: Client,
    content: Content,
    reading: Reading,
    planned: Planned,
    staging: str,
    system: Sequence[str],
    query_id: str,
    *,
    strict: bool = False,
    tidy: bool = False,
    first_row: int = 0,
    most_rows: int = 0,
) -> int:
    """Stream one object into the staging table; return the number of rows that ClickHouse read.

    The worker sends the object's bytes unchanged, unless it must parse them first. With `strict`, it checks JSON
    Lines while it sends them; see `strict_json`. With `tidy`, it sends the rows that `records` yields.
    `first_row` is the number of the first row, if the object is a member of an archive. With `most_rows`, it sends
    at most this number of rows, if it parses the object. It parses no text: `content` then has the first rows.
    """
    form = reading.form
    if form.is_stream and not planned.size:  # ClickHouse reports an empty request as a missing header
        return 0
    if not form.is_stream:
        body = TYPED[form.name].body(
            content, by_arrow=reading.by_arrow, is_large=most_rows > 0 or content.size > WHOLE_PARQUET,
            wrapped=reading.wrapped,
        )  # fmt: skip
        if isinstance(body, Rows):
            batches = _first_of(*_sendable(*body, reading), most_rows)
            return _insert_arrow(client, batches, reading, planned, staging, system, query_id, first_row)
        return insert(
            client, content.stream() if body is None else body, form.clickhouse, reading, planned, staging, system,
            query_id, first_row=first_row,
        )  # fmt: skip
    if not form.is_native:
        batches = _first_of(*_csv_batches(content, reading), most_rows)
        return _insert_arrow(client, batches, reading, planned, staging, system, query_id)
    tidy = tidy or form.joined
    if tidy:
        reading = replace(reading, form=replace(form, csv=replace(form.csv, skip_rows=0)))  # `records` removes them
    body, encoding = _unparsed(content, form, strict=strict, tidy=tidy)
    if strict and form.has_documents:
        body = Numbers(reading.columns).checked(body)
    if tidy or (form.is_text and content.archive):
        body = filter(None, body)
        if (first := next(body, None)) is None:
            return 0
        body = itertools.chain([first], body)
    return insert(
        client, body, form.clickhouse, reading, planned, staging, system, query_id, encoding=encoding,
        first_row=first_row,
    )  # fmt: skip


def _unparsed(content: Content, form: Format, *, strict: bool, tidy: bool) -> tuple[Iterator[bytes], str | None]:
    """Return an object's bytes as ClickHouse parses them, and their encoding in the request; see `push`."""
    if tidy:
        body = gathered(raw for _, raw in TEXTS[form.name].records(content.plain(), form))
        return (checked(body) if form.has_documents and strict else body), None
    if form.has_documents and strict:
        return content.json_lines(), None
    kind = content.compression
    return (content.stream(), _ENCODINGS[kind]) if kind in _ENCODINGS else (pieces(content.plain()), None)


def insert(
    client: Client, body: Iterator[bytes], kind: str, reading: Reading, planned: Planned, staging: str,
    system: Sequence[str], query_id: str, *, encoding: str | None = None, first_row: int = 0,
) -> int:  # fmt: skip
    """Send a body of ClickHouse's format `kind` through the reading's expressions; return the number of rows read.

    `body` can be read only once. The client would resend a body that it can read again if the connection broke after
    the rows arrived.
    """
    source = f"input({literal(structure(reading.columns))})"
    more: dict[str, Any] = {"query_id": query_id}
    if "_row_number" in system:  # ClickHouse numbers rows as they arrive, so they need one stream
        more |= {"max_threads": 1, "max_insert_threads": 1, "input_format_parquet_preserve_order": 1}
    elif kind == reading.form.clickhouse and reading.form.is_text and not encoding:
        more |= queries.fewer_parsers(client)
    faults: list[TransferError] = []
    statement = reading.insert(staging, pushed_columns(planned, system, first_row), source, key=literal(planned.key))
    packed = _PACKERS[encoding](f"INSERT INTO {statement} FORMAT {kind}\n".encode())
    try:
        summary = client.raw_insert(
            "",
            # The statement is the beginning of the body: a parameter of the address has at most 128 KiB.
            insert_block=_watched(packed, body, faults),
            compression=encoding,
            settings=settings(reading.form, **more, **dict(reading.settings)),
        )
    except OperationalError:
        if faults:
            raise faults[0] from None
        raise
    return int(summary.summary.get("read_rows", 0))


def _watched(head: bytes, body: Iterator[bytes], faults: list[TransferError]) -> Generator[bytes, None, None]:
    """Yield `head` and a body; an error in the body closes the connection, as ClickHouse would wait for the rest."""
    yield head
    try:
        yield from body
    except TransferError as e:
        faults.append(e)
        raise OSError(str(e)) from e


def _insert_arrow(
    client: Client, batches: tuple[Any, Iterator[Any]], reading: Reading, planned: Planned, staging: str,
    system: Sequence[str], query_id: str, first_row: int = 0,
) -> int:  # fmt: skip
    return insert(
        client, _arrow_stream(*batches), "ArrowStream", reading, planned, staging, system, query_id,
        first_row=first_row,
    )  # fmt: skip


def _first_of(schema: Any, batches: Iterator[Any], most_rows: int) -> tuple[Any, Iterator[Any]]:
    """Return Arrow batches with up to `most_rows` rows in all; 0 means no limit."""

    def first() -> Iterator[Any]:
        left = most_rows
        for batch in batches:
            yield batch.slice(0, left)
            left -= len(batch)
            if left <= 0:
                return

    return schema, first() if most_rows else batches


def _arrow_stream(schema: Any, batches: Iterator[Any]) -> Iterator[bytes]:
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


def _sendable(schema: Any, batches: Iterator[Any], reading: Reading) -> tuple[Any, Iterator[Any]]:
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


def _csv_batches(content: Content, reading: Reading) -> tuple[Any, Iterator[Any]]:
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
            raise DriftError(f"columns {', '.join(map(repr, unknown))} are not in the table")

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
