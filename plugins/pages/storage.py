"""Storage: the targets of the AIStore cluster, their capacity, rebalances, and stuck targets and tasks."""

from __future__ import annotations

from typing import Annotated

from airflow.api_fastapi.core_api.security import GetUserDep
from fastapi import APIRouter, HTTPException, Query, Request, Response

from storeside.operators.hooks.aistore import AIStoreHook
from storeside.pages import movement, storage
from storeside.pages.movement import Filter, Movement
from storeside.pages.storage import State
from storeside.pages.tables import Tables, UnavailableError
from storeside.plugins.pages import tasks
from storeside.plugins.pages.access import TablesDep, may_read_runs
from storeside.plugins.pages.connections import aistore, answering
from storeside.plugins.pages.render import render

router = APIRouter()
_MOST_RUNNING, _MOST_STUCK = 200, 20


@router.get("/storage")
def overview(
    request: Request, tables: TablesDep, user: GetUserDep, conn_id: Annotated[str, Query(max_length=250)] = ""
) -> Response:
    """Show the cluster to users who may read all DAGs, whose data it holds; to others only their stuck tasks."""
    running = [one for one in _running(tables) if may_read_runs(user, one.dag_id)]
    states = tasks.states(running)
    replaced = movement.replaced(tables)
    # A task that Airflow has deleted cannot be cleared; one whose work a later run has done need not be.
    stuck = [
        one
        for one in running
        if (key := (one.run_id, one.task_id)) in states and key not in replaced and states[key] in tasks.OVER
    ]
    known, chosen = _connections(tables, conn_id)
    state, problem = _cluster(chosen) if tables.dags is None else (None, "")
    return render(
        request, "storage.html", title="Storage", state=state, problem=problem, known=known,
        stuck=stuck[:_MOST_STUCK], of_job={one.detail["job"]: one for one in running if one.detail.get("job")},
        conn_id=chosen, all_dags=tables.dags is None, full=storage.FULL,
    )  # fmt: skip


def cluster_of(tables: Tables, conn_id: str) -> State:
    """Return the cluster of a connection. Raises HTTPException for others than users who may read all DAGs.

    Raises UnavailableError if the cluster does not answer.
    """
    if tables.dags is not None:
        raise HTTPException(403, "the cluster holds data of all DAGs: its state is for users who may read all DAGs")
    state, problem = _cluster(_connections(tables, conn_id)[1])
    if state is None:
        raise UnavailableError(problem)
    return state


def _connections(tables: Tables, conn_id: str) -> tuple[list[str], str]:
    """Return the connections that the visitor may choose, and the chosen one."""
    known = sorted({AIStoreHook.default_conn_name, *(_conn_ids(tables) if tables.dags is None else ())})
    return known, conn_id if conn_id in known else AIStoreHook.default_conn_name


def _cluster(conn_id: str) -> tuple[State | None, str]:
    try:
        client = aistore(conn_id)
        with answering(conn_id):
            return storage.state(client), ""
    except UnavailableError as e:
        return None, str(e)


def _conn_ids(tables: Tables) -> list[str]:
    """Return the connections of recent movements: the page accepts no others."""
    found = movement.movements(tables, Filter(), limit=_MOST_RUNNING).rows
    return [str(one.detail["aistore_conn_id"]) for one in found if one.detail.get("aistore_conn_id")]


def _running(tables: Tables) -> list[Movement]:
    """Return movements that are recorded as running; those whose tasks do not run were cut off."""
    return movement.movements(tables, Filter(state="running"), limit=_MOST_RUNNING).rows
