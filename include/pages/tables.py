"""Bounded reads of Storeside's tables, as one visitor may see them."""

from __future__ import annotations

import json
import re
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from include.transfer.errors import plain

# Names of ClickHouse's errors that mean: nobody has written anything yet.
_MISSING = frozenset({60, 81})  # UNKNOWN_TABLE, UNKNOWN_DATABASE
_SETTINGS = {"readonly": 2, "max_execution_time": 10}
PAGE = 50
_HALVES = re.compile("[\ud800-\udfff]")  # of surrogate pairs: no text of UTF-8 has them

T = TypeVar("T")


class UnavailableError(Exception):
    """ClickHouse does not answer, or not in time; the message says what it said."""


class Tables:
    """Reads through a clickhouse-connect client; a table that is not there yet is an empty one.

    `dags` are those that the visitor may read, None for all: every statement gets them as ``all_dags`` and ``dags``.
    What belongs to no DAG, such as a transfer from the command line, is for those who may read all.
    """

    def __init__(self, client: Any, dags: Collection[str] | None = None) -> None:
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
    """Rows of a listing, and the cursor of those that follow; empty when there are none."""

    rows: list[T]
    after: str = ""


def page_of(rows: list[T], key: Any, size: int = PAGE) -> Page[T]:
    """Make a page of up to one row more than its size; `key` gives the cursor's values of a row."""
    return Page(rows[:size], write_cursor(key(rows[size - 1])) if len(rows) > size else "")


def write_cursor(values: tuple[Any, ...]) -> str:
    """Return the place of a row in its listing as text."""
    return json.dumps(values, separators=(",", ":"), ensure_ascii=False)


def read_cursor(text: str, *kinds: type) -> tuple[Any, ...] | None:
    """Read a cursor; None for an empty one. Raises ValueError for what `write_cursor` has not made."""
    if not text:
        return None
    try:
        values = json.loads(text)
        bindable = isinstance(values, list) and all(map(_is_bindable, values))
    except (ValueError, RecursionError):
        bindable = False
    if not bindable or [type(value) for value in values] != list(kinds):
        raise ValueError("this page's address was changed: go back to the first page")
    return tuple(values)


def _is_bindable(value: Any) -> bool:
    """Tell whether a row can have the value: a number of 64 bits, or text of whole characters."""
    if isinstance(value, int):
        return abs(value) < 1 << 63
    return not _HALVES.search(str(value))
