"""The DAG that follows a queue of S3 events all the time, on the whole embedded stack."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pytest

from include.events.queue import Queue
from include.stack import s3
from include.stack.airflow_api import AirflowApi
from include.stack.settings import Stack
from tests.support import unique, until

if TYPE_CHECKING:
    from types_boto3_s3 import S3Client
    from types_boto3_sqs import SQSClient

pytestmark = pytest.mark.timeout(240)

DAG = "s3_replication"
OTHER = "s3_events_to_clickhouse"  # which follows the same queue
TABLE = "storeside.trips"


def test_rows_follow_objects_and_a_run_that_is_ended_leaves_nothing_behind(
    airflow: Stack, s3_client: S3Client, sqs_client: SQSClient, clickhouse: Any
) -> None:
    api = AirflowApi(airflow.url("airflow"), "admin", airflow.secrets["airflow_admin"])
    until(lambda: any(dag["dag_id"] == DAG for dag in api.get("dags")["dags"]), 90, "DAG")
    api.request("PATCH", f"dags/{OTHER}", json={"is_paused": True})
    queue = Queue.find(sqs_client, f"{s3.TABLES}-events")

    def rows(word: str) -> int:
        if not int(clickhouse.query(f"EXISTS {TABLE}").first_row[0]):
            return 0
        found = clickhouse.query(
            f"SELECT count() FROM {TABLE} WHERE word = {{word:String}}", parameters={"word": word}
        )
        return int(found.first_row[0])

    def put(word: str) -> None:
        s3_client.put_object(Bucket=s3.TABLES, Key=f"{word}.csv", Body=f"word,n\n{word},1\n".encode())

    def left() -> int:
        depth = queue.depth()
        return depth.visible + depth.in_flight

    api.request("PATCH", f"dags/{DAG}", json={"is_paused": False})
    try:
        (run,) = until(lambda: api.runs(DAG, state="running"), 60, "run")
        first, second = unique("first"), unique("second")
        put(first)
        until(lambda: rows(first), 90, "row of the first object", interval=0.2)
        assert [task["state"] for task in api.task_instances(DAG, run["dag_run_id"])] == ["deferred"]
        began = time.monotonic()
        put(second)
        until(lambda: rows(second), 30, "row of the second object", interval=0.2)
        assert time.monotonic() - began < 15  # without another run: that alone takes longer when many are busy
        until(lambda: not left(), 30, "empty queue", interval=0.2)
        assert (rows(first), rows(second)) == (1, 1)
    finally:
        api.request("PATCH", f"dags/{DAG}", json={"is_paused": True})
        for one in api.runs(DAG, state="running"):
            api.request("PATCH", f"dags/{DAG}/dagRuns/{one['dag_run_id']}", json={"state": "failed"})

    def waits() -> bool:  # nobody holds the queue any more
        word = unique("late")
        put(word)
        time.sleep(3)
        return not rows(word) and queue.depth().visible > 0

    until(waits, 60, "message that nobody takes")
    sqs_client.purge_queue(QueueUrl=queue.url)
    api.request("PATCH", f"dags/{OTHER}", json={"is_paused": False})
