"""Transforms a bucket inside AIStore and loads the results into a table: by form, on a schedule, and on S3 events."""

from __future__ import annotations

from datetime import timedelta

from airflow.sdk import DAG, Param
from airflow.sdk.definitions.param import ParamsDict

from storeside.operators import (
    TRANSFORMER_IMAGE,
    AISTransformBucketOperator,
    S3ToClickHouseOperator,
    SqsLeaseS3EventsOperator,
    SqsSettleS3EventsOperator,
    Template,
    dag_schedule,
    dag_settings,
    form_choices,
    must_match,
    params,
)

ALL = ("source", "destination", "table")
# The Airflow Variable storeside_transform_to_clickhouse replaces any of these.
SETTINGS = dag_settings(
    "transform_to_clickhouse",
    {"schedule": ALL, "queue": ALL},
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
    table="",
    suite="",  # Great Expectations: a path, or package.module:function
    on_failed_expectations="fail",  # or quarantine
)

QUEUE = SETTINGS["queue"]
RESULTS = Param(
    type="string",
    title="Results",
    **must_match(r"ais://[^/@#]+", params.bucket_alone("ais")),
    **form_choices(
        "bucket",
        "read",
        "write",
        bare="ais",
        description="AIStore bucket for the results, which the table is loaded from, with or without ais://; created"
        " if missing",
    ),
)
PARAMS = {
    "source": params.preset(params.SOURCE, SETTINGS["source"]),
    "destination": params.preset(RESULTS, SETTINGS["destination"]),
    "prefix": params.preset(params.LOADED_PREFIX, SETTINGS["prefix"]),
    **params.TABLE,
    "table": params.preset(params.TABLE["table"], SETTINGS["table"]),
    "on_overwrite": params.preset(params.TABLE["on_overwrite"], "replace"),
    **params.etl(SETTINGS),
    **params.EXPECTATIONS,
    "suite": params.preset(params.EXPECTATIONS["suite"], SETTINGS["suite"]),
    "on_failed_expectations": params.preset(
        params.EXPECTATIONS["on_failed_expectations"], SETTINGS["on_failed_expectations"]
    ),
    "on_failure": params.described(
        params.ON_FAILURE,
        "What happens when objects cannot be transformed or loaded; a failed transform loads nothing",
        values_display={"report": "Load the good results, list the bad objects", "fail": "Fail the task"},
    ),
    "on_nothing": params.ON_NOTHING,
    "retry_failed": params.RETRY_FAILED,
}

with DAG(
    dag_id="transform_to_clickhouse",
    description="Transforms a bucket of any data beside the disks that hold it, and loads the results into a table",
    schedule=dag_schedule(SETTINGS),
    catchup=False,
    max_active_runs=1,  # two runs at once would transform the same bucket pair, which AIStore refuses
    params=ParamsDict(PARAMS),
    tags=["aistore", "etl", "clickhouse"],
    default_args={"owner": "storeside", "retries": 3, "retry_delay": timedelta(seconds=15)},
    doc_md="""
### Transform a bucket and load the results

1. **lease_events**: only with a queue in the Variable: leases the SQS messages of new objects.
2. **transform**: AIStore transforms each new or changed object of the source beside the disk that holds it, with a
   transform of Storeside's image or with an ETL that runs already. The results are Parquet, CSV or JSON Lines.
3. **load**: loads each new version of a result into the table, once. ClickHouse reads the results from AIStore's
   targets; if it cannot, the worker streams them. The rows of a changed result replace its old rows, unless the form
   says otherwise. A suite of Great Expectations, if the form or the setting `suite` names one, checks the rows before
   they are published.
4. **settle_events**: only with a queue: deletes messages of objects whose results are loaded, sends messages of
   objects that failed for good to the dead-letter queue with their reasons, and releases all others. It does so after
   successful and failed runs.

The Airflow Variable `storeside_transform_to_clickhouse` contains the schedule, the queue, the image and the form's
defaults: `{"queue": "papers-events", "source": "s3://papers", "destination": "ais://paper-facts",
"table": "data.papers"}`. Without a schedule and a queue in it, runs start from the form only. The Variable
`storeside_forms` lists the buckets, transformers, ETLs and suites that the form accepts.

Objects that were not transformed: `SELECT object, reason FROM storeside.objects FINAL WHERE status = 'failed'`.
Results that were not loaded: `SELECT key, reason FROM storeside.loads FINAL WHERE state = 'failed'`.
""",
) as dag:
    transform = AISTransformBucketOperator(
        task_id="transform",
        source="{{ params.source }}",
        destination="{{ params.destination }}",
        image=SETTINGS["image"],
        environment=SETTINGS["environment"],
        latest=params.LATEST,
        skip_idle=True,
        **params.ETL,
        **params.OBJECTS,
        on_nothing=Template("{{ params.on_nothing }}"),
    )
    load = S3ToClickHouseOperator(
        task_id="load",
        source="{{ params.destination }}/{{ params.prefix or '' }}",
        **params.LOAD,
        **params.CHECKED,
        on_failed_objects=Template("{{ params.on_failure }}"),
        retry_failed="{{ params.retry_failed }}",
    )
    transform >> load

    if QUEUE:
        lease_events = SqsLeaseS3EventsOperator(task_id="lease_events", sqs_queue=QUEUE)
        settle_events = SqsSettleS3EventsOperator(
            task_id="settle_events",
            sqs_queue=QUEUE,
            source="{{ params.source }}",
            destination="{{ params.destination }}",
            prefix="{{ params.prefix or '' }}",
            table="{{ params.table }}",
            complete="{{ ti.xcom_pull('load') is not none"
            " or ti.xcom_pull('transform', key='nothing_to_do') is not none }}",
        )
        lease_events >> transform
        load >> settle_events
        settle_events.as_teardown(setups=lease_events)
