"""Waiting in the triggerer for as long as a task may take, and no longer."""

from __future__ import annotations

import asyncio
import time
from datetime import timedelta
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any, NoReturn

from airflow.sdk import BaseOperator, get_current_context
from airflow.sdk.exceptions import TaskDeferralTimeout

if TYPE_CHECKING:
    from airflow.sdk import Context
    from airflow.triggers.base import BaseTrigger

# The XCom that says what the task waits for: when the time is over Airflow has forgotten its trigger.
WAITS_FOR = "waits_for"
# The triggerer hears some seconds later than the task that the time is over, and does again what is lost meanwhile.
TRIGGERER_SECONDS = 10.0


class DeferringOperator(BaseOperator):
    """Keeps to its `execution_timeout` while it is deferred, too: Airflow 3.3 holds only workers to it.

    The time begins anew with each deferral. When it is over, what the task waits for is told to stop, as when a user
    kills the task: Airflow does not tell it.
    """

    def defer(
        self,
        *,
        trigger: BaseTrigger,
        method_name: str,
        kwargs: dict[str, Any] | None = None,
        timeout: timedelta | int | float | None = None,
    ) -> NoReturn:
        """Defer, for `execution_timeout` where no other limit is given."""
        if timeout is None:
            timeout = self.execution_timeout
        if timeout is not None:
            path, arguments = trigger.serialize()
            get_current_context()["ti"].xcom_push(WAITS_FOR, {"trigger": path, "arguments": arguments})
        super().defer(trigger=trigger, method_name=method_name, kwargs=kwargs, timeout=timeout)

    def resume_execution(self, next_method: str, next_kwargs: dict[str, Any] | None, context: Context) -> Any:
        """Go on; when the time is over, stop what the task waits for, and fail."""
        try:
            return super().resume_execution(next_method, next_kwargs, context)
        except TaskDeferralTimeout as e:
            self._stop(context)
            raise TaskDeferralTimeout(
                "it was deferred for longer than its execution_timeout, and what it waited for was told to stop."
                " A retry goes on with what is left; give it more time where that ends so as well"
            ) from e

    def _stop(self, context: Context) -> None:
        try:
            waits_for = context["ti"].xcom_pull(key=WAITS_FOR)
            trigger = resolve_name(waits_for["trigger"])(**waits_for["arguments"])
            limit = self.execution_timeout  # holds for this, too
            time.sleep(min(TRIGGERER_SECONDS, limit.total_seconds() / 2) if limit else TRIGGERER_SECONDS)
            asyncio.run(trigger.on_kill())
        except Exception as e:  # the task fails for its time, whatever else is wrong
            self.log.warning("what this task waited for may go on: %s", e)
