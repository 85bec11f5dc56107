"""Form fields for loads that also read Iceberg and Delta tables."""

from __future__ import annotations

from typing import Final

from airflow.sdk import Param

from storeside.operators.restrictions import described

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
    return described(
        form,
        "Format of the objects, or of the table in a folder. Compression of text is detected. Objects may be .zip,"
        " .tar or compressed .tar archives",
        enum=[*form.schema["enum"], *_NAMES],
        values_display={**form.schema["values_display"], **_NAMES},
    )
