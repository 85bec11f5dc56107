"""Lets ClickHouse read the objects of a batch into a staging table, and checks JSON meanwhile."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from itertools import count
from typing import Any

from clickhouse_connect.driver.exceptions import OperationalError

from storeside.transfer.base import queries
from storeside.transfer.base.errors import code_of
from storeside.transfer.base.schema import structure
from storeside.transfer.base.watch import watched
from storeside.transfer.request.aistore_urls import fewer_readers
from storeside.transfer.request.object_format import compression_by_name
from storeside.transfer.staging.json_check import JsonCheck
from storeside.transfer.staging.json_values import JsonValues
from storeside.transfer.staging.origin import pulled_columns
from storeside.transfer.staging.work import Group, How, Work, cached
from storeside.transfer.state.loads import Loaded, Planned
from storeside.transfer.statements.composing import settings
from storeside.transfer.statements.reading import TRIMMED

# The settings with which the rows of a limit are the first ones of the object.
_IN_ORDER = {"max_threads": 1, "max_parsing_threads": 1, "input_format_parquet_preserve_order": 1}


class Ids:
    """The ids of the statements that one reader sends, by the staging tables that they fill."""

    def __init__(self) -> None:
        self._numbers = count(1)

    def of_statement(self, table: str) -> str:
        """Return a new id for a statement that fills a staging table."""
        return queries.query_id(table, next(self._numbers))

    def of_check(self, table: str) -> str:
        """Return a new id for a statement that checks objects."""
        return queries.check_id(table, next(self._numbers))


class Pull:
    """Fills staging tables by statements with which ClickHouse reads objects."""

    def __init__(self, work: Work, ids: Ids) -> None:
        self._work = work
        self._request = work.request
        self._source = work.request.source
        self._client = work.client
        self._json = JsonCheck(work)
        self._ids = ids

    def read(self, table: str, group: Group, how: How) -> list[Loaded]:
        """Let ClickHouse read the objects of a group. Raises LoadObjectError, and ClickHouse's errors."""
        reading, objects = group.reading, group.planned
        if self._source.by_url and reading.form.is_stream:  # ClickHouse reads an empty response as a missing header
            objects = [o for o in objects if o.size]
        if not objects:
            return list(group.objects)
        source, only = self._work.source(
            objects, reading.form.clickhouse, structure(reading.columns), how.compression
        )
        extra = pulled_columns(self._source, objects, self._request.table_options.system_columns)
        more = {} if reading.form.is_stream else cached(objects)
        if self._source.by_url and not reading.form.is_stream and len(objects) > 1:
            more = fewer_readers(self._client, largest(objects))
        # Otherwise ClickHouse treats `_path` in a condition as a missing column.
        if (only or reading.partitions) and not reading.form.is_text:
            more = {**more, **reading.form.allow_missing()}
        is_slow = reading.form.is_text and TRIMMED not in reading.settings
        if is_slow and not any(_is_compressed(o, how.compression) for o in objects):
            more = {**more, **queries.fewer_parsers(self._client)}
        statement = f"INSERT INTO {reading.insert(table, extra, source, only, key=self._source.key)}"
        if most := self._work.most_rows:
            statement, more = f"{statement} LIMIT {most}", {**more, **_IN_ORDER, "max_block_size": most}
        options = settings(reading.form, **more, **dict(reading.settings))
        if self._work.is_strict and most:
            self._execute(table, statement, options, objects)
            self._json.refuse(objects, JsonValues(reading))
        elif self._work.is_strict:
            self._execute_and_check(table, statement, options, objects, how.compression, JsonValues(reading))
        else:
            self._execute(table, statement, options, objects)
        return list(group.objects)

    def _execute_and_check(
        self, table: str, statement: str, options: dict[str, Any], objects: Sequence[Planned], compression: str,
        values: JsonValues,
    ) -> None:  # fmt: skip
        """Run an INSERT and, at the same time, the JSON check of its objects; see `json_check`."""
        check = self._ids.of_check(table)

        def load() -> None:
            try:
                self._execute(table, statement, options, objects)
            except BaseException:
                queries.abandon(self._client, check)
                raise

        _, broken = queries.at_once(load, lambda: self._json.broken(check, objects, values, compression))
        self._json.refuse(broken, values)

    def _execute(self, table: str, statement: str, options: dict[str, Any], objects: Sequence[Planned]) -> None:
        """Run an INSERT of objects, and follow it if its connection breaks. Raises LimitError."""
        query_id = self._ids.of_statement(table)
        with self._watched(query_id, objects):
            try:
                self._client.command(statement, settings={**options, "query_id": query_id})
            except OperationalError as e:
                if code_of(e):
                    raise
                queries.follow(self._client, query_id, self._work.stop)

    def _watched(self, query_id: str, objects: Sequence[Planned]) -> AbstractContextManager[None]:
        """Watch the limits of objects while one statement reads them."""
        limits = self._request.limits
        size = sum(limits.bytes_of(o.size) for o in objects)
        return watched(self._client, query_id, rows=limits.rows * len(objects), size=size)

    def check_json(self, table: str, group: Group) -> None:
        """Check the JSON Lines objects of a group if the request is strict. Raises LoadObjectError."""
        if self._work.is_strict and group.planned:
            values = JsonValues(group.reading)
            self._json.refuse(self._json.broken(self._ids.of_check(table), group.planned, values), values)


def largest(objects: Sequence[Planned]) -> int:
    """Return the size of the largest object in bytes."""
    return max(o.size for o in objects)


def _is_compressed(o: Planned, compression: str) -> bool:
    """Return whether ClickHouse decompresses an object before it parses it."""
    return compression != "none" and bool(compression_by_name(o.key) if compression == "auto" else compression)
