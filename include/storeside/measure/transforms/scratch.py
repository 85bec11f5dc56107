"""The buckets and ETLs of one measurement of transforms, and their removal, also after a kill."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from storeside.aistore import etl as etls
from storeside.aistore import jobs
from storeside.aistore.buckets import Bucket
from storeside.aistore.errors import AIStoreTransientError
from storeside.measure.errors import MeasureTransientError

if TYPE_CHECKING:
    from aistore.sdk import Client

# Seconds for which an ETL waits for the end of other tasks' transforms, which its end would abort.
PATIENCE_SECONDS = 60.0
# Airflow starts a teardown although the process of a task that a user has marked still runs for some seconds, in
# which it may start an ETL.
LEAVING_SECONDS = 12.0


class Scratch:
    """Names that begin with a key of `scope`, which all tries of a task share and no other task has."""

    def __init__(self, client: Client, scope: str, patience_seconds: float = PATIENCE_SECONDS) -> None:
        key = hashlib.sha256(scope.encode()).hexdigest()
        self.label = f"bench-{key[:10]}"
        self.source = Bucket("ais", f"storeside-bench-{key[:16]}-in")
        self._prefix = f"storeside-bench-{key[:16]}-"
        self._client = client
        self._patience = patience_seconds
        self._count = 0

    def destination(self) -> Bucket:
        """Create and return an empty bucket that no earlier round had."""
        self._count += 1
        bucket = Bucket("ais", f"{self._prefix}out-{self._count}")
        bucket.handle(self._client).create()
        return bucket

    def discard(self, *names: str) -> None:
        """Stop and delete ETLs of this measurement once no transform runs in the cluster.

        Raises MeasureTransientError when other tasks' transforms still run after a minute.
        """
        deadline = time.monotonic() + self._patience
        while True:
            try:
                return etls.discard_own(self._client, names)
            except AIStoreTransientError as e:
                if time.monotonic() > deadline:
                    raise MeasureTransientError(
                        f"{e}: measure when no other transform runs, then clear the task, which deletes the ETL"
                    ) from e
                time.sleep(0.2)

    def remove(self) -> bool:
        """End the jobs, and delete the ETLs and buckets, of this measurement and of a killed try of its task.

        Returns whether there were any. Raises MeasureTransientError as `discard`; the buckets are deleted
        nevertheless.
        """
        for job_id in self._jobs():
            jobs.abort(self._client, job_id)
        listed = self._client.cluster().client.request("get", path="etl").json() or ()  # the SDK lists running ones
        names = [etl["id"] for etl in listed if etl["id"].startswith(f"{self.label}-")]
        every = self._client.cluster().list_buckets("ais")
        buckets = [found.name for found in every if found.name.startswith(self._prefix)]
        try:
            self.discard(*names)
        finally:
            for name in buckets:
                self._client.bucket(name).delete(missing_ok=True)
        return bool(names or buckets)

    def remove_after_end(self) -> None:
        """Remove everything until nothing new appears, because the task may still be ending. Raises as `remove`."""
        while self.remove():
            time.sleep(LEAVING_SECONDS)

    def _jobs(self) -> Iterator[str]:
        """Yield the ids of running copies and transforms from or to these buckets."""
        for entry in self._client.cluster().list_running_jobs():
            kind, _, job_id = entry.rstrip("]").partition("[")
            if kind in jobs.MULTI_OBJECT_KINDS | jobs.BUCKET_KINDS:
                snaps = jobs.newest_snapshots(self._client, job_id)
                buckets = [b for snap in snaps for b in (snap.source_bck, snap.destination_bck) if b]
                if any(bucket.name.startswith(self._prefix) for bucket in buckets):
                    yield job_id
