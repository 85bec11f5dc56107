"""Every connection and permission, tried from where tasks and triggers run."""

from __future__ import annotations

from datetime import timedelta

from airflow.sdk import DAG, Param

from operators.doctor import CheckConnectionsOperator

PARAMS = {
    "bucket": Param(
        "recordings",
        type="string",
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{1,61}[A-Za-z0-9]$",
        title="Bucket",
        description="Of S3, without s3://; an object is put there and deleted again",
    ),
    "queue": Param(
        "recordings-events",
        type=["null", "string"],
        title="Queue",
        description="Of SQS, that the bucket's events go to; empty for none",
    ),
    "write": Param(True, type="boolean", title="Write", description="Off: no object is put anywhere"),
}

with DAG(
    dag_id="check_connections",
    description="Tries every connection from a worker and from the triggerer, and says what to mend",
    schedule=None,
    catchup=False,
    max_active_runs=1,
    params=PARAMS,
    tags=["check", "aistore", "clickhouse", "s3"],
    default_args={"owner": "storeside", "retries": 1, "retry_delay": timedelta(seconds=15)},
    doc_md="""
### Check connections

1. **worker**: ClickHouse, S3, SQS, AIStore and Kubernetes are tried from where tasks run.
2. **triggerer**: the same from where deferred tasks wait.

Each task's log has a line per check, and a remedy where one failed. Nothing is left behind.
""",
) as dag:
    worker = CheckConnectionsOperator(
        task_id="worker",
        bucket="{{ params.bucket }}",
        sqs_queue="{{ params.queue or '' }}",
        write="{{ params.write }}",
    )
    triggerer = CheckConnectionsOperator(
        task_id="triggerer",
        bucket="{{ params.bucket }}",
        sqs_queue="{{ params.queue or '' }}",
        write="{{ params.write }}",
        where="triggerer",
    )

    worker >> triggerer
