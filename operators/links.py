"""Extra links that lead from task instances to Storeside's pages."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import urlencode, urlsplit

from airflow.sdk import BaseOperatorLink

if TYPE_CHECKING:
    from airflow.models.taskinstancekey import TaskInstanceKey
    from airflow.sdk import BaseOperator

# The pages' path below Airflow's own address.
PREFIX = "/storeside"


def page(path: str, **query: str) -> str:
    """Return the path of a page with its query, below the path of Airflow's base URL."""
    from airflow.sdk.configuration import conf

    base = urlsplit(conf.get("api", "base_url", fallback="")).path.rstrip("/")
    return f"{base}{PREFIX}/{path}" + (f"?{urlencode(query)}" if query else "")


class RunPageLink(BaseOperatorLink):
    """Links to the run's page: its objects, failures, rejected rows, timings and data flow."""

    name = "Data movement"

    def get_link(self, operator: BaseOperator, *, ti_key: TaskInstanceKey) -> str:  # type: ignore[override]
        """Return the address of the page."""
        mapped = {"map_index": str(ti_key.map_index)} if ti_key.map_index >= 0 else {}
        return page("run", dag=ti_key.dag_id, run=ti_key.run_id, task=ti_key.task_id, **mapped)


class QueuePageLink(BaseOperatorLink):
    """Links to the page of the queue: its depth, the outcome of each event, dead letters."""

    name = "Queues"

    def get_link(self, operator: BaseOperator, *, ti_key: TaskInstanceKey) -> str:  # type: ignore[override]
        """Return the address of the page."""
        queue = getattr(operator, "sqs_queue", "")
        return page("queues", queue=queue.rpartition("/")[2])


class BenchmarksPageLink(BaseOperatorLink):
    """Links to the page of measurements."""

    name = "Benchmarks"

    def get_link(self, operator: BaseOperator, *, ti_key: TaskInstanceKey) -> str:  # type: ignore[override]
        """Return the address of the page."""
        return page("benchmarks")
