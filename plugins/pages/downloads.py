"""Downloads: each list as CSV, with the filter and the order of its page."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import Annotated, Any, TypeVar

from airflow.api_fastapi.core_api.security import GetUserDep
from fastapi import APIRouter, HTTPException, Query, Response
from fastapi.responses import StreamingResponse

from storeside.pages import benchmarks, corpus, destinations, downloads, movement, objects, quality, queues
from storeside.pages.benchmarks import Bar, Chart
from storeside.pages.downloads import PART, moment
from storeside.pages.movement import Movement
from storeside.pages.quality import Verdict
from storeside.pages.storage import Target
from storeside.pages.tables import At, Page, Tables
from storeside.plugins.pages import etls, overview, storage
from storeside.plugins.pages.access import TablesDep, may_read_runs
from storeside.plugins.pages.movement import chosen_stage
from storeside.plugins.pages.overview import Row as Pipeline

router = APIRouter()
T = TypeVar("T")
Row = dict[str, Any]

# Columns of ETLs.
_ETL = (
    "connection", "etl", "state", "image", "communication", "used_by", "health", "objects", "bytes_in", "bytes_out",
    "errors", "problem",
)  # fmt: skip

# Columns of the steps of a funnel.
_STEP = (
    "source", "destination", "outcome", "reason", "hours", "hours_after", "parts", "recordings", "unknown",
)  # fmt: skip


@router.get("/overview.csv")
def of_pipelines(tables: TablesDep, user: GetUserDep, dag: str = "") -> Response:
    """Send the pipelines. A number that could not be read is empty."""
    missing: dict[str, str] = {}
    columns: dict[str, Callable[[Pipeline], Any]] = {
        "pipeline": lambda row: row.pipeline.dag,
        "paused": lambda row: row.latest.is_paused,
        "last_run": lambda row: row.latest.runs[-1].run if row.latest.runs else "",
        "last_state": lambda row: row.latest.runs[-1].state if row.latest.runs else "",
        "last_success": lambda row: moment(row.latest.succeeded),
        "objects": lambda row: row.pipeline.objects,
        "bytes": lambda row: row.pipeline.bytes,
        "failed_objects": lambda row: "" if "failures" in missing else row.pipeline.failed,
        "waiting": lambda row: row.pipeline.waiting if row.pipeline.queues else "",
        "lag_seconds": lambda row: row.pipeline.oldest_seconds if row.pipeline.queues else "",
        "dead_letters": lambda row: row.pipeline.dead if row.pipeline.queues else "",
        "needs_attention": lambda row: "; ".join(one.text for one in row.attention),
    }
    return _sent("overview", tables, lambda _: Page(overview.rows_of(tables, user, dag, missing)), columns)


@router.get("/etls.csv")
def of_etls(tables: TablesDep, user: GetUserDep) -> Response:
    """Send the ETLs that tasks of the visitor's DAGs use, and the problem of each cluster that does not answer."""
    return _sent("etls", tables, lambda _: Page(list(_etls(etls.clusters_of(tables, user)))), _columns({}, *_ETL))


def _etls(clusters: Sequence[etls.Cluster]) -> Iterator[Row]:
    for cluster in clusters:
        if cluster.problem:
            yield {**dict.fromkeys(_ETL, ""), "connection": cluster.conn_id, "problem": cluster.problem}
        for etl, uses in cluster.etls:
            yield {
                "connection": cluster.conn_id,
                "etl": etl.name,
                "state": etl.state,
                "image": etl.image,
                "communication": etl.communication,
                "used_by": "; ".join(f"{use.run_id} {use.task_id}" for use in uses),
                "health": "; ".join(f"{target}: {state}" for target, state in etl.health),
                "objects": etl.objects,
                "bytes_in": etl.bytes_in,
                "bytes_out": etl.bytes_out,
                "errors": "; ".join(f"{name}: {why}" for name, why in etl.errors),
                "problem": "",
            }


@router.get("/storage.csv")
def of_targets(tables: TablesDep, conn_id: Annotated[str, Query(max_length=250)] = "") -> Response:
    """Send the targets of a cluster to users who may read all DAGs."""
    columns: dict[str, Callable[[Target], Any]] = {
        "target": lambda t: t.id,
        "state": lambda t: t.state,
        "fullest_disk_percent": lambda t: t.percent if t.disks else "",
        "used": lambda t: t.used if t.disks else "",
        "free": lambda t: t.free if t.disks else "",
        "disks": lambda t: len(t.disks) or "",
        "alerts": lambda t: "; ".join(t.alerts),
        "problem": lambda t: t.problem,
        "remedy": lambda t: t.remedy,
    }
    return _sent("storage", tables, lambda _: Page(list(storage.cluster_of(tables, conn_id).targets)), columns)


@router.get("/movement.csv")
def of_movement(
    tables: TablesDep, dag: str = "", place: str = "", kind: str = "", state: str = "", sort: str = "when",
    order: str = "desc",
) -> Response:  # fmt: skip
    """Send the tasks that moved data, with their states as recorded."""
    chosen, sorting = movement.Filter(dag, place, kind, state), movement.Sort(sort, order)
    columns: dict[str, Callable[[Movement], Any]] = {
        "time": lambda m: moment(m.recorded),
        "dag": lambda m: m.dag_id,
        "run": lambda m: m.run,
        "task": lambda m: m.task_id,
        "kind": lambda m: m.kind,
        "source": lambda m: m.source,
        "destination": lambda m: m.destination,
        "state": lambda m: m.state,
        "listed": lambda m: m.listed,
        "unchanged": lambda m: m.skipped,
        "done": lambda m: m.done,
        "failed": lambda m: m.failed,
        "failed_before": lambda m: m.known_bad,
        "left_out": lambda m: m.left_out,
        "bytes_in": lambda m: m.bytes_in,
        "bytes_out": lambda m: m.bytes_out,
        "rows": lambda m: m.detail.get("rows", "") if m.is_load else "",
        "seconds": lambda m: m.seconds,
        "job_seconds": lambda m: m.job_seconds,
    }
    return _sent("movement", tables, lambda at: movement.movements(tables, chosen, at, PART, sort=sorting), columns)


@router.get("/objects.csv")
def of_objects(
    tables: TablesDep, text: str = "", bucket: str = "", status: str = "", begins: bool = False, sort: str = "name",
    order: str = "asc", source: str = "", destination: str = "", reason: str = "",
) -> Response:  # fmt: skip
    """Send the copied and transformed objects."""
    wanted = objects.Search(text, bucket, status, not begins, sort, order, source, destination, reason)
    names = {"object": "object", "source": "source", "result": "destination_object", "destination": "destination"}
    columns = _columns(names, "status", "bytes_in", "bytes_out", "time", "run_id", "reason")
    return _sent("objects", tables, lambda at: objects.search(tables, wanted, at, PART), columns)


@router.get("/loads.csv")
def of_loads(
    tables: TablesDep, text: str = "", bucket: str = "", status: str = "", begins: bool = False, sort: str = "name",
    order: str = "asc", source: str = "", destination: str = "", reason: str = "",
) -> Response:  # fmt: skip
    """Send the objects that were loaded, or were to be loaded, into tables."""
    wanted = objects.Search(text, bucket, status, not begins, sort, order, source, destination, reason)
    names = {"object": "key", "bucket": "bucket_uri", "table": "destination"}
    columns = _columns(names, "version", "status", "rows", "rejected", "bytes", "time", "run_id", "reason")
    return _sent("loads", tables, lambda at: objects.search_loads(tables, wanted, at, PART), columns)


@router.get("/run.csv")
def of_run(
    tables: TablesDep, user: GetUserDep, dag: str, run: str, task: str = "", map_index: str = "", status: str = ""
) -> Response:
    """Send the outcomes of the objects of one task."""
    if not tables.may_read(dag) or not may_read_runs(user, dag):
        raise HTTPException(403, "you may not read this DAG, or its runs and tasks")
    stages = [stage for stage in movement.stages(tables, f"{dag}/{run}") if stage.destination]
    if (stage := chosen_stage(stages, task, map_index)) is None:
        raise HTTPException(404, "no task of this run has recorded a movement of data")
    if stage.is_load:
        columns = _columns({"object": "object"}, "version", "status", "rows", "rejected", "bytes", "time", "reason")
    else:
        names = {"object": "object", "result": "destination_object"}
        columns = _columns(names, "status", "bytes_in", "bytes_out", "time", "reason")
    return _sent("run", tables, lambda at: movement.outcomes(tables, stage, status, at, PART), columns)


@router.get("/queues.csv")
def of_events(tables: TablesDep, queue: str, state: str = "", text: str = "") -> Response:
    """Send the events of a queue."""
    if (found := queues.find(tables, queue)) is None:
        raise HTTPException(404, "no such queue among those that Storeside reads and that you may see")
    names = {"event": "event", "object": "key", "bucket": "bucket"}
    columns = _columns(names, "size", "state", "receives", "time", "run_id", "reason")
    return _sent("events", tables, lambda at: queues.events(tables, found["queue"], state, at, text, PART), columns)


@router.get("/quality.csv")
def of_validations(tables: TablesDep, text: str = "") -> Response:
    """Send the validations."""
    columns: dict[str, Callable[[Verdict], Any]] = {
        "time": lambda v: moment(v.recorded),
        "run_id": lambda v: v.run_id,
        "task": lambda v: v.task_id,
        "source": lambda v: v.source,
        "destination": lambda v: v.destination,
        "suite": lambda v: v.suite,
        "state": lambda v: v.state,
        "rows": lambda v: v.rows,
        "not_valid": lambda v: v.invalid,
        "expectations": lambda v: len(v.expectations),
        "not_met": lambda v: "; ".join(str(e.get("expectation", "")) for e in v.failed),
        "seconds": lambda v: v.seconds,
        "summary": lambda v: v.summary,
    }
    return _sent("validations", tables, lambda at: quality.verdicts(tables, at, text, PART), columns)


@router.get("/tables.csv")
def of_tables(tables: TablesDep, text: str = "") -> Response:
    """Send the tables into which data were loaded."""
    columns = _columns({"table": "table"}, "rows", "bytes")
    columns |= {
        "newest_rows": lambda row: moment(row["loaded_ms"] / 1000),
        "checked": lambda row: moment(row["recorded_ms"] / 1000),
        "objects_loaded": lambda row: row["objects"],
        "rows_loaded": lambda row: row["rows_loaded"],
        "objects_failed": lambda row: row["objects_failed"],
        "state": lambda row: row["state"],
        "dags": lambda row: "; ".join(row["dags"]),
    }
    return _sent("tables", tables, lambda _: Page(destinations.destinations(tables, text)), columns)


@router.get("/benchmarks.csv")
def of_benchmarks(tables: TablesDep) -> Response:
    """Send the medians of all charts."""
    columns: dict[str, Callable[[tuple[Chart, Bar]], Any]] = {
        "table": lambda row: f"storeside.{row[0].table}",
        "measure": lambda row: row[0].measure,
        "by": lambda row: ", ".join(row[0].by),
        "case": lambda row: row[1].label,
        "median": lambda row: row[1].value,
        "measurements": lambda row: row[1].count,
    }

    def bars(_: At) -> Page[tuple[Chart, Bar]]:
        return Page([(chart, bar) for chart in benchmarks.charts(tables) for bar in chart.bars])

    return _sent("benchmarks", tables, bars, columns)


@router.get("/corpus.csv")
def of_corpus(tables: TablesDep, bucket: str = "") -> Response:
    """Send the steps of the funnels, with the hours that remain after each."""
    columns = _columns({}, *_STEP)
    return _sent("corpus", tables, lambda _: Page(list(_steps(corpus.funnels(tables, bucket)))), columns)


def _steps(funnels: Sequence[corpus.Funnel]) -> Iterator[Row]:
    for funnel in funnels:
        for _, step, left in funnel.rows():
            row = {**vars(step), "source": funnel.source, "destination": funnel.destination, "hours_after": left}
            yield {**row, "outcome": step.status, "recordings": step.objects}


def _columns(renamed: dict[str, str], *others: str) -> dict[str, Callable[[Row], Any]]:
    """Return columns of rows: renamed ones, and others with the names of the rows' columns, or ``time``."""
    names = {**renamed, **{name: name for name in others}}
    return {
        name: (lambda row: moment(row["recorded_ms"] / 1000)) if column == "time" else _value(column)
        for name, column in names.items()
    }


def _value(column: str) -> Callable[[Row], Any]:
    return lambda row: row[column]


def _sent(
    name: str, tables: Tables, read: Callable[[At], Page[T]], columns: downloads.Columns[T]
) -> StreamingResponse:
    """Send a list in parts. An error of the first part is a page; one of a later part breaks the download off."""
    parts: Iterator[bytes] = downloads.lines(tables, read, columns)
    first = next(parts)
    headers = {"Content-Disposition": f'attachment; filename="storeside-{name}.csv"'}
    return StreamingResponse(chain([first], parts), media_type="text/csv", headers=headers)
