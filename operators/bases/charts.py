"""Base class of operators that draw charts, and checks of the URLs of charts and other results.

Results go only to object storage: they overwrite no file of the worker.

The URL may come from a form that any user with the right to start the DAG fills in.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from storeside.operators.bases.task import TaskArguments
from storeside.operators.errors import OperatorInputError
from storeside.operators.restrictions import FormOperator

if TYPE_CHECKING:
    from airflow.sdk import ObjectStoragePath


# Airflow's schemes for disks are file and local.
_URL = r"(?!(file|local):)[a-z0-9]+://.+"


def chart_url_pattern(ending: str) -> str:
    """Return the regular expression of a chart's URL, for a form. URLs of disks do not match."""
    return rf"^{_URL}\.{ending}$"


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


def object_at(url: str) -> ObjectStoragePath:
    """Return the path of an object. Raises OperatorInputError unless `url` is a URL of object storage."""
    from airflow.sdk import ObjectStoragePath

    if not re.fullmatch(_URL, url):
        raise OperatorInputError(
            f"{url!r} is not a URL of object storage: use a URL such as s3://aws_default@samples/first.wav"
        )
    return ObjectStoragePath(url)


class ChartArguments(TaskArguments, total=False):
    """Arguments of operators that draw charts."""

    chart: str
    """URL in object storage for the chart, such as ``s3://aws_default@reports/chart.svg``: an SVG file of the
    throughput of a cluster, a PNG file of backends; empty for none
    """


class ChartOperator(FormOperator):
    """Draws a chart of its measurements."""

    def __init__(self, *, chart: str = "", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.chart = chart
