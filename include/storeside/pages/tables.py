"""Bounded reads of Storeside's tables, restricted to what one visitor may see."""

from __future__ import annotations

import json
import logging
import re
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from storeside.errors import BadInput, StoresideError, Transient
from storeside.sql import visibility

if TYPE_CHECKING:
    from clickhouse_connect.driver.client import Client

# Codes of ClickHouse errors that mean that nothing has been written yet.
_MISSING = frozenset({60, 81})  # UNKNOWN_TABLE, UNKNOWN_DATABASE
_DENIED = 497  # ACCESS_DENIED
# Seconds of one statement, and of all statements of a page.
STATEMENT_SECONDS, PAGE_SECONDS = 10, 20
_SLOW = (
    f"ClickHouse did not finish this page's query within {STATEMENT_SECONDS} seconds. Narrow the filter, or try again"
    " when ClickHouse has less to do."
)
_REFUSED = (
    "ClickHouse does not let the pages' user read one of Storeside's tables. Give it the grants in the documentation."
)
# The text on a page for an error of ClickHouse, by its code; the API server's log has ClickHouse's own text.
_REASONS = {
    159: _SLOW, 160: _SLOW,  # TIMEOUT_EXCEEDED, TOO_SLOW
    202: "ClickHouse has too many queries at the moment. Try again in a minute.",  # TOO_MANY_SIMULTANEOUS_QUERIES
    241: "ClickHouse has no memory left for this page's query. Narrow the filter, or try again in a minute.",
    _DENIED: _REFUSED, 516: "ClickHouse refuses the password of the pages' user. Correct its connection in Airflow.",
}  # fmt: skip
log = logging.getLogger(__name__)
PAGE = 50
# Keys that the search of a listing returns for each row of a page, before the newest rows of these keys are read, and
# the keys that it returns if these are too few.
_CANDIDATES, _MOST_CANDIDATES = 4, 1_000_000
_HALVES = re.compile("[\ud800-\udfff]")  # halves of surrogate pairs, which UTF-8 text never contains

T = TypeVar("T")


class PageError(StoresideError):
    """A page cannot be shown; the message gives the reason."""


class PageInputError(PageError, BadInput):
    """The address of the page asks for something that does not exist."""


class UnavailableError(PageError, Transient):
    """A server does not answer, or not in time; the message states the remedy."""


class UnreadableError(UnavailableError):
    """The pages' ClickHouse user may not read a table."""


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
        self._stated = visibility.stated(self.dags)
        self.begin()

    def begin(self) -> None:
        """Let the statements from now on take the time of a whole page: a download has several parts."""
        self._deadline = time.monotonic() + PAGE_SECONDS

    def rows(self, statement: str, **parameters: Any) -> list[dict[str, Any]]:
        """Return the rows of a statement by column name; `parameters` are bound.

        Raises UnavailableError when there is no answer within ten seconds, none at all, or when the statements of
        the page together have taken twenty seconds; UnreadableError when the user may not read a table.
        """
        from clickhouse_connect.driver.exceptions import ClickHouseError, DatabaseError

        if (left := self._deadline - time.monotonic()) <= 0:
            raise UnavailableError(_SLOW)
        seconds = max(1, min(STATEMENT_SECONDS, round(left)))
        settings = {"readonly": 2, "max_execution_time": seconds, **self._stated}
        try:
            found = self.client.query(statement, parameters={**self._visible, **parameters}, settings=settings)
            return list(found.named_results())
        except ClickHouseError as e:
            code = e.code if isinstance(e, DatabaseError) else None
            if code in _MISSING:
                return []
            log.warning("ClickHouse did not answer a page: %s", e)
            raise (UnreadableError if code == _DENIED else UnavailableError)(_reason(code)) from e

    def may_read(self, dag: str) -> bool:
        """Return whether the visitor may read a DAG."""
        return self.dags is None or dag in self.dags


def of_status(
    tables: Tables, statement: str, status: str, size: int = PAGE, **parameters: Any
) -> list[dict[str, Any]]:
    """Return the first rows of a listing of objects with an outcome ("" means any), one more than a page has.

    The search also finds objects that had the outcome in old versions of rows, which ClickHouse has not merged yet.
    If these leave too few rows, the search begins again with more of them.
    """
    asked = {**parameters, "status": status, "limit": size + 1}
    rows = tables.rows(statement, candidates=_CANDIDATES * (size + 1), **asked)
    if status and len(rows) <= size:
        rows = tables.rows(statement, candidates=_MOST_CANDIDATES, **asked)
    return rows


def _reason(code: int | None) -> str:
    """Return what a page says about ClickHouse's error code; None if ClickHouse gave none."""
    if code in _REASONS:
        return _REASONS[code]
    if not code:
        return "ClickHouse does not answer, or its answer was cut off. Try again in a minute, or run the doctor."
    return (
        f"ClickHouse cannot answer this page's query (error {code}). The log of Airflow's API server has the reason."
    )


@dataclass(frozen=True)
class Page(Generic[T]):
    """Rows of a listing, and the cursors of the next and the previous page; each is empty if there is none."""

    rows: list[T]
    after: str = ""
    back: str = ""


@dataclass(frozen=True)
class At:
    """A place in a listing: the rows after a cursor, the rows in front of a cursor (`back`), or the first rows."""

    after: str = ""
    back: str = ""

    def cursor(self, *kinds: type) -> tuple[Any, ...] | None:
        """Read the cursor; None for the first rows. Raises PageInputError for one that no page has written."""
        return read_cursor(self.back or self.after, *kinds)

    def page(self, rows: list[T], key: Any, size: int = PAGE) -> Page[T]:
        """Make a page from up to `size` + 1 rows; `key` returns the cursor values of a row."""
        shown, more = rows[:size], len(rows) > size
        if self.back:
            shown.reverse()
        if not shown:
            return Page([])
        first, last = write_cursor(key(shown[0])), write_cursor(key(shown[-1]))
        if self.back:
            return Page(shown, after=last, back=first if more else "")
        return Page(shown, after=last if more else "", back=first if self.after else "")


FIRST = At()


def check(what: str, value: str, known: Sequence[str]) -> None:
    """Raise PageInputError for a value that is not among `known`."""
    if value not in known:
        raise PageInputError(f"{what} {value!r}: choose from {', '.join(filter(None, known))}")


def directed(statement: str, *, descending: bool, **words: str) -> str:
    """Return the statement of a listing in one direction, or, for a previous page, in the other one.

    In the statement, ``BEYOND`` compares with the cursor, and ``DIRECTION`` follows each sorted column. `words` are
    further words and their replacements: constants, never texts of a visitor.
    """
    words = {**words, "BEYOND": "<" if descending else ">", "DIRECTION": "DESC" if descending else "ASC"}
    for word, text in words.items():
        statement = statement.replace(word, text)
    return statement


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
    """Return whether a row can have the value: a 64-bit number, or text without halves of surrogate pairs."""
    if isinstance(value, int):
        return abs(value) < 1 << 63
    return not _HALVES.search(str(value))
