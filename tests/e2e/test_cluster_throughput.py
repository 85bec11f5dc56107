"""The DAG that measures a cluster, on the whole embedded stack: measured, stopped by hand, killed with -9."""

from __future__ import annotations

import json
import signal
from typing import TYPE_CHECKING, Any

import psutil
import pytest

from storeside.aistore.buckets import Bucket
from storeside.stack.airflow.api import AirflowApi
from storeside.stack.building import aisloader
from storeside.stack.settings import Stack
from tests.support import sizes, unique, until

if TYPE_CHECKING:
    from types_boto3_s3 import S3Client

DAG = "cluster_throughput"
pytestmark = [pytest.mark.chaos, pytest.mark.dags(DAG)]


@pytest.fixture(scope="module", autouse=True)
def loader(stack: Stack) -> None:
    aisloader.build(stack.cache)


def loaders(stack: Stack) -> list[psutil.Process]:
    port = str(stack.ports["ais_proxy"])
    found = [p for p in psutil.process_iter(["name"]) if p.info["name"] == "aisloader"]
    return [p for p in found if p.environ().get("AIS_ENDPOINT", "").endswith(port)]


def gone(process: psutil.Process) -> bool:
    return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE


def test_a_run_from_the_form_is_measured_and_drawn(
    api: AirflowApi, airflow: Stack, aistore: Any, s3_client: S3Client, bucket: Bucket
) -> None:
    reports = unique("reports")
    s3_client.create_bucket(Bucket=reports)
    conf = {"bucket": str(bucket), "object_size": "256KiB", "dataset_size": "8MiB", "concurrency": 4, "seconds": 6}
    run = api.trigger(DAG, {**conf, "nic_gbit": 10, "chart": f"s3://aws_default@{reports}/chart.svg"})
    assert api.wait(DAG, run)["state"] == "success", api.log(DAG, run, "measure")
    value = api.xcom(DAG, run, "measure")
    report = json.loads(value) if isinstance(value, str) else value
    assert report["figures"]["mean"] > 0
    assert report["bound"] == airflow.targets * 1.25e9
    log = api.log(DAG, run, "measure")
    assert "% of the limit" in log
    assert "time variance" in log
    chart = s3_client.get_object(Bucket=reports, Key="chart.svg")["Body"].read().decode()
    disks = 3 if report["figures"]["disk_use"] is not None else 0
    assert chart.count("<polyline") == 1 + airflow.targets + disks
    assert sizes(aistore, bucket) == {}


def test_a_missing_bucket_fails_once_with_the_remedy(api: AirflowApi) -> None:
    run = api.trigger(DAG, {"bucket": "ais://is-not-there"})
    assert api.wait(DAG, run)["state"] == "failed"
    (task,) = api.task_instances(DAG, run)
    assert task["try_number"] == 1
    assert "create it or correct its name" in api.log(DAG, run, "measure")


@pytest.mark.parametrize("by", ["hand", "SIGKILL"])
def test_a_killed_task_ends_its_loaders_and_leaves_nothing(
    api: AirflowApi, airflow: Stack, aistore: Any, bucket: Bucket, by: str
) -> None:
    conf = {"bucket": str(bucket), "workload": "write", "object_size": "64KiB", "concurrency": 2, "loaders": 2}
    run = api.trigger(DAG, {**conf, "seconds": 20, "write_limit": "1GiB"})
    until(lambda: len(sizes(aistore, bucket)) > 20, 60, "objects of the loaders")
    running = loaders(airflow)
    assert len(running) == 2
    if by == "hand":
        instance = f"dags/{DAG}/dagRuns/{run}/taskInstances/measure"
        api.request("PATCH", instance, json={"new_state": "failed"})
        until(lambda: not any(loader.is_running() for loader in running), 20, "end of the loaders")
    else:
        task = running[0].parent()
        assert task is not None
        task.send_signal(signal.SIGKILL)
        until(lambda: all(map(gone, running)), 5, "end of the loaders")
        assert api.wait(DAG, run)["state"] == "success"  # on its second attempt
    until(lambda: not sizes(aistore, bucket), 20, "removal")
