"""Creates the clients of a transfer from Airflow connections."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, cast

from storeside.sql import roles

if TYPE_CHECKING:
    from airflow.sdk import Connection
    from clickhouse_connect.driver.httpclient import HttpClient

    from storeside.aistore.stored_objects import StoredObject
    from storeside.operators.hooks.aistore import AIStoreHook
    from storeside.transfer.lakes.catalogs import Catalog
    from storeside.transfer.request.source import Source
    from storeside.transfer.tables.servers import Servers


def clients(aws: Connection, clickhouse: Connection) -> tuple[HttpClient, Any]:
    """Return a ClickHouse client, which several threads may use, and an S3 client.

    The arguments are connections, not ids, because threads and the triggerer cannot look connections up.
    """
    return clickhouse_client(clickhouse), s3_client(aws)


def ledger_connection(clickhouse: Connection) -> Connection:
    """Return the connection for Storeside's own tables on the server of a connection for loads."""
    return of_role(roles.LEDGER, clickhouse)


def of_role(role: str, clickhouse: Connection) -> Connection:
    """Return the connection for `role` that the extras of `clickhouse` contain; without one, `clickhouse` itself."""
    from airflow.sdk import BaseHook

    conn_id = roles.conn_id_of(role, clickhouse.conn_id, clickhouse.extra_dejson)
    if conn_id == clickhouse.conn_id:
        return clickhouse
    return on_servers_of(clickhouse, BaseHook.get_connection(conn_id))


async def ledger_connection_async(clickhouse: Connection) -> Connection:
    """Do the same as `ledger_connection` without blocking, for triggers."""
    from airflow.sdk import BaseHook

    conn_id = roles.conn_id_of(roles.LEDGER, clickhouse.conn_id, clickhouse.extra_dejson)
    if conn_id == clickhouse.conn_id:
        return clickhouse
    return on_servers_of(clickhouse, await BaseHook.aget_connection(conn_id))


def on_servers_of(clickhouse: Connection, other: Connection) -> Connection:
    """Give a connection the extra `servers` of another one: the ledger is on the first of these servers."""
    if names := server_names(clickhouse):
        other.extra = json.dumps({**other.extra_dejson, "servers": names})
    return other


def server_names(clickhouse: Connection) -> list[str]:
    """Return the addresses in the extra `servers`; the first server has the ledger. Empty without a cluster."""
    from storeside.transfer.tables.servers import names_of

    return names_of(clickhouse.extra_dejson)


def other_servers(clickhouse: Connection) -> Servers:
    """Return the servers of a connection's cluster, except the first."""
    from storeside.transfer.tables.servers import Servers

    return Servers(server_names(clickhouse)[1:], lambda name: _client_of(clickhouse, name))


def ledger_client(ledger: Connection, clickhouse: Connection) -> HttpClient | None:
    """Return a client for Storeside's tables; None if loads use the same connection."""
    return None if ledger.conn_id == clickhouse.conn_id else clickhouse_client(ledger)


def s3_client(connection: Connection) -> Any:
    """Return an S3 client with the access that the connection's extras describe."""
    from airflow.providers.amazon.aws.hooks.s3 import S3Hook

    return _with_access(bound_to(S3Hook, connection)(aws_conn_id=connection.conn_id))


def s3_client_of(conn_id: str | None) -> Any:
    """Return the S3 client of a connection id; without this connection, boto3 finds its own credentials."""
    from airflow.providers.amazon.aws.hooks.s3 import S3Hook

    return _with_access(S3Hook(conn_id))


def catalog(uri: str, aws: Connection) -> Catalog:
    """Return the catalogue of a table's URI, which contains the id of a connection; `aws` gives access to Glue."""
    from airflow.sdk import BaseHook

    from storeside.operators.hooks.catalog import properties
    from storeside.transfer.lakes.snapshots import catalog_of
    from storeside.transfer.request.source import table_of

    given = BaseHook.get_connection(table_of(uri)[0])
    return catalog_of(uri, properties(given, lambda extra: _glue_client(aws, extra)))


def _glue_client(connection: Connection, extra: Mapping[str, Any]) -> Any:
    """Return a client of Glue with an AWS connection, in the region and at the endpoint of a catalogue's extras."""
    from airflow.providers.amazon.aws.hooks.base_aws import AwsBaseHook

    region = extra.get("glue.region")
    hook = bound_to(AwsBaseHook, connection)(aws_conn_id=connection.conn_id, client_type="glue", region_name=region)
    endpoint = extra.get("glue.endpoint")
    return hook.get_session(region).client("glue", endpoint_url=endpoint) if endpoint else hook.get_conn()


def folder_in_catalog(uri: str, aws: Connection) -> tuple[str, str]:
    """Return the bucket and the folder of a table in a catalogue. Raises TransferError and BadInput."""
    from storeside.transfer.lakes.snapshots import folder_of

    return folder_of(s3_client(aws), catalog(uri, aws), uri)


def listed_by_s3(conn_id: str | None, bucket: str, prefix: str) -> Iterator[StoredObject]:
    """Stream the objects of an S3 bucket. Raises CopyError, in which AIStore's own listing is a remedy."""
    from storeside.aistore.stored_objects import list_s3
    from storeside.copying.errors import CopyInputError
    from storeside.copying.s3_errors import s3_errors

    client = s3_client_of(conn_id)
    try:
        with s3_errors(client, f"s3://{bucket}", bucket):
            yield from list_s3(client, bucket, prefix)
    except CopyInputError as e:
        raise CopyInputError(f"{e}, or set aws_conn_id=None, so that AIStore lists the bucket") from e


def _with_access(hook: Any) -> Any:
    from storeside.copying.s3_access import Access

    return Access.of(hook.conn_config.extra_config).given_to(hook.get_conn())


def clickhouse_client(connection: Connection) -> HttpClient:
    """Return a ClickHouse client, which several threads may use: of the first server, if the extras name servers.

    Raises BadInput for an invalid address.
    """
    return _client_of(connection, next(iter(server_names(connection)), ""))


def _client_of(given: Connection, server: str) -> HttpClient:
    from airflow.providers.clickhousedb.hooks.clickhouse import ClickHouseHook

    from storeside.sql.answers import whole_answers
    from storeside.sql.inserts import lean_inserts
    from storeside.transfer.tables.servers import address

    connection = copy.copy(given)
    if server:
        connection.host, connection.port = address(server)
    # ClickHouse locks a session while a statement runs in it, even after the statement's connection was lost.
    hook = bound_to(ClickHouseHook, connection)(connection.conn_id, client_kwargs={"autogenerate_session_id": False})
    return cast("HttpClient", lean_inserts(whole_answers(hook.get_client())))


def sqs_client(connection: Connection) -> Any:
    """Return an SQS client."""
    from airflow.providers.amazon.aws.hooks.sqs import SqsHook

    return bound_to(SqsHook, connection)(aws_conn_id=connection.conn_id).get_conn()


def bound_to(hook: Any, connection: Connection) -> Any:
    """Return a subclass of a hook that uses this connection and does not look it up."""

    class Bound(hook):  # type: ignore[misc]
        @classmethod
        def get_connection(cls, conn_id: str) -> Any:
            return connection

    return Bound


def source(aws: Connection | None, bucket: str, keys: str, aistore: AIStoreHook | None = None) -> Source:
    """Return the source of a load: bucket, keys, and how ClickHouse reaches them, from the extras of a connection.

    That is the connection to S3, or for a bucket of AIStore that of the hook `aistore`. Without it, the worker reads
    the bucket of AIStore.
    """
    from storeside.transfer.request.source import Source, source_of

    if aistore is not None:
        return Source(bucket, keys, aistore.clickhouse_url_collection, aistore.clickhouse_endpoint)
    return source_of(aws.extra_dejson if aws else {}, bucket, keys)
