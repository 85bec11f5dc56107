"""Infers the format of sampled objects, and the columns of a table for them."""

from __future__ import annotations

import io
import logging
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from clickhouse_connect.driver.exceptions import DatabaseError

from storeside.transfer.content import Content
from storeside.transfer.errors import LoadObjectError, TransferInputError, plain
from storeside.transfer.formats import Csv, Format, format_of
from storeside.transfer.inference import deduced, merge, text_columns
from storeside.transfer.parquet import ParquetObject
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
    found: list[tuple[Content, str]] = []
    for content in contents:
        try:
            if head := content.sample(_HEAD):
                found.append((content, format_of(content.key, head)))
        except LoadObjectError as e:
            log.warning("%r cannot be sampled: %s", content.key, e)
        except TransferInputError as e:
            if request.format == "auto":
                log.warning("%r cannot be sampled: %s", content.key, e)
            else:
                found.append((content, request.format))
    name = request.format
    if name == "auto":
        if not found:
            such = f", such as {contents[0].key!r}" if contents else ""
            raise TransferInputError(f"no sampled object shows its format{such}: set `format`")
        name = Counter(form for _, form in found).most_common(1)[0][0]
    fitting = [content for content, form in found if (form == "parquet") == (name == "parquet")]
    return Format(name, request.read.csv), fitting  # type: ignore[arg-type]


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
    if form.name == "parquet":
        columns = [ParquetObject(content).facts().shape.columns for content in contents]
        return merge(client, columns, request.table_options.columns)
    samples = [content.sample(request.read.sample_bytes) for content in contents]
    if not form.is_native:
        samples = [sample for sample in samples if _has_rows(sample, form.csv)]
        _require_rows(samples, request)
        return merge(client, [csv_columns(sample, form.csv) for sample in samples], request.table_options.columns)
    header = 1 if form.clickhouse == "CSVWithNames" else 0
    rows = [[raw for _, raw in records(io.BytesIO(sample), form)] for sample in samples]
    samples = [b"".join(some) for some in rows if len(some) > header]
    _require_rows(samples, request)
    form = replace(form, csv=replace(form.csv, skip_rows=0))  # `records` has removed them
    if form.name == "jsonl":  # ClickHouse merges the columns of all lines of one text
        samples = [b"".join(samples)]
    nested: Any = request.read.nested
    given = request.table_options.columns
    return merge(client, [text_columns(client, form, sample, nested, given) for sample in samples], given)


class NoRowsError(TransferInputError):
    """No sampled object has a row that could show columns."""


def _require_rows(samples: Sequence[bytes], request: Request) -> None:
    if not samples:
        raise NoRowsError(f"no sampled object has a row: create {request.table} yourself")


def _has_rows(sample: bytes, csv: Csv) -> bool:
    """Return whether a sample of a CSV dialect has more than a header."""
    lines = sample.decode(csv.encoding, "replace").splitlines()[csv.skip_rows :]
    return sum(bool(line) for line in lines) > (0 if csv.names else 1)


def whole_columns(client: Client, request: Request, form: Format, key: str) -> list[Column]:
    """Return the columns that ClickHouse infers from every row of a text object."""
    rows = client.query(
        f"DESCRIBE TABLE {request.source.objects([key], form.clickhouse)}",
        settings={
            **form.settings(),
            "input_format_max_rows_to_read_for_schema_inference": _UNLIMITED,
            "input_format_max_bytes_to_read_for_schema_inference": _UNLIMITED,
            "use_hive_partitioning": 0,
        },
    ).result_rows
    return [Column(row[0], deduced(row[1], request.read.nested)) for row in rows]  # type: ignore[arg-type]
