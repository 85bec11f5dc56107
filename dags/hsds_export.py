"""Exports an HSDS dataset to Parquet on S3 and loads it into a ClickHouse table, each version of a slab once."""

from __future__ import annotations

from datetime import timedelta

from airflow.sdk import DAG, Param
from airflow.sdk.definitions.param import ParamsDict

from storeside.operators import (
    HSDSExportDatasetOperator,
    S3ToClickHouseOperator,
    TableOptions,
    Template,
    form_choices,
    must_match,
    params,
)

PARAMS = {
    "domain": Param(
        type="string",
        **must_match(r"/.+", "write the path of a domain, such as /home/user/data.h5"),
        title="Domain",
        **form_choices("domain", description="HSDS domain, at the endpoint of the connection hsds_default"),
    ),
    "dataset": Param(
        type="string",
        **must_match(r"/.+", "write the path of a dataset, such as /values"),
        title="Dataset",
        description="Path of the dataset in the domain, such as /values",
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
            "long": "One row per element, with its indexes",
            "wide": "One row per first index, one column per second index",
            "array": "One row per first index, with arrays",
        },
        title="Layout",
        description="How elements become rows",
    ),
    "bucket": Param(
        type="string",
        section="Where to",
        title="Bucket",
        **params.BUCKET_NAME,
        **form_choices(
            "s3 bucket",
            "read",
            "write",
            description="S3 bucket, with or without s3://, at the endpoint of the connection aws_default; use a"
            " bucket that sends no S3 events",
        ),
    ),
    "prefix": Param(
        type="string",
        **must_match(r"[^/*?{}][^*?{}]*", "write a prefix such as hsds/values, without * ? { } and a first slash"),
        section="Where to",
        title="Prefix",
        description="Prefix of the Parquet objects, such as hsds/values, without * ? { }; use a different one per"
        " dataset, selection and layout",
    ),
    "table": Param(
        type="string",
        section="Where to",
        title="Table",
        **params.TABLE_NAME,
        **form_choices(
            "table",
            description="database.table; if the table does not exist, it is created from the dataset's type",
        ),
    ),
    "order_by": Param(
        "i0",
        type="string",
        section="Where to",
        title="Order",
        description="ORDER BY of a new table: columns, such as (i0, i1)",
    ),
}

with DAG(
    dag_id="hsds_export",
    description="Exports an HSDS dataset, or a hyperslab of it, to Parquet on S3 and into a ClickHouse table",
    schedule=None,
    catchup=False,
    max_active_runs=1,  # parallel runs would write the same objects
    params=ParamsDict(PARAMS),
    tags=["hsds", "s3", "clickhouse"],
    default_args={"owner": "storeside", "retries": 3, "retry_delay": timedelta(seconds=15)},
    doc_md="""
### HSDS to ClickHouse

1. **export**: reads the dataset in slabs of whole chunks with at most 8 MB, and writes each slab as a Parquet object.
   A task that is killed and retried continues after the slabs that it has written.
2. **load**: loads new and changed objects into ClickHouse, each version once. The rows of a changed slab replace the
   old rows.

Run the DAG again when the dataset has grown or changed: unchanged slabs give identical objects, which are not loaded
again.
""",
) as dag:
    export = HSDSExportDatasetOperator(
        task_id="export",
        domain="{{ params.domain }}",
        dataset="{{ params.dataset }}",
        selection="{{ params.selection or '' }}",
        layout=Template("{{ params.layout }}"),
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
