"""Kills a statement that writes more than its objects' limits allow: ClickHouse has no such limit for `s3()`."""

from __future__ import annotations

import contextvars
import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from clickhouse_connect.driver.exceptions import DatabaseError, OperationalError

from storeside.transfer.base import queries
from storeside.transfer.base.errors import LimitError
from storeside.transfer.base.staging_tables import STAGING

if TYPE_CHECKING:
    from clickhouse_connect.driver.client import Client

log = logging.getLogger(__name__)

# The interval between two checks of a statement. Rows written meanwhile are dropped with the staging table.
_SECONDS = 1.0


@contextmanager
def watched(client: Client, query_id: str, *, rows: int, size: int) -> Iterator[None]:
    """Kill a statement that writes more than `rows` rows or `size` bytes, uncompressed, while the block runs.

    Raises LimitError with the reason in place of the statement's own error.
    """
    ended = threading.Event()
    reasons: list[str] = []

    def look() -> None:
        while not ended.wait(_SECONDS) and not reasons:
            try:
                found = client.query(
                    "SELECT written_rows, written_bytes FROM system.processes WHERE query_id = {id:String}",
                    parameters={"id": query_id},
                ).result_rows
            except (DatabaseError, OperationalError) as e:  # the next query may succeed
                log.debug("statement %s cannot be watched: %s", query_id, e)
                continue
            for written, taken in found:
                if reason := excess(written, taken, rows=rows, size=size):
                    reasons.append(reason)
                    queries.abandon(client, query_id)

    thread = threading.Thread(target=contextvars.copy_context().run, args=(look,), daemon=True)
    thread.start()
    try:
        yield
    except (DatabaseError, OperationalError) as e:
        if reasons:
            raise LimitError(reasons[0]) from e
        raise
    finally:
        ended.set()
        thread.join()
    if reasons:
        raise LimitError(reasons[0])


# The uncompressed bytes of the rows of the staging table {table}, for statements that end before the first check.
STORED = (
    f"(SELECT sum(data_uncompressed_bytes) FROM system.parts WHERE active AND database = '{STAGING}'"
    " AND table = {table:String})"
)


def excess(written: int, taken: int, *, rows: int, size: int) -> str:
    """Return the reason why a number of rows or bytes exceeds a limit; empty if it does not."""
    if written > rows:
        return f"it has more than {rows} rows: divide it, or raise the rows of `limits`"
    if taken > size:
        return f"its content has more than {size} bytes: divide it, or raise the bytes and ratio of `limits`"
    return ""
