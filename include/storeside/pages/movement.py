"""Tasks that move data: which ran, how fast, the data path, and the outcome of each object."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from storeside import sql
from storeside.pages.tables import PAGE, Page, PageInputError, Tables, page_of, read_cursor

if TYPE_CHECKING:
    from aistore.sdk import Client

STATUSES = ("", "done", "loaded", "failed")
STATES = ("", "running", "done", "partial", "failed")
_LATEST = (1 << 62, "", "")


@dataclass(frozen=True)
class Movement:
    """One task of a run from ``storeside.runs``. Times are in seconds since the epoch."""

    run_id: str
    task_id: str
    kind: str
    source: str
    destination: str
    state: str
    listed: int
    skipped: int
    done: int
    failed: int
    bytes_in: int
    bytes_out: int
    seconds: float
    job_seconds: float
    recorded: float
    detail: dict[str, Any] = field(default_factory=dict)

    @property
    def dag_id(self) -> str:
        """The DAG of the run, which is the first part of `run_id`."""
        return self.run_id.partition("/")[0]

    @property
    def run(self) -> str:
        """Airflow's id of the DAG run."""
        return self.run_id.partition("/")[2]

    @property
    def started(self) -> float:
        """The time when the task began."""
        return float(self.detail.get("started") or self.recorded - self.seconds)

    @property
    def objects_per_second(self) -> float:
        """Objects per second over the whole task."""
        return self.done / self.seconds if self.seconds else 0.0

    @property
    def bytes_per_second(self) -> float:
        """Bytes read per second over the whole task."""
        return self.bytes_in / self.seconds if self.seconds else 0.0

    @property
    def is_load(self) -> bool:
        """Whether the task loads objects into rows."""
        return self.kind in ("load", "events")

    @property
    def table(self) -> str:
        """The table that a load fills, ``database.table``; empty if this is not a load."""
        return self.destination.removeprefix("clickhouse://") if self.is_load else ""

    @property
    def bucket(self) -> str:
        """The bucket that a load reads, without scheme."""
        return self.source.partition("://")[2].partition("/")[0]


@dataclass(frozen=True)
class Filter:
    """Selects movements by DAG, kind, state, and by a bucket or table at either end."""

    dag: str = ""
    place: str = ""
    kind: str = ""
    state: str = ""

    def __post_init__(self) -> None:
        if self.state not in STATES:
            raise PageInputError(f"state {self.state!r}: choose from {', '.join(STATES[1:])}")


def movements(tables: Tables, chosen: Filter, before: str = "", limit: int = PAGE, run: str = "") -> Page[Movement]:
    """Return a page of movements, newest first. Raises PageInputError for an invalid cursor."""
    ms, run_before, task_before = read_cursor(before, int, str, str) or _LATEST
    rows = tables.rows(
        sql.query("pages_movements"),
        dag=chosen.dag, kind=chosen.kind, state=chosen.state, place=chosen.place, run=run,
        before_ms=ms, before_run=run_before, before_task=task_before, limit=limit + 1,
    )  # fmt: skip
    found = [_movement(row) for row in rows]
    return page_of(found, lambda m: (round(m.recorded * 1000), m.run_id, m.task_id), limit)


def kinds(tables: Tables) -> list[str]:
    """Return the kinds of the existing movements."""
    return [row["kind"] for row in tables.rows("SELECT DISTINCT kind FROM storeside.runs ORDER BY kind LIMIT 50")]


def dags(tables: Tables) -> list[str]:
    """Return the DAGs of the existing movements that the visitor may read."""
    return [row["dag_id"] for row in tables.rows(sql.query("pages_dags"))]


def later_runs(tables: Tables, stage: Movement) -> list[str]:
    """Return the ids of later runs of the same source and destination, the next one first.

    The ledgers have one row per object, or per object version that is loaded: a later run replaces the rows of those
    that it processed.
    """
    source = f"s3://{stage.bucket}/" if stage.is_load else stage.source
    asked = {"source": source, "is_load": stage.is_load, "destination": stage.destination, "run": stage.run_id}
    rows = tables.rows(sql.query("pages_later_runs"), after_ms=round(stage.recorded * 1000), **asked)
    return [row["run_id"] for row in rows]


def stages(tables: Tables, run_id: str) -> list[Movement]:
    """Return the movements of one run in the order in which they began."""
    found = movements(tables, Filter(), limit=200, run=run_id).rows
    return sorted(found, key=lambda m: m.started)


def throughput(tables: Tables, dag: str = "", hours: int = 24) -> list[dict[str, Any]]:
    """Return objects and bytes per second over the last hours."""
    return tables.rows(sql.query("pages_throughput"), dag=dag, hours=hours, slice=max(hours * 3600 // 96, 60))


def outcomes(tables: Tables, stage: Movement, status: str = "", after: str = "") -> Page[dict[str, Any]]:
    """Return a page of the outcomes of a stage's objects. Raises PageInputError for an unknown status or cursor."""
    if status not in STATUSES:
        raise PageInputError(f"status {status!r}: choose from {', '.join(STATUSES[1:])}")
    if stage.is_load:
        key, version = read_cursor(after, str, str) or ("", "")
        rows = tables.rows(
            sql.query("pages_loaded"),
            destination=stage.table, bucket=stage.bucket, run=stage.run_id,
            status="loaded" if status == "done" else status, after_key=key, after_version=version, limit=PAGE + 1,
        )  # fmt: skip
        for row in rows:
            row |= {"object": row["key"], "bucket": f"s3://{stage.bucket}"}
        return page_of(rows, lambda row: (row["key"], row["version"]))
    (name,) = read_cursor(after, str) or ("",)
    rows = tables.rows(
        sql.query("pages_outcomes"),
        source=stage.source, destination=stage.destination, run=stage.run_id,
        status="done" if status == "loaded" else status, after=name, limit=PAGE + 1,
    )  # fmt: skip
    for row in rows:
        row["bucket"] = stage.source
    return page_of(rows, lambda row: (row["object"],))


def rejected_rows(tables: Tables, stage: Movement, limit: int = 20) -> list[dict[str, Any]]:
    """Return the first rejected rows that a load kept aside, with the reasons and their content.

    Raises UnreadableError if the pages' ClickHouse user may not read the table that holds them.
    """
    from storeside.transfer.source import identifier

    database, _, table = stage.table.partition(".")
    if not table or not stage.detail.get("rejected"):
        return []
    return tables.rows(
        "SELECT key, row_number, reason, substring(raw, 1, 500) AS raw"
        f" FROM {identifier(database)}.{identifier(table + '_rejected')} FINAL"
        " WHERE load_id IN (SELECT load_id FROM storeside.loads WHERE destination = {destination:String}"
        " AND bucket = {bucket:String} AND (run_id = {run:String} OR startsWith(run_id, concat({run:String}, '/')))"
        " AND rejected > 0 ORDER BY load_id LIMIT 1000)"
        " ORDER BY load_id, row_number LIMIT {limit:UInt32}",
        destination=stage.table, bucket=stage.bucket, run=stage.run_id, limit=limit,
    )  # fmt: skip


def published(tables: Tables, run_id: str) -> list[dict[str, Any]]:
    """Return how many rows of the speech manifest a run published, by bucket."""
    return tables.rows(sql.query("pages_published"), run=run_id)


def _movement(row: dict[str, Any]) -> Movement:
    detail = row.pop("detail")
    recorded = row.pop("recorded_ms") / 1000
    return Movement(**row, recorded=recorded, detail=read_detail(detail))


def read_detail(text: str) -> dict[str, Any]:
    """Read the JSON that a task wrote into ``detail``; invalid JSON counts as empty."""
    try:
        found = json.loads(text) if text else {}
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


@dataclass(frozen=True)
class Progress:
    """The progress of a running movement. Unknown totals are 0."""

    objects: int = 0
    objects_total: int = 0
    bytes: int = 0
    bytes_total: int = 0
    failed: int = 0
    seconds: float = 0
    phase: str = ""

    @property
    def share(self) -> float | None:
        """The finished share, by bytes if their total is known; None when no total is known."""
        if self.bytes_total:
            return min(self.bytes / self.bytes_total, 1.0)
        if self.objects_total:
            return min((self.objects + self.failed) / self.objects_total, 1.0)
        return None

    @property
    def objects_per_second(self) -> float:
        """Objects per second since the start."""
        return self.objects / self.seconds if self.seconds > 0 else 0.0

    @property
    def bytes_per_second(self) -> float:
        """Bytes per second since the start."""
        return self.bytes / self.seconds if self.seconds > 0 else 0.0

    @property
    def eta(self) -> float | None:
        """Remaining seconds at this rate; None when unknown."""
        return self.seconds / self.share - self.seconds if self.share and self.seconds > 0 else None


def load_progress(tables: Tables, movement: Movement) -> Progress:
    """Return the progress of a load, from its ledger."""
    rows = tables.rows(
        sql.query("pages_load_progress"), destination=movement.table, bucket=movement.bucket, run=movement.run_id
    )
    found = rows[0] if rows else {"loaded": 0, "failed": 0, "bytes": 0}
    return Progress(
        objects=found["loaded"],
        objects_total=int(movement.detail.get("objects", 0)),
        bytes=found["bytes"],
        bytes_total=int(movement.detail.get("bytes", 0)),
        failed=found["failed"],
        seconds=time.time() - movement.started,
        phase="ClickHouse reads",
    )


def job_progress(client: Client, movement: Movement) -> Progress:
    """Return the progress of AIStore's job for a movement, from AIStore's own counters over all targets."""
    from aistore.sdk.errors import AISError
    from requests import RequestException

    from storeside.aistore.jobs import newest_snapshots

    total = int(movement.detail.get("objects", 0))
    seconds = time.time() - movement.started
    job = str(movement.detail.get("job", ""))
    try:
        snaps = newest_snapshots(client, job) if job else []
    except (AISError, RequestException):
        return Progress(objects_total=total, seconds=seconds, phase="the cluster does not answer for now")
    stats = [snap.stats for snap in snaps if snap.stats]
    return Progress(
        objects=sum(s.objects for s in stats),
        objects_total=total,
        bytes=sum(s.bytes for s in stats),
        seconds=seconds,
        phase=f"AIStore works, job {job}" if job else "the ETL starts",
    )
