"""ETLs: which run uses each, who started that run, whether the ETL is healthy, and its last errors."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from airflow.api_fastapi.core_api.security import GetUserDep
from fastapi import APIRouter, HTTPException, Request, Response

from storeside.aistore.etl import idle_seconds
from storeside.operators.hooks.aistore import AIStoreHook
from storeside.pages import etls
from storeside.pages.etls import Etl, Use
from storeside.pages.tables import Tables, UnavailableError
from storeside.plugins.pages import tasks
from storeside.plugins.pages.access import TablesDep, may_read_any_log, may_read_runs
from storeside.plugins.pages.connections import aistore, answering
from storeside.plugins.pages.render import render
from storeside.plugins.pages.runs import started_by

if TYPE_CHECKING:
    from aistore.sdk import Client

router = APIRouter()
_MOST_CLUSTERS = 4
_MOST_USES = 5


@dataclass(frozen=True)
class Cluster:
    """The ETLs of the cluster of a connection, with the tasks that use them; `problem` if it does not answer."""

    conn_id: str
    etls: Sequence[tuple[Etl, Sequence[Use]]] = field(default=())
    problem: str = ""


@router.get("/etls")
def overview(request: Request, tables: TablesDep, user: GetUserDep) -> Response:
    """Show the ETLs that tasks of the visitor's DAGs use; visitors who may read all DAGs also see the others."""
    clusters = clusters_of(tables, user)
    shown = {(use.dag, use.run) for cluster in clusters for _, using in cluster.etls for use in using}
    return render(
        request, "etls.html", title="ETLs", clusters=clusters, started_by=started_by(list(shown)),
        all_dags=tables.dags is None, may_read_logs=_may_read_logs(tables, user),
    )  # fmt: skip


def clusters_of(tables: Tables, user: Any) -> list[Cluster]:
    """Return the clusters of running tasks with their ETLs, as far as the visitor may see them."""
    uses = [use for use in etls.uses(tables) if may_read_runs(user, use.dag)]
    states = tasks.states(uses)
    uses = [use for use in uses if states.get((use.run_id, use.task_id)) not in tasks.OVER | {None}]
    conn_ids = dict.fromkeys([*(use.conn_id for use in uses), AIStoreHook.default_conn_name])
    return [_cluster(conn_id, uses, tables.dags is None) for conn_id in list(conn_ids)[:_MOST_CLUSTERS]]


@router.get("/etl-log")
def log_of_pod(
    request: Request, tables: TablesDep, user: GetUserDep, conn_id: str, etl: str, target: str
) -> Response:
    """Show the end of the log of an ETL's pod to users who may read the data and the logs of all DAGs.

    DAGs share ETLs, and a transformer may write names and contents of objects into its log.
    """
    if not _may_read_logs(tables, user):
        raise HTTPException(403, "logs of ETLs, which DAGs share, are for users who may read all DAGs and their logs")
    if conn_id not in {AIStoreHook.default_conn_name, *(use.conn_id for use in etls.uses(tables))}:
        raise HTTPException(404, "no task uses ETLs through a connection of this id")
    client = aistore(conn_id)
    with answering(conn_id):
        known = etl in {name for name, _ in etls.names(client)}
        if not known or target not in etls.targets(client, etl):
            raise HTTPException(404, "no such ETL runs beside such a target: open the page of the ETLs again")
        lines = etls.pod_log(client, etl, target)
    return render(request, "etl_log.html", title="Log of an ETL", etl=etl, target=target, lines=lines)


def _may_read_logs(tables: Tables, user: Any) -> bool:
    return tables.dags is None and may_read_any_log(user)


def _cluster(conn_id: str, uses: list[Use], all_dags: bool) -> Cluster:
    try:
        client = aistore(conn_id)
        with answering(conn_id):
            return Cluster(conn_id, list(_etls(client, conn_id, uses, all_dags)))
    except UnavailableError as e:
        return Cluster(conn_id, problem=str(e))


def _etls(client: Client, conn_id: str, uses: list[Use], all_dags: bool) -> Iterator[tuple[Etl, list[Use]]]:
    answered = True
    listing = etls.names(client)
    idle = idle_seconds(client) if listing else {}
    for name, listed in listing:
        mine = [use for use in uses if use.conn_id == conn_id and name in use.names][:_MOST_USES]
        if mine or all_dags:
            etl = etls.read(
                client, name, listed, [use.job for use in mine if use.job], ask=answered, idle=idle.get(name)
            )
            answered = etl.answered
            yield etl, mine
