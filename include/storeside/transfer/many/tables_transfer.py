"""Loads the objects of one listing into the tables that their keys name.

Each table has a separate load, with its own lock, its own rows in the ledger and its own failures. Loads of small
tables run at the same time, in threads of this process; they share the listing, the clients, the statements
that ask for their tables and facts, and the INSERTs into the ledger. No load begins for a table whose objects are all
loaded.
"""

from __future__ import annotations

import contextvars
import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from clickhouse_connect.driver.exceptions import DatabaseError, OperationalError

from storeside.amounts import byte_rate, counted, others
from storeside.errors import BadInput, Cancelled, Partial, StoresideError
from storeside.transfer.base.errors import TransferCancelled, TransferInputError, classify
from storeside.transfer.many.listing import Named, TablesListing, groups
from storeside.transfer.many.names import TableNames
from storeside.transfer.many.report import TableOutcome, TablesReport
from storeside.transfer.publish.leftovers import sweep
from storeside.transfer.request.source import bucket_uri
from storeside.transfer.run.engine import Transfer
from storeside.transfer.run.pulling import clickhouse_reads
from storeside.transfer.run.table_setup import Shared
from storeside.transfer.state.loads import Inserts
from storeside.transfer.state.small_plan import Facts
from storeside.transfer.tables.servers import NO_SERVERS, Servers

if TYPE_CHECKING:
    from clickhouse_connect.driver.client import Client

    from storeside.transfer.request.request import Request

log = logging.getLogger(__name__)

# Loads of small tables at the same time, for each batch that one load would load at the same time.
_LOADS = 2
# Tables that fail in a row for reasons that a retry may cure, such as a server that is gone, before the run ends.
_MOST_IN_A_ROW = 10
_SHOW_SECONDS, _LOG_SECONDS, _TICK_SECONDS = 1.0, 10.0, 0.2


@dataclass(frozen=True)
class _Job:
    """A name with the load into its table, and the facts that this load shares with others.

    A name with a fault has no load.
    """

    named: Named
    transfer: Transfer | None
    shared: Shared | None = None
    facts: Facts | None = None


class TablesTransfer:
    """One run of a request whose keys name tables; for the clients and servers see `Transfer`.

    `allowed` returns why a table may not be loaded, or an empty text.
    """

    def __init__(
        self, request: Request, client: Client, s3: Any, run_id: str, ledger: Client | None = None,
        servers: Servers = NO_SERVERS, allowed: Callable[[str], str] = lambda table: "",
    ) -> None:  # fmt: skip
        if not request.names_tables:
            raise TransferInputError(
                f"keys {request.source.keys!r}: they name no tables: write {{table}} in the keys and in the table"
            )
        self.request, self.client, self.s3, self.run_id = request, client, s3, run_id
        self.ledger, self.servers = ledger or client, servers
        self.names = TableNames(request)
        self.allowed = allowed
        self.stop = threading.Event()
        self.report = TablesReport()
        self._listing = TablesListing(request, client, s3, self.ledger, run_id)
        self._inserts = Inserts(self.ledger)
        self._pulls = False
        self._running: set[Transfer] = set()
        self._next, self._ended = threading.Lock(), threading.Lock()
        self._large = threading.Lock()
        self._in_a_row = 0
        self._error: BaseException | None = None

    def run(
        self, told: Callable[[TableOutcome], None] = lambda outcome: None, show: Callable[[str], None] | None = None
    ) -> TablesReport:
        """Load all tables; `told` gets the outcome of each, one at a time, and `show` a line of progress each second.

        Without `show`, the log has a line of progress every few seconds.

        Raises TransferInputError if the request cannot be carried out for any table, TransferCancelled when it is
        stopped, and TransferTransientError while a server is unavailable. Tables that are loaded stay so.
        """
        started = time.time()
        sweep((self.client, *self.servers.connected), "")
        self._listing.make()
        try:
            tables, objects = self._listing.totals()
            log.info("%s: %s name %s", self.request.source.uri, counted(objects, "object"), counted(tables, "table"))
            self._pulls = bool(tables) and clickhouse_reads(self.client, self.request)
            self._load_all(told, show, tables, started)
            self._listing.check()
        finally:
            self._listing.forget()
        self.report.seconds = time.time() - started
        return self.report

    def cancel(self) -> None:
        """Stop from any thread and kill the queries; no row of an unfinished batch becomes visible."""
        self.stop.set()
        for transfer in [*self._running]:
            transfer.cancel()

    def _load_all(
        self, told: Callable[[TableOutcome], None], show: Callable[[str], None] | None, tables: int, started: float
    ) -> None:
        jobs = self._jobs()
        threads = [
            threading.Thread(
                target=contextvars.copy_context().run, args=(self._work, jobs, told), daemon=True, name="tables"
            )
            for _ in range(max(1, min(_LOADS * self.request.batches.parallel, tables)))
        ]
        for thread in threads:
            thread.start()
        reported = time.monotonic()
        tell, seconds = (show, _SHOW_SECONDS) if show else (log.info, _LOG_SECONDS)
        try:
            for thread in threads:
                while thread.is_alive():
                    thread.join(_TICK_SECONDS)
                    if time.monotonic() - reported >= seconds:
                        reported = time.monotonic()
                        tell(self._progress(tables, time.time() - started))
        except BaseException:
            self.cancel()
            raise
        if self._error is not None:
            raise self._error

    def _progress(self, tables: int, seconds: float) -> str:
        report = self.report
        return (
            f"{report.tables:,} of {counted(tables, 'table')}"
            f"{others((report.failed_tables, 'failed'), (report.unchanged, 'unchanged'))}, "
            f"{counted(report.loaded, 'object')}, {counted(report.rows, 'row')}{byte_rate(report.bytes, seconds)}"
        )

    def _work(self, jobs: Iterator[_Job], told: Callable[[TableOutcome], None]) -> None:
        """Load table after table, until none is left, or one of the threads has an error that concerns all."""
        try:
            while self._error is None:
                with self._next:
                    job = next(jobs, None)
                if job is None:
                    return
                outcome = self._outcome(job)
                with self._ended:
                    self.report.add(outcome)
                    told(outcome)
        except BaseException as e:
            self._error = self._error or e
            self.cancel()

    def _jobs(self) -> Iterator[_Job]:
        """Yield the names of the listing, with their loads."""
        named = (replace(one, fault=self._fault(one.name)) for one in self._listing.named())
        for group in groups(named):
            if self.stop.is_set():
                raise TransferCancelled("the transfer was stopped")
            by_name = {one.name: _Job(one, None if one.fault else self._transfer(one.name)) for one in group}
            if group[0].fault:
                yield by_name[group[0].name]
            elif group[0].is_alone:
                yield replace(by_name[group[0].name], shared=self._listing.part(group[0]))
            else:
                ids = {name: job.transfer.id for name, job in by_name.items() if job.transfer}
                for name, shared, facts in self._listing.shared(group, ids):
                    yield replace(by_name[name], shared=shared, facts=facts)

    def _fault(self, name: str) -> str:
        """Return why no load makes a table of this name; empty if one does."""
        return self.names.fault(name) or self.allowed(self.names.table(name))

    def _transfer(self, name: str) -> Transfer:
        return Transfer(
            self.names.of(name), self.client, self.s3, self.run_id, ledger=self.ledger, servers=self.servers,
            inserts=self._inserts,
        )  # fmt: skip

    def _outcome(self, job: _Job) -> TableOutcome:
        """Load a table, unless all its objects are loaded; return what became of it."""
        named, transfer = job.named, job.transfer
        if transfer is None or job.shared is None:
            source = bucket_uri(self.request.source.bucket)
            return TableOutcome(named.name, "", source, named.objects, error=named.fault)
        outcome = TableOutcome(named.name, transfer.request.table, transfer.request.source.uri, named.objects)
        if _is_unchanged(transfer.request, job.shared, job.facts):
            return outcome
        try:
            with self._large if named.is_alone else nullcontext():
                self._running.add(transfer)
                if self.stop.is_set():
                    raise TransferCancelled("the transfer was stopped")
                transfer.pulls = self._pulls
                report = transfer.run(transfer.prepare(shared=job.shared))
        except Exception as e:
            return self._failed(outcome, e)
        finally:
            self._running.discard(transfer)
        self._in_a_row = 0
        return replace(outcome, report=report)

    def _failed(self, outcome: TableOutcome, error: Exception) -> TableOutcome:
        """Return the outcome of a table whose load ended with an error. Raises an error that concerns all tables."""
        if isinstance(error, DatabaseError | OperationalError):
            error = classify(error)
        if isinstance(error, Cancelled):
            raise error
        again = not isinstance(error, BadInput | Partial)
        self._in_a_row = self._in_a_row + 1 if again else 0
        if self._in_a_row >= _MOST_IN_A_ROW:
            raise error
        if not isinstance(error, StoresideError):
            log.error("%s: the load ended with an error", outcome.table, exc_info=error)
        return replace(outcome, error=str(error) or type(error).__name__, again=again)


def _is_unchanged(request: Request, shared: Shared, facts: Facts | None) -> bool:
    """Return whether a load of this table would find nothing to do, and nothing to clean up."""
    looked = shared.looked
    if request.is_mirrored or request.after_load or facts is None or looked is None or looked.destination is None:
        return False
    loaded = {(row.key, row.version) for row in facts.known if row.state == "loaded"}
    is_settled = not (facts.is_doubtful or facts.planned_at or facts.has_listing)
    return is_settled and all((o.key, o.version) in loaded for o in facts.chosen if o.selected)
