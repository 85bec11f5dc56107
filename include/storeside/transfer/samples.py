"""Infers the format of sampled objects, and the columns of a table for them."""

from __future__ import annotations

import codecs
import io
import logging
import re
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from clickhouse_connect.driver.exceptions import DatabaseError

from storeside.transfer.avro import AvroObject
from storeside.transfer.columnar import ColumnarObject
from storeside.transfer.content import Content
from storeside.transfer.errors import LoadObjectError, TransferInputError, plain
from storeside.transfer.formats import BY_SCHEMA, Csv, Format, FormatName, format_of
from storeside.transfer.inference import deduced, merge, text_columns
from storeside.transfer.json_array import is_array
from storeside.transfer.members import about_member, members_of
from storeside.transfer.messages import message_columns
from storeside.transfer.parquet import ParquetObject
from storeside.transfer.private import quiet, without_values
from storeside.transfer.push import csv_columns
from storeside.transfer.records import records
from storeside.transfer.request import Request
from storeside.transfer.schema import Column

if TYPE_CHECKING:
    from clickhouse_connect.driver.client import Client

log = logging.getLogger(__name__)

_HEAD = 1 << 12
_UNLIMITED = 1 << 62


def recognise(request: Request, contents: Sequence[Content]) -> tuple[Format, list[Content]]:
    """Return the request's format, or that of most objects, and the objects with that format.

    The other objects fail when they are loaded. Raises TransferInputError when the objects show no format.
    """
    if request.format in BY_SCHEMA:  # no content shows these
        return request.form(request.format), [*contents]
    found: list[tuple[Content, FormatName]] = []
    for content in contents:
        try:
            if head := content.sample(_HEAD):
                found.append((content, format_of(content.title, head)))
        except LoadObjectError as e:
            log.warning("%r cannot be sampled: %s", content.key, e)
        except TransferInputError as e:
            if request.format == "auto":
                log.warning("%r cannot be sampled: %s", content.key, e)
            else:
                found.append((content, request.format))  # type: ignore[arg-type]
    name = request.format
    if name == "auto":
        if not found:
            such = f", such as {contents[0].key!r}" if contents else ""
            raise TransferInputError(f"no sampled object shows its format{such}: set `format`")
        name = Counter(form for _, form in found).most_common(1)[0][0]
    if name == "tsv" and request.format == "auto" and request.read.csv.delimiter != Csv.delimiter:
        name = "csv"  # with the delimiter of the request
    wanted = request.form(name)
    is_text = wanted.is_text
    fitting = [content for content, form in found if form == name or (is_text and Format(form).is_text)]
    return wanted, fitting


def columns_of(client: Client, request: Request, form: Format, contents: Sequence[Content]) -> list[Column]:
    """Return the columns of sampled objects, without objects that cannot be read.

    Raises TransferInputError when none can be read.
    """
    try:
        return sample_columns(client, request, form, contents)
    except (LoadObjectError, DatabaseError):
        return sample_columns(client, request, form, _readable(client, request, form, contents))


def _readable(client: Client, request: Request, form: Format, contents: Sequence[Content]) -> list[Content]:
    readable = []
    for content in contents:
        try:
            sample_columns(client, request, form, [content])
            readable.append(content)
        except NoRowsError:
            continue
        except (LoadObjectError, DatabaseError) as e:
            log.warning("%r cannot be sampled: %s", content.key, plain(e))
    if not readable:
        raise TransferInputError(f"no sampled object can be read as {form.name}: create {request.table} yourself")
    return readable


def sample_columns(client: Client, request: Request, form: Format, contents: Sequence[Content]) -> list[Column]:
    """Return the columns of sampled objects, merged.

    Raises LoadObjectError, or DatabaseError for text that ClickHouse cannot parse.
    """
    options = request.read.columns
    given = {options.source(name) or name: kind for name, kind in request.table_options.columns.items()}
    if form.by_schema:
        return message_columns(form, given)
    if not form.is_text:
        return merge(client, [typed_columns(form, content) for content in contents], given)
    rows = [_rows(content.sample(request.read.sample_bytes), form) for content in contents]
    if options.mask and form.is_native:
        rows = _masked(rows, form, options.mask)
    samples = [b"".join(some) for some in rows if len(some) > _headers(form)]
    if not samples:
        raise NoRowsError(f"no sampled object has a row: create {request.table} yourself")
    form = replace(form, csv=replace(form.csv, skip_rows=0))  # `records` has removed them
    if not form.is_native:
        with quiet(bool(options.mask)):
            dialect = replace(form.csv, encoding="utf-8")
            return merge(client, [csv_columns(sample, dialect) for sample in samples], given)
    if form.name == "jsonl":  # ClickHouse merges the columns of all lines of one text
        samples = [b"".join(samples)]
    nested: Any = request.read.nested
    return merge(client, [text_columns(client, form, sample, nested, given) for sample in samples], given)


def _masked(samples: list[list[bytes]], form: Format, names: Collection[str]) -> list[list[bytes]]:
    """Return the rows of samples without the values of masked columns. Raises TransferInputError if none is left."""
    masked = [without_values(rows, form, names) for rows in samples]
    if any(samples) and not any(masked):
        raise TransferInputError(
            f"mask {', '.join(map(repr, sorted(names)))}: no sampled object has these columns: correct the names"
        )
    return masked


def typed_columns(form: Format, content: Content) -> list[Column]:
    """Return the columns that an object of a format with types states, or the first member of an archive.

    Raises LoadObjectError.
    """
    if content.archive:
        return next(columns_of_members(form, content))
    if form.name == "avro":
        return AvroObject(content).columns()
    if form.name == "parquet":
        return list(ParquetObject(content).facts().shape.columns)
    return ColumnarObject(content, form.name).columns()


def columns_of_members(form: Format, content: Content) -> Iterator[list[Column]]:
    """Yield the columns of each member of an archive. Raises LoadObjectError."""
    for member in members_of(content):
        with about_member(member.name):
            yield typed_columns(form, member)


def _headers(form: Format) -> int:
    """Return the number of rows of a text that are no data."""
    return 1 if form.clickhouse == "CSVWithNames" else 0


def _rows(sample: bytes, form: Format) -> list[bytes]:
    """Return the rows of a sample, those of CSV in UTF-8.

    A sample may end within a quoted value of CSV, or within an array of JSON objects. Raises LoadObjectError if it
    ends within its first row.
    """
    if form.name == "csv":
        if not form.is_native:
            sample = _in_utf8(sample, form.csv)
        rows = [raw for _, raw in records(io.BytesIO(sample), form, cut=True)]
        if len(rows) <= _headers(form) and any(n >= len(rows) for n, _ in records(io.BytesIO(sample), form)):
            raise LoadObjectError(
                f"its first row does not end within a sample of {len(sample)} bytes: close its quotes, or increase"
                " `sample_bytes`"
            )
        return rows
    rows = []
    try:
        for _, raw in records(io.BytesIO(sample), form):
            rows.append(raw)
    except LoadObjectError:
        if not rows or not is_array(sample):
            raise
    return rows


def _in_utf8(sample: bytes, csv: Csv) -> bytes:
    """Return a sample in UTF-8 with line feeds between its lines; it may end within a character."""
    try:
        text = codecs.getincrementaldecoder(csv.encoding)("surrogateescape").decode(sample)
    except UnicodeError as e:
        raise LoadObjectError(f"it is not {csv.encoding}: {e}") from e
    return re.sub("\r\n?", "\n", text).encode("utf-8", "surrogateescape")


class NoRowsError(TransferInputError):
    """No sampled object has a row that could show columns."""


def whole_columns(client: Client, request: Request, form: Format, key: str) -> list[Column]:
    """Return the columns that ClickHouse infers from every row of a text object."""
    rows = client.query(
        f"DESCRIBE TABLE {request.source.objects([key], form.clickhouse)}",
        settings={
            **form.settings(),
            "input_format_max_rows_to_read_for_schema_inference": _UNLIMITED,
            "input_format_max_bytes_to_read_for_schema_inference": _UNLIMITED,
            "use_hive_partitioning": 0,
            **({"log_queries": 0} if request.read.columns.mask else {}),
        },
    ).result_rows
    return [Column(row[0], deduced(row[1], request.read.nested)) for row in rows]  # type: ignore[arg-type]
