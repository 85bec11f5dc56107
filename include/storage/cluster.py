"""The AIStore cluster as the `aistore` SDK's client."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol


@dataclass(frozen=True)
class Cluster:
    """Where an AIStore cluster is and how it is entered.

    `endpoint` is a proxy's URL. `ca_cert`, `client_cert` and `client_key` are paths of PEM files, `verify` off takes
    any certificate; `token` is one that AuthN has issued.
    """

    endpoint: str
    token: str = field(default="", repr=False)
    ca_cert: str = ""
    client_cert: str = ""
    client_key: str = ""
    verify: bool = True

    @property
    def certificate(self) -> str | tuple[str, str] | None:
        """The client's certificate, and its key where that is in another file; None without one."""
        return (self.client_cert, self.client_key) if self.client_key else self.client_cert or None

    def client(self, patient: bool = True) -> Any:
        """Return an SDK client with time-outs that fit polling: 5 s to connect, 60 s to answer.

        One that is not patient has 5 s for both, and says at once what the SDK else tries again for half a minute.
        """
        from aistore.sdk import Client
        from aistore.sdk.retry_config import RetryConfig
        from tenacity import Retrying, stop_after_attempt
        from urllib3 import Retry

        once = RetryConfig(http_retry=Retry(0), network_retry=Retrying(stop=stop_after_attempt(1), reraise=True))

        return Client(
            self.endpoint,
            skip_verify=not self.verify,
            ca_cert=self.ca_cert or None,
            client_cert=self.certificate,
            timeout=(5, 60 if patient else 5),
            retry_config=None if patient else once,
            token=self.token or None,
        )


class Connected(Protocol):
    """The fields of an Airflow connection that say where a cluster is."""

    @property
    def conn_id(self) -> str: ...  # noqa: D102
    @property
    def host(self) -> str | None: ...  # noqa: D102
    @property
    def port(self) -> int | None: ...  # noqa: D102
    @property
    def password(self) -> str | None: ...  # noqa: D102
    @property
    def schema(self) -> str | None: ...  # noqa: D102
    @property
    def extra_dejson(self) -> Mapping[str, Any]: ...  # noqa: D102


def cluster_of(connection: Connected) -> Cluster:
    """Return the cluster that a connection leads to. Raises ValueError when it has no host."""
    if not connection.host:
        raise ValueError(f"connection {connection.conn_id}: needs the host of an AIStore proxy")
    if "://" in connection.host:
        endpoint = f"{connection.host}:{connection.port}" if connection.port else connection.host
    else:
        endpoint = f"{connection.schema or 'http'}://{connection.host}:{connection.port or 51080}"
    extra = connection.extra_dejson
    return Cluster(
        endpoint,
        token=connection.password or "",
        ca_cert=extra.get("ca_cert", ""),
        client_cert=extra.get("client_cert", ""),
        client_key=extra.get("client_key", ""),
        verify=extra.get("verify", True) not in (False, "false", "False"),
    )
