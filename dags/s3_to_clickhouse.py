"""Objects of an S3 bucket become rows of a ClickHouse table, each object version exactly once."""

from __future__ import annotations

from datetime import timedelta

from airflow.sdk import DAG, CronTriggerTimetable, Param

from operators.clickhouse import S3ToClickHouseOperator
from operators.params import BUCKET, KEYS, ON_FAILURE, TABLE

PARAMS = {
    "bucket": BUCKET,
    "keys": KEYS,
    **TABLE,
    "on_failure": ON_FAILURE,
    "retry_failed": Param(
        False, type="boolean", section="How", description="Try objects again that failed for good in earlier runs"
    ),
}

with DAG(
    dag_id="s3_to_clickhouse",
    description="New and changed objects of an S3 bucket into a ClickHouse table, each version once",
    schedule=CronTriggerTimetable("*/15 * * * *", timezone="UTC"),
    catchup=False,
    max_active_runs=1,  # more would be safe, and would list the same bucket at once
    params=PARAMS,
    tags=["s3", "clickhouse"],
    default_args={"owner": "storeside", "retries": 3, "retry_delay": timedelta(seconds=15)},
    doc_md="""
### S3 to ClickHouse

1. **load**: the bucket is listed and compared with the ledger. ClickHouse reads what is new into a staging table,
   checks it, and makes it visible in one step. Where ClickHouse cannot reach the bucket, the worker streams it.

It runs every quarter of an hour, and from the form with other parameters. The first run makes the table; its
`CREATE TABLE` is in the task's log. Nothing is loaded twice, whatever is killed on the way.

What was loaded, what failed, and why:
`SELECT key, state, rows, rejected, reason FROM storeside.loads FINAL ORDER BY recorded_at DESC`.
Which object a row came with: `_storeside_load` of the row is `load_id` there.
""",
) as dag:
    S3ToClickHouseOperator(
        task_id="load",
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
        retry_failed="{{ params.retry_failed }}",
    )
