"""AIStore through an Airflow connection."""

from __future__ import annotations

from functools import cached_property
from typing import Any

from airflow.sdk import BaseHook

from include.storage.cluster import client as aistore_client


class AIStoreHook(BaseHook):
    """Gives the `aistore` SDK's client for a connection.

    The connection's host and port are the cluster's proxy, its schema ``http`` (default) or ``https``; the extra
    ``clickhouse_endpoint`` is the cluster's S3 endpoint as ClickHouse reaches it, where that differs.
    """

    conn_name_attr = "aistore_conn_id"
    default_conn_name = "aistore_default"
    hook_name = "AIStore"

    def __init__(self, aistore_conn_id: str = default_conn_name) -> None:
        super().__init__()
        self.aistore_conn_id = aistore_conn_id

    @cached_property
    def endpoint(self) -> str:
        """The URL of the cluster's proxy. Raises ValueError when the connection has no host."""
        connection = self.get_connection(self.aistore_conn_id)
        if not connection.host:
            raise ValueError(f"connection {self.aistore_conn_id}: needs the host of an AIStore proxy")
        if "://" in connection.host:
            return f"{connection.host}:{connection.port}" if connection.port else connection.host
        return f"{connection.schema or 'http'}://{connection.host}:{connection.port or 51080}"

    @cached_property
    def clickhouse_endpoint(self) -> str:
        """The URL at which ClickHouse reaches the cluster's S3 API."""
        extra = self.get_connection(self.aistore_conn_id).extra_dejson
        return str(extra.get("clickhouse_endpoint") or self.endpoint)

    def get_conn(self) -> Any:
        """Return a client of the cluster."""
        return aistore_client(self.endpoint)

    def test_connection(self) -> tuple[bool, str]:
        """Tell whether the cluster is ready, for the connection form."""
        ready = self.get_conn().cluster().is_ready()
        return ready, "the cluster is ready" if ready else f"no ready AIStore cluster at {self.endpoint}"
