"""The hook for AIStore."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING

from airflow.sdk import BaseHook

from storeside.aistore.errors import AIStoreInputError

if TYPE_CHECKING:
    from airflow.sdk import Connection
    from aistore.sdk import Client

    from storeside.aistore.cluster import Cluster
    from storeside.aistore.pods import PodWatch
    from storeside.doctor.report import Report
    from storeside.measure.throughput.group import Loaders


class AIStoreHook(BaseHook):
    """Creates clients of the `aistore` SDK from an Airflow connection.

    Host and port of the connection are those of the cluster's proxy, the schema is ``http`` (default) or ``https``,
    and the password is a token of AIStore's AuthN. Extras, all optional:

    ``authn_url``: URL of AIStore's AuthN. Login and password are then those of a user of AuthN. Tasks request tokens
    there, and renew them before they expire.
    ``clickhouse_collection``: ClickHouse's named collection with a ``session_token``, which ClickHouse uses to read
    AIStore's S3 API. ``clickhouse_url_collection``: the one with a header ``Authorization``, with which ClickHouse
    reads the objects of loads.

    ``ca_cert``, ``client_cert``, ``client_key``: paths of PEM files for TLS. ``verify``: false accepts any
    certificate. ``clickhouse_endpoint``: the cluster's S3 endpoint for ClickHouse, if it differs.
    ``transformer_endpoint``: the cluster's proxy for the transformers' pods, if it differs.
    ``kube_config``: path of a kubeconfig file, or ``in-cluster``. ``kube_namespace``: AIStore's namespace (``ais``).
    With them, the error of an ETL that does not start contains Kubernetes' reason.
    ``aisloader``: path of AIStore's load generator on the workers. ``aisloader_image``: an image with a shell and
    the generator on its PATH; with ``kube_config``, throughput is measured from pods, which reach the cluster at
    ``transformer_endpoint``.

    :param aistore_conn_id: connection to AIStore
    """

    conn_name_attr = "aistore_conn_id"
    default_conn_name = "aistore_default"
    conn_type = "aistore"
    hook_name = "AIStore"

    def __init__(self, aistore_conn_id: str = default_conn_name) -> None:
        super().__init__()
        self.aistore_conn_id = aistore_conn_id

    @cached_property
    def _connection(self) -> Connection:
        return self.get_connection(self.aistore_conn_id)

    @cached_property
    def cluster(self) -> Cluster:
        """The cluster of the connection. Raises AIStoreInputError when the connection has no host."""
        from storeside.aistore.cluster import cluster_of

        return cluster_of(self._connection)

    @property
    def endpoint(self) -> str:
        """The URL of the cluster's proxy. Raises AIStoreInputError when the connection has no host."""
        return self.cluster.endpoint

    @property
    def clickhouse_endpoint(self) -> str:
        """The URL at which ClickHouse reaches the cluster's S3 API."""
        return str(self._connection.extra_dejson.get("clickhouse_endpoint") or self.endpoint)

    @property
    def clickhouse_url_collection(self) -> str:
        """ClickHouse's named collection with the header for AIStore's own API; empty if it requires no token."""
        return str(self._connection.extra_dejson.get("clickhouse_url_collection") or "")

    @property
    def transformer_endpoint(self) -> str:
        """The URL at which transformers reach the cluster's proxy."""
        return str(self._connection.extra_dejson.get("transformer_endpoint") or self.endpoint)

    def loaders(self, scope: str) -> Loaders:
        """Return where AIStore's load generator runs. A retry of a task has the same `scope`.

        Raises:
            AIStoreInputError: the connection has ``aisloader_image`` without ``kube_config``.
            MeasureInputError: the generator does not exist on this machine.
        """
        from storeside.measure.throughput.group import LocalLoaders
        from storeside.measure.throughput.jobs import JobLoaders

        image = str(self._connection.extra_dejson.get("aisloader_image") or "")
        if not image:
            return LocalLoaders(self.cluster, str(self._connection.extra_dejson.get("aisloader") or "aisloader"))
        if self.pods is None:
            raise AIStoreInputError(
                f"connection {self.aistore_conn_id}: the extra aisloader_image needs the extra kube_config,"
                " a kubeconfig file or in-cluster"
            )
        inside = replace(self.cluster, endpoint=self.transformer_endpoint)
        return JobLoaders(inside, self.pods.kube_config, image, self.pods.namespace, scope)

    @cached_property
    def pods(self) -> PodWatch | None:
        """The watcher of the pods of starting ETLs; None if the connection has no ``kube_config``."""
        from storeside.aistore.pods import pods_of

        return pods_of(self._connection.extra_dejson)

    def get_conn(self) -> Client:
        """Return a client of the cluster."""
        return self.cluster.client()

    def test_connection(self) -> tuple[bool, str]:
        """Log in and list the buckets, for Airflow's button; return the result, after a failure with the remedy."""
        from storeside.doctor import aistore
        from storeside.doctor.findings import System
        from storeside.operators.hooks.button import tested

        def check(report: Report) -> None:
            cluster = self.cluster
            report.connect(System("AIStore"), "login", lambda: aistore.connect(lambda: cluster))

        return tested(self._connection, check)
