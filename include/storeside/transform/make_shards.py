"""Makes tar shards of the objects of a bucket, inside the cluster.

The task lists the source and writes a plan of each shard, a small object, into a work bucket. A bucket job transforms
the plans: its transformers read the objects of a plan and send the shard to the destination (see
`storeside.transformers.shards.gathering`). A shard then counts only if AIStore lists exactly the planned members in
it. The version of a plan is a hash of the names, sizes and versions of its members, so a later run makes only the
shards whose objects have changed.
"""

from __future__ import annotations

import hashlib
import logging
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING

from storeside.aistore import jobs
from storeside.aistore.buckets import Bucket
from storeside.aistore.errors import AIStoreInputError, AIStoreTransientError
from storeside.aistore.existence import require_bucket
from storeside.aistore.places import Clusters, place
from storeside.aistore.pods import PodWatch
from storeside.aistore.spec import EtlSpec
from storeside.aistore.stored_objects import StoredObject, list_aistore
from storeside.ledger import selections
from storeside.ledger.objects import Ledger
from storeside.ledger.scope import Scope
from storeside.transform.bucket_job import BucketJob
from storeside.transform.shard_check import THREADS, CheckedShards, ahead
from storeside.transform.shard_plan import Packing, ShardPlan, pack, version_of
from storeside.transform.state import Options, State, Summary

if TYPE_CHECKING:
    from aistore.sdk import Client

log = logging.getLogger(__name__)

# The effect of all jobs that make shards: the same plan makes the same bytes, also in another image.
_EFFECT = "shards-1"


class _Make(BucketJob):
    """Makes shards of the plans in the work bucket."""

    listings = CheckedShards

    def preview(self) -> dict[str, int]:
        """Return the counts without a work bucket."""
        self.ledger.create()
        return self._planner.preview()


class ShardsJob:
    """Makes shards of the objects of `source`; the caller drives it like a `BucketJob`.

    `spec` is the ETL of `EtlSpec.gathering` for the source. Each shard is an object of the ledger with its plan's
    version. `task` identifies the task in its run. Raises AIStoreInputError for shards that would be written among
    the source's objects.
    """

    def __init__(
        self,
        client: Client,
        ledger: Ledger,
        source: Bucket,
        destination: Bucket,
        *,
        run_id: str,
        spec: EtlSpec,
        packing: Packing,
        task: str = "",
        options: Options | None = None,
        pods: PodWatch | None = None,
    ) -> None:
        self.client = client
        self.ledger = ledger
        self.source = source
        self.destination = destination
        self.packing = packing
        self.task = task
        # each failure has its reason over hpush, and AIStore stores the checksum of the shard
        self.spec = spec.over("hpush")
        self.options = replace(options or Options(), retry_failed=True)
        self.scope = Scope(str(source), str(destination), _EFFECT, run_id, repr(packing))
        places = "\0".join((str(source), str(destination), packing.name))
        self.plans = Bucket("ais", f"storeside-shards-{hashlib.sha256(places.encode()).hexdigest()[:24]}")
        self._writes = True
        self._made = _Make(
            client, ledger, self.plans, destination, run_id=run_id, spec=self.spec, options=self.options,
            list_source=self._planned, pods=pods, scope=self.scope,
        )  # fmt: skip

    def begin(self) -> State:
        """Plan the shards, or resume the plan of an earlier try of the run.

        Raises AIStoreInputError for objects that cannot be members of shards, and when another task of the run makes
        shards of other objects with the same names, before the destination changes. Raises AIStoreTransientError
        while another task makes the same shards.
        """
        self._require_places()
        self.ledger.create()
        self._require_own_names()
        running = jobs.running_between(self.client, self.plans, self.destination)
        if running and not self.ledger.has_submitted(self.scope, running):
            raise AIStoreTransientError(
                f"another task makes shards of {self.source} in {self.destination}: a retry waits for it"
            )
        self.plans.handle(self.client).create(exist_ok=True)
        try:
            return self._made.begin()
        except AIStoreInputError:
            self._forget()
            raise

    def preview(self) -> dict[str, int]:
        """Return how many shards the job would list, make, skip and refuse, without a change to a bucket."""
        self._require_places()
        self._writes = False
        return self._made.preview()

    def submit(self, state: State) -> State:
        """Submit the next job; see `BucketJob.submit`."""
        return self._made.submit(state)

    def follower(self, state: State, stall_seconds: float) -> jobs.Follower:
        """Return the follower that detects the end of the submitted job."""
        return self._made.follower(state, stall_seconds)

    def advance(self, state: State, seconds: float = 0) -> State:
        """Continue after the submitted job: check the shards, and retry those that are missing."""
        return self._made.advance(state, seconds)

    def finish(self, state: State) -> Summary:
        """Record the outcome of every shard, and delete the plans; warn of shards that are not in the plan."""
        self._tell_others(state.listed)
        summary = self._made.finish(state)
        self._forget()
        return replace(summary, source=str(self.source))

    def _planned(self) -> Iterator[StoredObject]:
        """Write the plans into an empty work bucket, and yield the shards."""
        bucket = self.plans.handle(self.client)
        if self._writes:
            bucket.delete(missing_ok=True)
            bucket.create()
        listing = map(self._versioned, list_aistore(self.client, self.source, self.packing.prefix))
        ignored = Counter[str]()
        with ThreadPoolExecutor(THREADS, thread_name_prefix="plans") as pool:
            yield from ahead(pool, self._write, pack(listing, self.packing, ignored))
        self.ledger.record_ignored(self.scope, ignored)

    def _write(self, shard: ShardPlan) -> StoredObject:
        content = shard.content
        if self._writes:
            self.plans.object(self.client, shard.name).get_writer().put_content(content)
        return StoredObject(shard.name, shard.bytes_in, version_of(content))

    def _versioned(self, found: StoredObject) -> StoredObject:
        """Return the object with its checksum as version, if it has one: AIStore counts unchanged writes, too."""
        checksum = found.version.rpartition("/")[2]
        if self.source.scheme != "ais" or checksum in ("", str(found.size)):
            return found
        return replace(found, version=checksum)

    def _require_places(self) -> None:
        require_bucket(self.client, self.source)
        clusters = Clusters.of(self.client)
        same = place(self.client, self.source, clusters) == place(self.client, self.destination, clusters)
        shard = self.packing.name.format(0)
        if same and self.packing.includes(shard):
            raise AIStoreInputError(
                f"{self.destination} is the source's bucket, and a later run would take {shard!r} for one of its"
                " objects: name another bucket, or another folder in name and prefix"
            )

    def _require_own_names(self) -> None:
        """Raise AIStoreInputError when another task of the run makes shards of other objects with these names."""
        scope = replace(self.scope, source="", selection=self.packing.name)
        selection = f"{self.source} with prefix {self.packing.prefix!r} and objects {self.packing.objects!r}"
        for recorded in (False, True):  # the second look finds a task that recorded its selection at the same time
            if found := selections.others(self.ledger, scope, self.task, selection):
                raise AIStoreInputError(
                    f"another task of this run makes shards {self.packing.name!r} in {self.destination} of"
                    f" {found[0]}. This task makes shards of {selection}, which would overwrite them: give each task"
                    " its own name, such as 'part-1-{:06d}.tar'"
                )
            if not recorded:
                selections.record(self.ledger, scope, self.task, selection)

    def _tell_others(self, count: int) -> None:
        prefix = self.packing.name.partition("{")[0]
        others = [
            found.name
            for found in list_aistore(self.client, self.destination, prefix)
            if (number := self.packing.number(found.name)) is not None and number >= count
        ]
        if others:
            log.warning(
                "%s has %d shards after the last one of this run, such as %s. An earlier run made them: delete them,"
                " or readers of all shards read their objects twice",
                self.destination, len(others), others[0],
            )  # fmt: skip

    def _forget(self) -> None:
        self.ledger.forget_listings(self.scope)
        self.plans.handle(self.client).delete(missing_ok=True)
