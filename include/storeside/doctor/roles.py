"""Checks that each ClickHouse user lacks the rights of the others, so that a fault in one part stays in it.

The checks use ``CHECK GRANT``, which changes no table.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from storeside.doctor.findings import Finding, System
from storeside.sql import roles, visibility
from storeside.sql.answers import first_row
from storeside.transfer.base.errors import plain

if TYPE_CHECKING:
    from clickhouse_connect.driver.client import Client

_here = System("ClickHouse")
# Tables that record which objects are loaded and which messages are done, and that the pages show.
TABLES = (
    *("storeside.loads", "storeside.objects", "storeside.events", "storeside.queue_depths", "storeside.migrations"),
    "speech.manifest",
)
# A database that does not exist: a right in it is a right in any database of a user.
_USERS = "storeside_doctor_users"
_WRITES = ("INSERT", "ALTER UPDATE", "ALTER DELETE", "DROP TABLE", "TRUNCATE")
# Rights that the user of a role must not have, as (right, database or table).
FORBIDDEN: Mapping[str, Sequence[tuple[str, str]]] = {
    "loads": [(right, table) for table in TABLES for right in ("SELECT", *_WRITES)],
    "ledger": [(right, f"{_USERS}.*") for right in ("SELECT", "CREATE TABLE", *_WRITES)],
    "pages": [
        *((right, f"{_USERS}.*") for right in ("SELECT", "CREATE TABLE", "INSERT")),
        *((right, table) for table in TABLES for right in _WRITES),
        ("SELECT", "storeside.event_leases"),  # bodies of messages, which no page shows
    ],
}
_REMEDIES = {
    "loads": "REVOKE ALL ON storeside.* FROM {user}; REVOKE ALL ON speech.manifest FROM {user}",
    "ledger": "grant {user} rights on storeside.*, storeside_staging.*, speech.* and system.* instead of *.*",
    "pages": "give {user} only the grants and the row policies of docs/configuration.md, and a profile with"
    " readonly = 2",
}
# Errors of tables that do not exist yet, or that the user may not read, which another check reports.
UNREADABLE = frozenset({60, 81, 497})  # UNKNOWN_TABLE, UNKNOWN_DATABASE, ACCESS_DENIED


def examine(clients: Mapping[str, Client]) -> Iterator[Finding]:
    """Check the limits of each user; `clients` are those of the roles loads, ledger and pages.

    The user of loads does the work of every role that has no client.
    """
    missing = [extra for role, extra in (("ledger", roles.LEDGER), ("pages", roles.PAGES)) if role not in clients]
    if missing:
        yield _here.skipped(
            "separate users",
            f"the user of loads also does the work of other roles: set the connections of those users in its extras"
            f" {' and '.join(missing)}, see docs/configuration.md",
        )
    for role, client in clients.items():
        if role != "loads" or "ledger" in clients:
            yield _restricted(role, client)


def _restricted(role: str, client: Client) -> Finding:
    from clickhouse_connect.driver.exceptions import ClickHouseError

    check = f"limits of {role}"
    try:
        user = first_row(client.query("SELECT currentUser()"))[0]
        allowed = _grouped([(right, where) for right, where in FORBIDDEN[role] if may(client, right, where)])
        if role == "pages":
            if hidden := [table for table in visibility.POLICIES if not may(client, "SELECT", table)]:
                remedy = f"GRANT {', '.join(f'SELECT ON {table}' for table in hidden)} TO {user}"
                return _here.failed(check, f"{user} may not read {', '.join(hidden)}", remedy)
            allowed += _beyond_reading(client)
    except ClickHouseError as e:
        return _here.failed(check, plain(e), "use ClickHouse 26.9 or newer")
    if not allowed:
        return _here.ok(check, f"{user} has no rights beyond its role")
    return _here.failed(check, f"{user} may {'; '.join(allowed)}", _REMEDIES[role].format(user=user))


def _beyond_reading(client: Client) -> Iterator[str]:
    """Yield what the user of the pages may do although its profile and its row policies should prevent it."""
    if first_row(client.query("SELECT getSetting('readonly')"))[0] == 0:
        yield "change settings beyond its profile, which is not read-only"
    if shown := [table for table in visibility.POLICIES if _shows_rows(client, table)]:
        yield f"read rows of all DAGs in {len(shown)} tables, such as {shown[-1]}"


def _shows_rows(client: Client, table: str) -> bool:
    """Return whether a query that states no DAG reads a row of a table."""
    from clickhouse_connect.driver.exceptions import DatabaseError

    try:
        return bool(client.query(f"SELECT 1 FROM {table} LIMIT 1", settings=visibility.stated([])).result_rows)
    except DatabaseError as e:
        if e.code in UNREADABLE:
            return False
        raise


def _grouped(allowed: Sequence[tuple[str, str]]) -> list[str]:
    """Return rights as text, grouped by the tables that share them."""
    rights: dict[str, list[str]] = {}
    for right, where in allowed:
        rights.setdefault(where, []).append(right)
    places: dict[str, list[str]] = {}
    for where, what in rights.items():
        places.setdefault(", ".join(what), []).append(where.replace(_USERS, "any database"))
    return [f"{what} on {', '.join(where)}" for what, where in places.items()]


def may(client: Client, right: str, where: str) -> bool:
    """Return whether the user of a client has a right on a database, a table or another object."""
    return bool(first_row(client.query(f"CHECK GRANT {right} ON {where}"))[0])
