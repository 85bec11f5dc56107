"""Airflow with the KubernetesExecutor and in-cluster credentials, from the documented values and our image."""

from __future__ import annotations

import gzip
import re
from collections.abc import Iterator
from typing import Any

import pytest

from storeside.stack import demo, s3
from tests.kubernetes.images import DOCUMENTED
from tests.kubernetes.installation import LOGS, Installation, installation, report
from tests.kubernetes.session import Session
from tests.kubernetes.stores import DATABASE
from tests.support import allow_in_forms, configure, unique, until

pytestmark = pytest.mark.timeout(1500)

RUN_SECONDS = 500
SPEECH, LOAD, TRANSFORM = "speech_pipeline", "s3_to_clickhouse", "transform_bucket"
IMAGE = f"registry.example.com/{DOCUMENTED}"
RECORDINGS = 4
# Fewer than 8 MiB: the pod of the task waits for the load, see `S3ToClickHouseOperator`.
OBJECTS, ROWS = 8, 300_000
LOADING = "SELECT 1 FROM system.processes WHERE startsWith(query, 'INSERT INTO storeside_staging')"


@pytest.fixture(scope="module")
def airflow(cluster: Session) -> Iterator[Installation]:
    if cluster.own_folder is None:
        pytest.skip("Airflow is installed on a node of ours only")
    with installation(cluster) as made:
        allow_in_forms(made.api, buckets=["s3://*", "ais://*"])
        configure(made.api, SPEECH, source=f"s3://{s3.BUCKET}", image=IMAGE)
        yield made


@pytest.fixture(scope="module")
def run(airflow: Installation) -> str:
    """A run of the speech pipeline that has ended, below its own prefix."""
    name = unique("speech")
    airflow.upload(s3.BUCKET, f"{name}/", sorted(demo.RECORDINGS.glob("*.flac"))[:RECORDINGS])
    airflow.api.trigger(SPEECH, {"prefix": f"{name}/"}, name)
    state = airflow.wait(SPEECH, name, RUN_SECONDS)
    assert state == "success", airflow.logs(SPEECH, name)
    return name


def test_the_speech_pipeline_runs_in_pods_of_our_image(airflow: Installation, run: str) -> None:
    found = airflow.rows(
        "SELECT count(), uniqExact(object) FROM speech.manifest WHERE startsWith(source_object, {prefix:String})",
        prefix=f"{run}/",
    )
    assert found == [(RECORDINGS, RECORDINGS)]
    mine = [pod for pod in airflow.pods.values() if pod["metadata"]["annotations"]["run_id"] == run]
    tasks = {task["task_id"] for task in airflow.api.task_instances(SPEECH, run)}
    assert {pod["metadata"]["annotations"]["task_id"] for pod in mine} == tasks
    assert {pod["spec"]["serviceAccountName"] for pod in mine} == {"airflow-worker"}
    assert {c["image"] for pod in mine for c in pod["spec"]["containers"]} == {
        "registry.example.com/storeside/airflow:0.1.0"
    }


def test_logs_of_pods_that_are_gone_come_from_s3(airflow: Installation, run: str) -> None:
    until(lambda: not airflow.active(SPEECH, run), 60, "end of all pods", interval=1)
    log = airflow.api.log(SPEECH, run, "transcode")
    assert f"s3://{LOGS}/" in log
    assert "ais://speech" in log
    keys = [entry["Key"] for entry in airflow.s3.list_objects_v2(Bucket=LOGS)["Contents"]]
    for task in airflow.api.task_instances(SPEECH, run):
        assert [key for key in keys if f"run_id={run}/task_id={task['task_id']}/" in key], task["task_id"]


def test_a_deleted_pod_of_a_load_loses_and_duplicates_nothing(airflow: Installation) -> None:
    name = unique("load")
    table = f"{DATABASE}.{name.replace('-', '_')}"
    for n in range(OBJECTS):
        lines = "".join(f"{i}\n" for i in range(n * ROWS, (n + 1) * ROWS))
        packed = gzip.compress(f"n\n{lines}".encode(), 6)
        airflow.s3.put_object(Bucket=s3.TABLES, Key=f"{name}/{n}.csv.gz", Body=packed)
    conf = {"bucket": s3.TABLES, "keys": f"{name}/", "table": table, "order_by": "n"}
    airflow.api.trigger(LOAD, conf, name)

    def task() -> dict[str, Any]:
        found: dict[str, Any] = airflow.api.task_instances(LOAD, name)[0]
        return found

    until(lambda: airflow.rows(LOADING), RUN_SECONDS, "load")
    attempt = task()["try_number"]
    (pod,) = airflow.active(LOAD, name)
    airflow.kubectl("delete", "pod", pod["metadata"]["name"], "--grace-period=0")
    assert airflow.wait(LOAD, name, RUN_SECONDS) == "success", airflow.logs(LOAD, name)
    assert task()["try_number"] > attempt
    assert airflow.rows(f"SELECT count(), uniqExact(n) FROM {table}") == [(OBJECTS * ROWS, OBJECTS * ROWS)]
    assert report(airflow.api.xcom(LOAD, name, "load"))["failed"] == 0
    states = airflow.rows(
        "SELECT key, state FROM storeside.loads FINAL WHERE startsWith(key, {prefix:String})", prefix=f"{name}/"
    )
    assert sorted(states) == [(f"{name}/{n}.csv.gz", "loaded") for n in range(OBJECTS)]


def test_a_task_reads_with_its_own_account_why_an_etl_does_not_start(airflow: Installation) -> None:
    name = unique("in")
    configure(airflow.api, TRANSFORM, image="registry.example.com/no/such-image:9", source=f"s3://{s3.TABLES}")
    airflow.s3.put_object(Bucket=s3.TABLES, Key=f"{name}/a.txt", Body=b"some words")
    conf = {"prefix": f"{name}/", "destination": f"ais://{name}"}
    airflow.api.trigger(TRANSFORM, conf, name)
    assert airflow.wait(TRANSFORM, name, RUN_SECONDS) == "failed"
    log = airflow.logs(TRANSFORM, name)
    # AIStore's own error has the reason in another form.
    assert re.search(r"pod \S+: (ErrImagePull|ImagePullBackOff): .*no/such-image:9", log), log
    assert "cannot watch the pods" not in log
