"""Measures servers, channels, file access and direct put of a transform on an AIStore cluster, and a client."""

from __future__ import annotations

from datetime import timedelta

from airflow.sdk import DAG, Param
from airflow.sdk.definitions.param import ParamsDict

from storeside.operators import (
    TRANSFORMER_IMAGE,
    AISMeasureTransformsOperator,
    AISRemoveMeasurementOperator,
    EtlSpec,
    Template,
    dag_settings,
    params,
)

# The Airflow Variable storeside_transform_benchmark replaces any of these.
SETTINGS = dag_settings(
    "transform_benchmark",
    image=TRANSFORMER_IMAGE,
    resources={},  # Kubernetes' requests and limits of a server's pod
)

SERVERS, COMMUNICATIONS = ["storeside", "fastapi", "flask", "http"], ["ws", "hpush", "hpull"]
SWITCH = {"both": "Measure with and without", "on": "Only with", "off": "Only without"}


def several(names: list[str], title: str, description: str) -> Param:
    """Return a form field for one or more of these names; all of them are chosen by default."""
    items = {"type": "string", "enum": names}
    return Param(
        names,
        type="array",
        items=items,
        minItems=1,
        examples=names,
        title=title,
        section="Variants",
        description=description,
    )


def switch(title: str, description: str) -> Param:
    """Return a form field for an option that is measured with, without, or both."""
    return Param(
        "both",
        type="string",
        enum=list(SWITCH),
        values_display=SWITCH,
        title=title,
        section="Variants",
        description=description,
    )


PARAMS = {
    "source": params.described(
        params.RECORDINGS, "Recordings to transcode (FLAC, WAV, MP3 and others); the run only reads them"
    ),
    "prefix": params.PREFIX,
    "objects": Param(
        300,
        type="integer",
        minimum=1,
        maximum=10_000,
        title="Recordings",
        description="Maximum number of recordings; the run copies them to a new bucket, which it removes",
    ),
    "servers": several(
        SERVERS, "Servers", "Storeside's server of transformers, and the three of AIStore's SDK: fastapi, flask, http"
    ),
    "communications": several(
        COMMUNICATIONS,
        "Channels",
        "How AIStore sends objects to the transformer; only storeside and fastapi with direct put have ws",
    ),
    "file_access": switch("File access", "Whether the transformer reads objects from the target's disk"),
    "direct_put": switch(
        "Direct put", "Whether the transformer sends results straight to the target that stores them"
    ),
    "client_workers": Param(
        8,
        type="integer",
        minimum=0,
        maximum=256,
        title="Client",
        section="Variants",
        description="Recordings that a client on the Airflow worker downloads, transcodes and uploads at the same"
        " time, for comparison; all of them are in its memory. 0 leaves out the client",
    ),
    "rounds": Param(
        3,
        type="integer",
        minimum=1,
        maximum=100,
        title="Rounds",
        section="How",
        description="Measurements of each variant; the variants take turns",
    ),
    "processes": Param(
        0,
        type="integer",
        minimum=0,
        maximum=1024,
        title="Processes",
        section="How",
        description="Worker processes of each server; 0 is one per CPU that its pod may use",
    ),
    "codec": Param(
        "pcm_s16le",
        type="string",
        enum=["pcm_s16le", "flac", "mp3", "opus", "aac"],
        values_display={
            "pcm_s16le": "WAV, 16 bit",
            "flac": "FLAC, 16 bit",
            "mp3": "MP3",
            "opus": "Ogg, Opus",
            "aac": "M4A, AAC",
        },
        title="Format",
        section="Audio",
        description="Container and codec of the results",
    ),
    "sample_rate": params.preset(params.SAMPLE_RATE, 44_100),
    "channels": Param(
        2,
        type="integer",
        enum=[1, 2],
        title="Channels of the results",
        section="Audio",
        values_display={1: "Mono", 2: "Stereo"},
        description="Number of audio channels",
    ),
}

with DAG(
    dag_id="transform_benchmark",
    description="Transcodes the same recordings with each server and channel of AIStore's ETLs, and by a client",
    schedule=None,  # the measurement uses all of the cluster's processors
    catchup=False,
    max_active_runs=1,
    params=ParamsDict(PARAMS),
    tags=["aistore", "benchmark"],
    default_args={"owner": "storeside", "retries": 1, "retry_delay": timedelta(seconds=15)},
    doc_md="""
### Transform benchmark

1. **measure**: copies the recordings to a new bucket. In each round, every variant of server, channel, file
   access and direct put transcodes them into an empty bucket, and so does a client on the worker. A variant counts
   only if every recording has a result; one that fails is left out with its reason. The log has a table of medians.
2. **remove**: removes buckets and ETLs that a killed task left behind.

Without direct put, each job takes a fixed 13 to 14 s longer, because AIStore waits at its end: measure enough
recordings.

`SELECT server, channel, file_access, direct_put, median(seconds), median(objects_per_second)
FROM storeside.transform_benchmark GROUP BY ALL ORDER BY 5`
""",
) as dag:
    measure = AISMeasureTransformsOperator(
        task_id="measure",
        source="{{ params.source }}",
        prefix="{{ params.prefix or '' }}",
        objects="{{ params.objects }}",
        servers=Template("{{ params.servers | join(' ') }}"),
        communications=Template("{{ params.communications | join(' ') }}"),
        file_access=Template("{{ params.file_access }}"),
        direct_put=Template("{{ params.direct_put }}"),
        rounds="{{ params.rounds }}",
        processes="{{ params.processes }}",
        client_workers="{{ params.client_workers }}",
        codec=Template("{{ params.codec }}"),
        sample_rate="{{ params.sample_rate }}",
        channels="{{ params.channels }}",
        etl=EtlSpec("bench", SETTINGS["image"], resources=SETTINGS["resources"], init_timeout=300),
    )
    remove = AISRemoveMeasurementOperator(task_id="remove", measured="measure", retries=20)

    measure >> remove.as_teardown()
