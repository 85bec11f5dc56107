"""Lists as CSV, in parts: a download reads as many rows at a time as fit into memory at any size of the ledger."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, TypeVar

from storeside.pages.tables import At, Page, Tables

# Rows of one statement, and of a download.
PART, MOST = 1_000, 10_000
# A spreadsheet takes a cell that begins with one of these as a formula; the last four are full-width forms. A cell
# with an apostrophe at the beginning gets one, too, so that a reader can remove the first apostrophe of each cell.
_FORMULAS = tuple("=+-@\t\r\n'\uff1d\uff0b\uff0d\uff20")

T = TypeVar("T")
Columns = Mapping[str, Callable[[T], Any]]


def lines(tables: Tables, read: Callable[[At], Page[T]], columns: Columns[T]) -> Iterator[bytes]:
    """Yield a list as CSV (UTF-8, with a header) in parts, at most `MOST` rows; a last line states if there are more.

    `read` returns the page at a place. Raises UnavailableError as `Tables.rows` does, also between parts.
    """
    at, count = At(), 0
    part: list[list[Any]] = [list(columns)]
    while True:
        tables.begin()
        page = read(at)
        part += [[column(row) for column in columns.values()] for row in page.rows]
        count += len(page.rows)
        ends = not page.after or count >= MOST
        if ends and page.after:
            part.append([f"These are the first {count:,} rows. Narrow the filter to see the others."])
        yield _written(part)
        if ends:
            return
        at, part = At(page.after), []


def cell(value: Any) -> Any:
    """Return a value as a cell that no spreadsheet takes as a formula: such a text gets an apostrophe in front."""
    if isinstance(value, str) and value.startswith(_FORMULAS):
        return f"'{value}"
    return value


def moment(seconds: float) -> str:
    """Write a time as ISO 8601 in UTC, with milliseconds; empty for 0, an unknown time."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds") if seconds else ""


def _written(rows: list[list[Any]]) -> bytes:
    text = io.StringIO()
    csv.writer(text).writerows([cell(value) for value in row] for row in rows)
    return text.getvalue().encode(errors="replace")
