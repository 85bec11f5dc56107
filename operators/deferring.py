"""Deferral that respects a task's `execution_timeout`."""

from __future__ import annotations

import asyncio
import time
from dataclasses import fields, is_dataclass, replace
from datetime import timedelta
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any, NoReturn

from airflow.sdk import get_current_context
from airflow.sdk.exceptions import TaskDeferralTimeout

from storeside.operators.forms import FormOperator
from storeside.transfer.keys import Expression

if TYPE_CHECKING:
    from airflow.sdk import Context
    from airflow.triggers.base import BaseTrigger

# The XCom that stores what the task waits for: after a timeout Airflow no longer has the trigger.
WAITS_FOR = "waits_for"
# The triggerer learns of the timeout some seconds after the task; until then it would restart work that was stopped.
TRIGGERER_SECONDS = 10.0


class DeferringOperator(FormOperator):
    """Applies `execution_timeout` to deferred tasks, too: Airflow 3.3 applies it only in workers.

    The time starts again with each deferral. After a timeout the operator calls the trigger's `on_kill`, as when a
    user kills the task, because Airflow does not.
    """

    def render_template(
        self, content: Any, context: Context, jinja_env: Any = None, seen_oids: set[int] | None = None
    ) -> Any:
        """Render a template; for an options object, which is a frozen dataclass, render every field."""
        if isinstance(content, Expression):  # the DAG author's SQL, in which no field of a form may appear
            return content
        if not is_dataclass(content) or isinstance(content, type):
            return super().render_template(content, context, jinja_env, seen_oids)
        values = {f.name: getattr(content, f.name) for f in fields(content)}
        rendered = {name: self.render_template(v, context, jinja_env, seen_oids) for name, v in values.items()}
        return replace(content, **rendered)

    def defer(
        self,
        *,
        trigger: BaseTrigger,
        method_name: str,
        kwargs: dict[str, Any] | None = None,
        timeout: timedelta | int | float | None = None,
    ) -> NoReturn:
        """Defer, for at most `execution_timeout` unless another limit is given."""
        if timeout is None:
            timeout = self.execution_timeout
        if timeout is not None:
            path, arguments = trigger.serialize()
            get_current_context()["ti"].xcom_push(WAITS_FOR, {"trigger": path, "arguments": arguments})
        super().defer(trigger=trigger, method_name=method_name, kwargs=kwargs, timeout=timeout)

    def resume_execution(self, next_method: str, next_kwargs: dict[str, Any] | None, context: Context) -> Any:
        """Continue the task; after a timeout stop what the task waited for, and fail."""
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
            limit = self.execution_timeout  # applies to this, too
            time.sleep(min(TRIGGERER_SECONDS, limit.total_seconds() / 2) if limit else TRIGGERER_SECONDS)
            asyncio.run(trigger.on_kill())
        except Exception as e:  # the task fails with the timeout, even if stopping fails
            self.log.warning("what this task waited for may go on: %s", e)
