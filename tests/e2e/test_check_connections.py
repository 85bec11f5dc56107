"""The DAG that tries every connection, on the whole embedded stack."""

from __future__ import annotations

import pytest

from include.stack.airflow_api import AirflowApi
from include.stack.settings import Stack

pytestmark = pytest.mark.timeout(240)

DAG = "check_connections"


def test_worker_and_triggerer_find_the_stack_well(airflow: Stack) -> None:
    api = AirflowApi(airflow.url("airflow"), "admin", airflow.secrets["airflow_admin"])
    api.request("PATCH", f"dags/{DAG}", json={"is_paused": False})
    run = api.trigger(DAG)
    assert api.wait(DAG, run, 120)["state"] == "success"
    for task in ("worker", "triggerer"):
        log = api.log(DAG, run, task)
        assert f"from the {task}:" in log
        assert "ClickHouse  reads AIStore" in log
        assert not any(secret in log for secret in airflow.secrets.values())
