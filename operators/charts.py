"""Where charts are written: only to object storage, never over a file of the worker.

The URL may come from a form that any user fills in.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from storeside.operators.errors import OperatorInputError

if TYPE_CHECKING:
    from airflow.sdk import ObjectStoragePath


def chart_url_pattern(ending: str) -> str:
    """Return the pattern of a chart's URL, for a form; ``file`` and ``local`` are Airflow's schemes for disks."""
    return rf"^(?!(file|local):)[a-z0-9]+://.+\.{ending}$"


def chart_at(url: str, ending: str) -> ObjectStoragePath:
    """Return the path that a chart is written to.

    Raises OperatorInputError for anything except a URL of object storage with the given ending.
    """
    from airflow.sdk import ObjectStoragePath

    if not re.fullmatch(chart_url_pattern(ending), url):
        raise OperatorInputError(
            f"chart {url!r}: charts go to object storage and end in .{ending}, files of the worker are not written:"
            f" name it such as s3://aws_default@reports/chart.{ending}"
        )
    return ObjectStoragePath(url)
