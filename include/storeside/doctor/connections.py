"""Airflow's connections from environment variables, read without Airflow."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from storeside.aistore.cluster import cluster_of
from storeside.aistore.pods import pods_of
from storeside.copying.s3_access import Access
from storeside.doctor.errors import DoctorInputError
from storeside.doctor.examination import Systems
from storeside.doctor.hsds import Service
from storeside.sql import roles
from storeside.sql.answers import whole_answers
from storeside.transfer.request.source import source_of
from storeside.transfer.tables.servers import address, names_of

PREFIX = "AIRFLOW_CONN_"
IDS = {
    "clickhouse": "clickhouse_default",
    "aws": "aws_default",
    "aistore": "aistore_default",
    "hsds": "hsds_default",
}


@dataclass(frozen=True)
class Connection:
    """The fields of a connection that Storeside uses."""

    conn_id: str
    host: str = ""
    port: int | None = None
    login: str = ""
    password: str = field(default="", repr=False)
    schema: str = ""
    extra_dejson: Mapping[str, Any] = field(default_factory=dict, repr=False)

    @classmethod
    def parse(cls, conn_id: str, text: str) -> Connection:
        """Parse Airflow's JSON or URI form. Raises DoctorInputError, which never quotes the content."""
        try:
            if text.lstrip().startswith("{"):
                given = json.loads(text)
                extra = given.get("extra") or {}
                extra = json.loads(extra) if isinstance(extra, str) else extra
                port = int(given["port"]) if given.get("port") else None
                fields = {name: given.get(name) or "" for name in ("host", "login", "password", "schema")}
                return cls(conn_id, port=port, extra_dejson=extra, **fields)
            parts = urlsplit(text)
            query = dict(parse_qsl(parts.query, keep_blank_values=True))
            extra = json.loads(query["__extra__"]) if "__extra__" in query else query
            return cls(
                conn_id,
                unquote(parts.hostname or ""),
                parts.port,
                unquote(parts.username or ""),
                unquote(parts.password or ""),
                unquote(parts.path.removeprefix("/")),
                extra,
            )
        except (ValueError, TypeError, AttributeError) as e:
            raise DoctorInputError(f"{PREFIX}{conn_id.upper()}: write it as Airflow's JSON or URI") from e

    def secrets(self) -> list[str]:
        """Return the values that must not be shown: the password, and extras whose names suggest a secret."""
        words = ("secret", "password", "token", "key")
        hidden = [str(v) for name, v in self.extra_dejson.items() if any(word in name.lower() for word in words)]
        return [self.password, *hidden]


def found(environment: Mapping[str, str], ids: Mapping[str, str]) -> dict[str, Connection]:
    """Return the connections that are set, by system. Raises DoctorInputError if one cannot be parsed."""
    given = {system: (conn_id, environment.get(f"{PREFIX}{conn_id.upper()}")) for system, conn_id in ids.items()}
    parsed = {system: Connection.parse(conn_id, text) for system, (conn_id, text) in given.items() if text}
    if loader := parsed.get("clickhouse"):
        for role, conn_id in roles_of(loader.extra_dejson).items():
            if not (text := environment.get(f"{PREFIX}{conn_id.upper()}")):
                raise DoctorInputError(
                    f"the extras of {loader.conn_id} refer to the connection {conn_id}: set {PREFIX}{conn_id.upper()}"
                )
            other = Connection.parse(conn_id, text)
            servers = {"servers": names_of(loader.extra_dejson)}  # all users work on the first of them
            parsed[role] = replace(other, extra_dejson={**other.extra_dejson, **servers})
    return parsed


def roles_of(extra: Mapping[str, Any]) -> dict[str, str]:
    """Return the connection ids in the extras of the ClickHouse connection, by role."""
    given = {"ledger": extra.get(roles.LEDGER), "pages": extra.get(roles.PAGES)}
    return {role: str(conn_id) for role, conn_id in given.items() if conn_id}


def systems(
    connections: Mapping[str, Connection], bucket: str, *, queue: str = "", write: bool = True, **clients: Any
) -> Systems:
    """Return the systems behind the connections; `clients` replace this module's functions that connect.

    Raises TransferInputError for an invalid name of a bucket or of a named collection.
    """
    aws = connections.get("aws")
    store, hsds = connections.get("aistore"), connections.get("hsds")
    extra = store.extra_dejson if store else {}
    ways = {
        **{
            name: (lambda connection=connections[name]: _clickhouse(connection)) if name in connections else None
            for name in ("clickhouse", "ledger", "pages")
        },
        "s3": (lambda: _aws(aws, "s3")) if aws else None,
        "sqs": (lambda: _aws(aws, "sqs")) if aws else None,
        "aistore": (lambda: cluster_of(store)) if store else None,
    }
    return Systems(
        **ways | clients,
        source=source_of(aws.extra_dejson, bucket) if aws else None,
        queue=queue,
        aistore_endpoint=str(extra.get("clickhouse_endpoint") or ""),
        aistore_collection=str(extra.get("clickhouse_collection") or ""),
        pods=pods_of(extra),
        hsds=Service(_url(hsds), hsds.login, hsds.password) if hsds else None,
        write=write,
        secrets=[secret for connection in connections.values() for secret in connection.secrets()],
    )


def _clickhouse(connection: Connection) -> Any:
    import clickhouse_connect

    extra = connection.extra_dejson
    names = names_of(extra)
    host, port = address(names[0]) if names else (connection.host or "localhost", connection.port or 0)
    client = clickhouse_connect.get_client(
        host=host,
        port=port,
        username=connection.login or "default",
        password=connection.password,
        database=connection.schema or "__default__",
        secure=str(extra.get("secure", "")).lower() in ("1", "true"),
        verify=str(extra.get("verify", True)).lower() not in ("0", "false"),
        autogenerate_session_id=False,
        ca_cert=(extra.get("client_kwargs") or {}).get("ca_cert"),
    )
    return whole_answers(client)


def _aws(connection: Connection, service: Any) -> Any:
    import boto3
    from botocore.config import Config

    extra = connection.extra_dejson
    session = boto3.Session(
        connection.login or None,
        connection.password or None,
        extra.get("aws_session_token"),
        region_name=extra.get("region_name") or "us-east-1",
    )
    config = Config(**extra.get("config_kwargs") or {})
    client = session.client(
        service, endpoint_url=extra.get("endpoint_url"), verify=extra.get("verify"), config=config
    )
    return Access.of(extra).given_to(client)


def _url(connection: Connection) -> str:
    if endpoint := connection.extra_dejson.get("endpoint"):
        return str(endpoint)
    if "://" in connection.host:
        return f"{connection.host}:{connection.port}" if connection.port else connection.host
    return f"{connection.schema or 'http'}://{connection.host}:{connection.port or 5101}"
