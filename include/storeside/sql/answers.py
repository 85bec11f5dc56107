"""Refuses truncated answers of ClickHouse, and reads rows of complete ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from clickhouse_connect.driver.client import Client
    from clickhouse_connect.driver.query import QueryResult

# Bytes of an answer that ClickHouse keeps in memory. Only a larger one goes through a temporary file.
_IN_MEMORY = 1 << 30


def whole_answers(client: Client) -> Client:
    """Make a clickhouse-connect client refuse answers that have lost rows, and return it.

    clickhouse-connect asks for answers that begin when the query has ended. ClickHouse 26.9 keeps such an answer in
    a temporary file, and if its disk is full, the answer has no rows, and no error: see
    ``findings/clickhouse-answers-on-a-full-disk.sh``. So each request states a ``buffer_size``, up to which
    ClickHouse keeps the answer in memory. An answer with fewer rows than its ``X-ClickHouse-Summary`` states raises
    clickhouse-connect's OperationalError.

    When a connection ends between two header lines, Python's `http.client` treats that as the end of the headers.
    Without the header with the length, the answer looks empty: a ledger without rows, so that all objects are loaded
    again, or a plan without objects. In every answer, the summary follows the header with the length. An empty answer
    without it raises the same error, like any lost connection.
    """
    from clickhouse_connect.driver.exceptions import OperationalError

    if not client.server_settings:
        raise OperationalError("ClickHouse's list of settings is empty: its disk is full, or the connection was lost")
    client.set_client_setting("buffer_size", _IN_MEMORY)
    ask = client.query

    def query(*arguments: Any, **named: Any) -> Any:
        found = ask(*arguments, **named)
        stated = found.summary.get("result_rows")
        if stated is None and not found.row_count:
            raise OperationalError("ClickHouse's answer ends within its headers: the connection was lost")
        if stated is not None and found.row_count < int(stated):
            raise OperationalError(
                f"ClickHouse's answer has {found.row_count} of its {stated} rows: its disk may be full"
            )
        return found

    client.query = query  # type: ignore[method-assign]
    return client


def first_row(result: QueryResult) -> Sequence[Any]:
    """Return the first row of an answer that always has one, such as an aggregate without GROUP BY."""
    row = result.first_row
    if row is None:
        raise IndexError("ClickHouse returned no row")
    return row
