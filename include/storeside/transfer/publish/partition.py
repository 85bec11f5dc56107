"""Replaces one partition of a table in one step, so that readers see its old rows or its new ones.

ClickHouse's ``REPLACE PARTITION`` exchanges all parts of a partition. So the load first makes a table with all rows
that the partition is to have: those of new objects, and those of loaded objects that have not changed.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from clickhouse_connect.driver.exceptions import DatabaseError, OperationalError

from storeside.sql.answers import first_row
from storeside.sql.quoting import identifier
from storeside.transfer.base import queries
from storeside.transfer.base.errors import TransferInputError, TransferTransientError
from storeside.transfer.base.staging_tables import STAGING, part_of
from storeside.transfer.request.source import uri_of
from storeside.transfer.state.loads import Loads, Planned, ids_text, slices
from storeside.transfer.state.lock import Hold
from storeside.transfer.tables.table import LOAD_ID, Destination

log = logging.getLogger(__name__)

_NO_PARTITIONS = "it has no partitions: create it with partition_by, such as partition_by='day'"


def require_partitions(destination: Destination | None, value: str, key: str = "") -> None:
    """Raise TransferInputError for a table that cannot replace the partition `value` in one step.

    `key` is the PARTITION BY of a table that does not exist yet.
    """
    why, name = "", destination.name if destination else "a new table"
    if destination is None:
        why = "" if key else _NO_PARTITIONS
    elif destination.shards:
        why = "it is a Distributed table, whose shards change one after the other: load into a MergeTree table"
    elif not destination.takes_parts:
        why = "it has replicas or materialized views, which see no replaced parts: load into a table without them"
    elif not destination.partition_key:
        why = _NO_PARTITIONS
    else:
        query = f"DESCRIBE (SELECT untuple(_partition_value) FROM {destination.quoted})"
        if len(destination.client.query(query).result_rows) > 1:
            why = f"its key {destination.partition_key} has several parts: partition it by one column or function"
    if why:
        raise TransferInputError(f"replace_partition {value!r}: {name} cannot replace a partition: {why}")


@dataclass(frozen=True)
class Replacement:
    """The partition of `destination` with this `value` as text, such as ``2026-01-05``.

    `kept` are the loads whose objects have not changed, and `gone` those whose rows go.
    """

    destination: Destination
    loads: Loads
    value: str
    kept: Sequence[Planned]
    gone: Sequence[Planned]

    def take(self, staging: str, new: Sequence[Planned], hold: Hold) -> None:
        """Replace the partition by the rows of `staging`, which has those of the loads `new`, and the kept ones.

        `hold` is the lock with the name of `staging`: a run that breaks it drops that table and its parts, so that
        this replacement fails. Raises TransferInputError if the objects have rows of other partitions, or the
        partition has rows of other loads, and StaleError.
        """
        require_partitions(self.destination, self.value)
        found = self._ids(f"{STAGING}.{identifier(staging)}")
        if others := set(found) - {self.value}:
            whose = "also have rows" if self.value in found else "have no rows of this partition, but"
            raise TransferInputError(
                f"replace_partition {self.value!r}: the objects {whose} of the partition {min(others)!r} of"
                f" {self.destination.name}: write the value as ClickHouse shows it, and choose keys whose objects"
                f" have only rows of {self.value!r}"
            )
        identity = found.get(self.value) or self._ids(self.destination.quoted).get(self.value)
        if identity is None:  # neither the objects nor the table have such rows
            return
        self._require_own(identity, new)
        work = part_of(staging)
        self.destination.stage(work)
        try:
            self._fill(work, staging, identity)
            hold.check()
            self._command(
                f"ALTER TABLE {self.destination.quoted} REPLACE PARTITION ID '{identity}'"
                f" FROM {STAGING}.{identifier(work)}",
                staging,
            )
        finally:
            with suppress(DatabaseError, OperationalError):  # a sweep drops it later
                self.destination.client.command(f"DROP TABLE IF EXISTS {STAGING}.{identifier(work)} SYNC")
        log.info("replaced the partition %s of %s", self.value, self.destination.name)

    def _fill(self, work: str, staging: str, identity: str) -> None:
        """Put the parts of `staging` and the kept rows of the partition into `work`."""
        quoted, table = f"{STAGING}.{identifier(work)}", self.destination.quoted
        self._command(f"ALTER TABLE {quoted} ATTACH PARTITION ALL FROM {STAGING}.{identifier(staging)}", staging)
        kept, before = 0, self._count(quoted)
        for some in slices(self.kept):
            those = f"WHERE _partition_id = '{identity}' AND {LOAD_ID} IN ({ids_text(some)})"
            kept += self._count(f"{table} {those}")
            self.destination.copy(table, quoted, staging, those)
        if (found := self._count(quoted)) != before + kept:
            raise TransferTransientError(f"{work} has {found} of {before + kept} rows: load again")

    def _require_own(self, identity: str, new: Sequence[Planned]) -> None:
        """Raise TransferInputError if the partition has rows of loads from elsewhere, which would be lost."""
        rows = self.destination.client.query(
            f"SELECT DISTINCT {LOAD_ID} FROM {self.destination.quoted} WHERE _partition_id = '{identity}'"
        ).result_rows
        known = {o.load_id for some in (self.kept, self.gone, new) for o in some}
        others = sorted({load_id for (load_id,) in rows} - known - {0})
        for start in range(0, len(others), 1000):
            found = self.loads.client.query(
                "SELECT bucket, key FROM storeside.loads FINAL WHERE destination = {destination:String}"
                f" AND state = 'loaded' AND load_id IN ({', '.join(map(str, others[start : start + 1000]))}) LIMIT 1",
                parameters=self.loads.parameters,
            ).result_rows
            if found:
                source = self.loads.source
                raise TransferInputError(
                    f"replace_partition {self.value!r}: this partition of {self.destination.name} has rows of"
                    f" {uri_of(*found[0])!r}, which {uri_of(source.bucket, source.keys)} does not select, and they"
                    " would be lost: choose keys that select all objects of the partition"
                )

    def _ids(self, table: str) -> dict[str, str]:
        """Return the ids of the partitions of a table by their values."""
        query = f"SELECT DISTINCT toString(_partition_value.1), _partition_id FROM {table}"
        return {str(value): str(identity) for value, identity in self.destination.client.query(query).result_rows}

    def _count(self, table: str) -> int:
        return int(first_row(self.destination.client.query(f"SELECT count() FROM {table}"))[0])

    def _command(self, statement: str, staging: str) -> None:
        self.destination.client.command(statement, settings={"query_id": queries.query_id(staging, time.time_ns())})


def empty(destination: Destination, transfer: str, owner: str) -> str:
    """Create a staging table without rows, with which a partition is replaced by its kept rows; return its name."""
    name = f"{queries.tables_of(transfer, 0)}{owner}_0"
    destination.stage(name)
    return name
