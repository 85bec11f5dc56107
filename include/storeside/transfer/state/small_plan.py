"""The plan of a small listing: one statement asks for all that it depends on, and this process makes it.

The statement in sql/plan_loads.sql makes all other plans, in ClickHouse. A test compares both. Analysing that
statement costs ClickHouse more than a small load has to cost, however few its objects are.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, NamedTuple

from clickhouse_connect.driver.exceptions import DatabaseError

from storeside.aistore.markers import MARKERS
from storeside.sql.answers import first_row
from storeside.sql.migrate import STATE, is_current
from storeside.sql.quoting import literal
from storeside.transfer.base.errors import (
    NO_SUCH_COLUMN,
    UNKNOWN_DATABASE,
    UNKNOWN_IDENTIFIER,
    UNKNOWN_TABLE,
    code_of,
)
from storeside.transfer.request.source import EDITED, WILD, Listed
from storeside.transfer.state.loads import LONG_STATEMENT, MINE, Loads, Planned, Totals

# A small listing has up to this number of objects, and this length as text: ClickHouse's limit for a statement is
# 256 KiB. The ledger has up to this number of rows that matter to it.
_OBJECTS, _LENGTH, _ROWS = 100, 64 << 10, 1000
# The listed objects that match the keys and dates of the source, as in sql/plan_loads.sql.
SELECTED = (
    "match(key, {regex:String}) AND NOT match(key, {markers:String}) AND NOT (size = 0 AND endsWith(key, '/'))"
    " AND parseDateTime64BestEffortOrZero(modified, 3) >= fromUnixTimestamp64Milli({modified_from:Int64})"
)
# The number of listed markers that the keys do not name, by the pattern of the marker.
_WHICH = ", ".join(f"match(key, {literal(regex)}), {literal(name)}" for name, regex in MARKERS.items())
IGNORED = (
    f"sumMapIf(map(multiIf({_WHICH}, ''), toUInt64(1)),"
    " match(key, {regex:String}) AND match(key, {markers:String}))"
)


# ClickHouse's errors for Storeside's tables if they are missing or have fewer columns.
_WITHOUT_TABLES = (UNKNOWN_DATABASE, UNKNOWN_TABLE, NO_SUCH_COLUMN, UNKNOWN_IDENTIFIER)


class Chosen(NamedTuple):
    """A listed object, with the values that sql/plan_loads.sql computes for it."""

    key: str
    version: str
    size: int
    modified: float
    load_id: int
    selected: bool
    wild: bool


_CHOSEN = (
    "key, etag, size, toFloat64(parseDateTime64BestEffortOrZero(modified, 3)),"
    f" sipHash64({{destination:String}}, {{bucket:String}}, key, etag), {SELECTED},"
    " match(key, {wild:String}) OR match(etag, {edited:String})"
)


class Known(NamedTuple):
    """A row of the ledger.

    :param key: the object's key
    :param version: its version
    :param state: state of the load, ``loaded`` for example
    :param kind: kind of its failure
    :param run_id: the run that recorded it
    :param options: digest of the options that decide whether the object can be loaded
    :param mine: whether this run recorded it, for the keys of its source
    :param rows: rows loaded
    :param rejected: rows rejected
    :param bytes: bytes of the object
    :param filtered: rows that the load's condition excluded
    """

    key: str
    version: str
    state: str
    kind: str
    run_id: str
    options: str
    mine: bool
    rows: int
    rejected: int
    bytes: int
    filtered: int

    def keeps_from_plan(self, loads: Loads, *, retry_failed: bool) -> bool:
        """Return whether a load does not plan this version, by the condition of sql/plan_loads.sql."""
        is_bad = self.state == "failed" and self.kind == "object" and self.run_id != loads.run_id
        return self.state == "loaded" or (is_bad and not retry_failed and self.options in ("", loads.options))


_KNOWN = f"key, version, toString(state), toString(kind), run_id, options, {MINE}, rows, rejected, bytes, filtered"


@dataclass(frozen=True)
class Facts:
    """All that the plan of a small listing depends on.

    `planned_at` has the times of the rows of the plan of an earlier try of this run, in microseconds since the epoch;
    `has_listing` means that such a try has stored a listing, and `has_tables` that Storeside's tables are up to date.
    """

    chosen: list[Chosen]
    known: list[Known]
    planned_at: list[int]
    has_listing: bool
    has_tables: bool = True

    @property
    def is_doubtful(self) -> bool:
        """Whether the publication of loads was interrupted."""
        return any(row.state == "publishing" for row in self.known)

    @property
    def is_complete(self) -> bool:
        """Whether these are all rows of the ledger that matter."""
        return len(self.known) <= _ROWS

    def totals(self, planned: int) -> Totals:
        """Return what this run has loaded before."""
        mine = [row for row in self.known if row.mine and row.state == "loaded"]
        return Totals(
            len(mine), 0, sum(row.rows for row in mine), sum(row.rejected for row in mine),
            sum(row.bytes for row in mine), sum(row.filtered for row in mine), planned,
        )  # fmt: skip


def is_small(listed: Sequence[Listed]) -> bool:
    """Return whether a listing is planned by this module."""
    return len(listed) <= _OBJECTS and sum(len(o.key) + len(o.etag) for o in listed) <= _LENGTH // 2


def first_pages(pages: Iterator[Sequence[Listed]]) -> list[Sequence[Listed]]:
    """Return the pages of a listing until they have more objects than a small listing, or all."""
    found: list[Sequence[Listed]] = []
    for page in pages:
        found.append(page)
        if sum(map(len, found)) > _OBJECTS:
            break
    return found


def listing(listed: Iterable[Listed]) -> str:
    """Return a listing as a subquery, with the columns of ``storeside.load_listings`` that a plan needs."""
    rows = ", ".join(f"({literal(o.key)}, {literal(o.etag)}, {o.size}, {literal(o.modified)})" for o in listed)
    return (
        "(SELECT o.1 AS key, o.2 AS etag, o.3 AS size, o.4 AS modified FROM (SELECT arrayJoin("
        f"CAST([{rows}], 'Array(Tuple(String, String, UInt64, String))')) AS o))"
    )


def facts(loads: Loads, listed: Sequence[Listed], since: int, *, creates: bool = True) -> Facts:
    """Ask for all that the plan of a small listing depends on; for `since` see `Plan.make`.

    From the ledger, it asks for the rows of the listed keys, those of this run, and interrupted publications. Creates
    Storeside's tables, or brings them up to date, if necessary; unless it `creates` them, no object is known without
    them.
    """
    found: Facts | None = None
    try:
        found = _facts(loads, listed, since)
    except DatabaseError as e:
        if code_of(e) not in _WITHOUT_TABLES:
            raise
    if not creates:
        return found or Facts(_chosen(loads, listed, since), [], [], has_listing=False, has_tables=False)
    if found is None or not found.has_tables:
        loads.create()
        found = _facts(loads, listed, since)
    return found


def facts_of_tables(
    loads: Loads, transfers: Mapping[str, str], listed: str, parameters: Mapping[str, Any]
) -> dict[str, Facts]:
    """Return the `facts` of the loads of one run into several tables, by table, in one statement.

    `transfers` has the tables by the id of their load, and `listed` is a subquery, with `parameters`, of the objects
    of all of them: destination, key, etag, size, modified. Facts that are not complete are left out. `loads` has the
    source and the run of all loads; Storeside's tables are up to date.
    """
    chosen = _CHOSEN.replace("{destination:String}", "destination")
    known = _KNOWN.replace("destination = {destination:String} AND ", "")
    ids = ", ".join(map(literal, transfers))
    names = ", ".join(map(literal, transfers.values()))
    row = first_row(
        loads.client.query(
            f"SELECT (SELECT groupArray((destination, {chosen})) FROM {listed}),"
            f" (SELECT groupArray(row) FROM (SELECT (destination, {known}) AS row FROM storeside.loads FINAL"
            f" WHERE destination IN ({names}) AND bucket = {{bucket:String}}"
            f" AND (key IN (SELECT key FROM {listed}) OR state = 'publishing' OR run_id = {{run_id:String}})"
            f" LIMIT {_ROWS + 1} BY destination)),"
            " (SELECT groupArray((transfer, toUnixTimestamp64Micro(planned_at))) FROM storeside.load_plan"
            f" WHERE transfer IN ({ids})),"
            f" (SELECT groupUniqArray(transfer) FROM storeside.load_listings WHERE transfer IN ({ids}))",
            parameters={**loads.parameters, **parameters, "wild": WILD, "edited": EDITED},
            settings={"max_query_size": LONG_STATEMENT},
        )
    )
    objects, rows, planned, stored = row
    found = {table: Facts([], [], [], has_listing=id in stored) for id, table in transfers.items()}
    for destination, *o in objects:
        found[destination].chosen.append(Chosen(*o))
    for destination, *o in rows:
        found[destination].known.append(Known(*o))
    for id, at in planned:
        if at not in (times := found[transfers[id]].planned_at):
            times.append(at)
    return {table: facts for table, facts in found.items() if facts.is_complete}


def _facts(loads: Loads, listed: Sequence[Listed], since: int) -> Facts:
    keys = ", ".join(literal(o.key) for o in listed) or "''"
    row = first_row(
        loads.client.query(
            f"SELECT (SELECT groupArray(({_CHOSEN})) FROM {listing(listed)}),"
            f" (SELECT groupArray(row) FROM (SELECT ({_KNOWN}) AS row FROM storeside.loads FINAL"
            " WHERE destination = {destination:String} AND bucket = {bucket:String}"
            f" AND (key IN ({keys}) OR state = 'publishing' OR run_id = {{run_id:String}}) LIMIT {_ROWS + 1})),"
            " (SELECT groupUniqArray(toUnixTimestamp64Micro(planned_at)) FROM storeside.load_plan"
            " WHERE transfer = {transfer:String}),"
            f" (SELECT count() FROM storeside.load_listings WHERE transfer = {{transfer:String}}), {STATE}",
            parameters={**loads.parameters, "modified_from": since * 1000, "wild": WILD, "edited": EDITED},
        )
    )
    chosen, known, planned_at, stored, *state = row
    return Facts(
        [Chosen(*o) for o in chosen], [Known(*o) for o in known], list(planned_at), bool(stored), is_current(*state)
    )  # fmt: skip


def _chosen(loads: Loads, listed: Sequence[Listed], since: int) -> list[Chosen]:
    """Return the listed objects, of a server without Storeside's tables."""
    statement = f"SELECT groupArray(({_CHOSEN})) FROM {listing(listed)}"
    parameters = {**loads.parameters, "modified_from": since * 1000, "wild": WILD, "edited": EDITED}
    return [Chosen(*o) for o in first_row(loads.client.query(statement, parameters=parameters))[0]]


def planned_of(
    chosen: Iterable[Chosen], known: Container[tuple[str, str]], *, batch_bytes: int, batch_objects: int, push: bool
) -> list[tuple[int, bool, Planned]]:
    """Return batch, whether it is pushed, and object, for each selected object that is not `known`, by batch and key.

    `batch_bytes`, `batch_objects` and `push` are those of `Plan.make`.
    """
    least = batch_bytes // batch_objects
    filled = {False: 0, True: 0}
    planned = []
    for o in sorted(chosen, key=lambda o: o.key.encode()):
        if o.selected and (o.key, o.version) not in known:
            pushed = push or bool(o.wild)
            number = 2 * (filled[pushed] // batch_bytes) + pushed
            filled[pushed] += max(o.size, least)
            planned.append((number, pushed, Planned(o.key, o.version, o.size, o.modified, o.load_id)))
    return sorted(planned, key=itemgetter(0))
