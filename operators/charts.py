"""Checks the URLs of charts, which go only to object storage and never overwrite a file of the worker.

The URL may come from a form that any user with the right to start the DAG fills in.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from storeside.operators.errors import OperatorInputError

if TYPE_CHECKING:
    from airflow.sdk import ObjectStoragePath


def chart_url_pattern(ending: str) -> str:
    """Return the regular expression of a chart's URL, for a form. Airflow's schemes for disks (file, local) fail."""
    return rf"^(?!(file|local):)[a-z0-9]+://.+\.{ending}$"


def chart_at(url: str, ending: str) -> ObjectStoragePath:
    """Return the path in object storage to which a chart is written.

    Raises OperatorInputError unless `url` is a URL of object storage with the file extension `ending`.
    """
    from airflow.sdk import ObjectStoragePath

    if not re.fullmatch(chart_url_pattern(ending), url):
        raise OperatorInputError(
            f"chart {url!r} is not a URL of object storage that ends in .{ending}: use a URL such as"
            f" s3://aws_default@reports/chart.{ending}"
        )
    return ObjectStoragePath(url)
