"""Transforms of the members of shards: which results count, and which members failed."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from storeside.aistore.buckets import Bucket
from storeside.aistore.errors import NO_REASON
from storeside.aistore.stored_objects import StoredObject
from storeside.ledger import members
from storeside.ledger.objects import Ledger
from storeside.ledger.scope import LeftOut as Counts
from storeside.ledger.scope import Scope
from storeside.transform.journal import readable, shards
from storeside.transform.listings import Listings
from storeside.transformers.contract.failures import Failure, LeftOut, Shard
from storeside.transformers.contract.journal import MOST_LEFT_OUT, MOST_LINES

if TYPE_CHECKING:
    from aistore.sdk import Client

log = logging.getLogger(__name__)

UNREPORTED = f"{NO_REASON}; members of shards need a server of Storeside, which reports each shard that it delivered"


class ShardListings(Listings):
    """Listings in which a result counts only after its server reported its members."""

    def results(self, side: str, prefix: str) -> Iterator[StoredObject]:
        """Leave results that no server reported out of the listing after a job, except for empty ones.

        Empty objects are failures over WebSocket; the job removes those that its listing has.
        """
        unreported = members.unreported(self._ledger, self._scope) if side == "after" else ()
        return (found for found in super().results(side, prefix) if not found.size or found.name not in unreported)


def record_members(
    client: Client, ledger: Ledger, scope: Scope, source: Bucket, etl_names: Iterable[str], job_id: str
) -> None:
    """Record the shards that a job delivered, and the members of them that failed or were left out.

    If the logs lack such members of a shard, the shard does not count as reported: the job transforms it again, and
    if its report stays incomplete, it fails.
    """
    reported: list[Shard] = []
    failed: list[Failure] = []
    left_out: list[LeftOut] = []
    for name in etl_names:
        for entry in readable(job_id, shards(client, name, job_id, source.name)):
            if isinstance(entry, Shard):
                reported.append(entry)
            elif isinstance(entry, LeftOut):
                left_out.append(entry)
            else:
                failed.append(entry)
    listed = Counter((f.object, f.time) for f in failed) + Counter((o.object, o.time) for o in left_out)
    lacking = {shard: shard.failed + shard.left_out - listed[shard.object, shard.time] for shard in reported}
    incomplete = {shard: count for shard, count in lacking.items() if count > 0}
    for shard, count in incomplete.items():
        what = f"{shard.failed} of its members failed" + f" and {shard.left_out} were left out" * bool(shard.left_out)
        reason = (
            f"{what}, and the log of its server lacks {count} of them: the log was rotated, or the server listed"
            f" {MOST_LINES} failures or {MOST_LEFT_OUT} left-out members in an hour. Correct the members that fail,"
            " or try fewer shards at a time"
        )
        log.warning("job %s: %s: %s", job_id, shard.object, reason)
        ledger.record_reasons(scope, [(shard.object, reason, False)])
    members.record(
        ledger,
        scope,
        ((f.object, f.member, f.reason, f.time) for f in failed),
        ((o.object, o.member, o.reason, o.time) for o in left_out),
        ((shard.object, shard.time) for shard in reported if shard not in incomplete),
    )


def settle(ledger: Ledger, scope: Scope) -> tuple[int, list[tuple[str, str]], Counts]:
    """Record the members without results of a finished job.

    Returns the number of those that failed, the first of them with their reasons, and the number of those left out.
    """
    members.settle(ledger, scope)
    return *members.failures(ledger, scope, 20), members.left_out(ledger, scope)
