"""Loads the objects of a bucket of S3 or AIStore into a ClickHouse table, each object version exactly once."""

from __future__ import annotations

from datetime import timedelta

from airflow.sdk import DAG, CronTriggerTimetable, Param

from storeside.operators import S3ToClickHouseOperator, params

PARAMS = {
    "bucket": params.SOURCE_BUCKET,
    "keys": params.KEYS,
    **params.TABLE,
    "on_failure": params.ON_FAILURE,
    "retry_failed": Param(
        False, type="boolean", section="How", description="Also try objects that failed for good in earlier runs"
    ),
}

with DAG(
    dag_id="s3_to_clickhouse",
    description="Loads new and changed objects of an S3 or AIStore bucket into a ClickHouse table, each version once",
    schedule=CronTriggerTimetable("*/15 * * * *", timezone="UTC"),
    catchup=False,
    max_active_runs=1,  # parallel runs would be safe, but all would list the same bucket
    params=PARAMS,
    tags=["s3", "clickhouse"],
    default_args={"owner": "storeside", "retries": 3, "retry_delay": timedelta(seconds=15)},
    doc_md="""
### S3 to ClickHouse

1. **load**: lists the bucket and compares the listing with the ledger. ClickHouse reads new object versions into a
   staging table. The task checks the rows and publishes them in one step. If ClickHouse cannot reach the bucket, the
   worker streams the objects to it, as it does for buckets of AIStore.

The DAG runs every quarter of an hour, and from the form with other parameters. The first run creates the table and
logs its `CREATE TABLE` statement. No object version is loaded twice, even if a process is killed.

The outcome of each object:
`SELECT key, state, rows, rejected, reason FROM storeside.loads FINAL ORDER BY recorded_at DESC`.
To find the source object of a row, compare the row's `_storeside_load` with `load_id` in that table.
""",
) as dag:
    S3ToClickHouseOperator(
        task_id="load",
        source=params.LOAD_SOURCE,
        **params.LOAD,
        on_failed_objects="{{ params.on_failure }}",
        retry_failed="{{ params.retry_failed }}",
    )
