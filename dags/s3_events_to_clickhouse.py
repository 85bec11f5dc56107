"""Loads objects into a ClickHouse table when S3 announces them on SQS: one run per batch of events."""

from __future__ import annotations

from datetime import timedelta

from airflow.sdk import DAG, Param
from airflow.sdk.definitions.param import ParamsDict

from storeside.operators import S3EventsToClickHouseOperator, Template, dag_schedule, dag_settings, params

# The Airflow Variable storeside_s3_events_to_clickhouse replaces any of these.
ALL = ("queue", "bucket", "table")
SETTINGS = dag_settings(
    "s3_events_to_clickhouse",
    {"queue": ALL, "schedule": ALL},
    schedule="",  # cron; empty for none
    queue="",  # SQS queue whose messages start runs
    bucket="",
    table="",
)
QUEUE = SETTINGS["queue"]

PARAMS = {
    "queue": params.preset(params.QUEUE, QUEUE),
    "bucket": params.preset(params.BUCKET, SETTINGS["bucket"]),
    "keys": params.KEYS,
    **params.TABLE,
    "table": params.preset(params.TABLE["table"], SETTINGS["table"]),
    **params.OBJECTS_EXPECTATIONS,
    "on_failure": params.ON_FAILURE,
    "max_messages": Param(
        10_000,
        type="integer",
        minimum=1,
        title="Messages",
        section="How",
        description="Maximum number of messages per run; the next run processes the rest",
    ),
    "max_bytes": Param(
        0,
        type="integer",
        minimum=0,
        title="Bytes",
        section="How",
        description="Maximum bytes of new objects per run; the next run processes the rest. 0 means no limit",
    ),
}

with DAG(
    dag_id="s3_events_to_clickhouse",
    description="Loads the objects of S3 events into a ClickHouse table, each version once",
    schedule=dag_schedule(SETTINGS),
    catchup=False,
    max_active_runs=1,  # parallel runs would be safe; one at a time limits the load of a burst
    params=ParamsDict(PARAMS),
    tags=["s3", "sqs", "clickhouse"],
    default_args={"owner": "storeside", "retries": 3, "retry_delay": timedelta(seconds=15)},
    doc_md="""
### S3 events to ClickHouse

1. **load_events**: leases messages of the queue, loads the current version of their objects in one step, and only
   then deletes the messages. With a suite of Great Expectations, rows that break expectations fail their object or go
   into quarantine. Messages whose objects cannot be loaded go to the dead-letter queue with the reason.

Without settings, runs start from the form only. The Airflow Variable `storeside_s3_events_to_clickhouse` starts them
automatically: `{"queue": "trips-events", "bucket": "trips", "table": "analytics.trips"}`. A watcher in the triggerer
then leases a batch of events and starts a run for it; it leases the next batch when that run has ended. With
`"schedule": "*/15 * * * *"` a run also drains the queue every quarter of an hour. `s3_to_clickhouse` finds objects
whose events were lost. Both DAGs may load into the same table.

The outcome of each event: `SELECT key, event, state, reason FROM storeside.events FINAL ORDER BY recorded_at DESC`.
""",
) as dag:
    S3EventsToClickHouseOperator(
        task_id="load_events",
        sqs_queue="{{ params.queue }}",
        bucket="{{ params.bucket }}",
        keys="{{ params['keys'] or '' }}",
        **params.LOAD,
        **params.CHECKED,
        on_failed_objects=Template("{{ params.on_failure }}"),
        max_messages="{{ params.max_messages }}",
        max_bytes="{{ params.max_bytes }}",
    )
