"""The push loader: a worker streams objects that ClickHouse cannot reach or cannot address."""

from __future__ import annotations

import gzip
import itertools
import lzma
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from clickhouse_connect.driver.exceptions import OperationalError

from storeside.sql.quoting import literal
from storeside.transfer.base import queries
from storeside.transfer.base.errors import TransferError
from storeside.transfer.base.schema import structure
from storeside.transfer.formats.parquet import Rows
from storeside.transfer.formats.registry import TEXTS, TYPED
from storeside.transfer.objects.content import Content
from storeside.transfer.objects.streams import gathered, pieces
from storeside.transfer.objects.strict_json import checked
from storeside.transfer.request.object_format import Format
from storeside.transfer.staging import arrow_rows
from storeside.transfer.staging.json_numbers import Numbers
from storeside.transfer.staging.origin import pushed_columns
from storeside.transfer.state.loads import Planned
from storeside.transfer.statements.composing import settings
from storeside.transfer.statements.reading import Reading

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
            batches = arrow_rows.first_of(*arrow_rows.sendable(*body, reading), most_rows)
            return _insert_arrow(client, batches, reading, planned, staging, system, query_id, first_row)
        return insert(
            client, content.stream() if body is None else body, form.clickhouse, reading, planned, staging, system,
            query_id, first_row=first_row,
        )  # fmt: skip
    if not form.is_native:
        batches = arrow_rows.first_of(*arrow_rows.csv_batches(content, reading), most_rows)
        return _insert_arrow(client, batches, reading, planned, staging, system, query_id)
    tidy = tidy or form.joined
    if tidy:
        reading = replace(reading, form=replace(form, csv=replace(form.csv, skip_rows=0)))  # `records` removes them
    body, encoding = _unparsed(content, form, strict=strict, tidy=tidy)
    if strict and form.has_documents:
        body = Numbers(reading).checked(body)
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
        client, arrow_rows.stream(*batches), "ArrowStream", reading, planned, staging, system, query_id,
        first_row=first_row,
    )  # fmt: skip
