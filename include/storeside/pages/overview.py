"""Pipelines: the movements of each DAG, its failed objects, and the queues whose messages it processes."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from storeside import sql
from storeside.pages import queues
from storeside.pages.tables import Tables, UnavailableError

# Days that the overview looks back, for movements and for failures.
DAYS, FAILURE_DAYS = 30, 7
_MOST_PIPELINES = 200
_OLD_SECONDS = 900
_MOST_FAILURES = 2_000  # of a DAG


@dataclass(frozen=True)
class Queue:
    """A queue of a pipeline: its label, its newest depth, and when that was measured."""

    label: str
    waiting: int
    dead: int
    oldest_seconds: float
    measured: float


@dataclass(frozen=True)
class Pipeline:
    """The records of one DAG. Times are in seconds since the epoch, 0 when unknown.

    `failed` counts objects that failed lately and that no run has processed since; `failed_run` is the newest run in
    which one of them failed. `more` states that there may be others: only the newest failures were read.
    """

    dag: str
    moved: float = 0.0
    objects: int = 0
    bytes: int = 0
    failed: int = 0
    failed_run: str = ""
    more: bool = False
    queues: tuple[Queue, ...] = field(default=())

    @property
    def dead(self) -> int:
        """Dead letters of its queues."""
        return sum(queue.dead for queue in self.queues)

    @property
    def waiting(self) -> int:
        """Messages that wait in its queues."""
        return sum(queue.waiting for queue in self.queues)

    @property
    def measured(self) -> float:
        """When its queues were last measured; of several, the earliest of these times. 0 without a queue."""
        return min((queue.measured for queue in self.queues), default=0.0)

    @property
    def is_old(self) -> bool:
        """Whether the depths of its queues are old: a watcher measures every half a minute, a task while it runs."""
        return time.time() - self.measured > _OLD_SECONDS

    @property
    def oldest_seconds(self) -> float:
        """The age of the oldest message of its queues that was received and is not done."""
        return max((queue.oldest_seconds for queue in self.queues), default=0.0)


def pipelines(tables: Tables, dag: str = "", missing: dict[str, str] | None = None) -> list[Pipeline]:
    """Return the DAGs with recorded movements, failures or queues; `dag` is a part of their names.

    `missing` gets what ClickHouse does not answer in time, ``failures`` or ``queues``, with the reason. Without it,
    UnavailableError is raised.
    """
    moved = {
        row["dag_id"]: row
        for row in tables.rows(sql.query("pages_pipelines"), dag=dag, days=DAYS, limit=_MOST_PIPELINES)
    }
    failed: dict[str, dict[str, Any]] = {}
    with _optional("failures", missing):
        failed = {row["dag_id"]: row for row in open_failures(tables, dag)}
    taken: dict[str, list[Queue]] = {}
    with _optional("queues", missing):
        taken = _queues(tables, dag)
    names = [name for name in {**moved, **failed, **taken} if dag.lower() in name.lower()]
    return [_pipeline(name, moved.get(name, {}), failed.get(name, {}), tuple(taken.get(name, ()))) for name in names]


@contextmanager
def _optional(part: str, missing: dict[str, str] | None) -> Iterator[None]:
    """Let the page do without a part that is slow; add its reason to `missing`."""
    try:
        yield
    except UnavailableError as e:
        if missing is None:
            raise
        missing[part] = str(e)


def _queues(tables: Tables, dag: str) -> dict[str, list[Queue]]:
    """Return the measured queues of each DAG."""
    of_dags = tables.rows(sql.query("pages_dag_queues"), dag=dag)
    depths = {row["queue"]: row for row in queues.queues(tables, [row["queue"] for row in of_dags])}
    taken: dict[str, list[Queue]] = {}
    for row in of_dags:
        if found := depths.get(row["queue"]):
            queue = Queue(
                found["label"], int(found["visible"]), int(found["dead"]), float(found["oldest_seconds"]),
                found["recorded_ms"] / 1000,
            )  # fmt: skip
            taken.setdefault(row["dag_id"], []).append(queue)
    return taken


def partial_runs(tables: Tables, dag: str = "", missing: dict[str, str] | None = None) -> set[tuple[str, str]]:
    """Return DAG and id of the runs in which objects failed, the newest of each DAG; `dag` is a part of its name.

    `missing` gets the reason as ``runs`` if ClickHouse does not answer in time; see `pipelines`.
    """
    found: list[dict[str, Any]] = []
    with _optional("runs", missing):
        found = tables.rows(sql.query("pages_partial_runs"), dag=dag, days=DAYS)
    return {(row["dag_id"], row["run_id"].partition("/")[2]) for row in found}


def open_failures(tables: Tables, dag: str = "") -> list[dict[str, Any]]:
    """Return how many objects of each DAG failed lately and were not processed since; `dag` is a part of its name."""
    return tables.rows(sql.query("pages_open_failures"), dag=dag, days=FAILURE_DAYS, most=_MOST_FAILURES)


def _pipeline(name: str, moved: dict[str, Any], failed: dict[str, Any], taken: tuple[Queue, ...]) -> Pipeline:
    return Pipeline(
        name,
        moved.get("recorded_ms", 0) / 1000,
        int(moved.get("objects_done", 0)),
        int(moved.get("bytes_read", 0)),
        int(failed.get("objects", 0)),
        str(failed.get("newest_run", "")).partition("/")[2],
        bool(failed.get("more")),
        taken,
    )
