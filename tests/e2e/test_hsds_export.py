"""The DAG that exports a dataset of HSDS and loads it, on the whole embedded stack."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from storeside.hsds.client import Client
from storeside.stack import cli
from storeside.stack.airflow.api import AirflowApi
from storeside.stack.servers import hsds, s3
from storeside.stack.settings import Stack
from tests.conftest import FOLDER
from tests.domains import put, server, write
from tests.support import unique

if TYPE_CHECKING:
    from types_boto3_s3 import S3Client

DAG = "hsds_export"
pytestmark = pytest.mark.dags(DAG)
CONNECTION = "hsds_default"
VALUES = np.arange(400 * 30, dtype=np.int64).reshape(400, 30) * 7919 % 100_003


@pytest.fixture(scope="module")
def api(api: AirflowApi, airflow: Stack) -> AirflowApi:
    cli.up(FOLDER, only=("hsds",))
    login = hsds.login(airflow)
    if CONNECTION not in {c["connection_id"] for c in api.get("connections")["connections"]}:
        connection = {
            "connection_id": CONNECTION, "conn_type": "http", "login": login.username, "password": login.password,
            "extra": json.dumps({"endpoint": login.endpoint}),
        }  # fmt: skip
        api.request("POST", "connections", json=connection)
    return api


@pytest.mark.essential
def test_a_dataset_becomes_rows_and_only_changed_slabs_are_loaded_again(
    api: AirflowApi, airflow: Stack, s3_client: S3Client, clickhouse: Any
) -> None:
    client = Client(server(airflow))
    domain = f"/home/storeside/{unique('dag')}.h5"
    write(client, domain, "/values", VALUES, (100, 30))
    client.flush(domain)
    prefix, table = unique("hsds"), "data." + unique("hsds").replace("-", "_")

    def run() -> tuple[dict[str, Any], dict[str, Any]]:
        conf = {"domain": domain, "dataset": "/values", "bucket": s3.ARRAYS, "prefix": prefix, "table": table}
        started = api.trigger(DAG, conf)
        state = api.wait(DAG, started)["state"]
        assert state == "success", {task["task_id"]: task["state"] for task in api.task_instances(DAG, started)}
        found = (api.xcom(DAG, started, task) for task in ("export", "load"))
        exported, loaded = (json.loads(value) if isinstance(value, str) else value for value in found)
        return exported, loaded

    def rows() -> list[list[int]]:
        return [list(row) for (row,) in clickhouse.query(f"SELECT value FROM {table} ORDER BY i0").result_rows]

    exported, loaded = run()
    assert (loaded["rows"], loaded["failed"]) == (400, 0)
    assert loaded["loaded"] == exported["parts"]
    assert rows() == VALUES.tolist()

    changed = VALUES.copy()
    changed[0] += 1
    put(client, domain, "/values", changed)
    client.flush(domain)
    exported, loaded = run()
    assert (loaded["loaded"], loaded["skipped"]) == (1, exported["parts"] - 1)
    assert rows() == changed.tolist()
    secrets = airflow.secrets["s3_secret_key"], airflow.secrets["clickhouse"], hsds.login(airflow).password
    for started in api.runs(DAG):
        logs = {task: api.log(DAG, started["dag_run_id"], task) for task in ("export", "load")}
        assert domain in logs["export"]
        assert prefix in logs["load"]
        assert not [secret for secret in secrets for log in logs.values() if secret in log]
