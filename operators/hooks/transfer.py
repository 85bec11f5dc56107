"""The clients of a transfer, from Airflow connections."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from airflow.sdk import Connection


def clients(aws: Connection, clickhouse: Connection) -> tuple[Callable[[], Any], Any]:
    """Return what makes ClickHouse clients, one for every thread, and an S3 client.

    Connections are handed over, not their ids: threads, and the triggerer, cannot ask for them.
    """
    from airflow.providers.amazon.aws.hooks.s3 import S3Hook
    from airflow.providers.clickhousedb.hooks.clickhouse import ClickHouseHook

    class S3(S3Hook):
        @classmethod
        def get_connection(cls, conn_id: str) -> Any:
            return aws

    class ClickHouse(ClickHouseHook):
        @classmethod
        def get_connection(cls, conn_id: str) -> Any:
            return clickhouse

    return ClickHouse(clickhouse.conn_id).get_client, S3(aws_conn_id=aws.conn_id).get_conn()


def endpoint_for_clickhouse(aws: Connection) -> str:
    """Return the S3 endpoint as ClickHouse reaches it.

    It is the connection's extra ``clickhouse_endpoint``, its ``endpoint_url``, or that of its region at AWS.
    """
    extra = aws.extra_dejson
    given = extra.get("clickhouse_endpoint") or extra.get("endpoint_url")
    return str(given or f"https://s3.{extra.get('region_name', 'us-east-1')}.amazonaws.com")
