"""Clients of what the pages ask, by Airflow's connections. A page waits for nobody longer than its reader would."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from airflow.sdk import BaseHook

from include.pages.tables import UnavailableError
from include.transfer.errors import plain
from operators.hooks.aistore import AIStoreHook
from operators.hooks.transfer import clickhouse_client, sqs_client

CLICKHOUSE, AWS = "clickhouse_default", "aws_default"
# Seconds, as extras of the connection, which hold before any others: those are made for loads, which may take hours,
# while a page that waits has one of the API server's threads. Statements of pages end after ten seconds.
PATIENCE = {"connect_timeout": 3, "send_receive_timeout": 15}


def clickhouse() -> Any:
    """Return a ClickHouse client. Raises UnavailableError, as the others here do, with what is wrong."""
    with _leads_to("ClickHouse", CLICKHOUSE):
        connection = BaseHook.get_connection(CLICKHOUSE)
        connection.extra = json.dumps({**connection.extra_dejson, **PATIENCE})
        return clickhouse_client(connection)


def aistore(conn_id: str = AIStoreHook.default_conn_name, *, patient: bool = False) -> Any:
    """Return a client of a cluster; one that is patient may wait for bytes of objects."""
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
