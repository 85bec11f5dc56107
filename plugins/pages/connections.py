"""The pages' clients, from Airflow's connections. Their timeouts are as short as a reader's patience."""

from __future__ import annotations

import json
import logging
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from airflow.sdk import BaseHook
from airflow.sdk.exceptions import AirflowNotFoundException
from urllib3.exceptions import ConnectTimeoutError, ReadTimeoutError

from storeside.errors import StoresideError, Transient
from storeside.operators.hooks.aistore import AIStoreHook
from storeside.operators.hooks.transfer import clickhouse_client, of_role, sqs_client
from storeside.pages.tables import UnavailableError
from storeside.sql import roles

CLICKHOUSE, AWS = "clickhouse_default", "aws_default"
# Seconds, as extras that override the connection's own: those are meant for loads, which may take hours, while a page
# that waits occupies one of the API server's threads. Statements of pages end after ten seconds.
PATIENCE = {"connect_timeout": 3, "send_receive_timeout": 12}
# The same for SQS, as options of botocore: a receive waits for a message for a second.
SQS_PATIENCE = {"connect_timeout": 3, "read_timeout": 10, "retries": {"total_max_attempts": 2}}
log = logging.getLogger(__name__)


def clickhouse(role: str = roles.PAGES) -> Any:
    """Return a ClickHouse client. Like the others here, it raises UnavailableError with the cause."""
    with _leads_to("ClickHouse", CLICKHOUSE):
        connection = of_role(role, BaseHook.get_connection(CLICKHOUSE))
        connection.extra = json.dumps({**connection.extra_dejson, **PATIENCE})
        return clickhouse_client(connection)


def aistore(conn_id: str = AIStoreHook.default_conn_name, *, patient: bool = False) -> Any:
    """Return a client of a cluster; with `patient`, it may wait for bytes of objects."""
    with _leads_to("AIStore", conn_id):
        return AIStoreHook(conn_id).cluster.client(patient)


def sqs() -> Any:
    """Return an SQS client."""
    with _leads_to("SQS", AWS):
        connection = BaseHook.get_connection(AWS)
        config = connection.extra_dejson.get("config_kwargs")
        config = {**(config if isinstance(config, dict) else {}), **SQS_PATIENCE}
        connection.extra = json.dumps({**connection.extra_dejson, "config_kwargs": config})
        return sqs_client(connection)


@contextmanager
def answering(conn_id: str) -> Iterator[None]:
    """Turn errors of an AIStore that does not answer into UnavailableError, with what a user can do."""
    from aistore.sdk.errors import AISError
    from requests import RequestException

    try:
        yield
    except (AISError, RequestException, ValueError, Transient) as e:
        log.warning("AIStore behind the connection %s did not answer a page: %s", conn_id, e)
        raise UnavailableError(f"AIStore behind the connection {conn_id} does not answer: {_reason(e)}") from e


@contextmanager
def _leads_to(system: str, conn_id: str) -> Iterator[None]:
    try:
        yield
    except Exception as e:  # no connection, no host, no server, a wrong password: each library has its own errors
        log.warning("the connection %s does not lead to %s: %s", conn_id, system, e)
        raise UnavailableError(f"the connection {conn_id} does not lead to {system}: {_reason(e)}") from e


def _reason(error: BaseException) -> str:
    """Return what a page says about the error; errors of libraries, which may name hosts and paths, go to the log."""
    if isinstance(error, StoresideError):
        return str(error)
    causes = set(_causes(error))
    if AirflowNotFoundException in causes:
        return "Airflow has no connection of this id: create it"
    if causes & {TimeoutError, ReadTimeoutError, ConnectTimeoutError}:
        return "its server did not answer in time; try again in a minute, or run the doctor"
    if causes & {ConnectionRefusedError, ConnectionResetError, socket.gaierror}:
        return "no server answers at its host and port; start the server, or correct the connection"
    return "correct the connection; the doctor, and the log of Airflow's API server, have the reason"


def _causes(error: BaseException | None) -> Iterator[type]:
    """Yield the types of an error and of what caused it; urllib3 keeps a cause in `reason` or `args`."""
    seen: list[BaseException] = []
    waiting = [error]
    while waiting:
        if (one := waiting.pop()) is None or one in seen or len(seen) > 20:
            continue
        seen.append(one)
        yield type(one)
        inner = (getattr(one, "reason", None), *one.args)
        waiting += [one.__cause__, one.__context__, *(e for e in inner if isinstance(e, BaseException))]
