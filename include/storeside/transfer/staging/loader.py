"""Reads the objects of a batch into a staging table: ClickHouse pulls them, or the worker pushes them."""

from __future__ import annotations

from collections.abc import Container, Sequence
from contextlib import AbstractContextManager
from itertools import count
from typing import Any

from clickhouse_connect.driver.exceptions import OperationalError

from storeside.aistore.buckets import common_prefix
from storeside.transfer.base import queries
from storeside.transfer.base.errors import GoneError, about, code_of
from storeside.transfer.base.schema import structure
from storeside.transfer.base.watch import watched
from storeside.transfer.objects.aistore_objects import changed
from storeside.transfer.request.aistore_urls import fewer_readers
from storeside.transfer.request.object_format import compression_by_name
from storeside.transfer.staging.json_check import JsonCheck
from storeside.transfer.staging.json_numbers import Numbers
from storeside.transfer.staging.origin import PULLED_VERSION, pulled_columns
from storeside.transfer.staging.push import WHOLE_PARQUET
from storeside.transfer.staging.pushing import Pushing
from storeside.transfer.staging.work import Group, How, Work, cached
from storeside.transfer.state.loads import LONG_STATEMENT, Loaded, Planned
from storeside.transfer.statements.composing import settings
from storeside.transfer.statements.reading import TRIMMED, Check, Reading

# The settings with which the rows of a limit are the first ones of the object.
_IN_ORDER = {"max_threads": 1, "max_parsing_threads": 1, "input_format_parquet_preserve_order": 1}


class Reader:
    """Fills staging tables. ClickHouse reads the objects, unless they are `pushed`."""

    def __init__(self, work: Work, *, pushed: bool) -> None:
        self.work = work
        self.request = work.request
        self.source = work.request.source
        self.client = work.client
        self.pushed = pushed
        self._json = JsonCheck(work)
        self._queries = count(1)
        self._pushing = Pushing(work, self.query_id)

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
        return self.source.by_url and not group.reading.form.is_stream and _largest(group.planned) > WHOLE_PARQUET

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
                loaded += self._pull(table, group, how)
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

    def query_id(self, table: str) -> str:
        """Return a new id for a statement that fills a staging table."""
        return queries.query_id(table, next(self._queries))

    def _pull(self, table: str, group: Group, how: How) -> list[Loaded]:
        reading, objects = group.reading, group.planned
        if self.source.by_url and reading.form.is_stream:  # ClickHouse reads an empty response as a missing header
            objects = [o for o in objects if o.size]
        if not objects:
            return list(group.objects)
        source, only = self.work.source(objects, reading.form.clickhouse, structure(reading.columns), how.compression)
        extra = pulled_columns(self.source, objects, self.request.table_options.system_columns)
        more = {} if reading.form.is_stream else cached(objects)
        if self.source.by_url and not reading.form.is_stream and len(objects) > 1:
            more = fewer_readers(self.client, _largest(objects))
        # Otherwise ClickHouse treats `_path` in a condition as a missing column.
        if (only or reading.partitions) and not reading.form.is_text:
            more = {**more, **reading.form.allow_missing()}
        is_slow = reading.form.is_text and TRIMMED not in reading.settings
        if is_slow and not any(_is_compressed(o, how.compression) for o in objects):
            more = {**more, **queries.fewer_parsers(self.client)}
        statement = f"INSERT INTO {reading.insert(table, extra, source, only, key=self.source.key)}"
        if most := self.work.most_rows:
            statement, more = f"{statement} LIMIT {most}", {**more, **_IN_ORDER, "max_block_size": most}
        options = settings(reading.form, **more, **dict(reading.settings))
        if self.work.is_strict and most:
            self._execute(table, statement, options, objects)
            self._json.refuse(objects, Numbers(reading))
        elif self.work.is_strict:
            self._execute_and_check(table, statement, options, objects, how.compression, Numbers(reading))
        else:
            self._execute(table, statement, options, objects)
        return list(group.objects)

    def _execute_and_check(
        self, table: str, statement: str, options: dict[str, Any], objects: Sequence[Planned], compression: str,
        numbers: Numbers,
    ) -> None:  # fmt: skip
        """Run an INSERT and, at the same time, the JSON check of its objects; see `json_check`."""
        check = self._check_id(table)

        def load() -> None:
            try:
                self._execute(table, statement, options, objects)
            except BaseException:
                queries.abandon(self.client, check)
                raise

        _, broken = queries.at_once(load, lambda: self._json.broken(check, objects, numbers, compression))
        self._json.refuse(broken, numbers)

    def _execute(self, table: str, statement: str, options: dict[str, Any], objects: Sequence[Planned]) -> None:
        """Run an INSERT of objects, and follow it if its connection breaks. Raises LimitError."""
        query_id = self.query_id(table)
        with self._watched(query_id, objects):
            try:
                self.client.command(statement, settings={**options, "query_id": query_id})
            except OperationalError as e:
                if code_of(e):
                    raise
                queries.follow(self.client, query_id, self.work.stop)

    def _watched(self, query_id: str, objects: Sequence[Planned]) -> AbstractContextManager[None]:
        """Watch the limits of objects while one statement reads them."""
        limits = self.request.limits
        size = sum(limits.bytes_of(o.size) for o in objects)
        return watched(self.client, query_id, rows=limits.rows * len(objects), size=size)

    def check_json(self, table: str, group: Group) -> None:
        """Check the JSON Lines objects of a group if the request is strict. Raises LoadObjectError."""
        if self.work.is_strict and group.planned:
            numbers = Numbers(group.reading)
            self._json.refuse(self._json.broken(self._check_id(table), group.planned, numbers), numbers)

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
                    "query_id": self._check_id(table),
                },
            ),
        ).result_rows  # fmt: skip
        return int(rows[0][0]) if rows else None

    def _check_id(self, table: str) -> str:
        return queries.check_id(table, next(self._queries))


def _largest(objects: Sequence[Planned]) -> int:
    return max(o.size for o in objects)


def _is_compressed(o: Planned, compression: str) -> bool:
    """Return whether ClickHouse decompresses an object before it parses it."""
    return compression != "none" and bool(compression_by_name(o.key) if compression == "auto" else compression)
