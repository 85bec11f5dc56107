"""The destination table: made or extended, filled aside, and given what was filled in one step."""

from __future__ import annotations

import itertools
import logging
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from clickhouse_connect.driver.exceptions import DatabaseError

from include.transfer import queries
from include.transfer.errors import (
    DIFFERENT_STRUCTURE,
    SUPPORT_IS_DISABLED,
    UNKNOWN_TABLE,
    StaleError,
    UsageError,
    code_of,
    plain,
)
from include.transfer.loads import LONG_STATEMENT, Loaded, Loads, Planned, ids_text, slices
from include.transfer.lock import STAGING, locked
from include.transfer.schema import Column, bare, nullable, settled
from include.transfer.source import identifier, literal

log = logging.getLogger(__name__)

# Which load a row came with: ``storeside.loads.load_id``. Not part of ``SELECT *``, as it is MATERIALIZED.
LOAD_ID = "_storeside_load"
# What users may ask for besides the columns of their data, and its type.
SYSTEM_COLUMNS = {
    "_object": "LowCardinality(String)",
    "_row_number": "UInt64",
    "_version": "LowCardinality(String)",
    "_loaded_at": "DateTime64(3)",
}
REST = "_rest"
# The destination merges what it is given; until then it would only take time from reading.
_NO_MERGES = (
    "max_bytes_to_merge_at_max_space_in_pool = 1, max_bytes_to_merge_at_min_space_in_pool = 1"
    ", parts_to_delay_insert = 100000, parts_to_throw_insert = 100000"
)
_POLL_SECONDS = 0.5
# The others change rows when they merge, and with them which load a row came with.
_ENGINE = re.compile(r"(Replicated|Shared)?(Replacing)?MergeTree")
# Of these, the ones that leave a part out, without an error, whose content they have had before.
_REPLICATED = ("Replicated", "Shared")
_SYNCHRONOUS = {"async_insert": 0, "mutations_sync": 1, "lightweight_deletes_sync": 2}


# An expression without what could end it: strings and quoted names are looked at apart.
_QUOTED = re.compile(r"'(?:[^'\\]|\\.)*'|`(?:[^`\\]|\\.)*`|\"(?:[^\"\\]|\\.)*\"", re.DOTALL)
_EXPRESSION = re.compile(r"(?:[\w\s(),.+*%=<>!:?|\[\]]|-(?!-)|/(?!\*))*")


@dataclass(frozen=True)
class Layout:
    """How a table is made: expressions of ClickHouse's, as they stand in its CREATE TABLE.

    Forms ask for `order_by` and `partition_by`: who may start runs may not say more than that. Raises UsageError.
    """

    engine: str = "MergeTree"
    order_by: str = "tuple()"
    partition_by: str = ""
    ttl: str = ""

    def __post_init__(self) -> None:
        _require_engine(self.engine.partition("(")[0], "a new table")
        for name in ("order_by", "partition_by"):
            if not _is_expression(text := getattr(self, name)):
                raise UsageError(
                    f"{name} {text!r}: write one expression of columns and functions, such as (city, day)"
                )


def _is_expression(text: str) -> bool:
    """Tell whether a text stays within the parentheses that are put around it."""
    bare = _QUOTED.sub("_", text)
    depths = list(itertools.accumulate((c == "(") - (c == ")") for c in bare))
    return _EXPRESSION.fullmatch(bare) is not None and min(depths, default=0) >= 0 and not (depths and depths[-1])


@dataclass(frozen=True)
class Destination:
    """A table of the MergeTree family as it is now."""

    client: Any
    database: str
    table: str
    columns: tuple[Column, ...]
    partition_key: str
    sorting_key: str
    primary_key: str
    storage_policy: str
    takes_parts: bool
    defaults: Mapping[str, str]

    @property
    def name(self) -> str:
        """``database.table``, as the ledger has it."""
        return f"{self.database}.{self.table}"

    @property
    def quoted(self) -> str:
        """The name as it stands in statements."""
        return f"{identifier(self.database)}.{identifier(self.table)}"

    def type_of(self, column: str) -> str | None:
        """Return the type of a column; None when there is none of this name."""
        return next((c.type for c in self.columns if c.name == column), None)

    def alter(self, actions: Sequence[str]) -> Destination:
        """Change the table's columns and return it as it is then."""
        statement = f"ALTER TABLE {self.quoted} {', '.join(actions)}"
        log.info("%s", statement)
        self.client.command(statement, settings={"alter_sync": 2, "mutations_sync": 1})
        return existing(self.client, self.name)

    def widen(self, columns: Sequence[Column]) -> Destination:
        """Give columns these types, and add those that are missing."""
        key = f"{self.partition_key} {self.sorting_key}"
        actions = []
        for column in columns:
            now = self.type_of(column.name)
            if now is None:
                actions.append(f"ADD COLUMN IF NOT EXISTS {identifier(column.name)} {nullable(settled(column.type))}")
            elif now != column.type:
                if _names(key, column.name):
                    raise UsageError(f"column {column.name!r} of {self.name} is part of its key and stays {now}")
                actions.append(f"MODIFY COLUMN {column.definition}")
        return self.alter(actions) if actions else self

    def stage(self, staging: str, note: str = "") -> None:
        """Create the empty table `staging`, whose parts this table can take over; `note` is its comment."""
        quoted = f"{STAGING}.{identifier(staging)}"
        clauses = [f"CREATE TABLE {quoted} AS {self.quoted} ENGINE = MergeTree"]
        if self.partition_key:
            clauses.append(f"PARTITION BY {self.partition_key}")
        clauses.append(f"ORDER BY ({self.sorting_key})")
        if self.primary_key != self.sorting_key:
            clauses.append(f"PRIMARY KEY ({self.primary_key})")
        clauses.append(f"SETTINGS storage_policy = '{self.storage_policy}', allow_nullable_key = 1, {_NO_MERGES}")
        if note:
            clauses.append(f"COMMENT {literal(note)}")
        self.client.command(" ".join(clauses), settings={"max_query_size": LONG_STATEMENT})

    def count(self, objects: Sequence[Planned]) -> dict[int, int]:
        """Return how many rows the table has of each of these loads."""
        found: dict[int, int] = {}
        for some in slices(objects):
            rows = self.client.query(
                f"SELECT {LOAD_ID}, count() FROM {self.quoted} WHERE {LOAD_ID} IN ({ids_text(some)}) GROUP BY 1",
                settings={"select_sequential_consistency": 1},
            ).result_rows
            found |= dict(rows)
        return found

    def remove(self, objects: Sequence[Planned]) -> None:
        """Delete the rows of these loads."""
        for some in slices(objects):
            those = f"WHERE {LOAD_ID} IN ({ids_text(some)})"
            try:
                self.client.command(f"DELETE FROM {self.quoted} {those}", settings=_SYNCHRONOUS)
            except DatabaseError as e:
                if code_of(e) != SUPPORT_IS_DISABLED:  # of a table with projections
                    raise
                self.client.command(f"ALTER TABLE {self.quoted} DELETE {those}", settings=_SYNCHRONOUS)

    def take(self, staging: str) -> None:
        """Make the rows of `staging` visible; all at once where the table takes parts."""
        source = f"{STAGING}.{identifier(staging)}"
        query_id = queries.query_id(staging, time.time_ns())
        if self.takes_parts:
            self.client.command(
                f"ALTER TABLE {self.quoted} ATTACH PARTITION ALL FROM {source}", settings={"query_id": query_id}
            )
            return
        names = ", ".join(identifier(c.name) for c in (*self.columns, Column(LOAD_ID, "UInt64")))
        self.client.command(
            f"INSERT INTO {self.quoted} ({names}) SELECT {names} FROM {source}",
            settings={
                **_SYNCHRONOUS,
                "insert_allow_materialized_columns": 1,
                "insert_deduplicate": 0,
                "max_partitions_per_insert_block": 0,
                "throw_on_max_partitions_per_insert_block": 0,
                "query_id": query_id,
            },
        )


def look_up(client: Any, name: str) -> Destination | None:
    """Return the table ``database.table``; None when there is none.

    Raises UsageError when it cannot be a destination.
    """
    database, _, table = name.partition(".")
    rows = client.query(
        "SELECT engine, partition_key, sorting_key, primary_key, storage_policy,"
        " arrayExists(t -> t != '', dependencies_table),"
        " (SELECT groupArray((name, type, default_kind, default_expression)) FROM (SELECT * FROM system.columns"
        " WHERE database = {database:String} AND table = {table:String} ORDER BY position))"
        " FROM system.tables WHERE database = {database:String} AND name = {table:String}",
        parameters={"database": database, "table": table},
    ).result_rows
    if not rows:
        return None
    engine, partition_key, sorting_key, primary_key, policy, has_views, columns = rows[0]
    _require_engine(engine, name)
    # Parts that are attached are not seen by materialized views.
    takes_parts = not has_views and not engine.startswith(_REPLICATED)
    found = Destination(
        client, database, table,
        tuple(Column(n, t) for n, t, kind, _ in columns if kind in ("", "DEFAULT")),
        partition_key, sorting_key, primary_key, policy, takes_parts,
        {n: default for n, _, kind, default in columns if kind == "DEFAULT"},
    )  # fmt: skip
    if LOAD_ID not in {n for n, *_ in columns}:
        log.info("adding the hidden column %s to %s: it tells which load a row came with", LOAD_ID, found.name)
        client.command(f"ALTER TABLE {found.quoted} ADD COLUMN IF NOT EXISTS {LOAD_ID} UInt64 MATERIALIZED 0")
    return found


def _require_engine(engine: str, table: str) -> None:
    if not _ENGINE.fullmatch(engine):
        raise UsageError(
            f"{table} is of engine {engine}: exactly-once needs a MergeTree or ReplacingMergeTree, whose rows stay"
            " what they were; load into one, and let a materialized view of it do the rest"
        )


def existing(client: Any, name: str) -> Destination:
    """Return a table that was there a moment ago. Raises UsageError when it is gone, or no destination."""
    found = look_up(client, name)
    if found is None:
        raise UsageError(f"table {name} is gone: was it dropped while objects were loaded into it?")
    return found


def ddl(name: str, columns: Sequence[Column], layout: Layout) -> str:
    """Return the CREATE TABLE of a destination. Columns that it is ordered by are never NULL."""
    database, _, table = name.partition(".")
    key = f"{layout.order_by} {layout.partition_by}"
    parts = []
    for column in columns:
        low = column.type.startswith("LowCardinality(")
        plain = f"LowCardinality({bare(column.type)})" if low else bare(column.type)
        parts.append(replace(column, type=plain if _names(key, column.name) else column.type).definition)
    parts.append(f"{LOAD_ID} UInt64 MATERIALIZED 0")
    clauses = [
        f"CREATE TABLE IF NOT EXISTS {identifier(database)}.{identifier(table)} (\n    "
        + ",\n    ".join(parts)
        + "\n)",
        f"ENGINE = {layout.engine if '(' in layout.engine else layout.engine + '()'}",
        f"ORDER BY ({layout.order_by})",
    ]
    if layout.partition_by:
        clauses.append(f"PARTITION BY ({layout.partition_by})")
    if layout.ttl:
        clauses.append(f"TTL {layout.ttl}")
    return "\n".join(clauses)


def _names(key: str, column: str) -> bool:
    """Tell whether the expressions of a table's keys name a column."""
    return re.search(rf"(?<!\w){re.escape(column)}(?!\w)", key) is not None


def publish(
    destination: Destination, loads: Loads, owner: str, staging: str, staged: Sequence[Loaded], *, replace_older: bool
) -> None:
    """Make what `staging` holds visible in the destination, once, whatever failed on the way before.

    `staged` are the objects in it. Raises StaleError when the destination has changed in the meantime, or another run
    has broken our lock, so that the objects have to be read again.
    """
    with locked(destination.client, destination.name, owner, staging):
        # A statement whose connection was lost may still be at work; the lock was kept for that.
        while queries.running(destination.client, staging):
            time.sleep(_POLL_SECONDS)
        objects = [o.planned for o in staged]
        states = loads.states(objects)
        if "publishing" in states.values():
            settle(destination, loads, loads.doubtful(objects), replace_older=replace_older)
            states = loads.states(objects)
        done = {o.load_id for o in objects if states.get(o.load_id) == "loaded"}
        older, outdated = _versions(loads, [o for o in objects if o.load_id not in done], replace_older)
        left_out = done | {o.load_id for o in outdated}
        new = [o for o in staged if o.planned.load_id not in left_out]
        try:
            if left_out:
                log.info("%d objects were loaded by another run, in this version or a later one", len(left_out))
                _leave_out(destination.client, staging, [o for o in objects if o.load_id in left_out])
                loads.record_replaced(outdated)
            if not new:
                return
            loads.record(new, "publishing")
            destination.take(staging)
        except DatabaseError as e:
            if code_of(e) in (DIFFERENT_STRUCTURE, UNKNOWN_TABLE):
                loads.forget_doubtful(new)
                raise StaleError(f"{staging} cannot be published: {plain(e)}") from e
            raise
        _finish(destination, loads, new, older)


def _leave_out(client: Any, staging: str, objects: Sequence[Planned]) -> None:
    """Remove the rows of these loads from a table that nobody else reads."""
    for some in slices(objects):
        client.command(
            f"ALTER TABLE {STAGING}.{identifier(staging)} DELETE WHERE {LOAD_ID} IN ({ids_text(some)})",
            settings=_SYNCHRONOUS,
        )


def settle(destination: Destination, loads: Loads, doubtful: Sequence[Loaded], *, replace_older: bool) -> None:
    """Find out which of the loads that somebody was publishing are in the table; remove those that are there in part.

    To be called by the holder of the lock, so that nobody is publishing them any more.
    """
    if not doubtful:
        return
    found = destination.count([o.planned for o in doubtful])
    whole = [o for o in doubtful if found.get(o.planned.load_id, 0) == o.rows]
    other = [o for o in doubtful if found.get(o.planned.load_id, 0) != o.rows]
    log.info("%d loads that were cut off while they were published are there, %d are not", len(whole), len(other))
    if partial := [o.planned for o in other if o.planned.load_id in found]:
        destination.remove(partial)
    older, outdated = _versions(loads, [o.planned for o in whole], replace_older)
    late = {o.load_id for o in outdated}
    _finish(destination, loads, [o for o in whole if o.planned.load_id not in late], [*older, *outdated])
    if other:
        loads.forget_doubtful(other)


def _finish(destination: Destination, loads: Loads, published: Sequence[Loaded], gone: Sequence[Planned]) -> None:
    if gone:
        destination.remove(gone)
        loads.record_replaced(gone)
    loads.record(published, "loaded")


def _versions(loads: Loads, objects: Sequence[Planned], replace_older: bool) -> tuple[list[Planned], list[Planned]]:
    """Return the loaded versions that these objects replace, and those of the objects that have a newer one."""
    if not replace_older or not objects:
        return [], []
    ours = {o.key: o for o in objects}
    others = loads.others(objects)
    newer = {o.key for o in others if o.modified > ours[o.key].modified}
    return [o for o in others if o.key not in newer], [o for o in objects if o.key in newer]
