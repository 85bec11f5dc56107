"""AIStore through an Airflow connection."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseHook

from include.storage.cluster import Cluster, cluster_of
from include.transform.pods import PodWatch

if TYPE_CHECKING:
    from airflow.sdk import Connection


class AIStoreHook(BaseHook):
    """Gives the `aistore` SDK's client for a connection.

    The connection's host and port are the cluster's proxy, its schema ``http`` (default) or ``https``, and its
    password a token of AIStore's AuthN. Extras, all optional:

    ``ca_cert``, ``client_cert``, ``client_key``: paths of PEM files for TLS; ``verify`` off takes any certificate.
    ``clickhouse_endpoint``: the cluster's S3 endpoint as ClickHouse reaches it, where that differs.
    ``transformer_endpoint``: the cluster's proxy as the pods of transformers reach it, where that differs.
    ``kube_config``: a kubeconfig file or ``in-cluster``, and ``kube_namespace`` that AIStore runs in (``ais``): with
    it an ETL whose pod does not start fails with Kubernetes' reason.
    ``aisloader``: path of AIStore's load generator where the tasks run.
    """

    conn_name_attr = "aistore_conn_id"
    default_conn_name = "aistore_default"

    def __init__(self, aistore_conn_id: str = default_conn_name) -> None:
        super().__init__()
        self.aistore_conn_id = aistore_conn_id

    @cached_property
    def _connection(self) -> Connection:
        return self.get_connection(self.aistore_conn_id)

    @cached_property
    def cluster(self) -> Cluster:
        """The cluster that the connection leads to. Raises ValueError when it has no host."""
        return cluster_of(self._connection)

    @property
    def endpoint(self) -> str:
        """The URL of the cluster's proxy. Raises ValueError when the connection has no host."""
        return self.cluster.endpoint

    @property
    def clickhouse_endpoint(self) -> str:
        """The URL at which ClickHouse reaches the cluster's S3 API."""
        return str(self._connection.extra_dejson.get("clickhouse_endpoint") or self.endpoint)

    @property
    def transformer_endpoint(self) -> str:
        """The URL at which transformers reach the cluster's proxy."""
        return str(self._connection.extra_dejson.get("transformer_endpoint") or self.endpoint)

    @property
    def loader(self) -> str:
        """AIStore's load generator: its path, or its name, to be found on the PATH."""
        return str(self._connection.extra_dejson.get("aisloader") or "aisloader")

    @cached_property
    def pods(self) -> PodWatch | None:
        """What watches the pods of starting ETLs; None when the connection does not lead to Kubernetes."""
        extra = self._connection.extra_dejson
        if not extra.get("kube_config"):
            return None
        return PodWatch(extra["kube_config"], extra.get("kube_namespace", "ais"))

    def get_conn(self) -> Any:
        """Return a client of the cluster."""
        return self.cluster.client()
