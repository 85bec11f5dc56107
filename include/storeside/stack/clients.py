"""Addresses and credentials with which clients connect to the stack's servers."""

from __future__ import annotations

from collections.abc import Callable

from storeside.stack import authn
from storeside.stack.servers import s3
from storeside.stack.servers.clickhouse_users import USER
from storeside.stack.settings import HOST, Stack


def clients_environment(stack: Stack, tell: Callable[[str], object] = lambda text: None) -> dict[str, str]:
    """Return the variables, with secrets, that connect clients and `storeside load` to this stack.

    A secure stack has a token for AIStore only while AuthN runs; otherwise this function calls `tell`.
    """
    access_key, secret_key = s3.keys(stack)
    return {
        "CLICKHOUSE_HOST": HOST,
        "CLICKHOUSE_PORT": str(stack.ports["clickhouse_http"]),
        "CLICKHOUSE_USER": USER,
        "CLICKHOUSE_PASSWORD": stack.secrets["clickhouse"],
        "AWS_ENDPOINT_URL": stack.url("s3"),
        "AWS_ACCESS_KEY_ID": access_key,
        "AWS_SECRET_ACCESS_KEY": secret_key,
        "AWS_DEFAULT_REGION": s3.REGION,
        "AIS_ENDPOINT": stack.url("ais_proxy"),
        **_tls(stack),
        **_token(stack, tell),
    }


def _tls(stack: Stack) -> dict[str, str]:
    """Return the variables of clients that must trust the stack's authority: boto3, AIStore's and ClickHouse's."""
    if not stack.tls:
        return {}
    path = str(stack.authority)
    return {"AWS_CA_BUNDLE": path, "AIS_CLIENT_CA": path, "CLICKHOUSE_SECURE": "1", "CLICKHOUSE_CA": path}


def _token(stack: Stack, tell: Callable[[str], object]) -> dict[str, str]:
    from storeside.aistore.errors import AIStoreTransientError  # absent in AIStore's container image

    if not stack.secure:
        return {}
    try:
        return {"AIS_AUTHN_TOKEN": authn.current_token(stack)}
    except AIStoreTransientError:
        tell("note: there is no token for AIStore, because AuthN does not run: start the stack with 'make up'")
        return {}
