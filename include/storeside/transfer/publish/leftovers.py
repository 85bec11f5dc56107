"""Cleans up after processes that ended early: statements, staging tables, and loads whose publication began."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from storeside.transfer.base import queries, staging_tables
from storeside.transfer.publish.publishing import settle
from storeside.transfer.state.loads import Loads
from storeside.transfer.state.lock import locked
from storeside.transfer.tables.table import Destination

if TYPE_CHECKING:
    from clickhouse_connect.driver.client import Client


def sweep(clients: Sequence[Client], transfer: str) -> None:
    """Kill an earlier attempt's statements, and drop its staging tables and stale ones, on each client's server."""
    mine = queries.tables_of(transfer)
    for client in clients:
        if not staging_tables.sweep(client, mine, queries.filling(mine)):
            queries.kill(client, mine, wait=True)
            staging_tables.sweep(client, mine)


def settle_doubtful(destination: Destination | None, loads: Loads, s3: Any) -> None:
    """Compare loads whose publication was interrupted with the table, and record their outcome."""
    if destination is None or not loads.doubtful():
        return
    owner = uuid.uuid4().hex[:8]
    with locked(destination.client, destination.name, owner, "nothing", destination.others) as hold:
        settle(destination, loads, loads.doubtful(), hold, s3)
