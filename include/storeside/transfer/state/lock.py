"""A lock on a destination table during publication. It is a table, because ClickHouse has no locks for users.

``CREATE TABLE`` is the only statement of ClickHouse that succeeds for exactly one of many callers. A process may
break an old lock, whose holder is probably dead. The lock names the staging table that its holder may publish, and
the process first drops that table, so that a holder that is only slow cannot publish it later.

The lock of a Distributed table is on the server of the ledger. Its holder also puts a mark, a table of the same name
and comment, on the servers of the other shards, and removes rows of a shard only while the mark there is its own. It
reads its lock between these two steps. A run that has broken the lock replaces the marks before it counts rows, so a
late statement of the former holder removes none of them.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

from clickhouse_connect.driver.exceptions import DatabaseError

from storeside.sql.quoting import identifier, literal
from storeside.transfer.base.errors import (
    TABLE_EXISTS,
    UNKNOWN_TABLE,
    StaleError,
    TransferError,
    TransferTransientError,
    code_of,
)
from storeside.transfer.base.staging_tables import BROKEN, STAGING, bad_table, drop_parts, is_generated

if TYPE_CHECKING:
    from clickhouse_connect.driver.client import Client

# Publication usually takes milliseconds. Breaking the lock of a live process costs that process at most a retry.
STALE_SECONDS = 10.0
_PATIENCE_SECONDS = 300.0
_POLL_SECONDS = 0.1


@dataclass(frozen=True)
class Hold:
    """A lock that this process has taken, and that another process may break.

    `settings` let ClickHouse evaluate the `condition` once, when a statement begins.
    """

    client: Client
    name: str
    holder: str
    settings: ClassVar[Mapping[str, int]] = {"mutations_execute_subqueries_on_initiator": 1}

    @property
    def condition(self) -> str:
        """A condition for statements that must have no effect after another process has broken the lock."""
        return (
            f"(SELECT count() FROM system.tables WHERE database = '{STAGING}' AND name = '{self.name}'"
            f" AND comment = {literal(self.holder)}) = 1"
        )

    def on(self, client: Client) -> Hold:
        """Return this lock, or the mark of its holder, on the server of a client."""
        return replace(self, client=client)

    def check(self) -> None:
        """Raise StaleError if another process has broken the lock."""
        found = _look(self.client, self.name)
        if found is None or found[0] != self.holder:
            raise StaleError(
                "another run broke the lock of the table, because it was held for too long: try again when no other"
                " run loads into this table"
            )


@contextmanager
def locked(
    client: Client, destination: str, owner: str, staging: str, others: Sequence[Client] = ()
) -> Iterator[Hold]:
    """Hold the lock of `destination` in order to publish the table `staging`; `others` have its other shards.

    An `owner` that retries after a failure gets its own lock back. If the block ends well, `staging` is dropped
    together with the lock. Raises TransferTransientError when other processes hold the lock for five minutes.
    """
    name = lock_name(destination)
    holder = json.dumps({"owner": owner, "staging": staging})
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while not _take(client, name, holder, others):
        if time.monotonic() > deadline:
            raise TransferTransientError(f"{destination} was locked by other loads for {_PATIENCE_SECONDS:g} s")
        time.sleep(_POLL_SECONDS)
    try:
        for other in others:
            mark = f"{STAGING}.`{name}` (x UInt8) ENGINE = Null COMMENT {literal(holder)}"
            other.command(f"CREATE OR REPLACE TABLE {mark}")
        yield Hold(client, name, holder)
    except DatabaseError as e:
        if code_of(e):
            _release(client, name, holder)
        # Without a response, the statement may still run, so the lock stays until its owner retries or it is stale.
        raise
    except TransferError:
        _release(client, name, holder)
        raise
    else:
        _release(client, name, holder, staging if is_generated(staging) else "")


def lock_name(destination: str) -> str:
    """Return the name of the table that locks a destination."""
    return f"lock_{hashlib.sha256(destination.encode()).hexdigest()[:24]}"


def _release(client: Client, name: str, holder: str, published: str = "") -> None:
    """Release the lock, unless another process broke it and may hold it now, and drop the `published` staging table.

    Another process may try to break an old lock at the same time. It would break the lock of the next holder if the
    old one were dropped. Therefore an old lock is renamed as if it were broken.
    """
    found = _look(client, name)
    tables = [published] if published else []
    if found is not None and found[0] == holder:
        _, uuid, age = found
        if age < STALE_SECONDS / 2:
            tables.insert(0, name)
        else:
            _break(client, name, uuid, "")
    if tables:
        client.command(f"DROP TABLE IF EXISTS {', '.join(f'{STAGING}.{identifier(t)}' for t in tables)} SYNC")


def _look(client: Client, name: str) -> tuple[str, str, int] | None:
    """Return the lock's holder, UUID and age in seconds."""
    rows = client.query(
        "SELECT comment, toString(uuid), dateDiff('second', metadata_modification_time, now()) FROM system.tables"
        f" WHERE database = '{STAGING}' AND name = {{name:String}}",
        parameters={"name": name},
    ).result_rows
    return (rows[0][0], rows[0][1], rows[0][2]) if rows else None


def _take(client: Client, name: str, holder: str, others: Sequence[Client] = ()) -> bool:
    try:
        client.command(f"CREATE TABLE {STAGING}.`{name}` (x UInt8) ENGINE = Null COMMENT {literal(holder)}")
    except DatabaseError as e:
        if code_of(e) != TABLE_EXISTS:
            raise
    else:
        return True
    found = _look(client, name)
    if found is None:
        return False
    comment, uuid, age = found
    if comment == holder:
        return True
    if age > STALE_SECONDS:
        _break(client, name, uuid, _staged_by(comment), others)
    return False


def _staged_by(comment: str) -> str:
    """Return the staging table that a lock's holder may publish; empty if the comment names no staging table.

    A lock with another comment has no holder that could publish a table. It is broken at the same age.
    """
    try:
        staging = json.loads(comment)["staging"]
    except (ValueError, TypeError, KeyError):
        return ""
    return staging if isinstance(staging, str) and is_generated(staging) else ""


def _break(client: Client, name: str, uuid: str, staging: str, others: Sequence[Client] = ()) -> None:
    """Drop what the holder of a stale lock may publish, then remove the lock; only one of many callers succeeds."""
    for table in (staging, bad_table(staging)) if staging else ():
        client.command(f"DROP TABLE IF EXISTS {STAGING}.{identifier(table)} SYNC")
    for server in (client, *others) if staging else ():
        drop_parts(server, staging)
    try:
        client.command(f"RENAME TABLE {STAGING}.`{name}` TO {STAGING}.`{BROKEN}{uuid}`")
        # `staging_tables.sweep` drops broken locks an hour after their last change: this change starts that hour.
        client.command(f"ALTER TABLE {STAGING}.`{BROKEN}{uuid}` MODIFY COMMENT '{BROKEN}'")
    except DatabaseError as e:
        if code_of(e) not in (TABLE_EXISTS, UNKNOWN_TABLE):
            raise
