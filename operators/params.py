"""Form fields and operator arguments that DAGs share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from airflow.sdk import Param

from storeside.operators import after_load_params, lake_params, quality_params
from storeside.operators.forms import form_choices
from storeside.transfer import named_options
from storeside.transfer.columns import Columns
from storeside.transfer.formats import Csv
from storeside.transfer.options import ReadOptions, TableOptions
from storeside.transfer.request import RESERVED


def preset(field: Param, default: str) -> Param:
    """Return the form field with this default. If the default is empty, users must fill in the field."""
    return Param(default, description=field.description, **field.schema) if default else field


def etl(settings: Mapping[str, Any]) -> dict[str, Param]:
    """Return the form fields that describe an ETL; their defaults are the settings of a DAG, see `dag_settings`."""
    return {
        "transformer": Param(
            settings["transformer"],
            type="string",
            minLength=1,
            title="Transformer",
            section="ETL",
            **form_choices("transformer"),
            description="Transform of the transformer's image: a built-in one, or package.module:attribute",
        ),
        "existing_etl": Param(
            settings["existing_etl"] or None,
            type=["null", "string"],
            title="Existing ETL",
            section="ETL",
            **form_choices("etl"),
            description="Name of an ETL that runs in the cluster, instead of the transformer; it is used as it runs",
        ),
        "communication": Param(
            settings["communication"],
            type="string",
            enum=["ws", "hpush"],
            title="Communication",
            section="ETL",
            values_display={"ws": "WebSocket (fastest)", "hpush": "HTTP push"},
            description="How AIStore sends objects to the transformer; an existing ETL keeps its own way",
        ),
        "extensions": Param(
            settings["extensions"],
            type="object",
            additionalProperties={"type": "string"},
            title="Extensions",
            section="ETL",
            description="Extensions of source objects and of their results, without dots; others are kept",
        ),
        "members": Param(
            settings["members"] or None,
            type=["null", "string"],
            title="Members of shards",
            section="ETL",
            description="Members of tar shards to transform, such as *.txt,*.md, to which extensions then apply;"
            " others are kept unchanged. Empty transforms whole objects",
        ),
    }


BUCKET: Final = Param(
    type="string",
    pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{1,61}[A-Za-z0-9]$",
    title="Bucket",
    **form_choices("s3 bucket"),
    description="Bucket name without s3://, at the endpoint of the connection aws_default",
)
QUEUE: Final = Param(
    type="string",
    minLength=1,
    title="Queue",
    **form_choices("queue"),
    description="Name or URL of the SQS queue that receives the bucket's events; it needs a dead-letter queue",
)
KEYS: Final = Param(
    None,
    type=["null", "string"],
    title="Keys",
    description="Prefix, or pattern such as trips/2026-{01..06}/**.csv.gz; empty selects the whole bucket",
)
RETRY_FAILED: Final = Param(
    False,
    type="boolean",
    title="Retry failed",
    section="How",
    description="Also try objects that failed for good in earlier runs",
)
ON_FAILURE: Final = Param(
    "report",
    type="string",
    enum=["report", "fail"],
    title="Failed objects",
    section="How",
    values_display={"report": "Succeed and list failed objects", "fail": "Fail the run"},
    description="What happens when some objects cannot be loaded; all other objects are loaded in both cases",
)
ON_NOTHING: Final = Param(
    "succeed",
    type="string",
    enum=["succeed", "skip", "fail"],
    title="No objects",
    section="How",
    values_display={"succeed": "Succeed", "skip": "Skip the task and the tasks after it", "fail": "Fail the task"},
    description="What happens when no object matches; unchanged objects match, too",
)
# URI of a bucket that AIStore can read or write.
BUCKET_URI: Final = r"^(s3|gs|az|oci|oc)://[^/]+$|^ais://(@[^/]+/)?[^/]+$"
SOURCE: Final = Param(
    type="string",
    pattern=BUCKET_URI,
    title="Source",
    **form_choices("bucket"),
    description="Bucket URI; any bucket that AIStore can read",
)
DESTINATION: Final = Param(
    type="string",
    pattern=BUCKET_URI,
    title="Destination",
    **form_choices("bucket"),
    description="Bucket URI; a missing ais:// bucket is created",
)
# Tables outside Storeside's databases. The engine refuses those, too, in upper and lower case.
TABLE_PATTERN: Final = rf"^(?!({'|'.join(RESERVED)})\.)[^.]+\.[^.]+$"
TABLE: Final = {
    "table": Param(
        type="string",
        pattern=TABLE_PATTERN,
        title="Table",
        description="database.table; if the table does not exist, it is created from the objects' columns",
    ),
    "format": Param(
        "auto",
        type="string",
        enum=["auto", "parquet", "csv", "tsv", "jsonl", "avro", "orc", "arrow", "arrowstream"],
        title="Format",
        section="Objects",
        values_display={
            "auto": "Detect from the content",
            "parquet": "Parquet",
            "csv": "CSV",
            "tsv": "CSV with tabs (TSV)",
            "jsonl": "JSON Lines",
            "avro": "Avro",
            "orc": "ORC",
            "arrow": "Arrow or Feather file",
            "arrowstream": "Arrow stream",
        },
        description="Format of the objects; compression (gzip, zstd, xz, bzip2) is always detected; text may also be"
        " in .tar, .tar.gz, .tgz, .tar.zst or .zip archives",
    ),
    "delimiter": Param(
        ",",
        type="string",
        minLength=1,
        maxLength=1,
        title="Delimiter",
        section="Objects",
        description="Delimiter of CSV fields",
    ),
    "partition_columns": Param(
        None,
        type=["null", "string"],
        pattern=r"^[^/]*$",
        title="Columns in keys",
        section="Objects",
        description="Columns whose values are in the keys, with commas: year,month for year=2024/month=01/x.parquet",
    ),
    "select_columns": Param(
        None,
        type=["null", "string"],
        title="Columns",
        section="Columns",
        description="Columns to load, with commas; empty loads all. The load ignores any other column of the objects",
    ),
    "rename_columns": Param(
        None,
        type=["null", "string"],
        title="New names",
        section="Columns",
        description="Names of columns in the table: ts=taken_at, lat=latitude",
    ),
    "mask_columns": Param(
        None,
        type=["null", "string"],
        title="Masks",
        section="Columns",
        description="Masks (sha256, redact, last4) that are loaded instead of values: email=sha256, phone=last4",
    ),
    "order_by": Param(
        "tuple()",
        type="string",
        title="Order",
        section="Table",
        description="ORDER BY of a new table: columns, such as (city, taken_at)",
    ),
    "partition_by": Param(
        None,
        type=["null", "string"],
        title="Partitions",
        section="Table",
        description="PARTITION BY of a new table: columns or functions of a column, such as toYYYYMM(taken_at)",
    ),
    "on_drift": Param(
        "fail",
        type="string",
        enum=["fail", "add", "widen", "rest"],
        title="Other columns",
        section="When objects differ",
        values_display={
            "fail": "Fail the object",
            "add": "Add new columns",
            "widen": "Add new columns and widen types",
            "rest": "Store unknown columns in _rest",
        },
        description="What happens to an object whose columns differ from the table's",
    ),
    "on_bad_rows": Param(
        "fail",
        type="string",
        enum=["fail", "skip", "keep"],
        title="Bad rows",
        section="When objects differ",
        values_display={
            "fail": "Fail the object",
            "skip": "Skip and count them",
            "keep": "Store them in <table>_rejected",
        },
        description="What happens to rows that cannot be parsed",
    ),
    "on_overwrite": Param(
        "append",
        type="string",
        enum=["append", "replace"],
        title="Overwritten objects",
        section="When objects differ",
        values_display={"append": "Add the new rows", "replace": "Replace the old rows"},
        description="What happens to the rows of an object that was overwritten",
    ),
    "options": Param(
        {},
        **named_options.schema(),
        title="Options by name",
        section="More options",
        description='All other options of a load as JSON, such as {"csv.quote": "\'", "limits.rows": 1000000};'
        " docs/transfer.md lists them",
    ),
}
EXPECTATIONS: Final = quality_params.EXPECTATIONS
OBJECTS_EXPECTATIONS: Final = quality_params.OBJECTS_EXPECTATIONS
CHECKED: Final = quality_params.CHECKED
# Arguments of the load operators that read the fields of `TABLE`.
LOAD: Final[dict[str, Any]] = {
    "table": "{{ params.table }}",
    "format": "{{ params.format }}",
    "on_drift": "{{ params.on_drift }}",
    "on_bad_rows": "{{ params.on_bad_rows }}",
    "on_overwrite": "{{ params.on_overwrite }}",
    "read": ReadOptions(
        csv=Csv(delimiter="{{ params.delimiter }}"),
        partition_columns=("{{ params.partition_columns or '' }}",),
        columns=Columns(
            select="{{ params.select_columns or '' }}",  # type: ignore[arg-type]
            rename="{{ params.rename_columns or '' }}",  # type: ignore[arg-type]
            mask="{{ params.mask_columns or '' }}",  # type: ignore[arg-type]
        ),
    ),
    "table_options": TableOptions(order_by="{{ params.order_by }}", partition_by="{{ params.partition_by or '' }}"),
    "options": "{{ params.options | tojson }}",
}
MODIFIED_AFTER: Final = Param(
    None,
    type=["null", "string"],
    format="date-time",
    title="Modified since",
    section="Objects",
    description="Load only objects of S3 that were last modified at this time or later; empty loads all",
)
# Fields of `S3ToClickHouseOperator`, which also loads Iceberg and Delta tables; `FORMAT` replaces that of `TABLE`.
FORMAT: Final = lake_params.with_lakes(TABLE["format"])
SNAPSHOT: Final = lake_params.SNAPSHOT
AFTER: Final = after_load_params.AFTER
AFTER_LOAD: Final = after_load_params.AFTER_LOAD
# `BUCKET` for `S3ToClickHouseOperator`, which also loads from AIStore.
SOURCE_BUCKET: Final = Param(
    BUCKET.value,
    **{
        **BUCKET.schema,
        **form_choices("source bucket"),
        "pattern": rf"{BUCKET.schema['pattern']}|^ais://[^/@#]+$",
    },
    description="Name of an S3 bucket without s3://, or the URI of an AIStore bucket, such as ais://results",
)
# Argument `source` of `S3ToClickHouseOperator` that reads the fields `SOURCE_BUCKET` and `KEYS`.
LOAD_SOURCE: Final = "{{ '' if '://' in params.bucket else 's3://' }}{{ params.bucket }}/{{ params['keys'] or '' }}"
