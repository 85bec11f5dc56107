"""Refuses truncated answers of ClickHouse, and reads rows of complete answers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from clickhouse_connect.driver.client import Client
    from clickhouse_connect.driver.query import QueryResult


def whole_answers(client: Client) -> Client:
    """Make a clickhouse-connect client refuse answers that are cut off within their HTTP headers, and return it.

    When a connection ends between two header lines, Python's `http.client` treats that as the end of the headers.
    Without the header with the length, the answer looks empty: a ledger without rows, so that all objects are loaded
    again, or a plan without objects. In every answer, ``X-ClickHouse-Summary`` follows the header with the length. An
    empty answer without that summary raises clickhouse-connect's OperationalError, like any lost connection.
    """
    from clickhouse_connect.driver.exceptions import OperationalError

    ask = client.query

    def query(*arguments: Any, **named: Any) -> Any:
        found = ask(*arguments, **named)
        if not found.row_count and "read_rows" not in found.summary:
            raise OperationalError("ClickHouse's answer ends within its headers: the connection was lost")
        return found

    client.query = query  # type: ignore[method-assign]
    return client


def first_row(result: QueryResult) -> Sequence[Any]:
    """Return the first row of an answer that always has one, such as an aggregate without GROUP BY."""
    row = result.first_row
    if row is None:
        raise IndexError("ClickHouse returned no row")
    return row
