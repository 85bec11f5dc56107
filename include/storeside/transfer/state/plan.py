"""The plan of a transfer: the listed objects that still have to be loaded, in batches."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, islice
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from storeside import sql
from storeside.aistore.markers import MARKERS
from storeside.sql.answers import first_row
from storeside.sql.quoting import literal
from storeside.transfer.base.errors import TransferInputError, TransferTransientError
from storeside.transfer.request.source import WILD, Listed, Source, uri_of
from storeside.transfer.state.loads import NOW, SYNCHRONOUS, Loads, Planned, Unplanned

if TYPE_CHECKING:
    import pyarrow as pa

_PAGES = 20
_ROWS = 100_000
# The listed objects that match the keys and dates of the source, as in sql/plan_loads.sql.
_SELECTED = (
    "match(key, {regex:String}) AND NOT match(key, {markers:String}) AND NOT (size = 0 AND endsWith(key, '/'))"
    " AND parseDateTime64BestEffortOrZero(modified, 3) >= fromUnixTimestamp64Milli({modified_from:Int64})"
)
# The number of listed markers that the keys do not name, by the pattern of the marker.
_WHICH = ", ".join(f"match(key, {literal(regex)}), {literal(name)}" for name, regex in MARKERS.items())
_IGNORED = (
    f"sumMapIf(map(multiIf({_WHICH}, ''), toUInt64(1)),"
    " match(key, {regex:String}) AND match(key, {markers:String}))"
)
# The outcomes of objects that this try need not load any more.
_FINISHED = (
    "SELECT key, version FROM storeside.loads FINAL"
    " WHERE destination = {destination:String} AND bucket = {bucket:String}"
    f" AND (state = 'loaded' OR state IN ('failed', 'replaced') AND {NOW})"
)
# The planned objects that this try must still load.
_UNFINISHED = f"(key, version) NOT IN ({_FINISHED})"
# The same of one batch: the ledger may have many millions of other keys.
_UNFINISHED_OF_BATCH = (
    f"batch = {{batch:UInt32}} AND (key, version) NOT IN ({_FINISHED} AND key IN"
    " (SELECT key FROM storeside.load_plan WHERE transfer = {transfer:String} AND batch = {batch:UInt32}))"
)


@dataclass(frozen=True)
class Batch:
    """Objects that are loaded together; a worker reads them if they are `pushed`. Small plans also list them."""

    number: int
    pushed: bool
    objects: int
    bytes: int
    listed: tuple[Planned, ...] = ()


class Plan:
    """Reads and writes ``storeside.load_listings`` and ``storeside.load_plan`` for one transfer.

    `ignored` has the numbers of listed markers by their patterns, after `make`.
    """

    def __init__(self, loads: Loads) -> None:
        self.loads = loads
        self._sent: int | None = None  # the rows of a listing
        self.ignored: dict[str, int] = {}

    def record_listing(self, pages: Iterable[Sequence[Listed]]) -> None:
        """Store a listing as the input of the plan, streamed a few pages at a time.

        `make` checks that it arrived exactly once: the client resends an INSERT whose response was lost.
        """
        self.forget("load_listings")
        pages = iter(pages)
        sent = 0
        names = ("transfer", "key", "etag", "size", "modified")
        while some := [o for page in islice(pages, _PAGES) for o in page]:
            columns = [[self.loads.transfer] * len(some), *map(list, zip(*some, strict=True))]
            self.loads.client.insert(
                "load_listings", columns, database="storeside", column_names=names, column_oriented=True,
                column_type_names=("String", "String", "String", "UInt64", "String"), settings=SYNCHRONOUS,
            )  # fmt: skip
            sent += len(some)
        self._sent = sent

    def record_inventory(self, batches: Iterable[pa.RecordBatch]) -> None:
        """Store batches of an inventory as the input of the plan, as `record_listing` does with pages."""
        import pyarrow as pa

        self.forget("load_listings")
        sent = 0
        for some in _tables(batches):
            transfer = pa.repeat(self.loads.transfer, len(some))
            self.loads.client.insert_arrow(
                "load_listings", some.append_column("transfer", transfer), "storeside", SYNCHRONOUS
            )
            sent += len(some)
        self._sent = sent

    def listed_below(self, prefix: str) -> int:
        """Return the number of listed objects below a prefix."""
        return int(
            first_row(
                self.loads.client.query(
                    "SELECT count() FROM storeside.load_listings WHERE transfer = {transfer:String}"
                    " AND startsWith(key, {prefix:String})",
                    parameters={**self.loads.parameters, "prefix": prefix},
                )
            )[0]
        )

    def start_after(self, overlap_seconds: float) -> str:
        """Return the key after which a listing has all new objects, if new keys sort after older ones.

        It is the last key loaded before the newest object's time minus the overlap. It also precedes all objects that
        a run planned and did not reach, or could not read at the time.
        """
        parameters = {**self.loads.parameters, "overlap": int(overlap_seconds * 1000)}
        return str(first_row(self.loads.client.query(sql.query("start_after"), parameters=parameters))[0])

    def make(
        self, *, batch_bytes: int, batch_objects: int, push: bool, retry_failed: bool, since: int = 0
    ) -> tuple[int, int, int]:
        """Plan the objects that are not loaded; return the numbers selected and planned, and the planned bytes.

        The listed objects that match the source's keys, and were last modified at `since` (seconds since the epoch)
        or later, are selected. Those that failed for good in other runs are not planned, unless `retry_failed`.
        Raises TransferInputError if an object has no version, and TransferTransientError unless the listing arrived
        exactly once.

        The plan of an earlier try of the run is deleted after the new one is stored: with an overlap, the next
        listing begins before the objects that it names.
        """
        earlier = first_row(
            self.loads.client.query(
                "SELECT groupUniqArray(toUnixTimestamp64Micro(planned_at)) FROM storeside.load_plan"
                " WHERE transfer = {transfer:String}",
                parameters=self.loads.parameters,
            )
        )[0]
        selection = {**self.loads.parameters, "modified_from": since * 1000}
        self.loads.client.command(
            sql.query("plan_loads"),
            parameters={
                **selection,
                "batch_bytes": batch_bytes,
                "batch_objects": batch_objects,
                "push": push,
                "retry_failed": retry_failed,
                "wild": WILD,
            },
        )
        if earlier:
            self.loads.client.command(
                "DELETE FROM storeside.load_plan WHERE transfer = {transfer:String}"
                " AND toUnixTimestamp64Micro(planned_at) IN {earlier:Array(Int64)}",
                parameters={**self.loads.parameters, "earlier": earlier},
                settings={"lightweight_deletes_sync": 2},
            )
        row = first_row(
            self.loads.client.query(
                f"SELECT (SELECT (countIf({_SELECTED}), count(), {_IGNORED}) FROM storeside.load_listings"
                " WHERE transfer = {transfer:String}),"
                " count(), sum(size), anyIf(key, version = '') FROM storeside.load_plan"
                " WHERE transfer = {transfer:String}",
                parameters=selection,
            )
        )
        selected, arrived, self.ignored = row[0]
        if self._sent is not None and arrived != self._sent:
            raise TransferTransientError(f"ClickHouse stored {arrived} of {self._sent} listed objects: list again")
        if row[3]:
            raise TransferInputError(_without_version(self.loads.source, row[3]))
        return int(selected), int(row[1]), int(row[2])

    def known_bad(self, limit: int, since: int = 0) -> Unplanned:
        """Return the selected objects that are not planned because they failed for good; for `since` see `make`."""
        return self.loads.known_bad(_SELECTED, {"modified_from": since * 1000}, limit)

    def batches(self) -> list[Batch]:
        """Return the batches of the plan that are not finished."""
        rows = self.loads.client.query(
            "SELECT batch, any(pushed), count(), sum(size) FROM storeside.load_plan"
            " WHERE transfer = {transfer:String}"
            f" AND {_UNFINISHED} GROUP BY batch ORDER BY batch",
            parameters=self.loads.parameters,
        ).result_rows
        return [Batch(int(n), bool(pushed), int(count), int(size)) for n, pushed, count, size in rows]

    def listed_batches(self) -> list[Batch]:
        """Return the batches that are not finished, with their objects: for plans of a few thousand objects."""
        rows = self.loads.client.query(
            "SELECT batch, pushed, key, version, size, toFloat64(modified), load_id FROM storeside.load_plan"
            f" WHERE transfer = {{transfer:String}} AND {_UNFINISHED} ORDER BY batch, key",
            parameters=self.loads.parameters,
        ).result_rows
        found = []
        for (number, pushed), some in groupby(rows, key=itemgetter(0, 1)):
            objects = tuple(Planned(*row[2:]) for row in some)
            found.append(Batch(int(number), bool(pushed), len(objects), sum(o.size for o in objects), objects))
        return found

    def objects(self, batch: int) -> list[Planned]:
        """Return the objects of a batch that are not finished."""
        return self._planned(f"{_UNFINISHED_OF_BATCH} ORDER BY key", batch=batch)

    def unfinished(self, limit: int = 0) -> list[Planned]:
        """Return the objects of the plan that are not finished, up to `limit` of them unless it is 0."""
        return self._planned(_UNFINISHED + (" LIMIT {limit:UInt64}" if limit else ""), limit=limit)

    def facts(self, expressions: str) -> tuple[Any, ...]:
        """Return the values of aggregate functions over the objects of the plan that are not finished."""
        return tuple(
            first_row(
                self.loads.client.query(
                    f"SELECT {expressions} FROM storeside.load_plan"
                    f" WHERE transfer = {{transfer:String}} AND {_UNFINISHED}",
                    parameters=self.loads.parameters,
                )
            )
        )

    def sample(self, count: int) -> list[Planned]:
        """Return up to `count` unfinished objects of the plan: the first by key, and others spread over it."""
        first = "(SELECT min(key) FROM storeside.load_plan WHERE transfer = {transfer:String} AND size > 0)"
        order = f"ORDER BY key != {first}, load_id LIMIT {{count:UInt32}}"
        return self._planned(f"size > 0 AND {_UNFINISHED} {order}", count=count)

    def _planned(self, where: str, **parameters: Any) -> list[Planned]:
        rows = self.loads.client.query(
            "SELECT key, version, size, toFloat64(modified), load_id FROM storeside.load_plan"
            f" WHERE transfer = {{transfer:String}} AND {where}",
            parameters={**self.loads.parameters, **parameters},
        ).result_rows
        return [Planned(*row) for row in rows]

    def forget(self, table: str) -> None:
        """Drop this transfer's partition of ``load_listings`` or ``load_plan``."""
        self.loads.client.command(f"ALTER TABLE storeside.{table} DROP PARTITION '{self.loads.transfer}'")


def _tables(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    """Yield the rows of batches in tables of at least `_ROWS` rows, except for the last one."""
    import pyarrow as pa

    waiting: list[pa.RecordBatch] = []
    for batch in batches:
        waiting.append(batch)
        if sum(map(len, waiting)) >= _ROWS:
            yield pa.Table.from_batches(waiting)
            waiting = []
    if waiting:
        yield pa.Table.from_batches(waiting)


def _without_version(source: Source, key: str) -> str:
    if source.in_aistore:
        return (
            f"{uri_of(source.bucket, key)} has neither a version nor a checksum: turn on one of them"
            f" (ais bucket props set {source.bucket} versioning.enabled=true) and write the objects again"
        )
    return (
        f"s3://{source.bucket}/{key} is listed without an ETag, so versions cannot be told apart: in AIStore, set"
        f" the bucket's checksum to MD5 (ais bucket props set ais://{source.bucket} checksum.type=md5)"
        " and write the objects again"
    )
