"""Follows a busy queue of S3 events continuously: each run follows the queue for some minutes."""

from __future__ import annotations

from datetime import timedelta

from airflow.sdk import DAG, Param

from storeside.operators import S3EventsToClickHouseOperator, form_choices, params

PARAMS = {
    "queue": Param(
        "tables-events",
        type="string",
        minLength=1,
        title="Queue",
        **form_choices("queue"),
        description="Name or URL of the SQS queue that receives the bucket's events; it needs a dead-letter queue",
    ),
    "bucket": params.BUCKET,
    "keys": params.KEYS,
    **params.TABLE,
    "minutes": Param(
        30,
        type="integer",
        minimum=1,
        maximum=720,
        section="How",
        description="Minutes for which a run follows the queue",
    ),
    "batch_messages": Param(
        1000,
        type="integer",
        minimum=1,
        maximum=10_000,
        section="How",
        description="Number of messages leased and loaded together",
    ),
}

with DAG(
    dag_id="s3_replication",
    description="Loads a bucket's objects into a ClickHouse table seconds after they are put, from S3 events",
    schedule="@continuous",
    catchup=False,
    max_active_runs=1,
    is_paused_upon_creation=True,  # otherwise runs start at once, one after the other
    params=PARAMS,
    tags=["s3", "sqs", "clickhouse"],
    default_args={"owner": "storeside", "retries": 3, "retry_delay": timedelta(seconds=15)},
    doc_md="""
### S3 replication

1. **follow_events**: the task stays deferred and occupies no worker. It leases messages as they arrive, loads their
   objects in batches, and only then deletes the messages; see `s3_events_to_clickhouse`.

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
        on_failed_objects="report",
        max_messages=10_000_000,
        max_seconds="{{ params.minutes * 60 }}",
        idle_seconds="{{ params.minutes * 60 }}",
        batch_messages="{{ params.batch_messages }}",
    )
