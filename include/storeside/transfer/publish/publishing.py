"""Publishes the rows of staging tables in a destination exactly once, and settles interrupted publications."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

from clickhouse_connect.driver.exceptions import DatabaseError

from storeside.amounts import counted
from storeside.transfer.base import queries
from storeside.transfer.base.errors import (
    DIFFERENT_STRUCTURE,
    NO_SUCH_COLUMN,
    UNKNOWN_IDENTIFIER,
    UNKNOWN_TABLE,
    StaleError,
    TransferTransientError,
    classify,
    code_of,
    plain,
)
from storeside.transfer.objects.content import current_version
from storeside.transfer.publish.durability import flush
from storeside.transfer.publish.mirror import Mirror
from storeside.transfer.state.loads import Loaded, Loads, Planned
from storeside.transfer.state.lock import Hold, locked
from storeside.transfer.tables.table import Destination

log = logging.getLogger(__name__)

_POLL_SECONDS = 0.5
# Simultaneous requests to S3 while the lock is held.
_REQUESTS = 16
# ClickHouse's errors if the destination's columns changed, or the staging table was dropped.
_CHANGED = (DIFFERENT_STRUCTURE, NO_SUCH_COLUMN, UNKNOWN_IDENTIFIER, UNKNOWN_TABLE)


def publish(
    destination: Destination, loads: Loads, owner: str, staging: str, staged: list[Loaded], s3: Any, *,
    has_bad: bool = False, again: bool = True, mirror: Mirror | None = None,
) -> None:  # fmt: skip
    """Make the rows of `staging` visible in the destination exactly once, even after failed attempts.

    `staged` lists the objects in it. If another run has loaded some of them, their rows are removed from `staging`,
    and they from this list. `s3` reads the bucket. With `has_bad`, the rows of the `bad_table` are added to the
    quarantine. Unless `again`, no process has tried to publish this table before. A `mirror` refuses the rows if
    another run has loaded another snapshot meanwhile. Raises StaleError when the destination changed meanwhile, or
    another run broke this run's lock, so that the objects must be read again.
    """
    part = destination.spread(staging, loads.client, sum(o.rows for o in staged))
    with locked(destination.client, destination.name, owner, staging, destination.others) as hold:
        # A statement whose connection was lost may still run; its owner kept the lock for this case.
        servers = (destination.client, *destination.others) if again else ()
        while any(queries.running(client, staging) for client in servers):
            time.sleep(_POLL_SECONDS)
        if mirror is not None:
            mirror.check()
        objects = [o.planned for o in staged]
        states = loads.states(objects)
        doubtful = loads.doubtful(objects) if "publishing" in states.values() else []
        # A run that could not read an object may have recorded that while another run published the object.
        doubtful += [replace(o, replaces=loads.replaces) for o in staged if states.get(o.planned.load_id) == "failed"]
        # The ledger is not read again: a run that was overtaken may write into it late.
        done = {o.load_id for o in objects if states.get(o.load_id) == "loaded"}
        done |= settle(destination, loads, doubtful, hold, s3)
        waiting = [o for o in objects if o.load_id not in done] if loads.replaces else []
        older, outdated = _versions(loads, waiting, s3)
        left_out = done | {o.load_id for o in outdated}
        new = [o for o in staged if o.planned.load_id not in left_out]
        try:
            if left_out:
                log.info("another run has loaded %d objects in this version or a later one", len(left_out))
                destination.leave_out(part, [o for o in objects if o.load_id in left_out])
                if part == staging:
                    staged[:] = new
                loads.record_replaced(outdated)
            if not new:
                return
            loads.record(new, "publishing")
            if has_bad:
                destination.quarantine.add(staging, [o.planned for o in new if o.rejected], hold)
            _take(destination, part, staging, new, hold, mirror)
        except DatabaseError as e:
            if code_of(e) in _CHANGED:
                # The record stays: another run may have loaded these objects, so the next publication counts rows.
                raise StaleError(f"{staging} cannot be published: {plain(e)}") from e
            if code_of(e) and not isinstance(classify(e), TransferTransientError):
                # An INSERT that fails at a later block has already inserted the blocks before.
                destination.remove([o.planned for o in new], hold)
                loads.forget_doubtful(loads.doubtful([o.planned for o in new]))
            raise
        _finish(destination, loads, new, older, hold)


def _take(
    destination: Destination, part: str, staging: str, new: Sequence[Loaded], hold: Hold, mirror: Mirror | None
) -> None:
    """Make the rows of these loads visible, which are in the table `part`: beside other rows, or as a partition."""
    if mirror is not None and mirror.partition:
        mirror.replacement(destination, mirror.gone()).take(staging, [o.planned for o in new], hold)
    else:
        destination.take(part, staging)


def settle(destination: Destination, loads: Loads, doubtful: Sequence[Loaded], hold: Hold, s3: Any) -> set[int]:
    """Record and return the interrupted loads that are in the table, by id, and remove partial ones from it.

    Each load `replaces` older versions or not, as the run that began to publish it. The caller must hold the lock, so
    that no process still publishes them. Raises StaleError if another run broke it.
    """
    if not doubtful:
        return set()
    found = destination.count([o.planned for o in doubtful])
    hold.check()
    whole = [o for o in doubtful if _is_whole(o, found, destination)]
    other = [o for o in doubtful if not _is_whole(o, found, destination)]
    partial = [o.planned for o in other if o.planned.load_id in found]
    if whole or partial:
        number = counted(len(whole), "object")
        log.info("an earlier publication was interrupted: %s in the table, %d not", number, len(other))
    if partial:
        destination.remove(partial, hold)
    destination.quarantine.remove([o.planned for o in other if o.planned.load_id not in found], hold)
    older, outdated = _versions(loads, [o.planned for o in whole if o.replaces], s3)
    late = {o.load_id for o in outdated}
    _finish(destination, loads, [o for o in whole if o.planned.load_id not in late], [*older, *outdated], hold)
    if other:
        loads.forget_doubtful(other)
    return {o.planned.load_id for o in whole}


def _is_whole(o: Loaded, found: Mapping[int, int], destination: Destination) -> bool:
    """Return whether all rows of a load are in the table, and so the quarantined rows, which are added before them.

    A load without rows does not show whether its quarantined rows are complete. In a table that replaces rows, one
    row shows that all had arrived, in one step, and merges have removed the others. It must stay, because merges may
    have removed what it replaced.
    """
    if destination.replaces_at_once and found.get(o.planned.load_id):
        return True
    return found.get(o.planned.load_id, 0) == o.rows and bool(o.rows or not o.rejected)


def _finish(
    destination: Destination, loads: Loads, published: Sequence[Loaded], gone: Sequence[Planned], hold: Hold
) -> None:
    if gone:
        destination.remove(gone, hold)
        loads.record_replaced(gone)
    elif loads.replaces:
        hold.check()  # a run that broke the lock may have replaced these versions
    if any(loads.after(o) != "none" for o in published):
        # No run can load an object again that is gone: its rows must survive a loss of power.
        flush(destination)
    loads.record(published, "loaded")


def _versions(loads: Loads, objects: Sequence[Planned], s3: Any) -> tuple[list[Planned], list[Planned]]:
    """Return the loaded versions that these objects replace, and the objects for which a newer version is loaded.

    A version with a later time is not always newer: S3 gives a multipart upload the time of its beginning, and the
    deletion of a version restores an older one with its own time. Then the bucket's current version counts.
    """
    if not objects:
        return [], []
    ours = {o.key: o for o in objects}
    others = loads.others(objects)
    later = sorted({o.key for o in others if o.modified > ours[o.key].modified})
    with ThreadPoolExecutor(_REQUESTS) as threads:
        current = threads.map(lambda key: current_version(s3, loads.source.bucket, key), later)
    newer = {key for key, version in zip(later, current, strict=True) if version != ours[key].version}
    return [o for o in others if o.key not in newer], [o for o in objects if o.key in newer]
