"""Form fields and operator arguments that DAGs share."""

from __future__ import annotations

from typing import Final, TypedDict

from airflow.sdk import Param

from storeside.operators import entries, restrictions
from storeside.operators.entries import must_match
from storeside.operators.forms import after_load_fields, etl_fields, lake_fields, quality_fields
from storeside.operators.restrictions import form_choices
from storeside.transfer.request.column_options import Columns
from storeside.transfer.request.known_formats import KNOWN
from storeside.transfer.request.object_format import Csv, MessageSchema
from storeside.transfer.request.options import ReadOptions, TableOptions
from storeside.transfer.request.request import CHOICES, RESERVED, Request
from storeside.transfer.request.template import Template

described = restrictions.described
bucket_alone = entries.bucket_alone


def preset(field: Param, default: str | int) -> Param:
    """Return the form field with this default. If the default is empty, users must fill in the field."""
    return Param(default, description=field.description, **field.schema) if default else field


_S3_BUCKET: Final = r"[A-Za-z0-9][A-Za-z0-9._-]{1,61}[A-Za-z0-9]"
BUCKET_NAME: Final = must_match(
    _S3_BUCKET, "write the name of an S3 bucket, with or without s3://; a prefix has another field"
)
BUCKET: Final = Param(
    type="string",
    title="Bucket",
    **BUCKET_NAME,
    **form_choices(
        "s3 bucket",
        "read",
        description="S3 bucket, with or without s3://, at the endpoint of the connection aws_default",
    ),
)
QUEUE: Final = Param(
    type="string",
    minLength=1,
    title="Queue",
    **form_choices(
        "queue",
        description="Name or URL of the SQS queue that receives the bucket's events; it needs a dead-letter queue",
    ),
)
KEYS: Final = Param(
    None,
    type=["null", "string"],
    title="Keys",
    description="Prefix, or pattern such as trips/2026-{01..06}/**.csv.gz; empty selects the whole bucket",
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
# Fields and arguments of DAGs that copy or transform buckets.
SOURCE: Final = etl_fields.SOURCE
RECORDINGS: Final = etl_fields.RECORDINGS
DESTINATION: Final = etl_fields.DESTINATION
PREFIX: Final = etl_fields.PREFIX
# A transform takes the prefix as it is, but the load of its results would take it for a pattern of keys.
LOADED_PREFIX: Final = described(
    PREFIX,
    f"{PREFIX.description}; without * ? {{ }}",
    **must_match(r"[^*?{}]*", "write the prefix without * ? { }, which a load takes for a pattern"),
)
SAMPLE_RATE: Final = etl_fields.SAMPLE_RATE
COMMUNICATION: Final = etl_fields.COMMUNICATION
ON_FAILURE: Final = etl_fields.ON_FAILURE
RETRY_FAILED: Final = etl_fields.RETRY_FAILED
OBJECTS: Final = etl_fields.OBJECTS
LATEST: Final = etl_fields.LATEST
etl = etl_fields.etl
ETL: Final = etl_fields.ETL
# Tables outside Storeside's databases. The engine refuses those, too, in upper and lower case.
TABLE_NAME: Final = must_match(
    rf"(?!({'|'.join(RESERVED)})\.)[^.]+\.[^.]+",
    f"write database.table, and a database of your own instead of {', '.join(RESERVED)}",
)
TABLE: Final = {
    "table": Param(
        type="string",
        title="Table",
        **TABLE_NAME,
        **form_choices(
            "table",
            description="database.table; if the table does not exist, it is created from the objects' columns",
        ),
    ),
    "format": Param(
        "auto",
        type="string",
        enum=["auto", *KNOWN],
        title="Format",
        section="Objects",
        values_display={"auto": "Detect from the content", **{facts.name: facts.label for facts in KNOWN.values()}},
        description="Format of the objects. Compression of text (gzip, zstd, xz, bzip2, LZ4, snappy) is detected."
        " Objects may be .zip, .tar or compressed .tar archives",
    ),
    "delimiter": Param(
        ",",
        type="string",
        minLength=1,
        maxLength=1,
        title="Delimiter",
        section="Objects",
        description="Delimiter of CSV fields, one character; for tabs choose the format tsv",
    ),
    "schema": Param(
        None,
        type=["null", "string"],
        format="multiline",
        title="Protobuf schema",
        section="Objects",
        description="Text of the .proto file, without imports; only for Protobuf",
    ),
    "message": Param(
        None,
        type=["null", "string"],
        **must_match(r"\w*", "write the name of a message in the schema, without its package"),
        title="Message",
        section="Objects",
        description="Name of the message that describes a row; only for Protobuf",
    ),
    "partition_columns": Param(
        None,
        type=["null", "string"],
        **must_match(r"[^/]*", "write names of columns, with commas between them"),
        title="Columns in keys",
        section="Objects",
        description="Comma-separated columns whose values are in keys: year,month for year=2024/month=01/x.parquet",
    ),
    "select_columns": Param(
        None,
        type=["null", "string"],
        title="Columns",
        section="Columns",
        description="Comma-separated columns to load; empty loads all. The load ignores other columns",
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
        Request.on_drift,
        type="string",
        enum=[*CHOICES["on_drift"]],
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
        Request.on_bad_rows,
        type="string",
        enum=[*CHOICES["on_bad_rows"]],
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
        Request.on_overwrite,
        type="string",
        enum=[*CHOICES["on_overwrite"]],
        title="Overwritten objects",
        section="When objects differ",
        values_display={"append": "Add the new rows", "replace": "Replace the old rows"},
        description="What happens to the rows of an object that was overwritten",
    ),
    "options": Param(
        {},
        type="object",
        title="Options by name",
        section="More options",
        **form_choices("load options"),
        description='All other options of a load as JSON, such as {"csv.quote": "\'", "limits.rows": 1000000};'
        " docs/transfer/arguments.md lists them",
    ),
}
EXPECTATIONS: Final = quality_fields.EXPECTATIONS
OBJECTS_EXPECTATIONS: Final = quality_fields.OBJECTS_EXPECTATIONS
CHECKED: Final = quality_fields.CHECKED


class LoadTemplates(TypedDict):
    """The arguments in `LOAD`."""

    table: str
    format: Template
    on_drift: Template
    on_bad_rows: Template
    on_overwrite: Template
    read: ReadOptions
    table_options: TableOptions
    options: str


# Arguments of the load operators that read the fields of `TABLE`.
LOAD: Final[LoadTemplates] = {
    "table": "{{ params.table }}",
    "format": Template("{{ params.format }}"),
    "on_drift": Template("{{ params.on_drift }}"),
    "on_bad_rows": Template("{{ params.on_bad_rows }}"),
    "on_overwrite": Template("{{ params.on_overwrite }}"),
    "read": ReadOptions(
        csv=Csv(delimiter="{{ params.delimiter }}"),
        schema=MessageSchema("{{ params.schema or '' }}", "{{ params.message or '' }}"),
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
FORMAT: Final = lake_fields.with_lakes(TABLE["format"])
SNAPSHOT: Final = lake_fields.SNAPSHOT
AFTER: Final = after_load_fields.AFTER
AFTER_LOAD: Final = after_load_fields.AFTER_LOAD
# `BUCKET` for `S3ToClickHouseOperator`, which also loads from AIStore.
SOURCE_BUCKET: Final = described(
    BUCKET,
    "S3 bucket, or AIStore bucket such as ais://results; a name alone means s3://",
    **form_choices("source bucket", "read"),
    **must_match(rf"{_S3_BUCKET}|ais://[^/@#]+", bucket_alone("s3 or ais")),
)
# Argument `source` of `S3ToClickHouseOperator` that reads the fields `SOURCE_BUCKET` and `KEYS`.
LOAD_SOURCE: Final = "{{ '' if '://' in params.bucket else 's3://' }}{{ params.bucket }}/{{ params['keys'] or '' }}"
