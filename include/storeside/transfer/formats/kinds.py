"""The interface between a load and a format: one Protocol for each kind of formats, see `Facts.kind`.

A format has one class, which `registry` lists. The class knows what no other format shares.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from storeside.transfer.base.schema import Column
from storeside.transfer.formats.avro_schema import AvroShape
from storeside.transfer.formats.parquet import Nested, Rows, Shape
from storeside.transfer.formats.text_columns import Place
from storeside.transfer.formats.text_rows import Record
from storeside.transfer.objects.content import Content
from storeside.transfer.request.object_format import Format
from storeside.transfer.request.options import ReadOptions
from storeside.transfer.tables.table import Destination

if TYPE_CHECKING:
    from clickhouse_connect.driver.client import Client

# How the columns of an object are read, and of which lists, maps and structs some are NULL.
Header = AvroShape | tuple[Shape, frozenset[Nested]]


class Typed(Protocol):
    """A format whose objects state their columns with types. All methods raise LoadObjectError."""

    def columns(self, content: Content) -> list[Column]:
        """Return the columns that an object states."""
        ...

    def body(
        self, content: Content, *, by_arrow: bool, is_large: bool, wrapped: frozenset[str]
    ) -> Rows | Iterator[bytes] | None:
        """Return what the worker sends in the place of an object's bytes; None if it sends them unchanged.

        For `by_arrow` and `wrapped` see `Reading`. An object that `is_large` takes much of ClickHouse's memory if it
        is sent as a whole.
        """
        ...


@runtime_checkable
class Headed(Typed, Protocol):
    """A format with types of which the worker reads each object's header; ClickHouse reads footers of Parquet."""

    def header(self, content: Content) -> tuple[Header, int]:
        """Return how an object is read, and its number of rows; -1 if it does not state the number."""
        ...


class Text(Protocol):
    """A format whose values are text. All methods raise LoadObjectError."""

    def settings(self, form: Format) -> dict[str, Any]:
        """Return ClickHouse's settings for the format alone."""
        ...

    def headers(self, form: Format) -> int:
        """Return the number of rows that are no data."""
        ...

    def records(self, file: Any, form: Format, *, cut: bool = False) -> Iterator[Record]:
        """Yield the rows of a text, each with its number and a final line feed, without blank lines.

        With `cut`, the text may end within its last row, which is left out.
        """
        ...

    def sample(self, sample: bytes, form: Format, *, is_whole: bool = False) -> list[bytes]:
        """Return the rows of a sample in UTF-8; unless it `is_whole`, it may end within a row."""
        ...

    def shown(self, rows: Iterable[bytes], form: Format, read: ReadOptions, *, skips_bad: bool) -> Place:
        """Return what rows in UTF-8 show of the columns."""
        ...

    def is_untidy(self, file: Any, form: Format) -> bool:
        """Return whether a text has faults that ClickHouse refuses and `records` repairs."""
        ...

    def line_of(self, file: Any, form: Format, row: int) -> tuple[int, bool]:
        """Return the first line of a row, counted from 1, and whether its quotes are closed; 0 if it is absent."""
        ...

    def refuse_lost_rows(self, content: Content, form: Format) -> None:
        """Raise LoadObjectError for an object of which a load read no row, but which is not without rows."""
        ...

    def check_beginning(self, sample: bytes, form: Format) -> None:
        """Raise LoadObjectError if the first rows explain a failure."""
        ...


class Messages(Protocol):
    """A format whose objects state no columns: the request does, with `MessageSchema`."""

    def settings(self, form: Format) -> dict[str, Any]:
        """Return ClickHouse's settings for the format alone."""
        ...

    def check(self, client: Client, form: Format, settings: Mapping[str, Any]) -> None:
        """Raise TransferInputError if ClickHouse, or this load, cannot read objects with the request's schema."""
        ...

    def columns(self, form: Format, given: Mapping[str, str]) -> list[Column]:
        """Return the columns of a new table; `given` are types by name. Raises TransferInputError."""
        ...

    def shape(self, form: Format, destination: Destination) -> AvroShape:
        """Return how ClickHouse reads objects into a table. Raises DriftError."""
        ...
