"""Loads the batches of a plan in threads, some at the same time."""

from __future__ import annotations

import contextvars
import logging
import queue
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

from clickhouse_connect.driver.exceptions import DatabaseError, OperationalError

from storeside.amounts import byte_rate, counted, others, size
from storeside.transfer.base import queries
from storeside.transfer.base.errors import (
    DIFFERENT_STRUCTURE,
    LeftError,
    StaleError,
    TransferCancelled,
    TransferInputError,
    code_of,
    shown,
)
from storeside.transfer.run.batch import BatchLoad
from storeside.transfer.run.preparation import MOST_FAILURES, Prepared
from storeside.transfer.run.pulling import let_read
from storeside.transfer.staging.staging import Staged
from storeside.transfer.staging.validation import Validation
from storeside.transfer.staging.work import Work
from storeside.transfer.state.loads import Totals
from storeside.transfer.state.plan import Batch

log = logging.getLogger(__name__)

# The result of each batch: an error, or its unpublished staging tables.
Outcomes = queue.SimpleQueue[BaseException | list[tuple[BatchLoad, Staged]]]
# Seconds between two lines of progress in the log, and between two that a caller shows.
_LOG_SECONDS, _SHOW_SECONDS, _TICK_SECONDS = 5.0, 1.0, 0.5
_LISTED_AT_ONCE = 5000  # plans with up to this number of objects are read in one query


class BatchThreads:
    """Loads batches in daemon threads, which do not keep a terminated process alive.

    When `left` is set, the threads are left alone, and ClickHouse continues. The run began at `started`, seconds
    since the epoch.
    """

    def __init__(
        self, work: Work, prepared: Prepared, validation: Validation | None, left: threading.Event, started: float
    ) -> None:  # fmt: skip
        self.work = work
        self.prepared = prepared
        self.validation = validation
        self.left = left
        self.started = started

    def load(self, show: Callable[[str], None] | None = None, *, is_quiet: bool = False) -> None:
        """Load the batches. `show` gets a line of progress each second; without it, the log every few seconds.

        There is no progress if the load `is_quiet`.

        Raises LeftError when `left` is set, and the first error of a batch.
        """
        work, prepared, plan = self.work, self.prepared, self.work.plan
        if not prepared.push:
            let_read(work.client, work.request.source)  # another process may have prepared the load
        is_small = work.recent is not None and prepared.planned <= _LISTED_AT_ONCE
        batches, _ = queries.at_once(
            plan.listed_batches if is_small or plan.is_small else plan.batches,
            lambda: queries.bound(work.client, work.request.limits.seconds),
        )
        waiting: queue.SimpleQueue[Batch] = queue.SimpleQueue()
        for batch in batches:
            waiting.put(batch)
        outcomes: Outcomes = queue.SimpleQueue()
        for _ in range(min(work.request.batches.parallel, len(batches))):
            here = contextvars.copy_context()  # Airflow assigns log lines to tasks by context
            threading.Thread(
                target=here.run, args=(_work_through, work, self.validation, waiting, outcomes), daemon=True
            ).start()
        kept: list[tuple[BatchLoad, Staged]] = []
        done, reported = 0, time.monotonic()
        tell, seconds = (show, _SHOW_SECONDS) if show else (log.info, _LOG_SECONDS)
        while done < len(batches):
            if self.left.is_set():
                work.stop.set()
                raise LeftError("this process ends, and ClickHouse continues")
            if not is_quiet and time.monotonic() - reported >= seconds:
                reported = time.monotonic()
                # a missing line of progress does no harm: rows that are read now may take the memory for the question
                with suppress(DatabaseError, OperationalError):
                    tell(self._progress())
            try:
                outcome = outcomes.get(timeout=_TICK_SECONDS)
            except queue.Empty:
                continue
            if isinstance(outcome, BaseException):
                raise outcome
            kept += outcome
            done += 1
        if work.request.at_once:
            self._publish_at_once(kept)

    def _progress(self) -> str:
        """Return one line: done of total, rate and remaining time."""
        loads = self.work.loads
        reading = queries.being_read(self.work.client, queries.tables_of(loads.transfer))
        return describe(loads.totals(), reading, self.prepared, time.time() - self.started)

    def _publish_at_once(self, kept: list[tuple[BatchLoad, Staged]]) -> None:
        """Publish the staging tables of all batches in one step, unless an object has failed with all-or-nothing."""
        if self.work.request.all_or_none and (failed := self.work.loads.last_totals(self.prepared.planned).failed):
            for load, staged in kept:
                load.staging.drop(staged.table)
            raise TransferInputError(
                f"{counted(failed, 'object')} cannot be loaded, so none is:"
                f" {_listed(self.work.loads.failures(MOST_FAILURES))}"
            )
        if not kept:
            return
        first, whole = kept[0]
        try:
            for _, staged in kept[1:]:
                first.staging.join(whole, staged)
        except DatabaseError as e:
            if code_of(e) != DIFFERENT_STRUCTURE:
                raise
            for _, staged in kept:
                first.staging.drop(staged.table)
            raise StaleError(
                f"the columns of {self.work.request.table} changed while objects were read: start the load again, so"
                " that it reads them with the current columns"
            ) from e
        first.publish(whole)


def _work_through(
    work: Work,
    validation: Validation | None,
    waiting: queue.SimpleQueue[Batch],
    outcomes: Outcomes,
) -> None:
    """Load batch after batch; if they are published at once, return the staging tables instead."""
    while True:
        try:
            if work.stop.is_set():
                raise TransferCancelled("the transfer was stopped")
            load = BatchLoad(work, waiting.get_nowait(), validation)
        except queue.Empty:
            return
        except BaseException as e:
            outcomes.put(e)
            return
        try:
            if work.request.at_once:
                outcomes.put([(load, staged) for staged in load.staged()])
            else:
                load.run()
                outcomes.put([])
        except BaseException as e:
            outcomes.put(e)
            return


def _listed(failures: Sequence[tuple[str, str]]) -> str:
    return "; ".join(f"{shown(key)}: {reason}" for key, reason in failures)


def describe(totals: Totals, reading: tuple[int, int], prepared: Prepared, seconds: float) -> str:
    """Return a line of progress; `reading` has the rows and the bytes of objects that statements are reading now."""
    rows, read = reading
    done = totals.loaded + totals.failed
    read = min(totals.bytes + read, prepared.bytes)
    share = read / prepared.bytes if prepared.bytes else 0.0
    text = (
        f"{done:,} of {counted(prepared.planned, 'object')}{others((totals.failed, 'failed'))},"
        f" {size(read)} of {size(prepared.bytes)}{byte_rate(read, seconds)}"
    )
    if share and seconds > 0:
        text += f", {seconds / share - seconds:.0f} s to go"
    return f"{text}; {counted(totals.rows + rows, 'row')}"
