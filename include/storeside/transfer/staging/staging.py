"""Fills staging tables with the rows of objects, and checks that they have all of these rows and no others."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Collection, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

from clickhouse_connect.driver.exceptions import DatabaseError, OperationalError

from storeside.sql.quoting import identifier
from storeside.transfer.base import queries
from storeside.transfer.base.errors import (
    BUSY,
    OBJECT_CHANGED,
    BusyObjectError,
    GoneError,
    LimitError,
    LoadObjectError,
    TransferCancelled,
    TransferError,
    TransferTransientError,
    about,
    by_size,
    classify,
    code_of,
    is_unlistable,
    remedy,
)
from storeside.transfer.base.staging_tables import STAGING, bad_table
from storeside.transfer.base.watch import STORED, excess
from storeside.transfer.formats.registry import TEXTS
from storeside.transfer.staging.grouping import Grouping
from storeside.transfer.staging.loader import Reader
from storeside.transfer.staging.work import USUAL, How, Work
from storeside.transfer.state.loads import LONG, LONG_STATEMENT, Loaded, Planned
from storeside.transfer.statements.reading import TOGETHER
from storeside.transfer.tables.table import LOAD_ID, Destination, existing

log = logging.getLogger(__name__)

ATTEMPTS = 5
# A load id and the id of the rows of this load that are filtered have this sum: see `Projection`.
ALL_BITS = (1 << 64) - 1
# Attempts for an object that needs too much time or memory: each may take minutes, and more attempts rarely help.
_ATTEMPTS_BY_SIZE = 2
_THREADS = 8


@dataclass
class Staged:
    """A staging table and the objects in it; with `has_bad`, its `bad_table` has rows for the quarantine.

    Another process may have begun to publish a table that was `adopted`.
    """

    table: str
    loaded: list[Loaded]
    has_bad: bool = False
    adopted: bool = False


class Staging:
    """Creates, fills, checks and drops the staging tables of one batch. The worker reads `pushed` objects."""

    def __init__(self, work: Work, number: int, *, pushed: bool) -> None:
        self.work = work
        self.number = number
        self.client = work.client
        self.reader = Reader(work, pushed=pushed)
        self.grouping = Grouping(work, pushed=pushed)
        self._tables_made = 0
        self._has_busy = False
        self.destination: Destination

    def look_up(self) -> Destination:
        """Look up the destination, which staging tables copy. Raises TransferInputError if it cannot be used."""
        table = self.work.stand_in or self.work.request.table
        return self.use(existing(self.client, table, self.work.servers))

    def use(self, found: Destination) -> Destination:
        """Let staging tables copy a destination that was looked up."""
        request = self.work.request
        self.destination = replace(found, partitions=request.read.partition_columns, own=request.own_columns)
        return self.destination

    def stage(self, objects: Sequence[Planned], how: How = USUAL) -> Staged:
        """Read objects into a new staging table, with retries. Raises TransferError."""
        try:
            return self._attempts(objects, how)
        except LoadObjectError as e:
            if len(objects) > 1 or not (TOGETHER in str(e) or self.grouping.may_be_plain(objects[0], how)):
                raise
        return self._attempts(objects, replace(how, apart=True))

    def _attempts(self, objects: Sequence[Planned], how: How) -> Staged:
        attempt = 0
        while True:
            try:
                return self._read(objects, how)
            except (DatabaseError, OperationalError, TransferTransientError) as e:
                if self.work.relists and (code_of(e) == OBJECT_CHANGED or is_unlistable(e)):
                    self.work.relists = False  # some endpoints write ETags differently in listings and responses
                    continue
                error = classify(e)
                if not isinstance(error, TransferTransientError):
                    raise error from e
                is_too_much = by_size(e)
                if is_too_much and len(objects) > 1:  # one object may be the cause; the others can be loaded
                    raise LoadObjectError(str(error)) from e
                most = _ATTEMPTS_BY_SIZE if is_too_much else ATTEMPTS
                if attempt >= most - 1:
                    raise self._given_up(e, error, objects, f"{error} ({most} attempts)") from e
                log.info("batch %d: %s: retrying", self.number, error)
                self.wait(attempt)
                attempt += 1

    def _given_up(
        self, cause: Exception, error: TransferError, objects: Sequence[Planned], reason: str
    ) -> TransferError:
        """Return the error after the last attempt: that of one object, so that the others load, or of the load."""
        if len(objects) == 1 and not isinstance(cause, OperationalError):
            return LoadObjectError(remedy(reason, cause)) if by_size(cause) else BusyObjectError(f"{BUSY}: {reason}")
        key = self.work.request.source.key_of(cause)
        # A second busy object shows that S3 is too busy for the load.
        if len(objects) > 1 and key in {o.key for o in objects} and not self._has_busy:
            self._has_busy = True
            return about(BusyObjectError(f"{BUSY}: {reason}"), key)
        return error

    def wait(self, attempt: int) -> None:
        """Wait before another attempt, up to 10 s. Raises TransferCancelled."""
        if self.work.stop.wait(min(0.5 * 2**attempt, 10)):
            raise TransferCancelled("the transfer was stopped")

    def _read(self, objects: Sequence[Planned], how: How) -> Staged:
        """Read objects into a new staging table and check that it has all of their rows and no others."""
        if self.work.stop.is_set():
            raise TransferCancelled("the transfer was stopped")
        groups = self.grouping.groups(objects, self.destination, how)
        is_one = len(groups) == 1 and not self.reader.pushes(groups[0], how)
        return self.filled(
            lambda table: self.reader.read(table, groups, how),
            [o.load_id for o in objects] if is_one else [],
        )

    def filled(self, fill: Callable[[str], list[Loaded]], load_ids: Sequence[int] = ()) -> Staged:
        """Create a staging table, call `fill` for it, and check its rows.

        `load_ids` marks a table that one statement fills, so that another process may adopt it.
        """
        self._tables_made += 1
        table = f"{self.tables}{self.work.token}_{self._tables_made}"
        self.destination.stage(table, json.dumps(list(load_ids)) if load_ids else "")
        try:
            staged = Staged(table, fill(table))
            self._check(staged)
        except BaseException:
            self.work.is_untidy = True
            self._drop_quietly(table)
            raise
        return staged

    @property
    def tables(self) -> str:
        """The common prefix of the names of this batch's staging tables."""
        return queries.tables_of(self.work.loads.transfer, self.number)

    def adopt(self, objects: Sequence[Planned], running: Collection[str]) -> Staged | None:
        """Wait for the statements of a dead process; return a table that one has filled, or None."""
        for query_id in running:
            table = queries.table_of(query_id)
            notes = self.client.query(
                f"SELECT comment FROM system.tables WHERE database = '{STAGING}' AND name = {{table:String}}",
                parameters={"table": table},
            ).result_rows
            if not notes or not notes[0][0]:
                continue
            log.info("batch %d: waiting for the statement of an earlier process", self.number)
            ids = set(json.loads(notes[0][0]))
            some = [o for o in objects if o.load_id in ids]
            try:
                queries.follow(self.client, query_id, self.work.stop)
                groups = self.grouping.groups(some, self.destination, replace(USUAL, apart=True))
                for group in groups:
                    self.reader.check_json(table, group)
                staged = Staged(table, [o for group in groups for o in group.objects], adopted=True)
                self._check(staged)
            except (DatabaseError, OperationalError, LoadObjectError, TransferTransientError) as e:
                log.info("batch %d: the statement of an earlier process failed: %s", self.number, e)
                continue
            return staged
        if running:
            queries.kill(self.client, self.tables, wait=True)
        return None

    def _check(self, staged: Staged) -> None:
        declared = list(dict.fromkeys(name for o in staged.loaded for name, _ in o.nulls))
        nulls = "".join(f", sum(isNull({identifier(name)}))" for name in declared)
        found, arrived = {}, {}
        rows = self.client.query(
            f"SELECT {STORED}, {LOAD_ID}, count(){nulls} FROM {STAGING}.{identifier(staged.table)} GROUP BY 2",
            parameters={"table": staged.table},
            settings=LONG,
        ).result_rows
        size = int(rows[0][0] or 0) if rows else 0
        for _, load_id, count, *counts in rows:
            found[load_id], arrived[load_id] = count, dict(zip(declared, counts, strict=True))
        filtered = self._filtered(staged.loaded, found, arrived)
        limits = self.work.request.limits
        most = sum(limits.bytes_of(o.planned.size) for o in staged.loaded)
        if reason := excess(0, size, rows=0, size=most):
            key = staged.loaded[0].planned.key if len(staged.loaded) == 1 else ""
            raise about(LimitError(reason), key)
        ids = {o.planned.load_id for o in staged.loaded}
        strange = sum(count for load_id, count in found.items() if load_id not in ids)
        if strange:
            raise GoneError(f"{strange} rows came from another version: it was overwritten after it was listed")
        self.reader.check_unchanged(self.reader.unchecked(staged.loaded, found))
        for n, o in enumerate(staged.loaded):
            there = found.get(o.planned.load_id, 0)
            if reason := excess(there, 0, rows=limits.rows, size=0):  # too fast for `watched`
                raise about(LimitError(reason), o.planned.key)
            if o.rows >= 0 and there != o.rows:
                raise about(LoadObjectError(f"it has {o.rows} rows, but {there} arrived"), o.planned.key)
            for name, count in o.nulls if there else ():
                if arrived[o.planned.load_id][name] != count:
                    reason = f"{arrived[o.planned.load_id][name]} arrived: its content is corrupt, rewrite the file"
                    raise about(LoadObjectError(f"column {name!r} has {count} NULLs, but {reason}"), o.planned.key)
            less = filtered.get(o.planned.load_id, 0)
            staged.loaded[n] = Loaded(o.planned, there - less, o.rejected, filtered=less)
        if self.work.form.is_text:
            none = (o.planned for o in staged.loaded if o.planned.load_id not in found and not o.rejected)
            self._refuse_lost([o for o in none if o.size])
        self._remove(staged.table, filtered)

    def _refuse_lost(self, objects: Sequence[Planned]) -> None:
        """Raise LoadObjectError if one of these objects of text, of which no row arrived, is not without rows."""

        def refuse(o: Planned) -> None:
            try:
                TEXTS[self.work.form.name].refuse_lost_rows(self.work.content(o), self.work.form)
            except TransferError as e:
                raise about(e, o.key) from e

        if objects:
            with ThreadPoolExecutor(_THREADS) as threads:
                list(threads.map(refuse, objects))

    def _filtered(
        self, loaded: Sequence[Loaded], found: dict[int, int], arrived: dict[int, dict[str, int]]
    ) -> dict[int, int]:
        """Return the number of rows that the load's condition excludes, by the ids of their loads.

        Counts them and their NULLs as rows of these loads in `found` and `arrived`.
        """
        if self.work.request.read.columns.where is None:
            return {}
        filtered = {}
        for o in loaded:
            mine, other = o.planned.load_id, ALL_BITS - o.planned.load_id
            if other in found:
                filtered[mine] = found.pop(other)
                found[mine] = found.get(mine, 0) + filtered[mine]
                there, more = arrived.get(mine, {}), arrived.pop(other)
                arrived[mine] = {name: there.get(name, 0) + count for name, count in more.items()}
        return filtered

    def _remove(self, table: str, filtered: Iterable[int]) -> None:
        """Remove the rows that the load's condition excludes; `filtered` are the ids of their loads."""
        if not (ids := [str(ALL_BITS - load_id) for load_id in filtered]):
            return
        quoted = f"{STAGING}.{identifier(table)}"
        # Without its comment, no other process adopts the staging table.
        self.client.command(f"ALTER TABLE {quoted} MODIFY COMMENT ''")
        self.client.command(
            f"ALTER TABLE {quoted} DELETE WHERE {LOAD_ID} IN ({', '.join(ids)})",
            settings={"mutations_sync": 1, "max_query_size": LONG_STATEMENT},
        )

    def join(self, whole: Staged, part: Staged) -> None:
        """Move the rows and objects of staging table `part` into `whole`, and drop `part`."""
        self.client.command(
            f"ALTER TABLE {STAGING}.{identifier(whole.table)}"
            f" ATTACH PARTITION ALL FROM {STAGING}.{identifier(part.table)}"
        )
        whole.loaded.extend(part.loaded)
        self.drop(part.table)

    def drop(self, table: str, *, has_bad: bool = False) -> None:
        """Drop a staging table, and its `bad_table` if it has one."""
        self.client.command(f"DROP TABLE IF EXISTS {STAGING}.{identifier(table)} SYNC")
        self.drop_others(table, has_bad=has_bad)

    def drop_others(self, table: str, *, has_bad: bool) -> None:
        """Drop the tables that belong to a staging table, which is dropped already; see `drop`."""
        if has_bad:
            self.client.command(f"DROP TABLE IF EXISTS {STAGING}.{identifier(bad_table(table))} SYNC")
        self.destination.drop_parts(table)

    def _drop_quietly(self, table: str) -> None:
        try:
            self.drop(table)
        except (DatabaseError, OperationalError) as e:
            log.debug("staging table %s stays until it is swept: %s", table, e)
