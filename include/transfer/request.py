"""What a transfer is asked to do."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from include.transfer.errors import UsageError
from include.transfer.formats import FORMATS, Csv
from include.transfer.source import Source
from include.transfer.table import SYSTEM_COLUMNS, Layout

CHOICES = {
    "format": ("auto", *FORMATS),
    "loader": ("auto", "pull", "push"),
    "on_drift": ("fail", "add", "widen", "rest"),
    "on_bad_rows": ("fail", "skip", "keep"),
    "on_overwrite": ("append", "replace"),
    "nested": ("tuple", "json", "string"),
    "on_null_nested": ("refuse", "empty"),
}


@dataclass(frozen=True)
class Request:
    """A transfer from an S3 bucket into a ClickHouse table. Everything in it can be written as JSON.

    `table` is ``database.table``; where there is none it is made by `layout` from the columns of `sample_objects`
    objects, of which `sample_bytes` bytes each are looked at; `columns` are types that win over what was deduced.

    `loader`: ``pull`` has ClickHouse read the objects, ``push`` has the worker stream them, ``auto`` pulls when
    ClickHouse reaches the bucket.
    `on_null_nested`: what happens to an object with a list, map or struct that is NULL where its column cannot be: it
    fails, or they become empty lists and maps, and tuples of NULLs.
    `on_drift`: what happens to an object whose columns are not the table's: it fails, its new columns are added, or
    also types are widened, or what the table lacks goes into the column ``_rest``.
    `on_bad_rows`: an object with a row that cannot be parsed fails, or the row is skipped and counted, or also kept
    in ``<table>_rejected``; over `max_bad_rows` in one object it fails.
    `on_overwrite`: rows of an earlier version of an object stay beside those of the new one, or are replaced.
    `strict_json`: JSON Lines are checked against RFC 8259, which ClickHouse's parser does not do.
    `system_columns`: of ``_object``, ``_row_number`` (from 0), ``_version`` and ``_loaded_at``.
    `all_or_nothing`: all objects of the run become visible at once, or, when one fails, none does.
    `batch_bytes`, `batch_objects`: how much is loaded and published at once; `parallel` batches at a time.
    `overlap_seconds`: with it, keys are taken to grow with time, and only those are listed that come after what was
    loaded this long before the newest; None lists all, and misses nothing.
    """

    source: Source
    table: str
    format: str = "auto"
    csv: Csv = field(default_factory=Csv)
    loader: str = "auto"
    layout: Layout = field(default_factory=Layout)
    columns: Mapping[str, str] = field(default_factory=dict)
    system_columns: tuple[str, ...] = ()
    nested: str = "tuple"
    on_null_nested: str = "refuse"
    on_drift: str = "fail"
    on_bad_rows: str = "fail"
    max_bad_rows: int = 1000
    strict_json: bool = True
    on_overwrite: str = "append"
    all_or_nothing: bool = False
    retry_failed: bool = False
    overlap_seconds: float | None = None
    sample_objects: int = 5
    sample_bytes: int = 1 << 18
    batch_bytes: int = 1 << 30
    batch_objects: int = 2500
    parallel: int = 2

    def __post_init__(self) -> None:
        for name, choices in CHOICES.items():
            if getattr(self, name) not in choices:
                raise UsageError(f"{name} {getattr(self, name)!r}: choose one of {', '.join(choices)}")
        for name in ("sample_objects", "sample_bytes", "batch_bytes", "batch_objects", "parallel"):
            if getattr(self, name) < 1:
                raise UsageError(f"{name} {getattr(self, name)}: needs to be 1 or more")
        unknown = set(self.system_columns) - set(SYSTEM_COLUMNS)
        if unknown:
            raise UsageError(f"system columns {', '.join(sorted(unknown))}: there are {', '.join(SYSTEM_COLUMNS)}")
        if not re.fullmatch(r"[^.]+\.[^.]+", self.table):
            raise UsageError(f"table {self.table!r}: write database.table")

    def to_dict(self) -> dict[str, Any]:
        """Return the request as plain values."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Request:
        """Make a request of what `to_dict` gave, perhaps after a journey through JSON."""
        given = dict(values)
        given["source"] = Source(**given["source"])
        given["csv"] = Csv(**given["csv"])
        given["layout"] = Layout(**given["layout"])
        given["system_columns"] = tuple(given["system_columns"])
        return cls(**given)
