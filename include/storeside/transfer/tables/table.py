"""The destination table of a load: its columns, its staging tables, and the rows of loads in it."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from clickhouse_connect.driver.exceptions import DatabaseError

from storeside.sql.answers import first_row
from storeside.sql.quoting import identifier, literal
from storeside.transfer.base import queries
from storeside.transfer.base.errors import (
    SUPPORT_IS_DISABLED,
    UNKNOWN_TABLE,
    StaleError,
    TransferInputError,
    TransferTransientError,
    code_of,
    plain,
)
from storeside.transfer.base.schema import Column, nullable, resolved
from storeside.transfer.base.staging_tables import STAGING, drop_parts, part_of, whole_of
from storeside.transfer.request.options import OWN_COLUMNS, require_engine
from storeside.transfer.request.upsert import DELETED
from storeside.transfer.state.loads import LONG, Planned, ids_text, slices
from storeside.transfer.state.lock import Hold
from storeside.transfer.tables.quarantine import Quarantine
from storeside.transfer.tables.servers import NO_SERVERS, Servers
from storeside.transfer.tables.shards import Distribution, distribution, shards_of

if TYPE_CHECKING:
    from clickhouse_connect.driver.client import Client

log = logging.getLogger(__name__)

# The column with the load of each row: ``storeside.loads.load_id``. ``SELECT *`` omits it, as it is MATERIALIZED.
LOAD_ID = "_storeside_load"
# The comment of columns whose types come from a sample of text: see "Codes" in docs/transfer/text.md.
INFERRED = "inferred from text"
# The destination merges the published parts; merges before that only slow down the load.
_NO_MERGES = (
    "max_bytes_to_merge_at_max_space_in_pool = 1, max_bytes_to_merge_at_min_space_in_pool = 1"
    ", parts_to_delay_insert = 100000, parts_to_throw_insert = 100000"
)
# Engines that silently drop a part with the same content as an earlier one.
_REPLICATED = ("Replicated", "Shared")
_SYNCHRONOUS = {"async_insert": 0, "mutations_sync": 1, "lightweight_deletes_sync": 2}
_INSERT = {
    **_SYNCHRONOUS,
    "insert_allow_materialized_columns": 1,
    "insert_deduplicate": 0,
    "optimize_on_insert": 0,  # a table that replaces rows must have all of them until a load is settled
    "max_partitions_per_insert_block": 0,
    "throw_on_max_partitions_per_insert_block": 0,
    "distributed_foreground_insert": 1,
}


# Two values of a statement: the table, if it exists, and its columns.
DESCRIPTION = (
    "(SELECT groupArray((engine, partition_key, sorting_key, primary_key, storage_policy, dependencies_table,"
    " engine_full)) FROM system.tables WHERE database = {database:String} AND name = {table:String}),"
    " (SELECT groupArray((name, type, default_kind, default_expression, comment)) FROM"
    " (SELECT name, type, default_kind, default_expression, comment FROM system.columns"
    " WHERE database = {database:String} AND table = {table:String} ORDER BY position))"
)


@dataclass(frozen=True)
class Destination:
    """A table at the time of the query.

    It is a MergeTree table, or a Distributed table with such a table on each shard. The keys and the storage policy
    of a Distributed table are those of its first shard.

    :param client: client of the server that has the table
    :param database: its database, without quotes
    :param table: its name, without quotes
    :param columns: its columns, in their order
    :param partition_key: its PARTITION BY
    :param sorting_key: its ORDER BY
    :param primary_key: its PRIMARY KEY
    :param storage_policy: its storage policy; staging tables have the same one
    :param takes_parts: whether it takes parts of a staging table as they are (``REPLACE PARTITION``, ``ATTACH
        PARTITION``)
    :param defaults: DEFAULT expressions by column, and the expression of the hidden column `upsert.DELETED`
    :param partitions: columns with values in keys of objects
    :param own: columns that the load fills itself, see `Request.own_columns`
    :param servers: the cluster's other servers
    :param shards: the table on each shard of a Distributed table, with the client of its server
    :param distribution: how a Distributed table divides rows; None for other tables
    :param inferred: columns whose types a load has inferred from text
    :param engine: its engine with all arguments and clauses
    """

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
    own: tuple[str, ...] = ()
    servers: Servers = field(default=NO_SERVERS, compare=False)
    shards: tuple[Destination, ...] = ()
    distribution: Distribution | None = None
    inferred: frozenset[str] = frozenset()
    engine: str = ""

    @property
    def name(self) -> str:
        """``database.table``, the name in the ledger."""
        return f"{self.database}.{self.table}"

    @property
    def quoted(self) -> str:
        """The quoted name for statements."""
        return f"{identifier(self.database)}.{identifier(self.table)}"

    @property
    def zone(self) -> str:
        """The time zone of the server, and so of columns of times whose types name none."""
        return str(getattr(self.client, "server_tz", None) or "UTC")

    @property
    def quarantine(self) -> Quarantine:
        """The quarantine of the table, which may not exist."""
        return Quarantine(self.client, self.database, self.table)

    @property
    def tables(self) -> tuple[Destination, ...]:
        """The tables that have the rows: those of the shards, or this table."""
        return self.shards or (self,)

    @property
    def others(self) -> tuple[Client, ...]:
        """Clients of the servers of the shards, without the server of `client`."""
        return tuple(shard.client for shard in self.shards if shard.client is not self.client)

    @property
    def replaces_at_once(self) -> bool:
        """Whether merges remove replaced rows, and all rows of a load become visible in one step."""
        return self.takes_parts and not self.shards and "Replacing" in self.engine.partition("(")[0].partition(" ")[0]

    def is_own(self, column: Column) -> bool:
        """Return whether a load fills the column: this one, or an earlier one that added it to the table."""
        return column.name in self.own or OWN_COLUMNS.get(column.name) == column.type

    def type_of(self, column: str) -> str | None:
        """Return the type of a column; None if there is no such column."""
        return next((c.type for c in self.columns if c.name == column), None)

    def alter(self, actions: Sequence[str]) -> Destination:
        """Change the table's columns and return the changed table."""
        log.info("ALTER TABLE %s %s", self.quoted, ", ".join(actions))
        self._alter(actions)
        return replace(existing(self.client, self.name, self.servers), partitions=self.partitions, own=self.own)

    def _alter(self, actions: Sequence[str]) -> None:
        """Change the columns of all tables; those of the Distributed table itself last, as it shows them to loads."""
        for shard in self.shards:
            shard._alter(actions)
        settings = {"alter_sync": 2, "mutations_sync": 1}
        for other in self.others:
            try:
                other.command(f"ALTER TABLE {self.quoted} {', '.join(actions)}", settings=settings)
            except DatabaseError as e:
                if code_of(e) != UNKNOWN_TABLE:  # only some servers may have the Distributed table
                    raise
        self.client.command(f"ALTER TABLE {self.quoted} {', '.join(actions)}", settings=settings)

    def is_empty(self) -> bool:
        """Return whether the table has no row."""
        return not any(
            table.client.query(f"SELECT 1 FROM {table.quoted} LIMIT 1").result_rows for table in self.tables
        )

    def widen(self, columns: Sequence[Column]) -> Destination:
        """Change columns to these types, and add missing columns.

        Raises TransferInputError for a column of a key.
        """
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
        self.client.command(" ".join(clauses), settings=LONG)

    def count(self, objects: Sequence[Planned]) -> dict[int, int]:
        """Return the number of rows in the table for each of these loads."""
        found: dict[int, int] = {}
        for table in self.tables:
            for some in slices(objects):
                rows = table.client.query(
                    f"SELECT {LOAD_ID}, count() FROM {table.quoted} WHERE {LOAD_ID} IN ({ids_text(some)}) GROUP BY 1",
                    settings={"select_sequential_consistency": 1},
                ).result_rows
                found |= {load_id: found.get(load_id, 0) + count for load_id, count in rows}
        return found

    def remove(self, objects: Sequence[Planned], hold: Hold | None = None) -> None:
        """Delete the rows of these loads, also from the quarantine.

        With `hold`, do that only while that lock is held, or raise StaleError.
        """
        for table in self.tables:
            table._delete(objects, hold.on(table.client) if hold else None)
        self.quarantine.remove(objects, hold)
        if hold:
            for client in (self.client, *self.others):
                hold.on(client).check()

    def _delete(self, objects: Sequence[Planned], hold: Hold | None) -> None:
        settings = {**_SYNCHRONOUS, **hold.settings} if hold else _SYNCHRONOUS
        for some in slices(objects):
            those = f"WHERE {LOAD_ID} IN ({ids_text(some)})" + (f" AND {hold.condition}" if hold else "")
            try:
                self.client.command(f"DELETE FROM {self.quoted} {those}", settings=settings)
            except DatabaseError as e:
                if code_of(e) != SUPPORT_IS_DISABLED:  # the table has projections
                    raise
                self.client.command(f"ALTER TABLE {self.quoted} DELETE {those}", settings=settings)

    def spread(self, staging: str, ledger: Client, rows: int) -> str:
        """Divide the rows of `staging` between staging tables on the shards; return the name of these tables.

        Without shards, that is `staging` itself. `rows` is their number, and `ledger` the client of a user that may
        create Distributed tables. Raises StaleError if `staging` was dropped, and TransferTransientError if the
        shards do not receive all rows.
        """
        if self.distribution is None:
            return staging
        part = part_of(staging)
        for shard in self.shards:
            shard.stage(part)
        whole = f"{STAGING}.{identifier(whole_of(part))}"
        engine = replace(self.distribution, database=STAGING, table=part)
        try:
            ledger.command(f"CREATE TABLE {whole} AS {STAGING}.{identifier(staging)} ENGINE = {engine.sql}")
            self.copy(f"{STAGING}.{identifier(staging)}", whole, staging)
        except DatabaseError as e:
            if code_of(e) == UNKNOWN_TABLE:
                raise StaleError(f"{staging} cannot be divided between the shards: {plain(e)}") from e
            raise
        query = f"SELECT count() FROM {STAGING}.{identifier(part)}"
        arrived = sum(int(first_row(shard.client.query(query))[0]) for shard in self.shards)
        if arrived != rows:
            raise TransferTransientError(f"the shards of {self.name} received {arrived} of {rows} rows: load again")
        return part

    def leave_out(self, part: str, objects: Sequence[Planned]) -> None:
        """Remove the rows of these loads from the result of `spread`, so that they are not published."""
        for client in (table.client for table in self.tables):
            for some in slices(objects):
                client.command(
                    f"ALTER TABLE {STAGING}.{identifier(part)} DELETE WHERE {LOAD_ID} IN ({ids_text(some)})",
                    settings=_SYNCHRONOUS,
                )

    def take(self, part: str, staging: str) -> None:
        """Make the rows in the result of `spread` visible: on each server in one step, if its table `takes_parts`."""
        for table in self.tables:
            if table.takes_parts:
                table.client.command(
                    f"ALTER TABLE {table.quoted} ATTACH PARTITION ALL FROM {STAGING}.{identifier(part)}",
                    settings={"query_id": queries.query_id(staging, time.time_ns())},
                )
            else:
                table.copy(f"{STAGING}.{identifier(part)}", table.quoted, staging)

    def copy(self, source: str, into: str, staging: str, where: str = "") -> None:
        """Copy rows between two tables with this table's columns, for the publication of `staging`."""
        names = ", ".join(identifier(c.name) for c in (*self.columns, Column(LOAD_ID, "UInt64")))
        self.client.command(
            f"INSERT INTO {into} ({names}) SELECT {names} FROM {source} {where}",
            settings={**_INSERT, "query_id": queries.query_id(staging, time.time_ns())},
        )

    def drop_parts(self, staging: str) -> None:
        """Drop the tables of all attempts to `spread` a staging table."""
        for client in (self.client, *self.others) if self.shards else ():
            drop_parts(client, staging)


def look_up(
    client: Client, name: str, servers: Servers = NO_SERVERS, *, completes: bool = True
) -> Destination | None:  # fmt: skip
    """Return the table ``database.table``; None if it does not exist.

    A Distributed table needs the other `servers` of its cluster. A table that lacks the hidden column gets it, if it
    `completes` the table. Raises TransferInputError when the table cannot be a destination, and
    TransferTransientError when a server does not answer.
    """
    row = first_row(client.query(f"SELECT {DESCRIPTION}", parameters=place_of(name)))
    return described(client, name, row, servers, completes=completes)


def look_up_all(client: Client, names: Sequence[str]) -> dict[str, Destination | None]:
    """Return tables of one database by their names ``database.table``, in one statement; None for missing ones.

    Tables that need further statements are left out: Distributed ones, and those that cannot be a destination.
    """
    database = names[0].partition(".")[0]
    tables = {name.partition(".")[2]: name for name in names}
    those = f"database = {literal(database)} AND %s IN ({', '.join(map(literal, tables))})"
    row = first_row(
        client.query(
            "SELECT (SELECT groupArray((name, engine, partition_key, sorting_key, primary_key, storage_policy,"
            f" dependencies_table, engine_full)) FROM system.tables WHERE {those % 'name'}),"
            " (SELECT groupArray((table, name, type, default_kind, default_expression, comment)) FROM"
            " (SELECT table, name, type, default_kind, default_expression, comment FROM system.columns"
            f" WHERE {those % 'table'} ORDER BY table, position))"
        )
    )
    found: dict[str, Destination | None] = dict.fromkeys(names)
    columns: dict[str, list[Any]] = {}
    for table, *column in row[1]:
        columns.setdefault(table, []).append(column)
    for table, *facts in row[0]:
        name, its_columns = tables[table], columns.get(table, [])
        del found[name]
        if facts[0] != "Distributed" and LOAD_ID in {n for n, *_ in its_columns}:
            with suppress(TransferInputError):
                found[name] = described(client, name, ([facts], its_columns))
    return found


def place_of(name: str) -> dict[str, str]:
    """Return the parameters of `DESCRIPTION` for a table ``database.table``."""
    database, _, table = name.partition(".")
    return {"database": database, "table": table}


def described(
    client: Client, name: str, description: Sequence[Any], servers: Servers = NO_SERVERS, *, completes: bool = True
) -> Destination | None:
    """Return the table with this `DESCRIPTION`; see `look_up`."""
    database, _, table = name.partition(".")
    rows, columns = description
    if not rows:
        return None
    engine, partition_key, sorting_key, primary_key, policy, views, engine_full = rows[0]
    has_views = any(views)
    is_distributed = engine == "Distributed"
    if not is_distributed:
        require_engine(engine, name)
    elif has_views:
        raise TransferInputError(
            f"{name} has materialized views, which see no rows of loads: create them for the tables on the shards"
        )
    # Materialized views do not see attached parts.
    takes_parts = not has_views and not engine.startswith(_REPLICATED)
    found = Destination(
        client, database, table,
        tuple(Column(n, t) for n, t, kind, *_ in columns if kind in ("", "DEFAULT")),
        partition_key, sorting_key, primary_key, policy, takes_parts,
        {n: default for n, _, kind, default, _ in columns if kind == "DEFAULT" or n == DELETED},
        inferred=frozenset(n for n, *_, comment in columns if comment == INFERRED), engine=engine_full,
    )  # fmt: skip
    if is_distributed:
        found = _with_shards(found, distribution(engine_full), servers, completes=completes)
    if completes and LOAD_ID not in {n for n, *_ in columns}:
        log.info("adding the hidden column %s to %s, with the load of each row", LOAD_ID, found.name)
        found._alter([f"ADD COLUMN IF NOT EXISTS {LOAD_ID} UInt64 MATERIALIZED 0"])
    return found


def _with_shards(
    found: Destination, engine: Distribution, servers: Servers, *, completes: bool
) -> Destination:  # fmt: skip
    clients = shards_of(engine, found.name, found.client, servers)
    shards = [look_up(client, engine.local, completes=completes) for client in clients]
    for number, shard in enumerate(shards, 1):
        if shard is None:
            raise TransferInputError(
                f"{found.name}: shard {number} of {engine.cluster!r} has no table {engine.local}: create it there"
            )
    tables = tuple(filter(None, shards))
    first = tables[0]
    return replace(
        found, partition_key=first.partition_key, sorting_key=first.sorting_key, primary_key=first.primary_key,
        storage_policy=first.storage_policy, servers=servers, shards=tables, distribution=engine,
    )  # fmt: skip


def existing(client: Client, name: str, servers: Servers = NO_SERVERS) -> Destination:
    """Return an existing table. Raises TransferInputError if it does not exist or cannot be a destination."""
    found = look_up(client, name, servers)
    if found is None:
        raise TransferInputError(
            f"table {name} does not exist: check whether it was dropped while objects were loaded into it"
        )
    return found


def names_column(key: str, column: str) -> bool:
    """Return whether the expressions of a table's keys contain a column."""
    return column in key and re.search(rf"(?<!\w){re.escape(column)}(?!\w)", key) is not None
