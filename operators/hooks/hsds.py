"""The hook for HSDS."""

from __future__ import annotations

import logging
from functools import cached_property
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseHook

if TYPE_CHECKING:
    from airflow.sdk import Connection

    from storeside.doctor.report import Report
    from storeside.hsds.client import Client, Server


class HSDSHook(BaseHook):
    """Creates h5pyd files and clients of HSDS's REST API from an Airflow connection.

    Login and password of the connection are those of an HSDS user; host, port and schema (``http`` by default, or
    ``https``) are those of a service node. Extras, both optional:

    ``endpoint``: a URL that replaces host, port and schema, such as ``http+unix://%2Ftmp%2Fsn.sock``.
    ``bucket``: the bucket of the domains, if it is not the server's default.

    :param hsds_conn_id: connection to HSDS
    """

    conn_name_attr = "hsds_conn_id"
    default_conn_name = "hsds_default"
    conn_type = "hsds"
    hook_name = "HSDS"

    def __init__(self, hsds_conn_id: str = default_conn_name) -> None:
        super().__init__()
        self.hsds_conn_id = hsds_conn_id

    @cached_property
    def _connection(self) -> Connection:
        return self.get_connection(self.hsds_conn_id)

    @cached_property
    def server(self) -> Server:
        """The server of the connection. Raises HsdsInputError if the connection has neither host nor endpoint."""
        return server_of(self._connection)

    @cached_property
    def client(self) -> Client:
        """The client of the REST API."""
        from storeside.hsds.client import Client

        return Client(self.server)

    def get_conn(self) -> Client:
        """Return the client of the REST API."""
        return self.client

    def file(self, domain: str, mode: str = "r") -> Any:
        """Open a domain as an h5pyd file; a task that writes to it must call `flush` before it ends."""
        import h5pyd

        level = logging.root.level
        try:
            return h5pyd.File(
                domain, mode, endpoint=self.server.endpoint, username=self.server.username,
                password=self.server.password, bucket=self.server.bucket or None,
            )  # fmt: skip
        finally:
            logging.root.setLevel(level)  # h5pyd 1.0.0 sets it to ERROR, which would silence the task's log

    def test_connection(self) -> tuple[bool, str]:
        """Check service and login, for Airflow's button; return the result, after a failure with the remedy."""
        from storeside.doctor import hsds
        from storeside.doctor.findings import System
        from storeside.operators.hooks.button import tested

        def check(report: Report) -> None:
            server = self.server
            service = hsds.Service(server.endpoint, server.username, server.password)
            report.each(System("HSDS"), hsds.examine(service))

        return tested(self._connection, check)


def server_of(connection: Connection) -> Server:
    """Return the server of a connection. Raises HsdsInputError if the connection has neither host nor endpoint."""
    from storeside.hsds.client import Server
    from storeside.hsds.errors import HsdsInputError

    extra = connection.extra_dejson
    endpoint = str(extra.get("endpoint") or "")
    if not endpoint and not connection.host:
        raise HsdsInputError(
            f"connection {connection.conn_id}: needs the host of an HSDS service node, or an endpoint"
        )
    if not endpoint and "://" in str(connection.host):
        endpoint = f"{connection.host}:{connection.port}" if connection.port else str(connection.host)
    return Server(
        endpoint or f"{connection.schema or 'http'}://{connection.host}:{connection.port or 5101}",
        connection.login or "",
        connection.password or "",
        str(extra.get("bucket") or ""),
    )
