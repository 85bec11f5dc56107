"""Prepares a transfer: lists and plans objects, recognizes their format, creates a missing table."""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from clickhouse_connect.driver.exceptions import DatabaseError

from storeside.transfer.base import queries
from storeside.transfer.base.errors import (
    LoadObjectError,
    TransferError,
    TransferInputError,
    classify,
    is_transient,
    is_unlistable,
    is_without_collection,
    plain,
)
from storeside.transfer.base.schema import MOMENT, Column, bare, resolved
from storeside.transfer.formats.registry import MESSAGES, settings_of
from storeside.transfer.lakes.snapshots import Snapshot, snapshot_of
from storeside.transfer.objects.content import content_of
from storeside.transfer.publish.durability import require_right
from storeside.transfer.publish.leftovers import look_up_and_sweep, settle_doubtful
from storeside.transfer.publish.mirror import Mirror
from storeside.transfer.request import aistore_urls
from storeside.transfer.request.object_format import Format
from storeside.transfer.request.options import REST, SYSTEM_COLUMNS, refuse_own
from storeside.transfer.request.request import Request
from storeside.transfer.request.source import Listed, bucket_uri
from storeside.transfer.run.looking import Look
from storeside.transfer.run.plan_input import record_source, size_of_plan
from storeside.transfer.run.planned_columns import check_table, missing, of_new_table
from storeside.transfer.run.samples import columns_of, recognise
from storeside.transfer.state.loads import Unplanned
from storeside.transfer.state.plan import Plan
from storeside.transfer.statements.projection import Readings
from storeside.transfer.tables.creation import create
from storeside.transfer.tables.servers import NO_SERVERS, Servers
from storeside.transfer.tables.table import Destination
from storeside.transfer.types.partitions import deduced, in_utc, shown_by_keys

if TYPE_CHECKING:
    from clickhouse_connect.driver.client import Client

log = logging.getLogger(__name__)

# Maximum objects published in one step: the ledger is queried for all of them while other loads wait for the lock.
MOST_AT_ONCE = 100_000
# Failures that reports name.
MOST_FAILURES = 20
# Seconds for which a batch trusts what the preparation has found out about the destination.
_RECENT_SECONDS = 5.0
# A load within both limits takes a few seconds, also of small objects or compressed ones.
BRIEF_BYTES, BRIEF_OBJECTS = 8 << 20, 100


@dataclass(frozen=True)
class Prepared(Unplanned):
    """Format, loader and size of a plan, with which another process can continue; `bytes` counts planned objects.

    For a plan of an Iceberg or Delta table, `snapshot` is the id of its snapshot, `partitions` lists the columns with
    values in keys, `columns` those of its files if other columns of files are ignored, and `since` is the time of the
    ledger's server before the snapshot was looked up, in microseconds.
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

    @property
    def is_brief(self) -> bool:
        """Whether the load takes a few seconds, as long as a deferral, after which another process continues."""
        return self.bytes <= BRIEF_BYTES and self.planned <= BRIEF_OBJECTS


class Preparation:
    """Prepares a request; `client` belongs to the loading ClickHouse user, `s3` reads the source: see `Transfer`."""

    def __init__(self, request: Request, client: Client, s3: Any, plan: Plan, servers: Servers = NO_SERVERS) -> None:
        self.request = request
        self.servers = servers
        self.s3 = s3
        self.plan = plan
        self.loads = plan.loads
        self.client = client
        self.readings = Readings(client, request.read.columns)
        self.snapshot: Snapshot | None = None
        self._known = Unplanned()
        self.has_swept = False  # whether this process has dropped what earlier tries had left
        self._destination: tuple[float, Destination] | None = None

    @property
    def recent(self) -> Destination | None:
        """The destination, if this process found it a moment ago and then killed this transfer's old statements."""
        if self._destination is None or time.monotonic() - self._destination[0] > _RECENT_SECONDS:
            return None
        return self._destination[1]

    def prepare(self, objects: Sequence[Listed] | None) -> Prepared:
        """List, plan, and create a missing table; `objects` replaces the listing.

        Raises TransferInputError when the request cannot be carried out.
        """
        try:
            prepared = self._prepare(objects)
            known = self._known
            return replace(
                prepared,
                known_bad=known.known_bad, known_failures=known.known_failures, ignored=self.plan.ignored,
            )  # fmt: skip
        except DatabaseError as e:
            raise _usage(classify(e)) from e

    def _prepare(self, objects: Sequence[Listed] | None) -> Prepared:
        begun = time.monotonic()
        _ = self.readings.used  # raises for expressions that are not allowed
        if self.request.has_kind("messages"):
            form = self.request.form(self.request.format)
            MESSAGES[form.name].check(self.client, form, settings_of(form))
        if self.request.is_lake and objects is not None:
            raise TransferInputError(
                f"format {self.request.format!r}: events name no snapshot: use a load of the table"
            )
        destination, *_ = queries.at_once(
            self._find,
            self.loads.create if self.plan.needs_tables else lambda: None,
        )
        self.has_swept = True
        if self.request.after_load:
            require_right([self.client, *(destination.others if destination else ())])
        # Loads that are settled here must not count as loads of another snapshot.
        since = self._settle_and_ask_time(destination) if self.request.is_lake else 0
        is_whole, pulls = queries.at_once(lambda: self._list(objects), lambda: self.pulls)
        push = not pulls
        listed, planned, size = self.plan.make(
            batch_bytes=self.request.batches.bytes,
            batch_objects=self.request.batches.objects,
            push=push,
            # All-or-nothing also covers objects that failed in other runs.
            retry_failed=self.request.retry_failed or self.request.all_or_none,
            since=self.request.source.since,
            settle=None if since else lambda: settle_doubtful(destination, self.loads, self.s3),
        )
        self._known = self._known_bad(listed - planned)
        if not is_whole:
            self.plan.forget("load_listings")
        log.info("%s: %s", self.request.source.uri, size_of_plan(listed, planned, size, push=push))
        if self.snapshot is not None:
            return self._of_snapshot(
                self.snapshot, destination, Prepared("parquet", push, listed, planned, size), since
            )
        self._check_number(planned)
        if not planned:
            return self._of_nothing(destination, Prepared(self.request.format, push, listed, 0, 0))
        if destination is None or self.request.format == "auto":
            if (found := self._look.found(destination is None, given=objects is not None)) is None:
                return Prepared(self.request.format, push, listed, planned, size)
            form, columns = found
            destination = destination or self._create(columns, form)
        else:
            form = self.request.form(self.request.format)
        push = push or not form.is_native
        self._destination = (begun, self._complete(destination, form))
        return Prepared(form.choice, push, listed, planned, size)

    def _find(self) -> Destination | None:
        """Return the destination if it exists, and drop what earlier tries of this transfer left."""
        return look_up_and_sweep(self.client, self.request.table, self.loads.transfer, self.servers)

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
            form = Format("parquet")
            self._complete(destination or self._create(snapshot.stored, form), form)
        else:
            self._of_nothing(destination, prepared)
            if destination is None and not prepared.listed and snapshot.columns:
                form = Format("parquet")
                self._complete(self._create(snapshot.stored, form), form)
        if destination is not None:
            self._refuse_other_zones(snapshot, destination)
        columns = [c.name for c in snapshot.stored] if snapshot.ignores_others else []
        return replace(
            prepared, snapshot=snapshot.id, partitions=snapshot.partitions, columns=columns, since=since
        )  # fmt: skip

    def _refuse_other_zones(self, snapshot: Snapshot, destination: Destination) -> None:
        """Raise TransferInputError for a column that would read the UTC timestamps in keys in another zone."""
        for column in snapshot.columns:
            kind = destination.type_of(column.name)
            is_moment = column.name in snapshot.partitions and in_utc(column.type)
            if is_moment and kind and MOMENT.fullmatch(bare(kind)) and not in_utc(kind):
                raise TransferInputError(
                    f"column {column.name!r} of {destination.name} is {kind}, but the keys have timestamps in UTC:"
                    f" make it {bare(column.type)}"
                )

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

    @cached_property
    def pulls(self) -> bool:
        """Whether ClickHouse reads the objects itself."""
        source = self.request.source
        if self.request.loader == "push" or source.only_by_worker:
            return False
        try:
            if source.by_url:
                aistore_urls.configure(self.client)
            self.client.query(
                f"SELECT 1 FROM {source.probe()} LIMIT 1",
                settings={"s3_retry_attempts": 1, "s3_connect_timeout_ms": 2000, "use_hive_partitioning": 0},
            )
        except DatabaseError as e:
            if is_unlistable(e) or (source.by_url and aistore_urls.is_absent(e)):
                return True
            if source.collection and is_without_collection(e):
                raise TransferInputError(
                    f"collection {source.collection!r}: ClickHouse has no named collection of this name, or its user"
                    f" may not use it: correct the name, or GRANT NAMED COLLECTION ON {source.collection}. Without"
                    f" one, ClickHouse reads with its own keys, or the worker pushes: {plain(e)}"
                ) from e
            if self.request.loader == "pull":
                raise TransferInputError(f"ClickHouse cannot read {bucket_uri(source.bucket)}: {plain(e)}") from e
            log.info("ClickHouse cannot read the bucket, so the worker pushes: %s", plain(e))
            return False
        return True

    @property
    def _look(self) -> Look:
        return Look(self.request, self.client, self.s3, self.plan)

    def _list(self, objects: Sequence[Listed] | None) -> bool:
        """Store a listing: these objects, or the bucket's; return whether it has all objects below the prefix."""
        if objects is not None:
            self.plan.record_listing([objects])
            return False
        if self.request.is_lake:
            self.snapshot = found = snapshot_of(self.s3, self.request.format, self.request.source)
            read = replace(
                self.request.read, partition_columns=found.partitions or self.request.read.partition_columns
            )
            self.request = replace(self.request, read=read)
            log.info("%s: snapshot %s has %d files", found.uri, found.id, len(found.files))
        overlap = self.request.overlap_seconds
        after = "" if overlap is None else self.plan.start_after(overlap)
        record_source(self.plan, self.s3, self.request.source, after, self.snapshot)
        return not after

    def _create(self, columns: list[Column], form: Format) -> Destination:
        options = self.request.table_options
        columns = [c for c in columns if c.name not in self.request.read.partition_columns]
        sampled = {self.request.read.columns.target(c.name) for c in columns} - {*options.columns}
        fixed = {
            self.request.read.columns.target(n) for n in {**self.readings.columns.cast, **self.readings.columns.mask}
        }
        columns = of_new_table(self.readings, columns, self._in_keys(), options.columns, text=form.is_text)
        columns = [Column(c.name, resolved(c.type)) for c in columns]
        try:
            refuse_own([c.name for c in columns], self.request.own_columns)
        except LoadObjectError as e:
            raise _usage(e) from e
        return self._make(columns, [c.name for c in columns if form.is_text and c.name in sampled - fixed])

    def _make(self, columns: Sequence[Column], inferred: Collection[str]) -> Destination:
        """Create the destination with these columns, of which some are `inferred` from text; return it."""
        request = self.request
        return create(
            self.client, request.table, columns, request.table_options, request.limits.columns, self.servers,
            with_database=request.create_database, inferred=inferred,
        )  # fmt: skip

    def _in_keys(self) -> list[Column]:
        """Return the columns whose values are in keys, with the given types or those that the planned keys show."""
        if not (names := self.request.read.partition_columns):
            return []
        given = {**self._types, **self.request.table_options.columns}
        found = deduced(names, self.plan.facts(shown_by_keys(names)))
        return [Column(c.name, given.get(c.name, c.type)) for c in found]

    @property
    def _types(self) -> dict[str, str]:
        """The types of columns that a snapshot states."""
        return {c.name: c.type for c in self.snapshot.columns} if self.snapshot else {}

    def _complete(self, destination: Destination, form: Format) -> Destination:
        """Add missing system, partition and computed columns, and the column ``_rest`` if the request uses it.

        Returns the table with them. Raises TransferInputError if the options for columns do not fit the table or
        sampled objects.
        """
        wanted = [Column(name, SYSTEM_COLUMNS[name]) for name in self.request.table_options.system_columns]
        if any(destination.type_of(name) is None for name in self.request.read.partition_columns):
            wanted += self._in_keys()
        if self.request.on_drift == "rest":
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
        try:
            sample = self.plan.sample(self.request.read.sample_objects)
            _, contents = recognise(self.request, [content_of(self.s3, self.request, o) for o in sample])
            return columns_of(self.client, self.request, form, contents)
        except (TransferInputError, DatabaseError) as e:
            if is_transient(e):
                raise
            log.info("the names in the options for columns are not checked: %s", plain(e))
            return None


def _usage(error: TransferError) -> TransferError:
    return TransferInputError(str(error)) if isinstance(error, LoadObjectError) else error
