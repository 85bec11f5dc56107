"""The rows of Storeside's tables that the pages' ClickHouse user may read: those of the DAGs that a query names.

All visitors of the pages share one ClickHouse user. Each query of a page states the DAGs that its visitor may read,
as JSON in the setting ``log_comment``. The row policies of that user compare each row's DAG with them. So a statement
that does not filter by DAG shows no rows of other DAGs, and a query without that setting reads no rows. The policies
do not restrict a person who has the password of that user: a query can state any DAG.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping

SETTING = "log_comment"  # every server accepts it; a custom setting needs configuration
_ALL = f"JSONExtractBool(getSetting('{SETTING}'), 'all_dags')"
_DAGS = f"JSONExtract(getSetting('{SETTING}'), 'dags', 'Array(String)')"


def _visible(dag: str) -> str:
    return f"{_ALL} OR {dag} IN {_DAGS}"


def _run(column: str) -> str:
    """Return the DAG of a run's id, which begins with it; an empty text if the id has no DAG."""
    return f"substring({column}, 1, greatest(position({column}, '/'), 1) - 1)"


_OF_RUNS = _visible(_run("run_id"))
_OF_MEASUREMENTS = _visible(_run("measurement"))
# The tables that the pages read, and the condition that each visible row meets. The subqueries in the condition of
# queues are subject to the policies of their tables.
POLICIES: Mapping[str, str] = {
    "speech.manifest": _OF_RUNS,
    "storeside.backend_benchmark": _OF_RUNS,
    "storeside.event_batches": _OF_RUNS,
    "storeside.events": _OF_RUNS,
    "storeside.failures": _OF_RUNS,
    "storeside.loads": _OF_RUNS,
    "storeside.objects": _OF_RUNS,
    "storeside.queue_depths": (
        f"{_ALL} OR queue IN (SELECT queue FROM storeside.events)"
        " OR queue IN (SELECT queue FROM storeside.event_batches)"
    ),
    "storeside.runs": _visible("dag_id"),
    "storeside.throughput": _OF_MEASUREMENTS,
    "storeside.throughput_runs": _OF_MEASUREMENTS,
    "storeside.transform_benchmark": _OF_RUNS,
}


def stated(dags: Collection[str] | None) -> dict[str, str]:
    """Return the setting of a query for a visitor who may read these DAGs; None stands for all DAGs."""
    return {SETTING: json.dumps({"all_dags": True} if dags is None else {"dags": sorted(dags)})}
