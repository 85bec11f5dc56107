"""Data movement: all runs, current runs, and the page of one run."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

from airflow.api_fastapi.core_api.security import GetUserDep
from airflow.models.taskinstance import TaskInstance
from airflow.utils.session import create_session
from fastapi import APIRouter, HTTPException, Request, Response
from sqlalchemy import select, tuple_

from storeside.operators.hooks.aistore import AIStoreHook
from storeside.pages import charts, datapath
from storeside.pages import movement as movements
from storeside.pages.movement import Movement, Progress
from storeside.pages.tables import Tables, UnavailableError
from storeside.plugins.pages.access import TablesDep, may_run, may_stop
from storeside.plugins.pages.connections import aistore
from storeside.plugins.pages.instances import instance
from storeside.plugins.pages.render import render

router = APIRouter()
# States of task instances that have ended.
_OVER = frozenset({"success", "failed", "removed", "skipped", "upstream_failed"})
# Maximum number of "running" rows to ask Airflow about, and of running movements shown with progress, newest first.
_MOST_RUNNING, _MOST_SHOWN = 200, 20


@dataclass(frozen=True)
class Live:
    """A running movement."""

    movement: Movement
    progress: Progress
    state: str
    may_stop: bool


@dataclass(frozen=True)
class Now:
    """The newest running movements, and the number of all."""

    shown: list[Live]
    count: int


@router.get("/movement")
def overview(
    request: Request, tables: TablesDep, user: GetUserDep,
    dag: str = "", place: str = "", kind: str = "", state: str = "", before: str = "",
) -> Response:  # fmt: skip
    """Show running and finished movements, newest first."""
    chosen = movements.Filter(dag, place, kind, state)
    history, page = movements.throughput(tables, dag), movements.movements(tables, chosen, before)
    return render(
        request, "movement.html", title="Data movement", chosen=chosen, before=before,
        kinds=["", *movements.kinds(tables)], states=movements.STATES,
        now=_now(tables, user, chosen), page=page, state_of=partial(_state, _under_way(page.rows)),
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
    """Return the running movements as a fragment for an open page."""
    chosen = movements.Filter(dag, place, kind)
    return render(request, "live.html", now=_now(tables, user, chosen, run), run=run)


@router.get("/run")
def run(
    request: Request, tables: TablesDep, user: GetUserDep, dag: str, run: str,
    task: str = "", map_index: str = "", status: str = "", after: str = "",
) -> Response:  # fmt: skip
    """Show one run: its stages, its data flow, and the objects of one stage."""
    if not tables.may_read(dag):
        raise HTTPException(403, "you may not read this DAG")
    run_id = f"{dag}/{run}"
    stages = movements.stages(tables, run_id)
    moving = [stage for stage in stages if stage.destination]
    # the requested stage, or one of the same task; otherwise the first with failures, or the last
    name = f"{task}[{map_index}]" if map_index.isdecimal() else task  # Airflow leaves {MAP_INDEX} if there is none
    asked = [stage for stage in moving if stage.task_id == name]
    asked += [stage for stage in moving if instance(stage.task_id).task == task]
    stage = next(iter([*asked, *[s for s in moving if s.failed], *reversed(moving)]), None)
    return render(
        request, "run.html", title="Run", dag=dag, run=run, run_id=run_id, stages=stages, stage=stage, status=status,
        moving=moving, timings=_timings(stages),
        picture=datapath.data_path(stages, movements.published(tables, run_id)),
        now=_now(tables, user, movements.Filter(), run_id),
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


def _now(tables: Tables, user: Any, chosen: movements.Filter, run: str = "") -> Now:
    """Return the running movements with their progress."""
    asked = movements.Filter(chosen.dag, chosen.place, chosen.kind, "running")
    found = movements.movements(tables, asked, limit=_MOST_RUNNING, run=run).rows
    states = _under_way(found)
    moving = [m for m in found if _row(m) in states]
    client_of = cache(aistore)
    shown = [
        Live(m, _progress(tables, client_of, m), states[_row(m)], may_stop(user, m.dag_id))
        for m in moving[:_MOST_SHOWN]
    ]
    return Now(shown, len(moving))


def _progress(tables: Tables, client_of: Callable[[str], Any], movement: Movement) -> Progress:
    """Return a movement's progress. A cluster that does not answer does not fail the page: the progress says so."""
    if movement.is_load:
        return movements.load_progress(tables, movement)
    # rows of earlier versions do not name the connection
    conn_id = str(movement.detail.get("aistore_conn_id") or AIStoreHook.default_conn_name)
    try:
        return movements.job_progress(client_of(conn_id), movement)
    except (UnavailableError, OSError) as e:  # OSError: certificate files that are missing here
        return Progress(
            objects_total=int(movement.detail.get("objects", 0)),
            seconds=time.time() - movement.started,
            phase=f"its progress is not known: {e}",
        )


def _row(movement: Movement) -> tuple[str, str]:
    """Return the key of a row of `storeside.runs`."""
    return movement.run_id, movement.task_id


def _under_way(found: Sequence[Movement]) -> dict[tuple[str, str], str]:
    """Return Airflow's states of movements that run by both their rows and Airflow; dead tasks leave their rows."""
    rows = {(m.dag_id, m.run, *instance(m.task_id)): _row(m) for m in found if m.state == "running"}
    if not rows:
        return {}
    columns = (TaskInstance.dag_id, TaskInstance.run_id, TaskInstance.task_id, TaskInstance.map_index)
    with create_session() as session:
        known = session.execute(select(*columns, TaskInstance.state).where(tuple_(*columns).in_(list(rows)))).all()
    return {rows[dag, run, task, index]: str(s or "queued") for dag, run, task, index, s in known if s not in _OVER}


def _state(under_way: dict[tuple[str, str], str], movement: Movement) -> str:
    """Return the state to show for a movement; if only its row says "running", it was interrupted."""
    return "cut off" if movement.state == "running" and _row(movement) not in under_way else movement.state
