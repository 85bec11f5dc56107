"""Operators of bucket jobs on a real cluster: they follow brief jobs, and defer while long ones run."""

from __future__ import annotations

import asyncio
import json
import tempfile
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowFailException, AirflowTaskTimeout, TaskDeferred

from storeside.aistore import jobs
from storeside.aistore.buckets import Bucket
from storeside.ledger.objects import Ledger
from storeside.operators import (
    AISGetObjectOperator,
    AISInspectBucketOperator,
    AISPrefetchBucketOperator,
    AISTransformBucketOperator,
)
from storeside.operators.bases import bucket_job as operators
from storeside.operators.bases import following
from storeside.operators.shared import run_key
from storeside.stack.airflow import airflow
from storeside.stack.settings import Stack
from storeside.transfer.__main__ import main
from storeside.transform import bucket_job
from tests.support import put, read, small_spec, task_context, unique, until
from tests.transfers import environment

pytestmark = pytest.mark.usefixtures("no_etl_is_left")


@pytest.fixture
def task(stack: Stack, aistore: Any, clickhouse: Any, monkeypatch: pytest.MonkeyPatch) -> AISTransformBucketOperator:
    """A transform of three objects, each of which takes a second."""
    monkeypatch.setenv("AIRFLOW_CONN_AISTORE_DEFAULT", json.dumps(airflow.connections(stack)["AISTORE_DEFAULT"]))
    for module in ("operators.aistore", "operators.aistore_inspect", "bases.bucket_job", "operators.prefetch"):
        monkeypatch.setattr(f"storeside.operators.{module}.ledger", lambda _: Ledger(clickhouse))
    monkeypatch.setattr(bucket_job, "RETRIES", 0)
    source = Bucket("ais", unique("in"))
    put(aistore, source, {f"{n}.txt": b"1" for n in range(3)})
    return AISTransformBucketOperator(
        task_id="transform", source=str(source), destination=f"ais://{unique('out')}",
        etl=small_spec("slow", environment={"SECONDS": "1"}),
        on_failed_objects="report", outlets=[],
    )  # fmt: skip


@pytest.fixture
def context() -> Any:
    return task_context("transform")


def test_one_object_goes_to_object_storage_without_a_file_on_the_worker(
    stack: Stack, aistore: Any, s3_client: Any, context: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    for name in ("AISTORE_DEFAULT", "AWS_DEFAULT"):
        monkeypatch.setenv(f"AIRFLOW_CONN_{name}", json.dumps(airflow.connections(stack)[name]))
    source, samples = Bucket("ais", unique("in")), unique("samples")
    put(aistore, source, {"a/first.txt": b"some text"})
    s3_client.create_bucket(Bucket=samples)
    task = AISGetObjectOperator(
        task_id="get", source=str(source), name="a/first.txt", path=f"s3://aws_default@{samples}/of/first.txt",
        etl=small_spec("upper"),
    )  # fmt: skip
    assert task.execute(context) == 9
    assert s3_client.get_object(Bucket=samples, Key="of/first.txt")["Body"].read() == b"SOME TEXT"
    assert not list(tmp_path.iterdir())


def test_a_brief_job_ends_in_the_worker(
    task: AISTransformBucketOperator, context: Any, aistore: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(operators, "BRIEF_SECONDS", 100)
    assert task.execute(context)["done"] == 3
    assert read(aistore, Bucket.parse(task.destination), "2.txt") == b"1"


def test_a_longer_job_ends_in_the_triggerer(
    task: AISTransformBucketOperator, context: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(operators, "BRIEF_SECONDS", 0.1)
    with pytest.raises(TaskDeferred) as deferred:
        task.execute(context)

    async def event() -> Any:
        return await anext(deferred.value.trigger.run())

    payload = asyncio.run(event()).payload
    assert task.resume(context, payload, **(deferred.value.kwargs or {}))["done"] == 3


def test_a_task_that_is_not_deferrable_waits_in_the_worker(
    task: AISTransformBucketOperator, context: Any, aistore: Any, s3_client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(operators, "BRIEF_SECONDS", 0)
    put(aistore, Bucket.parse(task.source), {"broken.txt": b"bad"})
    task.deferrable = False
    found = task.execute(context)
    assert found["done"] == 4, found

    inspect = AISInspectBucketOperator(
        task_id="inspect", source=task.source, etl=small_spec("upper"), deferrable=False
    )
    assert inspect.execute(context)["examples"] == [["broken.txt", "this object is bad"]]

    bucket = unique("remote")
    s3_client.create_bucket(Bucket=bucket)
    s3_client.put_object(Bucket=bucket, Key="a.txt", Body=b"a")
    prefetch = AISPrefetchBucketOperator(task_id="prefetch", bucket=f"s3://{bucket}", deferrable=False, outlets=[])
    assert prefetch.execute(context)["done"] == 1


def test_a_task_that_is_killed_in_the_worker_ends_its_job(
    task: AISTransformBucketOperator, context: Any, aistore: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(operators, "BRIEF_SECONDS", 100)
    source, destination = Bucket.parse(task.source), Bucket.parse(task.destination)
    put(aistore, source, {f"more/{n}.txt": b"1" for n in range(60)})
    found: dict[str, Any] = {}
    worker = threading.Thread(target=lambda: found.update(task.execute(context)))
    worker.start()
    until(lambda: jobs.running_between(aistore, source, destination), 60, "the job")
    until(lambda: task._stop_job, 20, "the worker to follow it")
    task.on_kill()
    until(lambda: not jobs.running_between(aistore, source, destination), 20, "the end of the job")
    worker.join(60)
    assert found["done"] < 63


@pytest.mark.parametrize("moment", ["following", "recording"])
def test_a_timeout_in_the_worker_ends_its_job(
    task: AISTransformBucketOperator, context: Any, aistore: Any, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    source, destination = Bucket.parse(task.source), Bucket.parse(task.destination)
    put(aistore, source, {f"more/{n}.txt": b"1" for n in range(60)})
    task.deferrable = False

    def time_is_over(*_: Any, **__: Any) -> None:
        raise AirflowTaskTimeout

    if moment == "following":
        monkeypatch.setattr(following, "time", SimpleNamespace(time=time.time, sleep=time_is_over))
    else:
        monkeypatch.setattr(operators, "record_running", time_is_over)
    with pytest.raises(AirflowTaskTimeout):
        task.execute(context)
    assert jobs.running_between(aistore, source, destination)
    task.on_kill()  # as Airflow does when the exception has left `execute`
    until(lambda: not jobs.running_between(aistore, source, destination), 20, "the end of the job")


@pytest.mark.parametrize("in_place", [False, True])
def test_a_known_failure_fails_each_run_until_it_is_accepted(
    stack: Stack, task: AISTransformBucketOperator, aistore: Any, clickhouse: Any, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str], in_place: bool,
) -> None:  # fmt: skip
    task.etl, task.deferrable, task.in_place = small_spec("upper"), False, in_place
    put(aistore, Bucket.parse(task.source), {"broken.txt": b"bad"})
    if in_place:
        task.destination = task.source

    def numbers(**changed: Any) -> tuple[int, int, int, int]:
        task.etl = small_spec("upper", **changed)
        found = task.execute(task_context("transform"))
        parts = found["done"], found["failed"], found["known_bad"], found["skipped"]
        assert sum(parts) == found["listed"] == 4
        assert [name for name, _ in found["known_failures"]] == ["broken.txt"] * found["known_bad"]
        return parts

    assert numbers() == (3, 1, 0, 0)
    assert numbers() == (0, 0, 1, 3)
    run = task_context("transform")
    task.on_failed_objects = "fail"
    with pytest.raises(AirflowFailException, match=r"^1 of 4 objects are not done.*'broken\.txt': this"):
        task.execute(run)
    recorded = "SELECT state, detail FROM storeside.runs FINAL WHERE run_id = {run:String}"
    ((state, detail),) = clickhouse.query(recorded, parameters={"run": run_key(run)}).result_rows
    assert (state, json.loads(detail)["known_failures"]) == ("partial", [["broken.txt", "this object is bad"]])
    for name, value in environment(stack).items():
        monkeypatch.setenv(name, value)
    assert main([f"{task.source}/b", task.destination, "--accept-failed", "ada"]) == 0
    assert capsys.readouterr().out.endswith("\n1 failed object accepted by ada\n")
    assert numbers() == (0, 0, 0, 4)
    task.on_failed_objects = "report"
    assert numbers(object_timeout=299) == (0, 1, 0, 3)
