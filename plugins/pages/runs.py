"""The newest runs of pipelines, and who started them, as Airflow knows them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from airflow.models.dag import DagModel
from airflow.models.dagrun import DagRun
from airflow.models.taskinstance import TaskInstance
from airflow.utils.session import create_session
from sqlalchemy import exists, func, or_, select, tuple_

from storeside.plugins.pages.tasks import OPERATORS, seconds

_RECENT = timedelta(days=30)
MOST_RUNS = 10
_MOST_DAGS = 200
_ENDED = ("success", "failed")


@dataclass(frozen=True)
class Run:
    """A run of a DAG with its state. Times are in seconds since the epoch, 0 when unknown."""

    dag: str
    run: str
    state: str
    at: float
    ended: float


@dataclass(frozen=True)
class Latest:
    """The newest runs of a DAG, oldest first, when one last succeeded, and whether the DAG is paused."""

    runs: tuple[Run, ...] = ()
    succeeded: float = 0.0
    is_paused: bool = False

    @property
    def last_ended(self) -> Run | None:
        """The newest run that has ended."""
        return next((run for run in reversed(self.runs) if run.state in _ENDED), None)

    @property
    def failed_in_a_row(self) -> int:
        """How many of the newest runs that have ended failed, one after the other."""
        states = [run.state for run in reversed(self.runs) if run.state in _ENDED]
        return states.index("success") if "success" in states else len(states)


def latest(dags: Collection[str], dag: str, readable: Collection[str] | None) -> dict[str, Latest]:
    """Return the newest runs of the DAGs that have our tasks, or that are among `dags`.

    `dag` is a part of their names. `readable` limits them to those that the visitor may read; None means all.
    """
    ours = exists().where(
        TaskInstance.dag_id == DagRun.dag_id,
        TaskInstance.run_id == DagRun.run_id,
        TaskInstance.operator.in_(OPERATORS),
    )
    number = func.row_number().over(partition_by=DagRun.dag_id, order_by=DagRun.run_after.desc()).label("number")
    asked = select(
        DagRun.dag_id, DagRun.run_id, DagRun._state.label("state"), DagRun.run_after, DagRun.end_date, number
    ).where(DagRun.run_after > datetime.now(UTC) - _RECENT, or_(DagRun.dag_id.in_(list(dags)), ours))
    if readable is not None:
        asked = asked.where(DagRun.dag_id.in_(list(readable)))
    if dag:
        asked = asked.where(func.lower(DagRun.dag_id).contains(dag.lower(), autoescape=True))
    newest = asked.subquery()
    # the newest first: if there are too many, the limit leaves out the oldest
    statement = select(newest).where(newest.c.number <= MOST_RUNS).order_by(newest.c.run_after.desc())
    with create_session() as session:
        found: dict[str, list[Run]] = {}
        for dag_id, run, state, at, ended, _ in session.execute(statement.limit(_MOST_DAGS * MOST_RUNS)).all():
            found.setdefault(dag_id, []).append(Run(dag_id, run, str(state), seconds(at), seconds(ended)))
        succeeded = dict(
            session.execute(
                select(DagRun.dag_id, func.max(DagRun.end_date))
                .where(DagRun.dag_id.in_(list(found)), DagRun._state == "success")
                .group_by(DagRun.dag_id)
            ).all()
        )
        paused = dict(
            session.execute(select(DagModel.dag_id, DagModel.is_paused).where(DagModel.dag_id.in_(list(found)))).all()
        )
    return {
        name: Latest(tuple(reversed(runs)), seconds(succeeded.get(name)), bool(paused.get(name)))
        for name, runs in found.items()
    }


def started_by(runs: Sequence[tuple[str, str]]) -> dict[tuple[str, str], str]:
    """Return who or what started runs, by DAG and run id: a user, a schedule, an asset, a backfill."""
    if not runs:
        return {}
    columns: tuple[Any, ...] = DagRun.dag_id, DagRun.run_id, DagRun.run_type, DagRun.triggering_user_name
    with create_session() as session:
        found = session.execute(select(*columns).where(tuple_(DagRun.dag_id, DagRun.run_id).in_(list(runs)))).all()
    kinds = {"scheduled": "its schedule", "asset_triggered": "an asset", "backfill": "a backfill"}
    return {(dag, run): user or kinds.get(str(kind), "a user") for dag, run, kind, user in found}
