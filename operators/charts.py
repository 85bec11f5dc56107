"""Where charts go: to object storage, and never over a file of the worker, as whoever fills in a form names them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from airflow.sdk import ObjectStoragePath


def pattern(ending: str) -> str:
    """Return what the URL of a chart looks like, for a form; ``file`` and ``local`` are Airflow's names for disks."""
    return rf"^(?!(file|local):)[a-z0-9]+://.+\.{ending}$"


def chart_at(url: str, ending: str) -> ObjectStoragePath:
    """Return where a chart goes. Raises ValueError for anything else than a URL of object storage with its ending."""
    from airflow.sdk import ObjectStoragePath

    if not re.fullmatch(pattern(ending), url):
        raise ValueError(
            f"chart {url!r}: charts go to object storage and end in .{ending}, files of the worker are not written:"
            f" name it such as s3://aws_default@reports/chart.{ending}"
        )
    return ObjectStoragePath(url)
