"""An AIStore cluster's address and credentials, and the `aistore` SDK client for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from storeside.aistore.errors import AIStoreInputError
from storeside.aistore.login import Login, login


@dataclass(frozen=True)
class Cluster:
    """The address of an AIStore cluster and the credentials for it.

    `endpoint` is the URL of a proxy. `ca_cert`, `client_cert` and `client_key` are paths of PEM files. Without
    `verify`, the client accepts any server certificate. `token` is a token that AuthN issued. With `authn`, the URL
    of an AuthN server, the client requests tokens there for `username` and `password`, and renews them before they
    expire.
    """

    endpoint: str
    token: str = field(default="", repr=False)
    ca_cert: str = ""
    client_cert: str = ""
    client_key: str = ""
    verify: bool = True
    authn: str = ""
    username: str = ""
    password: str = field(default="", repr=False)

    @property
    def credential(self) -> str | Login | None:
        """The token as text, or a `Login` whose text is a valid token; None without credentials."""
        if not self.authn:
            return self.token or None
        return login(self.authn, self.username, self.password, (self.ca_cert or True) if self.verify else False)

    @property
    def certificate(self) -> str | tuple[str, str] | None:
        """The client's certificate file, with the key file if the key is in a separate file; None without one."""
        return (self.client_cert, self.client_key) if self.client_key else self.client_cert or None

    def client(self, patient: bool = True) -> Any:
        """Return an SDK client with time-outs for polling: 5 s to connect, 60 s to answer.

        The SDK retries for half a minute, but not if a certificate is refused. Without `patient`, both time-outs are
        5 s and the SDK does not retry.
        """
        from aistore.sdk import Client

        client = Client(
            self.endpoint,
            skip_verify=not self.verify,
            ca_cert=self.ca_cert or None,
            client_cert=self.certificate,
            timeout=(5, 60 if patient else 5),
            retry_config=_retries() if patient else _no_retries(),
            token=self.credential,
        )
        keep_verify(client.cluster().client.session_manager.session)
        return client


def _retries() -> Any:
    """Return the SDK's own retries, without those after a final error of TLS."""
    from aistore.sdk.retry_config import RetryConfig
    from tenacity import retry_if_exception

    found = RetryConfig.default()
    found.http_retry = found.http_retry.new(other=0)  # urllib3 counts errors of TLS as others
    again = found.network_retry.retry & retry_if_exception(lambda e: not _is_final(e))
    found.network_retry = found.network_retry.copy(retry=again)
    return found


def _no_retries() -> Any:
    from aistore.sdk.retry_config import RetryConfig
    from tenacity import Retrying, stop_after_attempt
    from urllib3 import Retry

    return RetryConfig(http_retry=Retry(0), network_retry=Retrying(stop=stop_after_attempt(1), reraise=True))


def _is_final(error: BaseException) -> bool:
    """Return whether TLS fails for a reason that stays: the certificate, or a server without TLS."""
    return any(reason in str(error) for reason in ("CERTIFICATE_VERIFY_FAILED", "WRONG_VERSION_NUMBER"))


def keep_verify(session: Any) -> None:
    """Make a requests session prefer its own `verify` to the variables ``REQUESTS_CA_BUNDLE`` and ``CURL_CA_BUNDLE``.

    requests prefers the variables (its issue 3829). So on a machine that sets them, it would refuse a cluster whose
    authority only the connection names.
    """
    if session.verify is True:
        return
    adapter, verify = session.get_adapter("https://"), session.verify
    send = adapter.send
    adapter.send = lambda request, **given: send(request, **{**given, "verify": verify})


class Connected(Protocol):
    """The fields of an Airflow connection that describe a cluster."""

    @property
    def conn_id(self) -> str: ...  # noqa: D102
    @property
    def host(self) -> str | None: ...  # noqa: D102
    @property
    def port(self) -> int | None: ...  # noqa: D102
    @property
    def login(self) -> str | None: ...  # noqa: D102
    @property
    def password(self) -> str | None: ...  # noqa: D102
    @property
    def schema(self) -> str | None: ...  # noqa: D102
    @property
    def extra_dejson(self) -> Mapping[str, Any]: ...  # noqa: D102


def cluster_of(connection: Connected) -> Cluster:
    """Return the cluster of an Airflow connection. Raises AIStoreInputError when the connection has no host."""
    if not connection.host:
        raise AIStoreInputError(f"connection {connection.conn_id}: needs the host of an AIStore proxy")
    if "://" in connection.host:
        endpoint = f"{connection.host}:{connection.port}" if connection.port else connection.host
    else:
        endpoint = f"{connection.schema or 'http'}://{connection.host}:{connection.port or 51080}"
    extra = connection.extra_dejson
    return Cluster(
        endpoint,
        **_access(connection),
        ca_cert=extra.get("ca_cert") or "",
        client_cert=extra.get("client_cert") or "",
        client_key=extra.get("client_key") or "",
        verify=extra.get("verify", True) not in (False, "false", "False"),
    )


def _access(connection: Connected) -> dict[str, str]:
    """Return the credentials of a connection: a user of AuthN, or a token."""
    secret = connection.password or ""
    authn = str(connection.extra_dejson.get("authn_url") or "")
    if not authn:
        return {"token": secret}
    return {"authn": authn, "username": connection.login or "", "password": secret}
