"""Tasks that move data: which ran, how fast, the data path, and the outcome of each object."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import Any

from storeside import sql
from storeside.errors import BadInput
from storeside.pages.charts import slice_seconds
from storeside.pages.tables import FIRST, PAGE, At, Page, Tables, check, directed, of_status
from storeside.sql.quoting import identifier
from storeside.transfer.request.source import bucket_uri, pattern

STATUSES = ("", "done", "loaded", "failed", "left_out")
STATES = ("", "running", "done", "partial", "failed")
# The possible orders of a list of movements, and the expression for each.
SORTS = {
    "when": "0",
    "done": "done",
    "failed": "failed",
    "read": "bytes_in",
    "written": "bytes_out",
    "rate": "if(seconds > 0, bytes_in / seconds, 0)",
    "took": "seconds",
}
ORDERS = ("desc", "asc")
_LATEST = (0.0, 0, "", "")


@dataclass(frozen=True)
class Movement:
    """One task of a run from ``storeside.runs``. Times are in seconds since the epoch.

    :param run_id: name of the run in the ledger: ``<dag_id>/<run_id>``
    :param task_id: the task; a mapped one is ``task[index]``
    :param kind: kind of work, such as ``load``, ``events``, ``copy`` or ``transform``
    :param source: URI of the source
    :param destination: URI of the destination
    :param state: ``running``, ``done``, ``partial`` or ``failed``
    :param listed: objects that the task listed
    :param skipped: listed objects that were not to be processed
    :param done: objects processed
    :param failed: objects that failed
    :param bytes_in: bytes read
    :param bytes_out: bytes written
    :param seconds: duration of the task
    :param job_seconds: seconds that AIStore's jobs took
    :param recorded: time when the row was written
    :param detail: further facts, which depend on the kind
    """

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
    def is_partial(self) -> bool:
        """Whether some of its objects have no result; a task that has ended well may be so."""
        return self.state in ("partial", "failed") or self.failed > 0

    @property
    def known_bad(self) -> int:
        """Objects that were not tried again, because they failed for good in earlier runs."""
        return int(self.detail.get("known_bad", 0))

    @property
    def left_out(self) -> int:
        """Objects that the transformer left out, now or in earlier runs."""
        return int(self.detail.get("left_out", 0))

    @property
    def prepend(self) -> str:
        """The prefix of the names of the results."""
        return str(self.detail.get("prepend", ""))

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
        """The bucket that a load reads, as in ``storeside.loads``: the name of an S3 bucket, or a URI in AIStore."""
        scheme, _, rest = self.source.partition("://")
        name = rest.partition("/")[0]
        return f"ais://{name}" if scheme == "ais" else name

    @property
    def bucket_uri(self) -> str:
        """The URI of the bucket that a load reads."""
        return bucket_uri(self.bucket)

    @property
    def keys(self) -> str:
        """The keys that a load reads, as a regular expression; it matches all keys if the source cannot be read."""
        try:
            return pattern(self.source.partition("://")[2].partition("/")[2])
        except BadInput:
            return ""


@dataclass(frozen=True)
class Filter:
    """Selects movements by kind, state, and by parts of the names of a DAG and of a place at either end."""

    dag: str = ""
    place: str = ""
    kind: str = ""
    state: str = ""

    def __post_init__(self) -> None:
        check("state", self.state, STATES)


@dataclass(frozen=True)
class Sort:
    """The order of a list of movements: a column, and its direction; among equal values the time decides."""

    by: str = "when"
    order: str = "desc"

    def __post_init__(self) -> None:
        check("sort", self.by, tuple(SORTS))
        check("order", self.order, ORDERS)

    def value(self, movement: Movement) -> float:
        """Return the value that a movement is sorted by."""
        of = {
            "when": 0, "done": movement.done, "failed": movement.failed, "read": movement.bytes_in,
            "written": movement.bytes_out, "rate": movement.bytes_per_second, "took": movement.seconds,
        }  # fmt: skip
        return float(of[self.by])


def movements(
    tables: Tables, chosen: Filter, at: At = FIRST, limit: int = PAGE, run: str = "", sort: Sort | None = None
) -> Page[Movement]:
    """Return a page of movements, by default newest first. Raises PageInputError for an invalid cursor."""
    sort = sort or Sort()
    cursor = at.cursor(float, int, str, str)
    value, ms, run_before, task_before = cursor or _LATEST
    descending = (sort.order == "desc") != bool(at.back)
    rows = tables.rows(
        directed(sql.query("pages_movements"), descending=descending, SORTED=SORTS[sort.by]),
        **asdict(chosen), run=run, is_first=cursor is None, before_value=value, before_ms=ms, before_run=run_before,
        before_task=task_before, limit=limit + 1,
    )  # fmt: skip
    found = [_movement(row) for row in rows]
    return at.page(found, lambda m: (sort.value(m), round(m.recorded * 1000), m.run_id, m.task_id), limit)


def totals(tables: Tables, chosen: Filter) -> dict[str, Any]:
    """Return the totals of all movements that a filter selects; an empty dictionary if there is none."""
    rows = tables.rows(sql.query("pages_movement_totals"), **asdict(chosen))
    return rows[0] if rows and rows[0]["tasks"] else {}


def places(tables: Tables) -> list[str]:
    """Return buckets and tables of recent movements, as suggestions for filters."""
    return [row["place"] for row in tables.rows(sql.query("pages_places"))]


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
    source = f"{stage.bucket_uri}/" if stage.is_load else stage.source
    asked = {"source": source, "is_load": stage.is_load, "destination": stage.destination, "run": stage.run_id}
    rows = tables.rows(sql.query("pages_later_runs"), after_ms=round(stage.recorded * 1000), **asked)
    return [row["run_id"] for row in rows]


def stages(tables: Tables, run_id: str) -> list[Movement]:
    """Return the movements of one run in the order in which they began."""
    found = movements(tables, Filter(), limit=200, run=run_id).rows
    return sorted(found, key=lambda m: m.started)


def replaced(tables: Tables) -> set[tuple[str, str]]:
    """Return the run id and task id of running rows of which a later run of the same task has ended."""
    return {(row["run_id"], row["task_id"]) for row in tables.rows(sql.query("pages_replaced"))}


def throughput(tables: Tables, dag: str = "", hours: int = 24) -> list[dict[str, Any]]:
    """Return objects and bytes per second over the last hours."""
    return tables.rows(sql.query("pages_throughput"), dag=dag, hours=hours, slice=slice_seconds(hours))


def outcomes(
    tables: Tables, stage: Movement, status: str = "", at: At = FIRST, size: int = PAGE
) -> Page[dict[str, Any]]:
    """Return a page of the outcomes of a stage's objects. Raises PageInputError for an unknown status or cursor."""
    check("status", status, STATUSES)
    if stage.is_load:
        cursor = at.cursor(str, str)
        key, version = cursor or ("", "")
        rows = of_status(
            tables, directed(sql.query("pages_loaded"), descending=bool(at.back)),
            destination=stage.table, bucket=stage.bucket, run=stage.run_id, is_first=cursor is None,
            status="loaded" if status == "done" else status, size=size, after_key=key, after_version=version,
        )  # fmt: skip
        for row in rows:
            row |= {"object": row["key"], "bucket": stage.bucket_uri}
        return at.page(rows, lambda row: (row["key"], row["version"]), size)
    cursor = at.cursor(str, str)
    name, prepend = cursor or ("", "")
    rows = of_status(
        tables, directed(sql.query("pages_outcomes"), descending=bool(at.back)),
        source=stage.source, destination=stage.destination, run=stage.run_id, is_first=cursor is None,
        status="done" if status == "loaded" else status, size=size, after_object=name, after_prepend=prepend,
    )  # fmt: skip
    for row in rows:
        row["bucket"] = stage.source
    return at.page(rows, lambda row: (row["object"], row["prepend"]), size)


def rejected_rows(tables: Tables, stage: Movement) -> list[dict[str, Any]]:
    """Return the first rejected rows that a load kept aside, with the reasons and their content.

    Raises UnreadableError if the pages' ClickHouse user may not read the table that holds them.
    """
    database, _, table = stage.table.partition(".")
    if not table or not stage.detail.get("rejected"):
        return []
    return tables.rows(
        "SELECT key, row_number, reason, substring(raw, 1, 500) AS raw"
        f" FROM {identifier(database)}.{identifier(table + '_rejected')} FINAL"
        " WHERE load_id IN (SELECT load_id FROM storeside.loads WHERE destination = {destination:String}"
        " AND bucket = {bucket:String} AND (run_id = {run:String} OR startsWith(run_id, concat({run:String}, '/')))"
        " AND rejected > 0 ORDER BY load_id LIMIT 1000)"
        " ORDER BY load_id, row_number LIMIT 20",
        destination=stage.table, bucket=stage.bucket, run=stage.run_id,
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
