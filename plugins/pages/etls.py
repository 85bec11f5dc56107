"""ETLs: which run uses each, who started that run, whether the ETL is healthy, and its last errors."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from airflow.api_fastapi.core_api.security import GetUserDep
from fastapi import APIRouter, Request, Response

from storeside.aistore.etl import idle_seconds
from storeside.operators.hooks.aistore import AIStoreHook
from storeside.pages import etls
from storeside.pages.etls import Etl, Use
from storeside.pages.tables import UnavailableError
from storeside.plugins.pages import tasks
from storeside.plugins.pages.access import TablesDep, may_read_runs
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
    uses = [use for use in etls.uses(tables) if may_read_runs(user, use.dag)]
    states = tasks.states(uses)
    uses = [use for use in uses if states.get((use.run_id, use.task_id)) not in tasks.OVER | {None}]
    conn_ids = dict.fromkeys([*(use.conn_id for use in uses), AIStoreHook.default_conn_name])
    clusters = [_cluster(conn_id, uses, tables.dags is None) for conn_id in list(conn_ids)[:_MOST_CLUSTERS]]
    shown = {(use.dag, use.run) for cluster in clusters for _, using in cluster.etls for use in using}
    return render(
        request, "etls.html", title="ETLs", clusters=clusters, started_by=started_by(list(shown)),
        all_dags=tables.dags is None,
    )  # fmt: skip


def _cluster(conn_id: str, uses: list[Use], all_dags: bool) -> Cluster:
    try:
        client = aistore(conn_id)
        with answering("AIStore", conn_id):
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
