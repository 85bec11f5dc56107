"""Overview: one row per pipeline, with its last runs, its lag, and what needs attention."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

from airflow.api_fastapi.core_api.security import GetUserDep
from fastapi import APIRouter, Request, Response

from storeside.pages import overview
from storeside.pages.overview import Pipeline
from storeside.pages.tables import Tables
from storeside.plugins.pages import runs
from storeside.plugins.pages.access import TablesDep, may_read_runs
from storeside.plugins.pages.render import query, render, span
from storeside.plugins.pages.runs import Latest, Run

router = APIRouter()
# Seconds that messages may wait before the page mentions it.
LATE_SECONDS = 900


@dataclass(frozen=True)
class Attention:
    """Something that needs attention, and the page that has the details."""

    text: str
    to: str


@dataclass(frozen=True)
class Row:
    """A pipeline, its newest runs, and what needs attention."""

    pipeline: Pipeline
    latest: Latest
    attention: tuple[Attention, ...]


@router.get("/overview")
def pipelines(request: Request, tables: TablesDep, user: GetUserDep, dag: str = "") -> Response:
    """Show all pipelines, those that need attention first."""
    missing: dict[str, str] = {}
    rows = rows_of(tables, user, dag, missing)
    half_failed = overview.partial_runs(tables, dag, missing)
    return render(
        request, "overview.html", title="Overview", rows=rows, dag=dag, days=overview.DAYS,
        failure_days=overview.FAILURE_DAYS, needing=sum(bool(row.attention) for row in rows),
        missing=missing, state_of=partial(_state, half_failed),
    )  # fmt: skip


def rows_of(tables: Tables, user: Any, dag: str, missing: dict[str, str]) -> list[Row]:
    """Return all pipelines, those that need attention first. `missing` gets the parts that could not be read."""
    recorded = {pipeline.dag: pipeline for pipeline in overview.pipelines(tables, dag, missing)}
    known = {
        name: found
        for name, found in runs.latest(list(recorded), dag, tables.dags).items()
        if may_read_runs(user, name)
    }
    rows = [_row(recorded.get(name, Pipeline(name)), known.get(name, Latest())) for name in {**recorded, **known}]
    return sorted(rows, key=lambda row: (not row.attention, row.pipeline.dag.lower()))


def _state(half_failed: Collection[tuple[str, str]], run: Run) -> str:
    """Return the state to show for a run: a success in which objects failed is partial."""
    return "partial" if run.state == "success" and (run.dag, run.run) in half_failed else run.state


def _row(pipeline: Pipeline, latest: Latest) -> Row:
    return Row(pipeline, latest, tuple(_attention(pipeline, latest)))


def _attention(pipeline: Pipeline, latest: Latest) -> Iterator[Attention]:
    last = latest.last_ended
    if last and last.state == "failed":
        count = latest.failed_in_a_row
        more = " or more" if count == runs.MOST_RUNS else ""
        text = "The last run failed" if count == 1 else f"The last {count}{more} runs failed"
        yield Attention(text, f"run?{query(dag=last.dag, run=last.run)}")
    if pipeline.failed:
        least = "At least " if pipeline.more else ""
        text = f"{least}{_counted(pipeline.failed, 'object')} failed and not processed since"
        yield Attention(text, f"run?{query(dag=pipeline.dag, run=pipeline.failed_run, status='failed')}")
    for queue in pipeline.queues:
        if queue.dead:
            text = _counted(queue.dead, "dead letter") + f" in {queue.label}"
            yield Attention(text, f"queues?{query(queue=queue.label)}")
        if queue.oldest_seconds > LATE_SECONDS:
            text = f"Messages in {queue.label} wait for {span(queue.oldest_seconds)}"
            if pipeline.is_old:
                text = f"Messages in {queue.label} waited for {span(queue.oldest_seconds)} at the last measurement"
            yield Attention(text, f"queues?{query(queue=queue.label)}")


def _counted(count: int, what: str) -> str:
    return f"{count:,} {what}" + "s" * (count != 1)
