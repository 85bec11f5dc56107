"""Transcodes recordings from S3 into AIStore, and publishes a validated manifest in ClickHouse."""

from __future__ import annotations

from datetime import timedelta

from airflow.sdk import DAG, Asset, Param
from airflow.sdk.definitions.param import ParamsDict

from storeside.operators import (
    TRANSFORMER_IMAGE,
    AISCopyBucketOperator,
    AISProbeAudioOperator,
    AISTranscodeAudioOperator,
    ClickHouseLoadManifestOperator,
    SqsLeaseS3EventsOperator,
    SqsSettleSpeechEventsOperator,
    Template,
    dag_schedule,
    dag_settings,
    params,
)

# The Airflow Variable storeside_speech_pipeline replaces any of these.
SETTINGS = dag_settings(
    "speech_pipeline",
    {"schedule": ("source",), "queue": ("source",)},
    schedule="",  # cron; empty for none
    source="",
    queue="",  # SQS queue with the events of the source; empty for none
    recordings="ais://recordings",  # AIStore's copies of the source's objects
    speech="ais://speech",
    facts="ais://speech-facts",
    image=TRANSFORMER_IMAGE,
    keep_extension=False,
    suite={},  # of Great Expectations, about the facts of recordings: which ones are kept
    parallel_runs=1,  # more for runs with prefixes that do not overlap
)
QUEUE, IMAGE = SETTINGS["queue"], SETTINGS["image"]
RECORDINGS, SPEECH, FACTS = SETTINGS["recordings"], SETTINGS["speech"], SETTINGS["facts"]

# Each asset's name is its URI, as in Asset("ais://speech") of another DAG: Airflow has one active asset per URI.
speech = Asset(SPEECH)
manifest = Asset("clickhouse://speech/manifest")

# Codecs of the results, and their names in the form. Each has one container.
CODECS = {
    "pcm_s16le": "WAV, 16 bit",
    "pcm_s24le": "WAV, 24 bit",
    "pcm_f32le": "WAV, 32 bit float",
    "pcm_u8": "WAV, 8 bit",
    "pcm_mulaw": "WAV, mu-law",
    "pcm_alaw": "WAV, A-law",
    "flac": "FLAC, 16 bit",
    "flac_s24": "FLAC, 24 bit",
    "mp3": "MP3",
    "opus": "Ogg, Opus",
    "aac": "M4A, AAC",
}

PARAMS = {
    "source": params.preset(params.RECORDINGS, SETTINGS["source"]),
    "prefix": params.PREFIX,
    "codec": Param(
        "pcm_s16le",
        type="string",
        enum=list(CODECS),
        values_display=CODECS,
        title="Format",
        section="Audio",
        description="Container and codec of the results",
    ),
    "sample_rate": params.described(
        params.SAMPLE_RATE, "MP3, Opus and AAC support some rates only, such as 16000, 24000 and 48000"
    ),
    "channels": Param(
        1,
        type="integer",
        enum=[1, 2, 3, 4, 5, 6, 7, 8],
        title="Channels",
        section="Audio",
        description="1 for mono, 2 for stereo, more if the codec supports it",
    ),
    "channel": Param(
        "all",
        type="string",
        enum=["all", "left", "right"],
        values_display={"all": "All channels, mixed", "left": "Only the left one", "right": "Only the right one"},
        title="Channel of the recordings",
        section="Audio",
        description="Telephone stereo has one speaker on each channel. One channel alone needs 1 for Channels",
    ),
    "keep_extension": Param(
        SETTINGS["keep_extension"],
        type="boolean",
        title="Keep extension",
        section="Audio",
        description="a.flac becomes a.flac.wav instead of a.wav: for buckets with recordings of the same name in"
        " several formats, such as a.flac and a.wav",
    ),
    "communication": params.COMMUNICATION,
    "on_failure": params.described(
        params.ON_FAILURE,
        "What happens when a recording cannot be decoded or a row of the manifest is invalid",
        title="Failed recordings",
        values_display={"report": "Succeed and list failed recordings", "fail": "Fail the run"},
    ),
    "retry_failed": params.RETRY_FAILED,
    "max_seconds": Param(
        3_600,
        type="integer",
        minimum=1,
        title="Longest recording, seconds",
        section="How",
        description="Longer recordings are invalid rows of the manifest",
    ),
}

with DAG(
    dag_id="speech_pipeline",
    description="Turns S3 recordings into transcoded speech in AIStore and a validated manifest in ClickHouse",
    schedule=dag_schedule(SETTINGS),
    catchup=False,
    # Runs at the same time are for prefixes that do not overlap: others would do the same work twice.
    max_active_runs=SETTINGS["parallel_runs"],
    params=ParamsDict(PARAMS),
    tags=["speech", "aistore", "clickhouse"],
    default_args={"owner": "storeside", "retries": 3, "retry_delay": timedelta(seconds=15)},
    doc_md="""
### Speech pipeline

1. **lease_events**: only with a queue in the Variable: leases the SQS messages of new recordings, so other consumers
   do not receive them.
2. **ingest**: AIStore copies new recordings from S3 through its own S3 backend.
3. **transcode**: AIStore's ETL transcodes them beside the disks that hold them, and measures every result in the same
   pass: duration, rate, levels, SHA-256. The task reconciles the destination with the source.
4. **probe**: the cluster measures objects that have no facts from this run: unpublished results of earlier runs, and
   objects that other programs stored. Usually none are left, and the log states that.
5. **load**: loads the facts into `speech.manifest` as one object of JSON Lines. A suite of Great Expectations checks
   each row; invalid ones go to `speech.manifest_quarantine` with their reasons, and the others appear in one step.
6. **settle_events**: only with a queue: deletes messages of published recordings, sends messages of recordings that
   failed for good to the dead-letter queue with their reasons, and releases all others, whether the run succeeded or
   failed.

If **ingest** has nothing to copy, and no later task has anything to do, it skips them: such a run takes seconds.

Runs start from the form. With the setting `parallel_runs`, several run at the same time, for prefixes that do not
overlap. The Airflow Variable `storeside_speech_pipeline` also starts them on a schedule, and when
recordings arrive (S3 events on SQS, one run per batch):
`{"source": "s3://recordings", "schedule": "0 3 * * *", "queue": "recordings-events"}`. A run processes only new and
changed recordings. To list failed objects with their reasons:
`SELECT object, reason FROM storeside.objects FINAL WHERE status = 'failed'`.
""",
) as dag:
    ingest = AISCopyBucketOperator(
        task_id="ingest",
        source="{{ params.source }}",
        destination=RECORDINGS,
        skip_idle=True,
        **params.OBJECTS,
    )
    transcode = AISTranscodeAudioOperator(
        task_id="transcode",
        source=RECORDINGS,
        destination=SPEECH,
        image=IMAGE,
        container="",  # the codec's
        codec=Template("{{ params.codec }}"),
        sample_rate="{{ params.sample_rate }}",
        channels="{{ params.channels }}",
        channel="{{ None if params.channel == 'all' else params.channel }}",
        keep_extension="{{ params.keep_extension }}",
        communication=Template("{{ params.communication }}"),
        facts=FACTS,
        suite=SETTINGS["suite"],
        outlets=[speech],
        **params.OBJECTS,
    )
    probe = AISProbeAudioOperator(
        task_id="probe",
        source=SPEECH,
        destination=FACTS,
        image=IMAGE,
        communication=Template("{{ params.communication }}"),
        **params.OBJECTS,
    )
    load = ClickHouseLoadManifestOperator(
        task_id="load",
        bucket=SPEECH,
        facts=FACTS,
        effect="{{ ti.xcom_pull('probe')['effect'] }}",
        sample_rate="{{ 48000 if params.codec == 'opus' else params.sample_rate }}",
        channels="{{ params.channels }}",
        max_seconds="{{ params.max_seconds }}",
        on_invalid_rows=Template("{{ params.on_failure }}"),
        outlets=[manifest],
    )
    ingest >> transcode >> probe >> load

    if QUEUE:
        lease_events = SqsLeaseS3EventsOperator(task_id="lease_events", sqs_queue=QUEUE)
        settle_events = SqsSettleSpeechEventsOperator(
            task_id="settle_events",
            sqs_queue=QUEUE,
            source="{{ params.source }}",
            prefix="{{ params.prefix or '' }}",
            complete="{{ ti.xcom_pull('load') is not none"
            " or ti.xcom_pull('ingest', key='nothing_to_do') is not none }}",
        )
        lease_events >> ingest
        load >> settle_events
        settle_events.as_teardown(setups=lease_events)
