"""Keeps values of masked columns out of statements and errors; ClickHouse and Airflow log both."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, cast

from clickhouse_connect.driver.exceptions import DatabaseError, OperationalError

from storeside.transfer.errors import (
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
from storeside.transfer.formats import Csv, Format
from storeside.transfer.records import fields

if TYPE_CHECKING:
    from clickhouse_connect.driver.client import Client

HIDDEN = "values are not shown, because a column is masked"
_FIELD = rb'[ \t]*"(?:[^"]|"")*"[^%(d)s\r\n]*|[^%(d)s\r\n]*'
_INSTEAD = "x"


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


def without_values(rows: Sequence[bytes], form: Format, names: Collection[str]) -> list[bytes]:
    """Return the rows of a sample with another text for the values of these columns.

    Leaves out rows whose columns are not clear.
    """
    if not names:
        return list(rows)
    if form.name == "csv":
        return _csv(rows, form.csv, names)
    return [row for row in (_json(row.decode("utf-8", "replace"), names) for row in rows) if row]


def _csv(rows: Sequence[bytes], dialect: Csv, names: Collection[str]) -> list[bytes]:
    header = [] if dialect.names else list(rows[:1])
    columns = dialect.names or (fields(header[0], dialect) if header else [])
    hidden = [n for n, name in enumerate(columns) if name in names]
    if not hidden:  # its first row may have values instead of names
        return []
    delimiter = dialect.delimiter.encode()
    pattern = re.compile(_FIELD % {b"d": re.escape(delimiter)})
    found = header
    for row in rows[len(header) :]:
        parts, at = [], 0
        while match := pattern.match(row, at):
            parts.append(match[0])
            at = match.end() + 1
            if row[match.end() : at] != delimiter:
                break
        if len(parts) == len(columns) and not row[at - 1 :].strip():
            for n in hidden:
                parts[n] = _INSTEAD.encode()
            found.append(delimiter.join(parts) + b"\n")
    return found


def _json(row: str, names: Collection[str]) -> bytes:
    """Return a JSON object with other values for some of its members; empty if it is not a JSON object."""
    decoder = json.JSONDecoder(strict=False)
    kept: list[str] = []
    last = 0
    try:
        at = _after(row, 0, "\ufeff \t\r\n")
        while row[at] != "}":
            if row[at] not in "{,":
                return b""
            at = _after(row, at + 1)
            if row[at] == "}" and not kept and last == 0:
                break
            name, at = decoder.raw_decode(row, at)
            start = _after(row, _after(row, at) + 1)
            _, at = decoder.raw_decode(row, start)
            if name in names:
                kept.append(f'{row[last:start]}"{_INSTEAD}"')
                last = at
            at = _after(row, at)
    except (ValueError, IndexError, RecursionError):
        return b""
    return (("".join(kept) + row[last : at + 1]) + "\n").encode("utf-8", "replace")


def _after(text: str, at: int, blank: str = " \t\r\n") -> int:
    """Return the position of the next character that is not blank. Raises IndexError."""
    while text[at] in blank:
        at += 1
    return at
