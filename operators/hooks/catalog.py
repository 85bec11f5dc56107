"""Describes the catalogue of an Iceberg table by an Airflow connection."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from storeside.operators.errors import OperatorInputError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from airflow.sdk import Connection

TYPES = ("rest", "sql", "glue")


def properties(connection: Connection, client: Callable[[Mapping[str, Any]], Any]) -> dict[str, Any]:
    """Return pyiceberg's properties for a connection; its extras are properties, too, such as ``warehouse``.

    `client` returns a client of Glue for these extras, if the connection has no access key. Raises
    OperatorInputError for another type than `TYPES` in the extra ``type``, or without an address.
    """
    extra: Mapping[str, Any] = connection.extra_dejson
    kind = extra.get("type") or "rest"
    if kind not in TYPES:
        raise OperatorInputError(
            f"connection {connection.conn_id!r}: the extra type is {kind!r}: set it to {', '.join(TYPES)}"
        )
    if kind == "glue":
        return {**extra, **_of_glue(connection, client)}
    given = _address(connection) if kind == "rest" else _database(connection)
    if not given.get("uri"):
        field = "its host to the catalogue's URL" if kind == "rest" else "its extra uri to a URL of SQLAlchemy"
        raise OperatorInputError(f"connection {connection.conn_id!r}: it has no address: set {field}")
    return {**extra, **given, "type": kind}


def _address(connection: Connection) -> dict[str, str]:
    """Return the URL of a REST catalogue, and its credentials: a token, or those of an OAuth client."""
    host, port = connection.host or "", f":{connection.port}" if connection.port else ""
    found = {"uri": host if "://" in host or not host else f"{connection.schema or 'https'}://{host}{port}"}
    if "://" in host and port:
        scheme, _, rest = host.partition("://")
        place, slash, path = rest.partition("/")
        found["uri"] = f"{scheme}://{place}{port}{slash}{path}"
    if connection.password:
        is_client = bool(connection.login)
        secret = f"{connection.login}:{connection.password}" if is_client else connection.password
        found["credential" if is_client else "token"] = secret
    return found


def _database(connection: Connection) -> dict[str, str]:
    """Return the URL of a SQL catalogue, with the connection's login and password."""
    uri = str(connection.extra_dejson.get("uri") or "")
    if not uri or not (connection.login or connection.password):
        return {"uri": uri}
    from sqlalchemy.engine import make_url
    from sqlalchemy.exc import ArgumentError

    try:
        url = make_url(uri)
    except ArgumentError as e:
        raise OperatorInputError(
            f"connection {connection.conn_id!r}: its extra uri is no URL of SQLAlchemy: write it without login and"
            " password, such as postgresql+psycopg2://catalog.example.com/iceberg"
        ) from e
    found = url.set(username=connection.login or None, password=connection.password or None)
    return {"uri": found.render_as_string(hide_password=False)}


def _of_glue(connection: Connection, client: Callable[[Mapping[str, Any]], Any]) -> dict[str, Any]:
    """Return the access to Glue: the connection's own key, or the other client."""
    if connection.login:
        return {"glue.access-key-id": connection.login, "glue.secret-access-key": connection.password or ""}
    return {"client": client(connection.extra_dejson)}
