"""Shows what a load would do, with its own planning, inference and reading, and leaves nothing behind.

A table in the staging database takes the place of the destination: the load's statements change the columns of the
stand-in alone. The first rows of a few objects go into staging tables like those of a load, and are not published.
All these tables are dropped at the end. The plan and the outcomes stay in this process. A preview that was killed
leaves tables that the next load or preview drops when they are an hour old.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from storeside.transfer.base.errors import (
    TransferCancelled,
    TransferError,
    TransferInputError,
    TransferTransientError,
)
from storeside.transfer.base.staging_tables import PREVIEWS
from storeside.transfer.request.options import Expectations
from storeside.transfer.request.request import Request
from storeside.transfer.request.source import Listed
from storeside.transfer.run.differences import Differences
from storeside.transfer.run.first_rows import FirstRows
from storeside.transfer.run.preparation import MOST_FAILURES, Preparation, Prepared
from storeside.transfer.run.previewed import Preview
from storeside.transfer.run.remarks import dialect, text_columns
from storeside.transfer.run.speed import estimated
from storeside.transfer.run.stand_in import StandIn, staging_database
from storeside.transfer.staging.private import quiet_client
from storeside.transfer.state.unstored_plan import UnstoredLoads, UnstoredPlan
from storeside.transfer.tables.servers import NO_SERVERS, Servers

if TYPE_CHECKING:
    from clickhouse_connect.driver.client import Client


# Characters of a reason that a preview keeps.
LONGEST_REASON = 500


def preview(
    request: Request, client: Client, s3: Any, ledger: Client | None = None, servers: Servers = NO_SERVERS,
    objects: Sequence[Listed] | None = None, catalog: Any = None,
) -> Preview:  # fmt: skip
    """Return what a load of `request` would do; for the clients, servers and the catalogue see `Transfer`.

    `objects` replaces the listing.

    Raises TransferTransientError when a server does not answer, and DatabaseError when ClickHouse refuses a
    statement that does not depend on the objects.
    """
    return Previewing(request, client, s3, ledger, servers, catalog).run(objects)


class Previewing:
    """One preview, which another thread can cancel; for the clients, servers and the catalogue see `Transfer`.

    Raises TransferInputError for keys that name tables.
    """

    def __init__(
        self, request: Request, client: Client, s3: Any, ledger: Client | None = None, servers: Servers = NO_SERVERS,
        catalog: Any = None,
    ) -> None:  # fmt: skip
        if request.names_tables:
            raise TransferInputError(
                f"keys {request.source.keys!r}: a preview shows one table: write its name instead of {{table}} in the"
                " keys and in the table"
            )
        client = quiet_client(client) if request.read.columns.mask else client
        # A preview keeps no rejected rows, checks no expectations, and replaces no rows.
        request = replace(
            request,
            on_bad_rows="skip" if request.on_bad_rows == "keep" else request.on_bad_rows,
            on_overwrite="replace" if request.is_lake else request.on_overwrite,
            expectations=Expectations(),
        )
        self.request, self.client = request, client
        transfer = f"{PREVIEWS}{secrets.token_hex(4)}"
        source = request.source
        self.loads = UnstoredLoads(
            ledger or client, transfer, request.table, source, f"preview/{transfer}",
            options=request.digest, markers=request.markers,
        )  # fmt: skip
        self.plan = UnstoredPlan(
            self.loads, retry_failed=request.retry_failed or request.all_or_none, since=source.since
        )
        self.table = StandIn(
            request, client, s3, self.plan, servers, catalog, name=f"load_{transfer}_0_{secrets.token_hex(4)}_0"
        )
        self.found = Preview(source=source.uri, table=request.table, not_foreseen=_not_foreseen(request))
        self._stop = threading.Event()

    def cancel(self) -> None:
        """Stop from any thread and kill the statements."""
        self._stop.set()
        self.table.cancel()

    def run(self, objects: Sequence[Listed] | None = None) -> Preview:
        """Return the preview, and drop all tables that it needed."""
        with staging_database(self.client):
            try:
                self._look(Preparation(self.table).prepare(objects))
            except (TransferTransientError, TransferCancelled):
                raise
            except TransferError as e:
                self.found = replace(self.found, problem=self._told(str(e)))
            finally:
                self.table.sweep()
        refused = tuple((key, self._told(reason)) for key, reason in self.loads.refused.items())
        return replace(
            self.found, refused=refused, seconds=estimated(self.loads.client, self.request.table, self.found.bytes)
        )

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
        if not prepared.planned or not self.table.exists():
            return
        request = self.table.request  # with the columns that a lake has in keys
        form = request.form(prepared.format)
        rows = FirstRows(self.table, form, self.loads, push=prepared.push, stop=self._stop)
        differences = Differences(self.table)
        self.found = replace(
            self.found, options=dialect(form, rows.contents), drift=tuple(differences.drift(form)),
            texts=tuple(text_columns(request, form, rows.contents, differences.text_names())), read=len(rows.sample),
        )  # fmt: skip
        shown = rows.read()
        self.found = replace(
            self.found, rows=shown, columns=tuple((c.name, c.type) for c in self.table.now.columns),
            statements=(*self.table.created.statements, *differences.changes()),
        )  # fmt: skip


def _not_foreseen(request: Request) -> str:
    """Return what a load of a request removes, which only a load knows; empty if it removes nothing."""
    if request.replace_partition:
        return (
            f"the load replaces the partition {request.replace_partition!r}: which rows of it go is known when the"
            " new ones are read"
        )
    if request.remove_deleted:
        return f"the load removes the rows of deleted objects, if they are at most {request.remove_deleted}"
    return "the load removes the rows of files that left the table" if request.is_lake else ""
