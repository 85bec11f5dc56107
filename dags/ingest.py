"""Copies a bucket into the AIStore cluster, through AIStore's own backend or through a worker."""

from __future__ import annotations

from datetime import timedelta

from airflow.sdk import DAG, Param
from airflow.sdk.definitions.param import ParamsDict

from storeside.operators import (
    AISCopyBucketOperator,
    AISPrefetchBucketOperator,
    StorageCopyBucketOperator,
    Template,
    form_choices,
    must_match,
    only_when,
    params,
)

PARAMS = {
    "source": params.described(
        params.SOURCE,
        "A name alone means s3://; ais://@cluster/bucket is a bucket of another AIStore cluster that is attached",
    ),
    "destination": Param(
        None,
        type=["null", "string"],
        title="Destination",
        **must_match(r"(s3|oci|ais)://[^/]+", params.bucket_alone("s3, oci or ais")),
        **form_choices(
            "bucket", "write", bare="ais", description="A name alone means ais://; only a prefetch needs none"
        ),
    ),
    "way": Param(
        "copy",
        type="string",
        enum=["copy", "prefetch", "worker"],
        title="Method",
        values_display={
            "copy": "AIStore copies the objects",
            "prefetch": "AIStore fetches the objects into its cache of the source",
            "worker": "The worker copies the objects (OCI's native API; S3 to S3)",
        },
        description="Use the worker only for buckets that AIStore cannot read; it copies parallel ranges and parts",
    ),
    "prefix": params.PREFIX,
    "on_failure": params.described(
        params.ON_FAILURE,
        "What happens when some objects cannot be copied; all other objects are copied in both cases",
    ),
    "retry_failed": params.RETRY_FAILED,
    "source_connection": Param(
        None,
        type=["null", "string"],
        title="Connection of the source",
        section="Through the worker",
        **form_choices(
            "connection", description="Connection to the source; empty for the default connection of its scheme"
        ),
    ),
    "destination_connection": Param(
        None,
        type=["null", "string"],
        title="Connection of the destination",
        section="Through the worker",
        **form_choices(
            "connection", description="Connection to the destination; empty for the default connection of its scheme"
        ),
    ),
}

with DAG(
    dag_id="ingest",
    description="Copies a bucket of S3, OCI or another AIStore cluster into AIStore, each object version once",
    schedule=None,
    catchup=False,
    max_active_runs=1,  # parallel runs would copy the same objects
    params=ParamsDict(PARAMS),
    tags=["storage", "aistore", "s3", "oci"],
    default_args={"owner": "storeside", "retries": 3, "retry_delay": timedelta(seconds=15)},
    doc_md="""
### Ingest

The field `way` selects one of three tasks; the run skips the other two.

1. **copy**: AIStore copies new and changed objects through its own backend while the task is deferred.
2. **prefetch**: AIStore fetches the objects into its cache of the source bucket while the task is deferred.
3. **copy_through_worker**: the worker reads ranges and writes parts, with the settings of the connection, or
   otherwise the fastest settings that the DAG `backend_benchmark` found.

At its end, each task compares source and destination. To list failed objects with their reasons:
`SELECT object, reason FROM storeside.objects FINAL WHERE status = 'failed'`.
""",
) as dag:
    copy = AISCopyBucketOperator(
        task_id="copy",
        source="{{ params.source }}",
        destination="{{ params.destination or '' }}",
        **params.OBJECTS,
        pre_execute=only_when("way", "copy"),
    )
    prefetch = AISPrefetchBucketOperator(
        task_id="prefetch",
        bucket="{{ params.source }}",
        prefix="{{ params.prefix or '' }}",
        on_failed_objects=Template("{{ params.on_failure }}"),
        pre_execute=only_when("way", "prefetch"),
        trigger_rule="none_failed",
    )
    through_worker = StorageCopyBucketOperator(
        task_id="copy_through_worker",
        source="{{ params.source }}",
        destination="{{ params.destination or '' }}",
        **params.OBJECTS,
        source_conn_id="{{ params.source_connection or '' }}",
        destination_conn_id="{{ params.destination_connection or '' }}",
        pre_execute=only_when("way", "worker"),
        trigger_rule="none_failed",
    )

    copy >> prefetch >> through_worker
