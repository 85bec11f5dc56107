"""Parquet to JSON Lines: an example of a transformer that a user writes.

Try it on files with ``python -m storeside.transformers.local
storeside.transformers.examples.tabular:ParquetToJsonLines FILE...``. Pass
``storeside.transformers.examples.tabular:ParquetToJsonLines`` to an operator to run it in AIStore. A transform
without preparation can be a plain function ``transform(source, name, arguments)``.
"""

from __future__ import annotations

import json
import os
from io import BytesIO
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from storeside.transformers.transformer import ObjectError, Source


class ParquetToJsonLines:
    """Writes each row as one line of JSON, with the columns in ``TABULAR_COLUMNS`` (``a,b``), or with all columns."""

    mime_type = "application/x-ndjson"

    def __init__(self) -> None:
        # Preparation that is the same for all objects runs here, once per process.
        columns = os.environ.get("TABULAR_COLUMNS", "")
        self._columns = columns.split(",") if columns else None
        # Objects are processed in parallel: threads for one object cost more than they save.
        pa.set_cpu_count(1)

    def transform(self, source: Source, _name: str, _arguments: str) -> bytes:
        """Return the rows of a Parquet object as JSON Lines."""
        lines = bytearray()
        try:
            with pq.ParquetFile(source if isinstance(source, str) else BytesIO(source)) as file:
                self._require_columns(file.schema_arrow)
                for batch in file.iter_batches(columns=self._columns, use_threads=False):
                    for row in batch.to_pylist():
                        lines += json.dumps(row, default=_plain, separators=(",", ":")).encode() + b"\n"
        except (pa.ArrowException, OSError) as e:
            raise ObjectError(f"not a Parquet file that can be read: {e}") from e
        return bytes(lines)

    def _require_columns(self, schema: Any) -> None:
        missing = [column for column in self._columns or () if column not in schema.names]
        if missing:
            raise ObjectError(f"there is no column {', '.join(missing)}; the columns are {', '.join(schema.names)}")


def _plain(value: Any) -> str:
    """Return a value that JSON has no type for, such as a time, a decimal or bytes, as text."""
    return value.hex() if isinstance(value, bytes) else str(value)
