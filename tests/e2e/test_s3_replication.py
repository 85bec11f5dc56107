"""The DAG that follows a queue of S3 events permanently, on the whole embedded stack."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

from storeside.events.following import is_followed
from storeside.events.queue import Queue
from storeside.stack.airflow.api import AirflowApi
from storeside.stack.servers import s3
from tests.support import configure, switch_on, unique, until

if TYPE_CHECKING:
    from types_boto3_s3 import S3Client
    from types_boto3_sqs import SQSClient


DAG = "s3_replication"
WATCHED = "s3_events_to_clickhouse"  # its watcher reads the same queue
TABLE = "data.trips"
# Seconds that a watcher may continue that was receiving when the task began: a long poll, and the time of a batch.
RECEIVING_SECONDS = 12


@pytest.fixture(scope="module")
def api(api: AirflowApi) -> Iterator[AirflowApi]:
    settings = {"queue": f"{s3.TABLES}-events", "bucket": s3.TABLES, "table": TABLE}
    configure(api, WATCHED, **settings, schedule="*/15 * * * *")
    configure(api, DAG, **settings, continuous=True)
    switch_on(api, WATCHED)
    yield api
    stop(api)


def stop(api: AirflowApi) -> None:
    api.request("PATCH", f"dags/{DAG}", json={"is_paused": True})
    for run in api.runs(DAG, state="running"):
        api.request("PATCH", f"dags/{DAG}/dagRuns/{run['dag_run_id']}", json={"state": "failed"})


@pytest.mark.essential
def test_rows_follow_objects_and_a_watcher_goes_on_when_the_run_has_ended(
    api: AirflowApi, s3_client: S3Client, sqs_client: SQSClient, clickhouse: Any
) -> None:
    queue = Queue.find(sqs_client, f"{s3.TABLES}-events")

    def rows(word: str) -> int:
        if not int(clickhouse.query(f"EXISTS {TABLE}").first_row[0]):
            return 0
        statement = f"SELECT count() FROM {TABLE} WHERE word = {{word:String}}"
        return int(clickhouse.query(statement, parameters={"word": word}).first_row[0])

    def arrives(word: str, seconds: float) -> None:
        name = unique(word)
        s3_client.put_object(Bucket=s3.TABLES, Key=f"{name}.csv", Body=f"word,n\n{name},1\n".encode())
        until(lambda: rows(name) == 1, seconds, f"row of the {word} object", interval=0.2)

    def started() -> set[str]:
        return {run["dag_run_id"] for run in api.runs(WATCHED) if run["run_type"] == "asset_triggered"}

    arrives("watched", 90)
    api.request("PATCH", f"dags/{DAG}", json={"is_paused": False})
    until(lambda: is_followed(clickhouse, queue.url), 60, "task that follows the queue")
    time.sleep(RECEIVING_SECONDS)  # SQS ends a long poll by its own clock, and nothing announces its end
    arrives("first", 60)
    before = started()
    for _ in range(5):
        arrives("next", 30)
    assert started() == before
    (run,) = api.runs(DAG, state="running")
    assert [task["state"] for task in api.task_instances(DAG, run["dag_run_id"])] == ["deferred"]
    stop(api)
    until(lambda: not is_followed(clickhouse, queue.url), 30, "end of the task")
    while not started() > before:  # the periodic run, every quarter of an hour, may be the first
        arrives("last", 90)
