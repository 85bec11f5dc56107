"""Form fields of DAGs that load tables."""

from __future__ import annotations

from typing import Any, Final

from airflow.sdk import Param

from storeside.operators.forms import form_choices
from storeside.transfer.formats import Csv
from storeside.transfer.options import ReadOptions, TableOptions
from storeside.transfer.request import RESERVED

BUCKET: Final = Param(
    "tables",
    type="string",
    pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{1,61}[A-Za-z0-9]$",
    title="Bucket",
    **form_choices("s3 bucket"),
    description="Without s3://, at the endpoint of the connection aws_default",
)
KEYS: Final = Param(
    None,
    type=["null", "string"],
    title="Keys",
    description="A prefix, or a pattern: trips/2026-{01..06}/**.csv.gz; empty takes the whole bucket",
)
ON_FAILURE: Final = Param(
    "report",
    type="string",
    enum=["report", "fail"],
    section="How",
    values_display={"report": "Load the good objects, list the bad ones", "fail": "Fail the run"},
    description="The good objects are loaded in either case",
)
# A table of a user. The engine refuses our databases as well, in any case of their letters.
TABLE_PATTERN: Final = rf"^(?!({'|'.join(RESERVED)})\.)[^.]+\.[^.]+$"
TABLE: Final = {
    "table": Param(
        "data.trips",
        type="string",
        pattern=TABLE_PATTERN,
        title="Table",
        description="database.table; a missing table is created from the columns of the objects",
    ),
    "format": Param(
        "auto",
        type="string",
        enum=["auto", "parquet", "csv", "jsonl"],
        section="Objects",
        values_display={
            "auto": "Found out from the content",
            "parquet": "Parquet",
            "csv": "CSV",
            "jsonl": "JSON Lines",
        },
        description="Compressed with gzip, zstd, xz, bzip2 or not: found out as well",
    ),
    "delimiter": Param(
        ",", type="string", minLength=1, maxLength=1, section="Objects", description="Between the fields of CSV"
    ),
    "order_by": Param(
        "tuple()",
        type="string",
        section="Table",
        description="ORDER BY of a new table: columns, such as (city, taken_at)",
    ),
    "partition_by": Param(
        None,
        type=["null", "string"],
        section="Table",
        description="PARTITION BY of a new table: columns or functions of one, such as toYYYYMM(taken_at)",
    ),
    "on_drift": Param(
        "fail",
        type="string",
        enum=["fail", "add", "widen", "rest"],
        section="When objects differ",
        values_display={
            "fail": "Fail the object",
            "add": "Add new columns",
            "widen": "Add new columns and widen types",
            "rest": "Keep unknown columns in _rest",
        },
        description="What happens to an object whose columns are not the table's",
    ),
    "on_bad_rows": Param(
        "fail",
        type="string",
        enum=["fail", "skip", "keep"],
        section="When objects differ",
        values_display={"fail": "Fail the object", "skip": "Skip and count", "keep": "Keep in <table>_rejected"},
        description="What happens to rows that cannot be parsed",
    ),
    "on_overwrite": Param(
        "append",
        type="string",
        enum=["append", "replace"],
        section="When objects differ",
        values_display={"append": "Add the new rows", "replace": "Replace the old rows"},
        description="What happens to the rows of an object that was overwritten",
    ),
}
# The operator's arguments for the fields of `TABLE`.
LOAD: Final[dict[str, Any]] = {
    "table": "{{ params.table }}",
    "format": "{{ params.format }}",
    "on_drift": "{{ params.on_drift }}",
    "on_bad_rows": "{{ params.on_bad_rows }}",
    "on_overwrite": "{{ params.on_overwrite }}",
    "read": ReadOptions(csv=Csv(delimiter="{{ params.delimiter }}")),
    "table_options": TableOptions(order_by="{{ params.order_by }}", partition_by="{{ params.partition_by or '' }}"),
}
