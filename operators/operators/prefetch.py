"""The operator that fetches a remote bucket into an AIStore cluster."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Unpack

from airflow.sdk.exceptions import AirflowException, AirflowFailException

from storeside.aistore.buckets import Bucket
from storeside.amounts import counted, size
from storeside.operators.arguments import check_literals, flag
from storeside.operators.bases.following import FollowingArguments, FollowingOperator
from storeside.operators.bases.selecting import SelectingOperator
from storeside.operators.errors import airflow_errors
from storeside.operators.hooks.aistore import AIStoreHook
from storeside.operators.movement import MovementOperator
from storeside.operators.outcome import check_policy
from storeside.operators.shared import as_bool, ledger, plain

if TYPE_CHECKING:
    from airflow.sdk import Context

    from storeside.copying.prefetch import Missing, Prefetch
    from storeside.operators.outcome import OnFailed
    from storeside.transfer.request.template import Template

# Maximum jobs per try of a prefetch; each must leave fewer missing objects than the one before.
ROUNDS = 3


class AISPrefetchBucketOperator(FollowingOperator, MovementOperator, SelectingOperator):
    """Fetches a remote bucket's objects into the AIStore cluster, so that later reads use the cluster's disks.

    AIStore fetches objects that the cluster does not have. Then the task compares the cluster with the backend and
    lists missing objects with their reasons.

    :param bucket: bucket URI of a remote bucket, such as ``s3://recordings``
    :param prefix: fetch only objects whose names start with this
    :param latest: also fetch objects that have changed in the backend
    :param on_failed_objects: ``fail`` the task when objects are still missing at the end, or ``report`` them and
        succeed
    :param workers: concurrent workers per target; 0 lets AIStore choose
    :param blob_threshold: minimum bytes of an object that AIStore fetches in parallel chunks; 0 means never
    :param stall_seconds: seconds without progress after which the job is aborted; the task then continues with the
        missing objects
    :param poll_interval: seconds between two polls
    :param aistore_conn_id: connection to AIStore
    :param clickhouse_conn_id: connection to ClickHouse
    """

    template_fields: Sequence[str] = ("bucket", "prefix", "latest", "on_failed_objects", "on_nothing")
    ui_color = "#d7e9f7"

    def __init__(
        self,
        *,
        bucket: str,
        prefix: str = "",
        latest: bool | str = False,
        on_failed_objects: OnFailed | Template = "fail",
        workers: int = 0,
        blob_threshold: int = 0,
        stall_seconds: float = 300,
        poll_interval: float = 1.0,
        aistore_conn_id: str = AIStoreHook.default_conn_name,
        clickhouse_conn_id: str = "clickhouse_default",
        **kwargs: Unpack[FollowingArguments],
    ) -> None:
        super().__init__(**kwargs)
        self.bucket = bucket
        self.prefix = prefix
        self.latest = latest
        self.on_failed_objects = on_failed_objects
        self.workers = workers
        self.blob_threshold = blob_threshold
        self.stall_seconds = stall_seconds
        self.poll_interval = poll_interval
        self.aistore_conn_id = aistore_conn_id
        self.clickhouse_conn_id = clickhouse_conn_id
        check_literals(self, bucket=Bucket.parse, on_failed_objects=check_policy, latest=flag("latest"))

    def prefetch(self) -> Prefetch:
        """Return the engine's prefetch. Raises BadInput for a bucket that is not remote."""
        from storeside.copying.prefetch import Prefetch

        check_policy(self.on_failed_objects)
        return Prefetch(AIStoreHook(self.aistore_conn_id).get_conn(), Bucket.parse(self.bucket), self.prefix)

    def execute(self, context: Context) -> dict[str, Any]:
        """Compare the cluster with the backend, submit a job and wait; end at once if no object is missing."""
        with airflow_errors():
            prefetch = self.prefetch()
            prefetch.check()
            missing = prefetch.missing()
            self.log.info("%s: %s, %s to fetch", self.bucket, counted(missing.objects, "object"), size(missing.bytes))
            is_empty = not missing.objects and prefetch.is_empty()
            if is_empty or not (missing.objects or as_bool(self.latest, "latest")):
                result = self._finish(context, missing, missing, time.time())
                if is_empty:
                    self.end_without(f"no object of {self.bucket} matches the prefix {self.prefix!r}")
                return result
        begun = {"objects": missing.objects, "size": missing.bytes, "started": time.time()}
        return self._submit(context, prefetch, begun, missing)

    def _submit(
        self, context: Context, prefetch: Prefetch, begun: dict[str, Any], missing: Missing, rounds: int = 1
    ) -> dict[str, Any]:
        """Submit a job for the missing objects, and wait for it."""
        with airflow_errors():
            job_id = prefetch.submit(
                latest=as_bool(self.latest, "latest"), workers=self.workers, blob_threshold=self.blob_threshold
            )
        trigger = self.trigger(job_id, total=missing.objects)
        return dict(self.wait_for(trigger, "resume", context, **begun, before=missing.objects, rounds=rounds))

    def resume(
        self,
        context: Context,
        event: dict[str, Any],
        objects: int,
        size: int,
        started: float,
        before: int = 0,
        rounds: int = ROUNDS,
    ) -> dict[str, Any]:
        """Compare the cluster with the backend after the job; submit another job if that may fetch more objects.

        `objects`, `size` and `started` are those of the first job; `before` objects were missing when the last of
        `rounds` was submitted.
        """
        from storeside.copying.prefetch import Missing

        self.log.info("job %s: %s", event["job_id"], event["progress"])
        with airflow_errors():
            prefetch = self.prefetch()
            left = prefetch.missing(reasons=True)
        begun = {"objects": objects, "size": size, "started": started}
        if self._may_come(event["error"], left):
            if left.objects < before and rounds < ROUNDS:
                self.log.info("%s still missing: submitting another job", counted(left.objects, "object"))
                return self._submit(context, prefetch, begun, left, rounds + 1)
            raise AirflowException(self._told(event["error"], left))
        return self._finish(context, Missing(objects, size), left, started)

    def _may_come(self, error: str, left: Missing) -> bool:
        """Return whether another job may fetch objects that this job, which ended with `error`, did not fetch."""
        unasked = left.objects > len(left.examples)
        return left.passing > 0 or (bool(error) and (unasked or as_bool(self.latest, "latest")))

    def _told(self, error: str, left: Missing) -> str:
        what = "objects that have changed in the backend may not be fetched"
        if left.examples:
            name, reason = left.examples[0]
            what = f"{counted(left.objects, 'object')} still missing, such as {name!r}: {reason}"
        ended = f" (the job ended with: {error})" if error else ""
        return f"{self.bucket}: {what}{ended}. The other objects are in the cluster; a retry fetches the missing ones"

    def _finish(self, context: Context, missing: Missing, left: Missing, started: float) -> dict[str, Any]:
        summary = {
            "source": self.bucket,
            "destination": self.bucket,
            "done": max(missing.objects - left.objects, 0),
            "failed": left.objects,
            "bytes_in": max(missing.bytes - left.bytes, 0),
            "seconds": round(time.time() - started, 3),
        }
        tables = ledger(self.clickhouse_conn_id)
        tables.create()
        state = "partial" if left.objects else "done"
        self.record_end(context, tables, {"kind": "prefetch", "state": state, "listed": missing.objects, **summary})
        for name, reason in left.examples:
            self.log.warning("not fetched: %r: %s", name, reason, object=name)
        if left.objects and self.on_failed_objects == "fail":
            raise AirflowFailException(
                f"{counted(left.objects, 'object')} of {self.bucket} not fetched, such as {left.examples[0][0]!r}:"
                f" {left.examples[0][1]}. The other objects are in the cluster; clear this task to fetch the rest."
            )
        return {**summary, "examples": plain(left.examples)}
