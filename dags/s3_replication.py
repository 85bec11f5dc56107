"""A busy queue of S3 events is followed without a pause: one run after the other, each for minutes."""

from __future__ import annotations

from datetime import timedelta

from airflow.sdk import DAG, Param

from operators.params import BUCKET, KEYS, TABLE
from operators.s3_events import S3EventsToClickHouseOperator

PARAMS = {
    "queue": Param(
        "tables-events",
        type="string",
        minLength=1,
        title="Queue",
        description="Name or URL of the SQS queue that gets the bucket's events; it needs a dead-letter queue",
    ),
    "bucket": BUCKET,
    "keys": KEYS,
    **TABLE,
    "minutes": Param(
        30, type="integer", minimum=1, maximum=720, section="How", description="How long a run follows the queue"
    ),
    "batch_messages": Param(
        1000,
        type="integer",
        minimum=1,
        maximum=10_000,
        section="How",
        description="Messages that are held and loaded at once",
    ),
}

with DAG(
    dag_id="s3_replication",
    description="A bucket's objects in a ClickHouse table seconds after they are put, by S3 events",
    schedule="@continuous",
    catchup=False,
    max_active_runs=1,
    is_paused_upon_creation=True,  # it never ends
    params=PARAMS,
    tags=["s3", "sqs", "clickhouse"],
    default_args={"owner": "storeside", "retries": 3, "retry_delay": timedelta(seconds=15)},
    doc_md="""
### S3 replication

1. **follow_events**: the task is deferred all the time and costs no worker. Messages are leased as they come, their
   objects loaded in batches, and only then deleted; see `s3_events_to_clickhouse`.

For queues that are seldom empty, where starting a run for every batch would cost more than the load. The watcher of
`s3_events_to_clickhouse` leaves the queue to this task while it follows it, and goes on when it has ended.
""",
) as dag:
    S3EventsToClickHouseOperator(
        task_id="follow_events",
        sqs_queue="{{ params.queue }}",
        bucket="{{ params.bucket }}",
        keys="{{ params['keys'] or '' }}",
        table="{{ params.table }}",
        format="{{ params.format }}",
        csv={"delimiter": "{{ params.delimiter }}"},
        order_by="{{ params.order_by }}",
        partition_by="{{ params.partition_by or '' }}",
        on_drift="{{ params.on_drift }}",
        on_bad_rows="{{ params.on_bad_rows }}",
        on_overwrite="{{ params.on_overwrite }}",
        on_failed_objects="report",
        max_messages=10_000_000,
        max_seconds="{{ params.minutes * 60 }}",
        idle_seconds="{{ params.minutes * 60 }}",
        batch_messages="{{ params.batch_messages }}",
    )
