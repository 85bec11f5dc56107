"""Sends the rows of one object in the body of an INSERT."""

from __future__ import annotations

import gzip
import lzma
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from clickhouse_connect.driver.exceptions import OperationalError

from storeside.sql.quoting import literal
from storeside.transfer.base import queries
from storeside.transfer.base.errors import TransferError
from storeside.transfer.base.schema import structure
from storeside.transfer.staging.origin import pushed_columns
from storeside.transfer.state.loads import Planned
from storeside.transfer.statements.composing import settings
from storeside.transfer.statements.reading import Reading

if TYPE_CHECKING:
    from clickhouse_connect.driver.client import Client

# The functions that pack a statement for a body of each encoding: streams of gzip and xz may follow each other.
_PACKERS: dict[str | None, Callable[[bytes], bytes]] = {"gzip": gzip.compress, "xz": lzma.compress, None: bytes}


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
