"""A bucket brought into the cluster: by the cluster itself, or through a worker where it cannot."""

from __future__ import annotations

from datetime import timedelta

from airflow.sdk import DAG, Param

from operators.aistore import AISCopyBucketOperator
from operators.shared import only_when
from operators.storage import AISPrefetchBucketOperator, StorageCopyBucketOperator

PARAMS = {
    "source": Param(
        "s3://recordings",
        type="string",
        pattern=r"^(s3|gs|az|oci)://[^/]+$|^ais://(@[^/]+/)?[^/]+$",
        title="Source",
        description="Bucket URI; ais://@cluster/bucket is one of another AIStore cluster that is attached",
    ),
    "destination": Param(
        "ais://ingested",
        type="string",
        pattern=r"^(s3|oci|ais)://[^/]+$",
        title="Destination",
        description="Bucket URI; for a copy",
    ),
    "way": Param(
        "copy",
        type="string",
        enum=["copy", "prefetch", "worker"],
        values_display={
            "copy": "Copied by AIStore",
            "prefetch": "Fetched into AIStore's cache of the source",
            "worker": "Copied through the worker (OCI's native API; S3 to S3)",
        },
        description="The worker is for what AIStore cannot read: it goes in parallel ranges and parts",
    ),
    "prefix": Param(
        None,
        type=["null", "string"],
        title="Prefix",
        description="Take only objects whose names start with this; empty takes all",
    ),
    "on_failure": Param(
        "report",
        type="string",
        enum=["report", "fail"],
        section="How",
        values_display={"report": "Bring the good ones, list the bad ones", "fail": "Fail the run"},
        description="What an object that cannot be brought does to the run",
    ),
    "retry_failed": Param(
        False, type="boolean", section="How", description="Try objects again that failed for good in earlier runs"
    ),
    "source_connection": Param(
        None,
        type=["null", "string"],
        section="Through the worker",
        description="Connection to the source; empty for the default one of its kind",
    ),
    "destination_connection": Param(
        None,
        type=["null", "string"],
        section="Through the worker",
        description="Connection to the destination; empty for the default one of its kind",
    ),
}

with DAG(
    dag_id="ingest",
    description="A bucket of S3, OCI or another AIStore cluster into AIStore, each version of an object once",
    schedule=None,
    catchup=False,
    max_active_runs=1,  # two at once would copy the same objects
    params=PARAMS,
    tags=["storage", "aistore", "s3", "oci"],
    default_args={"owner": "storeside", "retries": 3, "retry_delay": timedelta(seconds=15)},
    doc_md="""
### Ingest

One of three ways, as the form says; the tasks of the others are skipped.

1. **copy**: AIStore copies what is new or changed through its own backend; the task is deferred meanwhile.
2. **prefetch**: AIStore fetches the objects into its cache of the source bucket; the task is deferred meanwhile.
3. **copy_through_worker**: the worker reads ranges and writes parts, with the settings that the DAG
   `backend_benchmark` found to be fastest, or those of the connection.

Each ends with a comparison of both sides. What failed, and why:
`SELECT object, reason FROM storeside.objects FINAL WHERE status = 'failed'`.
""",
) as dag:
    copy = AISCopyBucketOperator(
        task_id="copy",
        source="{{ params.source }}",
        destination="{{ params.destination }}",
        prefix="{{ params.prefix or '' }}",
        on_failed_objects="{{ params.on_failure }}",
        retry_failed="{{ params.retry_failed }}",
        pre_execute=only_when("way", "copy"),
    )
    prefetch = AISPrefetchBucketOperator(
        task_id="prefetch",
        bucket="{{ params.source }}",
        prefix="{{ params.prefix or '' }}",
        on_failed_objects="{{ params.on_failure }}",
        pre_execute=only_when("way", "prefetch"),
        trigger_rule="none_failed",
    )
    through_worker = StorageCopyBucketOperator(
        task_id="copy_through_worker",
        source="{{ params.source }}",
        destination="{{ params.destination }}",
        prefix="{{ params.prefix or '' }}",
        on_failed_objects="{{ params.on_failure }}",
        retry_failed="{{ params.retry_failed }}",
        source_conn_id="{{ params.source_connection or '' }}",
        destination_conn_id="{{ params.destination_connection or '' }}",
        pre_execute=only_when("way", "worker"),
        trigger_rule="none_failed",
    )

    copy >> prefetch >> through_worker
