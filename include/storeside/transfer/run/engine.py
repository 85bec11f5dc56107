"""Runs a transfer: prepares it, loads its objects in batches, each exactly once, and reports.

These are the statements of a load of one small object, in their order, and why it needs each of them:

1. the table, its columns, and leftovers of earlier tries: all loads must see what other sessions changed
2. whether ClickHouse reads the bucket, if it is to pull
3. what the ledger knows of the listed keys and of this run, and whether Storeside's tables are up to date
4. INSERT of the plan: a later run begins its listing before objects that no run has reached
5. CREATE TABLE, and the created table, which may come from another run: only for a missing table
6. CREATE TABLE and INSERT of the staging table: no row is visible before all are checked
7. the count of the staged rows by load: rows of another version, or lost rows, are found before they are visible
8. CREATE TABLE of the lock: one run publishes at a time
9. the states of these loads, read under the lock: another run may have published them
10. INSERT of 'publishing', ATTACH PARTITION, INSERT of 'loaded': the next run settles a crash between two of them
11. the lock's holder and age: a run drops only its own lock
12. DROP TABLE of the lock and the staging table
13. DROP PARTITION of the plan

The first load of a client also asks for the server's memory, to limit its statements.
"""

from __future__ import annotations

import hashlib
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from clickhouse_connect.driver.exceptions import DatabaseError, OperationalError

from storeside.transfer.base.errors import ExpectationsError, LeftError
from storeside.transfer.publish.leftovers import kill, sweep
from storeside.transfer.publish.loaded_objects import SourceActions
from storeside.transfer.publish.mirror import Mirror
from storeside.transfer.request.request import Request
from storeside.transfer.request.source import Listed
from storeside.transfer.run.batch_threads import BatchThreads
from storeside.transfer.run.preparation import MOST_FAILURES, Preparation, Prepared
from storeside.transfer.run.table_setup import Shared, TableSetup
from storeside.transfer.staging.private import quiet_client
from storeside.transfer.staging.validation import Validation
from storeside.transfer.staging.work import Work
from storeside.transfer.state.loads import Inserts, Loads, Unplanned
from storeside.transfer.state.plan import Plan
from storeside.transfer.tables.servers import NO_SERVERS, Servers

if TYPE_CHECKING:
    from clickhouse_connect.driver.client import Client

__all__ = ["Prepared", "Report", "Transfer"]


@dataclass(frozen=True)
class Report(Unplanned):
    """The outcome of a run.

    :param listed: objects listed; markers are not
    :param skipped: listed objects that were not to be loaded, without those in `known_bad`: earlier runs, earlier
        tries of this run, or other runs meanwhile had loaded them, or their failure was accepted
    :param loaded: objects loaded
    :param failed: objects that failed in this run
    :param rows: rows loaded
    :param rejected: rows that could not be parsed, and rows in the quarantine
    :param bytes: bytes of the loaded objects
    :param seconds: duration of the run
    :param failures: the first twenty failures as (key, reason)
    :param verdict: verdict of the request's suite, as values for JSON; None if no rows were checked
    :param filtered: rows that the condition of `Columns` excluded
    :param handled: source objects that were deleted, moved or tagged
    :param left: source objects that S3 refused to change
    :param left_objects: examples of these, as (key, reason)
    :param snapshot: id of the snapshot that the table now has, for an Iceberg or Delta table
    :param removed: loads whose rows were removed: of files of earlier snapshots, or of deleted objects
    """

    listed: int
    skipped: int
    loaded: int
    failed: int
    rows: int
    rejected: int
    bytes: int
    seconds: float
    failures: tuple[tuple[str, str], ...] = ()
    verdict: dict[str, Any] | None = None
    filtered: int = 0
    handled: int = 0
    left: int = 0
    left_objects: tuple[tuple[str, str], ...] = ()
    snapshot: str = ""
    removed: int = 0


class Transfer:
    """One run of a request.

    `client` is a clickhouse-connect client without a session, which threads share; `s3` is a boto3 client, or a
    client of AIStore's SDK for a bucket of AIStore. `run_id` names the run in the ledger: the same run, started
    again, continues where it stopped. An `owner` runs one transfer of a request at a time, under changing run ids,
    and each transfer cleans up after the previous one. `ledger` is a client of the same server whose user may write
    Storeside's tables; `client` is used if there is none. A load into a Distributed table also needs the other
    `servers` of the cluster. A source in a catalogue needs the `catalog`, see `lakes.snapshots.catalog_of`. Several
    transfers may share a `validation`. Those of many tables, which no other process continues and whose progress is
    shown elsewhere, share `inserts`.
    """

    def __init__(
        self, request: Request, client: Client, s3: Any, run_id: str, owner: str = "", ledger: Client | None = None,
        servers: Servers = NO_SERVERS, inserts: Inserts | None = None, catalog: Any = None,
    ) -> None:  # fmt: skip
        client = quiet_client(client) if request.read.columns.mask else client
        self.client = client
        self.servers = servers
        self.s3 = s3
        self.run_id = run_id
        self.stop = threading.Event()
        self._left = threading.Event()
        self.request = request
        self._is_one_of_many = inserts is not None
        source = request.source
        text = "\0".join((owner or run_id, request.table, source.bucket, source.keys))
        if request.read.columns:  # no run may continue a statement that had other options
            text += f"\0{request.read.columns}"
        if request.upsert:
            text += f"\0{request.upsert}"
        self.id = hashlib.sha256(text.encode()).hexdigest()[:16]
        self.loads = Loads(
            ledger or client, self.id, request.table, source, run_id, request.after_load.action,
            replaces=request.on_overwrite == "replace", options=request.digest,
            markers=request.markers, inserts=inserts,
        )  # fmt: skip
        # The files of a snapshot, objects that may be gone, and objects that an action is due for, are compared with
        # the stored listing. A listing with an overlap begins where the ledger says.
        is_compared = request.is_mirrored or bool(request.after_load)
        stores = is_compared or request.overlap_seconds is not None
        self.plan = Plan(self.loads, stores=stores, stays=not self._is_one_of_many)
        self._table = TableSetup(request, client, s3, self.plan, servers, catalog)
        self._preparation = Preparation(self._table)
        self.started = time.time()
        self._neighbours = 0
        self._given: list[str] | None = None
        self.validation: Validation | None = None

    @property
    def _clients(self) -> tuple[Client, ...]:
        """Clients of the servers that this run uses."""
        return (self.client, *self.servers.connected)

    @property
    def pulls(self) -> bool:
        """Whether ClickHouse reads the objects itself."""
        return self._preparation.pulls

    @pulls.setter
    def pulls(self, found: bool) -> None:
        """Use the answer of an earlier transfer of the same request, which saves a question to ClickHouse."""
        self._preparation.pulls = found

    def sweep(self) -> None:
        """Drop what an earlier transfer of this owner left: statements, staging tables, plan and listing."""
        sweep(self._clients, self.id)
        self.plan.forget_all()

    @property
    def source_actions(self) -> SourceActions:
        """The actions on source objects after their load; `run` also takes them."""
        return SourceActions(self.loads, self.s3, self.request.after_load, self.stop, self._table.look_up)

    def prepare(
        self, objects: Sequence[Listed] | None = None, neighbours: int = 0, shared: Shared | None = None
    ) -> Prepared:
        """List, plan, and create a missing table; `objects` replaces the listing, and `shared` its statements.

        `neighbours` is the number of objects in the bucket below the common prefix of `objects`, or 0 if unknown. The
        load decides from it between a listing and a request for each object. Raises TransferInputError when the
        request cannot be carried out.
        """
        self._neighbours = neighbours
        self._given = None if objects is None else [o.key for o in objects]
        return self._preparation.prepare(objects, shared)

    def run(self, prepared: Prepared, show: Callable[[str], None] | None = None) -> Report:
        """Load the planned objects; return when every object is loaded or recorded as failed.

        `show` gets a line of progress each second; without it, the log has one every few seconds.

        Raises TransferCancelled when the transfer is stopped, and TransferTransientError when a server stays
        unavailable: a new run continues after both. Raises ExpectationsError when rows break expectations, and
        QualityError when the suite cannot be loaded or applied.
        """
        form = self.request.form(prepared.format) if prepared.planned else None
        mirror = remover = None
        if self.request.is_mirrored:
            most = self.request.most_removed if self.request.remove_deleted else None
            made = Mirror(self.loads, prepared.listed, prepared.since, most, self.request.replace_partition)
            mirror = None if self.request.remove_deleted else made
            remover = None if self.request.is_lake and self.request.on_overwrite == "append" else made
        is_tidy = self._preparation.has_swept
        validation = self.validation or (validation_of(self.request) if prepared.planned else None)
        if form is not None:
            work = Work(
                _of_snapshot(self.request, prepared), form, self.client, self.plan, uuid.uuid4().hex[:8],
                self.s3, prepared.push, self.stop,
                neighbours=self._neighbours, servers=self.servers,
                recent=self._preparation.recent, mirror=mirror, reads=self._preparation.reads,
            )  # fmt: skip
            try:
                threads = BatchThreads(work, prepared, validation, self._left, self.started)
                threads.load(show, is_quiet=self._is_one_of_many)
            except LeftError:
                raise
            except BaseException as e:
                if isinstance(e, ExpectationsError) and validation is not None:
                    self.record(validation)
                self.cancel()
                raise
            is_tidy = is_tidy and not work.is_untidy
            self._table.renew_view()  # the load may have added columns
        removed = remover.remove_gone(self._table.look_up()) if remover else 0
        totals = self.loads.last_totals(prepared.planned)
        failures = tuple(self.loads.failures(MOST_FAILURES)) if totals.failed else ()
        handled = self.source_actions.run(self._given)
        with suppress(DatabaseError, OperationalError):  # otherwise, the next run does it
            if not is_tidy or self.servers.connected:
                sweep(self._clients, self.id)
            self.plan.forget_all()
        if validation is not None and self.validation is None:  # otherwise, the owner of all transfers records it
            self.record(validation)
        return Report(
            prepared.listed, max(0, prepared.listed - totals.loaded - totals.failed - prepared.known_bad),
            totals.loaded, totals.failed, totals.rows,
            totals.rejected, totals.bytes, time.time() - self.started, failures,
            validation.verdict() if validation is not None else None, totals.filtered, handled.done, handled.left,
            handled.examples, prepared.snapshot, removed, known_bad=prepared.known_bad,
            known_failures=prepared.known_failures, ignored=prepared.ignored,
        )  # fmt: skip

    def record(self, validation: Validation) -> None:
        """Record the results of a suite, unless no rows were checked."""
        validation.record(self.loads.client, self.request.table, self.run_id)

    def cancel(self) -> None:
        """Stop from any thread and kill the queries; no row of an unfinished batch becomes visible."""
        self.stop.set()
        kill(self._clients, self.id)

    def leave(self) -> None:
        """Stop from any thread and let ClickHouse continue, because this process is about to end."""
        self._left.set()


def validation_of(request: Request) -> Validation | None:
    """Return the check of rows against the request's suite; None without one. Raises QualityError."""
    given = request.expectations
    if not given.suite:
        return None
    return Validation(
        given.suite, request.source.bucket, quarantine=given.on_failed == "quarantine", by_object=given.by_object,
        key_column=given.key_column,
    )  # fmt: skip


def _of_snapshot(request: Request, prepared: Prepared) -> Request:
    """Return the request with the columns that a Delta table has in keys, and in its files."""
    read = request.read
    if prepared.partitions:
        read = replace(read, partition_columns=tuple(prepared.partitions))
    if prepared.columns and not read.columns.select:
        read = replace(read, columns=replace(read.columns, select=tuple(prepared.columns)))
    return replace(request, read=read)
