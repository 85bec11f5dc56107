"""The push loader: a worker streams objects that ClickHouse cannot reach or cannot address."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from storeside.transfer.formats.parquet import Rows
from storeside.transfer.formats.registry import TEXTS, TYPED
from storeside.transfer.objects.content import Content
from storeside.transfer.objects.streams import gathered, pieces
from storeside.transfer.objects.strict_json import checked
from storeside.transfer.staging import arrow_rows
from storeside.transfer.staging.inserting import insert
from storeside.transfer.staging.json_values import JsonValues
from storeside.transfer.state.loads import Planned
from storeside.transfer.statements.reading import Reading

if TYPE_CHECKING:
    from clickhouse_connect.driver.client import Client

# ClickHouse keeps the whole body of a Parquet request in memory, so the worker sends larger objects by row group.
WHOLE_PARQUET = 256 << 20
# Encodings that ClickHouse accepts in requests. It does not detect truncated zstd and lz4 streams, and some builds
# lack bz2: the worker decompresses those.
_ENCODINGS = {"gzip": "gzip", "xz": "xz", "": None}


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
    body, encoding = _unparsed(content, reading, strict=strict, tidy=tidy)
    if tidy or (form.is_text and content.archive):
        body = filter(None, body)
        if (first := next(body, None)) is None:
            return 0
        body = itertools.chain([first], body)
    return insert(
        client, body, form.clickhouse, reading, planned, staging, system, query_id, encoding=encoding,
        first_row=first_row,
    )  # fmt: skip


def _unparsed(content: Content, reading: Reading, *, strict: bool, tidy: bool) -> tuple[Iterator[bytes], str | None]:
    """Return an object's bytes as ClickHouse parses them, and their encoding in the request; see `push`."""
    form = reading.form
    values = JsonValues(reading) if form.has_documents and strict else None
    if tidy:
        body = gathered(raw for _, raw in TEXTS[form.name].records(content.plain(), form))
        return (body if values is None else checked(body, values)), None
    if values is not None:
        return content.json_lines(values), None
    kind = content.compression
    return (content.stream(), _ENCODINGS[kind]) if kind in _ENCODINGS else (pieces(content.plain()), None)


def _insert_arrow(
    client: Client, batches: tuple[Any, Iterator[Any]], reading: Reading, planned: Planned, staging: str,
    system: Sequence[str], query_id: str, first_row: int = 0,
) -> int:  # fmt: skip
    return insert(
        client, arrow_rows.stream(*batches), "ArrowStream", reading, planned, staging, system, query_id,
        first_row=first_row,
    )  # fmt: skip
