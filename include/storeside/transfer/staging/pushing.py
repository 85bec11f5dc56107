"""Fills staging tables with the objects that the worker reads, one after the other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from clickhouse_connect.driver.exceptions import DatabaseError

from storeside.transfer.base.errors import LoadObjectError, TransferCancelled, about, classify
from storeside.transfer.base.watch import watched
from storeside.transfer.objects.content import Content
from storeside.transfer.objects.members import about_member, members_of
from storeside.transfer.staging.grouping import Grouping
from storeside.transfer.staging.proof import SMALL
from storeside.transfer.staging.push import push
from storeside.transfer.staging.work import Group, How, Work
from storeside.transfer.state.loads import Loaded, Planned
from storeside.transfer.statements.reading import Reading
from storeside.transfer.tables.table import Destination


class Pushing:
    """Sends objects to ClickHouse; `query_id` returns a new id for a statement that fills a table."""

    def __init__(self, work: Work, query_id: Callable[[str], str]) -> None:
        self.work = work
        self.request = work.request
        self.query_id = query_id

    def read(self, table: str, group: Group, how: How) -> list[Loaded]:
        """Send the objects of a group to a staging table. Raises LoadObjectError."""
        loaded = []
        for o in group.objects:
            self._check_stop()
            planned = o.planned
            try:
                if group.into is not None:
                    loaded.append(self._members(table, o, group.into))
                    continue
                content, reading = self.work.content(planned), group.reading
                if reading.form.is_text and 0 < content.size <= SMALL:
                    content.hold()
                    if group.plain is not None and group.plain.fits(content):
                        reading = group.plain.reading
                read = self._one(table, planned, content, reading, tidy=how.tidy)
            except DatabaseError as e:
                raise about(classify(e), planned.key) from e
            except LoadObjectError as e:
                raise about(e, planned.key) from e
            loaded.append(o if o.rows >= 0 else replace(o, rows=read))
        return loaded

    def _one(
        self, table: str, o: Planned, content: Content, reading: Reading, *, tidy: bool = False, first_row: int = 0
    ) -> int:
        query_id, limits = self.query_id(table), self.request.limits
        with (
            watched(self.work.client, query_id, rows=limits.rows, size=limits.bytes_of(o.size)),
            content.released(),
        ):
            return push(
                self.work.client, content, reading, o, table, self.request.table_options.system_columns, query_id,
                strict=self.work.is_strict, tidy=tidy, first_row=first_row, most_rows=self.work.most_rows,
            )  # fmt: skip

    def _members(self, table: str, o: Loaded, into: Destination) -> Loaded:
        """Push the members of an archive; return the archive with its number of rows and of NULLs."""
        rows, found = 0, []
        for member in members_of(self.work.content(o.planned)):
            self._check_stop()
            with about_member(member.name):
                grouping = Grouping(self.work, pushed=True, member=member)
                (group,) = grouping.groups([o.planned], into)
                try:
                    read = self._one(table, o.planned, member, group.reading, first_row=rows)
                except DatabaseError as e:
                    raise classify(e) from e
                (told,) = group.objects
                if told.rows not in (-1, read):
                    raise LoadObjectError(f"it has {told.rows} rows, but {read} arrived")
            found.append(told)
            rows += read
            if 0 < self.work.most_rows <= rows:
                break
        return Loaded(o.planned, rows, nulls=_nulls(found))

    def _check_stop(self) -> None:
        """Raise TransferCancelled if the transfer is stopped."""
        if self.work.stop.is_set():
            raise TransferCancelled("the transfer was stopped")


def _nulls(loaded: Sequence[Loaded]) -> tuple[tuple[str, int], ...]:
    """Return the NULLs that the footers of all members count, for the columns that all of them have."""
    counts = [dict(o.nulls) for o in loaded]
    names = set.intersection(*(set(each) for each in counts)) if counts else set()
    return tuple((name, sum(each[name] for each in counts)) for name in sorted(names))
