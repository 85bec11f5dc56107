"""Loads one batch: reads its objects into a staging table, checks and publishes them, and takes out bad objects."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from clickhouse_connect.driver.exceptions import DatabaseError, OperationalError

from storeside.transfer import queries
from storeside.transfer.errors import (
    BUSY,
    OBJECT_CHANGED,
    BusyObjectError,
    DriftError,
    LimitError,
    LoadObjectError,
    StaleError,
    TransferCancelled,
    TransferError,
    TransferInputError,
    TransferTransientError,
    about,
    by_size,
    classify,
    code_of,
    is_unlistable,
    kind_of,
    named_file,
    remedy,
)
from storeside.transfer.formats import BY_WORKER, compression_by_name
from storeside.transfer.loads import LONG_STATEMENT, Batch, Loaded, Planned
from storeside.transfer.parquet import facts
from storeside.transfer.reader import USUAL, How, Reader, Work, statements
from storeside.transfer.records import is_untidy
from storeside.transfer.salvage import Rejected, RejectedRows, salvage
from storeside.transfer.samples import sample_columns, whole_columns
from storeside.transfer.schema import Column, wider
from storeside.transfer.source import identifier
from storeside.transfer.staging import STAGING
from storeside.transfer.statement import text_reading
from storeside.transfer.table import LOAD_ID, Destination, existing, publish
from storeside.transfer.watch import excess, stored

log = logging.getLogger(__name__)

# Reasons of the checks in `statement`, which name a column and no row.
_OF_A_VALUE = re.compile(r"column .* has (a|invalid) ")

_ATTEMPTS = 5
# Attempts for an object that takes too long or too much memory: each may cost minutes, and more rarely help.
_ATTEMPTS_BY_SIZE = 2


class BatchLoad:
    """Loads one batch. Objects that cannot be loaded are recorded as failed; all others are published."""

    def __init__(self, work: Work, batch: Batch) -> None:
        self.work = work
        self.batch = batch
        self.request = work.request
        self.client = work.client
        self.loads = work.loads
        self.reader = Reader(work, self.loads, pushed=work.push_all or batch.pushed)
        self._tables_made = 0
        self.destination: Destination

    def _destination(self) -> Destination:
        return existing(self.client, self.request.table)

    def run(self) -> None:
        """Load, check and publish; raises TransferError when the outcome of the batch is unknown."""
        for _ in range(_ATTEMPTS):
            try:
                for staged in self.staged():
                    self.publish(staged)
            except StaleError as e:
                log.info("batch %d: %s: its objects are read again", self.batch.number, e)
            else:
                return
        raise TransferTransientError(
            f"batch {self.batch.number} was overtaken {_ATTEMPTS} times: do others load it as well?"
        )

    def staged(self) -> Iterator[Staged]:
        """Yield staging tables with the objects that can be loaded: as few tables as possible."""
        objects, self.destination, running = queries.at_once(
            lambda: self.loads.objects(self.batch.number),
            self._destination,
            lambda: queries.running(self.client, self._tables),
        )
        if (adopted := self._adopt(objects, running)) is not None:
            yield adopted
            taken = {o.planned.load_id for o in adopted.loaded}
            objects = [o for o in objects if o.load_id not in taken]
        waiting = [objects]
        while waiting:
            some = waiting.pop()
            if not some:
                continue
            try:
                yield self._with_retries(some)
            except LoadObjectError as e:
                if len(some) == 1:
                    if (staged := self._mend(some[0], e)) is not None:
                        yield staged
                    continue
                waiting.extend(reversed(_divided(some, e, self.request.source.bucket)))

    def publish(self, staged: Staged) -> None:
        """Publish a staging table and drop it."""
        for attempt in range(_ATTEMPTS):
            try:
                publish(
                    self.destination, self.loads, self.work.token, staged.table, staged.loaded,
                    replace_older=self.request.on_overwrite == "replace",
                )  # fmt: skip
                break
            except (DatabaseError, OperationalError) as e:
                error = classify(e)
                if not isinstance(error, TransferTransientError):
                    raise TransferInputError(f"{self.destination.name} does not take the rows: {error}") from e
                if attempt == _ATTEMPTS - 1:
                    raise error from e
                self._wait(attempt)
        self.drop(staged.table)

    def _with_retries(self, objects: Sequence[Planned], how: How = USUAL) -> Staged:
        attempt = 0
        while True:
            try:
                return self._stage(objects, how)
            except (DatabaseError, OperationalError, TransferTransientError) as e:
                if self.work.relists and (code_of(e) == OBJECT_CHANGED or is_unlistable(e)):
                    self.work.relists = False  # some endpoints write ETags differently in listings and in responses
                    continue
                error = classify(e)
                if not isinstance(error, TransferTransientError):
                    raise error from e
                is_too_much = by_size(e)
                if is_too_much and len(objects) > 1:  # one of them may be the cause; the others can be loaded
                    raise LoadObjectError(str(error)) from e
                most = _ATTEMPTS_BY_SIZE if is_too_much else _ATTEMPTS
                if attempt >= most - 1:
                    if len(objects) == 1 and not isinstance(e, OperationalError):
                        reason = f"{most} times: {error}"
                        if is_too_much:
                            raise LoadObjectError(remedy(reason)) from e
                        raise BusyObjectError(f"{BUSY}: {reason}") from e
                    raise error from e
                log.info("batch %d: %s: once more", self.batch.number, error)
                self._wait(attempt)
                attempt += 1

    def _wait(self, attempt: int) -> None:
        if self.work.stop.wait(min(0.5 * 2**attempt, 10)):
            raise TransferCancelled("the transfer was stopped")

    def _stage(self, objects: Sequence[Planned], how: How) -> Staged:
        """Read objects into a new staging table and check that it has all of their rows and no others."""
        if self.work.stop.is_set():
            raise TransferCancelled("the transfer was stopped")
        groups = self.reader.groups(objects, self.destination, how)
        is_one = len(groups) == 1 and len(statements(objects)) == 1 and not self.reader.pushes(groups[0], how)
        return self._filled(
            lambda table: self.reader.read(table, self.destination, groups, how),
            [o.load_id for o in objects] if is_one else [],
        )

    def _filled(self, fill: Callable[[str], list[Loaded]], load_ids: Sequence[int] = ()) -> Staged:
        """Create a staging table, call `fill` for it, and check its rows.

        With `load_ids` one statement fills it, which another process may adopt.
        """
        self._tables_made += 1
        table = f"{self._tables}{self.work.token}_{self._tables_made}"
        self.destination.stage(table, json.dumps(list(load_ids)) if load_ids else "")
        try:
            staged = Staged(table, fill(table))
            self._check(staged)
        except BaseException:
            self._drop_quietly(table)
            raise
        return staged

    @property
    def _tables(self) -> str:
        return queries.tables_of(self.work.transfer, self.batch.number)

    def _adopt(self, objects: Sequence[Planned], running: Iterable[str]) -> Staged | None:
        """Wait for statements of a dead process and return the table that they filled; None if there are none."""
        for query_id in running:
            table = queries.table_of(query_id)
            notes = self.client.query(
                f"SELECT comment FROM system.tables WHERE database = '{STAGING}' AND name = {{table:String}}",
                parameters={"table": table},
            ).result_rows
            if not notes or not notes[0][0]:
                continue
            log.info("batch %d: ClickHouse is still reading it, as an earlier process asked it to", self.batch.number)
            ids = set(json.loads(notes[0][0]))
            some = [o for o in objects if o.load_id in ids]
            try:
                queries.follow(self.client, query_id, self.work.stop)
                groups = self.reader.groups(some, self.destination)
                self.reader.check_json(table, some)
                staged = Staged(table, [o for group in groups for o in group.objects])
                self._check(staged)
            except (DatabaseError, OperationalError, LoadObjectError, TransferTransientError) as e:
                log.info("batch %d: that did not succeed: %s", self.batch.number, e)
                continue
            return staged
        if running:
            queries.kill(self.client, self._tables, wait=True)
        return None

    def _check(self, staged: Staged) -> None:
        declared = list(dict.fromkeys(name for o in staged.loaded for name, _ in o.nulls))
        nulls = "".join(f", sum(isNull({identifier(name)}))" for name in declared)
        found, arrived = {}, {}
        rows, size = queries.at_once(
            lambda: (
                self.client.query(
                    f"SELECT {LOAD_ID}, count(){nulls} FROM {STAGING}.{identifier(staged.table)} GROUP BY 1",
                    settings={"max_query_size": LONG_STATEMENT},
                ).result_rows
            ),
            lambda: stored(self.client, staged.table),
        )
        for load_id, count, *counts in rows:
            found[load_id], arrived[load_id] = count, dict(zip(declared, counts, strict=True))
        limits = self.request.limits
        most = sum(limits.bytes_of(o.planned.size) for o in staged.loaded)
        if reason := excess(0, size, rows=0, size=most):
            key = staged.loaded[0].planned.key if len(staged.loaded) == 1 else ""
            raise about(LimitError(reason), key)
        ids = {o.planned.load_id for o in staged.loaded}
        strange = sum(count for load_id, count in found.items() if load_id not in ids)
        if strange:
            raise LoadObjectError(f"{strange} rows came from another version: it was overwritten after it was listed")
        # If ClickHouse lists the objects, a deleted object looks like an object without rows.
        self.reader.check_unchanged(
            [o.planned for o in staged.loaded if o.rows < 0 and o.planned.load_id not in found]
        )
        for n, o in enumerate(staged.loaded):
            there = found.get(o.planned.load_id, 0)
            if reason := excess(there, 0, rows=limits.rows, size=0):  # it was too quick to be watched
                raise about(LimitError(reason), o.planned.key)
            if o.rows >= 0 and there != o.rows:
                raise about(LoadObjectError(f"it has {o.rows} rows, but {there} arrived"), o.planned.key)
            for name, count in o.nulls if there else ():
                if arrived[o.planned.load_id][name] != count:
                    reason = f"{arrived[o.planned.load_id][name]} arrived: its content is damaged, write it again"
                    raise about(LoadObjectError(f"column {name!r} has {count} NULLs, but {reason}"), o.planned.key)
            staged.loaded[n] = Loaded(o.planned, there, o.rejected)

    # faulty objects

    def _mend(self, o: Planned, error: LoadObjectError) -> Staged | None:
        """Load an object that failed alone, by the request's options; record it as failed if none helps."""
        remedies = (self._by_its_compression, self._by_tidying, self._by_drift, self._by_salvage)
        try:
            for remedy in () if isinstance(error, LimitError) else remedies:
                if (staged := remedy(o, error)) is not None:
                    return staged
        except (LoadObjectError, DatabaseError) as e:
            error = classify(e) if isinstance(e, DatabaseError) else e  # type: ignore[assignment]
            if isinstance(error, TransferTransientError) and not by_size(e):
                raise error from e
        reason = f"{self._with_row(o, str(error))}{self._hint(o)}"
        log.warning("%r: %s", o.key, reason)
        self.loads.record_failed([(o, kind_of(error), reason)])
        return None

    def _by_its_compression(self, o: Planned, error: LoadObjectError) -> Staged | None:
        """Read an object whose name suggests another compression than its content has."""
        if self.reader.pushed or not self.work.form.is_text:
            return None
        actual = self.reader.content(o).compression
        if actual in BY_WORKER:
            return self._with_retries([o], How(push=True))
        if actual.removeprefix("hadoop-") == compression_by_name(o.key):
            return None
        return self._with_retries([o], How(compression=actual or "none"))

    def _by_tidying(self, o: Planned, error: LoadObjectError) -> Staged | None:
        """Push a text object without its blank lines, and with names for unnamed columns."""
        form = self.work.form
        if not (form.is_text and form.is_native) or by_size(error.__cause__ or error):
            return None
        try:
            if not is_untidy(self.reader.content(o).plain(), form):
                return None
            return self._with_retries([o], How(push=True, tidy=True))
        except LoadObjectError as e:
            log.info("%r: without its blank lines, and with all names: %s", o.key, e)
            return None

    def _by_drift(self, o: Planned, error: LoadObjectError) -> Staged | None:
        policy = self.request.on_drift
        if policy == "fail" or (policy == "add" and not isinstance(error, DriftError)):
            return None
        found = self._columns(o)
        missing = [c for c in found if self.destination.type_of(c.name) is None]
        if policy == "rest":
            return self._with_retries([o], How(rest=tuple(missing))) if missing and self.work.form.is_text else None
        wanted = list(missing)
        try:
            if policy == "widen":
                for c in found:
                    now = self.destination.type_of(c.name)
                    if now is not None and (wide := wider(self.client, now, c.type)) != now:
                        wanted.append(Column(c.name, wide))
            if not wanted:
                return None
            self._check_columns(len(missing))
            with self.work.alters:
                self.destination = self._destination().widen(wanted)
        except TransferInputError as e:  # the table's types cannot be widened for this object; the others continue
            raise LoadObjectError(str(e)) from e
        return self._with_retries([o])

    def _check_columns(self, added: int) -> None:
        most = self.request.limits.columns
        if added and len(self.destination.columns) + added > most:
            raise LimitError(f"with its {added} new columns the table has more than {most}: see `limits`")

    def _by_salvage(self, o: Planned, error: LoadObjectError) -> Staged | None:
        if self.request.on_bad_rows == "fail" or not (self.work.form.is_text and self.work.form.is_native):
            return None
        if isinstance(error, DriftError):
            return None
        keep = self.request.on_bad_rows == "keep"
        rejected = RejectedRows(
            self.destination, o, self.request.source.bucket, keep=keep, limit=self.request.read.max_bad_rows
        )

        def fill(table: str) -> list[Loaded]:
            rows = self._salvaged(o, table, rejected)
            rejected.flush()
            return [Loaded(o, rows, rejected.count)]

        staged = self._filled(fill)
        log.info("%r: %d rows loaded, %d rejected", o.key, staged.loaded[0].rows, rejected.count)
        return staged

    def _with_row(self, o: Planned, reason: str) -> str:
        """Add the row to a reason that names a column of CSV: checks of values do not know the row."""
        form = self.work.form
        if not (form.name == "csv" and form.is_native and _OF_A_VALUE.match(reason)):
            return reason

        def reject(rejected: Rejected) -> None:
            raise LoadObjectError(rejected.reason)

        try:
            self.drop(self._filled(lambda table: [Loaded(o, self._salvaged(o, table, reject))]).table)
        except (TransferError, DatabaseError, OperationalError) as e:
            return str(e) if str(e).startswith("row ") else reason
        return reason

    def _salvaged(self, o: Planned, table: str, reject: Callable[[Rejected], None]) -> int:
        empty_nulls = self.request.read.on_null_nested == "empty"
        reading = text_reading(self.work.form, self.destination, empty_nulls=empty_nulls)
        return salvage(
            self.client, self.reader.content(o), reading, o, table, self.request.table_options.system_columns,
            self.reader.query_id(table), reject, strict=self.reader.is_strict,
        )  # fmt: skip

    def _columns(self, o: Planned) -> list[Column]:
        """Return an object's columns; ClickHouse reads the whole object if it can."""
        if not self.work.form.is_text:
            return list(facts(self.reader.content(o)).shape.columns)
        if self.reader.pushed or not self.work.form.is_native:
            return sample_columns(self.client, self.request, self.work.form, [self.reader.content(o)])
        return whole_columns(self.client, self.request, self.work.form, o.key)

    def _hint(self, o: Planned) -> str:
        """Return what the first bytes of a failed object suggest as the cause."""
        try:
            head = self.reader.content(o).range(0, 10)
        except TransferError:
            return ""
        if not head:
            return " (the object is empty)" if self.work.form.name == "parquet" else ""
        is_parquet = head.startswith(b"PAR1")
        if is_parquet != (self.work.form.name == "parquet"):
            kind = "is a Parquet file" if is_parquet else "does not begin as a Parquet file does"
            return f" (the object {kind}: give it a prefix of its own)"
        return ""

    def join(self, whole: Staged, part: Staged) -> None:
        """Move the rows of another staging table into one of this batch."""
        self.client.command(
            f"ALTER TABLE {STAGING}.{identifier(whole.table)}"
            f" ATTACH PARTITION ALL FROM {STAGING}.{identifier(part.table)}"
        )
        whole.loaded.extend(part.loaded)
        self.drop(part.table)

    def drop(self, table: str) -> None:
        """Drop a staging table."""
        self.client.command(f"DROP TABLE IF EXISTS {STAGING}.{identifier(table)} SYNC")

    def _drop_quietly(self, table: str) -> None:
        try:
            self.drop(table)
        except (DatabaseError, OperationalError) as e:
            log.debug("staging table %s stays until it is swept: %s", table, e)


@dataclass
class Staged:
    """A staging table and the objects in it."""

    table: str
    loaded: list[Loaded]


def _divided(objects: list[Planned], error: LoadObjectError, bucket: str) -> list[list[Planned]]:
    """Split the objects: the object that the error names alone, the others in halves."""
    cause = error.__cause__ or error
    key = error.key or getattr(cause, "key", "") or named_file(cause).removeprefix(f"{bucket}/")
    named = [o for o in objects if o.key == key]
    others = [o for o in objects if o.key != key]
    middle = (len(others) + 1) // 2
    return [part for part in (named, others[:middle], others[middle:]) if part]
