"""Shows what a load of a bucket into a ClickHouse table would do, and loads nothing."""

from __future__ import annotations

from datetime import timedelta

from airflow.sdk import DAG
from airflow.sdk.definitions.param import ParamsDict

from storeside.operators import S3ToClickHouseOperator, params

PARAMS = {
    "bucket": params.SOURCE_BUCKET,
    "keys": params.KEYS,
    **params.TABLE,
    "format": params.FORMAT,
    "snapshot": params.SNAPSHOT,
    "modified_after": params.MODIFIED_AFTER,
    "retry_failed": params.RETRY_FAILED,
}

with DAG(
    dag_id="preview_load",
    description="Shows which objects a load would read, the table it would create, and the first rows; loads nothing",
    schedule=None,
    catchup=False,
    max_active_runs=1,
    params=ParamsDict(PARAMS),
    tags=["s3", "clickhouse", "check"],
    default_args={"owner": "storeside", "retries": 1, "retry_delay": timedelta(seconds=15)},
    doc_md="""
### Preview of a load

1. **preview**: lists the bucket, compares the listing with the ledger, and reads the first rows of a few objects. Its
   log has the number of objects and bytes to load, objects that would be refused with reasons, the `CREATE TABLE` or
   `ALTER TABLE` statements, differences from an existing table, values because of which columns are text, the first
   20 rows as the table would have them, and the estimated time.

The form has the fields of `s3_to_clickhouse`: start that DAG with the same entries to load the objects. The task
loads no row, creates no table, and changes neither the ledger nor the bucket.
""",
) as dag:
    S3ToClickHouseOperator(
        task_id="preview",
        source=params.LOAD_SOURCE,
        **params.LOAD,
        snapshot="{{ params.snapshot or '' }}",
        modified_after="{{ params.modified_after or '' }}",
        retry_failed="{{ params.retry_failed }}",
        plan_only=True,
    )
