"""Tests every connection and permission from a worker and from the triggerer."""

from __future__ import annotations

from datetime import timedelta

from airflow.sdk import DAG, Param
from airflow.sdk.definitions.param import ParamsDict

from storeside.operators import CheckConnectionsOperator, form_choices, params

PARAMS = {
    "bucket": Param(
        type="string",
        title="Bucket",
        **params.BUCKET_NAME,
        **form_choices(
            "s3 bucket",
            description="S3 bucket, with or without s3://; the check writes an object to it and deletes the object",
        ),
    ),
    "queue": Param(
        None,
        type=["null", "string"],
        title="Queue",
        **form_choices("queue", description="SQS queue that receives the bucket's events; empty for none"),
    ),
    "write": Param(True, type="boolean", title="Write", description="Off: the checks write no objects"),
}

with DAG(
    dag_id="check_connections",
    description="Tests every connection from a worker and from the triggerer, with a remedy for each fault",
    schedule=None,
    catchup=False,
    max_active_runs=1,
    params=ParamsDict(PARAMS),
    tags=["check", "aistore", "clickhouse", "s3"],
    default_args={"owner": "storeside", "retries": 1, "retry_delay": timedelta(seconds=15)},
    doc_md="""
### Check connections

1. **worker**: tests ClickHouse, S3, SQS, AIStore, Kubernetes and HSDS from a worker, where tasks run.
2. **triggerer**: runs the same tests from the triggerer, where deferred tasks wait.

Each task's log has one line per check, with a remedy for each failed check. The checks remove everything that they
create.
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
