"""Base class of operators that wait for jobs of AIStore: in the triggerer, or in the worker."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from storeside.operators.bases.deferring import WaitingArguments, WaitingOperator
from storeside.operators.bases.selecting import SelectingArguments
from storeside.operators.errors import is_final
from storeside.operators.hooks.aistore import AIStoreHook

if TYPE_CHECKING:
    from airflow.sdk import Context
    from aistore.sdk import Client

    from storeside.operators.triggers.aistore import AISJobTrigger


class FollowingArguments(WaitingArguments, SelectingArguments, total=False):
    """Arguments of operators that wait for a job of AIStore over selected objects."""


class FollowingOperator(WaitingOperator):
    """Waits for AIStore's jobs; aborts a job when its task is killed or cleared, or exceeds `execution_timeout`."""

    aistore_conn_id: str
    stall_seconds: float
    poll_interval: float = 1.0

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._stop_job: Callable[[], None] | None = None

    def trigger(self, job_id: str, **more: Any) -> AISJobTrigger:
        """Return the trigger for a job that began now; `more` are its arguments that the operator does not have."""
        from storeside.operators.triggers.aistore import AISJobTrigger

        return AISJobTrigger(
            self.aistore_conn_id, job_id, time.time(), poll_interval=self.poll_interval,
            stall_seconds=self.stall_seconds, **more,
        )  # fmt: skip

    def wait_for(self, trigger: AISJobTrigger, method_name: str, context: Context, **kwargs: Any) -> Any:
        """Wait until the job ends, and return the result of a method of this operator with the trigger's event."""
        if self.deferrable:
            self.defer(trigger=trigger, method_name=method_name, kwargs=kwargs)
        client = AIStoreHook(trigger.aistore_conn_id).get_conn()
        return getattr(self, method_name)(context, event=self.follow(client, trigger), **kwargs)

    def follow(self, client: Client, trigger: AISJobTrigger, seconds: float = float("inf")) -> dict[str, Any] | None:
        """Follow the trigger's job in the worker; return the trigger's event, or None if it runs after `seconds`."""
        self.stop_on_kill(client, trigger)
        event = self._follow(client, trigger, seconds)
        self._stop_job = None  # not after an error: Airflow calls on_kill after AirflowTaskTimeout has left `execute`
        return event

    def stop_on_kill(self, client: Client, trigger: AISJobTrigger) -> None:
        """Let `on_kill` abort the trigger's job, unless the job belongs to another task."""
        from storeside.aistore.following import cancel

        self._stop_job = partial(cancel, client, trigger.job_id, trigger.etl_names) if trigger.own else None

    def _follow(self, client: Client, trigger: AISJobTrigger, seconds: float) -> dict[str, Any] | None:
        from storeside.aistore.following import describe
        from storeside.aistore.jobs import Follower
        from storeside.operators.triggers.aistore import REPORT_SECONDS, ended

        follower = Follower(client, trigger.job_id, trigger.stall_seconds, is_final, trigger.own, trigger.started)
        reported = time.time()
        while time.time() - trigger.started < seconds:
            progress = follower.poll()
            text = describe(progress, trigger.total, time.time() - trigger.started)
            if progress.finished:
                return ended(trigger.job_id, progress, text)
            if time.time() - reported >= REPORT_SECONDS:
                self.log.info("job %s: %s", trigger.job_id, text)
                reported = time.time()
            time.sleep(trigger.poll_interval)
        return None

    def on_kill(self) -> None:
        """Abort the job that this worker follows: a user ended the task, or its `execution_timeout` is over."""
        if self._stop_job:
            self.log.info("aborting AIStore's job")
            self._stop_job()
