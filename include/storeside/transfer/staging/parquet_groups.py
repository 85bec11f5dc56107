"""Groups the Parquet objects of a batch by how they are read; their footers decide."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from storeside.transfer.base.errors import DELETED, GoneError, LoadObjectError, about
from storeside.transfer.base.schema import is_nullable
from storeside.transfer.formats.nulls import miscounted, possible, present, wanted
from storeside.transfer.formats.parquet import Facts, Nested, ParquetObject, Shape
from storeside.transfer.formats.parquet_footer import OTHER_ROWS, UNKNOWN
from storeside.transfer.objects.content import Content
from storeside.transfer.staging.work import Group, Work, cached
from storeside.transfer.state.loads import LONG_STATEMENT, Loaded, Planned
from storeside.transfer.tables.table import Destination

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


class ParquetGroups:
    """Groups Parquet objects. The worker reads the footers of `pushed` objects by `content`, ClickHouse others."""

    def __init__(self, work: Work, content: Callable[[Planned], Content], *, pushed: bool) -> None:
        self.work = work
        self.pushed = pushed
        self._content = content

    def groups(self, objects: Sequence[Planned], destination: Destination) -> list[Group]:
        """Return the objects grouped by their shapes and NULLs. Raises LoadObjectError."""
        alike: dict[tuple[Shape, frozenset[Nested], bool], Group] = {}
        for o, (parquet, told) in zip(objects, self._footers(objects), strict=True):
            try:
                is_wrong = bool(told.rows) and miscounted(parquet, told)
                nulls = self._nulls(parquet, told, destination, all_structs=is_wrong)
                how_read = (told.shape, nulls, is_wrong)
                if how_read not in alike:
                    reading = self.work.readings.typed(
                        self.work.form, destination, told.shape, nulls,
                        keep_rest=self.work.request.keeps_rest, refuse_nulls=not self.work.request.empties_nested,
                    )  # fmt: skip
                    alike[how_read] = Group(replace(reading, by_arrow=True) if is_wrong else reading, [])
            except LoadObjectError as e:
                raise about(e, o.key) from e
            alike[how_read].objects.append(Loaded(o, told.rows, nulls=self._declared(told, destination)))
        return list(alike.values())

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
        among = wanted(told.shape, targets, refuse=not self.work.request.empties_nested)
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
