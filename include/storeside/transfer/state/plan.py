"""The plan of a transfer: the listed objects that still have to be loaded, in batches."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, groupby, islice
from operator import itemgetter
from typing import TYPE_CHECKING, Any, TypedDict

from storeside import sql
from storeside.sql.answers import first_row
from storeside.sql.inserts import native
from storeside.transfer.base.errors import TransferInputError, TransferTransientError
from storeside.transfer.request.source import EDITED, WILD, Listed, Source, uri_of
from storeside.transfer.state.loads import LISTINGS, NOW, SYNCHRONOUS, Loads, Planned, Unplanned, moment
from storeside.transfer.state.small_plan import (
    IGNORED,
    SELECTED,
    Facts,
    facts,
    first_pages,
    is_small,
    listing,
    planned_of,
)

if TYPE_CHECKING:
    import pyarrow as pa

_PAGES = 20
_ROWS = 100_000
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


# The columns of a plan, and the types that the client sends for them.
_COLUMNS = {
    "transfer": "String", "batch": "UInt32", "pushed": "Bool", "key": "String", "version": "String", "size": "UInt64",
    "modified": "DateTime64(3)", "load_id": "UInt64",
}  # fmt: skip


@dataclass(frozen=True)
class Batch:
    """Objects that are loaded together; a worker reads them if they are `pushed`. Small plans also list them."""

    number: int
    pushed: bool
    objects: int
    bytes: int
    listed: tuple[Planned, ...] = ()


class _Batches(TypedDict):
    """How a plan divides objects into batches; all are `push`ed, or only those that ClickHouse cannot address."""

    batch_bytes: int
    batch_objects: int
    push: bool


@dataclass
class Small:
    """A listing that no table has, and its plan by batch, whose rows this process also knows.

    The plan is also stored in ``storeside.load_plan``, for other processes and later runs. The steps of this process
    need no further statement for it. See `small_plan`.
    """

    listed: Sequence[Listed]
    planned: Sequence[tuple[int, bool, Planned]] = ()


class Plan:
    """Reads and writes ``storeside.load_listings`` and ``storeside.load_plan`` for one transfer.

    Unless it `stores` every listing, a small one is only part of the statement that plans it. Unless the plan `stays`
    for other processes, one of a single object is not stored: no run ends between its objects.
    `ignored` has the numbers of listed markers by their patterns, after `make`.
    """

    def __init__(self, loads: Loads, *, stores: bool = True, stays: bool = True) -> None:
        self.loads = loads
        self._sent: int | None = None  # the rows of a listing
        self.ignored: dict[str, int] = {}
        self._stores, self._stays = stores, stays
        self._facts: Facts | None = None
        self._small: Small | None = None

    @property
    def needs_tables(self) -> bool:
        """Whether Storeside's tables must be up to date before `record_listing`; otherwise, the plan creates them."""
        return self._stores

    @property
    def sent(self) -> int:
        """The number of listed objects that `record_listing` or another method has stored."""
        return self._sent or 0

    @property
    def is_small(self) -> bool:
        """Whether this process knows the plan, and no table has the listing."""
        return self._small is not None

    def expect(self, facts: Facts) -> None:
        """Plan a small listing from these facts, which one statement found for several loads, instead of asking."""
        self._facts = facts

    def record_listing(self, pages: Iterable[Sequence[Listed]]) -> None:
        """Store a listing as the input of the plan, streamed a few pages at a time.

        `make` checks that it arrived exactly once: the client resends an INSERT whose response was lost.
        """
        pages = iter(pages)
        self._small = None
        if not self._stores:
            first = first_pages(pages)
            if is_small(listed := [o for page in first for o in page]):
                self._small = Small(listed)
                return
            pages = chain(first, pages)
            self.loads.create()
        self._store_listing(pages)

    def _store_listing(self, pages: Iterable[Sequence[Listed]]) -> None:
        self._small = None
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

    def record_part(self, condition: str, parameters: Mapping[str, Any], count: int) -> None:
        """Store the `count` rows of another stored listing that fulfil a condition, as `record_listing` does."""
        self._small = None
        if not self._stores:
            self.loads.create()
        self.forget("load_listings")
        self.loads.client.command(
            "INSERT INTO storeside.load_listings (transfer, key, etag, size, modified)"
            f" SELECT {{mine:String}}, key, etag, size, modified FROM storeside.load_listings WHERE {condition}",
            parameters={**parameters, "mine": self.loads.transfer}, settings=SYNCHRONOUS,
        )  # fmt: skip
        self._sent = count

    def record_inventory(self, batches: Iterable[pa.RecordBatch]) -> None:
        """Store batches of an inventory as the input of the plan, as `record_listing` does with pages."""
        import pyarrow as pa

        if not self._stores:
            self.loads.create()
        self._small = None
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
        if self._small is not None:
            return sum(o.key.startswith(prefix) for o in self._small.listed)
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
        self, *, batch_bytes: int, batch_objects: int, push: bool, retry_failed: bool, since: int = 0,
        settle: Callable[[], object] | None = None,
    ) -> tuple[int, int, int]:  # fmt: skip
        """Plan the objects that are not loaded; return the numbers selected and planned, and the planned bytes.

        The listed objects that match the source's keys, and were last modified at `since` (seconds since the epoch)
        or later, are selected. Those that failed for good in other runs are not planned, unless `retry_failed`.
        `settle` records the outcome of publications that were interrupted before, so that the plan knows it.
        Raises TransferInputError if an object has no version, and TransferTransientError unless the listing arrived
        exactly once.

        The plan of an earlier try of the run is deleted after the new one is stored: with an overlap, the next
        listing begins before the objects that it names.
        """
        batches: _Batches = {"batch_bytes": batch_bytes, "batch_objects": batch_objects, "push": push}
        if self._small is not None:
            made = self._make_small(self._small, batches, since, settle, retry_failed=retry_failed)
            if made is not None:
                return made
            self._store_listing([self._small.listed])
        selection = {**self.loads.parameters, "modified_from": since * 1000}
        if settle is not None:
            settle()
        earlier = first_row(
            self.loads.client.query(
                "SELECT groupUniqArray(toUnixTimestamp64Micro(planned_at)) FROM storeside.load_plan"
                " WHERE transfer = {transfer:String}",
                parameters=self.loads.parameters,
            )
        )[0]
        self.loads.client.command(
            sql.query("plan_loads"),
            parameters={**selection, **batches, "retry_failed": retry_failed, "wild": WILD, "edited": EDITED},
        )
        self._forget_earlier(earlier)
        row = first_row(
            self.loads.client.query(
                f"SELECT (SELECT (countIf({SELECTED}), count(), {IGNORED}) FROM storeside.load_listings"
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
            raise TransferInputError(without_version(self.loads.source, row[3]))
        return int(selected), int(row[1]), int(row[2])

    def _make_small(
        self, small: Small, batches: _Batches, since: int, settle: Callable[[], object] | None, *, retry_failed: bool
    ) -> tuple[int, int, int] | None:
        """Plan a small listing, and store the plan, see `make`; return None if the ledger has many rows for it."""
        found, self._facts = self._facts or facts(self.loads, small.listed, since), None
        if found.is_doubtful and settle is not None:
            settle()
            found = facts(self.loads, small.listed, since)
        if not found.is_complete:
            return None
        known = {
            (row.key, row.version)
            for row in found.known if row.keeps_from_plan(self.loads, retry_failed=retry_failed)
        }  # fmt: skip
        small.planned = planned_of(found.chosen, known, **batches)
        objects = [o for *_, o in small.planned]
        if without := next((o.key for o in objects if not o.version), ""):
            raise TransferInputError(without_version(self.loads.source, without))
        self._store(small.planned)
        self._forget_earlier(found.planned_at)
        if found.has_listing:
            self._drop("load_listings")
        selected = sum(o.selected for o in found.chosen)
        self.ignored = self._markers(small.listed) if selected < len(found.chosen) else {}
        self.loads.count_from(found.totals(len(objects)))
        return selected, len(objects), sum(o.size for o in objects)

    def _markers(self, listed: Sequence[Listed]) -> dict[str, int]:
        """Return the numbers of markers in a small listing by their patterns."""
        ask = f"SELECT {IGNORED} FROM {listing(listed)}"
        return dict(first_row(self.loads.client.query(ask, parameters=self.loads.parameters))[0])

    def _is_stored(self, planned: Sequence[tuple[int, bool, Planned]]) -> bool:
        return len(planned) > (0 if self._stays else 1)

    def _store(self, planned: Sequence[tuple[int, bool, Planned]]) -> None:
        """Store a plan. The client cannot send its rows again, which would add them twice."""
        if not self._is_stored(planned):
            return
        rows = [
            (self.loads.transfer, batch, pushed, o.key, o.version, o.size, moment(o.modified), o.load_id)
            for batch, pushed, o in planned
        ]
        block = native([*_COLUMNS], [*_COLUMNS.values()], [*zip(*rows, strict=True)])
        self.loads.client.raw_insert(
            "storeside.load_plan", [*_COLUMNS], (part for part in (block,)), SYNCHRONOUS, "Native"
        )

    def _forget_earlier(self, planned_at: Sequence[int]) -> None:
        """Delete the rows of the plan with these times, in microseconds since the epoch."""
        if planned_at:
            self.loads.client.command(
                "DELETE FROM storeside.load_plan WHERE transfer = {transfer:String}"
                " AND toUnixTimestamp64Micro(planned_at) IN {earlier:Array(Int64)}",
                parameters={**self.loads.parameters, "earlier": planned_at},
                settings={"lightweight_deletes_sync": 2},
            )

    def known_bad(self, limit: int, since: int = 0) -> Unplanned:
        """Return the selected objects that are not planned because they failed for good; for `since` see `make`."""
        listed = LISTINGS if self._small is None else f"{listing(self._small.listed)} WHERE"
        return self.loads.known_bad(SELECTED, {"modified_from": since * 1000}, limit, listed)

    def _left(self, small: Small) -> list[tuple[int, bool, Planned]]:
        """Return the rows of a small plan whose objects this process has not finished."""
        return [row for row in small.planned if row[2].load_id not in self.loads.finished]

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
        if self._small is not None:
            return _batches(self._left(self._small))
        rows = self.loads.client.query(
            "SELECT batch, pushed, key, version, size, toFloat64(modified), load_id FROM storeside.load_plan"
            f" WHERE transfer = {{transfer:String}} AND {_UNFINISHED} ORDER BY batch, key",
            parameters=self.loads.parameters,
        ).result_rows
        return _batches([(int(number), bool(pushed), Planned(*o)) for number, pushed, *o in rows])

    def objects(self, batch: int) -> list[Planned]:
        """Return the objects of a batch that are not finished."""
        if self._small is not None:
            return [o for number, _, o in self._left(self._small) if number == batch]
        return self._planned(f"{_UNFINISHED_OF_BATCH} ORDER BY key", batch=batch)

    def unfinished(self, limit: int = 0) -> list[Planned]:
        """Return the objects of the plan that are not finished, up to `limit` of them unless it is 0."""
        if self._small is not None:
            return [o for *_, o in self._left(self._small)][: limit or None]
        return self._planned(_UNFINISHED + (" LIMIT {limit:UInt64}" if limit else ""), limit=limit)

    def facts(self, expressions: str) -> tuple[Any, ...]:
        """Return the values of aggregate functions over keys and sizes of the objects that are not finished."""
        if self._small is not None:  # without parameters, the client leaves percent signs in keys alone
            rows = listing([Listed(o.key, "", o.size, "") for o in self.unfinished()])
            return tuple(first_row(self.loads.client.query(f"SELECT {expressions} FROM {rows}")))
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
        if self._small is not None:
            first_key = min((o.key for *_, o in self._small.planned if o.size), default="", key=str.encode)
            left = [o for *_, o in self._left(self._small) if o.size]
            return sorted(left, key=lambda o: (o.key != first_key, o.load_id))[:count]
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
        """Drop this transfer's partition of ``load_listings`` or ``load_plan``; no table has a small listing."""
        if table == "load_listings" and self._small is not None:
            self._small.listed = ()
        else:
            self._drop(table)

    def forget_all(self) -> None:
        """Drop all that the tables have of this transfer."""
        if self._small is None or self._is_stored(self._small.planned):
            self._drop("load_plan")
        if self._small is None:
            self._drop("load_listings")

    def _drop(self, table: str) -> None:
        self.loads.client.command(f"ALTER TABLE storeside.{table} DROP PARTITION '{self.loads.transfer}'")


def _batches(rows: Iterable[tuple[int, bool, Planned]]) -> list[Batch]:
    """Return the batches of the rows of a plan, which are in the order of the batches."""
    found = []
    for (number, pushed), some in groupby(rows, key=itemgetter(0, 1)):
        objects = tuple(o for *_, o in some)
        found.append(Batch(number, pushed, len(objects), sum(o.size for o in objects), objects))
    return found


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


def without_version(source: Source, key: str) -> str:
    """Return why an object that is listed without a version cannot be planned, with the remedy."""
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
