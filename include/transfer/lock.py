"""A lock on a destination table, held while results are published; kept in ClickHouse, which has no locks for users.

``CREATE TABLE`` is the one statement of ClickHouse that succeeds for exactly one of many callers. Holders do not die
holding it for long: what a lock's holder may publish is named in the lock, and whoever breaks an old lock drops that
first, so that a holder who was only slow cannot publish any more.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from clickhouse_connect.driver.exceptions import DatabaseError

from include.transfer.errors import TABLE_EXISTS, UNKNOWN_TABLE, TransferError, TransientError, code_of
from include.transfer.source import literal

STAGING = "storeside_staging"
# Publishing is mostly a matter of milliseconds; breaking the lock of somebody who is alive costs him a retry at most.
STALE_SECONDS = 10.0
# A broken lock keeps its name while somebody may be about to break it as well, and is swept an hour after that.
BROKEN = "broken_"
_PATIENCE_SECONDS = 300.0
_POLL_SECONDS = 0.1


@contextmanager
def locked(client: Any, destination: str, owner: str, staging: str) -> Iterator[None]:
    """Hold the lock of `destination` in order to publish the table `staging`.

    `owner` takes its own lock again when it comes back after a fault. Raises TransientError when others hold the lock
    for five minutes.
    """
    name = f"lock_{hashlib.sha256(destination.encode()).hexdigest()[:24]}"
    holder = json.dumps({"owner": owner, "staging": staging})
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while not _take(client, name, holder):
        if time.monotonic() > deadline:
            raise TransientError(f"others have been publishing to {destination} for {_PATIENCE_SECONDS:g} s")
        time.sleep(_POLL_SECONDS)
    try:
        yield
    except DatabaseError as e:
        if code_of(e):
            _release(client, name, holder)
        # Without an answer the statement may still be at work: the lock is taken again, or grows old.
        raise
    except TransferError:
        _release(client, name, holder)
        raise
    else:
        _release(client, name, holder)


def _release(client: Any, name: str, holder: str) -> None:
    """Give the lock back, unless somebody has broken it: then the one that is there is not ours."""
    found = _look(client, name)
    if found is not None and found[0] == holder:
        client.command(f"DROP TABLE IF EXISTS {STAGING}.`{name}` SYNC")


def _look(client: Any, name: str) -> tuple[str, str, int] | None:
    """Return who holds the lock, its UUID, and how many seconds it is old."""
    rows = client.query(
        "SELECT comment, toString(uuid), dateDiff('second', metadata_modification_time, now()) FROM system.tables"
        f" WHERE database = '{STAGING}' AND name = {{name:String}}",
        parameters={"name": name},
    ).result_rows
    return rows[0] if rows else None


def _take(client: Any, name: str, holder: str) -> bool:
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
        _break(client, name, uuid, json.loads(comment)["staging"])
    return False


def _break(client: Any, name: str, uuid: str, staging: str) -> None:
    """Remove the lock of a holder who is gone, and first what it could still publish; of many, one succeeds."""
    client.command(f"DROP TABLE IF EXISTS {STAGING}.`{staging}` SYNC")
    try:
        client.command(f"RENAME TABLE {STAGING}.`{name}` TO {STAGING}.`{BROKEN}{uuid}`")
        # A table is as old as its last change: the lock may be of yesterday, the hour begins now.
        client.command(f"ALTER TABLE {STAGING}.`{BROKEN}{uuid}` MODIFY COMMENT '{BROKEN}'")
    except DatabaseError as e:
        if code_of(e) not in (TABLE_EXISTS, UNKNOWN_TABLE):
            raise
