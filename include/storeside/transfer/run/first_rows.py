"""Reads the first rows of a few objects into staging tables like those of a load, and shows them."""

from __future__ import annotations

import secrets
import threading
from dataclasses import replace

from clickhouse_connect.driver.exceptions import DatabaseError

from storeside.sql.quoting import identifier
from storeside.transfer.base.errors import (
    TransferCancelled,
    TransferError,
    TransferTransientError,
    classify,
    is_transient,
)
from storeside.transfer.base.staging_tables import STAGING
from storeside.transfer.request.object_format import Format
from storeside.transfer.run.batch import BatchLoad
from storeside.transfer.run.stand_in import StandIn
from storeside.transfer.staging.staging import Staged
from storeside.transfer.staging.work import Work
from storeside.transfer.state.loads import Planned
from storeside.transfer.state.plan import Batch
from storeside.transfer.state.unstored_plan import UnstoredLoads
from storeside.transfer.tables.table import Destination

# Rows that a preview shows.
ROWS = 20
# Objects whose beginning a preview reads, at most.
MOST_OBJECTS = 100
# Characters of a value that a preview keeps; columns whose values it shows.
LONGEST_CELL, MOST_COLUMNS = 200, 200


class FirstRows:
    """The first rows of sampled objects as the table would have them; `loads` gets the reasons of refused objects."""

    def __init__(
        self, table: StandIn, form: Format, loads: UnstoredLoads, *, push: bool, stop: threading.Event
    ) -> None:  # fmt: skip
        self.table, self.plan, self.loads = table, table.plan, loads
        self.work = Work(
            table.request, form, table.client, self.plan, secrets.token_hex(4), table.s3, push, stop,
            stand_in=table.place, reads=table.snapshot.content_of if table.snapshot else None,
        )  # fmt: skip
        self.sample = self.plan.sample(min(table.request.read.sample_objects, MOST_OBJECTS))
        self.contents = [self.work.whole(o) for o in self.sample]
        self._rows: list[tuple[str | None, ...]] = []

    def read(self) -> tuple[tuple[str | None, ...], ...]:
        """Return the first rows, with values as texts."""
        for o in self.sample:
            self._read(self.work, o)
        return tuple(self._rows)

    def _read(self, work: Work, o: Planned) -> None:
        """Read the first rows of an object as a load does; a load that fails records the reason."""
        work.recent = replace(
            self.table.now,
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
        final = self.table.now
        staged_names = {c.name for c in destination.columns}
        names = [c.name for c in final.columns if c.name in staged_names][:MOST_COLUMNS]
        values = ", ".join(
            f"isNull({identifier(name)}), leftUTF8(ifNull(toString({identifier(name)}), ''), {LONGEST_CELL + 1})"
            for name in names
        )
        found = self.table.client.query(f"SELECT {values} FROM {STAGING}.{identifier(staged.table)} LIMIT {left}")
        for row in found.result_rows:
            pairs = zip(row[::2], row[1::2], strict=True)
            self._rows.append(tuple(None if is_null else _short(str(text)) for is_null, text in pairs))


def _short(text: str) -> str:
    return text if len(text) <= LONGEST_CELL else f"{text[:LONGEST_CELL]}…"
