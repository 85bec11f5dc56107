"""Keeps values of masked columns out of statements and errors; ClickHouse and Airflow log both."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, cast

from clickhouse_connect.driver.exceptions import DatabaseError, OperationalError

from storeside.transfer.base.errors import (
    OBJECT_CHANGED,
    THROWN,
    LoadObjectError,
    code_of,
    is_of_storage,
    is_transient,
    named_file,
    names_unknown_column,
    said,
)

if TYPE_CHECKING:
    from clickhouse_connect.driver.client import Client

HIDDEN = "values are not shown, because a column is masked"


class QuietClient:
    """A client of ClickHouse whose errors about objects quote no values."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._client, name)
        return _quiet(found) if name in ("command", "query", "insert", "raw_insert") else found


def quiet_client(client: Client) -> Client:
    """Return a client of the same server whose errors about objects quote no values."""
    return cast("Client", QuietClient(client))


def _quiet(call: Callable[..., Any]) -> Callable[..., Any]:
    def limited(*args: Any, **kwargs: Any) -> Any:
        try:
            return call(*args, **kwargs)
        except (DatabaseError, OperationalError) as e:
            if _quotes_nothing(e):
                raise
            error = type(e)(_without_values(e))
            error.code = code_of(e)
        raise error  # outside of the handler, so that it does not refer to the error with the values

    return limited


def _quotes_nothing(error: Exception) -> bool:
    code = code_of(error)
    return not code or code in (OBJECT_CHANGED, THROWN) or is_of_storage(error) or is_transient(error)


def _without_values(error: Exception) -> str:
    """Return the column, the row and the object that an error names, and its code."""
    found, file = said(error), named_file(error)
    what = "Unknown column" if names_unknown_column(found.what) else "a value cannot be read"
    return " ".join(filter(None, (
        f"column {found.column!r}: {what}" if found.column else what, f"(at row {found.row})" if found.row else "",
        f"({HIDDEN})", f"(in file/uri {file})" if file else "", f"({found.name})" if found.name else "",
    )))  # fmt: skip


@contextmanager
def quiet(on: bool) -> Iterator[None]:
    """With `on`, replace the text of a LoadObjectError, which may quote values."""
    error = None
    try:
        yield
    except LoadObjectError:
        if not on:
            raise
        error = LoadObjectError(f"its rows cannot be parsed; {HIDDEN}")
    if error is not None:
        raise error
