"""Data movement: all runs, current runs, and the page of one run."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any

from airflow.api_fastapi.core_api.security import GetUserDep
from fastapi import APIRouter, HTTPException, Request, Response

from storeside.operators.hooks.aistore import AIStoreHook
from storeside.pages import charts, datapath, failures
from storeside.pages import movement as movements
from storeside.pages import progress as progresses
from storeside.pages.movement import Movement
from storeside.pages.progress import Progress
from storeside.pages.tables import At, Tables, UnavailableError, UnreadableError
from storeside.plugins.pages import tasks
from storeside.plugins.pages.access import TablesDep, may_read_logs, may_read_runs, may_run, may_stop
from storeside.plugins.pages.connections import aistore
from storeside.plugins.pages.instances import instance
from storeside.plugins.pages.render import render
from storeside.plugins.pages.tasks import Run, Task

log = logging.getLogger(__name__)
router = APIRouter()
# Maximum number of "running" rows to ask Airflow about, and of running movements shown with progress, newest first.
_MOST_RUNNING, _MOST_SHOWN = 200, 20
# Maximum number of failed tasks of a run whose errors the page shows: the browser reads their logs.
_MOST_ERRORS = 3


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
    dag: str = "", place: str = "", kind: str = "", state: str = "", sort: str = "when", order: str = "desc",
    after: str = "", back: str = "",
) -> Response:  # fmt: skip
    """Show running and finished movements, by default newest first."""
    chosen, sorting = movements.Filter(dag, place, kind, state), movements.Sort(sort, order)
    page = movements.movements(tables, chosen, At(after, back), sort=sorting)
    may_read, dags = _reader(user), movements.dags(tables)
    known = tasks.states([m for m in page.rows if may_read(m.dag_id)])
    unfiltered = not (place or kind or state or after or back)
    failed = tasks.failed_runs(dags, dag, tables.dags) if unfiltered else []
    return render(
        request, "movement.html", title="Data movement", chosen=chosen, sorting=sorting, after=after,
        kinds=["", *movements.kinds(tables)], states=list(movements.STATES), dags=dags,
        places=movements.places(tables), totals=movements.totals(tables, chosen),
        now=_now(tables, user, chosen), page=page, state_of=partial(_state, known, may_read),
        failed_runs=[one for one in failed if may_read(one.dag)],
        lines=_lines(movements.throughput(tables, dag)),
    )  # fmt: skip


def _lines(history: Sequence[dict[str, Any]]) -> list[charts.Line | None]:
    """Return the charts of the last day."""
    every = charts.slice_seconds()
    return [
        charts.line(f"{what} per second of task time", [(row["at"], row[rate] / unit) for row in history], every)
        for what, rate, unit in (("objects", "objects_per_second", 1), ("MB read", "bytes_per_second", 1e6))
    ]


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
    task: str = "", map_index: str = "", status: str = "", after: str = "", back: str = "",
    accepted: int | None = None,
) -> Response:  # fmt: skip
    """Show one run: its tasks, its data flow, and the objects of one stage."""
    if not tables.may_read(dag) or not may_read_runs(user, dag):
        raise HTTPException(403, "you may not read this DAG, or its runs and tasks")
    run_id = f"{dag}/{run}"
    stages, found = movements.stages(tables, run_id), tasks.run_of(dag, run)
    if found is None and not stages:
        raise HTTPException(
            404, f"Airflow has no run {run!r} of the DAG {dag!r}, and Storeside has recorded nothing of one"
        )
    rows, moving = _rows(found, stages), [stage for stage in stages if stage.destination]
    stage = chosen_stage(moving, task, map_index)
    return render(
        request, "run.html", title="Run", dag=dag, run=run, run_id=run_id, stages=stages, stage=stage, status=status,
        moving=moving, rows=rows, found=found,
        is_partial=found is not None and found.state == "success" and any(stage.is_partial for stage in stages),
        most_errors=_MOST_ERRORS,
        failed=[row for row in rows if row.task and row.task.state == "failed"],
        later=movements.later_runs(tables, stage) if stage else [], may_read_logs=may_read_logs(user, dag),
        picture=datapath.data_path(stages, movements.published(tables, run_id)),
        now=_now(tables, user, movements.Filter(), run_id),
        page=movements.outcomes(tables, stage, status, At(after, back)) if stage else None,
        rejected=_rejected(tables, stage), known=failures.known(tables, stage) if stage else [], accepted=accepted,
        may_run=may_run(user, dag), may_stop=may_stop(user, dag),
    )  # fmt: skip


def chosen_stage(moving: Sequence[Movement], task: str, map_index: str = "") -> Movement | None:
    """Return the requested stage, or one of the same task; otherwise the first with failures, or the last."""
    name = f"{task}[{map_index}]" if map_index.isdecimal() else task  # Airflow leaves {MAP_INDEX} if there is none
    asked = [stage for stage in moving if stage.task_id == name]
    asked += [stage for stage in moving if instance(stage.task_id).task == task]
    return next(iter([*asked, *[s for s in moving if s.failed], *reversed(moving)]), None)


def _rejected(tables: Tables, stage: Movement | None) -> list[dict[str, Any]] | None:
    """Return the first rejected rows of a load; None if the pages' ClickHouse user may not read them."""
    try:
        return movements.rejected_rows(tables, stage) if stage else []
    except UnreadableError:
        return None


@dataclass(frozen=True)
class Row:
    """A task of a run: its state in Airflow, its records, and its times as parts of the time of the whole run."""

    name: str
    state: str
    task: Task | None
    stage: Movement | None
    start: float = 0.0
    length: float = 0.0
    work: float = 0.0

    @property
    def began(self) -> float:
        """The time when it began; 0 if it has not."""
        return self.stage.started if self.stage else self.task.started if self.task else 0.0

    @property
    def seconds(self) -> float:
        """How long it took."""
        # the row of a task that was cut off has no time
        return (self.stage.seconds if self.stage else 0.0) or (self.task.seconds if self.task else 0.0)


def _rows(run: Run | None, stages: Sequence[Movement]) -> list[Row]:
    """Return the tasks of a run with their movements, and movements whose tasks Airflow no longer has."""
    recorded, known = {stage.task_id: stage for stage in stages}, {task.name for task in run.tasks} if run else set()
    rows = [
        Row(task.name, tasks.shown_state(recorded.get(task.name), task.state), task, recorded.get(task.name))
        for task in (run.tasks if run else ())
    ]
    gone = [stage for stage in stages if stage.task_id not in known]
    states = tasks.states(gone) if run and len(known) < run.count else {}
    rows += [Row(s.task_id, tasks.shown_state(s, states.get(_row(s), "")), None, s) for s in gone]
    begun = [row for row in rows if row.began]
    if not begun:
        return rows
    first = min(row.began for row in begun)
    whole = max(max(row.began + row.seconds for row in begun) - first, 0.001)
    return [
        replace(
            row,
            start=(row.began - first) / whole,
            length=max(row.seconds / whole, 0.004),
            work=row.stage.job_seconds / whole if row.stage else 0.0,
        )
        if row.began
        else row
        for row in rows
    ]


def _now(tables: Tables, user: Any, chosen: movements.Filter, run: str = "") -> Now:
    """Return the running movements with their progress, of the DAGs whose tasks the visitor may read."""
    asked = movements.Filter(chosen.dag, chosen.place, chosen.kind, "running")
    found = movements.movements(tables, asked, limit=_MOST_RUNNING, run=run).rows
    may_read = _reader(user)
    states = _under_way([m for m in found if may_read(m.dag_id)])
    moving = [m for m in found if _row(m) in states]
    client_of, silent = cache(aistore), dict[str, str]()
    shown = [
        Live(m, _progress(tables, client_of, silent, m), states[_row(m)], may_stop(user, m.dag_id))
        for m in moving[:_MOST_SHOWN]
    ]
    return Now(shown, len(moving))


def _progress(
    tables: Tables, client_of: Callable[[str], Any], silent: dict[str, str], movement: Movement
) -> Progress:
    """Return a movement's progress; if its cluster does not answer, the progress states that.

    `silent` has the connections that have not answered this page, with the reasons. They are not tried again: each
    try waits for its time-out.
    """
    if movement.is_load:
        return progresses.load_progress(tables, movement)
    # rows of earlier versions do not name the connection
    conn_id = str(movement.detail.get("aistore_conn_id") or AIStoreHook.default_conn_name)
    reason = silent.get(conn_id, "")
    try:
        if not reason:
            return progresses.job_progress(client_of(conn_id), movement)
    except UnavailableError as e:
        reason = str(e)
    except OSError as e:
        log.warning("the connection %s cannot be used: %s", conn_id, e)
        reason = f"a file that the connection {conn_id} names is missing on the machine of Airflow's API server"
    silent[conn_id] = reason
    return Progress(
        objects_total=int(movement.detail.get("objects", 0)),
        seconds=time.time() - movement.started,
        phase=f"its progress is not known: {reason}",
    )


def _row(movement: Movement) -> tuple[str, str]:
    """Return the key of a row of `storeside.runs`."""
    return movement.run_id, movement.task_id


def _under_way(found: Sequence[Movement]) -> dict[tuple[str, str], str]:
    """Return Airflow's states of movements that run by both their rows and Airflow; dead tasks leave their rows."""
    known = tasks.states([m for m in found if m.state == "running"])
    return {row: state for row, state in known.items() if state not in tasks.OVER}


def _reader(user: Any) -> Callable[[str], bool]:
    """Return a function that returns whether the visitor may read the runs and tasks of a DAG."""
    return cache(lambda dag: may_read_runs(user, dag))


def _state(known: dict[tuple[str, str], str], may_read: Callable[[str], bool], movement: Movement) -> str:
    """Return the state to show for a movement: the recorded one if the visitor may not read Airflow's."""
    if not may_read(movement.dag_id):
        return movement.state
    return tasks.shown_state(movement, known.get(_row(movement), ""))
