"""Queues: their depth and age, the outcome of events, and dead letters."""

from __future__ import annotations

from typing import Annotated, Any

from airflow.api_fastapi.core_api.security import GetUserDep
from fastapi import APIRouter, Depends, Form, HTTPException, Request, Response
from fastapi.responses import RedirectResponse

from storeside.events.errors import EventError
from storeside.pages import charts, queues
from storeside.pages.tables import Tables
from storeside.plugins.pages.access import TablesDep, may_run, require_same_origin
from storeside.plugins.pages.connections import sqs
from storeside.plugins.pages.render import query, render

router = APIRouter()
_MOST_LETTERS = 200


@router.get("/queues")
def overview(request: Request, tables: TablesDep, queue: str = "", state: str = "", before: str = "") -> Response:
    """Show all queues, and the history and events of one queue."""
    found = queues.queues(tables)
    chosen = queues.url(found, queue) or queue or (found[0]["queue"] if found else "")
    history = queues.history(tables, chosen) if chosen else []
    return render(
        request, "queues.html", title="Queues", queues=found, chosen=chosen, state=state, states=queues.STATES,
        before=before, page=queues.events(tables, chosen, state, before) if chosen else None,
        lines=[
            charts.line("messages waiting", "", [(row["at"], row["waiting"]) for row in history]),
            charts.line("age of the oldest*, seconds", "", [(row["at"], row["age"]) for row in history]),
            charts.line("dead letters", "", [(row["at"], row["dead_letters"]) for row in history]),
        ],
    )  # fmt: skip


@router.get("/dead-letters")
def dead_letters(
    request: Request, tables: TablesDep, user: GetUserDep, queue: str, sent: int | None = None
) -> Response:
    """Show dead letters to users who may send them back: reading hides them from other consumers for a while."""
    try:
        dead = _dead_letters(tables, user, queue)
        letters = dead.listed(_MOST_LETTERS)
    except EventError as e:
        raise HTTPException(502, str(e)) from e
    return render(
        request, "dead_letters.html", title="Dead letters", queue=dead.queue.url, letters=letters, sent=sent,
        most=_MOST_LETTERS,
    )  # fmt: skip


@router.post("/redrive", dependencies=[Depends(require_same_origin)])
def redrive(
    request: Request,
    tables: TablesDep,
    user: GetUserDep,
    queue: Annotated[str, Form()],
    message: Annotated[list[str] | None, Form()] = None,
) -> Response:
    """Send the chosen dead letters back to their queue."""
    if not message:
        raise HTTPException(400, "no dead letter was chosen: tick those that are to be sent back")
    try:
        count = _dead_letters(tables, user, queue).redrive(set(message))
    except EventError as e:
        raise HTTPException(502, str(e)) from e
    return RedirectResponse(f"{request.scope['root_path']}/dead-letters?{query(queue=queue, sent=str(count))}", 303)


def _dead_letters(tables: Tables, user: Any, queue: str) -> Any:
    """Return the dead letters of a queue that Storeside measures; our credentials must not read any other queue.

    Only users who may run a DAG that takes messages of this queue may see them. If no DAG has taken any, only users
    who may run all DAGs may see them.
    """
    from storeside.events.dead_letters import DeadLetters
    from storeside.events.queue import Queue

    if not (url := queues.url(queues.queues(tables), queue)):
        raise HTTPException(404, "no such queue among those that Storeside reads")
    dags = queues.dags(tables, url)
    of_no_dag = not dags and tables.dags is None
    if not (may_run(user) if of_no_dag else any(may_run(user, dag) for dag in dags)):
        raise HTTPException(403, "dead letters are for those who may run a DAG that takes messages of this queue")
    return DeadLetters(Queue(sqs(), url))
