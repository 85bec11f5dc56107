"""The acceptance of known failures: objects that tasks leave out because they failed for good in earlier runs."""

from __future__ import annotations

import logging
from typing import Annotated

from airflow.api_fastapi.core_api.security import GetUserDep
from fastapi import APIRouter, Depends, Form, HTTPException, Request, Response
from fastapi.responses import RedirectResponse

from storeside.pages import failures, movement
from storeside.plugins.pages.access import TablesDep, may_run, require_same_origin
from storeside.plugins.pages.connections import clickhouse
from storeside.plugins.pages.render import query
from storeside.sql import roles

log = logging.getLogger(__name__)
router = APIRouter()


@router.post("/accept", dependencies=[Depends(require_same_origin)])
def accept(
    request: Request,
    tables: TablesDep,
    user: GetUserDep,
    dag: Annotated[str, Form()],
    run: Annotated[str, Form()],
    task: Annotated[str, Form()],
    failure: Annotated[list[str] | None, Form()] = None,
) -> Response:
    """Accept the chosen failures of a task in the visitor's name: later runs skip these versions of the objects."""
    from clickhouse_connect.driver.exceptions import ClickHouseError

    if not failure:
        raise HTTPException(400, "no failure was chosen: tick those that are to be accepted")
    if not tables.may_read(dag) or not may_run(user, dag):
        raise HTTPException(403, "failures are accepted by those who may run the DAG")
    stage = next((one for one in movement.stages(tables, f"{dag}/{run}") if one.task_id == task), None)
    chosen = (
        [one.object for one in failures.known(tables, stage) if one.is_open and one.id in failure] if stage else []
    )
    if stage is None or not chosen:
        raise HTTPException(404, "the task has no such failures that are still to be accepted: open its run again")
    try:
        count = failures.accept(clickhouse(roles.LEDGER), stage, chosen, user.get_name())
    except ClickHouseError as e:
        log.warning("ClickHouse did not accept failures: %s", e)
        raise HTTPException(
            502, "ClickHouse did not record it. Try again; Airflow's API server has its answer in its log"
        ) from e
    log.info("%s accepted %d failures of the run %s/%s: %s", user.get_name(), count, dag, run, task)
    to = query(dag=dag, run=run, task=task, accepted=str(count))
    return RedirectResponse(f"{request.scope['root_path']}/run?{to}#known", 303)
