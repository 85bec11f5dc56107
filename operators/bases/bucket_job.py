"""Base class of operators that run a bucket job: plan, submit, defer while AIStore works, reconcile."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import UTC, datetime
from math import inf
from typing import TYPE_CHECKING, Any, Required, TypedDict

from storeside.aistore.buckets import Bucket
from storeside.operators.arguments import check_literals, flag
from storeside.operators.bases.ahead import SkipArguments, SkippingOperator
from storeside.operators.bases.following import FollowingArguments, FollowingOperator
from storeside.operators.bases.selecting import SelectingOperator
from storeside.operators.errors import OperatorInputError, airflow_errors
from storeside.operators.hooks.aistore import AIStoreHook
from storeside.operators.movement import MovementOperator
from storeside.operators.outcome import check_policy, finish
from storeside.operators.shared import as_bool, ledger, record_running, run_key
from storeside.transform.naming import Naming

if TYPE_CHECKING:
    from airflow.sdk import Context

    from storeside.aistore.spec import EtlSpec
    from storeside.operators.outcome import OnFailed
    from storeside.transfer.request.template import Template
    from storeside.transform.bucket_job import Given
    from storeside.transform.state import Job, ListSource, Options, State

# A deferral takes 3 to 8 s: Airflow starts a trigger, which follows the job from the beginning, and a process for the
# rest of the task.
BRIEF_SECONDS = 10.0


class JobArguments(FollowingArguments, total=False):
    """Arguments of operators that run a job of AIStore over a bucket."""

    on_failed_objects: OnFailed | Template
    """``fail`` the task when objects failed, now or for good in earlier runs, or ``report`` them and succeed"""
    plan_only: bool | str
    """change nothing; only report how many objects would be listed, processed, skipped and refused"""
    workers: int
    """concurrent workers per target; 0 lets AIStore choose"""
    poll_interval: float
    """seconds between two polls"""
    aistore_conn_id: str
    """connection to AIStore"""
    clickhouse_conn_id: str
    """connection to ClickHouse"""


class StallArguments(TypedDict, total=False):
    """The time-out of operators whose jobs may stop to make progress."""

    stall_seconds: float
    """seconds without progress after which the job is aborted and its missing objects are retried"""


class PrependArguments(TypedDict, total=False):
    """The names of results."""

    prepend: str
    """prefix for the name of every copy or result"""


class BucketArguments(JobArguments, SkipArguments, total=False):
    """Arguments of operators that make one result of each object of a bucket."""

    source: Required[str]
    """bucket URI"""
    destination: Required[str]
    """bucket URI; a missing ``ais://`` bucket is created"""
    prefix: str
    """process only objects whose names start with this"""
    continue_on_error: bool
    """False aborts the job at the first object that fails"""
    retry_failed: bool | str
    """also try objects that failed for good in an earlier run"""
    latest: bool | str
    """AIStore checks a remote source for newer versions of objects"""
    quarantine: str
    """URI of a bucket that receives a copy of each source object that failed for good"""


class CopyArguments(BucketArguments, StallArguments, PrependArguments, total=False):
    """All arguments of `BucketJobOperator`."""


class BucketJobOperator(SkippingOperator, FollowingOperator, MovementOperator, SelectingOperator):
    """Runs a `BucketJob`; a task that is `deferrable` follows it in the worker for `BRIEF_SECONDS`, then it defers.

    A task that is killed and retried follows the job that still runs. The log and ``storeside.objects`` list failed
    objects with their reasons; `on_failed_objects` decides whether the task then fails. Returns the job's `Summary`
    as a dictionary.
    """

    template_fields: Sequence[str] = (
        "source",
        "destination",
        "prefix",
        "prepend",
        "on_failed_objects",
        "on_nothing",
        "retry_failed",
        "latest",
        "quarantine",
        "plan_only",
    )
    ui_color = "#d7e9f7"
    kind = "copy"

    def __init__(
        self,
        *,
        source: str,
        destination: str,
        prefix: str = "",
        prepend: str = "",
        on_failed_objects: OnFailed | Template = "fail",
        continue_on_error: bool = True,
        retry_failed: bool | str = False,
        latest: bool | str = False,
        quarantine: str = "",
        plan_only: bool | str = False,
        workers: int = 0,
        stall_seconds: float = 300,
        poll_interval: float = 1.0,
        aistore_conn_id: str = AIStoreHook.default_conn_name,
        clickhouse_conn_id: str = "clickhouse_default",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.source = source
        self.destination = destination
        self.prefix = prefix
        self.prepend = prepend
        self.on_failed_objects = on_failed_objects
        self.continue_on_error = continue_on_error
        self.retry_failed = retry_failed
        self.latest = latest
        self.quarantine = quarantine
        self.plan_only = plan_only
        self.workers = workers
        self.stall_seconds = stall_seconds
        self.poll_interval = poll_interval
        self.aistore_conn_id = aistore_conn_id
        self.clickhouse_conn_id = clickhouse_conn_id
        check_literals(
            self, source=Bucket.parse, destination=Bucket.parse, quarantine=Bucket.parse,
            on_failed_objects=check_policy, retry_failed=flag("retry_failed"), latest=flag("latest"),
            plan_only=flag("plan_only"), prepend=lambda value: Naming(prepend=value),
        )  # fmt: skip

    def spec(self, context: Context) -> EtlSpec | None:
        """Return the ETL to apply; None copies the objects unchanged."""
        return None

    def naming(self, context: Context) -> Naming:
        """Return how objects are named at the destination."""
        return Naming(prepend=self.prepend)

    def job(self, context: Context) -> Job:
        """Build the engine's job from the rendered arguments.

        Raises OperatorInputError for invalid arguments.
        """
        from storeside.transform.bucket_job import BucketJob

        for name in ("source", "destination"):
            if not getattr(self, name):
                raise OperatorInputError(f"{name} is empty: set it to the URI of a bucket, such as ais://results")
        source = Bucket.parse(self.source)
        check_policy(self.on_failed_objects)
        naming = self.naming(context)
        hook = AIStoreHook(self.aistore_conn_id)
        return BucketJob(
            hook.get_conn(),
            ledger(self.clickhouse_conn_id),
            source,
            Bucket.parse(self.destination),
            run_id=run_key(context),
            spec=self.spec(context),
            naming=naming,
            options=self.options(),
            list_source=self.listing(source),
            pods=hook.pods,
            given=self.given(),
        )

    def given(self) -> Given | None:
        """Return what the job is given beside the objects; None for nothing."""
        return None

    def options(self) -> Options:
        """Return the job's options. Raises OperatorInputError for arguments that contradict each other."""
        from storeside.transform.state import Options

        return Options(
            prefix=self.prefix,
            retry_failed=as_bool(self.retry_failed, "retry_failed"),
            latest=as_bool(self.latest, "latest"),
            workers=self.workers,
            continue_on_error=self.continue_on_error,
            quarantine=Bucket.parse(self.quarantine) if self.quarantine else None,
        )

    def listing(self, source: Bucket) -> ListSource | None:
        """Return a function that lists the source; None lets AIStore list it."""
        return None

    def execute(self, context: Context) -> dict[str, Any]:
        """Plan, submit and defer; a dry run, and a plan without objects, end the task at once."""
        with airflow_errors():
            job = self.job(context)
            if as_bool(self.plan_only, "plan_only"):
                plan = job.preview()
                self.log.info("dry run, nothing was changed: %s", plan)
                return plan
            return self._go_on(context, job, job.begin())

    def resume(self, context: Context, event: dict[str, Any], state: dict[str, Any]) -> dict[str, Any]:
        """Continue after an AIStore job ended: reconcile, retry missing objects, or finish."""
        from storeside.transform.state import State

        with airflow_errors():
            self._log_end(event)
            job = self.job(context)
            return self._go_on(context, job, job.advance(State(**state), event["seconds"]))

    def _log_end(self, event: dict[str, Any]) -> None:
        self.log.info("job %s: %s", event["job_id"], event["progress"])
        if event["error"]:
            self.log.warning(
                "job %s: %s; the task continues with the missing objects", event["job_id"], event["error"]
            )

    def after_delay(self, context: Context, event: Any, state: dict[str, Any]) -> dict[str, Any]:
        """Continue when the delay before the next attempt is over."""
        from storeside.transform.state import State

        with airflow_errors():
            return self._go_on(context, self.job(context), State(**state))

    def _go_on(self, context: Context, job: Job, state: State) -> dict[str, Any]:
        while state.phase != "done":
            if state.not_before > time.time() + self.poll_interval:
                self._delay(state)
            state = job.submit(state)
            if state.job_id:
                trigger = self.trigger(
                    state.job_id, total=state.pending if state.phase in ("bucket", "objects") else 0,
                    own=not state.waits,
                    etl_names=job.spec.all_names if job.spec and not job.options.keep_etl else (),
                )  # fmt: skip
                self.stop_on_kill(job.client, trigger)
                record_running(
                    job.ledger, context, self.kind, str(job.source), str(job.destination),
                    started=state.started, objects=state.pending, job=state.job_id,
                    aistore_conn_id=self.aistore_conn_id, etls=list(state.etl_names),
                )  # fmt: skip
                event = self.follow(job.client, trigger, BRIEF_SECONDS if self.deferrable else inf)
                if event is None:
                    self.defer(trigger=trigger, method_name="resume", kwargs={"state": state.to_dict()})
                self._log_end(event)
                state = job.advance(state, event["seconds"])
            else:
                state = job.advance(state)
        result = finish(self, context, job.ledger, self.kind, job.finish(state), self.on_failed_objects)
        if not result["listed"]:
            self.end_without(f"no object of {self.source} matches")
        if job.options.keeps_result and not (result["done"] or result["failed"]):
            self.skip_if_idle(context, result)
        return result

    def is_idle(self, context: Context) -> bool:
        """Return whether the task would find nothing to do; record it then. See `Foreseeing`.

        A task that would fail, or end as `on_nothing` says, has something to do.
        """
        from storeside.transform.bucket_job import BucketJob

        if as_bool(self.plan_only, "plan_only"):
            return False
        with airflow_errors():
            job = self.job(context)
            summary = job.idle() if isinstance(job, BucketJob) else None
        if (
            summary is None
            or (summary.known_bad and self.on_failed_objects == "fail")
            or (not summary.listed and self.on_nothing != "succeed")
        ):
            return False
        finish(self, context, job.ledger, self.kind, summary, self.on_failed_objects)
        return True

    def _delay(self, state: State) -> None:
        """Wait until the time of the next attempt."""
        if not self.deferrable:
            time.sleep(max(state.not_before - time.time(), 0))
            return
        from airflow.providers.standard.triggers.temporal import DateTimeTrigger

        moment = datetime.fromtimestamp(state.not_before, UTC)
        self.defer(trigger=DateTimeTrigger(moment), method_name="after_delay", kwargs={"state": state.to_dict()})
