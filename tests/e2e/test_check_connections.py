"""The DAG that checks every connection, on the whole embedded stack."""

from __future__ import annotations

import time

import pytest

from storeside.stack.airflow.api import FINAL, AirflowApi
from storeside.stack.servers import s3
from storeside.stack.settings import Stack

DAG = "check_connections"
pytestmark = pytest.mark.dags(DAG)
CONF = {"bucket": s3.BUCKET, "queue": s3.QUEUE}


@pytest.mark.essential
def test_worker_and_triggerer_find_the_stack_well(airflow: Stack, api: AirflowApi) -> None:
    run = api.trigger(DAG, CONF)
    assert api.wait(DAG, run)["state"] == "success"
    for task in ("worker", "triggerer"):
        log = api.log(DAG, run, task)
        assert f"from the {task}:" in log
        assert "ClickHouse  reads AIStore" in log
        assert not any(secret in log for secret in airflow.secrets.values())


def test_requests_of_users_do_not_wait_for_those_of_tasks(api: AirflowApi) -> None:
    """A single API server for both would hang until SQLite gives up, after 25 s."""
    runs = [api.trigger(DAG, CONF) for _ in range(2)]
    slowest, count = 0.0, 0
    while api.run(DAG, runs[-1])["state"] not in FINAL:
        name = f"of_a_user_{count}"
        start = time.monotonic()
        api.request("POST", "connections", json={"connection_id": name, "conn_type": "aws"})
        api.request("DELETE", f"connections/{name}")
        slowest, count = max(slowest, time.monotonic() - start), count + 1
    assert [api.run(DAG, run)["state"] for run in runs] == ["success"] * 2
    assert count > 10
    assert slowest < 25
