"""The ledger of loads: the outcome of every object version planned for a table."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice
from typing import TYPE_CHECKING, Any

from storeside import sql
from storeside.sql.answers import first_row
from storeside.sql.migrate import migrate
from storeside.transfer.errors import FailureKind, TransferInputError, TransferTransientError
from storeside.transfer.source import WILD, Listed, Source, literal

if TYPE_CHECKING:
    from clickhouse_connect.driver.client import Client

_SYNCHRONOUS = {"async_insert": 0}
_PAGES = 20
_SLICE = 1000
# Bytes; a thousand keys have at most one megabyte, perhaps two when quoted.
LONG_STATEMENT = 10_000_000
# Columns of the ledger and the types they are sent as.
_LEDGER = {
    **dict.fromkeys(("destination", "bucket", "key", "version"), "String"),
    "load_id": "UInt64",
    "state": "String",
    "kind": "String",
    **dict.fromkeys(("rows", "rejected", "bytes"), "UInt64"),
    "modified": "DateTime64(3)",
    **dict.fromkeys(("reason", "run_id"), "String"),
}
# What this try has recorded: each plan includes again the objects that the run failed to load before.
_NOW = (
    "run_id = {run_id:String} AND recorded_at >="
    " (SELECT if(count() = 0, now64(6), min(planned_at)) FROM storeside.load_plan WHERE transfer = {transfer:String})"
)
# The planned objects that this try must still load.
_UNFINISHED = (
    "(key, version) NOT IN (SELECT key, version FROM storeside.loads FINAL"
    " WHERE destination = {destination:String} AND bucket = {bucket:String}"
    f" AND (state = 'loaded' OR state IN ('failed', 'replaced') AND {_NOW}))"
)
# The objects of one transfer; other tasks of the run may load other objects into the same table.
_MINE = (
    "destination = {destination:String} AND bucket = {bucket:String} AND run_id = {run_id:String}"
    " AND startsWith(key, {prefix:String}) AND match(key, {regex:String})"
)


@dataclass(frozen=True)
class Planned:
    """An object version to load. `modified` is in seconds since the epoch."""

    key: str
    version: str
    size: int
    modified: float
    load_id: int


@dataclass(frozen=True)
class Loaded:
    """An object whose rows are ready to be published; `nulls` has its footer's number of NULLs by column."""

    planned: Planned
    rows: int
    rejected: int = 0
    nulls: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True)
class Batch:
    """Objects that are loaded together; a worker reads them if they are `pushed`."""

    number: int
    pushed: bool
    objects: int
    bytes: int


@dataclass(frozen=True)
class Totals:
    """Objects, rows and bytes of a run, so far."""

    loaded: int
    failed: int
    rows: int
    rejected: int
    bytes: int


class Loads:
    """Reads and writes ``storeside.loads`` for one transfer: one destination, one source, one run."""

    def __init__(self, client: Client, transfer: str, destination: str, source: Source, run_id: str) -> None:
        self.client = client
        self.transfer = transfer
        self.destination = destination
        self.source = source
        self.run_id = run_id

    @property
    def _parameters(self) -> dict[str, Any]:
        return {
            "transfer": self.transfer,
            "destination": self.destination,
            "bucket": self.source.bucket,
            "prefix": self.source.prefix,
            "regex": self.source.regex,
            "run_id": self.run_id,
        }

    def create(self) -> None:
        """Create the tables, or bring them up to date. Raises DatabaseError."""
        migrate(self.client)

    def record_listing(self, pages: Iterable[Sequence[Listed]]) -> None:
        """Store a listing as the input of the plan, streamed a few pages at a time.

        Raises TransferTransientError unless the listing arrived exactly once: the client resends an INSERT whose
        response was lost.
        """
        self.forget("load_listings")
        pages = iter(pages)
        sent = 0
        names = ("transfer", "key", "etag", "size", "modified")
        while some := [o for page in islice(pages, _PAGES) for o in page]:
            columns = [[self.transfer] * len(some), *map(list, zip(*some, strict=True))]
            self.client.insert(
                "load_listings", columns, database="storeside", column_names=names, column_oriented=True,
                column_type_names=("String", "String", "String", "UInt64", "String"), settings=_SYNCHRONOUS,
            )  # fmt: skip
            sent += len(some)
        if (arrived := self.listed_below("")) != sent:
            raise TransferTransientError(
                f"of a listing of {sent} objects {arrived} arrived in ClickHouse: list again"
            )

    def listed_below(self, prefix: str) -> int:
        """Return the number of listed objects below a prefix."""
        return int(
            first_row(
                self.client.query(
                    "SELECT count() FROM storeside.load_listings WHERE transfer = {transfer:String}"
                    " AND startsWith(key, {prefix:String})",
                    parameters={**self._parameters, "prefix": prefix},
                )
            )[0]
        )

    def start_after(self, overlap_seconds: float) -> str:
        """Return the key after which to look for new objects, if keys only grow.

        It is the last key loaded before the newest object's time minus the overlap. It also precedes all objects that
        a run had planned and did not reach, or could not read at the time.
        """
        parameters = {**self._parameters, "overlap": int(overlap_seconds * 1000)}
        return str(first_row(self.client.query(sql.query("start_after"), parameters=parameters))[0])

    def plan(self, *, batch_bytes: int, batch_objects: int, push: bool, retry_failed: bool) -> tuple[int, int, int]:
        """Plan listed objects that are not in the ledger; return the numbers listed and planned, and planned bytes.

        Objects that failed for good in other runs are left out, unless `retry_failed`. Raises TransferInputError if
        an object has no ETag.
        """
        self.forget("load_plan")
        self.client.command(
            sql.query("plan_loads"),
            parameters={
                **self._parameters,
                "batch_bytes": batch_bytes,
                "batch_objects": batch_objects,
                "push": push,
                "retry_failed": retry_failed,
                "wild": WILD,
            },
        )
        row = first_row(
            self.client.query(
                "SELECT (SELECT count() FROM storeside.load_listings WHERE transfer = {transfer:String}),"
                " count(), sum(size), anyIf(key, version = '') FROM storeside.load_plan"
                " WHERE transfer = {transfer:String}",
                parameters=self._parameters,
            )
        )
        if row[3]:
            bucket = self.source.bucket
            raise TransferInputError(
                f"s3://{bucket}/{row[3]} is listed without an ETag, so its versions cannot be told apart: AIStore has"
                " ETags of what is written into its own buckets while their checksum is MD5; set that (ais bucket"
                f" props set ais://{bucket} checksum.type=md5) and write the objects again"
            )
        return int(row[0]), int(row[1]), int(row[2])

    def batches(self) -> list[Batch]:
        """Return the batches of the plan that are not finished."""
        rows = self.client.query(
            "SELECT batch, any(pushed), count(), sum(size) FROM storeside.load_plan"
            " WHERE transfer = {transfer:String}"
            f" AND {_UNFINISHED} GROUP BY batch ORDER BY batch",
            parameters=self._parameters,
        ).result_rows
        return [Batch(int(n), bool(pushed), int(count), int(size)) for n, pushed, count, size in rows]

    def objects(self, batch: int) -> list[Planned]:
        """Return the objects of a batch that are not finished."""
        return self._planned(f"batch = {{batch:UInt32}} AND {_UNFINISHED} ORDER BY key", batch=batch)

    def unfinished(self) -> list[Planned]:
        """Return the objects of the plan that are not finished."""
        return self._planned(_UNFINISHED)

    def sample(self, count: int) -> list[Planned]:
        """Return some unfinished objects of the plan: the first, and others spread over it."""
        first = "(SELECT min(key) FROM storeside.load_plan WHERE transfer = {transfer:String} AND size > 0)"
        order = f"ORDER BY key != {first}, load_id LIMIT {{count:UInt32}}"
        return self._planned(f"size > 0 AND {_UNFINISHED} {order}", count=count)

    def _planned(self, where: str, **parameters: Any) -> list[Planned]:
        rows = self.client.query(
            "SELECT key, version, size, toFloat64(modified), load_id FROM storeside.load_plan"
            f" WHERE transfer = {{transfer:String}} AND {where}",
            parameters={**self._parameters, **parameters},
        ).result_rows
        return [Planned(*row) for row in rows]

    def states(self, objects: Sequence[Planned]) -> dict[int, str]:
        """Return the states of these loads by their ids; loads that are not in the ledger are left out."""
        return {row[4]: row[7] for row in self._ledger("true", objects, by="load_id")}

    def outcomes(self, keys: Sequence[str]) -> dict[tuple[str, str], tuple[str, FailureKind, str]]:
        """Return state, kind and reason of every version of these keys in the ledger, by key and version."""
        found: dict[tuple[str, str], tuple[str, FailureKind, str]] = {}
        for start in range(0, len(keys), _SLICE):
            rows = self.client.query(
                "SELECT key, version, toString(state), toString(kind), reason FROM storeside.loads FINAL"
                " WHERE destination = {destination:String} AND bucket = {bucket:String}"
                f" AND key IN ({', '.join(map(literal, keys[start : start + _SLICE]))})",
                parameters=self._parameters,
                settings={"max_query_size": LONG_STATEMENT},
            ).result_rows
            found |= {
                (key, version): (state, FailureKind(kind), reason) for key, version, state, kind, reason in rows
            }
        return found

    def doubtful(self, objects: Sequence[Planned] | None = None) -> list[Loaded]:
        """Return the loads, of these or of all objects, whose publication began and did not end."""
        rows = self._ledger("state = 'publishing'", objects, by="load_id")
        return [Loaded(Planned(*row[:5]), row[5], row[6]) for row in rows]

    def others(self, objects: Sequence[Planned]) -> list[Planned]:
        """Return other loaded versions of the same keys."""
        ids = {o.load_id for o in objects}
        return [Planned(*row[:5]) for row in self._ledger("state = 'loaded'", objects) if row[4] not in ids]

    def _ledger(self, where: str, objects: Sequence[Planned] | None, by: str = "key") -> list[tuple[Any, ...]]:
        """Return rows of the ledger: all of the destination and bucket, or those of the keys or ids of `objects`.

        Lists go into the statement's text: as parameters they would be part of the URL, whose length is limited.
        """
        found: list[tuple[Any, ...]] = []
        for some in [None] if objects is None else slices(objects):
            those = ""
            if some is not None:
                those = f" AND key IN ({', '.join(literal(o.key) for o in some)})"
                those += f" AND load_id IN ({ids_text(some)})" if by == "load_id" else ""
            rows = self.client.query(
                "SELECT key, version, bytes, toFloat64(modified), load_id, rows, rejected, toString(state)"
                " FROM storeside.loads FINAL"
                f" WHERE destination = {{destination:String}} AND bucket = {{bucket:String}}{those} AND {where}",
                parameters=self._parameters,
                settings={"max_query_size": LONG_STATEMENT},
            ).result_rows
            found += (tuple(row) for row in rows)
        return found

    def record(self, loaded: Sequence[Loaded], state: str) -> None:
        """Record objects as being published, or as loaded."""
        self._insert((o.planned, state, FailureKind.NONE, o.rows, o.rejected, "") for o in loaded)

    def record_failed(self, failed: Iterable[tuple[Planned, FailureKind, str]]) -> None:
        """Record objects that cannot be loaded, with reasons, except those that another run has loaded by now.

        The kind decides whether the next run tries an object again.
        """
        failed = list(failed)
        states = self.states([o for o, *_ in failed])
        self._insert(
            (o, "failed", kind, 0, 0, reason)
            for o, kind, reason in failed
            if states.get(o.load_id) not in ("loaded", "publishing")
        )

    def _insert(self, rows: Iterable[tuple[Planned, str, FailureKind, int, int, str]]) -> None:
        lines = [
            [
                self.destination, self.source.bucket, o.key, o.version, o.load_id, state, kind.value, count, rejected,
                o.size, _moment(o.modified), reason, self.run_id,
            ]
            for o, state, kind, count, rejected, reason in rows
        ]  # fmt: skip
        if lines:
            self.client.insert(
                "storeside.loads", lines, column_names=list(_LEDGER), column_type_names=list(_LEDGER.values()),
                settings=_SYNCHRONOUS,
            )  # fmt: skip

    def forget_doubtful(self, loaded: Sequence[Loaded]) -> None:
        """Remove loads from the ledger that turned out not to be published."""
        for some in slices([o.planned for o in loaded]):
            self.client.command(
                "DELETE FROM storeside.loads WHERE destination = {destination:String} AND bucket = {bucket:String}"
                f" AND state = 'publishing' AND load_id IN ({ids_text(some)})",
                parameters=self._parameters,
                settings={"lightweight_deletes_sync": 2},
            )

    def record_replaced(self, objects: Sequence[Planned]) -> None:
        """Record versions whose rows are not in the table, or no longer, because those of a newer version are."""
        self._insert((o, "replaced", FailureKind.NONE, 0, 0, "") for o in objects)

    def totals(self) -> Totals:
        """Return what this run has loaded and failed to load so far, until the plan is dropped."""
        row = first_row(
            self.client.query(
                f"SELECT countIf(state = 'loaded'), countIf(state = 'failed' AND {_NOW}),"
                " sumIf(rows, state = 'loaded'),"
                " sumIf(rejected, state = 'loaded'), sumIf(bytes, state = 'loaded') FROM storeside.loads FINAL"
                f" WHERE {_MINE}",
                parameters=self._parameters,
            )
        )
        return Totals(*(int(value) for value in row))

    def failures(self, limit: int) -> list[tuple[str, str]]:
        """Return up to `limit` objects that this run could not load, with their reasons."""
        rows = self.client.query(
            f"SELECT key, reason FROM storeside.loads FINAL WHERE {_MINE} AND state = 'failed' AND {_NOW}"
            " ORDER BY key LIMIT {limit:UInt32}",
            parameters={**self._parameters, "limit": limit},
        ).result_rows
        return [(key, reason) for key, reason in rows]

    def forget(self, table: str) -> None:
        """Drop this transfer's partition of a working table."""
        self.client.command(f"ALTER TABLE storeside.{table} DROP PARTITION '{self.transfer}'")


def ids_text(objects: Sequence[Planned]) -> str:
    """Return the load ids of objects as text for a statement; see `slices`."""
    return ", ".join(str(o.load_id) for o in objects)


def slices(objects: Sequence[Planned]) -> Iterator[Sequence[Planned]]:
    """Yield slices of objects, each as large as one statement may name."""
    return (objects[n : n + _SLICE] for n in range(0, len(objects), _SLICE))


def _moment(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)
