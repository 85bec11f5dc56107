"""Quotes values and names for ClickHouse's SQL, where they cannot be bound as parameters."""

from __future__ import annotations


def literal(text: str) -> str:
    """Return a string literal of ClickHouse's SQL.

    For values that cannot be bound as parameters, such as arguments of table functions.
    """
    from clickhouse_connect.driver.binding import format_str

    return str(format_str(text))


def identifier(name: str) -> str:
    """Return any name as a quoted identifier of ClickHouse's SQL.

    The client's `quote_identifier` does not quote a name that begins and ends with quotes; here, quotes are part of
    the name.
    """
    from clickhouse_connect.driver.binding import escape_str

    return f"`{escape_str(name)}`"
