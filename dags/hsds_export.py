"""Exports an HSDS dataset to Parquet on S3 and loads it into a ClickHouse table, each slab once."""

from __future__ import annotations

from datetime import timedelta

from airflow.sdk import DAG, Param

from storeside.operators import HSDSExportDatasetOperator, S3ToClickHouseOperator, TableOptions, form_choices, params

PARAMS = {
    "domain": Param(
        "/home/storeside/demo.h5",
        type="string",
        pattern=r"^/.+",
        title="Domain",
        **form_choices("domain"),
        description="HSDS domain, at the endpoint of the connection hsds_default",
    ),
    "dataset": Param(
        "/values", type="string", pattern=r"^/.+", title="Dataset", description="Its path in the domain"
    ),
    "selection": Param(
        None,
        type=["null", "string"],
        title="Selection",
        description="A hyperslab such as 0:1000, :, ::2, as in Python; empty exports the whole dataset",
    ),
    "layout": Param(
        "array",
        type="string",
        enum=["long", "wide", "array"],
        values_display={
            "long": "A row for each element, with its indexes",
            "wide": "A row for each first index, a column for each second one",
            "array": "A row for each first index, with arrays",
        },
        title="Layout",
        description="How elements become rows",
    ),
    "bucket": Param(
        "arrays",
        type="string",
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{1,61}[A-Za-z0-9]$",
        section="Where to",
        title="Bucket",
        **form_choices("s3 bucket"),
        description="Without s3://, at the endpoint of the connection aws_default; it should send no S3 events",
    ),
    "prefix": Param(
        "hsds/values",
        type="string",
        pattern=r"^[^/].*",
        section="Where to",
        title="Prefix",
        description="Use one per dataset, selection and layout: it may contain nothing else",
    ),
    "table": Param(
        "data.hsds_values",
        type="string",
        pattern=params.TABLE_PATTERN,
        section="Where to",
        title="Table",
        description="database.table; a missing table is created from the dataset's type",
    ),
    "order_by": Param(
        "i0", type="string", section="Where to", description="ORDER BY of a new table: columns, such as (i0, i1)"
    ),
}

with DAG(
    dag_id="hsds_export",
    description="Exports an HSDS dataset, or a hyperslab of it, to Parquet on S3 and into a ClickHouse table",
    schedule=None,
    catchup=False,
    max_active_runs=1,  # two runs would write the same objects
    params=PARAMS,
    tags=["hsds", "s3", "clickhouse"],
    default_args={"owner": "storeside", "retries": 3, "retry_delay": timedelta(seconds=15)},
    doc_md="""
### HSDS to ClickHouse

1. **export**: reads the dataset in slabs of whole chunks and at most 8 MB, and writes each slab as a Parquet object.
   A task that is killed and retried continues after the slabs that it has written.
2. **load**: ClickHouse reads new and changed objects, each once; rows of a changed slab replace the old rows.

Run it again when the dataset has grown or changed: unchanged slabs give identical objects, which are not loaded
again.
""",
) as dag:
    export = HSDSExportDatasetOperator(
        task_id="export",
        domain="{{ params.domain }}",
        dataset="{{ params.dataset }}",
        selection="{{ params.selection or '' }}",
        layout="{{ params.layout }}",
        bucket="{{ params.bucket }}",
        prefix="{{ params.prefix }}",
    )
    load = S3ToClickHouseOperator(
        task_id="load",
        bucket="{{ params.bucket }}",
        keys="{{ params.prefix.strip('/') }}/part-",
        table="{{ params.table }}",
        format="parquet",
        table_options=TableOptions(order_by="{{ params.order_by }}"),
        on_overwrite="replace",
    )
    export >> load
