"""Objects of an S3 bucket become rows of a ClickHouse table, each object version exactly once."""

from __future__ import annotations

from datetime import timedelta

from airflow.sdk import DAG, CronTriggerTimetable, Param

from operators.clickhouse import S3ToClickHouseOperator

PARAMS = {
    "bucket": Param(
        "tables",
        type="string",
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{1,61}[A-Za-z0-9]$",
        title="Bucket",
        description="Without s3://, at the endpoint of the connection aws_default",
    ),
    "keys": Param(
        None,
        type=["null", "string"],
        title="Keys",
        description="A prefix, or a pattern: trips/2026-{01..06}/**.csv.gz; empty takes the whole bucket",
    ),
    "table": Param(
        "storeside.trips",
        type="string",
        pattern=r"^[^.]+\.[^.]+$",
        title="Table",
        description="database.table; made from the columns that are found where it is missing",
    ),
    "format": Param(
        "auto",
        type="string",
        enum=["auto", "parquet", "csv", "jsonl"],
        section="Objects",
        values_display={
            "auto": "Found out from the content",
            "parquet": "Parquet",
            "csv": "CSV",
            "jsonl": "JSON Lines",
        },
        description="Compressed with gzip, zstd, xz, bzip2 or not: found out as well",
    ),
    "delimiter": Param(
        ",", type="string", minLength=1, maxLength=1, section="Objects", description="Between the fields of CSV"
    ),
    "order_by": Param(
        "tuple()", type="string", section="Table", description="ORDER BY of a new table, such as (city, taken_at)"
    ),
    "partition_by": Param(
        None,
        type=["null", "string"],
        section="Table",
        description="PARTITION BY of a new table, such as toYYYYMM(taken_at)",
    ),
    "on_drift": Param(
        "fail",
        type="string",
        enum=["fail", "add", "widen", "rest"],
        section="When objects differ",
        values_display={
            "fail": "Fail the object",
            "add": "Add new columns",
            "widen": "Add new columns and widen types",
            "rest": "Keep unknown columns in _rest",
        },
        description="What happens to an object whose columns are not the table's",
    ),
    "on_bad_rows": Param(
        "fail",
        type="string",
        enum=["fail", "skip", "keep"],
        section="When objects differ",
        values_display={"fail": "Fail the object", "skip": "Skip and count", "keep": "Keep in <table>_rejected"},
        description="What happens to rows that cannot be parsed",
    ),
    "on_overwrite": Param(
        "append",
        type="string",
        enum=["append", "replace"],
        section="When objects differ",
        values_display={"append": "Add the new rows", "replace": "Replace the old rows"},
        description="What happens to the rows of an object that was overwritten",
    ),
    "on_failure": Param(
        "report",
        type="string",
        enum=["report", "fail"],
        section="How",
        values_display={"report": "Load the good objects, list the bad ones", "fail": "Fail the run"},
        description="The good objects are loaded in either case",
    ),
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
