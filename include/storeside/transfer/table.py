"""Extends the destination table, creates its staging tables, and publishes their rows in one step."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from clickhouse_connect.driver.exceptions import DatabaseError

from storeside.transfer import queries
from storeside.transfer.errors import (
    DIFFERENT_STRUCTURE,
    SUPPORT_IS_DISABLED,
    UNKNOWN_TABLE,
    StaleError,
    TransferInputError,
    code_of,
    plain,
)
from storeside.transfer.loads import LONG_STATEMENT, Loaded, Loads, Planned, ids_text, slices
from storeside.transfer.lock import Hold, locked
from storeside.transfer.options import require_engine
from storeside.transfer.quarantine import Quarantine
from storeside.transfer.schema import Column, nullable, resolved
from storeside.transfer.source import identifier, literal
from storeside.transfer.staging import STAGING

if TYPE_CHECKING:
    from clickhouse_connect.driver.client import Client

log = logging.getLogger(__name__)

# The column with the load of each row: ``storeside.loads.load_id``. ``SELECT *`` omits it, as it is MATERIALIZED.
LOAD_ID = "_storeside_load"
REST = "_rest"
# The destination merges the published parts; merges before that only slow down the load.
_NO_MERGES = (
    "max_bytes_to_merge_at_max_space_in_pool = 1, max_bytes_to_merge_at_min_space_in_pool = 1"
    ", parts_to_delay_insert = 100000, parts_to_throw_insert = 100000"
)
_POLL_SECONDS = 0.5
# Engines that silently drop a part with the same content as an earlier one.
_REPLICATED = ("Replicated", "Shared")
_SYNCHRONOUS = {"async_insert": 0, "mutations_sync": 1, "lightweight_deletes_sync": 2}


@dataclass(frozen=True)
class Destination:
    """A MergeTree table at the time of the query; `partitions` are its columns with values in keys of objects."""

    client: Client
    database: str
    table: str
    columns: tuple[Column, ...]
    partition_key: str
    sorting_key: str
    primary_key: str
    storage_policy: str
    takes_parts: bool
    defaults: Mapping[str, str]
    partitions: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """``database.table``, the name in the ledger."""
        return f"{self.database}.{self.table}"

    @property
    def quoted(self) -> str:
        """The quoted name for statements."""
        return f"{identifier(self.database)}.{identifier(self.table)}"

    @property
    def quarantine(self) -> Quarantine:
        """The quarantine of the table, which may not exist."""
        return Quarantine(self.client, self.database, self.table)

    def type_of(self, column: str) -> str | None:
        """Return the type of a column; None if there is no such column."""
        return next((c.type for c in self.columns if c.name == column), None)

    def alter(self, actions: Sequence[str]) -> Destination:
        """Change the table's columns and return the changed table."""
        statement = f"ALTER TABLE {self.quoted} {', '.join(actions)}"
        log.info("%s", statement)
        self.client.command(statement, settings={"alter_sync": 2, "mutations_sync": 1})
        return replace(existing(self.client, self.name), partitions=self.partitions)

    def widen(self, columns: Sequence[Column]) -> Destination:
        """Change columns to these types, and add missing columns. Raises TransferInputError for a column of a key."""
        key = f"{self.partition_key} {self.sorting_key}"
        actions = []
        for column in columns:
            now = self.type_of(column.name)
            if now is None:
                added = f"{identifier(column.name)} {nullable(resolved(column.type))}"
                actions.append(f"ADD COLUMN IF NOT EXISTS {added}")
            elif now != column.type:
                if names_column(key, column.name):
                    raise TransferInputError(
                        f"column {column.name!r} of {self.name} is part of its key, so it stays {now}"
                    )
                actions.append(f"MODIFY COLUMN {column.definition}")
        return self.alter(actions) if actions else self

    def stage(self, staging: str, note: str = "") -> None:
        """Create an empty table `staging` whose parts can be attached to this table; `note` is its comment."""
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
        """Return the number of rows in the table for each of these loads."""
        found: dict[int, int] = {}
        for some in slices(objects):
            rows = self.client.query(
                f"SELECT {LOAD_ID}, count() FROM {self.quoted} WHERE {LOAD_ID} IN ({ids_text(some)}) GROUP BY 1",
                settings={"select_sequential_consistency": 1},
            ).result_rows
            found |= {load_id: count for load_id, count in rows}
        return found

    def remove(self, objects: Sequence[Planned], hold: Hold | None = None) -> None:
        """Delete the rows of these loads, also from the quarantine.

        With `hold`, do that only while that lock is held, or raise StaleError.
        """
        settings = {**_SYNCHRONOUS, **hold.settings} if hold else _SYNCHRONOUS
        for some in slices(objects):
            those = f"WHERE {LOAD_ID} IN ({ids_text(some)})" + (f" AND {hold.condition}" if hold else "")
            try:
                self.client.command(f"DELETE FROM {self.quoted} {those}", settings=settings)
            except DatabaseError as e:
                if code_of(e) != SUPPORT_IS_DISABLED:  # the table has projections
                    raise
                self.client.command(f"ALTER TABLE {self.quoted} DELETE {those}", settings=settings)
        self.quarantine.remove(objects, hold)
        if hold:
            hold.check()

    def take(self, staging: str) -> None:
        """Make the rows of `staging` visible, in one step if `takes_parts`."""
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


def look_up(client: Client, name: str) -> Destination | None:
    """Return the table ``database.table``; None if it does not exist.

    Raises TransferInputError when it cannot be a destination.
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
    require_engine(engine, name)
    # Materialized views do not see attached parts.
    takes_parts = not has_views and not engine.startswith(_REPLICATED)
    found = Destination(
        client, database, table,
        tuple(Column(n, t) for n, t, kind, _ in columns if kind in ("", "DEFAULT")),
        partition_key, sorting_key, primary_key, policy, takes_parts,
        {n: default for n, _, kind, default in columns if kind == "DEFAULT"},
    )  # fmt: skip
    if LOAD_ID not in {n for n, *_ in columns}:
        log.info("adding the hidden column %s to %s, with the load of each row", LOAD_ID, found.name)
        client.command(f"ALTER TABLE {found.quoted} ADD COLUMN IF NOT EXISTS {LOAD_ID} UInt64 MATERIALIZED 0")
    return found


def existing(client: Client, name: str) -> Destination:
    """Return an existing table. Raises TransferInputError if it does not exist or cannot be a destination."""
    found = look_up(client, name)
    if found is None:
        raise TransferInputError(
            f"table {name} does not exist: check whether it was dropped while objects were loaded into it"
        )
    return found


def names_column(key: str, column: str) -> bool:
    """Return whether the expressions of a table's keys contain a column."""
    return re.search(rf"(?<!\w){re.escape(column)}(?!\w)", key) is not None


def publish(
    destination: Destination, loads: Loads, owner: str, staging: str, staged: Sequence[Loaded], *,
    replace_older: bool, has_bad: bool = False,
) -> None:  # fmt: skip
    """Make the rows of `staging` visible in the destination exactly once, even after failed attempts.

    `staged` lists the objects in it; with `has_bad`, the rows of its `bad_table` are added to the quarantine. Raises
    StaleError when the destination changed meanwhile, or another run broke this run's lock, so that the objects must
    be read again.
    """
    with locked(destination.client, destination.name, owner, staging) as hold:
        # A statement whose connection was lost may still run; its owner kept the lock for this case.
        while queries.running(destination.client, staging):
            time.sleep(_POLL_SECONDS)
        objects = [o.planned for o in staged]
        states = loads.states(objects)
        doubtful = loads.doubtful(objects) if "publishing" in states.values() else []
        # A run that could not read an object may have recorded that while another run published the object.
        doubtful += [o for o in staged if states.get(o.planned.load_id) == "failed"]
        # The ledger is not read again: a run that was overtaken may write into it late.
        done = {o.load_id for o in objects if states.get(o.load_id) == "loaded"}
        done |= settle(destination, loads, doubtful, hold, replace_older=replace_older)
        older, outdated = _versions(loads, [o for o in objects if o.load_id not in done], replace_older)
        left_out = done | {o.load_id for o in outdated}
        new = [o for o in staged if o.planned.load_id not in left_out]
        try:
            if left_out:
                log.info("another run has loaded %d objects in this version or a later one", len(left_out))
                _leave_out(destination.client, staging, [o for o in objects if o.load_id in left_out])
                loads.record_replaced(outdated)
            if not new:
                return
            loads.record(new, "publishing")
            if has_bad:
                destination.quarantine.add(staging, [o.planned for o in new if o.rejected], hold)
            destination.take(staging)
        except DatabaseError as e:
            if code_of(e) in (DIFFERENT_STRUCTURE, UNKNOWN_TABLE):
                # The record stays: another run may have loaded these objects, so the next publication counts rows.
                raise StaleError(f"{staging} cannot be published: {plain(e)}") from e
            raise
        _finish(destination, loads, new, older)


def _leave_out(client: Client, staging: str, objects: Sequence[Planned]) -> None:
    """Remove the rows of these loads from a staging table."""
    for some in slices(objects):
        client.command(
            f"ALTER TABLE {STAGING}.{identifier(staging)} DELETE WHERE {LOAD_ID} IN ({ids_text(some)})",
            settings=_SYNCHRONOUS,
        )


def settle(
    destination: Destination, loads: Loads, doubtful: Sequence[Loaded], hold: Hold, *, replace_older: bool
) -> set[int]:
    """Record and return the interrupted loads that are in the table, by id, and remove partial ones from it.

    The caller must hold the lock, so that no process still publishes them. Raises StaleError if another run broke it.
    """
    if not doubtful:
        return set()
    found = destination.count([o.planned for o in doubtful])
    hold.check()
    whole = [o for o in doubtful if _is_whole(o, found)]
    other = [o for o in doubtful if not _is_whole(o, found)]
    log.info("%d loads with an interrupted publication are in the table, %d are not", len(whole), len(other))
    if partial := [o.planned for o in other if o.planned.load_id in found]:
        destination.remove(partial, hold)
    destination.quarantine.remove([o.planned for o in other if o.planned.load_id not in found], hold)
    older, outdated = _versions(loads, [o.planned for o in whole], replace_older)
    late = {o.load_id for o in outdated}
    _finish(destination, loads, [o for o in whole if o.planned.load_id not in late], [*older, *outdated])
    if other:
        loads.forget_doubtful(other)
    return {o.planned.load_id for o in whole}


def _is_whole(o: Loaded, found: Mapping[int, int]) -> bool:
    """Return whether all rows of a load are in the table, and so the quarantined rows, which are added before them.

    A load without rows does not show whether its quarantined rows are complete.
    """
    return found.get(o.planned.load_id, 0) == o.rows and bool(o.rows or not o.rejected)


def _finish(destination: Destination, loads: Loads, published: Sequence[Loaded], gone: Sequence[Planned]) -> None:
    if gone:
        destination.remove(gone)
        loads.record_replaced(gone)
    loads.record(published, "loaded")


def _versions(loads: Loads, objects: Sequence[Planned], replace_older: bool) -> tuple[list[Planned], list[Planned]]:
    """Return the loaded versions that these objects replace, and the objects for which a newer version is loaded."""
    if not replace_older or not objects:
        return [], []
    ours = {o.key: o for o in objects}
    others = loads.others(objects)
    newer = {o.key for o in others if o.modified > ours[o.key].modified}
    return [o for o in others if o.key not in newer], [o for o in objects if o.key in newer]
