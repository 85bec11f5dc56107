"""Compares storage backends, and finds the fastest transfer settings for each backend."""

from __future__ import annotations

from datetime import timedelta

from airflow.sdk import DAG, Param
from airflow.sdk.definitions.param import ParamsDict

from storeside.operators import (
    StorageBenchmarkOperator,
    StorageTuneOperator,
    chart_url_pattern,
    form_choices,
    must_match,
)

PARAMS = {
    "backends": Param(
        type="array",
        items={"type": "string"},
        title="Backends",
        **must_match(
            r"(s3|oci|ais)://[^/@\s]+(@[^\s@]+)?", "write buckets of s3, oci or ais, one per line, such as s3://data"
        ),
        **form_choices(
            "backend",
            description="Buckets, one per line; a name alone means s3://. Add @connection to use another connection"
            " than the default: s3://data@oci_s3",
        ),
    ),
    "through_aistore": Param(
        None,
        type=["null", "array"],
        items={"type": "string"},
        **must_match(
            r"(s3|gs|az|oci)://[^/@\s]+(@[^\s@]+)?", "write cloud buckets, one per line, such as oci://data"
        ),
        title="Through AIStore",
        section="Comparison",
        **form_choices(
            "backend",
            description="Cloud buckets to measure through AIStore's own backends, one per line: oci://data",
        ),
    ),
    "change_parts": Param(
        False,
        type="boolean",
        title="Change AIStore's parts",
        section="Comparison",
        description="Through AIStore, measure PUTs to S3 in one piece, in few and in many parts: sets the bucket's"
        " property extra.aws.multipart_size, and restores it",
    ),
    "rounds": Param(
        3,
        type="integer",
        minimum=1,
        maximum=100,
        title="Rounds",
        section="Comparison",
        description="Measurements per backend",
    ),
    "megabytes": Param(
        64,
        type="integer",
        minimum=1,
        maximum=5_000,
        title="Size, MB",
        section="Comparison",
        description="Size of the object that PUTs write",
    ),
    "chart": Param(
        None,
        type=["null", "string"],
        **must_match(chart_url_pattern("png"), "write a URL such as s3://aws_default@reports/backends.png"),
        **form_choices(
            "chart",
            description="URL for a PNG chart of the medians, such as s3://aws_default@reports/backends.png;"
            " empty for none",
        ),
        title="Chart",
        section="Comparison",
    ),
    "tune_seconds": Param(
        60,
        type="integer",
        minimum=1,
        title="Seconds",
        section="Tuner",
        description="Maximum seconds to tune one direction of one backend",
    ),
    "tune_megabytes": Param(
        2_048,
        type="integer",
        minimum=2,
        title="Volume, MiB",
        section="Tuner",
        description="Maximum MiB to move while tuning one direction of one backend",
    ),
}

with DAG(
    dag_id="backend_benchmark",
    description="Compares storage backends: GET, and PUT in one piece, in few parts and in many parts",
    schedule=None,
    catchup=False,
    max_active_runs=1,  # parallel runs would distort each other's measurements
    params=ParamsDict(PARAMS),
    tags=["storage", "benchmark"],
    default_args={"owner": "storeside", "retries": 1, "retry_delay": timedelta(seconds=15)},
    doc_md="""
### Backend benchmark

1. **measure**: times a cold GET of 10 MB, and PUTs in one piece, in parts of 10 MB and in parts of 1 MB (or the
   smallest part that the API allows). The backends take turns. The task writes each round to
   `storeside.backend_benchmark` and the medians to its log.
   Buckets in the field *Through AIStore* are measured through AIStore's own backends: a cold GET of 10 MB, and a cold
   GET and a PUT of the size that the form names.
2. **tune**: finds the fastest part size and number of threads by object size, and stores them in
   `storeside.multipart_settings`. Later copies to the same endpoint use them.

`SELECT backend, operation, median(seconds) FROM storeside.backend_benchmark GROUP BY ALL ORDER BY ALL`
""",
) as dag:
    measure = StorageBenchmarkOperator(
        task_id="measure",
        backends="{{ params.backends | join(' ') }}",
        through_aistore="{{ (params.through_aistore or []) | join(' ') }}",
        change_parts="{{ params.change_parts }}",
        rounds="{{ params.rounds }}",
        megabytes="{{ params.megabytes }}",
        chart="{{ params.chart or '' }}",
    )
    tune = StorageTuneOperator(
        task_id="tune",
        backends="{{ params.backends | join(' ') }}",
        seconds="{{ params.tune_seconds }}",
        megabytes="{{ params.tune_megabytes }}",
    )

    measure >> tune
