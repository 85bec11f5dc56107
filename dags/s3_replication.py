"""Follows a busy queue of S3 events continuously: each run follows the queue for some minutes."""

from __future__ import annotations

from datetime import timedelta

from airflow.sdk import DAG, Param
from airflow.sdk.definitions.param import ParamsDict

from storeside.operators import S3EventsToClickHouseOperator, dag_settings, params

# The Airflow Variable storeside_s3_replication replaces any of these.
SETTINGS = dag_settings(
    "s3_replication",
    {"continuous": ("queue", "bucket", "table")},
    continuous=False,  # a run follows the other
    queue="",
    bucket="",
    table="",
)

PARAMS = {
    "queue": params.preset(params.QUEUE, SETTINGS["queue"]),
    "bucket": params.preset(params.BUCKET, SETTINGS["bucket"]),
    "keys": params.KEYS,
    **params.TABLE,
    "table": params.preset(params.TABLE["table"], SETTINGS["table"]),
    "modified_after": params.MODIFIED_AFTER,
    **params.AFTER,
    "minutes": Param(
        30,
        type="integer",
        minimum=1,
        maximum=720,
        title="Minutes",
        section="How",
        description="Minutes for which a run follows the queue",
    ),
    "batch_messages": Param(
        1000,
        type="integer",
        minimum=1,
        maximum=10_000,
        title="Messages of a batch",
        section="How",
        description="Number of messages leased and loaded together",
    ),
}

with DAG(
    dag_id="s3_replication",
    description="Loads a bucket's objects into a ClickHouse table seconds after they are put, from S3 events",
    schedule="@continuous" if SETTINGS["continuous"] else None,
    catchup=False,
    max_active_runs=1,
    is_paused_upon_creation=True,  # otherwise runs start at once, one after the other
    params=ParamsDict(PARAMS),
    tags=["s3", "sqs", "clickhouse"],
    default_args={"owner": "storeside", "retries": 3, "retry_delay": timedelta(seconds=15)},
    doc_md="""
### S3 replication

1. **follow_events**: the task stays deferred and occupies no worker. It leases messages as they arrive, loads their
   objects in batches, and only then deletes the messages; see `s3_events_to_clickhouse`.

Without settings, runs start from the form only. With the Airflow Variable `storeside_s3_replication` one run follows
the other: `{"continuous": true, "queue": "trips-events", "bucket": "trips", "table": "analytics.trips"}`.

Use this DAG for queues that are seldom empty, where a run per batch would cost more than the load itself. While the
task follows the queue, the watcher of `s3_events_to_clickhouse` receives nothing; it resumes when the task has ended.
""",
) as dag:
    S3EventsToClickHouseOperator(
        task_id="follow_events",
        sqs_queue="{{ params.queue }}",
        bucket="{{ params.bucket }}",
        keys="{{ params['keys'] or '' }}",
        **params.LOAD,
        **params.AFTER_LOAD,
        modified_after="{{ params.modified_after or '' }}",
        on_failed_objects="report",
        max_messages=10_000_000,
        max_seconds="{{ params.minutes * 60 }}",
        idle_seconds="{{ params.minutes * 60 }}",
        batch_messages="{{ params.batch_messages }}",
    )
