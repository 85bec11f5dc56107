"""The table ``<table>_quarantine``: rows that break expectations of a load, each of them once.

A publication adds these rows after the ledger records that it begins, and before the other rows become visible. So a
load whose rows are visible has all of its quarantined rows, and each statement that removes rows of a load removes
its quarantined rows, too. They come from a table whose name follows from that of the staging table: a run that breaks
the lock drops both, so that the former holder adds nothing later.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from storeside.sql.answers import first_row
from storeside.sql.quoting import identifier, literal
from storeside.transfer.base import queries
from storeside.transfer.base.errors import TransferInputError
from storeside.transfer.base.staging_tables import STAGING, bad_table
from storeside.transfer.state.loads import LONG_STATEMENT, Planned, ids_text, slices
from storeside.transfer.state.lock import Hold

if TYPE_CHECKING:
    from clickhouse_connect.driver.client import Client

# The comment that distinguishes the table from a user's table of the same name.
_COMMENT = "Rows that break expectations of loads by Storeside"
# Columns and types; `row` is the row as a line of JSON.
COLUMNS = {
    "load_id": "UInt64",
    "bucket": "LowCardinality(String)",
    "key": "String",
    "version": "String",
    "reasons": "Array(String)",
    "row": "String",
}
_NAMES = ", ".join(f"`{name}`" for name in COLUMNS)
DEFINITION = ", ".join(f"`{name}` {kind}" for name, kind in COLUMNS.items())
_SETTINGS = {"async_insert": 0, "insert_deduplicate": 0, "lightweight_deletes_sync": 2}


@dataclass(frozen=True)
class Quarantine:
    """The quarantine of one destination."""

    client: Client
    database: str
    destination: str

    @property
    def table(self) -> str:
        """The name of the table, without its database."""
        return f"{self.destination}_quarantine"

    @property
    def quoted(self) -> str:
        """The quoted name for statements."""
        return f"{identifier(self.database)}.{identifier(self.table)}"

    def create(self) -> None:
        """Create the table if it does not exist. Raises TransferInputError if the name is that of another table."""
        self.client.command(
            f"CREATE TABLE IF NOT EXISTS {self.quoted} ({DEFINITION}, quarantined_at DateTime64(3) DEFAULT now64(3))"
            f" ENGINE = MergeTree ORDER BY load_id COMMENT {literal(_COMMENT)}"
        )
        if not self.exists():
            raise TransferInputError(
                f"{self.database}.{self.table} exists and is not a quarantine of Storeside: rename that table"
            )

    def exists(self) -> bool:
        """Return whether the table exists and is Storeside's."""
        found = self.client.query(
            "SELECT count() FROM system.tables WHERE database = {database:String} AND name = {table:String}"
            " AND comment = {comment:String}",
            parameters={"database": self.database, "table": self.table, "comment": _COMMENT},
        )
        return bool(first_row(found)[0])

    def remove(self, objects: Sequence[Planned], hold: Hold | None = None) -> None:
        """Delete the rows of these loads; with `hold`, only while that lock is held, or raise StaleError."""
        if not objects or not self.exists():
            return
        for some in slices(objects):
            those = f"WHERE load_id IN ({ids_text(some)})"
            if self._count(those):
                self.client.command(
                    f"DELETE FROM {self.quoted} {those}" + (f" AND {hold.condition}" if hold else ""),
                    settings={**_SETTINGS, **(hold.settings if hold else {})},
                )
        if hold:
            hold.check()

    def add(self, staging: str, objects: Sequence[Planned], hold: Hold) -> None:
        """Add the rows of these loads that break expectations of the staging table's rows."""
        self.remove(objects, hold)  # a ledger that was lost and restored knows no load without rows
        bad = f"{STAGING}.{identifier(bad_table(staging))}"
        for some in slices(objects):
            self.client.command(
                f"INSERT INTO {self.quoted} ({_NAMES}) SELECT {_NAMES} FROM {bad}"
                f" WHERE load_id IN ({ids_text(some)})",
                settings={
                    **_SETTINGS,
                    "max_query_size": LONG_STATEMENT,
                    "query_id": queries.query_id(staging, time.time_ns()),
                },
            )

    def _count(self, those: str) -> int:
        return int(first_row(self.client.query(f"SELECT count() FROM {self.quoted} {those}"))[0])
