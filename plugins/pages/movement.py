"""Data movement: all runs, those under way, and the page of one run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from airflow.api_fastapi.core_api.security import GetUserDep
from airflow.models.taskinstance import TaskInstance
from airflow.utils.session import create_session
from fastapi import APIRouter, HTTPException, Request, Response
from sqlalchemy import select, tuple_

from include.pages import charts, datapath
from include.pages import movement as movements
from include.pages.movement import Movement, Progress
from include.pages.tables import Tables
from operators.hooks.aistore import AIStoreHook
from plugins.pages.access import TablesDep, may_run, may_stop
from plugins.pages.render import render

router = APIRouter()
# States of task instances in which nothing moves any more.
_OVER = frozenset({"success", "failed", "removed", "skipped", "upstream_failed"})


@dataclass(frozen=True)
class Live:
    """A movement under way."""

    movement: Movement
    progress: Progress
    state: str
    may_stop: bool


@router.get("/movement")
def overview(
    request: Request, tables: TablesDep, user: GetUserDep,
    dag: str = "", place: str = "", kind: str = "", state: str = "", before: str = "",
) -> Response:  # fmt: skip
    """Show what moves and what moved, newest first."""
    chosen = movements.Filter(dag, place, kind, state)
    history = movements.throughput(tables, dag)
    return render(
        request, "movement.html", title="Data movement", chosen=chosen, before=before,
        kinds=["", *movements.kinds(tables)], states=movements.STATES,
        live=_live(tables, user, chosen), page=movements.movements(tables, chosen, before),
        ended=_ended,
        lines=[
            charts.line("objects/s", "", [(row["at"], row["objects_per_second"]) for row in history]),
            charts.line("MB/s read", "", [(row["at"], row["bytes_per_second"] / 1e6) for row in history]),
        ],
    )  # fmt: skip


@router.get("/live")
def live(
    request: Request,
    tables: TablesDep,
    user: GetUserDep,
    dag: str = "",
    place: str = "",
    kind: str = "",
    run: str = "",
) -> Response:
    """Return what moves now, to be put into a page that is open."""
    chosen = movements.Filter(dag, place, kind)
    return render(request, "live.html", live=_live(tables, user, chosen, run), run=run)


@router.get("/run")
def run(
    request: Request, tables: TablesDep, user: GetUserDep, dag: str, run: str,
    task: str = "", status: str = "", after: str = "",
) -> Response:  # fmt: skip
    """Show one run: its stages, the way of its data, and the objects of one of the stages."""
    if not tables.may_read(dag):
        raise HTTPException(403, "you may not read this DAG")
    run_id = f"{dag}/{run}"
    stages = movements.stages(tables, run_id)
    moving = [stage for stage in stages if stage.destination]
    # the stage that was asked for; else the first with failures, or else the last
    asked = [stage for stage in moving if stage.task_id == task]
    stage = next(iter([*asked, *[s for s in moving if s.failed], *reversed(moving)]), None)
    return render(
        request, "run.html", title="Run", dag=dag, run=run, run_id=run_id, stages=stages, stage=stage, status=status,
        moving=moving, timings=_timings(stages),
        picture=datapath.data_path(stages, movements.published(tables, run_id)),
        live=_live(tables, user, movements.Filter(), run_id),
        page=movements.outcomes(tables, stage, status, after) if stage else None,
        rejected=movements.rejected_rows(tables, stage) if stage else [],
        may_run=may_run(user, dag), may_stop=may_stop(user, dag),
    )  # fmt: skip


def _timings(stages: Sequence[Movement]) -> list[dict[str, Any]]:
    """Return when each stage began and how long it took, as parts of the whole run."""
    if not stages:
        return []
    first = min(stage.started for stage in stages)
    whole = max(max(stage.started + stage.seconds for stage in stages) - first, 0.001)
    return [
        {
            "stage": stage,
            "start": (stage.started - first) / whole,
            "length": max(stage.seconds / whole, 0.004),
            "work": stage.job_seconds / whole,
        }
        for stage in stages
    ]


def _live(tables: Tables, user: Any, chosen: movements.Filter, run: str = "") -> list[Live]:
    """Return what moves, with its progress; what Airflow knows to be over does not move, whatever it left behind."""
    asked = movements.Filter(chosen.dag, chosen.place, chosen.kind, "running")
    found = movements.movements(tables, asked, limit=20, run=run).rows
    states = _states(found)
    moving = [m for m in found if states.get((m.dag_id, m.run, m.task_id), "") not in {"", *_OVER}]
    client = AIStoreHook().get_conn() if any(not m.is_load for m in moving) else None
    return [
        Live(
            m,
            movements.load_progress(tables, m) if m.is_load else movements.job_progress(client, m),
            states[m.dag_id, m.run, m.task_id],
            may_stop(user, m.dag_id),
        )
        for m in moving
    ]


def _states(found: Sequence[Movement]) -> dict[tuple[str, str, str], str]:
    """Return the states of task instances in Airflow."""
    keys = [(m.dag_id, m.run, m.task_id) for m in found]
    if not keys:
        return {}
    columns = (TaskInstance.dag_id, TaskInstance.run_id, TaskInstance.task_id)
    with create_session() as session:
        rows = session.execute(select(*columns, TaskInstance.state).where(tuple_(*columns).in_(keys))).all()
    return {(dag, run, task): str(state or "queued") for dag, run, task, state in rows}


def _ended(movement: Movement, live: Sequence[Live]) -> str:
    """Return the state to show of a movement: one that was under way and is no more was cut off."""
    under_way = {(m.movement.run_id, m.movement.task_id) for m in live}
    if movement.state == "running" and (movement.run_id, movement.task_id) not in under_way:
        return "cut off"
    return movement.state
