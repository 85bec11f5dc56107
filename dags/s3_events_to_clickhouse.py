"""Objects become rows of a ClickHouse table when S3 tells of them on SQS: a batch of events, a run."""

from __future__ import annotations

from datetime import timedelta

from airflow.sdk import DAG, Asset, AssetWatcher, CronTriggerTimetable, Param
from airflow.sdk.definitions.timetables.assets import AssetOrTimeSchedule

from operators.params import BUCKET, KEYS, ON_FAILURE, TABLE
from operators.s3_events import S3EventsToClickHouseOperator
from operators.triggers.s3_events import S3EventsTrigger

QUEUE = "tables-events"

tables = Asset(
    "s3://tables",
    watchers=[AssetWatcher(name=QUEUE, trigger=S3EventsTrigger(queue=QUEUE))],
)

PARAMS = {
    "queue": Param(
        QUEUE,
        type="string",
        minLength=1,
        title="Queue",
        description="Name or URL of the SQS queue that gets the bucket's events; it needs a dead-letter queue",
    ),
    "bucket": BUCKET,
    "keys": KEYS,
    **TABLE,
    "on_failure": ON_FAILURE,
    "max_messages": Param(
        10_000,
        type="integer",
        minimum=1,
        section="How",
        description="Messages that one run takes at most; the rest is the next run's",
    ),
    "max_bytes": Param(
        0,
        type="integer",
        minimum=0,
        section="How",
        description="Bytes of new objects after which one run takes no more messages; 0: no limit",
    ),
}

with DAG(
    dag_id="s3_events_to_clickhouse",
    description="Objects that S3 events tell of into a ClickHouse table, each version once",
    schedule=AssetOrTimeSchedule(timetable=CronTriggerTimetable("*/15 * * * *", timezone="UTC"), assets=[tables]),
    catchup=False,
    max_active_runs=1,  # more would be safe; one at a time is what bounds a burst
    params=PARAMS,
    tags=["s3", "sqs", "clickhouse"],
    default_args={"owner": "storeside", "retries": 3, "retry_delay": timedelta(seconds=15)},
    doc_md="""
### S3 events to ClickHouse

1. **load_events**: the messages of a queue are leased, what their objects are now is loaded in one step, and only
   then are they deleted. What cannot be loaded goes to the dead-letter queue with the reason.

A watcher in the triggerer leases a batch of events and starts a run for it; the next batch comes when that run is
done. Every quarter of an hour a run looks by itself, so a week's pause, or events that were lost, cost nothing but
time: what is in the queue is loaded, and `s3_to_clickhouse` finds what never got there. Both may run on one table.

What became of each event: `SELECT key, event, state, reason FROM storeside.events FINAL ORDER BY recorded_at DESC`.
""",
) as dag:
    S3EventsToClickHouseOperator(
        task_id="load_events",
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
        on_failed_objects="{{ params.on_failure }}",
        max_messages="{{ params.max_messages }}",
        max_bytes="{{ params.max_bytes }}",
    )
