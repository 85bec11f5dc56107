"""The servers of a ClickHouse cluster beside the one that has the ledger. A load into a Distributed table needs them.

A load sends each statement to a server that it names: only then do lock, staging tables and ``system.processes``
belong to the same server. A proxy in front of the cluster would send each statement to another one.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from storeside.transfer.base.errors import TransferInputError, TransferTransientError, is_transient, plain
from storeside.transfer.base.staging_tables import STAGING

if TYPE_CHECKING:
    from clickhouse_connect.driver.client import Client

_ADDRESS = re.compile(r"(?P<host>\[[\da-fA-F:.]+\]|[\w.-]+):(?P<port>\d{1,5})")


def address(text: str) -> tuple[str, int]:
    """Return the host and port of ``host:port``. Raises TransferInputError."""
    if not (found := _ADDRESS.fullmatch(text.strip())):
        raise TransferInputError(f"server {text!r}: write host:port, with ClickHouse's HTTP port")
    return found["host"].strip("[]"), int(found["port"])


def names_of(extra: Mapping[str, Any]) -> list[str]:
    """Return the addresses in the extra `servers` of a connection (a list or comma-separated string), or none."""
    given = extra.get("servers") or []
    return [name.strip() for name in (given.split(",") if isinstance(given, str) else given) if name.strip()]


class Servers:
    """The other servers of a cluster; threads may share it. A load that does not need them never connects to them.

    `names` are their addresses, ``host:port``; `connect` returns the client of one.
    """

    def __init__(self, names: Sequence[str] = (), connect: Callable[[str], Client] | None = None) -> None:
        self.names = tuple(names)
        self._connect = connect
        self._lock = threading.Lock()
        self._clients: dict[str, Client] = {}

    @property
    def connected(self) -> tuple[Client, ...]:
        """The clients that exist already."""
        return tuple(self._clients.values())

    def clients(self) -> tuple[Client, ...]:
        """Return a client of each server; the server then has the database of staging tables.

        Raises TransferError with the name of a server that does not answer.
        """
        from clickhouse_connect.driver.exceptions import ClickHouseError

        with self._lock:
            for name in self.names:
                if name not in self._clients and self._connect is not None:
                    try:
                        client = self._connect(name)
                        client.command(f"CREATE DATABASE IF NOT EXISTS {STAGING}")
                        self._clients[name] = client
                    except ClickHouseError as e:
                        kind = TransferTransientError if is_transient(e) else TransferInputError
                        raise kind(f"server {name} of the cluster refuses the connection: {plain(e)}") from e
            return self.connected


NO_SERVERS = Servers()
