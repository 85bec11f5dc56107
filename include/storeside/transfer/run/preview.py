"""Shows what a load would do, with its own planning, inference and reading, and leaves nothing behind.

A table in the staging database takes the place of the destination: the load's statements change the columns of the
stand-in alone. The first rows of a few objects go into staging tables like those of a load, and are not published.
All these tables are dropped at the end. The plan and the outcomes stay in this process. A preview that was killed
leaves tables that the next load or preview drops when they are an hour old.
"""

from __future__ import annotations

import logging
import secrets
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from clickhouse_connect.driver.exceptions import DatabaseError

from storeside.aistore.markers import NONE
from storeside.sql.answers import first_row
from storeside.sql.quoting import identifier
from storeside.transfer.base import queries
from storeside.transfer.base.errors import (
    UNKNOWN_DATABASE,
    UNKNOWN_TABLE,
    TransferCancelled,
    TransferError,
    TransferTransientError,
    classify,
    code_of,
    is_transient,
)
from storeside.transfer.base.schema import bare
from storeside.transfer.base.staging_tables import PREVIEWS, STAGING
from storeside.transfer.objects.content import content_of
from storeside.transfer.publish.leftovers import sweep
from storeside.transfer.request.options import Expectations
from storeside.transfer.request.request import Request
from storeside.transfer.request.source import Listed
from storeside.transfer.run.batch import BatchLoad
from storeside.transfer.run.preparation import MOST_FAILURES, Preparation, Prepared
from storeside.transfer.run.remarks import TextColumn, dialect, text_columns
from storeside.transfer.run.stand_in import Created, StandIn, has_database
from storeside.transfer.staging.private import quiet_client
from storeside.transfer.staging.staging import Staged
from storeside.transfer.staging.work import Work
from storeside.transfer.state.loads import Planned, Unplanned
from storeside.transfer.state.plan import Batch
from storeside.transfer.state.unstored_plan import UnstoredLoads, UnstoredPlan
from storeside.transfer.tables.servers import NO_SERVERS, Servers
from storeside.transfer.tables.table import Destination, existing, look_up
from storeside.transfer.types.inference import NoTypeError, wider

if TYPE_CHECKING:
    from clickhouse_connect.driver.client import Client

log = logging.getLogger(__name__)

# Rows that a preview shows.
ROWS = 20
# Objects whose beginning a preview reads, at most.
MOST_OBJECTS = 100
# Characters of a value and of a reason that a preview keeps; columns whose values it shows.
LONGEST_CELL, LONGEST_REASON, MOST_COLUMNS = 200, 500, 200
# Recorded runs whose speed is compared.
_RUNS = 20
_RATE = (
    "SELECT count(), median(bytes_in / seconds) FROM (SELECT bytes_in, seconds FROM storeside.runs FINAL"
    " WHERE kind = 'load' AND state IN ('done', 'partial') AND seconds > 0 AND bytes_in > 0"
    " AND ({table:String} = '' OR destination = concat('clickhouse://', {table:String}))"
    f" ORDER BY recorded_at DESC LIMIT {_RUNS})"
)


@dataclass(frozen=True, kw_only=True)
class Preview(Unplanned):
    """The plan of a load that was not started, with the statements and the first rows of its table.

    :param source: URI of the source
    :param table: ``database.table``
    :param listed: objects that the keys match; markers are not
    :param planned: objects that the load would read; earlier runs have loaded the others, or they failed for good
    :param bytes: bytes of the planned objects
    :param loader: ``pull`` if ClickHouse would read the objects, ``push`` if the worker would
    :param options: the format and the dialect with which objects are read
    :param statements: the statements that would create the table, or change its columns, in their order
    :param drift: differences between the columns of sampled objects and those of the existing table
    :param texts: columns that are text because of one value, as (column, that value, type of most other values)
    :param read: objects whose first rows were read
    :param refused: objects of these that the load would refuse, as (key, reason)
    :param columns: the table's columns after the load, as (name, type)
    :param rows: the first rows as the table would have them, with values as texts, shortened; None is NULL
    :param problem: why the load as a whole would fail; empty if it would not
    :param seconds: estimated duration of the load; None if no speed is recorded
    """

    source: str
    table: str
    listed: int = 0
    planned: int = 0
    bytes: int = 0
    loader: str = ""
    options: str = ""
    statements: tuple[str, ...] = ()
    drift: tuple[str, ...] = ()
    texts: tuple[TextColumn, ...] = ()
    read: int = 0
    refused: tuple[tuple[str, str], ...] = ()
    columns: tuple[tuple[str, str], ...] = ()
    rows: tuple[tuple[str | None, ...], ...] = ()
    problem: str = ""
    seconds: float | None = None


def preview(
    request: Request, client: Client, s3: Any, ledger: Client | None = None, servers: Servers = NO_SERVERS,
    objects: Sequence[Listed] | None = None,
) -> Preview:  # fmt: skip
    """Return what a load of `request` would do; for the clients and servers see `Transfer`.

    `objects` replaces the listing.

    Raises TransferTransientError when a server does not answer, and DatabaseError when ClickHouse refuses a
    statement that does not depend on the objects.
    """
    return Previewing(request, client, s3, ledger, servers).run(objects)


class Previewing:
    """One preview, which another thread can cancel; for the clients and servers see `Transfer`."""

    def __init__(
        self, request: Request, client: Client, s3: Any, ledger: Client | None = None, servers: Servers = NO_SERVERS
    ) -> None:  # fmt: skip
        client = quiet_client(client) if request.read.columns.mask else client
        # A preview keeps no rejected rows, checks no expectations, and replaces no rows.
        request = replace(
            request,
            on_bad_rows="skip" if request.on_bad_rows == "keep" else request.on_bad_rows,
            on_overwrite="replace" if request.is_lake else request.on_overwrite,
            expectations=Expectations(),
        )
        self.request, self.client, self.s3 = request, client, s3
        self.transfer = f"{PREVIEWS}{secrets.token_hex(4)}"
        source = request.source
        self.loads = UnstoredLoads(
            ledger or client, self.transfer, request.table, source, f"preview/{self.transfer}",
            options=request.digest, markers=NONE if request.is_lake else source.markers,
        )  # fmt: skip
        self.plan = UnstoredPlan(
            self.loads, retry_failed=request.retry_failed or request.all_or_none, since=source.since
        )
        self.table = StandIn(
            request, client, s3, self.plan, servers, name=f"load_{self.transfer}_0_{secrets.token_hex(4)}_0"
        )
        self.found = Preview(source=source.uri, table=request.table)
        self._rows: list[tuple[str | None, ...]] = []
        self._stop = threading.Event()

    def cancel(self) -> None:
        """Stop from any thread and kill the statements."""
        self._stop.set()
        queries.kill(self.client, queries.tables_of(self.transfer), wait=False)

    def run(self, objects: Sequence[Listed] | None = None) -> Preview:
        """Return the preview, and drop all tables that it needed."""
        with self._staging():
            try:
                self._look(Preparation(self.table).prepare(objects))
            except (TransferTransientError, TransferCancelled):
                raise
            except TransferError as e:
                self.found = replace(self.found, problem=self._told(str(e)))
            finally:
                sweep((self.client,), self.transfer)
        refused = tuple((key, self._told(reason)) for key, reason in self.loads.refused.items())
        return replace(self.found, refused=refused, seconds=self._seconds(), rows=tuple(self._rows))

    @contextmanager
    def _staging(self) -> Iterator[None]:
        """Create the staging database if it does not exist, and then drop it unless others use it by now."""
        is_there = has_database(self.client, STAGING)
        if not is_there:
            self.client.command(f"CREATE DATABASE IF NOT EXISTS {STAGING}")
        try:
            yield
        finally:
            if not is_there and not first_row(self.client.query(f"SELECT count() {_TABLES}"))[0]:
                self.client.command(f"DROP DATABASE IF EXISTS {STAGING} SYNC")

    def _told(self, text: str) -> str:
        """Return a text about the destination instead of the stand-in, shortened."""
        return text.replace(self.table.place, self.request.table)[:LONGEST_REASON]

    def _look(self, prepared: Prepared) -> None:
        """Read the first rows of a few objects into staging tables."""
        self.found = replace(
            self.found, listed=prepared.listed, planned=prepared.planned, bytes=prepared.bytes,
            loader="push" if prepared.push else "pull", known_bad=prepared.known_bad,
            known_failures=tuple(prepared.known_failures)[:MOST_FAILURES], ignored=dict(prepared.ignored),
        )  # fmt: skip
        if not prepared.planned or not self._has_stand_in():
            return
        request = self.table.request  # with the columns that a lake has in keys
        form = request.form(prepared.format)
        work = Work(
            request, form, self.client, self.plan, secrets.token_hex(4), self.s3, prepared.push, self._stop,
            stand_in=self.table.place,
        )  # fmt: skip
        sample = self.plan.sample(min(request.read.sample_objects, MOST_OBJECTS))
        contents = [content_of(self.s3, request, o, o.version) for o in sample]
        created = self.table.created
        self.found = replace(
            self.found, options=dialect(form, contents), drift=tuple(self._drift(form)), read=len(sample),
            texts=tuple(text_columns(request, form, contents, self._text_names(created))),
        )  # fmt: skip
        for o in sample:
            self._read(work, o)
        final = existing(self.client, self.table.place)
        self.found = replace(
            self.found, columns=tuple((c.name, c.type) for c in final.columns),
            statements=(*created.statements, *self._changes(final)),
        )  # fmt: skip

    def _has_stand_in(self) -> bool:
        return look_up(self.client, self.table.place) is not None

    def _text_names(self, created: Created) -> list[str]:
        """Return the names in objects of the columns that became text."""
        options = self.table.readings.columns
        kinds = {c.name: bare(c.type).removeprefix("LowCardinality(").rstrip(")") for c in created.columns}
        names = [name for name in created.inferred if kinds.get(name) in ("String", "Nullable(String")]
        return [options.source(name) or name for name in names]

    def _drift(self, form: Any) -> Iterator[str]:
        """Yield the differences between the columns of samples and those of an existing table."""
        if (table := self.table.original) is None or (sampled := self.table.sampled(form)) is None:
            return
        options, request = self.table.readings.columns, self.request
        sampled = self.table.readings.known(sampled, table)
        made = [(options.target(c.name) or c.name, options.made(c.name, c.type)) for c in sampled]
        for name, kind in made:
            now = table.type_of(name)
            if now is None:
                yield f"column {name!r} ({kind}) is not in the table"
            elif self._differs(bare(now), bare(kind)):
                yield f"column {name!r} is {kind} in the objects, and {now} in the table"
        filled = {*dict(made), *table.defaults, *request.read.partition_columns, *options.compute}
        for c in table.columns:
            if c.name not in filled and not replace(table, own=request.own_columns).is_own(c):
                yield f"column {c.name!r} ({c.type}) of the table is not in the objects"

    def _differs(self, now: str, kind: str) -> bool:
        try:
            return bare(wider(self.client, now, kind)) != now
        except NoTypeError:
            return True

    def _changes(self, final: Destination) -> list[str]:
        """Return the statement with which the load would change the table's columns."""
        original = self.table.original
        before = {c.name: c.type for c in (original or self.table.created).columns}
        actions = [
            f"{'MODIFY COLUMN' if c.name in before else 'ADD COLUMN IF NOT EXISTS'} {c.definition}"
            for c in final.columns if before.get(c.name) != c.type
        ]  # fmt: skip
        database, _, table = self.request.table.partition(".")
        quoted = f"{identifier(database)}.{identifier(table)}"
        return [f"ALTER TABLE {quoted} {', '.join(actions)}"] if actions else []

    def _read(self, work: Work, o: Planned) -> None:
        """Read the first rows of an object as a load does; a load that fails records the reason."""
        work.recent = replace(
            existing(self.client, self.table.place),
            partitions=work.request.read.partition_columns, own=work.request.own_columns,
        )  # fmt: skip
        pushed = next(batch.pushed for batch in self.plan.listed_batches() if o in batch.listed)
        load = BatchLoad(work, Batch(0, pushed, 1, o.size, (o,)))
        try:
            for staged in load.staged():
                self._show(load.staging.destination, staged)
                load.staging.drop(staged.table, has_bad=staged.has_bad)
        except DatabaseError as e:
            if is_transient(e):
                raise
            self.loads.refused[o.key] = str(classify(e))
        except (TransferTransientError, TransferCancelled):
            raise
        except TransferError as e:
            self.loads.refused[o.key] = str(e)

    def _show(self, destination: Destination, staged: Staged) -> None:
        """Remember rows of a staging table, with texts for their values."""
        if not (left := ROWS - len(self._rows)):
            return
        final = existing(self.client, self.table.place)
        staged_names = {c.name for c in destination.columns}
        names = [c.name for c in final.columns if c.name in staged_names][:MOST_COLUMNS]
        values = ", ".join(
            f"isNull({identifier(name)}), leftUTF8(ifNull(toString({identifier(name)}), ''), {LONGEST_CELL + 1})"
            for name in names
        )
        found = self.client.query(f"SELECT {values} FROM {STAGING}.{identifier(staged.table)} LIMIT {left}")
        for row in found.result_rows:
            pairs = zip(row[::2], row[1::2], strict=True)
            self._rows.append(tuple(None if is_null else _short(str(text)) for is_null, text in pairs))

    def _seconds(self) -> float | None:
        """Return the estimated duration, from the median speed of the last runs: into this table, or else of all."""
        for table in (self.request.table, ""):
            try:
                row = first_row(self.loads.client.query(_RATE, parameters={"table": table}))
            except DatabaseError as e:
                if code_of(e) in (UNKNOWN_DATABASE, UNKNOWN_TABLE):
                    return None
                raise
            if row[0]:
                return float(self.found.bytes / row[1])
        return None


_TABLES = f"FROM system.tables WHERE database = '{STAGING}'"


def _short(text: str) -> str:
    return text if len(text) <= LONGEST_CELL else f"{text[:LONGEST_CELL]}…"
