"""Checks that shards have the planned members, as AIStore lists them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, TypeVar

from storeside.aistore.buckets import Bucket
from storeside.aistore.entries import archived
from storeside.aistore.errors import said
from storeside.aistore.stored_objects import StoredObject
from storeside.ledger import members
from storeside.transform.listings import Listings
from storeside.transform.shard_plan import members_in, version_of

if TYPE_CHECKING:
    from aistore.sdk import Client

T = TypeVar("T")
R = TypeVar("R")

# Concurrent requests, and shards whose plans are in memory; the SDK keeps ten connections.
THREADS = 4


class CheckedShards(Listings):
    """Listings in which a shard counts after a job only if it has the planned members."""

    takes_markers = True  # the name of a plan is that of its shard

    def source(self, see: Callable[[str], None] | None = None) -> None:
        """Record the plans; `ShardsJob` records the ignored markers of the objects."""
        self._ledger.record_listing(self._scope, "source", self.rows())

    def results(self, side: str, prefix: str) -> Iterator[StoredObject]:
        """Leave shards with other members out of the listing after a job, and record the difference."""
        found = super().results(side, prefix)
        if side != "after":
            yield from found
            return
        plans = members.pending(self._ledger, self._scope)
        with ThreadPoolExecutor(THREADS, thread_name_prefix="shards") as pool:
            for shard, wrong in ahead(pool, lambda shard: (shard, self._wrong(shard, plans)), found):
                if wrong:
                    self._ledger.record_reasons(self._scope, [(shard.name, wrong, False)])
                else:
                    yield shard

    def _wrong(self, shard: StoredObject, plans: dict[str, str]) -> str:
        """Return the fault of a shard; empty for a shard that this job does not make."""
        from aistore.sdk.errors import AISError

        if shard.name not in plans:
            return ""
        try:
            plan = self._source.object(self._client, shard.name).get_reader().read_all()
            if version_of(plan) != plans[shard.name]:
                return "another task has replaced the plan of this shard: run this task again"
            return _difference(members_in(plan), members_of(self._client, self._destination, shard.name))
        except AISError as e:
            return f"AIStore does not list its members: {said(e)}"


def members_of(client: Client, bucket: Bucket, shard: str) -> dict[str, int]:
    """Return the sizes of a shard's members in bytes by their names, as AIStore lists them. Raises AISError."""
    folder = f"{shard}/"
    found = archived(client, bucket, shard)
    return {e.name.removeprefix(folder): e.size for e in found if e.name.startswith(folder)}


def _difference(wanted: dict[str, int], found: dict[str, int]) -> str:
    """Return how the members of a shard differ from those in its plan; empty if they do not."""
    wrong = [name for name, size in wanted.items() if found.get(name) != size]
    wrong += found.keys() - wanted.keys()
    if not wrong:
        return ""
    return f"its members are not the planned ones: {len(wrong)} differ, such as {wrong[0]!r}"


def ahead(pool: ThreadPoolExecutor, work: Callable[[T], R], given: Iterable[T]) -> Iterator[R]:
    """Yield the results of `work` in order, with at most `THREADS` of them under way."""
    waiting: deque[Future[R]] = deque()
    for item in given:
        if len(waiting) == THREADS:
            yield waiting.popleft().result()
        waiting.append(pool.submit(work, item))
    while waiting:
        yield waiting.popleft().result()
