"""Creates stores for buckets of S3, OCI and AIStore from Airflow connections."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow.sdk import BaseHook

from storeside.aistore.buckets import Bucket
from storeside.operators.errors import OperatorInputError
from storeside.operators.hooks.transfer import bound_to

if TYPE_CHECKING:
    from airflow.sdk import Connection
    from clickhouse_connect.driver.client import Client

    from storeside.copying.multipart import PartSettings, Profile
    from storeside.copying.store import Store
    from storeside.measure.through import Through

# The maximum number of threads; connections are opened on demand.
CONNECTIONS = 256
# scheme of a URI -> the default connection
DEFAULT_CONNECTIONS = {"s3": "aws_default", "oci": "oci_default", "ais": "aistore_default"}


def connection_of(uri: str, conn_id: str | None) -> Connection:
    """Return the connection `conn_id`, or by default the connection for the bucket's scheme.

    Raises OperatorInputError for a bucket that the worker cannot reach.
    """
    bucket = check_endpoint(uri)
    return BaseHook.get_connection(conn_id or DEFAULT_CONNECTIONS[bucket.scheme])


def check_endpoint(uri: str) -> Bucket:
    """Return the bucket of a URI. Raises BadInput for a bucket that the worker cannot reach."""
    bucket = Bucket.parse(uri)
    if bucket.scheme not in DEFAULT_CONNECTIONS or bucket.namespace:
        raise OperatorInputError(
            f"{uri}: a worker reaches only s3://, oci:// and ais:// buckets without a namespace: use"
            " AISCopyBucketOperator for other buckets"
        )
    return bucket


def backend(text: str) -> Store:
    """Return the store for ``<bucket URI>`` or ``<bucket URI>@<connection id>``; raises as `store` does."""
    uri, _, conn_id = text.partition("@")
    return store(uri, connection_of(uri, conn_id))


def through(text: str, *, change_parts: bool) -> Through:
    """Return the cloud bucket of ``<bucket URI>`` or ``<bucket URI>@<connection id>`` behind an AIStore cluster.

    Raises BadInput for an ``ais://`` bucket, or for a connection that is not one to AIStore.
    """
    from storeside.aistore.cluster import cluster_of
    from storeside.measure.through import Through

    uri, _, conn_id = text.partition("@")
    cluster = cluster_of(BaseHook.get_connection(conn_id or DEFAULT_CONNECTIONS["ais"]))
    return Through(cluster.client(), Bucket.parse(uri), f"aistore {cluster.endpoint}", change_parts=change_parts)


def store(uri: str, connection: Connection) -> Store:
    """Return the store for the bucket of a URI.

    ``s3://``: an ``aws`` connection. Its extra ``config_kwargs`` sets path or virtual-host style, such as
    ``{"s3": {"addressing_style": "path"}}``.
    ``ais://``: see `AIStoreHook`.
    ``oci://``: login is the user's OCID, password the passphrase of the private key, host an endpoint other than the
    region's. Extras are ``tenancy``, ``fingerprint``, ``region``, ``namespace``, and ``private_key`` (PEM) or
    ``key_file``.

    Raises BadInput for a connection with a missing field.
    """
    bucket = Bucket.parse(uri)
    if bucket.scheme == "s3":
        return _s3(bucket.name, connection)
    if bucket.scheme == "oci":
        return _oci(bucket.name, connection)
    from storeside.aistore.cluster import cluster_of
    from storeside.copying.s3 import AIStoreStore

    return AIStoreStore(cluster_of(connection), bucket.name, CONNECTIONS)


def _s3(bucket: str, connection: Connection) -> Store:
    from airflow.providers.amazon.aws.hooks.s3 import S3Hook

    from storeside.copying.s3 import S3Store, client_config
    from storeside.copying.s3_access import Access

    config = client_config(CONNECTIONS, connection.extra_dejson.get("config_kwargs"))
    client = bound_to(S3Hook, connection)(aws_conn_id=connection.conn_id, config=config).get_conn()
    return S3Store(Access.of(connection.extra_dejson).given_to(client), bucket)


def _oci(bucket: str, connection: Connection) -> Store:
    from storeside.copying.oci import OCIStore, oci_client

    extra = connection.extra_dejson
    if not extra.get("namespace"):
        raise OperatorInputError(
            f"connection {connection.conn_id}: needs the Object Storage namespace in its extra 'namespace'"
        )
    config = {
        "user": connection.login,
        "pass_phrase": connection.password or None,
        "key_content": extra.get("private_key"),
        **{name: extra.get(name) for name in ("tenancy", "fingerprint", "region", "key_file")},
    }
    return OCIStore(oci_client(config, CONNECTIONS, connection.host or ""), extra["namespace"], bucket)


def profile(client: Client, found: Store, connection: Connection, given: PartSettings | None) -> Profile:
    """Return the settings of parts for writes to a store: `given`, the extra ``multipart``, or the tuner's results.

    Raises CopyInputError for invalid settings.
    """
    from storeside.copying.multipart import Profile, Settings
    from storeside.measure.tuner import Recommendations

    if values := given or connection.extra_dejson.get("multipart"):
        return Profile.of(Settings.from_values(values))
    recommendations = Recommendations(client)
    recommendations.create()
    return recommendations.find(found.endpoint, "put") or Profile()
