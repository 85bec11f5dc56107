"""Measures the throughput of an AIStore cluster per target and second, and compares it with earlier runs."""

from __future__ import annotations

from datetime import timedelta

from airflow.sdk import DAG, Param
from airflow.sdk.definitions.param import ParamsDict

from storeside.operators import AISMeasureThroughputOperator, Template, chart_url_pattern, form_choices, must_match

SIZE = must_match(r"[1-9][0-9]* ?(KiB|MiB|GiB|TiB)", "write a number and KiB, MiB, GiB or TiB, such as 10MiB")

PARAMS = {
    "bucket": Param(
        type="string",
        title="Bucket",
        **must_match(r"(s3|gs|az|oci|ais)://.+", "write a bucket such as ais://throughput"),
        **form_choices(
            "bucket",
            bare="ais",
            description="An existing bucket; a name alone means ais://. The task removes the objects that it writes",
        ),
    ),
    "workload": Param(
        "read",
        type="string",
        enum=["read", "write", "mixed"],
        title="Workload",
        section="Load",
        values_display={"read": "Random reads", "write": "Writes", "mixed": "Half reads, half writes"},
        description="Operations of the loaders",
    ),
    "object_size": Param(
        "10MiB",
        type="string",
        **SIZE,
        title="Size of an object",
        section="Load",
        description="Size of each object, 1KiB to 5GiB",
    ),
    "concurrency": Param(
        16,
        type="integer",
        minimum=1,
        maximum=4096,
        title="Concurrency",
        section="Load",
        description="Number of workers of each loader",
    ),
    "loaders": Param(
        1,
        type="integer",
        minimum=1,
        maximum=64,
        title="Loaders",
        section="Load",
        description="Number of load generators that run at the same time: on the worker, or in pods",
    ),
    "seconds": Param(
        60,
        type="integer",
        minimum=5,
        maximum=86_400,
        title="Seconds",
        section="Load",
        description="Duration of the load (seconds)",
    ),
    "dataset_size": Param(
        "1GiB",
        type=["null", "string"],
        **SIZE,
        title="Size of the dataset",
        section="Load",
        description="Size of the data written before a read load; to measure disks, use more than the targets'"
        " memory. Empty reads the bucket's existing objects",
    ),
    "prefix": Param(
        None,
        type=["null", "string"],
        title="Prefix",
        section="Load",
        description="If the dataset size is empty, read only objects whose names start with this",
    ),
    "write_limit": Param(
        "10GiB",
        type="string",
        **SIZE,
        title="Limit of writes",
        section="Load",
        description="Size at which a load that writes stops early",
    ),
    "nic_gbit": Param(
        0,
        type="number",
        minimum=0,
        section="Limit",
        title="Network of a target, Gbit/s",
        description="0 if unknown",
    ),
    "disk_gb_per_second": Param(
        0,
        type="number",
        minimum=0,
        section="Limit",
        title="Disks of a target, GB/s",
        description="All disks together; 0 if unknown",
    ),
    "compare_runs": Param(
        5,
        type="integer",
        minimum=0,
        maximum=100,
        title="Earlier runs",
        section="Verdict",
        description="Number of earlier runs of the same load whose median is the baseline; 0 starts a new series",
    ),
    "tolerance": Param(
        10,
        type="number",
        exclusiveMinimum=0,
        exclusiveMaximum=100,
        title="Tolerance, %",
        section="Verdict",
        description="Percentage by which the mean may be below the median",
    ),
    "on_regression": Param(
        "fail",
        type="string",
        enum=["fail", "report"],
        title="Slower cluster",
        section="Verdict",
        values_display={"fail": "Fail the run", "report": "Report it in the log"},
        description="What happens when the mean is lower than the tolerance allows",
    ),
    "chart": Param(
        None,
        type=["null", "string"],
        **must_match(chart_url_pattern("svg"), "write a URL such as s3://aws_default@reports/throughput.svg"),
        **form_choices(
            "chart",
            description="URL for an SVG chart with one line per target, such as"
            " s3://aws_default@reports/throughput.svg; empty for none",
        ),
        title="Chart",
        section="Verdict",
    ),
}

with DAG(
    dag_id="cluster_throughput",
    description="Reads from or writes to an AIStore bucket, and measures the throughput at the cluster's targets",
    schedule=None,  # the load uses all of the cluster's bandwidth
    catchup=False,
    max_active_runs=1,
    params=ParamsDict(PARAMS),
    tags=["aistore", "throughput"],
    default_args={"owner": "storeside", "retries": 1, "retry_delay": timedelta(seconds=15)},
    doc_md="""
### Cluster throughput

1. **measure**: one or more of AIStore's own `aisloader` read or write objects of one size, from the worker of this
   task, or from pods on Kubernetes. Every second the task reads the counters of each target. It compares the figures
   with the limit in the form and with earlier runs of the same load. It removes the objects that it wrote, even if it
   is killed.

`SELECT began, nodes, loaders, mean / 1e6, time_variance, node_variance, share, verdict
FROM storeside.throughput_runs FINAL ORDER BY began`; each second of each target is in `storeside.throughput`.

One machine with one network interface cannot saturate a cluster of sixteen nodes: `docs/throughput.md` describes how
to use several machines, such as the nodes of a Kubernetes cluster.
""",
) as dag:
    AISMeasureThroughputOperator(
        task_id="measure",
        bucket="{{ params.bucket }}",
        workload=Template("{{ params.workload }}"),
        object_size="{{ params.object_size }}",
        concurrency="{{ params.concurrency }}",
        loaders="{{ params.loaders }}",
        seconds="{{ params.seconds }}",
        dataset_size="{{ params.dataset_size or '' if params.workload != 'write' else '' }}",
        prefix="{{ params.prefix or '' }}",
        write_limit="{{ params.write_limit }}",
        nic_gbit="{{ params.nic_gbit }}",
        disk_gb_per_second="{{ params.disk_gb_per_second }}",
        compare_runs="{{ params.compare_runs }}",
        tolerance="{{ params.tolerance }}",
        on_regression=Template("{{ params.on_regression }}"),
        chart="{{ params.chart or '' }}",
    )
