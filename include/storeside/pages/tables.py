"""Bounded reads of Storeside's tables, restricted to what one visitor may see."""

from __future__ import annotations

import json
import re
from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from storeside.errors import BadInput, StoresideError, Transient
from storeside.transfer.errors import plain

if TYPE_CHECKING:
    from clickhouse_connect.driver.client import Client

# Codes of ClickHouse errors that mean that nothing has been written yet.
_MISSING = frozenset({60, 81})  # UNKNOWN_TABLE, UNKNOWN_DATABASE
_SETTINGS = {"readonly": 2, "max_execution_time": 10}
PAGE = 50
_HALVES = re.compile("[\ud800-\udfff]")  # halves of surrogate pairs, which UTF-8 text never contains

T = TypeVar("T")


class PageError(StoresideError):
    """A page cannot be shown; the message gives the reason."""


class PageInputError(PageError, BadInput):
    """The address of the page asks for something that does not exist."""


class UnavailableError(PageError, Transient):
    """ClickHouse does not answer, or not in time; the message quotes its error."""


class Tables:
    """Reads through a clickhouse-connect client; a missing table counts as empty.

    `dags` are the DAGs that the visitor may read, None for all; every statement gets them as ``all_dags`` and
    ``dags``. Rows that belong to no DAG, such as those of a transfer from the command line, are only for visitors who
    may read all DAGs.
    """

    def __init__(self, client: Client, dags: Collection[str] | None = None) -> None:
        self.client = client
        self.dags = None if dags is None else frozenset(dags)
        self._visible = {"all_dags": dags is None, "dags": sorted(dags or ())}

    def rows(self, statement: str, **parameters: Any) -> list[dict[str, Any]]:
        """Return the rows of a statement by column name; `parameters` are bound.

        Raises UnavailableError when there is no answer within ten seconds, or none at all.
        """
        from clickhouse_connect.driver.exceptions import DatabaseError

        try:
            found = self.client.query(statement, parameters={**self._visible, **parameters}, settings=_SETTINGS)
        except DatabaseError as e:
            if e.code in _MISSING:
                return []
            raise UnavailableError(f"ClickHouse did not answer the page's question: {plain(e)}") from e
        return list(found.named_results())

    def may_read(self, dag: str) -> bool:
        """Tell whether the visitor may read a DAG."""
        return self.dags is None or dag in self.dags


@dataclass(frozen=True)
class Page(Generic[T]):
    """Rows of a listing, and the cursor of the next page; the cursor is empty on the last page."""

    rows: list[T]
    after: str = ""


def page_of(rows: list[T], key: Any, size: int = PAGE) -> Page[T]:
    """Make a page from up to `size` + 1 rows; `key` returns the cursor values of a row."""
    return Page(rows[:size], write_cursor(key(rows[size - 1])) if len(rows) > size else "")


def write_cursor(values: tuple[Any, ...]) -> str:
    """Return a row's position in its listing as text."""
    return json.dumps(values, separators=(",", ":"), ensure_ascii=False)


def read_cursor(text: str, *kinds: type) -> tuple[Any, ...] | None:
    """Read a cursor; None for an empty one. Raises PageInputError for a text that `write_cursor` did not make."""
    if not text:
        return None
    try:
        values = json.loads(text)
        bindable = isinstance(values, list) and all(map(_is_bindable, values))
    except (ValueError, RecursionError):
        bindable = False
    if not bindable or [type(value) for value in values] != list(kinds):
        raise PageInputError("this page's address was changed: go back to the first page")
    return tuple(values)


def _is_bindable(value: Any) -> bool:
    """Tell whether a row can have the value: a 64-bit number, or text without halves of surrogate pairs."""
    if isinstance(value, int):
        return abs(value) < 1 << 63
    return not _HALVES.search(str(value))
