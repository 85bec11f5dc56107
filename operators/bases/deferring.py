"""Base class of operators that defer, with an `execution_timeout` that also applies to deferred tasks."""

from __future__ import annotations

import asyncio
import time
from dataclasses import fields, is_dataclass, replace
from datetime import timedelta
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any, NoReturn

from airflow.sdk import get_current_context
from airflow.sdk.configuration import conf
from airflow.sdk.exceptions import TaskDeferralTimeout

from storeside.operators.bases.task import TaskArguments
from storeside.operators.errors import airflow_errors
from storeside.operators.restrictions import FormOperator
from storeside.transfer.request.table_keys import Expression

if TYPE_CHECKING:
    from airflow.sdk import Context
    from airflow.triggers.base import BaseTrigger

# The XCom that stores the trigger of a deferred task: after a timeout Airflow has deleted the trigger.
WAITS_FOR = "waits_for"
# The triggerer ends the trigger some seconds after the timeout; until then it would restart work that was stopped.
TRIGGERER_SECONDS = 10.0
# Arguments of deferrals by DAG and task. `airflow dags test` runs all tasks in its own process, and Airflow 3.3 drops
# these arguments there. Elsewhere a deferred task continues in a new process.
_ARGUMENTS: dict[tuple[str, str], dict[str, Any]] = {}


class DeferringOperator(FormOperator):
    """Applies `execution_timeout` also to deferred tasks, because Airflow 3.3 applies it only in workers.

    The time starts again with each deferral. After a timeout the operator calls the trigger's `on_kill`, because
    Airflow calls it only when a user kills the task.
    """

    def render_template(
        self, content: Any, context: Context, jinja_env: Any = None, seen_oids: set[int] | None = None
    ) -> Any:
        """Render a template; for an options object, which is a frozen dataclass, render every field.

        Raises AirflowFailException if rendered values do not fit the options.
        """
        if isinstance(content, Expression):  # SQL of the DAG's author: a template would let a form write SQL
            return content
        if not is_dataclass(content) or isinstance(content, type):
            return super().render_template(content, context, jinja_env, seen_oids)
        values = {f.name: getattr(content, f.name) for f in fields(content)}
        rendered = {name: self.render_template(v, context, jinja_env, seen_oids) for name, v in values.items()}
        with airflow_errors():
            return replace(content, **rendered)

    def defer(
        self,
        *,
        trigger: BaseTrigger,
        method_name: str,
        kwargs: dict[str, Any] | None = None,
        timeout: timedelta | int | float | None = None,
    ) -> NoReturn:
        """Defer for at most `timeout`; without it, for at most `execution_timeout`."""
        if timeout is None:
            timeout = self.execution_timeout
        if timeout is not None:
            path, arguments = trigger.serialize()
            get_current_context()["ti"].xcom_push(WAITS_FOR, {"trigger": path, "arguments": arguments})
        _ARGUMENTS[self.dag_id, self.task_id] = kwargs or {}
        super().defer(trigger=trigger, method_name=method_name, kwargs=kwargs, timeout=timeout)

    def resume_execution(self, next_method: str, next_kwargs: dict[str, Any] | None, context: Context) -> Any:
        """Continue the task. After a timeout, stop the trigger's job or query and raise TaskDeferralTimeout."""
        arguments = {**_ARGUMENTS.pop((self.dag_id, self.task_id), {}), **(next_kwargs or {})}
        try:
            return super().resume_execution(next_method, arguments, context)
        except TaskDeferralTimeout as e:
            self._stop(context)
            raise TaskDeferralTimeout(
                "the task was deferred for longer than its execution_timeout, so its job or query was stopped."
                " A retry continues with the remaining work; if the retry also times out, raise execution_timeout"
            ) from e

    def _stop(self, context: Context) -> None:
        try:
            instance = context["ti"]
            # without an index, Airflow 3.3 returns the XComs of all instances of a mapped task
            index = instance.map_index if instance.map_index is not None and instance.map_index >= 0 else None
            waits_for = instance.xcom_pull(key=WAITS_FOR, map_indexes=index)
            trigger = resolve_name(waits_for["trigger"])(**waits_for["arguments"])
            limit = self.execution_timeout  # Airflow applies it to this method, too
            time.sleep(min(TRIGGERER_SECONDS, limit.total_seconds() / 2) if limit else TRIGGERER_SECONDS)
            asyncio.run(trigger.on_kill())
        except Exception as e:  # the task fails with the timeout, even if stopping fails
            self.log.warning("the job or query of this task may still run: %s", e)


class WaitingArguments(TaskArguments, total=False):
    """Arguments of operators that wait for another system."""

    deferrable: bool | None
    """True waits in the triggerer, False in the worker; None means Airflow's `default_deferrable`"""


class WaitingOperator(DeferringOperator):
    """Base class of operators that wait for another system, in the triggerer or in the worker."""

    def __init__(self, *, deferrable: bool | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.deferrable = conf.getboolean("operators", "default_deferrable") if deferrable is None else deferrable
