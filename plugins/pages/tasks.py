"""Runs and task instances as Airflow knows them: the pages attach to them what Storeside recorded."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from airflow.models.dagrun import DagRun
from airflow.models.taskinstance import TaskInstance
from airflow.utils.session import create_session
from sqlalchemy import case, exists, func, or_, select, tuple_

import storeside.operators as public
from storeside.pages.etls import Use
from storeside.pages.movement import Movement
from storeside.plugins.pages.instances import instance

# States of task instances that have ended.
OVER = frozenset({"success", "failed", "removed", "skipped", "upstream_failed"})
FAILED = frozenset({"failed", "upstream_failed"})
# Maximum number of task instances on the page of a run: a mapped task may have thousands. Failed ones come first.
MOST_TASKS = 200
OPERATORS = tuple(name for name in public.__all__ if name.endswith("Operator"))
_RECENT = timedelta(days=7)
_MOST_FAILED_RUNS = 10

Key = tuple[str, str]


@dataclass(frozen=True)
class Task:
    """A task instance. `name` is as in `storeside.runs`; times are in seconds since the epoch, 0 when unknown."""

    task: str
    map_index: int
    state: str
    attempt: int
    started: float
    ended: float

    @property
    def name(self) -> str:
        """The task's id, with its index if it is mapped."""
        return f"{self.task}[{self.map_index}]" if self.map_index >= 0 else self.task

    @property
    def seconds(self) -> float:
        """How long its last try took."""
        return max(self.ended - self.started, 0.0) if self.started and self.ended else 0.0


@dataclass(frozen=True)
class Run:
    """A run with its state, its task instances in the order in which they began, and the number of all."""

    state: str
    tasks: tuple[Task, ...]
    count: int


@dataclass(frozen=True)
class FailedRun:
    """A run that failed, and the first of its tasks that failed themselves."""

    dag: str
    run: str
    at: float
    tasks: tuple[str, ...]


def run_of(dag: str, run: str) -> Run | None:
    """Return a run; None if Airflow has none of this id."""
    of_run = TaskInstance.dag_id == dag, TaskInstance.run_id == run
    columns = (
        TaskInstance.task_id, TaskInstance.map_index, TaskInstance.state, TaskInstance.try_number,
        TaskInstance.start_date, TaskInstance.end_date,
    )  # fmt: skip
    failed_first = case((TaskInstance.state == "failed", 0), else_=1)
    with create_session() as session:
        state = session.execute(
            select(DagRun._state).where(DagRun.dag_id == dag, DagRun.run_id == run)
        ).scalar_one_or_none()
        if state is None:
            return None
        count = session.execute(select(func.count()).select_from(TaskInstance).where(*of_run)).scalar_one()
        # A task has a higher weight than those after it, unless the DAG has another rule of weights.
        # MySQL has no NULLS LAST.
        begun_first = case((TaskInstance.start_date.is_(None), 1), else_=0)
        order = failed_first, begun_first, TaskInstance.start_date, TaskInstance.priority_weight.desc()
        statement = select(*columns).where(*of_run).order_by(*order).limit(MOST_TASKS)
        rows = session.execute(statement).all()
    tasks = [
        Task(task, index, str(state or "none"), attempt, seconds(began), seconds(ended))
        for task, index, state, attempt, began, ended in rows
    ]
    return Run(str(state), tuple(sorted(tasks, key=lambda task: task.started or float("inf"))), count)


def failed_runs(dags: Collection[str], dag: str, readable: Collection[str] | None) -> list[FailedRun]:
    """Return the newest failed runs of the last days that have our tasks, or whose DAG is among `dags`.

    `dag` is a part of their DAGs' names; `readable` limits them to those that the visitor may read; None means all.
    """
    ours = exists().where(
        TaskInstance.dag_id == DagRun.dag_id,
        TaskInstance.run_id == DagRun.run_id,
        TaskInstance.operator.in_(OPERATORS),
    )
    statement = (
        select(DagRun.dag_id, DagRun.run_id, func.coalesce(DagRun.end_date, DagRun.run_after))
        .where(DagRun._state == "failed", DagRun.run_after > datetime.now(UTC) - _RECENT)
        .where(or_(DagRun.dag_id.in_(list(dags)), ours))
        .order_by(DagRun.run_after.desc())
        .limit(_MOST_FAILED_RUNS)
    )
    if dag:
        statement = statement.where(func.lower(DagRun.dag_id).contains(dag.lower(), autoescape=True))
    if readable is not None:
        statement = statement.where(DagRun.dag_id.in_(list(readable)))
    with create_session() as session:
        runs = session.execute(statement).all()
        asked = (
            select(TaskInstance.dag_id, TaskInstance.run_id, TaskInstance.task_id)
            .where(tuple_(TaskInstance.dag_id, TaskInstance.run_id).in_([(d, r) for d, r, _ in runs]))
            .where(TaskInstance.state == "failed")
            .distinct()
            .limit(10 * _MOST_FAILED_RUNS)
        )
        failed = session.execute(asked).all() if runs else []
    return [FailedRun(d, r, seconds(at), tuple(task for *key, task in failed if key == [d, r])) for d, r, at in runs]


def states(found: Sequence[Movement | Use]) -> dict[Key, str]:
    """Return Airflow's states of recorded tasks, by run id and task id of `storeside.runs`."""
    rows = {(*m.run_id.partition("/")[::2], *instance(m.task_id)): (m.run_id, m.task_id) for m in found}
    if not rows:
        return {}
    columns = (TaskInstance.dag_id, TaskInstance.run_id, TaskInstance.task_id, TaskInstance.map_index)
    with create_session() as session:
        known = session.execute(select(*columns, TaskInstance.state).where(tuple_(*columns).in_(list(rows)))).all()
    return {rows[dag, run, task, index]: str(state or "queued") for dag, run, task, index, state in known}


def shown_state(movement: Movement | None, state: str) -> str:
    """Return the state to show for a task: Airflow's if it failed or moved nothing, otherwise what was recorded.

    `state` is Airflow's, empty when Airflow does not have the task. A movement that is recorded as running, and whose
    task does not run, was cut off.
    """
    if movement is None:
        return state
    if movement.state == "running" and (not state or state in OVER):
        return "cut off"
    return state if state in FAILED else movement.state


def seconds(at: datetime | str | None) -> float:
    """Return a time of Airflow's database in seconds since the epoch; 0 for none."""
    if isinstance(at, str):  # what SQLite returns for an aggregate
        at = datetime.fromisoformat(at).replace(tzinfo=UTC)
    return at.timestamp() if at else 0.0
