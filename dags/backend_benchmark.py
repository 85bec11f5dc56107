"""Storage backends against each other, and the settings that each is fastest with."""

from __future__ import annotations

from datetime import timedelta

from airflow.sdk import DAG, Param

from operators.charts import pattern
from operators.storage import StorageBenchmarkOperator, StorageTuneOperator

PARAMS = {
    "backends": Param(
        ["ais://benchmark"],
        type="array",
        items={"type": "string", "pattern": r"^(s3|oci|ais)://[^/@\s]+(@[^\s@]+)?$"},
        minItems=1,
        title="Backends",
        description="Bucket URIs, one per line; @connection where it is not the default one: s3://data@oci_s3",
    ),
    "rounds": Param(
        3, type="integer", minimum=1, maximum=100, section="Comparison", description="Measurements of each backend"
    ),
    "megabytes": Param(
        64, type="integer", minimum=1, maximum=5_000, section="Comparison", description="Size of the object of PUTs"
    ),
    "chart": Param(
        None,
        type=["null", "string"],
        pattern=pattern("png"),
        section="Comparison",
        description="Where a PNG with the medians goes, such as s3://aws_default@reports/backends.png;"
        " empty for none",
    ),
    "tune_seconds": Param(
        60,
        type="integer",
        minimum=1,
        section="Tuner",
        description="The most that tuning one direction of one backend takes (seconds)",
    ),
    "tune_megabytes": Param(
        2_048,
        type="integer",
        minimum=2,
        section="Tuner",
        description="The most that is moved meanwhile (MiB)",
    ),
}

with DAG(
    dag_id="backend_benchmark",
    description="Storage backends against each other: GET and PUT whole, in few parts and in many",
    schedule=None,
    catchup=False,
    max_active_runs=1,  # two at once would measure each other
    params=PARAMS,
    tags=["storage", "benchmark"],
    default_args={"owner": "storeside", "retries": 1, "retry_delay": timedelta(seconds=15)},
    doc_md="""
### Backend benchmark

1. **measure**: a cold GET of 10 MB, and PUTs whole, in parts of 10 MB and in parts of 1 MB (or the least that the API
   takes). The backends take turns. Rounds are in `storeside.backend_benchmark`, medians in the log.
2. **tune**: which part size and how many threads are fastest, by size of object, is kept in
   `storeside.multipart_settings`, and copies to that endpoint use it from then on.

`SELECT backend, operation, median(seconds) FROM storeside.backend_benchmark GROUP BY ALL ORDER BY ALL`
""",
) as dag:
    measure = StorageBenchmarkOperator(
        task_id="measure",
        backends="{{ params.backends | join(' ') }}",
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
