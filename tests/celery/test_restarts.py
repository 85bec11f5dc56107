"""Restarts of the database, the queue and one worker, by the commands of `make restart`."""

from __future__ import annotations

import pytest

from storeside.stack import cli
from storeside.stack.airflow.api import AirflowApi
from storeside.stack.servers import s3
from storeside.stack.settings import Stack
from tests.conftest import FOLDER
from tests.support import process

DAG = "check_connections"
pytestmark = [pytest.mark.timeout(600), pytest.mark.dags(DAG)]


@pytest.mark.parametrize("component", ["postgres", "redis", "worker-2"])
def test_tasks_run_after_a_restart(component: str, several: Stack, api: AirflowApi) -> None:
    old = process(several, component)
    assert cli.main(["--folder", str(FOLDER), "restart", component]) == 0
    assert process(several, component).pid != old.pid
    runs = [api.trigger(DAG, {"bucket": s3.BUCKET, "queue": s3.QUEUE}) for _ in range(2)]
    assert [api.wait(DAG, run, 240)["state"] for run in runs] == ["success"] * 2
    assert cli.main(["--folder", str(FOLDER), "status"]) == 0
