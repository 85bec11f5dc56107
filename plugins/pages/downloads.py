"""Downloads: each list as CSV, with the filter and the order of its page."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain
from typing import Any, TypeVar

from airflow.api_fastapi.core_api.security import GetUserDep
from fastapi import APIRouter, HTTPException, Response
from fastapi.responses import StreamingResponse

from storeside.pages import destinations, downloads, movement, objects, quality, queues
from storeside.pages.downloads import PART, moment
from storeside.pages.movement import Movement
from storeside.pages.quality import Verdict
from storeside.pages.tables import At, Page, Tables
from storeside.plugins.pages.access import TablesDep, may_read_runs
from storeside.plugins.pages.movement import chosen_stage

router = APIRouter()
T = TypeVar("T")
Row = dict[str, Any]


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
    order: str = "asc",
) -> Response:  # fmt: skip
    """Send the copied and transformed objects."""
    wanted = objects.Search(text, bucket, status, not begins, sort, order)
    names = {"object": "object", "source": "source", "result": "destination_object", "destination": "destination"}
    columns = _columns(names, "status", "bytes_in", "bytes_out", "time", "run_id", "reason")
    return _sent("objects", tables, lambda at: objects.search(tables, wanted, at, PART), columns)


@router.get("/loads.csv")
def of_loads(
    tables: TablesDep, text: str = "", bucket: str = "", status: str = "", begins: bool = False, sort: str = "name",
    order: str = "asc",
) -> Response:  # fmt: skip
    """Send the objects that were loaded, or were to be loaded, into tables."""
    wanted = objects.Search(text, bucket, status, not begins, sort, order)
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
