"""Groups the objects of a batch by how they are read; footers and headers decide for formats that state types."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from storeside.transfer.base.errors import DELETED, GoneError, LoadObjectError, about
from storeside.transfer.base.schema import is_nullable
from storeside.transfer.formats.avro_schema import AvroShape
from storeside.transfer.formats.kinds import Headed
from storeside.transfer.formats.nulls import miscounted, possible, present, wanted
from storeside.transfer.formats.parquet import Facts, Nested, ParquetObject, Shape
from storeside.transfer.formats.parquet_footer import OTHER_ROWS, UNKNOWN
from storeside.transfer.formats.registry import MESSAGES, TYPED
from storeside.transfer.objects.archives import kind_by_name
from storeside.transfer.objects.content import Content
from storeside.transfer.staging.proof import plain
from storeside.transfer.staging.work import USUAL, Group, How, Work, cached
from storeside.transfer.state.loads import LONG_STATEMENT, Loaded, Planned
from storeside.transfer.statements.reading import Reading
from storeside.transfer.tables.table import Destination
from storeside.transfer.types.partitions import check_key

# From ClickHouse's format ParquetMetadata: the key of an object's shape, the NULLs of each column (none if it
# has no row group), the rows, and the number of columns. ClickHouse refuses row groups with fewer columns.
# Parts of tuples are taken from whole arrays, because a lambda over tuples would copy all of them.
_SHAPE = ", ".join(
    f"tupleElement(columns, '{part}')"
    for part in ("path", "physical_type", "logical_type", "max_definition_level", "max_repetition_level")
)
_COUNTS = "tupleElement(tupleElement(tupleElement(row_groups, 'columns'), 'statistics'), 'null_count')"
_FACTS = (
    f"toString(cityHash64({_SHAPE})),"
    f" arrayReduce('sumForEach', arrayMap(g -> arrayMap(n -> ifNull(n, {UNKNOWN}), g), {_COUNTS})),"
    " arraySum(tupleElement(row_groups, 'num_rows')),"
    " length(columns)"
)

# Bytes; ClickHouse reads a smaller object as a whole in less time than the worker reads its footer.
_SMALL = 256 << 10


class Grouping:
    """Groups objects by how they are read. The worker reads the footers of `pushed` objects, ClickHouse others.

    With a `member`, the content of an archive is that of this member.
    """

    def __init__(self, work: Work, *, pushed: bool, member: Content | None = None) -> None:
        self.work = work
        self.pushed = pushed
        self._member = member
        self._headers: dict[int, tuple[object, int]] = {}
        self._proved: dict[int, bool] = {}

    def groups(self, objects: Sequence[Planned], destination: Destination, how: How = USUAL) -> list[Group]:
        """Return the objects grouped by how they are read; if only first rows are, no object states their number."""
        found = self._groups(objects, destination, how)
        if not self.work.most_rows:
            return found
        return [replace(group, objects=[Loaded(o, -1) for o in group.planned]) for group in found]

    def _groups(self, objects: Sequence[Planned], destination: Destination, how: How) -> list[Group]:
        form = self.work.form
        for o in objects:
            try:
                check_key(o.key, destination.partitions)
            except LoadObjectError as e:
                raise about(e, o.key) from e
        if form.is_text:
            return self._of_text(objects, destination, how)
        if form.by_schema:
            reading = self._reading(MESSAGES[form.name].shape(form, destination), destination)
            return [Group(reading, [Loaded(o, -1) for o in objects])]
        archives = [o for o in objects if kind_by_name(o.key) and self._content(o).archive]
        if archives:
            packed = {o.load_id for o in archives}
            others = [o for o in objects if o.load_id not in packed]
            return [
                Group(Reading(form, (), ()), [Loaded(o, -1) for o in archives], destination),
                *(self.groups(others, destination, how) if others else ()),
            ]
        if isinstance(headed := TYPED[form.name], Headed):
            return self._by_header(headed, objects, destination)
        alike: dict[tuple[Shape, frozenset[Nested], bool], Group] = {}
        for o, (parquet, told) in zip(objects, self._footers(objects), strict=True):
            try:
                is_wrong = bool(told.rows) and miscounted(parquet, told)
                nulls = self._nulls(parquet, told, destination, all_structs=is_wrong)
                how_read = (told.shape, nulls, is_wrong)
                if how_read not in alike:
                    reading = self.work.readings.typed(
                        form, destination, told.shape, nulls,
                        keep_rest=self._keeps_rest, refuse_nulls=not self._empties,
                    )  # fmt: skip
                    alike[how_read] = Group(replace(reading, by_arrow=True) if is_wrong else reading, [])
            except LoadObjectError as e:
                raise about(e, o.key) from e
            alike[how_read].objects.append(Loaded(o, told.rows, nulls=self._declared(told, destination)))
        return list(alike.values())

    def _of_text(self, objects: Sequence[Planned], destination: Destination, how: How) -> list[Group]:
        """Return text objects in one group, or in two if some are plain."""
        if not (self.pushed or how.push or how.apart or self.work.most_rows):
            unproved = [o for o in objects if o.load_id not in self._proved]
            self._proved |= dict.fromkeys((o.load_id for o in unproved), False)
            self._proved |= dict.fromkeys(plain(self.work, unproved, destination.columns, how.compression), True)
        groups = []
        for is_plain in (False, True):
            if some := [o for o in objects if self.is_plain(o, how) is is_plain]:
                reading = self.work.readings.text(
                    self.work.form, destination, how.rest, empty_nulls=self._empties,
                    keeps_codes=self.work.keeps_codes, exact=how.exact,
                    names_once=self.work.is_strict and not how.checked, plain=is_plain,
                )  # fmt: skip
                groups.append(Group(replace(reading, together=not how.apart), [Loaded(o, -1) for o in some]))
        return groups

    def is_plain(self, o: Planned, how: How) -> bool:
        """Return whether an object was grouped as a plain one."""
        return not how.apart and self._proved.get(o.load_id, False)

    def _by_header(self, form: Headed, objects: Sequence[Planned], destination: Destination) -> list[Group]:
        """Return objects grouped by their columns, which the worker reads from each object."""
        alike: dict[object, Group] = {}
        for o in objects:
            try:
                # A batch with a bad object is divided and grouped again: each header is read once.
                if o.load_id not in self._headers:
                    self._headers[o.load_id] = form.header(self._content(o))
                shape, rows = self._headers[o.load_id]
                if shape not in alike:
                    alike[shape] = Group(self._reading(shape, destination), [])
            except LoadObjectError as e:
                raise about(e, o.key) from e
            alike[shape].objects.append(Loaded(o, rows))
        return list(alike.values())

    def _reading(self, shape: Any, destination: Destination) -> Reading:
        keep_rest, refuse_nulls, form = self._keeps_rest, not self._empties, self.work.form
        if isinstance(shape, AvroShape):
            return self.work.readings.avro(form, destination, shape, keep_rest=keep_rest, refuse_nulls=refuse_nulls)
        return self.work.readings.typed(form, destination, *shape, keep_rest=keep_rest, refuse_nulls=refuse_nulls)

    def _content(self, o: Planned) -> Content:
        return self._member or self.work.content(o)

    @property
    def _keeps_rest(self) -> bool:
        return self.work.request.on_drift == "rest"

    @property
    def _empties(self) -> bool:
        return self.work.request.read.on_null_nested == "empty"

    def _nulls(
        self, parquet: ParquetObject, told: Facts, destination: Destination, *, all_structs: bool
    ) -> frozenset[Nested]:
        """Return the object's lists, maps and structs that are NULL somewhere, if that matters for the table.

        With `all_structs`, the footer's counts do not show which structs may be NULL.
        """
        if not told.shape.nested or not told.rows:
            return frozenset()
        readings = self.work.readings
        targets = {column.name: readings.stored_as(column, destination) for column in told.shape.columns}
        among = wanted(told.shape, targets, refuse=not self._empties)
        among = [nested for nested in among if readings.needs(nested.path[0])]
        doubted = [nested for nested in among if all_structs and nested.kind == "struct"]
        return present(parquet, [*doubted, *possible(told, (n for n in among if n not in doubted))])

    def _declared(self, told: Facts, destination: Destination) -> tuple[tuple[str, int], ...]:
        """Return the table's columns that store NULL unchanged, each with the footer's number of NULLs."""
        found = []
        for name, leaf in told.shape.flat:
            target = self.work.readings.stores_nulls(name, destination)
            if target is not None and is_nullable(destination.type_of(target) or "") and told.nulls[leaf] < UNKNOWN:
                found.append((target, told.nulls[leaf]))
        return tuple(found)

    def _footers(self, objects: Sequence[Planned]) -> Iterator[tuple[ParquetObject, Facts]]:
        """Yield Parquet objects with the facts in their footers, which ClickHouse reads if there are several."""
        if self.pushed or len(objects) == 1 or self._reads_whole(objects):
            for o in objects:
                parquet = ParquetObject(self._content(o))
                yield parquet, _facts(parquet)
            return
        source, only = self.work.source(objects, "ParquetMetadata")
        rows = self.work.client.query(
            f"SELECT _path, num_rows, {_FACTS} FROM {source}{f' WHERE {only}' if only else ''}",
            settings={
                "use_hive_partitioning": 0,
                "max_query_size": LONG_STATEMENT,
                "s3_retry_attempts": 10,
                **cached(objects),
            },
        ).result_rows
        found = {path: tuple(more) for path, *more in rows}
        for o in objects:
            path = self.work.request.source.path_of(o.key)
            if path not in found:
                raise about(GoneError(DELETED), o.key)
            rows_in_footer, shape, nulls, in_groups, columns = found[path]
            if in_groups != rows_in_footer:
                raise about(LoadObjectError(OTHER_ROWS.format(rows_in_footer, in_groups)), o.key)
            parquet = ParquetObject(self.work.content(o))
            if shape not in self.work.shapes:
                self.work.shapes[shape] = _facts(parquet).shape
            yield parquet, Facts(self.work.shapes[shape], rows_in_footer, tuple(nulls) or (0,) * columns)

    def _reads_whole(self, objects: Sequence[Planned]) -> bool:
        """Return whether ClickHouse would request whole objects for their footers, and they are large."""
        return self.work.request.source.by_url and sum(o.size for o in objects) > len(objects) * _SMALL


def _facts(parquet: ParquetObject) -> Facts:
    try:
        return parquet.facts()
    except LoadObjectError as e:
        raise about(e, parquet.content.key) from e
