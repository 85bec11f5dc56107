"""Reads the objects of a batch into a staging table: ClickHouse pulls them, or the worker pushes them."""

from __future__ import annotations

from collections.abc import Container, Sequence

from storeside.aistore.buckets import common_prefix
from storeside.transfer.base.errors import GoneError, about
from storeside.transfer.base.schema import structure
from storeside.transfer.objects.aistore_objects import changed
from storeside.transfer.staging.origin import PULLED_VERSION
from storeside.transfer.staging.pull import Ids, Pull, largest
from storeside.transfer.staging.push import WHOLE_PARQUET
from storeside.transfer.staging.pushing import Pushing
from storeside.transfer.staging.work import Group, How, Work
from storeside.transfer.state.loads import LONG_STATEMENT, Loaded, Planned
from storeside.transfer.statements.composing import settings
from storeside.transfer.statements.reading import Check, Reading


class Reader:
    """Fills staging tables. ClickHouse reads the objects, unless they are `pushed`."""

    def __init__(self, work: Work, *, pushed: bool) -> None:
        self.work = work
        self.request = work.request
        self.source = work.request.source
        self.client = work.client
        self.pushed = pushed
        self.ids = Ids()
        self._pulling = Pull(work, self.ids)
        self._pushing = Pushing(work, self.ids.of_statement)

    def pushes(self, group: Group, how: How) -> bool:
        """Return whether the worker reads a group."""
        reading = group.reading
        # ClickHouse 26.9 does not number the rows of ORC and Arrow that it pulls: `_row_number` is NULL.
        is_numbered = "_row_number" in self.request.table_options.system_columns
        is_numbered = is_numbered and not reading.form.facts.is_numbered
        is_archive = group.into is not None
        needs_worker = how.push or is_archive or reading.hides_virtual or reading.by_arrow or is_numbered
        needs_worker = needs_worker or reading.form.joined
        return self.pushed or needs_worker or self._too_large(group)

    def _too_large(self, group: Group) -> bool:
        """Return whether ClickHouse would need much memory for an object: it keeps the whole body of a response."""
        return self.source.by_url and not group.reading.form.is_stream and largest(group.planned) > WHOLE_PARQUET

    def unchecked(self, loaded: Sequence[Loaded], found: Container[int]) -> list[Planned]:
        """Return the objects whose versions must be compared after ClickHouse has read them; `found` are load ids.

        If ClickHouse lists objects of S3, a deleted object looks like an object without rows. The rows of AIStore's
        objects do not show their versions.
        """
        if self.source.by_url and not self.pushed:
            return [o.planned for o in loaded]
        return [o.planned for o in loaded if o.rows < 0 and o.planned.load_id not in found]

    def read(self, table: str, groups: Sequence[Group], how: How) -> list[Loaded]:
        """Fill a staging table. Raises LoadObjectError, and ClickHouse's errors."""
        loaded = []
        for group in groups:
            if self.pushes(group, how):
                loaded += self._pushing.read(table, group, how)
            else:
                loaded += self._pulling.read(table, group, how)
        return loaded

    def check_unchanged(self, objects: Sequence[Planned]) -> None:
        """Compare the versions of objects with those in the listing. Raises GoneError."""
        if not objects:
            return
        if self.source.by_url:
            prefix = common_prefix(o.key for o in objects)
            versions = {o.key: o.version for o in objects}
            listed = self.work.plan.listed_below(prefix)
            if (error := changed(self.work.s3, self.source.bucket, versions, prefix, listed)) is not None:
                raise error
            return
        source = self.source.objects([o.key for o in objects], "One")
        rows = self.client.query(
            f"SELECT _path, {PULLED_VERSION} FROM {source}",
            settings={"max_query_size": LONG_STATEMENT, "use_hive_partitioning": 0, "s3_skip_empty_files": 0},
        ).result_rows
        now = {path: version for path, version in rows}
        for o in objects:
            if now.get(self.source.path_of(o.key)) != o.version:
                raise about(GoneError("it was overwritten or deleted after it was listed"), o.key)

    def check_json(self, table: str, group: Group) -> None:
        """Check the JSON Lines objects of a group if the request is strict. Raises LoadObjectError."""
        self._pulling.check_json(table, group)

    def first_row(self, table: str, o: Planned, reading: Reading, check: Check, compression: str) -> int | None:
        """Return the number of the first row of a text object that fails a check; None if there is none.

        ClickHouse reads the object up to that row. `table` only names the statement and need not exist.
        """
        source, _ = self.work.source([o], reading.form.clickhouse, structure(reading.columns), compression)
        one_after_the_other = {"max_threads": 1, "max_parsing_threads": 1}
        rows = self.client.query(
            f"SELECT _row_number FROM {source} WHERE {check.fault} LIMIT 1",
            settings=settings(
                reading.form,
                **{
                    **dict(reading.settings), **one_after_the_other,
                    "input_format_skip_unknown_fields": 1,  # the query reads only the column of the check
                    "query_id": self.ids.of_check(table),
                },
            ),
        ).result_rows  # fmt: skip
        return int(rows[0][0]) if rows else None
