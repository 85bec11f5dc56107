"""Prepares a transfer: lists and plans objects, recognizes their format, creates a missing table."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from clickhouse_connect.driver.exceptions import DatabaseError

from storeside.sql.answers import first_row
from storeside.transfer import aistore_urls, queries
from storeside.transfer.content import content_of
from storeside.transfer.creation import create
from storeside.transfer.durability import require_right
from storeside.transfer.errors import (
    LoadObjectError,
    TransferError,
    TransferInputError,
    classify,
    is_transient,
    is_unlistable,
    kind_of,
    plain,
)
from storeside.transfer.formats import BY_SCHEMA, TYPED, Format
from storeside.transfer.lakes import Snapshot, snapshot_of
from storeside.transfer.leftovers import settle_doubtful, sweep
from storeside.transfer.loads import Loaded, Planned
from storeside.transfer.messages import check_schema
from storeside.transfer.mirror import Mirror
from storeside.transfer.options import SYSTEM_COLUMNS
from storeside.transfer.partitions import deduced
from storeside.transfer.plan import Plan
from storeside.transfer.planned_columns import check_table, missing, of_new_table
from storeside.transfer.projection import Readings
from storeside.transfer.request import Request
from storeside.transfer.samples import NoRowsError, columns_of, is_without_rows, recognise
from storeside.transfer.schema import Column, resolved
from storeside.transfer.servers import NO_SERVERS, Servers
from storeside.transfer.source import Listed, bucket_uri
from storeside.transfer.source_listing import record_source
from storeside.transfer.table import REST, Destination, look_up

if TYPE_CHECKING:
    from clickhouse_connect.driver.client import Client

log = logging.getLogger(__name__)

# Maximum number of sampled objects when the first samples have no rows.
MOST_SAMPLED = 200
# Maximum objects published in one step: the ledger is queried for all of them while other loads wait for the lock.
MOST_AT_ONCE = 100_000
# Seconds for which a batch trusts what the preparation has found out about the destination.
_RECENT_SECONDS = 5.0
# A load within both limits takes a few seconds, also of small objects or compressed ones.
BRIEF_BYTES, BRIEF_OBJECTS = 8 << 20, 100


@dataclass(frozen=True)
class Prepared:
    """Format, loader and size of a plan, with which another process can continue; `bytes` counts planned objects.

    For a plan of an Iceberg or Delta table, `snapshot` is the id of its snapshot, `partitions` lists the columns with
    values in keys, and `since` is the time of the ledger's server before the snapshot was looked up, in microseconds.
    """

    format: str
    push: bool
    listed: int
    planned: int
    bytes: int
    snapshot: str = ""
    partitions: Sequence[str] = ()
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
            return self._prepare(objects)
        except DatabaseError as e:
            raise _usage(classify(e)) from e

    def _prepare(self, objects: Sequence[Listed] | None) -> Prepared:
        begun = time.monotonic()
        _ = self.readings.used  # raises for expressions that are not allowed
        if self.request.format in BY_SCHEMA:
            check_schema(self.client, self.request.form(self.request.format))
        if self.request.is_lake and objects is not None:
            raise TransferInputError(
                f"format {self.request.format!r}: events name no snapshot: use a load of the table"
            )
        destination, since, *_ = queries.at_once(
            lambda: look_up(self.client, self.request.table, self.servers),
            self._create_ledger,
            lambda: sweep([self.client], self.loads.transfer),
        )
        if destination is not None:
            sweep(destination.others, self.loads.transfer)
        if self.request.after_load:
            require_right([self.client, *(destination.others if destination else ())])
        is_whole, pulls, _ = queries.at_once(
            lambda: self._list(objects),
            lambda: self.pulls,
            lambda: settle_doubtful(destination, self.loads, self.s3),
        )
        push = not pulls
        listed, planned, size = self.plan.make(
            batch_bytes=self.request.batches.bytes,
            batch_objects=self.request.batches.objects,
            push=push,
            # All-or-nothing also covers objects that failed in other runs.
            retry_failed=self.request.retry_failed or self.request.all_or_none,
            since=self.request.source.since,
        )
        if not is_whole:
            self.plan.forget("load_listings")
        log.info(
            "%s: %d objects match, %d to load (%.1f MB), by %s",
            self.request.source.uri, listed, planned, size / 1e6,
            "push" if push else "pull",
        )  # fmt: skip
        if self.snapshot is not None:
            return self._of_snapshot(
                self.snapshot, destination, Prepared("parquet", push, listed, planned, size), since
            )
        self._check_number(planned)
        if not planned:
            return Prepared(self.request.format, push, listed, 0, 0)
        if destination is None or self.request.format == "auto":
            if (found := self._look(destination is None, given=objects is not None)) is None:
                return Prepared(self.request.format, push, listed, planned, size)
            form, columns = found
            destination = destination or self._create(columns, form)
        else:
            form = self.request.form(self.request.format)
        push = push or not form.is_native
        self._destination = (begun, self._complete(destination, form))
        return Prepared(form.choice, push, listed, planned, size)

    def _create_ledger(self) -> int:
        """Create the ledger's tables; return the time of their server in microseconds since the epoch."""
        self.loads.create()
        return int(first_row(self.loads.client.query("SELECT toUnixTimestamp64Micro(now64(6))"))[0])

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
        return replace(prepared, snapshot=snapshot.id, partitions=snapshot.partitions, since=since)

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
            if self.request.loader == "pull":
                raise TransferInputError(f"ClickHouse cannot read {bucket_uri(source.bucket)}: {plain(e)}") from e
            log.info("ClickHouse cannot read the bucket, so the worker pushes: %s", plain(e))
            return False
        return True

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

    def _look(self, with_columns: bool, *, given: bool) -> tuple[Format, list[Column]] | None:
        """Return the format of sampled objects and, `with_columns`, their columns; None if no object is left to load.

        If objects were `given`, samples without a recognizable format or columns are recorded as failed.
        """
        sample_size = self.request.read.sample_objects
        while True:
            tried = sample = self.plan.sample(sample_size)
            try:
                form, samples = recognise(self.request, [content_of(self.s3, self.request, o) for o in sample])
                tried = [o for o in sample if o.key in {content.key for content in samples}]
                return form, columns_of(self.client, self.request, form, samples) if with_columns else []
            except TransferInputError as e:
                if isinstance(e, NoRowsError):
                    if sample_size < MOST_SAMPLED and not self._are_all(sample):
                        sample_size = MOST_SAMPLED
                        continue
                    fitting = {content.key for content in samples}
                    contents = [(o, content_of(self.s3, self.request, o, o.version)) for o in sample]
                    rowless = [o for o, content in contents if is_without_rows(content, form, fits=o.key in fitting)]
                    if self._are_all(rowless):
                        self._without_rows(self.plan.unfinished())
                        return None
                    if rowless:
                        self._without_rows(rowless)
                        continue
                if not sample and not given and self.request.format not in TYPED:
                    self._without_rows(self.plan.unfinished())
                    return None
                if not given:
                    raise
                left = tried or self.plan.unfinished()  # without a sample, all are empty
                self.loads.record_failed((o, kind_of(e), str(e)) for o in left)
                if not sample:
                    return None

    def _are_all(self, sample: Sequence[Planned]) -> bool:
        """Return whether a sample contains all unfinished objects that are not empty."""
        return len([o for o in self.plan.unfinished() if o.size]) <= len(sample)

    def _without_rows(self, objects: Sequence[Planned]) -> None:
        """Record objects without rows as loaded; they create no table."""
        self.loads.record([Loaded(o, 0) for o in objects], "loaded")
        log.info(
            "%d objects have no rows, such as %r: %s is created when an object has one",
            len(objects), objects[0].key, self.request.table,
        )  # fmt: skip

    def _create(self, columns: list[Column], form: Format) -> Destination:
        options = self.request.table_options
        columns = [c for c in columns if c.name not in self.request.read.partition_columns]
        columns = of_new_table(self.readings, columns, self._in_keys(), options.columns, text=form.is_text)
        columns = [Column(c.name, resolved(c.type)) for c in columns]
        most = self.request.limits.columns
        return create(self.client, self.request.table, columns, options, most, self.servers)

    def _in_keys(self) -> list[Column]:
        """Return the columns whose values are in keys, with the given types or those that the planned keys show."""
        if not (names := self.request.read.partition_columns):
            return []
        given = {**self._types, **self.request.table_options.columns}
        return [
            Column(c.name, given.get(c.name, c.type)) for c in deduced((o.key for o in self.plan.unfinished()), names)
        ]

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
            if (sampled := self._sampled(form)) is not None:
                in_keys = [c for c in (*destination.columns, *added) if c.name in names]
                added += missing(self.readings, sampled, in_keys, destination, text=form.is_text)
        if added:
            return destination.alter([f"ADD COLUMN IF NOT EXISTS {c.definition}" for c in added])
        return destination

    def _sampled(self, form: Format) -> list[Column] | None:
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
