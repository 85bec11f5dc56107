"""Creates and changes Storeside's own tables in ClickHouse through numbered migrations.

Each file ``migrations/NNNN_name.sql`` is one migration. `migrate` applies, in numeric order, the migrations that the
table ``storeside.migrations`` does not list yet. A released file never changes: each change of the tables is a new
file. Every statement may run twice (``IF NOT EXISTS``), because two tasks may apply a migration at the same time, and
a task may die between a migration and its record. So a view never changes: a migration that needs another definition
creates a view with another name. Migrations only add, so tasks of the previous version keep working during a rolling
upgrade.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from storeside import sql

if TYPE_CHECKING:
    from clickhouse_connect.driver.client import Client

log = logging.getLogger(__name__)

_NAME = re.compile(r"(\d{4})_\w+")
# UNKNOWN_TABLE and UNKNOWN_DATABASE: a new server, or tables of version 0.1.0, which kept no record of migrations.
_MISSING = frozenset({60, 81})
_TABLE = re.compile(r"CREATE (?:TABLE|VIEW) IF NOT EXISTS (\w+\.\w+)")
_OURS = "FROM system.tables WHERE database IN ('storeside', 'speech')"
# Two values of a statement: Storeside's tables, and the numbers of the applied migrations, whose table must exist.
STATE = (
    f"(SELECT groupArray(database || '.' || name) {_OURS}), (SELECT groupUniqArray(number) FROM storeside.migrations)"
)
RECORD = (
    "CREATE DATABASE IF NOT EXISTS storeside",
    "CREATE TABLE IF NOT EXISTS storeside.migrations (number UInt32, name String, applied_at DateTime64(3) DEFAULT"
    " now64(3)) ENGINE = ReplacingMergeTree(applied_at) ORDER BY number",
)


@dataclass(frozen=True)
class Migration:
    """One numbered step from one state of the tables to the next."""

    number: int
    name: str

    @property
    def statements(self) -> list[str]:
        """The statements of the step, in order."""
        return sql.schema(f"migrations/{self.name}")


@cache
def migrations() -> tuple[Migration, ...]:
    """Return all migrations in the order of their numbers."""
    names = sorted(path.stem for path in (sql.FOLDER / "migrations").glob("*.sql"))
    return tuple(Migration(int(match[1]), name) for name in names if (match := _NAME.fullmatch(name)))


@cache
def tables() -> frozenset[str]:
    """Return the tables and views that the migrations create, as ``database.table``."""
    statements = (statement for migration in migrations() for statement in migration.statements)
    return frozenset(
        {"storeside.migrations", *(name for statement in statements for name in _TABLE.findall(statement))}
    )


def migrate(client: Client) -> list[Migration]:
    """Bring Storeside's tables up to date, and return the migrations that this call applied.

    `client` is a clickhouse-connect client, whose user may create databases and tables. If a table or view is
    missing, for example after a partial restore, all migrations are applied again, which changes no existing table.
    The record is emptied before, so that another task continues if this one dies.

    Raises:
        DatabaseError: ClickHouse refused a statement.
    """
    there, applied = _state(client)
    if wanted := _wanted(there, applied):
        for statement in RECORD:
            client.command(statement)
        if any(migration.number in applied for migration in wanted):
            client.command("TRUNCATE TABLE storeside.migrations")
    for migration in wanted:
        for statement in migration.statements:
            client.command(statement)
        client.insert(
            "storeside.migrations", [[migration.number, migration.name]], column_names=["number", "name"],
            settings={"async_insert": 0},
        )  # fmt: skip
        log.info("ClickHouse: applied migration %s", migration.name)
    return wanted


def is_current(there: Iterable[str], applied: Iterable[int]) -> bool:
    """Return whether `migrate` has nothing to do, from the values of `STATE` in this order."""
    return not _wanted(set(there), set(applied))


def _wanted(there: set[str], applied: set[int]) -> list[Migration]:
    known = applied if tables() <= there else set()
    return [migration for migration in migrations() if migration.number not in known]


def _state(client: Client) -> tuple[set[str], set[int]]:
    """Return Storeside's tables, and the numbers of the applied migrations, with one query if there are any.

    Other errors than those of a missing table are raised: a server whose disk is full still answers the second query,
    and the first migrations would replace the views of the last ones.
    """
    from clickhouse_connect.driver.exceptions import DatabaseError

    names = f"SELECT database || '.' || name, toUInt32(0) {_OURS}"
    try:
        rows = client.query(f"{names} UNION ALL SELECT '', number FROM storeside.migrations").result_rows
    except DatabaseError as e:
        if e.code not in _MISSING:
            raise
        rows = client.query(names).result_rows
    return {name for name, _ in rows if name}, {number for _, number in rows if number}
