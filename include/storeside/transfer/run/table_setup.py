"""Finds the table of a load, creates it with the columns of sampled objects, and adds the columns that it lacks."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from storeside.transfer.base.errors import LoadObjectError, TransferInputError
from storeside.transfer.base.schema import Column, resolved
from storeside.transfer.lakes.snapshots import Snapshot, snapshot_of
from storeside.transfer.publish.leftovers import look_up_and_sweep
from storeside.transfer.request.object_format import Format
from storeside.transfer.request.options import REST, SYSTEM_COLUMNS, refuse_own
from storeside.transfer.request.request import Request
from storeside.transfer.run.planned_columns import check_table, missing, of_keys, of_new_table
from storeside.transfer.samples.looking import Look
from storeside.transfer.state.plan import Plan
from storeside.transfer.statements.projection import Readings
from storeside.transfer.tables.creation import create
from storeside.transfer.tables.current import keep_view, require
from storeside.transfer.tables.servers import NO_SERVERS, Servers
from storeside.transfer.tables.table import Destination, existing, look_up

if TYPE_CHECKING:
    from clickhouse_connect.driver.client import Client


# Seconds for which a load trusts the facts about the destination that its process has found.
RECENT_SECONDS = 5.0


@dataclass(frozen=True)
class Looked:
    """A destination, or None if it did not exist, at a time of this process's monotonic clock.

    No statement or staging table of an earlier try of the load existed then.
    """

    at: float
    destination: Destination | None

    @property
    def is_recent(self) -> bool:
        """Whether a load trusts it."""
        return time.monotonic() - self.at < RECENT_SECONDS


@dataclass(frozen=True)
class Shared:
    """The facts that a process has found for several loads with the same statements.

    :param record: makes the load's part of their listing the input of its plan
    :param since: time of the ledger's server before that listing began, in microseconds since the epoch
    :param looked: the load's table; None if the load looks it up
    """

    record: Callable[[Plan], None]
    since: int
    looked: Looked | None = None


class TableSetup:
    """Sets up the table of a request; for `client`, `s3`, `servers` and `catalog` see `Transfer`.

    `request` has the columns that a `snapshot` states to be in keys, as soon as `read_snapshot` has read it.
    """

    def __init__(
        self, request: Request, client: Client, s3: Any, plan: Plan, servers: Servers = NO_SERVERS,
        catalog: Any = None,
    ) -> None:  # fmt: skip
        self.request = request
        self.client = client
        self.s3 = s3
        self.plan = plan
        self.servers = servers
        self.catalog = catalog
        self.readings = Readings(client, request.read.columns, request.upsert)
        self.snapshot: Snapshot | None = None

    def find(self) -> Destination | None:
        """Return the destination if it exists, and drop what earlier tries of this transfer left."""
        return look_up_and_sweep(self.client, self.request.table, self.plan.loads.transfer, self.servers)

    def look_up(self) -> Destination | None:
        """Return the destination if it exists."""
        return look_up(self.client, self.request.table, self.servers)

    @property
    def look(self) -> Look:
        """The samples of the plan."""
        return Look(self.request, self.client, self.s3, self.plan)

    def create(self, columns: list[Column], form: Format) -> Destination:
        """Create the destination for these columns of sampled objects, and return it.

        Raises TransferInputError if the request's options do not fit the columns.
        """
        options = self.request.table_options
        columns = [c for c in columns if c.name not in self.request.read.partition_columns]
        sampled = {self.request.read.columns.target(c.name) for c in columns} - {*options.columns}
        fixed = {
            self.request.read.columns.target(n) for n in {**self.readings.columns.cast, **self.readings.columns.mask}
        }
        columns = of_new_table(self.readings, columns, self.in_keys(), options.columns, text=form.is_text)
        columns = [Column(c.name, resolved(c.type)) for c in columns]
        try:
            refuse_own([c.name for c in columns], self.request.own_columns)
        except LoadObjectError as e:
            raise TransferInputError(str(e)) from e
        return self.make(columns, [c.name for c in columns if form.is_text and c.name in sampled - fixed])

    def make(self, columns: Sequence[Column], inferred: Collection[str]) -> Destination:
        """Create the destination with these columns, of which some are `inferred` from text; return it."""
        request = self.request
        return create(
            self.client, request.table, columns, request.table_options, request.limits.columns, self.servers,
            with_database=request.create_database, inferred=inferred,
        )  # fmt: skip

    def keep_current(self, destination: Destination) -> None:
        """With `upsert`, create the view of current rows. Raises TransferInputError for a table that does not fit."""
        if self.request.upsert:
            require(destination, self.request.upsert)
            keep_view(destination, self.request.upsert)

    def renew_view(self) -> None:
        """With `upsert`, replace the view of current rows by one with all columns of the table."""
        if self.request.upsert:
            keep_view(existing(self.client, self.request.table, self.servers), self.request.upsert)

    def in_keys(self) -> list[Column]:
        """Return the columns whose values are in keys, with the given types or those that the planned keys show."""
        if not (names := self.request.read.partition_columns):
            return []
        stated = {c.name: c.type for c in self.snapshot.columns} if self.snapshot else {}
        return of_keys(self.plan, names, {**stated, **self.request.table_options.columns})

    def complete(self, destination: Destination, form: Format) -> Destination:
        """Add missing system, partition and computed columns, and the column ``_rest`` if the request uses it.

        Returns the table with them. Raises TransferInputError if the options for columns do not fit the table or
        sampled objects.
        """
        wanted = [Column(name, SYSTEM_COLUMNS[name]) for name in self.request.table_options.system_columns]
        if any(destination.type_of(name) is None for name in self.request.read.partition_columns):
            wanted += self.in_keys()
        if self.request.keeps_rest:
            wanted.append(Column(REST, "Map(String, String)"))
        added = [c for c in wanted if destination.type_of(c.name) is None]
        if self.readings.columns:
            names = self.request.read.partition_columns
            check_table(self.readings, replace(destination, partitions=names))
            if (sampled := self.sampled(form)) is not None:
                in_keys = [c for c in (*destination.columns, *added) if c.name in names]
                added += missing(self.readings, sampled, in_keys, destination, text=form.is_text)
        if added:
            return destination.alter([f"ADD COLUMN IF NOT EXISTS {c.definition}" for c in added])
        return destination

    def sampled(self, form: Format) -> list[Column] | None:
        """Return the columns of sampled objects; None if no sample shows any, so that objects fail one by one."""
        if self.snapshot is not None:
            return self.snapshot.stored
        return self.look.columns(form)

    def read_snapshot(self) -> Snapshot:
        """Read the current snapshot of the request's Iceberg or Delta table; for errors see `snapshot_of`."""
        self.snapshot = found = snapshot_of(self.s3, self.request.format, self.request.source, self.catalog)
        read = replace(self.request.read, partition_columns=found.partitions or self.request.read.partition_columns)
        self.request = replace(self.request, read=read)
        return found
