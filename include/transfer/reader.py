"""How the objects of a batch come into a staging table: pulled by ClickHouse, or pushed by this process."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any

from clickhouse_connect.driver.exceptions import DatabaseError, OperationalError

from include.storage.buckets import common_prefix
from include.transfer import queries
from include.transfer.content import Content
from include.transfer.errors import DELETED, Cancelled, ObjectError, about, classify, code_of
from include.transfer.footer import OTHER_ROWS, UNKNOWN
from include.transfer.formats import Format
from include.transfer.loads import LONG_STATEMENT, Loaded, Loads, Planned
from include.transfer.nulls import possible, present, wanted
from include.transfer.parquet import Facts, Nested, Shape, facts
from include.transfer.push import pieces, push
from include.transfer.request import Request
from include.transfer.schema import Column, is_nullable, structure
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
    shapes: dict[str, Shape] = field(default_factory=dict)
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


@dataclass
class Group:
    """Objects that are read in one way; of each, what is known of its rows before they are: -1 for text."""

    reading: Reading
    objects: list[Loaded]

    @property
    def planned(self) -> list[Planned]:
        """The objects, as they were planned."""
        return [o.planned for o in self.objects]


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

    def pushes(self, group: Group, how: How) -> bool:
        """Whether this process reads a group."""
        return self.pushed or how.push or group.reading.hides_virtual or group.reading.by_arrow

    def read(self, table: str, destination: Destination, groups: Sequence[Group], how: How) -> list[Loaded]:
        """Fill a staging table. Raises ObjectError, and what ClickHouse does."""
        loaded = []
        for group in groups:
            if self.pushes(group, how):
                loaded += self._push(table, group, how)
            else:
                loaded += self._pull(table, destination, group, how)
        return loaded

    def groups(self, objects: Sequence[Planned], destination: Destination, how: How = USUAL) -> list[Group]:
        """Return how the objects are read."""
        form = self.work.form
        if form.is_text:
            reading = text_reading(form, destination, how.rest, empty_nulls=self._empties)
            return [Group(reading, [Loaded(o, -1) for o in objects])]
        alike: dict[tuple[Shape, frozenset[Nested]], Group] = {}
        for o, told in zip(objects, self._footers(objects), strict=True):
            try:
                nulls = self._nulls(o, told, destination)
                if (told.shape, nulls) not in alike:
                    reading = parquet_reading(
                        form, destination, told.shape, nulls,
                        keep_rest=self.request.on_drift == "rest", refuse_nulls=not self._empties,
                    )  # fmt: skip
                    alike[told.shape, nulls] = Group(reading, [])
            except ObjectError as e:
                raise about(e, o.key) from e
            alike[told.shape, nulls].objects.append(Loaded(o, told.rows, nulls=_declared(told, destination)))
        return list(alike.values())

    @property
    def _empties(self) -> bool:
        return self.request.on_null_nested == "empty"

    def _nulls(self, o: Planned, told: Facts, destination: Destination) -> frozenset[Nested]:
        """Return the lists, maps and structs of an object that are NULL somewhere, of those that matter."""
        if not told.shape.nested or not told.rows:
            return frozenset()
        targets = {column.name: destination.type_of(column.name) for column in told.shape.columns}
        return present(self.content(o), possible(told, wanted(told.shape, targets, refuse=not self._empties)))

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

    def _footers(self, objects: Sequence[Planned]) -> Iterator[Facts]:
        """Yield what the footers of Parquet objects say."""
        if self.pushed or len(objects) == 1:
            for o in objects:
                try:
                    yield facts(self.content(o))
                except ObjectError as e:
                    raise about(e, o.key) from e
            return
        source, only = self._source(objects, "ParquetMetadata")
        rows = self.client.query(
            "SELECT _path, num_rows, toString(cityHash64(arrayMap(c -> (c.path, c.physical_type, c.logical_type,"
            " c.max_definition_level, c.max_repetition_level), columns))),"
            " arrayReduce('sumForEach', arrayMap(g -> arrayMap("
            f"c -> ifNull(c.statistics.null_count, {UNKNOWN}), g.columns), row_groups)),"
            " arraySum(g -> g.num_rows, row_groups)"
            f" FROM {source}{f' WHERE {only}' if only else ''}",
            settings={
                "use_hive_partitioning": 0,
                "max_query_size": LONG_STATEMENT,
                "s3_retry_attempts": 10,
                **_cached(objects),
            },
        ).result_rows
        found = {path: tuple(more) for path, *more in rows}
        for o in objects:
            path = f"{self.source.bucket}/{o.key}"
            if path not in found:
                raise about(ObjectError(DELETED), o.key)
            rows_in_footer, shape, nulls, in_groups = found[path]
            if in_groups != rows_in_footer:
                raise about(ObjectError(OTHER_ROWS.format(rows_in_footer, in_groups)), o.key)
            if shape not in self.work.shapes:
                self.work.shapes[shape] = facts(self.content(o)).shape
            yield Facts(self.work.shapes[shape], rows_in_footer, tuple(nulls))

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

    def _pull(self, table: str, destination: Destination, group: Group, how: How) -> list[Loaded]:
        reading = group.reading
        for few in statements(group.planned):
            columns = structure(reading.columns)
            source, only = self._source(few, reading.form.clickhouse, columns, how.compression)
            extra = pulled_columns(destination.name, self.source.bucket, few, self.request.system_columns)
            more = {} if reading.form.is_text else _cached(group.planned)
            if (
                only and not reading.form.is_text
            ):  # else the condition on `_path` is taken for one on a missing column
                more = {**more, "input_format_parquet_allow_missing_columns": 1}
            statement = f"INSERT INTO {reading.insert(table, extra, source, only)}"
            self._execute(table, statement, settings(reading.form, **more))
        self.check_json(table, group.planned, how.compression)
        return list(group.objects)

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

    def _push(self, table: str, group: Group, how: How) -> list[Loaded]:
        loaded = []
        for o in group.objects:
            if self.work.stop.is_set():
                raise Cancelled("the transfer was stopped")
            planned = o.planned
            try:
                read = push(
                    self.client, self.content(planned), group.reading, planned, table, self.request.system_columns,
                    self.query_id(table), strict=self.is_strict, tidy=how.tidy,
                )  # fmt: skip
            except DatabaseError as e:
                raise about(classify(e), planned.key) from e
            except ObjectError as e:
                raise about(e, planned.key) from e
            loaded.append(o if o.rows >= 0 else replace(o, rows=read))
        return loaded


def _declared(told: Facts, destination: Destination) -> tuple[tuple[str, int], ...]:
    """Return the columns that hold NULL as it is, with the number that the footer has of each."""
    found = []
    for name, leaf in told.shape.flat:
        target = destination.type_of(name)
        if target is not None and is_nullable(target) and told.nulls[leaf] < UNKNOWN:
            found.append((name, told.nulls[leaf]))
    return tuple(found)


def statements(objects: Sequence[Planned]) -> list[list[Planned]]:
    """Return objects by the statement that reads them: telling many apart costs time, so large ones go alone."""
    small = [o for o in objects if o.size < _LARGE]
    return [[o] for o in objects if o.size >= _LARGE] + ([small] if small else [])


def _cached(objects: Sequence[Planned]) -> dict[str, int]:
    """Return the settings by which what is read of these objects is kept; empty where that is too much."""
    return _CACHED if sum(o.size for o in objects) <= _CACHED_BYTES else {}
