"""Form fields for loads that also read Iceberg and Delta tables."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from airflow.sdk import Param

_NAMES: Final = {"iceberg": "Iceberg table in the folder", "delta": "Delta table in the folder"}
SNAPSHOT: Final = Param(
    None,
    type=["null", "string"],
    title="Snapshot",
    section="Objects",
    description="Snapshot of an Iceberg table, by id or by the URI of a metadata file, or version of a Delta table;"
    " empty loads the current one",
)


def with_lakes(form: Param) -> Param:
    """Return the field of an object's format with the formats of tables."""
    schema: Mapping[str, Any] = form.schema
    return Param(
        form.value,
        **{
            **schema,
            "enum": [*schema["enum"], *_NAMES],
            "values_display": {**schema["values_display"], **_NAMES},
            "description": "Format of the objects, or of the table in a folder; compression is always detected, and"
            " text may be in .tar, .tar.gz, .tgz, .tar.zst or .zip archives",
        },
    )
