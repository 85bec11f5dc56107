"""Base class of operators that skip the tasks after them if none of these tasks has anything to do.

Airflow needs seconds of CPU time to start a task, also for a task that then finds nothing to do. A task that itself
found nothing new therefore asks the operators after it, in its own process. If all of them have nothing to do either,
it records for each what the task would have recorded, reports their assets, and skips them. A skipped task starts no
process.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn, Protocol, TypedDict, runtime_checkable

from airflow.sdk import Asset, AssetAlias, BaseOperator
from airflow.sdk.bases.skipmixin import XCOM_SKIPMIXIN_KEY, XCOM_SKIPMIXIN_SKIPPED
from airflow.sdk.exceptions import DownstreamTasksSkipped

from storeside.operators.restrictions import FormOperator

if TYPE_CHECKING:
    from airflow.sdk import Context

# The XCom with the names of the skipped tasks; it exists only in a run that had nothing to do.
NOTHING_TO_DO = "nothing_to_do"


class SkipArguments(TypedDict, total=False):
    """The argument of `SkippingOperator`."""

    skip_idle: bool
    """if the task finds nothing new or failed, and no task after it has anything to do, skip these tasks; teardowns
    still run. All tasks after it must be Storeside's operators that can tell; see docs/transforms/idle-runs.md
    """


@runtime_checkable
class Foreseeing(Protocol):
    """An operator that can tell whether its task would have something to do if it started now."""

    def is_idle(self, context: Context) -> bool:
        """Return whether the task would find nothing to do; if so, record and report what the task would.

        The arguments are rendered, except those in an attribute `results_before`, which are results of other tasks.
        After any error, the task runs and shows the error itself.
        """


def is_mapped(context: Context) -> bool:
    """Return whether the task is an instance of a mapped one, which cannot skip others."""
    index = context["ti"].map_index
    return index is not None and index >= 0


def skip(operator: BaseOperator, context: Context, result: Any, tasks: Sequence[str]) -> NoReturn:
    """End the task successfully with `result`, and skip these tasks, which then start no process.

    Raises DownstreamTasksSkipped, with which Airflow does so.
    """
    operator.log.info("there is nothing to do: skipping %s", ", ".join(tasks))
    if operator.do_xcom_push:  # Airflow does not store the result of a task that ends by this exception
        context["ti"].xcom_push("return_value", result)
    context["ti"].xcom_push(XCOM_SKIPMIXIN_KEY, {XCOM_SKIPMIXIN_SKIPPED: tasks})
    raise DownstreamTasksSkipped(tasks=tasks)


class SkippingOperator(FormOperator):
    """Skips the tasks after it if they have nothing to do, with `skip_idle`."""

    def __init__(self, *, skip_idle: bool = False, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.skip_idle = skip_idle
        # Airflow's scheduler then skips a task again that a user clears alone.
        self._can_skip_downstream = skip_idle

    def skip_if_idle(self, context: Context, result: dict[str, Any]) -> None:
        """End the task with `result` and skip the tasks after it, if none of them has anything to do.

        Raises DownstreamTasksSkipped, with which Airflow ends a successful task that skips others.
        """
        if not self.skip_idle or is_mapped(context):
            return
        tasks = self._tasks_after()
        if not tasks or not all(self._is_idle(task, context) for task in tasks):
            return
        aliases = [outlet for outlet in self.outlets if isinstance(outlet, AssetAlias)]
        assets = [outlet for task in tasks for outlet in task.outlets if isinstance(outlet, Asset)]
        if assets and not aliases:
            self.log.info("this task's outlets have no alias for the assets of the tasks after it, so they run")
            return
        events = context["outlet_events"]
        for asset in assets:
            events[aliases[0]].add(asset, extra=dict(events[asset].extra))
        names = [task.task_id for task in tasks]
        context["ti"].xcom_push(NOTHING_TO_DO, names)
        skip(self, context, result, names)

    def _tasks_after(self) -> Sequence[BaseOperator]:
        """Return the tasks that run because of this task, in their order; none if one of them has to run.

        A task has to run if its operator cannot tell whether it has something to do, if it calls functions of the
        DAG's author, or if it also follows a task that is neither before nor after this one.
        """
        after = [task for task in self.get_flat_relatives(upstream=False) if not task.is_teardown]
        known = {self.task_id, *self.get_flat_relative_ids(upstream=True), *(task.task_id for task in after)}
        asked = [
            task
            for task in after
            if isinstance(task, BaseOperator)
            and isinstance(task, Foreseeing)
            and not (task._pre_execute_hook or task._post_execute_hook or task.upstream_task_ids - known)
        ]
        if len(asked) < len(after):
            return ()
        return sorted(asked, key=lambda task: len(task.get_flat_relative_ids(upstream=True)))

    def _is_idle(self, task: BaseOperator, context: Context) -> bool:
        """Return whether a task after this one has nothing to do; after an error, the task itself shows it."""
        task = task.prepare_for_execution()
        results = getattr(task, "results_before", ())
        task.template_fields = [name for name in task.template_fields if name not in results]
        instance = _Instance(context["ti"].dag_id, task.task_id, context["ti"].xcom_pull)
        later: Any = {**context, "task": task, "ti": instance, "task_instance": instance}
        try:
            task.render_template_fields(later)
            task.pre_execute(later)
            idle: bool = task.is_idle(later)  # type: ignore[attr-defined]
        except Exception as e:
            self.log.info("task %s runs, because this task cannot tell whether it is needed: %s", task.task_id, e)
            return False
        if not idle:
            self.log.info("task %s has something to do", task.task_id)
        return idle


@dataclass(frozen=True)
class _Instance:
    """The identity of a task that another task asks, in the context of the latter."""

    dag_id: str
    task_id: str
    xcom_pull: Any
    map_index: int = -1
