"""Prepares a transfer: lists and plans objects, recognizes their format, creates a missing table."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from clickhouse_connect.driver.exceptions import DatabaseError

from storeside.transfer.base import queries
from storeside.transfer.base.errors import (
    LoadObjectError,
    TransferError,
    TransferInputError,
    classify,
)
from storeside.transfer.lakes.snapshots import Snapshot
from storeside.transfer.publish.durability import require_right
from storeside.transfer.publish.leftovers import settle_doubtful
from storeside.transfer.publish.mirror import Mirror
from storeside.transfer.publish.partition import require_partitions
from storeside.transfer.request.object_format import Format
from storeside.transfer.request.request import Request
from storeside.transfer.request.source import Listed
from storeside.transfer.run.plan_input import record_source, size_of_plan
from storeside.transfer.run.pulling import clickhouse_reads
from storeside.transfer.run.table_setup import RECENT_SECONDS, Shared, TableSetup
from storeside.transfer.state.loads import Unplanned
from storeside.transfer.tables.table import Destination

log = logging.getLogger(__name__)

# Maximum objects published in one step: the ledger is queried for all of them while other loads wait for the lock.
MOST_AT_ONCE = 100_000
# Failures that reports name.
MOST_FAILURES = 20
# A load within both limits takes a few seconds, also of small objects or compressed ones.
BRIEF_BYTES, BRIEF_OBJECTS = 8 << 20, 100
# Maximum objects in a batch that the worker sends one by one: it sends several batches at the same time.
_MOST_PUSHED = 250


@dataclass(frozen=True)
class Prepared(Unplanned):
    """Format, loader and size of a plan, with which another process can continue.

    :param format: the objects' format
    :param push: the worker streams all objects
    :param listed: objects listed
    :param planned: objects to load
    :param bytes: bytes of the planned objects
    :param snapshot: id of the snapshot of an Iceberg or Delta table
    :param partitions: columns of the snapshot with values in keys
    :param columns: columns of the snapshot's files, if other columns of files are ignored
    :param since: time of the ledger's server before the snapshot was looked up or a listing began, in microseconds,
        if rows are to be removed
    :param is_edited: some files of the snapshot have other rows than their content, which only the process knows that
        has planned the load: no other one can carry it out
    """

    format: str
    push: bool
    listed: int
    planned: int
    bytes: int
    snapshot: str = ""
    partitions: Sequence[str] = ()
    columns: Sequence[str] = ()
    since: int = 0
    is_edited: bool = False

    @property
    def is_brief(self) -> bool:
        """Whether the load takes a few seconds, as long as a deferral, after which another process continues."""
        return self.bytes <= BRIEF_BYTES and self.planned <= BRIEF_OBJECTS


class Preparation:
    """Prepares the load of a request into its `table`; `s3` reads the source, see `Transfer`."""

    def __init__(self, table: TableSetup) -> None:
        self.table = table
        self.client, self.s3, self.plan = table.client, table.s3, table.plan
        self.loads = table.plan.loads
        self._known = Unplanned()
        self._since = 0
        self.has_swept = False  # whether this process has dropped what earlier tries had left
        self._destination: tuple[float, Destination] | None = None

    @property
    def request(self) -> Request:
        """The request, as soon as a snapshot is known with the columns that are in keys."""
        return self.table.request

    @cached_property
    def pulls(self) -> bool:
        """Whether ClickHouse reads the objects itself."""
        return clickhouse_reads(self.client, self.request)

    @property
    def reads(self) -> Callable[..., Any] | None:
        """`Snapshot.content_of` of the snapshot that is loaded; None for other sources."""
        return self.table.snapshot.content_of if self.table.snapshot else None

    @property
    def recent(self) -> Destination | None:
        """The destination, if this process found it a moment ago and then killed this transfer's old statements."""
        if self._destination is None or time.monotonic() - self._destination[0] > RECENT_SECONDS:
            return None
        return self._destination[1]

    def prepare(self, objects: Sequence[Listed] | None, shared: Shared | None = None) -> Prepared:
        """List, plan, and create a missing table; `objects` replaces the listing, and `shared` its statements.

        Raises TransferInputError when the request cannot be carried out.
        """
        if self.request.names_tables:
            raise TransferInputError(
                f"keys {self.request.source.keys!r}, table {self.request.table!r}: this load fills one table. Those"
                " that keys name are loaded by storeside load, S3ToClickHouseOperator, and TablesTransfer in Python"
            )
        try:
            prepared = self._prepare(objects, shared)
            known = self._known
            return replace(
                prepared,
                known_bad=known.known_bad, known_failures=known.known_failures, ignored=self.plan.ignored,
                since=self._since,
            )  # fmt: skip
        except DatabaseError as e:
            raise _usage(classify(e)) from e

    def _prepare(self, objects: Sequence[Listed] | None, shared: Shared | None) -> Prepared:
        _ = self.table.readings.used  # raises for expressions that are not allowed
        self.table.look.check_schema()
        if self.request.is_lake and objects is not None:
            raise TransferInputError(
                f"format {self.request.format!r}: events name no snapshot: use a load of the table"
            )
        begun, destination = self._find(shared)
        self.has_swept = True
        if self.request.replace_partition:
            require_partitions(destination, self.request.replace_partition, self.request.table_options.partition_key)
        if self.request.after_load:
            require_right([self.client, *(destination.others if destination else ())])
        # Loads that are settled here must not count as loads of another snapshot.
        self._since = since = self._settle_and_ask_time(destination) if self.request.is_mirrored else 0
        if shared is None:
            is_whole, pulls = queries.at_once(lambda: self._list(objects), lambda: self.pulls)
        else:
            is_whole, pulls = True, self.pulls
            self._since = since = min(since, shared.since)
            shared.record(self.plan)
        push = not pulls
        listed, planned, size = self.plan.make(
            batch_bytes=self.request.batches.bytes,
            batch_objects=min(self.request.batches.objects, _MOST_PUSHED) if push else self.request.batches.objects,
            push=push,
            # All-or-nothing also covers objects that failed in other runs.
            retry_failed=self.request.retry_failed or self.request.all_or_none,
            since=self.request.source.since,
            settle=None if since else lambda: settle_doubtful(destination, self.loads, self.s3),
        )
        self._known = self._known_bad(listed - planned)
        if not is_whole:
            self.plan.forget("load_listings")
        level = logging.DEBUG if shared else logging.INFO  # many tables have a line of progress
        log.log(level, "%s: %s", self.request.source.uri, size_of_plan(listed, planned, size, push=push))
        if self.table.snapshot is not None:
            return self._of_snapshot(
                self.table.snapshot, destination, Prepared("parquet", push, listed, planned, size), since
            )
        self._check_number(planned)
        if not planned:
            return self._of_nothing(destination, Prepared(self.request.format, push, listed, 0, 0))
        if destination is None or self.request.format == "auto":
            if (found := self.table.look.found(destination is None, given=objects is not None)) is None:
                return Prepared(self.request.format, push, listed, planned, size)
            form, columns = found
            destination = destination or self.table.create(columns, form)
        else:
            form = self.request.form(self.request.format)
        self.table.keep_current(destination)
        push = push or not form.is_native
        self._destination = (begun, self.table.complete(destination, form))
        return Prepared(form.choice, push, listed, planned, size)

    def _find(self, shared: Shared | None) -> tuple[float, Destination | None]:
        """Return the destination, and the time of this process before it was looked up."""
        if shared and shared.looked and shared.looked.is_recent and not self.plan.needs_tables:
            return shared.looked.at, shared.looked.destination
        begun = time.monotonic()
        destination, *_ = queries.at_once(
            self.table.find,
            self.loads.create if self.plan.needs_tables else lambda: None,
        )
        return begun, destination

    def _known_bad(self, unplanned: int) -> Unplanned:
        """Return the failures for good that explain why listed objects are not planned."""
        if not unplanned or self.request.retry_failed or self.request.all_or_none:
            return Unplanned()
        return self.plan.known_bad(MOST_FAILURES, self.request.source.since)

    def _of_nothing(self, destination: Destination | None, prepared: Prepared) -> Prepared:
        """Return `prepared`, for an empty plan. Raises TransferInputError if loads of a missing table explain it."""
        if destination is None and prepared.listed:
            self.loads.require_no_rows()
        return prepared

    def _settle_and_ask_time(self, destination: Destination | None) -> int:
        """Settle interrupted loads; then return the time of the ledger's server in microseconds since the epoch."""
        settle_doubtful(destination, self.loads, self.s3)
        return self.loads.server_time()

    def _of_snapshot(
        self, snapshot: Snapshot, destination: Destination | None, prepared: Prepared, since: int
    ) -> Prepared:
        """Create or complete the table for a snapshot. Raises TransferInputError if it cannot be appended."""
        if self.request.on_overwrite == "append":
            Mirror(self.loads, prepared.listed, since).refuse_gone()
        self._check_number(prepared.planned)
        if prepared.planned:
            snapshot.refuse_other_names(self.s3, self.request.source, self.plan.unfinished())
            form = Format("parquet")
            self.table.complete(destination or self.table.create(snapshot.stored, form), form)
        else:
            self._of_nothing(destination, prepared)
            if destination is None and not prepared.listed and snapshot.columns:
                form = Format("parquet")
                self.table.complete(self.table.create(snapshot.stored, form), form)
        if destination is not None:
            snapshot.refuse_other_zones(destination)
        columns = [c.name for c in snapshot.stored] if snapshot.ignores_others else []
        return replace(
            prepared, snapshot=snapshot.id, partitions=snapshot.partitions, columns=columns,
            is_edited=snapshot.editor is not None,
        )  # fmt: skip

    def _check_number(self, planned: int) -> None:
        if self.request.at_once and planned > MOST_AT_ONCE:
            if self.request.is_lake:
                raise TransferInputError(
                    f"{self.request.source.uri}: {planned} files of the snapshot are to be loaded, and a load"
                    f" publishes at most {MOST_AT_ONCE} in one step: compact the table"
                )
            option = "all_or_nothing" if self.request.all_or_nothing else "a suite that fails the load"
            raise TransferInputError(
                f"{planned} objects: {option} publishes at most {MOST_AT_ONCE}: select fewer with `keys`"
            )

    def _list(self, objects: Sequence[Listed] | None) -> bool:
        """Store a listing: these objects, or the bucket's; return whether it has all objects below the prefix."""
        if objects is not None:
            self.plan.record_listing([objects])
            return False
        if self.request.is_lake:
            found = self.table.read_snapshot()
            log.info("%s: snapshot %s has %d files", found.uri, found.id, len(found.files))
        overlap = self.request.overlap_seconds
        after = "" if overlap is None else self.plan.start_after(overlap)
        record_source(self.plan, self.s3, self.request.source, after, self.table.snapshot)
        return not after


def _usage(error: TransferError) -> TransferError:
    return TransferInputError(str(error)) if isinstance(error, LoadObjectError) else error
