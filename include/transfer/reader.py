"""How the objects of a batch come into a staging table: pulled by ClickHouse, or pushed by this process."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from clickhouse_connect.driver.exceptions import DatabaseError, OperationalError

from include.storage.buckets import common_prefix
from include.transfer import queries
from include.transfer.content import Content
from include.transfer.errors import DELETED, Cancelled, ObjectError, about, classify, code_of
from include.transfer.formats import Format
from include.transfer.loads import LONG_STATEMENT, Loaded, Loads, Planned
from include.transfer.push import parquet_facts, pieces, push
from include.transfer.request import Request
from include.transfer.schema import Column, structure
from include.transfer.source import wild
from include.transfer.statement import (
    PULLED_VERSION,
    Reading,
    parquet_reading,
    pulled_columns,
    settings,
    text_reading,
)
from include.transfer.strict_json import checked
from include.transfer.table import Destination

# Bytes from which an object has a statement of its own.
_LARGE = 8 << 20
# So many objects are listed once more, which also tells their ETags and sizes, instead of asked for one by one,
# unless the listing would have this many times as many objects.
_MANY, _LISTED = 20, 16
# Parquet objects are opened twice, for their footers and their rows. So many bytes of small ones stay in ClickHouse's
# page cache in between, if its server has one, in blocks that do not take much more room than the objects.
_CACHED_BYTES = 128 << 20
_CACHED = {"use_page_cache_for_object_storage": 1, "page_cache_block_size": 64 << 10}


@dataclass
class Work:
    """What all batches of a run share."""

    request: Request
    form: Format
    transfer: str
    token: str
    run_id: str
    client: Any
    s3: Any
    push_all: bool
    stop: threading.Event = field(default_factory=threading.Event)
    shapes: dict[str, tuple[Column, ...]] = field(default_factory=dict)
    alters: threading.Lock = field(default_factory=threading.Lock)
    relists: bool = True


@dataclass(frozen=True)
class How:
    """How objects are read that the usual way does not suit.

    `rest` are columns that go into the one for the rest, `compression` is ClickHouse's name of what the content has,
    where their names say something else, and `push` has this process read them, `tidy` as `records` has them.
    """

    rest: tuple[Column, ...] = ()
    compression: str = "auto"
    push: bool = False
    tidy: bool = False


USUAL = How()


@dataclass(frozen=True)
class Group:
    """Objects that are read in one way, and the rows of each by its footer, or -1."""

    reading: Reading
    objects: list[Planned]
    rows: list[int]


class Reader:
    """Reads objects into staging tables; ClickHouse does, unless `pushed`."""

    def __init__(self, work: Work, loads: Loads, *, pushed: bool) -> None:
        self.work = work
        self.request = work.request
        self.source = work.request.source
        self.client = work.client
        self.loads = loads
        self.pushed = pushed
        self._queries = count(1)

    def pushes(self, groups: Sequence[Group], how: How) -> bool:
        """Whether this process reads the groups."""
        return self.pushed or how.push or any(group.reading.hides_virtual for group in groups)

    def read(self, table: str, destination: Destination, groups: Sequence[Group], how: How) -> list[Loaded]:
        """Fill a staging table. Raises ObjectError, and what ClickHouse does."""
        if self.pushes(groups, how):
            return self._push(table, groups, how)
        return self._pull(table, destination, groups, how)

    def groups(self, objects: Sequence[Planned], destination: Destination, how: How = USUAL) -> list[Group]:
        """Return how the objects are read."""
        form = self.work.form
        if form.is_text:
            return [Group(text_reading(form, destination, how.rest), list(objects), [-1] * len(objects))]
        alike: dict[tuple[Column, ...], tuple[list[Planned], list[int]]] = {}
        for o, (columns, rows) in zip(objects, self._footers(objects), strict=True):
            some, counts = alike.setdefault(columns, ([], []))
            some.append(o)
            counts.append(rows)
        keep_rest = self.request.on_drift == "rest"
        return [
            Group(parquet_reading(form, destination, columns, keep_rest=keep_rest), some, counts)
            for columns, (some, counts) in alike.items()
        ]

    def check_unchanged(self, objects: Sequence[Planned]) -> None:
        """Compare the versions of objects with those at the listing; raises ObjectError."""
        if not objects:
            return
        source = self.source.objects([o.key for o in objects], "One")
        now = dict(
            self.client.query(
                f"SELECT _path, {PULLED_VERSION} FROM {source}",
                settings={"max_query_size": LONG_STATEMENT, "use_hive_partitioning": 0, "s3_skip_empty_files": 0},
            ).result_rows
        )
        for o in objects:
            if now.get(f"{self.source.bucket}/{o.key}") != o.version:
                raise about(ObjectError("it was overwritten or deleted after it was listed"), o.key)

    def content(self, o: Planned) -> Content:
        """Return the content of an object."""
        return Content(self.work.s3, self.source.bucket, o.key, o.size, o.version)

    def query_id(self, table: str) -> str:
        """Return a new id for a statement that fills a staging table."""
        return queries.query_id(table, next(self._queries))

    def _footers(self, objects: Sequence[Planned]) -> Iterator[tuple[tuple[Column, ...], int]]:
        """Yield columns and rows of Parquet objects, from their footers."""
        if self.pushed or len(objects) == 1:
            for o in objects:
                try:
                    columns, rows_in_footer = parquet_facts(self.content(o))
                except ObjectError as e:
                    raise about(e, o.key) from e
                yield tuple(columns), rows_in_footer
            return
        source, only = self._source(objects, "ParquetMetadata")
        rows = self.client.query(
            "SELECT _path, num_rows, toString(cityHash64(arrayMap(c -> (c.path, c.physical_type, c.logical_type,"
            " c.max_definition_level, c.max_repetition_level), columns)))"
            f" FROM {source}{f' WHERE {only}' if only else ''}",
            settings={
                "use_hive_partitioning": 0,
                "max_query_size": LONG_STATEMENT,
                "s3_retry_attempts": 10,
                **_cached(objects),
            },
        ).result_rows
        found = {path: (rows_in_footer, shape) for path, rows_in_footer, shape in rows}
        for o in objects:
            path = f"{self.source.bucket}/{o.key}"
            if path not in found:
                raise about(ObjectError(DELETED), o.key)
            rows_in_footer, shape = found[path]
            if shape not in self.work.shapes:
                self.work.shapes[shape] = tuple(parquet_facts(self.content(o))[0])
            yield self.work.shapes[shape], rows_in_footer

    def _source(
        self, objects: Sequence[Planned], form: str, columns: str = "", compression: str = "auto"
    ) -> tuple[str, str]:
        """Return the table function of objects, and the condition that keeps others out; empty where there are none.

        With the condition, objects that are gone are missing without an error.
        """
        keys = [o.key for o in objects]
        prefix = common_prefix(keys)
        if (
            self.work.relists
            and len(keys) >= _MANY
            and not self.source.cluster
            and not wild(prefix)
            # a listing that was forgotten, or is not of all objects, has too few
            and len(keys) <= self.loads.listed_below(prefix) <= _LISTED * len(keys)
        ):
            return self.source.among(keys, form, columns, compression), self.source.only(keys)
        return self.source.objects(keys, form, columns, compression), ""

    def _pull(self, table: str, destination: Destination, groups: Sequence[Group], how: How) -> list[Loaded]:
        loaded = []
        for group in groups:
            reading = group.reading
            for few in statements(group.objects):
                columns = structure(reading.columns)
                source, only = self._source(few, reading.form.clickhouse, columns, how.compression)
                extra = pulled_columns(destination.name, self.source.bucket, few, self.request.system_columns)
                more = {} if reading.form.is_text else _cached(group.objects)
                statement = f"INSERT INTO {reading.insert(table, extra, source, only)}"
                self._execute(table, statement, settings(reading.form, **more))
            self.check_json(table, group.objects, how.compression)
            loaded += [Loaded(o, rows) for o, rows in zip(group.objects, group.rows, strict=True)]
        return loaded

    def _execute(self, table: str, statement: str, options: dict[str, Any]) -> None:
        """Run an INSERT that may take longer than any connection lives."""
        query_id = self.query_id(table)
        try:
            self.client.command(statement, settings={**options, "query_id": query_id})
        except OperationalError as e:
            if code_of(e):
                raise
            queries.follow(self.client, query_id, self.work.stop)

    def check_json(self, table: str, objects: Sequence[Planned], compression: str = "auto") -> None:
        """Check that objects of JSON Lines are JSON, where the request asks for it; see `strict_json`.

        ClickHouse looks at each line. Objects with a line that is no document are read by this process, because
        documents may span lines. Raises ObjectError.
        """
        if not self.is_strict:
            return
        for few in statements(objects):
            source, only = self._source(few, "LineAsString", "line String", compression)
            rows = self.client.query(
                f"SELECT _path, {PULLED_VERSION} AS version,"
                " countIf(NOT isValidJSON(line) AND notEmpty(trimBoth(line, ' \\t\\r'))) AS wrong"
                f" FROM {source}{f' WHERE {only}' if only else ''} GROUP BY 1, 2",
                settings={
                    "use_hive_partitioning": 0,
                    "max_query_size": LONG_STATEMENT,
                    "s3_retry_attempts": 10,
                    "query_id": queries.check_id(table, next(self._queries)),
                },
            ).result_rows
            wrong = {(path, version) for path, version, count in rows if count}
            seen = {path: version for path, version, _ in rows}
            for o in few:
                path = f"{self.source.bucket}/{o.key}"
                if seen.get(path, o.version) != o.version:
                    raise about(ObjectError("it was overwritten after it was listed"), o.key)
                if (path, o.version) in wrong:
                    self._check_whole(o)

    def _check_whole(self, o: Planned) -> None:
        try:
            for _ in checked(pieces(self.content(o).plain())):
                pass
        except ObjectError as e:
            raise about(e, o.key) from e

    @property
    def is_strict(self) -> bool:
        """Whether objects are JSON Lines that are to be checked."""
        return self.work.form.name == "jsonl" and self.request.strict_json

    def _push(self, table: str, groups: Sequence[Group], how: How) -> list[Loaded]:
        loaded = []
        for group in groups:
            for o, rows in zip(group.objects, group.rows, strict=True):
                if self.work.stop.is_set():
                    raise Cancelled("the transfer was stopped")
                try:
                    read = push(
                        self.client, self.content(o), group.reading, o, table, self.request.system_columns,
                        self.query_id(table), strict=self.is_strict, tidy=how.tidy,
                    )  # fmt: skip
                except DatabaseError as e:
                    raise about(classify(e), o.key) from e
                except ObjectError as e:
                    raise about(e, o.key) from e
                loaded.append(Loaded(o, rows if rows >= 0 else read))
        return loaded


def statements(objects: Sequence[Planned]) -> list[list[Planned]]:
    """Return objects by the statement that reads them: telling many apart costs time, so large ones go alone."""
    small = [o for o in objects if o.size < _LARGE]
    return [[o] for o in objects if o.size >= _LARGE] + ([small] if small else [])


def _cached(objects: Sequence[Planned]) -> dict[str, int]:
    """Return the settings by which what is read of these objects is kept; empty where that is too much."""
    return _CACHED if sum(o.size for o in objects) <= _CACHED_BYTES else {}
