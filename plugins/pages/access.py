"""What each user may see and do: Airflow's own authentication and permissions."""

from __future__ import annotations

from typing import Annotated
from urllib.parse import urlsplit

from airflow.api_fastapi.app import get_auth_manager
from airflow.api_fastapi.auth.managers.models.resource_details import DagAccessEntity, DagDetails
from airflow.api_fastapi.core_api.security import GetUserDep
from airflow.models.dag import DagModel
from airflow.utils.session import create_session
from fastapi import Depends, HTTPException, Request

from storeside.pages.tables import Tables
from storeside.plugins.pages.connections import clickhouse


def require_read(user: GetUserDep) -> None:
    """Admit users who may read DAGs. Every route depends on it; the statements check which DAGs."""
    if not get_auth_manager().is_authorized_dag(method="GET", user=user):
        raise HTTPException(403, "you may not read DAGs, whose data these pages show")


def tables(user: GetUserDep) -> Tables:
    """Return Storeside's tables as the visitor may see them: only rows of DAGs that the visitor may read."""
    readable = get_auth_manager().get_authorized_dag_ids(user=user, method="GET")
    with create_session() as session:
        all_dags = {dag for (dag,) in session.query(DagModel.dag_id)}
    return Tables(clickhouse(), None if all_dags <= readable else readable)


TablesDep = Annotated[Tables, Depends(tables)]


def may_run(user: GetUserDep, dag: str | None = None) -> bool:
    """Tell whether the visitor may start runs of a DAG, or of DAGs in general."""
    return get_auth_manager().is_authorized_dag(
        method="POST", access_entity=DagAccessEntity.RUN, details=_details(dag), user=user
    )


def may_stop(user: GetUserDep, dag: str) -> bool:
    """Tell whether the visitor may set states of a DAG's tasks."""
    return get_auth_manager().is_authorized_dag(
        method="PUT", access_entity=DagAccessEntity.TASK_INSTANCE, details=_details(dag), user=user
    )


def _details(dag: str | None) -> DagDetails | None:
    return DagDetails(id=dag, team_name=DagModel.get_team_name(dag)) if dag else None


def require_same_origin(request: Request) -> None:
    """Refuse requests that another site made the visitor's browser send.

    Another site cannot send a token in a header.
    """
    if "authorization" in request.headers:
        return
    site = request.headers.get("sec-fetch-site")
    origin = urlsplit(request.headers.get("origin", "")).netloc
    same = site == "same-origin" if site else bool(origin) and origin == request.headers.get("host")
    if not same:
        raise HTTPException(403, "this was not sent from Airflow's own pages")
