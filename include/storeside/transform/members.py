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
from storeside.ledger.scope import Scope
from storeside.transform.journal import readable, shards
from storeside.transform.listings import Listings
from storeside.transformers.contract.failures import Failure, Shard
from storeside.transformers.contract.journal import MOST_LINES

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
    """Record the shards that a job delivered, and the members of them that failed.

    If the logs lack failed members of a shard, the shard does not count as reported: the job transforms it again, and
    if its report stays incomplete, it fails.
    """
    reported: list[Shard] = []
    failed: list[Failure] = []
    for name in etl_names:
        for entry in readable(job_id, shards(client, name, job_id, source.name)):
            if isinstance(entry, Shard):
                reported.append(entry)
            else:
                failed.append(entry)
    listed = Counter((f.object, f.time) for f in failed)
    incomplete = [shard for shard in reported if listed[shard.object, shard.time] < shard.failed]
    for shard in incomplete:
        count = shard.failed - listed[shard.object, shard.time]
        reason = (
            f"{shard.failed} of its members failed, and the log of its server lacks {count} of them: the log was"
            f" rotated, or the server listed {MOST_LINES} failures within an hour. Correct the members that fail, or"
            " try fewer shards at a time"
        )
        log.warning("job %s: %s: %s", job_id, shard.object, reason)
        ledger.record_reasons(scope, [(shard.object, reason, False)])
    members.record(
        ledger,
        scope,
        ((f.object, f.member, f.reason, f.time) for f in failed),
        ((shard.object, shard.time) for shard in reported if shard not in incomplete),
    )


def settle(ledger: Ledger, scope: Scope) -> tuple[int, list[tuple[str, str]]]:
    """Record the failed members of a finished job; return their number, and the first with their reasons."""
    members.settle(ledger, scope)
    return members.failures(ledger, scope, 20)
