"""The operator that transforms a bucket without results, to find objects that fail."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Unpack

from airflow.sdk.exceptions import AirflowFailException

from storeside.aistore.buckets import Bucket
from storeside.aistore.errors import AIStoreTransientError
from storeside.aistore.spec import EtlSpec
from storeside.operators.arguments import check_literals, require_spec
from storeside.operators.bases.following import FollowingArguments, FollowingOperator
from storeside.operators.bases.selecting import SelectingOperator
from storeside.operators.errors import airflow_errors
from storeside.operators.hooks.aistore import AIStoreHook
from storeside.operators.links import RunPageLink
from storeside.operators.outcome import check_policy
from storeside.operators.shared import ledger, plain, run_columns
from storeside.transform.inspection import Inspection

if TYPE_CHECKING:
    from airflow.sdk import Context

    from storeside.operators.outcome import OnFailed
    from storeside.transfer.request.template import Template


class AISInspectBucketOperator(FollowingOperator, SelectingOperator):
    """Transforms every object of a bucket inside AIStore and discards the results, to find objects that fail.

    Returns the numbers of objects read and failed, with examples; the task's log lists all failures.

    :param source: bucket URI
    :param etl: the ETL or chain of ETLs; always called over ``hpush``. An existing ETL keeps its
        own channel, which must not be ``ws``
    :param prefix: inspect only objects whose names start with this
    :param on_failed_objects: ``fail`` the task when objects failed, or ``report`` them and succeed
    :param workers: concurrent workers per target; 0 lets AIStore choose
    :param stall_seconds: seconds without progress after which the job is aborted
    :param aistore_conn_id: connection to AIStore
    :param clickhouse_conn_id: connection to ClickHouse
    """

    template_fields: Sequence[str] = ("source", "prefix", "on_failed_objects", "on_nothing")
    ui_color = "#d7e9f7"
    operator_extra_links = (RunPageLink(),)

    def __init__(
        self,
        *,
        source: str,
        etl: EtlSpec,
        prefix: str = "",
        on_failed_objects: OnFailed | Template = "report",
        workers: int = 0,
        stall_seconds: float = 300,
        aistore_conn_id: str = AIStoreHook.default_conn_name,
        clickhouse_conn_id: str = "clickhouse_default",
        **kwargs: Unpack[FollowingArguments],
    ) -> None:
        super().__init__(**kwargs)
        self.source = source
        self.etl = etl
        self.prefix = prefix
        self.on_failed_objects = on_failed_objects
        self.workers = workers
        self.stall_seconds = stall_seconds
        self.aistore_conn_id = aistore_conn_id
        self.clickhouse_conn_id = clickhouse_conn_id
        require_spec(self, etl)
        check_literals(self, source=Bucket.parse, on_failed_objects=check_policy)

    def inspection(self) -> Inspection:
        """Build the engine's inspection from the rendered arguments."""
        hook = AIStoreHook(self.aistore_conn_id)
        source = Bucket.parse(self.source)
        return Inspection(hook.get_conn(), source, self.etl, self.prefix, self.workers, hook.pods)

    def execute(self, context: Context) -> dict[str, Any]:
        """Submit the job and wait until it ends."""
        with airflow_errors():
            check_policy(self.on_failed_objects)
            job_id = self.inspection().submit()
        trigger = self.trigger(job_id, etl_names=self.etl.over("hpush").own_names)
        return dict(self.wait_for(trigger, "report", context))

    def report(self, context: Context, event: dict[str, Any]) -> dict[str, Any]:
        """Read the failures from AIStore, record them in ``storeside.runs``, log and return them.

        Raises AIStoreTransientError, as AirflowException, if the job ended with an error or the failures cannot be
        read, and AirflowFailException if they are too many to be listed.
        """
        self.log.info("job %s: %s", event["job_id"], event["progress"])
        with airflow_errors():
            inspection = self.inspection()
            if event["error"]:
                inspection.release()
                raise AIStoreTransientError(f"inspection {event['job_id']} did not end: {event['error']}")
            failed = list(inspection.failures(event["job_id"]).items())
            result = {"objects": event["objects"], "failed": len(failed), "examples": failed[:20]}
            book = ledger(self.clickhouse_conn_id)
            book.create()
            book.record_run(
                {
                    **run_columns(context),
                    "kind": "inspect",
                    "source": self.source,
                    "state": "partial" if failed else "done",
                    "listed": event["objects"],
                    "done": max(event["objects"] - len(failed), 0),
                    "failed": len(failed),
                    "job_seconds": event["seconds"],
                    "detail": json.dumps(result),
                }
            )
        for name, reason in failed:
            self.log.warning("failed: %r: %s", name, reason, object=name)
        if failed and self.on_failed_objects == "fail":
            raise AirflowFailException(
                f"{len(failed)} objects cannot be transformed, such as {failed[0][0]!r}: {failed[0][1]}"
            )
        if not event["objects"] and not failed:
            self.end_without(f"no object of {self.source} matches the prefix {self.prefix!r}")
        return dict(plain(result))
