"""The permissions of each user, from Airflow's own authentication and permissions."""

from __future__ import annotations

from typing import Annotated, Any
from urllib.parse import urlsplit
from uuid import uuid4

from airflow.api_fastapi.app import get_auth_manager
from airflow.api_fastapi.auth.managers.models.resource_details import DagAccessEntity, DagDetails
from airflow.api_fastapi.core_api.security import GetUserDep
from airflow.models.dag import DagModel
from airflow.models.team import Team
from airflow.utils.session import create_session
from fastapi import Depends, HTTPException, Request
from fastapi.dependencies.utils import get_flat_dependant
from fastapi.routing import APIRoute

from storeside.pages.tables import Tables
from storeside.plugins.pages.connections import clickhouse


def require_read(user: GetUserDep) -> None:
    """Admit users who may read DAGs. Every route depends on it; the statements check which DAGs."""
    if not get_auth_manager().is_authorized_dag(method="GET", user=user):
        raise HTTPException(403, "you may not read DAGs, whose data these pages show")


def tables(user: GetUserDep) -> Tables:
    """Return Storeside's tables as the visitor may see them: only rows of DAGs that the visitor may read."""
    readable = get_auth_manager().get_authorized_dag_ids(user=user, method="GET")
    return Tables(clickhouse(), None if _may_read_any(user, readable) else readable)


def _may_read_any(user: Any, readable: set[str]) -> bool:
    """Return whether the visitor may read every DAG, also deleted and future ones.

    Permission for all DAGs that exist is not enough: the tables have rows of deleted DAGs, too. So this asks the auth
    manager about DAGs of unknown names, too.
    """
    with create_session() as session:
        existing = {dag for (dag,) in session.query(DagModel.dag_id)}
    return existing <= readable and all(
        get_auth_manager().is_authorized_dag(method="GET", details=details, user=user) for details in _unknown_dags()
    )


def require_names(request: Request) -> None:
    """Refuse names of DAGs, runs and tasks with a NUL character: none has one, and PostgreSQL's driver refuses it."""
    if any("\0" in value for name in ("dag", "run", "task") for value in request.query_params.getlist(name)):
        raise HTTPException(400, "the name of a DAG, run or task has no NUL character: correct the address")


def require_known_filters(request: Request) -> None:
    """Refuse an address with a filter that its page does not have: the page would show too much."""
    route = request.scope["route"]
    if not isinstance(route, APIRoute) or request.method != "GET":
        return
    known = [field.alias for field in get_flat_dependant(route.dependant, skip_repeats=True).query_params]
    unknown = [name for name in request.query_params if name not in known]
    if unknown:
        choices = f"the filters of this page are {', '.join(known)}" if known else "this page has no filters"
        raise HTTPException(400, f"unknown filter {', '.join(map(repr, unknown[:5]))} in the address: {choices}")


TablesDep = Annotated[Tables, Depends(tables)]


def may_run(user: GetUserDep, dag: str | None = None) -> bool:
    """Return whether the visitor may start runs of a DAG, or of any DAG."""
    asked = [_details(dag)] if dag else _unknown_dags()
    return all(
        get_auth_manager().is_authorized_dag(
            method="POST", access_entity=DagAccessEntity.RUN, details=details, user=user
        )
        for details in asked
    )


def may_read_runs(user: GetUserDep, dag: str) -> bool:
    """Return whether the visitor may read the states of a DAG's runs and tasks."""
    return _may_get(user, dag, DagAccessEntity.RUN) and _may_get(user, dag, DagAccessEntity.TASK_INSTANCE)


def may_read_logs(user: GetUserDep, dag: str) -> bool:
    """Return whether the visitor may read the logs of a DAG's tasks."""
    return _may_get(user, dag, DagAccessEntity.TASK_LOGS)


def may_read_any_log(user: GetUserDep) -> bool:
    """Return whether the visitor may read the logs of every DAG's tasks, as in the logs of an ETL that DAGs share."""
    return all(
        get_auth_manager().is_authorized_dag(
            method="GET", access_entity=DagAccessEntity.TASK_LOGS, details=details, user=user
        )
        for details in _unknown_dags()
    )


def _may_get(user: Any, dag: str, entity: DagAccessEntity) -> bool:
    return get_auth_manager().is_authorized_dag(method="GET", access_entity=entity, details=_details(dag), user=user)


def may_stop(user: GetUserDep, dag: str) -> bool:
    """Return whether the visitor may set states of a DAG's tasks."""
    return get_auth_manager().is_authorized_dag(
        method="PUT", access_entity=DagAccessEntity.TASK_INSTANCE, details=_details(dag), user=user
    )


def _details(dag: str) -> DagDetails:
    return DagDetails(id=dag, team_name=DagModel.get_team_name(dag))


def _unknown_dags() -> list[DagDetails]:
    """Return a DAG that does not exist in each team: only users with a permission for all DAGs may access it."""
    return [DagDetails(id=f"storeside-{uuid4().hex}", team_name=t) for t in (None, *Team.get_all_team_names())]


def require_same_origin(request: Request) -> None:
    """Refuse requests that another site made the visitor's browser send.

    Another site cannot send a bearer token. Browsers add the other schemes automatically, such as ``Basic`` and
    ``Negotiate`` for a proxy in front of Airflow.
    """
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer" and token.strip():
        return
    site = request.headers.get("sec-fetch-site")
    origin = urlsplit(request.headers.get("origin", "")).netloc
    same = site == "same-origin" if site else bool(origin) and origin == request.headers.get("host")
    if not same:
        raise HTTPException(403, "this was not sent from Airflow's own pages")
