"""What processes that ended early have left: statements, staging tables, loads whose publication began."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

from storeside.transfer import queries
from storeside.transfer.loads import Loads
from storeside.transfer.lock import BROKEN, STAGING, locked
from storeside.transfer.request import Request
from storeside.transfer.table import Destination, settle

if TYPE_CHECKING:
    from clickhouse_connect.driver.client import Client

_STALE_HOURS = 7 * 24
_BROKEN_HOURS = 1


def sweep(client: Client, transfer: str) -> None:
    """End leftovers of an earlier attempt of a transfer; drop old broken locks and older tables."""
    mine = queries.tables_of(transfer)
    if queries.running(client, mine):
        queries.kill(client, mine, wait=True)
    names = client.query(
        f"SELECT name FROM system.tables WHERE database = '{STAGING}' AND (startsWith(name, {{mine:String}})"
        " OR metadata_modification_time < now()"
        f" - toIntervalHour(if(comment = '{BROKEN}', {_BROKEN_HOURS}, {_STALE_HOURS})))",
        parameters={"mine": mine},
    ).result_rows
    for (name,) in names:
        client.command(f"DROP TABLE IF EXISTS {STAGING}.`{name}` SYNC")


def settle_doubtful(destination: Destination | None, loads: Loads, request: Request) -> None:
    """Determine the outcome of loads whose publication was interrupted."""
    if destination is None or not loads.doubtful():
        return
    with locked(loads.client, destination.name, uuid.uuid4().hex[:8], "nothing"):
        settle(destination, loads, loads.doubtful(), replace_older=request.on_overwrite == "replace")
