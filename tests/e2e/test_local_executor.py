"""A LocalExecutor whose idle workers were killed, as the kernel does when memory is short."""

from __future__ import annotations

import contextlib

import psutil
import pytest
import requests

from storeside.stack import cli
from storeside.stack.airflow.airflow import PARALLELISM
from storeside.stack.airflow.api import AirflowApi
from storeside.stack.executor_watch import titles
from storeside.stack.servers import s3
from storeside.stack.settings import Stack
from storeside.stack.supervision.supervisor import Status, Supervisor
from tests.support import process, until

DAG = "check_connections"
pytestmark = pytest.mark.dags(DAG)


def scheduler_status(stack: Stack) -> Status:
    components = [component for stage in cli.stages(stack, ["airflow"]) for component in stage]
    return next(entry for entry in Supervisor(stack).status(components) if entry.name == "scheduler")


def complete(stack: Stack) -> bool:
    with contextlib.suppress(psutil.Error, AssertionError, StopIteration):
        return len(titles(process(stack, "scheduler"))) == PARALLELISM
    return False


def test_tasks_run_again_after_all_idle_workers_were_killed(airflow: Stack, api: AirflowApi) -> None:
    """Without the watch the task below stays queued forever, and Airflow reports a healthy scheduler."""
    if airflow.executor != "local":
        pytest.skip("the stack has another executor")
    until(lambda: complete(airflow), 120, "all workers")
    old = process(airflow, "scheduler")
    for pid in titles(old):
        psutil.Process(pid).kill()
    trouble = until(lambda: scheduler_status(airflow).trouble, 60, "word of it in the status")
    assert f"of {PARALLELISM} workers of the LocalExecutor" in trouble
    health = requests.get(f"{airflow.url('airflow')}/api/v2/monitor/health", timeout=30).json()
    assert health["scheduler"]["status"] == "healthy", "Airflow itself does not see it"
    run = api.trigger(DAG, {"bucket": s3.BUCKET, "queue": s3.QUEUE})
    until(lambda: not old.is_running(), 180, "end of the scheduler")
    assert api.wait(DAG, run)["state"] == "success"
    until(lambda: not scheduler_status(airflow).trouble, 60, "healthy status")
