"""Airflow with the KubernetesExecutor and in-cluster credentials, from the documented values and our image."""

from __future__ import annotations

import gzip
import re
from collections.abc import Iterator
from typing import Any

import pytest

from storeside import __version__
from storeside.aistore.buckets import Bucket
from storeside.stack import demo
from storeside.stack.servers import s3
from tests.kubernetes.images import DOCUMENTED
from tests.kubernetes.installation import LOGS, Installation, installation, report
from tests.kubernetes.session import Session
from tests.kubernetes.stores import DATABASE
from tests.support import allow_in_forms, configure, put, sizes, unique, until

pytestmark = pytest.mark.timeout(1500)

RUN_SECONDS = 500
SPEECH, LOAD, TRANSFORM = "speech_pipeline", "s3_to_clickhouse", "transform_bucket"
THROUGHPUT = "cluster_throughput"
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
        f"registry.example.com/storeside/airflow:{__version__}"
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


def test_clickhouse_pulls_the_objects_of_aistore(airflow: Installation, cluster: Session) -> None:
    name = unique("pulled")
    table = f"{DATABASE}.{name.replace('-', '_')}"
    bucket = Bucket("ais", name)
    put(cluster.aistore, bucket, {f"in/{n}.csv": f"n\n{n}\n{n + 10}\n".encode() for n in range(4)})
    conf = {"bucket": str(bucket), "keys": "in/", "table": table, "order_by": "n"}
    airflow.api.trigger(LOAD, conf, name)
    assert airflow.wait(LOAD, name, RUN_SECONDS) == "success", airflow.logs(LOAD, name)
    assert airflow.rows(f"SELECT count(), uniqExact(n), sum(n) FROM {table}") == [(8, 8, 52)]
    airflow.clickhouse.command("SYSTEM FLUSH LOGS")
    pulled = airflow.rows(
        "SELECT DISTINCT user FROM system.query_log WHERE type = 'QueryFinish' AND query_kind = 'Insert'"
        " AND written_rows > 0 AND position(query, {url:String}) > 0",
        url=f"ais-proxy.ais:51080/v1/objects/{name}/",
    )
    assert pulled == [("storeside_loader",)]


def test_throughput_is_measured_from_pods_that_end_with_the_task(airflow: Installation, cluster: Session) -> None:
    """The pod of the first try is deleted, which deletes its loaders; the second try measures."""
    name = unique("measured")
    bucket = Bucket("ais", name)
    bucket.handle(cluster.aistore).create()
    conf = {
        "bucket": str(bucket), "object_size": "64KiB", "dataset_size": "8MiB", "seconds": 15, "loaders": 2,
        "concurrency": 4,
    }  # fmt: skip
    airflow.api.trigger(THROUGHPUT, conf, name)

    def loading() -> list[dict[str, Any]]:
        found = airflow.kubectl.json("get", "jobs", "--selector=app.kubernetes.io/name=storeside-loader")["items"]
        return [job for job in found if job["spec"]["completions"] == 2 and job["status"].get("ready") == 2]

    (first,) = until(loading, RUN_SECONDS, "two loaders")
    (pod,) = airflow.active(THROUGHPUT, name)
    assert [owner["uid"] for owner in first["metadata"]["ownerReferences"]] == [pod["metadata"]["uid"]]
    airflow.kubectl("delete", "pod", pod["metadata"]["name"], "--grace-period=0", "--force")
    until(lambda: not loading(), 60, "removal of the loaders without their task")
    assert airflow.wait(THROUGHPUT, name, RUN_SECONDS) == "success", airflow.logs(THROUGHPUT, name)
    outcome = report(airflow.api.xcom(THROUGHPUT, name, "measure"))["outcome"]
    assert outcome["bytes"] == outcome["requests"] * (64 << 10) > 0
    assert sizes(cluster.aistore, bucket) == {}
    selector = "--selector=app.kubernetes.io/name=storeside-loader"
    until(lambda: not airflow.kubectl("get", "jobs,pods", selector, "--output=name").split(), 60, "removal")
    until(lambda: not airflow.active(THROUGHPUT, name), 60, "end of all pods", interval=1)  # they upload their logs
    log = airflow.logs(THROUGHPUT, name)
    assert re.search(r"loaders: storeside-loaders-\S+-0-\S+ on \S+, storeside-loaders-\S+-1-", log), log


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
