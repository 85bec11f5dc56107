"""Transforms a bucket into another one inside AIStore: by form, on a schedule, and when objects arrive."""

from __future__ import annotations

from datetime import timedelta

from airflow.sdk import DAG, Param
from airflow.sdk.definitions.param import ParamsDict

from storeside.operators import (
    TRANSFORMER_IMAGE,
    AISTransformBucketOperator,
    SqsLeaseS3EventsOperator,
    SqsSettleS3EventsOperator,
    Template,
    dag_schedule,
    dag_settings,
    form_choices,
    params,
)

# The Airflow Variable storeside_transform_bucket replaces any of these.
SETTINGS = dag_settings(
    "transform_bucket",
    {"schedule": ("source", "destination"), "queue": ("source", "destination")},
    schedule="",  # cron; empty for none
    queue="",  # SQS queue with the events of the source; empty for none
    source="",
    destination="",
    prefix="",
    transformer="text_facts",
    existing_etl="",
    image=TRANSFORMER_IMAGE,
    environment={},  # the transformer's parameters
    extensions={"txt": "json"},
    members="",  # members of tar shards, such as *.txt; empty for whole objects
    communication="ws",
)

QUEUE = SETTINGS["queue"]
PARAMS = {
    "source": params.preset(params.SOURCE, SETTINGS["source"]),
    "destination": params.preset(params.DESTINATION, SETTINGS["destination"]),
    "prefix": params.preset(params.PREFIX, SETTINGS["prefix"]),
    **params.etl(SETTINGS),
    "quarantine": Param(
        None,
        type=["null", "string"],
        title="Quarantine",
        section="How",
        **form_choices(
            "bucket",
            "write",
            bare="ais",
            description="Bucket for copies of objects that cannot be transformed; a name alone means ais://. Empty"
            " for none",
        ),
    ),
    "on_failure": params.described(
        params.ON_FAILURE,
        "What happens to the run when an object cannot be transformed",
        values_display={"report": "Keep the good results, list the bad objects", "fail": "Fail the run"},
    ),
    "on_nothing": params.ON_NOTHING,
    "retry_failed": params.RETRY_FAILED,
    "plan_only": Param(
        False,
        type="boolean",
        title="Plan only",
        section="How",
        description="Change nothing; report how many objects would be processed",
    ),
}

with DAG(
    dag_id="transform_bucket",
    description="Transforms a bucket of any data into another bucket, beside the disks that hold it",
    schedule=dag_schedule(SETTINGS),
    catchup=False,
    max_active_runs=1,  # two runs at once would transform the same bucket pair, which AIStore refuses
    params=ParamsDict(PARAMS),
    tags=["aistore", "etl"],
    default_args={"owner": "storeside", "retries": 3, "retry_delay": timedelta(seconds=15)},
    doc_md="""
### Transform a bucket

1. **lease_events**: only with a queue in the Variable: leases the SQS messages of new objects.
2. **transform**: AIStore transforms each new or changed object of the source beside the disk that holds it, with a
   transform of Storeside's image or with an ETL that runs already. The task is deferred meanwhile. At its end it
   compares the destination with the source.
3. **settle_events**: only with a queue: deletes messages of transformed objects, sends messages of objects that
   failed for good to the dead-letter queue with their reasons, and releases all others. It does so after successful
   and failed runs.

The Airflow Variable `storeside_transform_bucket` contains the schedule, the queue, the image and the form's
defaults, such as `{"schedule": "0 4 * * *", "source": "s3://papers", "destination": "ais://paper-facts"}`. Without a
schedule and a queue in it, runs start from the form only. The Variable
`storeside_forms` lists the buckets, transformers and ETLs that the form accepts. Failed objects and their reasons:
`SELECT object, reason FROM storeside.objects FINAL WHERE status = 'failed'`.
""",
) as dag:
    transform = AISTransformBucketOperator(
        task_id="transform",
        source="{{ params.source }}",
        destination="{{ params.destination }}",
        image=SETTINGS["image"],
        environment=SETTINGS["environment"],
        latest=params.LATEST,
        **params.ETL,
        **params.OBJECTS,
        quarantine="{{ params.quarantine or '' }}",
        on_nothing=Template("{{ params.on_nothing }}"),
        plan_only="{{ params.plan_only }}",
    )

    if QUEUE:
        lease_events = SqsLeaseS3EventsOperator(task_id="lease_events", sqs_queue=QUEUE)
        settle_events = SqsSettleS3EventsOperator(
            task_id="settle_events",
            sqs_queue=QUEUE,
            source="{{ params.source }}",
            destination="{{ params.destination }}",
            prefix="{{ params.prefix or '' }}",
            complete="{{ not params.plan_only and ti.xcom_pull('transform') is not none }}",
        )
        lease_events >> transform >> settle_events
        settle_events.as_teardown(setups=lease_events)
