"""Answers of ClickHouse that are not all there."""

from __future__ import annotations

from typing import Any


def whole_answers(client: Any) -> Any:
    """Have a clickhouse-connect client refuse answers to queries that end within their head, and return it.

    Python's `http.client` takes the end of a connection between two header lines for the end of the head. An answer
    that has said nothing of its length by then is an empty one: a ledger without rows, so that all is loaded again,
    or a plan without objects. ``X-ClickHouse-Summary`` comes after what says the length, in every answer.
    Such a query raises clickhouse-connect's OperationalError, as any lost connection does.
    """
    from clickhouse_connect.driver.exceptions import OperationalError

    ask = client.query

    def query(*arguments: Any, **named: Any) -> Any:
        found = ask(*arguments, **named)
        if not found.row_count and "read_rows" not in found.summary:
            raise OperationalError("ClickHouse's answer ends within its head: the connection was lost")
        return found

    client.query = query
    return client
