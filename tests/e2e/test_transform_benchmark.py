"""The DAG that measures servers and channels, on the whole embedded stack: measured, marked as failed, killed."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from typing import Any

import psutil
import pytest

from storeside.aistore.buckets import Bucket
from storeside.stack.airflow.api import AirflowApi
from storeside.stack.demo import RECORDINGS
from storeside.stack.settings import Stack
from tests.support import left_of_benchmarks, put, unique, until, versions

DAG = "transform_benchmark"
pytestmark = pytest.mark.dags(DAG)
FEW = {"objects": 3, "servers": ["flask", "storeside"], "communications": ["ws", "hpush"], "direct_put": "on"}


@pytest.fixture
def source(aistore: Any) -> Iterator[Bucket]:
    bucket = Bucket("ais", unique("speech"))
    put(aistore, bucket, {path.name: path.read_bytes() for path in RECORDINGS.glob("*.flac")})
    before = versions(aistore, bucket)
    yield bucket
    assert versions(aistore, bucket) == before
    bucket.handle(aistore).delete()


def client() -> psutil.Process:
    """Return the client process of the measurement."""
    found: list[psutil.Process] = []

    def is_there() -> bool:
        every = psutil.process_iter(["cmdline"])
        found[:] = [p for p in every if "storeside.measure.transforms.client" in (p.info["cmdline"] or ())]
        return bool(found)

    until(is_there, 60, "the client", 0.05)
    return found[0]


@pytest.mark.essential
def test_a_run_from_the_form_is_measured(
    api: AirflowApi, airflow: Stack, aistore: Any, clickhouse: Any, source: Bucket
) -> None:
    conf = {"source": str(source), **FEW, "file_access": "off", "rounds": 2, "processes": 1, "client_workers": 2}
    run = api.trigger(DAG, conf)
    assert api.wait(DAG, run)["state"] == "success", api.log(DAG, run, "measure")
    value = api.xcom(DAG, run, "measure")
    report = json.loads(value) if isinstance(value, str) else value
    wanted = {"client", "flask hpush direct put", "storeside hpush direct put", "storeside ws direct put"}
    assert {variant["variant"] for variant in report["variants"]} == wanted
    assert (report["objects"], report["failed"], report["format"]) == (3, {}, "pcm_s16le 44100 Hz, channels: 2")
    log = api.log(DAG, run, "measure")
    assert "| variant | seconds | objects/s | MB/s | times as fast as the client |" in log
    assert "| client | " in log
    counts = clickhouse.query(
        "SELECT server, count() FROM storeside.transform_benchmark WHERE run_id = {run:String} GROUP BY 1 ORDER BY 1",
        parameters={"run": f"{DAG}/{run}"},
    ).result_rows
    assert counts == [("client", 2), ("flask", 2), ("storeside", 4)]
    (recorded,) = clickhouse.query(
        "SELECT kind, state, listed, done FROM storeside.runs FINAL WHERE run_id = {run:String}",
        parameters={"run": f"{DAG}/{run}"},
    ).result_rows
    assert recorded == ("transform benchmark", "done", 3, 4)
    assert left_of_benchmarks(aistore) == []


@pytest.mark.parametrize("by", ["hand", "SIGKILL"])
def test_a_killed_task_leaves_nothing(api: AirflowApi, aistore: Any, source: Bucket, by: str) -> None:
    run = api.trigger(DAG, {"source": str(source), **FEW, "rounds": 1, "servers": ["flask"]})
    measuring = client()
    if by == "hand":
        until(lambda: any(name.startswith("bench-") for name in left_of_benchmarks(aistore)), 60, "an ETL", 0.05)
        instance = f"dags/{DAG}/dagRuns/{run}/taskInstances/measure"
        api.request("PATCH", instance, json={"new_state": "failed"})
    else:
        task = measuring.parent()
        assert task is not None
        task.send_signal(signal.SIGKILL)
        until(lambda: not measuring.is_running(), 10, "end of the client")
    state = api.wait(DAG, run)["state"]
    assert state == ("failed" if by == "hand" else "success"), api.log(DAG, run, "measure")
    assert {task["task_id"]: task["state"] for task in api.task_instances(DAG, run)}["remove"] == "success"
    assert left_of_benchmarks(aistore) == []
