"""Cuts recordings into utterances inside AIStore, one shard per recording, and loads a row of facts per utterance."""

from __future__ import annotations

from datetime import timedelta

from airflow.sdk import DAG, Param
from airflow.sdk.definitions.param import ParamsDict

from storeside.operators import (
    FILTER_COLUMNS,
    TRANSFORMER_IMAGE,
    UTTERANCE_COLUMNS,
    AISCutUtterancesOperator,
    AISTransformBucketOperator,
    ClickHouseExportManifestOperator,
    S3ToClickHouseOperator,
    SqsLeaseS3EventsOperator,
    SqsSettleS3EventsOperator,
    TableOptions,
    Template,
    dag_schedule,
    dag_settings,
    params,
    transformer_command,
)

# The Airflow Variable storeside_speech_utterances replaces any of these.
SETTINGS = dag_settings(
    "speech_utterances",
    {"schedule": ("source", "table"), "queue": ("source", "table")},
    schedule="",  # cron; empty for none
    queue="",  # SQS queue with the events of the source; empty for none
    source="",
    table="",
    utterances="ais://utterances",  # the shards
    facts="ais://utterance-facts",
    image=TRANSFORMER_IMAGE,
    keep_extension=False,
    suite={},  # of Great Expectations, about the facts of utterances: which ones are kept
    manifest="",  # such as s3://datasets/utterances.jsonl.gz; empty for none
    manifest_format="lhotse_cuts",
    manifest_connection="clickhouse_exports",
)
QUEUE, IMAGE = SETTINGS["queue"], SETTINGS["image"]
UTTERANCES, FACTS = SETTINGS["utterances"], SETTINGS["facts"]
COLUMNS = UTTERANCE_COLUMNS | FILTER_COLUMNS if SETTINGS["suite"] else UTTERANCE_COLUMNS

PARAMS = {
    "source": params.preset(params.RECORDINGS, SETTINGS["source"]),
    "prefix": params.LOADED_PREFIX,
    "table": params.preset(params.TABLE["table"], SETTINGS["table"]),
    "threshold": Param(
        0.5,
        type="number",
        minimum=0.2,
        maximum=0.95,
        title="Threshold",
        section="Speech",
        description="Probability of speech at which an utterance begins; raise it for noisy recordings",
    ),
    "merge_gap_seconds": Param(
        0.5,
        type="number",
        minimum=0,
        maximum=60,
        title="Longest pause, seconds",
        section="Speech",
        description="A shorter pause does not end an utterance",
    ),
    "padding_seconds": Param(
        0.3,
        type="number",
        minimum=0,
        maximum=5,
        title="Padding, seconds",
        section="Speech",
        description="Audio to keep before and after the speech of an utterance",
    ),
    "min_seconds": Param(
        0.25,
        type="number",
        minimum=0.05,
        maximum=60,
        title="Shortest speech, seconds",
        section="Speech",
        description="Shorter speech is left out",
    ),
    "max_seconds": Param(
        30,
        type="number",
        minimum=1,
        maximum=600,
        title="Longest utterance, seconds",
        section="Speech",
        description="Longer speech is divided where speech is least probable",
    ),
    "container": Param(
        "flac",
        type="string",
        enum=["flac", "wav"],
        title="Format",
        section="Audio",
        values_display={"flac": "FLAC, 16 bit", "wav": "WAV, 16 bit"},
        description="Format of the utterances in the shards",
    ),
    "sample_rate": params.SAMPLE_RATE,
    "communication": params.COMMUNICATION,
    "on_failure": params.described(
        params.ON_FAILURE,
        "What happens when recordings cannot be decoded",
        title="Failed recordings",
        values_display={"report": "Load the good recordings, list the bad ones", "fail": "Fail the task"},
    ),
    "retry_failed": params.RETRY_FAILED,
}
HOW = {"image": IMAGE, "communication": Template("{{ params.communication }}"), **params.OBJECTS}

with DAG(
    dag_id="speech_utterances",
    description="Cuts recordings into shards of utterances in AIStore, and loads their facts into ClickHouse",
    schedule=dag_schedule(SETTINGS),
    catchup=False,
    max_active_runs=1,  # two runs at once would transform the same bucket pair, which AIStore refuses
    params=ParamsDict(PARAMS),
    tags=["speech", "aistore", "clickhouse"],
    default_args={"owner": "storeside", "retries": 3, "retry_delay": timedelta(seconds=15)},
    doc_md="""
### One shard of utterances per recording

1. **lease_events**: only with a queue in the Variable: leases the SQS messages of new recordings.
2. **cut**: AIStore's ETL finds the speech in each new or changed recording beside the disk that holds it, and stores
   its utterances as one WebDataset shard: `talk.mp3` becomes `talk.tar` with `talk-00001.flac` and `talk-00001.json`,
   the facts, for each utterance. No audio leaves the storage.
3. **facts**: AIStore collects the facts of each new shard as JSON Lines, one line per utterance.
4. **load**: loads the facts into the table, once. The rows of a changed recording replace its old rows.
5. **export**: only with `manifest` in the Variable: writes the manifest of all utterances in the table, for training
   with Lhotse or NeMo.
6. **settle_events**: only with a queue: deletes messages of recordings whose utterances are in the table, sends
   messages of recordings that failed for good to the dead-letter queue with their reasons, and releases all others.

The Airflow Variable `storeside_speech_utterances` contains the schedule, the queue, the buckets and the form's
defaults: `{"source": "s3://talks", "table": "data.utterances", "queue": "talks-events"}`. Without a schedule and a
queue in it, runs start from the form only.

Recordings that could not be cut: `SELECT object, reason FROM storeside.objects FINAL WHERE status = 'failed'`.
""",
) as dag:
    cut = AISCutUtterancesOperator(
        task_id="cut",
        source="{{ params.source }}",
        destination=UTTERANCES,
        latest=params.LATEST,
        skip_idle=True,
        container=Template("{{ params.container }}"),
        sample_rate="{{ params.sample_rate }}",
        keep_extension=SETTINGS["keep_extension"],
        threshold="{{ params.threshold }}",
        merge_gap_seconds="{{ params.merge_gap_seconds }}",
        padding_seconds="{{ params.padding_seconds }}",
        min_seconds="{{ params.min_seconds }}",
        max_seconds="{{ params.max_seconds }}",
        suite=SETTINGS["suite"],
        **HOW,
    )
    facts = AISTransformBucketOperator(
        task_id="facts",
        source=UTTERANCES,
        destination=FACTS,
        command=transformer_command("text_json"),
        members="*.json",
        extensions={"tar": "jsonl"},
        **HOW,
    )
    load = S3ToClickHouseOperator(
        task_id="load",
        source=f"{FACTS}/{params.OBJECTS['prefix']}",
        table="{{ params.table }}",
        format="jsonl",
        on_overwrite="replace",
        table_options=TableOptions(columns=COLUMNS, order_by="(recording, utterance)"),
        on_failed_objects=Template("{{ params.on_failure }}"),
        retry_failed="{{ params.retry_failed }}",
    )
    cut >> facts >> load
    last = load

    if SETTINGS["manifest"]:
        export = ClickHouseExportManifestOperator(
            task_id="export",
            bucket=UTTERANCES,
            table="{{ params.table }}",
            destination=SETTINGS["manifest"],
            format=SETTINGS["manifest_format"],
            clickhouse_conn_id=SETTINGS["manifest_connection"],
        )
        last = load >> export

    if QUEUE:
        lease_events = SqsLeaseS3EventsOperator(task_id="lease_events", sqs_queue=QUEUE)
        settle_events = SqsSettleS3EventsOperator(
            task_id="settle_events",
            sqs_queue=QUEUE,
            source="{{ params.source }}",
            destination=UTTERANCES,
            facts=FACTS,
            table="{{ params.table }}",
            prefix="{{ params.prefix or '' }}",
            complete="{{ ti.xcom_pull('load') is not none or ti.xcom_pull('cut', key='nothing_to_do') is not none }}",
        )
        lease_events >> cut
        last >> settle_events
        settle_events.as_teardown(setups=lease_events)
