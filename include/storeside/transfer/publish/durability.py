"""Writes a table's rows from the servers' memory to their disks, before the source of the rows is removed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from storeside.sql.answers import first_row
from storeside.transfer.base.errors import TransferInputError
from storeside.transfer.tables.table import Destination

if TYPE_CHECKING:
    from clickhouse_connect.driver.client import Client

_RIGHT = "SYSTEM SYNC FILE CACHE"


def flush(destination: Destination) -> None:
    """Write the page caches of the table's servers to their disks: the rows and the ledger. Raises DatabaseError.

    Otherwise, the result of a successful INSERT or ATTACH stays in the page cache of the operating system for up to
    half a minute. MergeTree's settings `fsync_after_insert` and `fsync_part_directory` are settings of the user's
    table, and do not cover the hard links that ATTACH PARTITION makes. This statement is the system call sync(2),
    which covers files, directories and the ledger.
    """
    for client in (destination.client, *destination.others):
        client.command(_RIGHT)


def require_right(clients: list[Client]) -> None:
    """Raise TransferInputError unless the user of each client may `flush` its server."""
    for client in clients:
        if not first_row(client.query(f"CHECK GRANT {_RIGHT} ON *.*"))[0]:
            raise TransferInputError(
                "after_load: the load must write rows to the server's disks before it changes their source, and its"
                f" user lacks the right to do so: GRANT {_RIGHT} ON *.* TO that user"
            )
