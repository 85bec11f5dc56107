"""The definition of a Distributed table: its cluster, the table on each shard, and the key that divides the rows."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from storeside.sql.quoting import literal
from storeside.transfer.base.errors import TransferInputError
from storeside.transfer.request.table_keys import QUOTED
from storeside.transfer.tables.servers import Servers

if TYPE_CHECKING:
    from clickhouse_connect.driver.client import Client

# A piece of SQL within which brackets and commas are text.
_PIECE = re.compile(rf"{QUOTED.pattern}|.", re.DOTALL)
_ESCAPE = re.compile(r"\\(.)", re.DOTALL)


@dataclass(frozen=True)
class Distribution:
    """The arguments of a Distributed engine. `key` is SQL, empty without a sharding key."""

    cluster: str
    database: str
    table: str
    key: str

    @property
    def local(self) -> str:
        """The table behind the Distributed table on each shard, ``database.table``."""
        return f"{self.database}.{self.table}"

    @property
    def sql(self) -> str:
        """The engine as SQL."""
        given = (literal(self.cluster), literal(self.database), literal(self.table), self.key)
        return f"Distributed({', '.join(filter(None, given))})"


def distribution(engine: str) -> Distribution:
    """Return the arguments of an engine that ``system.tables.engine_full`` shows as ``Distributed('c', 'd', …)``."""
    cluster, database, table, *rest = arguments_of(engine)
    return Distribution(plain(cluster), plain(database), plain(table), rest[0] if rest else "")


def arguments_of(engine: str) -> Iterator[str]:
    """Yield the texts between the commas of an engine's brackets."""
    depth, text = 0, ""
    for found in _PIECE.finditer(engine[engine.index("(") :]):
        piece = found[0]
        depth += (piece in "([") - (piece in ")]")
        if not depth:
            break
        if piece == "," and depth == 1:
            yield text.strip()
            text = ""
        elif text or depth > 1 or piece != "(":
            text += piece
    yield text.strip()


def plain(text: str) -> str:
    """Return a name or a string without its quotes."""
    return _ESCAPE.sub(r"\1", text[1:-1]) if text[:1] in ("'", "`", '"') else text


def shards_of(found: Distribution, name: str, client: Client, servers: Servers) -> list[Client]:
    """Return a client of one server for each shard of a Distributed table, in the order of the shards.

    `name` is the table's. Raises TransferInputError unless each shard has one replica, which is the server of
    `client` or one of `servers`.
    """
    numbers = [
        (number, bool(local)) for number, local in client.query(
            "SELECT shard_num, is_local FROM system.clusters WHERE cluster = {cluster:String}",
            parameters={"cluster": found.cluster},
        ).result_rows
    ]  # fmt: skip
    wanted = sorted({number for number, _ in numbers})
    if not wanted:
        raise TransferInputError(
            f"{name}: ClickHouse has no cluster {found.cluster!r}: correct the name, or add it to `remote_servers`"
        )
    if len(wanted) < len(numbers):
        raise TransferInputError(
            f"{name}: the cluster {found.cluster!r} has several replicas of a shard, to which loads cannot publish:"
            f" load into {found.local} on each shard"
        )
    if not found.key and len(wanted) > 1:
        raise TransferInputError(f"{name} has no sharding key, so it takes no rows: create it with a sharding key")
    by_shard = {number: client for number, is_local in numbers if is_local}
    for other in servers.clients():
        rows = other.query(
            "SELECT shard_num FROM system.clusters WHERE cluster = {cluster:String} AND is_local",
            parameters={"cluster": found.cluster},
        ).result_rows
        by_shard |= {number: other for (number,) in rows if number not in by_shard}
    if missing := [number for number in wanted if number not in by_shard]:
        raise TransferInputError(
            f"{name} is distributed over {len(wanted)} shards of the cluster {found.cluster!r}, and no server of"
            f" shard {missing[0]} is known: add its address to the extra `servers` of the ClickHouse connection"
            " (CLICKHOUSE_SERVERS for commands)"
        )
    return [by_shard[number] for number in wanted]
