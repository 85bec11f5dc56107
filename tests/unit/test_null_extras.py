"""Airflow's form of a connection stores null for each field that was left empty: this means the same as no field."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from storeside.aistore.cluster import cluster_of
from storeside.aistore.pods import pods_of
from storeside.copying.s3_access import Access
from storeside.doctor.connections import Connection, systems
from storeside.operators.hooks.catalog import properties
from storeside.operators.provider import get_provider_info
from storeside.transfer.request.source import source_of

OF_AWS = (
    "aws_session_token", "clickhouse_cluster", "clickhouse_collection", "clickhouse_endpoint", "clickhouse_role_arn",
    "config_kwargs", "endpoint_url", "public", "region_name", "requester_pays", "sse_kms_key_id", "verify",
)  # fmt: skip
OF_AISTORE = next(
    found["conn-fields"] for found in get_provider_info()["connection-types"] if found["connection-type"] == "aistore"
)


def nulls(names: Any) -> dict[str, None]:
    return dict.fromkeys(names)


def test_access_to_s3() -> None:
    assert Access.of(nulls(OF_AWS)) == Access()
    assert source_of(nulls(OF_AWS), "bucket") == source_of({}, "bucket")


def test_a_cluster_of_aistore() -> None:
    assert cluster_of(_aistore(nulls(OF_AISTORE))) == cluster_of(_aistore({}))


def test_the_pods_of_etls() -> None:
    assert pods_of(nulls(OF_AISTORE)) is None
    found = pods_of({**nulls(OF_AISTORE), "kube_config": "in-cluster"})
    assert found is not None
    assert (found.kube_config, found.namespace) == ("in-cluster", "ais")


def test_the_systems_of_the_doctor() -> None:
    aws = Connection("aws_default", "", None, "key", "secret", "", nulls(OF_AWS))
    found = systems({"aws": aws, "aistore": _aistore(nulls(OF_AISTORE))}, "bucket")
    assert found.s3 is not None
    assert found.s3().meta.region_name == "us-east-1"
    assert (found.pods, found.source) == (None, source_of({}, "bucket"))


def test_the_catalogue_of_a_lake() -> None:
    connection: Any = SimpleNamespace(
        conn_id="lake", host="catalog.example", port=None, schema="", login="", password="",
        extra_dejson=nulls(("type", "uri")),
    )  # fmt: skip
    found = properties(connection, lambda extra: None)
    assert (found["type"], found["uri"]) == ("rest", "https://catalog.example")


def _aistore(extra: dict[str, Any]) -> Connection:
    return Connection("aistore_default", "proxy", None, "", "", "", extra)
