"""The ledger of loads: the outcome of every object version planned for a table."""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from storeside.aistore.markers import NONE
from storeside.sql.acceptance import accept
from storeside.sql.answers import first_row
from storeside.sql.migrate import migrate
from storeside.sql.quoting import literal
from storeside.transfer.base.errors import FailureKind, TransferInputError, TransferTransientError
from storeside.transfer.request.source import Source

if TYPE_CHECKING:
    from clickhouse_connect.driver.client import Client

SYNCHRONOUS = {"async_insert": 0}
_SLICE = 1000
# Bytes; a thousand keys have at most one megabyte, or two when quoted.
LONG_STATEMENT = 10_000_000
# The settings of statements that name each of up to ten thousand columns several times.
LONG = {"max_query_size": LONG_STATEMENT, "max_ast_elements": 10_000_000, "max_expanded_ast_elements": 10_000_000}
# Columns of the ledger, and the types that the client sends for them.
_LEDGER = {
    **dict.fromkeys(("destination", "bucket", "key", "version"), "String"),
    "load_id": "UInt64",
    "state": "String",
    "kind": "String",
    **dict.fromkeys(("rows", "rejected", "filtered", "bytes"), "UInt64"),
    "modified": "DateTime64(3)",
    **dict.fromkeys(("reason", "run_id", "after_load", "options"), "String"),
    "replaces": "Bool",
}
# Rows that this try has recorded: each plan includes the objects again that earlier tries of the run failed to load.
NOW = (
    "run_id = {run_id:String} AND recorded_at >="
    " (SELECT if(count() = 0, now64(6), min(planned_at)) FROM storeside.load_plan WHERE transfer = {transfer:String})"
)
# Failures for good that keep a version from being planned; see sql/plan_loads.sql. Old rows have no options.
_KNOWN_BAD = (
    "destination = {destination:String} AND bucket = {bucket:String} AND state = 'failed' AND kind = 'object'"
    " AND run_id != {run_id:String} AND options IN ('', {options:String}) AND accepted_by = ''"
)
# The number of loaded versions, and the sums of their numbers, as in `Totals`.
LOADED = (
    "countIf(state = 'loaded'), sumIf(rows, state = 'loaded'), sumIf(rejected, state = 'loaded'),"
    " sumIf(bytes, state = 'loaded'), sumIf(filtered, state = 'loaded')"
)
# The stored listing of a transfer, before another condition.
LISTINGS = "storeside.load_listings WHERE transfer = {transfer:String} AND"
# The objects of one transfer; other tasks of the run may load other objects into the same table.
MINE = (
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
    """An object whose rows are ready to be published; `nulls` has its footer's number of NULLs by column.

    `filtered` counts the rows that the load's condition excludes, which are not in `rows`.
    `recorded_at`, in microseconds since the epoch, is the time of its row in the ledger if it comes from there,
    `after_load` the action of the run that wrote that row, and `replaces` whether that run replaces older versions.
    """

    planned: Planned
    rows: int
    rejected: int = 0
    nulls: tuple[tuple[str, int], ...] = ()
    recorded_at: int = 0
    filtered: int = 0
    after_load: str = "none"
    replaces: bool = False


@dataclass(frozen=True)
class Totals:
    """Objects, rows and bytes that a run has loaded so far, and objects that failed.

    `planned` is the number of objects in the plan. It is 0 if the plan was dropped, and then `failed` is 0, too.
    """

    loaded: int
    failed: int
    rows: int
    rejected: int
    bytes: int
    filtered: int = 0
    planned: int = 0


@dataclass(frozen=True, kw_only=True)
class Unplanned:
    """Why a run does not load objects that its keys match, although no run has loaded them.

    `known_bad` counts objects that failed for good in earlier runs, with the first ones in `known_failures` as
    (key, reason). `ignored` has the numbers of markers by their patterns, such as ``_*``; see `markers`.
    """

    known_bad: int = 0
    known_failures: Sequence[Sequence[str]] = ()
    ignored: Mapping[str, int] = field(default_factory=dict)


class Inserts:
    """Writes rows of the ledger for the threads of a process: those that wait for one INSERT share the next one.

    A thread continues when ClickHouse has stored its rows, as with a separate INSERT.
    """

    def __init__(self, client: Client) -> None:
        self._client = client
        self._waiting: list[tuple[Sequence[Sequence[Any]], Future[None]]] = []
        self._adding, self._one = threading.Lock(), threading.Lock()

    def insert(self, rows: Sequence[Sequence[Any]]) -> None:
        """Insert rows with the values of `_LEDGER`. Raises DatabaseError and OperationalError."""
        mine: Future[None] = Future()
        with self._adding:
            self._waiting.append((rows, mine))
        with self._one:
            with self._adding:
                some, self._waiting = self._waiting, []
            try:
                if some:
                    self._insert([row for rows, _ in some for row in rows])
            except BaseException as e:
                for _, future in some:
                    future.set_exception(e)
            else:
                for _, future in some:
                    future.set_result(None)
        mine.result()

    def _insert(self, rows: Sequence[Sequence[Any]]) -> None:
        self._client.insert(
            "storeside.loads", rows, column_names=list(_LEDGER), column_type_names=list(_LEDGER.values()),
            settings=SYNCHRONOUS,
        )  # fmt: skip


class Loads:
    """Reads and writes ``storeside.loads`` for one transfer: one destination, one source, one run.

    `replaces` states whether the run replaces older versions of its objects. `options` is a digest of the options
    that decide whether an object can be loaded. Keys that match the regular expression `markers` are ignored.
    `inserts` writes the rows of several loads in one statement.
    """

    def __init__(
        self, client: Client, transfer: str, destination: str, source: Source, run_id: str,
        after_load: str = "none", *, replaces: bool = False, options: str = "", markers: str = NONE,
        inserts: Inserts | None = None,
    ) -> None:  # fmt: skip
        self.client = client
        self.transfer = transfer
        self.destination = destination
        self.source = source
        self.run_id = run_id
        self.after_load = after_load
        self.replaces = replaces
        self.options = options
        self.markers = markers
        self._inserts = inserts or Inserts(client)
        self._before: Totals | None = None
        self._recorded: dict[int, tuple[str, Loaded, str]] = {}  # states, objects and reasons

    @property
    def parameters(self) -> dict[str, Any]:
        """The query parameters that identify this transfer."""
        return {
            "transfer": self.transfer,
            "destination": self.destination,
            "bucket": self.source.bucket,
            "prefix": self.source.prefix,
            "regex": self.source.regex,
            "run_id": self.run_id,
            "options": self.options,
            "markers": self.markers,
        }

    def create(self) -> None:
        """Create the tables, or bring them up to date. Raises DatabaseError."""
        migrate(self.client)

    def states(self, objects: Sequence[Planned]) -> dict[int, str]:
        """Return the states of these loads by their ids; loads without a row in the ledger are left out."""
        found: dict[int, str] = {}
        for some in slices(objects):
            rows = self.client.query(
                "SELECT load_id, toString(state) FROM storeside.loads FINAL"
                " WHERE destination = {destination:String} AND bucket = {bucket:String}"
                f" AND key IN ({', '.join(literal(o.key) for o in some)}) AND load_id IN ({ids_text(some)})",
                parameters=self.parameters,
                settings={"max_query_size": LONG_STATEMENT},
            ).result_rows
            found |= {load_id: state for load_id, state in rows}
        return found

    def outcomes(self, keys: Sequence[str]) -> dict[tuple[str, str], tuple[str, FailureKind, str]]:
        """Return state, kind and reason of every version of these keys in the ledger, by key and version."""
        found: dict[tuple[str, str], tuple[str, FailureKind, str]] = {}
        for start in range(0, len(keys), _SLICE):
            rows = self.client.query(
                "SELECT key, version, toString(state), toString(kind), reason FROM storeside.loads FINAL"
                " WHERE destination = {destination:String} AND bucket = {bucket:String}"
                f" AND key IN ({', '.join(map(literal, keys[start : start + _SLICE]))})",
                parameters=self.parameters,
                settings={"max_query_size": LONG_STATEMENT},
            ).result_rows
            found |= {
                (key, version): (state, FailureKind(kind), reason) for key, version, state, kind, reason in rows
            }
        return found

    def doubtful(self, objects: Sequence[Planned] | None = None) -> list[Loaded]:
        """Return the loads whose publication began and did not end, for these objects or for all."""
        rows = self._ledger("state = 'publishing'", objects, by="load_id")
        return [
            Loaded(
                Planned(*row[:5]), row[5], row[6],
                recorded_at=row[8], filtered=row[9], after_load=row[10], replaces=row[11],
            )
            for row in rows
        ]  # fmt: skip

    def others(self, objects: Sequence[Planned]) -> list[Planned]:
        """Return the loaded versions of the same keys other than these versions."""
        ids = {o.load_id for o in objects}
        return [Planned(*row[:5]) for row in self._ledger("state = 'loaded'", objects) if row[4] not in ids]

    def _ledger(self, where: str, objects: Sequence[Planned] | None, by: str = "key") -> list[tuple[Any, ...]]:
        """Return rows of the ledger: all of the destination and bucket, or those of the keys or ids of `objects`.

        Lists are part of the statement's text, because parameters are part of the URL, whose length is limited.
        """
        found: list[tuple[Any, ...]] = []
        for some in [None] if objects is None else slices(objects):
            those = ""
            if some is not None:
                those = f" AND key IN ({', '.join(literal(o.key) for o in some)})"
                those += f" AND load_id IN ({ids_text(some)})" if by == "load_id" else ""
            rows = self.client.query(
                "SELECT key, version, bytes, toFloat64(modified), load_id, rows, rejected, toString(state),"
                " toUnixTimestamp64Micro(recorded_at), filtered, toString(after_load), replaces"
                " FROM storeside.loads FINAL"
                f" WHERE destination = {{destination:String}} AND bucket = {{bucket:String}}{those} AND {where}",
                parameters=self.parameters,
                settings={"max_query_size": LONG_STATEMENT},
            ).result_rows
            found += (tuple(row) for row in rows)
        return found

    def record(self, loaded: Sequence[Loaded], state: str) -> None:
        """Record objects in a state, ``publishing`` or ``loaded``."""
        self._insert((o, state, FailureKind.NONE, "") for o in loaded)

    def record_failed(self, failed: Iterable[tuple[Planned, FailureKind, str]]) -> None:
        """Record objects that cannot be loaded, with reasons, except objects that another run has loaded meanwhile.

        The kind decides whether the next run tries an object again.
        """
        failed = list(failed)
        states = self.states([o for o, *_ in failed])
        self._insert(
            (Loaded(o, 0), "failed", kind, reason)
            for o, kind, reason in failed
            if states.get(o.load_id) not in ("loaded", "publishing")
        )

    def _insert(self, rows: Iterable[tuple[Loaded, str, FailureKind, str]]) -> None:
        rows = list(rows)
        lines = [
            [
                self.destination, self.source.bucket, o.key, o.version, o.load_id, state, kind.value, counts.rows,
                counts.rejected, counts.filtered, o.size, moment(o.modified), reason, self.run_id,
                self.after(counts), self.options, self.replaces,
            ]
            for counts, state, kind, reason in rows
            for o in [counts.planned]
        ]  # fmt: skip
        if lines:
            self._inserts.insert(lines)
            self._recorded |= {o.planned.load_id: (state, o, reason) for o, state, _, reason in rows}

    def after(self, o: Loaded) -> str:
        """Return the action for a loaded object: of this run, or else of the run that began to publish it."""
        return self.after_load if self.after_load != "none" else o.after_load

    def forget_doubtful(self, loaded: Sequence[Loaded]) -> None:
        """Remove interrupted loads from the ledger whose rows are not in the table.

        Another run may have begun to publish the same objects later: its rows of the ledger stay.
        """
        until = max((o.recorded_at for o in loaded), default=0)
        for some in slices([o.planned for o in loaded]):
            self.client.command(
                "DELETE FROM storeside.loads WHERE destination = {destination:String} AND bucket = {bucket:String}"
                " AND state = 'publishing' AND toUnixTimestamp64Micro(recorded_at) <= {until:Int64}"
                f" AND load_id IN ({ids_text(some)})",
                parameters={**self.parameters, "until": until},
                settings={"lightweight_deletes_sync": 2},
            )

    def record_replaced(self, objects: Sequence[Planned]) -> None:
        """Record versions whose rows are not in the table, because the rows of a newer version are."""
        self._insert((Loaded(o, 0), "replaced", FailureKind.NONE, "") for o in objects)

    def count_from(self, before: Totals) -> None:
        """Let `totals` add what this process records from now on to what this run has loaded `before`."""
        self._recorded.clear()
        self._before = before

    @property
    def finished(self) -> Collection[int]:
        """The ids of the loads that this process has finished since it made the plan."""
        return {load_id for load_id, (state, *_) in [*self._recorded.items()] if state != "publishing"}

    def totals(self) -> Totals:
        """Return the totals of this run so far."""
        if self._before is not None:
            recorded = [*self._recorded.values()]
            loaded, before = [o for state, o, _ in recorded if state == "loaded"], self._before
            return Totals(
                before.loaded + len(loaded),
                sum(state == "failed" for state, *_ in recorded),
                before.rows + sum(o.rows for o in loaded),
                before.rejected + sum(o.rejected for o in loaded),
                before.bytes + sum(o.planned.size for o in loaded),
                before.filtered + sum(o.filtered for o in loaded),
                before.planned,
            )
        row = first_row(
            self.client.query(
                f"SELECT countIf(state = 'failed' AND {NOW}), {LOADED},"
                " (SELECT count() FROM storeside.load_plan WHERE transfer = {transfer:String})"
                " FROM storeside.loads FINAL"
                f" WHERE {MINE}",
                parameters=self.parameters,
            )
        )
        failed, objects, *others = (int(value) for value in row)
        return Totals(objects, failed, *others)

    def with_rows(self) -> int:
        """Return the number of object versions, of any bucket, whose rows the table should have."""
        row = first_row(
            self.client.query(
                "SELECT count() FROM storeside.loads FINAL WHERE destination = {destination:String}"
                " AND state = 'loaded' AND rows > 0",
                parameters=self.parameters,
            )
        )
        return int(row[0])

    def require_no_rows(self) -> None:
        """Raise TransferInputError if the ledger has loads with rows in the table, which does not exist."""
        if found := self.with_rows():
            table = self.destination
            raise TransferInputError(
                f"{table} does not exist, but storeside.loads has {found} objects that were loaded into it, so no"
                f" load takes them again: DELETE FROM storeside.loads WHERE destination = {literal(table)}, or create"
                " the table without their rows"
            )

    def server_time(self) -> int:
        """Return the time of the ledger's server in microseconds since the epoch."""
        return int(first_row(self.client.query("SELECT toUnixTimestamp64Micro(now64(6))"))[0])

    def last_totals(self, planned: int) -> Totals:
        """Return the totals at the end of a run, of which `planned` objects were planned.

        Raises TransferTransientError if the plan was dropped, because failed objects are not counted then.
        """
        totals = self.totals()
        if planned and not totals.planned:
            raise TransferTransientError(
                f"another process has ended this load into {self.destination}, so it is unknown which objects failed:"
                " the next try loads these objects again"
            )
        return totals

    def known_bad(
        self, selected: str, parameters: Mapping[str, Any], limit: int, listing: str = LISTINGS
    ) -> Unplanned:
        """Return the failures for good of earlier runs that keep listed objects from being planned.

        Objects that failed in another run after the plan was made are in this plan: they count as this run's.
        `selected` is a condition for rows of the `listing`, with `parameters`. Accepted failures are left out.
        """
        listed = (
            f"FROM {listing} {selected} AND (key, etag) NOT IN"
            " (SELECT key, version FROM storeside.load_plan WHERE transfer = {transfer:String})"
        )
        bad = f"(SELECT key, version FROM storeside.loads FINAL WHERE {_KNOWN_BAD})"
        rows = self.client.query(
            f"SELECT key, reason, count() OVER () FROM storeside.loads FINAL WHERE {_KNOWN_BAD}"
            f" AND (key, version) IN (SELECT key, etag {listed} AND (key, etag) IN {bad})"
            " ORDER BY key LIMIT {limit:UInt32}",
            parameters={**self.parameters, **parameters, "limit": limit},
        ).result_rows
        known = tuple((key, reason) for key, reason, _ in rows)
        return Unplanned(known_bad=int(rows[0][2]) if rows else 0, known_failures=known)

    def accept(self, who: str, keys: Collection[str] = ()) -> int:
        """Accept all failures for good of the source's objects: runs skip them and state it no longer.

        With `keys`, only those of these objects. Returns their number. `who` is recorded in the ledger. A new version
        of an object is loaded as any other.
        """
        those = (
            "destination = {destination:String} AND bucket = {bucket:String} AND startsWith(key, {prefix:String})"
            " AND match(key, {regex:String}) AND state = 'failed' AND kind = 'object' AND accepted_by = ''"
        )
        those += " AND key IN {keys:Array(String)}" if keys else ""
        return accept(self.client, "storeside.loads", those, {**self.parameters, "keys": list(keys)}, who)

    def failures(self, limit: int) -> list[tuple[str, str]]:
        """Return up to `limit` objects that this run could not load, with their reasons."""
        if self._before is not None:
            recorded = [*self._recorded.values()]
            failed = [(o.planned.key, reason) for state, o, reason in recorded if state == "failed"]
            return sorted(failed, key=lambda pair: pair[0].encode("utf-8", "surrogateescape"))[:limit]
        rows = self.client.query(
            f"SELECT key, reason FROM storeside.loads FINAL WHERE {MINE} AND state = 'failed' AND {NOW}"
            " ORDER BY key LIMIT {limit:UInt32}",
            parameters={**self.parameters, "limit": limit},
        ).result_rows
        return [(key, reason) for key, reason in rows]


def ids_text(objects: Sequence[Planned]) -> str:
    """Return the load ids of objects as text for a statement; see `slices`."""
    return ", ".join(str(o.load_id) for o in objects)


def slices(objects: Sequence[Planned]) -> Iterator[Sequence[Planned]]:
    """Yield slices of objects, each short enough for the text of one statement."""
    return (objects[n : n + _SLICE] for n in range(0, len(objects), _SLICE))


def moment(seconds: float) -> datetime:
    """Return the time of a number of seconds since the epoch."""
    return datetime.fromtimestamp(seconds, UTC)
