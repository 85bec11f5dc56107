"""Airflow's button *Test connection* on the real servers: with a right and a wrong login, and without a server."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from storeside.operators import AIStoreHook, HSDSHook
from storeside.stack import cli
from storeside.stack.airflow import airflow
from storeside.stack.settings import Stack
from tests.conftest import FOLDER

WRONG = "a-wrong-one"
NOWHERE: dict[str, Any] = {
    "host": "127.0.0.1",
    "port": 1,
    "extra": {"endpoint": "", "endpoint_url": "http://127.0.0.1:1"},
}
Press = Callable[..., tuple[bool, str]]


@pytest.fixture
def press(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> Press:
    """Test a connection of the stack with these changes; no secret of it may be in the message."""

    def tested(hook: Any, conn_id: str, **changes: Any) -> tuple[bool, str]:
        given = airflow.connections(stack)[conn_id]
        extra = given.get("extra", {}) | changes.pop("extra", {})
        made = {**given, **changes, "extra": extra}
        monkeypatch.setenv("AIRFLOW_CONN_BUTTON", json.dumps(made))
        done, message = hook("button").test_connection()
        for secret in (given.get("password"), made.get("password"), *stack.secrets.values()):
            assert not secret or secret not in message
        return done, message

    return tested


def test_aistore(press: Press) -> None:
    done, message = press(AIStoreHook, "AISTORE_DEFAULT")
    assert done, message
    assert "targets" in message
    done, message = press(AIStoreHook, "AISTORE_DEFAULT", password=WRONG)
    assert not done
    assert "login" in message
    assert "password" in message
    done, message = press(AIStoreHook, "AISTORE_DEFAULT", host="127.0.0.1", port=1, extra={"authn_url": ""})
    assert not done
    assert "correct the AIStore connection: host, port and schema of a proxy" in message
    assert press(AIStoreHook, "AISTORE_DEFAULT", host="")[0] is False


def test_hsds(press: Press) -> None:
    cli.up(FOLDER, only=("hsds",))
    done, message = press(HSDSHook, "HSDS_DEFAULT")
    assert done, message
    assert "login: as " in message
    done, message = press(HSDSHook, "HSDS_DEFAULT", password=WRONG)
    assert not done
    assert "correct login and password of the HSDS connection" in message
    done, message = press(HSDSHook, "HSDS_DEFAULT", **NOWHERE)
    assert not done
    assert "correct host and port of the HSDS connection" in message
    done, message = press(HSDSHook, "HSDS_DEFAULT", host="", extra={"endpoint": ""})
    assert not done
    assert "needs the host of an HSDS service node" in message


def test_airflow_tests_clickhouse_and_s3_itself(press: Press, stack: Stack) -> None:
    """Without the extra of docs/configuration.md, the button sends the keys of another S3 server to AWS."""
    from airflow.providers.amazon.aws.hooks.base_aws import AwsGenericHook
    from airflow.providers.clickhousedb.hooks.clickhouse import ClickHouseHook

    own_sts = {"service_config": {"sts": {"endpoint_url": stack.url("s3")}}}
    nobody = {"service_config": {"sts": {"endpoint_url": "http://127.0.0.1:1"}}}
    assert press(ClickHouseHook, "CLICKHOUSE_DEFAULT") == (True, "Connection successfully tested")
    assert not press(ClickHouseHook, "CLICKHOUSE_DEFAULT", password=WRONG)[0]
    done, message = press(AwsGenericHook, "AWS_DEFAULT", extra=own_sts)
    assert done, message
    assert not press(AwsGenericHook, "AWS_DEFAULT", extra=nobody)[0]
