"""Transcodes recordings from S3 into AIStore, and publishes a validated manifest in ClickHouse."""

from __future__ import annotations

from datetime import timedelta

from airflow.sdk import DAG, Asset, AssetWatcher, CronTriggerTimetable, Param
from airflow.sdk.definitions.timetables.assets import AssetOrTimeSchedule

from storeside.operators import (
    TRANSFORMER_IMAGE,
    AISCopyBucketOperator,
    AISProbeAudioOperator,
    AISTranscodeAudioOperator,
    ClickHousePublishManifestOperator,
    ClickHouseStageManifestOperator,
    GXValidateManifestOperator,
    S3EventsTrigger,
    SqsLeaseS3EventsOperator,
    SqsSettleSpeechEventsOperator,
    dag_settings,
    form_choices,
)

# The Airflow Variable storeside_speech_pipeline replaces any of these.
SETTINGS = dag_settings(
    "speech_pipeline",
    schedule="0 3 * * *",  # cron
    source="s3://recordings",
    queue="recordings-events",  # SQS queue with the events of the source
    recordings="ais://recordings",  # AIStore's copies of the source's objects
    speech="ais://speech",
    facts="ais://speech-facts",
    image=TRANSFORMER_IMAGE,
)
QUEUE, IMAGE = SETTINGS["queue"], SETTINGS["image"]
RECORDINGS, SPEECH, FACTS = SETTINGS["recordings"], SETTINGS["speech"], SETTINGS["facts"]

# Each asset's name is its URI, as in Asset("ais://speech") of another DAG: Airflow has one active asset per URI.
recordings = Asset(
    SETTINGS["source"],
    watchers=[AssetWatcher(name=QUEUE.rpartition("/")[2], trigger=S3EventsTrigger(queue=QUEUE))],
)
speech = Asset(SPEECH)
manifest = Asset("clickhouse://speech/manifest")

PARAMS = {
    "source": Param(
        SETTINGS["source"],
        type="string",
        pattern=r"^(s3|gs|az|oci|ais)://[^/]+$",
        title="Bucket of recordings",
        **form_choices("bucket"),
        description="FLAC, WAV, MP3, Ogg, Opus, M4A, AIFF and others; any bucket that AIStore can read",
    ),
    "prefix": Param(
        None,
        type=["null", "string"],
        title="Prefix",
        description="Only objects whose names start with this; empty means all",
    ),
    "container": Param(
        "wav",
        type="string",
        enum=["wav", "flac", "mp3", "ogg", "m4a"],
        section="Audio",
        description="Container of the results",
    ),
    "codec": Param(
        "pcm_s16le",
        type="string",
        enum=[
            *("pcm_s16le", "pcm_s24le", "pcm_f32le", "pcm_u8", "pcm_mulaw", "pcm_alaw"),
            *("flac", "flac_s24", "mp3", "opus", "aac"),
        ],
        section="Audio",
        description="Codec of the results; wav supports pcm_*, flac supports flac and flac_s24, mp3 mp3, ogg opus,"
        " m4a aac",
    ),
    "sample_rate": Param(
        16_000, type="integer", minimum=4_000, maximum=192_000, section="Audio", description="Samples per second (Hz)"
    ),
    "channels": Param(
        1,
        type="integer",
        enum=[1, 2, 3, 4, 5, 6, 7, 8],
        section="Audio",
        description="1 for mono, 2 for stereo, more if the codec supports it",
    ),
    "keep_extension": Param(
        False,
        type="boolean",
        title="Keep extension",
        section="Audio",
        description="a.flac becomes a.flac.wav instead of a.wav: for buckets with recordings of the same name in"
        " several formats, such as a.flac and a.wav",
    ),
    "communication": Param(
        "ws",
        type="string",
        enum=["ws", "hpush"],
        section="How",
        values_display={"ws": "WebSocket (fastest)", "hpush": "HTTP push"},
        description="How AIStore sends objects to the transformer",
    ),
    "on_failure": Param(
        "report",
        type="string",
        enum=["report", "fail"],
        section="How",
        values_display={"report": "Succeed and list failed recordings", "fail": "Fail the run"},
        description="What happens when a recording cannot be decoded or a row of the manifest is invalid",
    ),
    "retry_failed": Param(
        False, type="boolean", section="How", description="Also try recordings that failed for good in earlier runs"
    ),
    "max_seconds": Param(
        3_600, type="integer", minimum=1, section="How", description="Longest valid recording (seconds)"
    ),
}

with DAG(
    dag_id="speech_pipeline",
    description="Turns S3 recordings into transcoded speech in AIStore and a validated manifest in ClickHouse",
    schedule=AssetOrTimeSchedule(
        timetable=CronTriggerTimetable(SETTINGS["schedule"], timezone="UTC"), assets=[recordings]
    ),
    catchup=False,
    # Parallel runs would transform the same bucket pair, which AIStore refuses.
    max_active_runs=1,
    params=PARAMS,
    tags=["speech", "aistore", "clickhouse"],
    default_args={"owner": "storeside", "retries": 3, "retry_delay": timedelta(seconds=15)},
    doc_md="""
### Speech pipeline

1. **lease_events**: leases the SQS messages of new recordings, so other consumers do not receive them.
2. **ingest**: AIStore copies new recordings from S3 through its own S3 backend.
3. **transcode**: AIStore's ETL transcodes them beside the disks that hold them, and measures every result in the same
   pass: duration, rate, levels, SHA-256. The task reconciles the destination with the source.
4. **probe**: the cluster measures objects that have no facts from this run: unpublished results of earlier runs, and
   objects that other programs stored. Usually none are left, and the log states that.
5. **stage_manifest**: ClickHouse pulls the facts from AIStore into a staging table.
6. **validate**: Great Expectations checks every row against the suite.
7. **publish**: the valid rows appear in `speech.manifest` in one step.
8. **settle_events**: deletes messages of published recordings, sends messages of recordings that failed for good to
   the dead-letter queue with their reasons, and releases all others, whether the run succeeded or failed.

The DAG runs at 03:00 UTC, from the form, and when recordings arrive (S3 events on SQS, one run per batch). It
processes only new and changed recordings. To list failed objects with their reasons:
`SELECT object, reason FROM storeside.objects FINAL WHERE status = 'failed'`.
""",
) as dag:
    lease_events = SqsLeaseS3EventsOperator(task_id="lease_events", sqs_queue=QUEUE)
    ingest = AISCopyBucketOperator(
        task_id="ingest",
        source="{{ params.source }}",
        destination=RECORDINGS,
        prefix="{{ params.prefix or '' }}",
        on_failed_objects="{{ params.on_failure }}",
        retry_failed="{{ params.retry_failed }}",
    )
    transcode = AISTranscodeAudioOperator(
        task_id="transcode",
        source=RECORDINGS,
        destination=SPEECH,
        image=IMAGE,
        prefix="{{ params.prefix or '' }}",
        container="{{ params.container }}",
        codec="{{ params.codec }}",
        sample_rate="{{ params.sample_rate }}",
        channels="{{ params.channels }}",
        keep_extension="{{ params.keep_extension }}",
        communication="{{ params.communication }}",
        on_failed_objects="{{ params.on_failure }}",
        retry_failed="{{ params.retry_failed }}",
        facts=FACTS,
        outlets=[speech],
    )
    probe = AISProbeAudioOperator(
        task_id="probe",
        source=SPEECH,
        destination=FACTS,
        image=IMAGE,
        prefix="{{ params.prefix or '' }}",
        communication="{{ params.communication }}",
        on_failed_objects="{{ params.on_failure }}",
        retry_failed="{{ params.retry_failed }}",
    )
    stage = ClickHouseStageManifestOperator(
        task_id="stage_manifest", bucket=SPEECH, facts=FACTS, effect="{{ ti.xcom_pull('probe')['effect'] }}"
    )
    validate = GXValidateManifestOperator(
        task_id="validate",
        bucket=SPEECH,
        facts=FACTS,
        sample_rate="{{ 48000 if params.codec == 'opus' else params.sample_rate }}",
        channels="{{ params.channels }}",
        max_seconds="{{ params.max_seconds }}",
        on_invalid_rows="{{ params.on_failure }}",
    )
    publish = ClickHousePublishManifestOperator(
        task_id="publish",
        bucket=SPEECH,
        facts=FACTS,
        effect="{{ ti.xcom_pull('probe')['effect'] }}",
        outlets=[manifest],
    )
    settle_events = SqsSettleSpeechEventsOperator(
        task_id="settle_events",
        sqs_queue=QUEUE,
        source="{{ params.source }}",
        prefix="{{ params.prefix or '' }}",
        complete="{{ ti.xcom_pull('publish') is not none }}",
    )

    lease_events >> ingest >> transcode >> probe >> stage >> validate >> publish >> settle_events
    settle_events.as_teardown(setups=lease_events)
