"""Reads an object again, alone: text up to a row, or without the rows that cannot be parsed, or in another way."""

from __future__ import annotations

from collections.abc import Callable

from storeside.transfer.base.damage import remedy_of
from storeside.transfer.base.errors import LoadObjectError
from storeside.transfer.formats.parquet import ParquetObject
from storeside.transfer.formats.parquet_pages import has_empty
from storeside.transfer.request.object_format import BY_WORKER, compression_by_name
from storeside.transfer.run.salvage import Rejected, salvage
from storeside.transfer.staging.staging import Staging
from storeside.transfer.state.loads import Planned
from storeside.transfer.statements.reading import Reading


class Rereading:
    """Reads objects of a staging again."""

    def __init__(self, staging: Staging) -> None:
        self.staging = staging
        self.work = staging.work
        self.request = staging.work.request

    def compression(self, o: Planned) -> str | None:
        """Return ClickHouse's name for the compression of a text object; "auto" if the object's name shows it.

        None if the worker must read the object.
        """
        if self.staging.reader.pushed:
            return None
        actual = self.work.content(o).compression
        if actual in BY_WORKER:
            return None
        return "auto" if actual.removeprefix("hadoop-") == compression_by_name(o.key) else actual or "none"

    def needs_arrow(self, o: Planned, reason: str) -> bool:
        """Return whether an object is Parquet with a page that ClickHouse takes for damaged although it is not."""
        if self.work.form.name != "parquet" or not remedy_of(reason):
            return False
        content = self.work.content(o)
        try:
            return has_empty(content, ParquetObject(content).footer)
        except LoadObjectError:  # `reason` tells more
            return False

    def salvaged(self, o: Planned, table: str, reject: Callable[[Rejected], None]) -> int:
        """Send the rows that can be parsed to a staging table, and the others to `reject`; see `salvage`."""
        content = self.work.content(o)
        with content.released():
            return salvage(
                self.work.client, content, self.reading(), o, table, self.request.table_options.system_columns,
                self.staging.reader.ids.of_statement(table), reject, strict=self.work.is_strict,
            )  # fmt: skip

    def reading(self) -> Reading:
        """Return how an object is read into the table as it is now."""
        empty_nulls = self.request.empties_nested
        return self.work.readings.text(
            self.work.form, self.staging.destination, empty_nulls=empty_nulls,
            keeps_codes=self.work.keeps_codes, exact=self.work.is_strict or self.work.form.has_fields,
        )  # fmt: skip
