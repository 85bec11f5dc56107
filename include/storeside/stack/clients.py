"""Addresses and credentials with which clients connect to the stack's servers."""

from __future__ import annotations

from storeside.stack import authn, s3
from storeside.stack.clickhouse_users import USER
from storeside.stack.settings import HOST, Stack


def clients_environment(stack: Stack) -> dict[str, str]:
    """Return the variables, with secrets, that connect clients and `python -m storeside.transfer` to this stack."""
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
        **({"AIS_AUTHN_TOKEN": authn.current_token(stack)} if stack.secure else {}),
    }
