"""Cleans up after processes that ended early: statements, staging tables, and loads whose publication began."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from clickhouse_connect.driver.exceptions import DatabaseError, OperationalError

from storeside.sql.answers import first_row
from storeside.sql.quoting import literal
from storeside.transfer.base import queries, staging_tables
from storeside.transfer.base.errors import plain
from storeside.transfer.publish.publishing import settle
from storeside.transfer.state.loads import Loads
from storeside.transfer.state.lock import locked
from storeside.transfer.tables.servers import Servers
from storeside.transfer.tables.table import DESCRIPTION, Destination, described, place_of

if TYPE_CHECKING:
    from clickhouse_connect.driver.client import Client

log = logging.getLogger(__name__)


def sweep(clients: Sequence[Client], transfer: str) -> None:
    """Kill an earlier attempt's statements, and drop its staging tables and stale ones, on each client's server."""
    mine = queries.tables_of(transfer)
    for client in clients:
        if not staging_tables.sweep(client, mine, queries.filling(mine)):
            _kill_and_sweep(client, mine)


def kill(clients: Sequence[Client], transfer: str) -> None:
    """Kill a transfer's statements on each client's server, without waiting for their ends."""
    try:
        for client in clients:
            queries.kill(client, queries.tables_of(transfer), wait=False)
    except (DatabaseError, OperationalError) as e:
        log.warning("queries of this transfer may still run: %s", plain(e))


def _kill_and_sweep(client: Client, mine: str) -> None:
    queries.kill(client, mine, wait=True)
    staging_tables.sweep(client, mine)


def look_up_and_sweep(client: Client, name: str, transfer: str, servers: Servers) -> Destination | None:
    """Return the table as `look_up` does, and `sweep` its servers; one statement asks for both."""
    mine = queries.tables_of(transfer)
    row = first_row(
        client.query(
            f"SELECT {DESCRIPTION}, {staging_tables.LEFTOVERS}",
            parameters={**place_of(name), "mine": mine, "statements": queries.filling(mine)},
        )
    )
    if not staging_tables.drop_left(client, row[2:]):
        _kill_and_sweep(client, mine)
    found = described(client, name, row[:2], servers)
    if found is not None:
        sweep(found.others, transfer)
    return found


def transfers_with_leftovers(client: Client, transfers: Sequence[str]) -> set[str]:
    """Return those of these transfers whose earlier tries left staging tables or running statements."""
    prefixes = {queries.tables_of(transfer): transfer for transfer in transfers}
    length = len(next(iter(prefixes)))
    ids = ", ".join(map(literal, prefixes))
    statement = queries.filling("")
    row = first_row(
        client.query(
            f"SELECT (SELECT groupUniqArray(substring(name, 1, {length})) FROM system.tables"
            f" WHERE database = '{staging_tables.STAGING}' AND substring(name, 1, {length}) IN ({ids})),"
            f" (SELECT groupUniqArray(substring(query_id, {len(statement) + 1}, {length})) FROM system.processes"
            f" WHERE startsWith(query_id, {literal(statement)})"
            f" AND substring(query_id, {len(statement) + 1}, {length}) IN ({ids}))"
        )
    )
    return {prefixes[prefix] for some in row for prefix in some}


def settle_doubtful(destination: Destination | None, loads: Loads, s3: Any) -> None:
    """Compare loads whose publication was interrupted with the table, and record their outcome."""
    if destination is None or not loads.doubtful():
        return
    owner = uuid.uuid4().hex[:8]
    with locked(destination.client, destination.name, owner, "nothing", destination.others) as hold:
        settle(destination, loads, loads.doubtful(), hold, s3)
