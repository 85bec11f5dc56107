"""The names of our staging tables, and the one cleaner that drops those that no process needs any more.

Other users of ClickHouse may be allowed to create tables in the database, so a name or a comment in it is input:
statements quote it, and the cleaner drops only names that Storeside generates.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from storeside.transfer.source import identifier

if TYPE_CHECKING:
    from clickhouse_connect.driver.client import Client

STAGING = "storeside_staging"
# A broken lock keeps its name while another process may try to break it as well; it is dropped after an hour.
BROKEN = "broken_"
BROKEN_HOURS = 1
# Tables of a run that failed and was never cleared.
STALE_HOURS = 7 * 24
# Batches of transfers, locks, and the tables of the speech manifest and of the doctor.
_GENERATED = (
    "load_[0-9a-f]{16}_[0-9]+_[0-9a-f]{8}_[0-9]+|lock_[0-9a-f]{24}|broken_[0-9a-f-]{36}"
    "|(facts|invalid|speech)_[0-9a-f]{16}|doctor_[0-9a-f]{12}"
)


def is_generated(name: str) -> bool:
    """Tell whether a table in the staging database has a name of the kind that Storeside generates."""
    return re.fullmatch(_GENERATED, name) is not None


def sweep(client: Client, mine: str = "") -> None:
    """Drop our stale staging tables, and our tables of any age whose names begin with `mine`.

    Raises DatabaseError.
    """
    names = client.query(
        f"SELECT name FROM system.tables WHERE database = '{STAGING}'"
        " AND ({mine:String} != '' AND startsWith(name, {mine:String}) OR metadata_modification_time < now()"
        f" - toIntervalHour(if(comment = '{BROKEN}', {BROKEN_HOURS}, {STALE_HOURS})))",
        parameters={"mine": mine},
    ).result_rows
    for (name,) in names:
        if is_generated(name):
            client.command(f"DROP TABLE IF EXISTS {STAGING}.{identifier(name)} SYNC")
