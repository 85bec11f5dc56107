"""Reads the objects of a batch into a staging table: ClickHouse pulls them, or this process pushes them."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from typing import TYPE_CHECKING, Any

from clickhouse_connect.driver.exceptions import DatabaseError, OperationalError

from storeside.aistore.buckets import common_prefix
from storeside.transfer import queries
from storeside.transfer.content import Content
from storeside.transfer.errors import DELETED, LoadObjectError, TransferCancelled, about, classify, code_of
from storeside.transfer.footer import OTHER_ROWS, UNKNOWN
from storeside.transfer.formats import Format, compression_by_name
from storeside.transfer.loads import LONG_STATEMENT, Loaded, Loads, Planned
from storeside.transfer.nulls import miscounted, possible, present, wanted
from storeside.transfer.parquet import Facts, Nested, Shape, facts
from storeside.transfer.push import pieces, push
from storeside.transfer.request import Request
from storeside.transfer.schema import Column, is_nullable, structure
from storeside.transfer.source import wild
from storeside.transfer.statement import (
    PULLED_VERSION,
    Reading,
    parquet_reading,
    pulled_columns,
    settings,
    text_reading,
)
from storeside.transfer.strict_json import checked
from storeside.transfer.table import Destination

if TYPE_CHECKING:
    from clickhouse_connect.driver.client import Client

# Minimum bytes of an object that gets a statement of its own.
_LARGE = 8 << 20
# From this number on, ClickHouse lists objects again, which also gives ETags and sizes, instead of requesting each
# one, unless the listing would have this many times as many objects.
_MANY, _LISTED = 20, 16
# Parquet objects are opened twice, for their footers and their rows. This number of bytes of small objects stays in
# ClickHouse's page cache in between, if the server has one, in blocks that are not much larger than the objects.
_CACHED_BYTES = 128 << 20
_CACHED = {"use_page_cache_for_object_storage": 1, "page_cache_block_size": 64 << 10}
# From ClickHouse's format ParquetMetadata: the key of an object's shape, the NULLs of each column, and the rows.
# Parts of tuples are taken from whole arrays, because a lambda over tuples would copy all of them.
_SHAPE = ", ".join(
    f"tupleElement(columns, '{part}')"
    for part in ("path", "physical_type", "logical_type", "max_definition_level", "max_repetition_level")
)
_COUNTS = "tupleElement(tupleElement(tupleElement(row_groups, 'columns'), 'statistics'), 'null_count')"
_FACTS = (
    f"toString(cityHash64({_SHAPE})),"
    f" arrayReduce('sumForEach', arrayMap(g -> arrayMap(n -> ifNull(n, {UNKNOWN}), g), {_COUNTS})),"
    " arraySum(tupleElement(row_groups, 'num_rows'))"
)


@dataclass
class Work:
    """State that all batches of a run share; for `neighbours` see `Transfer.prepare`."""

    request: Request
    form: Format
    transfer: str
    token: str
    run_id: str
    client: Client
    s3: Any
    push_all: bool
    stop: threading.Event = field(default_factory=threading.Event)
    shapes: dict[str, Shape] = field(default_factory=dict)
    alters: threading.Lock = field(default_factory=threading.Lock)
    relists: bool = True
    neighbours: int = 0


@dataclass(frozen=True)
class How:
    """How to read objects that need special handling.

    `rest` are the columns that go into the column `_rest`. `compression` is ClickHouse's name for the content's
    compression if the objects' names say something else. With `push` this process reads the objects, with `tidy` as
    the rows that `records` yields.
    """

    rest: tuple[Column, ...] = ()
    compression: str = "auto"
    push: bool = False
    tidy: bool = False


USUAL = How()


@dataclass
class Group:
    """Objects that are read in the same way, each with its number of rows if known before reading; -1 for text."""

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
        """Fill a staging table. Raises LoadObjectError, and ClickHouse's errors."""
        loaded = []
        for group in groups:
            if self.pushes(group, how):
                loaded += self._push(table, group, how)
            else:
                loaded += self._pull(table, destination, group, how)
        return loaded

    def groups(self, objects: Sequence[Planned], destination: Destination, how: How = USUAL) -> list[Group]:
        """Return the objects grouped by how they are read."""
        form = self.work.form
        if form.is_text:
            reading = text_reading(form, destination, how.rest, empty_nulls=self._empties)
            return [Group(reading, [Loaded(o, -1) for o in objects])]
        alike: dict[tuple[Shape, frozenset[Nested], bool], Group] = {}
        for o, told in zip(objects, self._footers(objects), strict=True):
            try:
                is_wrong = bool(told.rows) and miscounted(self.content(o), told)
                nulls = self._nulls(o, told, destination, all_structs=is_wrong)
                how_read = (told.shape, nulls, is_wrong)
                if how_read not in alike:
                    reading = parquet_reading(
                        form, destination, told.shape, nulls,
                        keep_rest=self.request.on_drift == "rest", refuse_nulls=not self._empties,
                    )  # fmt: skip
                    alike[how_read] = Group(replace(reading, by_arrow=True) if is_wrong else reading, [])
            except LoadObjectError as e:
                raise about(e, o.key) from e
            alike[how_read].objects.append(Loaded(o, told.rows, nulls=_declared(told, destination)))
        return list(alike.values())

    @property
    def _empties(self) -> bool:
        return self.request.read.on_null_nested == "empty"

    def _nulls(self, o: Planned, told: Facts, destination: Destination, *, all_structs: bool) -> frozenset[Nested]:
        """Return the object's lists, maps and structs that are NULL somewhere, if that matters for the table.

        With `all_structs`, the footer's counts do not tell which structs may be NULL.
        """
        if not told.shape.nested or not told.rows:
            return frozenset()
        targets = {column.name: destination.type_of(column.name) for column in told.shape.columns}
        among = wanted(told.shape, targets, refuse=not self._empties)
        doubted = [nested for nested in among if all_structs and nested.kind == "struct"]
        return present(self.content(o), [*doubted, *possible(told, (n for n in among if n not in doubted))])

    def check_unchanged(self, objects: Sequence[Planned]) -> None:
        """Compare the versions of objects with those in the listing. Raises LoadObjectError."""
        if not objects:
            return
        source = self.source.objects([o.key for o in objects], "One")
        rows = self.client.query(
            f"SELECT _path, {PULLED_VERSION} FROM {source}",
            settings={"max_query_size": LONG_STATEMENT, "use_hive_partitioning": 0, "s3_skip_empty_files": 0},
        ).result_rows
        now = {path: version for path, version in rows}
        for o in objects:
            if now.get(f"{self.source.bucket}/{o.key}") != o.version:
                raise about(LoadObjectError("it was overwritten or deleted after it was listed"), o.key)

    def content(self, o: Planned) -> Content:
        """Return the content of an object."""
        return Content(self.work.s3, self.source.bucket, o.key, o.size, o.version)

    def query_id(self, table: str) -> str:
        """Return a new id for a statement that fills a staging table."""
        return queries.query_id(table, next(self._queries))

    def _footers(self, objects: Sequence[Planned]) -> Iterator[Facts]:
        """Yield the facts in the footers of Parquet objects."""
        if self.pushed or len(objects) == 1:
            for o in objects:
                try:
                    yield facts(self.content(o))
                except LoadObjectError as e:
                    raise about(e, o.key) from e
            return
        source, only = self._source(objects, "ParquetMetadata")
        rows = self.client.query(
            f"SELECT _path, num_rows, {_FACTS} FROM {source}{f' WHERE {only}' if only else ''}",
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
                raise about(LoadObjectError(DELETED), o.key)
            rows_in_footer, shape, nulls, in_groups = found[path]
            if in_groups != rows_in_footer:
                raise about(LoadObjectError(OTHER_ROWS.format(rows_in_footer, in_groups)), o.key)
            if shape not in self.work.shapes:
                self.work.shapes[shape] = facts(self.content(o)).shape
            yield Facts(self.work.shapes[shape], rows_in_footer, tuple(nulls))

    def _source(
        self, objects: Sequence[Planned], form: str, columns: str = "", compression: str = "auto"
    ) -> tuple[str, str]:
        """Return the table function of objects, and the condition that excludes others; empty if there are none.

        With the condition, ClickHouse raises no error for objects that no longer exist.
        """
        keys = [o.key for o in objects]
        prefix = common_prefix(keys)
        if (
            self.work.relists
            and len(keys) >= _MANY
            and not self.source.cluster
            and not wild(prefix)
            # a listing that was dropped or is not complete has too few
            and len(keys) <= (self.work.neighbours or self.loads.listed_below(prefix)) <= _LISTED * len(keys)
        ):
            return self.source.among(keys, form, columns, compression), self.source.only(keys)
        return self.source.objects(keys, form, columns, compression), ""

    def _pull(self, table: str, destination: Destination, group: Group, how: How) -> list[Loaded]:
        reading = group.reading
        for few in statements(group.planned):
            columns = structure(reading.columns)
            source, only = self._source(few, reading.form.clickhouse, columns, how.compression)
            system = self.request.table_options.system_columns
            extra = pulled_columns(destination.name, self.source.bucket, few, system)
            more = {} if reading.form.is_text else _cached(group.planned)
            if (
                only and not reading.form.is_text
            ):  # otherwise the condition on `_path` counts as one on a missing column
                more = {**more, "input_format_parquet_allow_missing_columns": 1}
            if reading.form.is_text and not any(_is_compressed(o, how.compression) for o in few):
                more = {**more, **queries.fewer_parsers(self.client)}
            statement = f"INSERT INTO {reading.insert(table, extra, source, only)}"
            options = settings(reading.form, **more)
            if self.is_strict:
                self._execute_and_check(table, statement, options, few, how.compression)
            else:
                self._execute(table, statement, options)
        return list(group.objects)

    def _execute_and_check(
        self, table: str, statement: str, options: dict[str, Any], objects: Sequence[Planned], compression: str
    ) -> None:
        """Run an INSERT and, at the same time, the check of the objects that it reads; see `check_json`."""
        check = self._check_id(table)

        def load() -> None:
            try:
                self._execute(table, statement, options)
            except BaseException:
                queries.abandon(self.client, check)
                raise

        _, broken = queries.at_once(load, lambda: self._broken(check, objects, compression))
        self._check_broken(broken)

    def _execute(self, table: str, statement: str, options: dict[str, Any]) -> None:
        """Run an INSERT that may take longer than a connection lasts."""
        query_id = self.query_id(table)
        try:
            self.client.command(statement, settings={**options, "query_id": query_id})
        except OperationalError as e:
            if code_of(e):
                raise
            queries.follow(self.client, query_id, self.work.stop)

    def check_json(self, table: str, objects: Sequence[Planned]) -> None:
        """Check that JSON Lines objects are JSON, if the request asks for it; see `strict_json`.

        ClickHouse checks each line. This process reads objects with a line that is not a document, because documents
        may span lines. Raises LoadObjectError.
        """
        if not self.is_strict:
            return
        for few in statements(objects):
            self._check_broken(self._broken(self._check_id(table), few))

    def _check_id(self, table: str) -> str:
        return queries.check_id(table, next(self._queries))

    def _broken(self, query_id: str, objects: Sequence[Planned], compression: str = "auto") -> list[Planned]:
        """Return the objects with a line that is not a JSON document.

        Raises LoadObjectError for a version that no longer exists.
        """
        source, only = self._source(objects, "LineAsString", "line String", compression)
        rows = self.client.query(
            f"SELECT _path, {PULLED_VERSION} AS version,"
            " countIf(NOT isValidJSON(line) AND notEmpty(trimBoth(line, ' \\t\\r'))) AS wrong"
            f" FROM {source}{f' WHERE {only}' if only else ''} GROUP BY 1, 2",
            settings={
                "use_hive_partitioning": 0,
                "max_query_size": LONG_STATEMENT,
                "s3_retry_attempts": 10,
                # One thread splits bytes into lines faster than the network delivers them. Smaller blocks take less
                # memory.
                "max_parsing_threads": 1,
                "max_block_size": 4096,
                "query_id": query_id,
            },
        ).result_rows
        wrong = {(path, version) for path, version, count in rows if count}
        seen = {path: version for path, version, _ in rows}
        broken = []
        for o in objects:
            path = f"{self.source.bucket}/{o.key}"
            if seen.get(path, o.version) != o.version:
                raise about(LoadObjectError("it was overwritten after it was listed"), o.key)
            if (path, o.version) in wrong:
                broken.append(o)
        return broken

    def _check_broken(self, objects: Sequence[Planned]) -> None:
        for o in objects:
            self._check_whole(o)

    def _check_whole(self, o: Planned) -> None:
        try:
            for _ in checked(pieces(self.content(o).plain())):
                pass
        except LoadObjectError as e:
            raise about(e, o.key) from e

    @property
    def is_strict(self) -> bool:
        """Whether objects are JSON Lines that must be checked."""
        return self.work.form.name == "jsonl" and self.request.read.strict_json

    def _push(self, table: str, group: Group, how: How) -> list[Loaded]:
        loaded = []
        for o in group.objects:
            if self.work.stop.is_set():
                raise TransferCancelled("the transfer was stopped")
            planned = o.planned
            try:
                read = push(
                    self.client, self.content(planned), group.reading, planned, table,
                    self.request.table_options.system_columns, self.query_id(table), strict=self.is_strict,
                    tidy=how.tidy,
                )  # fmt: skip
            except DatabaseError as e:
                raise about(classify(e), planned.key) from e
            except LoadObjectError as e:
                raise about(e, planned.key) from e
            loaded.append(o if o.rows >= 0 else replace(o, rows=read))
        return loaded


def _declared(told: Facts, destination: Destination) -> tuple[tuple[str, int], ...]:
    """Return the columns that store NULL unchanged, each with the footer's number of NULLs."""
    found = []
    for name, leaf in told.shape.flat:
        target = destination.type_of(name)
        if target is not None and is_nullable(target) and told.nulls[leaf] < UNKNOWN:
            found.append((name, told.nulls[leaf]))
    return tuple(found)


def statements(objects: Sequence[Planned]) -> list[list[Planned]]:
    """Return objects by statement; large objects go alone, because it costs time to tell many objects' rows apart."""
    small = [o for o in objects if o.size < _LARGE]
    return [[o] for o in objects if o.size >= _LARGE] + ([small] if small else [])


def _is_compressed(o: Planned, compression: str) -> bool:
    """Tell whether ClickHouse decompresses an object in the thread that would parse it."""
    return compression != "none" and bool(compression_by_name(o.key) if compression == "auto" else compression)


def _cached(objects: Sequence[Planned]) -> dict[str, int]:
    """Return the settings that cache these objects' data; empty if they are too large."""
    return _CACHED if sum(o.size for o in objects) <= _CACHED_BYTES else {}
