"""The pages' clients, from Airflow's connections. Their timeouts are as short as a reader's patience."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from airflow.sdk import BaseHook

from storeside.operators.hooks.aistore import AIStoreHook
from storeside.operators.hooks.transfer import clickhouse_client, of_role, sqs_client
from storeside.pages.tables import UnavailableError
from storeside.sql import roles
from storeside.transfer.errors import plain

CLICKHOUSE, AWS = "clickhouse_default", "aws_default"
# Seconds, as extras that override the connection's own: those are meant for loads, which may take hours, while a page
# that waits occupies one of the API server's threads. Statements of pages end after ten seconds.
PATIENCE = {"connect_timeout": 3, "send_receive_timeout": 15}


def clickhouse() -> Any:
    """Return a ClickHouse client. Like the others here, it raises UnavailableError with the cause."""
    with _leads_to("ClickHouse", CLICKHOUSE):
        connection = of_role(roles.PAGES, BaseHook.get_connection(CLICKHOUSE))
        connection.extra = json.dumps({**connection.extra_dejson, **PATIENCE})
        return clickhouse_client(connection)


def aistore(conn_id: str = AIStoreHook.default_conn_name, *, patient: bool = False) -> Any:
    """Return a client of a cluster; with `patient`, it may wait for bytes of objects."""
    with _leads_to("AIStore", conn_id):
        return AIStoreHook(conn_id).cluster.client(patient)


def sqs() -> Any:
    """Return an SQS client."""
    with _leads_to("SQS", AWS):
        return sqs_client(BaseHook.get_connection(AWS))


@contextmanager
def _leads_to(system: str, conn_id: str) -> Iterator[None]:
    try:
        yield
    except Exception as e:  # no connection, no host, no server, a wrong password: each library has its own errors
        raise UnavailableError(f"the connection {conn_id} does not lead to {system}: {plain(e)}") from e
