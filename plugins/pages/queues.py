"""Queues: their depth and age, the outcome of events, and dead letters."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any

from airflow.api_fastapi.core_api.security import GetUserDep
from fastapi import APIRouter, Depends, Form, HTTPException, Request, Response
from fastapi.responses import RedirectResponse

from storeside.events.errors import EventError, EventInputError
from storeside.pages import charts, queues
from storeside.pages.objects import MOST_COUNTED
from storeside.pages.tables import At, Tables
from storeside.plugins.pages.access import TablesDep, may_run, require_same_origin
from storeside.plugins.pages.connections import sqs
from storeside.plugins.pages.render import query, render

log = logging.getLogger(__name__)
router = APIRouter()
_MOST_LETTERS = 200
# Seconds in which the page looks for the chosen dead letters.
_REDRIVE_SECONDS = 20


@router.get("/queues")
def overview(
    request: Request, tables: TablesDep, queue: str = "", state: str = "", text: str = "", after: str = "",
    back: str = "",
) -> Response:  # fmt: skip
    """Show all queues, and the history and events of one queue."""
    shown = queues.queues(tables)
    found = queues.find(tables, queue) if queue else next(iter(shown), None)
    if found and all(row["queue"] != found["queue"] for row in shown):
        shown.append(found)
    chosen = found["queue"] if found else ""
    history = queues.history(tables, chosen) if chosen else []
    return render(
        request, "queues.html", title="Queues", queues=shown, chosen=chosen, state=state, states=list(queues.STATES),
        label=found["label"] if found else queue.rpartition("/")[2], most_queues=queues.MOST_QUEUES,
        text=text, page=queues.events(tables, chosen, state, At(after, back), text) if chosen else None,
        count=queues.count(tables, chosen, state, text) if chosen else 0, most=MOST_COUNTED,
        lines=[
            charts.line(label, [(row["at"], row[column]) for row in history], charts.slice_seconds())
            for label, column in (
                ("messages waiting", "waiting"), ("age of the oldest*, seconds", "age"),
                ("dead letters", "dead_letters"),
            )
        ],
    )  # fmt: skip


@router.get("/dead-letters")
def dead_letters(
    request: Request, tables: TablesDep, user: GetUserDep, queue: str, sent: int | None = None, missed: int = 0
) -> Response:
    """Offer to read the dead letters of a queue, or show the number sent back. It does not read the queue."""
    _, label = _allowed(tables, user, queue)
    return render(
        request, "dead_letters.html", title="Dead letters", queue=label, letters=None, sent=sent, missed=missed
    )


@router.post("/dead-letters", dependencies=[Depends(require_same_origin)])
def read_dead_letters(
    request: Request, tables: TablesDep, user: GetUserDep, queue: Annotated[str, Form()]
) -> Response:
    """Show dead letters to users who may send them back: reading hides them from other consumers for a while."""
    url, label = _allowed(tables, user, queue)
    with _sqs_errors():
        dead_letters = _dead_letters(tables, user, url)
        letters = dead_letters.listed(_MOST_LETTERS)
    return render(
        request, "dead_letters.html", title="Dead letters", queue=label, letters=letters, sent=None, missed=0,
        more=dead_letters.has_more,
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
    url, label = _allowed(tables, user, queue)
    with _sqs_errors():
        count = _dead_letters(tables, user, url).redrive(set(message), seconds=_REDRIVE_SECONDS)
    missed = str(len(set(message)) - count)
    to = query(queue=label, sent=str(count), missed=missed if missed != "0" else "")
    return RedirectResponse(f"{request.scope['root_path']}/dead-letters?{to}", 303)


def _allowed(tables: Tables, user: Any, queue: str) -> tuple[str, str]:
    """Return URL and label of a queue that Storeside measures; our credentials must not read any other queue.

    Only users who may run a DAG that takes messages of this queue may see its dead letters. If no DAG has taken any,
    only users who may run all DAGs may see them.
    """
    if not (found := queues.find(tables, queue)):
        raise HTTPException(404, "no such queue among those that Storeside reads and that you may see")
    url = found["queue"]
    dags = queues.dags(tables, url)
    of_no_dag = not dags and tables.dags is None
    if not (may_run(user) if of_no_dag else any(may_run(user, dag) for dag in dags)):
        raise HTTPException(403, "dead letters are for those who may run a DAG that takes messages of this queue")
    return url, found["label"]


def _dead_letters(tables: Tables, user: Any, url: str) -> Any:
    """Return the dead letters of a queue.

    Those that name no queue are only for users who may see and run all DAGs.
    """
    from storeside.events.dead_letters import DeadLetters
    from storeside.events.queue import Queue

    return DeadLetters(Queue(sqs(), url), unclaimed=tables.dags is None and may_run(user))


@contextmanager
def _sqs_errors() -> Iterator[None]:
    """Turn errors of SQS into a page. Errors that only quote boto3, which may name the account, go to the log."""
    try:
        yield
    except EventInputError as e:
        raise HTTPException(502, str(e)) from e
    except EventError as e:
        log.warning("SQS did not answer a page: %s", e)
        raise HTTPException(
            502, "SQS did not answer as expected. Try again; Airflow's API server has its answer in its log"
        ) from e
