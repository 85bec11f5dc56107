"""A transfer from its listing to its report: plans in ClickHouse, loads in batches, each object exactly once."""

from __future__ import annotations

import contextvars
import hashlib
import logging
import queue
import threading
import time
import uuid
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from clickhouse_connect.driver.exceptions import DatabaseError, OperationalError

from storeside.transfer import queries
from storeside.transfer.batch import BatchLoad, Staged
from storeside.transfer.content import Content, s3_error
from storeside.transfer.errors import (
    DIFFERENT_STRUCTURE,
    LeftError,
    LoadObjectError,
    StaleError,
    TransferCancelled,
    TransferError,
    TransferInputError,
    classify,
    code_of,
    is_unlistable,
    kind_of,
    plain,
    shown,
)
from storeside.transfer.formats import Format
from storeside.transfer.loads import Batch, Loaded, Loads, Planned, Totals
from storeside.transfer.lock import BROKEN, STAGING, locked
from storeside.transfer.options import SYSTEM_COLUMNS
from storeside.transfer.reader import Work
from storeside.transfer.request import Request
from storeside.transfer.samples import NoRowsError, columns_of, recognise
from storeside.transfer.schema import Column, settled, with_overrides
from storeside.transfer.source import Listed, list_objects
from storeside.transfer.table import REST, Destination, ddl, existing, look_up, settle

if TYPE_CHECKING:
    from clickhouse_connect.driver.client import Client

log = logging.getLogger(__name__)

# The result of each batch: an error, or the staging tables that it has not published.
Outcomes = queue.SimpleQueue[BaseException | list[tuple[BatchLoad, Staged]]]
REPORT_SECONDS = 5.0
_TICK_SECONDS = 0.5
MOST_FAILURES = 20
# Maximum number of sampled objects when the first samples have no rows.
MOST_SAMPLED = 200
# Maximum objects published in one step: the ledger is queried for all of them while others wait for the lock.
MOST_AT_ONCE = 100_000
_STALE_HOURS = 7 * 24
_BROKEN_HOURS = 1


@dataclass(frozen=True)
class Prepared:
    """What was found and must be done: enough for another process to continue."""

    format: str
    push: bool
    listed: int
    planned: int
    bytes: int


@dataclass(frozen=True)
class Report:
    """What a run did: objects, rows and bytes, and the first twenty failures with their reasons."""

    listed: int
    skipped: int
    loaded: int
    failed: int
    rows: int
    rejected: int
    bytes: int
    seconds: float
    failures: tuple[tuple[str, str], ...] = ()


class Transfer:
    """One run of a request.

    `client` is a clickhouse-connect client without a session, which threads share; `s3` is a boto3 client. `run_id`
    names the run in the ledger: the same run, started again, continues where it stopped. An `owner` has one transfer
    of a request at a time, under changing run ids: each cleans up after the previous one.
    """

    def __init__(self, request: Request, client: Client, s3: Any, run_id: str, owner: str = "") -> None:
        self.client = client
        self.s3 = s3
        self.run_id = run_id
        self.stop = threading.Event()
        self._left = threading.Event()
        self.request = request
        source = request.source
        text = "\0".join((owner or run_id, request.table, source.bucket, source.keys))
        self.id = hashlib.sha256(text.encode()).hexdigest()[:16]
        self.loads = Loads(self.client, self.id, request.table, source, run_id)
        self.started = time.time()
        self._neighbours = 0

    # planning

    def prepare(self, objects: Sequence[Listed] | None = None, neighbours: int = 0) -> Prepared:
        """List, plan, and create a missing table; `objects` replaces the listing.

        `neighbours` is the number of objects in the bucket below the common prefix of `objects`, or 0 if unknown. The
        load decides from it between a listing and a request for each object. Raises TransferInputError when the
        request cannot be carried out.
        """
        self._neighbours = neighbours
        try:
            return self._prepare(objects)
        except DatabaseError as e:
            raise _usage(classify(e)) from e

    def _prepare(self, objects: Sequence[Listed] | None) -> Prepared:
        destination, *_ = queries.at_once(
            lambda: look_up(self.client, self.request.table), self.loads.create, self._sweep
        )
        is_whole, pulls, _ = queries.at_once(
            lambda: self._list(objects), lambda: self.pulls, lambda: self._settle(destination)
        )
        push = not pulls
        listed, planned, size = self.loads.plan(
            batch_bytes=self.request.batches.bytes,
            batch_objects=self.request.batches.objects,
            push=push,
            # All or none: an object that failed in another run still belongs to all.
            retry_failed=self.request.retry_failed or self.request.all_or_nothing,
        )
        if not is_whole:
            self.loads.forget("load_listings")
        log.info(
            "s3://%s/%s: %d objects listed, %d to load (%.1f MB), by %s",
            self.request.source.bucket, self.request.source.keys, listed, planned, size / 1e6,
            "push" if push else "pull",
        )  # fmt: skip
        if self.request.all_or_nothing and planned > MOST_AT_ONCE:
            raise TransferInputError(
                f"{planned} objects at once: all_or_nothing takes at most {MOST_AT_ONCE}; choose fewer with `keys`"
            )
        if not planned:
            return Prepared(self.request.format, push, listed, 0, 0)
        if destination is None or self.request.format == "auto":
            if (found := self._look(destination is None, given=objects is not None)) is None:
                return Prepared(self.request.format, push, listed, planned, size)
            form, columns = found
            destination = destination or self._create(columns)
        else:
            form = Format(self.request.format, self.request.read.csv)  # type: ignore[arg-type]
        push = push or not form.is_native
        self._complete(destination)
        return Prepared(form.name, push, listed, planned, size)

    @cached_property
    def pulls(self) -> bool:
        """Whether ClickHouse reads the objects itself."""
        if self.request.loader == "push":
            return False
        try:
            self.client.query(
                f"SELECT 1 FROM {self.request.source.probe()} LIMIT 1",
                settings={"s3_retry_attempts": 1, "s3_connect_timeout_ms": 2000, "use_hive_partitioning": 0},
            )
        except DatabaseError as e:
            if is_unlistable(e):
                return True
            if self.request.loader == "pull":
                raise TransferInputError(
                    f"ClickHouse cannot read s3://{self.request.source.bucket}: {plain(e)}"
                ) from e
            log.info("ClickHouse cannot read the bucket, so the worker pushes: %s", plain(e))
            return False
        return True

    def _list(self, objects: Sequence[Listed] | None) -> bool:
        """Store a listing: these objects, or the bucket's; return whether it has all objects below the prefix."""
        if objects is not None:
            self.loads.record_listing([objects])
            return False
        from botocore.exceptions import BotoCoreError, ClientError

        source = self.request.source
        overlap = self.request.overlap_seconds
        after = "" if overlap is None else self.loads.start_after(overlap)
        try:
            self.loads.record_listing(list_objects(self.s3, source.bucket, source.prefix, after))
        except (BotoCoreError, ClientError) as e:
            raise s3_error(e, source.bucket, source.prefix) from e
        return not after

    def _look(self, with_columns: bool, *, given: bool) -> tuple[Format, list[Column]] | None:
        """Return what samples show: the format and, `with_columns`, the columns.

        With `given` objects, those that show neither have failed; returns None if all have.
        """
        sample_size = self.request.read.sample_objects
        while True:
            sample = self.loads.sample(sample_size)
            try:
                form, samples = recognise(self.request, [self._content(o) for o in sample])
                return form, columns_of(self.client, self.request, form, samples) if with_columns else []
            except NoRowsError:
                if self._are_all(sample):
                    self._without_rows()
                    return None
                sample_size = MOST_SAMPLED
                if len(sample) >= MOST_SAMPLED:
                    raise
            except TransferInputError as e:
                if not sample and not given and self.request.format != "parquet":
                    self._without_rows()
                    return None
                if not given:
                    raise
                left = sample or self.loads.unfinished()  # empty ones
                self.loads.record_failed((o, kind_of(e), str(e)) for o in left)
                if not sample:
                    return None

    def _are_all(self, sample: Sequence[Planned]) -> bool:
        """Tell whether every object of the plan that is not empty is in a sample."""
        return len([o for o in self.loads.unfinished() if o.size]) <= len(sample)

    def _without_rows(self) -> None:
        """Record the plan's objects as loaded: none has a row, so there is no table to create."""
        objects = self.loads.unfinished()
        self.loads.record([Loaded(o, 0) for o in objects], "loaded")
        log.info(
            "%d objects have no rows, such as %r: %s is made when an object has one",
            len(objects), objects[0].key, self.request.table,
        )  # fmt: skip

    def _content(self, o: Planned) -> Content:
        return Content(self.s3, self.request.source.bucket, o.key, o.size)

    def _create(self, columns: list[Column]) -> Destination:
        options = self.request.table_options
        columns = [Column(c.name, settled(c.type)) for c in with_overrides(columns, options.columns)]
        statement = ddl(self.request.table, columns, options)
        log.info("creating the table:\n%s", statement)
        self.client.command(statement)
        return existing(self.client, self.request.table)

    def _complete(self, destination: Destination) -> None:
        """Add the columns that the request asks for in addition to the data's."""
        wanted = [Column(name, SYSTEM_COLUMNS[name]) for name in self.request.table_options.system_columns]
        if self.request.on_drift == "rest":
            wanted.append(Column(REST, "Map(String, String)"))
        missing = [c for c in wanted if destination.type_of(c.name) is None]
        if missing:
            destination.alter([f"ADD COLUMN IF NOT EXISTS {c.definition}" for c in missing])

    # loading

    def run(self, prepared: Prepared) -> Report:
        """Load the planned objects; return when every object is loaded or recorded as failed.

        Raises TransferCancelled when it is stopped, TransferTransientError when a server stays unavailable: a new run
        continues.
        """
        form = Format(prepared.format, self.request.read.csv) if prepared.planned else None  # type: ignore[arg-type]
        if form is not None:
            work = Work(
                self.request, form, self.id, uuid.uuid4().hex[:8], self.run_id, self.client, self.s3,
                prepared.push, self.stop, neighbours=self._neighbours,
            )  # fmt: skip
            try:
                self._load(work, prepared)
            except LeftError:
                raise
            except BaseException:
                self.cancel()
                raise
        totals = self.loads.totals()
        failures = tuple(self.loads.failures(MOST_FAILURES)) if totals.failed else ()
        queries.at_once(
            lambda: self.loads.forget("load_plan"),
            lambda: self.loads.forget("load_listings"),
            self._sweep,  # drops what could not be dropped while a server was unavailable
        )
        return Report(
            prepared.listed, prepared.listed - prepared.planned, totals.loaded, totals.failed, totals.rows,
            totals.rejected, totals.bytes, time.time() - self.started, failures,
        )  # fmt: skip

    def _load(self, work: Work, prepared: Prepared) -> None:
        """Load the batches in threads that do not keep a process alive that was told to end."""
        batches, _ = queries.at_once(self.loads.batches, lambda: queries.bound_memory(self.client))
        waiting: queue.SimpleQueue[Batch] = queue.SimpleQueue()
        for batch in batches:
            waiting.put(batch)
        outcomes: Outcomes = queue.SimpleQueue()
        for _ in range(min(self.request.batches.parallel, len(batches))):
            here = contextvars.copy_context()  # which assigns log lines to the task
            threading.Thread(target=here.run, args=(_work_through, work, waiting, outcomes), daemon=True).start()
        kept: list[tuple[BatchLoad, Staged]] = []
        done, reported = 0, time.monotonic()
        while done < len(batches):
            if self._left.is_set():
                work.stop.set()
                raise LeftError("left while ClickHouse goes on")
            try:
                outcome = outcomes.get(timeout=_TICK_SECONDS)
            except queue.Empty:
                if time.monotonic() - reported >= REPORT_SECONDS:
                    reported = time.monotonic()
                    with suppress(OperationalError):  # a missing line of progress does no harm
                        log.info("%s", self.progress(prepared))
                continue
            if isinstance(outcome, BaseException):
                raise outcome
            kept += outcome
            done += 1
        if kept:
            self._publish_at_once(kept)

    def _publish_at_once(self, kept: list[tuple[BatchLoad, Staged]]) -> None:
        """Publish the staging tables of all batches in one step, unless an object has failed."""
        first, whole = kept[0]
        failed = self.loads.totals().failed
        if failed:
            for _, staged in kept:
                first.drop(staged.table)
            raise TransferInputError(
                f"{failed} objects cannot be loaded, so nothing is: {_listed(self.loads.failures(MOST_FAILURES))}"
            )
        try:
            for _, staged in kept[1:]:
                first.join(whole, staged)
        except DatabaseError as e:
            if code_of(e) != DIFFERENT_STRUCTURE:
                raise
            for _, staged in kept:
                first.drop(staged.table)
            raise StaleError(
                f"the columns of {self.request.table} changed while its objects were read: start the load again, it"
                " reads them with the columns that are there now"
            ) from e
        first.publish(whole)

    def progress(self, prepared: Prepared) -> str:
        """Return one line: done of total, rate and remaining time."""
        totals = self.loads.totals()
        reading = sum(queries.running(self.client, queries.tables_of(self.id)).values())
        return describe(totals, reading, prepared, time.time() - self.started)

    def cancel(self) -> None:
        """Stop, from any thread: kill queries; nothing of unfinished batches becomes visible."""
        self.stop.set()
        try:
            queries.kill(self.client, queries.tables_of(self.id), wait=False)
        except (DatabaseError, OperationalError) as e:
            log.warning("queries of this transfer may still run: %s", plain(e))

    def leave(self) -> None:
        """Stop, from any thread, and let ClickHouse continue: this process is about to end."""
        self._left.set()

    # leftovers of other processes

    def _sweep(self) -> None:
        """End leftovers of an earlier attempt of this run; drop old broken locks and older tables."""
        mine = queries.tables_of(self.id)
        if queries.running(self.client, mine):
            queries.kill(self.client, mine, wait=True)
        names = self.client.query(
            f"SELECT name FROM system.tables WHERE database = '{STAGING}' AND (startsWith(name, {{mine:String}})"
            " OR metadata_modification_time < now()"
            f" - toIntervalHour(if(comment = '{BROKEN}', {_BROKEN_HOURS}, {_STALE_HOURS})))",
            parameters={"mine": mine},
        ).result_rows
        for (name,) in names:
            self.client.command(f"DROP TABLE IF EXISTS {STAGING}.`{name}` SYNC")

    def _settle(self, destination: Destination | None) -> None:
        """Determine the outcome of loads whose publication was interrupted."""
        if destination is None or not self.loads.doubtful():
            return
        with locked(self.client, destination.name, uuid.uuid4().hex[:8], "nothing"):
            settle(
                destination, self.loads, self.loads.doubtful(),
                replace_older=self.request.on_overwrite == "replace",
            )  # fmt: skip


def _work_through(
    work: Work,
    waiting: queue.SimpleQueue[Batch],
    outcomes: Outcomes,
) -> None:
    """Load batch after batch; with all-or-nothing, return the staging tables instead of publishing them."""
    while True:
        try:
            if work.stop.is_set():
                raise TransferCancelled("the transfer was stopped")
            load = BatchLoad(work, waiting.get_nowait())
        except queue.Empty:
            return
        except BaseException as e:
            outcomes.put(e)
            return
        try:
            if work.request.all_or_nothing:
                outcomes.put([(load, staged) for staged in load.staged()])
            else:
                load.run()
                outcomes.put([])
        except BaseException as e:
            outcomes.put(e)
            return


def _listed(failures: Sequence[tuple[str, str]]) -> str:
    return "; ".join(f"{shown(key)}: {reason}" for key, reason in failures)


def describe(totals: Totals, reading: int, prepared: Prepared, seconds: float) -> str:
    """Return a line of progress; `reading` is the number of rows being read now."""
    done = totals.loaded + totals.failed
    share = totals.bytes / prepared.bytes if prepared.bytes else 0.0
    text = (
        f"{done} of {prepared.planned} objects, {totals.rows} rows (and {reading} on their way),"
        f" {totals.bytes / 1e6:.1f} of {prepared.bytes / 1e6:.1f} MB"
    )
    if share and seconds > 0:
        text += f", {totals.bytes / seconds / 1e6:.1f} MB/s, {seconds / share - seconds:.0f} s to go"
    return text


def _usage(error: TransferError) -> TransferError:
    return TransferInputError(str(error)) if isinstance(error, LoadObjectError) else error
