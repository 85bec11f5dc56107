"""The package's metadata for Airflow: its hooks, connection types and extra links.

Airflow calls `get_provider_info` through the entry point ``apache_airflow_provider`` of the installed package.
Airflow's provider.yaml.schema.json defines the keys.
"""

from __future__ import annotations

from typing import Any

_TEXT = {"type": ["string", "null"]}
_FLAG = {"type": ["boolean", "null"]}


def get_provider_info() -> dict[str, Any]:
    """Return the metadata of the provider."""
    return {
        "package-name": "storeside",
        "name": "Storeside",
        "description": "Transforms in AIStore, transfers from S3 to ClickHouse, S3 events and HSDS arrays.",
        "hooks": [
            {"integration-name": "AIStore", "python-modules": ["storeside.operators.hooks.aistore"]},
            {"integration-name": "HSDS", "python-modules": ["storeside.operators.hooks.hsds"]},
        ],
        "integrations": [
            {
                "integration-name": "AIStore",
                "external-doc-url": "https://aistore.nvidia.com/docs",
                "tags": ["software"],
            },
            {
                "integration-name": "HSDS",
                "external-doc-url": "https://github.com/HDFGroup/hsds",
                "tags": ["software"],
            },
        ],
        "connection-types": [_aistore(), _hsds()],
        "extra-links": [
            "storeside.operators.links.RunPageLink",
            "storeside.operators.links.QueuePageLink",
            "storeside.operators.links.BenchmarksPageLink",
        ],
    }


def _field(label: str, description: str, schema: dict[str, Any] | None = None) -> dict[str, Any]:
    return {"label": label, "schema": schema or _TEXT, "description": description}


def _aistore() -> dict[str, Any]:
    return {
        "connection-type": "aistore",
        "hook-class-name": "storeside.operators.hooks.aistore.AIStoreHook",
        "hook-name": "AIStore",
        "ui-field-behaviour": {
            "hidden-fields": [],
            "relabeling": {
                "host": "Proxy",
                "schema": "Scheme",
                "login": "AuthN user",
                "password": "AuthN token or password",
            },
            "placeholders": {"host": "ais-proxy.ais", "port": "51080", "schema": "http"},
        },
        "conn-fields": {
            "ca_cert": _field("CA certificate", "path of a PEM file"),
            "client_cert": _field("Client certificate", "path of a PEM file"),
            "client_key": _field("Client key", "path of a PEM file"),
            "verify": _field("Verify the certificate", "on by default", _FLAG),
            "authn_url": _field("AuthN", "URL of AIStore's AuthN, where tasks log in with user and password"),
            "clickhouse_collection": _field(
                "Collection for ClickHouse", "ClickHouse's named collection with a token for AIStore"
            ),
            "clickhouse_url_collection": _field(
                "URL collection for ClickHouse",
                "ClickHouse's named collection with a header Authorization, with which it reads ais:// sources",
            ),
            "clickhouse_endpoint": _field(
                "Endpoint for ClickHouse", "URL of the cluster's S3 API as ClickHouse reaches it, if it differs"
            ),
            "transformer_endpoint": _field(
                "Endpoint for transformers", "URL of the proxy as the transformers' pods reach it, if it differs"
            ),
            "kube_config": _field("Kubernetes", "path of a kubeconfig file, or in-cluster"),
            "kube_namespace": _field("Namespace", "namespace of AIStore's pods, ais by default"),
            "aisloader": _field("aisloader", "path of AIStore's load generator where tasks run"),
            "aisloader_image": _field(
                "aisloader's image", "image with a shell and aisloader, to measure throughput from pods"
            ),
        },
    }


def _hsds() -> dict[str, Any]:
    return {
        "connection-type": "hsds",
        "hook-class-name": "storeside.operators.hooks.hsds.HSDSHook",
        "hook-name": "HSDS",
        "ui-field-behaviour": {
            "hidden-fields": [],
            "relabeling": {"host": "Service node", "schema": "Scheme"},
            "placeholders": {"host": "hsds", "port": "5101", "schema": "http"},
        },
        "conn-fields": {
            "endpoint": _field(
                "Endpoint", "URL that replaces host, port and scheme, such as http+unix://%2Ftmp%2Fsn.sock"
            ),
            "bucket": _field("Bucket", "bucket of the domains, if it is not the server's default"),
        },
    }
