"""Loads the objects of a bucket of S3 or AIStore into a ClickHouse table, each object version exactly once."""

from __future__ import annotations

from datetime import timedelta

from airflow.sdk import DAG, CronTriggerTimetable
from airflow.sdk.definitions.param import ParamsDict

from storeside.operators import S3ToClickHouseOperator, Template, dag_settings, params

# The Airflow Variable storeside_s3_to_clickhouse replaces any of these.
SETTINGS = dag_settings(
    "s3_to_clickhouse",
    {"schedule": ("bucket", "table")},
    schedule="",  # cron; empty for none
    bucket="",
    keys="",
    table="",
)

PARAMS = {
    "bucket": params.preset(params.SOURCE_BUCKET, SETTINGS["bucket"]),
    "keys": params.preset(params.KEYS, SETTINGS["keys"]),
    **params.TABLE,
    "table": params.preset(params.TABLE["table"], SETTINGS["table"]),
    "format": params.FORMAT,
    "snapshot": params.SNAPSHOT,
    "modified_after": params.MODIFIED_AFTER,
    **params.EXPECTATIONS,
    **params.AFTER,
    "on_failure": params.ON_FAILURE,
    "retry_failed": params.RETRY_FAILED,
}

with DAG(
    dag_id="s3_to_clickhouse",
    description="Loads new and changed objects of an S3 or AIStore bucket into a ClickHouse table, each version once",
    schedule=CronTriggerTimetable(SETTINGS["schedule"], timezone="UTC") if SETTINGS["schedule"] else None,
    catchup=False,
    # Runs for one table are safe too: each publishes under the table's lock what no other run has loaded. On a
    # schedule, however, a run would read the objects that the run before it still reads.
    max_active_runs=1 if SETTINGS["schedule"] else 16,
    params=ParamsDict(PARAMS),
    tags=["s3", "clickhouse"],
    default_args={"owner": "storeside", "retries": 3, "retry_delay": timedelta(seconds=15)},
    doc_md="""
### S3 to ClickHouse

1. **load**: lists the bucket and compares the listing with the ledger. ClickHouse reads new object versions into a
   staging table. The task checks the rows and publishes them in one step. If ClickHouse cannot reach the bucket, the
   worker streams the objects to it.

Runs start from the form, and on a schedule if the Airflow Variable `storeside_s3_to_clickhouse` has one:
`{"schedule": "*/15 * * * *", "bucket": "trips", "keys": "2026/", "table": "analytics.trips"}`. The first run creates
the table and logs its `CREATE TABLE` statement. No object version is loaded twice, even if a process is killed.

The outcome of each object:
`SELECT key, state, rows, rejected, reason FROM storeside.loads FINAL ORDER BY recorded_at DESC`.
To find the source object of a row, compare the row's `_storeside_load` with `load_id` in that table.
""",
) as dag:
    S3ToClickHouseOperator(
        task_id="load",
        source=params.LOAD_SOURCE,
        **params.LOAD,
        **params.CHECKED,
        **params.AFTER_LOAD,
        snapshot="{{ params.snapshot or '' }}",
        modified_after="{{ params.modified_after or '' }}",
        on_failed_objects=Template("{{ params.on_failure }}"),
        retry_failed="{{ params.retry_failed }}",
    )
